//! Kills of an engine with a pool, and of its helpers, at any moment: parked sandboxes, lanes, the steward and half-made
//! boxes die with it, the next engine removes what they held, and an engine that lives goes on.
//!
//! `AIRLOCK_KILLS` says how many kills (a quarter of it; 60 unless said), `AIRLOCK_SEED` repeats a storm.

use engine::{Engine, PoolSettings, Settings};
use robustness::{Bench, PATIENCE, eventually, host, orphans, random::SeededRandom};
use spec::{Policy, RunRequest, RunSpec, Status};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const POOL: PoolSettings = PoolSettings {
    warm_sandboxes: 3,
    prepared_namespaces: 2,
    ..PoolSettings::OFF
};
const STATE: &str = "AIRLOCK_POOLS_STATE";

fn kills() -> u64 {
    let said = std::env::var("AIRLOCK_KILLS")
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    said.unwrap_or(60).div_ceil(4)
}

fn spec(workspace: Option<PathBuf>) -> RunSpec {
    let command = ["sh", "-c", "(setsid sleep 1000 &); echo well"]
        .map(Into::into)
        .into();
    Policy::default()
        .admit(RunRequest {
            command,
            workspace,
            ..RunRequest::default()
        })
        .expect("a fair request")
}

fn open(state: &Path) -> Engine {
    Engine::open(Settings {
        pool: POOL,
        ..Settings::new(state)
    })
    .expect("an engine")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// What the names of an engine's cgroups have in them.
fn mark(state: &Path) -> String {
    format!("airlock-{}-", host::owner(state))
}

fn kill(pid: i32) {
    // It may have ended by itself.
    _ = host::hold(pid).is_some_and(|process| host::kill_and_wait(&process));
}

#[test]
#[ignore = "a child of the_death_of_an_engine_with_a_pool_leaves_nothing_after_the_sweep"]
fn an_engine_that_never_ends() {
    let state = PathBuf::from(std::env::var_os(STATE).expect("a state folder"));
    let workspace = state.parent().expect("a folder").join("workspace");
    runtime().block_on(async {
        let engine = open(&state);
        loop {
            let runs = [None, None, Some(workspace.clone())]
                .map(|workspace| engine.start(spec(workspace)));
            for run in runs {
                assert_eq!(run.finish().await.status, Status::Succeeded);
            }
        }
    });
}

#[test]
fn the_death_of_an_engine_with_a_pool_leaves_nothing_after_the_sweep() {
    let _turn = orphans::take_turn();
    let bench = Bench::new("pool-deaths");
    bench.workspace("workspace");
    let (mut chance, mut held) = (SeededRandom::seeded(), 0);
    for round in 0..kills() {
        let before = orphans::below_us();
        let mut engine = Command::new(std::env::current_exe().expect("this test"))
            .args([
                "--exact",
                "an_engine_that_never_ends",
                "--ignored",
                "--nocapture",
            ])
            .env(STATE, &bench.state)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the child starts");
        // The first comes late enough to have filled its pool.
        let most = if round == 0 { 1500 } else { 400 };
        std::thread::sleep(Duration::from_millis(if round == 0 {
            most
        } else {
            chance.below(most)
        }));
        engine.kill().expect("a living engine");
        engine.wait().expect("a child of ours");
        eventually("everything below it is gone", || {
            orphans::reap();
            orphans::below_us().is_subset(&before).then_some(())
        });
        if !bench.state.exists() {
            continue;
        }
        held += host::cgroups_naming(&mark(&bench.state)).len();
        let swept = Engine::open(Settings::new(&bench.state)).expect("the next engine");
        assert_eq!(swept.swept_at_opening().problems, Vec::<String>::new());
        assert_eq!(
            host::cgroups_naming(&mark(&bench.state)),
            Vec::<PathBuf>::new()
        );
        assert_eq!(host::listing(&bench.state.join("runs")), BTreeSet::new());
        assert_eq!(host::mounts_naming(&bench.folder), Vec::<String>::new());
    }
    // The control: there was something to sweep.
    assert!(held > 0 || !rustix::process::geteuid().is_root());
}

#[test]
fn an_engine_with_a_pool_outlives_its_helpers() {
    let _turn = orphans::take_turn();
    let bench = Bench::new("pool-helpers");
    let mut chance = SeededRandom::seeded();
    let before = orphans::below_us();
    runtime().block_on(async {
        let engine = open(&bench.state);
        for _ in 0..kills() {
            let warmed = tokio::time::timeout(PATIENCE, engine.warm(&spec(None))).await;
            warmed.expect("a pool is filled, or cannot be");
            let helpers: Vec<_> = orphans::below_us().difference(&before).copied().collect();
            for _ in 0..1 + chance.below(2) {
                kill(helpers[chance.below(helpers.len() as u64) as usize]);
            }
            let results = [spec(None), spec(None)].map(|spec| engine.start(spec));
            for run in results {
                // The helper that was killed may have been this very run's; whoever comes after is well again.
                let result = tokio::time::timeout(PATIENCE, run.finish())
                    .await
                    .expect("it ends");
                assert_eq!(host::programs_of(result.run_id.as_str()), Vec::<i32>::new());
            }
            let result = tokio::time::timeout(PATIENCE, engine.run(spec(None)))
                .await
                .expect("it ends");
            assert_eq!(
                (result.status, &result.stdout[..]),
                (Status::Succeeded, &b"well\n"[..]),
                "{result:#?}"
            );
        }
        engine.close().await;
    });
    eventually("nothing is left", || {
        orphans::reap();
        (orphans::below_us().is_subset(&before)
            && host::cgroups_naming(&mark(&bench.state)).is_empty())
        .then_some(())
    });
}
