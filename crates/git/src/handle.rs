//! Files by handle: never out of the folder, never through a symbolic link, never waiting for a FIFO. Not by
//! `fs`: this crate knows no other of ours, so that its formats can be tested and fuzzed by themselves.

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

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;
/// Names of one folder that are looked at.
const MOST_NAMES: usize = 100_000;

pub(crate) const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Opens beneath a folder. A new file is nobody else's to read; its mode is set later.
pub(crate) fn open(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::RUSR | Mode::WUSR,
        false => Mode::empty(),
    };
    // The kernel refuses what means nothing for a mere place.
    let waits = match flags.contains(OFlags::PATH) {
        true => OFlags::empty(),
        false => OFlags::NONBLOCK | OFlags::NOCTTY,
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | waits;
    for _ in 0..DISTURBED {
        match rustix::fs::openat2(folder.as_fd(), path.as_ref(), flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// The bytes of a regular file; none if there is nothing of that name.
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
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("it is longer than {most} bytes"))),
        false => Ok(Some(bytes)),
    }
}

/// The names in a folder.
pub(crate) fn names(folder: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    // A handle of its own: the position in a listing belongs to the open file.
    for entry in Dir::new(open(folder, ".", FOLDER)?)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if names.len() == MOST_NAMES {
            return Err(io::Error::other("it has too many names"));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Opens a folder, which is made with this mode where it is missing.
pub(crate) fn make_folder(parent: impl AsFd, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent.as_fd(), name, mode) {
        Ok(()) => {
            let folder = open(parent, name, FOLDER)?;
            rustix::fs::fchmod(&folder, mode)?;
            Ok(folder)
        }
        Err(Errno::EXIST) => open(parent, name, FOLDER),
        Err(error) => Err(error.into()),
    }
}
