//! Disk space reserve: a preallocated file in the state folder. When the disk is full and a key is
//! to be revoked, a run or sandbox ended or something removed, the file is deleted first. Until it
//! is restored, no other audited action is accepted, so that nothing else takes the released space:
//! running programs can call no models and pass no egress doors, and audit entries that only
//! describe them are left out.
//!
//! ```text
//! restored ── disk full, something is to end ──▶ released ── enough space is free ──▶ restored
//! ```

use rustix::fs::FallocateFlags;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

const FILE_NAME: &str = "reserve";
/// Size of the reserve, or this fraction of a small disk: less than the free space below which no
/// new work is accepted.
const MAX_BYTES: u64 = 16 << 20;
const DISK_FRACTION: u64 = 64;
/// The reserve is restored when this many times its size is free.
const RESTORE_FACTOR: u64 = 3;
const CHUNK: usize = 64 << 10;

/// The disk reserve of a state folder.
#[derive(Debug)]
pub struct DiskReserve {
    state: PathBuf,
    is_released: Arc<AtomicBool>,
}

impl DiskReserve {
    /// The reserve of this state folder.
    pub fn of(state: &Path) -> DiskReserve {
        DiskReserve {
            state: state.to_owned(),
            is_released: Arc::default(),
        }
    }

    /// Free bytes of the disk, and size of the reserve. A file system that does not report its size
    /// counts as free.
    fn sizes(&self) -> (u64, u64) {
        rustix::fs::statvfs(&self.state).map_or((u64::MAX, MAX_BYTES), |stat| {
            let total = stat.f_blocks.saturating_mul(stat.f_frsize);
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            (free, MAX_BYTES.min(total / DISK_FRACTION))
        })
    }

    /// Whether the reserve is released and not restored yet.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::SeqCst)
    }

    /// The flag of [`DiskReserve::is_released`], for the engine, which reads it itself.
    pub(crate) fn released_flag(&self) -> Arc<AtomicBool> {
        self.is_released.clone()
    }

    /// Allocates the reserve file if it is missing and there is space. Blocks.
    pub(crate) fn restore(&self) {
        let (free, bytes) = self.sizes();
        let path = self.state.join(FILE_NAME);
        if fs::metadata(&path).is_ok_and(|stat| stat.len() == bytes) {
            self.is_released.store(false, Ordering::SeqCst);
            return;
        }
        if free < bytes.saturating_mul(RESTORE_FACTOR) {
            // Deleted before the database was opened, or by a user at the machine.
            self.is_released.store(!path.exists(), Ordering::SeqCst);
            return;
        }
        match allocate(&path, bytes) {
            Ok(()) => self.is_released.store(false, Ordering::SeqCst),
            // Retried later; a partial file must not use space.
            Err(_) => _ = fs::remove_file(&path),
        }
    }

    /// Deletes the reserve file if less than its size is free. Blocks briefly.
    pub fn release_if_full(&self) {
        let (free, bytes) = self.sizes();
        if free < bytes {
            // If there is no file, there is nothing to release.
            _ = fs::remove_file(self.state.join(FILE_NAME));
            self.is_released.store(true, Ordering::SeqCst);
        }
    }
}

fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).is_ok() {
        return Ok(());
    }
    // Fallback for file systems without `fallocate`.
    let zeros = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(CHUNK as u64);
        file.write_all(&zeros[..count as usize])?;
        left -= count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_its_place_and_is_given_only_where_nothing_else_is() {
        let state = std::env::temp_dir().join(format!("airlock-reserve-{}", std::process::id()));
        fs::create_dir_all(&state).unwrap();
        let reserve = DiskReserve::of(&state);
        reserve.restore();
        let (free, bytes) = reserve.sizes();
        let length = || {
            fs::metadata(state.join(FILE_NAME))
                .map(|stat| stat.len())
                .ok()
        };
        assert!(free < bytes * RESTORE_FACTOR || length() == Some(bytes));
        reserve.release_if_full();
        assert_eq!(reserve.is_released(), free < bytes, "a disk with room");
        fs::remove_dir_all(state).unwrap();
    }
}
