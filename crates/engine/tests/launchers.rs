//! Runs survive the end of launcher processes.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use engine::{Engine, Settings};
use spec::{Policy, RunRequest, RunSpec, Status};
use std::{ffi::OsString, fs, path::PathBuf};

/// More launchers than the engine keeps for the next run.
const MANY: usize = 18;

fn state(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("airlock-{name}-{}", std::process::id()))
}

/// A command with a root of its own, and so with a launcher of its own.
fn spec(command: &[&str], place: &str) -> RunSpec {
    let mounts = vec![OsString::from(format!("/usr:/{place}"))];
    let command = command.iter().map(OsString::from).collect();
    Policy::default()
        .admit(RunRequest {
            command,
            mounts,
            ..RunRequest::default()
        })
        .unwrap()
}

/// The children of this process, including orphans that were reparented to it.
fn children() -> Vec<rustix::process::Pid> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let listed =
        tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let all: String = listed.collect();
    all.split_whitespace()
        .filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?))
        .collect()
}

#[tokio::test]
async fn a_run_outlives_the_launchers_that_came_after_its_own_and_the_next_one_a_dead_launcher() {
    let state = state("launchers");
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let engine = Engine::open(Settings::new(&state)).unwrap();
    let mut long = engine.start(spec(&["sleep", "60"], "long"));
    long.next_event().await.expect("it starts");
    for number in 0..MANY {
        let result = engine.run(spec(&["true"], &format!("m{number}"))).await;
        assert_eq!(result.status, Status::Succeeded, "{:?}", result.error);
    }
    long.cancel();
    let result = long.finish().await;
    assert_eq!(result.status, Status::Cancelled, "{:?}", result.error);

    let last = spec(&["true"], &format!("m{}", MANY - 1));
    assert!(!children().is_empty(), "the launchers are ours to kill");
    for child in children() {
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
    }
    let result = engine.run(last).await;
    assert_eq!(result.status, Status::Succeeded, "{:?}", result.error);
    drop(engine);
    fs::remove_dir_all(state).unwrap();
}
