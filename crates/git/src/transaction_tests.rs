use super::*;
use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";
const INDEX: &[u8] = b"the index that was merged";

struct Repository {
    top: PathBuf,
    folders: GitFolders,
}

impl Repository {
    fn new(name: &str) -> Repository {
        let top = std::env::temp_dir().join(format!("airlock-tx-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&top);
        for (path, text) in [
            ("HEAD", "ref: refs/heads/main\n".to_owned()),
            ("index", "the index".to_owned()),
            ("refs/heads/main", format!("{OLD}\n")),
            ("packed-refs", format!("{OLD} refs/heads/packed\n")),
            ("logs/HEAD", "first\n".to_owned()),
            ("refs/airlock/r/heads/main", format!("{NEW}\n")),
        ] {
            let path = top.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let open = || OwnedFd::from(File::open(&top).unwrap());
        let folders = GitFolders {
            git: open(),
            common: open(),
            path: top.clone(),
            git_path: top.clone(),
        };
        Repository { top, folders }
    }

    fn transaction(&self) -> Transaction {
        let index = IndexFile::read(&self.folders).unwrap().unwrap();
        let step = |target, old: Option<&str>, new: Option<&str>| TransactionStep {
            target,
            old: old.map(str::to_owned),
            new: new.map(str::to_owned),
        };
        let reference = |name: &str| TransactionTarget::Ref(name.to_owned());
        let log = |target| ReflogLine {
            target,
            begin: true,
            line: "moved\tairlock: run r".to_owned(),
        };
        Transaction {
            drafts: "airlock-draft".to_owned(),
            format: ObjectFormat::Sha1,
            steps: vec![
                step(
                    TransactionTarget::Index,
                    Some(&index.checksum(ObjectFormat::Sha1)),
                    Some(&index_checksum(INDEX, ObjectFormat::Sha1)),
                ),
                step(reference("refs/heads/main"), Some(OLD), Some(NEW)),
                step(reference("refs/heads/packed"), Some(OLD), Some(NEW)),
                step(reference("refs/heads/new/one"), None, Some(NEW)),
                step(
                    TransactionTarget::Head,
                    Some("ref: refs/heads/main"),
                    Some("ref: refs/heads/new/one"),
                ),
            ],
            logs: vec![
                log(TransactionTarget::Head),
                log(reference("refs/heads/main")),
            ],
            airlock_refs: vec![(
                "refs/airlock/r/heads/main".to_owned(),
                ObjectId::parse(NEW, ObjectFormat::Sha1).unwrap(),
            )],
            pack: None,
        }
    }

    fn begin(&self, transaction: &Transaction) {
        let before = IndexFile::read(&self.folders).unwrap();
        transaction
            .write_drafts(&self.folders, Some(INDEX), before.as_ref())
            .unwrap();
        transaction.lock(&self.folders, Duration::ZERO).unwrap();
        transaction.compare(&self.folders).unwrap();
    }

    /// Every file with what it says, locks and drafts among them.
    fn files(&self) -> Vec<(String, String)> {
        let (mut found, mut left) = (Vec::new(), vec![self.top.clone()]);
        while let Some(path) = left.pop() {
            if path.is_dir() {
                left.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
                continue;
            }
            let name = path.strip_prefix(&self.top).unwrap().display().to_string();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
        found.sort();
        found
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.top.join(name)).unwrap()
    }

    fn is_moved(&self) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let new = format!("{NEW}\n");
        let wanted = [
            ("HEAD", "ref: refs/heads/new/one\n".to_owned()),
            ("index", text(INDEX)),
            ("logs/HEAD", "first\nmoved\tairlock: run r\n".to_owned()),
            ("logs/refs/heads/main", "moved\tairlock: run r\n".to_owned()),
            ("packed-refs", format!("{OLD} refs/heads/packed\n")),
            ("refs/heads/main", new.clone()),
            ("refs/heads/new/one", new.clone()),
            ("refs/heads/packed", new),
        ];
        assert_eq!(
            self.files(),
            wanted.map(|(name, text)| (name.to_owned(), text))
        );
        assert!(!self.top.join("refs/airlock/r").exists());
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.top).unwrap();
    }
}

#[test]
fn everything_moves_and_nothing_is_left_of_the_way() {
    let repository = Repository::new("moves");
    let transaction = repository.transaction();
    let before = fs::metadata(repository.top.join("index")).unwrap();
    repository.begin(&transaction);
    transaction.apply(&repository.folders).unwrap();
    transaction.release(&repository.folders).unwrap();
    repository.is_moved();
    // Files that git had to look at again it still has to.
    let after = fs::metadata(repository.top.join("index")).unwrap();
    let time = |found: &fs::Metadata| (found.mtime(), found.mtime_nsec());
    assert_eq!(time(&after), time(&before));
    assert_eq!(after.nlink(), 1);
}

#[test]
fn what_is_given_up_leaves_everything_as_it_was() {
    let repository = Repository::new("gives-up");
    let (transaction, before) = (repository.transaction(), repository.files());
    repository.begin(&transaction);
    transaction.release(&repository.folders).unwrap();
    assert_eq!(repository.files(), before);
    assert!(!repository.top.join("refs/heads/new").exists());
}

/// Killed between any two steps, and ended by another process that knows what was written down.
#[test]
fn what_was_begun_is_ended_from_every_step() {
    for done in 0..5 {
        let repository = Repository::new(&format!("ends-{done}"));
        let transaction = repository.transaction();
        repository.begin(&transaction);
        for step in &transaction.steps[..done] {
            let (folder, last) = step.target.place(&repository.folders).unwrap();
            rustix::fs::renameat(&folder, format!("{last}.lock"), &folder, last).unwrap();
        }
        let written_down = Transaction::parse(&transaction.text()).unwrap();
        assert_eq!(written_down, transaction);
        // The second time as the first.
        for _ in 0..2 {
            written_down.apply(&repository.folders).unwrap();
        }
        written_down.release(&repository.folders).unwrap();
        repository.is_moved();
        written_down.apply(&repository.folders).unwrap();
        written_down.release(&repository.folders).unwrap();
        repository.is_moved();
    }
}

#[test]
fn locks_of_others_are_waited_for_and_stay() {
    for name in ["index", "HEAD", "refs/heads/main", "refs/heads/packed"] {
        let repository = Repository::new("held");
        let lock = repository.top.join(format!("{name}.lock"));
        fs::write(&lock, "a git's own").unwrap();
        let (transaction, before) = (repository.transaction(), repository.files());
        transaction
            .write_drafts(&repository.folders, Some(INDEX), None)
            .unwrap();
        let told = transaction
            .lock(&repository.folders, Duration::from_millis(30))
            .unwrap_err();
        assert_eq!(told.to_string(), format!("`{name}.lock` is held"));
        transaction.release(&repository.folders).unwrap();
        assert_eq!(repository.files(), before);
    }
}

#[test]
fn what_was_changed_meanwhile_is_seen_under_the_locks() {
    for (name, text) in [
        ("index", "another"),
        ("HEAD", OLD),
        ("refs/heads/main", NEW),
        ("refs/heads/packed", NEW),
        ("refs/heads/new/one", OLD),
    ] {
        let repository = Repository::new("changed");
        let transaction = repository.transaction();
        let path = repository.top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("{text}\n")).unwrap();
        let before = repository.files();
        transaction
            .write_drafts(&repository.folders, Some(INDEX), None)
            .unwrap();
        transaction
            .lock(&repository.folders, Duration::ZERO)
            .unwrap();
        let told = transaction.compare(&repository.folders).unwrap_err();
        assert_eq!(told.to_string(), format!("`{name}` was changed meanwhile"));
        transaction.release(&repository.folders).unwrap();
        assert_eq!(repository.files(), before);
    }
}

/// A user who finds a lock of ours removes it, and goes on.
#[test]
fn what_a_user_changed_after_a_crash_is_not_overwritten() {
    let repository = Repository::new("goes-on");
    let transaction = repository.transaction();
    repository.begin(&transaction);
    fs::remove_file(repository.top.join("index.lock")).unwrap();
    fs::write(repository.top.join("index"), "the user's").unwrap();
    assert!(transaction.apply(&repository.folders).is_err());
    transaction.release(&repository.folders).unwrap();
    assert_eq!(repository.read("index"), "the user's");
    assert_eq!(repository.read("refs/heads/main"), format!("{OLD}\n"));
    // The control: where he changed nothing, it is ended.
    let repository = Repository::new("goes-on-not");
    let transaction = repository.transaction();
    repository.begin(&transaction);
    fs::remove_file(repository.top.join("index.lock")).unwrap();
    transaction.apply(&repository.folders).unwrap();
    transaction.release(&repository.folders).unwrap();
    repository.is_moved();
}

#[test]
fn links_are_not_followed() {
    let repository = Repository::new("links");
    let outside = repository.top.join("refs/outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, repository.top.join("refs/heads/new")).unwrap();
    let transaction = repository.transaction();
    transaction
        .write_drafts(&repository.folders, Some(INDEX), None)
        .unwrap();
    assert!(
        transaction
            .lock(&repository.folders, Duration::ZERO)
            .is_err()
    );
    transaction.release(&repository.folders).unwrap();
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
}

#[test]
fn half_of_what_was_written_down_is_nothing() {
    let text = Repository::new("text").transaction().text();
    assert!(Transaction::parse(&text).is_some());
    for end in 0..text.len() {
        assert_eq!(Transaction::parse(&text[..end]), None, "{end}");
    }
    let elsewhere = text.replace("refs/heads/main", "../main");
    assert_eq!(Transaction::parse(&elsewhere), None);
}

/// Git leaves folders of references that are gone.
#[test]
fn an_empty_folder_makes_room_for_a_reference_and_another_does_not() {
    for (below, is_moved) in [(None, true), (Some("below"), false)] {
        let repository = Repository::new("room");
        let place = repository.top.join("refs/heads/new/one");
        fs::create_dir_all(&place).unwrap();
        if let Some(below) = below {
            fs::write(place.join(below), format!("{OLD}\n")).unwrap();
        }
        let (transaction, folders) = (repository.transaction(), &repository.folders);
        transaction
            .write_drafts(folders, Some(INDEX), None)
            .unwrap();
        transaction.lock(folders, Duration::ZERO).unwrap();
        assert_eq!(transaction.compare(folders).is_ok(), is_moved);
        if is_moved {
            transaction.apply(folders).unwrap();
        }
        transaction.release(folders).unwrap();
        match is_moved {
            true => repository.is_moved(),
            false => assert_eq!(repository.read("refs/heads/main"), format!("{OLD}\n")),
        }
    }
}

/// Killed while it gave its locks back: what the user did since is not undone, and no line is
/// written behind his.
#[test]
fn what_was_released_is_not_carried_out_again() {
    let repository = Repository::new("released");
    let (transaction, folders) = (repository.transaction(), &repository.folders);
    repository.begin(&transaction);
    transaction.apply(folders).unwrap();
    let last = transaction.draft(transaction.steps.len() - 1);
    fs::remove_file(repository.top.join(last)).unwrap();
    let log = repository.top.join("logs/HEAD");
    fs::write(&log, fs::read_to_string(&log).unwrap() + "the user's\n").unwrap();
    fs::create_dir_all(repository.top.join("refs/airlock/r/heads")).unwrap();
    fs::write(
        repository.top.join("refs/airlock/r/heads/main"),
        format!("{NEW}\n"),
    )
    .unwrap();
    transaction.apply(folders).unwrap();
    transaction.release(folders).unwrap();
    assert!(repository.read("logs/HEAD").ends_with("\nthe user's\n"));
    assert_eq!(
        repository.read("refs/airlock/r/heads/main"),
        format!("{NEW}\n")
    );
    assert!(
        repository
            .files()
            .iter()
            .all(|(name, _)| !name.contains("airlock-draft"))
    );
}

/// Somebody tidies up; what is left is given back.
#[test]
fn without_one_of_its_drafts_nothing_more_is_moved() {
    let repository = Repository::new("tidied");
    let (transaction, folders) = (repository.transaction(), &repository.folders);
    repository.begin(&transaction);
    fs::remove_file(repository.top.join(transaction.draft(1))).unwrap();
    let told = transaction.apply(folders).unwrap_err();
    assert_eq!(told.to_string(), "the draft of `refs/heads/main` is gone");
    transaction.release(folders).unwrap();
    assert_eq!(repository.read("refs/heads/main"), format!("{OLD}\n"));
    assert_eq!(
        repository.read("refs/airlock/r/heads/main"),
        format!("{NEW}\n")
    );
}

#[test]
fn a_reflog_is_begun_if_that_is_wanted_and_never_through_a_link() {
    let repository = Repository::new("logs");
    let mut transaction = repository.transaction();
    transaction.logs[1].begin = false;
    let outside = repository.top.join("outside");
    fs::write(&outside, "outside").unwrap();
    fs::remove_file(repository.top.join("logs/HEAD")).unwrap();
    std::os::unix::fs::symlink(&outside, repository.top.join("logs/HEAD")).unwrap();
    repository.begin(&transaction);
    transaction.apply(&repository.folders).unwrap();
    transaction.release(&repository.folders).unwrap();
    assert_eq!(repository.read("refs/heads/main"), format!("{NEW}\n"));
    assert!(!repository.top.join("logs/refs/heads/main").exists());
    assert_eq!(repository.read("outside"), "outside");
}

/// Index and `HEAD` are a worktree's own; references belong to all.
#[test]
fn a_linked_worktree_has_its_own_index_and_head() {
    let repository = Repository::new("linked");
    let own = repository.top.join("worktrees/own");
    fs::create_dir_all(&own).unwrap();
    for name in ["index", "HEAD"] {
        fs::copy(repository.top.join(name), own.join(name)).unwrap();
    }
    let folders = GitFolders {
        git: File::open(&own).unwrap().into(),
        common: File::open(&repository.top).unwrap().into(),
        path: repository.top.clone(),
        git_path: own.clone(),
    };
    let transaction = repository.transaction();
    let before = IndexFile::read(&folders).unwrap();
    transaction
        .write_drafts(&folders, Some(INDEX), before.as_ref())
        .unwrap();
    transaction.lock(&folders, Duration::ZERO).unwrap();
    transaction.compare(&folders).unwrap();
    transaction.apply(&folders).unwrap();
    transaction.release(&folders).unwrap();
    assert_eq!(fs::read(own.join("index")).unwrap(), INDEX);
    let read = |name: &str| fs::read_to_string(own.join(name)).unwrap();
    assert_eq!(read("HEAD"), "ref: refs/heads/new/one\n");
    assert_eq!(read("logs/HEAD"), "moved\tairlock: run r\n");
    assert_eq!(repository.read("HEAD"), "ref: refs/heads/main\n");
    assert_eq!(repository.read("index"), "the index");
    assert_eq!(repository.read("refs/heads/main"), format!("{NEW}\n"));
}
