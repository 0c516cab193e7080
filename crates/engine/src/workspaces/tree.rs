//! Trees by handle: what lies in one, and how to be rid of it. A tree may be hostile and may change meanwhile: no name is
//! ever resolved out of it or through a link, and depth costs neither stack nor descriptors without bound.

pub(super) use crate::files::open;

use ::fs::{Dir, RemoveOptions, Walk, WalkBounds, WalkEntry, WalkError};
use rustix::{
    fs::{AtFlags, FileType, Stat},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// Folders within folders, which is also the number of descriptors open at a time.
pub(super) const MOST_DEPTH: usize = 128;
/// Entries of one tree.
pub(super) const MOST_ENTRIES: usize = 200_000;
/// Bytes of all names and targets of one tree, each with the path to it: they are held in memory.
pub(super) const MOST_NAME_BYTES: usize = 64 << 20;
/// Bytes of one path: what every call to the kernel takes.
const MOST_PATH: usize = 4000;

/// What an entry is.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device, or what cannot be read.
    #[default]
    Other,
}

/// By what it is seen that a file was touched.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Version {
    pub(super) inode: u64,
    pub(super) size: u64,
    modified: (i64, i64),
    pub(super) changed: (i64, i64),
}

/// One entry of a tree, as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) kind: Kind,
    /// Permissions only: no bit that lends power is ever kept.
    pub(super) mode: u32,
    pub(super) version: Version,
    /// Where a link points.
    pub(super) target: Option<OsString>,
}

/// Everything in a tree, and what could not be looked at.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) entries: BTreeMap<PathBuf, Seen>,
    /// Folders whose contents are unknown, with the reason.
    pub(super) unknown: BTreeMap<PathBuf, String>,
    name_bytes: usize,
}

impl Version {
    pub(super) fn of(found: &Stat) -> Version {
        Version {
            inode: found.st_ino,
            size: found.st_size as u64,
            modified: (found.st_mtime, found.st_mtime_nsec as i64),
            changed: (found.st_ctime, found.st_ctime_nsec as i64),
        }
    }
}

impl Seen {
    fn of(found: &Stat, target: Option<OsString>) -> Seen {
        Seen {
            kind: kind(found),
            mode: found.st_mode & 0o777,
            version: Version::of(found),
            target,
        }
    }
}

/// The folder that holds the last name of `path`, and that name.
pub(super) fn parent(folder: impl AsFd, path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (above, name) = Dir::from_fd(folder).locate_parent(path)?;
    Ok((above.into(), name))
}

/// What has this path, if anything; also nothing where a folder on the way is none any more.
pub(super) fn look(folder: impl AsFd, path: &Path) -> io::Result<Option<Seen>> {
    let seen = parent(folder, path).and_then(|(above, name)| see(above.as_fd(), name));
    match seen {
        Ok(seen) => Ok(Some(seen)),
        Err(absent) => match Errno::from_io_error(&absent) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(absent),
        },
    }
}

/// What a name in a folder is; a link is not followed.
pub(super) fn see(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Seen> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = kind(&found);
    let target = match kind {
        Kind::Link => Some(rustix::fs::readlinkat(folder, name, Vec::new())?),
        _ => None,
    };
    let target = target.map(|target| OsStr::from_bytes(target.as_bytes()).to_owned());
    Ok(Seen::of(&found, target))
}

/// What a file takes on the disk; of one with several names, each has its share.
#[allow(
    clippy::unnecessary_cast,
    reason = "other machines count names in fewer bits"
)]
pub(super) fn room(found: &Stat) -> u64 {
    (found.st_blocks as u64).saturating_mul(512) / (found.st_nlink as u64).max(1)
}

pub(super) fn kind(found: &Stat) -> Kind {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    }
}

/// Everything below `top`. An error only if the top itself cannot be read.
pub(super) fn walk(top: impl AsFd) -> io::Result<Walked> {
    let bounds = WalkBounds {
        entries: MOST_ENTRIES,
        depth: MOST_DEPTH,
        path_bytes: MOST_PATH,
        ..WalkBounds::default()
    };
    let mut walk = Dir::from_fd(top).walk(bounds)?;
    let mut walked = Walked::default();
    while let Some(found) = walk.next() {
        if walked.name_bytes > MOST_NAME_BYTES {
            walked.is_too_much();
            break;
        }
        match found {
            Ok(entry) => walked.note(entry, &walk),
            Err(WalkError::Read { path, source }) => walked.is_unknown(path, source.to_string()),
            Err(WalkError::TooDeep { path, depth }) => walked.is_unknown(
                path,
                format!("it is deeper than {depth} folders, or its path too long"),
            ),
            Err(WalkError::TooMany { .. }) => walked.is_too_much(),
        }
    }
    Ok(walked)
}

impl Walked {
    fn note(&mut self, entry: WalkEntry, walk: &Walk) {
        let target = match entry.kind() {
            FileType::Symlink => {
                let read = walk
                    .parent()
                    .and_then(|parent| parent.read_link(entry.name()));
                match read {
                    Ok(target) => Some(target.into_os_string()),
                    // Gone while we looked: it was never there.
                    Err(gone) if gone.kind() == io::ErrorKind::NotFound => return,
                    Err(source) => return self.is_unknown(entry.path, source.to_string()),
                }
            }
            _ => None,
        };
        self.name_bytes +=
            entry.path.as_os_str().len() + target.as_ref().map_or(0, |target| target.len());
        self.entries
            .insert(entry.path, Seen::of(&entry.stat, target));
    }

    fn is_unknown(&mut self, path: PathBuf, reason: String) {
        self.unknown.insert(path, reason);
    }

    fn is_too_much(&mut self) {
        let reason =
            format!("there are more than {MOST_ENTRIES} names, or they are too long together");
        self.is_unknown(PathBuf::new(), reason);
    }
}

/// Removes the folder `name` and all below it, however deep, also folders that a program closed to itself.
pub(crate) fn remove(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    let options = RemoveOptions {
        open_closed: true,
        ..RemoveOptions::default()
    };
    Ok(Dir::from_fd(parent).remove_tree(name, options)?)
}

pub(crate) fn names(folder: &OwnedFd) -> io::Result<Vec<OsString>> {
    let entries = Dir::from_fd(folder).entries()?;
    entries.map(|entry| Ok(entry?.name)).collect()
}
