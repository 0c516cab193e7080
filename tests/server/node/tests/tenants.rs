//! Tenants do not see each other, and the keys of one see the same things.

use node_tests::{Answer, Folder, Server, key_of};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};

const ALL: &[&str] = &["runs", "sandboxes", "artifacts", "usage"];
/// Whose routes name no thing of a tenant's, or are claimed elsewhere.
const OTHERS: [&str; 4] = ["/v1/keys/", "/v1/images/", "/v1/worker/", "/v1/workflows/"];

#[test]
fn the_keys_of_a_tenant_see_the_same_runs_and_nobody_elses() {
    let server = Server::new();
    let [one, two, other] = [("acme", "a"), ("acme", "b"), ("else", "c")]
        .map(|(tenant, _)| key_of(&server, tenant, &["runs"]));
    let run = server
        .ask(
            &one,
            "POST",
            "/v1/runs",
            &[],
            &json!({ "command": ["true"] }),
        )
        .json();
    let path = format!("/v1/runs/{}", run["run_id"].as_str().expect("it ran"));
    let asked = |key: &str| server.ask(key, "GET", &path, &[], &Value::Null).status;
    assert_eq!([&one, &two, &other].map(|key| asked(key)), [200, 200, 404]);
}

/// A route, what is sent there, and what its owner is answered.
struct Row {
    method: &'static str,
    path: &'static str,
    body: Value,
    own: u16,
}

fn row(method: &'static str, path: &'static str, body: Value, own: u16) -> Row {
    Row {
        method,
        path,
        body,
        own,
    }
}

/// Every route that names a thing of a tenant's; those that end it come last.
fn rows() -> Vec<Row> {
    let nothing = || Value::Null;
    vec![
        row("get", "/v1/runs/{id}", nothing(), 200),
        row("get", "/v1/runs/{id}/events", nothing(), 200),
        row("get", "/v1/sandboxes/{id}", nothing(), 200),
        row(
            "post",
            "/v1/sandboxes/{id}/artifacts",
            json!({ "paths": ["kept"] }),
            200,
        ),
        row("get", "/v1/sandboxes/{id}/exec", nothing(), 200),
        row(
            "post",
            "/v1/sandboxes/{id}/exec",
            json!({ "command": ["true"] }),
            200,
        ),
        row("get", "/v1/sandboxes/{id}/exec/{exec}", nothing(), 200),
        row(
            "get",
            "/v1/sandboxes/{id}/exec/{exec}/events",
            nothing(),
            200,
        ),
        row(
            "get",
            "/v1/sandboxes/{id}/exec/{exec}/output",
            nothing(),
            200,
        ),
        row(
            "post",
            "/v1/sandboxes/{id}/exec/{exec}/resize",
            json!({ "columns": 80, "rows": 24 }),
            409,
        ),
        row(
            "post",
            "/v1/sandboxes/{id}/exec/{exec}/signal",
            json!({ "signal": "TERM" }),
            409,
        ),
        row(
            "post",
            "/v1/sandboxes/{id}/exec/{exec}/stdin",
            json!("x"),
            409,
        ),
        row("delete", "/v1/sandboxes/{id}/exec/{exec}", nothing(), 200),
        row("get", "/v1/sandboxes/{id}/files", nothing(), 200),
        row("get", "/v1/sandboxes/{id}/files/{path}", nothing(), 200),
        row("put", "/v1/sandboxes/{id}/files/{path}", json!("more"), 200),
        row("post", "/v1/sandboxes/{id}/files/{path}", nothing(), 409),
        row("delete", "/v1/sandboxes/{id}/files/{path}", nothing(), 204),
        row("get", "/v1/sandboxes/{id}/logs", nothing(), 200),
        row("get", "/v1/sandboxes/{id}/pty", nothing(), 101),
        row("post", "/v1/sandboxes/{id}/fork", json!({}), 201),
        // It has no workspace of the server's, which its own tenant is told.
        row("post", "/v1/sandboxes/{id}/workspace/apply", json!({}), 409),
        row("post", "/v1/sandboxes/{id}/pause", nothing(), 200),
        row("post", "/v1/sandboxes/{id}/resume", nothing(), 200),
        row("get", "/v1/artifacts/{name}", nothing(), 200),
        row("get", "/v1/artifacts/{name}/versions", nothing(), 200),
        row("get", "/v1/workspaces/{id}/diff", nothing(), 200),
        row("get", "/v1/workspaces/{id}/files/{path}", nothing(), 200),
        row(
            "post",
            "/v1/workspaces/{id}/commit",
            json!({ "keep": true }),
            200,
        ),
        row("delete", "/v1/workspaces/{id}", nothing(), 204),
        row("get", "/v1/runs/{id}/record", nothing(), 200),
        row("get", "/v1/jobs/{id}", nothing(), 200),
        row("get", "/v1/jobs/{id}/events", nothing(), 200),
        row("get", "/v1/jobs/{id}/logs", nothing(), 200),
        row("delete", "/v1/jobs/{id}", nothing(), 200),
        row("post", "/v1/jobs/{id}/retry", nothing(), 202),
        row("delete", "/v1/artifacts/{name}", nothing(), 200),
        row("delete", "/v1/runs/{id}", nothing(), 200),
        row("delete", "/v1/sandboxes/{id}", nothing(), 200),
    ]
}

/// What a tenant made, by the parts of paths that name it.
struct Things {
    run: String,
    job: String,
    sandbox: String,
    exec: String,
    workspace: String,
    artifact: &'static str,
}

impl Things {
    fn of(server: &Server, key: &str, project: &Folder) -> Things {
        let post = |path: &str, body: Value| {
            let answer = server.ask(key, "POST", path, &[], &body);
            assert!(answer.status < 300, "{path}: {}", answer.text());
            answer.json()
        };
        let text = |value: &Value, name: &str| value[name].as_str().expect("a name").to_owned();
        let run = text(&post("/v1/runs", json!({ "command": ["true"] })), "run_id");
        let order =
            json!({ "command": ["touch", "file"], "workspace": project.0, "copy_on_write": true });
        let workspace = text(&post("/v1/runs", order), "run_id");
        let job = text(
            &post("/v1/jobs", json!({ "run": { "command": ["true"] } })),
            "job_id",
        );
        server.until("its end", || {
            let path = format!("/v1/jobs/{job}");
            server.ask(key, "GET", &path, &[], &Value::Null).json()["status"] == "succeeded"
        });
        let sandbox = text(&post("/v1/sandboxes", json!({})), "sandbox_id");
        let order = json!({ "command": ["sh", "-c", "echo x > file; echo y > kept"] });
        let exec = text(
            &post(&format!("/v1/sandboxes/{sandbox}/exec"), order),
            "exec_id",
        );
        let put = server.ask(key, "PUT", "/v1/artifacts/report", &[], &json!("text"));
        assert_eq!(put.status, 201, "{}", put.text());
        Things {
            run,
            job,
            sandbox,
            exec,
            workspace,
            artifact: "report",
        }
    }

    /// The same names for things that nobody has.
    fn missing() -> Things {
        let [run, job, sandbox, exec, workspace] = ["nobodys"; 5].map(str::to_owned);
        Things {
            run,
            job,
            sandbox,
            exec,
            workspace,
            artifact: "nobodys",
        }
    }

    fn path(&self, template: &str) -> String {
        let id = match template.split('/').nth(2) {
            Some("runs") => &self.run,
            Some("jobs") => &self.job,
            Some("sandboxes") => &self.sandbox,
            _ => &self.workspace,
        };
        let path = template.replace("{id}", id).replace("{exec}", &self.exec);
        path.replace("{path}", "file")
            .replace("{name}", self.artifact)
    }
}

const UPGRADE: [(&str, &str); 4] = [
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn ask(server: &Server, key: &str, row: &Row, path: &str) -> Answer {
    let method = row.method.to_uppercase();
    let headers: &[_] = if row.path.ends_with("/pty") {
        &UPGRADE
    } else {
        &[]
    };
    let mut stream = server
        .client
        .open(&server.request(key, &method, path, headers, &row.body));
    if row.path.ends_with("/pty") && row.own == 101 {
        let (status, headers) = stream.head().expect("an answer");
        if status == 101 {
            return Answer {
                status,
                headers,
                body: Vec::new(),
            };
        }
        return server.ask(key, &method, path, &UPGRADE, &row.body);
    }
    stream.answer()
}

/// All that can be seen of an answer.
fn seen(answer: &Answer) -> (u16, Vec<(String, String)>, String) {
    let headers = answer
        .headers
        .iter()
        .filter(|(name, _)| name != "date")
        .cloned()
        .collect();
    (answer.status, headers, answer.text())
}

#[test]
fn what_another_tenant_has_looks_like_what_nobody_has_on_every_route() {
    let project = Folder::new();
    fs::write(project.at("there"), "text").expect("a file");
    let server = Server::with(&format!("[serve]\nfolders = [{:?}]\n", project.0), &[]);
    let [one, two, other] = ["acme", "acme", "else"].map(|tenant| key_of(&server, tenant, ALL));
    let (things, missing) = (Things::of(&server, &one, &project), Things::missing());
    let mut wrong = Vec::new();
    for row in rows() {
        let (path, nothing) = (things.path(row.path), missing.path(row.path));
        let (theirs, none) = (
            ask(&server, &other, &row, &path),
            ask(&server, &other, &row, &nothing),
        );
        if seen(&theirs) != seen(&none) || theirs.status != 404 {
            wrong.push(format!(
                "{} {}: {:?} {:?}",
                row.method,
                row.path,
                seen(&theirs),
                seen(&none)
            ));
        }
        // The other key of the tenant itself: the positive control.
        let own = ask(&server, &two, &row, &path);
        if own.status != row.own {
            wrong.push(format!(
                "{} {}: own {} {}",
                row.method,
                row.path,
                own.status,
                own.text()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_route_that_names_a_thing_is_forgotten_above() {
    let described: Value =
        serde_json::from_str(include_str!("../../../../docs/openapi.json")).expect("it is JSON");
    let paths = described["paths"].as_object().expect("there are routes");
    let is_meant =
        |path: &str| path.contains('{') && OTHERS.iter().all(|others| !path.starts_with(others));
    let pairs = paths
        .iter()
        .filter(|(path, _)| is_meant(path))
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().expect("methods").keys();
            methods.map(move |method| format!("{method} {path}"))
        });
    // To put something where another has it makes one's own.
    let described: BTreeSet<String> = pairs
        .filter(|pair| pair != "put /v1/artifacts/{name}")
        .collect();
    let known: BTreeSet<String> = rows()
        .iter()
        .map(|row| format!("{} {}", row.method, row.path))
        .collect();
    assert_eq!(known, described);
}

#[test]
fn lists_show_a_tenant_its_own_things_and_no_count_of_others() {
    let project = Folder::new();
    let server = Server::with(&format!("[serve]\nfolders = [{:?}]\n", project.0), &[]);
    let [one, other] = ["acme", "else"].map(|tenant| key_of(&server, tenant, ALL));
    let lists = [
        "/v1/runs",
        "/v1/sandboxes",
        "/v1/artifacts",
        "/v1/workspaces",
        "/v1/usage?by=tenant",
    ];
    let listed = |key: &str, path: &str| server.ask(key, "GET", path, &[], &Value::Null);
    let before: Vec<_> = lists
        .iter()
        .map(|path| listed(&other, path).text())
        .collect();
    Things::of(&server, &one, &project);
    let after: Vec<_> = lists
        .iter()
        .map(|path| listed(&other, path).text())
        .collect();
    assert_eq!(before, after);
    let own: Vec<_> = lists.iter().map(|path| listed(&one, path).text()).collect();
    assert!(
        own.iter().zip(&before).all(|(own, none)| own != none),
        "the positive control: {own:?}"
    );
}

/// Rows and lines are numbered across all tenants: who is given such a number knows how much the others do.
#[test]
fn a_cursor_leads_its_tenant_on_and_says_nothing_of_others() {
    let server = Server::new();
    let keys = ["acme", "else"].map(|tenant| key_of(&server, tenant, ALL));
    for key in keys.iter().flat_map(|key| [key; 2]) {
        let ran = server.ask(
            key,
            "POST",
            "/v1/runs",
            &[],
            &json!({ "command": ["printf", "a\nb\n"] }),
        );
        assert_eq!(ran.status, 200, "{}", ran.text());
        let job = json!({ "run": { "command": ["printf", "a\nb\n"] } });
        let sent = server.ask(key, "POST", "/v1/jobs", &[], &job);
        assert_eq!(sent.status, 202, "{}", sent.text());
    }
    let get = |key: &str, path: &str| server.ask(key, "GET", path, &[], &Value::Null);
    for (path, things, next, parameter) in [
        ("/v1/runs?limit=1", "runs", "before", "before"),
        ("/v1/jobs?limit=1", "jobs", "before", "before"),
        ("/v1/audit?limit=1&what=run.", "lines", "before", "before"),
        (
            "/v1/worker/telemetry/containers?limit=1",
            "containers",
            "next_page_token",
            "page_token",
        ),
        (
            "/v1/worker/telemetry/logs?limit=1&container_id=ID",
            "events",
            "next_page_token",
            "page_token",
        ),
    ] {
        let of = |key: &String| {
            let containers = get(key, "/v1/worker/telemetry/containers").json();
            let id = containers["containers"][0]["container_id"]
                .as_str()
                .expect("it ran")
                .to_owned();
            let mut page = Value::Null;
            // Of a run that has just ended, lines are written a moment later.
            server.until("a page that is not the last", || {
                page = get(key, &path.replace("ID", &id)).json();
                page[next].is_string()
            });
            (
                id,
                page[next].as_str().expect("there is more").to_owned(),
                page,
            )
        };
        let [(id, mine, first), (_, again, _), (_, theirs, _)] =
            [&keys[0], &keys[0], &keys[1]].map(of);
        let lengths: BTreeSet<_> = [&mine, &again, &theirs].map(String::len).into();
        assert!(
            lengths.len() == 1 && mine.len() > 100,
            "{path}: {mine} {theirs}"
        );
        assert_ne!(
            mine, again,
            "{path}: nothing happened, and it is another: what changes in it says nothing"
        );
        let on = |cursor: &str| {
            get(
                &keys[0],
                &format!("{}&{parameter}={cursor}", path.replace("ID", &id)),
            )
        };
        let second = on(&mine);
        assert_eq!(second.status, 200, "{path}: {}", second.text());
        assert_ne!(
            second.json()[things][0],
            first[things][0],
            "{path}: it leads on"
        );
        assert!(
            second.json()[things][0].is_object(),
            "{path}: {}",
            second.text()
        );
        for wrong in [theirs.as_str(), "1", "1-3", "1.1", &mine[1..]] {
            assert_eq!(on(wrong).status, 400, "{path}: {wrong}");
        }
    }
}

#[test]
fn no_tenant_is_called_as_the_machine_itself() {
    let server = Server::new();
    let order = |tenant: &str| json!({ "name": "x", "tenant": tenant, "scopes": ["artifacts"] });
    assert_eq!(
        server.post("/v1/keys", &order("local")).status,
        400,
        "it would own what the machine keeps"
    );
    assert_eq!(server.post("/v1/keys", &order("locals")).status, 201);
}
