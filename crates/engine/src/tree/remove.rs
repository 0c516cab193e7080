//! Removes a folder with all that is in it, however deep, by handle and with few of them.

use super::open_here;
use crate::files::is_empty;
use rustix::{
    fs::{AtFlags, Dir, OFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
};

/// What is removed or looked at at once; whoever has more asks again.
const MOST_STEPS: usize = 2_000_000;
/// Folders that are open at a time.
const DEEPEST: usize = 64;

/// Why something is still there.
pub(super) enum Failed {
    TooMany(usize),
    Io(io::Error),
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Failed {
        Failed::Io(error.into())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Io(error)
    }
}

/// Removes a name. Whether it is a folder is found out by trying: it may change at any time.
pub(super) fn remove(folder: &OwnedFd, name: &OsStr, recursive: bool) -> Result<(), Failed> {
    match unlink(folder, name) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return Ok(done?),
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
        done => return Ok(done?),
    }
    let top = open_folder(folder, name)?;
    Emptying { steps: 0, moved: 0 }.empty(top)?;
    Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}

fn unlink(folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    rustix::fs::unlinkat(folder, name, AtFlags::empty())
}

fn open_folder(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    open_here(folder, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

struct Emptying {
    steps: usize,
    moved: usize,
}

/// A folder that is being emptied, and its name in the one above.
struct Level {
    folder: OwnedFd,
    names: Dir,
    name: OsString,
}

impl Level {
    fn new(folder: OwnedFd, name: OsString) -> io::Result<Level> {
        Ok(Level {
            names: Dir::read_from(&folder)?,
            folder,
            name,
        })
    }
}

impl Emptying {
    fn step(&mut self) -> Result<(), Failed> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            Err(Failed::TooMany(MOST_STEPS))
        } else {
            Ok(())
        }
    }

    fn empty(&mut self, top: OwnedFd) -> Result<(), Failed> {
        let mut levels = vec![Level::new(top, OsString::new())?];
        while let Some(level) = levels.last_mut() {
            self.step()?;
            match level.names.read() {
                Some(entry) => {
                    let entry = entry?;
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if name != "." && name != ".." {
                        let name = name.to_owned();
                        self.one(&mut levels, name)?;
                    }
                }
                None => self.leave(&mut levels)?,
            }
        }
        Ok(())
    }

    /// Removes an entry, or goes into it.
    fn one(&mut self, levels: &mut Vec<Level>, name: OsString) -> Result<(), Failed> {
        let (depth, [first, ..]) = (levels.len(), &levels[..]) else {
            return Ok(());
        };
        let here = &levels[depth - 1].folder;
        match unlink(here, &name) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        if depth >= DEEPEST {
            // Deeper ones are laid beside the first: the number of handles stays the same.
            self.moved += 1;
            let beside = format!(".airlock-removed-{}-{}", std::process::id(), self.moved);
            return match rustix::fs::renameat(here, &name, &first.folder, &beside) {
                Ok(()) | Err(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        match open_folder(here, &name) {
            Ok(folder) => levels.push(Level::new(folder, name)?),
            // It became something else: the next look finds it.
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR)
                ) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// A folder has been read to its end: it goes, or is read anew if something was put there meanwhile.
    fn leave(&mut self, levels: &mut Vec<Level>) -> Result<(), Failed> {
        let Some(mut level) = levels.pop() else {
            return Ok(());
        };
        let is_empty = match levels.last() {
            Some(above) => {
                match rustix::fs::unlinkat(&above.folder, &level.name, AtFlags::REMOVEDIR) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => false,
                    // Somebody moved it away, or put something else in its place.
                    Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => true,
                    Err(error) => return Err(error.into()),
                }
            }
            None => is_empty(&level.folder)?,
        };
        if !is_empty {
            level.names = Dir::read_from(&level.folder)?;
            levels.push(level);
        }
        Ok(())
    }
}
