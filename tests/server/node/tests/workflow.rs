//! Leases on tasks, against the real server (item 37).

use node_tests::{Server, key_of};
use rustix::process::Signal;
use serde_json::{Value, json};

const TASK: &str = "11111111-1111-4111-8111-111111111111";

fn ask(server: &Server, what: &str, holder: &str, more: Value) -> (u16, Value) {
    let mut order = json!({ "task_id": TASK, "holder": holder });
    order
        .as_object_mut()
        .expect("it is")
        .extend(more.as_object().expect("it is").clone());
    let answer = server.post(&format!("/v1/workflow/{what}"), &order);
    (
        answer.status,
        if answer.body.is_empty() {
            Value::Null
        } else {
            answer.json()
        },
    )
}

#[test]
fn a_task_has_one_holder_at_a_time_who_can_go_on_after_a_crash() {
    let server = Server::new();
    let (status, started) = ask(&server, "start", "one", json!({ "idempotency": "first" }));
    assert_eq!(
        (status, &started["status"]),
        (200, &json!("started")),
        "{started}"
    );
    let (status, refused) = ask(&server, "start", "two", json!({}));
    assert_eq!(
        (status, refused["code"].as_str()),
        (409, Some("conflict")),
        "{refused}"
    );
    let (status, again) = ask(&server, "start", "one", json!({}));
    assert_eq!(
        (status, &again["status"], &again["run_id"]),
        (200, &json!("already_running"), &started["run_id"])
    );
    let (_, replay) = ask(&server, "start", "one", json!({ "idempotency": "first" }));
    assert_eq!(
        replay["status"], "started",
        "the same request has the same answer"
    );
    assert_eq!(
        ask(&server, "checkpoint", "two", json!({ "checkpoint": 1 })).0,
        409
    );
    assert_eq!(
        ask(
            &server,
            "checkpoint",
            "one",
            json!({ "checkpoint": { "step": 3 } })
        )
        .0,
        204
    );
    let server = server.restart(Signal::KILL, "");
    let (status, resumed) = ask(&server, "resume", "one", json!({}));
    assert_eq!(
        (status, &resumed["checkpoint"]),
        (200, &json!({ "step": 3 }))
    );
    assert_eq!(resumed["run_id"], started["run_id"]);
    assert_eq!(ask(&server, "resume", "two", json!({})).0, 409);
    assert_eq!(ask(&server, "release", "two", json!({})).0, 409);
    assert_eq!(
        [0, 0].map(|_| ask(&server, "release", "one", json!({})).0),
        [204, 204]
    );
    let (status, next) = ask(&server, "start", "two", json!({}));
    assert_eq!((status, &next["status"]), (200, &json!("started")));
    assert_ne!(next["run_id"], started["run_id"]);
}

#[test]
fn a_lease_that_is_over_can_be_taken_with_its_checkpoint() {
    let server = Server::new();
    ask(&server, "start", "one", json!({ "lease_seconds": 1 }));
    ask(
        &server,
        "checkpoint",
        "one",
        json!({ "checkpoint": "far", "lease_seconds": 1 }),
    );
    server.until("its end", || {
        ask(&server, "resume", "two", json!({})).0 == 200
    });
    let (_, resumed) = ask(&server, "resume", "two", json!({}));
    assert_eq!(resumed["checkpoint"], "far");
    assert_eq!(
        ask(
            &server,
            "checkpoint",
            "one",
            json!({ "checkpoint": "late" })
        )
        .0,
        409
    );
}

#[test]
fn tenants_have_tasks_of_their_own_and_what_is_too_much_is_refused() {
    let server = Server::new();
    assert_eq!(ask(&server, "resume", "one", json!({})).0, 404);
    ask(&server, "start", "one", json!({}));
    let stranger = key_of(&server, "else", &["runs"]);
    let order = json!({ "task_id": TASK, "holder": "two" });
    assert_eq!(
        server
            .ask(&stranger, "POST", "/v1/workflow/resume", &[], &order)
            .status,
        404
    );
    assert_eq!(
        server
            .ask(&stranger, "POST", "/v1/workflow/start", &[], &order)
            .status,
        200
    );
    assert_eq!(
        server
            .ask("", "POST", "/v1/workflow/start", &[], &order)
            .status,
        401
    );
    let large = json!({ "checkpoint": "x".repeat(256 << 10) });
    assert_eq!(ask(&server, "checkpoint", "one", large).0, 413);
    for (holder, more) in [
        ("", json!({})),
        ("a b", json!({})),
        ("x", json!({ "lease_seconds": 0 })),
        ("x", json!({ "lease_seconds": 86_401 })),
        ("x", json!({ "task_id": "..", })),
        ("x", json!({ "version": 2 })),
        ("x", json!({ "unknown": 2 })),
    ] {
        assert_eq!(
            ask(&server, "start", holder, more.clone()).0,
            400,
            "{holder} {more}"
        );
    }
}

#[test]
fn a_lease_stays_as_long_as_it_was_and_a_checkpoint_as_it_was_written() {
    let server = Server::new();
    let hours = |told: &Value| {
        let at = |moment: &str| {
            let date = std::process::Command::new("date")
                .args(["-d", moment, "+%s"])
                .output()
                .expect("date");
            String::from_utf8(date.stdout)
                .expect("text")
                .trim()
                .parse::<i64>()
                .expect("seconds")
        };
        (at(told["expires_at"].as_str().expect("a moment")) - at("now")) as f64 / 3600.0
    };
    let (_, usual) = ask(&server, "start", "one", json!({}));
    assert!(hours(&usual) < 0.2, "the control: {usual}");
    let (_, long) = ask(&server, "start", "one", json!({ "lease_seconds": 36_000 }));
    assert!(hours(&long) > 9.0, "{long}");
    // Numbers that no machine word holds, and as many digits as were written.
    let written = r#"{"n":123456789012345678901234567890,"f":0.10,"b":18446744073709551616}"#;
    let body = format!(r#"{{"task_id":"{TASK}","holder":"one","checkpoint":{written}}}"#);
    let head = format!(
        "POST /v1/workflow/checkpoint HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        server.client.host(),
        server.admin,
        body.len()
    );
    assert_eq!(
        server
            .client
            .open(&[head, body].concat().into_bytes())
            .answer()
            .status,
        204
    );
    let resumed = server.post(
        "/v1/workflow/resume",
        &json!({ "task_id": TASK, "holder": "one" }),
    );
    assert!(
        resumed
            .text()
            .contains(&format!(r#""checkpoint":{written}"#)),
        "{}",
        resumed.text()
    );
    assert!(hours(&resumed.json()) > 9.0, "{}", resumed.text());
    let (_, short) = ask(&server, "resume", "one", json!({ "lease_seconds": 60 }));
    assert!(hours(&short) < 0.1, "he may say so: {short}");
}
