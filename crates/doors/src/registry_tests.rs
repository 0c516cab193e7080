//! Registry tests without a network.

use super::*;
use crate::{
    budget::BudgetManager,
    catalogue::{Catalogue, Provider},
    connections::ConnectionHandle,
    dialect::Dialect,
    ledger::{Durability, Ledger},
    secrets::Secrets,
};
use http::Uri;
use std::{fs, sync::atomic::AtomicU32, sync::atomic::Ordering};

/// A registry with one provider that is never called, in a temporary folder.
struct World {
    folder: PathBuf,
    registry: Arc<Registry>,
}

impl World {
    fn new(tenants: &[&str]) -> World {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "airlock-registry-{}.{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        let ledger = Ledger::open(&folder.join("ledger"), "owner", Durability::Process).unwrap();
        let base = Uri::from_static("http://127.0.0.1:9");
        let provider = Provider {
            allow_plain_http: true,
            ..Provider::new("p", Dialect::OpenAi, base)
        };
        let providers = [("p".to_owned(), Arc::new(provider))].into();
        let catalogue = Catalogue {
            providers,
            ..Catalogue::default()
        };
        let doors = Doors::new(
            catalogue,
            Secrets::default(),
            BudgetManager::new(Arc::new(ledger)),
        );
        let tenants = tenants
            .iter()
            .map(|name| ((*name).to_owned(), AccountLimits::default()))
            .collect();
        let setup = RegistryConfig {
            doors,
            tenants,
            inference_models: Vec::new(),
        };
        let registry = Registry::open(&folder.join("doors"), setup, None).unwrap();
        World { folder, registry }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

fn request() -> NewSession {
    NewSession {
        kind: DoorKind::Llm,
        provider: "p".to_owned(),
        sandbox: None,
        run: None,
        tenant: None,
        token: None,
        key: None,
        models: Vec::new(),
        budget: Budget::default(),
        ttl: None,
        socket: None,
    }
}

#[tokio::test]
async fn whoever_revokes_what_is_being_revoked_waits_for_its_end_too() {
    let World { registry, .. } = &World::new(&[]);
    let registered = registry.register(request()).await.unwrap();
    let token = registered.token.expose();
    let session = registry.find(token.as_bytes()).unwrap();
    // A connection that stays until it is closed by force, so that ending takes time.
    let connection = Arc::new(ConnectionHandle::default());
    assert!(connection.join(&session.connections));
    let served = tokio::spawn(async move { connection.wait_cut().await });
    let (one, two, three) = tokio::join!(
        registry.revoke(&token),
        registry.revoke(&token[8..]),
        registry.revoke(&registered.id)
    );
    assert!(served.is_finished() && session.connections.count() == 0);
    let ends = [one, two, three].map(|view| view.map(|view| (view.meta.id.clone(), view.state)));
    assert_eq!(
        ends,
        [0; 3].map(|_| Some((registered.id.clone(), DoorSessionState::Revoked)))
    );
    assert!(
        registry.revoke(&token).await.is_none(),
        "afterwards there is nothing left to revoke"
    );
    assert_eq!(
        registry.view(&token).unwrap().state,
        DoorSessionState::Revoked
    );
}

#[tokio::test]
async fn there_are_so_many_sessions_and_no_more() {
    let World { registry, .. } = &World::new(&[]);
    let mut last = None;
    for _ in 0..MAX_SESSIONS {
        last = Some(registry.register(request()).await.unwrap().id);
    }
    let refused = registry.register(request()).await.unwrap_err().to_string();
    assert_eq!(refused, "there are 10000 sessions already");
    registry.revoke(&last.unwrap()).await.unwrap();
    registry.register(request()).await.unwrap();
}

#[tokio::test]
async fn a_tenant_nobody_configured_has_no_limit_only_where_none_has() {
    let named = |name: &str| NewSession {
        tenant: Some(Id::new(name).unwrap()),
        ..request()
    };
    let free = World::new(&[]);
    free.registry.register(named("anybody")).await.unwrap();
    assert_eq!(
        free.registry.tenants().into_keys().collect::<Vec<_>>(),
        ["anybody"]
    );
    let configured = World::new(&["acme"]);
    configured.registry.register(named("acme")).await.unwrap();
    let refused = configured
        .registry
        .register(named("acne"))
        .await
        .unwrap_err();
    assert_eq!(refused.to_string(), "no tenant is called `acne`");
}

#[tokio::test]
async fn a_service_that_stops_takes_nobody_and_leaves_nobody() {
    let World { registry, .. } = &World::new(&[]);
    let with_socket = NewSession {
        socket: Some(SessionSocket::default()),
        ..request()
    };
    let registered = registry.register(with_socket).await.unwrap();
    let socket = registered.socket.unwrap();
    assert!(socket.exists());
    registry.stop().await;
    assert!(!socket.exists() && registry.list().is_empty());
    assert!(
        registry
            .find(registered.token.expose().as_bytes())
            .is_none()
    );
    assert!(matches!(
        registry.register(request()).await,
        Err(RegisterError::Stopping)
    ));
}
