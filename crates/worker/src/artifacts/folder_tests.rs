use super::*;
use crate::artifacts::{
    ArtifactLocation, ArtifactScope, ArtifactStore, ArtifactStoreSettings, Sharing,
};
use bytes::Bytes;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    process::{Command, Stdio},
};

/// Gone with the value.
struct Base(PathBuf);

impl Base {
    fn new() -> Base {
        Base(std::env::temp_dir().join(format!("airlock-shelf-{}", openat::random_name().unwrap())))
    }

    fn open(&self) -> ArtifactStore {
        let sharing = Sharing::Namespace("myorg/dev".to_owned());
        ArtifactStore::open(ArtifactStoreSettings {
            place: ArtifactLocation::Folder(self.0.clone()),
            sharing,
        })
        .unwrap()
    }

    fn drafts(&self) -> PathBuf {
        self.0.join(format!(
            ".airlock-drafts-{}",
            rustix::process::geteuid().as_raw()
        ))
    }

    fn count_drafts(&self) -> usize {
        fs::read_dir(self.drafts()).unwrap().count()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        // A test that failed says so by itself.
        _ = fs::remove_dir_all(&self.0);
    }
}

fn ana() -> ArtifactScope {
    ArtifactScope {
        app: "agent".to_owned(),
        user: "ana".to_owned(),
        session: "s".to_owned(),
    }
}

async fn save(store: &ArtifactStore, name: &str, bytes: &'static [u8]) -> i64 {
    store
        .save(&ana(), name, "text/plain", Bytes::from_static(bytes))
        .await
        .unwrap()
}

async fn why(store: &ArtifactStore, name: &str, version: Option<i64>, limit: u64) -> String {
    store
        .load(&ana(), name, version, limit)
        .await
        .unwrap_err()
        .0
}

#[tokio::test]
async fn files_lie_where_agents_look_for_them() {
    let base = Base::new();
    let store = base.open();
    assert_eq!(save(&store, "a.txt", b"one").await, 0);
    assert_eq!(save(&store, "a.txt", b"two").await, 1);
    assert_eq!(save(&store, "user:b.txt", b"three").await, 0);
    let at = base.0.join("dev/ana/s/a.txt");
    assert_eq!(fs::read(at.join("0")).unwrap(), b"one");
    assert_eq!(fs::read(at.join("1")).unwrap(), b"two");
    assert_eq!(
        fs::read_to_string(at.join("1.meta")).unwrap(),
        "{\"mime_type\": \"text/plain\"}"
    );
    assert_eq!(
        fs::read(base.0.join("dev/ana/user/b.txt/0")).unwrap(),
        b"three"
    );
    let latest = store.load(&ana(), "a.txt", None, 3).await.unwrap();
    let expected = ArtifactContent {
        version: 1,
        mime_type: "text/plain".to_owned(),
        bytes: Bytes::from_static(b"two"),
    };
    assert_eq!(latest, expected);
    assert_eq!(
        store.load(&ana(), "a.txt", Some(0), 3).await.unwrap().bytes,
        "one"
    );
    assert_eq!(base.count_drafts(), 0);
    // Agents may run as somebody else; only the mask of this process says who may read.
    let mode = fs::metadata(at.join("0")).unwrap().permissions().mode();
    fs::write(base.0.join("plain"), "").unwrap();
    assert_eq!(
        mode,
        fs::metadata(base.0.join("plain"))
            .unwrap()
            .permissions()
            .mode()
    );
}

#[tokio::test]
async fn what_is_missing_too_large_or_half_is_said() {
    let base = Base::new();
    let store = base.open();
    save(&store, "a.txt", b"four").await;
    assert_eq!(
        why(&store, "b.txt", None, 9).await,
        "`b.txt` cannot be read: there is no such file"
    );
    assert_eq!(
        why(&store, "a.txt", Some(7), 9).await,
        "`a.txt` cannot be read: there is no version 7 of it"
    );
    assert!(
        why(&store, "a.txt", Some(-1), 9)
            .await
            .contains("they count from 0")
    );
    assert!(
        why(&store, "a.txt", None, 3)
            .await
            .contains("4 bytes, and at most 3")
    );
    let at = base.0.join("dev/ana/s/a.txt");
    fs::write(at.join("1"), "no meta").unwrap();
    fs::write(at.join("2.meta"), "{\"mime_type\": \"x/y\"}").unwrap();
    assert_eq!(
        store.load(&ana(), "a.txt", None, 9).await.unwrap().version,
        0,
        "the latest that is whole"
    );
    assert!(
        why(&store, "a.txt", Some(1), 9)
            .await
            .contains("no version 1")
    );
    assert_eq!(
        save(&store, "a.txt", b"next").await,
        3,
        "halves have their numbers"
    );
    fs::write(at.join("3.meta"), "[1]").unwrap();
    assert!(why(&store, "a.txt", None, 9).await.contains("damaged"));
    fs::write(at.join("3.meta"), "{\"mime_type\": null}").unwrap();
    let odd = store.load(&ana(), "a.txt", None, 9).await.unwrap();
    assert_eq!(odd.mime_type, "application/octet-stream");
    fs::write(at.join(i64::MAX.to_string()), "planted").unwrap();
    let full = store
        .save(&ana(), "a.txt", "x/y", Bytes::new())
        .await
        .unwrap_err();
    assert!(full.0.contains("highest number"), "{full}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_writers_get_the_same_version() {
    let base = Base::new();
    // Two shelves, as two workers would have them.
    let shelves = [base.open(), base.open()];
    let mut writers = Vec::new();
    for count in 0..64_usize {
        let store = shelves[count % 2].clone();
        let bytes = Bytes::from(count.to_string());
        writers.push(tokio::spawn(async move {
            (
                store
                    .save(&ana(), "a", "text/plain", bytes.clone())
                    .await
                    .unwrap(),
                bytes,
            )
        }));
    }
    let mut versions = BTreeSet::new();
    for writer in writers {
        let (version, bytes) = writer.await.unwrap();
        assert!(versions.insert(version), "{version} twice");
        assert_eq!(
            shelves[0]
                .load(&ana(), "a", Some(version), 9)
                .await
                .unwrap()
                .bytes,
            bytes
        );
    }
    assert_eq!(versions.len(), 64);
    assert_eq!(base.count_drafts(), 0);
}

#[tokio::test]
async fn what_a_crash_leaves_is_swept_and_what_is_being_written_is_not() {
    let base = Base::new();
    drop(base.open());
    fs::write(base.drafts().join("dead"), "of a writer that was killed").unwrap();
    let folder = Folder::open(&base.0).unwrap();
    assert_eq!(base.count_drafts(), 0);
    let living = folder.draft(b"bytes").unwrap();
    drop(base.open());
    assert_eq!(base.count_drafts(), 1, "its writer lives");
    drop(living);
    assert_eq!(base.count_drafts(), 0);
}

#[tokio::test]
#[ignore = "a child of the test below"]
async fn writes_until_it_is_killed() {
    let Some(base) = std::env::var_os("AIRLOCK_TEST_BASE") else {
        return;
    };
    let sharing = Sharing::Namespace("myorg/dev".to_owned());
    let store = ArtifactStore::open(ArtifactStoreSettings {
        place: ArtifactLocation::Folder(base.into()),
        sharing,
    })
    .unwrap();
    loop {
        let bytes = vec![7; 100_000].into();
        println!(
            "saved {}",
            store.save(&ana(), "a", "text/plain", bytes).await.unwrap()
        );
    }
}

#[tokio::test]
async fn a_writer_that_is_killed_leaves_whole_versions_and_nothing_else() {
    let base = Base::new();
    let mut told = BTreeSet::new();
    for lines in [1, 4, 7, 2, 9] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "artifacts::folder::tests::writes_until_it_is_killed",
            ])
            .env("AIRLOCK_TEST_BASE", &base.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let saved = output.filter_map(|line| {
            line.split_once("saved ")
                .map(|(_, number)| number.parse().unwrap())
        });
        let saved: Vec<i64> = saved.take(lines).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(saved.len(), lines);
        for number in saved {
            assert!(told.insert(number), "{number} twice");
        }
    }
    let store = base.open();
    assert_eq!(base.count_drafts(), 0, "swept");
    for number in &told {
        let kept = store
            .load(&ana(), "a", Some(*number), 100_000)
            .await
            .unwrap();
        assert_eq!(kept.bytes.len(), 100_000, "what was told is there");
    }
    for entry in fs::read_dir(base.0.join("dev/ana/s/a")).unwrap() {
        let (name, size) = (
            entry.as_ref().unwrap().file_name(),
            entry.unwrap().metadata().unwrap().len(),
        );
        let read_all = if name.to_str().unwrap().ends_with(".meta") {
            27
        } else {
            100_000
        };
        assert_eq!(size, read_all, "{name:?}");
    }
}

#[tokio::test]
async fn planted_links_pipes_and_folders_are_not_followed() {
    let (base, outside) = (Base::new(), Base::new());
    let store = base.open();
    save(&store, "a", b"mine").await;
    let at = base.0.join("dev/ana/s/a");
    fs::create_dir_all(outside.0.join("s/a")).unwrap();
    fs::write(outside.0.join("s/a/0"), "secret").unwrap();
    fs::write(outside.0.join("s/a/0.meta"), "{}").unwrap();

    // The file itself, with the positive control that the same link to nothing of ours is what fails.
    symlink(outside.0.join("s/a/0"), at.join("1")).unwrap();
    fs::write(at.join("1.meta"), "{}").unwrap();
    assert_eq!(
        fs::read(at.join("1")).unwrap(),
        b"secret",
        "the link leads there"
    );
    assert!(why(&store, "a", None, 99).await.contains("symbolic link"));
    assert_eq!(
        store.load(&ana(), "a", Some(0), 99).await.unwrap().bytes,
        "mine"
    );
    assert_eq!(
        save(&store, "a", b"next").await,
        2,
        "beside the link, not through it"
    );

    // A folder on the way.
    symlink(outside.0.join("s"), base.0.join("dev/ana/linked")).unwrap();
    let linked = ArtifactScope {
        session: "linked".to_owned(),
        ..ana()
    };
    assert!(
        store
            .load(&linked, "a", Some(0), 99)
            .await
            .unwrap_err()
            .0
            .contains("symbolic link")
    );
    assert!(
        store
            .save(&linked, "b", "x/y", Bytes::new())
            .await
            .unwrap_err()
            .0
            .contains("symbolic link")
    );
    assert!(!outside.0.join("s/b").exists());

    // What is no file.
    let pipe = Command::new("mkfifo").arg(at.join("3")).status().unwrap();
    assert!(pipe.success());
    fs::write(at.join("3.meta"), "{}").unwrap();
    assert!(why(&store, "a", None, 99).await.contains("no file"));
    fs::create_dir(at.join("4")).unwrap();
    fs::write(at.join("4.meta"), "{}").unwrap();
    assert!(why(&store, "a", Some(4), 99).await.contains("no file"));
}

/// Writes as an agent would, with nothing but Python's own modules, and reads what we wrote.
const AGENT: &str = r#"
import json, os, sys, unicodedata
base, app, user, session, name = sys.argv[1:6]
name = unicodedata.normalize("NFKC", name)
middle, last = ("user", name.split(":", 1)[1]) if name.startswith("user:") else (os.path.basename(session), name)
at = os.path.join(base, os.path.basename(app), os.path.basename(user), middle, os.path.basename(last))
os.makedirs(at, exist_ok=True)
versions = [int(found) for found in os.listdir(at) if found.isdigit() and os.path.isfile(os.path.join(at, found))]
for version in sorted(versions):
    with open(os.path.join(at, str(version)), "rb") as data, open(os.path.join(at, f"{version}.meta")) as meta:
        print(version, data.read().decode(), json.load(meta)["mime_type"])
version = max(versions) + 1 if versions else 0
with open(os.path.join(at, str(version)), "wb") as data:
    data.write(b"of the agent")
with open(os.path.join(at, f"{version}.meta"), "w") as meta:
    json.dump({"mime_type": "text/x-agent"}, meta)
"#;

#[tokio::test]
async fn agents_and_we_read_each_others_files() {
    let base = Base::new();
    let store = base.open();
    for name in [
        "plain.txt",
        "ﬁle Ａ\u{202f}é.txt",
        "user:of ana.txt",
        "deep/er.txt",
        "a%20#?.txt",
        "…",
    ] {
        let agent = || {
            let python = Command::new("/usr/bin/python3")
                .args(["-c", AGENT])
                .arg(&base.0)
                .args(["myorg/dev", "ana", "s", name])
                .output()
                .unwrap();
            assert!(
                python.status.success(),
                "{}",
                String::from_utf8_lossy(&python.stderr)
            );
            String::from_utf8(python.stdout).unwrap()
        };
        assert_eq!(agent(), "", "{name}");
        let theirs = store.load(&ana(), name, None, 99).await.unwrap();
        let expected = ("of the agent".into(), "text/x-agent".to_owned(), 0);
        assert_eq!(
            (theirs.bytes, theirs.mime_type, theirs.version),
            expected,
            "{name}"
        );
        let mime = "text/\"quoted\\";
        let ours = store
            .save(&ana(), name, mime, Bytes::from_static(b"ours"))
            .await
            .unwrap();
        assert_eq!(ours, 1, "{name}");
        let read = agent();
        assert_eq!(
            read,
            format!("0 of the agent text/x-agent\n1 ours {mime}\n"),
            "{name}"
        );
        assert_eq!(
            store.load(&ana(), name, None, 99).await.unwrap().version,
            2,
            "{name}"
        );
    }
}

/// Where an agent would put each of these names; nothing where its Python does not know a character yet.
const PLACES: &str = r#"
import json, os, sys, unicodedata
places = []
for name in json.load(sys.stdin):
    known = all(unicodedata.category(letter) != "Cn" for letter in name)
    name = unicodedata.normalize("NFKC", name)
    middle, last = ("user", name.split(":", 1)[1]) if name.startswith("user:") else ("s", name)
    places.append(os.path.join("dev", "ana", middle, os.path.basename(last)) if known else None)
json.dump(places, sys.stdout)
"#;

#[test]
fn names_of_all_kinds_have_the_place_that_python_gives_them() {
    // Every character, alone among plain ones and beside one that may combine with it.
    let letters = (1..=0x2_ffff_u32).filter_map(char::from_u32);
    let names: Vec<String> = letters
        .map(|letter| format!("a{letter}b{letter}\u{301}"))
        .collect();
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", PLACES])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    serde_json::to_writer(python.stdin.take().unwrap(), &names).unwrap();
    let output = python.wait_with_output().unwrap();
    let places: Vec<Option<String>> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(places.len(), names.len());
    let (sharing, scope) = (Sharing::Namespace("myorg/dev".to_owned()), ana());
    let mut compared = 0;
    for (filename, place) in names.iter().zip(places) {
        let ours = names::ArtifactNames {
            sharing: &sharing,
            scope: &scope,
            filename,
        }
        .folder();
        if let (Some(place), Ok(ours)) = (place, ours) {
            assert_eq!(ours.join("/"), place, "{filename:?}");
            compared += 1;
        }
    }
    assert!(compared > 100_000, "only {compared}");
}

#[tokio::test]
async fn a_planted_folder_of_drafts_is_refused() {
    let base = Base::new();
    let settings = || {
        let sharing = Sharing::Namespace("dev".to_owned());
        ArtifactStoreSettings {
            place: ArtifactLocation::Folder(base.0.clone()),
            sharing,
        }
    };
    let planted = |mode: u32, owner: Option<u32>| {
        // Not there the first time.
        _ = fs::remove_dir_all(base.drafts());
        fs::create_dir_all(base.drafts()).unwrap();
        fs::set_permissions(base.drafts(), fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(base.drafts(), owner, None).unwrap();
        ArtifactStore::open(settings())
    };
    // Ours, and opened to others since: closed again.
    for mode in [0o777, 0o2770, 0o702] {
        planted(mode, None).unwrap();
        assert_eq!(
            fs::metadata(base.drafts()).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
    for mode in [0o700, 0o777]
        .into_iter()
        .filter(|_| rustix::process::geteuid().is_root())
    {
        let why = planted(mode, Some(12_345)).unwrap_err().0;
        assert!(why.contains("not ours alone"), "{why}");
    }
    let store = planted(0o700, None).unwrap();
    assert_eq!(save(&store, "a", b"one").await, 0, "the control");
    assert_eq!(base.count_drafts(), 0);
}

#[test]
fn what_was_exchanged_on_its_way_is_not_kept() {
    let base = Base::new();
    let folder = Folder::open(&base.0).unwrap();
    let there = openat::ensure_folder(&folder.base, "there").unwrap();
    let mut draft = folder.draft(b"ours").unwrap();
    fs::remove_file(base.drafts().join(draft.name())).unwrap();
    fs::write(base.drafts().join(draft.name()), "theirs").unwrap();
    let StoreFailure(why) = publish(&mut draft, &there, "0").unwrap_err();
    assert!(why.contains("another file"), "{why}");
    assert!(
        publish(&mut folder.draft(b"ours").unwrap(), &there, "1").unwrap(),
        "the control"
    );
    assert!(
        !publish(&mut folder.draft(b"ours").unwrap(), &there, "1").unwrap(),
        "the name is taken"
    );
}
