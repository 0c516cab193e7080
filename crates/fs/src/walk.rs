//! Every entry of a tree, by handle. Depth costs no stack, and descriptors only up to a bound.

use crate::{Dir, Entries, Lookup};
use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
};

/// How far a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkBounds {
    /// Entries of the whole tree.
    pub entries: usize,
    /// Folders within folders, the top included: as many handles are open at a time.
    pub depth: usize,
    /// Bytes of the path of a folder that is entered.
    pub path_bytes: usize,
    /// Whether folders on which something is mounted are an error.
    pub one_mount: bool,
}

/// One entry of a tree, as it was when it was looked at.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// The path from the top of the walk.
    pub path: PathBuf,
    /// Its status; of a symbolic link itself.
    pub stat: Stat,
}

/// What a walk could not look at.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// An entry, or the contents of a folder. The walk goes on behind it.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which; empty for the top.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The contents of a folder beyond a bound. The walk goes on behind it.
    #[error("`{}` is deeper than {depth} folders, or its path is too long", path.display())]
    TooDeep {
        /// Which.
        path: PathBuf,
        /// The bound.
        depth: usize,
    },
    /// There are more entries than the bound. The walk ends.
    #[error("there are more than {limit} entries")]
    TooMany {
        /// The first that was not looked at.
        path: PathBuf,
        /// The bound.
        limit: usize,
    },
}

/// A walk under way: parents before what they hold, in the order of the file system.
#[derive(Debug)]
pub struct Walk {
    levels: Vec<Level>,
    bounds: WalkBounds,
    entries: usize,
    /// A folder that was just given out, and is entered next.
    next: Option<OsString>,
}

/// A folder that is being read.
#[derive(Debug)]
struct Level {
    names: Entries,
    path: PathBuf,
}

impl Default for WalkBounds {
    fn default() -> WalkBounds {
        WalkBounds {
            entries: usize::MAX,
            depth: 128,
            path_bytes: usize::MAX,
            one_mount: false,
        }
    }
}

impl WalkEntry {
    /// Its name in that folder.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// What it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl<H: AsFd> Dir<H> {
    /// Walks everything below the folder. Symbolic links are entries and are not followed.
    pub fn walk(&self, bounds: WalkBounds) -> io::Result<Walk> {
        Ok(Walk {
            levels: vec![Level::new(self.open_dir(".")?, PathBuf::new())?],
            bounds,
            entries: 0,
            next: None,
        })
    }
}

impl Level {
    fn new(dir: Dir, path: PathBuf) -> io::Result<Level> {
        let names = dir.into_entries()?;
        Ok(Level { names, path })
    }
}

impl Walk {
    /// The folder that holds the entry that was given out last; none once the walk has ended.
    pub fn parent(&self) -> io::Result<Dir<BorrowedFd<'_>>> {
        self.levels.last().ok_or(Errno::BADF)?.names.dir()
    }

    /// Does not enter the folder that was given out last.
    pub fn skip_dir(&mut self) {
        self.next = None;
    }

    /// Enters the folder that was given out last, if it was one and was not skipped.
    fn enter(&mut self) -> Result<(), WalkError> {
        let (Some(name), Some(above)) = (self.next.take(), self.levels.last()) else {
            return Ok(());
        };
        let path = above.path.join(&name);
        let (depth, longest) = (self.bounds.depth, self.bounds.path_bytes);
        if self.levels.len() >= depth || path.as_os_str().len() >= longest {
            return Err(WalkError::TooDeep { path, depth });
        }
        let lookup = match self.bounds.one_mount {
            true => Lookup::NoLinksOneMount,
            false => Lookup::NoLinks,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let open = |parent: Dir<BorrowedFd<'_>>| {
            let folder = parent.open_at(&name, flags, Mode::empty(), lookup)?;
            Level::new(Dir::from_fd(folder), path.clone())
        };
        let level = above.names.dir().and_then(open);
        match level {
            Ok(level) => self.levels.push(level),
            Err(source) => return Err(WalkError::Read { path, source }),
        }
        Ok(())
    }

    /// Looks at one name; none if it is gone.
    fn look(&mut self, name: OsString) -> Option<Result<WalkEntry, WalkError>> {
        let level = self.levels.last()?;
        let path = level.path.join(&name);
        self.entries += 1;
        if self.entries > self.bounds.entries {
            self.levels.clear();
            let limit = self.bounds.entries;
            return Some(Err(WalkError::TooMany { path, limit }));
        }
        match level.names.dir().and_then(|parent| parent.stat(&name)) {
            Ok(None) => None,
            Err(source) => Some(Err(WalkError::Read { path, source })),
            Ok(Some(stat)) => {
                if FileType::from_raw_mode(stat.st_mode).is_dir() {
                    self.next = Some(name);
                }
                Some(Ok(WalkEntry { path, stat }))
            }
        }
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry, WalkError>;

    fn next(&mut self) -> Option<Result<WalkEntry, WalkError>> {
        if let Err(error) = self.enter() {
            return Some(Err(error));
        }
        loop {
            let level = self.levels.last_mut()?;
            match level.names.next() {
                Some(Ok(entry)) => {
                    if let Some(found) = self.look(entry.name) {
                        return Some(found);
                    }
                }
                Some(Err(source)) => {
                    let path = std::mem::take(&mut level.path);
                    self.levels.pop();
                    return Some(Err(WalkError::Read { path, source }));
                }
                None => {
                    self.levels.pop();
                }
            }
        }
    }
}
