//! What folders of packages take together: bounded, whatever is installed one after the other.

use super::{MAKING, Problem, discard};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// What all may take before nothing more is installed.
pub(super) const MOST_KEPT: u64 = 8 << 30;
/// Used so recently, a folder may still be: that of a tool is noted every hour, and calls of before an edit go on.
const SPARED: Duration = Duration::from_secs(2 * 3600);

struct Layer {
    place: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Removes folders until all are within the bound, those first that were not used for the longest.
pub(super) fn make_room(folder: &Path, most: u64) -> Result<(), Problem> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    let places = entries
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with(MAKING));
    let layer = |place: PathBuf| -> io::Result<Layer> {
        let used = fs::symlink_metadata(&place)?.modified()?;
        Ok(Layer {
            bytes: bytes(&place)?,
            used,
            place,
        })
    };
    // What is removed by another worker meanwhile takes nothing.
    let mut layers: Vec<Layer> = places
        .filter_map(|entry| layer(entry.path()).ok())
        .collect();
    layers.sort_by_key(|layer| layer.used);
    let mut sum: u64 = layers.iter().map(|layer| layer.bytes).sum();
    let is_old = |layer: &&Layer| layer.used.elapsed().is_ok_and(|age| age > SPARED);
    for layer in layers.iter().filter(is_old) {
        if sum <= most {
            break;
        }
        discard(folder, &layer.place);
        sum -= layer.bytes;
    }
    match sum <= most {
        true => Ok(()),
        false => {
            let message = format!(
                "packages take {} MiB already; they may take {}",
                sum >> 20,
                most >> 20
            );
            let hint = "those that no tool used for two hours are removed by themselves; it is tried again";
            Err(Problem::new(message, hint).passing())
        }
    }
}

/// What it takes on the disk.
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
