//! Walks and removes directory trees by handle. A tree may be hostile and may change meanwhile: no
//! path is resolved out of it or through a symbolic link, and its depth does not consume unbounded
//! stack or descriptors.

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
    rc::Rc,
};

/// The greatest depth, which is also the number of descriptors open at a time.
pub(super) const MAX_DEPTH: usize = 128;
/// The most entries of one tree.
pub(super) const MAX_ENTRIES: usize = 200_000;
/// The most bytes of all paths and targets of one tree, which are held in memory.
pub(super) const MAX_NAME_BYTES: usize = 64 << 20;
/// The longest path: what every system call accepts.
pub(super) const MAX_PATH_BYTES: usize = 4000;

/// The type of a file.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device, or an unreadable file.
    #[default]
    Other,
}

/// Identifies a version of a file by its metadata.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Version {
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) modified: (i64, i64),
    pub(super) changed: (i64, i64),
}

/// The state of a file at the time of the lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileState {
    pub(super) kind: FileKind,
    /// The permissions without set-id bits.
    pub(super) mode: u32,
    pub(super) version: Version,
    /// The target of a symbolic link.
    pub(super) target: Option<OsString>,
    /// Whether it is an overlay whiteout, which marks a removed name.
    pub(super) is_whiteout: bool,
}

/// The entries of a tree, and folders that could not be read.
#[derive(Debug, Default)]
pub(super) struct TreeContents {
    pub(super) entries: BTreeMap<PathBuf, FileState>,
    /// Unreadable folders, with the reason.
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

impl FileState {
    pub(super) fn of(found: &Stat, target: Option<OsString>) -> FileState {
        FileState {
            kind: kind(found),
            mode: found.st_mode & 0o777,
            version: Version::of(found),
            target,
            is_whiteout: FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
                && found.st_rdev == 0,
        }
    }
}

/// The parent folder and the file name of `path`.
pub(super) fn parent(folder: impl AsFd, path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (above, name) = Dir::from_fd(folder).locate_parent(path)?;
    Ok((above.into(), name))
}

/// The state of a path; none if it, or a folder on the way, does not exist.
pub(super) fn try_stat(folder: impl AsFd, path: &Path) -> io::Result<Option<FileState>> {
    let seen = parent(folder, path).and_then(|(above, name)| stat_name(above.as_fd(), name));
    match seen {
        Ok(seen) => Ok(Some(seen)),
        Err(absent) if is_absent(&absent) => Ok(None),
        Err(source) => Err(source),
    }
}

/// Looks up many paths beneath a folder: the parent of the last one stays open for its siblings.
pub(super) struct PathLookup<'a> {
    top: BorrowedFd<'a>,
    last: Option<(PathBuf, Option<Rc<OwnedFd>>)>,
}

impl<'a> PathLookup<'a> {
    pub(super) fn beneath(top: BorrowedFd<'a>) -> PathLookup<'a> {
        PathLookup { top, last: None }
    }

    /// The parent folder of `path`, if it exists and no link leads to it, and the file name.
    pub(super) fn above<'b>(
        &mut self,
        path: &'b Path,
    ) -> io::Result<(Option<Rc<OwnedFd>>, &'b OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let above = path.parent().unwrap_or(Path::new(""));
        if let Some((last, folder)) = &self.last
            && last == above
        {
            return Ok((folder.clone(), name));
        }
        let folder = match parent(self.top, path) {
            Ok((folder, _)) => Some(Rc::new(folder)),
            Err(absent) if is_absent(&absent) => None,
            Err(source) => return Err(source),
        };
        self.last = Some((above.to_owned(), folder.clone()));
        Ok((folder, name))
    }

    /// The state of a path, if it exists.
    pub(super) fn try_stat(&mut self, path: &Path) -> io::Result<Option<FileState>> {
        match self.above(path)? {
            (Some(above), name) => try_stat_name(above.as_fd(), name),
            (None, _) => Ok(None),
        }
    }
}

/// The state of a name in a folder, if it exists.
pub(super) fn try_stat_name(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<FileState>> {
    match stat_name(folder, name) {
        Err(absent) if is_absent(&absent) => Ok(None),
        seen => seen.map(Some),
    }
}

/// Whether the path does not exist, or a folder on the way is not one.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
    )
}

/// The state of a name in a folder; a link is not followed.
pub(super) fn stat_name(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<FileState> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = kind(&found);
    let target = match kind {
        FileKind::Link => Some(rustix::fs::readlinkat(folder, name, Vec::new())?),
        _ => None,
    };
    let target = target.map(|target| OsStr::from_bytes(target.as_bytes()).to_owned());
    Ok(FileState::of(&found, target))
}

/// The size on disk; for a file with several names, the share of each.
#[allow(
    clippy::unnecessary_cast,
    reason = "other machines count names in fewer bits"
)]
pub(super) fn disk_bytes(found: &Stat) -> u64 {
    (found.st_blocks as u64).saturating_mul(512) / (found.st_nlink as u64).max(1)
}

pub(super) fn kind(found: &Stat) -> FileKind {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    }
}

/// Everything below `top`. An error only if the top itself cannot be read.
pub(super) fn walk(top: impl AsFd) -> io::Result<TreeContents> {
    let bounds = WalkBounds {
        entries: MAX_ENTRIES,
        depth: MAX_DEPTH,
        path_bytes: MAX_PATH_BYTES,
        ..WalkBounds::default()
    };
    let mut walk = Dir::from_fd(top).walk(bounds)?;
    let mut walked = TreeContents::default();
    while let Some(found) = walk.next() {
        if walked.name_bytes > MAX_NAME_BYTES {
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

impl TreeContents {
    fn note(&mut self, entry: WalkEntry, walk: &Walk) {
        let target = match entry.kind() {
            FileType::Symlink => {
                let read = walk
                    .parent()
                    .and_then(|parent| parent.read_link(entry.name()));
                match read {
                    Ok(target) => Some(target.into_os_string()),
                    // Removed meanwhile: treated as if it never existed.
                    Err(gone) if gone.kind() == io::ErrorKind::NotFound => return,
                    Err(source) => return self.is_unknown(entry.path, source.to_string()),
                }
            }
            _ => None,
        };
        self.name_bytes +=
            entry.path.as_os_str().len() + target.as_ref().map_or(0, |target| target.len());
        self.entries
            .insert(entry.path, FileState::of(&entry.stat, target));
    }

    fn is_unknown(&mut self, path: PathBuf, reason: String) {
        self.unknown.insert(path, reason);
    }

    fn is_too_much(&mut self) {
        let reason =
            format!("there are more than {MAX_ENTRIES} names, or they are too long together");
        self.is_unknown(PathBuf::new(), reason);
    }
}

/// Removes a folder and everything below it, at any depth, including folders that a program closed
/// to itself.
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
