//! Freezes and thaws a cgroup. Version 2 can do it in any cgroup, and kills frozen processes;
//! version 1 has a tree for it, and frozen processes there cannot be killed.

use super::{Version, dir};
use std::{
    io,
    path::{Path, PathBuf},
    time::Instant,
};

/// The cgroup in which one sandbox is frozen.
#[derive(Clone, Debug)]
pub struct Freezer {
    pub(super) at: PathBuf,
    pub(super) version: Version,
}

impl Freezer {
    /// Returns when all processes have stopped. If one does not, all continue.
    pub fn freeze(&self) -> io::Result<()> {
        self.set(true).inspect_err(|_| drop(self.set(false)))
    }

    /// Continues all processes.
    pub fn thaw(&self) -> io::Result<()> {
        self.set(false)
    }

    fn set(&self, frozen: bool) -> io::Result<()> {
        let (file, word) = match (self.version, frozen) {
            (Version::V1, true) => ("freezer.state", "FROZEN"),
            (Version::V1, false) => ("freezer.state", "THAWED"),
            (Version::V2, true) => ("cgroup.freeze", "1"),
            (Version::V2, false) => ("cgroup.freeze", "0"),
        };
        dir::retry_while_busy(Instant::now() + dir::BUSY_TIMEOUT, || {
            // Each time anew: version 1 checks again only after another write.
            dir::write(&self.at, file, word)?;
            let there = match self.version {
                Version::V1 => dir::read(&self.at, file)? == word,
                Version::V2 => {
                    let events = dir::read(&self.at, "cgroup.events")?;
                    dir::value(&events, "frozen") == Some(u64::from(frozen))
                }
            };
            if there {
                Ok(())
            } else {
                Err(io::Error::from(io::ErrorKind::ResourceBusy))
            }
        })
    }
}

/// Thaws these directories, so that their processes can be killed.
pub(super) fn thaw_before_killing<'a>(dirs: impl IntoIterator<Item = &'a Path>) {
    for dir in dirs {
        // One tree at most has the file; where it cannot be written, killing reports the error.
        _ = dir::write(dir, "freezer.state", "THAWED");
    }
}
