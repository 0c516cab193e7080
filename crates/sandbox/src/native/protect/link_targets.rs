//! Files without a protected name that are obeyed all the same: targets of protected links, and
//! other hard links of protected files.

use super::{
    beneath,
    snapshot::{ProtectedEntry, WorkspaceSnapshot},
    walk::{self, WalkStep},
};
use rustix::fs::{FileType, OFlags};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// Recognizes a file: inode and birth time.
pub(super) type InodeBirth = (u64, (i64, i64));

/// The identity of the file at a path, if there is one.
pub(super) fn identity(workspace: BorrowedFd<'_>, path: &Path) -> Option<InodeBirth> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let parent = beneath::open(workspace, parent.unwrap_or(Path::new(".")), flags).ok()?;
    let name = path.file_name()?;
    let found = beneath::look(&parent, name).ok()??;
    Some((found.st_ino, beneath::born(&parent, name).ok()?))
}

/// The target of each protected link in the workspace.
pub(super) fn of_links(
    workspace: BorrowedFd<'_>,
    protected: &BTreeMap<PathBuf, ProtectedEntry>,
) -> BTreeMap<PathBuf, InodeBirth> {
    let links = protected.iter().filter(|(_, entry)| entry.target.is_some());
    let led = links.filter_map(|(path, _)| {
        let inside = beneath::target_inside(workspace, path)?;
        Some((path.clone(), identity(workspace, &inside)?))
    });
    led.collect()
}

/// Other hard links, in the same workspace, of protected files and of files in protected folders.
/// The program sees a git folder of its own, so `.git` is left out.
pub(super) fn second_names(
    workspace: BorrowedFd<'_>,
    start: &WorkspaceSnapshot,
) -> io::Result<Vec<PathBuf>> {
    let mut shared = BTreeSet::new();
    for (path, entry) in &start.protected {
        if entry.target.is_none() && !path.ends_with(".git") {
            add_shared(workspace, path, &mut shared)?;
        }
    }
    let mut names = Vec::new();
    if shared.is_empty() {
        return Ok(names);
    }
    walk::walk(workspace, |visit| {
        if start.protected.contains_key(visit.path) {
            return Ok(WalkStep::Pass);
        }
        if visit.kind == FileType::RegularFile && shared.contains(&visit.inode) {
            names.push(visit.path.to_owned());
        }
        Ok(WalkStep::Enter)
    })?;
    Ok(names)
}

/// Adds the inodes of files with more than one hard link.
fn add_shared(
    workspace: BorrowedFd<'_>,
    path: &Path,
    shared: &mut BTreeSet<u64>,
) -> io::Result<()> {
    let Ok(found) = beneath::open(workspace, path, OFlags::PATH) else {
        return Ok(());
    };
    let about = rustix::fs::fstat(&found)?;
    match beneath::kind(&about) {
        FileType::Directory => {
            walk::walk(found.as_fd(), |visit| {
                if visit.kind == FileType::RegularFile
                    && let Ok(Some(about)) = beneath::look(visit.folder, visit.name)
                    && about.st_nlink > 1
                {
                    shared.insert(visit.inode);
                }
                Ok(WalkStep::Enter)
            })?;
        }
        FileType::RegularFile if about.st_nlink > 1 => _ = shared.insert(about.st_ino),
        _ => {}
    }
    Ok(())
}
