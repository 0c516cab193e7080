//! Whether the disk of the state folder has room. Layers of workspaces and folders of jobs have no quota of the kernel's:
//! while a program writes one, it is looked whether others still have what they need, and what a folder of a job takes.

use crate::workspaces::measure;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Between two looks.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
/// Between two looks at what folders take, and how many times as long as one look takes: they may have many names.
const WEIGHED_EVERY: Duration = Duration::from_millis(250);
const REST: u32 = 10;
/// What must be free: so much, or a twentieth of a small disk.
const LEAST_FREE: u64 = 1 << 30;
/// What is left for what is under way: so much, or a fiftieth of a small disk.
const LAST_RESERVE: u64 = 256 << 20;

/// Whether too little is left. A disk that says nothing has room.
pub(crate) fn is_short(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|found| {
        too_little(
            found.f_bavail * found.f_frsize,
            found.f_blocks * found.f_frsize,
        )
    })
}

fn too_little(free: u64, total: u64) -> bool {
    free < LEAST_FREE.min(total / 20)
}

/// Whether so little is left that nothing new should begin: what is under way has to write how it ends.
pub(crate) fn is_nearly_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|found| {
        next_to_nothing(
            found.f_bavail * found.f_frsize,
            found.f_blocks * found.f_frsize,
        )
    })
}

fn next_to_nothing(free: u64, total: u64) -> bool {
    free < LAST_RESERVE.min(total / 50)
}

/// Waits until too little is left.
pub(crate) async fn shortage(folder: &Path) {
    while !is_short(folder) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether one of the folders takes so much.
pub(crate) async fn take(folders: &[PathBuf], bytes: u64) -> bool {
    let folders = folders.to_owned();
    let look = move || folders.iter().any(|folder| measure::takes(folder, bytes));
    // What cannot be weighed might be too much.
    tokio::task::spawn_blocking(look).await.unwrap_or(true)
}

/// Waits until one of the folders takes so much; forever if there is none.
pub(crate) async fn until_they_take(folders: &[PathBuf], bytes: u64) {
    if folders.is_empty() {
        std::future::pending::<()>().await;
    }
    loop {
        let begun = tokio::time::Instant::now();
        if take(folders, bytes).await {
            return;
        }
        tokio::time::sleep(WEIGHED_EVERY.max(begun.elapsed() * REST)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gibibyte_must_be_free_or_a_twentieth_of_a_small_disk() {
        assert!(!too_little(1 << 30, 1 << 40) && too_little((1 << 30) - 1, 1 << 40));
        assert!(!too_little(5, 100) && too_little(4, 100));
        assert!(!is_short(Path::new("/nowhere at all")));
    }

    #[test]
    fn the_last_of_a_disk_is_for_what_is_under_way() {
        assert!(!next_to_nothing(256 << 20, 1 << 40) && next_to_nothing((256 << 20) - 1, 1 << 40));
        assert!(!next_to_nothing(2, 100) && next_to_nothing(1, 100));
        assert!(!is_nearly_full(Path::new("/nowhere at all")));
    }
}
