//! Sessions of the worker API, against the real server. Each claim names the item of the acceptance list that it proves.

use base64::{Engine, engine::general_purpose::STANDARD};
use node_tests::{Server, is_running, key_of};
use serde_json::{Value, json};

const TASK: &str = "11111111-1111-4111-8111-111111111111";
const OTHER: &str = "33333333-3333-4333-8333-333333333333";
const SESSION: &str = "22222222-2222-4222-8222-222222222222";
const ALL: &str = "/v1/worker/sessions";

fn order(more: Value) -> Value {
    let mut order = json!({ "version": 1, "task_id": TASK });
    order
        .as_object_mut()
        .expect("it is")
        .extend(more.as_object().expect("it is").clone());
    order
}

fn exec(server: &Server, script: &str) -> Value {
    let asked = order(json!({ "command": ["sh", "-c", script] }));
    let answer = server.post(&format!("{ALL}/{SESSION}/exec"), &asked);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Item 39.
#[test]
fn programs_of_a_session_share_what_they_write_until_it_is_ended() {
    let server = Server::new();
    let made = server.post(
        ALL,
        &order(json!({ "session_id": SESSION, "env": { "X": "y" } })),
    );
    assert_eq!(
        (made.status, made.json()["session_id"].as_str()),
        (201, Some(SESSION)),
        "{}",
        made.text()
    );
    assert_eq!(
        exec(&server, "echo $X > file; cd /tmp; pwd")["stdout"],
        "/tmp\n"
    );
    let second = exec(&server, "cat file; echo err >&2; exit 4");
    assert_eq!(
        (&second["stdout"], &second["stderr"]),
        (&json!("y\n"), &json!("err\n"))
    );
    assert_eq!(
        (&second["status"], &second["exit_code"]),
        (&json!("failed"), &json!(4))
    );
    let bytes: Vec<u8> = (0..=255).collect();
    let typed =
        order(json!({ "command": ["cat"], "stdin_b64": STANDARD.encode("typed"), "cwd": "/tmp" }));
    assert_eq!(
        server.post(&format!("{ALL}/{SESSION}/exec"), &typed).json()["stdout"],
        "typed"
    );
    let late = order(json!({ "command": ["sleep", "300"], "timeout_seconds": 1 }));
    let late = server.post(&format!("{ALL}/{SESSION}/exec"), &late).json();
    assert_eq!(
        (&late["status"], &late["reason"]),
        (&json!("timeout"), &json!("timeout")),
        "as of a job"
    );
    let sandbox = made.json()["sandbox_id"]
        .as_str()
        .expect("its name")
        .to_owned();
    let path = format!("/v1/sandboxes/{sandbox}/files/bin");
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: 256\r\n\r\n",
        server.client.host(),
        server.admin
    );
    let put = server
        .client
        .open(&[head.as_bytes(), &bytes].concat())
        .answer();
    assert!(put.status < 300, "{}", put.text());
    assert_eq!(
        exec(&server, "wc -c < bin")["stdout"]
            .as_str()
            .map(str::trim),
        Some("256")
    );
    assert_eq!(server.get(&path).body, bytes);
    let end = || server.post(&format!("{ALL}/{SESSION}/end"), &order(json!({})));
    assert_eq!(
        (end().status, end().status),
        (200, 200),
        "again changes nothing"
    );
    assert_eq!(end().json()["status"], "ended");
    let after = server.post(
        &format!("{ALL}/{SESSION}/exec"),
        &order(json!({ "command": ["true"] })),
    );
    assert_eq!(
        (after.status, after.json()["type"].as_str()),
        (404, Some("urn:cynodeai:error:not_found"))
    );
}

/// Item 39: names are of one task and one tenant.
#[test]
fn a_session_is_found_only_by_its_own_task_and_tenant() {
    let server = Server::new();
    let first = server.post(ALL, &order(json!({ "session_id": SESSION })));
    let again = server.post(ALL, &order(json!({ "session_id": SESSION })));
    assert_eq!(
        (again.status, again.json()["sandbox_id"].clone()),
        (201, first.json()["sandbox_id"].clone())
    );
    assert_eq!(
        server
            .post(
                ALL,
                &order(json!({ "session_id": SESSION, "env": { "A": "b" } }))
            )
            .status,
        409
    );
    let wrong = json!({ "version": 1, "task_id": OTHER, "command": ["true"] });
    assert_eq!(
        server.post(&format!("{ALL}/{SESSION}/exec"), &wrong).status,
        404
    );
    let path = format!("{ALL}/{SESSION}");
    assert_eq!(server.get(&path).status, 200, "the control");
    assert_eq!(server.get(&format!("{path}?task_id={OTHER}")).status, 404);
    let stranger = key_of(&server, "else", &["sandboxes"]);
    assert_eq!(
        server
            .ask(&stranger, "GET", &path, &[], &Value::Null)
            .status,
        404
    );
    let theirs = server.ask(
        &stranger,
        "POST",
        ALL,
        &[],
        &order(json!({ "session_id": SESSION })),
    );
    assert_eq!(
        theirs.status,
        201,
        "the same name is another tenant's as well: {}",
        theirs.text()
    );
    for id in ["..", "x", "..%2f.."] {
        assert!(matches!(
            server.get(&format!("{ALL}/{id}")).status,
            400 | 404
        ));
    }
    for bad in [
        json!({ "version": 2, "task_id": TASK }),
        json!({ "version": 1, "task_id": "..", }),
        json!({}),
    ] {
        assert_eq!(server.post(ALL, &bad).status, 400);
    }
    assert_eq!(
        server
            .post(ALL, &order(json!({ "privileged": true })))
            .status,
        400
    );
}

/// Item 40.
#[test]
fn a_session_ends_by_itself_when_its_time_is_over_or_nobody_uses_it() {
    let server = Server::new();
    for (field, reason) in [("lifetime_seconds", "lifetime"), ("idle_seconds", "idle")] {
        let made = server.post(ALL, &order(json!({ field: 3 }))).json();
        let path = format!("{ALL}/{}", made["session_id"].as_str().expect("its name"));
        // Left behind by its program, it lives as long as its box.
        let marker = format!("60{}.{}", field.len(), std::process::id());
        let script = format!("sleep {marker} >/dev/null 2>&1 &");
        let left = server.post(
            &format!("{path}/exec"),
            &order(json!({ "command": ["sh", "-c", script] })),
        );
        assert_eq!(left.json()["exit_code"], 0, "{}", left.text());
        server.until("what is left behind", || is_running(&["sleep", &marker]));
        server.until("its end", || server.get(&path).json()["status"] == "ended");
        assert_eq!(server.get(&path).json()["reason"], reason);
        assert!(!is_running(&["sleep", &marker]), "its box is gone");
        let after = server.post(
            &format!("{path}/exec"),
            &order(json!({ "command": ["true"] })),
        );
        assert_eq!(after.status, 404);
    }
}

/// As of a job: the beginning, however much came behind it, and no half of a character.
#[test]
fn of_long_output_the_beginning_is_told() {
    let server = Server::new();
    assert_eq!(
        server
            .post(ALL, &order(json!({ "session_id": SESSION })))
            .status,
        201
    );
    // More than is kept for whoever reads it later, on both streams.
    let told = exec(
        &server,
        "printf a; yes €€€€€€€ | head -c 6000000; seq 1 1000000 >&2",
    );
    let text = |name: &str| told[name].as_str().expect("text").to_owned();
    let (stdout, stderr) = (text("stdout"), text("stderr"));
    assert!(
        stdout.starts_with("a€€€€€€€\n€"),
        "{}",
        stdout.chars().take(20).collect::<String>()
    );
    assert!(
        (262_141..=262_144).contains(&stdout.len()) && !stdout.contains('\u{fffd}'),
        "{}",
        stdout.len()
    );
    assert!(
        stderr.starts_with("1\n2\n3\n") && stderr.len() == 262_144,
        "{}",
        stderr.len()
    );
    assert_eq!(told["truncated"], json!({ "stdout": true, "stderr": true }));
    let whole = exec(&server, "printf €; printf e >&2");
    assert_eq!(
        (&whole["stdout"], &whole["stderr"]),
        (&json!("€"), &json!("e")),
        "the control"
    );
    assert_eq!(
        whole["truncated"],
        json!({ "stdout": false, "stderr": false })
    );
}

/// Item 39: before it ends.
#[test]
fn what_a_program_writes_is_followed_while_it_runs() {
    let server = Server::new();
    let made = server.post(ALL, &order(json!({ "session_id": SESSION })));
    let sandbox = format!(
        "/v1/sandboxes/{}",
        made.json()["sandbox_id"].as_str().expect("its name")
    );
    let script = "echo one; until [ -e go ]; do sleep 0.01; done; echo two";
    let asked = order(json!({ "command": ["sh", "-c", script] }));
    let asked = server.request(
        &server.admin,
        "POST",
        &format!("{ALL}/{SESSION}/exec"),
        &[],
        &asked,
    );
    let mut exec = server.client.open(&asked);
    server.until("its start", || {
        server.get(&format!("{sandbox}/logs")).status == 200
    });
    let follow = server.request(
        &server.admin,
        "GET",
        &format!("{sandbox}/logs?follow=true"),
        &[],
        &Value::Null,
    );
    let mut followed = server.client.open(&follow);
    let seen = |stream: &gateway_tests::Stream| String::from_utf8_lossy(&stream.rest).into_owned();
    while !seen(&followed).contains("one\n") {
        assert!(followed.read(), "it is followed: {}", seen(&followed));
    }
    assert!(!seen(&followed).contains("two"), "it still runs");
    let head = format!(
        "PUT {sandbox}/files/go HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
        server.client.host(),
        server.admin
    );
    assert!(server.client.open(head.as_bytes()).answer().status < 300);
    while !seen(&followed).contains("two\n") {
        assert!(
            followed.read(),
            "it is followed to its end: {}",
            seen(&followed)
        );
    }
    assert_eq!(exec.answer().json()["stdout"], "one\ntwo\n");
}
