//! Runs the proofs one after the other, counts them, and starts itself again as an ordinary user.

use crate::{
    containers,
    world::{Maker, Mode, World},
};
use daemons::{Daemons, Kind};
use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Instead of a user's name: as root alone.
const NOBODY: &str = "none";
/// Tells the same binary as a user where his own Podman listens.
const ROOTLESS: &str = "AIRLOCK_ROOTLESS_HOST";
/// How many proofs about containers run at once.
const WORKERS: usize = 4;

/// One claim.
#[derive(Clone)]
pub(crate) struct Proof {
    pub(crate) name: String,
    pub(crate) claim: fn(&World, usize),
    /// Which row of a table, for claims that have one.
    pub(crate) row: usize,
}

/// A list of proofs from functions of that name.
#[macro_export]
macro_rules! proofs {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::runner::Proof { name: stringify!($name).to_owned(), claim: |world, _| $name(world), row: 0 }),*]
    };
}

/// The status to exit with.
pub(crate) fn run(proofs: &[Proof], expected: usize) -> i32 {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|text| !text.starts_with('-'))
        .collect();
    if std::env::args().any(|text| text == "--list") {
        proofs
            .iter()
            .for_each(|proof| println!("{}: test", proof.name));
        return 0;
    }
    let is_meant = |proof: &&Proof| {
        arguments.is_empty() || arguments.iter().any(|part| proof.name.contains(part))
    };
    let chosen: Vec<_> = proofs.iter().filter(is_meant).collect();
    let mut good = is_complete(&chosen, expected, &arguments);
    if wanted("native") {
        // Once as a lone run makes them, once from a pool.
        let pools: &[bool] = if std::env::var_os("AIRLOCK_UNPOOLED").is_some() {
            &[false]
        } else {
            &[false, true]
        };
        for pooled in pools {
            good &= all_hold(&chosen, &World::prepare(*pooled, None));
        }
    }
    let daemons = start_daemons();
    for maker in makers(daemons.as_ref()) {
        let world = World::prepare(false, Some(maker));
        good &= all_hold(&containers::applicable(proofs, &chosen, &world), &world);
    }
    let world = World::prepare(false, None);
    if world.mode == Mode::Root {
        good &= again_as_user(&world, &arguments, daemons.as_ref());
    }
    i32::from(!good)
}

/// Whether all are there, or at least one for each part of a name that was asked for.
fn is_complete(chosen: &[&Proof], expected: usize, parts: &[String]) -> bool {
    let is_found = |part: &&String| chosen.iter().any(|proof| proof.name.contains(*part));
    let lost: Vec<_> = parts.iter().filter(|part| !is_found(part)).collect();
    let is_whole = !parts.is_empty() || chosen.len() == expected;
    if !is_whole || !lost.is_empty() {
        println!(
            "expected {expected} proofs, chose {}; none for {lost:?}",
            chosen.len()
        );
    }
    is_whole && lost.is_empty()
}

/// Whether the proofs are asked for on this backend.
fn wanted(backend: &str) -> bool {
    std::env::var("AIRLOCK_BACKENDS").map_or(true, |list| list.split(',').any(|one| one == backend))
}

/// Those that root can have; the user's own Podman among them, for whose service there is nobody else to ask.
fn start_daemons() -> Option<Daemons> {
    let docker = wanted("docker").then_some(vec![Kind::Docker]);
    let podman = wanted("podman").then_some(vec![Kind::Podman, Kind::Rootless]);
    let kinds = [docker, podman].into_iter().flatten().flatten();
    let kinds: Vec<_> = kinds
        .filter(|kind| *kind != Kind::Rootless || daemons::user() != NOBODY)
        .collect();
    let root =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("/proc")) == 0;
    (root && !kinds.is_empty()).then(|| Daemons::start(&kinds))
}

/// The container engines whose boxes this process proves.
fn makers(daemons: Option<&Daemons>) -> Vec<Maker> {
    let users = std::env::var(ROOTLESS).ok().map(|host| Maker {
        backend: Kind::Rootless.backend(),
        host,
    });
    let roots = [Kind::Docker, Kind::Podman]
        .into_iter()
        .filter(|kind| wanted(kind.backend()));
    let roots = daemons.into_iter().flat_map(|daemons| {
        roots.clone().map(|kind| Maker {
            backend: kind.backend(),
            host: daemons.host(kind),
        })
    });
    roots.chain(users).collect()
}

/// One after the other in boxes of our own. Container engines mostly wait: they get several at once.
fn all_hold(chosen: &[&Proof], world: &World) -> bool {
    let workers = if world.maker.is_some() { WORKERS } else { 1 };
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(proof) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
            if !holds(proof, world) {
                failed
                    .lock()
                    .expect("no panic while held")
                    .push(&proof.name);
            }
        }
    };
    std::thread::scope(|threads| (0..workers).for_each(|_| drop(threads.spawn(work))));
    let failed = failed.into_inner().expect("no panic while held");
    println!(
        "{}: {} proofs, {} failed {failed:?}",
        name(world),
        chosen.len(),
        failed.len()
    );
    failed.is_empty()
}

fn name(world: &World) -> String {
    let maker = world.maker.as_ref().map_or("", |maker| maker.backend);
    format!(
        "{:?}{}{maker}",
        world.mode,
        if world.pooled { "Pooled" } else { "" }
    )
}

fn holds(proof: &Proof, world: &World) -> bool {
    let begin = Instant::now();
    let held = catch_unwind(AssertUnwindSafe(|| (proof.claim)(world, proof.row))).is_ok();
    let verdict = if held { "ok  " } else { "FAIL" };
    println!(
        "{verdict} {} {} ({} ms)",
        name(world),
        proof.name,
        begin.elapsed().as_millis()
    );
    held
}

/// From a folder that the user can read, with nothing of root's left.
fn again_as_user(world: &World, parts: &[String], daemons: Option<&Daemons>) -> bool {
    let name = daemons::user();
    if name == NOBODY {
        return true;
    }
    let (uid, gid) = user(&name).or_else(|| make_user(&name)).unwrap_or_else(|| {
        panic!("prerequisite: there is no user `{name}`, and `useradd` cannot make it")
    });
    let copy = world.folder.join("conformance");
    std::fs::copy(std::env::current_exe().expect("own path"), &copy).expect("copy of this binary");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("mode");
    let mut command = Command::new(&copy);
    command
        .args(parts)
        .env("AIRLOCK_PROBE", world.probe_folder.join("probe"));
    let folder = world.fresh_folder("user");
    std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).expect("an owner");
    command.env("AIRLOCK_TEST_FOLDER", folder);
    if let Some(daemons) = daemons.filter(|_| wanted("podman")) {
        command.env(ROOTLESS, daemons.host(Kind::Rootless));
    }
    // Found out anew: the user may have other cgroups than root.
    command.env_remove("AIRLOCK_EXPECT_CGROUP").current_dir("/");
    if let Ok(expected) = std::env::var("AIRLOCK_EXPECT_USER_CGROUP") {
        command.env("AIRLOCK_EXPECT_CGROUP", expected);
    }
    command
        .uid(uid)
        .gid(gid)
        .status()
        .expect("this binary as an ordinary user")
        .success()
}

fn make_user(name: &str) -> Option<(u32, u32)> {
    _ = Command::new("useradd")
        .args(["--system", "--no-create-home", "--user-group", name])
        .status();
    user(name)
}

fn user(name: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let line = users
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    Some((ids.next()??, ids.next()??))
}
