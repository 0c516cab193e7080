//! Tenants do not see each other, and the keys of one see the same things.

use node_tests::{Server, key_of};
use serde_json::{Value, json};

#[test]
fn the_keys_of_a_tenant_see_the_same_runs_and_nobody_elses() {
    let server = Server::new();
    let [one, two, other] =
        [("acme", "a"), ("acme", "b"), ("else", "c")].map(|(tenant, _)| key_of(&server, tenant, &["runs"]));
    let run = server.ask(&one, "POST", "/v1/runs", &[], &json!({ "command": ["true"] })).json();
    let path = format!("/v1/runs/{}", run["run_id"].as_str().expect("it ran"));
    let asked = |key: &str| server.ask(key, "GET", &path, &[], &Value::Null).status;
    assert_eq!([&one, &two, &other].map(|key| asked(key)), [200, 200, 404]);
}
