//! One look at everything that tools are made of: the manifest, the wheels beside it, and each entry's code. Reads files, so
//! that it belongs off the event loop; decides nothing.

use super::{
    Code, Settings, Stamp,
    manifest::{self, Entry, Manifest, Wanted},
    place::{self, Depth},
    problem::Problem,
    wheels::Wheels,
    yaml,
};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

/// What is known from looks before.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// What was read last, by its bytes: times of files can be the same while they are not.
    bytes: Option<Vec<u8>>,
    /// Other bytes that one look saw, and no second one yet.
    seen: Option<Vec<u8>>,
    problem: Option<Problem>,
    /// Whether there was ever a manifest that could be read.
    is_read: bool,
    /// The last manifest that could be read.
    manifest: Arc<Manifest>,
    wheels: Wheels,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) placed: Vec<Placed>,
    /// What is wrong with the whole, or with entries that are left out.
    pub(super) problems: Vec<Problem>,
    pub(super) wheels: Wheels,
}

/// An entry with its code, if that is there.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) entry: Entry,
    pub(super) code: Result<Found, Problem>,
}

/// Code that is there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) code: Code,
    /// A program's path in its folder.
    pub(super) program: Option<PathBuf>,
}

/// Looks.
pub(super) fn look(settings: &Settings, mut memory: Memory) -> (Look, Memory) {
    memory.read(settings);
    let mut look = Look {
        problems: memory.manifest.problems.clone(),
        ..Look::default()
    };
    look.problems.extend(memory.problem.clone());
    let wheels = settings
        .manifest
        .parent()
        .unwrap_or(Path::new("/"))
        .join("wheels");
    match Wheels::look(&wheels, &memory.wheels) {
        Ok(wheels) => memory.wheels = wheels,
        Err(problem) => look.problems.push(problem),
    }
    look.wheels = memory.wheels.clone();
    look.problems.extend(look.wheels.problems.clone());
    let mut stamps = Stamps {
        known: HashMap::new(),
        problems: Vec::new(),
    };
    let place = |entry: &Entry| Placed {
        entry: entry.clone(),
        code: found(settings, entry, &mut stamps),
    };
    look.placed = memory.manifest.entries.iter().map(place).collect();
    look.problems.extend(stamps.problems);
    (look, memory)
}

impl Memory {
    /// Reads the manifest, if it is another than before, and two looks in a row see the same: one that is being written is for
    /// a moment another that has fewer tools, or tools with fewer protections. One that cannot be read changes nothing.
    fn read(&mut self, settings: &Settings) {
        let bytes = match bytes(&settings.manifest) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!(
                    "the manifest `{}` cannot be read: {error}",
                    settings.manifest.display()
                );
                let hint = "MANIFEST_PATH says where it is; tools stay as they were meanwhile";
                (self.bytes, self.seen) = (None, None);
                self.problem = Some(Problem::new(message, hint));
                return;
            }
        };
        let seen = self.seen.take();
        if self.bytes.as_ref() == Some(&bytes) {
            return;
        }
        // Nothing is served yet that could be lost.
        let is_first = !self.is_read;
        if !is_first && seen.as_ref() != Some(&bytes) {
            self.seen = Some(bytes);
            return;
        }
        match manifest::read(&bytes, &settings.base) {
            Ok(manifest) => {
                (self.manifest, self.problem, self.is_read) = (Arc::new(manifest), None, true);
            }
            Err(problem) => {
                let message = format!("{}: tools stay as they were", problem.message);
                self.problem = Some(Problem { message, ..problem });
            }
        }
        self.bytes = Some(bytes);
    }
}

/// A regular file, one byte more of it than may be.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(yaml::LARGEST as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Each folder is looked at once, or once as far as each wants.
struct Stamps {
    known: HashMap<(PathBuf, Depth), Stamp>,
    problems: Vec<Problem>,
}

impl Stamps {
    fn of(&mut self, folder: &Path, depth: Depth) -> Stamp {
        let key = (folder.to_owned(), depth);
        if let Some(stamp) = self.known.get(&key) {
            return *stamp;
        }
        let (stamp, is_whole) = place::stamp(folder, depth);
        if !is_whole && depth == Depth::Whole {
            let message = format!(
                "`{}` has too many files: changes of some are not seen",
                folder.display()
            );
            self.problems.push(Problem::new(
                message,
                "edit the manifest after such a change, or use wheels",
            ));
        }
        self.known.insert(key, stamp);
        stamp
    }
}

fn found(settings: &Settings, entry: &Entry, stamps: &mut Stamps) -> Result<Found, Problem> {
    let site = settings.site.clone().filter(|site| site.is_dir());
    let mut parts = site
        .iter()
        .map(|site| stamps.of(site, Depth::Names).0)
        .collect::<Vec<_>>();
    let mut code = Code {
        site,
        ..Code::default()
    };
    let program = match &entry.wanted {
        Wanted::Function { .. } | Wanted::Class { .. } => {
            code.python = Some(settings.python_dir.clone()).filter(|folder| folder.is_dir());
            parts.extend(
                code.python
                    .iter()
                    .map(|folder| stamps.of(folder, Depth::Whole).0),
            );
            None
        }
        Wanted::Executable {
            tool_dir,
            executable,
        } => {
            let (folder, program) = place::executable(&settings.folder, tool_dir, executable)?;
            parts.push(stamps.of(&folder, Depth::Whole).0);
            code.folder = Some(folder);
            Some(program)
        }
    };
    code.stamp = parts.into_iter().fold(Stamp::default(), |sum, part| {
        Stamp(sum.0.rotate_left(9) ^ part)
    });
    Ok(Found { code, program })
}
