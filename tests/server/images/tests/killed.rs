//! A build that is killed leaves no process and no tree, and the next one removes the rest.

use cli::World;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A build under way, of which the first step was told.
fn begin(world: &World, temporary: &Path) -> Child {
    let mut command: Command = world.command(&["image", "build", "base-tools"]);
    command
        .env("TMPDIR", temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("airlock starts");
    let mut line = String::new();
    let stderr = child.stderr.take().expect("its words");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    assert!(line.contains("Debian bookworm"), "{line}");
    child
}

fn within_a_minute(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// Processes that were told of this folder.
fn processes(folder: &Path) -> usize {
    let name = folder.to_string_lossy().into_owned();
    let told = |pid: &PathBuf| {
        fs::read(pid.join("cmdline"))
            .is_ok_and(|words| String::from_utf8_lossy(&words).contains(&name))
    };
    entries(Path::new("/proc"))
        .iter()
        .filter(|pid| told(pid))
        .count()
}

#[test]
fn a_killed_build_leaves_no_process_and_no_tree() {
    let world = World::new();
    world.write("temporary/.keep", "");
    let temporary = world.here("temporary");
    let folders = || -> Vec<PathBuf> {
        let found = entries(&temporary).into_iter();
        found
            .filter(|path| path.to_string_lossy().contains("airlock-build."))
            .collect()
    };
    let mut first = begin(&world, &temporary);
    let [folder] = &folders()[..] else {
        panic!("one build has one folder: {:?}", folders())
    };
    let tree = folder.join("tree");
    within_a_minute("a tree is begun", || {
        !entries(&tree).is_empty() && processes(folder) > 0
    });
    first.kill().expect("it is killed");
    first.wait().expect("it ends");
    within_a_minute("what it started is gone", || processes(folder) == 0);
    assert_eq!(entries(&tree), Vec::<PathBuf>::new());
    let mut second = begin(&world, &temporary);
    assert!(
        !folder.exists() && folders().len() == 1,
        "the next build removes what is left: {:?}",
        folders()
    );
    second.kill().expect("it is killed");
    second.wait().expect("it ends");
    let [folder] = &folders()[..] else {
        panic!("{:?}", folders())
    };
    within_a_minute("it is gone, too", || processes(folder) == 0);
}
