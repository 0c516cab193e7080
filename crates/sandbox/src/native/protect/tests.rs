//! Claims about protected workspaces, on real folders.

use super::*;
use spec::{HoldReason, Policy, RunRequest, WorkspacePath};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        net::{UnixDatagram, UnixListener},
    },
};

struct Place {
    folder: PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    fn new(name: &str) -> Place {
        let name = format!("airlock-protect-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("workspace")).unwrap();
        Place { folder }
    }

    fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.join("workspace").join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn spec(&self, say: impl FnOnce(&mut RunRequest)) -> SandboxSpec {
        let mut request = RunRequest {
            command: vec!["true".into()],
            workspace: Some(self.at("")),
            ..RunRequest::default()
        };
        say(&mut request);
        Policy::default().admit(request).unwrap().sandbox
    }

    fn put_up(&self, allowed: &[&str]) -> Result<Protection, ProtectError> {
        self.protect(&self.spec(|request| {
            request.allow_protected = allowed.iter().map(PathBuf::from).collect();
        }))
    }

    fn protect(&self, spec: &SandboxSpec) -> Result<Protection, ProtectError> {
        let workspace = fs::File::open(self.at("")).unwrap();
        Protection::of(
            &self.state(),
            &Id::new("run").unwrap(),
            workspace.into(),
            spec,
        )
    }

    /// A start takes the coarse clock, which is behind the times of files by up to a tick: what was made just before
    /// counts as new.
    fn wait_until_older_than_a_start(&self, last_made: &str) {
        let made = fs::symlink_metadata(self.at(last_made)).unwrap();
        let made = (made.ctime(), made.ctime_nsec());
        let coarse_now = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            (now.tv_sec, now.tv_nsec as i64)
        };
        while coarse_now() <= made {
            std::thread::yield_now();
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut pending = vec![self.at("")];
        while let Some(folder) = pending.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    pending.push(entry.path());
                }
                let path = entry.path();
                let path = path.strip_prefix(self.at("")).unwrap();
                names.push(path.to_str().unwrap().to_owned());
            }
        }
        names.sort();
        names
    }
}

fn held(taken_down: &WorkspaceCleanup) -> Vec<(&str, HoldReason)> {
    let all = taken_down.held_back.iter();
    let mut all: Vec<_> = all.map(|it| (it.path.as_str(), it.why)).collect();
    all.sort_by_key(|it| it.0);
    all
}

#[test]
fn what_a_program_makes_under_a_protected_name_is_taken_out_at_every_depth_and_kept() {
    let place = Place::new("taken");
    place.write("src/main.rs", "mine");
    let protection = place.put_up(&[]).unwrap();
    assert_eq!(protection.binds(), []);
    assert_eq!(place.names(), ["src", "src/main.rs"], "nothing of ours");
    place.write(".envrc", "evil");
    place.write("src/deep/.git/config", "evil");
    place.write("src/.VSCode/tasks.json", "evil");
    place.write("src/new.rs", "good");
    let taken_down = protection.take_down();
    assert_eq!(
        held(&taken_down),
        [
            (".envrc", HoldReason::ProtectedName),
            ("src/.VSCode", HoldReason::ProtectedName),
            ("src/deep/.git", HoldReason::ProtectedName),
        ]
    );
    assert_eq!(taken_down.notes, Vec::<String>::new());
    assert_eq!(
        place.names(),
        ["src", "src/deep", "src/main.rs", "src/new.rs"]
    );
    let lists = held_lists(&place.state()).unwrap();
    let (run, things) = &lists[0];
    assert_eq!((run.as_str(), things.len()), ("run", 3));
    let kept = things.iter().position(|thing| thing.path == b".envrc");
    let kept = held_path(&place.state(), run, kept.unwrap()).unwrap();
    assert_eq!(fs::read_to_string(&kept).unwrap(), "evil");
    let place_in_list = things
        .iter()
        .position(|thing| thing.path == b".envrc")
        .unwrap();
    take_back(&place.state(), run, place_in_list, &things[place_in_list]).unwrap();
    assert_eq!(fs::read_to_string(place.at(".envrc")).unwrap(), "evil");
    assert!(!kept.exists());
    discard_held(&place.state(), run).unwrap();
    assert_eq!(held_lists(&place.state()).unwrap(), []);
}

#[test]
fn what_was_there_stays_and_is_bound_read_only() {
    let place = Place::new("stays");
    place.write(".envrc", "old");
    place.write("sub/.git/HEAD", "ref: refs/heads/main");
    place.write("bare/HEAD", "ref: refs/heads/main");
    fs::create_dir_all(place.at("bare/objects")).unwrap();
    fs::create_dir_all(place.at("bare/refs")).unwrap();
    symlink("/nowhere", place.at("out")).unwrap();
    symlink("config/editor", place.at(".vscode")).unwrap();
    place.write("config/editor/tasks.json", "{}");
    let before = place.names();
    let protection = place.put_up(&[]).unwrap();
    let binds: Vec<_> = protection
        .binds()
        .iter()
        .map(|it| it.path.to_str())
        .collect();
    let expected = [".envrc", "bare", "config/editor", "sub/.git"];
    assert_eq!(binds, expected.map(Some));
    // Its folder may be moved, and a link cannot be mounted: it comes back.
    fs::rename(place.at("sub"), place.at("moved")).unwrap();
    fs::remove_file(place.at(".vscode")).unwrap();
    let taken_down = protection.take_down();
    assert_eq!(taken_down, WorkspaceCleanup::default());
    fs::rename(place.at("moved"), place.at("sub")).unwrap();
    assert_eq!(place.names(), before);
    assert_eq!(fs::read_dir(place.state().join("held")).unwrap().count(), 0);
}

#[test]
fn what_gets_the_inode_of_something_that_was_there_is_not_taken_for_it() {
    let place = Place::new("inode");
    let inode = |path: &str| fs::symlink_metadata(place.at(path)).unwrap().ino();
    // Whether an inode is given out again is the file system's choice: tried until it was, or not at all.
    for _ in 0..64 {
        symlink("there", place.at(".idea")).unwrap();
        place.write(".envrc", "old");
        symlink("/nowhere", place.at("out")).unwrap();
        let before = [".idea", ".envrc", "out"].map(inode);
        let protection = place.put_up(&[]).unwrap();
        for path in [".idea", ".envrc", "out"] {
            fs::remove_file(place.at(path)).unwrap();
        }
        fs::create_dir(place.at(".idea")).unwrap();
        place.write(".envrc", "evil");
        symlink("/etc/passwd", place.at("out")).unwrap();
        let again = [".idea", ".envrc", "out"].map(inode);
        let held = protection.take_down().held_back.len();
        assert_eq!(held, 3, "{before:?} {again:?}");
        assert!(!place.at(".envrc").exists() && place.at(".idea").symlink_metadata().is_ok());
        fs::remove_file(place.at(".idea")).unwrap();
        if before == again {
            break;
        }
    }
}

#[test]
fn an_allowed_name_may_be_made() {
    let place = Place::new("allowed");
    let protection = place.put_up(&[".envrc", "sub"]).unwrap();
    place.write(".envrc", "wanted");
    place.write("sub/.git/config", "wanted");
    place.write("other/.git/config", "not wanted");
    assert_eq!(
        held(&protection.take_down()),
        [("other/.git", HoldReason::ProtectedName)]
    );
    assert!(place.at("sub/.git/config").exists());
}

#[test]
fn links_that_lead_out_devices_and_sockets_do_not_stay() {
    let place = Place::new("links");
    place.write("config", "");
    let protection = place.put_up(&[]).unwrap();
    symlink("../../secret", place.at("up")).unwrap();
    symlink("/etc/passwd", place.at("absolute")).unwrap();
    symlink("sub/.git/config", place.at("to-git")).unwrap();
    symlink("config", place.at("fine")).unwrap();
    let socket = UnixListener::bind(place.at("socket")).unwrap();
    let taken_down = protection.take_down();
    drop(socket);
    assert_eq!(
        held(&taken_down),
        [
            ("absolute", HoldReason::LinkOut),
            ("socket", HoldReason::SpecialFile),
            ("to-git", HoldReason::LinkToProtected),
            ("up", HoldReason::LinkOut),
        ]
    );
    assert_eq!(place.names(), ["config", "fine"]);
}

#[test]
fn links_through_links_of_the_owners_lead_where_those_do() {
    let place = Place::new("through");
    place.write("real/file", "");
    symlink("/etc", place.at("old")).unwrap();
    symlink("real", place.at("here")).unwrap();
    let protection = place.put_up(&[]).unwrap();
    symlink("old/passwd", place.at("out")).unwrap();
    symlink("here/file", place.at("fine")).unwrap();
    let taken_down = protection.take_down();
    assert_eq!(held(&taken_down), [("out", HoldReason::LinkOut)]);
    assert_eq!(place.names(), ["fine", "here", "old", "real", "real/file"]);
}

#[test]
fn what_protected_links_lead_to_is_theirs_or_does_not_stay() {
    let place = Place::new("led");
    place.write("env/dev", "mine");
    place.write("one/env", "mine");
    place.write("kept/hooks/pre-commit", "mine");
    for (path, target) in [
        (".envrc", "env/dev"),
        (".husky", "kept/hooks"),
        ("now", "one"),
        ("mise.toml", "now/env"),
        (".exrc", "not/yet"),
    ] {
        symlink(target, place.at(path)).unwrap();
    }
    let protection = place.put_up(&[]).unwrap();
    fs::rename(place.at("env"), place.at("old")).unwrap();
    place.write("env/dev", "evil");
    place.write("two/env", "evil");
    fs::remove_file(place.at("now")).unwrap();
    symlink("two", place.at("now")).unwrap();
    place.write("not/yet", "evil");
    let taken_down = protection.take_down();
    assert_eq!(
        held(&taken_down),
        [
            ("env/dev", HoldReason::ProtectedName),
            ("not/yet", HoldReason::ProtectedName),
            ("two/env", HoldReason::ProtectedName),
        ]
    );
    let left = fs::read_to_string(place.at(".husky/pre-commit")).unwrap();
    assert_eq!(left, "mine");
    assert_eq!(
        fs::read_link(place.at(".envrc")).unwrap(),
        Path::new("env/dev")
    );
}

#[test]
fn other_names_of_protected_files_are_bound_too() {
    let place = Place::new("second");
    place.write(".husky/pre-commit", "mine");
    place.write(".envrc", "mine");
    place.write("plain", "mine");
    for (from, to) in [
        (".husky/pre-commit", "hook"),
        (".envrc", "env"),
        ("plain", "also-plain"),
    ] {
        fs::hard_link(place.at(from), place.at(to)).unwrap();
    }
    let protection = place.put_up(&[]).unwrap();
    let binds: Vec<_> = protection.binds().iter().map(|bind| &bind.path).collect();
    assert_eq!(binds, [".envrc", ".husky", "env", "hook"].map(Path::new));
    assert_eq!(protection.take_down(), WorkspaceCleanup::default());
}

#[test]
fn a_new_bare_repository_loses_its_head_and_a_workspace_that_is_one_is_refused() {
    let place = Place::new("bare");
    let protection = place.put_up(&[]).unwrap();
    place.write("x.git/HEAD", "ref: refs/heads/main");
    place.write("x.git/config", "[core]");
    place.write("docs/HEAD", "a page");
    fs::create_dir_all(place.at("x.git/objects")).unwrap();
    fs::create_dir_all(place.at("x.git/refs")).unwrap();
    place.write("y/HEAD", "ref: refs/heads/main");
    place.write("y/commondir", "../z");
    let taken_down = protection.take_down();
    assert_eq!(
        held(&taken_down),
        [
            ("x.git/HEAD", HoldReason::ProtectedName),
            ("y/HEAD", HoldReason::ProtectedName),
        ]
    );
    assert!(place.at("docs/HEAD").exists());
    place.write("HEAD", "ref: refs/heads/main");
    fs::create_dir_all(place.at("objects")).unwrap();
    fs::create_dir_all(place.at("refs")).unwrap();
    assert!(matches!(place.put_up(&[]), Err(ProtectError::Bare)));
    assert!(place.put_up(&["HEAD"]).is_ok());
}

#[test]
fn set_id_bits_go_and_changed_names_that_toolchains_obey_are_noted() {
    let place = Place::new("bits");
    let protection = place.put_up(&[]).unwrap();
    place.write("tool", "");
    fs::set_permissions(place.at("tool"), fs::Permissions::from_mode(0o6755)).unwrap();
    place.write("rust-toolchain.toml", "");
    let taken_down = protection.take_down();
    let mode = fs::metadata(place.at("tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert_eq!(taken_down.held_back, []);
    assert_eq!(taken_down.notes.len(), 2, "{:?}", taken_down.notes);
    assert!(
        taken_down.notes[0].contains("`tool`"),
        "{:?}",
        taken_down.notes
    );
    assert!(
        taken_down.notes[1].contains("`rust-toolchain.toml`"),
        "{:?}",
        taken_down.notes
    );
}

#[test]
fn a_folder_without_rights_hides_nothing() {
    let place = Place::new("rights");
    let protection = place.put_up(&[]).unwrap();
    place.write("shut/inner/.git/config", "evil");
    for folder in ["shut/inner", "shut"] {
        fs::set_permissions(place.at(folder), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let taken_down = protection.take_down();
    assert_eq!(
        held(&taken_down),
        [("shut/inner/.git", HoldReason::ProtectedName)]
    );
}

#[test]
fn the_folder_for_artifacts_does_not_stay_unless_it_was_there() {
    let place = Place::new("artifacts");
    let mut protection = place.put_up(&[]).unwrap();
    place.write(".artifacts/out/a.txt", "kept");
    protection.mark_artifacts_kept();
    assert_eq!(protection.take_down(), WorkspaceCleanup::default());
    assert_eq!(place.names(), Vec::<String>::new());
    let protection = place.put_up(&[]).unwrap();
    place.write(".artifacts/out/a.txt", "not kept");
    let held = HeldBackPath {
        path: ".artifacts".to_owned(),
        why: HoldReason::Artifacts,
    };
    assert_eq!(protection.take_down().held_back, [held]);
    assert_eq!(place.names(), Vec::<String>::new());
    place.write(".artifacts/a.txt", "mine");
    assert_eq!(
        place.put_up(&[]).unwrap().take_down(),
        WorkspaceCleanup::default()
    );
    assert!(place.at(".artifacts/a.txt").exists());
}

#[test]
fn a_sweep_settles_what_a_dead_run_left_and_nothing_of_a_living_one() {
    let place = Place::new("sweep");
    let protection = place.put_up(&[]).unwrap();
    place.write(".envrc", "evil");
    assert_eq!(sweep(&place.state()), SweptWorkspaces::default());
    assert!(place.at(".envrc").exists(), "its run lives");
    // As by SIGKILL. A child of another test may have a copy of the lock for a moment.
    rustix::fs::flock(
        protection.lock().unwrap(),
        rustix::fs::FlockOperation::Unlock,
    )
    .unwrap();
    drop(protection);
    let swept = sweep(&place.state());
    assert_eq!((swept.notes.len(), swept.problems.len()), (1, 0));
    assert!(
        swept.notes[0].contains("`.envrc` was taken out of"),
        "{swept:?}"
    );
    assert!(!place.at(".envrc").exists());
    assert_eq!(held_lists(&place.state()).unwrap().len(), 1);
    assert_eq!(sweep(&place.state()), SweptWorkspaces::default());
}

#[test]
fn a_sweep_that_finds_the_workspace_gone_has_failed() {
    let place = Place::new("gone");
    let protection = place.put_up(&[]).unwrap();
    rustix::fs::flock(
        protection.lock().unwrap(),
        rustix::fs::FlockOperation::Unlock,
    )
    .unwrap();
    drop(protection);
    fs::remove_dir_all(place.at("")).unwrap();
    let swept = sweep(&place.state());
    assert_eq!((swept.notes.len(), swept.problems.len()), (0, 1));
}

#[test]
fn what_a_reused_id_holds_is_named_as_it_is_listed() {
    let place = Place::new("reused");
    let names = ["run", "run.2"].map(|name| {
        let protection = place.put_up(&[]).unwrap();
        place.write(".envrc", "evil");
        assert_eq!(protection.take_down().held_as.as_deref(), Some(name));
        name
    });
    let lists = held_lists(&place.state()).unwrap();
    let listed: Vec<_> = lists.iter().map(|(run, _)| run.as_str()).collect();
    assert_eq!(listed, names);
    assert!(discard_held(&place.state(), "run.3").is_err());
    discard_held(&place.state(), "run.2").unwrap();
}

#[test]
fn what_is_held_on_another_disk_is_put_back_as_it_was() {
    let place = Place::new("disks");
    let disk = Path::new("/dev/shm").join(place.folder.file_name().unwrap());
    _ = fs::remove_dir_all(&disk);
    fs::create_dir(&disk).unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(&disk), device(&place.folder), "they are two disks");
    symlink(&disk, place.state()).unwrap();
    let protection = place.put_up(&[]).unwrap();
    place.write(".envrc", "evil");
    fs::set_permissions(place.at(".envrc"), fs::Permissions::from_mode(0o4751)).unwrap();
    place.write(".vscode/deep/tasks.json", "{}");
    symlink("deep", place.at(".vscode/link")).unwrap();
    protection.take_down();
    assert_eq!(place.names(), Vec::<String>::new());
    // What the host has by now stays, and what is held, too.
    place.write(".envrc", "mine");
    let lists = held_lists(&place.state()).unwrap();
    let take = |path: &str| {
        let things = lists[0].1.iter();
        let mut things = things.enumerate();
        let found = things.find(|(_, thing)| thing.path == path.as_bytes());
        let (number, thing) = found.unwrap();
        let taken = take_back(&place.state(), "run", number, thing);
        let kept = held_path(&place.state(), "run", number);
        (taken.is_ok(), kept.is_some())
    };
    assert_eq!(take(".envrc"), (false, true));
    assert_eq!(place.names(), [".envrc"]);
    fs::remove_file(place.at(".envrc")).unwrap();
    assert_eq!(take(".envrc"), (true, false));
    assert_eq!(take(".vscode"), (true, false));
    let expected = [
        ".envrc",
        ".vscode",
        ".vscode/deep",
        ".vscode/deep/tasks.json",
        ".vscode/link",
    ];
    assert_eq!(place.names(), expected);
    assert_eq!(fs::read_to_string(place.at(".envrc")).unwrap(), "evil");
    let mode = fs::metadata(place.at(".envrc")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o751);
    assert_eq!(
        fs::read_link(place.at(".vscode/link")).unwrap(),
        Path::new("deep")
    );
    fs::remove_dir_all(disk).unwrap();
}

/// Its folder was elsewhere while the first run was settled: another run can see to that.
#[test]
fn a_second_run_keeps_nothing_that_an_unsettled_one_planted() {
    let place = Place::new("two");
    place.write("mine/.envrc", "mine");
    let first = place.put_up(&["lifted"]).unwrap();
    place.write("d/.envrc", "evil");
    place.write("lifted/.envrc", "wanted");
    symlink("/etc/passwd", place.at("d/.idea")).unwrap();
    symlink("/etc/passwd", place.at("d/out")).unwrap();
    let _socket = UnixListener::bind(place.at("d/socket")).unwrap();
    let second = place.put_up(&[]).unwrap();
    assert!(
        second
            .binds()
            .iter()
            .any(|bind| bind.path == Path::new("d/.envrc"))
    );
    let elsewhere = place.folder.join("elsewhere");
    fs::rename(place.at("d"), &elsewhere).unwrap();
    assert_eq!(held(&first.take_down()), []);
    fs::rename(&elsewhere, place.at("d")).unwrap();
    assert_eq!(
        held(&second.take_down()),
        [
            ("d/.envrc", HoldReason::ProtectedName),
            ("d/.idea", HoldReason::ProtectedName),
            ("d/out", HoldReason::LinkOut),
            ("d/socket", HoldReason::SpecialFile),
        ]
    );
    assert_eq!(
        place.names(),
        ["d", "lifted", "lifted/.envrc", "mine", "mine/.envrc"]
    );
}

/// By its second name, with its time of modification put back.
#[test]
fn a_protected_file_that_was_written_is_noted_whatever_its_times_say() {
    let place = Place::new("times");
    place.write(".envrc", "mine");
    fs::hard_link(place.at(".envrc"), place.at("second")).unwrap();
    let modified = fs::metadata(place.at("second"))
        .unwrap()
        .modified()
        .unwrap();
    let protection = place.put_up(&[]).unwrap();
    place.write("second", "evil");
    let file = fs::File::options()
        .write(true)
        .open(place.at("second"))
        .unwrap();
    file.set_modified(modified).unwrap();
    let notes = protection.take_down().notes;
    assert!(
        notes.iter().any(|note| note.contains("`.envrc`")),
        "{notes:?}"
    );
}

#[test]
fn a_start_reads_as_it_was_written_and_half_of_one_does_not() {
    let place = Place::new("start");
    place.write("sub/.git/config", "");
    symlink("a", place.at("b")).unwrap();
    symlink("there", place.at(".idea")).unwrap();
    let workspace = fs::File::open(place.at("")).unwrap();
    let path = |path: &str| WorkspacePath::new(path.as_ref()).unwrap();
    let names = ProtectedNames {
        added: vec!["mine".into(), "a b".into()],
        removed: vec![".zed".into()],
        paths: vec![path("tools/hooks")],
        allowed: vec![path("x")],
    };
    let nothing = HiddenFiles::none();
    let mut start = WorkspaceSnapshot::look(
        workspace.as_fd(),
        &names,
        &mut HiddenFileCover::new(&nothing),
    )
    .unwrap();
    start.expect(workspace.as_fd(), &[path("in/put"), path("sub/put")]);
    assert_eq!((start.inputs.len(), start.folders.len()), (2, 1));
    let text = start.to_text();
    assert_eq!(WorkspaceSnapshot::parse(&text), Some(start));
    assert_eq!(WorkspaceSnapshot::parse(&text[..text.len() - 5]), None);
    assert_eq!(WorkspaceSnapshot::parse(""), None);
}

#[test]
fn a_path_that_is_too_long_to_be_looked_at_does_not_stay_unless_it_was_there() {
    let deepen = |place: &Place| {
        let name = "d".repeat(200);
        let mode = rustix::fs::Mode::from_raw_mode(0o755);
        let mut folder = OwnedFd::from(fs::File::open(place.at("")).unwrap());
        for _ in 0..24 {
            rustix::fs::mkdirat(&folder, &name, mode).unwrap();
            folder = beneath::open(&folder, &name, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
        }
        rustix::fs::mkdirat(&folder, ".git", mode).unwrap();
    };
    let place = Place::new("deep");
    let protection = place.put_up(&[]).unwrap();
    deepen(&place);
    let taken_down = protection.take_down();
    let reasons: Vec<_> = held(&taken_down).into_iter().map(|it| it.1).collect();
    assert_eq!(reasons, [HoldReason::Unreadable], "{:?}", taken_down.notes);
    discard_held(&place.state(), "run").unwrap();
    let place = Place::new("deep-before");
    deepen(&place);
    let protection = place.put_up(&[]).unwrap();
    let taken_down = protection.take_down();
    assert_eq!(held(&taken_down), []);
    assert_eq!(taken_down.notes.len(), 1, "{:?}", taken_down.notes);
    held::remove(
        OwnedFd::from(fs::File::open(place.at("")).unwrap()).as_fd(),
        "d".repeat(200).as_ref(),
    )
    .unwrap();
}

fn binds(protection: &Protection) -> Vec<(&str, bool)> {
    let binds = protection.binds().iter();
    binds
        .map(|bind| (bind.path.to_str().unwrap(), bind.hidden))
        .collect()
}

#[test]
fn credentials_are_hidden_their_examples_and_what_is_said_to_be_shown_are_not() {
    let place = Place::new("hidden");
    for path in [".env", ".env.example", "a/.env.local", "a/id_rsa.pub"] {
        place.write(path, "x");
    }
    place.write("certs/ca.pem", "-----BEGIN CERTIFICATE-----");
    place.write("certs/own.pem", "-----BEGIN EC PRIVATE KEY-----");
    place.write(".vscode/server.key", "x");
    place.write("real", "x");
    symlink("real", place.at("id_rsa")).unwrap();
    let usual = place.put_up(&[]).unwrap();
    let expected = [
        (".env", true),
        (".vscode", false),
        (".vscode/server.key", true),
        ("a/.env.local", true),
        ("certs/own.pem", true),
        ("real", true),
    ];
    assert_eq!(binds(&usual), expected);
    let taken_down = usual.take_down();
    assert_eq!(taken_down.held_back, []);
    assert_eq!(taken_down.notes.len(), 1, "{:?}", taken_down.notes);
    assert!(taken_down.notes[0].contains("`.env`") && taken_down.notes[0].contains("--hide none"));
    let none = place.spec(|request| request.hide = vec!["none".into()]);
    let none = place.protect(&none).unwrap();
    assert_eq!(binds(&none), [(".vscode", false)]);
    assert_eq!(none.take_down(), WorkspaceCleanup::default());
    let own = place.spec(|request| request.hide = vec!["none".into(), "certs".into()]);
    let own = place.protect(&own).unwrap();
    assert_eq!(binds(&own), [(".vscode", false), ("certs", true)]);
    own.take_down();
    let read_only = place.spec(|request| request.read_only_workspace = true);
    let read_only = place.protect(&read_only).unwrap();
    let hidden: Vec<_> = expected.into_iter().filter(|bind| bind.1).collect();
    assert_eq!(binds(&read_only), hidden);
    assert_eq!(read_only.take_down().notes.len(), 1);
}

#[test]
fn sockets_of_the_host_are_covered_wherever_they_are_and_what_leads_nowhere_is_not() {
    let place = Place::new("sockets");
    place.write(".vscode/settings.json", "");
    place.write("lib/.git/config", "");
    let bound = ["app.sock", ".vscode/ipc", "lib/.git/daemon.ipc"];
    let listeners = bound.map(|path| UnixListener::bind(place.at(path)).unwrap());
    let _datagram = UnixDatagram::bind(place.at("log")).unwrap();
    drop(UnixListener::bind(place.at("left")).unwrap());
    let covered = |protection: &Protection| {
        let covered = binds(protection).into_iter().filter(|bind| bind.1);
        let covered: Vec<_> = covered.map(|bind| bind.0.to_owned()).collect();
        covered
    };
    let expected = [".vscode/ipc", "app.sock", "lib/.git/daemon.ipc", "log"];
    let none = place.spec(|request| request.hide = vec!["none".into()]);
    let live = place.protect(&none).unwrap();
    assert_eq!(covered(&live), expected);
    let notes = live.take_down().notes;
    assert!(
        notes.len() == 1 && notes[0].contains("`app.sock`"),
        "{notes:?}"
    );
    let read_only = place.spec(|request| {
        request.read_only_workspace = true;
        request.hide = vec!["none".into()];
    });
    assert_eq!(covered(&place.protect(&read_only).unwrap()), expected);
    let lifted = place.put_up(&["app.sock", "log"]).unwrap();
    assert_eq!(covered(&lifted), [".vscode/ipc", "lib/.git/daemon.ipc"]);
    assert_eq!(lifted.take_down().held_back, []);
    // Whoever listens was not disturbed.
    for listener in listeners {
        listener.set_nonblocking(true).unwrap();
        let waiting = listener.accept().map(drop).map_err(|it| it.kind());
        assert_eq!(waiting, Err(io::ErrorKind::WouldBlock));
    }
}

#[test]
fn settings_of_nested_repositories_are_hidden_if_they_hold_a_credential() {
    let place = Place::new("credentials");
    let secret = "[remote \"origin\"]\n\turl = https://user:token@example.com/a\n";
    for path in ["secret/.git", "secret/.git/modules/deep", "open/.git"] {
        place.write(&format!("{path}/HEAD"), "ref: refs/heads/main");
    }
    place.write("secret/.git/config", secret);
    place.write("secret/.git/modules/deep/config", secret);
    place.write(
        "open/.git/config",
        "[remote \"origin\"]\n\turl = https://example.com/a\n",
    );
    // The program sees one of ours there.
    place.write(".git/config", secret);
    let hidden = |protection: &Protection| {
        let hidden = binds(protection).into_iter().filter(|bind| bind.1);
        let hidden: Vec<_> = hidden.map(|bind| bind.0.to_owned()).collect();
        hidden
    };
    let nested = ["secret/.git/config", "secret/.git/modules/deep/config"];
    assert_eq!(hidden(&place.put_up(&[]).unwrap()), nested);
    let lifted = place.put_up(&["secret"]).unwrap();
    assert_eq!(hidden(&lifted), Vec::<String>::new());
    let none = place.spec(|request| request.hide = vec!["none".into()]);
    assert_eq!(hidden(&place.protect(&none).unwrap()), Vec::<String>::new());
    let read_only = place.spec(|request| request.read_only_workspace = true);
    let all = [".git/config", nested[0], nested[1]];
    assert_eq!(hidden(&place.protect(&read_only).unwrap()), all);
}

#[test]
fn more_files_than_can_be_hidden_refuse_the_run() {
    let place = Place::new("many-hidden");
    for number in 0..=MAX_HIDDEN {
        place.write(&format!(".env.{number}"), "");
    }
    assert!(matches!(
        place.put_up(&[]),
        Err(ProtectError::Look { source }) if source.to_string().contains("4096")
    ));
    let none = place.spec(|request| request.hide = vec!["none".into()]);
    assert!(place.protect(&none).is_ok());
}

#[test]
fn names_of_the_operators_and_paths_that_git_names_are_held_also_after_a_crash() {
    let place = Place::new("added");
    place.write("tools/hooks/pre-commit", "mine");
    place.write(".zed/tasks.json", "mine");
    let mut spec = place.spec(|_| ());
    spec.protected = ProtectedNames {
        added: vec![".mytool".into()],
        removed: vec![".zed".into()],
        paths: ["tools/hooks", "bin/clean.sh"]
            .map(|path| WorkspacePath::new(path.as_ref()).unwrap())
            .into(),
        allowed: Vec::new(),
    };
    let evil = || {
        place.write("a/.MyTool/x", "evil");
        place.write("bin/clean.sh", "evil");
        place.write("b/.zed/x", "fine");
        fs::rename(place.at("tools"), place.at("moved")).unwrap();
        place.write("mine/hooks/pre-commit", "evil");
        symlink("mine", place.at("tools")).unwrap();
    };
    let protection = place.protect(&spec).unwrap();
    assert_eq!(binds(&protection), [("tools/hooks", false)]);
    evil();
    let expected = [
        ("a/.MyTool", HoldReason::ProtectedName),
        ("bin/clean.sh", HoldReason::ProtectedName),
        ("tools", HoldReason::LinkToProtected),
    ];
    assert_eq!(held(&protection.take_down()), expected);
    fs::rename(place.at("moved"), place.at("tools")).unwrap();
    let protection = place.protect(&spec).unwrap();
    evil();
    rustix::fs::flock(
        protection.lock().unwrap(),
        rustix::fs::FlockOperation::Unlock,
    )
    .unwrap();
    drop(protection);
    assert_eq!(sweep(&place.state()).notes.len(), 3);
    assert!(!place.at("bin/clean.sh").exists() && place.at("b/.zed/x").exists());
}

#[test]
fn inputs_and_the_folders_made_for_them_go_and_what_was_there_stays() {
    let place = Place::new("inputs");
    place.write("there/kept", "mine");
    let spec = place.spec(|request| {
        let names = ["a", "new/deep/b", "there/c", "full/d"];
        let given = |name: &str| (PathBuf::from(name), b"x".as_slice().into());
        request.inline_inputs = names.map(given).into();
    });
    let put = || {
        for path in ["a", "new/deep/b", "there/c", "full/d", "full/programs"] {
            place.write(path, "given");
        }
        place.write("a", "changed by the program");
    };
    let left = ["full", "full/programs", "there", "there/kept"];
    let protection = place.protect(&spec).unwrap();
    put();
    assert_eq!(protection.take_down(), WorkspaceCleanup::default());
    assert_eq!(place.names(), left);
    // As by SIGKILL.
    let protection = place.protect(&spec).unwrap();
    put();
    rustix::fs::flock(
        protection.lock().unwrap(),
        rustix::fs::FlockOperation::Unlock,
    )
    .unwrap();
    drop(protection);
    assert_eq!(sweep(&place.state()), SweptWorkspaces::default());
    assert_eq!(place.names(), left);
    // What was there is nobody's input.
    place.write("a", "mine");
    let protection = place.protect(&spec).unwrap();
    assert_eq!(protection.take_down(), WorkspaceCleanup::default());
    assert!(place.at("a").exists());
}

#[test]
fn settings_among_packages_are_counted_and_an_environment_is_noted_once() {
    let place = Place::new("counted");
    place.write("node_modules/old/.vscode/x", "");
    place.write(".venv/bin/old", "");
    place.wait_until_older_than_a_start(".venv/bin/old");
    assert_eq!(
        place.put_up(&[]).unwrap().take_down(),
        WorkspaceCleanup::default()
    );
    let protection = place.put_up(&[]).unwrap();
    for path in ["a/.vscode/x", "b/.idea/y", "b/.mcp.json"] {
        place.write(&format!("node_modules/{path}"), "");
    }
    for path in [".venv/bin/one", ".venv/lib/two", "sub/.venv/bin/three"] {
        place.write(path, "");
    }
    let taken_down = protection.take_down();
    assert_eq!(held(&taken_down), []);
    let notes = &taken_down.notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].starts_with("`.venv`, `sub/.venv` in"), "{notes:?}");
    assert!(notes[1].starts_with("3 names of editors"), "{notes:?}");
}

#[test]
fn a_name_that_lifts_nothing_is_told() {
    let place = Place::new("lifts");
    fs::create_dir(place.at("vendor")).unwrap();
    let notes = |allowed| place.put_up(&[allowed]).unwrap().take_down().notes;
    assert!(notes(".evnrc")[0].contains("did you mean `.envrc`?"));
    assert!(notes(".git/hook")[0].contains("`.git` is protected as a whole"));
    for fine in [".envrc", "vendor", "HEAD"] {
        assert_eq!(notes(fine), Vec::<String>::new(), "{fine}");
    }
}
