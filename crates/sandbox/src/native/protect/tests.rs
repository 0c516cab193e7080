//! What the protection of a workspace promises, with real folders, threads and killed processes.

use super::*;
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, symlink},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

struct Place {
    root: PathBuf,
    workspace: OwnedFd,
}

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("airlock-protect-{}-{count}", std::process::id()));
        fs::create_dir_all(root.join("work")).unwrap();
        let workspace = File::open(root.join("work")).unwrap().into();
        Place { root, workspace }
    }

    fn with_repository() -> Place {
        let place = Place::new();
        for folder in [".git", ".git/hooks"] {
            fs::create_dir(place.at(folder)).unwrap();
        }
        for file in [".git/HEAD", ".git/config"] {
            fs::write(place.at(file), file).unwrap();
        }
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join("work").join(path)
    }

    fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    fn put_up(&self, allowed: &[&str]) -> Result<Protection, ProtectError> {
        let allowed: Vec<_> = allowed
            .iter()
            .map(|name| WorkspacePath::new(Path::new(name)).unwrap())
            .collect();
        Protection::put_up(&self.state(), self.workspace.as_fd(), &allowed)
    }

    /// Every path in the workspace.
    fn tree(&self) -> BTreeSet<PathBuf> {
        fn walk(top: &Path, folder: &Path, found: &mut BTreeSet<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                found.insert(path.strip_prefix(top).unwrap().to_owned());
                if path.symlink_metadata().unwrap().is_dir() {
                    walk(top, &path, found);
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(&self.at(""), &self.at(""), &mut found);
        found
    }

    fn records(&self) -> usize {
        let names = fs::read_dir(self.state().join("stubs")).unwrap();
        names
            .filter(|name| {
                !name
                    .as_ref()
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with("lock")
            })
            .count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn all_is_well() -> TakenDown {
    TakenDown::default()
}

fn nothing() -> Vec<String> {
    Vec::new()
}

fn binds(protection: &Protection) -> Vec<(&str, BindKind)> {
    protection
        .binds()
        .iter()
        .map(|bind| (bind.path.to_str().unwrap(), bind.kind))
        .collect()
}

fn read_only_at_the_top() -> impl Iterator<Item = (&'static str, BindKind)> {
    let top = PROTECTED
        .iter()
        .filter(|protected| !protected.name.contains('/') && protected.name != HEAD);
    top.map(|protected| (protected.name, BindKind::ReadOnly))
}

#[test]
fn absent_names_get_stand_ins_that_are_gone_afterwards() {
    let place = Place::new();
    let protection = place.put_up(&[]).unwrap();
    let mut wanted = vec![(".git", BindKind::ReadOnly), (HEAD, BindKind::ReadOnly)];
    wanted.extend(read_only_at_the_top());
    wanted.push((".home", BindKind::Home));
    assert_eq!(binds(&protection), wanted);
    assert_eq!(
        place.tree(),
        wanted.iter().map(|(name, _)| PathBuf::from(name)).collect()
    );
    assert_eq!(place.records(), 1);
    assert_eq!(protection.take_down(), all_is_well());
    assert_eq!((place.tree(), place.records()), (BTreeSet::new(), 0));
}

#[test]
fn a_repository_is_guarded_and_its_switches_are_read_only() {
    let place = Place::with_repository();
    let before = place.tree();
    let protection = place.put_up(&[]).unwrap();
    assert_eq!(
        binds(&protection)[..8],
        [
            (".git", BindKind::Guard),
            (".git/hooks", BindKind::ReadOnly),
            (".git/config", BindKind::ReadOnly),
            (".git/config.worktree", BindKind::ReadOnly),
            (".git/commondir", BindKind::ReadOnly),
            (".git/modules", BindKind::ReadOnly),
            (".git/worktrees", BindKind::ReadOnly),
            (".envrc", BindKind::ReadOnly),
        ]
    );
    assert!(
        protection
            .binds()
            .iter()
            .all(|bind| place.at(bind.path.to_str().unwrap()).exists())
    );
    assert_eq!(protection.take_down(), all_is_well());
    assert_eq!(place.tree(), before);
    assert_eq!(fs::read(place.at(".git/config")).unwrap(), b".git/config");
}

#[test]
fn git_of_a_linked_worktree_is_a_read_only_file() {
    let place = Place::new();
    fs::write(place.at(".git"), "gitdir: /elsewhere").unwrap();
    let protection = place.put_up(&[]).unwrap();
    assert_eq!(
        binds(&protection)[..2],
        [(".git", BindKind::ReadOnly), (".envrc", BindKind::ReadOnly)]
    );
    assert_eq!(protection.take_down(), all_is_well());
    assert_eq!(place.tree(), [PathBuf::from(".git")].into());
}

#[test]
fn what_is_allowed_has_neither_bind_nor_stand_in() {
    let place = Place::with_repository();
    let before = place.tree();
    let protection = place.put_up(&[".git/hooks", ".vscode"]).unwrap();
    let names: Vec<_> = binds(&protection)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(
        !names.contains(&".git/hooks")
            && !names.contains(&".vscode")
            && names.contains(&".git/config")
    );
    assert_eq!(protection.take_down(), all_is_well());
    let protection = place.put_up(&[".git"]).unwrap();
    assert!(
        protection
            .binds()
            .iter()
            .all(|bind| !bind.path.starts_with(".git"))
    );
    assert_eq!(protection.take_down(), all_is_well());
    assert_eq!(place.tree(), before);
}

#[test]
fn a_symbolic_link_at_a_protected_name_refuses_the_run_and_leaves_nothing() {
    for name in [
        ".git",
        ".git/hooks",
        ".git/config",
        ".vscode",
        ".bashrc",
        ".zlogin",
    ] {
        let place = Place::new();
        if name.contains('/') {
            fs::create_dir(place.at(".git")).unwrap();
        }
        fs::create_dir(place.root.join("outside")).unwrap();
        symlink("../outside", place.at(name)).unwrap();
        let before = place.tree();
        let error = place.put_up(&[]).unwrap_err();
        assert!(
            matches!(&error, ProtectError::Link { name: told } if told == name),
            "{error:?}"
        );
        assert!(
            error.hint().contains(&format!("--allow-protected {name}")),
            "{}",
            error.hint()
        );
        assert_eq!(
            (place.tree(), place.records()),
            (before.clone(), 0),
            "{name}"
        );
        assert_eq!(fs::read_dir(place.root.join("outside")).unwrap().count(), 0);
        assert_eq!(
            place.put_up(&[name]).unwrap().take_down(),
            all_is_well(),
            "{name}"
        );
        assert_eq!(place.tree(), before);
    }
}

#[test]
fn a_workspace_that_is_itself_a_repository_is_refused_and_one_that_becomes_it_is_told() {
    let place = Place::new();
    fs::write(place.at(HEAD), "ref: refs/heads/main\n").unwrap();
    assert!(matches!(place.put_up(&[]), Err(ProtectError::Bare)));
    assert_eq!(place.put_up(&[HEAD]).unwrap().take_down(), all_is_well());
    let place = Place::with_repository();
    let protection = place.put_up(&[]).unwrap();
    fs::write(place.at(HEAD), "ref: refs/heads/main\n").unwrap();
    assert_eq!(protection.take_down().problems.len(), 1);
}

#[test]
fn a_home_that_is_a_folder_is_covered_and_anything_else_refused() {
    let place = Place::new();
    fs::create_dir(place.at(".home")).unwrap();
    fs::write(place.at(".home/mine"), "").unwrap();
    let protection = place.put_up(&[]).unwrap();
    assert_eq!(binds(&protection).last(), Some(&(".home", BindKind::Home)));
    assert_eq!(protection.take_down(), all_is_well());
    assert!(place.at(".home/mine").exists());
    fs::remove_dir_all(place.at(".home")).unwrap();
    symlink("/tmp", place.at(".home")).unwrap();
    assert!(matches!(place.put_up(&[".home"]), Err(ProtectError::Home)));
    fs::remove_file(place.at(".home")).unwrap();
    fs::write(place.at(".home"), "").unwrap();
    assert!(matches!(place.put_up(&[]), Err(ProtectError::Home)));
    assert_eq!(place.tree(), [PathBuf::from(".home")].into());
}

#[test]
fn stand_ins_stay_until_the_last_run_ends() {
    let place = Place::with_repository();
    let before = place.tree();
    let (one, two) = (place.put_up(&[]).unwrap(), place.put_up(&[]).unwrap());
    assert_eq!(one.binds(), two.binds());
    let during = place.tree();
    assert_eq!(one.take_down(), all_is_well());
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!(place.tree(), during);
    assert_eq!(two.take_down(), all_is_well());
    assert_eq!((place.tree(), place.records()), (before, 0));
}

#[test]
fn a_stand_in_for_git_stays_read_only_for_a_second_run() {
    let place = Place::new();
    let (one, two) = (place.put_up(&[]).unwrap(), place.put_up(&[]).unwrap());
    assert_eq!(binds(&two)[0], (".git", BindKind::ReadOnly));
    assert_eq!(
        (one.take_down(), two.take_down()),
        (all_is_well(), all_is_well())
    );
    assert_eq!(place.tree(), BTreeSet::new());
}

#[test]
fn runs_of_another_state_folder_count_too() {
    let place = Place::new();
    let one = place.put_up(&[]).unwrap();
    let other_state = place.root.join("other");
    let two = Protection::put_up(&other_state, place.workspace.as_fd(), &[]).unwrap();
    let during = place.tree();
    assert_eq!(one.take_down(), all_is_well());
    assert_eq!(place.tree(), during, "the second run still needs them");
    assert_eq!(two.take_down(), all_is_well());
    assert_eq!(place.tree(), during, "they are not the second one's");
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!(place.tree(), BTreeSet::new());
}

#[test]
fn many_runs_at_once_always_have_their_stand_ins_and_leave_none() {
    let place = Place::with_repository();
    let before = place.tree();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let place = &place;
            scope.spawn(move || {
                let state = place.root.join(format!("state-{}", worker % 2));
                for _ in 0..40 {
                    let protection =
                        Protection::put_up(&state, place.workspace.as_fd(), &[]).unwrap();
                    for bind in protection.binds() {
                        assert!(place.at(bind.path.to_str().unwrap()).exists(), "{bind:?}");
                    }
                    assert_eq!(protection.take_down().problems, nothing());
                    assert_eq!(sweep(&state), nothing());
                }
            });
        }
    });
    assert_eq!(sweep(&place.root.join("state-0")), nothing());
    assert_eq!(sweep(&place.root.join("state-1")), nothing());
    assert_eq!(place.tree(), before);
}

/// The body of the child in the tests with crashes.
#[test]
#[ignore = "a child of other tests"]
fn child_protects_until_it_is_killed() {
    let root = PathBuf::from(std::env::var_os("AIRLOCK_TEST_FOLDER").unwrap());
    let workspace = File::open(root.join("work")).unwrap();
    let _protection = Protection::put_up(&root.join("state"), workspace.as_fd(), &[]).unwrap();
    println!("\nprotected");
    loop {
        std::thread::park();
    }
}

fn child(place: &Place) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--nocapture",
            "child_protects_until_it_is_killed",
        ])
        .env("AIRLOCK_TEST_FOLDER", &place.root)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(lines.any(|line| line == "protected"));
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_sweep_removes_what_a_killed_run_left_and_nothing_of_a_living_one() {
    let place = Place::with_repository();
    let before = place.tree();
    let living = child(&place);
    let during = place.tree();
    assert_ne!(during, before);
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!(place.tree(), during);
    kill(living);
    assert_eq!(place.tree(), during);
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!((place.tree(), place.records()), (before, 0));
}

#[test]
fn the_next_run_mends_what_a_killed_one_left() {
    let place = Place::new();
    kill(child(&place));
    assert!(place.at(".git").exists());
    let protection = place.put_up(&[".git"]).unwrap();
    assert!(
        !place.at(".git").exists(),
        "an allowed name is not left as a stand-in"
    );
    assert_eq!(protection.take_down(), all_is_well());
    assert_eq!((place.tree(), place.records()), (BTreeSet::new(), 0));
}

#[test]
fn a_killed_run_does_not_take_the_stand_ins_of_a_living_one() {
    let place = Place::new();
    let (dying, living) = (child(&place), place.put_up(&[]).unwrap());
    let during = place.tree();
    kill(dying);
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!(place.tree(), during);
    assert_eq!(living.take_down(), all_is_well());
    assert_eq!(place.tree(), BTreeSet::new());
}

/// Leaves a record as a crash at that point would.
fn crashed_after(place: &Place, rows: &str) {
    let found = rustix::fs::fstat(&place.workspace).unwrap();
    let path: String = place
        .at("")
        .to_str()
        .unwrap()
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    fs::create_dir_all(place.state().join("stubs")).unwrap();
    let record = place
        .state()
        .join("stubs")
        .join(format!("{}-{}", found.st_dev, found.st_ino));
    fs::write(record, format!("workspace {path}\n{rows}")).unwrap();
}

#[test]
fn a_crash_between_intent_and_deed_leaves_nothing_and_takes_nothing() {
    let place = Place::with_repository();
    let before = place.tree();
    // Made, not yet written down: gone.
    fs::create_dir(place.at(".envrc")).unwrap();
    fs::write(place.at(".git/commondir"), "").unwrap();
    crashed_after(&place, "intend .envrc\nintend .git/commondir\n");
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!((place.tree(), place.records()), (before.clone(), 0));
    // Never made; the user's own came afterwards: stays.
    fs::write(place.at(".envrc"), "mine").unwrap();
    fs::write(place.at(".git/commondir"), "mine").unwrap();
    crashed_after(&place, "intend .envrc\nintend .git/commondir\nmade 1");
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!(fs::read(place.at(".envrc")).unwrap(), b"mine");
    assert_eq!(fs::read(place.at(".git/commondir")).unwrap(), b"mine");
    assert_eq!(place.records(), 0);
}

#[test]
fn a_crash_before_the_first_line_of_a_record_is_no_damage() {
    let place = Place::new();
    let found = rustix::fs::fstat(&place.workspace).unwrap();
    fs::create_dir_all(place.state().join("stubs")).unwrap();
    let record = place
        .state()
        .join("stubs")
        .join(format!("{}-{}", found.st_dev, found.st_ino));
    fs::write(&record, "").unwrap();
    assert_eq!(sweep(&place.state()), nothing());
    assert_eq!(place.records(), 0);
    fs::write(&record, "workspace 2f").unwrap();
    assert_eq!(place.put_up(&[]).unwrap().take_down(), all_is_well());
    assert_eq!((place.tree(), place.records()), (BTreeSet::new(), 0));
}

#[test]
fn a_record_can_name_nothing_but_stand_ins() {
    let place = Place::new();
    fs::create_dir(place.at("innocent")).unwrap();
    crashed_after(&place, "intend innocent\n");
    assert_eq!(sweep(&place.state()).len(), 1);
    crashed_after(&place, "intend ../work/innocent\n");
    assert_eq!(sweep(&place.state()).len(), 1);
    assert!(place.at("innocent").exists());
}

#[test]
fn what_the_user_put_into_or_instead_of_a_stand_in_stays_and_is_told() {
    let place = Place::new();
    let protection = place.put_up(&[]).unwrap();
    fs::write(place.at(".vscode/settings.json"), "{}").unwrap();
    fs::remove_dir(place.at(".idea")).unwrap();
    fs::write(place.at(".idea"), "").unwrap();
    let taken = protection.take_down();
    assert_eq!(
        taken.changed,
        [PathBuf::from(".vscode"), PathBuf::from(".idea")]
    );
    assert_eq!(taken.problems, nothing());
    assert_eq!(
        place.tree(),
        [".idea", ".vscode", ".vscode/settings.json"]
            .map(PathBuf::from)
            .into()
    );
    assert_eq!(place.records(), 0);
}

#[test]
fn a_protected_file_that_changed_during_the_run_is_told() {
    let place = Place::with_repository();
    let protection = place.put_up(&[]).unwrap();
    fs::write(place.at(".git/config.lock"), "other").unwrap();
    fs::rename(place.at(".git/config.lock"), place.at(".git/config")).unwrap();
    assert_eq!(
        protection.take_down().changed,
        [PathBuf::from(".git/config")]
    );
}

#[test]
fn a_repository_swapped_for_a_link_loses_nothing_where_it_points() {
    let place = Place::with_repository();
    let protection = place.put_up(&[]).unwrap();
    fs::rename(place.at(".git"), place.root.join("outside")).unwrap();
    symlink("../outside", place.at(".git")).unwrap();
    let taken = protection.take_down();
    assert_eq!(taken.problems, nothing());
    assert!(taken.changed.contains(&PathBuf::from(".git/config")));
    // The very files that would have been removed, were the link followed.
    for name in ["commondir", "modules", "worktrees", "config.worktree"] {
        assert!(place.root.join("outside").join(name).exists(), "{name}");
    }
    assert_eq!(place.tree(), [PathBuf::from(".git")].into());
}

#[test]
fn a_workspace_that_was_moved_is_told_once() {
    let place = Place::new();
    kill(child(&place));
    fs::rename(place.at(""), place.root.join("elsewhere")).unwrap();
    fs::create_dir(place.at("")).unwrap();
    fs::create_dir(place.at(".envrc")).unwrap();
    let problems = sweep(&place.state());
    assert!(
        problems.len() == 1 && problems[0].contains("moved"),
        "{problems:?}"
    );
    assert_eq!((sweep(&place.state()), place.records()), (nothing(), 0));
    assert!(
        place.at(".envrc").exists(),
        "another folder at the same path is nobody's"
    );
}

#[test]
fn a_folder_that_another_program_locks_is_refused_in_time() {
    let place = Place::new();
    let other = File::open(place.at("")).unwrap();
    rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
    assert!(matches!(place.put_up(&[]), Err(ProtectError::Hold { .. })));
    assert_eq!(place.tree(), BTreeSet::new());
    drop(other);
    assert_eq!(place.put_up(&[]).unwrap().take_down(), all_is_well());
}

#[test]
fn a_handle_for_paths_only_is_enough() {
    let place = Place::new();
    let handle = rustix::fs::open(
        place.at(""),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap();
    let protection = Protection::put_up(&place.state(), handle.as_fd(), &[]).unwrap();
    assert!(place.at(".home").is_dir());
    assert_eq!(protection.take_down(), all_is_well());
}

#[test]
fn stand_ins_belong_to_the_owner_of_the_workspace() {
    let place = Place::with_repository();
    let root = rustix::process::geteuid().is_root();
    if root {
        for path in ["", ".git"] {
            std::os::unix::fs::chown(place.at(path), Some(1234), Some(2345)).unwrap();
        }
    }
    let owner = fs::metadata(place.at("")).unwrap();
    let protection = place.put_up(&[]).unwrap();
    for name in [".home", ".envrc", ".git/commondir", ".git/modules"] {
        let made = fs::metadata(place.at(name)).unwrap();
        assert_eq!(
            (made.uid(), made.gid()),
            (owner.uid(), owner.gid()),
            "{name}"
        );
    }
    assert_eq!(protection.take_down(), all_is_well());
    if !root {
        eprintln!("skipped in part: only root can give stand-ins to another user");
    }
}

#[test]
fn git_works_beside_the_stand_ins_and_does_not_see_them() {
    let place = Place::new();
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(place.at(""))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .args(["-c", "user.name=n", "-c", "user.email=e@example.com"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    if Command::new("git").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "prerequisite: git"
        );
        eprintln!("skipped: no git here");
        return;
    }
    git(&["init", "-q"]);
    fs::write(place.at("seen"), "").unwrap();
    let protection = place.put_up(&[]).unwrap();
    assert!(place.at(".git/commondir").exists() && place.at(".mcp.json").exists());
    assert_eq!(git(&["status", "--porcelain"]), "?? seen\n");
    git(&["add", "-A"]);
    git(&["commit", "-qm", "one"]);
    assert_eq!(git(&["ls-files"]), "seen\n");
    git(&["checkout", "-qb", "other"]);
    assert_eq!(protection.take_down(), all_is_well());
    assert_eq!(git(&["log", "--format=%s", "other"]), "one\n");
    assert_eq!(git(&["status", "--porcelain"]), "");
}

/// Its config and hooks would be the program's to write, and git of the host obeys them.
#[test]
fn a_git_file_that_names_a_folder_in_the_workspace_is_refused() {
    let place = Place::new();
    fs::create_dir(place.at("bare")).unwrap();
    symlink(place.at("bare"), place.root.join("link")).unwrap();
    let absolute = format!("gitdir: {}\n", place.at("bare").display());
    let through_link = format!("gitdir: {}\n", place.root.join("link").display());
    for text in [
        "gitdir: bare\n",
        "gitdir: ./absent",
        "gitdir: ../work/bare",
        &absolute,
        &through_link,
    ] {
        fs::write(place.at(".git"), text).unwrap();
        assert!(
            matches!(place.put_up(&[]), Err(ProtectError::Inside)),
            "{text}"
        );
        assert_eq!(
            place.put_up(&[".git"]).unwrap().take_down(),
            all_is_well(),
            "{text}"
        );
    }
    for text in [
        "gitdir: /elsewhere/.git/worktrees/x\n",
        "gitdir: ../main/.git\n",
        "no repository",
    ] {
        fs::write(place.at(".git"), text).unwrap();
        let protection = place.put_up(&[]).unwrap();
        assert!(
            binds(&protection).contains(&(".git", BindKind::ReadOnly)),
            "{text}"
        );
        assert_eq!(protection.take_down(), all_is_well());
    }
}
