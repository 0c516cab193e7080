//! A draft of an image (new or being removed): an unlisted folder, locked until its owner ends.
//!
//! ```text
//! .draft-PID-N-NANOS/{image.json, root/, spool}  ──rename──▶  sha256-HEX/{image.json, root/}
//! ```
//! `image.json` is created first and removed last, and carries the lock: a draft without a locked
//! file has no owner.

use ::fs::{Dir, DraftDir};
use rustix::fs::Mode;
use std::{ffi::OsStr, fs::File, io, os::unix::ffi::OsStrExt, sync::Arc};

pub(crate) const METADATA_FILE: &str = "image.json";
pub(crate) const ROOT: &str = "root";
const SPOOL: &str = "spool";
const DRAFT_PREFIX: &str = ".draft-";

/// A draft; removed when dropped before it is published. The sweep removes what remains.
#[derive(Debug)]
pub(crate) struct Draft {
    images: Arc<Dir>,
    draft: DraftDir,
}

impl Draft {
    pub(crate) fn new(images: &Arc<Dir>) -> io::Result<Draft> {
        Ok(Draft {
            images: images.clone(),
            draft: DraftDir::create(images, DRAFT_PREFIX, METADATA_FILE)?,
        })
    }

    pub(crate) fn name(&self) -> &str {
        self.draft.name()
    }

    pub(crate) fn folder(&self) -> &Dir {
        self.draft.dir()
    }

    /// The metadata file, which carries the lock.
    pub(crate) fn metadata(&self) -> &File {
        self.draft.lock_file()
    }

    /// Creates a folder in the draft.
    pub(crate) fn make(&self, name: &str) -> io::Result<Dir> {
        self.folder().create_dir(name, Mode::RWXU)?;
        self.folder().open_dir(name)
    }

    /// Creates a file for input that must be read twice.
    pub(crate) fn spool(&self) -> io::Result<File> {
        self.folder().create_file(SPOOL, Mode::RUSR | Mode::WUSR)
    }

    pub(crate) fn drop_spool(&self) -> io::Result<()> {
        self.folder().remove_file(SPOOL).map(drop)
    }

    /// Renames the draft to its final name, atomically and never over another.
    pub(crate) fn publish(&mut self, name: &str) -> io::Result<()> {
        self.draft.publish(&self.images, name)
    }
}

/// Moves an image out of sight; [`remove_retired`] removes it. The caller holds its lock.
pub(crate) fn retire(images: &Dir, folder: &Dir, name: &str) -> io::Result<String> {
    debug_assert!(images.is_entry(name, folder).unwrap_or(true));
    DraftDir::retire(images, name, images, DRAFT_PREFIX)
}

/// Removes a retired image, its lock file last.
pub(crate) fn remove_retired(images: &Dir, folder: &Dir, name: &str) -> io::Result<()> {
    DraftDir::remove(images, folder, name, METADATA_FILE)
}

/// Whether a file name is that of a draft.
pub(crate) fn is_draft(name: &OsStr) -> bool {
    name.as_bytes().starts_with(DRAFT_PREFIX.as_bytes())
}

/// Removes a draft without an owner; returns whether it did.
pub(crate) fn sweep(images: &Dir, name: &OsStr) -> io::Result<bool> {
    DraftDir::sweep(images, name, METADATA_FILE)
}
