//! Where an image lies while it is pulled: an OCI layout that nobody else reads, held by a lock that dies with us.
//!
//! ```text
//! FOLDER/NUMBER/oci-layout  index.json  blobs/sha256/HEX      (HEX.part until its digest was checked)
//! ```
//! The lock is on the folder `NUMBER` itself. It is made and locked, and others are swept, under the lock of `FOLDER`:
//! nobody sees a draft without its owner.

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, flock},
    io::Errno,
};
use spec::Digest;
use std::{
    fs::{self, DirBuilder, File},
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// An OCI layout in the making.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    /// Holds the lock.
    folder: OwnedFd,
    blobs: OwnedFd,
}

impl Draft {
    /// Makes an empty one below `parent`, which is made, too, and freed of drafts without an owner.
    pub fn new(parent: &Path) -> io::Result<Draft> {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let guard = rustix::fs::open(parent, FOLDER, Mode::empty())?;
        flock(&guard, FlockOperation::LockExclusive)?;
        sweep_locked(parent, &guard)?;
        let name = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        rustix::fs::mkdirat(&guard, &name, Mode::RWXU)?;
        let folder = rustix::fs::openat(&guard, &name, FOLDER, Mode::empty())?;
        flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
        rustix::fs::mkdirat(&folder, "blobs", Mode::RWXU)?;
        rustix::fs::mkdirat(&folder, "blobs/sha256", Mode::RWXU)?;
        let blobs = rustix::fs::openat(&folder, "blobs/sha256", FOLDER, Mode::empty())?;
        Ok(Draft { path: parent.join(name), folder, blobs })
    }

    /// The layout's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes everything. Where that fails, or is never called, the next draft's making does it.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }

    /// A file for bytes that have not been checked yet.
    pub(super) fn part(&self, digest: &Digest) -> io::Result<File> {
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.blobs, part_name(digest), NEW_FILE, mode)?.into())
    }

    /// The bytes have been checked: from now on they are what their name says.
    pub(super) fn keep(&self, digest: &Digest) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.blobs, part_name(digest), &self.blobs, digest.hex())?)
    }

    /// Keeps bytes that have been checked.
    pub(super) fn write(&self, digest: &Digest, bytes: &[u8]) -> io::Result<()> {
        self.part(digest)?.write_all(bytes)?;
        self.keep(digest)
    }

    /// The bytes of a blob that was kept.
    pub(super) fn read(&self, digest: &Digest) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut bytes = Vec::new();
        let file = rustix::fs::openat(&self.blobs, digest.hex(), flags, Mode::empty())?;
        io::Read::read_to_end(&mut File::from(file), &mut bytes)?;
        Ok(bytes)
    }

    /// Writes what makes a layout of the blobs.
    pub(super) fn finish(&self, index: &serde_json::Value) -> io::Result<()> {
        for (name, text) in [
            ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#.to_owned()),
            ("index.json", index.to_string()),
        ] {
            let mode = Mode::RUSR | Mode::WUSR;
            let file = rustix::fs::openat(&self.folder, name, NEW_FILE, mode)?;
            File::from(file).write_all(text.as_bytes())?;
        }
        Ok(())
    }
}

fn part_name(digest: &Digest) -> String {
    format!("{}.part", digest.hex())
}

/// Removes drafts without a living owner; the number of them.
pub fn sweep(parent: &Path) -> io::Result<usize> {
    let guard = match rustix::fs::open(parent, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(0),
        opened => opened?,
    };
    flock(&guard, FlockOperation::LockExclusive)?;
    sweep_locked(parent, &guard)
}

fn sweep_locked(parent: &Path, guard: &OwnedFd) -> io::Result<usize> {
    let mut removed = 0;
    for entry in rustix::fs::Dir::read_from(guard)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(folder) = rustix::fs::openat(guard, name, FOLDER, Mode::empty()) else {
            // No draft: nothing here is ever a file.
            rustix::fs::unlinkat(guard, name, AtFlags::empty())?;
            continue;
        };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            fs::remove_dir_all(parent.join(name.to_string_lossy().as_ref()))?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(label: &str) -> PathBuf {
        std::env::temp_dir().join(format!("airlock-drafts-{}-{label}", std::process::id()))
    }

    #[test]
    fn a_draft_without_an_owner_is_swept_and_one_with_an_owner_is_not() {
        let parent = parent("sweep");
        assert_eq!(sweep(&parent).unwrap(), 0);
        let (lives, dies) = (Draft::new(&parent).unwrap(), Draft::new(&parent).unwrap());
        let gone = dies.path().to_owned();
        assert_eq!(sweep(&parent).unwrap(), 0);
        drop(dies);
        assert!(gone.exists(), "the lock dies with its owner, the folder does not");
        assert_eq!(sweep(&parent).unwrap(), 1);
        assert!(!gone.exists() && lives.path().exists());
        lives.remove().unwrap();
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
        fs::remove_dir(&parent).unwrap();
    }

    #[test]
    fn bytes_have_their_name_only_once_they_are_kept() {
        let parent = parent("keep");
        let draft = Draft::new(&parent).unwrap();
        let digest = Digest::new(&format!("sha256:{}", "0".repeat(64))).unwrap();
        let file = draft.path().join("blobs/sha256").join(digest.hex());
        draft.part(&digest).unwrap();
        assert!(!file.exists() && draft.part(&digest).is_err(), "a second writer is refused");
        draft.keep(&digest).unwrap();
        assert!(file.exists());
        fs::remove_dir_all(&parent).unwrap();
    }
}
