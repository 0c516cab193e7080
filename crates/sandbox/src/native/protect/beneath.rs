//! Opening by handle: never out of the workspace, never through a symbolic link.

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};
use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;

/// Opens `path` beneath `folder`; a new file gets mode 0644.
pub(super) fn open(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    open_resolving(folder, path.as_ref(), flags, resolve)
}

/// Opens a folder by its absolute path, without following a symbolic link anywhere.
pub(super) fn open_absolute(path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    open_resolving(
        rustix::fs::CWD,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY,
        resolve,
    )
}

fn open_resolving(
    folder: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::from_raw_mode(0o644)
    } else {
        Mode::empty()
    };
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

/// Whether a file `.git` with this text names a folder in the workspace, by its words or by where they lead.
pub(super) fn leads_inside(workspace: impl AsFd, text: &[u8]) -> io::Result<bool> {
    let Some(named) = text.strip_prefix(b"gitdir:") else {
        return Ok(false);
    };
    let named = Path::new(OsStr::from_bytes(named.trim_ascii()));
    let own = format!("/proc/self/fd/{}", workspace.as_fd().as_raw_fd());
    let own = std::fs::read_link(own)?;
    let mut spelt = PathBuf::new();
    for part in own.join(named).components() {
        match part {
            Component::ParentDir => _ = spelt.pop(),
            Component::CurDir => {}
            other => spelt.push(other),
        }
    }
    let real = std::fs::canonicalize(own.join(named));
    Ok(spelt.starts_with(&own) || real.is_ok_and(|real| real.starts_with(&own)))
}
