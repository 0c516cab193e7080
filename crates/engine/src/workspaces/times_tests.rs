//! What git sees of files to which the program gave a time that the index knows, where git looks at nothing but sizes and
//! whole seconds: new contents are seen all the same.

use super::*;
use std::{
    process::Command,
    time::{Duration, SystemTime},
};

/// Long before any test: no index is written in this second.
const THEN: Duration = Duration::from_secs(1_000_000_000);
/// Names that the index knows, the second one although it is not in the folder.
const KNOWN: [&str; 2] = ["changed", "removed"];

fn git(folder: &Path, words: &[&str]) -> String {
    let done = Command::new("git")
        .args(["-c", "user.name=n", "-c", "user.email=a@b"])
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .output()
        .unwrap();
    assert!(done.status.success(), "git {words:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn write_then(path: PathBuf, text: &str) {
    fs::write(&path, text).unwrap();
    let file = fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + THEN).unwrap();
}

fn fill(folder: &Path) {
    git(folder, &["init", "-q", "-b", "main", "."]);
    git(folder, &["config", "core.checkStat", "minimal"]);
    for name in KNOWN {
        write_then(folder.join(name), "one\n");
    }
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "-m", "one"]);
    fs::remove_file(folder.join("removed")).unwrap();
}

#[test]
fn git_sees_new_contents_although_the_program_kept_size_and_time() {
    let mut place = Place::new(fill);
    for name in KNOWN.into_iter().chain(["new"]) {
        write_then(place.inside(name), "two\n");
    }
    place.end();
    place.commit(CommitOptions::default()).unwrap();
    let status = git(&place.folder("."), &["status", "--short"]);
    assert_eq!(status, " M changed\n M removed\n?? new\n");
    // No index knows it: it keeps its time.
    let new = fs::metadata(place.folder("new")).unwrap();
    assert_eq!(new.modified().unwrap(), SystemTime::UNIX_EPOCH + THEN);
}

#[test]
fn the_control_with_their_old_times_git_does_not_see_new_contents() {
    let place = Place::filled(fill);
    for name in KNOWN {
        write_then(place.folder(name), "two\n");
    }
    assert_eq!(git(&place.folder("."), &["status", "--short"]), "");
}
