//! `upkeep.lock`: whoever copies a state folder keeps others from taking files away meanwhile.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::{fs::File, io, path::Path};

const LOCK: &str = "upkeep.lock";

/// Keeps others from taking ledgers and audits away while it is held.
#[derive(Debug)]
pub struct Upkeep(File);

/// A program that is being started may have a copy of the lock until it is another program; it must not keep it.
impl Drop for Upkeep {
    fn drop(&mut self) {
        _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Upkeep {
    /// For those who only look: waits for whoever takes something away.
    pub fn shared(state: &Path) -> io::Result<Upkeep> {
        let file = Upkeep::file(state)?;
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        Ok(Upkeep(file))
    }

    /// For whoever takes something away; none while somebody looks.
    pub fn alone(state: &Path) -> io::Result<Option<Upkeep>> {
        let file = Upkeep::file(state)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Upkeep(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn file(state: &Path) -> io::Result<File> {
        let flags =
            OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(File::from(rustix::fs::open(
            state.join(LOCK),
            flags,
            Mode::RUSR | Mode::WUSR,
        )?))
    }
}
