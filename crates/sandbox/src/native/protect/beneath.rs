//! Opening by handle: never out of the workspace, never through a symbolic link.

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;

/// Opens `path` beneath `folder`; a new file gets mode 0644.
pub(super) fn open(folder: impl AsFd, path: impl AsRef<Path>, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    open_resolving(folder, path.as_ref(), flags, resolve)
}

/// Opens a folder by its absolute path, without following a symbolic link anywhere.
pub(super) fn open_absolute(path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    open_resolving(rustix::fs::CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, resolve)
}

fn open_resolving(
    folder: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..DISTURBED {
        match rustix::fs::openat2(folder.as_fd(), path, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// What is called `name` in this folder, the link itself if it is one; nothing if it is absent.
pub(super) fn look(folder: impl AsFd, name: &str) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(source) => Err(source.into()),
    }
}

pub(super) fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// Whether nothing is in this folder.
pub(super) fn is_empty(folder: impl AsFd) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(folder)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
