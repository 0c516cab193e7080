//! Which sandboxes are remembered, how many one may have, and what is told of their ends.

use super::*;

fn row(owner: &str, number: usize, promise: Option<&str>) -> SandboxRow {
    SandboxRow {
        id: format!("{owner}-{number}"),
        owner: owner.to_owned(),
        labels: "{}".to_owned(),
        backend: "native".to_owned(),
        profile: "standard".to_owned(),
        created_ms: 1,
        idempotency_key: promise.map(|name| (name.to_owned(), vec![1])),
        ended: Some((number as u64, "asked".to_owned())),
    }
}

fn ended(owner: &str, number: usize, promise: Option<&str>) -> (u64, Arc<SandboxEntry>) {
    (
        number as u64,
        Arc::new(SandboxEntry::from_row(row(owner, number, promise))),
    )
}

#[test]
fn one_owners_ends_push_out_his_own_and_nobody_elses() {
    let gone = |of_one, of_all| -> Vec<String> {
        let loud = (1..6).map(|number| ended("loud", number, None));
        let all = loud.chain([ended("quiet", 0, None)]).collect();
        excess(all, of_one, of_all)
            .iter()
            .map(|entry| entry.id.clone())
            .collect()
    };
    assert!(
        gone(5, 6).is_empty(),
        "the positive control: all of them fit"
    );
    assert_eq!(gone(3, 6), ["loud-2", "loud-1"]);
    assert_eq!(gone(5, 3), ["loud-3", "loud-2", "loud-1"]);
}

#[test]
fn what_was_promised_is_remembered_for_a_day_and_the_rest_for_an_hour() {
    let now = engine::now().0 as usize;
    let hour = RETENTION_MS as usize;
    let entries = [
        ended("a", now - hour / 2, None),
        ended("b", now - 2 * hour, None),
        ended("c", now - 2 * hour, Some("k")),
        ended("d", now - 25 * hour, Some("k")),
    ];
    let mut registry = RegistryState::default();
    registry
        .all
        .extend(entries.map(|(_, entry)| (entry.owner.clone(), entry)));
    registry.prune();
    assert_eq!(registry.all.into_keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn those_being_made_count_among_those_that_one_may_have() {
    let mut registry = RegistryState::default();
    let made = |of: &str| PendingSandbox {
        owner: of.to_owned(),
        memory: 0,
        outcome: watch::channel(None).1,
    };
    registry
        .pending
        .extend((1..DEFAULT_MAX_PER_TENANT).map(|_| made("loud")));
    assert!(
        registry.full("loud", DEFAULT_MAX_PER_TENANT).is_none(),
        "the positive control: one more fits"
    );
    registry.pending.push(made("loud"));
    assert!(registry.full("loud", DEFAULT_MAX_PER_TENANT).is_some());
    assert!(
        registry.full("quiet", DEFAULT_MAX_PER_TENANT).is_none(),
        "there is room for others"
    );
    let first = registry.pending[0].outcome.clone();
    registry.remove_pending(&first);
    assert!(registry.full("loud", DEFAULT_MAX_PER_TENANT).is_none());
    registry.remove_pending(&first);
    assert_eq!(
        registry.pending.len(),
        DEFAULT_MAX_PER_TENANT - 1,
        "each is made once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_written_down_as_soon_as_the_database_can_be_had_again() {
    let root = std::env::temp_dir().join(format!("airlock-gateway-ends-{}", std::process::id()));
    let gateway = Gateway::new(crate::GatewaySettings {
        engine: engine::Engine::open(engine::Settings::new(&root)).unwrap(),
        policy: spec::Policy::default(),
        state: root.clone(),
        hosts: Vec::new(),
        folders: Vec::new(),
        profiles: None,
        bounds: spec::ServerLimits::default(),
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
    })
    .unwrap();
    let live = SandboxRow {
        created_ms: engine::now().0,
        ended: None,
        ..row("her", 1, None)
    };
    assert!(
        gateway
            .writer()
            .write(move |transaction| transaction.add_sandbox(&live))
            .await
            .unwrap()
    );
    let (held, is_held) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let other = store::server_database::ServerDatabase::open(&root).unwrap();
    let holding = std::thread::spawn(move || {
        other.transact(|_| {
            held.send(()).unwrap();
            _ = released.recv();
            Ok(())
        })
    });
    is_held.recv().unwrap();
    let (writer, entry) = (gateway.clone(), ended("her", 1, None).1);
    let transaction = tokio::spawn(async move { writer.write_end(&entry, &entry.state()).await });
    // A second try: the first one failed.
    while gateway.0.sandboxes.ends.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!transaction.is_finished(), "nobody is told of it yet");
    release.send(()).unwrap();
    holding.join().unwrap().unwrap();
    assert!(transaction.await.unwrap());
    let now = engine::now().0;
    let rows = gateway
        .database()
        .recover_sandboxes(now, &retention(now))
        .unwrap();
    let ends: Vec<_> = rows
        .iter()
        .map(|row| row.ended.as_ref().unwrap().1.as_str())
        .collect();
    assert_eq!(
        ends,
        ["asked"],
        "the next start of the server finds how it ended"
    );
    drop(gateway);
    std::fs::remove_dir_all(&root).unwrap();
}
