//! One engine that lives on while its helpers are killed, as in a server: each run ends with a result, the next one
//! works, and nothing piles up. Everything below this process is looked at, so the tests here take turns.

use engine::{Engine, PoolSettings, Settings};
use robustness::{Bench, eventually, host, orphans, random::SeededRandom};
use spec::{Policy, RunRequest, RunResult, RunSpec, Status};
use std::{fs, path::PathBuf};

/// Carries a test out while it is its turn.
fn on_turn(test: impl Future<Output = ()>) {
    let _turn = orphans::take_turn();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test);
}

fn helpers() -> Vec<i32> {
    orphans::reap();
    orphans::below_us()
        .into_iter()
        .filter(|pid| host::name(*pid) == "airlock-launcher")
        .collect()
}

fn kill(pid: i32) {
    if let Some(process) = host::hold(pid).filter(|_| helpers().contains(&pid)) {
        host::kill_and_wait(&process);
    }
}

fn spec(command: &[&str]) -> RunSpec {
    let command = command.iter().map(Into::into).collect();
    Policy::default()
        .admit(RunRequest {
            command,
            ..RunRequest::default()
        })
        .expect("a plain request")
}

async fn hello(engine: &Engine) -> RunResult {
    engine.run(spec(&["echo", "hello"])).await
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("our own descriptors")
        .count()
}

#[test]
fn an_engine_outlives_its_launchers() {
    on_turn(kill_idle_launchers());
}

async fn kill_idle_launchers() {
    let bench = Bench::new("launchers");
    let engine = Engine::open(Settings::new(&bench.state)).expect("an engine");
    for _ in 0..5 {
        let result = hello(&engine).await;
        assert_eq!(
            (result.status, &result.stdout[..]),
            (Status::Succeeded, &b"hello\n"[..]),
            "{result:#?}"
        );
        let idle = eventually("only the launcher is left", || {
            <[i32; 1]>::try_from(helpers()).ok()
        });
        kill(idle[0]);
        eventually("the launcher is dead", || {
            helpers().is_empty().then_some(())
        });
    }
}

#[test]
fn runs_whose_helpers_are_killed_leave_nothing_in_the_engine() {
    on_turn(kill_busy_helpers());
}

async fn kill_busy_helpers() {
    let bench = Bench::new("helpers");
    let engine = Engine::open(Settings::new(&bench.state)).expect("an engine");
    let mut chance = SeededRandom::seeded();
    hello(&engine).await;
    let files = open_files();
    for _ in 0..20 {
        let mut run = engine.start(spec(&["sleep", "1000"]));
        run.next_event().await.expect("it starts");
        let all = helpers();
        kill(all[chance.below(all.len() as u64) as usize]);
        let result = run.finish().await;
        assert!(
            [Status::Lost, Status::Failed].contains(&result.status),
            "{result:#?}"
        );
        assert_eq!(host::programs_of(result.run_id.as_str()), Vec::<i32>::new());
        assert_eq!(
            host::cgroups_naming(result.run_id.as_str()),
            Vec::<PathBuf>::new()
        );
        let next = hello(&engine).await;
        assert_eq!(next.status, Status::Succeeded, "{next:#?}");
        eventually("only one launcher is left", || {
            (helpers().len() == 1).then_some(())
        });
    }
    assert_eq!(open_files(), files, "descriptors pile up");
    drop(engine);
    eventually("the launcher ends with the engine", || {
        helpers().is_empty().then_some(())
    });
}

fn pooled(bench: &Bench) -> Engine {
    let pool = PoolSettings {
        warm_sandboxes: 3,
        prepared_namespaces: 0,
        ..PoolSettings::OFF
    };
    Engine::open(Settings {
        pool,
        ..Settings::new(&bench.state)
    })
    .expect("an engine")
}

#[test]
fn a_parked_box_that_died_in_its_sleep_is_given_to_nobody() {
    on_turn(kill_parked());
}

/// Without a turn of the event loop between their end and the next run.
async fn kill_parked() {
    let bench = Bench::new("asleep");
    let engine = pooled(&bench);
    for _ in 0..5 {
        engine.warm(&spec(&["true"])).await;
        // Once more: it looks at the one that the next run will take.
        engine.warm(&spec(&["true"])).await;
        helpers().into_iter().for_each(kill);
        eventually("all of them are dead", || {
            helpers().is_empty().then_some(())
        });
        let result = hello(&engine).await;
        assert_eq!(
            (result.status, &result.stdout[..]),
            (Status::Succeeded, &b"hello\n"[..]),
            "{result:#?}"
        );
    }
    engine.close().await;
}

#[test]
fn an_engine_that_makes_ahead_outlives_any_helper_and_leaves_nothing() {
    on_turn(kill_any_helper());
}

async fn kill_any_helper() {
    let bench = Bench::new("ahead");
    let engine = pooled(&bench);
    let mut chance = SeededRandom::seeded();
    for _ in 0..30 {
        engine.warm(&spec(&["true"])).await;
        let all = helpers();
        kill(all[chance.below(all.len() as u64) as usize]);
        // Each that was parked may be dying when it is taken; what is made anew is not.
        let mut statuses = Vec::new();
        while !statuses.contains(&Status::Succeeded) && statuses.len() < 4 {
            statuses.push(hello(&engine).await.status);
        }
        assert_eq!(statuses.last(), Some(&Status::Succeeded), "{statuses:?}");
    }
    engine.close().await;
    eventually("every helper ends with the engine", || {
        helpers().is_empty().then_some(())
    });
    let left = fs::read_dir(bench.state.join("runs"))
        .expect("the records")
        .count();
    assert_eq!(left, 0, "records are left");
}

#[test]
fn no_program_outlives_its_result_although_a_helper_was_killed() {
    on_turn(kill_under_programs());
}

async fn kill_under_programs() {
    let bench = Bench::new("under");
    let engine = pooled(&bench);
    let mut chance = SeededRandom::seeded();
    let busy = spec(&[
        "sh",
        "-c",
        "for _ in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; echo on; wait",
    ]);
    for _ in 0..12 {
        let mut run = engine.start(busy.clone());
        while !matches!(
            run.next_event().await,
            Some(spec::RunEvent::Output { .. }) | None
        ) {}
        let all = helpers();
        kill(all[chance.below(all.len() as u64) as usize]);
        run.cancel();
        let result = run.finish().await;
        assert_eq!(
            host::programs_of(result.run_id.as_str()),
            Vec::<i32>::new(),
            "{result:#?}"
        );
    }
    engine.close().await;
}
