//! Claims about the folder backend only: drafts of dead writers, damage, links, permissions. The
//! others are in `tests/server/artifacts`.

use super::{folder::FolderBackend, *};
use bytes::Bytes;
use proptest::prelude::*;
use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

struct TestFolder(PathBuf);

impl TestFolder {
    fn new() -> TestFolder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("airlock-store-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        TestFolder(path)
    }

    fn artifacts(&self) -> Artifacts {
        Artifacts::open(ArtifactSettings::folder(self.0.join("artifacts"))).unwrap()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join("artifacts").join(path)
    }

    fn drafts(&self) -> usize {
        fs::read_dir(self.at(".drafts")).unwrap().count()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(text: impl AsRef<OsStr>) -> WorkspacePath {
    WorkspacePath::new(Path::new(&text)).unwrap()
}

async fn put(
    artifacts: &Artifacts,
    at: &WorkspacePath,
    bytes: &[u8],
) -> Result<StoredArtifact, ArtifactError> {
    let mut putting = artifacts.begin(NewArtifact::local(at.clone())).await?;
    putting.write(Bytes::copy_from_slice(bytes)).await?;
    putting.finish(None).await
}

async fn content(artifacts: &Artifacts, at: &WorkspacePath, version: Option<u64>) -> Vec<u8> {
    let mut reading = artifacts
        .open_version(&ArtifactOwner::local(), at, version)
        .await
        .unwrap();
    let mut all = Vec::new();
    while let Some(bytes) = reading.next().await.unwrap() {
        all.extend(bytes);
    }
    all
}

async fn list(artifacts: &Artifacts) -> ArtifactListing {
    artifacts.list(ArtifactQuery::all(None)).await
}

#[tokio::test]
async fn what_was_kept_before_there_were_owners_is_still_there() {
    let location = TestFolder::new();
    fs::create_dir_all(location.at("a%2Fout.txt/3")).unwrap();
    fs::write(location.at("a%2Fout.txt/3/bytes"), b"abc").unwrap();
    let metadata = "{\"name\":\"a/out.txt\",\"size_bytes\":3,\
        \"sha256\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\",\
        \"kept_at_ms\":1700000000000,\"run_id\":\"run-1\"}";
    fs::write(location.at("a%2Fout.txt/3/about.json"), metadata).unwrap();
    let artifacts = location.artifacts();
    let kept = list(&artifacts).await.kept;
    assert_eq!(kept.len(), 1);
    assert_eq!(
        (kept[0].version, kept[0].lineage.run_id.as_deref()),
        (3, Some("run-1"))
    );
    assert_eq!(kept[0].content_type, "text/plain; charset=utf-8");
    assert_eq!(content(&artifacts, &name("a/out.txt"), None).await, b"abc");
    assert_eq!(
        put(&artifacts, &name("a/out.txt"), b"")
            .await
            .unwrap()
            .version,
        4
    );
}

#[tokio::test]
async fn what_is_not_finished_leaves_nothing_behind() {
    let location = TestFolder::new();
    let artifacts = location.artifacts();
    let mut putting = artifacts
        .begin(NewArtifact::local(name("x")))
        .await
        .unwrap();
    putting.write(Bytes::from(vec![0; 1 << 20])).await.unwrap();
    assert_eq!(location.drafts(), 1, "the draft is where it is looked for");
    drop(putting);
    // A pending write completes first.
    let gone = async {
        while location.drafts() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("the draft goes");
    assert_eq!(list(&artifacts).await, ArtifactListing::default());
}

#[tokio::test]
async fn what_is_removed_is_gone_and_what_is_being_read_stays_readable() {
    let location = TestFolder::new();
    let artifacts = location.artifacts();
    for bytes in [b"1", b"2", b"3"] {
        put(&artifacts, &name("x"), bytes).await.unwrap();
    }
    let mut open = artifacts
        .open_version(&ArtifactOwner::local(), &name("x"), Some(2))
        .await
        .unwrap();
    assert_eq!(
        artifacts
            .remove(&ArtifactOwner::local(), &name("x"), None)
            .await
            .unwrap(),
        3
    );
    assert_eq!(
        fs::read_dir(location.at("")).unwrap().count(),
        1,
        "only .drafts"
    );
    assert_eq!(location.drafts(), 0);
    assert_eq!(open.next().await.unwrap().unwrap(), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_writers_sweeps_and_removers_do_not_disturb_each_other() {
    let location = TestFolder::new();
    let artifacts = location.artifacts();
    let writers: Vec<_> = (0..4_u8)
        .map(|writer| {
            let artifacts = artifacts.clone();
            tokio::spawn(async move {
                for round in 0..10_u8 {
                    put(&artifacts, &name("same"), &[writer, round])
                        .await
                        .unwrap();
                    put(&artifacts, &name("other"), &[writer]).await.unwrap();
                }
            })
        })
        .collect();
    while writers.iter().any(|writer| !writer.is_finished()) {
        assert_eq!(artifacts.sweep(), Vec::<String>::new());
        match artifacts
            .remove(&ArtifactOwner::local(), &name("other"), None)
            .await
        {
            Ok(_) | Err(ArtifactError::Missing { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let listing = artifacts
        .list(ArtifactQuery {
            name: &|at| *at == name("same"),
            ..ArtifactQuery::all(None)
        })
        .await;
    assert_eq!(listing.problems, Vec::<String>::new());
    let versions: Vec<_> = listing.kept.iter().map(|kept| kept.version).collect();
    assert_eq!(versions, (1..=40).collect::<Vec<_>>());
    let mut digests: Vec<_> = listing.kept.iter().map(|kept| &kept.sha256).collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 40);
}

#[tokio::test]
async fn damaged_entries_are_reported_and_the_others_still_listed() {
    let location = TestFolder::new();
    let artifacts = location.artifacts();
    for each in ["good", "cut", "garbled", "moved", "gone", "linked"] {
        put(&artifacts, &name(each), b"abc").await.unwrap();
    }
    fs::write(location.at("cut/1/bytes"), b"ab").unwrap();
    fs::write(location.at("garbled/1/about.json"), b"{").unwrap();
    fs::rename(location.at("moved"), location.at("elsewhere")).unwrap();
    fs::remove_file(location.at("gone/1/bytes")).unwrap();
    fs::remove_file(location.at("linked/1/bytes")).unwrap();
    symlink("/etc/passwd", location.at("linked/1/bytes")).unwrap();
    symlink("/etc", location.at("outside")).unwrap();
    symlink("/etc", location.at("@key")).unwrap();
    fs::write(location.at("file"), b"").unwrap();
    fs::create_dir(location.at("good/007")).unwrap();
    let owner = ArtifactOwner::local();
    let listing = artifacts.list(ArtifactQuery::all(Some(&owner))).await;
    assert_eq!(
        listing
            .kept
            .iter()
            .map(|kept| kept.name.clone())
            .collect::<Vec<_>>(),
        [name("good")]
    );
    assert_eq!(listing.problems.len(), 7, "{:#?}", listing.problems);
    let all = list(&artifacts).await;
    assert_eq!(
        (all.kept.len(), all.problems.len()),
        (1, 8),
        "the link in place of an owner, too: {:#?}",
        all.problems
    );
    for each in ["cut", "garbled", "gone", "linked"] {
        let error = artifacts
            .open_version(&owner, &name(each), None)
            .await
            .unwrap_err();
        assert!(
            matches!(error, ArtifactError::Damaged { .. }),
            "{each} {error:?}"
        );
        assert_eq!(
            artifacts.remove(&owner, &name(each), None).await.unwrap(),
            1,
            "{each}"
        );
    }
    let key = ArtifactOwner::key(&spec::Id::new("key").unwrap());
    assert!(
        artifacts
            .open_version(&key, &name("passwd"), None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn only_the_owner_may_look_into_the_folder() {
    let location = TestFolder::new();
    fs::create_dir(location.at("")).unwrap();
    fs::set_permissions(location.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    put(&location.artifacts(), &name("x"), b"x").await.unwrap();
    assert_eq!(fs::metadata(location.at("")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(
        fs::metadata(location.at("x")).unwrap().mode() & 0o777,
        0o700
    );
    assert_eq!(
        fs::metadata(location.at("x/1/bytes")).unwrap().mode() & 0o777,
        0o600
    );
}

/// The body of the child process in `the_sweep_removes_drafts_of_dead_writers_only`.
#[test]
#[ignore = "a child of another test"]
fn child_writes_until_it_is_killed() {
    let folder = std::env::var_os("AIRLOCK_TEST_FOLDER").unwrap();
    let _draft = FolderBackend::open(Path::new(&folder))
        .unwrap()
        .draft()
        .unwrap();
    println!("\nwriting");
    loop {
        std::thread::park();
    }
}

fn writer(folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--nocapture",
            "child_writes_until_it_is_killed",
        ])
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
    let location = TestFolder::new();
    let artifacts = location.artifacts();
    let mut dying = writer(&location.at(""));
    let mut living = writer(&location.at(""));
    fs::create_dir(location.at(".drafts/died-at-once")).unwrap();
    assert_eq!(location.drafts(), 3);
    dying.kill().unwrap();
    dying.wait().unwrap();
    assert_eq!(artifacts.sweep(), Vec::<String>::new());
    assert_eq!(location.drafts(), 1, "the living one's");
    living.kill().unwrap();
    living.wait().unwrap();
    assert_eq!(artifacts.sweep(), Vec::<String>::new());
    assert_eq!(location.drafts(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_name_is_kept_listed_and_opened_as_itself(bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        let Ok(any) = WorkspacePath::new(Path::new(OsStr::from_bytes(&bytes))) else { return Ok(()) };
        let location = TestFolder::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let artifacts = location.artifacts();
            put(&artifacts, &any, b"abc").await.unwrap();
            let listing = list(&artifacts).await;
            prop_assert_eq!(&listing.problems, &Vec::<String>::new());
            prop_assert_eq!(&listing.kept[0].name, &any);
            prop_assert_eq!(content(&artifacts, &any, None).await, b"abc".to_vec());
            prop_assert_eq!(artifacts.remove(&ArtifactOwner::local(), &any, None).await.unwrap(), 1);
            Ok(())
        })?;
    }
}
