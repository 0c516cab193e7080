//! How much each part of a state folder takes.

use ::fs::{Dir, WalkBounds};
use rustix::fs::{FileType, Stat};
use std::{ffi::OsStr, io, path::Path};

/// What lies in a state folder, and what each part is.
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
/// Deeper trees are no state of ours, and larger ones are not counted to their end.
const DEEPEST: usize = 128;
const MOST_FILES: u64 = 50_000_000;

/// How much one part takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Part {
    /// Its name in the folder; `other` for all that has none.
    pub name: String,
    /// What it is.
    pub about: &'static str,
    /// Its files.
    pub files: u64,
    /// What they take of the disk.
    pub bytes: u64,
}

/// How much a state folder takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Weight {
    /// Each part that is there.
    pub parts: Vec<Part>,
    /// All of them.
    pub bytes: u64,
    /// What the disk still has for us.
    pub free_bytes: u64,
    /// Whether that is so little that a server begins nothing new.
    pub nearly_full: bool,
}

/// Weighs a state folder. What goes away meanwhile weighs nothing.
pub fn weigh(state: &Path) -> io::Result<Weight> {
    let folder = Dir::open(state)?;
    let mut weight = Weight {
        nearly_full: crate::room::is_nearly_full(state),
        ..Weight::default()
    };
    let disk = rustix::fs::statvfs(state)?;
    weight.free_bytes = disk.f_bavail * disk.f_frsize;
    for entry in folder.entries()? {
        let found = entry?.name;
        let name = found.to_string_lossy();
        let known = PARTS
            .iter()
            .find(|(part, _)| name == *part || name.starts_with(&format!("{part}-")));
        let (part, about) = known
            .copied()
            .unwrap_or(("other", "locks, sockets and what is in the making"));
        let at = weight
            .parts
            .iter()
            .position(|known| known.name == part)
            .unwrap_or_else(|| {
                weight.parts.push(Part {
                    name: part.to_owned(),
                    about,
                    ..Part::default()
                });
                weight.parts.len() - 1
            });
        add(&folder, &found, &mut weight.parts[at]);
    }
    weight.parts.sort_by(|one, other| one.name.cmp(&other.name));
    weight.bytes = weight.parts.iter().map(|part| part.bytes).sum();
    Ok(weight)
}

/// By handle and without following links: programs have written parts of it.
fn add(folder: &Dir, name: &OsStr, part: &mut Part) {
    let Ok(Some(found)) = folder.stat(name) else {
        return;
    };
    part.add(&found);
    let bounds = WalkBounds {
        depth: DEEPEST,
        ..WalkBounds::default()
    };
    let Ok(walk) = folder.open_dir(name).and_then(|part| part.walk(bounds)) else {
        return;
    };
    for entry in walk.flatten() {
        if part.files >= MOST_FILES {
            return;
        }
        part.add(&entry.stat);
    }
}

impl Part {
    fn add(&mut self, found: &Stat) {
        self.bytes += u64::try_from(found.st_blocks).unwrap_or_default() * 512;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            self.files += 1;
        }
    }
}
