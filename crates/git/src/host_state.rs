//! The state of a host's repository before an import, as far as it forbids the update of a branch.

use crate::{
    GitError, Head, ObjectFormat, RefMap, failed, index,
    openat::{self, READ_DIR},
    refs,
    snapshot::{GitFolders, MAX_INDEX_BYTES},
};
use rustix::fs::OFlags;
use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Files and folders of an operation in progress, with its name.
const OPERATIONS: [(&str, &str); 7] = [
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
    ("sequencer", "a sequence of picks"),
    ("BISECT_LOG", "a bisection"),
];
/// Files in which a worktree records the branch to which it will return.
const HEAD_NAMES: [&str; 3] = [
    "rebase-merge/head-name",
    "rebase-apply/head-name",
    "BISECT_START",
];
/// Bytes of a file that names a branch.
const MAX_NAME_BYTES: u64 = 4096;

/// The state of a repository.
#[derive(Debug)]
pub struct HostState {
    /// Its `HEAD`.
    pub head: Head,
    /// Its references.
    pub refs: RefMap,
    /// The operation in progress.
    pub operation: Option<&'static str>,
    /// Branches that are checked out in other worktrees.
    pub open_elsewhere: BTreeSet<String>,
}

impl HostState {
    /// Reads the state.
    pub fn read(folders: &GitFolders, format: ObjectFormat) -> Result<HostState, GitError> {
        let is_there = |name: &str| openat::open(&folders.git, name, OFlags::PATH).is_ok();
        let operation = OPERATIONS.iter().find(|(name, _)| is_there(name));
        let operation = operation.map(|(_, words)| *words);
        Ok(HostState {
            head: refs::read_head(folders.git.as_fd(), format)?,
            refs: RefMap::read(folders.common.as_fd(), format)?,
            operation: operation.or(conflicts(folders, format)?),
            open_elsewhere: open_elsewhere(folders, format)?,
        })
    }
}

/// Unresolved conflicts, which `git stash pop` leaves without any other trace. An unreadable index
/// is ignored here: the git that merges it reports the error.
fn conflicts(folders: &GitFolders, format: ObjectFormat) -> Result<Option<&'static str>, GitError> {
    let index =
        openat::read(&folders.git, "index", MAX_INDEX_BYTES).map_err(failed("read the index"))?;
    let found = index.and_then(|index| index::has_conflicts(&index, format));
    Ok((found == Some(true)).then_some("the resolution of conflicts"))
}

fn open_elsewhere(
    folders: &GitFolders,
    format: ObjectFormat,
) -> Result<BTreeSet<String>, GitError> {
    let looking = || failed("look at the other worktrees");
    let mut open = BTreeSet::new();
    if !is_same(&folders.git, &folders.common).map_err(looking())? {
        add_open(&folders.common, format, &mut open)?;
    }
    let worktrees = match openat::open(&folders.common, "worktrees", READ_DIR) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(open),
        worktrees => worktrees.map_err(looking())?,
    };
    for name in openat::names(&worktrees).map_err(looking())? {
        let Ok(folder) = openat::open(&worktrees, &name, READ_DIR) else {
            continue;
        };
        if !is_same(&folder, &folders.git).map_err(looking())? {
            add_open(&folder, format, &mut open)?;
        }
    }
    Ok(open)
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn add_open(
    folder: &OwnedFd,
    format: ObjectFormat,
    open: &mut BTreeSet<String>,
) -> Result<(), GitError> {
    match refs::read_head(folder.as_fd(), format) {
        Ok(Head::Branch(name)) => _ = open.insert(name),
        // A folder without `HEAD` is no worktree.
        Ok(Head::Detached(_)) | Err(GitError::Unsupported(_)) => {}
        Err(error) => return Err(error),
    }
    for name in HEAD_NAMES {
        let text = match openat::read(folder, name, MAX_NAME_BYTES) {
            // If `rebase-merge` is not a folder, no rebase is in progress.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
            text => text.map_err(failed("look at the other worktrees"))?,
        };
        let Some(text) = text.and_then(|text| String::from_utf8(text).ok()) else {
            continue;
        };
        let name = text.trim();
        open.insert(if name.starts_with("refs/") {
            name.to_owned()
        } else {
            format!("refs/heads/{name}")
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, File},
        path::PathBuf,
    };

    const ID: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904\n";

    #[test]
    fn what_is_begun_and_what_is_open_elsewhere_is_seen() {
        let top: PathBuf =
            std::env::temp_dir().join(format!("airlock-host-{}", std::process::id()));
        _ = fs::remove_dir_all(&top);
        for (path, text) in [
            ("HEAD", "ref: refs/heads/main\n"),
            ("refs/heads/main", ID),
            ("worktrees/own/HEAD", "ref: refs/heads/own\n"),
            ("worktrees/a/HEAD", "ref: refs/heads/a\n"),
            ("worktrees/b/HEAD", ID),
            ("worktrees/b/rebase-merge/head-name", "refs/heads/b\n"),
            ("worktrees/c/HEAD", ID),
            ("worktrees/c/BISECT_START", "c\n"),
        ] {
            let path = top.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let open = |git: &str| GitFolders {
            git: File::open(top.join(git)).unwrap().into(),
            common: File::open(&top).unwrap().into(),
            path: top.clone(),
            git_path: top.join(git),
        };
        let read = |git| HostState::read(&open(git), ObjectFormat::Sha1).unwrap();
        let names = |state: HostState| Vec::from_iter(state.open_elsewhere);
        assert_eq!(
            names(read(".")),
            ["a", "b", "c", "own"].map(|name| format!("refs/heads/{name}"))
        );
        assert_eq!(
            names(read("worktrees/own")),
            ["a", "b", "c", "main"].map(|name| format!("refs/heads/{name}"))
        );
        assert_eq!(read(".").operation, None);
        assert_eq!(read("worktrees/b").operation, Some("a rebase"));
        for (name, words) in OPERATIONS {
            fs::write(top.join(name), ID).unwrap();
            assert_eq!(read(".").operation, Some(words));
            // What is begun in one worktree is none of another's.
            assert_eq!(read("worktrees/own").operation, None);
            fs::remove_file(top.join(name)).unwrap();
        }
        assert_eq!(read(".").operation, None);
        fs::remove_dir_all(top).unwrap();
    }
}
