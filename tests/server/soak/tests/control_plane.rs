//! Group G of the escape suite, as far as a gateway has it: who may ask, for whose things, for how much, how often.
//!
//! | case | test |
//! |---|---|
//! | G98 | `g98_pages_of_others_reach_nothing_whatever_name_they_borrow` |
//! | G99 | `g99_what_belongs_to_another_key_is_as_if_it_were_not_there` |
//! | G100 | `g100_nobody_gets_more_of_the_host_than_the_operator_gives` |
//! | G107 | `g107_a_sandbox_asked_for_twice_with_one_promise_is_one` |

use gateway_tests::{Folder, Server};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};

fn sandbox(server: &Server, key: &str) -> String {
    let made = server.ask(key, "POST", "/v1/sandboxes", &[], &json!({}));
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

/// What a browser says when a page opens a WebSocket.
const UPGRADE: [(&str, &str); 4] = [
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn status(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> u16 {
    let request = server.request(&server.admin, method, path, headers, body);
    server
        .client
        .open(&request)
        .head()
        .map_or(0, |(status, _)| status)
}

#[test]
fn g98_pages_of_others_reach_nothing_whatever_name_they_borrow() {
    let server = Server::new();
    let own = server.client.host();
    let port = own.rsplit_once(':').expect("a port").1;
    let terminal = format!("/v1/sandboxes/{}/pty", sandbox(&server, &server.admin));
    let run = json!({ "command": ["true"] });
    let foreign = [
        format!("evil.example:{port}"),
        "evil.example".into(),
        format!("127.0.0.1.evil.example:{port}"),
    ];
    for host in &foreign {
        let headers = [("host", host.as_str())];
        assert_eq!(
            status(&server, "POST", "/v1/runs", &headers, &run),
            403,
            "a name lent by DNS: {host}"
        );
        assert_eq!(
            status(&server, "GET", "/healthz", &headers, &Value::Null),
            403,
            "{host}"
        );
    }
    let origins = foreign
        .iter()
        .map(|host| format!("http://{host}"))
        .chain(["null".into(), "http://localhost:1".into()]);
    for origin in origins {
        let headers = [("origin", origin.as_str())];
        assert_eq!(
            status(&server, "POST", "/v1/runs", &headers, &run),
            403,
            "a page of {origin}"
        );
        let headers: Vec<_> = UPGRADE.into_iter().chain(headers).collect();
        assert_eq!(
            status(&server, "GET", &terminal, &headers, &Value::Null),
            403,
            "a page of {origin}"
        );
    }
    // The same without the foreign name, and with our own.
    let same = format!("http://{own}");
    for headers in [
        vec![],
        vec![("origin", same.as_str())],
        vec![("host", own.as_str())],
    ] {
        assert_eq!(
            status(&server, "POST", "/v1/runs", &headers, &run),
            200,
            "{headers:?}"
        );
        let headers: Vec<_> = UPGRADE.into_iter().chain(headers).collect();
        assert_eq!(
            status(&server, "GET", &terminal, &headers, &Value::Null),
            101,
            "{headers:?}"
        );
    }
}

/// Every route of the description that names something of somebody's, with those names put in.
fn routes(server: &Server, names: &[(&str, &str, &str)]) -> Vec<(String, String, Value)> {
    let description = server.get("/openapi.json").json();
    let mut found = Vec::new();
    for (path, item) in description["paths"].as_object().expect("paths") {
        let Some((_, own, id)) = names.iter().find(|(start, _, _)| path.starts_with(start)) else {
            continue;
        };
        let filled = path
            .replace(own, id)
            .replace("{exec}", "1")
            .replace("{path}", "name")
            .replace("{version}", "1");
        assert!(
            !filled.contains('{'),
            "{path} names something that this test does not know"
        );
        for method in item.as_object().expect("methods").keys() {
            let body = if method == "post" {
                json!({ "command": ["true"] })
            } else {
                Value::Null
            };
            found.push((method.to_uppercase(), filled.clone(), body));
        }
    }
    found
}

#[test]
fn g99_what_belongs_to_another_key_is_as_if_it_were_not_there() {
    let server = Server::new();
    let scopes = ["runs", "sandboxes", "artifacts", "images", "usage"];
    let (owner, other) = (server.key(&scopes), server.key(&scopes));
    let box_id = sandbox(&server, &owner);
    let exec = json!({ "command": ["sleep", "1000"], "background": true });
    let started = server.ask(
        &owner,
        "POST",
        &format!("/v1/sandboxes/{box_id}/exec"),
        &[],
        &exec,
    );
    let exec_id = started.json()["exec_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let kept = soak::upload(
        &server,
        &owner,
        &format!("/v1/sandboxes/{box_id}/files/name"),
        b"mine",
    );
    assert_eq!(kept.expect("an answer").status, 201);
    let run = json!({ "command": ["sleep", "1000"] });
    let run = server.ask(
        &owner,
        "POST",
        "/v1/runs",
        &[("prefer", "respond-async")],
        &run,
    );
    let run_id = run.json()["run_id"].as_str().expect("an id").to_owned();
    assert_eq!(
        soak::upload(&server, &owner, "/v1/artifacts/mine", b"mine")
            .expect("an answer")
            .status,
        201
    );
    let names = [
        ("/v1/sandboxes/{id}", "{id}", box_id.as_str()),
        ("/v1/runs/{id}", "{id}", run_id.as_str()),
        ("/v1/artifacts/{name}", "{name}", "mine"),
    ];
    let all = routes(&server, &names);
    let prefixes: BTreeSet<_> = all
        .iter()
        .map(|(_, path, _)| path.split('/').nth(2).expect("a kind").to_owned())
        .collect();
    assert_eq!(
        prefixes,
        ["artifacts", "runs", "sandboxes"].map(str::to_owned).into(),
        "the test sees the routes"
    );
    for (method, path, body) in &all {
        let path = path.replace("/exec/1", &format!("/exec/{exec_id}"));
        // A name that is free is free for everybody.
        if path.starts_with("/v1/artifacts/mine") && method == "PUT" {
            continue;
        }
        let headers: Vec<_> = if path.ends_with("/pty") {
            UPGRADE.to_vec()
        } else {
            Vec::new()
        };
        let foreign = server.ask(&other, method, &path, &headers, body);
        assert_eq!(
            foreign.status,
            404,
            "{method} {path} by another: {}",
            foreign.text()
        );
        // What streams without end is not waited for.
        let own = server.request(&owner, method, &path, &headers, body);
        let endless = path.ends_with("/events") || path.ends_with("/pty") || method == "DELETE";
        let own = if endless {
            None
        } else {
            server.client.open(&own).head()
        };
        assert!(
            own.as_ref().is_none_or(|(status, _)| *status != 404),
            "{method} {path} by its owner: {own:?}"
        );
    }
    // Nothing of it came to harm, and lists show it to its owner alone.
    for (path, id) in [
        ("/v1/sandboxes", &box_id),
        ("/v1/runs", &run_id),
        ("/v1/artifacts", &"mine".to_owned()),
    ] {
        let shown = |key: &str| {
            server
                .ask(key, "GET", path, &[], &Value::Null)
                .text()
                .contains(id.as_str())
        };
        assert_eq!((shown(&owner), shown(&other)), (true, false), "{path}");
    }
    assert_eq!(
        server.get(&format!("/v1/runs/{run_id}")).json()["status"],
        "running"
    );
}

#[test]
fn g100_nobody_gets_more_of_the_host_than_the_operator_gives() {
    let shared = Folder::new();
    let outside = Folder::new();
    fs::write(outside.at("secret"), "secret").expect("a file");
    std::os::unix::fs::symlink(&outside.0, shared.at("link")).expect("a link");
    let configuration = format!(
        "[serve]\nfolders = [\"{}\"]\n[maximum]\nmemory = \"1G\"\npids = 64\n",
        shared.0.display()
    );
    let server = Server::with(&configuration, &[]);
    let key = server.key(&["runs", "sandboxes"]);
    let (inside, out) = (shared.0.display(), outside.0.display());
    let refused = [
        json!({ "network": "host" }),
        json!({ "internal_network": "any" }),
        json!({ "volumes": ["any:/x:rw"] }),
        json!({ "secrets": { "any": "ANY" } }),
        json!({ "workspace": "/" }),
        json!({ "workspace": outside.0 }),
        json!({ "workspace": format!("{inside}/link") }),
        json!({ "workspace": format!("{inside}/../{}", outside.0.file_name().expect("a name").display()) }),
        json!({ "mounts": ["/etc:/x"] }),
        json!({ "mounts": [format!("{out}:/x:rw")] }),
        json!({ "mounts": [format!("{inside}/link:/x")] }),
        json!({ "mounts": ["/proc/1/root:/x"] }),
        json!({ "image": "/" }),
        json!({ "memory": "2G" }),
        json!({ "pids": 65 }),
        json!({ "profile": "no-such" }),
        json!({ "privileged": true }),
    ];
    for order in refused {
        for path in ["/v1/runs", "/v1/sandboxes"] {
            let mut order = order.clone();
            if path == "/v1/runs" {
                order["command"] = json!(["true"]);
            }
            let answer = server.ask(&key, "POST", path, &[], &order);
            assert!(
                [400, 403].contains(&answer.status),
                "{path} {order}: {} {}",
                answer.status,
                answer.text()
            );
            assert_eq!(
                answer.header("content-type"),
                Some("application/problem+json"),
                "{order}"
            );
        }
    }
    // What the operator gives is had.
    for order in [
        json!({ "workspace": shared.0 }),
        json!({ "mounts": [format!("{inside}:/x:rw")] }),
        json!({ "memory": "1G", "pids": 64 }),
    ] {
        let mut run = order.clone();
        run["command"] = json!(["true"]);
        assert_eq!(
            server.ask(&key, "POST", "/v1/runs", &[], &run).json()["status"],
            "succeeded",
            "{run}"
        );
        let made = server.ask(&key, "POST", "/v1/sandboxes", &[], &order);
        assert_eq!(made.status, 201, "{order}: {}", made.text());
    }
}

fn ids(server: &Server, key: &str) -> BTreeSet<String> {
    let all = server
        .ask(key, "GET", "/v1/sandboxes", &[], &Value::Null)
        .json();
    let all = all["sandboxes"].as_array().expect("a list").clone();
    all.iter()
        .map(|one| one["sandbox_id"].as_str().expect("an id").to_owned())
        .collect()
}

#[test]
fn g107_a_sandbox_asked_for_twice_with_one_promise_is_one() {
    let server = Server::new();
    let key = server.key(&["sandboxes"]);
    let promise = [("idempotency-key", "the one")];
    let ask = || server.ask(&key, "POST", "/v1/sandboxes", &promise, &json!({}));
    // Many at once.
    let told: BTreeSet<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking
            .into_iter()
            .map(|one| one.join().expect("an answer").json()["sandbox_id"].to_string())
            .collect()
    });
    assert_eq!((told.len(), ids(&server, &key).len()), (1, 1), "{told:?}");
    // An answer that is lost: nobody reads it.
    let lost = [("idempotency-key", "lost")];
    let unread =
        server
            .client
            .open(&server.request(&key, "POST", "/v1/sandboxes", &lost, &json!({})));
    server.until("the second sandbox", || ids(&server, &key).len() == 2);
    drop(unread);
    let again = server.ask(&key, "POST", "/v1/sandboxes", &lost, &json!({}));
    let id = again.json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert!(
        ids(&server, &key).contains(&id) && ids(&server, &key).len() == 2,
        "{}",
        again.text()
    );
    // Whoever hangs up in the middle and asks again has one, too, whether the first was heard or not.
    for (number, wait_ms) in [0, 1, 3, 9, 27].into_iter().enumerate() {
        let name = format!("hung up {number}");
        let promise = [("idempotency-key", name.as_str())];
        soak::ask_and_leave(
            &server,
            &server.request(&key, "POST", "/v1/sandboxes", &promise, &json!({})),
            wait_ms,
        );
        let again = server.ask(&key, "POST", "/v1/sandboxes", &promise, &json!({}));
        assert_eq!(
            (again.status, ids(&server, &key).len()),
            (201, 3 + number),
            "{}",
            again.text()
        );
    }
    // Another request under that name, and the same name of another key.
    let other = server.ask(
        &key,
        "POST",
        "/v1/sandboxes",
        &lost,
        &json!({ "labels": { "a": "b" } }),
    );
    assert_eq!(other.status, 422, "{}", other.text());
    let stranger = server.key(&["sandboxes"]);
    let theirs = server.ask(&stranger, "POST", "/v1/sandboxes", &lost, &json!({}));
    assert_ne!(
        theirs.json()["sandbox_id"].as_str(),
        Some(id.as_str()),
        "promises are of a key"
    );
    // Without a promise each is one of its own.
    let before = ids(&server, &key).len();
    (0..2).for_each(|_| drop(sandbox(&server, &key)));
    assert_eq!(ids(&server, &key).len(), before + 2, "the control");
}
