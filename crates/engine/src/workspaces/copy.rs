//! Copies a folder into a layer by handles, with the baseline of the copy. Everything belongs to
//! the copying user, which is the folder's owner.

use super::{
    base::{Baseline, BaselineEntry, CreateError},
    tree::{self, FileKind, FileState, MAX_DEPTH, MAX_ENTRIES, MAX_NAME_BYTES, Version},
};
use crate::sparse;
use rustix::{
    fs::{Dir, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT},
    io::Errno,
};
use sandbox::native::protect;
use spec::{HiddenFiles, HideDecision};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// The most bytes that are copied, whatever the scan found.
const MAX_BYTES: u64 = 16 << 30;
/// How often a file may change while it is copied.
const TRIES: usize = 3;

/// Called repeatedly during a copy, with its size so far: an error ends the copy.
pub(super) type ProgressCheck<'a> = &'a (dyn Fn(u64) -> Result<(), CreateError> + Sync);

/// A finished copy.
#[derive(Debug)]
pub(super) struct FolderCopy {
    pub(super) base: Baseline,
    /// The size on disk.
    pub(super) disk_bytes: u64,
    /// The paths that were left out although they are readable.
    pub(super) hidden: Vec<PathBuf>,
}

/// Copies the folder `from` into the empty folder `to`, except for the contents of `covered`
/// folders.
pub(super) fn copy(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    hide: &HiddenFiles,
    covered: &BTreeSet<PathBuf>,
    watch: ProgressCheck<'_>,
) -> Result<FolderCopy, CreateError> {
    let mut copier = FolderCopier {
        base: Baseline::new(),
        bytes: 0,
        name_bytes: 0,
        disk_bytes: 0,
        hide,
        covered,
        hidden: Vec::new(),
        watch,
    };
    copier.copy_all(from, to)?;
    Ok(FolderCopy {
        base: copier.base,
        disk_bytes: copier.disk_bytes,
        hidden: copier.hidden,
    })
}

struct FolderCopier<'a> {
    base: Baseline,
    bytes: u64,
    name_bytes: usize,
    disk_bytes: u64,
    hide: &'a HiddenFiles,
    /// Folders in which the program sees something else: they are copied empty.
    covered: &'a BTreeSet<PathBuf>,
    hidden: Vec<PathBuf>,
    watch: ProgressCheck<'a>,
}

/// A folder that is being copied.
struct OpenFolder {
    from: Dir,
    to: OwnedFd,
    path: PathBuf,
    mode: u32,
}

impl FolderCopier<'_> {
    fn copy_all(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), CreateError> {
        let failed = |path: &Path, source: io::Error| CreateError::Io(path.to_owned(), source);
        let found =
            rustix::fs::fstat(from).map_err(|source| failed(Path::new("."), source.into()))?;
        let top = listed(from).and_then(|from| self.level(from, to, PathBuf::new(), &found));
        let mut levels = vec![top.map_err(|source| failed(Path::new("."), source))?];
        while let Some(level) = levels.last_mut() {
            (self.watch)(self.disk_bytes)?;
            let entry = level
                .from
                .read()
                .transpose()
                .map_err(|source| failed(&level.path, source.into()))?;
            let Some(entry) = entry else {
                let mode = Mode::from_raw_mode(level.mode);
                rustix::fs::fchmod(&level.to, mode)
                    .map_err(|source| failed(&level.path, source.into()))?;
                levels.pop();
                continue;
            };
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let path = level.path.join(&name);
            self.count(&path, levels.len())?;
            if let Some(level) = levels.last() {
                let below = self.copy_entry(level, &name, &path);
                // The error that ended the copy says more than that of the file.
                let why = |source| {
                    (self.watch)(self.disk_bytes)
                        .err()
                        .unwrap_or_else(|| failed(&path, source))
                };
                levels.extend(below.map_err(why)?);
            }
        }
        Ok(())
    }

    fn count(&self, path: &Path, depth: usize) -> Result<(), CreateError> {
        let too_much = if self.base.len() >= MAX_ENTRIES || self.name_bytes > MAX_NAME_BYTES {
            format!(
                "it has more than {MAX_ENTRIES} files and folders, or their names are too long together"
            )
        } else if self.bytes > MAX_BYTES {
            format!(
                "it grows while it is copied, beyond {} GiB",
                MAX_BYTES >> 30
            )
        } else if self.hidden.len() > protect::MAX_HIDDEN {
            let most = protect::MAX_HIDDEN;
            format!(
                "it has more than {most} files that are to be hidden (`--hide none` hides fewer)"
            )
        } else if depth > MAX_DEPTH {
            format!(
                "`{}` is deeper than {MAX_DEPTH} folders",
                path.to_string_lossy().escape_debug()
            )
        } else {
            return Ok(());
        };
        Err(CreateError::Bound(too_much))
    }

    fn level(
        &self,
        from: Dir,
        to: impl AsFd,
        path: PathBuf,
        found: &Stat,
    ) -> io::Result<OpenFolder> {
        let to = tree::open(to, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(OpenFolder {
            from,
            to,
            path,
            mode: found.st_mode & 0o777,
        })
    }

    /// Copies one entry; returns the folder if it is one.
    fn copy_entry(
        &mut self,
        level: &OpenFolder,
        name: &OsStr,
        path: &Path,
    ) -> io::Result<Option<OpenFolder>> {
        let seen = match level
            .from
            .fd()
            .map_err(io::Error::from)
            .and_then(|from| tree::stat_name(from, name))
        {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(closed) if closed.kind() == io::ErrorKind::PermissionDenied => FileState::default(),
            seen => seen?,
        };
        let (from, to) = (level.from.fd()?, level.to.as_fd());
        if self.hides(from, name, path, seen.kind) {
            let copy = make_placeholder(to, name, seen.kind)?;
            self.hidden.push(path.to_owned());
            let (kind, mode, base) = (FileKind::Other, seen.mode, seen.version);
            let target = OsString::new();
            let entry = BaselineEntry {
                kind,
                mode,
                target,
                base,
                copy,
                moved: false,
            };
            self.base.insert(path.to_owned(), entry);
            return Ok(None);
        }
        let mut below = None;
        let copied = match seen.kind {
            FileKind::File => self.file(from, to, name),
            FileKind::Folder => self.folder(from, to, name, path).and_then(|entered| {
                let (folder, version) = entered;
                if self.covered.contains(path) {
                    rustix::fs::fchmod(&folder.to, Mode::from_raw_mode(folder.mode))?;
                } else {
                    below = Some(folder);
                }
                Ok((version, version))
            }),
            FileKind::Link => {
                let target = seen.target.as_deref().unwrap_or_default();
                Ok(rustix::fs::symlinkat(target, to, name).map(|()| Default::default())?)
            }
            FileKind::Other => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let (kind, (base, copy)) = match copied {
            // Unreadable: as good as hidden from the program.
            Err(closed) if closed.kind() == io::ErrorKind::PermissionDenied => {
                (FileKind::Other, (seen.version, Version::default()))
            }
            copied => (seen.kind, copied?),
        };
        let target = seen.target.unwrap_or_default();
        self.name_bytes += path.as_os_str().len() + target.len();
        self.base.insert(
            path.to_owned(),
            BaselineEntry {
                kind,
                mode: seen.mode,
                target,
                base,
                copy,
                moved: false,
            },
        );
        Ok(below)
    }

    fn hides(&self, from: BorrowedFd<'_>, name: &OsStr, path: &Path, kind: FileKind) -> bool {
        match self.hide.decide(path) {
            HideDecision::Yes => true,
            HideDecision::No => false,
            HideDecision::IfPrivateKey => {
                kind == FileKind::File && protect::holds_key(from, name).unwrap_or(true)
            }
            HideDecision::IfCredentials => {
                kind == FileKind::File && protect::holds_credentials(from, name).unwrap_or(true)
            }
        }
    }

    fn folder(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> io::Result<(OpenFolder, Version)> {
        let from = tree::open(from, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let found = rustix::fs::fstat(&from)?;
        // A folder that can be listed but not entered is as good as hidden: it is not created.
        let from = listed(from)?;
        rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        let to = tree::open(to, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok((
            self.level(from, to, path.to_owned(), &found)?,
            Version::of(&found),
        ))
    }

    /// Copies a file; returns the versions of both.
    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
    ) -> io::Result<(Version, Version)> {
        let source = File::from(tree::open(from, name, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let copy = File::from(tree::open(
            to,
            name,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        )?);
        for _ in 0..TRIES {
            let before = rustix::fs::fstat(&source)?;
            if tree::kind(&before) != FileKind::File {
                return Err(Errno::AGAIN.into());
            }
            self.bytes += before.st_size as u64;
            if self.bytes > MAX_BYTES {
                // The caller's count reports it.
                return Ok((Version::of(&before), Version::default()));
            }
            copy.set_len(0)?;
            let goes_on = || (self.watch)(self.disk_bytes).is_ok();
            // A short copy is detected below by the version.
            sparse::copy(&source, &copy, before.st_size as u64, &goes_on)?;
            if Version::of(&rustix::fs::fstat(&source)?) == Version::of(&before) {
                let made = self.finish(&copy, &before)?;
                return Ok((Version::of(&before), made));
            }
        }
        Err(io::Error::other("it changes while it is copied"))
    }

    fn finish(&mut self, copy: &File, found: &Stat) -> io::Result<Version> {
        rustix::fs::fchmod(copy, Mode::from_raw_mode(found.st_mode & 0o777))?;
        // Keeps the mtime, so that build tools do not rebuild everything.
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: found.st_mtime as _,
                tv_nsec: found.st_mtime_nsec as _,
            },
        };
        rustix::fs::futimens(copy, &times)?;
        let made = rustix::fs::fstat(copy)?;
        self.disk_bytes += tree::disk_bytes(&made);
        Ok(Version::of(&made))
    }
}

/// Creates an empty placeholder of the same kind, so that git does not see a hidden file as
/// removed.
fn make_placeholder(to: BorrowedFd<'_>, name: &OsStr, kind: FileKind) -> io::Result<Version> {
    match kind {
        FileKind::Folder => rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o555))?,
        _ => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let made = tree::open(to, name, flags)?;
            rustix::fs::fchmod(&made, Mode::empty())?;
        }
    }
    Ok(tree::stat_name(to, name)?.version)
}

fn listed(folder: impl AsFd) -> io::Result<Dir> {
    Ok(Dir::new(tree::open(
        folder,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY,
    )?)?)
}
