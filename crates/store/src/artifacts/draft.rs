//! A version in the making: a folder that nobody lists, held by a lock that dies with its writer.
//!
//! ```text
//! .drafts/PID-N-NANOS/{bytes, about.json}  ──rename──▶  NAME/VERSION/{bytes, about.json}
//! ```
//! `bytes` is made first and removed last, and carries the lock: what has no lock has no writer.

use crate::beneath;
use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) const BYTES: &str = "bytes";
pub(crate) const ABOUT: &str = "about.json";
/// A sweep can take a folder that is not locked yet; it cannot do so forever.
const TRIES: usize = 100;

#[derive(Debug)]
pub(crate) struct Draft {
    drafts: Arc<OwnedFd>,
    name: String,
    pub(crate) folder: OwnedFd,
    /// Holds the lock.
    pub(crate) bytes: File,
    published: bool,
}

impl Draft {
    pub(crate) fn new(drafts: &Arc<OwnedFd>) -> io::Result<Self> {
        for _ in 0..TRIES {
            let name = unique();
            rustix::fs::mkdirat(drafts, &name, Mode::RWXU)?;
            match lock_new(drafts, &name) {
                Ok(Some((folder, bytes))) => {
                    return Ok(Draft {
                        drafts: drafts.clone(),
                        name,
                        folder,
                        bytes,
                        published: false,
                    });
                }
                Ok(None) => {}
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(source),
            }
        }
        Err(io::Error::other("a sweep took every draft away"))
    }

    /// Makes it visible as `version`, all at once and never over another.
    pub(crate) fn publish(&mut self, folder: &OwnedFd, version: u64) -> rustix::io::Result<()> {
        move_new(&self.drafts, &self.name, folder, &version.to_string())?;
        self.published = true;
        Ok(())
    }
}

/// Whoever stops writing in the middle leaves nothing. Best effort: what stays is the sweep's.
impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            _ = empty(&self.folder)
                .and_then(|()| beneath::remove(&self.drafts, &self.name, AtFlags::REMOVEDIR));
        }
    }
}

/// Nothing if a sweep was faster.
fn lock_new(drafts: &OwnedFd, name: &str) -> io::Result<Option<(OwnedFd, File)>> {
    let folder = beneath::open_folder(drafts, name)?;
    let bytes = beneath::open(&folder, BYTES, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
    match rustix::fs::flock(&bytes, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    let removed = rustix::fs::fstat(&bytes)?.st_nlink == 0;
    Ok((!removed).then(|| (folder, File::from(bytes))))
}

/// Takes a version out of sight, then removes it.
pub(crate) fn retire(drafts: &OwnedFd, folder: &OwnedFd, version: u64) -> io::Result<()> {
    let name = unique();
    move_new(folder, &version.to_string(), drafts, &name)?;
    let retired = match beneath::open_folder(drafts, &name) {
        // A sweep was faster.
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        retired => retired?,
    };
    empty(&retired)?;
    beneath::remove(drafts, &name, AtFlags::REMOVEDIR)
}

/// Removes a draft without a writer; says whether it did.
pub(crate) fn sweep(drafts: &OwnedFd, name: &str) -> io::Result<bool> {
    let folder = beneath::open_folder(drafts, name)?;
    match beneath::open(&folder, BYTES, OFlags::RDONLY) {
        Ok(bytes) => {
            match rustix::fs::flock(&bytes, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(false),
                locked => locked?,
            }
            // Published between opening and locking: then these bytes are no longer a draft.
            if !is_still(drafts, name, &folder)? {
                return Ok(false);
            }
            empty(&folder)?;
        }
        Err(source) if source.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(source),
    }
    match rustix::fs::unlinkat(drafts, name, AtFlags::REMOVEDIR) {
        // Its writer has just begun.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(source) => Err(source.into()),
    }
}

fn is_still(drafts: &OwnedFd, name: &str, folder: &OwnedFd) -> io::Result<bool> {
    let there = match rustix::fs::statat(drafts, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        there => there?,
    };
    let opened = rustix::fs::fstat(folder)?;
    Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino))
}

fn empty(folder: &OwnedFd) -> io::Result<()> {
    beneath::remove(folder, ABOUT, AtFlags::empty())?;
    beneath::remove(folder, BYTES, AtFlags::empty())
}

fn move_new(from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        // Some file systems (NFS) lack the flag. What is moved here are folders with something in
        // them, and no rename replaces such a folder.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(from, old, to, new),
        moved => moved,
    }
}

fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!(
        "{}-{}-{nanos}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}
