//! One server, many who do not trust each other: what a key may name, and that it learns nothing of the others.

use gateway_tests::{Answer, Server};
use serde_json::{Value, json};
use std::fs;

fn run(server: &Server, key: &str, body: Value) -> Answer {
    server.ask(key, "POST", "/v1/runs", &[], &body)
}

/// Keeps some bytes as an artifact of this key's.
fn keep(server: &Server, key: &str, name: &str, text: &str) {
    let order = json!({ "command": ["sh", "-c", "printf %s \"$1\" > \"$2\"", "sh", text, name], "artifacts": [name] });
    let made = run(server, key, order);
    assert_eq!((made.status, &made.json()["artifacts"][0]["name"]), (200, &json!(name)), "{}", made.text());
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
        run(&server, &key, json!({ "command": ["cat", shown], "inputs": inputs }))
    };
    assert_eq!(with("y", "y").json()["stdout"], "the artifact", "the positive control");
    let odd = format!("y={}", secret.display());
    let answer = with(&odd, "y");
    assert!(!answer.text().contains("only the host's"), "{}", answer.text());
    assert_eq!(with(&odd, &odd).json()["stdout"], "the artifact", "it is a name like any other");
    let order = json!({ "inputs": [{ "name": odd, "artifact": "x" }] });
    let made = server.ask(&key, "POST", "/v1/sandboxes", &[], &order).json();
    let files = format!("/v1/sandboxes/{}/files/y", made["sandbox_id"].as_str().unwrap());
    let file = server.ask(&key, "GET", &files, &[], &Value::Null);
    assert!(!file.text().contains("only the host's"), "{}", file.text());
}
