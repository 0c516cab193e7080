//! Files into a workspace before a run and out of it afterwards.
//!
//! What lies in a workspace may be hostile, and a mounted one may change while we look: everything
//! goes by handle, beneath the workspace and through no symbolic link; only regular files are read.

use crate::Rights;
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

/// What lies here at the end is kept, under its name relative to this folder.
const ARTIFACTS: &str = ".artifacts";

/// Why an input could not be put into the workspace.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The workspace did not take it.
    #[error("cannot put `{}` into the workspace", shown(name.as_path()))]
    Write {
        /// Its name inside.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It could not be read.
    #[error("cannot read what should become `{}` in the workspace", shown(name.as_path()))]
    Read {
        /// Its name inside.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is too large.
    #[error("the input `{}` is larger than {limit_bytes} bytes", shown(name.as_path()))]
    TooLarge {
        /// Its name inside.
        name: WorkspacePath,
        /// What it may have.
        limit_bytes: u64,
    },
    /// It may not be written.
    #[error("the input `{}` cannot be put into the workspace: {why}", shown(name.as_path()))]
    Protected {
        /// Its name inside.
        name: WorkspacePath,
        /// Why not.
        why: String,
    },
    /// Something else has that name.
    #[error("the input `{}` cannot replace what is there: it is {what}", shown(name.as_path()))]
    InTheWay {
        /// Its name inside.
        name: WorkspacePath,
        /// What is there.
        what: &'static str,
    },
}

/// How much is kept at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Files.
    pub files: usize,
    /// Directory entries looked at.
    pub entries: usize,
    /// Folders within folders, which is also the number of descriptors open at a time.
    pub depth: usize,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Skipped names that are told one by one.
    pub told: usize,
}

/// A file to be kept.
#[derive(Debug)]
pub struct Found {
    /// What it is to be called.
    pub name: WorkspacePath,
    /// Its size when it was opened.
    pub size_bytes: u64,
    /// Its contents: no more than that size, even if it grows.
    pub contents: io::Take<File>,
}

/// What was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name, made printable.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// What came of collecting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// How many files were kept.
    pub files: usize,
    /// Their sizes together.
    pub bytes: u64,
    /// What was not kept, and why.
    pub skipped: Vec<Skipped>,
    /// How many more were skipped than are told.
    pub more_skipped: u64,
    /// Whether all that lay in `.artifacts` was kept.
    pub folder_is_kept: bool,
}

impl Collected {
    fn skipped_in_all(&self) -> u64 {
        self.skipped.len() as u64 + self.more_skipped
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            files: 10_000,
            entries: 100_000,
            depth: 64,
            file_bytes: 1 << 30,
            total_bytes: 4 << 30,
            told: 100,
        }
    }
}

/// Whether the owner of a folder can write it; also where that cannot be told, which whoever shows it will see.
pub(crate) fn is_writable(folder: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(folder, flags, Mode::empty()) else {
        return true;
    };
    let looked = Rights::of_owner(folder.as_fd()).and_then(|rights| {
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

/// Writes an input into the workspace, all of it or nothing; a regular file of that name is replaced.
/// The file and the folders made for it get the owner.
pub fn put_input(
    workspace: BorrowedFd<'_>,
    name: &WorkspacePath,
    source: &mut dyn Read,
    owner: Option<(u32, u32)>,
    limit_bytes: u64,
    rights: &Rights,
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
    let what = rights.act(|| match rights.keeps_what_is_there() {
        true => Ok(Dir::from_fd(&folder)
            .stat(&last)?
            .map(|_| "the mounted folder's own")),
        false => in_the_way(&folder, &last),
    });
    if let Some(what) = what.map_err(failed)? {
        return Err(InputError::InTheWay {
            name: name.clone(),
            what,
        });
    }
    let draft = rights.act(|| Draft::new(&folder)).map_err(failed)?;
    let put = copy(name, source, &draft.file, limit_bytes).and_then(|()| {
        let publish =
            || finish(&draft.file, owner).and_then(|()| draft.put(&folder, &last, rights));
        rights.act(publish).map_err(failed)
    });
    if put.is_err() {
        // The error before it is the one to tell.
        _ = rights.act(|| {
            draft.discard(&folder);
            Ok(())
        });
    }
    put
}

/// The folder that is to hold the last name of `path`, and that name.
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
    // Somebody may have put another folder there meanwhile: only a new one of ours is given away.
    if is_new(&folder)? {
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
        give(&folder, owner)?;
    }
    Ok(folder)
}

/// Whether a folder is ours and nothing is in it: whoever had it put in place of the one that was made gets nothing.
pub(crate) fn is_new(folder: &OwnedFd) -> io::Result<bool> {
    let ours = rustix::fs::fstat(folder)?.st_uid == rustix::process::geteuid().as_raw();
    Ok(ours && Dir::from_fd(folder).is_empty()?)
}

pub(crate) fn in_the_way(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<&'static str>> {
    let found = Dir::from_fd(folder).stat(name)?.map(|found| kind(&found));
    Ok(found
        .filter(|kind| *kind != FileType::RegularFile)
        .map(called))
}

/// An input in the making. It has no name where the file system can do that: then a crash leaves nothing.
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
                let (name, file) = under_new_name(make)?;
                Ok(Draft {
                    file: File::from(file),
                    name: Some(name),
                })
            }
        }
    }

    /// Makes it visible. Replaces the name itself, never what a link of that name points at.
    pub(crate) fn publish(&self, folder: &OwnedFd, last: &OsStr) -> io::Result<()> {
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link =
            |name: &OsStr| rustix::fs::linkat(CWD, &file, folder, name, AtFlags::SYMLINK_FOLLOW);
        let (name, linked) = match &self.name {
            Some(name) => (name.clone(), false),
            None => match link(last) {
                // Only a name can replace a name.
                Err(Errno::EXIST) => (under_new_name(|name| Ok(link(name.as_ref())?))?.0, true),
                done => return Ok(done?),
            },
        };
        let moved = rustix::fs::renameat(folder, &name, folder, last);
        if moved.is_err() && linked {
            let _ = rustix::fs::unlinkat(folder, &name, AtFlags::empty());
        }
        Ok(moved?)
    }

    /// The same, but where nothing may be replaced.
    fn put(&self, folder: &OwnedFd, last: &OsStr, rights: &Rights) -> io::Result<()> {
        if !rights.keeps_what_is_there() {
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

/// Does something with a name that is free.
fn under_new_name<T>(mut act: impl FnMut(&str) -> io::Result<T>) -> io::Result<(String, T)> {
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

pub(crate) fn finish(file: &File, owner: Option<(u32, u32)>) -> io::Result<()> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(0o644))?;
    give(file, owner)
}

pub(crate) fn give(file: impl AsFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((user, group)) = owner else {
        return Ok(());
    };
    Ok(rustix::fs::fchown(
        file,
        Some(Uid::from_raw(user)),
        Some(Gid::from_raw(group)),
    )?)
}

/// Hands every file that is to be kept to `keep`, one at a time: the wanted files, what lies in the
/// wanted folders, and what lies in `.artifacts`. What `keep` refuses is skipped with its reason.
pub fn collect(
    workspace: BorrowedFd<'_>,
    wanted: &[WorkspacePath],
    bounds: Bounds,
    keep: &mut dyn FnMut(Found) -> Result<(), String>,
) -> Collected {
    let mut collecting = Collecting {
        bounds,
        keep,
        entries: 0,
        full: false,
        collected: Collected::default(),
    };
    for path in outermost(wanted) {
        match open(workspace, path, OFlags::PATH) {
            Ok(handle) => collecting.start(workspace, &handle, path, path),
            Err(source) => collecting.skip(path, why_not(&source)),
        }
    }
    let before = collecting.collected.skipped_in_all();
    match open(workspace, ARTIFACTS, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(handle) => collecting.start(workspace, &handle, Path::new(ARTIFACTS), Path::new("")),
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
        Err(source) => collecting.skip(Path::new(ARTIFACTS), why_not(&source)),
    }
    let is_whole = before == collecting.collected.skipped_in_all() && !collecting.full;
    collecting.collected.folder_is_kept = is_whole;
    collecting.collected
}

/// Whether nothing lies in `.artifacts`, for certain: one look, which a file system in memory answers at once.
pub fn artifacts_are_empty(workspace: BorrowedFd<'_>) -> bool {
    let listed = Dir::from_fd(workspace)
        .open_dir(ARTIFACTS)
        .and_then(|folder| folder.is_empty());
    listed.unwrap_or(false)
}

/// Without the paths that lie below others: nothing is kept twice.
fn outermost(wanted: &[WorkspacePath]) -> impl Iterator<Item = &Path> {
    let covered = move |at: usize, path: &Path| {
        wanted.iter().enumerate().any(|(other_at, other)| {
            path.starts_with(other.as_path()) && (path != other.as_path() || other_at < at)
        })
    };
    wanted
        .iter()
        .enumerate()
        .filter(move |(at, path)| !covered(*at, path.as_path()))
        .map(|(_, p)| p.as_path())
}

struct Collecting<'a> {
    bounds: Bounds,
    keep: &'a mut dyn FnMut(Found) -> Result<(), String>,
    entries: usize,
    /// A bound was reached: nothing more is looked at.
    full: bool,
    collected: Collected,
}

impl Collecting<'_> {
    /// Decides on a handle that opens nothing: opening a FIFO would wait, a device could do anything.
    fn start(&mut self, workspace: BorrowedFd<'_>, handle: &OwnedFd, path: &Path, name: &Path) {
        let found = match rustix::fs::fstat(handle) {
            Ok(found) => found,
            Err(source) => return self.skip(name, why_not(&source.into())),
        };
        let outcome = match kind(&found) {
            FileType::RegularFile => self.file(workspace, path, &found, name),
            FileType::Directory => self.walk(Dir::from_fd(handle), name),
            other => Err(format!("is {}", called(other))),
        };
        if let Err(reason) = outcome {
            self.skip(name, reason);
        }
    }

    /// Looks at everything in a folder, whose files are called `top` before their own name.
    fn walk(&mut self, folder: Dir<&OwnedFd>, top: &Path) -> Result<(), String> {
        let bounds = WalkBounds {
            entries: self.bounds.entries.saturating_sub(self.entries),
            depth: self.bounds.depth,
            // What the host mounts there while the program runs was never the program's to keep.
            one_mount: top.as_os_str().is_empty(),
            ..WalkBounds::default()
        };
        let mut walk = folder.walk(bounds).map_err(|source| why_not(&source))?;
        while let Some(found) = walk.next()
            && !self.full
        {
            match found {
                Ok(entry) => {
                    self.entries += 1;
                    self.visit(&walk, &entry, &top.join(&entry.path));
                }
                Err(WalkError::Read { path, source }) => {
                    self.skip(&top.join(path), why_not(&source));
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
                Err(source) => Err(why_not(&source)),
            },
            FileType::Directory => Ok(()),
            other => Err(format!("is {}", called(other))),
        };
        if let Err(reason) = outcome {
            self.skip(name, reason);
        }
    }

    /// Hands one file over; the error is the reason why not.
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
            open_seen(parent, path, seen).map_err(|source| why_not(&source))?;
        if let Some(reason) = self.too_large(size_bytes) {
            return Err(reason);
        }
        (self.keep)(Found {
            name,
            size_bytes,
            contents: file.take(size_bytes),
        })?;
        self.collected.files += 1;
        self.collected.bytes += size_bytes;
        Ok(())
    }

    fn too_large(&self, size_bytes: u64) -> Option<String> {
        let Bounds {
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
        // That a bound was reached is always told.
        match self.collected.skipped.len() < self.bounds.told || self.full {
            true => self.collected.skipped.push(Skipped {
                name: shown(name),
                reason: reason.into(),
            }),
            false => self.collected.more_skipped += 1,
        }
    }
}

/// Opens the regular file that was seen at this place, or says why not; also its size.
pub(crate) fn open_seen(
    parent: BorrowedFd<'_>,
    path: &Path,
    seen: &Stat,
) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(parent, path, flags)?);
    let opened = rustix::fs::fstat(&file)?;
    let same = (opened.st_dev, opened.st_ino) == (seen.st_dev, seen.st_ino);
    match same && kind(&opened) == FileType::RegularFile {
        true => Ok((file, u64::try_from(opened.st_size).unwrap_or(u64::MAX))),
        false => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "was replaced while it was being opened",
        )),
    }
}

/// Opens beneath `folder`, through no symbolic link; a new file is nobody else's to read yet.
pub(crate) fn open(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    Dir::from_fd(folder).open_at(path, flags, Mode::RUSR | Mode::WUSR, Lookup::NoLinks)
}

pub(crate) fn why_not(source: &io::Error) -> String {
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

pub(crate) fn called(kind: FileType) -> &'static str {
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

pub(crate) fn shown(name: &Path) -> String {
    name.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
