//! Whatever is wrong with a request, the answer is a problem document with a code.

use gateway_tests::{Answer, Server};
use serde_json::{Value, json};

fn is_problem(answer: &Answer, what: &str) {
    assert!(
        (400..600).contains(&answer.status),
        "{what}: {} {}",
        answer.status,
        answer.text()
    );
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{what}: {}",
        answer.text()
    );
    let told = answer.json();
    assert!(
        told["code"].is_string() && told["title"].is_string(),
        "{what}: {told}"
    );
    assert_eq!(told["status"], answer.status, "{what}");
}

/// Every path of the description, with its methods.
fn described(server: &Server) -> Vec<(String, Vec<String>)> {
    let document = server
        .ask("", "GET", "/openapi.json", &[], &Value::Null)
        .json();
    let paths = document["paths"].as_object().expect("paths").iter();
    let methods = |told: &Value| {
        told.as_object()
            .expect("methods")
            .keys()
            .map(|name| name.to_uppercase())
            .collect()
    };
    paths
        .map(|(path, told)| (path.clone(), methods(told)))
        .collect()
}

/// The path with this in the place of every name.
fn filled(path: &str, with: &str) -> String {
    let parts = path
        .split('/')
        .map(|part| if part.starts_with('{') { with } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn every_route_answers_a_bad_path_query_and_method_with_a_problem() {
    let server = Server::new();
    let routes = described(&server);
    assert!(routes.len() > 20, "{}", routes.len());
    for (path, methods) in &routes {
        for method in methods {
            let ask = |path: &str| server.ask(&server.admin, method, path, &[], &json!({}));
            if path.contains('{') {
                for bad in ["%ff", "%00", "..%2f..", &"x".repeat(3000)] {
                    let answer = ask(&filled(path, bad));
                    // Artifacts are named by bytes.
                    let is_name = path.starts_with("/v1/artifacts/") && bad == "%ff";
                    if !(is_name && answer.status < 300) {
                        is_problem(&answer, &format!("{method} {path} with {bad:.9}"));
                    }
                }
            }
        }
        let has_query = |method: &&String| **method == "GET" && path.starts_with("/v1/");
        for method in methods.iter().filter(has_query) {
            let bad = format!(
                "{}?limit=x&no_such=1&version=x&wait=x",
                filled(path, "none")
            );
            // A route without questions does not look at them.
            let answer = server.ask(&server.admin, method, &bad, &[], &Value::Null);
            if answer.status >= 400 {
                is_problem(&answer, &format!("{method} {bad}"));
            }
        }
        is_problem(
            &server.ask(
                &server.admin,
                "PATCH",
                &filled(path, "none"),
                &[],
                &json!({}),
            ),
            path,
        );
    }
    for path in [
        "/",
        "/v1",
        "/v1/nothing",
        "/v1/runs/",
        "/%ff",
        "/v1/runs/a/b/c",
    ] {
        is_problem(&server.get(path), path);
    }
}

#[test]
fn questions_that_a_route_does_not_know_are_problems() {
    let server = Server::new();
    for path in [
        "/v1/runs?limit=x",
        "/v1/runs?no_such=1",
        "/v1/artifacts?limit=-1",
        "/v1/usage?by=colour",
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 400, "{path}");
        is_problem(&answer, path);
    }
    let image = server.ask(
        &server.admin,
        "POST",
        "/v1/images?no_such=1",
        &[],
        &Value::Null,
    );
    assert_eq!(image.status, 400);
    is_problem(&image, "images");
}

#[test]
fn a_body_that_is_too_large_for_any_route_is_a_problem_of_its_own() {
    let server = Server::with("[serve]\nbody = \"4M\"\n", &[]);
    let large = |size: usize| json!({ "no_such": "x".repeat(size) });
    // For what is not there no body is read.
    let none = server.ask(
        &server.admin,
        "POST",
        "/v1/workspaces/none/commit",
        &[],
        &large(5 << 20),
    );
    assert_eq!(none.status, 404, "{}", none.text());
    for path in ["/v1/runs", "/v1/sandboxes", "/v1/keys"] {
        let over = server.ask(&server.admin, "POST", path, &[], &large(5 << 20));
        assert_eq!(over.status, 413, "{path}");
        is_problem(&over, path);
        // More than the framework would take by itself.
        let under = server.ask(&server.admin, "POST", path, &[], &large(3 << 20));
        assert_eq!(under.status, 400, "{path}");
        is_problem(&under, path);
    }
    let kinds = [("content-type", "text/plain")];
    let answer = server.ask(
        &server.admin,
        "POST",
        "/v1/runs",
        &kinds,
        &json!({ "command": ["true"] }),
    );
    assert_eq!(answer.status, 200, "a body is JSON whatever it is called");
}

#[test]
fn hints_are_in_words_of_http_and_name_the_field() {
    let server = Server::new();
    let problem = |body: &Value| server.post("/v1/runs", body).json();
    let none = problem(&json!({}));
    let hint = none["detail"].as_str().unwrap();
    assert!(
        hint.contains("`command`") && !hint.contains("airlock run"),
        "{none}"
    );
    let text = problem(&json!({ "command": "echo \"hi\"" }));
    let title = text["title"].as_str().unwrap();
    assert!(title.contains("`command`: invalid type: string"), "{text}");
    assert!(
        !title.contains("\\\\\""),
        "nothing is escaped twice: {text}"
    );
    let good = problem(&json!({ "command": ["true"] }));
    assert_eq!(good["status"], "succeeded", "the control: {good}");
}

#[test]
fn a_file_below_a_folder_that_is_missing_is_told_how_that_is_made() {
    let server = Server::new();
    let sandbox = server.post("/v1/sandboxes", &json!({})).json();
    let id = sandbox["sandbox_id"].as_str().unwrap();
    let file = format!("/v1/sandboxes/{id}/files/sub/x");
    let put = |path: &str| server.ask(&server.admin, "PUT", path, &[], &json!("x"));
    let missing = put(&file);
    assert_eq!(missing.status, 404, "{}", missing.text());
    assert!(missing.text().contains("?mkdir=true"), "{}", missing.text());
    assert_eq!(put(&format!("{file}?mkdir=true")).status, 201);
    let absent = server.get(&format!("{file}y"));
    assert_eq!(absent.status, 404);
    assert!(!absent.text().contains("mkdir"), "{}", absent.text());
}
