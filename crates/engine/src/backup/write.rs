//! From a state folder to an archive.

use super::{
    ABOUT, About, BackupError, Entry, FORMAT, MANIFEST, Report, STATE, hexadecimal, read::placed,
    tar,
};
use crate::files;
use ::fs::Dir;
use doors::ledger::{self, Fault, Head, Reader};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io::{self, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};
use store::Upkeep;

const BUFFER: usize = 256 << 10;
/// Folders of artifacts: owner, name, version.
const DEEPEST: usize = 6;
/// Where copies of the database are made, beside it: the state folder's disk has room for what is there already.
const DRAFTS: &str = "backup";

/// Told of each file.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64);

/// What is copied from where.
#[derive(Debug)]
pub struct Backup<'a> {
    /// The state folder.
    pub state: &'a Path,
    /// The version of whoever makes it.
    pub version: &'a str,
    /// When.
    pub now_ms: u64,
    /// Whether artifacts lie in the state folder.
    pub artifacts: bool,
}

/// Writes an archive of a state folder, which may be in use.
pub fn backup(
    of: &Backup<'_>,
    to: impl Write,
    progress: Progress<'_>,
) -> Result<Report, BackupError> {
    let state = of
        .state
        .canonicalize()
        .map_err(BackupError::file("open", of.state))?;
    let folder = open_folder(&state)?;
    is_ours(&folder).map_err(BackupError::file("back up", &state))?;
    let _nothing_goes = Upkeep::shared(&state).map_err(BackupError::file("lock", &state))?;
    let draft = Draft::new(&state)?;
    // First: what is copied after it has all that it knows of.
    let schema = store::copy::copy(&state, &draft.path)?;
    let mut archive = Archive {
        to,
        manifest: Vec::new(),
        report: Report::default(),
        progress,
    };
    let about = About {
        format: FORMAT,
        airlock: of.version.to_owned(),
        schema,
        made_ms: of.now_ms,
    };
    archive.about(&about)?;
    if schema.is_some() {
        archive.file(&format!("{STATE}airlock.db"), &draft.file, None)?;
    }
    drop(draft);
    archive.audit(&state, &folder, schema)?;
    if of.artifacts {
        archive.tree(&folder, "artifacts", &|_| Kind::Whole)?;
    }
    archive.ledger(&state)?;
    archive.tree(
        &folder,
        "secrets",
        &|name| match name.ends_with(".secret") {
            true => Kind::Whole,
            false => Kind::NotOurs,
        },
    )?;
    archive.finish()
}

fn open_folder(path: &Path) -> Result<OwnedFd, BackupError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| BackupError::file("open", path)(error.into()))
}

/// Before anything is made in it: what root leaves in another's folder, its owner cannot use.
fn is_ours(folder: &OwnedFd) -> io::Result<()> {
    let (owner, us) = (
        rustix::fs::fstat(folder)?.st_uid,
        rustix::process::geteuid().as_raw(),
    );
    match owner == us {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "it belongs to user {owner}, and you are {us}"
        ))),
    }
}

/// How much of a file is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All of it: it is never changed.
    Whole,
    /// Up to the last end of a line: it is added to.
    Lines,
    /// Nothing.
    NotOurs,
}

/// A file for the copy of the database. Its lock dies with its maker; who finds one that is free removes it.
struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    fn new(state: &Path) -> Result<Draft, BackupError> {
        let folder = state.join(DRAFTS);
        let failed = BackupError::file("make a copy of the database in", &folder);
        let make = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)?;
            // One at a time: nobody sweeps a file that is about to be locked.
            let turn = File::open(&folder)?;
            rustix::fs::flock(&turn, FlockOperation::LockExclusive)?;
            sweep(&folder)?;
            let path = folder.join(format!("{}.db", crate::fresh_id()));
            let mut options = fs::OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::mode(
                options.read(true).write(true).create_new(true),
                0o600,
            );
            let file = options.open(&path)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            Ok(Draft { path, file })
        };
        make().map_err(failed)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Whoever comes next removes what is left.
        _ = fs::remove_file(&self.path);
    }
}

/// Removes what killed backups left.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else {
            continue;
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

struct Archive<'a, W> {
    to: W,
    manifest: Vec<u8>,
    report: Report,
    progress: Progress<'a>,
}

impl<W: Write> Archive<'_, W> {
    fn about(&mut self, about: &About) -> Result<(), BackupError> {
        let text = serde_json::to_vec(about).map_err(|error| BackupError::Output(error.into()))?;
        self.entry(ABOUT, &text[..], text.len() as u64, Path::new(ABOUT))?;
        self.report.about = Some(about.clone());
        Ok(())
    }

    /// A file, or so much of it.
    fn file(&mut self, path: &str, file: &File, size: Option<u64>) -> Result<(), BackupError> {
        let found = file.metadata().map_err(BackupError::file("read", path))?;
        let size = size.unwrap_or(found.len());
        (self.progress)(path, size);
        // Not from where others have read: the handle may be shared.
        let from = BufReader::with_capacity(BUFFER, At { file, offset: 0 });
        self.entry(path, from, size, Path::new(path))?;
        self.report.files += 1;
        self.report.bytes += size;
        Ok(())
    }

    fn entry(
        &mut self,
        path: &str,
        from: impl Read,
        size: u64,
        shown: &Path,
    ) -> Result<(), BackupError> {
        tar::header(&mut self.to, path, size).map_err(BackupError::Output)?;
        let (mut from, mut hash, mut left) = (from, Sha256::new(), size);
        let mut buffer = vec![0; BUFFER.min(usize::try_from(size).unwrap_or(BUFFER)).max(1)];
        while left > 0 {
            let most = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = from
                .read(&mut buffer[..most])
                .map_err(BackupError::file("read", shown))?;
            if count == 0 {
                return Err(BackupError::file("read", shown)(io::Error::other(
                    "it became shorter meanwhile",
                )));
            }
            hash.update(&buffer[..count]);
            self.to
                .write_all(&buffer[..count])
                .map_err(BackupError::Output)?;
            left -= count as u64;
        }
        tar::padding(&mut self.to, size).map_err(BackupError::Output)?;
        let sha256 = hexadecimal(&hash.finalize());
        self.manifest
            .extend_from_slice(Entry { path, size, sha256 }.line().as_bytes());
        Ok(())
    }

    /// As it is, also where lines do not follow from each other; that is named.
    fn audit(
        &mut self,
        state: &Path,
        folder: &OwnedFd,
        schema: Option<i64>,
    ) -> Result<(), BackupError> {
        // Whoever verifies brings the database forward, which is not for a backup to do.
        if schema == Some(store::copy::newest_schema())
            && let Err(wrong) = store::audit::verify(state, None)
        {
            self.report.problems.push(super::judge::told(state, &wrong));
        }
        self.tree(
            folder,
            "audit",
            &|name| match name.rsplit_once('.').map(|(_, end)| end) {
                Some("jsonl") => Kind::Lines,
                Some("lock") => Kind::NotOurs,
                _ => Kind::Whole,
            },
        )
    }

    /// The files below a folder, in the order of their names.
    fn tree(
        &mut self,
        state: &OwnedFd,
        part: &str,
        kind: &dyn Fn(&str) -> Kind,
    ) -> Result<(), BackupError> {
        let failed = BackupError::file("read", part);
        match files::open(state, part, OFlags::DIRECTORY) {
            Ok(folder) => self.below(&folder, part, kind, 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn below(
        &mut self,
        folder: &OwnedFd,
        path: &str,
        kind: &dyn Fn(&str) -> Kind,
        depth: usize,
    ) -> Result<(), BackupError> {
        // A version of an artifact is two files: both, or it went meanwhile.
        let (mut held, together) = (Vec::new(), path.starts_with("artifacts/"));
        for name in names(folder).map_err(BackupError::file("list", path))? {
            let path = format!("{path}/{name}");
            let found = match rustix::fs::statat(folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
                Err(rustix::io::Errno::NOENT) if together => {
                    held.clear();
                    break;
                }
                Err(rustix::io::Errno::NOENT) => continue,
                found => found.map_err(|error| BackupError::file("read", &path)(error.into()))?,
            };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory if depth < DEEPEST => {
                    match files::open(folder, &name, OFlags::DIRECTORY) {
                        Ok(inner) => self.below(&inner, &path, kind, depth + 1)?,
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(BackupError::file("open", path)(error)),
                    }
                }
                FileType::Directory => self.skip(format!("`{}` is too deep", path.escape_debug())),
                FileType::RegularFile if kind(&name) != Kind::NotOurs => {
                    // What no reader would take must not spoil the rest.
                    if let Err(why) = placed(&format!("{STATE}{path}")) {
                        self.skip(why);
                        continue;
                    }
                    match files::open(folder, &name, OFlags::NONBLOCK) {
                        Ok(file) if together => held.push((path, File::from(file), kind(&name))),
                        Ok(file) => self.taken(&path, &File::from(file), kind(&name))?,
                        Err(error) if error.kind() == io::ErrorKind::NotFound && together => {
                            held.clear();
                            break;
                        }
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(BackupError::file("open", path)(error)),
                    }
                }
                // Sockets and locks are of those who run.
                _ => {}
            }
        }
        held.iter()
            .try_for_each(|(path, file, kind)| self.taken(path, file, *kind))
    }

    fn taken(&mut self, path: &str, file: &File, kind: Kind) -> Result<(), BackupError> {
        let size = match kind {
            Kind::Lines => Some(lines(file).map_err(BackupError::file("read", path))?),
            Kind::Whole | Kind::NotOurs => None,
        };
        self.file(&format!("{STATE}{path}"), file, size)
    }

    fn skip(&mut self, why: String) {
        self.report
            .problems
            .push(format!("not in the backup: {why}"));
    }

    /// Every segment, as far as its lines follow from each other.
    fn ledger(&mut self, state: &Path) -> Result<(), BackupError> {
        let folder = state.join(crate::usage::LEDGER);
        let segments = ledger::segments(&folder).map_err(BackupError::file("list", &folder))?;
        let mut files = BTreeMap::new();
        for paths in segments.into_values() {
            self.segment(paths, &mut files)?;
        }
        for (name, (path, size)) in files {
            let file = File::open(&path).map_err(BackupError::file("open", path))?;
            self.file(
                &format!("{STATE}{}/{name}", crate::usage::LEDGER),
                &file,
                Some(size),
            )?;
        }
        Ok(())
    }

    /// How much of each file of a segment is taken. One that was changed is taken as it is, and named.
    fn segment(
        &mut self,
        paths: Vec<PathBuf>,
        files: &mut BTreeMap<String, (PathBuf, u64)>,
    ) -> Result<(), BackupError> {
        let mut head = Head::default();
        for path in paths {
            let file = File::open(&path).map_err(BackupError::file("open", &path))?;
            let mut reader = Reader::new(
                BufReader::with_capacity(BUFFER, &file),
                Head { offset: 0, ..head },
            );
            let fault = loop {
                match reader.next_row() {
                    Ok(Some(_)) => {}
                    Ok(None) | Err(Fault::Torn) => break None,
                    Err(fault) => break Some(fault),
                }
            };
            head = reader.head();
            let size = match fault {
                None => head.offset,
                Some(fault) => {
                    self.report
                        .problems
                        .push(format!("`{}`: {fault}", path.display()));
                    lines(&file).map_err(BackupError::file("read", &path))?
                }
            };
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default()
                .to_owned();
            files.insert(name, (path, size));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Report, BackupError> {
        let manifest = std::mem::take(&mut self.manifest);
        tar::header(&mut self.to, MANIFEST, manifest.len() as u64)
            .and_then(|()| self.to.write_all(&manifest))
            .and_then(|()| tar::padding(&mut self.to, manifest.len() as u64))
            .and_then(|()| tar::end(&mut self.to))
            .and_then(|()| self.to.flush())
            .map_err(BackupError::Output)?;
        Ok(self.report)
    }
}

/// Reads by offset.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = std::os::unix::fs::FileExt::read_at(self.file, buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// In order, without drafts and what else begins with a dot.
fn names(folder: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::from_fd(folder).entries()? {
        let name = entry?.name;
        let name = name
            .into_string()
            .map_err(|_| io::Error::other("a name is not UTF-8"))?;
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Bytes up to the last end of a line.
fn lines(file: &File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut buffer = vec![0; 64 << 10];
    while end > 0 {
        let from = end.saturating_sub(buffer.len() as u64);
        let part = &mut buffer[..usize::try_from(end - from).unwrap_or_default()];
        std::os::unix::fs::FileExt::read_exact_at(file, part, from)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(from + at as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}
