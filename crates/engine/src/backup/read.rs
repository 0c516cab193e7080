//! Reads an untrusted archive. It is valid if every entry agrees with the manifest at its end, in
//! the same order, and nothing else follows.

use super::{
    BackupError, BackupInfo, BackupReport, FORMAT, INFO_FILE, MANIFEST, ManifestEntry, PARTS,
    STATE_PREFIX, hexadecimal, tar::MODE,
};
use image::tar::{TarEntryKind, TarError, TarInput, TarReader};
use sha2::{Digest, Sha256};
use std::collections::HashSet;

const MAX_INFO_BYTES: u64 = 64 << 10;
const MAX_PATH_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 255;
const MAX_DEPTH: usize = 8;
const MAX_FILES: usize = 10_000_000;
/// The padding that tar writers put behind the end.
const MAX_TAIL_BYTES: usize = 64 << 10;

/// The receiver of the files.
pub trait Sink {
    /// Begins a file of the state folder; the path is relative to it and has been checked.
    fn begin(&mut self, path: &str, size: u64) -> Result<(), BackupError>;
    /// The next bytes of the file.
    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError>;
    /// The file is complete.
    fn end(&mut self) -> Result<(), BackupError>;
}

/// Discards everything.
impl Sink for () {
    fn begin(&mut self, _: &str, _: u64) -> Result<(), BackupError> {
        Ok(())
    }

    fn write(&mut self, _: &[u8]) -> Result<(), BackupError> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), BackupError> {
        Ok(())
    }
}

/// Reads an archive into a sink. The contents of the sink are valid only if this succeeds.
pub fn check(input: impl TarInput, sink: &mut impl Sink) -> Result<BackupReport, BackupError> {
    let mut reader = ArchiveReader {
        tar: TarReader::new(input),
        manifest: Sha256::new(),
        length: 0,
        known: HashSet::new(),
        report: BackupReport::default(),
    };
    reader.read_info()?;
    while reader.read_entry(sink)? == NextEntry::More {}
    reader.tail()?;
    Ok(reader.report)
}

#[derive(PartialEq)]
enum NextEntry {
    More,
    Manifest,
}

struct ArchiveReader<R> {
    tar: TarReader<R>,
    /// The hash of the expected manifest.
    manifest: Sha256,
    length: u64,
    /// Prefixes of the path hashes, to find duplicates.
    known: HashSet<[u8; 16]>,
    report: BackupReport,
}

fn invalid<T>(what: impl Into<String>) -> Result<T, BackupError> {
    Err(BackupError::Archive(what.into()))
}

fn tar_error(error: TarError) -> BackupError {
    match error {
        TarError::Read(source) => BackupError::Archive(format!("it cannot be read: {source}")),
        other => BackupError::Archive(other.to_string()),
    }
}

impl<R: TarInput> ArchiveReader<R> {
    /// The path and size of the next entry, which must be a regular file.
    fn next(&mut self) -> Result<(String, u64), BackupError> {
        let Some(header) = self.tar.next().map_err(tar_error)? else {
            return invalid("it ends without a manifest");
        };
        let Ok(path) = String::from_utf8(header.path) else {
            return invalid("a path is not UTF-8");
        };
        let shown = || {
            path.chars()
                .take(200)
                .collect::<String>()
                .escape_debug()
                .to_string()
        };
        match header.kind {
            TarEntryKind::File => {}
            TarEntryKind::Folder
            | TarEntryKind::HardLink
            | TarEntryKind::SymbolicLink
            | TarEntryKind::Special => {
                return invalid(format!("`{}` is not a plain file", shown()));
            }
        }
        if header.segments.is_some() {
            return invalid(format!("`{}` has holes", shown()));
        }
        if header.mode != MODE {
            return invalid(format!("`{}` has another mode than 0600", shown()));
        }
        if self.known.len() >= MAX_FILES {
            return invalid("it has too many files");
        }
        let mut name = [0; 16];
        name.copy_from_slice(&Sha256::digest(path.as_bytes())[..16]);
        if !self.known.insert(name) {
            return invalid(format!("`{}` is there twice", shown()));
        }
        Ok((path, header.size))
    }

    /// Passes the contents of the entry on, in parts; returns their hash.
    fn contents(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), BackupError>,
    ) -> Result<[u8; 32], BackupError> {
        let mut hash = Sha256::new();
        loop {
            let there = self.tar.contents().map_err(tar_error)?;
            if there.is_empty() {
                return Ok(hash.finalize().into());
            }
            hash.update(there);
            each(there)?;
            let count = there.len();
            self.tar.consume(count);
        }
    }

    fn add_to_manifest(&mut self, path: &str, size: u64, hash: &[u8; 32]) {
        let line = ManifestEntry {
            path,
            size,
            sha256: hexadecimal(hash),
        }
        .line();
        self.manifest.update(line.as_bytes());
        self.length += line.len() as u64;
    }

    fn read_info(&mut self) -> Result<(), BackupError> {
        let (path, size) = self.next()?;
        if path != INFO_FILE || size > MAX_INFO_BYTES {
            return invalid(format!("it does not begin with `{INFO_FILE}`"));
        }
        let mut text = Vec::new();
        let hash = self.contents(|bytes| {
            text.extend_from_slice(bytes);
            Ok(())
        })?;
        self.add_to_manifest(&path, size, &hash);
        let Ok(about) = serde_json::from_slice::<BackupInfo>(&text) else {
            return invalid(format!("`{INFO_FILE}` does not say what it must"));
        };
        if about.format != FORMAT {
            return invalid(format!(
                "its form is {}, and this Airlock knows {FORMAT}",
                about.format
            ));
        }
        if about
            .schema
            .is_some_and(|schema| schema > store::backup::newest_schema())
        {
            return invalid("a newer Airlock made it; restore it with that one");
        }
        self.report.about = Some(about);
        Ok(())
    }

    fn read_entry(&mut self, sink: &mut impl Sink) -> Result<NextEntry, BackupError> {
        let (path, size) = self.next()?;
        if path == MANIFEST {
            return self.manifest(size).map(|()| NextEntry::Manifest);
        }
        let below = check_path(&path).map_err(BackupError::Archive)?;
        sink.begin(below, size)?;
        let hash = self.contents(|bytes| sink.write(bytes))?;
        sink.end()?;
        self.add_to_manifest(&path, size, &hash);
        self.report.files += 1;
        self.report.bytes = self.report.bytes.saturating_add(size);
        Ok(NextEntry::More)
    }

    fn manifest(&mut self, size: u64) -> Result<(), BackupError> {
        if size != self.length {
            return invalid("its manifest tells of other files");
        }
        let hash = self.contents(|_| Ok(()))?;
        let wanted: [u8; 32] = std::mem::take(&mut self.manifest).finalize().into();
        if hash == wanted {
            Ok(())
        } else {
            invalid("its manifest tells of other files, sizes or hashes")
        }
    }

    /// Checks that only zeros follow.
    fn tail(&mut self) -> Result<(), BackupError> {
        if self.tar.next().map_err(tar_error)?.is_some() {
            return invalid("something follows its manifest");
        }
        let mut left = MAX_TAIL_BYTES;
        loop {
            let rest = self.tar.rest().map_err(tar_error)?;
            let count = rest.len();
            if count == 0 {
                return Ok(());
            }
            if count > left || rest.iter().any(|byte| *byte != 0) {
                return invalid("something follows its end");
            }
            left -= count;
            self.tar.skip_tail(count);
        }
    }
}

/// Checks a path of the archive; returns the part below the state folder.
pub(super) fn check_path(path: &str) -> Result<&str, String> {
    let shown = || {
        path.chars()
            .take(200)
            .collect::<String>()
            .escape_debug()
            .to_string()
    };
    let bad = |why: &str| Err(format!("`{}` {why}", shown()));
    let Some(below) = path.strip_prefix(STATE_PREFIX) else {
        return bad("is not of a state folder");
    };
    if path.len() > MAX_PATH_BYTES {
        return bad("is too long");
    }
    let names: Vec<_> = below.split('/').collect();
    let is_odd = |name: &&str| {
        name.is_empty()
            || name.len() > MAX_NAME_BYTES
            || name.starts_with('.')
            || name.chars().any(char::is_control)
    };
    if names.len() > MAX_DEPTH || names.iter().any(is_odd) {
        return bad("is no path that a backup has");
    }
    let fits = match names.as_slice() {
        ["airlock.db"] => true,
        ["ledger", name] => name.ends_with(".jsonl"),
        ["secrets", name] => name.ends_with(".secret"),
        [part, _, ..] => PARTS.contains(part) && matches!(*part, "artifacts" | "audit"),
        _ => false,
    };
    if fits {
        Ok(below)
    } else {
        bad("does not belong into a state folder")
    }
}
