//! Stops everything in a cgroup where it is, and lets it go on. Version 2 can do it in any cgroup, and kills what is
//! frozen; version 1 has a tree for it, and what is frozen there cannot even die.

use super::{Version, dir};
use std::{
    io,
    path::{Path, PathBuf},
    time::Instant,
};

/// Where one box is frozen.
#[derive(Clone, Debug)]
pub struct Freezer {
    pub(super) at: PathBuf,
    pub(super) version: Version,
}

impl Freezer {
    /// Comes back when everything has stopped. If something does not, everything goes on.
    pub fn freeze(&self) -> io::Result<()> {
        self.set(true).inspect_err(|_| drop(self.set(false)))
    }

    /// Lets everything go on.
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
            // Each time anew: version 1 looks again only when it is told again.
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

/// Lets whatever is frozen in one of these directories go on, so that it can be killed.
pub(super) fn thaw_before_killing<'a>(dirs: impl IntoIterator<Item = &'a Path>) {
    for dir in dirs {
        // There is such a file in one tree at most; where it cannot be written, killing will say so.
        _ = dir::write(dir, "freezer.state", "THAWED");
    }
}
