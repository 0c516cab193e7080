//! File access relative to a directory descriptor (openat2): never out of the folder, never through
//! a symbolic link, because others write to these folders as well.

use ::fs::Dir;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{fs::File, io, path::Path};

/// Python's default mode, before the umask.
pub(crate) const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);
const PRIVATE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Replaces errno by the reason that is meant.
fn explain<T>(opened: io::Result<T>) -> io::Result<T> {
    opened.map_err(|error| match Errno::from_io_error(&error) {
        // With O_DIRECTORY a final link is reported as ENOTDIR.
        Some(Errno::LOOP) => io::Error::other("a symbolic link is in the way"),
        Some(Errno::NOTDIR) => io::Error::other("a symbolic link or a file is in the way"),
        _ => error,
    })
}

/// Opens `path` beneath `folder`; a created file is private.
pub(crate) fn open(folder: &Dir, path: impl AsRef<Path>, flags: OFlags) -> io::Result<File> {
    explain(folder.open_file(path, flags, PRIVATE_MODE))
}

/// Opens a file for reading, without blocking on a FIFO.
pub(crate) fn open_file(folder: &Dir, path: impl AsRef<Path>) -> io::Result<File> {
    explain(folder.read_file(path))
}

/// Creates a new private file.
pub(crate) fn create_file(folder: &Dir, path: impl AsRef<Path>) -> io::Result<File> {
    explain(folder.create_file(path, PRIVATE_MODE))
}

/// Opens the folder `path` beneath `folder`.
pub(crate) fn open_folder(folder: &Dir, path: impl AsRef<Path>) -> io::Result<Dir> {
    explain(folder.open_dir(path))
}

/// Creates the folder unless it exists (synced), and opens it.
pub(crate) fn ensure_folder(folder: &Dir, name: &str) -> io::Result<Dir> {
    ensure(folder, name, FOLDER_MODE)
}

fn ensure(folder: &Dir, name: &str, mode: Mode) -> io::Result<Dir> {
    let (made, is_new) = explain(folder.ensure_dir(name, mode))?;
    if is_new {
        folder.sync()?;
    }
    Ok(made)
}

/// Creates or opens a folder that nobody else can write to. A folder that somebody else planted is
/// refused: its owner could exchange files in it. The owner is compared with the owner of a file
/// that we create, which on a network share need not be our user. Group or other write permission
/// on our own folder is removed (Kubernetes gives whole volumes to a group).
pub(crate) fn ensure_private_folder(folder: &Dir, name: &str) -> io::Result<Dir> {
    let own = ensure(folder, name, Mode::RWXU)?;
    let refused = || {
        io::Error::other(format!(
            "`{name}` in it is not ours alone: see who made it, and remove it"
        ))
    };
    let trial = random_name()?;
    let own_uid = rustix::fs::fstat(create_file(&own, &trial)?)?.st_uid;
    own.remove_file(&trial)?;
    let found = own.status()?;
    if found.st_uid != own_uid {
        return Err(refused());
    }
    if found.st_mode & (Mode::WGRP | Mode::WOTH).as_raw_mode() != 0 {
        rustix::fs::fchmod(&own, Mode::RWXU)?;
        let closed = own.status()?;
        if closed.st_mode & (Mode::WGRP | Mode::WOTH).as_raw_mode() != 0 {
            return Err(refused());
        }
    }
    Ok(own)
}

/// Opens a folder of the operator by its path, and creates it if absent.
pub(crate) fn open_base(path: &Path) -> io::Result<Dir> {
    std::fs::create_dir_all(path)?;
    Dir::open(path)
}

/// A random file name.
pub(crate) fn random_name() -> io::Result<String> {
    let mut chance = [0; 8];
    rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_be_bytes(chance)))
}
