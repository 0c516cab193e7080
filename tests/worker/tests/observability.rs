//! How the worker tells of itself: health in the words of both generations, numbers, and a log with ids and without secrets.

use serde_json::{Value, json};
use std::sync::LazyLock;
use worker_tests::{Ask, Mesh, until, uuid};

static MESH: LazyLock<Mesh> = LazyLock::new(|| Mesh::new("Tester", |_| ()));

fn get(path: &str) -> (u16, Value) {
    let (status, body) = MESH.sam.get(path).expect("it answers");
    (
        status,
        serde_json::from_str(&body).unwrap_or(Value::String(body)),
    )
}

#[test]
fn a_healthy_worker_says_so_in_both_dialects() {
    let (status, ready) = get("/readyz");
    assert_eq!(
        (status, &ready["ok"], &ready["broker"]),
        (200, &json!(true), &json!("connected"))
    );
    assert_eq!(get("/healthz").0, 200);
    let (status, startup) = get("/startup");
    assert_eq!(
        (status, &startup["ok"], &startup["startup_complete"]),
        (200, &json!(true), &json!(true))
    );
    assert!(startup.get("tool_sync").is_some(), "{startup}");
    let (status, health) = get("/health");
    assert_eq!((status, &health["status"]), (200, &json!("healthy")));
    assert_eq!(get("/ready").0, 200);
    assert_eq!(get("/elsewhere").0, 404);
}

#[test]
fn without_a_broker_it_is_alive_and_not_ready_in_both_dialects() {
    let mut mesh = Mesh::new("Tester", |_| ());
    mesh.broker.kill();
    for path in ["/readyz", "/ready"] {
        until("it is not ready", || {
            mesh.sam
                .get(path)
                .is_some_and(|(status, _)| status == 503)
                .then_some(())
        });
    }
    // An outage of a broker is no reason to start every worker anew.
    assert_eq!(
        mesh.sam.get("/healthz").map(|(status, _)| status),
        Some(200)
    );
    assert_eq!(mesh.sam.get("/health").map(|(status, _)| status), Some(200));
    mesh.broker.start_again();
    mesh.sam.await_ready();
}

#[test]
fn calls_are_counted() {
    let lines = || {
        let (status, text) = MESH.sam.get("/metrics").expect("it answers");
        assert_eq!(status, 200);
        text
    };
    let sum = |text: &str| -> f64 {
        let counts = text
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains("_total"));
        counts
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    };
    let before = sum(&lines());
    MESH.agent.settle();
    MESH.agent.call(&Ask::new("raises", json!({"text": "no"})));
    until("they are counted", || {
        (sum(&lines()) >= before + 2.0).then_some(())
    });
    let text = lines();
    assert!(text.contains("# TYPE") && text.contains("# HELP"), "{text}");
    assert!(!text.contains("no_such"), "{text}");
}

#[test]
fn the_log_has_the_ids_and_no_secrets() {
    let (trace, secret, argument) = (uuid(), uuid(), uuid());
    let ask = Ask::new("echo", json!({"text": argument}))
        .param("tool_config", json!({"api_key": secret}));
    let ask = ask
        .property("traceId", trace.as_str())
        .property("authToken", secret.as_str());
    MESH.agent.call(&ask);
    MESH.sam.await_log(&ask.id);
    MESH.sam.await_log(&trace);
    MESH.agent.settle();
    let log = MESH.sam.log();
    assert!(!log.contains(&secret) && !log.contains(&argument), "{log}");
    let of_it = log
        .lines()
        .find(|line| line.contains(&ask.id))
        .expect("a line of it");
    let line: Value =
        serde_json::from_str(of_it).unwrap_or_else(|_| panic!("a line is JSON: {of_it}"));
    assert!(line.is_object());
}

#[test]
fn an_idle_worker_is_small() {
    let mesh = Mesh::new("Tester", |set| {
        set.insert("SAM_WARM".to_owned(), "0".to_owned());
    });
    mesh.agent.settle();
    let rollup = std::fs::read_to_string(format!(
        "/proc/{}/smaps_rollup",
        mesh.sam.pid().as_raw_nonzero()
    ));
    let rollup = rollup.expect("it is ours");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .expect("a line");
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    // 30 MiB is for a program that was made small; this one carries its lines.
    let most = if cfg!(debug_assertions) { 90 } else { 30 };
    assert!(kib < most << 10, "{kib} KiB");
}
