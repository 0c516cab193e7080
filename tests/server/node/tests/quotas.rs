//! Quotas: what a tenant may have at once and of a day, whatever keys it uses, and that nobody else has less by it.

use node_tests::{Answer, Folder, Server, key_of};
use rustix::process::Signal;
use serde_json::{Value, json};

const ALL: &[&str] = &["runs", "sandboxes", "artifacts", "usage"];

fn run(server: &Server, key: &str, headers: &[(&str, &str)], command: &[&str]) -> Answer {
    server.ask(
        key,
        "POST",
        "/v1/runs",
        headers,
        &json!({ "command": command }),
    )
}

fn quota(server: &Server, key: &str) -> Value {
    let answer = server.ask(key, "GET", "/v1/quota", &[], &Value::Null);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// A refusal by this rule.
fn refused(answer: &Answer, status: u16, rule: &str) {
    let told = answer.json();
    assert_eq!(
        (answer.status, &told["code"]),
        (status, &json!("quota_exceeded")),
        "{told}"
    );
    assert!(
        told["title"]
            .as_str()
            .expect("a title")
            .contains(&format!("`{rule}")),
        "{told}"
    );
}

#[test]
fn a_tenant_has_its_runs_at_once_however_many_keys_it_has() {
    let server = Server::with("[tenant.acme]\nruns = 2\n[tenant.\"*\"]\nruns = 1\n", &[]);
    let [one, two, other] = ["acme", "acme", "else"].map(|tenant| key_of(&server, tenant, ALL));
    let begin = |key: &str, name: &str| {
        let headers = [("prefer", "respond-async"), ("idempotency-key", name)];
        run(&server, key, &headers, &["sleep", "60"])
    };
    let first = begin(&one, "a");
    assert_eq!((first.status, begin(&two, "b").status), (202, 202));
    refused(&begin(&one, "c"), 429, "runs");
    refused(&begin(&two, "c"), 429, "runs");
    assert_eq!(
        begin(&one, "a").status,
        202,
        "what was promised before is no new one"
    );
    assert_eq!(begin(&other, "a").status, 202, "another tenant has its own");
    refused(&begin(&other, "b"), 429, "runs");
    assert_eq!(quota(&server, &two)["runs"], json!({ "now": 2, "most": 2 }));
    let path = format!(
        "/v1/runs/{}",
        first.json()["run_id"].as_str().expect("a name")
    );
    assert_eq!(
        server.ask(&two, "DELETE", &path, &[], &Value::Null).status,
        200
    );
    assert_eq!(begin(&two, "c").status, 202, "there is room again");
}

#[test]
fn a_tenant_has_its_sandboxes_and_others_theirs() {
    let server = Server::with("[tenant.acme]\nsandboxes = 1\n", &[]);
    let [one, two, other] = ["acme", "acme", "else"].map(|tenant| key_of(&server, tenant, ALL));
    let make = |key: &str| server.ask(key, "POST", "/v1/sandboxes", &[], &json!({}));
    let first = make(&one);
    assert_eq!(first.status, 201);
    refused(&make(&two), 429, "sandboxes");
    assert_eq!([make(&other).status, make(&other).status], [201, 201]);
    let path = format!(
        "/v1/sandboxes/{}",
        first.json()["sandbox_id"].as_str().expect("a name")
    );
    let fork = server.ask(&two, "POST", &format!("{path}/fork"), &[], &json!({}));
    refused(&fork, 429, "sandboxes");
    assert_eq!(
        quota(&server, &one)["sandboxes"],
        json!({ "now": 1, "most": 1 })
    );
    assert_eq!(
        server.ask(&one, "DELETE", &path, &[], &Value::Null).status,
        200
    );
    assert_eq!(make(&two).status, 201);
}

/// Uses two seconds of CPU time, however busy the machine is.
const BURN: &[&str] = &["sh", "-c", "ulimit -t 2; while :; do :; done"];

#[test]
fn the_cpu_time_of_a_day_is_counted_outlasts_a_kill_and_opens_again_tomorrow() {
    let configuration = "[tenant.acme]\ncpu_day = \"1s\"\n";
    let server = Server::with(configuration, &[]);
    let [one, two, other] = ["acme", "acme", "else"].map(|tenant| key_of(&server, tenant, ALL));
    let promise = [("idempotency-key", "k")];
    let first = run(&server, &one, &promise, BURN);
    assert_eq!(first.status, 200, "{}", first.text());
    let used = first.json()["usage"]["cpu_ms"]
        .as_u64()
        .expect("it was counted");
    assert!(used >= 1000, "the positive control: {used}");
    assert_eq!(
        quota(&server, &two)["cpu_day_ms"],
        json!({ "now": used, "most": 1000 }),
        "exactly"
    );
    let check = |server: &Server| {
        let answer = run(server, &two, &[], &["true"]);
        refused(&answer, 429, "cpu_day");
        assert!(answer.text().contains("begins anew"), "{}", answer.text());
        let seconds: u64 = answer
            .header("retry-after")
            .and_then(|text| text.parse().ok())
            .expect("when");
        assert!((1..=86_400).contains(&seconds));
        refused(
            &server.ask(&one, "POST", "/v1/sandboxes", &[], &json!({})),
            429,
            "cpu_day",
        );
        assert_eq!(
            run(server, &one, &promise, BURN).json()["run_id"],
            first.json()["run_id"],
            "as before"
        );
        assert_eq!(
            run(server, &other, &[], &["true"]).status,
            200,
            "another has a day of its own"
        );
    };
    check(&server);
    let server = server.restart(Signal::KILL, configuration);
    check(&server);
    let rows = server
        .ask(
            &server.admin,
            "GET",
            "/v1/usage?by=tenant&tenant=acme",
            &[],
            &Value::Null,
        )
        .json();
    assert_eq!(
        (&rows["rows"][0]["runs"], &rows["rows"][0]["cpu_ms"]),
        (&json!(1), &json!(used)),
        "{rows}"
    );
}

#[test]
fn what_goes_on_counts_while_it_does_and_may_finish() {
    let server = Server::with("[tenant.acme]\ncpu_day = \"1s\"\n", &[]);
    let key = key_of(&server, "acme", ALL);
    let made = server
        .ask(&key, "POST", "/v1/sandboxes", &[], &json!({}))
        .json();
    let sandbox = format!(
        "/v1/sandboxes/{}",
        made["sandbox_id"].as_str().expect("a name")
    );
    let order = json!({ "command": ["sh", "-c", "while :; do :; done"], "background": true });
    let begun = server.ask(&key, "POST", &format!("{sandbox}/exec"), &[], &order);
    assert!(begun.status < 300, "{}", begun.text());
    let is_refused = || run(&server, &key, &[], &["true"]).status == 429;
    server.until("the end of the day's CPU time", is_refused);
    let state = server.ask(&key, "GET", &sandbox, &[], &Value::Null).json();
    assert_ne!(state["status"], "ended", "{state}");
    let exec = format!(
        "{sandbox}/exec/{}",
        begun.json()["exec_id"].as_str().expect("a name")
    );
    let program = server.ask(&key, "GET", &exec, &[], &Value::Null).json();
    assert_eq!(
        program["status"], "running",
        "what is under way may finish: {program}"
    );
    let order = json!({ "command": ["echo", "more"] });
    refused(
        &server.ask(&key, "POST", &format!("{sandbox}/exec"), &[], &order),
        429,
        "cpu_day",
    );
    // What is paused and used up stays so, and can still be looked at and ended.
    let paused = server.ask(&key, "POST", &format!("{sandbox}/pause"), &[], &Value::Null);
    if paused.status == 200 {
        refused(
            &server.ask(
                &key,
                "POST",
                &format!("{sandbox}/resume"),
                &[],
                &Value::Null,
            ),
            429,
            "cpu_day",
        );
    }
    assert_eq!(
        server
            .ask(&key, "DELETE", &sandbox, &[], &Value::Null)
            .status,
        200
    );
}

#[test]
fn a_session_of_a_worker_begins_nothing_once_the_cpu_time_is_used_up() {
    let server = Server::with("[tenant.acme]\ncpu_day = \"1s\"\n", &[]);
    let key = key_of(&server, "acme", ALL);
    let (task, session) = (
        "018f6a2e-0000-7000-8000-000000000001",
        "018f6a2e-0000-7000-8000-000000000002",
    );
    let make = json!({ "version": 1, "task_id": task, "session_id": session });
    let made = server.ask(&key, "POST", "/v1/worker/sessions", &[], &make);
    assert_eq!(made.status, 201, "{}", made.text());
    let path = format!("/v1/worker/sessions/{session}");
    let exec = |command: &[&str]| {
        let order = json!({ "version": 1, "task_id": task, "command": command });
        server.ask(&key, "POST", &format!("{path}/exec"), &[], &order)
    };
    let burnt = exec(BURN);
    assert_eq!(burnt.status, 200, "the positive control: {}", burnt.text());
    server.until("the end of the day's CPU time", || {
        exec(&["true"]).status == 429
    });
    refused(&exec(&["true"]), 429, "cpu_day");
    let order = json!({ "version": 1, "task_id": task, "cols": 80, "rows": 24 });
    refused(
        &server.ask(&key, "POST", &format!("{path}/pty:open"), &[], &order),
        429,
        "cpu_day",
    );
}

#[test]
fn the_cpu_time_of_steps_counts_while_they_go_on_and_their_end_is_in_the_audit() {
    let server = Server::with("[tenant.acme]\ncpu_day = \"1s\"\n", &[]);
    let key = key_of(&server, "acme", ALL);
    let send = |number: u32, argv: &[&str], headers: &[(&str, &str)]| {
        let steps = json!({ "protocol_version": "1.0", "job_id": "j", "task_id": "t",
            "constraints": { "max_runtime_seconds": 60, "max_output_bytes": 1000 }, "steps": [
            { "type": "run_command", "args": { "argv": argv } }] });
        let order = json!({
            "version": 1,
            "task_id": format!("018f6a2e-0000-7000-8000-0000000001{number:02}"),
            "job_id": format!("018f6a2e-0000-7000-8000-0000000002{number:02}"),
            "sandbox": { "job_spec_json": steps.to_string() },
        });
        server.ask(&key, "POST", "/v1/worker/jobs:run", headers, &order)
    };
    let begun = send(1, BURN, &[]);
    assert_eq!(begun.status, 200, "{}", begun.text());
    let used = quota(&server, &key)["cpu_day_ms"]["now"]
        .as_u64()
        .expect("a number");
    assert!(used >= 1000, "{used}");
    refused(&send(2, &["true"], &[]), 429, "cpu_day");
    let lines = server
        .ask(
            &server.admin,
            "GET",
            "/v1/audit?tenant=acme&what=run.",
            &[],
            &Value::Null,
        )
        .json();
    let told: Vec<&str> = lines["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .filter_map(|line| line["what"].as_str())
        .collect();
    for what in ["run.accept", "run.start", "run.end"] {
        assert!(told.contains(&what), "{what}: {lines}");
    }
    let end = lines["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .find(|line| line["what"] == "run.end");
    let about = end
        .and_then(|end| end["about"].as_str())
        .expect("what came of it");
    assert!(about.contains(&format!("cpu_ms={used}")), "{about}");
}

#[test]
fn steps_count_before_they_end() {
    let server = Server::with("[tenant.acme]\ncpu_day = \"1s\"\n", &[]);
    let key = key_of(&server, "acme", ALL);
    let steps = json!({ "protocol_version": "1.0", "job_id": "j", "task_id": "t",
            "constraints": { "max_runtime_seconds": 60, "max_output_bytes": 1000 }, "steps": [
        { "type": "run_command", "args": { "argv": ["sh", "-c", "while :; do :; done"] } }] });
    let order = json!({
        "version": 1,
        "task_id": "018f6a2e-0000-7000-8000-000000000001",
        "job_id": "018f6a2e-0000-7000-8000-000000000002",
        "sandbox": { "job_spec_json": steps.to_string() },
    });
    let begun = server.ask(
        &key,
        "POST",
        "/v1/worker/jobs:run",
        &[("prefer", "respond-async")],
        &order,
    );
    assert_eq!(begun.status, 202, "{}", begun.text());
    server.until("the end of the day's CPU time", || {
        run(&server, &key, &[], &["true"]).status == 429
    });
    let state = server.ask(
        &key,
        "GET",
        "/v1/worker/jobs/018f6a2e-0000-7000-8000-000000000002",
        &[],
        &Value::Null,
    );
    assert_eq!(state.json()["status"], "in_progress", "{}", state.text());
}

#[test]
fn a_tenant_stores_what_it_may_and_no_more() {
    let server = Server::with("[tenant.acme]\nstorage = \"64K\"\n", &[]);
    let [acme, other] = ["acme", "else"].map(|tenant| key_of(&server, tenant, ALL));
    let put = |key: &str, name: &str, length: usize| {
        let path = format!("/v1/artifacts/{name}");
        server.ask(key, "PUT", &path, &[], &Value::from("x".repeat(length - 2)))
    };
    assert_eq!(put(&acme, "a", 40_000).status, 201);
    assert_eq!(
        quota(&server, &acme)["storage_bytes"],
        json!({ "now": 40_000, "most": 65_536 })
    );
    let over = put(&acme, "b", 40_000);
    assert_eq!(
        (over.status, &over.json()["code"]),
        (507, &json!("quota_exceeded")),
        "{}",
        over.text()
    );
    assert_eq!(
        put(&acme, "b", 25_536).status,
        201,
        "what is left can be used"
    );
    refused(&put(&acme, "c", 10), 507, "storage");
    assert_eq!(
        put(&other, "c", 400_000).status,
        201,
        "others have their own"
    );
    assert_eq!(
        server
            .ask(&acme, "DELETE", "/v1/artifacts/a", &[], &Value::Null)
            .status,
        200
    );
    assert_eq!(put(&acme, "c", 40_000).status, 201);
}

#[test]
fn everybody_sees_his_own_quota_and_only_an_admin_anothers() {
    let server = Server::with("[tenant.acme]\nruns = 7\nweight = 3\n", &[]);
    let key = key_of(&server, "acme", &["runs"]);
    let own = quota(&server, &key);
    assert_eq!(
        (&own["tenant"], &own["runs"]["most"], &own["weight"]),
        (&json!("acme"), &json!(7), &json!(3))
    );
    let ask = |key: &str, tenant: &str| {
        server.ask(
            key,
            "GET",
            &format!("/v1/quota?tenant={tenant}"),
            &[],
            &Value::Null,
        )
    };
    assert_eq!(ask(&server.admin, "acme").json()["weight"], json!(3));
    let (there, missing) = (ask(&key, "else"), ask(&key, "nobody"));
    assert_eq!((there.status, there.text()), (403, missing.text()));
    assert_eq!(ask(&key, "acme").status, 200);
}

/// A job that needs a copy of a workspace, from this moment on.
fn copying(server: &Server, key: &str, project: &Folder, not_before: Option<&str>) -> Answer {
    let run = json!({ "command": ["true"], "workspace": project.0, "copy_on_write": true });
    let order = json!({ "run": run, "not_before": not_before });
    server.ask(key, "POST", "/v1/jobs", &[], &order)
}

#[test]
fn a_job_goes_past_no_storage_whatever_time_it_names() {
    let project = Folder::new();
    let configuration = format!(
        "[tenant.acme]\nstorage = \"1K\"\n[serve]\nfolders = [{:?}]\n",
        project.0
    );
    let server = Server::with(&configuration, &[]);
    let key = key_of(&server, "acme", ALL);
    let before = copying(&server, &key, &project, None);
    assert_eq!(
        before.status,
        202,
        "the positive control: {}",
        before.text()
    );
    let shown = |answer: &Answer| {
        let path = format!(
            "/v1/jobs/{}",
            answer.json()["job_id"].as_str().expect("a name")
        );
        server.ask(&key, "GET", &path, &[], &Value::Null).json()
    };
    server.until("its end", || shown(&before)["status"] == "succeeded");
    let date = std::process::Command::new("date")
        .args(["-u", "-d", "+6 seconds", "+%FT%TZ"])
        .output();
    let soon = String::from_utf8(date.expect("it runs").stdout).expect("a moment");
    let later = copying(&server, &key, &project, Some(soon.trim()));
    assert_eq!(
        later.status,
        202,
        "its own time may have room: {}",
        later.text()
    );
    let put = server.ask(
        &key,
        "PUT",
        "/v1/artifacts/full",
        &[],
        &json!("x".repeat(1022)),
    );
    assert_eq!(put.status, 201, "{}", put.text());
    refused(&copying(&server, &key, &project, None), 507, "storage");
    refused(
        &copying(&server, &key, &project, Some("2020-01-01T00:00:00Z")),
        507,
        "storage",
    );
    server.until("its turn", || shown(&later)["waiting_for"] == "quota");
    let waits = shown(&later);
    assert_eq!(
        (&waits["status"], &waits["attempt"]),
        (&json!("queued"), &json!(0)),
        "{waits}"
    );
    assert_eq!(waits["error"]["code"], "quota_exceeded", "{waits}");
    let order = json!({ "run": { "command": ["true"] } });
    let other = server.ask(&key, "POST", "/v1/jobs", &[], &order);
    server.until("the end of one that stores nothing", || {
        shown(&other)["status"] == "succeeded"
    });
}
