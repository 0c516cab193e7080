//! Walking through a workspace: each folder by handle, no link followed, within bounds.

use super::beneath;
use rustix::fs::{Dir, FileType};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// Names that are looked at. Beyond it the walk fails.
const MAX_NAMES: usize = 4_000_000;

/// File systems in whose files nothing can be kept, and which may be endless.
const KERNEL_FILE_SYSTEMS: [u64; 10] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x1cd1,      // devpts
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x4249_4e4d, // binfmt_misc
];

/// One name on the way.
pub(super) struct Visit<'a> {
    /// The folder that holds it.
    pub(super) folder: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// Relative to the workspace.
    pub(super) path: &'a Path,
    pub(super) kind: FileType,
    pub(super) inode: u64,
}

/// What to do with a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Enter,
    Pass,
}

/// A folder that could not be looked into.
pub(super) struct Unread {
    pub(super) path: PathBuf,
    pub(super) why: io::Error,
}

/// Visits every name below `root`, parents first; gives back what could not be read.
pub(super) fn walk(
    root: BorrowedFd<'_>,
    mut visit: impl FnMut(&Visit<'_>) -> io::Result<Next>,
) -> io::Result<Vec<Unread>> {
    let mut unread = Vec::new();
    let mut left = MAX_NAMES;
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        match read_folder(root, &path, &mut left, &mut visit) {
            Ok(folders) => pending.extend(folders),
            Err(Failed::Read(why)) => unread.push(Unread { path, why }),
            Err(Failed::Visit(error)) => return Err(error),
        }
    }
    Ok(unread)
}

enum Failed {
    Read(io::Error),
    Visit(io::Error),
}

/// Visits the names in one folder; gives back the folders that are to be entered.
fn read_folder(
    root: BorrowedFd<'_>,
    path: &Path,
    left: &mut usize,
    visit: &mut impl FnMut(&Visit<'_>) -> io::Result<Next>,
) -> Result<Vec<PathBuf>, Failed> {
    let folder = beneath::open_folder(root, path).map_err(Failed::Read)?;
    let system = rustix::fs::fstatfs(&folder).map_err(|error| Failed::Read(error.into()))?;
    if KERNEL_FILE_SYSTEMS.contains(&(system.f_type as u64 & 0xffff_ffff)) {
        return Ok(Vec::new());
    }
    let names = names(&folder).map_err(Failed::Read)?;
    *left = left
        .checked_sub(names.len())
        .ok_or_else(|| Failed::Visit(io::Error::other(format!("more than {MAX_NAMES} names"))))?;
    let mut folders = Vec::new();
    for (name, kind, inode) in names {
        let path = path.join(&name);
        let (folder, name) = (folder.as_fd(), name.as_os_str());
        let path_ref = &path;
        let next = visit(&Visit {
            folder,
            name,
            path: path_ref,
            kind,
            inode,
        });
        // Of files, too: a bound that is passed must not be missed.
        let next = next.map_err(Failed::Visit)?;
        if kind == FileType::Directory && next == Next::Enter {
            folders.push(path);
        }
    }
    Ok(folders)
}

/// All names of a folder, before any of them is changed.
fn names(folder: impl AsFd) -> io::Result<Vec<(OsString, FileType, u64)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if names.len() > MAX_NAMES {
            return Ok(names);
        }
        let name = OsStr::from_bytes(name).to_owned();
        let kind = match entry.file_type() {
            FileType::Unknown => match beneath::look(&folder, &name)? {
                Some(found) => beneath::kind(&found),
                None => continue,
            },
            kind => kind,
        };
        names.push((name, kind, entry.ino()));
    }
    // So that what is told of them has an order.
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(names)
}
