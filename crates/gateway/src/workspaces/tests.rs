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
    let caller = Caller {
        key: key.to_owned(),
        tenant: key.to_owned(),
        scopes: scopes.to_vec(),
        validity,
    };
    let (router, _) = routes().split_for_parts();
    let router: Router = router.layer(Extension(caller)).with_state(gateway.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn ask(at: std::net::SocketAddr, line: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let head = format!(
        "{line} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head[9..12].parse().unwrap(),
        serde_json::from_str(body).unwrap_or_default(),
    )
}

/// A folder, and a state folder with layers of it.
pub(crate) struct Place {
    root: PathBuf,
    engine: Engine,
}

impl Place {
    pub(crate) fn new(name: &str, layers: &[(&str, Option<&str>)]) -> Place {
        let root =
            std::env::temp_dir().join(format!("airlock-gateway-{name}-{}", std::process::id()));
        let (folder, state) = (root.join("folder"), root.join("state"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a"), "a").unwrap();
        let engine = Engine::open(Settings::new(&state)).unwrap();
        for (id, owner) in layers {
            let request = RunRequest {
                command: vec!["true".into()],
                workspace: Some(folder.clone()),
                copy_on_write: true,
                ..RunRequest::default()
            };
            let mut spec = Policy::default().admit(request).unwrap();
            let owner = owner.map(str::to_owned);
            layers::lay(
                &state,
                &Id::new(id).unwrap(),
                &mut spec.sandbox,
                owner,
                &|| false,
            )
            .unwrap();
            fs::write(spec.sandbox.workspace.unwrap().join("a"), id).unwrap();
        }
        Place { root, engine }
    }

    fn folder(&self) -> PathBuf {
        self.root.join("folder")
    }

    pub(crate) fn gateway(&self, folders: Vec<PathBuf>) -> Gateway {
        let settings = crate::Settings {
            engine: self.engine.clone(),
            policy: Policy::default(),
            state: self.root.join("state"),
            hosts: Vec::new(),
            folders,
            profiles: None,
            bounds: crate::Bounds::default(),
            jobs: spec::JobBounds::default(),
            tenants: spec::Tenants::default(),
            node: crate::Node::default(),
            audit: Default::default(),
            webhooks: crate::WebhookSettings {
                attempts: 1,
                courier: Default::default(),
            },
            quiet: true,
            trace: None,
            facts: crate::NodeFacts::default(),
            keep_ledger: None,
        };
        Gateway::new(settings).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_longer_shared_is_neither_compared_nor_changed() {
    let place = Place::new(
        "unshared",
        &[("hers", Some("her")), ("second", Some("her"))],
    );
    let her = serve(&place.gateway(Vec::new()), "her", &[Scope::Sandboxes]).await;
    for line in [
        "GET /v1/workspaces/hers/diff",
        "POST /v1/workspaces/hers/commit",
    ] {
        let (status, told) = ask(her, line, "").await;
        assert_eq!(
            (status, &told["code"]),
            (403, &json!("policy_denied")),
            "{line}: {told}"
        );
    }
    assert_eq!(fs::read_to_string(place.folder().join("a")).unwrap(), "a");
    assert_eq!(
        ask(her, "DELETE /v1/workspaces/second", "").await.0,
        204,
        "what is hers she may drop"
    );
    // An admin needs no leave, and where the folder is shared, nor does she. Each state has one owner at a time.
    let place = Place::new("unshared-admin", &[("hers", Some("her"))]);
    let admin = serve(&place.gateway(Vec::new()), "root", &[Scope::Admin]).await;
    assert_eq!(ask(admin, "GET /v1/workspaces/hers/diff", "").await.0, 200);
    let place = Place::new("unshared-shared", &[("hers", Some("her"))]);
    let shared = serve(
        &place.gateway(vec![place.root.clone()]),
        "her",
        &[Scope::Sandboxes],
    )
    .await;
    assert_eq!(
        ask(shared, "POST /v1/workspaces/hers/commit", "").await.0,
        200
    );
    assert_eq!(
        fs::read_to_string(place.folder().join("a")).unwrap(),
        "hers"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_commits_and_discards_its_own_workspaces_only() {
    let place = Place::new(
        "layers",
        &[
            ("hers", Some("her")),
            ("his", Some("him")),
            ("admins", None),
        ],
    );
    let folder = place.folder();
    let gateway = place.gateway(vec![folder.clone()]);
    let her = serve(&gateway, "her", &[Scope::Sandboxes]).await;
    let admin = serve(&gateway, "root", &[Scope::Admin]).await;
    let weak = serve(&gateway, "her", &[Scope::Runs]).await;

    let ids = |(status, told): (u16, Value)| {
        assert_eq!(status, 200);
        let all = told["workspaces"].as_array().unwrap().iter();
        all.map(|one| one["id"].as_str().unwrap().to_owned())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(
        ids(ask(her, "GET /v1/workspaces", "").await),
        ["hers".to_owned()].into()
    );
    assert_eq!(ids(ask(admin, "GET /v1/workspaces", "").await).len(), 3);
    assert_eq!(ask(weak, "GET /v1/workspaces", "").await.0, 403);
    for line in [
        "GET /v1/workspaces/his/diff",
        "POST /v1/workspaces/his/commit",
        "DELETE /v1/workspaces/his",
    ] {
        assert_eq!(ask(her, line, "").await.0, 404, "{line}");
    }

    let (status, diff) = ask(her, "GET /v1/workspaces/hers/diff", "").await;
    assert_eq!(
        (
            status,
            &diff["changes"][0]["path"],
            &diff["changes"][0]["change"]
        ),
        (200, &json!("a"), &json!("changed"))
    );
    assert_eq!(
        ask(her, "POST /v1/workspaces/hers/commit", "{\"farce\":true}")
            .await
            .0,
        400
    );
    let (status, done) = ask(her, "POST /v1/workspaces/hers/commit", "").await;
    assert_eq!((status, &done["discarded"]), (200, &json!(true)), "{done}");
    assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "hers");
    // The folder is another now: the next one is a conflict that names the file, until it is forced.
    let (status, told) = ask(admin, "POST /v1/workspaces/his/commit", "{}").await;
    assert_eq!(status, 409);
    assert!(
        told["detail"]
            .as_str()
            .unwrap()
            .starts_with("`a`: it was changed"),
        "{told}"
    );
    assert_eq!(
        ask(admin, "POST /v1/workspaces/his/commit", "{\"force\":true}")
            .await
            .0,
        200
    );
    assert_eq!(ask(admin, "DELETE /v1/workspaces/admins", "").await.0, 204);
    assert_eq!(ids(ask(admin, "GET /v1/workspaces", "").await).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_no_room_to_do_or_to_tell_is_not_done() {
    let place = Place::new("room", &[("hers", Some("her")), ("his", Some("him"))]);
    let (folder, gateway) = (place.folder(), place.gateway(vec![place.folder()]));
    let her = serve(&gateway, "her", &[Scope::Sandboxes]).await;
    for (shares, amount) in [(gateway.answering(), 60 << 20), (gateway.working(), 16)] {
        let mut taken = shares.of("her");
        shares.add(&mut taken, amount).unwrap();
        let (status, told) = ask(her, "POST /v1/workspaces/hers/commit", "").await;
        assert_eq!(
            (status, &told["code"]),
            (429, &json!("quota_exceeded")),
            "{told}"
        );
        assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "a");
    }
    let mut others = gateway.working().of("him");
    gateway.working().add(&mut others, 16).unwrap();
    assert_eq!(ask(her, "POST /v1/workspaces/hers/commit", "").await.0, 200);
    assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "hers");
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
        let diff = shown(layers::Diff {
            changes: changes(count),
            unknown: Vec::new(),
            compared: true,
        });
        (
            diff.changes.len(),
            diff.truncated,
            serde_json::to_vec(&diff).unwrap().len(),
        )
    };
    assert!(matches!(told(3), (3, false, _)));
    let (count, truncated, bytes) = told(400);
    assert!(
        count > 100 && truncated && bytes < fitting::MOST_BYTES * 11 / 10,
        "{count} {bytes}"
    );
    let committed = layers::Committed {
        applied: changes(400),
        left: Vec::new(),
        discarded: true,
    };
    let committed = taken_over(committed);
    assert!(committed.applied.len() == count && committed.truncated && committed.discarded);
}
