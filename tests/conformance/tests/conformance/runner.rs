//! Runs the proofs one after the other, counts them, and starts itself again as an ordinary user.

use crate::world::{Mode, World};
use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
    time::Instant,
};

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
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with('-')).collect();
    let filter = arguments.first().map_or("", String::as_str);
    if std::env::args().any(|text| text == "--list") {
        proofs.iter().for_each(|proof| println!("{}: test", proof.name));
        return 0;
    }
    let chosen: Vec<_> = proofs.iter().filter(|proof| proof.name.contains(filter)).collect();
    let complete = !filter.is_empty() || chosen.len() == expected;
    if !complete || chosen.is_empty() {
        println!("expected {expected} proofs, chose {}", chosen.len());
    }
    // Once as a lone run makes them, once from a pool.
    let good = [false, true].map(|pooled| all_hold(&chosen, &World::prepare(pooled)));
    let world = World::prepare(false);
    let user_good = world.mode == Mode::User || again_as_user(&world, filter);
    i32::from(!(good == [true, true] && complete && !chosen.is_empty() && user_good))
}

fn all_hold(chosen: &[&Proof], world: &World) -> bool {
    let failed: Vec<_> =
        chosen.iter().filter(|proof| !holds(proof, world)).map(|proof| &proof.name).collect();
    println!("{}: {} proofs, {} failed {failed:?}", name(world), chosen.len(), failed.len());
    failed.is_empty()
}

fn name(world: &World) -> String {
    format!("{:?}{}", world.mode, if world.pooled { "Pooled" } else { "" })
}

fn holds(proof: &Proof, world: &World) -> bool {
    let begin = Instant::now();
    let held = catch_unwind(AssertUnwindSafe(|| (proof.claim)(world, proof.row))).is_ok();
    let verdict = if held { "ok  " } else { "FAIL" };
    println!("{verdict} {} {} ({} ms)", name(world), proof.name, begin.elapsed().as_millis());
    held
}

/// From a folder that the user can read, with nothing of root's left.
fn again_as_user(world: &World, filter: &str) -> bool {
    let name = std::env::var("AIRLOCK_TEST_USER").unwrap_or_else(|_| "airlock-test".to_owned());
    if name == "none" {
        return true;
    }
    let (uid, gid) = user(&name)
        .or_else(|| make_user(&name))
        .unwrap_or_else(|| panic!("prerequisite: there is no user `{name}`, and `useradd` cannot make it"));
    let copy = world.folder.join("conformance");
    std::fs::copy(std::env::current_exe().expect("own path"), &copy).expect("copy of this binary");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("mode");
    let mut command = Command::new(&copy);
    command
        .args((!filter.is_empty()).then_some(filter))
        .env("AIRLOCK_PROBE", world.probe_folder.join("probe"));
    let folder = world.fresh_folder("user");
    std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).expect("an owner");
    command.env("AIRLOCK_TEST_FOLDER", folder);
    // Found out anew: the user may have other cgroups than root.
    command.env_remove("AIRLOCK_EXPECT_CGROUP").current_dir("/");
    if let Ok(expected) = std::env::var("AIRLOCK_EXPECT_USER_CGROUP") {
        command.env("AIRLOCK_EXPECT_CGROUP", expected);
    }
    command.uid(uid).gid(gid).status().expect("this binary as an ordinary user").success()
}

fn make_user(name: &str) -> Option<(u32, u32)> {
    _ = Command::new("useradd").args(["--system", "--no-create-home", "--user-group", name]).status();
    user(name)
}

fn user(name: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    Some((ids.next()??, ids.next()??))
}
