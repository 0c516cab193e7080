//! Opening by handle: never out of the folder, never through a symbolic link. Others write into these folders as well.

use ::fs::Dir;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{fs::File, io, path::Path};

/// As Python makes them: less what the process's mask takes away.
pub(crate) const FILE: Mode = Mode::from_raw_mode(0o666);
const FOLDER: Mode = Mode::from_raw_mode(0o777);
const OURS: Mode = Mode::RUSR.union(Mode::WUSR);

/// Says what was in the way, where the kernel only gives a number.
fn explained<T>(opened: io::Result<T>) -> io::Result<T> {
    opened.map_err(|error| match Errno::from_io_error(&error) {
        // A last part that is a link is told as the second when a folder was asked for.
        Some(Errno::LOOP) => io::Error::other("a symbolic link is in the way"),
        Some(Errno::NOTDIR) => io::Error::other("a symbolic link or a file is in the way"),
        _ => error,
    })
}

/// Opens `path` beneath `folder`; a file that is made is ours alone.
pub(crate) fn open(folder: &Dir, path: impl AsRef<Path>, flags: OFlags) -> io::Result<File> {
    explained(folder.open_file(path, flags, OURS))
}

/// Opens a file for reading; a pipe in its place does not hold us up.
pub(crate) fn read(folder: &Dir, path: impl AsRef<Path>) -> io::Result<File> {
    explained(folder.read_file(path))
}

/// Makes a file of ours alone that is not there yet.
pub(crate) fn create(folder: &Dir, path: impl AsRef<Path>) -> io::Result<File> {
    explained(folder.create_file(path, OURS))
}

/// Opens the folder `path` beneath `folder`.
pub(crate) fn open_folder(folder: &Dir, path: impl AsRef<Path>) -> io::Result<Dir> {
    explained(folder.open_dir(path))
}

/// Makes the folder unless it is there, so that it lasts, and opens it.
pub(crate) fn make_folder(folder: &Dir, name: &str) -> io::Result<Dir> {
    ensure(folder, name, FOLDER)
}

fn ensure(folder: &Dir, name: &str, mode: Mode) -> io::Result<Dir> {
    let (made, is_new) = explained(folder.ensure_dir(name, mode))?;
    if is_new {
        folder.sync()?;
    }
    Ok(made)
}

/// Makes a folder in which nobody else writes, or takes the one of before. What somebody planted in its place is refused: they
/// could exchange files there. Whose it is must be whose our files are, which on a network share need not be our user. One of
/// ours that others may write in (Kubernetes gives whole volumes to a group) is closed again.
pub(crate) fn own_folder(folder: &Dir, name: &str) -> io::Result<Dir> {
    let own = ensure(folder, name, Mode::RWXU)?;
    let refused = || {
        io::Error::other(format!(
            "`{name}` in it is not ours alone: see who made it, and remove it"
        ))
    };
    let trial = unique()?;
    let ours = rustix::fs::fstat(create(&own, &trial)?)?.st_uid;
    own.remove_file(&trial)?;
    let found = own.status()?;
    if found.st_uid != ours {
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

/// Opens a folder of the operator's, by its path; makes it if absent.
pub(crate) fn base(path: &Path) -> io::Result<Dir> {
    std::fs::create_dir_all(path)?;
    Dir::open(path)
}

/// Some letters that nobody else has.
pub(crate) fn unique() -> io::Result<String> {
    let mut chance = [0; 8];
    rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_be_bytes(chance)))
}
