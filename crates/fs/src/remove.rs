//! Removes a folder with all that is in it, however deep, by handle and with a bounded number of
//! them. Others may change the tree meanwhile: what is a folder is found out by trying.

use crate::{Dir, Entries, Lookup, dir::single};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
};

/// Folders that are open at a time. Deeper ones are moved up first.
const MAX_OPEN: usize = 64;

/// How a tree is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveOptions {
    /// Entries that are removed or looked at.
    pub max_steps: usize,
    /// Whether what is mounted somewhere in the tree is an error; it never is unmounted.
    pub one_mount: bool,
    /// Whether folders of ours that are closed to ourselves are opened. They are reached by
    /// `/proc/self/fd`: no other call changes the mode of a folder that cannot be read.
    pub open_closed: bool,
}

/// Why something is still there.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// There is more than the bound.
    #[error("there are more than {limit} entries")]
    TooMany {
        /// The bound.
        limit: usize,
    },
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for RemoveError {
    fn from(errno: Errno) -> RemoveError {
        RemoveError::Io(errno.into())
    }
}

impl From<RemoveError> for io::Error {
    fn from(error: RemoveError) -> io::Error {
        match error {
            RemoveError::Io(source) => source,
            RemoveError::TooMany { .. } => io::Error::other(error),
        }
    }
}

impl Default for RemoveOptions {
    fn default() -> RemoveOptions {
        RemoveOptions {
            max_steps: usize::MAX,
            one_mount: false,
            open_closed: false,
        }
    }
}

impl<H: AsFd> Dir<H> {
    /// Removes whatever is called `name`, a folder with all that is in it. That nothing has the
    /// name is an error.
    pub fn remove_tree(
        &self,
        name: impl AsRef<Path>,
        options: RemoveOptions,
    ) -> Result<(), RemoveError> {
        let name = single(name.as_ref())?;
        match rustix::fs::unlinkat(self, name, AtFlags::empty()) {
            // Some file systems say `EPERM` of a folder.
            Err(Errno::ISDIR | Errno::PERM) => {}
            done => return Ok(done?),
        }
        match rustix::fs::unlinkat(self, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            done => return Ok(done?),
        }
        let mut removal = Removal::new(options);
        let top = removal.open(self.as_fd(), name)?;
        removal.empty(top)?;
        Ok(rustix::fs::unlinkat(self, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes everything in the folder.
    pub fn remove_contents(&self, options: RemoveOptions) -> Result<(), RemoveError> {
        let top = self.open_dir(".")?;
        Removal::new(options).empty(top)
    }
}

struct Removal {
    options: RemoveOptions,
    steps: usize,
    moved: usize,
}

/// A folder that is being emptied, and its name in the one above.
struct Level {
    names: Entries,
    name: OsString,
}

impl Level {
    fn new(dir: Dir, name: OsString) -> io::Result<Level> {
        let names = dir.into_entries()?;
        Ok(Level { names, name })
    }
}

impl Removal {
    fn new(options: RemoveOptions) -> Removal {
        Removal {
            options,
            steps: 0,
            moved: 0,
        }
    }

    fn step(&mut self) -> Result<(), RemoveError> {
        self.steps += 1;
        let limit = self.options.max_steps;
        if self.steps > limit {
            return Err(RemoveError::TooMany { limit });
        }
        Ok(())
    }

    /// Opens a folder that is to be emptied.
    fn open(&self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<Dir> {
        let lookup = if self.options.one_mount {
            Lookup::NoLinksOneMount
        } else {
            Lookup::NoLinks
        };
        let parent = Dir::from_fd(parent);
        if !self.options.open_closed {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            return parent
                .open_at(name, flags, Mode::empty(), lookup)
                .map(Dir::from);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let handle = parent.open_at(name, flags, Mode::empty(), lookup)?;
        let found = rustix::fs::fstat(&handle)?;
        if found.st_mode & 0o700 != 0o700 && found.st_uid == rustix::process::geteuid().as_raw() {
            rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
        }
        Dir::from_fd(handle).open_dir(".")
    }

    fn empty(&mut self, top: Dir) -> Result<(), RemoveError> {
        let mut levels = vec![Level::new(top, OsString::new())?];
        while let Some(level) = levels.last_mut() {
            self.step()?;
            match level.names.next() {
                Some(entry) => {
                    let name = entry?.name;
                    self.remove(&mut levels, name)?;
                }
                None => leave(&mut levels)?,
            }
        }
        Ok(())
    }

    /// Removes an entry, or enters it.
    fn remove(&mut self, levels: &mut Vec<Level>, name: OsString) -> Result<(), RemoveError> {
        let ([first, ..], Some(here)) = (&levels[..], levels.last()) else {
            return Ok(());
        };
        let here = here.names.dir()?;
        match rustix::fs::unlinkat(here, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
        let opened = match self.open(here.as_fd(), &name) {
            Ok(opened) => opened,
            Err(error) => return unless_changed(error),
        };
        if levels.len() < MAX_OPEN {
            levels.push(Level::new(opened, name)?);
            return Ok(());
        }
        // Opened all the same: whoever moves a folder must be able to write it.
        drop(opened);
        self.move_up(&here, &name, &first.names.dir()?)
    }

    /// Deeper folders are laid beside the first, so that the number of handles stays the same.
    fn move_up(
        &mut self,
        here: &Dir<BorrowedFd<'_>>,
        name: &OsStr,
        top: &Dir<BorrowedFd<'_>>,
    ) -> Result<(), RemoveError> {
        loop {
            self.moved += 1;
            let free = format!(".airlock-removed-{}-{}", std::process::id(), self.moved);
            match here.rename_new(name, top, free) {
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => self.step()?,
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
                moved => return Ok(moved?),
            }
        }
    }
}

/// It became something else, or went: the next look finds it.
fn unless_changed(error: io::Error) -> Result<(), RemoveError> {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => Ok(()),
        _ => Err(error.into()),
    }
}

/// A folder was read to its end: it goes, or is read anew if something was put there meanwhile.
fn leave(levels: &mut Vec<Level>) -> Result<(), RemoveError> {
    let Some(mut level) = levels.pop() else {
        return Ok(());
    };
    let is_empty = match levels.last() {
        Some(above) => {
            match rustix::fs::unlinkat(above.names.dir()?, &level.name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => false,
                // Somebody moved it away, or put something else in its place.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => true,
                Err(errno) => return Err(errno.into()),
            }
        }
        None => level.names.dir()?.is_empty()?,
    };
    if !is_empty {
        level.names.rewind();
        levels.push(level);
    }
    Ok(())
}
