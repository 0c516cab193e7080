//! The routes over a real socket, on layers of a real state folder: who sees what, and what is answered.

use super::*;
use axum::{Extension, Router};
use engine::{Engine, Settings};
use serde_json::{Value, json};
use spec::{Policy, RunRequest};
use std::fs;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A gateway in which everybody has this key.
async fn serve(gateway: &Gateway, key: &str, scopes: &[Scope]) -> std::net::SocketAddr {
    let validity = crate::validity::InUse::default().watch(key);
    let caller = Caller { key: key.to_owned(), scopes: scopes.to_vec(), validity };
    let (router, _) = routes().split_for_parts();
    let router: Router = router.layer(Extension(caller)).with_state(gateway.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn ask(at: std::net::SocketAddr, line: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let head = format!("{line} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_commits_and_discards_its_own_workspaces_only() {
    let root = std::env::temp_dir().join(format!("airlock-gateway-layers-{}", std::process::id()));
    let (folder, state) = (root.join("folder"), root.join("state"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("a"), "a").unwrap();
    let engine = Engine::open(Settings::new(&state)).unwrap();
    for (id, owner) in [("hers", Some("her")), ("his", Some("him")), ("admins", None)] {
        let request = RunRequest {
            command: vec!["true".into()],
            workspace: Some(folder.clone()),
            copy_on_write: true,
            ..RunRequest::default()
        };
        let mut spec = Policy::default().admit(request).unwrap();
        let owner = owner.map(str::to_owned);
        layers::lay(&state, &Id::new(id).unwrap(), &mut spec.sandbox, owner, &|| false).unwrap();
        fs::write(spec.sandbox.workspace.unwrap().join("a"), id).unwrap();
    }
    let settings = crate::Settings {
        engine,
        policy: Policy::default(),
        state: state.clone(),
        hosts: Vec::new(),
        folders: Vec::new(),
        profiles: None,
        bounds: crate::Bounds::default(),
        quiet: true,
    };
    let gateway = Gateway::new(settings).unwrap();
    let her = serve(&gateway, "her", &[Scope::Sandboxes]).await;
    let admin = serve(&gateway, "root", &[Scope::Admin]).await;
    let weak = serve(&gateway, "her", &[Scope::Runs]).await;

    let ids = |(status, told): (u16, Value)| {
        assert_eq!(status, 200);
        let all = told["workspaces"].as_array().unwrap().iter();
        all.map(|one| one["id"].as_str().unwrap().to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids(ask(her, "GET /v1/workspaces", "").await), ["hers".to_owned()].into());
    assert_eq!(ids(ask(admin, "GET /v1/workspaces", "").await).len(), 3);
    assert_eq!(ask(weak, "GET /v1/workspaces", "").await.0, 403);
    for line in ["GET /v1/workspaces/his/diff", "POST /v1/workspaces/his/commit", "DELETE /v1/workspaces/his"]
    {
        assert_eq!(ask(her, line, "").await.0, 404, "{line}");
    }

    let (status, diff) = ask(her, "GET /v1/workspaces/hers/diff", "").await;
    assert_eq!(
        (status, &diff["changes"][0]["path"], &diff["changes"][0]["change"]),
        (200, &json!("a"), &json!("changed"))
    );
    assert_eq!(ask(her, "POST /v1/workspaces/hers/commit", "{\"farce\":true}").await.0, 400);
    let (status, done) = ask(her, "POST /v1/workspaces/hers/commit", "").await;
    assert_eq!((status, &done["discarded"]), (200, &json!(true)), "{done}");
    assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "hers");
    // The folder is another now: the next one is a conflict that names the file, until it is forced.
    let (status, told) = ask(admin, "POST /v1/workspaces/his/commit", "{}").await;
    assert_eq!(status, 409);
    assert!(told["detail"].as_str().unwrap().starts_with("`a`: it was changed"), "{told}");
    assert_eq!(ask(admin, "POST /v1/workspaces/his/commit", "{\"force\":true}").await.0, 200);
    assert_eq!(ask(admin, "DELETE /v1/workspaces/admins", "").await.0, 204);
    assert_eq!(ids(ask(admin, "GET /v1/workspaces", "").await).len(), 0);
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn what_is_told_of_hostile_changes_is_bounded() {
    let change = |number: usize| layers::Change {
        path: number.to_string().into(),
        what: layers::What::Added,
        kind: layers::Kind::Link,
        mode: 0o777,
        size_bytes: 0,
        target: Some("\u{1}".repeat(4095).into()),
        left_out: None,
        conflict: None,
    };
    let changes = |count: usize| (0..count).map(change).collect::<Vec<_>>();
    let told = |count| {
        let diff = shown(layers::Diff { changes: changes(count), unknown: Vec::new(), compared: true });
        (diff.changes.len(), diff.truncated, serde_json::to_vec(&diff).unwrap().len())
    };
    assert!(matches!(told(3), (3, false, _)));
    let (count, truncated, bytes) = told(400);
    assert!(count > 100 && truncated && bytes < fitting::MOST_BYTES * 11 / 10, "{count} {bytes}");
    let committed = layers::Committed { applied: changes(400), left: Vec::new(), discarded: true };
    let committed = taken_over(committed);
    assert!(committed.applied.len() == count && committed.truncated && committed.discarded);
}
