use crate::{Dir, DraftDir, Lookup, RemoveError, RemoveOptions, WalkBounds, WalkError};
use rustix::{
    fs::{FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    fs, io,
    io::{Read, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

const OURS: Mode = Mode::RUSR.union(Mode::WUSR);

/// A folder of the test's own: `top` to work in, and beside it what must stay as it is.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("airlock-fs-{}-{count}", std::process::id());
        let place = Place(std::env::temp_dir().join(name));
        fs::create_dir_all(place.at("top")).unwrap();
        fs::create_dir_all(place.at("outside/deep")).unwrap();
        fs::write(place.at("outside/secret"), "secret").unwrap();
        fs::write(place.at("outside/deep/secret"), "secret").unwrap();
        place
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    fn top(&self) -> Dir {
        Dir::open(self.at("top")).unwrap()
    }

    fn names(&self, path: &str) -> BTreeSet<String> {
        let entries = Dir::open(self.at(path)).unwrap().entries().unwrap();
        entries
            .map(|entry| entry.unwrap().name.into_string().unwrap())
            .collect()
    }

    fn assert_outside_is_whole(&self) {
        let found = ["outside/secret", "outside/deep/secret"].map(|path| fs::read(self.at(path)));
        assert!(
            found
                .iter()
                .all(|bytes| bytes.as_deref().is_ok_and(|bytes| bytes == b"secret"))
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<Errno> {
    Errno::from_io_error(&result.unwrap_err())
}

#[test]
fn no_link_on_the_way_or_at_the_end_is_followed() {
    let place = Place::new();
    let top = place.top();
    fs::create_dir(place.at("top/real")).unwrap();
    fs::write(place.at("top/real/file"), "plain").unwrap();
    symlink("real", place.at("top/inner")).unwrap();
    symlink(place.at("outside"), place.at("top/outer")).unwrap();
    symlink("real/file", place.at("top/to_file")).unwrap();
    let mut text = String::new();
    top.read_file("real/file")
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "plain", "the control");
    for path in ["inner/file", "outer/secret", "to_file"] {
        assert_eq!(errno(top.read_file(path)), Some(Errno::LOOP), "{path}");
    }
    for path in ["inner", "outer"] {
        let refused = [errno(top.open_dir(path)), errno(top.locate_dir(path))];
        assert!(
            refused
                .iter()
                .all(|errno| matches!(errno, Some(Errno::LOOP | Errno::NOTDIR))),
            "{path}: {refused:?}"
        );
    }
    assert_eq!(errno(top.create_file("outer/new", OURS)), Some(Errno::LOOP));
    assert_eq!(errno(top.create_file("to_file", OURS)), Some(Errno::EXIST));
    assert!(top.create_dir("outer/new", Mode::RWXU).is_err());
    assert!(top.remove_file("outer/secret").is_err());
    assert!(top.stat("outer/secret").is_err());
    place.assert_outside_is_whole();
}

#[test]
fn nothing_leads_out_of_the_folder() {
    let place = Place::new();
    let top = place.top();
    fs::create_dir(place.at("top/a")).unwrap();
    let absolute = place.at("outside/secret");
    for path in [
        Path::new("../outside/secret"),
        Path::new("a/../../outside/secret"),
        &absolute,
    ] {
        for lookup in [
            Lookup::NoLinks,
            Lookup::NoLinksOneMount,
            Lookup::LinksBeneath,
        ] {
            let opened = top.open_at(path, OFlags::RDONLY, Mode::empty(), lookup);
            assert_eq!(
                errno(opened),
                Some(Errno::XDEV),
                "{} {lookup:?}",
                path.display()
            );
        }
        assert!(top.stat(path).is_err(), "{}", path.display());
        assert!(top.remove_file(path).is_err(), "{}", path.display());
        assert!(top.rename("a", &top, path).is_err(), "{}", path.display());
        assert!(top.remove_tree(path, RemoveOptions::default()).is_err());
    }
    for name in ["", ".", "..", "a/.."] {
        assert!(top.stat(name).is_err(), "{name}");
        assert!(top.create_dir(name, Mode::RWXU).is_err(), "{name}");
        assert!(
            top.remove_tree(name, RemoveOptions::default()).is_err(),
            "{name}"
        );
    }
    place.assert_outside_is_whole();
}

#[test]
fn links_are_followed_only_where_a_lookup_says_so() {
    let place = Place::new();
    let top = place.top();
    fs::write(place.at("top/file"), "").unwrap();
    symlink("file", place.at("top/inner")).unwrap();
    symlink("/file", place.at("top/absolute")).unwrap();
    symlink("../outside/secret", place.at("top/outer")).unwrap();
    let open = |name, lookup| top.open_at(name, OFlags::RDONLY, Mode::empty(), lookup);
    assert!(open("inner", Lookup::LinksBeneath).is_ok());
    assert_eq!(
        errno(open("absolute", Lookup::LinksBeneath)),
        Some(Errno::XDEV)
    );
    assert_eq!(
        errno(open("outer", Lookup::LinksBeneath)),
        Some(Errno::XDEV)
    );
    assert!(open("inner", Lookup::LinksInRoot).is_ok());
    assert!(open("absolute", Lookup::LinksInRoot).is_ok());
    assert_eq!(
        errno(open("outer", Lookup::LinksInRoot)),
        Some(Errno::NOENT)
    );
}

#[test]
fn status_is_that_of_the_link_itself() {
    let place = Place::new();
    let top = place.top();
    fs::create_dir(place.at("top/a")).unwrap();
    symlink("nowhere", place.at("top/a/link")).unwrap();
    let kind = |path: &str| {
        top.stat(path)
            .unwrap()
            .map(|stat| FileType::from_raw_mode(stat.st_mode))
    };
    assert_eq!(kind("a/link"), Some(FileType::Symlink));
    assert_eq!(kind("a"), Some(FileType::Directory));
    assert_eq!(kind("absent"), None);
    assert_eq!(kind("absent/below"), None);
    assert_eq!(top.read_link("a/link").unwrap(), Path::new("nowhere"));
    assert!(top.is_entry("a", top.open_dir("a").unwrap()).unwrap());
    assert!(!top.is_entry("a", &top).unwrap());
}

#[test]
fn a_new_name_replaces_nothing() {
    let place = Place::new();
    let top = place.top();
    for name in ["one", "two"] {
        fs::write(place.at("top").join(name), name).unwrap();
        fs::create_dir(place.at("top").join(format!("{name}.d"))).unwrap();
    }
    for (from, to) in [("one", "two"), ("one.d", "two.d"), ("one", "two.d")] {
        assert_eq!(errno(top.rename_new(from, &top, to)), Some(Errno::EXIST));
        assert_eq!(errno(top.link("one", &top, to)), Some(Errno::EXIST));
    }
    top.rename_new("one", &top, "three").unwrap();
    top.rename("three", &top, "two").unwrap();
    assert_eq!(fs::read(place.at("top/two")).unwrap(), b"one");
    assert!(top.remove_file("two").unwrap());
    assert!(
        !top.remove_file("two").unwrap(),
        "that it is gone is no error"
    );
    assert!(top.remove_dir("two.d").unwrap());
    assert!(!top.remove_dir("two.d").unwrap());
    let (_, created) = top.ensure_dir("two.d", Mode::RWXU).unwrap();
    assert!(created);
    let (_, created) = top.ensure_dir("two.d", Mode::RWXU).unwrap();
    assert!(!created);
}

#[test]
fn a_replaced_file_is_the_old_one_or_the_new_one() {
    let place = Place::new();
    let top = place.top();
    let read = || fs::read_to_string(place.at("top/name")).unwrap();
    top.replace("name", OURS, |file| file.write_all(b"old"))
        .unwrap();
    let failed = top.replace("name", OURS, |file| {
        file.write_all(b"half")?;
        assert_eq!(read(), "old", "nobody sees it yet");
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(read(), "old");
    assert_eq!(
        place.names("top"),
        BTreeSet::from(["name".to_owned()]),
        "nothing is left"
    );
    top.replace("name", OURS, |file| file.write_all(b"new"))
        .unwrap();
    assert_eq!(read(), "new");
    let taken = top.create_whole("name", OURS, |file| file.write_all(b"other"));
    assert_eq!(errno(taken), Some(Errno::EXIST));
    assert_eq!(read(), "new");
    assert_eq!(place.names("top"), BTreeSet::from(["name".to_owned()]));
}

#[test]
fn what_a_link_points_at_is_not_replaced_and_left_drafts_are_in_nobodys_way() {
    let place = Place::new();
    let top = place.top();
    symlink("../outside/secret", place.at("top/name")).unwrap();
    let pid = std::process::id();
    let left: Vec<_> = (0..200)
        .map(|count| top.draft(format!(".new-{pid}-{count}"), OURS).unwrap())
        .collect();
    top.replace("name", OURS, |file| file.write_all(b"ours"))
        .unwrap();
    assert_eq!(fs::read(place.at("top/name")).unwrap(), b"ours");
    assert!(
        !top.sweep_draft(left[0].name()).unwrap(),
        "its writer lives"
    );
    drop(left);
    fs::write(place.at("top/.new-dead"), "").unwrap();
    assert!(top.sweep_draft(".new-dead").unwrap());
    assert!(!top.sweep_draft(".new-dead").unwrap());
    assert_eq!(place.names("top").len(), 1);
    place.assert_outside_is_whole();
}

fn walked(top: &Dir, bounds: WalkBounds) -> (BTreeSet<PathBuf>, Vec<WalkError>) {
    let (mut paths, mut errors) = (BTreeSet::new(), Vec::new());
    let mut walk = top.walk(bounds).unwrap();
    while let Some(found) = walk.next() {
        match found {
            Ok(entry) => {
                let parent = walk.parent().unwrap();
                assert!(parent.stat(entry.name()).unwrap().is_some());
                paths.insert(entry.path);
            }
            Err(error) => errors.push(error),
        }
    }
    (paths, errors)
}

#[test]
fn a_walk_sees_everything_within_its_bounds_and_follows_no_link() {
    let place = Place::new();
    let top = place.top();
    fs::create_dir_all(place.at("top/a/b/c")).unwrap();
    fs::write(place.at("top/a/b/c/file"), "").unwrap();
    symlink(place.at("outside"), place.at("top/link")).unwrap();
    let set = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
    let (paths, errors) = walked(&top, WalkBounds::default());
    assert_eq!(paths, set(&["a", "a/b", "a/b/c", "a/b/c/file", "link"]));
    assert!(errors.is_empty());
    let (paths, errors) = walked(
        &top,
        WalkBounds {
            depth: 2,
            ..WalkBounds::default()
        },
    );
    assert_eq!(paths, set(&["a", "a/b", "link"]));
    assert!(
        matches!(&errors[..], [WalkError::TooDeep { path, depth: 2 }] if path == Path::new("a/b")),
        "{errors:?}"
    );
    let (paths, errors) = walked(
        &top,
        WalkBounds {
            entries: 3,
            ..WalkBounds::default()
        },
    );
    assert_eq!(paths.len(), 3);
    assert!(
        matches!(&errors[..], [WalkError::TooMany { limit: 3, .. }]),
        "{errors:?}"
    );
    let (paths, errors) = walked(
        &top,
        WalkBounds {
            path_bytes: 3,
            ..WalkBounds::default()
        },
    );
    assert_eq!(paths, set(&["a", "a/b", "link"]));
    assert!(
        matches!(&errors[..], [WalkError::TooDeep { .. }]),
        "{errors:?}"
    );
    let mut walk = top.walk(WalkBounds::default()).unwrap();
    let mut count = 0;
    while let Some(found) = walk.next() {
        found.unwrap();
        walk.skip_dir();
        count += 1;
    }
    assert_eq!(count, 2, "no folder was entered");
}

#[test]
fn a_folder_that_becomes_a_link_during_a_walk_is_not_entered() {
    let place = Place::new();
    let top = place.top();
    fs::create_dir(place.at("top/a")).unwrap();
    fs::write(place.at("top/a/file"), "").unwrap();
    let mut walk = top.walk(WalkBounds::default()).unwrap();
    assert_eq!(walk.next().unwrap().unwrap().path, Path::new("a"));
    fs::rename(place.at("top/a"), place.at("moved")).unwrap();
    symlink(place.at("outside"), place.at("top/a")).unwrap();
    match walk.next() {
        Some(Err(WalkError::Read { path, source })) => {
            assert_eq!(path, Path::new("a"));
            let errno = Errno::from_io_error(&source);
            assert!(
                matches!(errno, Some(Errno::LOOP | Errno::NOTDIR)),
                "{errno:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(walk.next().is_none());
}

#[test]
fn a_tree_is_removed_however_deep_and_links_in_it_are_not_followed() {
    let place = Place::new();
    let top = place.top();
    let mut dir = top.ensure_dir("tree", Mode::RWXU).unwrap().0;
    for _ in 0..300 {
        dir.create_file("file", OURS).unwrap();
        rustix::fs::symlinkat(place.at("outside"), &dir, "link").unwrap();
        dir = dir.ensure_dir("deeper", Mode::RWXU).unwrap().0;
    }
    fs::write(place.at("top/file"), "").unwrap();
    symlink("../outside", place.at("top/link")).unwrap();
    let limited = RemoveOptions {
        max_steps: 10,
        ..RemoveOptions::default()
    };
    let refused = top.remove_tree("tree", limited);
    assert!(
        matches!(refused, Err(RemoveError::TooMany { limit: 10 })),
        "{refused:?}"
    );
    for name in ["tree", "file", "link"] {
        top.remove_tree(name, RemoveOptions::default()).unwrap();
    }
    assert!(top.is_empty().unwrap());
    let absent = top.remove_tree("tree", RemoveOptions::default());
    assert_eq!(
        io::Error::from(absent.unwrap_err()).kind(),
        io::ErrorKind::NotFound
    );
    place.assert_outside_is_whole();
}

#[test]
fn closed_folders_of_ours_are_removed_if_asked() {
    let place = Place::new();
    let top = place.top();
    fs::create_dir_all(place.at("top/tree/closed/below")).unwrap();
    fs::set_permissions(
        place.at("top/tree/closed"),
        fs::Permissions::from_mode(0o000),
    )
    .unwrap();
    let options = RemoveOptions {
        open_closed: true,
        ..RemoveOptions::default()
    };
    top.remove_contents(options).unwrap();
    assert!(top.is_empty().unwrap());
}

#[test]
fn a_folder_that_is_swapped_for_a_link_during_a_removal_is_not_followed() {
    let place = Place::new();
    let top = place.top();
    for number in 0..200 {
        fs::create_dir_all(place.at(format!("top/tree/{number}/below"))).unwrap();
        symlink(place.at("outside"), place.at(format!("top/link-{number}"))).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for number in 0..200 {
                    // Either side may be gone by now.
                    _ = rustix::fs::renameat_with(
                        &top,
                        format!("tree/{number}"),
                        &top,
                        format!("link-{number}"),
                        RenameFlags::EXCHANGE,
                    );
                }
            }
        });
        for _ in 0..100 {
            match top.remove_tree("tree", RemoveOptions::default()) {
                Ok(()) => break,
                Err(error) => assert!(!matches!(error, RemoveError::TooMany { .. }), "{error}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    place.assert_outside_is_whole();
}

#[test]
fn a_draft_of_a_folder_is_published_whole_or_removed() {
    let place = Place::new();
    let top = Arc::new(place.top());
    let mut draft = DraftDir::create(&top, ".draft-", "lock").unwrap();
    draft.dir().create_file("file", OURS).unwrap();
    let dropped = DraftDir::create(&top, ".draft-", "lock").unwrap();
    assert_eq!(place.names("top").len(), 2);
    drop(dropped);
    draft.publish(&top, "whole").unwrap();
    let mut second = DraftDir::create(&top, ".draft-", "lock").unwrap();
    let taken = second.publish(&top, "whole").unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    drop((draft, second));
    assert_eq!(place.names("top"), BTreeSet::from(["whole".to_owned()]));
    assert_eq!(place.names("top/whole").len(), 2);
}

#[test]
fn a_sweep_removes_drafts_whose_owner_is_gone_and_no_others() {
    let place = Place::new();
    let top = Arc::new(place.top());
    let held = DraftDir::create(&top, ".draft-", "lock").unwrap();
    fs::create_dir_all(place.at("top/.draft-dead/deep")).unwrap();
    fs::write(place.at("top/.draft-dead/lock"), "").unwrap();
    fs::create_dir(place.at("top/.draft-unlocked")).unwrap();
    fs::create_dir_all(place.at("top/.draft-beginning/deep")).unwrap();
    symlink("../outside", place.at("top/.draft-link")).unwrap();
    let sweep = |name: &str| DraftDir::sweep(&top, name, "lock");
    assert!(!sweep(held.name()).unwrap());
    assert!(sweep(".draft-dead").unwrap());
    assert!(sweep(".draft-unlocked").unwrap());
    assert!(!sweep(".draft-beginning").unwrap());
    assert!(!sweep(".draft-absent").unwrap());
    assert!(sweep(".draft-link").is_err());
    assert_eq!(place.names("top").len(), 3);
    let mut held = held;
    held.publish(&top, "whole").unwrap();
    let name = DraftDir::retire(&top, "whole", &top, ".draft-").unwrap();
    assert!(!sweep(&name).unwrap(), "its lock is held");
    DraftDir::remove(&top, held.dir(), &name, "lock").unwrap();
    assert_eq!(place.names("top").len(), 2);
    place.assert_outside_is_whole();
}
