//! What the artifact folder promises.

use super::*;
use proptest::prelude::*;
use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("airlock-store-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn artifacts(&self) -> Artifacts {
        Artifacts::open(self.0.join("artifacts")).unwrap()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join("artifacts").join(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(text: impl AsRef<OsStr>) -> WorkspacePath {
    WorkspacePath::new(Path::new(&text)).unwrap()
}

fn put(artifacts: &Artifacts, at: &WorkspacePath, bytes: &[u8]) -> Result<ArtifactRef, StoreError> {
    artifacts.put(at, Some(&Id::new("run-1").unwrap()), &mut &*bytes, 1000)
}

fn content(artifacts: &Artifacts, at: &WorkspacePath, version: Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    artifacts.open_version(at, version).unwrap().0.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_kept_comes_back_in_numbered_versions() {
    let place = Place::new();
    let artifacts = place.artifacts();
    let out = name("a/out.txt");
    let kept = put(&artifacts, &out, b"abc").unwrap();
    assert_eq!(
        kept,
        ArtifactRef {
            name: "a/out.txt".to_owned(),
            version: 1,
            size_bytes: 3,
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned(),
        }
    );
    assert_eq!(put(&artifacts, &out, b"").unwrap().version, 2);
    assert_eq!(content(&artifacts, &out, None), b"");
    assert_eq!(content(&artifacts, &out, Some(1)), b"abc");
    let listing = place.artifacts().list();
    assert_eq!((listing.problems.len(), listing.cut), (0, false));
    assert_eq!(listing.kept.iter().map(|kept| kept.version).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(listing.kept[0].run_id.as_deref(), Some("run-1"));
    assert!(listing.kept[0].kept_at > Timestamp(1_700_000_000_000));
    assert_eq!(artifacts.open_version(&out, Some(1)).unwrap().1, listing.kept[0]);
}

#[test]
fn what_is_too_large_leaves_nothing_behind() {
    let place = Place::new();
    let artifacts = place.artifacts();
    let error = put(&artifacts, &name("big"), &[0; 1001]).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { limit_bytes: 1000, .. }), "{error:?}");
    assert_eq!(fs::read_dir(place.at(".drafts")).unwrap().count(), 0);
    assert_eq!(artifacts.list(), Listing::default());
    assert_eq!(put(&artifacts, &name("big"), &[0; 1000]).unwrap().version, 1);
}

#[test]
fn a_source_that_fails_keeps_nothing() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    let place = Place::new();
    let artifacts = place.artifacts();
    let error = artifacts.put(&name("x"), None, &mut Broken, 10).unwrap_err();
    assert!(matches!(error, StoreError::Source { .. }), "{error:?}");
    assert_eq!(artifacts.list(), Listing::default());
    assert_eq!(fs::read_dir(place.at(".drafts")).unwrap().count(), 0);
}

#[test]
fn what_was_never_kept_is_missing() {
    let place = Place::new();
    let artifacts = place.artifacts();
    put(&artifacts, &name("there"), b"x").unwrap();
    for (asked, version) in [("absent", None), ("there", Some(2)), ("there", Some(0))] {
        let error = artifacts.open_version(&name(asked), version).unwrap_err();
        assert!(matches!(error, StoreError::Missing { .. }), "{asked} {version:?} {error:?}");
        let error = artifacts.remove(&name(asked), version).unwrap_err();
        assert!(matches!(error, StoreError::Missing { .. }), "{asked} {version:?} {error:?}");
    }
    assert_eq!(artifacts.remove(&name("there"), Some(1)).unwrap(), 1);
}

#[test]
fn what_is_removed_is_gone_and_open_files_stay_readable() {
    let place = Place::new();
    let artifacts = place.artifacts();
    for bytes in [b"1", b"2", b"3"] {
        put(&artifacts, &name("x"), bytes).unwrap();
    }
    let (mut open, _) = artifacts.open_version(&name("x"), Some(2)).unwrap();
    assert_eq!(artifacts.remove(&name("x"), Some(2)).unwrap(), 1);
    assert_eq!(artifacts.list().kept.iter().map(|kept| kept.version).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(artifacts.remove(&name("x"), None).unwrap(), 2);
    assert_eq!(fs::read_dir(place.at("")).unwrap().count(), 1, "only .drafts");
    assert_eq!(fs::read_dir(place.at(".drafts")).unwrap().count(), 0);
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"2");
}

#[test]
fn racing_writers_never_overwrite_each_other() {
    let place = Place::new();
    let artifacts = place.artifacts();
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let artifacts = &artifacts;
            scope.spawn(move || {
                for round in 0..10_u8 {
                    put(artifacts, &name("same"), &[writer, round]).unwrap();
                }
            });
        }
        scope.spawn(|| (0..200).for_each(|_| assert_eq!(artifacts.sweep(), Vec::<String>::new())));
    });
    let listing = artifacts.list();
    assert_eq!(listing.problems, Vec::<String>::new());
    assert_eq!(
        listing.kept.iter().map(|kept| kept.version).collect::<Vec<_>>(),
        (1..=40).collect::<Vec<_>>()
    );
    let mut all: Vec<_> = (1..=40).map(|n| content(&artifacts, &name("same"), Some(n))).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 40);
}

#[test]
fn writers_and_removers_do_not_disturb_each_other() {
    let place = Place::new();
    let artifacts = place.artifacts();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..50).for_each(|_| drop(put(&artifacts, &name("x"), b"x").unwrap())));
        while !writer.is_finished() {
            match artifacts.remove(&name("x"), None) {
                Ok(_) | Err(StoreError::Missing { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    });
    assert_eq!(artifacts.list().problems, Vec::<String>::new());
}

#[test]
fn damaged_entries_are_reported_and_the_others_still_listed() {
    let place = Place::new();
    let artifacts = place.artifacts();
    for each in ["good", "cut", "garbled", "moved", "gone", "linked"] {
        put(&artifacts, &name(each), b"abc").unwrap();
    }
    fs::write(place.at("cut/1/bytes"), b"ab").unwrap();
    fs::write(place.at("garbled/1/about.json"), b"{").unwrap();
    fs::rename(place.at("moved"), place.at("elsewhere")).unwrap();
    fs::remove_file(place.at("gone/1/bytes")).unwrap();
    fs::remove_file(place.at("linked/1/bytes")).unwrap();
    symlink("/etc/passwd", place.at("linked/1/bytes")).unwrap();
    symlink("/etc", place.at("outside")).unwrap();
    fs::write(place.at("file"), b"").unwrap();
    fs::create_dir(place.at("good/007")).unwrap();
    let listing = artifacts.list();
    assert_eq!(listing.kept.iter().map(|kept| kept.name.clone()).collect::<Vec<_>>(), [name("good")]);
    assert_eq!(listing.problems.len(), 7, "{:#?}", listing.problems);
    for each in ["cut", "garbled", "gone", "linked"] {
        let error = artifacts.open_version(&name(each), None).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{each} {error:?}");
        assert_eq!(artifacts.remove(&name(each), None).unwrap(), 1, "{each}");
    }
}

#[test]
fn only_the_owner_may_look_into_the_folder() {
    let place = Place::new();
    fs::create_dir(place.at("")).unwrap();
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    put(&place.artifacts(), &name("x"), b"x").unwrap();
    assert_eq!(fs::metadata(place.at("")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(place.at("x")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(place.at("x/1/bytes")).unwrap().mode() & 0o777, 0o600);
}

/// The body of the child in `the_sweep_removes_drafts_of_dead_writers_only`.
#[test]
#[ignore = "a child of another test"]
fn child_writes_until_it_is_killed() {
    struct Endless;
    impl Read for Endless {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            println!("\nwriting");
            loop {
                std::thread::park();
            }
        }
    }
    let folder = std::env::var_os("AIRLOCK_TEST_FOLDER").unwrap();
    let _ = Artifacts::open(folder.into()).unwrap().put(&name("x"), None, &mut Endless, 10);
}

fn writer(folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "child_writes_until_it_is_killed"])
        .env("AIRLOCK_TEST_FOLDER", folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.map_while(Result::ok).any(|line| line == "writing"));
    child
}

#[test]
fn the_sweep_removes_drafts_of_dead_writers_only() {
    let place = Place::new();
    let artifacts = place.artifacts();
    let (mut dying, mut living) = (writer(&place.at("")), writer(&place.at("")));
    fs::create_dir(place.at(".drafts/died-at-once")).unwrap();
    assert_eq!(fs::read_dir(place.at(".drafts")).unwrap().count(), 3);
    dying.kill().unwrap();
    dying.wait().unwrap();
    assert_eq!(artifacts.sweep(), Vec::<String>::new());
    assert_eq!(fs::read_dir(place.at(".drafts")).unwrap().count(), 1, "the living one's");
    living.kill().unwrap();
    living.wait().unwrap();
    assert_eq!(artifacts.sweep(), Vec::<String>::new());
    assert_eq!(fs::read_dir(place.at(".drafts")).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_name_is_kept_listed_and_opened_as_itself(bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        let Ok(any) = WorkspacePath::new(Path::new(OsStr::from_bytes(&bytes))) else { return Ok(()) };
        let place = Place::new();
        let artifacts = place.artifacts();
        put(&artifacts, &any, b"abc").unwrap();
        let listing = artifacts.list();
        prop_assert_eq!(&listing.problems, &Vec::<String>::new());
        prop_assert_eq!(&listing.kept[0].name, &any);
        prop_assert_eq!(content(&artifacts, &any, None), b"abc".to_vec());
        prop_assert_eq!(artifacts.remove(&any, None).unwrap(), 1);
    }
}
