//! Opening by handle: never out of the folder, never through a symbolic link. Others write into these folders as well.

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags},
    io::Errno,
};
use std::{ffi::CString, io, os::fd::OwnedFd, path::Path};

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;
/// As Python makes them: less what the process's mask takes away.
pub(crate) const FILE: u32 = 0o666;
const FOLDER: u32 = 0o777;

/// Opens `path` beneath `folder`; what is made has this mode.
pub(crate) fn open(
    folder: &OwnedFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    mode: u32,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::from_raw_mode(mode)
    } else {
        Mode::empty()
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..DISTURBED {
        match rustix::fs::openat2(folder, path.as_ref(), flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A last part that is a link is told as the second when a folder was asked for.
            Err(Errno::LOOP) => return Err(io::Error::other("a symbolic link is in the way")),
            Err(Errno::NOTDIR) => {
                return Err(io::Error::other("a symbolic link or a file is in the way"));
            }
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Opens a file for reading; a pipe in its place does not hold us up.
pub(crate) fn read(folder: &OwnedFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    open(folder, path, OFlags::RDONLY | OFlags::NONBLOCK, 0)
}

/// Makes a file that is not there yet.
pub(crate) fn create(folder: &OwnedFd, path: impl AsRef<Path>, mode: u32) -> io::Result<OwnedFd> {
    open(
        folder,
        path,
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        mode,
    )
}

/// Opens the folder `path` beneath `folder`.
pub(crate) fn open_folder(folder: &OwnedFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    open(folder, path, OFlags::RDONLY | OFlags::DIRECTORY, 0)
}

/// Makes the folder unless it is there, so that it lasts, and opens it.
pub(crate) fn make_folder(folder: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(FOLDER)) {
        Ok(()) => rustix::fs::fsync(folder)?,
        Err(Errno::EXIST) => {}
        Err(source) => return Err(source.into()),
    }
    open_folder(folder, name)
}

/// Makes a folder in which nobody else writes, or takes the one of before. What somebody planted in its place is refused: they
/// could exchange files there. Whose it is must be whose our files are, which on a network share need not be our user. One of
/// ours that others may write in (Kubernetes gives whole volumes to a group) is closed again.
pub(crate) fn own_folder(folder: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(folder, name, Mode::RWXU) {
        Ok(()) => rustix::fs::fsync(folder)?,
        Err(Errno::EXIST) => {}
        Err(source) => return Err(source.into()),
    }
    let own = open_folder(folder, name)?;
    let refused = || {
        io::Error::other(format!(
            "`{name}` in it is not ours alone: see who made it, and remove it"
        ))
    };
    let trial = unique()?;
    let ours = rustix::fs::fstat(create(&own, &trial, 0o600)?)?.st_uid;
    remove(&own, &trial, AtFlags::empty())?;
    let found = rustix::fs::fstat(&own)?;
    if found.st_uid != ours {
        return Err(refused());
    }
    if found.st_mode & (Mode::WGRP | Mode::WOTH).as_raw_mode() != 0 {
        rustix::fs::fchmod(&own, Mode::RWXU)?;
        let closed = rustix::fs::fstat(&own)?;
        if closed.st_mode & (Mode::WGRP | Mode::WOTH).as_raw_mode() != 0 {
            return Err(refused());
        }
    }
    Ok(own)
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

/// Moves a file to a name that nothing has.
pub(crate) fn move_new(
    from: &OwnedFd,
    old: &str,
    to: &OwnedFd,
    new: &str,
) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        // Some file systems (NFS) lack the flag; a link replaces nothing either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(from, old, to, new, AtFlags::empty())?;
            rustix::fs::unlinkat(from, old, AtFlags::empty())
        }
        moved => moved,
    }
}

/// Opens a folder of the operator's, by its path; makes it if absent.
pub(crate) fn base(path: &Path) -> io::Result<OwnedFd> {
    std::fs::create_dir_all(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Some letters that nobody else has.
pub(crate) fn unique() -> io::Result<String> {
    let mut chance = [0; 8];
    rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_be_bytes(chance)))
}
