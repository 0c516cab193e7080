//! Atomic replacement of a file: it gets its name when it is complete, so that readers see either
//! the old contents or the new ones.
//!
//! ```text
//! create under a temporary name ─ lock ─ write ─ fsync ─ rename ─ fsync of the folder
//! ```
//! The kernel releases the lock when the writer ends: a draft whose lock is free can be swept.

use crate::{Dir, try_lock};
use rustix::fs::{FlockOperation, Mode};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// The prefix of temporary names of [`Dir::replace`].
const TEMPORARY: &str = ".new-";
/// Names that killed processes with the same pid may have left.
const MAX_TAKEN: usize = 10_000;
/// Attempts to lock a draft: a sweep can remove a file that is not locked yet.
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
    /// Creates a file under a temporary name that must be free. `mode` is subject to the umask.
    pub fn draft(&self, name: impl Into<String>, mode: Mode) -> io::Result<Draft<'_>> {
        let name = name.into();
        for _ in 0..MAX_SWEPT {
            let file = self.create_file(&name, mode)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            // A sweep may have removed the file before it was locked; from now on none can.
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

    /// Removes a draft whose writer has ended, and returns whether it did. A temporary name must
    /// never be used twice: the writer may publish the draft and end meanwhile.
    pub fn sweep_draft(&self, name: impl AsRef<Path>) -> io::Result<bool> {
        let name = name.as_ref();
        match self.read_file(name) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(false),
            file => Ok(try_lock(file?)? && self.remove_file(name)?),
        }
    }

    /// Replaces or creates the file `name`, atomically and durably. A symbolic link of that name is
    /// replaced itself, never its target.
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

    /// The same for a name that must be free; otherwise `AlreadyExists`.
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
    /// The file, for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its temporary name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renames the file to its name, and replaces what has it.
    pub fn publish(&mut self, to: &Dir<impl AsFd>, name: impl AsRef<Path>) -> io::Result<()> {
        self.file.sync_all()?;
        self.dir.rename(&self.name, to, name)?;
        self.published = true;
        to.sync()
    }

    /// Renames the file to a free name. If the name is taken, the file stays a draft and the error
    /// is `AlreadyExists`.
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
            // A destructor cannot report an error, and the error before it is the one that counts.
            _ = self.dir.remove_file(&self.name);
        }
    }
}
