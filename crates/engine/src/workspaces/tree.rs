//! Trees by handle: what lies in one, and how to be rid of it. A tree may be hostile and may change meanwhile: no name is
//! ever resolved out of it or through a link, and depth costs neither stack nor descriptors without bound.

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
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
/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;

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

/// Opens `path` beneath `folder`, through no link.
pub(super) fn open(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::RUSR | Mode::WUSR
    } else {
        Mode::empty()
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..DISTURBED {
        match rustix::fs::openat2(&folder, path.as_ref(), flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// The folder that holds the last name of `path`, and that name.
pub(super) fn parent(folder: impl AsFd, path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let above = path
        .parent()
        .filter(|above| !above.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    Ok((open(folder, above, OFlags::PATH | OFlags::DIRECTORY)?, name))
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
    let (mode, version) = (found.st_mode & 0o777, Version::of(&found));
    Ok(Seen {
        kind,
        mode,
        version,
        target,
    })
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

/// A folder that is being read.
struct Level {
    folder: Dir,
    path: PathBuf,
}

/// Everything below `top`. An error only if the top itself cannot be read.
pub(super) fn walk(top: impl AsFd) -> io::Result<Walked> {
    let folder = open(top, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut levels = vec![Level {
        folder: Dir::new(folder)?,
        path: PathBuf::new(),
    }];
    let mut walked = Walked::default();
    while let Some(level) = levels.last_mut() {
        let name = match level.folder.read() {
            Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => continue,
            Some(Ok(entry)) => OsStr::from_bytes(entry.file_name().to_bytes()).to_owned(),
            Some(Err(source)) => {
                walked
                    .unknown
                    .insert(level.path.clone(), source.to_string());
                levels.pop();
                continue;
            }
            None => {
                levels.pop();
                continue;
            }
        };
        if walked.entries.len() == MOST_ENTRIES || walked.name_bytes > MOST_NAME_BYTES {
            let reason =
                format!("there are more than {MOST_ENTRIES} names, or they are too long together");
            walked.unknown.insert(PathBuf::new(), reason);
            break;
        }
        let deep = levels.len() >= MOST_DEPTH;
        if let Some(level) = levels.last_mut()
            && let Some(below) = visit(&mut walked, level, &name, deep)
        {
            levels.push(below);
        }
    }
    Ok(walked)
}

/// Notes one entry; gives the folder to go on in.
fn visit(walked: &mut Walked, level: &Level, name: &OsStr, deep: bool) -> Option<Level> {
    let path = level.path.join(name);
    let seen = level
        .folder
        .fd()
        .map_err(io::Error::from)
        .and_then(|folder| {
            let seen = see(folder, name)?;
            let enter = seen.kind == Kind::Folder && !deep && path.as_os_str().len() < MOST_PATH;
            let below = enter.then(|| open(folder, name, OFlags::RDONLY | OFlags::DIRECTORY));
            Ok((seen, below))
        });
    let (seen, below) = match seen {
        Ok(seen) => seen,
        // Gone while we looked: it was never there.
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return None,
        Err(source) => {
            walked.unknown.insert(path, source.to_string());
            return None;
        }
    };
    let is_folder = seen.kind == Kind::Folder;
    walked.name_bytes +=
        path.as_os_str().len() + seen.target.as_ref().map_or(0, |target| target.len());
    walked.entries.insert(path.clone(), seen);
    match below {
        Some(below) => match below.and_then(|below| Ok(Dir::new(below)?)) {
            Ok(folder) => return Some(Level { folder, path }),
            Err(source) => {
                walked.unknown.insert(path, source.to_string());
            }
        },
        None if is_folder => {
            walked.unknown.insert(
                path,
                format!("it is deeper than {MOST_DEPTH} folders, or its path too long"),
            );
        }
        None => {}
    }
    None
}

/// Names that are removed at a time.
const AT_A_TIME: usize = 4096;

/// Removes the folder `name` and all below it, however deep: what lies deeper is moved up first.
pub(crate) fn remove(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    let top = enter(parent.as_fd(), name)?;
    let mut moved = 0;
    loop {
        let names = some_names(&top, AT_A_TIME)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            if !removed(top.as_fd(), &name)? {
                let below = enter(top.as_fd(), &name)?;
                empty(&below, &top, &mut moved)?;
                rustix::fs::unlinkat(&top, &name, AtFlags::REMOVEDIR)?;
            }
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Empties one folder; folders in it that are not empty go up to the top.
fn empty(folder: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        let names = some_names(folder, AT_A_TIME)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if !removed(folder.as_fd(), &name)? {
                move_up(folder, &name, top, moved)?;
            }
        }
    }
}

fn move_up(folder: &OwnedFd, name: &OsStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    // Whoever moves a folder must be able to write it: its `..` changes.
    drop(enter(folder.as_fd(), name)?);
    loop {
        *moved += 1;
        let free = format!("moved-{moved}");
        match rustix::fs::renameat_with(folder, name, top, &free, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            done => return Ok(done?),
        }
    }
}

/// Removes a file or an empty folder; says no for one with something in it.
fn removed(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(source) => return Err(source.into()),
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(source) => Err(source.into()),
    }
}

/// Opens a folder that is to be emptied, and makes sure that it can be.
fn enter(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let handle = open(parent, name, OFlags::PATH | OFlags::DIRECTORY)?;
    let found = rustix::fs::fstat(&handle)?;
    if found.st_mode & 0o700 != 0o700 && found.st_uid == rustix::process::geteuid().as_raw() {
        rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
    }
    open(&handle, ".", OFlags::RDONLY | OFlags::DIRECTORY)
}

pub(crate) fn names(folder: &OwnedFd) -> io::Result<Vec<OsString>> {
    some_names(folder, usize::MAX)
}

/// So many of them at most: a program can make millions.
fn some_names(folder: &OwnedFd, most: usize) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        }
        if names.len() >= most {
            break;
        }
    }
    Ok(names)
}
