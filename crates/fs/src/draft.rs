//! A file that gets its name when it is whole: readers see the old contents or the new ones.
//!
//! ```text
//! create under a temporary name ─ lock ─ write ─ fsync ─ rename ─ fsync of the folder
//! ```
//! The lock dies with its writer: a draft whose lock is free can be swept.

use crate::{Dir, try_lock};
use rustix::fs::{FlockOperation, Mode};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// How temporary names of [`Dir::replace`] begin.
const TEMPORARY: &str = ".new-";
/// Names that killed processes of the same id may have left.
const MAX_TAKEN: usize = 10_000;
/// A sweep can take a file that is not locked yet; it cannot do so forever.
const MAX_SWEPT: usize = 100;

/// A file under a temporary name, locked. Dropped without being published, it is removed.
#[derive(Debug)]
pub struct Draft<'a> {
    dir: Dir<BorrowedFd<'a>>,
    name: String,
    file: File,
    published: bool,
}

impl<H: AsFd> Dir<H> {
    /// Creates a file under this temporary name, which nothing may have. `mode` is subject to the
    /// umask.
    pub fn draft(&self, name: impl Into<String>, mode: Mode) -> io::Result<Draft<'_>> {
        let name = name.into();
        for _ in 0..MAX_SWEPT {
            let file = self.create_file(&name, mode)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            // A sweep may have been faster than the lock; from now on none can be.
            if rustix::fs::fstat(&file)?.st_nlink > 0 {
                return Ok(Draft {
                    dir: self.borrow(),
                    name,
                    file,
                    published: false,
                });
            }
        }
        Err(io::Error::other("a sweep took every draft away"))
    }

    /// Removes a draft whose writer is gone. Says whether it did. Temporary names must never be
    /// used twice: the writer may publish the draft and end meanwhile.
    pub fn sweep_draft(&self, name: impl AsRef<Path>) -> io::Result<bool> {
        let name = name.as_ref();
        match self.read_file(name) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(false),
            file => Ok(try_lock(file?)? && self.remove_file(name)?),
        }
    }

    /// Replaces the file `name`, or creates it, all at once and so that it lasts. What the name
    /// stands for is replaced, never what a symbolic link of that name points at.
    pub fn replace(
        &self,
        name: impl AsRef<Path>,
        mode: Mode,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut draft = self.any_draft(mode)?;
        write(&mut draft.file)?;
        draft.publish(self, name)
    }

    /// The same for a name that nothing has yet; otherwise `AlreadyExists`.
    pub fn create_whole(
        &self,
        name: impl AsRef<Path>,
        mode: Mode,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut draft = self.any_draft(mode)?;
        write(&mut draft.file)?;
        draft.publish_new(self, name)
    }

    fn any_draft(&self, mode: Mode) -> io::Result<Draft<'_>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..MAX_TAKEN {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            match self.draft(format!("{TEMPORARY}{}-{count}", std::process::id()), mode) {
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {}
                draft => return draft,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Draft<'_> {
    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its temporary name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the file its name, in place of what has it.
    pub fn publish(&mut self, to: &Dir<impl AsFd>, name: impl AsRef<Path>) -> io::Result<()> {
        self.file.sync_all()?;
        self.dir.rename(&self.name, to, name)?;
        self.published = true;
        to.sync()
    }

    /// Gives the file a name that nothing has yet; otherwise it stays a draft, and the error is
    /// `AlreadyExists`.
    pub fn publish_new(&mut self, to: &Dir<impl AsFd>, name: impl AsRef<Path>) -> io::Result<()> {
        self.file.sync_all()?;
        self.dir.rename_new(&self.name, to, name)?;
        self.published = true;
        to.sync()
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.published {
            // Nobody is left to be told, and the error before it is the one that counts.
            _ = self.dir.remove_file(&self.name);
        }
    }
}
