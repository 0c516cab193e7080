//! Writes inputs into a workspace before a run, and collects artifacts from it afterwards.
//!
//! A workspace may be hostile, and a mounted one may change meanwhile: every access is by handle,
//! beneath the workspace, and through no symbolic link; only regular files are read.

use crate::FileAccess;
use ::fs::{Dir, Lookup, Walk, WalkBounds, WalkEntry, WalkError};
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid},
    io::Errno,
};
use spec::WorkspacePath;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Files in this folder are stored as artifacts at the end, under their names relative to it.
const ARTIFACTS_FOLDER: &str = ".artifacts";

/// Why an input could not be put into the workspace.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The write failed.
    #[error("cannot put `{}` into the workspace", display_path(name.as_path()))]
    Write {
        /// The name inside.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The source could not be read.
    #[error("cannot read what should become `{}` in the workspace", display_path(name.as_path()))]
    Read {
        /// The name inside.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The input is too large.
    #[error("the input `{}` is larger than {limit_bytes} bytes", display_path(name.as_path()))]
    TooLarge {
        /// The name inside.
        name: WorkspacePath,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The name is protected.
    #[error("the input `{}` cannot be put into the workspace: {why}", display_path(name.as_path()))]
    Protected {
        /// The name inside.
        name: WorkspacePath,
        /// The reason.
        why: String,
    },
    /// Something other than a regular file has the name.
    #[error("the input `{}` cannot replace what is there: it is {what}", display_path(name.as_path()))]
    Obstacle {
        /// The name inside.
        name: WorkspacePath,
        /// What has the name.
        what: &'static str,
    },
}

/// The limits of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectLimits {
    /// The most files.
    pub files: usize,
    /// The most directory entries that are visited.
    pub entries: usize,
    /// The greatest depth, which is also the number of descriptors open at a time.
    pub depth: usize,
    /// The most bytes of one file.
    pub file_bytes: u64,
    /// The most bytes of all files.
    pub total_bytes: u64,
    /// The most skipped files that are listed by name.
    pub listed: usize,
}

/// A file to be stored.
#[derive(Debug)]
pub struct CollectedFile {
    /// The name of the artifact.
    pub name: WorkspacePath,
    /// The size when the file was opened.
    pub size_bytes: u64,
    /// The contents: at most that size, even if the file grows.
    pub contents: io::Take<File>,
}

/// A file that was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedFile {
    /// Its name, escaped for display.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// The result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// The number of stored files.
    pub files: usize,
    /// The sum of their sizes.
    pub bytes: u64,
    /// The files that were not stored, and why.
    pub skipped: Vec<SkippedFile>,
    /// The number of skipped files beyond those listed.
    pub more_skipped: u64,
    /// Whether everything in `.artifacts` was stored.
    pub folder_is_kept: bool,
}

impl CollectReport {
    fn skipped_in_all(&self) -> u64 {
        self.skipped.len() as u64 + self.more_skipped
    }
}

impl Default for CollectLimits {
    fn default() -> Self {
        CollectLimits {
            files: 10_000,
            entries: 100_000,
            depth: 64,
            file_bytes: 1 << 30,
            total_bytes: 4 << 30,
            listed: 100,
        }
    }
}

/// Whether the owner of a folder can write to it. True also where that cannot be determined: the
/// mount reports the error then.
pub(crate) fn is_writable(folder: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(folder, flags, Mode::empty()) else {
        return true;
    };
    let looked = FileAccess::of_owner(folder.as_fd()).and_then(|rights| {
        rights.act(|| {
            let access = rustix::fs::Access::WRITE_OK;
            Ok(rustix::fs::accessat(
                &folder,
                ".",
                access,
                AtFlags::EACCESS,
            )?)
        })
    });
    let refused = |error: &io::Error| {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::ACCESS | Errno::ROFS | Errno::PERM))
    };
    !looked.is_err_and(|error| refused(&error))
}

/// Writes an input into the workspace, completely or not at all. A regular file of that name is
/// replaced. The file and the folders created for it get the owner.
pub fn put_input(
    workspace: BorrowedFd<'_>,
    name: &WorkspacePath,
    source: &mut dyn Read,
    owner: Option<(u32, u32)>,
    limit_bytes: u64,
    rights: &FileAccess,
) -> Result<(), InputError> {
    if let Some(why) = rights.protects(name.as_path()) {
        return Err(InputError::Protected {
            name: name.clone(),
            why,
        });
    }
    let failed = |source| InputError::Write {
        name: name.clone(),
        source,
    };
    let (folder, last) = rights
        .act(|| make_parents(workspace, name.as_path(), owner))
        .map_err(failed)?;
    let what = rights.act(|| {
        if rights.keeps_existing() {
            Ok(Dir::from_fd(&folder)
                .stat(&last)?
                .map(|_| "the mounted folder's own"))
        } else {
            obstacle(&folder, &last)
        }
    });
    if let Some(what) = what.map_err(failed)? {
        return Err(InputError::Obstacle {
            name: name.clone(),
            what,
        });
    }
    let draft = rights.act(|| Draft::new(&folder)).map_err(failed)?;
    let put = copy(name, source, &draft.file, limit_bytes).and_then(|()| {
        let publish = || {
            set_mode_and_owner(&draft.file, owner).and_then(|()| draft.put(&folder, &last, rights))
        };
        rights.act(publish).map_err(failed)
    });
    if put.is_err() {
        // The first error is the one to report.
        _ = rights.act(|| {
            draft.discard(&folder);
            Ok(())
        });
    }
    put
}

/// Creates the parent folders of `path`; returns the last folder and the file name.
pub(crate) fn make_parents(
    workspace: BorrowedFd<'_>,
    path: &Path,
    owner: Option<(u32, u32)>,
) -> io::Result<(OwnedFd, OsString)> {
    let mut folder = open(workspace, ".", OFlags::PATH | OFlags::DIRECTORY)?;
    for part in path.parent().unwrap_or(Path::new("")).components() {
        folder = make_folder(&folder, part.as_os_str(), owner)?;
    }
    Ok((folder, path.file_name().unwrap_or_default().to_owned()))
}

pub(crate) fn make_folder(
    parent: &OwnedFd,
    name: &OsStr,
    owner: Option<(u32, u32)>,
) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => return open(parent, name, OFlags::PATH | OFlags::DIRECTORY),
        made => made?,
    }
    let folder = open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    // Another folder may have been put there meanwhile: only a new folder of ours gets the owner.
    if is_new(&folder)? {
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
        set_owner(&folder, owner)?;
    }
    Ok(folder)
}

/// Whether a folder belongs to this process and is empty: a folder that was swapped in gets no new
/// owner.
pub(crate) fn is_new(folder: &OwnedFd) -> io::Result<bool> {
    let ours = rustix::fs::fstat(folder)?.st_uid == rustix::process::geteuid().as_raw();
    Ok(ours && Dir::from_fd(folder).is_empty()?)
}

pub(crate) fn obstacle(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<&'static str>> {
    let found = Dir::from_fd(folder).stat(name)?.map(|found| kind(&found));
    Ok(found
        .filter(|kind| *kind != FileType::RegularFile)
        .map(kind_name))
}

/// A file that is being written. It is unnamed (O_TMPFILE) where the file system supports that, so
/// that a crash leaves nothing.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) file: File,
    name: Option<String>,
}

impl Draft {
    pub(crate) fn new(folder: &OwnedFd) -> io::Result<Draft> {
        match open(folder, ".", OFlags::WRONLY | OFlags::TMPFILE) {
            Ok(file) => Ok(Draft {
                file: File::from(file),
                name: None,
            }),
            Err(_) => {
                let make =
                    |name: &str| open(folder, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
                let (name, file) = with_free_name(make)?;
                Ok(Draft {
                    file: File::from(file),
                    name: Some(name),
                })
            }
        }
    }

    /// Gives the file its name. Replaces the name itself and never the target of a symbolic link.
    pub(crate) fn publish(&self, folder: &OwnedFd, last: &OsStr) -> io::Result<()> {
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link =
            |name: &OsStr| rustix::fs::linkat(CWD, &file, folder, name, AtFlags::SYMLINK_FOLLOW);
        let (name, linked) = match &self.name {
            Some(name) => (name.clone(), false),
            None => match link(last) {
                // Only a rename can replace an existing name.
                Err(Errno::EXIST) => (with_free_name(|name| Ok(link(name.as_ref())?))?.0, true),
                done => return Ok(done?),
            },
        };
        let moved = rustix::fs::renameat(folder, &name, folder, last);
        if moved.is_err() && linked {
            let _ = rustix::fs::unlinkat(folder, &name, AtFlags::empty());
        }
        Ok(moved?)
    }

    /// Like `publish`, but without replacing an existing file where that is not allowed.
    fn put(&self, folder: &OwnedFd, last: &OsStr, rights: &FileAccess) -> io::Result<()> {
        if !rights.keeps_existing() {
            return self.publish(folder, last);
        }
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match &self.name {
            None => rustix::fs::linkat(CWD, &file, folder, last, AtFlags::SYMLINK_FOLLOW)?,
            Some(name) => {
                rustix::fs::renameat_with(folder, name, folder, last, RenameFlags::NOREPLACE)?;
            }
        }
        Ok(())
    }

    pub(crate) fn discard(&self, folder: &OwnedFd) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}

/// Calls `act` with new names until one is free.
fn with_free_name<T>(mut act: impl FnMut(&str) -> io::Result<T>) -> io::Result<(String, T)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".airlock-input-{}-{count}", std::process::id());
        match act(&name) {
            Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {}
            done => return Ok((name, done?)),
        }
    }
}

fn copy(
    name: &WorkspacePath,
    source: &mut dyn Read,
    mut file: &File,
    limit_bytes: u64,
) -> Result<(), InputError> {
    let mut buffer = vec![0; 128 << 10];
    let mut size_bytes = 0;
    loop {
        let count = match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(again) if again.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(InputError::Read {
                    name: name.clone(),
                    source,
                });
            }
        };
        size_bytes += count as u64;
        if size_bytes > limit_bytes {
            return Err(InputError::TooLarge {
                name: name.clone(),
                limit_bytes,
            });
        }
        file.write_all(&buffer[..count])
            .map_err(|source| InputError::Write {
                name: name.clone(),
                source,
            })?;
    }
}

pub(crate) fn set_mode_and_owner(file: &File, owner: Option<(u32, u32)>) -> io::Result<()> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(0o644))?;
    set_owner(file, owner)
}

pub(crate) fn set_owner(file: impl AsFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((user, group)) = owner else {
        return Ok(());
    };
    Ok(rustix::fs::fchown(
        file,
        Some(Uid::from_raw(user)),
        Some(Gid::from_raw(group)),
    )?)
}

/// Passes every file that is to be stored to `keep`, one at a time: the wanted files, the contents
/// of wanted folders, and the contents of `.artifacts`. A file that `keep` refuses is skipped with
/// its reason. Stops once `is_cancelled` returns true.
pub fn collect(
    workspace: BorrowedFd<'_>,
    wanted: &[WorkspacePath],
    bounds: CollectLimits,
    is_cancelled: &dyn Fn() -> bool,
    keep: &mut dyn FnMut(CollectedFile) -> Result<(), String>,
) -> CollectReport {
    let mut collector = Collector {
        bounds,
        is_cancelled,
        keep,
        entries: 0,
        full: false,
        is_stopped: false,
        collected: CollectReport::default(),
    };
    for path in outermost(wanted) {
        if collector.stops_at(path) {
            break;
        }
        match open(workspace, path, OFlags::PATH) {
            Ok(handle) => collector.start(workspace, &handle, path, path),
            Err(source) => collector.skip(path, read_error(&source)),
        }
    }
    let before = collector.collected.skipped_in_all();
    match open(
        workspace,
        ARTIFACTS_FOLDER,
        OFlags::PATH | OFlags::DIRECTORY,
    ) {
        Ok(handle) => collector.start(
            workspace,
            &handle,
            Path::new(ARTIFACTS_FOLDER),
            Path::new(""),
        ),
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
        Err(source) => collector.skip(Path::new(ARTIFACTS_FOLDER), read_error(&source)),
    }
    let is_whole = before == collector.collected.skipped_in_all() && !collector.full;
    collector.collected.folder_is_kept = is_whole;
    collector.collected
}

/// Whether `.artifacts` is certainly empty: one lookup, which a file system in memory answers at
/// once.
pub fn artifacts_are_empty(workspace: BorrowedFd<'_>) -> bool {
    let listed = Dir::from_fd(workspace)
        .open_dir(ARTIFACTS_FOLDER)
        .and_then(|folder| folder.is_empty());
    listed.unwrap_or(false)
}

/// The paths without those that lie below others, in the wanted order, so that no file is stored
/// twice. Sorted by name, a folder stands right before everything below it, so that comparing
/// neighbours is enough.
fn outermost(wanted: &[WorkspacePath]) -> impl Iterator<Item = &Path> {
    let mut sorted: Vec<(&Path, usize)> = wanted
        .iter()
        .enumerate()
        .map(|(at, path)| (path.as_path(), at))
        .collect();
    sorted.sort_unstable();
    sorted.dedup_by(|(path, _), (outer, _)| path.starts_with(*outer));
    sorted.sort_unstable_by_key(|(_, at)| *at);
    sorted.into_iter().map(|(path, _)| path)
}

struct Collector<'a> {
    bounds: CollectLimits,
    is_cancelled: &'a dyn Fn() -> bool,
    keep: &'a mut dyn FnMut(CollectedFile) -> Result<(), String>,
    entries: usize,
    /// A limit was reached: nothing more is visited.
    full: bool,
    /// The collection was cancelled.
    is_stopped: bool,
    collected: CollectReport,
}

impl Collector<'_> {
    /// Whether the collection was cancelled, which is reported once, with the next name.
    fn stops_at(&mut self, name: &Path) -> bool {
        if !self.is_stopped && (self.is_cancelled)() {
            (self.full, self.is_stopped) = (true, true);
            self.skip(name, "cancelled: this and the rest was not looked at");
        }
        self.is_stopped
    }

    /// Decides by an O_PATH handle: opening a FIFO would block, and opening a device can have side
    /// effects.
    fn start(&mut self, workspace: BorrowedFd<'_>, handle: &OwnedFd, path: &Path, name: &Path) {
        let found = match rustix::fs::fstat(handle) {
            Ok(found) => found,
            Err(source) => return self.skip(name, read_error(&source.into())),
        };
        let outcome = match kind(&found) {
            FileType::RegularFile => self.file(workspace, path, &found, name),
            FileType::Directory => self.walk(Dir::from_fd(handle), name),
            other => Err(format!("is {}", kind_name(other))),
        };
        if let Err(reason) = outcome {
            self.skip(name, reason);
        }
    }

    /// Visits everything in a folder, with names below `top`.
    fn walk(&mut self, folder: Dir<&OwnedFd>, top: &Path) -> Result<(), String> {
        let bounds = WalkBounds {
            entries: self.bounds.entries.saturating_sub(self.entries),
            depth: self.bounds.depth,
            // A file system that the host mounts there during the run is not the program's.
            one_mount: top.as_os_str().is_empty(),
            ..WalkBounds::default()
        };
        let mut walk = folder.walk(bounds).map_err(|source| read_error(&source))?;
        while let Some(found) = walk.next()
            && !self.full
        {
            match found {
                Ok(entry) => {
                    if self.stops_at(&top.join(&entry.path)) {
                        break;
                    }
                    self.entries += 1;
                    self.visit(&walk, &entry, &top.join(&entry.path));
                }
                Err(WalkError::Read { path, source }) => {
                    self.skip(&top.join(path), read_error(&source));
                }
                Err(WalkError::TooDeep { path, depth }) => {
                    self.skip(&top.join(path), format!("lies deeper than {depth} folders"));
                }
                Err(WalkError::TooMany { path, .. }) => {
                    self.full = true;
                    let most = self.bounds.entries;
                    let reason = format!("more than {most} entries: the rest was not looked at");
                    self.skip(&top.join(path), reason);
                }
            }
        }
        Ok(())
    }

    fn visit(&mut self, walk: &Walk, entry: &WalkEntry, name: &Path) {
        let outcome = match entry.kind() {
            FileType::RegularFile => match walk.parent() {
                Ok(parent) => self.file(parent.as_fd(), Path::new(entry.name()), &entry.stat, name),
                Err(source) => Err(read_error(&source)),
            },
            FileType::Directory => Ok(()),
            other => Err(format!("is {}", kind_name(other))),
        };
        if let Err(reason) = outcome {
            self.skip(name, reason);
        }
    }

    /// Passes one file to `keep`; the error is the reason for skipping it.
    fn file(
        &mut self,
        parent: BorrowedFd<'_>,
        path: &Path,
        seen: &Stat,
        name: &Path,
    ) -> Result<(), String> {
        let name = WorkspacePath::new(name).map_err(|bad| bad.why.to_owned())?;
        if self.collected.files >= self.bounds.files {
            self.full = true;
            return Err(format!("{} files are kept, and no more", self.bounds.files));
        }
        let (file, size_bytes) =
            open_seen(parent, path, seen).map_err(|source| read_error(&source))?;
        if let Some(reason) = self.too_large(size_bytes) {
            return Err(reason);
        }
        (self.keep)(CollectedFile {
            name,
            size_bytes,
            contents: file.take(size_bytes),
        })?;
        self.collected.files += 1;
        self.collected.bytes += size_bytes;
        Ok(())
    }

    fn too_large(&self, size_bytes: u64) -> Option<String> {
        let CollectLimits {
            file_bytes,
            total_bytes,
            ..
        } = self.bounds;
        if size_bytes > file_bytes {
            return Some(format!(
                "has {size_bytes} bytes, more than the {file_bytes} that are kept of a file"
            ));
        }
        let fits = self
            .collected
            .bytes
            .checked_add(size_bytes)
            .is_some_and(|sum| sum <= total_bytes);
        (!fits).then(|| {
            format!("has {size_bytes} bytes, and no more than {total_bytes} are kept in all")
        })
    }

    fn skip(&mut self, name: &Path, reason: impl Into<String>) {
        // That a limit was reached is always listed.
        if self.collected.skipped.len() < self.bounds.listed || self.full {
            self.collected.skipped.push(SkippedFile {
                name: display_path(name),
                reason: reason.into(),
            })
        } else {
            self.collected.more_skipped += 1
        }
    }
}

/// Opens the regular file that was seen before; returns it and its size.
pub(crate) fn open_seen(
    parent: BorrowedFd<'_>,
    path: &Path,
    seen: &Stat,
) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(parent, path, flags)?);
    let opened = rustix::fs::fstat(&file)?;
    let same = (opened.st_dev, opened.st_ino) == (seen.st_dev, seen.st_ino);
    if same && kind(&opened) == FileType::RegularFile {
        Ok((file, u64::try_from(opened.st_size).unwrap_or(u64::MAX)))
    } else {
        Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "was replaced while it was being opened",
        ))
    }
}

/// Opens a path beneath `folder` through no symbolic link. A new file is readable by its owner
/// only.
pub(crate) fn open(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    Dir::from_fd(folder).open_at(path, flags, Mode::RUSR | Mode::WUSR, Lookup::NoLinks)
}

pub(crate) fn read_error(source: &io::Error) -> String {
    match Errno::from_io_error(source) {
        Some(Errno::NOENT) => "was not there".to_owned(),
        Some(Errno::LOOP) => "leads through a symbolic link".to_owned(),
        Some(Errno::NOTDIR) => {
            "is not a folder, or leads through something that is none".to_owned()
        }
        None => source.to_string(),
        Some(_) => format!("cannot be read: {source}"),
    }
}

pub(crate) fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown kind",
    }
}

pub(crate) fn display_path(name: &Path) -> String {
    name.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
