//! The lock file `upkeep.lock`: a backup holds it shared, and removals of old files need it
//! exclusively, so no file vanishes during a backup.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::{fs::File, io, path::Path};

const FILE_NAME: &str = "upkeep.lock";

/// The held lock; released when dropped.
#[derive(Debug)]
pub struct UpkeepLock(File);

/// Unlocks explicitly: a child process may have inherited the descriptor until its `exec`, and must
/// not keep the lock.
impl Drop for UpkeepLock {
    fn drop(&mut self) {
        _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl UpkeepLock {
    /// Shared lock, for readers such as backups; waits for a removal that is under way.
    pub fn shared(state: &Path) -> io::Result<UpkeepLock> {
        let file = UpkeepLock::file(state)?;
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        Ok(UpkeepLock(file))
    }

    /// Exclusive lock, for removals; `None` while a reader holds the lock.
    pub fn try_exclusive(state: &Path) -> io::Result<Option<UpkeepLock>> {
        let file = UpkeepLock::file(state)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(UpkeepLock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn file(state: &Path) -> io::Result<File> {
        let flags =
            OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(File::from(rustix::fs::open(
            state.join(FILE_NAME),
            flags,
            Mode::RUSR | Mode::WUSR,
        )?))
    }
}
