//! A version in the making: a folder that nobody lists, held by a lock that dies with its writer.
//!
//! ```text
//! .drafts/PID-N-NANOS/{bytes, about.json}  ──rename──▶  NAME/VERSION/{bytes, about.json}
//! ```
//! `bytes` is made first and removed last, and carries the lock: what has no lock has no writer.

use ::fs::{Dir, DraftDir};
use std::{fs::File, io, sync::Arc};

pub(crate) const BYTES: &str = "bytes";
pub(crate) const ABOUT: &str = "about.json";

/// Whoever stops writing in the middle leaves nothing.
#[derive(Debug)]
pub(crate) struct Draft(DraftDir);

impl Draft {
    pub(crate) fn new(drafts: &Arc<Dir>) -> io::Result<Draft> {
        DraftDir::create(drafts, "", BYTES).map(Draft)
    }

    pub(crate) fn folder(&self) -> &Dir {
        self.0.dir()
    }

    /// The contents; they hold the lock.
    pub(crate) fn bytes(&self) -> &File {
        self.0.lock_file()
    }

    /// Makes it visible as `version`, all at once and never over another.
    pub(crate) fn publish(&mut self, folder: &Dir, version: u64) -> io::Result<()> {
        self.0.publish(folder, version.to_string())
    }
}

/// Takes a version out of sight, then removes it.
pub(crate) fn retire(drafts: &Dir, folder: &Dir, version: u64) -> io::Result<()> {
    let name = DraftDir::retire(folder, version.to_string(), drafts, "")?;
    match drafts.open_dir(&name) {
        // A sweep was faster.
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        retired => DraftDir::remove(drafts, &retired?, &name, BYTES),
    }
}

/// Removes a draft without a writer; says whether it did.
pub(crate) fn sweep(drafts: &Dir, name: &str) -> io::Result<bool> {
    DraftDir::sweep(drafts, name, BYTES)
}
