//! Disk usage of a state folder, by its parts.

use ::fs::{Dir, WalkBounds};
use rustix::fs::{FileType, Stat};
use std::{ffi::OsStr, io, path::Path};

/// The parts of a state folder and their descriptions.
const PARTS: [(&str, &str); 9] = [
    ("airlock.db", "keys, runs, jobs, usage"),
    ("artifacts", "artifacts of runs"),
    ("audit", "the audit"),
    ("feeds", "output of sandboxes that stay"),
    ("images", "unpacked images"),
    ("ledger", "what models cost"),
    ("runs", "records of runs under way"),
    ("secrets", "encrypted secrets"),
    ("workspaces", "layers of workspaces"),
];
/// Deeper trees cannot be Airlock's own state, and counting stops at so many files.
const MAX_DEPTH: usize = 128;
const MAX_FILES: u64 = 50_000_000;

/// The disk usage of one part.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StatePart {
    /// The name of the part in the folder; `other` for the rest.
    pub name: String,
    /// What the part holds.
    pub about: &'static str,
    /// The number of files.
    pub files: u64,
    /// The bytes on disk.
    pub bytes: u64,
}

/// The disk usage of a state folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StateUsage {
    /// The parts that exist.
    pub parts: Vec<StatePart>,
    /// The sum of all parts.
    pub bytes: u64,
    /// The free bytes of the disk.
    pub free_bytes: u64,
    /// Whether so little is free that a server starts nothing new.
    pub nearly_full: bool,
}

/// Measures a state folder. Files that disappear meanwhile count as zero.
pub fn measure(state: &Path) -> io::Result<StateUsage> {
    let folder = Dir::open(state)?;
    let mut usage = StateUsage {
        nearly_full: crate::disk_space::is_nearly_full(state),
        ..StateUsage::default()
    };
    let disk = rustix::fs::statvfs(state)?;
    usage.free_bytes = disk.f_bavail * disk.f_frsize;
    for entry in folder.entries()? {
        let found = entry?.name;
        let name = found.to_string_lossy();
        let known = PARTS
            .iter()
            .find(|(part, _)| name == *part || name.starts_with(&format!("{part}-")));
        let (part, about) = known
            .copied()
            .unwrap_or(("other", "locks, sockets and what is in the making"));
        let at = usage
            .parts
            .iter()
            .position(|known| known.name == part)
            .unwrap_or_else(|| {
                usage.parts.push(StatePart {
                    name: part.to_owned(),
                    about,
                    ..StatePart::default()
                });
                usage.parts.len() - 1
            });
        add(&folder, &found, &mut usage.parts[at]);
    }
    usage.parts.sort_by(|one, other| one.name.cmp(&other.name));
    usage.bytes = usage.parts.iter().map(|part| part.bytes).sum();
    Ok(usage)
}

/// Walks by handle and does not follow symbolic links: programs have written parts of the folder.
fn add(folder: &Dir, name: &OsStr, part: &mut StatePart) {
    let Ok(Some(found)) = folder.stat(name) else {
        return;
    };
    part.add(&found);
    let bounds = WalkBounds {
        depth: MAX_DEPTH,
        ..WalkBounds::default()
    };
    let Ok(walk) = folder.open_dir(name).and_then(|part| part.walk(bounds)) else {
        return;
    };
    for entry in walk.flatten() {
        if part.files >= MAX_FILES {
            return;
        }
        part.add(&entry.stat);
    }
}

impl StatePart {
    fn add(&mut self, found: &Stat) {
        self.bytes += u64::try_from(found.st_blocks).unwrap_or_default() * 512;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            self.files += 1;
        }
    }
}
