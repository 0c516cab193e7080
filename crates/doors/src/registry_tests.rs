//! What can be said of a registry without a network.

use super::*;
use crate::{
    catalogue::{Catalogue, Provider},
    dialect::Dialect,
    ledger::{Durability, Ledger},
    line::Line,
    secrets::Secrets,
    till::Till,
};
use http::Uri;
use std::{fs, sync::atomic::AtomicU32, sync::atomic::Ordering};

/// A registry with one provider, which nobody calls; its folder goes with it.
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
        let doors = Doors::new(catalogue, Secrets::default(), Till::new(Arc::new(ledger)));
        let tenants = tenants
            .iter()
            .map(|name| ((*name).to_owned(), Terms::default()))
            .collect();
        let setup = Setup {
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

fn order() -> Order {
    Order {
        kind: Kind::Llm,
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
    let registered = registry.register(order()).await.unwrap();
    let token = registered.token.expose();
    let session = registry.find(token.as_bytes()).unwrap();
    // One that stays until it is cut, so that an end takes its time.
    let line = Arc::new(Line::default());
    assert!(line.enter(&session.crowd));
    let served = tokio::spawn(async move { line.cut().await });
    let (one, two, three) = tokio::join!(
        registry.revoke(&token),
        registry.revoke(&token[8..]),
        registry.revoke(&registered.id)
    );
    assert!(served.is_finished() && session.crowd.count() == 0);
    let ends = [one, two, three].map(|view| view.map(|view| (view.about.id.clone(), view.state)));
    assert_eq!(
        ends,
        [0; 3].map(|_| Some((registered.id.clone(), State::Revoked)))
    );
    assert!(
        registry.revoke(&token).await.is_none(),
        "afterwards there is nothing left to revoke"
    );
    assert_eq!(registry.view(&token).unwrap().state, State::Revoked);
}

#[tokio::test]
async fn there_are_so_many_sessions_and_no_more() {
    let World { registry, .. } = &World::new(&[]);
    let mut last = None;
    for _ in 0..MOST_SESSIONS {
        last = Some(registry.register(order()).await.unwrap().id);
    }
    let refused = registry.register(order()).await.unwrap_err().to_string();
    assert_eq!(refused, "there are 10000 sessions already");
    registry.revoke(&last.unwrap()).await.unwrap();
    registry.register(order()).await.unwrap();
}

#[tokio::test]
async fn a_tenant_nobody_configured_has_no_limit_only_where_none_has() {
    let named = |name: &str| Order {
        tenant: Some(Id::new(name).unwrap()),
        ..order()
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
    let with_socket = Order {
        socket: Some(Socket::default()),
        ..order()
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
        registry.register(order()).await,
        Err(RegisterError::Stopping)
    ));
}
