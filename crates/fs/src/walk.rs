//! Every entry of a tree, by handle. Depth costs no stack, and descriptors only up to a bound.

use crate::{Dir, DirEntries, Lookup};
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

/// The limits of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkBounds {
    /// Entries of the whole tree.
    pub entries: usize,
    /// Nested folders, the top included. So many handles are open at a time.
    pub depth: usize,
    /// Bytes of the path of a folder that is entered.
    pub path_bytes: usize,
    /// Whether folders on which something is mounted are an error.
    pub one_mount: bool,
}

/// One entry of a tree, with its status at the time of the walk.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// The path from the top of the walk.
    pub path: PathBuf,
    /// The status; of a symbolic link itself.
    pub stat: Stat,
}

/// An entry that a walk could not visit.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// An entry, or the contents of a folder, cannot be read. The walk continues behind it.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Its path; empty for the top.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A folder is beyond a limit. The walk continues behind it.
    #[error("`{}` is deeper than {depth} folders, or its path is too long", path.display())]
    TooDeep {
        /// Its path.
        path: PathBuf,
        /// The limit.
        depth: usize,
    },
    /// There are more entries than the limit. The walk ends.
    #[error("there are more than {limit} entries")]
    TooMany {
        /// The first entry that was not visited.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
}

/// A walk in progress. A folder comes before its entries, which come in the order of the file
/// system.
#[derive(Debug)]
pub struct Walk {
    levels: Vec<Level>,
    bounds: WalkBounds,
    entries: usize,
    /// The folder that was returned last, which is entered next.
    next: Option<OsString>,
}

/// A folder that is being read.
#[derive(Debug)]
struct Level {
    names: DirEntries,
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
    /// Its name.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Its type.
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
    /// The folder that holds the entry that was returned last; an error after the end of the walk.
    pub fn parent(&self) -> io::Result<Dir<BorrowedFd<'_>>> {
        self.levels.last().ok_or(Errno::BADF)?.names.dir()
    }

    /// Skips the contents of the folder that was returned last.
    pub fn skip_dir(&mut self) {
        self.next = None;
    }

    /// Enters the entry that was returned last, if it is a folder and was not skipped.
    fn enter(&mut self) -> Result<(), WalkError> {
        let (Some(name), Some(above)) = (self.next.take(), self.levels.last()) else {
            return Ok(());
        };
        let path = above.path.join(&name);
        let (depth, longest) = (self.bounds.depth, self.bounds.path_bytes);
        if self.levels.len() >= depth || path.as_os_str().len() >= longest {
            return Err(WalkError::TooDeep { path, depth });
        }
        let lookup = if self.bounds.one_mount {
            Lookup::NoLinksOneMount
        } else {
            Lookup::NoLinks
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

    /// Visits one name; none if it was removed meanwhile.
    fn visit(&mut self, name: OsString) -> Option<Result<WalkEntry, WalkError>> {
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
                    if let Some(found) = self.visit(entry.name) {
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
