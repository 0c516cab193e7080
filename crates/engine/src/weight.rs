//! How much each part of a state folder takes.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, statat};
use std::{io, os::fd::OwnedFd, path::Path};

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
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(state, flags, Mode::empty())?;
    let mut weight = Weight {
        nearly_full: crate::room::is_nearly_full(state),
        ..Weight::default()
    };
    let disk = rustix::fs::statvfs(state)?;
    weight.free_bytes = disk.f_bavail * disk.f_frsize;
    for entry in Dir::read_from(&folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
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
        add(&folder, &name, &mut weight.parts[at], DEEPEST);
    }
    weight.parts.sort_by(|one, other| one.name.cmp(&other.name));
    weight.bytes = weight.parts.iter().map(|part| part.bytes).sum();
    Ok(weight)
}

/// By handle and without following links: programs have written parts of it.
fn add(folder: &OwnedFd, name: &str, part: &mut Part, depth: usize) {
    let Ok(found) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return;
    };
    part.bytes += u64::try_from(found.st_blocks).unwrap_or_default() * 512;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        part.files += 1;
        return;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(inner) = rustix::fs::openat(folder, name, flags, Mode::empty()) else {
        return;
    };
    let Ok(entries) = Dir::read_from(&inner) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if name != "." && name != ".." && depth > 0 && part.files < MOST_FILES {
            add(&inner, name, part, depth - 1);
        }
    }
}
