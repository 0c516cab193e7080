//! One scan of everything that tools consist of: the manifest, its wheels, and each entry's code.
//! It does file I/O and belongs on a blocking thread; it makes no decisions.

use super::{
    CatalogSettings, Stamp, ToolCode,
    locate::{self, StampDepth},
    manifest::{self, Manifest, ManifestEntry, ManifestTarget},
    problem::ToolProblem,
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

/// State between scans.
#[derive(Debug, Default)]
pub(super) struct ScanState {
    /// Content of the manifest that was parsed last: modification times are not reliable.
    bytes: Option<Vec<u8>>,
    /// Different content that only one scan has seen.
    seen: Option<Vec<u8>>,
    problem: Option<ToolProblem>,
    /// Whether a manifest was ever parsed.
    is_read: bool,
    /// The last valid manifest.
    manifest: Arc<Manifest>,
    wheels: Wheels,
}

/// Result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) placed: Vec<ScannedEntry>,
    /// Problems of the whole, and of entries that were left out.
    pub(super) problems: Vec<ToolProblem>,
    pub(super) wheels: Wheels,
}

/// An entry with its code, if that was located.
#[derive(Debug)]
pub(super) struct ScannedEntry {
    pub(super) entry: ManifestEntry,
    pub(super) code: Result<LocatedCode, ToolProblem>,
}

/// Located code.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LocatedCode {
    pub(super) code: ToolCode,
    /// Path of a program in its folder.
    pub(super) program: Option<PathBuf>,
}

/// Scans once.
pub(super) fn scan(settings: &CatalogSettings, mut memory: ScanState) -> (Scan, ScanState) {
    memory.read(settings);
    let mut scan = Scan {
        problems: memory.manifest.problems.clone(),
        ..Scan::default()
    };
    scan.problems.extend(memory.problem.clone());
    let wheels = settings
        .manifest
        .parent()
        .unwrap_or(Path::new("/"))
        .join("wheels");
    match Wheels::scan(&wheels, &memory.wheels) {
        Ok(wheels) => memory.wheels = wheels,
        Err(problem) => scan.problems.push(problem),
    }
    scan.wheels = memory.wheels.clone();
    scan.problems.extend(scan.wheels.problems.clone());
    let mut stamps = StampCache {
        known: HashMap::new(),
        problems: Vec::new(),
    };
    let place = |entry: &ManifestEntry| ScannedEntry {
        entry: entry.clone(),
        code: locate_code(settings, entry, &mut stamps),
    };
    scan.placed = memory.manifest.entries.iter().map(place).collect();
    scan.problems.extend(stamps.problems);
    (scan, memory)
}

impl ScanState {
    /// Parses the manifest if its content has changed and two consecutive scans agree: a manifest
    /// that is being written may lack tools or protections for a moment. An invalid one changes
    /// nothing.
    fn read(&mut self, settings: &CatalogSettings) {
        let bytes = match read_manifest(&settings.manifest) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!(
                    "the manifest `{}` cannot be read: {error}",
                    settings.manifest.display()
                );
                let hint = "MANIFEST_PATH says where it is; tools stay as they were meanwhile";
                self.bytes = None;
                self.seen = None;
                self.problem = Some(ToolProblem::new(message, hint));
                return;
            }
        };
        let seen = self.seen.take();
        if self.bytes.as_ref() == Some(&bytes) {
            return;
        }
        // Nothing is served yet.
        let is_first = !self.is_read;
        if !is_first && seen.as_ref() != Some(&bytes) {
            self.seen = Some(bytes);
            return;
        }
        match manifest::read(&bytes, &settings.base) {
            Ok(manifest) => {
                self.manifest = Arc::new(manifest);
                self.problem = None;
                self.is_read = true;
            }
            Err(problem) => {
                let message = format!("{}: tools stay as they were", problem.message);
                self.problem = Some(ToolProblem { message, ..problem });
            }
        }
        self.bytes = Some(bytes);
    }
}

/// Reads a regular file, up to one byte more than is allowed.
fn read_manifest(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(yaml::MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Computes each stamp once per scan.
struct StampCache {
    known: HashMap<(PathBuf, StampDepth), Stamp>,
    problems: Vec<ToolProblem>,
}

impl StampCache {
    fn of(&mut self, folder: &Path, depth: StampDepth) -> Stamp {
        let key = (folder.to_owned(), depth);
        if let Some(stamp) = self.known.get(&key) {
            return *stamp;
        }
        let (stamp, is_whole) = locate::stamp(folder, depth);
        if !is_whole && depth == StampDepth::Whole {
            let message = format!(
                "`{}` has too many files: changes of some are not seen",
                folder.display()
            );
            self.problems.push(ToolProblem::new(
                message,
                "edit the manifest after such a change, or use wheels",
            ));
        }
        self.known.insert(key, stamp);
        stamp
    }
}

fn locate_code(
    settings: &CatalogSettings,
    entry: &ManifestEntry,
    stamps: &mut StampCache,
) -> Result<LocatedCode, ToolProblem> {
    let site = settings.site.clone().filter(|site| site.is_dir());
    let mut parts = site
        .iter()
        .map(|site| stamps.of(site, StampDepth::Names).0)
        .collect::<Vec<_>>();
    let mut code = ToolCode {
        site,
        ..ToolCode::default()
    };
    let program = match &entry.wanted {
        ManifestTarget::Function { .. } | ManifestTarget::Class { .. } => {
            code.python = Some(settings.python_dir.clone()).filter(|folder| folder.is_dir());
            parts.extend(
                code.python
                    .iter()
                    .map(|folder| stamps.of(folder, StampDepth::Whole).0),
            );
            None
        }
        ManifestTarget::Executable {
            tool_dir,
            executable,
        } => {
            let (folder, program) = locate::executable(&settings.folder, tool_dir, executable)?;
            parts.push(stamps.of(&folder, StampDepth::Whole).0);
            code.folder = Some(folder);
            Some(program)
        }
    };
    code.stamp = parts.into_iter().fold(Stamp::default(), |sum, part| {
        Stamp(sum.0.rotate_left(9) ^ part)
    });
    Ok(LocatedCode { code, program })
}
