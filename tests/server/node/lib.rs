//! What the claims about a node share: the real server, and keys of tenants.

pub mod payers;

pub use gateway_tests::{Answer, Folder, Server};
use serde_json::json;

/// A key of this tenant's.
pub fn key_of(server: &Server, tenant: &str, scopes: &[&str]) -> String {
    let order = json!({ "name": tenant, "tenant": tenant, "scopes": scopes });
    let made = server.post("/v1/keys", &order);
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["token"]
        .as_str()
        .expect("a key has a token")
        .to_owned()
}

/// Whether a process of this machine, in whatever box, has exactly these arguments.
pub fn is_running(argv: &[&str]) -> bool {
    let wanted = argv
        .iter()
        .map(|word| format!("{word}\0"))
        .collect::<String>()
        .into_bytes();
    let all = std::fs::read_dir("/proc").expect("it is there").flatten();
    all.into_iter().any(|process| {
        std::fs::read(process.path().join("cmdline")).is_ok_and(|argv| argv == wanted)
    })
}
