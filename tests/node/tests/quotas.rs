//! Quotas: what a tenant may have at once and of a day, whatever keys it uses, and that nobody else has less by it.

use node_tests::{Answer, Server, key_of};
use rustix::process::Signal;
use serde_json::{Value, json};

const ALL: &[&str] = &["runs", "sandboxes", "artifacts", "usage"];

fn run(server: &Server, key: &str, headers: &[(&str, &str)], command: &[&str]) -> Answer {
    server.ask(key, "POST", "/v1/runs", headers, &json!({ "command": command }))
}

fn quota(server: &Server, key: &str) -> Value {
    let answer = server.ask(key, "GET", "/v1/quota", &[], &Value::Null);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// A refusal by this rule.
fn refused(answer: &Answer, status: u16, rule: &str) {
    let told = answer.json();
    assert_eq!((answer.status, &told["code"]), (status, &json!("quota_exceeded")), "{told}");
    assert!(told["title"].as_str().expect("a title").contains(&format!("`{rule}")), "{told}");
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
    assert_eq!(begin(&one, "a").status, 202, "what was promised before is no new one");
    assert_eq!(begin(&other, "a").status, 202, "another tenant has its own");
    refused(&begin(&other, "b"), 429, "runs");
    assert_eq!(quota(&server, &two)["runs"], json!({ "now": 2, "most": 2 }));
    let path = format!("/v1/runs/{}", first.json()["run_id"].as_str().expect("a name"));
    assert_eq!(server.ask(&two, "DELETE", &path, &[], &Value::Null).status, 200);
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
    let path = format!("/v1/sandboxes/{}", first.json()["sandbox_id"].as_str().expect("a name"));
    let fork = server.ask(&two, "POST", &format!("{path}/fork"), &[], &json!({}));
    refused(&fork, 429, "sandboxes");
    assert_eq!(quota(&server, &one)["sandboxes"], json!({ "now": 1, "most": 1 }));
    assert_eq!(server.ask(&one, "DELETE", &path, &[], &Value::Null).status, 200);
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
    let used = first.json()["usage"]["cpu_ms"].as_u64().expect("it was counted");
    assert!(used >= 1000, "the positive control: {used}");
    assert_eq!(quota(&server, &two)["cpu_day_ms"], json!({ "now": used, "most": 1000 }), "exactly");
    let check = |server: &Server| {
        let answer = run(server, &two, &[], &["true"]);
        refused(&answer, 429, "cpu_day");
        assert!(answer.text().contains("begins anew"), "{}", answer.text());
        let seconds: u64 = answer.header("retry-after").and_then(|text| text.parse().ok()).expect("when");
        assert!((1..=86_400).contains(&seconds));
        refused(&server.ask(&one, "POST", "/v1/sandboxes", &[], &json!({})), 429, "cpu_day");
        assert_eq!(run(server, &one, &promise, BURN).json()["run_id"], first.json()["run_id"], "as before");
        assert_eq!(run(server, &other, &[], &["true"]).status, 200, "another has a day of its own");
    };
    check(&server);
    let server = server.restart(Signal::KILL, configuration);
    check(&server);
    let rows = server.ask(&server.admin, "GET", "/v1/usage?by=tenant&tenant=acme", &[], &Value::Null).json();
    assert_eq!((&rows["rows"][0]["runs"], &rows["rows"][0]["cpu_ms"]), (&json!(1), &json!(used)), "{rows}");
}

#[test]
fn what_goes_on_counts_while_it_does_and_may_finish() {
    let server = Server::with("[tenant.acme]\ncpu_day = \"1s\"\n", &[]);
    let key = key_of(&server, "acme", ALL);
    let made = server.ask(&key, "POST", "/v1/sandboxes", &[], &json!({})).json();
    let sandbox = format!("/v1/sandboxes/{}", made["sandbox_id"].as_str().expect("a name"));
    let order = json!({ "command": ["sh", "-c", "while :; do :; done"], "background": true });
    let begun = server.ask(&key, "POST", &format!("{sandbox}/exec"), &[], &order);
    assert!(begun.status < 300, "{}", begun.text());
    let is_refused = || run(&server, &key, &[], &["true"]).status == 429;
    server.until("the end of the day's CPU time", is_refused);
    let state = server.ask(&key, "GET", &sandbox, &[], &Value::Null).json();
    assert_ne!(state["status"], "ended", "{state}");
    let order = json!({ "command": ["echo", "still here"] });
    let more = server.ask(&key, "POST", &format!("{sandbox}/exec"), &[], &order).json();
    assert_eq!(more["stdout"], "still here\n", "{more}");
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
    assert_eq!(quota(&server, &acme)["storage_bytes"], json!({ "now": 40_000, "most": 65_536 }));
    let over = put(&acme, "b", 40_000);
    assert_eq!((over.status, &over.json()["code"]), (507, &json!("quota_exceeded")), "{}", over.text());
    assert_eq!(put(&acme, "b", 25_536).status, 201, "what is left can be used");
    refused(&put(&acme, "c", 10), 507, "storage");
    assert_eq!(put(&other, "c", 400_000).status, 201, "others have their own");
    assert_eq!(server.ask(&acme, "DELETE", "/v1/artifacts/a", &[], &Value::Null).status, 200);
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
        server.ask(key, "GET", &format!("/v1/quota?tenant={tenant}"), &[], &Value::Null)
    };
    assert_eq!(ask(&server.admin, "acme").json()["weight"], json!(3));
    let (there, missing) = (ask(&key, "else"), ask(&key, "nobody"));
    assert_eq!((there.status, there.text()), (403, missing.text()));
    assert_eq!(ask(&key, "acme").status, 200);
}
