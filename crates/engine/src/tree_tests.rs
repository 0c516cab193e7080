//! Files in friendly and hostile workspaces, accessed from outside.

use super::*;
use rustix::fs::RenameFlags;
use std::{
    fs,
    io::Read,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// A workspace, and a file beside it that must not be touched.
struct Place {
    root: PathBuf,
    tree: Tree,
}

const SECRET: &str = "nobody's business";

impl Place {
    fn new() -> Place {
        Place::below(std::env::temp_dir())
    }

    fn below(folder: PathBuf) -> Place {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = folder.join(format!("airlock-tree-{}-{count}", std::process::id()));
        fs::create_dir_all(root.join("work")).unwrap();
        fs::create_dir_all(root.join("outside/folder")).unwrap();
        fs::write(root.join("outside/secret"), SECRET).unwrap();
        fs::write(root.join("outside/folder/secret"), SECRET).unwrap();
        let tree = Tree::new(handle(&root.join("work")), None, 1000);
        Place { root, tree }
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join("work").join(path)
    }

    fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), content).unwrap();
    }

    fn read(&self, path: &str) -> TreeResult<String> {
        let (file, entry) = self.tree.open(path.as_ref())?;
        let mut text = String::new();
        file.take(entry.size_bytes)
            .read_to_string(&mut text)
            .unwrap();
        Ok(text)
    }

    fn put(&self, path: &str, content: &str, parents: bool) -> TreeResult<WorkspaceEntry> {
        let mut upload = self.tree.put(path.as_ref(), parents)?;
        content
            .as_bytes()
            .chunks(7)
            .try_for_each(|chunk| upload.write(chunk))?;
        upload.publish()
    }

    fn names(&self, path: &str) -> Vec<OsString> {
        let listing = self.tree.list(path.as_ref(), None, 100).unwrap();
        listing
            .entries
            .into_iter()
            .map(|entry| entry.name)
            .collect()
    }

    fn outside_is_whole(&self) {
        for secret in ["outside/secret", "outside/folder/secret"] {
            assert_eq!(fs::read_to_string(self.root.join(secret)).unwrap(), SECRET);
        }
        assert_eq!(fs::read_dir(self.root.join("outside")).unwrap().count(), 2);
        assert_eq!(
            fs::read_dir(self.root.join("outside/folder"))
                .unwrap()
                .count(),
            1
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Deeper than the library can remove.
        let removed = std::process::Command::new("rm")
            .arg("-rf")
            .arg(&self.root)
            .status();
        assert!(removed.is_ok_and(|status| status.success()));
    }
}

fn handle(path: &Path) -> OwnedFd {
    rustix::fs::open(
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap()
}

fn bounds() -> CopyLimits {
    CopyLimits {
        entries: 1000,
        bytes: 10_000,
        depth: 8,
        listed: 4,
    }
}

#[test]
fn files_are_written_whole_read_listed_and_removed() {
    let place = Place::new();
    let entry = place.put("a/b/file", "contents of it", true).unwrap();
    assert_eq!(
        (entry.kind, entry.size_bytes, entry.mode),
        (EntryKind::File, 14, 0o644)
    );
    assert_eq!(place.read("a/b/file").unwrap(), "contents of it");
    assert_eq!(place.read("/workspace/a/b/file").unwrap(), "contents of it");
    place.put("a/b/file", "anew", false).unwrap();
    assert_eq!(place.read("a/b/file").unwrap(), "anew");
    assert!(matches!(
        place.put("no/such/file", "", false),
        Err(TreeError::Missing { .. })
    ));
    assert!(matches!(
        place.put("a/b", "", false),
        Err(TreeError::Kind {
            what: "a folder",
            ..
        })
    ));
    assert!(matches!(
        place.read("a"),
        Err(TreeError::Kind {
            what: "a folder",
            ..
        })
    ));
    assert!(matches!(place.read("none"), Err(TreeError::Missing { .. })));
    place.tree.make_folder("c".as_ref(), false).unwrap();
    assert!(matches!(
        place.tree.make_folder("c".as_ref(), false),
        Err(TreeError::Exists { .. })
    ));
    place.tree.make_folder("c/d/e".as_ref(), true).unwrap();
    place.tree.make_folder("c/d/e".as_ref(), true).unwrap();
    assert_eq!(place.names(""), ["a", "c"]);
    assert_eq!(
        place.tree.stat("".as_ref()).unwrap().kind,
        EntryKind::Folder
    );
    assert!(matches!(
        place.tree.remove("c".as_ref(), false),
        Err(TreeError::NotEmpty { .. })
    ));
    place.tree.remove("c".as_ref(), true).unwrap();
    place.tree.remove("a/b/file".as_ref(), false).unwrap();
    place.tree.remove("a/b".as_ref(), false).unwrap();
    assert_eq!(place.names(""), ["a"]);
    for whole in ["", ".", "/workspace"] {
        assert!(matches!(
            place.tree.remove(whole.as_ref(), true),
            Err(TreeError::Path { .. })
        ));
    }
}

#[test]
fn nobody_sees_half_a_file_and_nothing_stays_of_one() {
    let place = Place::new();
    place.write("file", "old");
    let mut upload = place.tree.put("file".as_ref(), false).unwrap();
    upload.write(b"half").unwrap();
    assert_eq!(place.read("file").unwrap(), "old");
    drop(upload);
    let long = "x".repeat(1001);
    assert!(matches!(
        place.put("file", &long, false),
        Err(TreeError::TooLarge {
            limit_bytes: 1000,
            ..
        })
    ));
    assert_eq!(
        (place.read("file").unwrap(), place.names("")),
        ("old".to_owned(), vec!["file".into()])
    );
    place.put("file", &long[..1000], false).unwrap();
}

#[test]
fn paths_lead_nowhere_else() {
    let place = Place::new();
    for path in [
        "../outside/secret",
        "/etc/passwd",
        "a/../../outside/secret",
        "a\0b",
        "/workspace/../etc",
    ] {
        assert!(
            matches!(place.read(path), Err(TreeError::Path { .. })),
            "{path:?}"
        );
        assert!(
            matches!(place.put(path, "x", true), Err(TreeError::Path { .. })),
            "{path:?}"
        );
        assert!(
            matches!(
                place.tree.remove(path.as_ref(), true),
                Err(TreeError::Path { .. })
            ),
            "{path:?}"
        );
    }
    place.outside_is_whole();
}

#[test]
fn links_are_seen_and_removed_and_never_followed() {
    let place = Place::new();
    symlink(place.root.join("outside"), place.at("folder")).unwrap();
    symlink("../outside/secret", place.at("file")).unwrap();
    symlink("/proc/self/root", place.at("root")).unwrap();
    for path in ["folder/secret", "file", "root/etc/passwd"] {
        assert!(
            matches!(place.read(path), Err(TreeError::Link { .. })),
            "{path}: {:?}",
            place.read(path)
        );
    }
    let refused = place.put("folder/new", "x", true);
    assert!(
        matches!(
            refused,
            Err(TreeError::Link { .. } | TreeError::Kind { .. })
        ),
        "{refused:?}"
    );
    assert!(place.put("file", "x", true).is_err());
    assert!(place.tree.list("folder".as_ref(), None, 10).is_err());
    assert!(place.tree.make_folder("folder/new".as_ref(), true).is_err());
    let seen = place.tree.stat("file".as_ref()).unwrap();
    assert_eq!(
        (seen.kind, seen.target),
        (EntryKind::Link, Some("../outside/secret".into()))
    );
    assert!(place.tree.remove("folder/secret".as_ref(), true).is_err());
    for link in ["folder", "file", "root"] {
        place.tree.remove(link.as_ref(), true).unwrap();
    }
    assert!(place.names("").is_empty());
    place.outside_is_whole();
}

#[test]
fn special_files_are_neither_opened_nor_waited_for() {
    let place = Place::new();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.at("fifo"),
        FileType::Fifo,
        Mode::RWXU,
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(place.at("socket")).unwrap();
    for (name, what) in [("fifo", "a FIFO"), ("socket", "a socket")] {
        assert!(
            matches!(place.read(name), Err(TreeError::Kind { what: found, .. }) if found == what)
        );
        assert!(
            matches!(place.put(name, "x", false), Err(TreeError::Kind { what: found, .. }) if found == what)
        );
        assert_eq!(
            place.tree.stat(name.as_ref()).unwrap().kind,
            EntryKind::Special
        );
        place.tree.remove(name.as_ref(), false).unwrap();
    }
    assert!(place.names("").is_empty());
}

#[test]
fn names_of_any_bytes_are_listed_in_order_and_page_by_page() {
    let place = Place::new();
    let names: [&[u8]; 5] = [b"\x01", b"a\nb", b"b", b"\xff\xfe", "ü".as_bytes()];
    for name in names {
        fs::write(place.at(OsStr::from_bytes(name)), "x").unwrap();
    }
    let mut sorted: Vec<_> = names.map(|name| OsStr::from_bytes(name).to_owned()).into();
    sorted.sort();
    assert_eq!(place.names(""), sorted);
    let first = place.tree.list("".as_ref(), None, 3).unwrap();
    let last = &first.entries[2].name;
    let second = place.tree.list("".as_ref(), Some(last), 3).unwrap();
    assert_eq!(
        (
            first.entries.len(),
            first.more,
            second.entries.len(),
            second.more
        ),
        (3, true, 2, false)
    );
    assert_eq!(second.entries[0].name, sorted[3]);
    for name in &sorted {
        assert_eq!(place.tree.open(name.as_ref()).unwrap().1.size_bytes, 1);
        place.tree.remove(name.as_ref(), false).unwrap();
    }
}

#[test]
fn a_folder_ten_thousand_deep_is_removed_with_few_handles() {
    // In memory, as workspaces are: on a disk it takes half a minute to create.
    let place = Place::below("/dev/shm".into());
    fs::create_dir(place.at("top")).unwrap();
    let mut folder = handle(&place.at("top"));
    for _ in 0..10_000 {
        rustix::fs::mkdirat(&folder, "d", Mode::RWXU).unwrap();
        rustix::fs::symlinkat(place.root.join("outside"), &folder, "link").unwrap();
        folder = files::open(&folder, "d", OFlags::PATH | OFlags::DIRECTORY).unwrap();
    }
    assert!(place.tree.list("top".as_ref(), None, 10).is_ok());
    place.tree.remove("top".as_ref(), true).unwrap();
    assert!(place.names("").is_empty());
    place.outside_is_whole();
}

#[test]
fn a_folder_that_turns_into_a_link_all_the_time_leads_nobody_out() {
    let place = Place::new();
    symlink(place.root.join("outside/folder"), place.at("link")).unwrap();
    let stop = AtomicBool::new(false);
    let work = handle(&place.root.join("work"));
    let mut reached = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                _ = rustix::fs::renameat_with(
                    &work,
                    "folder",
                    &work,
                    "link",
                    RenameFlags::EXCHANGE,
                );
            }
        });
        for _ in 0..300 {
            fs::create_dir_all(place.at("folder")).ok();
            // Whatever the answer: nothing outside is read, and nothing is created or removed
            // there.
            for name in ["folder", "link"] {
                assert!(place.read(&format!("{name}/secret")).is_err());
                reached += usize::from(place.put(&format!("{name}/new"), "x", false).is_ok());
                _ = place.tree.remove(format!("{name}/secret").as_ref(), true);
                _ = place.tree.remove(format!("{name}/new").as_ref(), true);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reached > 0, "the real folder was written to");
    for name in ["folder", "link"] {
        _ = place.tree.remove(name.as_ref(), true);
    }
    assert!(place.names("").is_empty());
    place.outside_is_whole();
}

#[test]
fn a_copy_has_files_and_links_and_tells_what_it_has_not() {
    let (from, to) = (Place::new(), Place::new());
    from.write("a/file", "text");
    fs::set_permissions(from.at("a/file"), fs::Permissions::from_mode(0o6755)).unwrap();
    symlink(from.root.join("outside/secret"), from.at("a/link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.at("fifo"),
        FileType::Fifo,
        Mode::RWXU,
        0,
    )
    .unwrap();
    fs::File::create(from.at("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    from.write("1/2/3/4/5/6/7/8/9/file", "deep");
    to.write("a/file", "in the way");
    let copied = from.tree.copy_into(&to.tree, bounds()).unwrap();
    assert_eq!(to.read("a/file").unwrap(), "text");
    assert_eq!(
        fs::metadata(to.at("a/file")).unwrap().mode() & 0o7777,
        0o755
    );
    assert_eq!(
        fs::read_link(to.at("a/link")).unwrap(),
        from.root.join("outside/secret")
    );
    let modified = |place: &Place| {
        fs::metadata(place.at("a/file"))
            .unwrap()
            .modified()
            .unwrap()
    };
    assert_eq!(modified(&from), modified(&to));
    let mut left_out = copied.left_out.clone();
    left_out.sort();
    let told = [
        "`1/2/3/4/5/6/7/8`: lies deeper than 8 folders",
        "`fifo`: is a FIFO",
        "`huge`: has 1099511627776 bytes",
    ];
    assert_eq!(left_out.len(), told.len(), "{left_out:?}");
    assert!(
        left_out
            .iter()
            .zip(told)
            .all(|(left_out, told)| left_out.starts_with(told)),
        "{left_out:?}"
    );
    assert_eq!(copied.bytes, 4);
    from.outside_is_whole();
}

#[test]
fn a_copy_is_bounded_and_says_so() {
    let (from, to) = (Place::new(), Place::new());
    for number in 0..20 {
        from.write(&format!("{number}"), "0123456789");
    }
    let copied = from
        .tree
        .copy_into(
            &to.tree,
            CopyLimits {
                entries: 5,
                ..bounds()
            },
        )
        .unwrap();
    assert_eq!(
        (copied.entries, to.names("").len(), copied.left_out.len()),
        (5, 5, 1)
    );
    let copied = from
        .tree
        .copy_into(
            &to.tree,
            CopyLimits {
                bytes: 100,
                ..bounds()
            },
        )
        .unwrap();
    assert_eq!(
        (copied.bytes, copied.left_out.len(), copied.more_left_out),
        (100, 4, 6)
    );
}

#[test]
fn protected_names_of_a_mounted_workspace_are_changed_by_nobody_unless_allowed() {
    let place = Place::new();
    place.write(".git/hooks/pre-commit", "old");
    place.write(".git/index", "old");
    place.write(".vscode/tasks.json", "old");
    let rights = |allowed: &[&str]| {
        let request = spec::RunRequest {
            command: vec!["true".into()],
            workspace: Some(place.root.join("work")),
            allow_protected: allowed.iter().map(PathBuf::from).collect(),
            ..spec::RunRequest::default()
        };
        let spec = spec::Policy::default().admit(request).unwrap().sandbox;
        FileAccess::of(&spec, handle(&place.root.join("work")).as_fd()).unwrap()
    };
    let tree = |rights| Tree::new(handle(&place.root.join("work")), None, 1000).with_access(rights);
    let put = |tree: &Tree, path: &str| {
        tree.put(path.as_ref(), true)
            .and_then(Upload::publish)
            .map(drop)
    };
    let guarded = tree(rights(&[]));
    let all = [
        ".git",
        ".git/hooks",
        ".git/hooks/x",
        ".git/config",
        ".vscode/y/z",
        ".bashrc",
        "sub/.git/config",
    ];
    for path in all {
        let refusals = [
            put(&guarded, path),
            guarded.make_folder(path.as_ref(), true),
            guarded.remove(path.as_ref(), true),
            guarded.remove(path.as_ref(), false),
        ];
        for refused in refusals {
            assert!(
                matches!(refused, Err(TreeError::Protected { .. })),
                "{path}: {refused:?}"
            );
        }
    }
    assert_eq!(place.read(".git/hooks/pre-commit").unwrap(), "old");
    // Other names can be changed, also beside them.
    for path in ["HEAD", ".gitignore", "a/hooks/x"] {
        put(&guarded, path).unwrap();
        guarded.remove(path.as_ref(), false).unwrap();
    }
    let lifted = tree(rights(&[".git/hooks", ".bashrc"]));
    put(&lifted, ".git/hooks/x").unwrap();
    put(&lifted, ".bashrc").unwrap();
    assert!(put(&lifted, ".git/config").is_err());
    lifted.remove(".git/hooks".as_ref(), true).unwrap();
    put(&tree(FileAccess::default()), ".vscode/x").unwrap();
}

#[test]
fn a_read_only_workspace_is_not_written_from_outside_either() {
    let place = Place::new();
    place.write("file", "old");
    let tree = |read_only_workspace| {
        let request = spec::RunRequest {
            command: vec!["true".into()],
            workspace: Some(place.root.join("work")),
            read_only_workspace,
            ..spec::RunRequest::default()
        };
        let spec = spec::Policy::default().admit(request).unwrap().sandbox;
        let rights = FileAccess::of(&spec, handle(&place.root.join("work")).as_fd()).unwrap();
        Tree::new(handle(&place.root.join("work")), None, 1000).with_access(rights)
    };
    for refused in [
        tree(true).put("new".as_ref(), true).map(drop),
        tree(true).make_folder("folder".as_ref(), true),
        tree(true).remove("file".as_ref(), false),
    ] {
        assert!(
            matches!(refused, Err(TreeError::Protected { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(place.read("file").unwrap(), "old");
    tree(false).remove("file".as_ref(), false).unwrap();
}

#[test]
fn in_a_users_folder_root_does_what_the_user_may_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "only root acts for others"
        );
        println!("NOT TESTED: only root acts for others");
        return;
    }
    let place = Place::new();
    let work = place.root.join("work");
    place.write("secret", SECRET);
    place.write("rootdir/run.sh", "good");
    place.write("own/file", "mine");
    fs::set_permissions(place.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(
        place.at("rootdir/run.sh"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    for path in [&work, &place.at("own"), &place.at("own/file")] {
        std::os::unix::fs::chown(path, Some(4242), Some(4243)).unwrap();
    }
    let rights = rights_in(&work);
    let tree = Tree::new(handle(&work), Some((4242, 4243)), 1000).with_access(rights.clone());
    let put = |path: &str| {
        tree.put(path.as_ref(), true)
            .and_then(Upload::publish)
            .map(drop)
    };
    let denied = |answer: TreeResult<()>| match answer {
        Err(TreeError::Other { source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::PermissionDenied)
        }
        other => panic!("{other:?}"),
    };
    denied(tree.open("secret".as_ref()).map(drop));
    denied(put("rootdir/run.sh"));
    denied(put("rootdir/new/file"));
    denied(tree.make_folder("rootdir/folder".as_ref(), false));
    denied(tree.remove("rootdir/run.sh".as_ref(), false));
    denied(tree.remove("rootdir".as_ref(), true));
    assert_eq!(
        fs::read_to_string(place.at("rootdir/run.sh")).unwrap(),
        "good"
    );
    // What the user may do is done, and belongs to the user.
    assert_eq!(
        tree.open("rootdir/run.sh".as_ref()).unwrap().1.size_bytes,
        4
    );
    put("own/new/file").unwrap();
    for path in ["own/new", "own/new/file"] {
        let found = fs::metadata(place.at(path)).unwrap();
        assert_eq!((found.uid(), found.gid()), (4242, 4243), "{path}");
    }
    assert_eq!(
        fs::metadata(place.at("own/new/file")).unwrap().mode() & 0o777,
        0o644
    );
    tree.remove("own/new".as_ref(), true).unwrap();
    let name = |path: &str| WorkspacePath::new(Path::new(path)).unwrap();
    let input = |path: &str| {
        let owner = Some((4242, 4243));
        files::put_input(
            handle(&work).as_fd(),
            &name(path),
            &mut &b"in"[..],
            owner,
            10,
            &rights,
        )
    };
    assert!(input("rootdir/run.sh").is_err() && input("rootdir/in").is_err());
    input("own/in").unwrap();
    // Artifacts.
    let mut kept = Vec::new();
    let wanted = ["secret", "own/file"].map(name);
    let collected = rights.collect(
        handle(&work).as_fd(),
        &wanted,
        files::CollectLimits::default(),
        &|| false,
        &mut |found| {
            kept.push(found.name.as_path().to_owned());
            Ok(())
        },
    );
    assert_eq!(kept, [PathBuf::from("own/file")]);
    assert_eq!(collected.unwrap().skipped[0].name, "secret");
    // A copy for another sandbox.
    let copy = Place::new();
    let copied = tree.copy_into(&copy.tree, bounds()).unwrap();
    assert!(
        copied
            .left_out
            .iter()
            .any(|left_out| left_out.starts_with("`secret`")),
        "{copied:?}"
    );
    assert!(copy.read("secret").is_err());
    assert_eq!(copy.read("own/file").unwrap(), "mine");
    // This thread is still root.
    assert_eq!(fs::read_to_string(place.at("secret")).unwrap(), SECRET);
}

fn rights_in(work: &Path) -> FileAccess {
    let request = spec::RunRequest {
        command: vec!["true".into()],
        workspace: Some(work.to_owned()),
        ..spec::RunRequest::default()
    };
    let spec = spec::Policy::default().admit(request).unwrap().sandbox;
    FileAccess::of(&spec, handle(work).as_fd()).unwrap()
}

#[test]
fn in_roots_folder_root_reads_and_changes_nothing_that_others_closed() {
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "only root has a folder of root's"
        );
        println!("NOT TESTED: only root has a folder of root's");
        return;
    }
    let place = Place::new();
    let work = place.root.join("work");
    place.write("private", SECRET);
    place.write("theirs/file", "theirs");
    place.write("own", "mine");
    fs::set_permissions(place.at("private"), fs::Permissions::from_mode(0o600)).unwrap();
    for path in ["private", "theirs", "theirs/file"] {
        std::os::unix::fs::chown(place.at(path), Some(4242), Some(4243)).unwrap();
    }
    let rights = rights_in(&work);
    let tree = Tree::new(handle(&work), Some((0, 0)), 1000).with_access(rights.clone());
    let put = |path: &str| {
        tree.put(path.as_ref(), true)
            .and_then(Upload::publish)
            .map(drop)
    };
    let denied = |answer: TreeResult<()>| match answer {
        Err(TreeError::Other { source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::PermissionDenied)
        }
        other => panic!("{other:?}"),
    };
    denied(tree.open("private".as_ref()).map(drop));
    denied(put("theirs/new"));
    denied(tree.remove("theirs/file".as_ref(), false));
    // What everybody may read, and root's own file, are as before.
    assert_eq!(tree.open("theirs/file".as_ref()).unwrap().1.size_bytes, 6);
    assert_eq!(tree.open("own".as_ref()).unwrap().1.size_bytes, 4);
    put("new").unwrap();
    tree.remove("new".as_ref(), false).unwrap();
    let mut kept = Vec::new();
    let wanted = ["private", "own"].map(|path| WorkspacePath::new(Path::new(path)).unwrap());
    let collected = rights.collect(
        handle(&work).as_fd(),
        &wanted,
        files::CollectLimits::default(),
        &|| false,
        &mut |found| {
            kept.push(found.name.as_path().to_owned());
            Ok(())
        },
    );
    assert_eq!(
        (kept, collected.unwrap().skipped.len()),
        (vec![PathBuf::from("own")], 1)
    );
    let copy = Place::new();
    tree.copy_into(&copy.tree, bounds()).unwrap();
    assert!(copy.read("private").is_err() && copy.read("own").is_ok());
    assert_eq!(
        fs::read_to_string(place.at("private")).unwrap(),
        SECRET,
        "this thread is root as before"
    );
}
