//! Moves index, references and `HEAD` of a host's repository together, under git's own locks.
//!
//! ```text
//! drafts ─ locks ─ compare ─ decided ─▶ index ─ references ─ HEAD ─ reflogs ─ release
//!    └────────┴────────┴── killed: released          └── killed: carried out again
//! ```
//!
//! A lock is a hard link of a draft whose name nobody else uses. So a lock that a crash left can be told from one that a git
//! of the user's holds, and a step that was done from one that is left: its target is the draft. Between two steps the
//! repository is one that git takes for a worktree with changes; nothing of it is lost.

use crate::{
    GitError, ObjectFormat, ObjectId, failed,
    handle::{self, FOLDER},
    import::{Modes, let_go, write_new},
    pack::hash,
    refs,
    snapshot::{GitFolders, MOST_INDEX},
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

/// How long is waited between two looks at somebody else's lock.
const MOMENT: Duration = Duration::from_millis(20);
/// Of the end of a reflog, to see whether a line is there already.
const TAIL: u64 = 8192;
/// Files that an index may be split into.
const MOST_SHARED: usize = 16;
/// Bytes of `HEAD`.
const MOST_HEAD: u64 = 4096;
const NONE: &str = "-";

/// What a step is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The index of the worktree.
    Index,
    /// A reference, by its full name.
    Ref(String),
    /// `HEAD` of the worktree.
    Head,
}

/// One file that is exchanged, or only held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub target: Target,
    /// What it must say before: of the index its hash, of a reference its object, of `HEAD` its text; none if there is no
    /// such file.
    pub old: Option<String>,
    /// What it says afterwards; none if it is only held.
    pub new: Option<String>,
}

/// A line for a reflog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Of what.
    pub target: Target,
    /// Whether the reflog is begun if there is none.
    pub begin: bool,
    /// Without its end.
    pub line: String,
}

/// What is moved together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// How the names of its drafts begin; nobody else's do.
    pub drafts: String,
    /// Which hash the repository uses.
    pub format: ObjectFormat,
    /// In their order: index, references, `HEAD`.
    pub steps: Vec<Step>,
    /// What is written once that is done.
    pub logs: Vec<LogLine>,
    /// References under `refs/airlock/` that are not needed then.
    pub aside: Vec<(String, ObjectId)>,
    /// The pack that is let go of, without its ending.
    pub pack: Option<String>,
}

/// The index of a worktree, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFile {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Files that are not older may have been changed after git looked at them.
    pub modified: (i64, u32),
    /// Further files that it may be split into, by their names.
    pub shared: Vec<(String, Vec<u8>)>,
    mode: u32,
}

impl IndexFile {
    /// Reads it; none if there is no index.
    pub fn read(folders: &GitFolders) -> Result<Option<IndexFile>, GitError> {
        let read = || -> io::Result<Option<IndexFile>> {
            let file = match handle::open(&folders.git, "index", OFlags::RDONLY) {
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => File::from(file?),
            };
            let found = rustix::fs::fstat(&file)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::other("it is no regular file"));
            }
            let mut bytes = Vec::new();
            file.take(MOST_INDEX + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > MOST_INDEX {
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

    /// As a step names it.
    pub fn name(&self, format: ObjectFormat) -> String {
        name_of(&self.bytes, format)
    }
}

fn read_shared(folders: &GitFolders) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut shared = Vec::new();
    for name in handle::names(&folders.git)? {
        let Some(name) = name
            .to_str()
            .filter(|name| name.starts_with("sharedindex."))
        else {
            continue;
        };
        if shared.len() == MOST_SHARED {
            return Err(io::Error::other("it is split into too many files"));
        }
        let bytes = handle::read(&folders.git, name, MOST_INDEX)?;
        shared.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
    }
    Ok(shared)
}

/// How a step names an index.
pub fn name_of(index: &[u8], format: ObjectFormat) -> String {
    hash(format, index).to_string()
}

fn identity(folder: impl AsFd, path: impl AsRef<Path>) -> io::Result<Option<(u64, u64)>> {
    match handle::open(folder, path, OFlags::PATH) {
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

fn is_gone(done: Result<(), Errno>) -> io::Result<()> {
    match done {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Target {
    fn name(&self) -> &str {
        match self {
            Target::Index => "index",
            Target::Ref(name) => name,
            Target::Head => "HEAD",
        }
    }

    fn top<'a>(&self, folders: &'a GitFolders) -> BorrowedFd<'a> {
        match self {
            Target::Index | Target::Head => folders.git.as_fd(),
            Target::Ref(_) => folders.common.as_fd(),
        }
    }

    /// The folder that it lies in, and its last name.
    fn place(&self, folders: &GitFolders) -> io::Result<(OwnedFd, &str)> {
        let (above, last) = self.name().rsplit_once('/').unwrap_or((".", self.name()));
        Ok((handle::open(self.top(folders), above, FOLDER)?, last))
    }

    /// The same; folders that are missing are made.
    fn make_place(&self, folders: &GitFolders) -> io::Result<(OwnedFd, &str)> {
        let modes = Modes::of(self.top(folders))?;
        let mut folder = handle::open(self.top(folders), ".", FOLDER)?;
        let mut parts: Vec<_> = self.name().split('/').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            folder = handle::make_folder(&folder, part.as_ref(), modes.folder())?;
        }
        Ok((folder, last))
    }

    /// What it says now.
    fn read(&self, folders: &GitFolders, format: ObjectFormat) -> Result<Option<String>, GitError> {
        match self {
            Target::Index => {
                let index = IndexFile::read(folders)?;
                Ok(index.map(|index| index.name(format)))
            }
            Target::Ref(name) => {
                let found = refs::read_one(folders.common.as_fd(), name, format)?;
                Ok(found.map(|id| id.to_string()))
            }
            Target::Head => {
                let text = handle::read(&folders.git, "HEAD", MOST_HEAD);
                let text = text.map_err(failed("read HEAD"))?;
                Ok(text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()))
            }
        }
    }
}

/// How far a step is.
enum Progress {
    /// Its target is the draft.
    Done,
    /// Its lock is the draft.
    Held,
    /// Neither is.
    Lost,
    /// Somebody removed the draft.
    Gone,
}

impl Transaction {
    fn draft(&self, number: usize) -> String {
        format!("{}-{number}", self.drafts)
    }

    /// Writes down what every file is to say, where git does not look.
    pub fn write_drafts(
        &self,
        folders: &GitFolders,
        index: Option<&[u8]>,
        before: Option<&IndexFile>,
    ) -> Result<(), GitError> {
        let write = || -> io::Result<()> {
            let modes = Modes::of(folders.common.as_fd())?;
            for (number, step) in self.steps.iter().enumerate() {
                let (name, target) = (self.draft(number), &step.target);
                let text = step.new.as_ref().map(|new| format!("{new}\n"));
                let bytes = match (target, index, &text) {
                    (Target::Index, Some(index), Some(_)) => index,
                    (_, _, text) => text.as_deref().unwrap_or_default().as_bytes(),
                };
                let mode = match (target, before) {
                    (Target::Index, Some(before)) => Mode::from_raw_mode(before.mode),
                    _ => modes.file(),
                };
                write_new(&folders.common, &name, bytes, mode)?;
                if let (Target::Index, Some(before)) = (target, before) {
                    set_modified(&folders.common, &name, before.modified)?;
                }
            }
            Ok(rustix::fs::fsync(&folders.common)?)
        };
        write().map_err(failed("write drafts into .git"))
    }

    /// Takes every lock, or none; waits so long for those of others.
    pub fn lock(&self, folders: &GitFolders, patience: Duration) -> Result<(), GitError> {
        let until = Instant::now() + patience;
        for (number, step) in self.steps.iter().enumerate() {
            loop {
                match self.lock_one(folders, number, &step.target) {
                    Ok(()) => break,
                    Err(held) if held.kind() == io::ErrorKind::AlreadyExists => {
                        if Instant::now() >= until {
                            let name = step.target.name();
                            return Err(GitError::Refused(format!("`{name}.lock` is held")));
                        }
                        thread::sleep(MOMENT);
                    }
                    Err(error) => {
                        return Err(failed(format!("lock {}", step.target.name()))(error));
                    }
                }
            }
        }
        Ok(())
    }

    fn lock_one(&self, folders: &GitFolders, number: usize, target: &Target) -> io::Result<()> {
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

    /// Whether everything still says what it did, now that nobody else may change it.
    pub fn compare(&self, folders: &GitFolders) -> Result<(), GitError> {
        for step in &self.steps {
            self.compare_one(folders, step)?;
        }
        Ok(())
    }

    fn compare_one(&self, folders: &GitFolders, step: &Step) -> Result<(), GitError> {
        let name = step.target.name();
        if step.target.read(folders, self.format)? != step.old {
            return Err(GitError::Refused(format!("`{name}` was changed meanwhile")));
        }
        let clear = || -> io::Result<()> {
            let (folder, last) = step.target.place(folders)?;
            match rustix::fs::unlinkat(&folder, last, AtFlags::REMOVEDIR) {
                // An empty folder of that name is what git leaves of references that are gone.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        match matches!(step.target, Target::Ref(_)) {
            true => clear().map_err(failed(format!("make room for {name}"))),
            false => Ok(()),
        }
    }

    /// Does what is left of it, in its order. Every step is looked at before it is done, so that a second time does no
    /// harm. A step whose lock is lost is done if nobody has changed its file.
    pub fn carry_out(&self, folders: &GitFolders) -> Result<(), GitError> {
        // The first of what is removed at the end: everything was done, and what is here now is somebody else's.
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
            // What moved has moved: a line that cannot be written, in a log that may be a link, takes nothing back.
            _ = self.write_log(folders, log);
        }
        let mut aside = self.aside.iter();
        aside.try_for_each(|(name, id)| drop_aside(folders, name, id))
    }

    fn progress(
        &self,
        folders: &GitFolders,
        number: usize,
        target: &Target,
    ) -> io::Result<Progress> {
        let Some(draft) = identity(&folders.common, self.draft(number))? else {
            return Ok(Progress::Gone);
        };
        let (folder, last) = target.make_place(folders)?;
        Ok(match () {
            () if identity(&folder, last)? == Some(draft) => Progress::Done,
            () if identity(&folder, format!("{last}.lock"))? == Some(draft) => Progress::Held,
            () => Progress::Lost,
        })
    }

    fn write_log(&self, folders: &GitFolders, log: &LogLine) -> io::Result<()> {
        let top = log.target.top(folders);
        let path = format!("logs/{}", log.target.name());
        let is_there = handle::open(top, &path, OFlags::PATH).is_ok();
        if !is_there && !log.begin {
            return Ok(());
        }
        let modes = Modes::of(top)?;
        let mut folder = handle::open(top, ".", FOLDER)?;
        let mut parts: Vec<_> = path.split('/').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            folder = handle::make_folder(&folder, part.as_ref(), modes.folder())?;
        }
        if !is_there {
            match write_new(&folder, last, b"", modes.file()) {
                Err(there) if there.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        let line = format!("{}\n", log.line);
        let mut file = File::from(handle::open(&folder, last, OFlags::RDWR | OFlags::APPEND)?);
        let length = file.metadata()?.len();
        let mut tail = Vec::new();
        rustix::fs::seek(
            &file,
            rustix::fs::SeekFrom::Start(length.saturating_sub(TAIL)),
        )?;
        (&mut file).take(TAIL).read_to_end(&mut tail)?;
        match tail.ends_with(line.as_bytes()) {
            true => Ok(()),
            false => file.write_all(line.as_bytes()),
        }
    }

    /// Gives back every lock that is ours, and removes what was only needed on the way. After a step was decided on, call
    /// it only once all are done.
    pub fn release(&self, folders: &GitFolders) -> Result<(), GitError> {
        let release = || -> io::Result<()> {
            for (number, step) in self.steps.iter().enumerate() {
                let draft = identity(&folders.common, self.draft(number))?;
                if let (Some(draft), Ok((folder, last))) = (draft, step.target.place(folders)) {
                    let lock = format!("{last}.lock");
                    if identity(&folder, &lock)? == Some(draft) {
                        is_gone(rustix::fs::unlinkat(&folder, &lock, AtFlags::empty()))?;
                    }
                }
                if let Target::Ref(name) = &step.target {
                    remove_empty(folders, name, "refs/heads")?;
                }
            }
            for number in (0..self.steps.len()).rev() {
                let draft = self.draft(number);
                is_gone(rustix::fs::unlinkat(
                    &folders.common,
                    draft,
                    AtFlags::empty(),
                ))?;
            }
            Ok(())
        };
        release().map_err(failed("give the locks in .git back"))?;
        match &self.pack {
            Some(pack) => let_go(folders.common.as_fd(), pack),
            None => Ok(()),
        }
    }
}

/// Removes a reference of ours that is not needed any more, and the folders that it leaves empty.
pub fn drop_aside(folders: &GitFolders, name: &str, id: &ObjectId) -> Result<(), GitError> {
    let drop = || -> io::Result<()> {
        let target = Target::Ref(name.to_owned());
        let (folder, last) = match target.place(folders) {
            Err(gone) if is_absent(&gone) => return Ok(()),
            place => place?,
        };
        let text = handle::read(&folder, last, MOST_HEAD)?;
        if text.as_deref() != Some(format!("{id}\n").as_bytes()) {
            return Ok(());
        }
        is_gone(rustix::fs::unlinkat(&folder, last, AtFlags::empty()))?;
        remove_empty(folders, name, "refs/airlock")
    };
    drop().map_err(failed(format!("remove {name}")))
}

/// So that git takes files for perhaps changed that it took for so before.
fn set_modified(folder: &OwnedFd, name: &str, (seconds, nanos): (i64, u32)) -> io::Result<()> {
    let file = handle::open(folder, name, OFlags::RDONLY)?;
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

/// Removes the folders above a reference, up to `top`, as far as they are empty.
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
        let removed = match handle::open(&folders.common, outer, FOLDER) {
            Ok(folder) => rustix::fs::unlinkat(folder, last, AtFlags::REMOVEDIR),
            Err(gone) if is_absent(&gone) => Ok(()),
            Err(error) => return Err(error),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => path = above,
            // Something lies there; a link is not ours.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::LOOP) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// How it is written down, so that another process can end it.
impl Transaction {
    /// In lines of fields.
    pub fn text(&self) -> String {
        let or_none = |text: &Option<String>| text.clone().unwrap_or(NONE.to_owned());
        let mut text = format!("drafts\t{}\t{}\n", self.drafts, self.format.name());
        for step in &self.steps {
            let (old, new) = (or_none(&step.old), or_none(&step.new));
            text += &format!("step\t{}\t{old}\t{new}\n", step.target.name());
        }
        for log in &self.logs {
            let begin = if log.begin { "begin" } else { "go on" };
            text += &format!("log\t{}\t{begin}\t{}\n", log.target.name(), log.line);
        }
        for (name, id) in &self.aside {
            text += &format!("aside\t{name}\t{id}\n");
        }
        if let Some(pack) = &self.pack {
            text += &format!("pack\t{pack}\n");
        }
        text + "end\n"
    }

    /// Reads it back; none if it is not whole.
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
            aside: Vec::new(),
            pack: None,
        };
        let some = |text: &str| (text != NONE).then(|| text.to_owned());
        for line in lines {
            let fields: Vec<_> = line.splitn(4, '\t').collect();
            match fields.as_slice() {
                ["step", name, old, new] => read.steps.push(Step {
                    target: target(name)?,
                    old: some(old),
                    new: some(new),
                }),
                ["log", name, begin, line] => read.logs.push(LogLine {
                    target: target(name)?,
                    begin: *begin == "begin",
                    line: (*line).to_owned(),
                }),
                ["aside", name, id] if name.starts_with("refs/airlock/") && is_ref(name) => {
                    let id = ObjectId::parse(id, read.format)?;
                    read.aside.push(((*name).to_owned(), id));
                }
                ["pack", pack] => read.pack = Some((*pack).to_owned()),
                _ => return None,
            }
        }
        Some(read)
    }
}

fn is_ref(name: &str) -> bool {
    refs::is_format(name)
}

fn target(name: &str) -> Option<Target> {
    match name {
        "index" => Some(Target::Index),
        "HEAD" => Some(Target::Head),
        name if is_ref(name) => Some(Target::Ref(name.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
#[path = "transaction_tests.rs"]
mod tests;
