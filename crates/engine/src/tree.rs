//! The files of a session's workspace, for whoever is outside: read, written, listed and removed while programs inside do
//! what they like with them.
//!
//! Everything goes by handle, beneath the workspace and through no symbolic link; only regular files are opened. Nothing
//! here waits for a program, but a file system may take its time: call it off the event loop.

mod copy;

pub use copy::{Copied, CopyBounds};

use crate::{
    Rights,
    files::{self, Draft, called, kind},
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

/// Entries of a folder that one answer can have.
pub const MOST_LISTED: usize = 10_000;
/// Bytes of their names and of where their links point.
const MOST_LISTED_BYTES: usize = 4 << 20;
/// Entries of a folder that are looked at for it.
const MOST_READ: usize = 1_000_000;
/// Entries that one removal takes away or looks at; whoever has more asks again.
const MOST_STEPS: usize = 2_000_000;

/// A workspace, as a handle.
#[derive(Debug)]
pub struct Tree {
    workspace: OwnedFd,
    owner: Option<(u32, u32)>,
    limit_bytes: u64,
    rights: Rights,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum EntryKind {
    File,
    Folder,
    Link,
    /// A FIFO, a socket or a device: it can be seen and removed, and nothing else.
    Special,
}

/// One name in a workspace, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its last name; any bytes but `/` and NUL.
    pub name: OsString,
    /// What it is.
    pub kind: EntryKind,
    /// Its size; of a file only.
    pub size_bytes: u64,
    /// Its permissions, without set-id bits.
    pub mode: u32,
    /// When it was changed last.
    pub modified_at: Timestamp,
    /// Where a link points. Nothing is known of what is there.
    pub target: Option<OsString>,
}

/// Some of the entries of a folder, sorted by the bytes of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether there are more behind the last.
    pub more: bool,
}

/// Why something could not be done in a workspace.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TreeError {
    #[error("`{path}` cannot be used as a path: {why}")]
    Path { path: String, why: &'static str },
    #[error("there is no `{path}`")]
    Missing { path: String },
    #[error("`{path}` is {what}, where {wanted} is needed")]
    Kind {
        path: String,
        what: &'static str,
        wanted: &'static str,
    },
    #[error("`{path}` leads through a symbolic link, which nobody follows")]
    Link { path: String },
    #[error("`{path}` is there already")]
    Exists { path: String },
    #[error("the folder `{path}` is not empty")]
    NotEmpty { path: String },
    #[error("`{path}` would be larger than the {limit_bytes} bytes that it may have")]
    TooLarge { path: String, limit_bytes: u64 },
    #[error("there is no room left for `{path}`")]
    Full { path: String },
    #[error("there is more in `{path}` than the {limit} entries that are looked at")]
    TooMany { path: String, limit: usize },
    #[error("`{path}` may not be changed: {why}")]
    Protected { path: String, why: String },
    #[error("`{path}` cannot be used")]
    Other {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl TreeError {
    fn of(path: &Path, source: io::Error) -> TreeError {
        let shown = files::shown(path);
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => TreeError::Missing { path: shown },
            Some(Errno::LOOP) => TreeError::Link { path: shown },
            Some(Errno::EXIST) => TreeError::Exists { path: shown },
            Some(Errno::NOTEMPTY) => TreeError::NotEmpty { path: shown },
            Some(Errno::NOSPC | Errno::DQUOT) => TreeError::Full { path: shown },
            Some(Errno::NOTDIR) => TreeError::Kind {
                path: shown,
                what: "no folder, or leads through something that is none",
                wanted: "a folder",
            },
            _ => TreeError::Other {
                path: shown,
                source,
            },
        }
    }
}

type Answer<T> = Result<T, TreeError>;

/// A path below the workspace; empty for the workspace itself.
fn inside(path: &Path) -> Answer<PathBuf> {
    let relative = path.strip_prefix(spec::WORKSPACE).unwrap_or(path);
    if relative
        .components()
        .all(|part| part == std::path::Component::CurDir)
    {
        return Ok(PathBuf::new());
    }
    let bad = |bad: spec::BadPath| TreeError::Path {
        path: files::shown(path),
        why: bad.why,
    };
    Ok(WorkspacePath::new(path).map_err(bad)?.as_path().to_owned())
}

/// The same, but not the workspace itself.
fn below(path: &Path) -> Answer<(PathBuf, OsString)> {
    let inside = inside(path)?;
    match (inside.parent(), inside.file_name()) {
        (Some(parent), Some(name)) => Ok((parent.to_owned(), name.to_owned())),
        _ => Err(TreeError::Path {
            path: files::shown(path),
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
    /// The workspace behind a handle; what is put there gets this owner, and a file no more than so many bytes.
    pub fn new(workspace: OwnedFd, owner: Option<(u32, u32)>, limit_bytes: u64) -> Tree {
        Tree {
            workspace,
            owner,
            limit_bytes,
            rights: Rights::default(),
        }
    }

    /// The same, with no more rights than these.
    pub fn with(self, rights: Rights) -> Tree {
        Tree { rights, ..self }
    }

    fn act<T: Send>(&self, path: &Path, work: impl FnOnce() -> Answer<T> + Send) -> Answer<T> {
        self.rights
            .act(|| Ok(work()))
            .unwrap_or_else(|error| Err(TreeError::of(path, error)))
    }

    fn may_change(&self, path: &Path) -> Answer<()> {
        match self.rights.protects(&inside(path)?) {
            Some(why) => Err(TreeError::Protected {
                path: files::shown(path),
                why,
            }),
            None => Ok(()),
        }
    }

    /// What a name stands for; a link is not followed.
    pub fn stat(&self, path: &Path) -> Answer<Entry> {
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
    pub fn open(&self, path: &Path) -> Answer<(File, Entry)> {
        self.act(path, || {
            let clean = inside(path)?;
            let failed = |error| TreeError::of(path, error);
            // Decided on a handle that opens nothing: a FIFO would wait, a device could do anything.
            let handle = open(&self.workspace, &clean, OFlags::PATH).map_err(failed)?;
            let seen = rustix::fs::fstat(&handle).map_err(|error| failed(error.into()))?;
            self.expect(path, &seen, FileType::RegularFile)?;
            // Like a path that changes while it is followed: whoever asks again may have more luck.
            let replaced = |error: io::Error| match error.kind() {
                io::ErrorKind::PermissionDenied => failed(error),
                _ => failed(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    files::why_not(&error),
                )),
            };
            let (file, _) =
                files::open_seen(self.workspace.as_fd(), &clean, &seen).map_err(replaced)?;
            let entry = entry(&handle, clean.file_name().unwrap_or_default()).map_err(failed)?;
            Ok((file, entry))
        })
    }

    fn expect(&self, path: &Path, seen: &Stat, wanted: FileType) -> Answer<()> {
        match kind(seen) {
            found if found == wanted => Ok(()),
            FileType::Symlink => Err(TreeError::Link {
                path: files::shown(path),
            }),
            found => {
                let (what, wanted) = (called(found), called(wanted));
                Err(TreeError::Kind {
                    path: files::shown(path),
                    what,
                    wanted,
                })
            }
        }
    }

    /// Entries of a folder, those behind `after`: the first `most` of them by name, fewer if links point far.
    pub fn list(&self, path: &Path, after: Option<&OsStr>, most: usize) -> Answer<Listing> {
        self.act(path, || {
            let clean = inside(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder = open(&self.workspace, &clean, OFlags::RDONLY | OFlags::DIRECTORY)
                .map(Dir::from)
                .map_err(failed)?;
            let most = most.clamp(1, MOST_LISTED);
            let (mut names, mut more) = (BTreeSet::new(), false);
            for (count, found) in folder.entries().map_err(failed)?.enumerate() {
                let name = found.map_err(failed)?.name;
                if count >= MOST_READ {
                    return Err(TreeError::TooMany {
                        path: files::shown(path),
                        limit: MOST_READ,
                    });
                }
                if after.is_some_and(|after| name <= after) {
                    continue;
                }
                names.insert(name);
                more |= names.len() > most && names.pop_last().is_some();
            }
            let look = |name: OsString| match open(&folder, Path::new(&name), OFlags::PATH) {
                // It went meanwhile.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => None,
                found => Some(found.and_then(|handle| entry(&handle, &name))),
            };
            let (mut entries, mut bytes) = (Vec::new(), 0);
            for found in names.into_iter().filter_map(look) {
                let found = found.map_err(failed)?;
                bytes += found.name.len() + found.target.as_ref().map_or(0, |target| target.len());
                if bytes > MOST_LISTED_BYTES {
                    more = true;
                    break;
                }
                entries.push(found);
            }
            Ok(Listing { entries, more })
        })
    }

    /// Makes a folder, with those above it if asked.
    pub fn make_folder(&self, path: &Path, parents: bool) -> Answer<()> {
        self.act(path, || {
            self.may_change(path)?;
            let (parent, name) = below(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder = self.parent(&parent, &name, parents).map_err(failed)?;
            // One that is there is as good, if the caller did not insist.
            if !parents && rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Err(TreeError::Exists {
                    path: files::shown(path),
                });
            }
            files::make_folder(&folder, &name, self.owner)
                .map(drop)
                .map_err(failed)
        })
    }

    fn parent(&self, parent: &Path, name: &OsStr, make: bool) -> io::Result<OwnedFd> {
        match make {
            true => {
                let made =
                    files::make_parents(self.workspace.as_fd(), &parent.join(name), self.owner);
                made.map(|(folder, _)| folder)
            }
            false => open(&self.workspace, parent, OFlags::PATH | OFlags::DIRECTORY),
        }
    }

    /// Begins to write a file. Nobody sees it before it is whole.
    pub fn put(&self, path: &Path, parents: bool) -> Answer<Upload> {
        self.act(path, || {
            self.may_change(path)?;
            let (parent, name) = below(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder = self.parent(&parent, &name, parents).map_err(failed)?;
            if let Some(what) = files::in_the_way(&folder, &name).map_err(failed)? {
                return Err(TreeError::Kind {
                    path: files::shown(path),
                    what,
                    wanted: "a file",
                });
            }
            let draft = Draft::new(&folder).map_err(failed)?;
            let (owner, limit_bytes) = (self.owner, self.limit_bytes);
            let (path, mode) = (path.to_owned(), 0o644);
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

    /// Removes a file, a link or an empty folder; a folder with all that is in it if asked.
    pub fn remove(&self, path: &Path, recursive: bool) -> Answer<()> {
        self.act(path, || {
            self.may_change(path)?;
            let (parent, name) = below(path)?;
            let failed = |error: io::Error| TreeError::of(path, error);
            let folder =
                open(&self.workspace, &parent, OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
            remove(&Dir::from(folder), &name, recursive).map_err(|error| match error {
                RemoveError::TooMany { limit } => TreeError::TooMany {
                    path: files::shown(path),
                    limit,
                },
                RemoveError::Io(error) => failed(error),
            })
        })
    }

    /// Copies everything into another workspace.
    pub fn copy_into(&self, other: &Tree, bounds: CopyBounds) -> io::Result<Copied> {
        copy::copy(
            &self.workspace,
            &self.rights,
            &other.workspace,
            other.owner,
            bounds,
        )
    }
}

/// Removes a name. Whether it is a folder is found out by trying: it may change at any time.
fn remove(folder: &Dir, name: &OsStr, recursive: bool) -> Result<(), RemoveError> {
    if recursive {
        let options = RemoveOptions {
            max_steps: MOST_STEPS,
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

/// A file in the making. Dropped, nothing came of it.
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
    rights: Rights,
}

impl Upload {
    /// Who may do what with it, without set-id bits; 644 unless said.
    pub fn set_mode(&mut self, mode: u32) {
        self.mode = mode & 0o777;
    }

    /// Refuses what would be too large before a byte of it is there.
    pub fn expect(&self, size_bytes: u64) -> Answer<()> {
        let (path, limit_bytes) = (files::shown(&self.path), self.limit_bytes);
        if size_bytes > limit_bytes {
            Err(TreeError::TooLarge { path, limit_bytes })
        } else {
            Ok(())
        }
    }

    /// Adds bytes to it.
    pub fn write(&mut self, bytes: &[u8]) -> Answer<()> {
        self.size_bytes += bytes.len() as u64;
        self.expect(self.size_bytes)?;
        (&self.draft.file)
            .write_all(bytes)
            .map_err(|error| TreeError::of(&self.path, error))
    }

    /// Gives it its name, in place of what had it.
    pub fn publish(mut self) -> Answer<Entry> {
        let mode = Mode::from_raw_mode(self.mode);
        let done = self.rights.act(|| {
            files::finish(&self.draft.file, self.owner)?;
            rustix::fs::fchmod(&self.draft.file, mode)?;
            self.draft.publish(&self.folder, &self.name)?;
            entry(&self.draft.file, &self.name)
        });
        self.published = done.is_ok();
        done.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::ISDIR) => TreeError::Kind {
                path: files::shown(&self.path),
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
            // Nobody is left to be told.
            _ = self.rights.act(|| {
                self.draft.discard(&self.folder);
                Ok(())
            });
        }
    }
}

fn entry(handle: impl AsFd, name: &OsStr) -> io::Result<Entry> {
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
    Ok(Entry {
        name: name.to_owned(),
        kind,
        size_bytes: u64::try_from(size).unwrap_or(0),
        mode: found.st_mode & 0o1777,
        modified_at: Timestamp(u64::try_from(since).unwrap_or(0)),
        target,
    })
}

/// Opens a name in a folder, which lies on the same mount: what is mounted somewhere in a workspace is not part of it.
fn open_here(folder: impl AsFd, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    Dir::from_fd(folder).open_at(name, flags, Mode::empty(), Lookup::NoLinksOneMount)
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
