//! Inputs and artifacts in friendly and hostile workspaces.

use super::*;
use rustix::fs::RenameFlags;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::PathBuf,
    sync::atomic::AtomicBool,
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
            std::env::temp_dir().join(format!("airlock-files-{}-{count}", std::process::id()));
        fs::create_dir_all(root.join("work")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let workspace = rustix::fs::open(root.join("work"), flags, Mode::empty()).unwrap();
        Place { root, workspace }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join("work").join(path)
    }

    fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), content).unwrap();
    }

    fn put(&self, path: &str, content: &str) -> Result<(), InputError> {
        put_input(
            self.workspace.as_fd(),
            &name(path),
            &mut content.as_bytes(),
            None,
            100,
            &FileAccess::default(),
        )
    }

    fn collect(
        &self,
        wanted: &[&str],
        bounds: CollectLimits,
    ) -> (BTreeMap<PathBuf, String>, CollectReport) {
        let wanted: Vec<_> = wanted.iter().map(|path| name(path)).collect();
        let mut kept = BTreeMap::new();
        let mut keep = |mut found: CollectedFile| {
            let mut text = String::new();
            found.contents.read_to_string(&mut text).unwrap();
            assert_eq!(
                kept.insert(found.name.as_path().to_owned(), text),
                None,
                "kept twice"
            );
            Ok(())
        };
        let workspace = self.workspace.as_fd();
        let collected = collect(workspace, &wanted, bounds, &|| false, &mut keep);
        (kept, collected)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn name(path: &str) -> WorkspacePath {
    WorkspacePath::new(Path::new(path)).unwrap()
}

fn kept(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
    files
        .iter()
        .map(|(name, content)| (PathBuf::from(name), (*content).to_owned()))
        .collect()
}

fn skipped(collected: &CollectReport) -> BTreeMap<&str, &str> {
    collected
        .skipped
        .iter()
        .map(|skipped| (skipped.name.as_str(), skipped.reason.as_str()))
        .collect()
}

/// Observes the workspace in the middle of a read.
struct Watching<'a> {
    place: &'a Place,
    left: usize,
    seen: Vec<OsString>,
}

impl Read for Watching<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let entries = fs::read_dir(self.place.at("")).unwrap();
        self.seen = entries.map(|entry| entry.unwrap().file_name()).collect();
        self.left = self.left.saturating_sub(1);
        buffer[..self.left].fill(b'x');
        Ok(self.left)
    }
}

#[test]
fn an_input_has_no_name_before_it_is_whole_so_that_a_crash_leaves_nothing() {
    let place = Place::new();
    for there in [None, Some("in"), Some("in")] {
        let mut source = Watching {
            place: &place,
            left: 3,
            seen: Vec::new(),
        };
        put_input(
            place.workspace.as_fd(),
            &name("in"),
            &mut source,
            None,
            100,
            &FileAccess::default(),
        )
        .unwrap();
        assert_eq!(
            source.seen,
            there.map(OsString::from).into_iter().collect::<Vec<_>>()
        );
        assert_eq!(fs::read_to_string(place.at("in")).unwrap(), "xxx");
        assert_eq!(fs::read_dir(place.at("")).unwrap().count(), 1);
    }
}

#[test]
fn an_input_arrives_readable_with_its_folders() {
    let place = Place::new();
    place.put("a/b/c.txt", "hello").unwrap();
    assert_eq!(fs::read(place.at("a/b/c.txt")).unwrap(), b"hello");
    assert_eq!(
        fs::metadata(place.at("a/b/c.txt"))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777,
        0o644
    );
    assert_eq!(
        fs::metadata(place.at("a/b")).unwrap().permissions().mode() & 0o7777,
        0o755
    );
    place.put("a/b/c.txt", "replaced").unwrap();
    assert_eq!(fs::read(place.at("a/b/c.txt")).unwrap(), b"replaced");
    assert_eq!(
        fs::read_dir(place.at("a/b")).unwrap().count(),
        1,
        "no draft is left"
    );
}

#[test]
fn an_input_and_the_folders_made_for_it_get_their_owner() {
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "prerequisite: root"
        );
        eprintln!("skipped: only root can give files away");
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("there")).unwrap();
    let path = name("there/made/file");
    put_input(
        place.workspace.as_fd(),
        &path,
        &mut &b"x"[..],
        Some((1234, 2345)),
        10,
        &FileAccess::default(),
    )
    .unwrap();
    let owner = |path| {
        fs::metadata(place.at(path))
            .map(|found| (found.uid(), found.gid()))
            .unwrap()
    };
    assert_eq!(owner("there/made/file"), (1234, 2345));
    assert_eq!(owner("there/made"), (1234, 2345));
    assert_eq!(owner("there"), (0, 0), "what was there keeps its owner");
}

#[test]
fn an_input_that_fails_leaves_what_was_there() {
    let place = Place::new();
    place.write("file", "old");
    let error = place.put("file", &"x".repeat(101)).unwrap_err();
    assert!(
        matches!(
            error,
            InputError::TooLarge {
                limit_bytes: 100,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(fs::read(place.at("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(place.at("")).unwrap().count(), 1);
    place.put("file", &"x".repeat(100)).unwrap();
    assert_eq!(fs::metadata(place.at("file")).unwrap().len(), 100);
}

#[test]
fn an_input_goes_through_no_link_and_replaces_only_files() {
    let place = Place::new();
    fs::create_dir(place.root.join("outside")).unwrap();
    fs::write(place.root.join("outside/canary"), "alive").unwrap();
    symlink("../outside", place.at("folder")).unwrap();
    symlink("../outside/canary", place.at("link")).unwrap();
    symlink("/", place.at("root")).unwrap();
    fs::create_dir(place.at("directory")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.at("fifo"), Mode::RWXU).unwrap();
    for path in ["folder/canary", "folder/new/x", "root/tmp/airlock-escaped"] {
        assert!(
            matches!(place.put(path, "dead"), Err(InputError::Write { .. })),
            "{path}"
        );
    }
    for path in ["link", "directory", "fifo"] {
        assert!(
            matches!(place.put(path, "dead"), Err(InputError::Obstacle { .. })),
            "{path}"
        );
    }
    assert_eq!(
        fs::read(place.root.join("outside/canary")).unwrap(),
        b"alive"
    );
    assert_eq!(fs::read_dir(place.root.join("outside")).unwrap().count(), 1);
    place.put("directory/canary", "fine").unwrap();
}

#[test]
fn wanted_files_keep_their_path_and_artifacts_are_named_below_their_folder() {
    let place = Place::new();
    for path in [
        "out/a",
        "out/deep/b",
        "single",
        "unwanted",
        ".artifacts/c",
        ".artifacts/d/e",
    ] {
        place.write(path, path);
    }
    let (files, collected) = place.collect(
        &["out", "single", "out/a", "out", "absent"],
        CollectLimits::default(),
    );
    assert_eq!(
        files,
        kept(&[
            ("out/a", "out/a"),
            ("out/deep/b", "out/deep/b"),
            ("single", "single"),
            ("c", ".artifacts/c"),
            ("d/e", ".artifacts/d/e"),
        ])
    );
    assert_eq!(skipped(&collected), [("absent", "was not there")].into());
    let bytes = files.values().map(|content| content.len() as u64).sum();
    assert_eq!(
        (collected.files, collected.bytes, collected.more_skipped),
        (5, bytes, 0)
    );
}

#[test]
fn an_empty_workspace_gives_nothing_and_complains_of_nothing() {
    assert_eq!(
        Place::new().collect(&[], CollectLimits::default()),
        (
            BTreeMap::new(),
            CollectReport {
                folder_is_kept: true,
                ..CollectReport::default()
            }
        )
    );
}

#[test]
fn links_pipes_sockets_and_devices_are_told_and_never_opened() {
    let place = Place::new();
    fs::write(place.root.join("secret"), "secret").unwrap();
    place.write("out/file", "fine");
    symlink("../../secret", place.at("out/link")).unwrap();
    symlink("..", place.at("out/parent")).unwrap();
    symlink("/proc/self/root", place.at("magic")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.at("out/fifo"), Mode::RWXU).unwrap();
    let _listener = UnixListener::bind(place.at("out/socket")).unwrap();
    symlink("out", place.at(".artifacts")).unwrap();
    let (files, collected) = place.collect(&["out"], CollectLimits::default());
    assert_eq!(files, kept(&[("out/file", "fine")]));
    assert_eq!(
        skipped(&collected),
        [
            ("out/link", "is a symbolic link"),
            ("out/parent", "is a symbolic link"),
            ("out/fifo", "is a FIFO"),
            ("out/socket", "is a socket"),
            (
                ".artifacts",
                "is not a folder, or leads through something that is none"
            ),
        ]
        .into()
    );
    for (wanted, reason) in [
        ("magic", "is a symbolic link"),
        ("magic/etc/passwd", "leads through a symbolic link"),
        ("out/link/x", "leads through a symbolic link"),
        ("out/parent/out/file", "leads through a symbolic link"),
        (
            "out/file/x",
            "is not a folder, or leads through something that is none",
        ),
    ] {
        let (files, collected) = place.collect(&[wanted], CollectLimits::default());
        assert_eq!((files.len(), skipped(&collected)[wanted]), (0, reason));
    }
    if rustix::process::geteuid().is_root() {
        let device = rustix::fs::makedev(1, 5);
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            place.at("zero"),
            FileType::CharacterDevice,
            Mode::RWXU,
            device,
        );
        if made.is_ok() {
            let (files, collected) = place.collect(&["zero"], CollectLimits::default());
            assert_eq!(
                (files.len(), skipped(&collected)["zero"]),
                (0, "is a device")
            );
        }
    }
}

#[test]
fn a_sparse_file_of_a_tebibyte_is_refused_by_its_limit() {
    let place = Place::new();
    place.write("out/small", "fine");
    File::create(place.at("out/huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let (files, collected) = place.collect(&["out"], CollectLimits::default());
    assert_eq!(files, kept(&[("out/small", "fine")]));
    let reason = "has 1099511627776 bytes, more than the 1073741824 that are kept of a file";
    assert_eq!(skipped(&collected), [("out/huge", reason)].into());
}

#[test]
fn the_sum_of_all_files_is_bounded() {
    let place = Place::new();
    for each in 0..5 {
        place.write(&format!("out/{each}"), "12345");
    }
    let (files, collected) = place.collect(
        &["out"],
        CollectLimits {
            total_bytes: 19,
            ..CollectLimits::default()
        },
    );
    assert_eq!(
        (files.len(), collected.bytes, collected.skipped.len()),
        (3, 15, 2)
    );
    assert_eq!(
        collected.skipped[0].reason,
        "has 5 bytes, and no more than 19 are kept in all"
    );
}

#[test]
fn a_file_that_grows_gives_no_more_than_it_had() {
    let place = Place::new();
    place.write("log", "12345");
    let mut text = String::new();
    let wanted = [name("log")];
    let collected = collect(
        place.workspace.as_fd(),
        &wanted,
        CollectLimits::default(),
        &|| false,
        &mut |mut found| {
            fs::write(place.at("log"), "1234567890").unwrap();
            found.contents.read_to_string(&mut text).unwrap();
            Ok(())
        },
    );
    assert_eq!((text.as_str(), collected.bytes), ("12345", 5));
}

#[test]
fn crowded_folders_end_at_the_bound() {
    let place = Place::new();
    for each in 0..300 {
        place.write(&format!("out/{each}"), "");
        symlink("x", place.at(&format!("out/link-{each}"))).unwrap();
    }
    let (files, collected) = place.collect(
        &["out"],
        CollectLimits {
            entries: 100,
            listed: 1,
            ..CollectLimits::default()
        },
    );
    assert!(files.len() <= 100);
    let last = collected.skipped.last().unwrap();
    assert_eq!(
        last.reason,
        "more than 100 entries: the rest was not looked at"
    );
    let (files, collected) = place.collect(
        &["out"],
        CollectLimits {
            files: 7,
            ..CollectLimits::default()
        },
    );
    assert_eq!(files.len(), 7);
    assert_eq!(
        collected.skipped.last().unwrap().reason,
        "7 files are kept, and no more"
    );
    let (files, collected) = place.collect(
        &["out"],
        CollectLimits {
            listed: 10,
            ..CollectLimits::default()
        },
    );
    assert_eq!(
        (files.len(), collected.skipped.len(), collected.more_skipped),
        (300, 10, 290)
    );
}

#[test]
fn deep_folders_end_at_the_bound() {
    let place = Place::new();
    fs::create_dir(place.at("out")).unwrap();
    let mut folder = open(&place.workspace, "out", OFlags::PATH | OFlags::DIRECTORY).unwrap();
    for depth in 0..300 {
        let file = open(&folder, "file", OFlags::WRONLY | OFlags::CREATE).unwrap();
        File::from(file)
            .write_all(depth.to_string().as_bytes())
            .unwrap();
        folder = make_folder(&folder, OsStr::new("d"), None).unwrap();
    }
    let (files, collected) = place.collect(
        &["out"],
        CollectLimits {
            depth: 20,
            ..CollectLimits::default()
        },
    );
    assert_eq!(files.len(), 20);
    assert_eq!(collected.skipped.len(), 1);
    assert_eq!(collected.skipped[0].reason, "lies deeper than 20 folders");
    let (files, _) = place.collect(
        &["out"],
        CollectLimits {
            depth: usize::MAX,
            ..CollectLimits::default()
        },
    );
    assert_eq!(files.len(), 63, "a longer path is no name");
}

#[test]
fn names_with_newlines_and_foreign_bytes_are_kept_as_they_are() {
    let place = Place::new();
    place.write(".artifacts/a\nb", "newline");
    fs::write(
        place
            .at(".artifacts")
            .join(OsStr::from_bytes(b"\xff\x1b[31m")),
        "bytes",
    )
    .unwrap();
    symlink("x", place.at(".artifacts/evil\n\x1b[2J")).unwrap();
    let (files, collected) = place.collect(&[], CollectLimits::default());
    let wanted: BTreeMap<_, _> = [
        (PathBuf::from("a\nb"), "newline".to_owned()),
        (
            PathBuf::from(OsStr::from_bytes(b"\xff\x1b[31m")),
            "bytes".to_owned(),
        ),
    ]
    .into();
    assert_eq!(files, wanted);
    assert_eq!(
        skipped(&collected),
        [("evil\\n\\u{1b}[2J", "is a symbolic link")].into()
    );
}

#[test]
fn what_the_keeper_refuses_is_told_with_its_reason() {
    let place = Place::new();
    place.write("a", "");
    let collected = collect(
        place.workspace.as_fd(),
        &[name("a")],
        CollectLimits::default(),
        &|| false,
        &mut |_| Err("no room".to_owned()),
    );
    assert_eq!(
        (skipped(&collected), collected.files),
        ([("a", "no room")].into(), 0)
    );
}

#[test]
fn of_wanted_paths_only_the_outermost_are_looked_at_in_their_order() {
    let wanted: Vec<_> = ["b/c", "a-b", "a/x", "b", "a", "a-b", "a/x/y", "ab"]
        .map(name)
        .into();
    let outermost: Vec<_> = outermost(&wanted).collect();
    assert_eq!(outermost, ["a-b", "b", "a", "ab"].map(Path::new));
}

#[test]
fn once_it_is_cancelled_nothing_more_is_kept_and_that_is_told() {
    let place = Place::new();
    for at in 0..9 {
        place.write(&format!("out/{at}"), "x");
    }
    let count = std::cell::Cell::new(0);
    let mut keep = |_: CollectedFile| {
        count.set(count.get() + 1);
        Ok(())
    };
    let (wanted, is_cancelled) = ([name("out"), name("other")], || count.get() == 3);
    let workspace = place.workspace.as_fd();
    let bounds = CollectLimits::default();
    let collected = collect(workspace, &wanted, bounds, &is_cancelled, &mut keep);
    assert_eq!((collected.files, collected.skipped.len()), (3, 1));
    assert!(collected.skipped[0].reason.starts_with("cancelled"));
    assert!(!collected.folder_is_kept);
    let collected = collect(workspace, &wanted, bounds, &|| false, &mut |_| Ok(()));
    assert_eq!(collected.files, 9, "the control: all of them are there");
}

/// Swaps two names until told to stop.
fn swap(place: &Place, one: &str, other: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let here = &place.workspace;
        rustix::fs::renameat_with(here, one, here, other, RenameFlags::EXCHANGE).unwrap();
    }
}

#[test]
fn files_and_folders_swapped_for_links_meanwhile_never_lead_out() {
    let place = Place::new();
    fs::create_dir(place.root.join("outside")).unwrap();
    fs::write(place.root.join("outside/file"), "secret").unwrap();
    place.write("folder/file", "fine");
    place.write("file", "fine");
    symlink("../outside", place.at("other-folder")).unwrap();
    symlink("../outside/file", place.at("other-file")).unwrap();
    let (stop, mut read) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| swap(&place, "folder", "other-folder", &stop));
        scope.spawn(|| swap(&place, "file", "other-file", &stop));
        for _ in 0..3000 {
            let (files, _) =
                place.collect(&["folder", "folder/file", "file"], CollectLimits::default());
            assert!(files.values().all(|content| content == "fine"), "{files:?}");
            read += files.len();
            let _ = place.put("folder/put", "fine");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(
        read > 0,
        "the control: what is inside was read now and then"
    );
    assert_eq!(
        fs::read_dir(place.root.join("outside")).unwrap().count(),
        1,
        "nothing was put outside"
    );
}

#[test]
fn only_a_folder_that_is_new_and_ours_is_given_away() {
    let place = Place::new();
    fs::create_dir(place.at("new")).unwrap();
    place.write("used/file", "x");
    let is_new = |path| {
        is_new(&open(&place.workspace, path, OFlags::RDONLY | OFlags::DIRECTORY).unwrap()).unwrap()
    };
    assert!(is_new("new"));
    assert!(!is_new("used"), "somebody has put another folder there");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(place.at("new"), Some(4242), None).unwrap();
        assert!(!is_new("new"), "it is somebody else's");
    }
}
