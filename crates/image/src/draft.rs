//! An image in the making, or going: a folder that nobody lists, held by a lock that dies with its owner.
//!
//! ```text
//! .draft-PID-N-NANOS/{image.json, root/, spool}  ──rename──▶  sha256-HEX/{image.json, root/}
//! ```
//! `image.json` is made first and removed last, and carries the lock: what has no lock has no owner.

use crate::beneath;
use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) const ABOUT: &CStr = c"image.json";
pub(crate) const ROOT: &CStr = c"root";
const SPOOL: &str = "spool";
const PREFIX: &[u8] = b".draft-";
/// A sweep can take a folder that is not locked yet; it cannot do so forever.
const TRIES: usize = 100;

#[derive(Debug)]
pub(crate) struct Draft {
    images: Arc<OwnedFd>,
    pub(crate) name: CString,
    pub(crate) folder: OwnedFd,
    /// Holds the lock.
    pub(crate) about: File,
}

impl Draft {
    pub(crate) fn new(images: &Arc<OwnedFd>) -> io::Result<Draft> {
        for _ in 0..TRIES {
            let name = unique();
            rustix::fs::mkdirat(images, &name, Mode::RWXU)?;
            match lock_new(images, &name) {
                Ok(Some((folder, about))) => {
                    return Ok(Draft {
                        images: images.clone(),
                        name,
                        folder,
                        about,
                    });
                }
                Ok(None) => {}
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(source),
            }
        }
        Err(io::Error::other("a sweep took every draft away"))
    }

    /// A new folder in it.
    pub(crate) fn make(&self, name: &CStr) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(&self.folder, name, Mode::RWXU)?;
        beneath::open_folder(&self.folder, name)
    }

    /// A file without a name in it, or where there are none such, with one.
    pub(crate) fn spool(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(beneath::open(&self.folder, SPOOL, flags)?.into())
    }

    pub(crate) fn drop_spool(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, SPOOL, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes it visible under its final name, all at once and never over another.
    pub(crate) fn publish(&self, name: &CStr) -> rustix::io::Result<()> {
        move_new(&self.images, &self.name, name)
    }

    /// Best effort: what stays is the sweep's.
    pub(crate) fn discard(self) {
        let _ = empty(&self.folder).and_then(|()| {
            Ok(rustix::fs::unlinkat(
                &self.images,
                &self.name,
                AtFlags::REMOVEDIR,
            )?)
        });
    }
}

/// Nothing if a sweep was faster.
fn lock_new(images: &OwnedFd, name: &CStr) -> io::Result<Option<(OwnedFd, File)>> {
    let folder = beneath::open_folder(images, name)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let about = File::from(rustix::fs::openat(
        &folder,
        ABOUT,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?);
    if !lock(&about)? {
        return Ok(None);
    }
    let removed = rustix::fs::fstat(&about)?.st_nlink == 0;
    Ok((!removed).then_some((folder, about)))
}

/// Locks for oneself alone, without waiting; false if somebody has it.
pub(crate) fn lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes an image out of sight, then removes it. The caller holds its lock.
pub(crate) fn retire(images: &OwnedFd, folder: &OwnedFd, name: &CStr) -> io::Result<CString> {
    let new = unique();
    debug_assert!(is_still(images, name, folder).unwrap_or(true));
    move_new(images, name, &new)?;
    Ok(new)
}

/// Removes what was retired, or a draft: everything in it, its lock last.
pub(crate) fn finish(images: &OwnedFd, folder: &OwnedFd, name: &CStr) -> io::Result<()> {
    empty(folder)?;
    match rustix::fs::unlinkat(images, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a name is one of a draft.
pub(crate) fn is_draft(name: &CStr) -> bool {
    name.to_bytes().starts_with(PREFIX)
}

/// Removes a draft without an owner; says whether it did.
pub(crate) fn sweep(images: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let folder = match beneath::open_folder(images, name) {
        // Its owner has finished it meanwhile.
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(false),
        folder => folder?,
    };
    match beneath::open(&folder, "image.json", OFlags::RDONLY) {
        Ok(about) => {
            let about = File::from(about);
            // Published between opening and locking: then it is no longer a draft.
            if !lock(&about)? || !is_still(images, name, &folder)? {
                return Ok(false);
            }
            empty(&folder)?;
        }
        Err(source) if source.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(source),
    }
    match rustix::fs::unlinkat(images, name, AtFlags::REMOVEDIR) {
        // Its owner has just begun.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the folder still has this name.
pub(crate) fn is_still(images: &OwnedFd, name: &CStr, folder: &OwnedFd) -> io::Result<bool> {
    let there = match rustix::fs::statat(images, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        there => there?,
    };
    let opened = rustix::fs::fstat(folder)?;
    Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino))
}

fn empty(folder: &OwnedFd) -> io::Result<()> {
    let listed = beneath::open_folder(folder, c".")?;
    beneath::for_each(&listed, |name, _| match name == ABOUT {
        true => Ok(()),
        false => beneath::remove(folder, name, None).map(drop),
    })?;
    beneath::remove(folder, ABOUT, None).map(drop)
}

fn move_new(images: &OwnedFd, old: &CStr, new: &CStr) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(images, old, images, new, RenameFlags::NOREPLACE) {
        // Some file systems (NFS) lack the flag. What is moved here are folders with something in
        // them, and no rename replaces such a folder.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(images, old, images, new),
        moved => moved,
    }
}

fn unique() -> CString {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    let text = format!(
        ".draft-{}-{}-{nanos}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    CString::new(text).unwrap_or_else(|_| unreachable!("digits have no NUL"))
}
