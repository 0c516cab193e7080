//! The journal of an import into the host's repository, written into the shadow folder before the
//! first change: after a crash the next command completes the import or undoes it.
//!
//! ```text
//! begun ─ pack, references beside ─ planned ─ locks, compare ─ decided ─ steps ─ closed
//!   └───────── killed: undone ────────┴──────────┘                └── killed: completed
//! ```

use super::describe;
use crate::{FileAccess, files};
use ::git::{GitError, Transaction, import, snapshot::GitFolders};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::PathBuf,
};

const JOURNAL: &str = "journal";
const DRAFT: &str = "journal.new";
const DECIDED: &str = "journal.decided";
const FIRST_LINE: &str = "airlock git 1";
/// The largest journal.
const MAX_BYTES: u64 = 64 << 20;

/// A journal that is being written.
#[derive(Debug)]
pub(super) struct Journal<'a> {
    /// The shadow folder.
    folder: BorrowedFd<'a>,
    text: String,
}

/// A folder of the host, identified by path and inode.
#[derive(Debug, PartialEq, Eq)]
struct FolderIdentity {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// The contents of a journal.
#[derive(Debug, PartialEq, Eq)]
struct JournalEntry {
    git: FolderIdentity,
    common: FolderIdentity,
    /// The file in which references are written before they are renamed into place.
    draft: String,
    /// The pack, without its extension.
    pack: String,
    transaction: Option<Transaction>,
}

impl<'a> Journal<'a> {
    /// Before anything is written into the repository.
    pub(super) fn begin(
        folder: BorrowedFd<'a>,
        host: &GitFolders,
        draft: &str,
        pack: &str,
    ) -> io::Result<Journal<'a>> {
        let text = format!(
            "{FIRST_LINE}\n{}{}draft {draft}\npack {pack}\n",
            FolderIdentity::line("git", &host.git, &host.git_path)?,
            FolderIdentity::line("common", &host.common, &host.path)?,
        );
        let journal = Journal { folder, text };
        journal.write("")?;
        Ok(journal)
    }

    /// Before locks are taken.
    pub(super) fn plan(&self, transaction: &Transaction) -> io::Result<()> {
        self.write(&transaction.text())
    }

    /// Everything is locked and as expected: from here on the import is completed.
    pub(super) fn decide(&self) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        File::from(files::open(self.folder, DECIDED, flags)?).sync_all()?;
        Ok(rustix::fs::fsync(self.folder)?)
    }

    /// The update is abandoned: before its locks are released.
    pub(super) fn take_back(&self) -> io::Result<()> {
        unlink(self.folder, DECIDED)?;
        Ok(rustix::fs::fsync(self.folder)?)
    }

    /// Nothing is in progress any more.
    pub(super) fn close(self) -> io::Result<()> {
        close(self.folder)
    }

    fn write(&self, more: &str) -> io::Result<()> {
        unlink(self.folder, DRAFT)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = File::from(files::open(self.folder, DRAFT, flags)?);
        file.write_all(format!("{}{more}", self.text).as_bytes())?;
        file.sync_all()?;
        rustix::fs::renameat(self.folder, DRAFT, self.folder, JOURNAL)?;
        Ok(rustix::fs::fsync(self.folder)?)
    }
}

/// The journal is removed last: without a decision, a rest of it only undoes what is not there.
fn close(folder: BorrowedFd<'_>) -> io::Result<()> {
    [DECIDED, JOURNAL]
        .into_iter()
        .try_for_each(|name| unlink(folder, name))
}

fn unlink(folder: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl FolderIdentity {
    fn line(name: &str, folder: &OwnedFd, path: &std::path::Path) -> io::Result<String> {
        let found = rustix::fs::fstat(folder)?;
        let path: String = path
            .as_os_str()
            .as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let (device, inode) = (found.st_dev, found.st_ino);
        Ok(format!("{name} {device} {inode} {path}\n"))
    }

    fn parse(line: &str, name: &str) -> Option<FolderIdentity> {
        let mut words = line.strip_prefix(name)?.strip_prefix(' ')?.split(' ');
        let (device, inode) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let pairs = words.next()?.as_bytes().chunks(2);
        let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        Some(FolderIdentity {
            path: PathBuf::from(OsString::from_vec(bytes.collect::<Option<_>>()?)),
            device,
            inode,
        })
    }

    /// Opens the folder, if it is still the same one.
    fn find(&self, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let folder = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            folder => folder?,
        };
        let found = rustix::fs::fstat(&folder)?;
        let is_same = (found.st_dev, found.st_ino) == (self.device, self.inode);
        Ok(is_same.then_some(folder))
    }
}

impl JournalEntry {
    fn parse(text: &str) -> Option<JournalEntry> {
        let mut rest = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?;
        let mut line = || {
            let (line, after) = rest.split_once('\n')?;
            rest = after;
            Some(line)
        };
        let (git, common) = (line()?, line()?);
        let (draft, pack) = (line()?, line()?);
        Some(JournalEntry {
            git: FolderIdentity::parse(git, "git")?,
            common: FolderIdentity::parse(common, "common")?,
            draft: draft.strip_prefix("draft ")?.to_owned(),
            pack: pack.strip_prefix("pack ")?.to_owned(),
            transaction: match rest {
                "" => None,
                text => Some(Transaction::parse(text)?),
            },
        })
    }

    fn recover(&self, is_decided: bool) -> io::Result<()> {
        let Some(place) = self.common.find(OFlags::PATH)? else {
            return Ok(());
        };
        let rights = FileAccess::of_owner(place.as_fd())?;
        rights.act(|| {
            let folders = (
                self.git.find(OFlags::RDONLY)?,
                self.common.find(OFlags::RDONLY)?,
            );
            let (Some(git), Some(common)) = folders else {
                return Ok(());
            };
            let folders = GitFolders {
                git,
                common,
                path: self.common.path.clone(),
                git_path: self.git.path.clone(),
            };
            let ended = self.end(&folders, is_decided);
            ended.map_err(|error| io::Error::other(describe(&error)))
        })
    }

    fn end(&self, folders: &GitFolders, is_decided: bool) -> Result<(), GitError> {
        if let Some(transaction) = &self.transaction {
            if is_decided {
                match transaction.apply(folders) {
                    // The user continued from there: the user's state stays.
                    Ok(()) | Err(GitError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            transaction.release(folders)?;
        }
        let draft = rustix::fs::unlinkat(&folders.common, &self.draft, AtFlags::empty());
        match draft {
            Ok(()) | Err(Errno::NOENT) => import::clear_pack(folders.common.as_fd(), &self.pack),
            Err(error) => Err(GitError::Io {
                what: "remove a draft of a reference".to_owned(),
                source: error.into(),
            }),
        }
    }
}

/// Whether an import is in progress, or was when its process was killed.
pub(super) fn is_open(folder: BorrowedFd<'_>) -> bool {
    rustix::fs::statat(folder, JOURNAL, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Completes or undoes the import of a process that is gone. The caller holds the folder's lock.
pub(super) fn recover(folder: BorrowedFd<'_>) -> io::Result<()> {
    let mut text = String::new();
    match files::open(folder, JOURNAL, OFlags::RDONLY) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => File::from(file?)
            .take(MAX_BYTES)
            .read_to_string(&mut text)?,
    };
    let entry = JournalEntry::parse(&text)
        .ok_or_else(|| io::Error::other("its journal cannot be read, and is left as it is"))?;
    let decided = rustix::fs::statat(folder, DECIDED, AtFlags::SYMLINK_NOFOLLOW);
    entry.recover(decided.is_ok())?;
    close(folder)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
