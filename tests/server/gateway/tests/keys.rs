//! Keys: what they may do, how they end, and whose things are whose.

use gateway_tests::Server;
use serde_json::{Value, json};
use std::process::Command;

fn run(server: &Server, key: &str, body: Value) -> gateway_tests::Answer {
    server.ask(key, "POST", "/v1/runs", &[], &body)
}

#[test]
fn nobody_gets_in_without_a_good_key_and_the_answer_does_not_say_why() {
    let server = Server::new();
    let other = server.key(&["runs"]);
    let mut wrong = other.clone();
    wrong.replace_range(84.., if other.ends_with('0') { "1" } else { "0" });
    let statuses = |key: &str| server.ask(key, "GET", "/v1/runs", &[], &json!(null));
    assert_eq!(statuses(&other).status, 200, "the positive control");
    let unknown = format!("alk_{}_{}", "0".repeat(16), "0".repeat(64));
    let refused: Vec<_> = [wrong.as_str(), &unknown, "x"].map(statuses).to_vec();
    assert!(
        refused
            .iter()
            .all(|answer| answer.status == 401 && answer.text() == refused[0].text())
    );
    let none = statuses("");
    assert_eq!(
        (none.status, none.header("www-authenticate")),
        (401, Some("Bearer"))
    );
    assert_eq!(none.json()["code"], "unauthorized");
    assert_eq!(
        server
            .ask("", "GET", "/no/such/route", &[], &json!(null))
            .status,
        401
    );
    assert_eq!(server.get("/no/such/route").status, 404);
}

#[test]
fn a_key_may_do_what_its_scopes_say_and_nothing_else() {
    let server = Server::new();
    let (runs, usage) = (server.key(&["runs"]), server.key(&["usage"]));
    let order = json!({ "command": ["true"] });
    assert_eq!(run(&server, &runs, order.clone()).status, 200);
    let refused = run(&server, &usage, order);
    assert_eq!(refused.status, 403);
    assert_eq!(
        refused.json()["detail"],
        "ask for a key with the scope `runs`"
    );
    for (method, path) in [
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
        ("DELETE", "/v1/keys/x"),
    ] {
        let body = json!({ "name": "mine", "scopes": ["admin"] });
        assert_eq!(
            server.ask(&runs, method, path, &[], &body).status,
            403,
            "{method} {path}"
        );
    }
    let own = server.ask(&usage, "GET", "/v1/usage?by=tenant", &[], &json!(null));
    let told = own.json();
    let tenants: Vec<_> = told["rows"]
        .as_array()
        .expect("sums")
        .iter()
        .map(|row| &row["key"])
        .collect();
    let everybody = server.get("/v1/usage?by=tenant").json();
    assert!(
        own.status == 200 && tenants.is_empty(),
        "she has run nothing, and sees nobody else: {told}"
    );
    assert_eq!(
        everybody["rows"].as_array().map(Vec::len),
        Some(1),
        "the control: an admin sees {everybody}"
    );
}

#[test]
fn a_key_that_is_revoked_or_has_expired_is_good_for_nothing_at_once() {
    let server = Server::new();
    let key = server.key(&["runs"]);
    let status = |key: &str| server.ask(key, "GET", "/v1/runs", &[], &json!(null)).status;
    assert_eq!(status(&key), 200);
    let id = &key[4..20];
    assert_eq!(server.delete(&format!("/v1/keys/{id}")).status, 204);
    assert_eq!(
        (status(&key), server.delete("/v1/keys/nobody").status),
        (401, 404)
    );
    let body = json!({ "name": "short", "scopes": ["runs"], "expires_in": "5s" });
    let made = server.post("/v1/keys", &body).json();
    let short = made["token"].as_str().unwrap().to_owned();
    assert_eq!(status(&short), 200);
    server.until("the end of the key", || status(&short) == 401);
    let listed = server.get("/v1/keys").json();
    let revoked = listed["keys"]
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["id"] == id)
        .unwrap();
    assert!(
        revoked["revoked_at"].is_string()
            && revoked.get("token").is_none()
            && revoked.get("hash").is_none()
    );
}

#[test]
fn keys_made_and_revoked_beside_the_server_count_at_once() {
    let server = Server::new();
    let airlock = |words: &[&str]| {
        let mut command = Command::new(cli::airlock());
        command
            .args(words)
            .arg("--state")
            .arg(server.folder.at("state"));
        let output = command.env("HOME", &server.folder.0).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let key = airlock(&["key", "create", "--name", "ci", "--scope", "runs"]);
    let status = || {
        server
            .ask(&key, "GET", "/v1/runs", &[], &json!(null))
            .status
    };
    assert_eq!(status(), 200);
    assert!(airlock(&["key", "list"]).contains("ci "));
    airlock(&["key", "revoke", &key[4..20]]);
    assert_eq!(status(), 401);
}

#[test]
fn what_belongs_to_another_key_is_not_there() {
    let server = Server::new();
    let (mine, theirs) = (
        server.key(&["runs", "usage"]),
        server.key(&["runs", "usage"]),
    );
    let made = run(&server, &mine, json!({ "command": ["true"] })).json();
    let id = made["run_id"].as_str().unwrap();
    let ask =
        |key: &str, method: &str, path: &str| server.ask(key, method, path, &[], &json!(null));
    for path in [
        format!("/v1/runs/{id}"),
        format!("/v1/runs/{id}/events"),
        format!("/v1/usage?run={id}"),
    ] {
        let path = path.as_str();
        let (other, absent) = (
            ask(&theirs, "GET", path),
            ask(&theirs, "GET", &path.replace(id, "absent")),
        );
        assert_eq!((other.status, other.text()), (404, absent.text()), "{path}");
        assert_eq!(
            ask(&mine, "GET", path).status,
            200,
            "{path}: the positive control"
        );
        assert_eq!(
            ask(&server.admin, "GET", path).status,
            200,
            "{path}: an admin sees all"
        );
    }
    assert_eq!(
        ask(&theirs, "DELETE", &format!("/v1/runs/{id}")).status,
        404
    );
    let count = |key: &str| {
        ask(key, "GET", "/v1/runs").json()["runs"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(
        (count(&mine), count(&theirs), count(&server.admin)),
        (1, 0, 1)
    );
}

#[test]
fn what_reaches_past_the_box_is_only_for_an_admin() {
    let server = Server::new();
    let key = server.key(&["runs"]);
    let cases = [
        json!({ "command": ["true"], "network": "host" }),
        json!({ "command": ["true"], "run_id": "mine" }),
        json!({ "command": ["true"], "allow_protected": [".git/hooks"] }),
        json!({ "command": ["true"], "hide": ["none"] }),
        json!({ "command": ["true"], "profile": "permissive" }),
        json!({ "command": ["true"], "secrets": { "a": "B" }, "profile": "standard" }),
        json!({ "command": ["true"], "volumes": ["v:/v"], "backend": "docker", "image": "x" }),
    ];
    for body in cases {
        let answer = run(&server, &key, body);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (403, &json!("policy_denied"))
        );
    }
    for body in [
        json!({ "command": ["true"], "artifacts": ["x"] }),
        json!({ "command": ["true"], "inputs": [{ "name": "x", "artifact": "y" }] }),
    ] {
        let answer = run(&server, &key, body);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (403, &json!("forbidden")),
            "artifacts have their scope"
        );
    }
    let kept = server.key(&["runs", "artifacts"]);
    let order = json!({ "command": ["sh", "-c", "echo x > out"], "artifacts": ["out"] });
    assert_eq!(
        run(&server, &kept, order).json()["artifacts"][0]["name"],
        "out",
        "the positive control"
    );
    let admins = run(
        &server,
        &server.admin,
        json!({ "command": ["true"], "network": "host" }),
    );
    assert_eq!(
        admins.status,
        200,
        "the positive control: {}",
        admins.text()
    );
}
