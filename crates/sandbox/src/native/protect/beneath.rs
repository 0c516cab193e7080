//! Opening by handle: never out of the workspace, never through a symbolic link.

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

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const MAX_TRIES: usize = 64;

/// Opens `path` beneath `folder`; a new file gets mode 0600.
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
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    open_resolving(CWD, path, flags, resolve)
}

/// Where a link at `path` leads, if that is in the folder: relative to it.
pub fn target_inside(folder: impl AsFd, path: &Path) -> Option<PathBuf> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(&folder, path, flags, Mode::empty(), resolve).ok()?;
    let own = path_of(&folder).ok()?;
    let inside = path_of(&found).ok()?.strip_prefix(own).ok()?.to_owned();
    Some(inside).filter(|inside| !inside.as_os_str().is_empty())
}

/// The path by which the kernel knows an open file now.
pub(super) fn path_of(file: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(link_of(&file))
}

fn link_of(file: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

fn open_resolving(
    folder: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::from_raw_mode(0o600)
    } else {
        Mode::empty()
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..MAX_TRIES {
        match rustix::fs::openat2(folder.as_fd(), path, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// What is called `name` in this folder, the link itself if it is one; nothing if it is absent.
pub(super) fn look(folder: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(folder, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(source) => Err(source.into()),
    }
}

/// When a file came into being (with an empty name: the opened one), by which it is told from another that got its inode later. Where the file system does
/// not know, when it was changed last: then a file that somebody else changed is another.
pub(super) fn born(folder: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<(i64, i64)> {
    let wanted = StatxFlags::BTIME | StatxFlags::CTIME;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let found = rustix::fs::statx(folder, name.as_ref(), flags, wanted)?;
    let time = match StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME) {
        true => found.stx_btime,
        false => found.stx_ctime,
    };
    Ok((time.tv_sec, i64::from(time.tv_nsec)))
}

pub(super) fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// Opens a folder to read and change it, also one whose owner took his own rights away.
pub(super) fn open_folder(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match open(&root, path, flags) {
        Err(denied) if denied.kind() == io::ErrorKind::PermissionDenied => {
            // Without the right to search it, the top cannot even be looked up in itself.
            open_for_owner(&root)?;
            let handle = open(&root, path, OFlags::PATH | OFlags::DIRECTORY)?;
            open_for_owner(&handle)?;
            open(root, path, flags)
        }
        opened => opened,
    }
}

/// Gives the owner of a folder his rights to it back.
pub(super) fn open_for_owner(folder: impl AsFd) -> io::Result<()> {
    let mode = rustix::fs::fstat(&folder)?.st_mode & 0o7777;
    match mode & 0o700 {
        0o700 => Ok(()),
        _ => set_mode(folder, mode | 0o700),
    }
}

/// Changes the permissions of what was opened, by whatever flags.
pub(super) fn set_mode(file: impl AsFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::chmod(
        link_of(&file),
        Mode::from_raw_mode(mode),
    )?)
}
