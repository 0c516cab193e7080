//! Disk quota of all package folders.

use super::{PARTIAL_PREFIX, ToolProblem, discard};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Quota; above it nothing is installed.
pub(super) const MAX_KEPT_BYTES: u64 = 8 << 30;
/// A folder used this recently may be in use: use is recorded every hour, and calls may outlive a
/// change of the manifest.
const RECENTLY_USED: Duration = Duration::from_secs(2 * 3600);

struct PackageLayer {
    place: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Removes the least recently used folders until the quota is met.
pub(super) fn make_room(folder: &Path, limit: u64) -> Result<(), ToolProblem> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    let places = entries.flatten().filter(|entry| {
        !entry
            .file_name()
            .to_string_lossy()
            .starts_with(PARTIAL_PREFIX)
    });
    let layer = |place: PathBuf| -> io::Result<PackageLayer> {
        let used = fs::symlink_metadata(&place)?.modified()?;
        Ok(PackageLayer {
            bytes: bytes(&place)?,
            used,
            place,
        })
    };
    // Another worker may remove folders meanwhile.
    let mut layers: Vec<PackageLayer> = places
        .filter_map(|entry| layer(entry.path()).ok())
        .collect();
    layers.sort_by_key(|layer| layer.used);
    let mut sum: u64 = layers.iter().map(|layer| layer.bytes).sum();
    let is_old = |layer: &&PackageLayer| layer.used.elapsed().is_ok_and(|age| age > RECENTLY_USED);
    for layer in layers.iter().filter(is_old) {
        if sum <= limit {
            break;
        }
        discard(folder, &layer.place);
        sum -= layer.bytes;
    }
    if sum <= limit {
        Ok(())
    } else {
        let message = format!(
            "packages take {} MiB already; they may take {}",
            sum >> 20,
            limit >> 20
        );
        let hint =
            "those that no tool used for two hours are removed by themselves; it is tried again";
        Err(ToolProblem::new(message, hint).passing())
    }
}

/// Disk usage.
fn bytes(path: &Path) -> io::Result<u64> {
    let found = fs::symlink_metadata(path)?;
    let mut sum = found.blocks() * 512;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            sum += bytes(&entry?.path())?;
        }
    }
    Ok(sum)
}
