//! The baseline of a layer: a list of the folder at the start, by which the program's changes and
//! changes of the folder itself are found later.
//!
//! ```text
//! KIND MODE VERSION COPY PATH [TARGET]      one line for each name
//! ```
//!
//! A version is inode, size, mtime and ctime; `-` if there is no copy, and `=` if it was moved into
//! the folder. In names, all bytes but printable ASCII are written as `%` and two hexadecimal
//! digits.

use super::tree::{self, FileKind, FileState, MAX_DEPTH, MAX_PATH_BYTES, Version};
use ::fs::{Dir, WalkBounds, WalkError};
use rustix::fs::{FileType, OFlags};
use sandbox::native::protect;
use spec::{HiddenFiles, HideDecision};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::AsFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

/// The name of the list in a layer.
const LIST_FILE: &str = "base";
/// The most names, and their bytes together: the list is held in memory.
const MAX_NAMES: usize = 1_000_000;
const MAX_NAME_BYTES: usize = 128 << 20;
/// How many names are looked at between two checks for cancellation: a check asks for the free space, too, which takes
/// as long as a name.
const NAMES_BETWEEN_CHECKS: usize = 64;

/// Why a layer could not be created.
#[derive(Debug)]
pub(super) enum CreateError {
    /// The folder exceeds a limit.
    Bound(String),
    /// There is not enough disk space, or quota.
    NoRoom(String),
    /// It was cancelled.
    Cancelled,
    /// An I/O error.
    Io(PathBuf, io::Error),
}

/// An entry of the folder at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BaselineEntry {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    /// The target of a symbolic link.
    pub(super) target: OsString,
    /// The version in the folder.
    pub(super) base: Version,
    /// The version of the copy in the layer, if it was copied.
    pub(super) copy: Version,
    /// Whether it was moved from the layer into the folder: then it is not in the layer, but not
    /// removed either.
    pub(super) moved: bool,
}

/// The entries by path.
pub(super) type Baseline = BTreeMap<PathBuf, BaselineEntry>;

/// A list as it was read from a version of its file.
#[derive(Debug)]
pub(super) struct KnownBaseline {
    pub(super) base: Baseline,
    file: Version,
}

/// Reads the list.
pub(super) fn read(layer: impl AsFd) -> io::Result<Baseline> {
    Ok(read_again(layer, None)?.base)
}

/// Reads the list, unless it is known as it is: a change is always a new file.
pub(super) fn read_again(
    layer: impl AsFd,
    known: Option<KnownBaseline>,
) -> io::Result<KnownBaseline> {
    let file = File::from(tree::open(layer, LIST_FILE, OFlags::RDONLY)?);
    let version = Version::of(&rustix::fs::fstat(&file)?);
    if let Some(known) = known.filter(|known| known.file == version) {
        return Ok(known);
    }
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "the list is not whole");
    let mut lines = BufReader::with_capacity(1 << 16, file);
    let mut base = Baseline::new();
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let (path, entry) = parse(line.trim_end_matches('\n')).ok_or_else(broken)?;
        base.insert(path, entry);
        line.clear();
    }
    Ok(KnownBaseline {
        base,
        file: version,
    })
}

/// Writes the list atomically.
pub(super) fn write(layer: impl AsFd, base: &Baseline) -> io::Result<()> {
    write_list(layer, base, false)
}

/// Writes the list atomically and durably.
pub(super) fn write_lasting(layer: impl AsFd, base: &Baseline) -> io::Result<()> {
    write_list(layer, base, true)
}

fn write_list(layer: impl AsFd, base: &Baseline, lasts: bool) -> io::Result<()> {
    let (layer, draft) = (layer.as_fd(), format!("{LIST_FILE}.new"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut file = File::from(tree::open(layer, &draft, flags)?);
    let mut text = String::new();
    for (path, entry) in base {
        print(path, entry, &mut text);
        if text.len() > 1 << 20 {
            file.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    file.write_all(text.as_bytes())?;
    if lasts {
        file.sync_all()?;
    }
    Ok(rustix::fs::renameat(layer, &draft, layer, LIST_FILE)?)
}

fn print(path: &Path, entry: &BaselineEntry, out: &mut String) {
    let kind = match entry.kind {
        FileKind::File => 'f',
        FileKind::Folder => 'd',
        FileKind::Link => 'l',
        FileKind::Other => 'o',
    };
    _ = write!(out, "{kind} {:o} ", entry.mode);
    print_version(&entry.base, out);
    match entry.moved {
        true => out.push_str("= "),
        false => print_version(&entry.copy, out),
    }
    escape(path.as_os_str(), out);
    if !entry.target.is_empty() {
        out.push(' ');
        escape(&entry.target, out);
    }
    out.push('\n');
}

fn print_version(version: &Version, out: &mut String) {
    if *version == Version::default() {
        out.push_str("- ");
        return;
    }
    let (modified, changed) = (version.modified, version.changed);
    _ = write!(
        out,
        "{},{},{},{},{},{} ",
        version.inode, version.size, modified.0, modified.1, changed.0, changed.1
    );
}

fn parse(line: &str) -> Option<(PathBuf, BaselineEntry)> {
    let mut fields = line.split(' ');
    let kind = match fields.next()? {
        "f" => FileKind::File,
        "d" => FileKind::Folder,
        "l" => FileKind::Link,
        "o" => FileKind::Other,
        _ => return None,
    };
    let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
    let base = parse_version(fields.next()?)?;
    let copy = fields.next()?;
    let moved = copy == "=";
    let copy = match moved {
        true => Version::default(),
        false => parse_version(copy)?,
    };
    let path = PathBuf::from(unescape(fields.next()?)?);
    let target = unescape(fields.next().unwrap_or_default())?;
    let entry = BaselineEntry {
        kind,
        mode,
        target,
        base,
        copy,
        moved,
    };
    fields.next().is_none().then_some((path, entry))
}

fn parse_version(text: &str) -> Option<Version> {
    if text == "-" {
        return Some(Version::default());
    }
    let mut numbers = text.split(',');
    let mut time = || Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?));
    let (inode, size): (u64, u64) = time()?;
    let mut time = || Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?));
    let (modified, changed) = (time()?, time()?);
    Some(Version {
        inode,
        size,
        modified,
        changed,
    })
}

fn escape(name: &OsStr, out: &mut String) {
    for &byte in name.as_bytes() {
        match byte {
            b'%' | 0..=b' ' | 127..=255 => _ = write!(out, "%{byte:02x}"),
            plain => out.push(char::from(plain)),
        }
    }
}

fn unescape(text: &str) -> Option<OsString> {
    if !text.contains('%') {
        return Some(OsString::from(text));
    }
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(OsString::from_vec(bytes))
}

/// A scan of the folder, before anything is copied.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) base: Baseline,
    /// The bytes of all files.
    pub(super) bytes: u64,
    /// The paths that are hidden from the program.
    pub(super) hidden: Vec<PathBuf>,
    /// The first path whose user or group is not mapped in the sandbox; empty for the folder
    /// itself.
    pub(super) foreign: Option<PathBuf>,
}

impl Survey {
    /// The number of files that are larger, and the first of them.
    pub(super) fn larger_than(&self, bytes: u64) -> Option<(usize, &Path)> {
        let is_larger = |(_, entry): &(&PathBuf, &BaselineEntry)| {
            entry.kind == FileKind::File && entry.base.size > bytes
        };
        let mut larger = self.base.iter().filter(is_larger);
        let (first, _) = larger.next()?;
        Some((1 + larger.count(), first))
    }
}

/// Scans a folder, except for what is below `covered`, where the program sees something else.
pub(super) fn survey(
    folder: impl AsFd,
    hide: &HiddenFiles,
    covered: &BTreeSet<PathBuf>,
    goes_on: &dyn Fn() -> Result<(), CreateError>,
) -> Result<Survey, CreateError> {
    let top = Dir::from_fd(folder);
    let failed = |source| CreateError::Io(PathBuf::new(), source);
    let found = top.status().map_err(failed)?;
    let owner = (found.st_uid, found.st_gid);
    let mapped = mapped_ids(owner);
    let bounds = WalkBounds {
        entries: MAX_NAMES,
        depth: MAX_DEPTH,
        path_bytes: MAX_PATH_BYTES,
        ..WalkBounds::default()
    };
    let mut walk = top.walk(bounds).map_err(failed)?;
    let (mut survey, mut entries, mut name_bytes) = (Survey::default(), Vec::new(), 0);
    survey.foreign = (owner != mapped).then(PathBuf::new);
    while let Some(next) = walk.next() {
        if entries.len().is_multiple_of(NAMES_BETWEEN_CHECKS) {
            goes_on()?;
        }
        let entry = match next {
            Ok(entry) => entry,
            Err(error) => {
                survey.add_unreadable(error, &mut entries)?;
                continue;
            }
        };
        let Some(target) = read_target(&walk, &entry)? else {
            continue;
        };
        name_bytes += entry.path.as_os_str().len() + target.len();
        if name_bytes > MAX_NAME_BYTES {
            return Err(CreateError::Bound(
                "its names are too long together".to_owned(),
            ));
        }
        if (entry.stat.st_uid, entry.stat.st_gid) != mapped && survey.foreign.is_none() {
            survey.foreign = Some(entry.path.clone());
        }
        let mut seen = FileState::of(&entry.stat, None);
        let hides = match hide.decide(&entry.path) {
            HideDecision::Yes => true,
            HideDecision::No => false,
            HideDecision::IfPrivateKey => {
                seen.kind == FileKind::File
                    && walk
                        .parent()
                        .and_then(|parent| protect::holds_key(parent.as_fd(), entry.name()))
                        .unwrap_or(true)
            }
            HideDecision::IfCredentials => {
                seen.kind == FileKind::File
                    && walk
                        .parent()
                        .and_then(|parent| protect::holds_credentials(parent.as_fd(), entry.name()))
                        .unwrap_or(true)
            }
        };
        if hides {
            survey.hide(&entry.path)?;
            seen.kind = FileKind::Other;
        }
        if hides || covered.contains(&entry.path) {
            walk.skip_dir();
        }
        if seen.kind == FileKind::File {
            survey.bytes = survey.bytes.saturating_add(seen.version.size);
        }
        entries.push((entry.path, listed(&seen, target)));
    }
    survey.base = entries.into_iter().collect();
    Ok(survey)
}

/// The user and group whose files a sandbox can change: root maps the owner of the folder, other
/// users only themselves.
fn mapped_ids(owner: (u32, u32)) -> (u32, u32) {
    match rustix::process::geteuid() {
        root if root.is_root() => owner,
        user => (user.as_raw(), rustix::process::getegid().as_raw()),
    }
}

fn listed(seen: &FileState, target: OsString) -> BaselineEntry {
    BaselineEntry {
        kind: seen.kind,
        mode: seen.mode,
        target,
        base: seen.version,
        copy: Version::default(),
        moved: false,
    }
}

/// The target of a symbolic link, or empty; none if the entry is gone.
fn read_target(
    walk: &::fs::Walk,
    entry: &::fs::WalkEntry,
) -> Result<Option<OsString>, CreateError> {
    if entry.kind() != FileType::Symlink {
        return Ok(Some(OsString::new()));
    }
    let read = walk
        .parent()
        .and_then(|parent| parent.read_link(entry.name()));
    match read {
        Ok(target) => Ok(Some(target.into_os_string())),
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CreateError::Io(entry.path.clone(), source)),
    }
}

impl Survey {
    fn hide(&mut self, path: &Path) -> Result<(), CreateError> {
        if self.hidden.len() >= protect::MAX_HIDDEN {
            let most = protect::MAX_HIDDEN;
            return Err(CreateError::Bound(format!(
                "it has more than {most} files that are to be hidden (`--hide none` hides fewer)"
            )));
        }
        self.hidden.push(path.to_owned());
        Ok(())
    }

    /// Treats an unreadable folder as hidden: the program has no other permissions.
    fn add_unreadable(
        &mut self,
        error: WalkError,
        entries: &mut [(PathBuf, BaselineEntry)],
    ) -> Result<(), CreateError> {
        let is_closed = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
        match error {
            WalkError::Read { path, source } if is_closed(&source) => {
                let last = entries.last_mut().filter(|(last, _)| *last == path);
                if let Some((_, entry)) = last {
                    entry.kind = FileKind::Other;
                }
                Ok(())
            }
            // It was removed meanwhile.
            WalkError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => Ok(()),
            WalkError::Read { path, source } => Err(CreateError::Io(path, source)),
            WalkError::TooDeep { path, depth } => Err(CreateError::Bound(format!(
                "`{}` is deeper than {depth} folders",
                path.to_string_lossy().escape_debug()
            ))),
            WalkError::TooMany { limit, .. } => Err(CreateError::Bound(format!(
                "it has more than {limit} names"
            ))),
        }
    }
}

/// Serializes a name of any bytes: each byte as the character with its number.
pub(crate) mod bytes {
    use super::{OsStr, OsStrExt, OsString, OsStringExt};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(name: &OsStr, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = name
            .as_bytes()
            .iter()
            .map(|byte| char::from(*byte))
            .collect();
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<OsString, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = text
            .chars()
            .map(|character| u8::try_from(u32::from(character)));
        let bytes: Result<Vec<u8>, _> = bytes.collect();
        bytes
            .map(OsString::from_vec)
            .map_err(|_| D::Error::custom("a name with characters that are no bytes"))
    }
}
