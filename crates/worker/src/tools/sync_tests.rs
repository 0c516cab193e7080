use super::*;
use crate::artifacts::{
    fake_s3::{self, FakeS3},
    openat,
};
use object_store::{ObjectStoreExt, memory::InMemory, path::Path as Key};
use proptest::prelude::*;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

/// A bucket, and a folder that is gone with the value.
struct World {
    bucket: Arc<InMemory>,
    folder: PathBuf,
}

impl World {
    fn new() -> World {
        let name = format!("airlock-sync-{}", openat::random_name().unwrap());
        World {
            bucket: Arc::new(InMemory::new()),
            folder: std::env::temp_dir().join(name),
        }
    }

    fn sync(&self) -> ToolSync {
        self.bounded(SyncLimits::default())
    }

    fn bounded(&self, bounds: SyncLimits) -> ToolSync {
        let store = BucketClient::of(self.bucket.clone());
        ToolSync::over(
            store,
            "my/org/",
            self.folder.clone(),
            Duration::from_secs(1),
            bounds,
        )
        .unwrap()
    }

    async fn put(&self, path: &str, bytes: &'static str) {
        self.bucket
            .put(
                &Key::parse(format!("my/org/str-runtime/{path}")).unwrap(),
                bytes.into(),
            )
            .await
            .unwrap();
    }

    async fn delete(&self, path: &str) {
        self.bucket
            .delete(&Key::parse(format!("my/org/str-runtime/{path}")).unwrap())
            .await
            .unwrap();
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that failed says so by itself.
        _ = fs::remove_dir_all(&self.folder);
    }
}

fn fine() -> SyncState {
    SyncState::Ok {
        refused: Vec::new(),
    }
}

fn foreign(path: &str) -> SyncState {
    SyncState::Ok {
        refused: vec![format!(
            "`{path}` is here already, from elsewhere: it stays"
        )],
    }
}

#[tokio::test]
async fn files_of_others_are_neither_written_over_nor_taken_away() {
    let world = World::new();
    fs::create_dir_all(&world.folder).unwrap();
    world.put("a.py", "of the bucket").await;
    world.put("b.py", "fresh").await;
    for own in ["mine", "not of bucket"] {
        fs::write(world.at("a.py"), own).unwrap();
        for _ in 0..2 {
            assert_eq!(world.sync().cycle().await, foreign("a.py"));
        }
        assert_eq!(world.read("a.py").unwrap(), own);
        assert_eq!(
            world.read("b.py").unwrap(),
            "fresh",
            "the control: the rest is brought"
        );
    }
    world.delete("a.py").await;
    assert_eq!(world.sync().cycle().await, fine());
    assert_eq!(world.read("a.py").unwrap(), "not of bucket");

    // After a lost table, what has the very bytes is ours again.
    fs::remove_file(world.at(".airlock-sync/table.json")).unwrap();
    assert_eq!(world.sync().cycle().await, fine());
    world.put("b.py", "newer").await;
    assert_eq!(world.sync().cycle().await, fine());
    assert_eq!(world.read("b.py").unwrap(), "newer");
    world.delete("b.py").await;
    assert_eq!(world.sync().cycle().await, fine());
    assert!(!world.at("b.py").exists());
}

/// From a server of a test's own.
fn from(remote: BucketConfig, folder: &Path) -> ToolSync {
    let settings = SyncConfig {
        remote,
        namespace: "n".to_owned(),
        folder: folder.to_owned(),
        interval: Duration::from_secs(1),
        bounds: SyncLimits::default(),
    };
    ToolSync::open(settings).unwrap()
}

#[tokio::test]
async fn what_somebody_else_has_there_is_compared_once_and_told_once() {
    let world = World::new();
    let here = BTreeMap::from([("n/str-runtime/a.py".to_owned(), "bytes".to_owned())]);
    let fake = FakeS3::serve(move |asked| fake_s3::bucket(&here, asked));
    fs::create_dir_all(&world.folder).unwrap();
    for own in ["other", "edits"] {
        fs::write(world.at("a.py"), own).unwrap();
        // To list and to compare, and then only to list.
        for asks in [2, 1, 1] {
            let before = fake.count();
            assert_eq!(
                from(fake.remote(), &world.folder).cycle().await,
                foreign("a.py")
            );
            assert_eq!(fake.count() - before, asks);
        }
        assert_eq!(world.read("a.py").unwrap(), own);
    }
    fs::remove_file(world.at("a.py")).unwrap();
    assert_eq!(from(fake.remote(), &world.folder).cycle().await, fine());
    assert_eq!(world.read("a.py").unwrap(), "bytes", "the control");
}

#[tokio::test]
async fn tools_come_from_a_bucket_of_google_as_well() {
    let world = World::new();
    let here = BTreeMap::from(
        ["manifest.yaml", "python/t.py", "a//b"]
            .map(|key| (format!("n/str-runtime/{key}"), "bytes".to_owned())),
    );
    let fake = FakeS3::serve(move |asked| fake_s3::bucket(&here, asked));
    let refused = vec!["`a//b` cannot be a path".to_owned()];
    assert_eq!(
        from(fake.google(), &world.folder).cycle().await,
        SyncState::Ok { refused }
    );
    assert_eq!(world.read("manifest.yaml").unwrap(), "bytes");
    assert_eq!(world.read("python/t.py").unwrap(), "bytes");
}

#[tokio::test]
async fn a_mark_that_cannot_be_a_header_is_not_made_one() {
    let world = World::new();
    let here = BTreeMap::from([("n/str-runtime/a.py".to_owned(), "bytes".to_owned())]);
    let fake = FakeS3::serve(move |asked| match fake_s3::bucket(&here, asked) {
        fake_s3::FakeResponse::Answer(status, text) => {
            fake_s3::FakeResponse::Answer(status, text.replace("&quot;e&quot;", "e&#10;x: y"))
        }
        other => other,
    });
    assert_eq!(from(fake.remote(), &world.folder).cycle().await, fine());
    assert_eq!(world.read("a.py").unwrap(), "bytes");
}

#[tokio::test(start_paused = true)]
async fn a_cycle_that_panics_is_told_of_and_followed_by_another() {
    let world = World::new();
    // Refused at the start; the client panics over it.
    _ = rustls::crypto::ring::default_provider().install_default();
    let client = object_store::aws::AmazonS3Builder::new()
        .with_bucket_name("b")
        .with_token("a\nb");
    let client = client
        .with_access_key_id("k")
        .with_secret_access_key("s")
        .build()
        .unwrap();
    let store = BucketClient::of(Arc::new(client));
    let pause = Duration::from_secs(10);
    let sync = ToolSync::over(
        store,
        "n",
        world.folder.clone(),
        pause,
        SyncLimits::default(),
    )
    .unwrap();
    let mut state = sync.state();
    let running = tokio::spawn(sync.run());
    let failed = SyncState::Failed("bringing tools stopped in the middle".to_owned());
    assert_eq!(
        *state
            .wait_for(|state| *state != SyncState::Waiting)
            .await
            .unwrap(),
        failed
    );
    tokio::time::sleep(pause * 3).await;
    assert!(!running.is_finished());
    running.abort();
}

#[tokio::test]
async fn keys_that_no_client_can_name_do_not_keep_tools_away() {
    let world = World::new();
    let object = |key: &str| (format!("n/str-runtime/{key}"), "bytes".to_owned());
    let mut here =
        BTreeMap::from(["../x", "a//b", "manifest.yaml", "python/t.py", "z/./"].map(object));
    here.extend((0..100).map(|count| object(&format!("b//{count:02}"))));
    let fake = FakeS3::serve(move |asked| fake_s3::bucket(&here, asked));
    let mut odd =
        Vec::from(["../x", "a//b", "b//00"].map(|key| format!("`{key}` cannot be a path")));
    odd.extend((1..18).map(|count| format!("`b//{count:02}` cannot be a path")));
    odd.push("and 83 more".to_owned());
    assert_eq!(
        from(fake.remote(), &world.folder).cycle().await,
        SyncState::Ok { refused: odd }
    );
    assert_eq!(world.read("manifest.yaml").unwrap(), "bytes");
    assert_eq!(world.read("python/t.py").unwrap(), "bytes");
}

#[tokio::test]
async fn a_planted_folder_for_what_is_on_its_way_is_refused() {
    let world = World::new();
    world.put("a.py", "code").await;
    fs::create_dir_all(world.at(".airlock-sync")).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(world.at(".airlock-sync"), Some(12_345), None).unwrap();
        let state = world.sync().cycle().await;
        assert!(
            matches!(&state, SyncState::Failed(why) if why.contains("not ours alone")),
            "{state:?}"
        );
        assert!(!world.at("a.py").exists());
        std::os::unix::fs::chown(world.at(".airlock-sync"), Some(0), None).unwrap();
    }
    // Ours, and open to others: it is closed.
    fs::set_permissions(world.at(".airlock-sync"), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(world.sync().cycle().await, fine(), "the control");
}

#[tokio::test]
async fn what_changes_is_brought_and_what_vanishes_goes_even_after_a_restart() {
    let world = World::new();
    world.put("manifest.yaml", "one").await;
    world.put("python/tool.py", "code").await;
    world.put("bin/run", "#!/bin/sh\n").await;
    world.put("bin/elf", "\x7fELF…").await;
    let sync = world.sync();
    assert_eq!(*sync.state().borrow(), SyncState::Waiting);
    assert_eq!(sync.cycle().await, fine());
    assert_eq!(*sync.state().borrow(), fine());
    assert_eq!(world.read("manifest.yaml").unwrap(), "one");
    assert_eq!(world.read("python/tool.py").unwrap(), "code");
    let mode = |path: &str| fs::metadata(world.at(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        [mode("python/tool.py"), mode("bin/run"), mode("bin/elf")],
        [0o644, 0o755, 0o755]
    );

    // What did not change is left alone: somebody else's bytes of the same length stay.
    fs::write(world.at("python/tool.py"), "EDIT").unwrap();
    fs::write(world.at("own.txt"), "not brought").unwrap();
    world.put("manifest.yaml", "two").await;
    assert_eq!(sync.cycle().await, fine());
    assert_eq!(world.read("python/tool.py").unwrap(), "EDIT");
    assert_eq!(world.read("manifest.yaml").unwrap(), "two");
    fs::remove_file(world.at("python/tool.py")).unwrap();
    assert_eq!(sync.cycle().await, fine());
    assert_eq!(
        world.read("python/tool.py").unwrap(),
        "code",
        "what is missing comes again"
    );

    world.delete("python/tool.py").await;
    drop(sync);
    assert_eq!(world.sync().cycle().await, fine());
    assert!(
        !world.at("python").exists(),
        "gone, with the folder that is empty without it"
    );
    assert_eq!(
        world.read("own.txt").unwrap(),
        "not brought",
        "not ours to take away"
    );
}

#[tokio::test]
async fn a_name_turns_from_file_to_folder_and_back() {
    let world = World::new();
    let sync = world.sync();
    world.put("a", "file").await;
    assert_eq!(sync.cycle().await, fine());
    world.delete("a").await;
    world.put("a/b/c", "deep").await;
    assert_eq!(sync.cycle().await, fine());
    assert_eq!(world.read("a/b/c").unwrap(), "deep");
    // Both at once: the file wins, even without bytes. Whoever can write beneath `manifest.yaml` cannot take it away.
    for bytes in ["", "file"] {
        world.put("a", bytes).await;
        let refused = SyncState::Ok {
            refused: vec!["`a/b/c` lies in what is a file".to_owned()],
        };
        assert_eq!(sync.cycle().await, refused);
        assert_eq!(world.read("a").unwrap(), bytes);
    }
    world.delete("a/b/c").await;
    assert_eq!(sync.cycle().await, fine());
    assert_eq!(world.read("a").unwrap(), "file");
}

#[tokio::test]
async fn a_failure_changes_nothing() {
    let world = World::new();
    world.put("manifest.yaml", "one").await;
    assert_eq!(world.sync().cycle().await, fine());
    world.put("manifest.yaml", "two").await;
    world.put("large", "0123456789").await;
    let bounds = SyncLimits::default();
    for (bounds, why) in [
        (
            SyncLimits {
                objects: 1,
                ..bounds
            },
            "more than 1 objects",
        ),
        (
            SyncLimits {
                object_bytes: 9,
                ..bounds
            },
            "`large` has 10 bytes, and at most 9",
        ),
        (
            SyncLimits {
                bytes: 12,
                ..bounds
            },
            "more than 12 bytes together",
        ),
    ] {
        let state = world.bounded(bounds).cycle().await;
        assert!(
            matches!(&state, SyncState::Failed(told) if told.contains(why)),
            "{state:?}"
        );
        assert_eq!(world.read("manifest.yaml").unwrap(), "one");
    }
    assert_eq!(world.sync().cycle().await, fine());
    assert_eq!(world.read("manifest.yaml").unwrap(), "two", "the control");
}

#[tokio::test]
async fn code_that_cannot_be_put_keeps_the_manifest_away() {
    let world = World::new();
    world.put("a.yaml", "names z.py").await;
    world.put("z.py", "code").await;
    // Somebody's folder is in the way.
    fs::create_dir_all(world.at("z.py/kept")).unwrap();
    let state = world.sync().cycle().await;
    assert!(
        matches!(&state, SyncState::Failed(why) if why.contains("`z.py`")),
        "{state:?}"
    );
    assert!(
        !world.at("a.yaml").exists(),
        "it would name code that is not there"
    );
    assert!(world.at("z.py/kept").exists());
    fs::remove_dir_all(world.at("z.py")).unwrap();
    assert_eq!(world.sync().cycle().await, fine());
    assert_eq!(world.read("a.yaml").unwrap(), "names z.py");
}

#[tokio::test]
async fn links_are_not_followed_neither_to_write_nor_to_remove() {
    let (world, outside) = (World::new(), World::new());
    fs::create_dir_all(&world.folder).unwrap();
    fs::create_dir_all(&outside.folder).unwrap();
    symlink(&outside.folder, world.at("linked")).unwrap();
    world.put("linked/planted", "bytes").await;
    let state = world.sync().cycle().await;
    assert!(
        matches!(&state, SyncState::Failed(why) if why.contains("symbolic link")),
        "{state:?}"
    );
    assert_eq!(fs::read_dir(&outside.folder).unwrap().count(), 0);
    fs::remove_file(world.at("linked")).unwrap();
    assert_eq!(world.sync().cycle().await, fine(), "the control");
    assert_eq!(world.read("linked/planted").unwrap(), "bytes");

    // A link in place of its folder keeps the file behind it, and one in place of a file is somebody's own.
    fs::write(outside.at("planted"), "precious").unwrap();
    fs::remove_dir_all(world.at("linked")).unwrap();
    symlink(&outside.folder, world.at("linked")).unwrap();
    world.delete("linked/planted").await;
    assert_eq!(world.sync().cycle().await, fine());
    assert_eq!(outside.read("planted").unwrap(), "precious");
    symlink(outside.at("planted"), world.at("file")).unwrap();
    world.put("file", "of the bucket").await;
    assert_eq!(world.sync().cycle().await, foreign("file"));
    assert_eq!(outside.read("planted").unwrap(), "precious");
    fs::remove_file(world.at("file")).unwrap();
    assert_eq!(world.sync().cycle().await, fine());
    assert_eq!(world.read("file").unwrap(), "of the bucket");
    assert_eq!(outside.read("planted").unwrap(), "precious");
}

#[tokio::test]
async fn a_table_of_lies_takes_nothing_away_outside() {
    let (world, outside) = (World::new(), World::new());
    fs::create_dir_all(&outside.folder).unwrap();
    fs::write(outside.at("precious"), "kept").unwrap();
    let name = outside.folder.file_name().unwrap().to_str().unwrap();
    let lie = format!("../{name}/precious");
    assert_eq!(
        fs::read(world.folder.parent().unwrap().join(name).join("precious")).unwrap(),
        b"kept"
    );
    assert_eq!(world.sync().cycle().await, fine());
    let entry = serde_json::json!({"mark": "m", "size": 4});
    let table = serde_json::json!({"files": {lie: entry.clone(), "old": entry}});
    fs::write(world.at("old"), "took").unwrap();
    fs::write(world.at(".airlock-sync/table.json"), table.to_string()).unwrap();
    fs::write(world.at(".airlock-sync/0123"), "what a crash left").unwrap();
    assert_eq!(world.sync().cycle().await, fine());
    assert!(
        !world.at("old").exists(),
        "the control: the table was believed"
    );
    assert_eq!(outside.read("precious").unwrap(), "kept");
    assert!(!world.at(".airlock-sync/0123").exists(), "swept");
    fs::write(world.at(".airlock-sync/table.json"), "{no json").unwrap();
    world.put("new", "n").await;
    assert_eq!(world.sync().cycle().await, fine());
    assert_eq!(world.read("new").unwrap(), "n");
}

#[tokio::test]
#[ignore = "a child of the test below"]
async fn brings_until_it_is_killed() {
    let Some(folder) = std::env::var_os("AIRLOCK_TEST_FOLDER") else {
        return;
    };
    let world = World {
        bucket: Arc::new(InMemory::new()),
        folder: folder.into(),
    };
    for round in 0_u64.. {
        for count in 0..6 {
            let key = Key::parse(format!(
                "my/org/str-runtime/{}/{count}.py",
                (round + count) % 9
            ))
            .unwrap();
            match round % 3 {
                0 => world.bucket.delete(&key).await.unwrap(),
                _ => {
                    _ = world
                        .bucket
                        .put(&key, round.to_string().into())
                        .await
                        .unwrap()
                }
            }
        }
        assert_eq!(world.sync().cycle().await, fine());
        println!("brought {round}");
    }
}

#[tokio::test]
async fn whatever_was_brought_is_known_after_a_kill() {
    let world = World::new();
    let mut left = 0;
    for rounds in [1, 2, 5, 3, 4, 8, 9, 7] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "tools::sync::tests::brings_until_it_is_killed",
            ])
            .env("AIRLOCK_TEST_FOLDER", &world.folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        assert_eq!(
            lines
                .filter(|line| line.contains("brought "))
                .take(rounds)
                .count(),
            rounds
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let mut found = Vec::new();
        walk(&world.folder, &mut found);
        left += found
            .iter()
            .filter(|path| path.extension().is_some_and(|end| end == "py"))
            .count();
        // An empty bucket takes away whatever came from one: nothing is left that nobody knows of.
        assert_eq!(world.sync().cycle().await, fine());
        found.clear();
        walk(&world.folder, &mut found);
        found.retain(|path| {
            ![".airlock-sync/lock", ".airlock-sync/table.json"]
                .iter()
                .any(|own| world.at(own) == *path)
        });
        assert_eq!(found, Vec::<PathBuf>::new());
    }
    assert!(left > 0, "the control: something was brought");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_is_there_before_the_table_says_that_it_is_ours() {
    let world = World::new();
    assert_eq!(world.sync().cycle().await, fine());
    let (done, folder) = (Arc::new(AtomicBool::new(false)), world.folder.clone());
    let (ended, table) = (done.clone(), world.at(".airlock-sync/table.json"));
    let watcher = std::thread::spawn(move || {
        let mut looks = 0;
        while !ended.load(Ordering::Relaxed) {
            // First what is there, then what is known: nothing is taken away here.
            let mut found = Vec::new();
            walk(&folder, &mut found);
            let known = fs::read_to_string(&table).unwrap_or_default();
            let names = found
                .iter()
                .map(|path| path.file_name().unwrap().to_str().unwrap());
            for name in names.filter(|name| name.ends_with(".py")) {
                assert!(
                    known.contains(&format!("\"{name}\"")),
                    "{name} is not known"
                );
                looks += 1;
            }
        }
        looks
    });
    for round in 0..12 {
        for count in 0..40 {
            world.put(&format!("{round}-{count}.py"), "code").await;
        }
        assert_eq!(world.sync().cycle().await, fine());
    }
    done.store(true, Ordering::Relaxed);
    assert!(watcher.join().unwrap() > 0, "the control: it saw files");
}

#[tokio::test]
async fn one_worker_at_a_time() {
    let world = World::new();
    let held = SyncedFolder::open(&world.folder).unwrap();
    let state = world.sync().cycle().await;
    assert!(
        matches!(&state, SyncState::Failed(why) if why.contains("another worker")),
        "{state:?}"
    );
    drop(held);
    assert_eq!(world.sync().cycle().await, fine());
}

#[tokio::test(start_paused = true)]
async fn the_first_time_is_waited_for_but_not_forever() {
    let world = World::new();
    let sync = world.sync();
    let mut state = sync.state();
    assert_eq!(
        wait_for_first(&mut state, FIRST_SYNC_TIMEOUT).await,
        SyncState::Waiting,
        "nobody runs it"
    );
    let running = tokio::spawn(sync.run());
    assert_eq!(wait_for_first(&mut state, FIRST_SYNC_TIMEOUT).await, fine());
    running.abort();
}

#[test]
fn hostile_keys_are_refused() {
    let long = "x".repeat(256);
    let deep = "a/".repeat(40) + "b";
    for bad in [
        "",
        "..",
        "a/../../b",
        "/etc/passwd",
        "a//b",
        "a/",
        "a/./b",
        "a\0b",
        "a\nb",
        ".airlock-sync/table.json",
        "weather/.airlock-x/lib.py",
        "x/.airlock-sync",
        &long,
        &deep,
    ] {
        assert!(refusal(bad).is_some(), "{bad:?}");
    }
    for good in [
        "a",
        "a/b c/ü.py",
        "...",
        "a..b",
        "python/.hidden",
        "a\\b",
        "x/a.airlock-b",
    ] {
        assert_eq!(refusal(good), None, "{good:?}");
    }
}

/// Every file beneath, by its path.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => walk(&entry.path(), found),
            false => found.push(entry.path()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_the_keys_every_file_is_inside(keys in proptest::collection::vec("(\\.\\.|\\.|[a-c/ü%#?\\\\ ]|\\.airlock-){1,6}", 0..12)) {
        let world = World::new();
        // The folder is one of two in its parent, so that a step out of it would be seen.
        let parent = world.folder.clone();
        let inside = World { bucket: world.bucket.clone(), folder: parent.join("inside") };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let state = runtime.block_on(async {
            for key in &keys {
                // What a store's own client cannot name, this one cannot hold either.
                if let Ok(key) = Key::parse(format!("my/org/str-runtime/{key}")) {
                    inside.bucket.put(&key, "bytes".into()).await.unwrap();
                }
            }
            inside.sync().cycle().await
        });
        prop_assert!(matches!(state, SyncState::Ok { .. }), "{:?}", state);
        let mut found = Vec::new();
        walk(&parent, &mut found);
        for path in found {
            prop_assert!(path.starts_with(&inside.folder), "{:?}", path);
        }
    }
}
