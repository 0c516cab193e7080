//! Removes a folder with everything below it, at any depth, by handle and with a bounded number of
//! handles. Others may change the tree meanwhile: only an attempt shows what is a folder.

use crate::{Dir, DirEntries, Lookup, dir::single};
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

/// Folders that are open at a time. Deeper ones are moved up before they are emptied.
const MAX_OPEN: usize = 64;

/// How a tree is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveOptions {
    /// Entries that are removed or looked at.
    pub max_steps: usize,
    /// Whether a mount point in the tree is an error. Nothing is ever unmounted.
    pub one_mount: bool,
    /// Whether own folders without permissions are made accessible. They are reached by
    /// `/proc/self/fd`: no other call changes the mode of a folder that cannot be read.
    pub open_closed: bool,
}

/// Why a tree was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The tree has more entries than the limit.
    #[error("there are more than {limit} entries")]
    TooMany {
        /// The limit.
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
    /// Removes the entry `name`; a folder with everything below it. An absent entry is an error.
    pub fn remove_tree(
        &self,
        name: impl AsRef<Path>,
        options: RemoveOptions,
    ) -> Result<(), RemoveError> {
        let name = single(name.as_ref())?;
        match rustix::fs::unlinkat(self, name, AtFlags::empty()) {
            // Some file systems return `EPERM` for a folder.
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
    names: DirEntries,
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

    /// Removes an entry, or descends into it.
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
        // Opened all the same, because a rename needs write permission for the folder itself.
        drop(opened);
        self.move_up(&here, &name, &first.names.dir()?)
    }

    /// Moves a folder up beside the first one, so that the number of handles stays bounded.
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

/// Ignores an entry that was removed or replaced meanwhile: the next listing shows what it is.
fn unless_changed(error: io::Error) -> Result<(), RemoveError> {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => Ok(()),
        _ => Err(error.into()),
    }
}

/// Removes a folder that was listed completely, or lists it again if others have added entries.
fn leave(levels: &mut Vec<Level>) -> Result<(), RemoveError> {
    let Some(mut level) = levels.pop() else {
        return Ok(());
    };
    let is_empty = match levels.last() {
        Some(above) => {
            match rustix::fs::unlinkat(above.names.dir()?, &level.name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => false,
                // Others have moved it away or replaced it.
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
