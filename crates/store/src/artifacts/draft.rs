//! A draft of a version: an unlisted folder, locked until its writer ends.
//!
//! ```text
//! .drafts/PID-N-NANOS/{bytes, about.json}  ──rename──▶  NAME/VERSION/{bytes, about.json}
//! ```
//! `bytes` is created first and removed last, and carries the lock: a draft without a locked file
//! has no writer.

use ::fs::{Dir, DraftDir};
use std::{fs::File, io, sync::Arc};

pub(crate) const BYTES: &str = "bytes";
pub(crate) const METADATA_FILE: &str = "about.json";

/// A draft; removed when dropped before it is published.
#[derive(Debug)]
pub(crate) struct Draft(DraftDir);

impl Draft {
    pub(crate) fn new(drafts: &Arc<Dir>) -> io::Result<Draft> {
        DraftDir::create(drafts, "", BYTES).map(Draft)
    }

    pub(crate) fn folder(&self) -> &Dir {
        self.0.dir()
    }

    /// The file with the contents, which carries the lock.
    pub(crate) fn bytes(&self) -> &File {
        self.0.lock_file()
    }

    /// Renames the draft to `version`, atomically and never over another.
    pub(crate) fn publish(&mut self, folder: &Dir, version: u64) -> io::Result<()> {
        self.0.publish(folder, version.to_string())
    }
}

/// Moves a version out of sight, then removes it.
pub(crate) fn retire(drafts: &Dir, folder: &Dir, version: u64) -> io::Result<()> {
    let name = DraftDir::retire(folder, version.to_string(), drafts, "")?;
    match drafts.open_dir(&name) {
        // A concurrent sweep was faster.
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        retired => DraftDir::remove(drafts, &retired?, &name, BYTES),
    }
}

/// Removes a draft without a writer; returns whether it did.
pub(crate) fn sweep(drafts: &Dir, name: &str) -> io::Result<bool> {
    DraftDir::sweep(drafts, name, BYTES)
}
