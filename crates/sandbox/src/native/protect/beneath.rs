//! Lookups by descriptor: never out of the workspace, never through a symbolic link. They are those
//! of `fs`, except for absolute paths, which `fs` does not resolve without links.

use ::fs::{Dir, Lookup};
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags},
    io::Errno,
};
use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// How often the kernel may report that a rename elsewhere disturbed the lookup.
const MAX_TRIES: usize = 64;
/// Only its owner may read a new file.
const NEW_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Opens `path` beneath `folder`; a new file gets mode 0600.
pub(super) fn open(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    Dir::from_fd(folder.as_fd()).open_at(path, flags, NEW_FILE, Lookup::NoLinks)
}

/// Opens a folder by its absolute path, without following a symbolic link anywhere.
pub(super) fn open_absolute(path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..MAX_TRIES {
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// The target of a link at `path`, relative to the folder, if it is inside.
pub fn target_inside(folder: impl AsFd, path: &Path) -> Option<PathBuf> {
    let found = Dir::from_fd(folder.as_fd());
    let found = found.open_at(path, OFlags::PATH, Mode::empty(), Lookup::LinksBeneath);
    let found = found.ok()?;
    let own = path_of(&folder).ok()?;
    let inside = path_of(&found).ok()?.strip_prefix(own).ok()?.to_owned();
    Some(inside).filter(|inside| !inside.as_os_str().is_empty())
}

/// The current path of an open file.
pub(super) fn path_of(file: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(link_of(&file))
}

/// A path that leads to an open file, wherever it was moved.
pub(super) fn link_of(file: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// The status of `name` in this folder, without following a link; none if it is absent.
pub(super) fn look(folder: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(folder, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(source) => Err(source.into()),
    }
}

/// The birth time of a file (with an empty name: of the open file), which tells it from another
/// that got its inode later. Without birth times the change time is used: then a file that another
/// process changed counts as another.
pub(super) fn born(folder: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<(i64, i64)> {
    let (birth, changed) = times(folder, name.as_ref())?;
    Ok(birth.unwrap_or(changed))
}

/// The birth time, or none where the file system has none.
pub(super) fn birth(folder: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<Option<(i64, i64)>> {
    Ok(times(folder, name.as_ref())?.0)
}

type Time = (i64, i64);

/// The birth time, if known, and the change time of a file.
fn times(folder: impl AsFd, name: &OsStr) -> io::Result<(Option<Time>, Time)> {
    let wanted = StatxFlags::BTIME | StatxFlags::CTIME;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let found = rustix::fs::statx(folder, name, flags, wanted)?;
    let knows_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let [birth, changed] =
        [found.stx_btime, found.stx_ctime].map(|it| (it.tv_sec, i64::from(it.tv_nsec)));
    Ok((knows_birth.then_some(birth), changed))
}

pub(super) fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// Opens a folder to read and change it, also one whose owner removed his own permissions.
pub(super) fn open_folder(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match open(&root, path, flags) {
        Err(denied) if denied.kind() == io::ErrorKind::PermissionDenied => {
            // Without search permission the folder cannot even be looked up in itself.
            open_for_owner(&root)?;
            let handle = open(&root, path, OFlags::PATH | OFlags::DIRECTORY)?;
            open_for_owner(&handle)?;
            open(root, path, flags)
        }
        opened => opened,
    }
}

/// Restores the owner's permissions of a folder.
pub(super) fn open_for_owner(folder: impl AsFd) -> io::Result<()> {
    let mode = rustix::fs::fstat(&folder)?.st_mode & 0o7777;
    match mode & 0o700 {
        0o700 => Ok(()),
        _ => set_mode(folder, mode | 0o700),
    }
}

/// Changes the permissions of an open file, whatever its open flags.
pub(super) fn set_mode(file: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::chmod(
        link_of(&file),
        Mode::from_raw_mode(mode),
    )?)
}
