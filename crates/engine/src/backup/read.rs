//! Reads an archive that may come from anybody. It is believed when every entry is what the manifest at its end says, in
//! the same order, and nothing else is there.

use super::{
    ABOUT, About, BackupError, Entry, FORMAT, MANIFEST, PARTS, Report, STATE, hexadecimal,
    tar::MODE,
};
use image::tar::{Input, Kind, Tar, TarError};
use sha2::{Digest, Sha256};
use std::collections::HashSet;

const LONGEST_ABOUT: u64 = 64 << 10;
const LONGEST_PATH: usize = 1024;
const LONGEST_NAME: usize = 255;
const DEEPEST: usize = 8;
const MOST_FILES: usize = 10_000_000;
/// What writers of tar put behind the end to fill a record.
const LONGEST_TAIL: usize = 64 << 10;

/// Where files go.
pub trait Sink {
    /// A file of the state folder begins; its path is below that, and has been checked.
    fn begin(&mut self, path: &str, size: u64) -> Result<(), BackupError>;
    /// The next bytes of it.
    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError>;
    /// It is whole.
    fn end(&mut self) -> Result<(), BackupError>;
}

/// Keeps nothing.
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

/// Reads all of an archive into a sink. What the sink holds may be believed only if this succeeds.
pub fn check(input: impl Input, sink: &mut impl Sink) -> Result<Report, BackupError> {
    let mut reading = Reading {
        tar: Tar::new(input),
        manifest: Sha256::new(),
        length: 0,
        known: HashSet::new(),
        report: Report::default(),
    };
    reading.about()?;
    while reading.entry(sink)? == Next::More {}
    reading.tail()?;
    Ok(reading.report)
}

#[derive(PartialEq)]
enum Next {
    More,
    Manifest,
}

struct Reading<R> {
    tar: Tar<R>,
    /// Of what the manifest must be.
    manifest: Sha256,
    length: u64,
    /// The beginnings of hashes of paths.
    known: HashSet<[u8; 16]>,
    report: Report,
}

fn wrong<T>(what: impl Into<String>) -> Result<T, BackupError> {
    Err(BackupError::Archive(what.into()))
}

fn torn(error: TarError) -> BackupError {
    match error {
        TarError::Read(source) => BackupError::Archive(format!("it cannot be read: {source}")),
        other => BackupError::Archive(other.to_string()),
    }
}

impl<R: Input> Reading<R> {
    /// The next entry's path and size: always a plain file.
    fn next(&mut self) -> Result<(String, u64), BackupError> {
        let Some(header) = self.tar.next().map_err(torn)? else {
            return wrong("it ends without a manifest");
        };
        let Ok(path) = String::from_utf8(header.path) else {
            return wrong("a path is not UTF-8");
        };
        let shown = || {
            path.chars()
                .take(200)
                .collect::<String>()
                .escape_debug()
                .to_string()
        };
        match header.kind {
            Kind::File => {}
            Kind::Folder | Kind::HardLink | Kind::SymbolicLink | Kind::Special => {
                return wrong(format!("`{}` is not a plain file", shown()));
            }
        }
        if header.pieces.is_some() {
            return wrong(format!("`{}` has holes", shown()));
        }
        if header.mode != MODE {
            return wrong(format!("`{}` has another mode than 0600", shown()));
        }
        if self.known.len() >= MOST_FILES {
            return wrong("it has too many files");
        }
        let mut name = [0; 16];
        name.copy_from_slice(&Sha256::digest(path.as_bytes())[..16]);
        if !self.known.insert(name) {
            return wrong(format!("`{}` is there twice", shown()));
        }
        Ok((path, header.size))
    }

    /// All contents of the entry, in pieces; their hash.
    fn contents(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), BackupError>,
    ) -> Result<[u8; 32], BackupError> {
        let mut hash = Sha256::new();
        loop {
            let there = self.tar.contents().map_err(torn)?;
            if there.is_empty() {
                return Ok(hash.finalize().into());
            }
            hash.update(there);
            each(there)?;
            let count = there.len();
            self.tar.consume(count);
        }
    }

    fn note(&mut self, path: &str, size: u64, hash: &[u8; 32]) {
        let line = Entry {
            path,
            size,
            sha256: hexadecimal(hash),
        }
        .line();
        self.manifest.update(line.as_bytes());
        self.length += line.len() as u64;
    }

    fn about(&mut self) -> Result<(), BackupError> {
        let (path, size) = self.next()?;
        if path != ABOUT || size > LONGEST_ABOUT {
            return wrong(format!("it does not begin with `{ABOUT}`"));
        }
        let mut text = Vec::new();
        let hash = self.contents(|bytes| {
            text.extend_from_slice(bytes);
            Ok(())
        })?;
        self.note(&path, size, &hash);
        let Ok(about) = serde_json::from_slice::<About>(&text) else {
            return wrong(format!("`{ABOUT}` does not say what it must"));
        };
        if about.format != FORMAT {
            return wrong(format!(
                "its form is {}, and this Airlock knows {FORMAT}",
                about.format
            ));
        }
        if about
            .schema
            .is_some_and(|schema| schema > store::copy::newest_schema())
        {
            return wrong("a newer Airlock made it; restore it with that one");
        }
        self.report.about = Some(about);
        Ok(())
    }

    fn entry(&mut self, sink: &mut impl Sink) -> Result<Next, BackupError> {
        let (path, size) = self.next()?;
        if path == MANIFEST {
            return self.manifest(size).map(|()| Next::Manifest);
        }
        let below = placed(&path).map_err(BackupError::Archive)?;
        sink.begin(below, size)?;
        let hash = self.contents(|bytes| sink.write(bytes))?;
        sink.end()?;
        self.note(&path, size, &hash);
        self.report.files += 1;
        self.report.bytes = self.report.bytes.saturating_add(size);
        Ok(Next::More)
    }

    fn manifest(&mut self, size: u64) -> Result<(), BackupError> {
        if size != self.length {
            return wrong("its manifest tells of other files");
        }
        let hash = self.contents(|_| Ok(()))?;
        let wanted: [u8; 32] = std::mem::take(&mut self.manifest).finalize().into();
        match hash == wanted {
            true => Ok(()),
            false => wrong("its manifest tells of other files, sizes or hashes"),
        }
    }

    /// Nothing but zeros may follow.
    fn tail(&mut self) -> Result<(), BackupError> {
        if self.tar.next().map_err(torn)?.is_some() {
            return wrong("something follows its manifest");
        }
        let mut left = LONGEST_TAIL;
        loop {
            let rest = self.tar.rest().map_err(torn)?;
            let count = rest.len();
            if count == 0 {
                return Ok(());
            }
            if count > left || rest.iter().any(|byte| *byte != 0) {
                return wrong("something follows its end");
            }
            left -= count;
            self.tar.skip_tail(count);
        }
    }
}

/// The path below the state folder, if it is one that a backup may have.
pub(super) fn placed(path: &str) -> Result<&str, String> {
    let shown = || {
        path.chars()
            .take(200)
            .collect::<String>()
            .escape_debug()
            .to_string()
    };
    let bad = |why: &str| Err(format!("`{}` {why}", shown()));
    let Some(below) = path.strip_prefix(STATE) else {
        return bad("is not of a state folder");
    };
    if path.len() > LONGEST_PATH {
        return bad("is too long");
    }
    let names: Vec<_> = below.split('/').collect();
    let is_odd = |name: &&str| {
        name.is_empty()
            || name.len() > LONGEST_NAME
            || name.starts_with('.')
            || name.chars().any(char::is_control)
    };
    if names.len() > DEEPEST || names.iter().any(is_odd) {
        return bad("is no path that a backup has");
    }
    let fits = match names.as_slice() {
        ["airlock.db"] => true,
        ["ledger", name] => name.ends_with(".jsonl"),
        ["secrets", name] => name.ends_with(".secret"),
        [part, _, ..] => PARTS.contains(part) && matches!(*part, "artifacts" | "audit"),
        _ => false,
    };
    match fits {
        true => Ok(below),
        false => bad("does not belong into a state folder"),
    }
}
