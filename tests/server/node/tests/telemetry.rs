//! Records of a node: what runs and sandboxes left, who may read it, and how it is cut into pages.

use node_tests::{Answer, Server, key_of};
use rustix::process::Signal;
use serde_json::{Value, json};

const TELEMETRY: &str = "/v1/worker/telemetry";

fn get(server: &Server, key: &str, path: &str) -> Answer {
    server.ask(
        key,
        "GET",
        &format!("{TELEMETRY}/{path}"),
        &[],
        &Value::Null,
    )
}

fn found(server: &Server, path: &str) -> Value {
    let answer = get(server, &server.admin, path);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn run(server: &Server, key: &str, order: Value) -> String {
    let answer = server.ask(key, "POST", "/v1/runs", &[], &order);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["run_id"].as_str().expect("it ran").to_owned()
}

fn messages(page: &Value) -> Vec<String> {
    let events = page["events"].as_array().expect("a list");
    events
        .iter()
        .map(|event| event["message"].as_str().expect("words").to_owned())
        .collect()
}

/// Waits for lines: they are written behind the run.
fn lines(server: &Server, query: &str, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    server.until("the lines", || {
        seen = messages(&found(server, &format!("logs?{query}")));
        seen.len() >= count
    });
    seen
}

/// Section 4, item 34: info, stats, containers and logs have their shape, and nobody is told without a key.
#[test]
fn the_node_tells_what_it_is_and_how_it_is() {
    let server = Server::with("[node]\nslug = \"node-7\"\n", &[]);
    let info = found(&server, "node:info");
    assert_eq!(
        (&info["version"], info["node_slug"].as_str()),
        (&json!(1), Some("node-7"))
    );
    assert!(info["build"]["build_version"].is_string());
    let platform = &info["platform"];
    assert_eq!(platform["os"], "linux");
    assert!(platform["arch"].is_string() && platform["kernel_version"].is_string());
    server.until("a report", || {
        found(&server, "node:info")["last_capability_report"]["sandbox"]["supported"] == true
    });
    let stats = found(&server, "node:stats");
    assert!(stats["captured_at"].is_string() && stats["container_runtime"]["runtime"] == "native");
    let real = |part: &str, name: &str| stats[part][name].as_f64().unwrap_or(-1.0);
    assert!(
        real("cpu", "cores") >= 1.0
            && ["load1", "load5", "load15"]
                .iter()
                .all(|name| real("cpu", name) >= 0.0)
    );
    let (total, used, free) = (
        real("memory", "total_mb"),
        real("memory", "used_mb"),
        real("memory", "free_mb"),
    );
    assert!(total > 0.0 && (used + free - total).abs() < 1.0, "{stats}");
    assert!(real("disk", "state_dir_total_mb") >= real("disk", "state_dir_free_mb") && free > 0.0);
    for path in [
        "node:info",
        "node:stats",
        "containers",
        "containers/x",
        "logs?container_id=x",
    ] {
        let refused = get(&server, "", path);
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.json()["type"], "urn:cynodeai:error:authentication");
    }
}

/// Section 4, items 34 and 35: a real job is in the inventory with its ids, its start and its stop, and its lines are found.
#[test]
fn a_run_is_a_container_with_its_events_and_its_lines() {
    let server = Server::new();
    let script = "echo one; echo two; echo three >&2; printf rest; exit 7";
    let order = json!({ "command": ["sh", "-c", script], "task_id": "task-1", "job_id": "job-1" });
    let id = run(&server, &server.admin, order);
    let listed = found(
        &server,
        "containers?task_id=task-1&job_id=job-1&kind=sandbox&status=exited",
    );
    let row = &listed["containers"][0];
    assert_eq!(
        listed["containers"].as_array().map(Vec::len),
        Some(1),
        "{listed}"
    );
    for (name, value) in [
        ("container_id", json!(id)),
        ("container_name", json!(format!("airlock-{id}"))),
        ("kind", json!("sandbox")),
        ("runtime", json!("native")),
        ("image_ref", json!("host")),
        ("status", json!("exited")),
        ("exit_code", json!(7)),
        ("task_id", json!("task-1")),
        ("job_id", json!("job-1")),
        ("labels", json!({})),
    ] {
        assert_eq!(row[name], value, "{name}");
    }
    assert!(row["created_at"].is_string() && row["last_seen_at"].is_string());
    let one = found(&server, &format!("containers/{id}"))["container"].clone();
    let events: Vec<_> = one["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| &event["event"])
        .collect();
    assert_eq!(events, ["created", "started", "stopped", "removed"]);
    let times: Vec<_> = one["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| event["at"].as_str())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(
        lines(&server, &format!("container_id={id}&stream=stdout"), 3),
        ["one", "two", "rest"]
    );
    assert_eq!(
        lines(
            &server,
            &format!("source_kind=container&source_name={id}&stream=stderr"),
            1
        ),
        ["three"]
    );
    assert_eq!(
        found(&server, "containers?task_id=other")["containers"],
        json!([])
    );
    // Item 35.
    let unknown = get(&server, &server.admin, "containers/unknown");
    assert_eq!(
        (unknown.status, &unknown.json()["type"]),
        (404, &json!("urn:cynodeai:error:not_found"))
    );
}

#[test]
fn a_run_that_goes_on_is_seen_running_and_a_sandbox_is_a_container_too() {
    let server = Server::new();
    let order = json!({ "command": ["sleep", "600"], "run_id": "long" });
    let begun = server.ask(
        &server.admin,
        "POST",
        "/v1/runs",
        &[("prefer", "respond-async")],
        &order,
    );
    assert_eq!(begun.status, 202);
    server.until("it runs", || {
        found(&server, "containers?status=running")["containers"][0]["container_id"] == "long"
    });
    assert_eq!(server.delete("/v1/runs/long").status, 200);
    assert_eq!(
        found(&server, "containers/long")["container"]["status"],
        "exited"
    );
    let made = server.post("/v1/sandboxes", &json!({ "labels": { "a": "b" } }));
    let id = made.json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    server.until("it stands", || {
        found(&server, &format!("containers/{id}"))["container"]["status"] == "running"
    });
    assert_eq!(
        found(&server, &format!("containers/{id}"))["container"]["labels"],
        json!({ "a": "b" })
    );
    let exec = server.post(
        &format!("/v1/sandboxes/{id}/exec"),
        &json!({ "command": ["echo", "inside"] }),
    );
    assert_eq!(exec.status, 200, "{}", exec.text());
    assert_eq!(lines(&server, &format!("container_id={id}"), 1), ["inside"]);
    assert_eq!(server.delete(&format!("/v1/sandboxes/{id}")).status, 200);
    assert_eq!(
        found(&server, &format!("containers/{id}"))["container"]["status"],
        "exited"
    );
}

/// Section 4, item 35: no source is a mistake, pages have every line once, also where bytes cut them, and say what cut them.
#[test]
fn lines_come_in_pages_of_a_count_and_of_a_size() {
    let server = Server::new();
    let id = run(
        &server,
        &server.admin,
        json!({ "command": ["seq", "1", "25"] }),
    );
    let source = format!("container_id={id}");
    assert_eq!(lines(&server, &source, 25).len(), 25);
    let (mut all, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = found(&server, &format!("logs?{source}&limit=10{token}"));
        assert_eq!(page["truncated"]["max_bytes"], 1_048_576);
        all.extend(messages(&page));
        pages += 1;
        match page["next_page_token"].as_str() {
            Some(next) => {
                assert_eq!(page["truncated"]["limited_by"], "count");
                token = format!("&page_token={next}");
            }
            None => {
                assert_eq!(page["truncated"]["limited_by"], "none");
                break;
            }
        }
    }
    let wanted: Vec<_> = (1..=25).map(|number| number.to_string()).collect();
    assert_eq!((all, pages), (wanted, 3));
    // Control characters take six bytes each: what a stream may keep is more than a page.
    let script = "import sys; [sys.stdout.write(chr(1) * 4000 + '\\n') for _ in range(60)]";
    let id = run(
        &server,
        &server.admin,
        json!({ "command": ["python3", "-c", script] }),
    );
    let mut first = Value::Null;
    server.until("a page that bytes cut", || {
        first = found(&server, &format!("logs?container_id={id}&limit=5000"));
        first["truncated"]["limited_by"] == "bytes"
    });
    let next = first["next_page_token"].as_str().expect("there is more");
    let second = found(
        &server,
        &format!("logs?container_id={id}&limit=5000&page_token={next}"),
    );
    assert_eq!(messages(&first).len() + messages(&second).len(), 60);
}

#[test]
fn a_moment_is_in_since_and_not_in_until() {
    let server = Server::new();
    let id = run(
        &server,
        &server.admin,
        json!({ "command": ["echo", "now"] }),
    );
    let source = format!("container_id={id}");
    lines(&server, &source, 1);
    let at = found(&server, &format!("logs?{source}"))["events"][0]["occurred_at"]
        .as_str()
        .expect("a time")
        .to_owned();
    let count = |query: String| messages(&found(&server, &format!("logs?{source}{query}"))).len();
    assert_eq!(
        (count(format!("&since={at}")), count(format!("&until={at}"))),
        (1, 0)
    );
    assert_eq!(
        (
            count("&since=2999-01-01T00:00:00Z".into()),
            count("&until=2999-01-01T00:00:00Z".into())
        ),
        (0, 1)
    );
}

#[test]
fn bad_questions_are_refused_in_the_words_of_the_worker_api() {
    let server = Server::new();
    for query in [
        "logs",
        "logs?source_kind=service",
        "logs?source_name=node",
        "logs?source_kind=other&source_name=x",
        "logs?container_id=a&source_kind=service&source_name=node",
        "logs?container_id=a&limit=0",
        "logs?container_id=a&limit=5001",
        "logs?container_id=a&since=yesterday",
        "logs?container_id=a&page_token=x",
        "logs?container_id=a&page_token=1.-1",
        "logs?container_id=a&stream=stdin",
        "logs?container_id=a&unknown=1",
        "containers?limit=1001",
        "containers?kind=pod",
        "containers?status=odd",
        "containers?page_token=x",
        "containers?limit=%ff",
    ] {
        let refused = get(&server, &server.admin, query);
        assert_eq!(
            (refused.status, &refused.json()["type"]),
            (400, &json!("urn:cynodeai:error:validation")),
            "{query}"
        );
    }
}

/// Tenants are told of what is their own; somebody else's is as if there were none.
#[test]
fn a_tenant_sees_its_own_containers_and_lines_and_nothing_of_the_node() {
    let server = Server::new();
    let [hers, his] = ["acme", "else"].map(|tenant| key_of(&server, tenant, &["runs"]));
    let id = run(
        &server,
        &hers,
        json!({ "command": ["echo", "canary-of-hers"] }),
    );
    lines(&server, &format!("container_id={id}"), 1);
    let seen = |key: &str, path: &str| get(&server, key, path);
    assert_eq!(seen(&hers, &format!("containers/{id}")).status, 200);
    let [other, unknown] =
        [id.as_str(), "unknown"].map(|id| seen(&his, &format!("containers/{id}")));
    assert_eq!((other.status, other.text()), (404, unknown.text()));
    assert_eq!(
        seen(&hers, "containers").json()["containers"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert_eq!(seen(&his, "containers").json()["containers"], json!([]));
    let of = |key: &str| {
        seen(key, &format!("logs?container_id={id}")).json()["events"]
            .as_array()
            .map(Vec::len)
    };
    assert_eq!((of(&hers), of(&his)), (Some(1), Some(0)));
    assert_eq!(
        seen(&hers, "logs?source_kind=service&source_name=node").json()["events"],
        json!([])
    );
    let (info, stats) = (
        seen(&hers, "node:info").json(),
        seen(&hers, "node:stats").json(),
    );
    assert!(
        info["platform"]["kernel_version"].is_null() && info["last_capability_report"].is_null()
    );
    assert!(
        stats["memory"].is_null() && stats["disk"].is_null() && stats["cpu"]["load1"].is_null()
    );
    let weak = key_of(&server, "acme", &["artifacts"]);
    let refused = seen(&weak, "containers");
    assert_eq!(
        (refused.status, &refused.json()["type"]),
        (403, &json!("urn:cynodeai:error:authorization"))
    );
}

/// Section 4, items 34 and 35: start and shutdown are seen, and no token is in any answer.
#[test]
fn starts_and_ends_of_the_server_are_seen_and_what_was_killed_is_lost() {
    let server = Server::new();
    run(&server, &server.admin, json!({ "command": ["true"] }));
    let node = "source_kind=service&source_name=node&limit=5000";
    let server = server.restart(Signal::TERM, "");
    let mut seen = Vec::new();
    server.until("the end of the first", || {
        seen = messages(&found(&server, &format!("logs?{node}")));
        seen.iter().any(|line| line == "node_shutdown: clean")
            && seen
                .iter()
                .filter(|line| line.starts_with("node_boot: "))
                .count()
                == 2
    });
    assert!(
        seen.iter()
            .any(|line| line.ends_with("the one before ended: clean")),
        "{seen:?}"
    );
    let order = json!({ "command": ["sleep", "600"], "run_id": "killed" });
    assert_eq!(
        server
            .ask(
                &server.admin,
                "POST",
                "/v1/runs",
                &[("prefer", "respond-async")],
                &order
            )
            .status,
        202
    );
    let server = server.restart(Signal::KILL, "");
    assert_eq!(
        found(&server, "containers/killed")["container"]["status"],
        "lost"
    );
    server.until("the start behind a kill", || {
        let seen = messages(&found(&server, &format!("logs?{node}")));
        seen.iter()
            .any(|line| line.ends_with("the one before ended: killed"))
    });
    let secret = &server.admin[21..];
    for path in [
        "node:info",
        "node:stats",
        "containers",
        &format!("logs?{node}"),
    ] {
        let text = get(&server, &server.admin, path).text();
        assert!(!text.contains(secret), "{path}");
    }
}

#[test]
fn endless_output_is_bounded_and_what_is_missing_is_said() {
    let server = Server::new();
    let script = "import sys; [sys.stdout.write('x' * 999 + '\\n') for _ in range(2000)]";
    let id = run(
        &server,
        &server.admin,
        json!({ "command": ["python3", "-c", script] }),
    );
    let mut all = Vec::new();
    server.until("the last line", || {
        all = messages(&found(
            &server,
            &format!("logs?container_id={id}&limit=5000"),
        ));
        all.last()
            .is_some_and(|last| last.starts_with("[airlock: "))
    });
    let bytes: usize = all.iter().map(String::len).sum();
    assert!((200_000..=262_144).contains(&bytes), "{bytes}");
    assert!(
        all.last()
            .is_some_and(|last| last.contains("more bytes of this stream are not kept"))
    );
}

/// What the worker API runs is in the records, too: programs of sessions, and steps.
#[test]
fn programs_of_sessions_and_steps_leave_their_lines() {
    let server = Server::new();
    let task = "11111111-1111-4111-8111-111111111111";
    let made = server
        .post(
            "/v1/worker/sessions",
            &json!({ "version": 1, "task_id": task }),
        )
        .json();
    let (session, id) = (
        &made["session_id"],
        made["sandbox_id"].as_str().expect("its name"),
    );
    let path = format!(
        "/v1/worker/sessions/{}/exec",
        session.as_str().expect("its name")
    );
    let order = json!({ "version": 1, "task_id": task, "command": ["echo", "of a session"] });
    assert_eq!(server.post(&path, &order).status, 200);
    let of = |id: &str| format!("source_kind=container&container_id={id}");
    assert_eq!(lines(&server, &of(id), 1), ["of a session"]);
    let spec = json!({
        "protocol_version": "1.0", "job_id": "job-1",
        "constraints": { "max_runtime_seconds": 60, "max_output_bytes": 100_000 },
        "steps": [{ "type": "run_command", "args": { "argv": ["echo", "of a step"] } }],
    });
    let sandbox = json!({ "job_spec_json": spec.to_string() });
    let order = json!({ "version": 1, "task_id": task, "job_id": task, "sandbox": sandbox });
    assert_eq!(server.post("/v1/worker/jobs:run", &order).status, 200);
    let listed = found(&server, &format!("containers?job_id={task}"));
    let id = listed["containers"][0]["container_id"]
        .as_str()
        .unwrap_or_else(|| panic!("it is there: {listed}"));
    assert_eq!(lines(&server, &of(id), 1), ["of a step"]);
    let mut events = Value::Null;
    server.until("its events", || {
        events = found(&server, &format!("containers/{id}"))["container"]["events"].clone();
        events.to_string().contains("stopped")
    });
    assert!(events.to_string().contains("started"), "{events}");
}
