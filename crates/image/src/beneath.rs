//! Opening by handle: never out of the folder, and through symbolic links only as if the folder were the root.

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    collections::HashSet,
    ffi::CStr,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;
const LISTED: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens `path` beneath `folder`, through no symbolic link.
pub(crate) fn open(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    resolved(folder, path.as_ref(), flags | OFlags::NOFOLLOW, resolve)
}

/// Opens `path` as a program would whose root is `folder`.
pub(crate) fn open_in_root(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    resolved(
        folder,
        path.as_ref(),
        flags,
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

fn resolved(
    folder: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::RUSR | Mode::WUSR
    } else {
        Mode::empty()
    };
    for _ in 0..DISTURBED {
        match rustix::fs::openat2(&folder, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Opens the folder `name` directly below another.
pub(crate) fn open_folder(folder: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(folder, name, LISTED, Mode::empty())?)
}

/// Calls `each` for every name in a folder.
pub(crate) fn for_each(
    folder: impl AsFd,
    mut each: impl FnMut(&CStr, rustix::fs::FileType) -> io::Result<()>,
) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            each(entry.file_name(), entry.file_type())?;
        }
    }
    Ok(())
}

/// Removes `name` and all below it, but what is to be kept, by inode, and the folders that leads through. Says whether
/// all of it is gone. Trees here are never deeper than what one may open at a time.
pub(crate) fn remove(
    folder: impl AsFd,
    name: &CStr,
    keep: Option<&HashSet<u64>>,
) -> io::Result<bool> {
    let folder = folder.as_fd();
    // Without anything to keep, most names need no look.
    if keep.is_none() {
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(source) => return Err(source.into()),
        }
    }
    let found = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(true),
        found => found?,
    };
    let kept = keep.is_some_and(|keep| keep.contains(&found.st_ino));
    if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() {
        if !kept {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
        }
        return Ok(!kept);
    }
    let emptied = empty(open_folder(folder, name)?, keep)?;
    if emptied && !kept {
        match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(source) => return Err(source.into()),
        }
    }
    Ok(emptied && !kept)
}

/// The same for everything in a folder. Says whether it is empty now.
pub(crate) fn empty(folder: impl AsFd, keep: Option<&HashSet<u64>>) -> io::Result<bool> {
    let mut all = true;
    for_each(&folder, |name, _| {
        all &= remove(&folder, name, keep)?;
        Ok(())
    })?;
    Ok(all)
}
