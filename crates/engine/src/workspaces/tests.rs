//! Layers of friendly and hostile trees: what is reported, what is committed, and what never is.

use super::{create::make, *};
use proptest::prelude::*;
use spec::{ErrorCode, FileId, LayerCopyLimits, SandboxSpec};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    sync::atomic::{AtomicU64, Ordering},
};

#[path = "apply_tests.rs"]
mod apply;
#[path = "owner_tests.rs"]
mod owner;
#[path = "times_tests.rs"]
mod times;

/// A folder, a state folder, and a layer.
struct Place {
    root: PathBuf,
    handle: Option<LayerHandle>,
}

impl Place {
    fn new(fill: impl FnOnce(&Path)) -> Place {
        Place::allowing(&[], fill)
    }

    fn allowing(allowed: &[&str], fill: impl FnOnce(&Path)) -> Place {
        let mut place = Place::filled(fill);
        let allowed: Vec<_> = allowed
            .iter()
            .map(|name| WorkspacePath::new(Path::new(name)).unwrap())
            .collect();
        place.handle = Some(place.make(&allowed).unwrap());
        place
    }

    /// Without a layer.
    fn filled(fill: impl FnOnce(&Path)) -> Place {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // In memory if possible: thousands of folders take a busy disk half a minute.
        let memory = Path::new("/dev/shm");
        let top = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let root = top.join(format!("airlock-layers-{}-{count}", std::process::id()));
        fs::create_dir_all(root.join("folder")).unwrap();
        fs::create_dir_all(root.join("state")).unwrap();
        fill(&root.join("folder"));
        Place { root, handle: None }
    }

    fn make(&self, allowed: &[WorkspacePath]) -> Result<LayerHandle, LayerError> {
        let spec = self.spec(allowed);
        make(
            &self.state(),
            &id(),
            &spec,
            &self.root.join("folder"),
            Some("key".to_owned()),
            &|| false,
        )
    }

    fn spec(&self, allowed: &[WorkspacePath]) -> SandboxSpec {
        let request = spec::RunRequest {
            command: vec!["true".into()],
            workspace: Some(self.root.join("folder")),
            copy_on_write: true,
            allow_protected: allowed
                .iter()
                .map(|name| name.as_path().to_owned())
                .collect(),
            ..spec::RunRequest::default()
        };
        let mut policy = spec::Policy::default();
        // Also of the larger folders: an overlay has its own tests.
        policy.workspace.copy = Some(LayerCopyLimits::default());
        policy.admit(request).unwrap().sandbox
    }

    /// How the layer is made of the folder.
    fn kind(&self, copy: Option<LayerCopyLimits>) -> Result<LayerKind, LayerError> {
        let mut spec = self.spec(&[]);
        spec.copy = copy;
        let folder = self.root.join("folder");
        let made = make(&self.state(), &id(), &spec, &folder, None, &|| false)?;
        let kind = made.kind;
        made.discard()?;
        Ok(kind)
    }

    fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    fn folder(&self, path: &str) -> PathBuf {
        self.root.join("folder").join(path)
    }

    /// A path as the program sees it.
    fn inside(&self, path: &str) -> PathBuf {
        self.state().join("workspaces/layer/tree").join(path)
    }

    /// Ends the sandbox. A child of another test may have a copy of the lock until it execs.
    fn end(&mut self) {
        self.handle = None;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while find(&self.state(), &id()).is_ok_and(|layer| layer.in_use) {
            assert!(std::time::Instant::now() < until, "nobody uses it");
            std::thread::yield_now();
        }
    }

    fn changes(&self) -> Vec<String> {
        let told = |change: &LayerChange| format!("{:?} {}", change.what, shown(&change.path));
        diff(&self.state(), &id())
            .unwrap()
            .changes
            .iter()
            .map(told)
            .collect()
    }

    fn commit(&self, options: CommitOptions) -> Result<CommitOutcome, LayerError> {
        commit(&self.state(), &id(), options)
    }

    /// What prevents a commit, as `path: reason`.
    fn against(&self) -> Vec<String> {
        match self.commit(CommitOptions::default()) {
            Err(LayerError::Refused { left }) => left
                .iter()
                .map(|left| format!("{}: {}", shown(&left.path), left.reason))
                .collect(),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handle = None;
        let parent = fs::File::open(self.root.parent().unwrap()).unwrap();
        let _ = tree::remove(&parent, self.root.file_name().unwrap());
    }
}

fn id() -> Id {
    Id::new("layer").unwrap()
}

const PARTIAL: CommitOptions = CommitOptions {
    force: false,
    partial: true,
    keep: false,
    only: Vec::new(),
    exactly: false,
};
const FORCE: CommitOptions = CommitOptions {
    force: true,
    partial: false,
    keep: false,
    only: Vec::new(),
    exactly: false,
};

/// Everything in a tree: kind, permissions, contents or target.
fn contents(top: &Path) -> BTreeMap<PathBuf, (FileKind, u32, Vec<u8>)> {
    let handle = fs::File::open(top).unwrap();
    let walked = tree::walk(&handle).unwrap();
    let content = |(path, seen): (PathBuf, tree::FileState)| {
        let bytes = match seen.kind {
            FileKind::File => fs::read(top.join(&path)).unwrap(),
            FileKind::Link => seen.target.unwrap().as_bytes().to_vec(),
            FileKind::Folder | FileKind::Other => Vec::new(),
        };
        let mode = if seen.kind == FileKind::Link {
            0
        } else {
            seen.mode
        };
        (path, (seen.kind, mode, bytes))
    };
    walked.entries.into_iter().map(content).collect()
}

#[test]
fn every_kind_of_change_is_told_and_taken_over() {
    let mut place = Place::new(|folder| {
        fs::create_dir_all(folder.join("gone/below")).unwrap();
        fs::create_dir(folder.join("was-folder")).unwrap();
        for file in [
            "same",
            "changed",
            "mode",
            "was-file",
            "gone/below/x",
            "was-folder/y",
        ] {
            fs::write(folder.join(file), file).unwrap();
        }
        symlink("same", folder.join("link")).unwrap();
    });
    assert_eq!(place.changes(), Vec::<String>::new());
    let at = |path: &str| place.inside(path);
    fs::write(at("changed"), "other--").unwrap();
    // Written again with the same contents: no change.
    fs::write(at("same"), "same").unwrap();
    fs::set_permissions(at("mode"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::remove_dir_all(at("gone")).unwrap();
    fs::remove_file(at("was-file")).unwrap();
    fs::create_dir(at("was-file")).unwrap();
    fs::write(at("was-file/in"), "in").unwrap();
    fs::remove_dir_all(at("was-folder")).unwrap();
    fs::write(at("was-folder"), "now a file").unwrap();
    fs::remove_file(at("link")).unwrap();
    symlink("was-file/in", at("link")).unwrap();
    fs::write(place.inside(".").join(OsStr::from_bytes(b"new\n\xff")), "n").unwrap();
    let expected = [
        "Changed changed",
        "Removed gone",
        "Removed gone/below",
        "Removed gone/below/x",
        "Changed link",
        "Mode mode",
        "Added new\\n\u{fffd}",
        "Replaced was-file",
        "Added was-file/in",
        "Replaced was-folder",
        "Removed was-folder/y",
    ];
    assert_eq!(place.changes(), expected);
    let wanted: BTreeMap<_, _> = contents(&place.inside(".")).into_iter().collect();
    place.end();
    let committed = place.commit(CommitOptions::default()).unwrap();
    assert_eq!(
        (committed.applied.len(), committed.left, committed.discarded),
        (11, vec![], true)
    );
    assert_eq!(contents(&place.folder(".")), wanted);
    // The set-id bit was not committed.
    assert_eq!(
        fs::metadata(place.folder("mode")).unwrap().mode() & 0o7777,
        0o755
    );
    assert!(matches!(
        find(&place.state(), &id()),
        Err(LayerError::Absent { .. })
    ));
}

#[test]
fn what_has_no_place_in_a_folder_is_named_and_left_out() {
    let place = Place::new(|_| {});
    rustix::fs::mknodat(
        CWD,
        place.inside("pipe"),
        rustix::fs::FileType::Fifo,
        Mode::RWXU,
        0,
    )
    .unwrap();
    let _listener = UnixListener::bind(place.inside("socket")).unwrap();
    fs::create_dir(place.inside("d")).unwrap();
    for (name, target) in [
        ("absolute", "/etc/passwd"),
        ("above", "../x"),
        ("d/above", "../../x"),
        // Harmless lexically, but `d/up` may be a link to the top.
        ("behind", "d/up/../.."),
    ] {
        symlink(target, place.inside(name)).unwrap();
    }
    for (name, target) in [
        ("d/up", "../"),
        ("beside", "d/nowhere"),
        ("d/beside", "../beside"),
    ] {
        symlink(target, place.inside(name)).unwrap();
    }
    fs::write(place.inside("good"), "good").unwrap();
    let named: Vec<_> = place
        .against()
        .iter()
        .map(|line| line.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        named,
        ["above", "absolute", "behind", "d/above", "pipe", "socket"]
    );
    assert_eq!(
        contents(&place.folder(".")).len(),
        0,
        "a refused commit did something"
    );
    let committed = place.commit(PARTIAL).unwrap();
    assert_eq!(
        (
            committed.applied.len(),
            committed.left.len(),
            committed.discarded
        ),
        (5, 6, false)
    );
    let there: Vec<_> = contents(&place.folder(".")).into_keys().collect();
    assert_eq!(
        there,
        ["beside", "d", "d/beside", "d/up", "good"].map(PathBuf::from)
    );
}

#[test]
fn what_is_protected_in_a_workspace_is_not_taken_over_unless_allowed() {
    let fill = |folder: &Path| {
        fs::create_dir_all(folder.join(".git/hooks")).unwrap();
        fs::write(folder.join(".git/HEAD"), "ref").unwrap();
    };
    let change = |place: &Place| {
        fs::write(place.inside(".git/hooks/post-checkout"), "evil").unwrap();
        fs::write(place.inside(".git/index"), "index").unwrap();
        fs::write(place.inside(".envrc"), "evil").unwrap();
        fs::create_dir_all(place.inside("sub/.vscode")).unwrap();
    };
    let place = Place::new(fill);
    change(&place);
    let against = place.against();
    let starts = [
        ".envrc: `.envrc` is protected",
        ".git/hooks/post-checkout: `.git` is protected",
        ".git/index: `.git` is protected",
        "sub/.vscode: `.vscode` is protected",
    ];
    assert_eq!(against.len(), starts.len(), "{against:?}");
    for (said, start) in against.iter().zip(starts) {
        assert!(said.starts_with(start), "{against:?}");
    }
    place.commit(PARTIAL).unwrap();
    assert!(!place.folder(".git/index").exists() && !place.folder(".envrc").exists());
    assert!(!place.folder(".git/hooks/post-checkout").exists());
    let allowed = Place::allowing(&[".git", ".envrc", "sub/.vscode"], fill);
    change(&allowed);
    assert_eq!(
        allowed
            .commit(CommitOptions::default())
            .unwrap()
            .applied
            .len(),
        5
    );
    assert!(allowed.folder(".git/hooks/post-checkout").exists());
}

#[test]
fn bare_repositories_are_neither_made_nor_changed() {
    let place = Place::new(|folder| {
        for made in ["own/objects", "own/refs", "half/refs"] {
            fs::create_dir_all(folder.join(made)).unwrap();
        }
        for made in ["own/HEAD", "own/config", "half/HEAD", "half/config"] {
            fs::write(folder.join(made), "ref: refs/heads/main").unwrap();
        }
    });
    fs::write(place.inside("own/config"), "evil").unwrap();
    fs::create_dir(place.inside("half/objects")).unwrap();
    fs::create_dir(place.inside("page")).unwrap();
    symlink("refs/heads/main", place.inside("page/HEAD")).unwrap();
    fs::write(place.inside("page/commondir"), "../rest").unwrap();
    fs::write(place.inside("page/objects"), "no repository's").unwrap();
    fs::create_dir(place.inside("rest")).unwrap();
    fs::create_dir(place.inside("rest/objects")).unwrap();
    let against = place.against();
    let paths: Vec<_> = against
        .iter()
        .map(|it| it.split(':').next().unwrap())
        .collect();
    let expected = [
        "half/objects",
        "own/config",
        "page/HEAD",
        "page/commondir",
        "page/objects",
    ];
    assert_eq!(paths, expected, "{against:?}");
    place.commit(PARTIAL).unwrap();
    assert!(place.folder("rest/objects").exists() && !place.folder("page/commondir").exists());
}

#[test]
fn what_protected_links_lead_to_is_not_taken_over() {
    let place = Place::new(|folder| {
        for made in ["env", "one", "other"] {
            fs::create_dir(folder.join(made)).unwrap();
            fs::write(folder.join(made).join("dev"), "mine").unwrap();
        }
        for (path, target) in [
            (".envrc", "env/dev"),
            ("now", "one"),
            ("mise.toml", "now/dev"),
            (".exrc", "not/yet"),
        ] {
            symlink(target, folder.join(path)).unwrap();
        }
    });
    fs::write(place.inside("env/dev"), "evil").unwrap();
    fs::write(place.inside("one/dev"), "evil").unwrap();
    fs::write(place.inside("other/dev"), "work").unwrap();
    fs::remove_file(place.inside("now")).unwrap();
    symlink("other", place.inside("now")).unwrap();
    fs::create_dir(place.inside("not")).unwrap();
    fs::write(place.inside("not/yet"), "evil").unwrap();
    fs::create_dir(place.inside("settings")).unwrap();
    symlink("settings", place.inside(".config")).unwrap();
    let against = place.against();
    let paths: Vec<_> = against
        .iter()
        .map(|it| it.split(':').next().unwrap())
        .collect();
    let expected = [".config", "env/dev", "not/yet", "now", "one/dev"];
    assert_eq!(paths, expected, "{against:?}");
    place.commit(PARTIAL).unwrap();
    assert_eq!(
        fs::read_to_string(place.folder("other/dev")).unwrap(),
        "work"
    );
}

#[test]
fn a_repository_cannot_be_brought_in_whole() {
    let place = Place::new(|_| {});
    fs::create_dir_all(place.inside(".git/hooks")).unwrap();
    fs::write(place.inside(".git/config"), "[core]\nfsmonitor = evil").unwrap();
    fs::write(place.inside(".git/index"), "index").unwrap();
    assert_eq!(place.against().len(), 4);
    place.commit(PARTIAL).unwrap();
    assert!(!place.folder(".git").exists());
}

#[test]
fn what_changed_in_the_folder_meanwhile_is_a_conflict_unless_forced() {
    let mut place = Place::new(|folder| {
        fs::create_dir(folder.join("d")).unwrap();
        for file in ["edited", "removed", "d/x", "calm"] {
            fs::write(folder.join(file), file).unwrap();
        }
    });
    for file in ["edited", "removed", "appeared", "calm"] {
        fs::write(place.inside(file), "of the program").unwrap();
    }
    fs::remove_dir_all(place.inside("d")).unwrap();
    fs::write(place.folder("edited"), "of the user!!").unwrap();
    fs::remove_file(place.folder("removed")).unwrap();
    fs::write(place.folder("appeared"), "of the user").unwrap();
    fs::write(place.folder("d/unseen"), "of the user").unwrap();
    assert_eq!(
        place.against(),
        [
            "appeared: it appeared in the folder meanwhile",
            "d: it holds `unseen`, which the program has not seen",
            "edited: it was changed in the folder meanwhile",
            "removed: it was removed from the folder meanwhile",
        ]
    );
    assert_eq!(fs::read(place.folder("calm")).unwrap(), b"calm");
    place.end();
    let forced = place.commit(FORCE).unwrap();
    // Even `force` removes nothing that the program has not seen.
    assert_eq!(fs::read(place.folder("d/unseen")).unwrap(), b"of the user");
    assert_eq!(
        forced
            .left
            .iter()
            .map(|left| shown(&left.path))
            .collect::<Vec<_>>(),
        ["d"]
    );
    for file in ["edited", "removed", "appeared", "calm"] {
        assert_eq!(
            fs::read(place.folder(file)).unwrap(),
            b"of the program",
            "{file}"
        );
    }
}

#[test]
fn a_folder_that_cannot_make_room_for_a_file_is_named_once_and_keeps_what_is_in_it() {
    let mut place = Place::new(|folder| {
        for name in ["full", "empty"] {
            fs::create_dir(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("seen"), "seen").unwrap();
        }
    });
    for name in ["full", "empty"] {
        fs::remove_dir_all(place.inside(name)).unwrap();
        fs::write(place.inside(name), "of the program").unwrap();
    }
    fs::write(place.folder("full/unseen"), b"of the user").unwrap();
    place.end();
    let forced = place.commit(FORCE).unwrap();
    let left: Vec<_> = forced.left.iter().map(|left| shown(&left.path)).collect();
    assert_eq!(left, ["full"], "{:?}", forced.left);
    assert!(
        forced.left[0].reason.contains("not seen"),
        "{:?}",
        forced.left
    );
    let applied: Vec<_> = forced.applied.iter().map(|one| shown(&one.path)).collect();
    assert!(!applied.contains(&"full".to_owned()), "{applied:?}");
    assert_eq!(
        fs::read(place.folder("full/unseen")).unwrap(),
        b"of the user"
    );
    assert!(
        applied.contains(&"empty".to_owned()),
        "the positive control: {applied:?}"
    );
    assert_eq!(fs::read(place.folder("empty")).unwrap(), b"of the program");
    let there: Vec<_> = contents(&place.folder(".")).into_keys().collect();
    assert_eq!(
        there,
        ["empty", "full", "full/unseen"].map(PathBuf::from),
        "no draft is left"
    );
}

#[test]
fn a_link_in_the_folder_leads_no_commit_elsewhere() {
    let place = Place::new(|folder| {
        fs::create_dir(folder.join("d")).unwrap();
        fs::write(folder.join("d/x"), "x").unwrap();
        fs::write(folder.join("f"), "f").unwrap();
    });
    fs::create_dir(place.root.join("outside")).unwrap();
    fs::write(place.root.join("outside/x"), "theirs").unwrap();
    fs::write(place.inside("d/x"), "evil").unwrap();
    fs::write(place.inside("d/new"), "evil").unwrap();
    fs::write(place.inside("f"), "evil").unwrap();
    fs::remove_dir_all(place.folder("d")).unwrap();
    symlink(place.root.join("outside"), place.folder("d")).unwrap();
    fs::remove_file(place.folder("f")).unwrap();
    symlink(place.root.join("outside/x"), place.folder("f")).unwrap();
    assert_eq!(place.against().len(), 2, "{:?}", place.against());
    let forced = place
        .commit(CommitOptions {
            force: true,
            partial: true,
            keep: true,
            ..CommitOptions::default()
        })
        .unwrap();
    assert_eq!(fs::read(place.root.join("outside/x")).unwrap(), b"theirs");
    assert!(!place.root.join("outside/new").exists());
    // The link itself was replaced by the file, as `force` means.
    assert_eq!(fs::read(place.folder("f")).unwrap(), b"evil");
    assert!(fs::symlink_metadata(place.folder("f")).unwrap().is_file());
    assert_eq!(forced.left.len(), 2, "{:?}", forced.left);
}

#[test]
fn no_force_takes_a_link_that_leads_to_a_protected_name() {
    let place = Place::new(|_| {});
    symlink(".envrc", place.inside("m")).unwrap();
    symlink("mine", place.inside(".github")).unwrap();
    fs::write(place.inside(".envrc"), "named").unwrap();
    let by_name = |name: &str| {
        place.commit(CommitOptions {
            force: true,
            keep: true,
            only: vec![name.into()],
            ..CommitOptions::default()
        })
    };
    for link in ["m", ".github"] {
        assert!(
            matches!(by_name(link), Err(LayerError::Refused { .. })),
            "{link}"
        );
        assert!(fs::symlink_metadata(place.folder(link)).is_err(), "{link}");
    }
    by_name(".envrc").unwrap();
    assert_eq!(fs::read(place.folder(".envrc")).unwrap(), b"named");
}

#[test]
fn a_folder_that_was_replaced_is_not_committed_to() {
    let place = Place::new(|_| {});
    fs::write(place.inside("x"), "x").unwrap();
    let (folder, aside) = (place.root.join("folder"), place.root.join("aside"));
    fs::rename(&folder, &aside).unwrap();
    symlink(&aside, &folder).unwrap();
    let refused = place.commit(FORCE);
    assert!(
        matches!(refused, Err(LayerError::Elsewhere { .. })),
        "{refused:?}"
    );
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    assert!(matches!(
        place.commit(FORCE),
        Err(LayerError::Elsewhere { .. })
    ));
    fs::remove_dir(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    assert_eq!(
        place
            .commit(CommitOptions::default())
            .unwrap()
            .applied
            .len(),
        1
    );
}

#[test]
fn a_tree_of_ten_thousand_folders_is_named_not_taken_over_and_removed() {
    let mut place = Place::new(|_| {});
    let mut at = tree::open(fs::File::open(place.inside(".")).unwrap(), ".", FOLDER).unwrap();
    for _ in 0..10_000 {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = tree::open(&at, "d", FOLDER).unwrap();
    }
    drop(at);
    let found = diff(&place.state(), &id()).unwrap();
    assert_eq!(
        (found.changes.len(), found.unknown.len()),
        (tree::MAX_DEPTH, 1)
    );
    let against = place.against();
    assert_eq!(against.len(), 1);
    assert!(
        against[0].contains("deeper than 128 folders"),
        "{against:?}"
    );
    place.end();
    discard(&place.state(), &id()).unwrap();
    assert_eq!(
        fs::read_dir(place.state().join("workspaces"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn names_without_end_are_a_bound_that_is_named() {
    let mut place = Place::new(|_| {});
    let target = "x/".repeat(2000);
    for number in 0..=tree::MAX_NAME_BYTES / target.len() + 1 {
        symlink(&target, place.inside(&number.to_string())).unwrap();
    }
    let against = place.against();
    assert_eq!(against.len(), 1, "{against:?}");
    assert!(
        against[0].starts_with(": there are more than"),
        "{against:?}"
    );
    place.end();
    discard(&place.state(), &id()).unwrap();
}

#[test]
fn hard_links_become_files_of_their_own() {
    let place = Place::new(|_| {});
    fs::write(place.inside("one"), "same").unwrap();
    fs::hard_link(place.inside("one"), place.inside("two")).unwrap();
    place.commit(PARTIAL).unwrap();
    let [one, two] = ["one", "two"].map(|name| fs::metadata(place.folder(name)).unwrap());
    assert!(one.ino() != two.ino() && one.nlink() == 1);
}

#[test]
fn changes_that_the_folder_has_already_are_no_conflict() {
    let mut place = Place::new(|folder| {
        fs::write(folder.join("a"), "a").unwrap();
        fs::write(folder.join("gone"), "gone").unwrap();
    });
    fs::write(place.inside("a"), "changed").unwrap();
    fs::write(place.inside("new"), "new").unwrap();
    fs::remove_file(place.inside("gone")).unwrap();
    fs::write(place.folder("a"), "changed").unwrap();
    fs::remove_file(place.folder("gone")).unwrap();
    let before = fs::metadata(place.folder("a")).unwrap();
    place.end();
    let again = place.commit(CommitOptions::default()).unwrap();
    assert_eq!((again.applied.len(), again.discarded), (3, true));
    let there: Vec<_> = contents(&place.folder(".")).into_keys().collect();
    assert_eq!(there, ["a", "new"].map(PathBuf::from));
    let after = fs::metadata(place.folder("a")).unwrap();
    assert_eq!(
        (after.ino(), after.mtime_nsec()),
        (before.ino(), before.mtime_nsec())
    );
}

#[test]
fn a_program_cannot_take_the_names_of_drafts() {
    let mut place = Place::new(|_| {});
    fs::create_dir(place.inside(".airlock-commit-layer")).unwrap();
    fs::write(place.inside("file"), "text").unwrap();
    place.end();
    let committed = place
        .commit(CommitOptions {
            partial: true,
            ..CommitOptions::default()
        })
        .unwrap();
    let left: Vec<_> = committed
        .left
        .iter()
        .map(|left| (left.path.clone(), left.reason.clone()))
        .collect();
    let reason = "names that begin with `.airlock-commit-` are Airlock's own".to_owned();
    assert_eq!(left, [(PathBuf::from(".airlock-commit-layer"), reason)]);
    assert_eq!(
        contents(&place.folder(".")).into_keys().collect::<Vec<_>>(),
        [PathBuf::from("file")]
    );
}

#[test]
fn a_folder_with_the_name_that_drafts_once_had_is_in_nobodys_way() {
    let mut place = Place::new(|folder| {
        fs::create_dir_all(folder.join(".airlock-commit-layer/full")).unwrap();
        fs::write(folder.join("a"), "a").unwrap();
    });
    fs::write(place.inside("a"), "changed").unwrap();
    place.end();
    assert_eq!(
        place
            .commit(CommitOptions::default())
            .unwrap()
            .applied
            .len(),
        1
    );
    assert_eq!(fs::read(place.folder("a")).unwrap(), b"changed");
}

#[test]
fn a_folder_of_more_names_than_are_read_at_a_time_is_removed_whole() {
    let mut place = Place::new(|_| {});
    fs::create_dir(place.inside("many")).unwrap();
    for number in 0..9000 {
        fs::write(place.inside("many").join(number.to_string()), "").unwrap();
    }
    place.end();
    discard(&place.state(), &id()).unwrap();
    assert_eq!(list(&place.state()).unwrap().len(), 0);
}

#[test]
fn a_session_commits_again_and_again() {
    let place = Place::new(|folder| fs::write(folder.join("a"), "a").unwrap());
    for text in ["first", "second", "third"] {
        fs::write(place.inside("a"), text).unwrap();
        fs::write(place.inside(text), text).unwrap();
        let committed = place.commit(CommitOptions::default()).unwrap();
        assert_eq!((committed.applied.len(), committed.discarded), (2, false));
        assert_eq!(place.changes(), Vec::<String>::new());
        assert_eq!(fs::read(place.folder("a")).unwrap(), text.as_bytes());
    }
}

#[test]
fn a_layer_that_cannot_be_read_is_not_taken_for_none() {
    let mut place = Place::new(|_| {});
    place.end();
    let state = place.state();
    assert!(exists(&state, &id()).unwrap(), "the control");
    let info = state.join(LAYERS).join(id().as_str()).join(INFO_FILE);
    let text = fs::read(&info).unwrap();
    fs::write(&info, "{").unwrap();
    assert!(matches!(exists(&state, &id()), Err(LayerError::Io { .. })));
    fs::write(&info, text).unwrap();
    discard(&state, &id()).unwrap();
    assert!(!exists(&state, &id()).unwrap());
}

#[test]
fn a_layer_is_discarded_after_what_belongs_to_it_and_only_if_nobody_uses_it() {
    let mut place = Place::new(|_| {});
    let state = place.state();
    let used = discard_after(&state, &id(), || unreachable!("it is in use"));
    assert!(matches!(used, Err(LayerError::InUse { .. })));
    place.end();
    let fail = || Err(failed("drop the rest")(io::ErrorKind::Other.into()));
    let kept = discard_after(&state, &id(), fail);
    assert!(matches!(kept, Err(LayerError::Io { .. })));
    assert!(exists(&state, &id()).unwrap());
    discard_after(&state, &id(), || Ok(())).unwrap();
    assert!(!exists(&state, &id()).unwrap());
}

#[test]
fn a_layer_in_use_is_not_discarded_and_a_name_is_taken_once() {
    let mut place = Place::new(|_| {});
    assert!(find(&place.state(), &id()).unwrap().in_use);
    assert!(matches!(
        discard(&place.state(), &id()),
        Err(LayerError::InUse { .. })
    ));
    assert!(matches!(place.make(&[]), Err(LayerError::Taken { .. })));
    place.end();
    let listed = list(&place.state()).unwrap();
    assert_eq!(listed.len(), 1);
    assert!(!listed[0].in_use && listed[0].owner.as_deref() == Some("key"));
    discard(&place.state(), &id()).unwrap();
    assert!(list(&place.state()).unwrap().is_empty());
}

#[test]
fn a_sweep_removes_what_is_half_made_and_leaves_layers_alone() {
    let mut place = Place::new(|folder| fs::write(folder.join("a"), "a").unwrap());
    place.end();
    let layers = place.state().join("workspaces");
    for half in [".new-dead", ".gone-dead", ".new-alive"] {
        fs::create_dir_all(layers.join(half).join("tree/below")).unwrap();
    }
    let alive = fs::File::open(layers.join(".new-alive")).unwrap();
    rustix::fs::flock(&alive, FlockOperation::LockShared).unwrap();
    assert_eq!(sweep(&place.state()), Vec::<String>::new());
    let mut left: Vec<_> = fs::read_dir(&layers)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, [".new-alive", "layer"]);
}

#[test]
fn making_one_ends_when_nobody_waits_for_it() {
    let mut place = Place::new(|folder| fs::write(folder.join("a"), "a").unwrap());
    place.end();
    let other = Id::new("other").unwrap();
    let made = make(
        &place.state(),
        &other,
        &place.spec(&[]),
        &place.root.join("folder"),
        None,
        &|| true,
    );
    assert!(matches!(made, Err(LayerError::Cancelled)), "{made:?}");
    assert_eq!(
        fs::read_dir(place.state().join("workspaces"))
            .unwrap()
            .count(),
        1
    );
}

/// What a program may do to a name.
#[derive(Clone, Debug)]
enum Deed {
    Write(String, Vec<u8>),
    Folder(String),
    Link(String, String),
    Remove(String),
    Mode(String, u32),
    Move(String, String),
}

fn name() -> impl Strategy<Value = String> {
    // Few names, so that operations collide.
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
        .prop_map(|parts| parts.join("/"))
}

fn deed() -> impl Strategy<Value = Deed> {
    let bytes = prop::collection::vec(any::<u8>(), 0..4);
    prop_oneof![
        (name(), bytes).prop_map(|(path, bytes)| Deed::Write(path, bytes)),
        name().prop_map(Deed::Folder),
        (name(), prop::sample::select(vec!["a", "b/c", "./x"]))
            .prop_map(|(path, target)| Deed::Link(path, target.to_owned())),
        name().prop_map(Deed::Remove),
        (
            name(),
            prop::sample::select(vec![0o600, 0o755, 0o644, 0o700])
        )
            .prop_map(|(path, mode)| Deed::Mode(path, mode)),
        (name(), name()).prop_map(|(from, to)| Deed::Move(from, to)),
    ]
}

/// Does it if possible.
fn act(top: &Path, deed: &Deed) {
    let removed = |path: &Path| match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    };
    let _ = match deed {
        Deed::Write(path, bytes) => fs::write(top.join(path), bytes),
        Deed::Folder(path) => fs::create_dir_all(top.join(path)),
        Deed::Link(path, target) => symlink(target, top.join(path)),
        Deed::Remove(path) => removed(&top.join(path)),
        Deed::Mode(path, mode) => match fs::symlink_metadata(top.join(path)) {
            // What its owner can use: the rest is not checked.
            Ok(found) if !found.is_symlink() => {
                let mode = mode | if found.is_dir() { 0o700 } else { 0o600 };
                fs::set_permissions(top.join(path), fs::Permissions::from_mode(mode))
            }
            _ => Ok(()),
        },
        Deed::Move(from, to) => fs::rename(top.join(from), top.join(to)),
    };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_a_commit_the_folder_is_what_the_program_saw(
        before in prop::collection::vec(deed(), 0..12),
        after in prop::collection::vec(deed(), 0..12),
    ) {
        let mut place = Place::new(|folder| before.iter().for_each(|deed| act(folder, deed)));
        after.iter().for_each(|deed| act(&place.inside("."), deed));
        let wanted = contents(&place.inside("."));
        place.end();
        let committed = place.commit(CommitOptions::default()).unwrap();
        prop_assert!(committed.discarded && committed.left.is_empty(), "{:?}", committed);
        prop_assert_eq!(contents(&place.folder(".")), wanted);
    }
}

#[test]
fn a_folder_that_is_no_longer_the_one_that_was_admitted_is_not_copied() {
    let place = Place::new(|folder| fs::write(folder.join("file"), "x").unwrap());
    let (folder, moved) = (place.root.join("folder"), place.root.join("moved"));
    let found = fs::metadata(&folder).unwrap();
    let admitted = FileId {
        device: found.dev(),
        inode: found.ino(),
    };
    let create_layer = |name: &str| {
        let mut spec = place.spec(&[]);
        spec.allowed_paths = Some([(folder.clone(), admitted)].into());
        create_layer(
            &place.state(),
            &Id::new(name).unwrap(),
            &mut spec,
            None,
            &|| false,
        )
        .map(|handle| (handle, spec))
    };
    let (handle, spec) = create_layer("same").unwrap();
    let tree = fs::metadata(spec.workspace.as_ref().unwrap()).unwrap();
    let tree = FileId {
        device: tree.dev(),
        inode: tree.ino(),
    };
    assert!(
        spec.admits(spec.workspace.as_ref().unwrap(), tree),
        "the layer itself may be shown"
    );
    drop(handle);
    fs::rename(&folder, &moved).unwrap();
    symlink("/usr", &folder).unwrap();
    let refused = create_layer("other").unwrap_err();
    assert!(matches!(refused, LayerError::Replaced { .. }), "{refused}");
    assert_eq!(refused.info().code, ErrorCode::PolicyDenied);
}

fn names(folder: &Path, count: u32) {
    for number in 0..count {
        fs::write(folder.join(number.to_string()), "x").unwrap();
    }
}

#[test]
fn a_folder_is_copied_as_far_as_that_is_fast_or_as_it_is_said() {
    let most = LayerCopyLimits::FAST.names;
    let small = Place::filled(|folder| names(folder, most));
    let large = Place::filled(|folder| names(folder, most + 1));
    let heavy = Place::filled(|folder| {
        let file = fs::File::create(folder.join("heavy")).unwrap();
        file.set_len(LayerCopyLimits::FAST.bytes + 1).unwrap();
    });
    let is_copied = |place: &Place, copy| place.kind(copy).unwrap() != LayerKind::Overlay;
    assert!(is_copied(&small, None));
    assert!(!is_copied(&large, None));
    assert_eq!(is_copied(&heavy, None), shares_blocks(&heavy));
    for place in [&small, &large, &heavy] {
        assert!(is_copied(place, Some(LayerCopyLimits::default())));
    }
    let names = LayerCopyLimits {
        names: 1,
        ..LayerCopyLimits::default()
    };
    assert!(!is_copied(&small, Some(names)));
}

/// Whether the file system of the tests shares blocks: then the size of a copy does not matter.
fn shares_blocks(place: &Place) -> bool {
    let [from, to] = ["heavy", "shared"].map(|name| place.folder(name));
    let (from, to) = (
        fs::File::open(from).unwrap(),
        fs::File::create(&to).unwrap(),
    );
    let shares = rustix::fs::ioctl_ficlone(&to, &from).is_ok();
    fs::remove_file(place.folder("shared")).unwrap();
    shares
}

#[test]
fn a_folder_over_which_nothing_can_be_laid_is_copied_up_to_more() {
    if !rustix::process::geteuid().is_root() {
        return println!("NOT TESTED: only root can give a file away");
    }
    let place = Place::filled(|folder| {
        names(folder, LayerCopyLimits::FAST.names + 1);
        std::os::unix::fs::chown(folder.join("0"), Some(23_458), None).unwrap();
    });
    assert_ne!(place.kind(None).unwrap(), LayerKind::Overlay);
    // The control: what is said is said of both.
    let refused = place.kind(Some(LayerCopyLimits::FAST));
    let is_refused = matches!(refused, Err(LayerError::TooMuch { .. }));
    assert!(is_refused || refused.is_ok_and(|kind| kind == LayerKind::Reflink));
}
