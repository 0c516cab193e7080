//! One server, many who do not trust each other: what a key may name, and that it learns nothing of the others.

use gateway_tests::{Answer, Server};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;

fn run(server: &Server, key: &str, body: Value) -> Answer {
    server.ask(key, "POST", "/v1/runs", &[], &body)
}

/// Keeps some bytes as an artifact of this key's.
fn keep(server: &Server, key: &str, name: &str, text: &str) {
    let order = json!({ "command": ["sh", "-c", "printf %s \"$1\" > \"$2\"", "sh", text, name], "artifacts": [name] });
    let made = run(server, key, order);
    assert_eq!(
        (made.status, &made.json()["artifacts"][0]["name"]),
        (200, &json!(name)),
        "{}",
        made.text()
    );
}

#[test]
fn no_name_of_an_input_leads_to_a_file_of_the_host() {
    let server = Server::new();
    let key = server.key(&["runs", "artifacts", "sandboxes"]);
    let secret = server.folder.at("secret");
    fs::write(&secret, "only the host's").unwrap();
    keep(&server, &key, "x", "the artifact");
    let with = |name: &str, shown: &str| {
        let inputs = json!([{ "name": name, "artifact": "x" }]);
        run(
            &server,
            &key,
            json!({ "command": ["cat", shown], "inputs": inputs }),
        )
    };
    assert_eq!(
        with("y", "y").json()["stdout"],
        "the artifact",
        "the positive control"
    );
    let odd = format!("y={}", secret.display());
    let answer = with(&odd, "y");
    assert!(
        !answer.text().contains("only the host's"),
        "{}",
        answer.text()
    );
    assert_eq!(
        with(&odd, &odd).json()["stdout"],
        "the artifact",
        "it is a name like any other"
    );
    let order = json!({ "inputs": [{ "name": odd, "artifact": "x" }] });
    let made = server
        .ask(&key, "POST", "/v1/sandboxes", &[], &order)
        .json();
    let files = format!(
        "/v1/sandboxes/{}/files/y",
        made["sandbox_id"].as_str().unwrap()
    );
    let file = server.ask(&key, "GET", &files, &[], &Value::Null);
    assert!(!file.text().contains("only the host's"), "{}", file.text());
}

#[test]
fn a_promise_is_kept_with_the_run_of_whoever_was_promised_it_and_no_other() {
    let server = Server::new();
    let other = server.key(&["admin"]);
    let order = json!({ "command": ["echo", "first"], "run_id": "x" });
    let ask = |server: &Server| {
        server.ask(
            &other,
            "POST",
            "/v1/runs",
            &[("idempotency-key", "k")],
            &order,
        )
    };
    assert_eq!(ask(&server).json()["stdout"], "first\n");
    assert_eq!(
        ask(&server).json()["stdout"],
        "first\n",
        "the positive control"
    );
    server.post("/v1/runs", &json!({ "command": ["true"] }));
    // It forgets all but the newest run when it starts.
    let server = server.restart(Signal::TERM, "[serve]\nkeep_runs = 1\n");
    let theirs = server.post(
        "/v1/runs",
        &json!({ "command": ["echo", "somebody else's"], "run_id": "x" }),
    );
    assert_eq!(theirs.status, 200, "{}", theirs.text());
    let again = ask(&server);
    assert_eq!(
        (again.status, &again.json()["code"]),
        (410, &json!("lost")),
        "{}",
        again.text()
    );
}

#[test]
fn a_run_that_could_not_start_is_the_same_problem_after_a_restart() {
    let server = Server::new();
    let order = json!({ "command": ["true"], "image": "no/such:image" });
    let ask = |server: &Server| {
        let answer = server.ask(
            &server.admin,
            "POST",
            "/v1/runs",
            &[("idempotency-key", "k")],
            &order,
        );
        (
            answer.status,
            answer.header("content-type").map(str::to_owned),
            answer.json(),
        )
    };
    let first = ask(&server);
    assert_eq!((first.0, &first.2["code"]), (400, &json!("image_missing")));
    let server = server.restart(Signal::TERM, "");
    assert_eq!(ask(&server), first);
}

#[test]
fn nobody_but_an_admin_chooses_a_name_and_so_nobody_learns_who_has_one() {
    let server = Server::new();
    let key = server.key(&["runs", "sandboxes"]);
    assert_eq!(
        server
            .post(
                "/v1/runs",
                &json!({ "command": ["true"], "run_id": "taken" })
            )
            .status,
        200
    );
    let choose = |id: &str| run(&server, &key, json!({ "command": ["true"], "run_id": id }));
    let (taken, free) = (choose("taken"), choose("free"));
    assert_eq!((taken.status, taken.text()), (403, free.text()));
    for by in [&key, &server.admin] {
        let order =
            |id: Value| server.ask(by, "POST", "/v1/sandboxes", &[], &json!({ "run_id": id }));
        assert_eq!(
            order("taken".into()).status,
            400,
            "a sandbox has no chosen name at all"
        );
        assert_eq!(order(Value::Null).status, 201, "the positive control");
    }
}

#[test]
fn a_profile_that_shows_the_host_is_for_those_to_whom_the_operator_gives_it() {
    let order = |profile: &str| json!({ "command": ["ls", "/var/lib"], "profile": profile });
    let server = Server::new();
    let key = server.key(&["runs", "sandboxes"]);
    for fine in ["restrictive", "standard", "agent"] {
        assert_eq!(run(&server, &key, order(fine)).status, 200, "{fine}");
    }
    let refused = run(&server, &key, order("permissive"));
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (403, &json!("policy_denied"))
    );
    let order_box = json!({ "profile": "permissive" });
    assert_eq!(
        server
            .ask(&key, "POST", "/v1/sandboxes", &[], &order_box)
            .status,
        403
    );
    assert_eq!(
        server.post("/v1/runs", &order("permissive")).json()["exit_code"],
        0,
        "an admin may"
    );
    let server = Server::with("[serve]\nprofiles = [\"permissive\"]\n", &[]);
    let key = server.key(&["runs"]);
    assert_eq!(
        run(&server, &key, order("permissive")).json()["exit_code"],
        0,
        "it is listed"
    );
    assert_eq!(
        run(&server, &key, order("standard")).status,
        403,
        "and no other is"
    );
}

#[test]
fn whoever_may_not_keep_artifacts_keeps_none_by_another_way() {
    let server = Server::new();
    let order = json!({ "command": ["sh", "-c", "mkdir -p .artifacts; echo x > .artifacts/out; echo $? >&2"] });
    let count = || {
        server.get("/v1/artifacts").json()["artifacts"]
            .as_array()
            .unwrap()
            .len()
    };
    let made = run(&server, &server.key(&["runs"]), order.clone()).json();
    assert_eq!(
        (&made["exit_code"], &made["artifacts"], count()),
        (&json!(0), &json!([]), 0),
        "{made}"
    );
    let note = "no artifact was kept: whoever asked for this run may not keep any";
    assert!(
        made["notes"].as_array().unwrap().contains(&json!(note)),
        "{made}"
    );
    let made = run(&server, &server.key(&["runs", "artifacts"]), order).json();
    assert_eq!(
        (&made["artifacts"][0]["name"], count()),
        (&json!("out"), 1),
        "the positive control"
    );
}

#[test]
fn no_key_can_make_anothers_sandbox_and_its_promise_be_forgotten() {
    let server = Server::new();
    let [quiet, loud] = [(); 2].map(|()| server.key(&["sandboxes"]));
    let make = |key: &str, headers: &[(&str, &str)]| -> String {
        let made = server.ask(key, "POST", "/v1/sandboxes", headers, &json!({}));
        assert!(made.status < 300, "{}", made.text());
        made.json()["sandbox_id"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    let end = |key: &str, id: &str| {
        let ended = server.ask(
            key,
            "DELETE",
            &format!("/v1/sandboxes/{id}"),
            &[],
            &Value::Null,
        );
        assert_eq!(ended.status, 200, "{}", ended.text());
    };
    let promise = [("idempotency-key", "k")];
    let first = make(&quiet, &promise);
    end(&quiet, &first);
    assert_eq!(make(&quiet, &promise), first, "the positive control");
    // More than are remembered of one.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..130).for_each(|_| end(&loud, &make(&loud, &[]))));
        }
    });
    assert_eq!(make(&quiet, &promise), first);
    let shown = server.ask(
        &quiet,
        "GET",
        &format!("/v1/sandboxes/{first}"),
        &[],
        &Value::Null,
    );
    assert_eq!(shown.status, 200, "{}", shown.text());
}
