//! Webhooks: notices about jobs, signed, delivered at least once and in order, to where the operator lets them go. The
//! receiver is the test's own, and signatures are checked by Python's.

use gateway_tests::receiver::{OPEN, ReceivedRequest, Receiver, fitting};
use node_tests::{Server, key_of};
use rustix::process::Signal;
use serde_json::{Value, json};

fn submit(server: &Server, key: &str, webhook: &Value) -> String {
    let order = json!({ "run": { "command": ["echo", "hello"] }, "webhook": webhook });
    let made = server.ask(key, "POST", "/v1/jobs", &[], &order);
    assert_eq!(made.status, 202, "{}", made.text());
    made.json()["job_id"].as_str().expect("a name").to_owned()
}

fn webhook(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/jobs/{id}")).json()["webhook"].clone()
}

/// Waits until the webhook of a job is so; what it is then.
fn until(server: &Server, id: &str, state: &str) -> Value {
    server.until(&format!("`{state}` of the webhook"), || {
        webhook(server, id)["state"] == state
    });
    webhook(server, id)
}

fn secret(server: &Server, key: &str) -> String {
    let answer = server.ask(key, "GET", "/v1/webhook-secret", &[], &Value::Null);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["secret"]
        .as_str()
        .expect("a secret")
        .to_owned()
}

#[test]
fn notices_come_in_order_with_the_job_and_a_signature_that_others_can_check() {
    let (server, receiver) = (Server::with(OPEN, &[]), Receiver::new());
    let key = key_of(&server, "anna", &["runs"]);
    let id = submit(
        &server,
        &key,
        &json!({ "url": receiver.url(), "events": ["final", "running"] }),
    );
    // That it runs may be delivered before it has ended.
    server.until("both notices", || receiver.seen().len() == 2);
    let told = until(&server, &id, "delivered");
    assert_eq!(
        told,
        json!({ "url": receiver.url(), "state": "delivered", "attempts": 2, "error": null })
    );
    let seen = receiver.seen();
    let kinds: Vec<_> = seen
        .iter()
        .map(|notice| notice.json()["type"].clone())
        .collect();
    assert_eq!(kinds, ["job.running", "job.final"]);
    assert_ne!(seen[0].header("webhook-id"), seen[1].header("webhook-id"));
    let last = &seen[1];
    assert_eq!(
        (last.line.as_str(), last.header("content-type")),
        ("POST /hook?token=1 HTTP/1.1", "application/json")
    );
    let data = &last.json()["data"];
    assert_eq!(
        (&data["job_id"], &data["status"]),
        (&json!(id), &json!("succeeded"))
    );
    assert_eq!(data["result"]["stdout"], "hello\n", "{data}");
    let own = secret(&server, &key);
    assert!(seen.iter().all(|notice| fitting(notice, &own) == [true]));
    let other = secret(&server, &key_of(&server, "berta", &["runs"]));
    assert_eq!(
        fitting(last, &other),
        [false],
        "everybody has a secret of his own"
    );
    let changed = ReceivedRequest {
        body: last.body.replace("succeeded", "failed"),
        ..last.clone()
    };
    assert_eq!(fitting(&changed, &own), [false], "the control");
    let stranger = server.key(&["usage"]);
    assert_eq!(
        server
            .ask(&stranger, "GET", "/v1/webhook-secret", &[], &Value::Null)
            .status,
        403
    );
}

#[test]
fn a_receiver_that_is_down_has_the_notice_once_it_is_up() {
    let server = Server::with(OPEN, &[]);
    let address = Receiver::free();
    let id = submit(
        &server,
        &server.admin,
        &json!({ "url": format!("http://{address}/x") }),
    );
    server.until("a failed attempt", || {
        webhook(&server, &id)["attempts"].as_u64() > Some(0)
    });
    let told = webhook(&server, &id);
    assert_eq!(
        (&told["state"], told["error"].is_string()),
        (&json!("waiting"), true),
        "{told}"
    );
    let receiver = Receiver::at(address);
    assert_eq!(until(&server, &id, "delivered")["error"], Value::Null);
    assert_eq!(receiver.seen().len(), 1);
}

#[test]
fn a_notice_outlasts_its_server_and_is_known_again() {
    let (server, receiver) = (Server::with(OPEN, &[]), Receiver::new());
    receiver.answers("503 Not Now");
    let id = submit(&server, &server.admin, &json!({ "url": receiver.url() }));
    server.until("an attempt", || receiver.seen().len() == 1);
    let before = secret(&server, &server.admin);
    let server = server.restart(Signal::KILL, OPEN);
    until(&server, &id, "delivered");
    let seen = receiver.seen();
    let first = seen[0].header("webhook-id");
    assert!(
        seen.len() > 1
            && seen
                .iter()
                .all(|notice| notice.header("webhook-id") == first),
        "{seen:?}"
    );
    assert_eq!(
        seen.last().map(|notice| fitting(notice, &before)),
        Some(vec![true]),
        "the secret outlasts it, too"
    );
}

#[test]
fn private_addresses_and_plain_http_are_refused_unless_the_operator_says_so() {
    let receiver = Receiver::new();
    let server = Server::with("[webhooks]\nallow_plain_http = true\n", &[]);
    let port = receiver.address.port();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        "http://169.254.169.254/".into(),
        "gopher://x/".into(),
    ] {
        let order = json!({ "run": { "command": ["true"] }, "webhook": { "url": url } });
        let refused = server.post("/v1/jobs", &order);
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (400, &json!("invalid_spec")),
            "{url}"
        );
    }
    let id = submit(
        &server,
        &server.admin,
        &json!({ "url": format!("http://localhost:{port}/") }),
    );
    let told = until(&server, &id, "given_up");
    assert!(
        told["error"]
            .as_str()
            .is_some_and(|why| why.contains("private")),
        "{told}"
    );
    assert_eq!(receiver.seen().len(), 0, "nobody was dialled");
    let usual = Server::new();
    let order =
        json!({ "run": { "command": ["true"] }, "webhook": { "url": "http://example.com/" } });
    assert_eq!(
        usual.post("/v1/jobs", &order).status,
        400,
        "readable for everybody on the way"
    );
    for (host, state) in [
        ("localhost".to_owned(), "given_up"),
        (format!("localhost:{port}"), "delivered"),
    ] {
        let config = format!("[webhooks]\nallow_plain_http = true\nhosts = [\"{host}\"]\n");
        let listed = Server::with(&config, &[]);
        let id = submit(
            &listed,
            &listed.admin,
            &json!({ "url": format!("http://localhost:{port}/") }),
        );
        until(&listed, &id, state);
    }
}

#[test]
fn a_redirect_is_not_followed_and_giving_up_is_told() {
    let (receiver, elsewhere) = (Receiver::new(), Receiver::new());
    let server = Server::with(&format!("{OPEN}attempts = 2\n"), &[]);
    for answer in [
        format!("307 Elsewhere\r\nlocation: {}", elsewhere.url()),
        "500 No".to_owned(),
    ] {
        receiver.answers(&answer);
    }
    let id = submit(&server, &server.admin, &json!({ "url": receiver.url() }));
    let told = until(&server, &id, "given_up");
    assert_eq!(
        (&told["attempts"], &told["error"]),
        (
            &json!(2),
            &json!("the receiver answered 500; given up after 2 attempts")
        )
    );
    assert_eq!((receiver.seen().len(), elsewhere.seen().len()), (2, 0));
    assert_eq!(
        server.get(&format!("/v1/jobs/{id}")).json()["status"],
        "succeeded",
        "the job is well all the same"
    );
    receiver.answers("410 Gone");
    let id = submit(&server, &server.admin, &json!({ "url": receiver.url() }));
    assert_eq!(
        until(&server, &id, "given_up")["attempts"],
        1,
        "it wants no more"
    );
}

#[test]
fn a_renewed_secret_signs_and_for_a_day_so_does_the_one_before() {
    let (server, receiver) = (Server::with(OPEN, &[]), Receiver::new());
    let before = secret(&server, &server.admin);
    let renewed = server.post("/v1/webhook-secret/rotate", &Value::Null);
    assert_eq!(renewed.status, 200, "{}", renewed.text());
    assert!(renewed.json()["previous_until"].is_string());
    let now = secret(&server, &server.admin);
    assert_eq!(renewed.json()["secret"], json!(now));
    assert_ne!(before, now);
    let id = submit(&server, &server.admin, &json!({ "url": receiver.url() }));
    until(&server, &id, "delivered");
    let notice = &receiver.seen()[0];
    assert_eq!(
        (fitting(notice, &now), fitting(notice, &before)),
        (vec![true, false], vec![false, true])
    );
}

#[test]
fn a_job_that_is_in_vain_from_the_beginning_tells_of_its_end() {
    let (server, receiver) = (Server::with(OPEN, &[]), Receiver::new());
    let parent = server
        .post("/v1/jobs", &json!({ "run": { "command": ["false"] } }))
        .json();
    let parent = parent["job_id"].as_str().expect("a name").to_owned();
    server.until("its end", || {
        server.get(&format!("/v1/jobs/{parent}")).json()["status"] == "failed"
    });
    let order = json!({ "run": { "command": ["true"] }, "after": [parent], "webhook": { "url": receiver.url() } });
    let child = server.post("/v1/jobs", &order).json();
    assert_eq!(child["status"], "cancelled", "{child}");
    let id = child["job_id"].as_str().expect("a name");
    until(&server, id, "delivered");
    assert_eq!(receiver.seen()[0].json()["data"]["status"], "cancelled");
    let lines = server.get("/v1/audit?limit=1000").json();
    let lines = lines["lines"].as_array().expect("lines");
    assert!(
        lines
            .iter()
            .any(|line| line["what"] == "job.end" && line["job"] == id),
        "{lines:?}"
    );
}
