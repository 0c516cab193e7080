//! Opening by handle: never out of the folder, never through a symbolic link.

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{ffi::CString, io, os::fd::OwnedFd, path::Path};

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;

/// Opens `path` beneath `folder`.
pub(crate) fn open(folder: &OwnedFd, path: impl AsRef<Path>, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::RUSR | Mode::WUSR
    } else {
        Mode::empty()
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..DISTURBED {
        match rustix::fs::openat2(folder, path.as_ref(), flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Opens the folder `path` beneath `folder`.
pub(crate) fn open_folder(folder: &OwnedFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    open(folder, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Makes the folder `path` unless it is there, and opens it. Says whether it was made.
pub(crate) fn make_folder(folder: &OwnedFd, path: &str) -> io::Result<(OwnedFd, bool)> {
    let made = match rustix::fs::mkdirat(folder, path, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(source) => return Err(source.into()),
    };
    Ok((open_folder(folder, path)?, made))
}

/// The names in a folder, as the file system gives them.
pub(crate) fn names(folder: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<CString>>> {
    let entries = Dir::read_from(folder)?;
    Ok(entries.filter_map(|entry| match entry {
        Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => None,
        Ok(entry) => Some(Ok(entry.file_name().to_owned())),
        Err(source) => Some(Err(source.into())),
    }))
}

/// Removes a file or an empty folder; that it is gone already is as good.
pub(crate) fn remove(folder: &OwnedFd, name: &str, how: AtFlags) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, how) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(source) => Err(source.into()),
    }
}
