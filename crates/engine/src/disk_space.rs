//! Free disk space of the state folder. Workspace layers and job folders have no kernel quota:
//! while a program writes to them, Airlock checks whether enough space is left for others, and how
//! much a job folder takes.

use crate::workspaces::measure;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// The interval between two checks of the free space.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The interval between two measurements of folders, and the pause as a multiple of the measuring
/// time: folders may have many names.
const MEASURE_INTERVAL: Duration = Duration::from_millis(250);
const MEASURE_PAUSE_FACTOR: u32 = 10;
/// The free space that must remain: 1 GiB, or a twentieth of a small disk.
const MIN_FREE_BYTES: u64 = 1 << 30;
/// The reserve for work in progress: 256 MiB, or a fiftieth of a small disk.
const RESERVED_BYTES: u64 = 256 << 20;

/// Whether too little space is left. A file system that does not report its space counts as free.
pub(crate) fn is_short(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|found| {
        is_below_minimum(
            found.f_bavail * found.f_frsize,
            found.f_blocks * found.f_frsize,
        )
    })
}

fn is_below_minimum(free: u64, total: u64) -> bool {
    free < MIN_FREE_BYTES.min(total / 20)
}

/// Whether so little space is left that nothing new should start: work in progress must be able to
/// record its end.
pub(crate) fn is_nearly_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|found| {
        is_below_reserve(
            found.f_bavail * found.f_frsize,
            found.f_blocks * found.f_frsize,
        )
    })
}

fn is_below_reserve(free: u64, total: u64) -> bool {
    free < RESERVED_BYTES.min(total / 50)
}

/// Waits until too little space is left.
pub(crate) async fn wait_for_shortage(folder: &Path) {
    while !is_short(folder) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Whether one of the folders takes at least so many bytes.
pub(crate) async fn exceeds(folders: &[PathBuf], bytes: u64) -> bool {
    let folders = folders.to_owned();
    let look = move || folders.iter().any(|folder| measure::takes(folder, bytes));
    // A folder that cannot be measured counts as too large.
    tokio::task::spawn_blocking(look).await.unwrap_or(true)
}

/// Waits until one of the folders takes so many bytes; forever without folders.
pub(crate) async fn wait_until_exceeded(folders: &[PathBuf], bytes: u64) {
    if folders.is_empty() {
        std::future::pending::<()>().await;
    }
    loop {
        let begun = tokio::time::Instant::now();
        if exceeds(folders, bytes).await {
            return;
        }
        tokio::time::sleep(MEASURE_INTERVAL.max(begun.elapsed() * MEASURE_PAUSE_FACTOR)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gibibyte_must_be_free_or_a_twentieth_of_a_small_disk() {
        assert!(!is_below_minimum(1 << 30, 1 << 40) && is_below_minimum((1 << 30) - 1, 1 << 40));
        assert!(!is_below_minimum(5, 100) && is_below_minimum(4, 100));
        assert!(!is_short(Path::new("/nowhere at all")));
    }

    #[test]
    fn the_last_of_a_disk_is_for_what_is_under_way() {
        assert!(
            !is_below_reserve(256 << 20, 1 << 40) && is_below_reserve((256 << 20) - 1, 1 << 40)
        );
        assert!(!is_below_reserve(2, 100) && is_below_reserve(1, 100));
        assert!(!is_nearly_full(Path::new("/nowhere at all")));
    }
}
