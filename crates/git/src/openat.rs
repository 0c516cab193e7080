//! Opens files by handle: never outside the folder, never through a symbolic link, never waiting
//! for a FIFO. The crate `fs` is not used, so that this crate depends on no other of the workspace
//! and its formats can be tested and fuzzed alone.

use rustix::{
    fs::{Dir, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// Attempts of a lookup that a concurrent rename disturbs.
const MAX_LOOKUPS: usize = 64;
/// Names of one folder that are listed.
const MAX_NAMES: usize = 100_000;

pub(crate) const READ_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Opens a path beneath a folder. A new file is readable for its owner only; its mode is set later.
pub(crate) fn open(
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
    // `openat2` refuses these flags together with `O_PATH`.
    let without_waiting = if flags.contains(OFlags::PATH) {
        OFlags::empty()
    } else {
        OFlags::NONBLOCK | OFlags::NOCTTY
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | without_waiting;
    for _ in 0..MAX_LOOKUPS {
        match rustix::fs::openat2(folder.as_fd(), path.as_ref(), flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// The bytes of a regular file; none if it does not exist.
pub(crate) fn read(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    most: u64,
) -> io::Result<Option<Vec<u8>>> {
    let file = match open(folder, path, OFlags::RDONLY) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is longer than {most} bytes")));
    }
    Ok(Some(bytes))
}

/// The names in a folder.
pub(crate) fn names(folder: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    // The position of a listing belongs to the open file, so that each listing opens the folder
    // again.
    for entry in Dir::new(open(folder, ".", READ_DIR)?)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if names.len() == MAX_NAMES {
            return Err(io::Error::other("it has too many names"));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Opens a folder, after creating it with this mode if it is absent.
pub(crate) fn make_folder(parent: impl AsFd, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent.as_fd(), name, mode) {
        Ok(()) => {
            let folder = open(parent, name, READ_DIR)?;
            rustix::fs::fchmod(&folder, mode)?;
            Ok(folder)
        }
        Err(Errno::EXIST) => open(parent, name, READ_DIR),
        Err(error) => Err(error.into()),
    }
}
