//! Writes a backup archive of a state folder.

use super::{
    BackupError, BackupInfo, BackupReport, FORMAT, INFO_FILE, MANIFEST, ManifestEntry,
    STATE_PREFIX, hexadecimal, read::check_path, tar,
};
use crate::files;
use ::fs::Dir;
use doors::ledger::{self, ChainHead, LedgerReader, ReadFault};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io::{self, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};
use store::UpkeepLock;

const BUFFER: usize = 256 << 10;
/// The depth of artifact folders: owner, name, version.
const MAX_DEPTH: usize = 6;
/// The folder for database copies, in the state folder: its disk has the space that the database
/// takes already.
const DRAFTS: &str = "backup";

/// Called for each file.
pub type BackupProgress<'a> = &'a mut dyn FnMut(&str, u64);

/// The source of a backup.
#[derive(Debug)]
pub struct Backup<'a> {
    /// The state folder.
    pub state: &'a Path,
    /// The version of Airlock.
    pub version: &'a str,
    /// The current time.
    pub now_ms: u64,
    /// Whether artifacts lie in the state folder.
    pub artifacts: bool,
}

/// Writes an archive of a state folder, which may be in use.
pub fn backup(
    of: &Backup<'_>,
    to: impl Write,
    progress: BackupProgress<'_>,
) -> Result<BackupReport, BackupError> {
    let state = of
        .state
        .canonicalize()
        .map_err(BackupError::file("open", of.state))?;
    let folder = open_folder(&state)?;
    check_owner(&folder).map_err(BackupError::file("back up", &state))?;
    let _nothing_goes = UpkeepLock::shared(&state).map_err(BackupError::file("lock", &state))?;
    let copy = DatabaseCopy::new(&state)?;
    // First: everything that is copied later has what the database refers to.
    let schema = store::backup::copy_database(&state, &copy.path)?;
    let mut archive = Archive {
        to,
        manifest: Vec::new(),
        report: BackupReport::default(),
        progress,
    };
    let about = BackupInfo {
        format: FORMAT,
        airlock: of.version.to_owned(),
        schema,
        made_ms: of.now_ms,
    };
    archive.write_info(&about)?;
    if schema.is_some() {
        archive.file(&format!("{STATE_PREFIX}airlock.db"), &copy.file, None)?;
    }
    drop(copy);
    archive.audit(&state, &folder, schema)?;
    if of.artifacts {
        archive.tree(&folder, "artifacts", &|_| FilePart::Whole)?;
    }
    archive.ledger(&state)?;
    archive.tree(&folder, "secrets", &|name| {
        if name.ends_with(".secret") {
            FilePart::Whole
        } else {
            FilePart::Skip
        }
    })?;
    archive.finish()
}

fn open_folder(path: &Path) -> Result<OwnedFd, BackupError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| BackupError::file("open", path)(error.into()))
}

/// Checked before anything is created in the folder: files of root in another user's folder would
/// be unusable for that user.
fn check_owner(folder: &OwnedFd) -> io::Result<()> {
    let owner = rustix::fs::fstat(folder)?.st_uid;
    let us = rustix::process::geteuid().as_raw();
    if owner == us {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "it belongs to user {owner}, and you are {us}"
        )))
    }
}

/// How much of a file is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilePart {
    /// All of it: the file is immutable.
    Whole,
    /// Up to the last line end: the file is append-only.
    Lines,
    /// Nothing.
    Skip,
}

/// A copy of the database. Its lock ends with its owner; a copy without a lock is removed by the
/// next backup.
struct DatabaseCopy {
    path: PathBuf,
    file: File,
}

impl DatabaseCopy {
    fn new(state: &Path) -> Result<DatabaseCopy, BackupError> {
        let folder = state.join(DRAFTS);
        let failed = BackupError::file("make a copy of the database in", &folder);
        let make = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)?;
            // One at a time: a sweep must not remove a file before it is locked.
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
            Ok(DatabaseCopy { path, file })
        };
        make().map_err(failed)
    }
}

impl Drop for DatabaseCopy {
    fn drop(&mut self) {
        // The next backup removes what is left.
        _ = fs::remove_file(&self.path);
    }
}

/// Removes the copies of killed backups.
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
    report: BackupReport,
    progress: BackupProgress<'a>,
}

impl<W: Write> Archive<'_, W> {
    fn write_info(&mut self, about: &BackupInfo) -> Result<(), BackupError> {
        let text = serde_json::to_vec(about).map_err(|error| BackupError::Output(error.into()))?;
        self.entry(
            INFO_FILE,
            &text[..],
            text.len() as u64,
            Path::new(INFO_FILE),
        )?;
        self.report.about = Some(about.clone());
        Ok(())
    }

    /// Adds a file, or its first `size` bytes.
    fn file(&mut self, path: &str, file: &File, size: Option<u64>) -> Result<(), BackupError> {
        let found = file.metadata().map_err(BackupError::file("read", path))?;
        let size = size.unwrap_or(found.len());
        (self.progress)(path, size);
        // By offset: the file position may be shared with other readers of the handle.
        let from = BufReader::with_capacity(BUFFER, OffsetReader { file, offset: 0 });
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
        let mut from = from;
        let mut hash = Sha256::new();
        let mut left = size;
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
            .extend_from_slice(ManifestEntry { path, size, sha256 }.line().as_bytes());
        Ok(())
    }

    /// Adds the audit as it is; a broken hash chain is reported.
    fn audit(
        &mut self,
        state: &Path,
        folder: &OwnedFd,
        schema: Option<i64>,
    ) -> Result<(), BackupError> {
        // With an older schema, verifying would migrate the database, which a backup must not do.
        if schema == Some(store::backup::newest_schema())
            && let Err(wrong) = store::audit::verify(state, None)
        {
            self.report
                .problems
                .push(super::verify::describe(state, &wrong));
        }
        self.tree(
            folder,
            "audit",
            &|name| match name.rsplit_once('.').map(|(_, end)| end) {
                Some("jsonl") => FilePart::Lines,
                Some("lock") => FilePart::Skip,
                _ => FilePart::Whole,
            },
        )
    }

    /// Adds the files below a folder, sorted by name.
    fn tree(
        &mut self,
        state: &OwnedFd,
        part: &str,
        kind: &dyn Fn(&str) -> FilePart,
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
        kind: &dyn Fn(&str) -> FilePart,
        depth: usize,
    ) -> Result<(), BackupError> {
        // An artifact version is two files: if one is missing, the version was removed meanwhile.
        let mut held = Vec::new();
        let together = path.starts_with("artifacts/");
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
                FileType::Directory if depth < MAX_DEPTH => {
                    match files::open(folder, &name, OFlags::DIRECTORY) {
                        Ok(inner) => self.below(&inner, &path, kind, depth + 1)?,
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(BackupError::file("open", path)(error)),
                    }
                }
                FileType::Directory => self.skip(format!("`{}` is too deep", path.escape_debug())),
                FileType::RegularFile if kind(&name) != FilePart::Skip => {
                    // A path that the reader would refuse must not invalidate the archive.
                    if let Err(why) = check_path(&format!("{STATE_PREFIX}{path}")) {
                        self.skip(why);
                        continue;
                    }
                    match files::open(folder, &name, OFlags::NONBLOCK) {
                        Ok(file) if together => held.push((path, File::from(file), kind(&name))),
                        Ok(file) => self.add_part(&path, &File::from(file), kind(&name))?,
                        Err(error) if error.kind() == io::ErrorKind::NotFound && together => {
                            held.clear();
                            break;
                        }
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(BackupError::file("open", path)(error)),
                    }
                }
                // Sockets and locks belong to running processes.
                _ => {}
            }
        }
        held.iter()
            .try_for_each(|(path, file, kind)| self.add_part(path, file, *kind))
    }

    fn add_part(&mut self, path: &str, file: &File, kind: FilePart) -> Result<(), BackupError> {
        let size = match kind {
            FilePart::Lines => Some(lines(file).map_err(BackupError::file("read", path))?),
            FilePart::Whole | FilePart::Skip => None,
        };
        self.file(&format!("{STATE_PREFIX}{path}"), file, size)
    }

    fn skip(&mut self, why: String) {
        self.report
            .problems
            .push(format!("not in the backup: {why}"));
    }

    /// Adds every ledger segment, up to the last valid line.
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
                &format!("{STATE_PREFIX}{}/{name}", crate::usage::LEDGER),
                &file,
                Some(size),
            )?;
        }
        Ok(())
    }

    /// How much of each file of a segment is copied. A damaged file is copied as it is, and
    /// reported.
    fn segment(
        &mut self,
        paths: Vec<PathBuf>,
        files: &mut BTreeMap<String, (PathBuf, u64)>,
    ) -> Result<(), BackupError> {
        let mut head = ChainHead::default();
        for path in paths {
            let file = File::open(&path).map_err(BackupError::file("open", &path))?;
            let mut reader = LedgerReader::new(
                BufReader::with_capacity(BUFFER, &file),
                ChainHead { offset: 0, ..head },
            );
            let fault = loop {
                match reader.next_record() {
                    Ok(Some(_)) => {}
                    Ok(None) | Err(ReadFault::Torn) => break None,
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

    fn finish(mut self) -> Result<BackupReport, BackupError> {
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
struct OffsetReader<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for OffsetReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = std::os::unix::fs::FileExt::read_at(self.file, buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// The file names, sorted, without those that begin with a dot.
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

/// The number of bytes up to the last line end.
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
