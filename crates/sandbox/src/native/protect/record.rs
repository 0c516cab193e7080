//! Which stand-ins are ours: one small file per workspace, written before anything is made.
//!
//! ```text
//! STATE/stubs/lock-NN         held while a record or its stand-ins change; never removed
//! STATE/stubs/DEV-INODE       workspace HEX-OF-PATH
//!                             intend NAME            it was absent and is about to be made
//!                             made INODE NAME        it was made
//! ```
//! A crash leaves at worst an `intend` without its `made`: then what is there may be ours, and goes
//! only if it is as bare as we would have made it.

use super::{
    beneath,
    names::{self, Stub},
};
use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Locks are held for the time of some system calls; longer means that somebody else plays with them.
const PATIENCE: Duration = Duration::from_secs(2);
/// A few lines for each of some thirty names, many times over.
const LONGEST_RECORD: u64 = 1 << 20;
/// So many that workspaces seldom wait for each other.
const LOCKS: u64 = 64;

/// The folder of all records.
pub(super) struct Records(OwnedFd);

/// The record of one workspace, with the lock that lets us change it.
pub(super) struct Record<'a> {
    records: &'a Records,
    name: String,
    _lock: OwnedFd,
}

/// What a record says of one stand-in.
struct Line {
    name: String,
    inode: Option<u64>,
}

impl Records {
    pub(super) fn open(state: &Path) -> io::Result<Records> {
        let folder = state.join("stubs");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Records(rustix::fs::open(&folder, flags, Mode::empty())?))
    }

    /// The record of this workspace; it need not exist yet.
    pub(super) fn of(&self, workspace: BorrowedFd<'_>) -> io::Result<Record<'_>> {
        let found = rustix::fs::fstat(workspace)?;
        self.named(format!("{}-{}", found.st_dev, found.st_ino), found.st_ino)
    }

    /// Every record there is, one at a time.
    pub(super) fn each(&self, mut act: impl FnMut(&str, io::Result<Record<'_>>)) -> io::Result<()> {
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            let Some(inode) = inode_in(name) else {
                continue;
            };
            act(name, self.named(name.to_owned(), inode));
        }
        Ok(())
    }

    fn named(&self, name: String, inode: u64) -> io::Result<Record<'_>> {
        let lock = format!("lock-{:02}", inode % LOCKS);
        let lock = beneath::open(&self.0, lock, OFlags::RDWR | OFlags::CREATE)?;
        take(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Record {
            records: self,
            name,
            _lock: lock,
        })
    }
}

/// `DEV-INODE`; lock files and strangers have no inode.
fn inode_in(name: &str) -> Option<u64> {
    let (device, inode) = name.split_once('-')?;
    device.parse::<u64>().ok()?;
    inode.parse().ok()
}

/// Takes a lock within the time that our own uses of it can need.
pub(super) fn take(lock: impl AsFd, how: FlockOperation) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&lock, how) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Err(Errno::INTR) => {}
            taken => return Ok(taken?),
        }
    }
}

/// Whether nobody else holds this workspace; if so, nobody can until the lock is given back.
pub(super) fn is_last(lock: impl AsFd) -> io::Result<bool> {
    match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(source) => Err(source.into()),
    }
}

impl Record<'_> {
    /// Writes down that `name` is about to be made.
    pub(super) fn intend(&self, workspace: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let mut text = String::new();
        if self.read()?.is_none() {
            let path = fs::read_link(format!("/proc/self/fd/{}", workspace.as_raw_fd()))?;
            let hex: String = path
                .as_os_str()
                .as_bytes()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            text = format!("workspace {hex}\n");
        }
        self.append(&format!("{text}intend {name}\n"))
    }

    /// Writes down what was made.
    pub(super) fn made(&self, name: &str, inode: u64) -> io::Result<()> {
        self.append(&format!("made {inode} {name}\n"))
    }

    /// Removes the stand-ins that are still ours and the record. The caller holds the workspace alone.
    pub(super) fn clean(&self, workspace: BorrowedFd<'_>) -> Vec<String> {
        let lines = match self.read() {
            Ok(Some((_, lines))) => lines,
            Ok(None) => return Vec::new(),
            Err(source) => {
                return vec![format!("the record of stand-ins `{}`: {source}", self.name)];
            }
        };
        let mut problems = Vec::new();
        for line in lines.iter().rev() {
            if let Err(source) = remove(workspace, line) {
                problems.push(format!(
                    "the stand-in `{}` cannot be removed: {source}",
                    line.name
                ));
            }
        }
        if problems.is_empty() {
            problems.extend(
                self.forget()
                    .err()
                    .map(|source| format!("a record of stand-ins: {source}")),
            );
        }
        problems
    }

    /// The workspace by the path it had, if it is still the same folder.
    pub(super) fn workspace(&self) -> io::Result<Option<(PathBuf, Option<OwnedFd>)>> {
        let Some((path, _)) = self.read()? else {
            return Ok(None);
        };
        let folder = match beneath::open_absolute(&path) {
            Ok(folder) => folder,
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(Some((path, None))),
            Err(source) => return Err(source),
        };
        // The device may have another number after a restart. A wrong folder of the same inode costs
        // nothing: what is removed there must have the inodes of our stand-ins, too.
        let same = Some(rustix::fs::fstat(&folder)?.st_ino) == inode_in(&self.name);
        Ok(Some((path, same.then_some(folder))))
    }

    /// Removes the record alone.
    pub(super) fn forget(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.records.0, &self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(source.into()),
        }
    }

    fn append(&self, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        File::from(beneath::open(&self.records.0, &self.name, flags)?).write_all(text.as_bytes())
    }

    fn read(&self) -> io::Result<Option<(PathBuf, Vec<Line>)>> {
        let file = match beneath::open(&self.records.0, &self.name, OFlags::RDONLY) {
            Ok(file) => File::from(file),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(source),
        };
        let mut text = String::new();
        file.take(LONGEST_RECORD).read_to_string(&mut text)?;
        if !text.contains('\n') {
            // A crash came between making the record and writing its first line: nothing else was done.
            self.forget()?;
            return Ok(None);
        }
        parse(&text)
            .map(Some)
            .ok_or_else(|| io::Error::other("it is damaged"))
    }
}

/// A last line without its end was cut by a crash: what it announces was not done yet.
fn parse(text: &str) -> Option<(PathBuf, Vec<Line>)> {
    let mut rows = text
        .split_inclusive('\n')
        .filter_map(|row| row.strip_suffix('\n'));
    let path = from_hex(rows.next()?.strip_prefix("workspace ")?)?;
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let (name, inode) = match row.split_once(' ')? {
            ("intend", name) => (name, None),
            ("made", rest) => rest
                .split_once(' ')
                .and_then(|(n, name)| Some((name, Some(n.parse().ok()?))))?,
            _ => return None,
        };
        // Whatever a record says, nothing but a stand-in is ever removed.
        names::stub(name)?;
        if inode.is_some() {
            lines.pop_if(|last| last.name == name && last.inode.is_none());
        }
        lines.push(Line {
            name: name.to_owned(),
            inode,
        });
    }
    Some((path, lines))
}

fn from_hex(text: &str) -> Option<PathBuf> {
    let digits = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Vec<u8> = digits.collect::<Option<_>>()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes)))
}

/// Removes a stand-in if it is still ours: the same inode, and as bare as we made it.
fn remove(workspace: BorrowedFd<'_>, line: &Line) -> io::Result<()> {
    let Some(stub) = names::stub(&line.name) else {
        return Ok(());
    };
    let git = match names::within_git(&line.name)
        .map(|_| open_git(workspace))
        .transpose()
    {
        Ok(git) => git,
        // The repository was removed or replaced meanwhile: nothing in there is ours.
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(()),
        Err(source) => return Err(source.into()),
    };
    let folder = git.as_ref().map_or(workspace, |git| git.as_fd());
    let name = names::within_git(&line.name).unwrap_or(&line.name);
    let Some(found) = beneath::look(folder, name)? else {
        return Ok(());
    };
    if line.inode.is_some_and(|inode| inode != found.st_ino) {
        return Ok(());
    }
    let removed = match (stub, beneath::kind(&found)) {
        (Stub::Folder, FileType::Directory) => {
            rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)
        }
        (Stub::File(content), FileType::RegularFile) if is_bare(folder, name, content, line)? => {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())
        }
        _ => Ok(()),
    };
    match removed {
        // With something in it, it is the user's.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(source) => Err(source.into()),
    }
}

fn open_git(workspace: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    beneath::open(workspace, names::GIT, OFlags::PATH | OFlags::DIRECTORY)
        .map_err(|source| Errno::from_io_error(&source).unwrap_or(Errno::IO))
}

fn is_bare(folder: BorrowedFd<'_>, name: &str, content: &[u8], line: &Line) -> io::Result<bool> {
    let file = File::from(beneath::open(
        folder,
        name,
        OFlags::RDONLY | OFlags::NONBLOCK,
    )?);
    let mut found = Vec::new();
    file.take(content.len() as u64 + 1)
        .read_to_end(&mut found)?;
    // A crash may have come between making and filling it.
    Ok(found == content || (line.inode.is_none() && found.is_empty()))
}
