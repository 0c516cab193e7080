//! A file that gets its name when it is whole: readers see the old contents or the new ones.
//!
//! ```text
//! create under a temporary name ─ write ─ fsync ─ rename ─ fsync of the folder
//! ```

use crate::Dir;
use rustix::fs::Mode;
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

/// A file under a temporary name. Dropped without being published, it is removed.
#[derive(Debug)]
pub struct Draft<'a> {
    dir: Dir<BorrowedFd<'a>>,
    name: String,
    file: File,
    published: bool,
}

impl<H: AsFd> Dir<H> {
    /// Creates a file under a temporary name that begins with `prefix`. `mode` is subject to the
    /// umask.
    pub fn draft(&self, prefix: &str, mode: Mode) -> io::Result<Draft<'_>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..MAX_TAKEN {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{prefix}{}-{count}", std::process::id());
            match self.create_file(&name, mode) {
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    return Ok(Draft {
                        dir: self.borrow(),
                        name,
                        file: created?,
                        published: false,
                    });
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Replaces the file `name`, or creates it, all at once and so that it lasts. What the name
    /// stands for is replaced, never what a symbolic link of that name points at.
    pub fn replace(
        &self,
        name: impl AsRef<Path>,
        mode: Mode,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut draft = self.draft(TEMPORARY, mode)?;
        write(&mut draft.file)?;
        draft.publish(name)
    }

    /// The same for a name that nothing has yet; otherwise `AlreadyExists`.
    pub fn create_whole(
        &self,
        name: impl AsRef<Path>,
        mode: Mode,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut draft = self.draft(TEMPORARY, mode)?;
        write(&mut draft.file)?;
        draft.publish_new(name)
    }
}

impl Draft<'_> {
    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, in place of what has it.
    pub fn publish(self, name: impl AsRef<Path>) -> io::Result<()> {
        self.finish(|dir, temporary| dir.rename(temporary, dir, name))
    }

    /// Gives the file a name that nothing has yet; otherwise `AlreadyExists`.
    pub fn publish_new(self, name: impl AsRef<Path>) -> io::Result<()> {
        self.finish(|dir, temporary| dir.rename_new(temporary, dir, name))
    }

    fn finish(
        mut self,
        rename: impl FnOnce(&Dir<BorrowedFd<'_>>, &str) -> io::Result<()>,
    ) -> io::Result<()> {
        self.file.sync_all()?;
        rename(&self.dir, &self.name)?;
        self.published = true;
        self.dir.sync()
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
