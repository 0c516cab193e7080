//! What the server says of itself: its description, its numbers, its log.

use gateway_tests::Server;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;

#[test]
fn the_description_that_is_checked_in_is_the_one_that_is_served() {
    let server = Server::new();
    let served = server.ask("", "GET", "/openapi.json", &[], &Value::Null);
    assert_eq!(served.json()["openapi"], "3.1.0");
    let written =
        fs::read_to_string(cli::repository().join("docs/openapi.json")).unwrap_or_default();
    assert!(
        served.text() == written,
        "docs/openapi.json is not what the code says: airlock serve --print-openapi > docs/openapi.json"
    );
}

#[test]
fn every_path_that_is_described_needs_a_key_unless_it_says_so() {
    let server = Server::new();
    let document = server
        .ask("", "GET", "/openapi.json", &[], &Value::Null)
        .json();
    let mut seen = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, told) in methods.as_object().unwrap() {
            let open = told["security"] == json!([{}]);
            let path = path.replace(['{', '}'], "");
            let status = server
                .ask("", &method.to_uppercase(), &path, &[], &Value::Null)
                .status;
            assert_eq!(status == 401, !open, "{method} {path}: {status}");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn numbers_count_runs_and_requests_by_nothing_that_a_client_chooses() {
    let server = Server::new();
    server.post(
        "/v1/runs",
        &json!({ "command": ["true"], "run_id": "chosen" }),
    );
    server.get("/v1/runs/chosen");
    server.get("/chosen/path");
    server.ask(&server.admin, "CHOSEN", "/v1/runs", &[], &Value::Null);
    let text = server.get("/metrics").text();
    assert!(
        text.contains("airlock_runs_total{status=\"succeeded\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("route=\"/v1/runs/{id}\",status=\"200\"} 1"),
        "{text}"
    );
    assert!(!text.to_lowercase().contains("chosen"), "{text}");
}

#[test]
fn a_line_a_request_goes_to_stderr_without_tokens() {
    let mut server = Server::with("", &[gateway_tests::LOUD]);
    server.post(
        "/v1/runs",
        &json!({ "command": ["true"], "env": { "A": "canary-value" } }),
    );
    let (_, said) = server.end(Signal::TERM);
    assert!(
        said.contains(" POST /v1/runs 200 ") && said.contains(&server.admin[4..20]),
        "{said}"
    );
    assert!(
        !said.contains(&server.admin[21..]) && !said.contains("canary-value"),
        "{said}"
    );
}
