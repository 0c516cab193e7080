//! How runs end: by themselves, by the clock, by the caller. Nothing of them is left then.

use crate::{
    runner::Proof,
    world::{World, cgroups_with, mount, processes_with, quick},
};
use engine::Run;
use spec::{ErrorCode, LimitName, LimitSet, RunRequest, RunResult, Status};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        a_program_may_end_by_itself_when_its_time_is_up,
        a_program_that_ignores_the_end_of_its_time_is_killed_with_its_tree,
        a_cancelled_run_is_gone_soon,
        what_a_program_leaves_behind_ends_with_it,
        the_end_of_the_engine_is_the_end_of_its_runs,
    ]
}

fn for_a_second(request: RunRequest) -> RunRequest {
    let limits = LimitSet {
        wall_time: "1s".parse().ok(),
        ..quick()
    };
    RunRequest { limits, ..request }
}

fn a_program_may_end_by_itself_when_its_time_is_up(world: &World) {
    let result = world.run(for_a_second(world.probe(&["end-on-term"])));
    assert_eq!(
        String::from_utf8_lossy(&result.stdout),
        "ready\nallowed SIGTERM\n"
    );
    check_timed_out(&result);
    // Its own end is told, too.
    assert_eq!((result.exit_code, result.signal), (Some(0), None));
}

fn check_timed_out(result: &RunResult) {
    let code = result.error.as_ref().map(|error| error.code);
    let hit: Vec<_> = result.limits_hit.iter().copied().collect();
    assert_eq!(
        (result.status, result.exit_status, code),
        (Status::TimedOut, 124, Some(ErrorCode::Timeout))
    );
    assert_eq!(hit, [LimitName::WallTime]);
}

/// A tree of two processes that holds a lock, with eyes on it from outside.
struct Tree {
    marker: String,
    lock: File,
    request: RunRequest,
}

impl Tree {
    fn new(world: &World, attempt: &str) -> Tree {
        let folder = world.fresh_folder("shared");
        let lock = File::create(folder.join("lock")).expect("a lock");
        let readable = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.join("lock"), readable(0o666)).expect("mode");
        let marker = world.unique("tree");
        let mut request = world.probe(&[attempt, "/shared/lock", &marker]);
        request.mounts.push(mount(&folder, "/shared", "rw"));
        Tree {
            marker,
            lock,
            request,
        }
    }

    /// The control: while they live, both oracles see them.
    fn check_alive(&self) {
        assert_eq!(processes_with(&self.marker).len(), 2, "program and child");
        assert!(self.lock.try_lock().is_err(), "they hold the lock");
    }

    fn check_gone(&self) {
        assert_eq!(processes_with(&self.marker), Vec::<u32>::new());
        self.lock.try_lock().expect("nobody holds the lock");
    }
}

fn a_program_that_ignores_the_end_of_its_time_is_killed_with_its_tree(world: &World) {
    let tree = Tree::new(world, "ignore-term");
    let engine = world.engine(&Default::default());
    let run = world.start_ready(&engine, for_a_second(tree.request.clone()));
    tree.check_alive();
    let result = world.finish(run);
    tree.check_gone();
    check_timed_out(&result);
    assert_eq!(
        (result.exit_code, result.signal),
        (None, Some(libc::SIGKILL))
    );
    // One second of its own, two of grace. A container engine takes a while to make it and to be rid of it.
    let longest = if world.maker.is_some() { 12_000 } else { 6000 };
    assert!(
        (3000..longest).contains(&result.duration_ms),
        "{} ms",
        result.duration_ms
    );
}

fn a_cancelled_run_is_gone_soon(world: &World) {
    let tree = Tree::new(world, "ignore-term");
    let engine = world.engine(&Default::default());
    let run = world.start_ready(&engine, tree.request.clone());
    tree.check_alive();
    let begin = Instant::now();
    run.cancel();
    let result = world.finish(run);
    let took = begin.elapsed();
    tree.check_gone();
    let code = result.error.map(|error| error.code);
    assert_eq!(
        (result.status, result.exit_status, code),
        (Status::Cancelled, 130, Some(ErrorCode::Cancelled))
    );
    // Of a container the result waits until its engine is rid of it, too.
    let longest = Duration::from_secs(if world.maker.is_some() { 15 } else { 5 });
    assert!(took < longest, "{took:?}");
}

fn what_a_program_leaves_behind_ends_with_it(world: &World) {
    let tree = Tree::new(world, "leave-behind");
    let engine = world.engine(&Default::default());
    let run = world.start_ready(&engine, tree.request.clone());
    tree.check_alive();
    let result = world.finish(run);
    tree.check_gone();
    assert_eq!(
        (result.status, result.exit_code),
        (Status::Succeeded, Some(0))
    );
}

/// Waits for the kernel, and for as long as somebody holds the lock.
fn check_freed(lock: File) {
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let freed = lock.lock().is_ok();
        drop(lock); // whoever hears of it may take it
        told.send(freed)
    });
    assert_eq!(
        heard.recv_timeout(Duration::from_secs(5)),
        Ok(true),
        "the lock is free"
    );
}

/// Every process of the box dies with the launcher, which dies with its engine's end of the socket. What else is
/// left of the run goes when the next engine opens the state folder.
fn the_end_of_the_engine_is_the_end_of_its_runs(world: &World) {
    let tree = Tree::new(world, "ignore-term");
    let state = world.folder.join(world.unique("state"));
    let engine = world.engine_at(state.clone(), &Default::default());
    // A runtime of its own: what is dropped with it is what a killed engine would lose.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let run: Run = runtime.block_on(async { world.ready(&engine, tree.request.clone()).await });
    tree.check_alive();
    let id = run.id().to_string();
    // Of a container there is a container left, by whose name its cgroups go.
    let left = || {
        let made = match &world.maker {
            Some(maker) => {
                !daemons::labelled(&maker.host, &format!("io.airlock.run={id}")).is_empty()
            }
            None => !cgroups_with(&id).is_empty(),
        };
        (state.join("runs").join(&id).exists(), made)
    };
    assert_eq!(
        left(),
        (true, world.maker.is_some() || world.has_cgroups()),
        "the control"
    );
    let record = File::open(state.join("runs").join(&id)).expect("its record");
    drop((run, engine));
    runtime.shutdown_background();
    check_freed(tree.lock.try_clone().expect("a lock"));
    assert_eq!(processes_with(&tree.marker), Vec::<u32>::new());
    // The runtime's threads end when they come to it; until then the owner lives, and a sweep leaves the run alone.
    check_freed(record);
    let swept = world
        .engine_at(state.clone(), &Default::default())
        .swept_at_opening()
        .clone();
    assert_eq!(left(), (false, false), "{swept:?}");
}
