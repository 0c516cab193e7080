//! The routes over a real socket, on layers of a real state folder: who sees what, and what is answered.

use super::*;
use axum::{Extension, Router};
use engine::{Engine, Settings};
use serde_json::{Value, json};
use spec::{LayerKind, LayerUsage, Policy, RunRequest};
use std::fs;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A gateway in which everybody has this key.
async fn serve(gateway: &Gateway, key: &str, scopes: &[Scope]) -> std::net::SocketAddr {
    let validity = crate::key_watch::ActiveKeys::default().watch(key);
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
pub(crate) struct Fixture {
    root: PathBuf,
    engine: Engine,
}

impl Fixture {
    pub(crate) fn new(name: &str, layers: &[(&str, Option<&str>)]) -> Fixture {
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
            layers::create_layer(
                &state,
                &Id::new(id).unwrap(),
                &mut spec.sandbox,
                owner,
                &|| false,
            )
            .unwrap();
            fs::write(spec.sandbox.workspace.unwrap().join("a"), id).unwrap();
        }
        Fixture { root, engine }
    }

    fn folder(&self) -> PathBuf {
        self.root.join("folder")
    }

    pub(crate) fn gateway(&self, folders: Vec<PathBuf>) -> Gateway {
        let settings = crate::GatewaySettings {
            engine: self.engine.clone(),
            policy: Policy::default(),
            state: self.root.join("state"),
            hosts: Vec::new(),
            folders,
            profiles: None,
            bounds: crate::ServerLimits::default(),
            jobs: spec::JobQueueLimits::default(),
            tenants: spec::TenantQuotas::default(),
            node: crate::NodeSettings::default(),
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

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_longer_shared_is_neither_compared_nor_changed() {
    let fixture = Fixture::new(
        "unshared",
        &[("hers", Some("her")), ("second", Some("her"))],
    );
    let her = serve(&fixture.gateway(Vec::new()), "her", &[Scope::Sandboxes]).await;
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
    assert_eq!(fs::read_to_string(fixture.folder().join("a")).unwrap(), "a");
    assert_eq!(
        ask(her, "DELETE /v1/workspaces/second", "").await.0,
        204,
        "what is hers she may drop"
    );
    // An admin needs no leave, and where the folder is shared, nor does she. Each state has one owner at a time.
    let fixture = Fixture::new("unshared-admin", &[("hers", Some("her"))]);
    let admin = serve(&fixture.gateway(Vec::new()), "root", &[Scope::Admin]).await;
    assert_eq!(ask(admin, "GET /v1/workspaces/hers/diff", "").await.0, 200);
    let fixture = Fixture::new("unshared-shared", &[("hers", Some("her"))]);
    let shared = serve(
        &fixture.gateway(vec![fixture.root.clone()]),
        "her",
        &[Scope::Sandboxes],
    )
    .await;
    assert_eq!(
        ask(shared, "POST /v1/workspaces/hers/commit", "").await.0,
        200
    );
    assert_eq!(
        fs::read_to_string(fixture.folder().join("a")).unwrap(),
        "hers"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_commits_and_discards_its_own_workspaces_only() {
    let fixture = Fixture::new(
        "layers",
        &[
            ("hers", Some("her")),
            ("his", Some("him")),
            ("admins", None),
        ],
    );
    let folder = fixture.folder();
    let gateway = fixture.gateway(vec![folder.clone()]);
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
    let fixture = Fixture::new("room", &[("hers", Some("her")), ("his", Some("him"))]);
    let (folder, gateway) = (fixture.folder(), fixture.gateway(vec![fixture.folder()]));
    let her = serve(&gateway, "her", &[Scope::Sandboxes]).await;
    for (shares, amount) in [
        (gateway.response_bytes(), 60 << 20),
        (gateway.blocking_work(), 16),
    ] {
        let mut taken = shares.guard("her");
        shares.acquire(&mut taken, amount).unwrap();
        let (status, told) = ask(her, "POST /v1/workspaces/hers/commit", "").await;
        assert_eq!(
            (status, &told["code"]),
            (429, &json!("quota_exceeded")),
            "{told}"
        );
        assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "a");
    }
    let mut others = gateway.blocking_work().guard("him");
    gateway.blocking_work().acquire(&mut others, 16).unwrap();
    assert_eq!(ask(her, "POST /v1/workspaces/hers/commit", "").await.0, 200);
    assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "hers");
}

#[test]
fn a_layer_is_kept_until_its_commits_have_arrived() {
    let fixture = Fixture::new("commits", &[("hers", Some("her"))]);
    let (state, id) = (fixture.root.join("state"), Id::new("hers").unwrap());
    let commit = |options: CommitOptions, import: Import| {
        let mut told = None;
        let committed = commit_all(&state, &id, options, |is_layer_kept| {
            told = Some(is_layer_kept);
            import
        });
        let committed = committed.unwrap();
        (told, committed.discarded, committed.notes)
    };
    let busy = || ErrorInfo {
        code: ErrorCode::Conflict,
        message: "somebody is at it".to_owned(),
        hint: None,
    };
    let kept = || KEPT_FOR_COMMITS.to_owned();
    let outcome = commit(CommitOptions::default(), Err(busy()));
    let notes = vec![busy().message, kept()];
    assert_eq!(outcome, (Some(false), false, notes), "the files arrived");
    let written = fs::read_to_string(fixture.folder().join("a")).unwrap();
    assert_eq!(written, "hers");
    let failed = GitImport {
        not_brought: vec![spec::GitOmission {
            what: ".git".to_owned(),
            why: "no sandbox".to_owned(),
        }],
        ..GitImport::default()
    };
    let brought = BroughtCommits {
        imports: vec![failed],
        notes: Vec::new(),
    };
    let outcome = commit(CommitOptions::default(), Ok(Some(brought)));
    assert_eq!(outcome, (Some(false), false, vec![kept()]));
    let keep = CommitOptions {
        keep: true,
        ..CommitOptions::default()
    };
    assert_eq!(commit(keep, Ok(None)), (Some(true), false, Vec::new()));
    assert!(layers::exists(&state, &id).unwrap());
    let outcome = commit(CommitOptions::default(), Ok(None));
    assert_eq!(outcome, (Some(false), true, Vec::new()));
    assert!(!layers::exists(&state, &id).unwrap());
}

#[test]
fn what_is_told_of_hostile_changes_is_bounded() {
    let change = |number: usize| layers::LayerChange {
        path: number.to_string().into(),
        what: layers::ChangeKind::Added,
        kind: layers::FileKind::Link,
        mode: 0o777,
        size_bytes: 0,
        target: Some("\u{1}".repeat(4095).into()),
        left_out: None,
        why: None,
        conflict: None,
    };
    let changes = |count: usize| (0..count).map(change).collect::<Vec<_>>();
    let told = |count| {
        let diff = layers::Diff {
            changes: changes(count),
            unknown: Vec::new(),
            compared: true,
            layer: LayerUsage {
                kind: LayerKind::Copy,
                bytes: 0,
            },
            commits: Vec::new(),
        };
        let diff = diff_response(diff, None);
        (
            diff.changes.len(),
            diff.truncated,
            serde_json::to_vec(&diff).unwrap().len(),
        )
    };
    assert!(matches!(told(3), (3, false, _)));
    let (count, truncated, bytes) = told(400);
    assert!(
        count > 100 && truncated && bytes < json_response::MAX_ENTRY_BYTES * 11 / 10,
        "{count} {bytes}"
    );
    let committed = layers::CommitOutcome {
        applied: changes(400),
        left: Vec::new(),
        discarded: true,
        ..layers::CommitOutcome::default()
    };
    let committed = commit_response(committed);
    assert!(committed.applied.len() == count && committed.truncated && committed.discarded);
}
