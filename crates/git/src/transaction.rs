//! A transaction updates index, references and `HEAD` of a host's repository together, under git's
//! own locks.
//!
//! ```text
//! drafts ─ locks ─ compare ─ decided ─▶ index ─ references ─ HEAD ─ reflogs ─ release
//!    └────────┴────────┴── killed: released          └── killed: carried out again
//! ```
//!
//! A lock is a hard link of a draft whose name no other program uses. So recovery can tell the lock
//! of a crashed run from the lock of the user's git, and a completed step from an open one: the
//! target of a completed step is the draft. Between two steps, git sees a worktree with changes; no
//! data is lost.

use crate::{
    GitError, ObjectFormat, ObjectId, failed,
    import::{FileModes, release_pack, write_new},
    openat::{self, READ_DIR},
    pack::hash,
    refs,
    snapshot::{GitFolders, MAX_INDEX_BYTES},
};
use rustix::{
    fs::{AtFlags, Mode, OFlags, Timestamps},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Interval between two attempts to take a lock that another process holds.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes at the end of a reflog that are searched for a line that was written before a crash.
const REFLOG_TAIL_BYTES: u64 = 8192;
/// Files that an index may be split into.
const MAX_SHARED_INDEX_FILES: usize = 16;
/// Bytes of `HEAD`.
const MAX_HEAD_BYTES: u64 = 4096;
/// The text of an absent value in the journal.
const ABSENT: &str = "-";

/// The file that a step updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionTarget {
    /// The index of the worktree.
    Index,
    /// A reference, by its full name.
    Ref(String),
    /// `HEAD` of the worktree.
    Head,
}

/// One file that is replaced, or only locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionStep {
    /// The file.
    pub target: TransactionTarget,
    /// Its expected value: the hash of the index, the object of a reference, the text of `HEAD`.
    /// None if the file must be absent.
    pub old: Option<String>,
    /// Its new value; none if the file is only locked.
    pub new: Option<String>,
}

/// A line for a reflog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReflogLine {
    /// The reflog's reference.
    pub target: TransactionTarget,
    /// Whether a missing reflog is created.
    pub begin: bool,
    /// The line without its line break.
    pub line: String,
}

/// Updates that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The prefix of the names of its drafts, which no other program uses.
    pub drafts: String,
    /// The hash of the repository.
    pub format: ObjectFormat,
    /// The steps in their order: index, references, `HEAD`.
    pub steps: Vec<TransactionStep>,
    /// Reflog lines, which are written after the steps.
    pub logs: Vec<ReflogLine>,
    /// References under `refs/airlock/` that are removed after the steps.
    pub airlock_refs: Vec<(String, ObjectId)>,
    /// The pack whose `.keep` file is removed at the end, without its ending.
    pub pack: Option<String>,
}

/// The index of a worktree, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFile {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its modification time. Git compares the contents of files that are not older.
    pub modified: (i64, u32),
    /// Shared index files of a split index, by name.
    pub shared: Vec<(String, Vec<u8>)>,
    mode: u32,
}

impl IndexFile {
    /// Reads the index; none if it is absent.
    pub fn read(folders: &GitFolders) -> Result<Option<IndexFile>, GitError> {
        let read = || -> io::Result<Option<IndexFile>> {
            let file = match openat::open(&folders.git, "index", OFlags::RDONLY) {
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => File::from(file?),
            };
            let found = rustix::fs::fstat(&file)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::other("it is no regular file"));
            }
            let mut bytes = Vec::new();
            file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > MAX_INDEX_BYTES {
                return Err(io::Error::other("it is too long"));
            }
            Ok(Some(IndexFile {
                bytes,
                modified: (found.st_mtime as i64, found.st_mtime_nsec as u32),
                shared: read_shared(folders)?,
                mode: found.st_mode & 0o666,
            }))
        };
        read().map_err(failed("read the index"))
    }

    /// Its value in a step.
    pub fn checksum(&self, format: ObjectFormat) -> String {
        index_checksum(&self.bytes, format)
    }
}

fn read_shared(folders: &GitFolders) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut shared = Vec::new();
    for name in openat::names(&folders.git)? {
        let Some(name) = name
            .to_str()
            .filter(|name| name.starts_with("sharedindex."))
        else {
            continue;
        };
        if shared.len() == MAX_SHARED_INDEX_FILES {
            return Err(io::Error::other("it is split into too many files"));
        }
        let bytes = openat::read(&folders.git, name, MAX_INDEX_BYTES)?;
        shared.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
    }
    Ok(shared)
}

/// The value of an index in a step.
pub fn index_checksum(index: &[u8], format: ObjectFormat) -> String {
    hash(format, index).to_string()
}

fn identity(folder: impl AsFd, path: impl AsRef<Path>) -> io::Result<Option<(u64, u64)>> {
    match openat::open(folder, path, OFlags::PATH) {
        Ok(file) => {
            let found = rustix::fs::fstat(file)?;
            Ok(Some((found.st_dev, found.st_ino)))
        }
        Err(gone) if is_absent(&gone) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn ignore_missing(done: Result<(), Errno>) -> io::Result<()> {
    match done {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl TransactionTarget {
    fn name(&self) -> &str {
        match self {
            TransactionTarget::Index => "index",
            TransactionTarget::Ref(name) => name,
            TransactionTarget::Head => "HEAD",
        }
    }

    fn top<'a>(&self, folders: &'a GitFolders) -> BorrowedFd<'a> {
        match self {
            TransactionTarget::Index | TransactionTarget::Head => folders.git.as_fd(),
            TransactionTarget::Ref(_) => folders.common.as_fd(),
        }
    }

    /// The folder that holds the file, and its name in it.
    fn place(&self, folders: &GitFolders) -> io::Result<(OwnedFd, &str)> {
        let (above, last) = self.name().rsplit_once('/').unwrap_or((".", self.name()));
        Ok((openat::open(self.top(folders), above, READ_DIR)?, last))
    }

    /// The same, after creating missing folders.
    fn make_place(&self, folders: &GitFolders) -> io::Result<(OwnedFd, &str)> {
        let modes = FileModes::of(self.top(folders))?;
        let mut folder = openat::open(self.top(folders), ".", READ_DIR)?;
        let mut parts: Vec<_> = self.name().split('/').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            folder = openat::make_folder(&folder, part.as_ref(), modes.folder())?;
        }
        Ok((folder, last))
    }

    /// Its present value.
    fn read(&self, folders: &GitFolders, format: ObjectFormat) -> Result<Option<String>, GitError> {
        match self {
            TransactionTarget::Index => {
                let index = IndexFile::read(folders)?;
                Ok(index.map(|index| index.checksum(format)))
            }
            TransactionTarget::Ref(name) => {
                let found = refs::read_one(folders.common.as_fd(), name, format)?;
                Ok(found.map(|id| id.to_string()))
            }
            TransactionTarget::Head => {
                let text = openat::read(&folders.git, "HEAD", MAX_HEAD_BYTES);
                let text = text.map_err(failed("read HEAD"))?;
                Ok(text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()))
            }
        }
    }
}

/// The progress of a step.
enum Progress {
    /// The step is completed: its target is the draft.
    Done,
    /// The lock is held: it is the draft.
    Held,
    /// The lock was lost.
    Lost,
    /// The draft was removed.
    Gone,
}

impl Transaction {
    fn draft(&self, number: usize) -> String {
        format!("{}-{number}", self.drafts)
    }

    /// Writes the new contents of each file into drafts, which git ignores.
    pub fn write_drafts(
        &self,
        folders: &GitFolders,
        index: Option<&[u8]>,
        before: Option<&IndexFile>,
    ) -> Result<(), GitError> {
        let write = || -> io::Result<()> {
            let modes = FileModes::of(folders.common.as_fd())?;
            for (number, step) in self.steps.iter().enumerate() {
                let (name, target) = (self.draft(number), &step.target);
                let text = step.new.as_ref().map(|new| format!("{new}\n"));
                let bytes = match (target, index, &text) {
                    (TransactionTarget::Index, Some(index), Some(_)) => index,
                    (_, _, text) => text.as_deref().unwrap_or_default().as_bytes(),
                };
                let mode = match (target, before) {
                    (TransactionTarget::Index, Some(before)) => Mode::from_raw_mode(before.mode),
                    _ => modes.file(),
                };
                write_new(&folders.common, &name, bytes, mode)?;
                if let (TransactionTarget::Index, Some(before)) = (target, before) {
                    set_modified(&folders.common, &name, before.modified)?;
                }
            }
            Ok(rustix::fs::fsync(&folders.common)?)
        };
        write().map_err(failed("write drafts into .git"))
    }

    /// Takes all locks, and waits up to `timeout` for those that other processes hold. After an
    /// error, [`Transaction::release`] gives back those that were taken.
    pub fn lock(&self, folders: &GitFolders, timeout: Duration) -> Result<(), GitError> {
        let until = Instant::now() + timeout;
        for (number, step) in self.steps.iter().enumerate() {
            loop {
                match self.lock_one(folders, number, &step.target) {
                    Ok(()) => break,
                    Err(held) if held.kind() == io::ErrorKind::AlreadyExists => {
                        if Instant::now() >= until {
                            let name = step.target.name();
                            return Err(GitError::Refused(format!("`{name}.lock` is held")));
                        }
                        thread::sleep(LOCK_POLL_INTERVAL);
                    }
                    Err(error) => {
                        return Err(failed(format!("lock {}", step.target.name()))(error));
                    }
                }
            }
        }
        Ok(())
    }

    fn lock_one(
        &self,
        folders: &GitFolders,
        number: usize,
        target: &TransactionTarget,
    ) -> io::Result<()> {
        let (folder, last) = target.make_place(folders)?;
        let lock = format!("{last}.lock");
        let (from, draft) = (&folders.common, self.draft(number));
        Ok(rustix::fs::linkat(
            from,
            draft,
            &folder,
            lock,
            AtFlags::empty(),
        )?)
    }

    /// Checks that each file still has its expected value, under the locks.
    pub fn compare(&self, folders: &GitFolders) -> Result<(), GitError> {
        for step in &self.steps {
            self.compare_one(folders, step)?;
        }
        Ok(())
    }

    fn compare_one(&self, folders: &GitFolders, step: &TransactionStep) -> Result<(), GitError> {
        let name = step.target.name();
        if step.target.read(folders, self.format)? != step.old {
            return Err(GitError::Refused(format!("`{name}` was changed meanwhile")));
        }
        let clear = || -> io::Result<()> {
            let (folder, last) = step.target.place(folders)?;
            match rustix::fs::unlinkat(&folder, last, AtFlags::REMOVEDIR) {
                // Git leaves empty folders of removed references.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        if matches!(step.target, TransactionTarget::Ref(_)) {
            clear().map_err(failed(format!("make room for {name}")))?;
        }
        Ok(())
    }

    /// Carries out the open steps in their order. It is idempotent: the progress of each step is
    /// read first. A step whose lock was lost is carried out if its file still has the expected
    /// value.
    pub fn apply(&self, folders: &GitFolders) -> Result<(), GitError> {
        // `release` removes the last draft first. Without it, all steps are completed, and the
        // files may have been changed by others since.
        let last = self.draft(self.steps.len().saturating_sub(1));
        let last = identity(&folders.common, last).map_err(failed("look at the drafts in .git"))?;
        if last.is_none() {
            return Ok(());
        }
        for (number, step) in self.steps.iter().enumerate() {
            if step.new.is_none() {
                continue;
            }
            let what = || failed(format!("write {}", step.target.name()));
            match self
                .progress(folders, number, &step.target)
                .map_err(what())?
            {
                Progress::Done => continue,
                Progress::Held => {}
                Progress::Gone => {
                    let name = step.target.name();
                    return Err(GitError::Refused(format!("the draft of `{name}` is gone")));
                }
                Progress::Lost => {
                    self.lock_one(folders, number, &step.target)
                        .map_err(what())?;
                    self.compare_one(folders, step)?;
                }
            }
            let put = || -> io::Result<()> {
                let (folder, last) = step.target.place(folders)?;
                rustix::fs::renameat(&folder, format!("{last}.lock"), &folder, last)?;
                Ok(rustix::fs::fsync(folder)?)
            };
            put().map_err(what())?;
        }
        for log in &self.logs {
            // The update is final: a failure to write the reflog, which may be a link, cannot undo
            // it.
            _ = self.write_log(folders, log);
        }
        let mut airlock_refs = self.airlock_refs.iter();
        airlock_refs.try_for_each(|(name, id)| remove_airlock_ref(folders, name, id))
    }

    fn progress(
        &self,
        folders: &GitFolders,
        number: usize,
        target: &TransactionTarget,
    ) -> io::Result<Progress> {
        let Some(draft) = identity(&folders.common, self.draft(number))? else {
            return Ok(Progress::Gone);
        };
        let (folder, last) = target.make_place(folders)?;
        if identity(&folder, last)? == Some(draft) {
            return Ok(Progress::Done);
        }
        if identity(&folder, format!("{last}.lock"))? == Some(draft) {
            return Ok(Progress::Held);
        }
        Ok(Progress::Lost)
    }

    fn write_log(&self, folders: &GitFolders, log: &ReflogLine) -> io::Result<()> {
        let top = log.target.top(folders);
        let path = format!("logs/{}", log.target.name());
        let is_there = openat::open(top, &path, OFlags::PATH).is_ok();
        if !is_there && !log.begin {
            return Ok(());
        }
        let modes = FileModes::of(top)?;
        let mut folder = openat::open(top, ".", READ_DIR)?;
        let mut parts: Vec<_> = path.split('/').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            folder = openat::make_folder(&folder, part.as_ref(), modes.folder())?;
        }
        if !is_there {
            match write_new(&folder, last, b"", modes.file()) {
                Err(there) if there.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        let line = format!("{}\n", log.line);
        let mut file = File::from(openat::open(&folder, last, OFlags::RDWR | OFlags::APPEND)?);
        let length = file.metadata()?.len();
        let mut tail = Vec::new();
        rustix::fs::seek(
            &file,
            rustix::fs::SeekFrom::Start(length.saturating_sub(REFLOG_TAIL_BYTES)),
        )?;
        (&mut file).take(REFLOG_TAIL_BYTES).read_to_end(&mut tail)?;
        if tail.ends_with(line.as_bytes()) {
            return Ok(());
        }
        file.write_all(line.as_bytes())
    }

    /// Releases the locks of this transaction and removes its drafts. Once the transaction is
    /// decided, it may only be called after all steps are completed.
    pub fn release(&self, folders: &GitFolders) -> Result<(), GitError> {
        let release = || -> io::Result<()> {
            for (number, step) in self.steps.iter().enumerate() {
                let draft = identity(&folders.common, self.draft(number))?;
                if let (Some(draft), Ok((folder, last))) = (draft, step.target.place(folders)) {
                    let lock = format!("{last}.lock");
                    if identity(&folder, &lock)? == Some(draft) {
                        ignore_missing(rustix::fs::unlinkat(&folder, &lock, AtFlags::empty()))?;
                    }
                }
                if let TransactionTarget::Ref(name) = &step.target {
                    remove_empty(folders, name, "refs/heads")?;
                }
            }
            for number in (0..self.steps.len()).rev() {
                let draft = self.draft(number);
                ignore_missing(rustix::fs::unlinkat(
                    &folders.common,
                    draft,
                    AtFlags::empty(),
                ))?;
            }
            Ok(())
        };
        release().map_err(failed("give the locks in .git back"))?;
        match &self.pack {
            Some(pack) => release_pack(folders.common.as_fd(), pack),
            None => Ok(()),
        }
    }
}

/// Removes a reference under `refs/airlock/`, and the folders that it leaves empty.
pub fn remove_airlock_ref(folders: &GitFolders, name: &str, id: &ObjectId) -> Result<(), GitError> {
    let drop = || -> io::Result<()> {
        let target = TransactionTarget::Ref(name.to_owned());
        let (folder, last) = match target.place(folders) {
            Err(gone) if is_absent(&gone) => return Ok(()),
            place => place?,
        };
        let text = openat::read(&folder, last, MAX_HEAD_BYTES)?;
        if text.as_deref() != Some(format!("{id}\n").as_bytes()) {
            return Ok(());
        }
        ignore_missing(rustix::fs::unlinkat(&folder, last, AtFlags::empty()))?;
        remove_empty(folders, name, "refs/airlock")
    };
    drop().map_err(failed(format!("remove {name}")))
}

/// Sets the modification time, so that git compares the same files as before.
fn set_modified(folder: &OwnedFd, name: &str, (seconds, nanos): (i64, u32)) -> io::Result<()> {
    let file = openat::open(folder, name, OFlags::RDONLY)?;
    let time = rustix::fs::Timespec {
        tv_sec: seconds,
        tv_nsec: nanos.into(),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

/// Removes empty folders above a reference, up to `top`.
fn remove_empty(folders: &GitFolders, name: &str, top: &str) -> io::Result<()> {
    let mut path = Path::new(name);
    while let Some(above) = path
        .parent()
        .filter(|above| above.starts_with(top) && *above != Path::new(top))
    {
        let Some(outer) = above.parent() else {
            break;
        };
        let Some(last) = above.file_name() else {
            break;
        };
        let removed = match openat::open(&folders.common, outer, READ_DIR) {
            Ok(folder) => rustix::fs::unlinkat(folder, last, AtFlags::REMOVEDIR),
            Err(gone) if is_absent(&gone) => Ok(()),
            Err(error) => return Err(error),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => path = above,
            // The folder is in use, or it is a link, which Airlock did not create.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::LOOP) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The text in the journal, from which another process can complete the transaction.
impl Transaction {
    /// Lines of fields.
    pub fn text(&self) -> String {
        let or_none = |text: &Option<String>| text.clone().unwrap_or(ABSENT.to_owned());
        let mut text = format!("drafts\t{}\t{}\n", self.drafts, self.format.name());
        for step in &self.steps {
            let (old, new) = (or_none(&step.old), or_none(&step.new));
            text += &format!("step\t{}\t{old}\t{new}\n", step.target.name());
        }
        for log in &self.logs {
            let begin = if log.begin { "begin" } else { "go on" };
            text += &format!("log\t{}\t{begin}\t{}\n", log.target.name(), log.line);
        }
        for (name, id) in &self.airlock_refs {
            text += &format!("aside\t{name}\t{id}\n");
        }
        if let Some(pack) = &self.pack {
            text += &format!("pack\t{pack}\n");
        }
        text + "end\n"
    }

    /// Parses the text; none if it is incomplete.
    pub fn parse(text: &str) -> Option<Transaction> {
        let text = text.strip_suffix("end\n")?;
        let mut lines = text.lines();
        let mut first = lines.next()?.strip_prefix("drafts\t")?.split('\t');
        let (drafts, format) = (first.next()?.to_owned(), first.next()?);
        let formats = [ObjectFormat::Sha1, ObjectFormat::Sha256];
        let mut read = Transaction {
            drafts,
            format: formats.into_iter().find(|known| known.name() == format)?,
            steps: Vec::new(),
            logs: Vec::new(),
            airlock_refs: Vec::new(),
            pack: None,
        };
        let some = |text: &str| (text != ABSENT).then(|| text.to_owned());
        for line in lines {
            let fields: Vec<_> = line.splitn(4, '\t').collect();
            match fields.as_slice() {
                ["step", name, old, new] => read.steps.push(TransactionStep {
                    target: target(name)?,
                    old: some(old),
                    new: some(new),
                }),
                ["log", name, begin, line] => read.logs.push(ReflogLine {
                    target: target(name)?,
                    begin: *begin == "begin",
                    line: (*line).to_owned(),
                }),
                ["aside", name, id] if name.starts_with("refs/airlock/") && is_ref(name) => {
                    let id = ObjectId::parse(id, read.format)?;
                    read.airlock_refs.push(((*name).to_owned(), id));
                }
                ["pack", pack] => read.pack = Some((*pack).to_owned()),
                _ => return None,
            }
        }
        Some(read)
    }
}

fn is_ref(name: &str) -> bool {
    refs::is_valid_ref_name(name)
}

fn target(name: &str) -> Option<TransactionTarget> {
    match name {
        "index" => Some(TransactionTarget::Index),
        "HEAD" => Some(TransactionTarget::Head),
        name if is_ref(name) => Some(TransactionTarget::Ref(name.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
#[path = "transaction_tests.rs"]
mod tests;
