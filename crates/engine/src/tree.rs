//! The files of a session's workspace, from outside: read, written, listed and removed while
//! programs inside change them.
//!
//! Every access is by handle, beneath the workspace, and through no symbolic link; only regular
//! files are opened. Nothing here waits for a program, but a file system may be slow: call it on a
//! blocking thread.

mod copy;

pub use copy::{CopyLimits, CopyReport};

use crate::{
    FileAccess,
    files::{self, Draft, kind, kind_name},
};
use ::fs::{Dir, Lookup, RemoveError, RemoveOptions};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use spec::{Timestamp, WorkspacePath};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

/// The most entries of a folder that one call returns.
pub const MAX_LISTED: usize = 10_000;
/// The most bytes of their names and link targets.
const MAX_LISTED_BYTES: usize = 4 << 20;
/// The most entries of a folder that are scanned.
const MAX_SCANNED: usize = 1_000_000;
/// The most entries that one removal visits; a caller with more repeats the call.
const MAX_REMOVED: usize = 2_000_000;

/// A workspace behind a handle.
#[derive(Debug)]
pub struct Tree {
    workspace: OwnedFd,
    owner: Option<(u32, u32)>,
    limit_bytes: u64,
    rights: FileAccess,
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A FIFO, a socket or a device: it can be listed and removed, and nothing else.
    Special,
}

/// One entry of a workspace, at the time of the lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceEntry {
    /// The file name; any bytes but `/` and NUL.
    pub name: OsString,
    /// The type.
    pub kind: EntryKind,
    /// The size of a regular file.
    pub size_bytes: u64,
    /// The permissions, without set-id bits.
    pub mode: u32,
    /// The modification time.
    pub modified_at: Timestamp,
    /// The target of a symbolic link, which is never followed.
    pub target: Option<OsString>,
}

/// A page of the entries of a folder, sorted by the bytes of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeListing {
    /// The entries.
    pub entries: Vec<WorkspaceEntry>,
    /// Whether more entries follow.
    pub more: bool,
}

/// Why an operation on a workspace failed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The path is invalid.
    #[error("`{path}` cannot be used as a path: {why}")]
    Path {
        /// The path.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// The path does not exist.
    #[error("there is no `{path}`")]
    Missing {
        /// The path.
        path: String,
    },
    /// The path has another type.
    #[error("`{path}` is {what}, where {wanted} is needed")]
    Kind {
        /// The path.
        path: String,
        /// Its type.
        what: &'static str,
        /// The expected type.
        wanted: &'static str,
    },
    /// The path leads through a symbolic link.
    #[error("`{path}` leads through a symbolic link, which nobody follows")]
    Link {
        /// The path.
        path: String,
    },
    /// The path exists.
    #[error("`{path}` is there already")]
    Exists {
        /// The path.
        path: String,
    },
    /// The folder is not empty.
    #[error("the folder `{path}` is not empty")]
    NotEmpty {
        /// The path.
        path: String,
    },
    /// The file would exceed its size limit.
    #[error("`{path}` would be larger than the {limit_bytes} bytes that it may have")]
    TooLarge {
        /// The path.
        path: String,
        /// The limit.
        limit_bytes: u64,
    },
    /// The file system is full.
    #[error("there is no room left for `{path}`")]
    Full {
        /// The path.
        path: String,
    },
    /// The folder has too many entries.
    #[error("there is more in `{path}` than the {limit} entries that are looked at")]
    TooMany {
        /// The path.
        path: String,
        /// The limit.
        limit: usize,
    },
    /// The path is protected.
    #[error("`{path}` may not be changed: {why}")]
    Protected {
        /// The path.
        path: String,
        /// The reason.
        why: String,
    },
    /// An I/O error.
    #[error("`{path}` cannot be used")]
    Other {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl TreeError {
    fn of(path: &Path, source: io::Error) -> TreeError {
        let display_path = files::display_path(path);
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => TreeError::Missing { path: display_path },
            Some(Errno::LOOP) => TreeError::Link { path: display_path },
            Some(Errno::EXIST) => TreeError::Exists { path: display_path },
            Some(Errno::NOTEMPTY) => TreeError::NotEmpty { path: display_path },
            Some(Errno::NOSPC | Errno::DQUOT) => TreeError::Full { path: display_path },
            Some(Errno::NOTDIR) => TreeError::Kind {
                path: display_path,
                what: "no folder, or leads through something that is none",
                wanted: "a folder",
            },
            _ => TreeError::Other {
                path: display_path,
                source,
            },
        }
    }
}

type TreeResult<T> = Result<T, TreeError>;

/// A path relative to the workspace; empty for the workspace itself.
fn inside(path: &Path) -> TreeResult<PathBuf> {
    let relative = path.strip_prefix(spec::WORKSPACE).unwrap_or(path);
    if relative
        .components()
        .all(|part| part == std::path::Component::CurDir)
    {
        return Ok(PathBuf::new());
    }
    let bad = |bad: spec::BadPath| TreeError::Path {
        path: files::display_path(path),
        why: bad.why,
    };
    Ok(WorkspacePath::new(path).map_err(bad)?.as_path().to_owned())
}

/// The parent and the name of a path below the workspace, but not the workspace itself.
fn below(path: &Path) -> TreeResult<(PathBuf, OsString)> {
    let inside = inside(path)?;
    match (inside.parent(), inside.file_name()) {
        (Some(parent), Some(name)) => Ok((parent.to_owned(), name.to_owned())),
        _ => Err(TreeError::Path {
            path: files::display_path(path),
            why: "it names the whole workspace",
        }),
    }
}

fn open(folder: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    files::open(
        folder,
        if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        },
        flags,
    )
}

impl Tree {
    /// The workspace behind a handle; new files get this owner and at most `limit_bytes`.
    pub fn new(workspace: OwnedFd, owner: Option<(u32, u32)>, limit_bytes: u64) -> Tree {
        Tree {
            workspace,
            owner,
            limit_bytes,
            rights: FileAccess::default(),
        }
    }

    /// The same workspace with these access rules.
    pub fn with_access(self, rights: FileAccess) -> Tree {
        Tree { rights, ..self }
    }

    fn act<T: Send>(
        &self,
        path: &Path,
        work: impl FnOnce() -> TreeResult<T> + Send,
    ) -> TreeResult<T> {
        self.rights
            .act(|| Ok(work()))
            .unwrap_or_else(|error| Err(TreeError::of(path, error)))
    }

    fn check_may_change(&self, path: &Path) -> TreeResult<()> {
        match self.rights.protects(&inside(path)?) {
            Some(why) => Err(TreeError::Protected {
                path: files::display_path(path),
                why,
            }),
            None => Ok(()),
        }
    }

    /// The entry at a path; a symbolic link is not followed.
    pub fn stat(&self, path: &Path) -> TreeResult<WorkspaceEntry> {
        self.act(path, || {
            let clean = inside(path)?;
            let name = clean.file_name().unwrap_or_default();
            let handle = open(&self.workspace, &clean, OFlags::PATH);
            handle
                .and_then(|handle| entry(&handle, name))
                .map_err(|error| TreeError::of(path, error))
        })
    }

    /// Opens a regular file for reading.
    pub fn open(&self, path: &Path) -> TreeResult<(File, WorkspaceEntry)> {
        self.act(path, || {
            let clean = inside(path)?;
            let failed = |error| TreeError::of(path, error);
            // Decided by an O_PATH handle: opening a FIFO would block, and opening a device can
            // have side effects.
            let handle = open(&self.workspace, &clean, OFlags::PATH).map_err(failed)?;
            let seen = rustix::fs::fstat(&handle).map_err(|error| failed(error.into()))?;
            self.expect(path, &seen, FileType::RegularFile)?;
            // Reported like a path that changes during the lookup: the caller may try again.
            let replaced = |error: io::Error| match error.kind() {
                io::ErrorKind::PermissionDenied => failed(error),
                _ => failed(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    files::read_error(&error),
                )),
            };
            let (file, _) =
                files::open_seen(self.workspace.as_fd(), &clean, &seen).map_err(replaced)?;
            let entry = entry(&handle, clean.file_name().unwrap_or_default()).map_err(failed)?;
            Ok((file, entry))
        })
    }

    fn expect(&self, path: &Path, seen: &Stat, wanted: FileType) -> TreeResult<()> {
        match kind(seen) {
            found if found == wanted => Ok(()),
            FileType::Symlink => Err(TreeError::Link {
                path: files::display_path(path),
            }),
            found => {
                let what = kind_name(found);
                let wanted = kind_name(wanted);
                Err(TreeError::Kind {
                    path: files::display_path(path),
                    what,
                    wanted,
                })
            }
        }
    }

    /// The first `most` entries of a folder by name, behind `after`; fewer if link targets are
    /// long.
    pub fn list(&self, path: &Path, after: Option<&OsStr>, most: usize) -> TreeResult<TreeListing> {
        self.act(path, || {
            let clean = inside(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder = open(&self.workspace, &clean, OFlags::RDONLY | OFlags::DIRECTORY)
                .map(Dir::from)
                .map_err(failed)?;
            let most = most.clamp(1, MAX_LISTED);
            let mut names = BTreeSet::new();
            let mut more = false;
            for (count, found) in folder.entries().map_err(failed)?.enumerate() {
                let name = found.map_err(failed)?.name;
                if count >= MAX_SCANNED {
                    return Err(TreeError::TooMany {
                        path: files::display_path(path),
                        limit: MAX_SCANNED,
                    });
                }
                if after.is_some_and(|after| name <= after) {
                    continue;
                }
                names.insert(name);
                if names.len() > most {
                    names.pop_last();
                    more = true;
                }
            }
            let look = |name: OsString| match open(&folder, Path::new(&name), OFlags::PATH) {
                // It was removed meanwhile.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => None,
                found => Some(found.and_then(|handle| entry(&handle, &name))),
            };
            let mut entries = Vec::new();
            let mut bytes = 0;
            for found in names.into_iter().filter_map(look) {
                let found = found.map_err(failed)?;
                bytes += found.name.len() + found.target.as_ref().map_or(0, |target| target.len());
                if bytes > MAX_LISTED_BYTES {
                    more = true;
                    break;
                }
                entries.push(found);
            }
            Ok(TreeListing { entries, more })
        })
    }

    /// Creates a folder, and its parents if asked.
    pub fn make_folder(&self, path: &Path, parents: bool) -> TreeResult<()> {
        self.act(path, || {
            self.check_may_change(path)?;
            let (parent, name) = below(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder = self.parent(&parent, &name, parents).map_err(failed)?;
            // An existing folder is an error only without `parents`.
            if !parents && rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Err(TreeError::Exists {
                    path: files::display_path(path),
                });
            }
            files::make_folder(&folder, &name, self.owner)
                .map(drop)
                .map_err(failed)
        })
    }

    fn parent(&self, parent: &Path, name: &OsStr, make: bool) -> io::Result<OwnedFd> {
        if make {
            let made = files::make_parents(self.workspace.as_fd(), &parent.join(name), self.owner);
            made.map(|(folder, _)| folder)
        } else {
            open(&self.workspace, parent, OFlags::PATH | OFlags::DIRECTORY)
        }
    }

    /// Starts writing a file. It becomes visible with `publish`.
    pub fn put(&self, path: &Path, parents: bool) -> TreeResult<Upload> {
        self.act(path, || {
            self.check_may_change(path)?;
            let (parent, name) = below(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder = self.parent(&parent, &name, parents).map_err(failed)?;
            if let Some(what) = files::obstacle(&folder, &name).map_err(failed)? {
                return Err(TreeError::Kind {
                    path: files::display_path(path),
                    what,
                    wanted: "a file",
                });
            }
            let draft = Draft::new(&folder).map_err(failed)?;
            let owner = self.owner;
            let limit_bytes = self.limit_bytes;
            let path = path.to_owned();
            let mode = 0o644;
            Ok(Upload {
                folder,
                name,
                draft,
                path,
                owner,
                mode,
                limit_bytes,
                size_bytes: 0,
                published: false,
                rights: self.rights.clone(),
            })
        })
    }

    /// Removes a file, a symbolic link or an empty folder; with `recursive` also a folder and its
    /// contents.
    pub fn remove(&self, path: &Path, recursive: bool) -> TreeResult<()> {
        self.act(path, || {
            self.check_may_change(path)?;
            let (parent, name) = below(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder =
                open(&self.workspace, &parent, OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
            remove(&Dir::from(folder), &name, recursive).map_err(|error| match error {
                RemoveError::TooMany { limit } => TreeError::TooMany {
                    path: files::display_path(path),
                    limit,
                },
                RemoveError::Io(error) => failed(error),
            })
        })
    }

    /// Copies everything into another workspace.
    pub fn copy_into(&self, other: &Tree, bounds: CopyLimits) -> io::Result<CopyReport> {
        copy::copy(
            &self.workspace,
            &self.rights,
            &other.workspace,
            other.owner,
            bounds,
        )
    }
}

/// Removes a name. Whether it is a folder is found out by trying, since that may change at any
/// time.
fn remove(folder: &Dir, name: &OsStr, recursive: bool) -> Result<(), RemoveError> {
    if recursive {
        let options = RemoveOptions {
            max_steps: MAX_REMOVED,
            one_mount: true,
            ..RemoveOptions::default()
        };
        return folder.remove_tree(name, options);
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return Ok(done?),
    }
    Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}

/// A file that is being written. Dropping it discards the file.
#[derive(Debug)]
pub struct Upload {
    folder: OwnedFd,
    name: OsString,
    draft: Draft,
    path: PathBuf,
    owner: Option<(u32, u32)>,
    mode: u32,
    limit_bytes: u64,
    size_bytes: u64,
    published: bool,
    rights: FileAccess,
}

impl Upload {
    /// Sets the permissions, without set-id bits; 644 by default.
    pub fn set_mode(&mut self, mode: u32) {
        self.mode = mode & 0o777;
    }

    /// Refuses a file that would be too large before its bytes are sent.
    pub fn expect(&self, size_bytes: u64) -> TreeResult<()> {
        let path = files::display_path(&self.path);
        let limit_bytes = self.limit_bytes;
        if size_bytes > limit_bytes {
            Err(TreeError::TooLarge { path, limit_bytes })
        } else {
            Ok(())
        }
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> TreeResult<()> {
        self.size_bytes += bytes.len() as u64;
        self.expect(self.size_bytes)?;
        (&self.draft.file)
            .write_all(bytes)
            .map_err(|error| TreeError::of(&self.path, error))
    }

    /// Gives the file its name and replaces a file of that name.
    pub fn publish(mut self) -> TreeResult<WorkspaceEntry> {
        let mode = Mode::from_raw_mode(self.mode);
        let done = self.rights.act(|| {
            files::set_mode_and_owner(&self.draft.file, self.owner)?;
            rustix::fs::fchmod(&self.draft.file, mode)?;
            self.draft.publish(&self.folder, &self.name)?;
            entry(&self.draft.file, &self.name)
        });
        self.published = done.is_ok();
        done.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::ISDIR) => TreeError::Kind {
                path: files::display_path(&self.path),
                what: "a folder",
                wanted: "a file",
            },
            _ => TreeError::of(&self.path, error),
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.published {
            // Errors cannot be reported here.
            _ = self.rights.act(|| {
                self.draft.discard(&self.folder);
                Ok(())
            });
        }
    }
}

fn entry(handle: impl AsFd, name: &OsStr) -> io::Result<WorkspaceEntry> {
    let found = rustix::fs::fstat(&handle)?;
    let (kind, size) = match kind(&found) {
        FileType::RegularFile => (EntryKind::File, found.st_size),
        FileType::Directory => (EntryKind::Folder, 0),
        FileType::Symlink => (EntryKind::Link, 0),
        _ => (EntryKind::Special, 0),
    };
    let target = match kind {
        EntryKind::Link => Some(OsString::from_vec(
            rustix::fs::readlinkat(handle, "", Vec::new())?.into_bytes(),
        )),
        _ => None,
    };
    let since = i128::from(found.st_mtime) * 1000 + i128::from(found.st_mtime_nsec) / 1_000_000;
    Ok(WorkspaceEntry {
        name: name.to_owned(),
        kind,
        size_bytes: u64::try_from(size).unwrap_or(0),
        mode: found.st_mode & 0o1777,
        modified_at: Timestamp(u64::try_from(since).unwrap_or(0)),
        target,
    })
}

/// Opens a name in a folder on the same mount: what is mounted below a workspace is not part of it.
fn open_here(folder: impl AsFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    Dir::from_fd(folder).open_at(name, flags, Mode::empty(), Lookup::NoLinksOneMount)
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
