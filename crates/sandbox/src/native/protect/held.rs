//! Files that were taken out of a workspace: a folder of the state for each run.
//!
//! ```text
//! STATE/held/RUN/start       while the run is not cleaned up; locked by the processes of the run
//! STATE/held/RUN/list        what was taken out, and why: one JSON line each, written before the move
//! STATE/held/RUN/0, 1, …     the files themselves
//! ```

use super::{
    beneath,
    snapshot::{self, WorkspaceSnapshot},
};
use ::fs::{Dir, Lookup, RemoveError, RemoveOptions};
use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Stat, Uid},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use spec::{HeldBackPath, HoldReason, Id};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
};

/// The folder of all runs, in the state folder.
pub(super) const HELD: &str = "held";
const START: &str = "start";
const NEW: &str = "start.new";
const LIST: &str = "list";
/// Prefix of a file that is restored from another disk, until it is complete. Names with it belong
/// to Airlock.
const DRAFT: &str = ".airlock-commit-held-";
/// A folder that is being removed.
const REMOVED: &str = "removed";
/// How often creating the folder of a run is tried.
const MAX_TRIES: u32 = 100;
/// Files that are kept of one run; later ones are removed.
const MAX_THINGS: usize = 10_000;
/// Bytes that are copied where the state is on another disk; larger files are removed.
const MAX_COPIED_BYTES: u64 = 1 << 30;
/// Ten thousand lines of long paths, as numbers.
const MAX_LIST_BYTES: u64 = 1 << 28;
/// Bytes of a snapshot: its protected names, and some 150 bytes for each link.
pub(super) const MAX_START_BYTES: usize = 1 << 27;

/// One file that was taken out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldThing {
    /// Its path: bytes, because programs may choose any.
    pub path: Vec<u8>,
    /// The reason.
    pub why: HoldReason,
    /// The path of the workspace.
    pub workspace: Vec<u8>,
}

/// The folder of one run.
#[derive(Debug)]
pub(super) struct HeldFolder {
    path: PathBuf,
    folder: OwnedFd,
    /// Locked until the run is cleaned up.
    pub(super) lock: OwnedFd,
    things: Vec<HeldThing>,
    /// Bytes that may still be copied.
    room: u64,
}

impl HeldFolder {
    /// The run under which these files are listed.
    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Creates the folder of a run, with its snapshot.
    pub(super) fn create(state: &Path, run: &Id, start: &str) -> io::Result<HeldFolder> {
        // After a crash it could not be read whole.
        if start.len() > MAX_START_BYTES {
            return Err(io::Error::other("the workspace has too many links"));
        }
        let held = state.join(HELD);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&held)?;
        for _ in 0..MAX_TRIES {
            match HeldFolder::try_to_create(&held, run, start) {
                // Until it is locked, a sweep of another run takes it for the leftover of a crash.
                Err(swept) if swept.kind() == io::ErrorKind::NotFound => {}
                Err(swept) if swept.kind() == io::ErrorKind::WouldBlock => {}
                created => return created,
            }
        }
        Err(io::Error::other("sweeps of other runs were always faster"))
    }

    fn try_to_create(held: &Path, run: &Id, start: &str) -> io::Result<HeldFolder> {
        let path = make_folder(held, run)?;
        let folder = open_own(&path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mut lock = File::from(beneath::open(&folder, NEW, flags)?);
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        lock.write_all(start.as_bytes())?;
        rustix::fs::renameat(&folder, NEW, &folder, START)?;
        Ok(HeldFolder {
            path,
            folder,
            lock: lock.into(),
            things: Vec::new(),
            room: MAX_COPIED_BYTES,
        })
    }

    /// The folder of a run whose owner is dead, with its snapshot; none if the owner lives or the
    /// run is cleaned up.
    pub(super) fn take_over(path: &Path) -> io::Result<Option<(HeldFolder, String)>> {
        let folder = open_own(path)?;
        let lock = match beneath::open(&folder, START, OFlags::RDWR) {
            Ok(lock) => lock,
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {
                remove_unborn(path, &folder);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        let mut text = String::new();
        File::from(lock.try_clone()?)
            .take(MAX_START_BYTES as u64)
            .read_to_string(&mut text)?;
        let things = read_list(&folder)?;
        let folder = HeldFolder {
            path: path.to_owned(),
            folder,
            lock,
            things,
            room: MAX_COPIED_BYTES,
        };
        Ok(Some((folder, text)))
    }

    /// Takes a name out of a folder of the workspace, whatever file it is by now, without following
    /// a link.
    pub(super) fn take(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &OsStr,
        thing: HeldThing,
    ) -> io::Result<()> {
        let number = self.things.len();
        if number >= MAX_THINGS {
            return remove(folder, name);
        }
        // Listed before the move, so that a crash loses no file.
        self.append(&thing)?;
        self.things.push(thing);
        self.move_out(folder, name, &number.to_string())
    }

    /// Removes a folder that a run created: it is moved away first, where no other process can
    /// exchange it.
    pub(super) fn remove_folder(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &OsStr,
        thing: HeldThing,
    ) -> io::Result<()> {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(folder, name, &self.folder, REMOVED, flags) {
            Ok(()) => {}
            Err(Errno::XDEV) => return remove(folder, name),
            Err(_) => return self.take(folder, name, thing),
        }
        let own = self.folder.try_clone()?;
        match beneath::look(&own, REMOVED)?.map(|found| beneath::kind(&found)) {
            Some(FileType::Directory) => remove(own.as_fd(), OsStr::new(REMOVED)),
            _ => self.take(own.as_fd(), OsStr::new(REMOVED), thing),
        }
    }

    /// A file that cannot be moved is copied; one that cannot be copied is removed all the same.
    fn move_out(&mut self, folder: BorrowedFd<'_>, name: &OsStr, to: &str) -> io::Result<()> {
        let renamed =
            || rustix::fs::renameat_with(folder, name, &self.folder, to, RenameFlags::NOREPLACE);
        match renamed() {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ACCESS | Errno::PERM) => {
                make_changeable(folder, name);
                if renamed().is_ok() {
                    return Ok(());
                }
            }
            // Another disk, or a mount point.
            Err(_) => {}
        }
        let own = self.folder.as_fd();
        if let Err(why) = copy_tree((folder, name), (own, to), &mut self.room) {
            // Half a copy is of no use.
            remove(self.folder.as_fd(), OsStr::new(to))?;
            return set_aside(folder, name, to, &why);
        }
        remove(folder, name)
    }

    fn append(&self, thing: &HeldThing) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        let mut line = serde_json::to_vec(thing)?;
        line.push(b'\n');
        File::from(beneath::open(&self.folder, LIST, flags)?).write_all(&line)
    }

    /// What was taken out of a workspace whose cleanup is incomplete: the next sweep continues.
    pub(super) fn leave(self) -> Vec<HeldBackPath> {
        self.things.iter().map(held_back).collect()
    }

    /// Whether another run that is not cleaned up has the same workspace.
    pub(super) fn is_shared(&self, workspace: &Path) -> bool {
        let Some(state) = self.path.parent().and_then(Path::parent) else {
            return false;
        };
        // An unclear answer counts as yes.
        unsettled(state, workspace).map_or(true, |others| others.len() > 1)
    }

    /// The cleanup is complete: what was taken out is the user's now; an empty folder is removed.
    pub(super) fn close(self) -> io::Result<Vec<HeldBackPath>> {
        // Left by a removal that was interrupted.
        remove(self.folder.as_fd(), OsStr::new(REMOVED))?;
        rustix::fs::unlinkat(&self.folder, START, AtFlags::empty())?;
        if self.things.is_empty() {
            fs::remove_dir(&self.path)?;
        }
        // Closing is not enough: the sandbox may still have a duplicate.
        rustix::fs::flock(&self.lock, FlockOperation::Unlock)?;
        Ok(self.things.iter().map(held_back).collect())
    }
}

/// Copies files, folders and links to another disk, with their permissions, and as root with their
/// owners, within a byte limit.
fn copy_tree(
    (from, name): (BorrowedFd<'_>, &OsStr),
    (to, target): (BorrowedFd<'_>, &str),
    room: &mut u64,
) -> io::Result<()> {
    let mut pending = vec![(PathBuf::from(name), PathBuf::from(target))];
    while let Some((source, target)) = pending.pop() {
        let handle = Dir::from_fd(from).open_at(
            &source,
            OFlags::PATH,
            Mode::empty(),
            Lookup::NoLinksOneMount,
        )?;
        let found = rustix::fs::fstat(&handle)?;
        match beneath::kind(&found) {
            FileType::Directory => {
                copy_folder(&found, to, &target)?;
                let folder = beneath::open_folder(from, &source)?;
                for name in names_in(&folder)? {
                    pending.push((source.join(&name), target.join(&name)));
                }
            }
            FileType::Symlink => {
                let text = rustix::fs::readlinkat(&handle, "", Vec::new())?;
                rustix::fs::symlinkat(text, to, &target)?;
            }
            FileType::RegularFile => {
                let source = beneath::open(from, &source, OFlags::RDONLY | OFlags::NONBLOCK)?;
                *room -= copy_file(source, to, &target, *room)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Creates an empty folder like another one, writable for its owner.
fn copy_folder(found: &Stat, to: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    rustix::fs::mkdirat(to, target, Mode::RWXU)?;
    let made = beneath::open(to, target, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let is_ours = rustix::fs::fstat(&made)?.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours || !names_in(&made)?.is_empty() {
        return Err(io::Error::other("somebody put another folder in its place"));
    }
    take_after(&made, found, 0o700)
}

fn copy_file(source: OwnedFd, to: BorrowedFd<'_>, target: &Path, room: u64) -> io::Result<u64> {
    let found = rustix::fs::fstat(&source)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut target = File::from(beneath::open(to, target, flags)?);
    let most = room.saturating_add(1);
    let copied = io::copy(&mut File::from(source).take(most), &mut target)?;
    if copied > room {
        return Err(io::Error::other("it is too large to be kept"));
    }
    take_after(target.as_fd(), &found, 0)?;
    Ok(copied)
}

/// Gives a copy the owner of its original, if this process may, and its permissions, without set-id
/// bits.
fn take_after(copy: impl AsFd, found: &Stat, at_least: u32) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        rustix::fs::fchown(&copy, Some(user), Some(group))?;
    }
    let mode = Mode::from_raw_mode(found.st_mode & 0o777 | at_least);
    Ok(rustix::fs::fchmod(&copy, mode)?)
}

/// A file that can be neither moved nor copied stays in its folder, under a name that no tool
/// obeys.
fn set_aside(folder: BorrowedFd<'_>, name: &OsStr, to: &str, why: &io::Error) -> io::Result<()> {
    let aside = (0..1000).find_map(|number| {
        let aside = format!("airlock-held-{to}.{number}");
        let renamed =
            rustix::fs::renameat_with(folder, name, folder, &aside, RenameFlags::NOREPLACE);
        renamed.is_ok().then_some(aside)
    });
    let message = match aside {
        Some(aside) => format!("it could not be kept ({why}) and is called `{aside}` there now"),
        None => format!("it could not be kept ({why})"),
    };
    Err(io::Error::other(message))
}

fn held_back(thing: &HeldThing) -> HeldBackPath {
    HeldBackPath {
        path: String::from_utf8_lossy(&thing.path).into_owned(),
        why: thing.why,
    }
}

/// A new folder for a run of this id. An earlier run may have left one.
fn make_folder(held: &Path, run: &Id) -> io::Result<PathBuf> {
    let mut path = held.join(run.as_str());
    let mut number = 1;
    loop {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
                path = held.join(format!("{run}.{number}"));
            }
            made => return made.map(|()| path),
        }
    }
}

/// Removes what a crash left between creating the folder and its `start`, or between removing that
/// and the folder.
fn remove_unborn(path: &Path, folder: &OwnedFd) {
    let Ok(lock) = beneath::open(folder, NEW, OFlags::RDWR) else {
        // A folder that is not empty is the user's.
        _ = fs::remove_dir(path);
        return;
    };
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
        _ = rustix::fs::unlinkat(folder, NEW, AtFlags::empty());
        // A folder with a list is the user's.
        _ = fs::remove_dir(path);
    }
}

/// The snapshots of runs that are not cleaned up, of workspaces above or below this one.
pub(super) fn unsettled(state: &Path, workspace: &Path) -> io::Result<Vec<WorkspaceSnapshot>> {
    let mut starts = Vec::new();
    for path in folders(state)? {
        let file = open_own(&path).and_then(|folder| beneath::open(&folder, START, OFlags::RDONLY));
        let mut text = BufReader::new(match file {
            // CleanupResult by now, or a run that has not begun.
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
            file => File::from(file?).take(MAX_START_BYTES as u64),
        });
        let mut whole = String::new();
        text.read_line(&mut whole)?;
        let concerns = snapshot::workspace_of(&whole)
            .is_some_and(|other| other.starts_with(workspace) || workspace.starts_with(other));
        if concerns {
            text.read_to_string(&mut whole)?;
            // A damaged snapshot is reported by every sweep.
            starts.extend(WorkspaceSnapshot::parse(&whole));
        }
    }
    Ok(starts)
}

/// The folders of all runs.
pub(super) fn folders(state: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(state.join(HELD)) {
        Ok(entries) => entries,
        Err(none) if none.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths.collect()
}

/// What the runs of a state folder took out, by run.
pub fn held_lists(state: &Path) -> io::Result<Vec<(String, Vec<HeldThing>)>> {
    let mut lists = Vec::new();
    for path in folders(state)? {
        let Some(run) = path.file_name().and_then(OsStr::to_str) else {
            continue;
        };
        let things = open_own(&path).and_then(|folder| read_list(&folder))?;
        if !things.is_empty() {
            lists.push((run.to_owned(), things));
        }
    }
    lists.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(lists)
}

/// The path of a file in a run's list, if it still exists.
pub fn held_path(state: &Path, run: &str, place: usize) -> Option<PathBuf> {
    let path = state.join(HELD).join(run).join(place.to_string());
    Some(path).filter(|path| path.symlink_metadata().is_ok())
}

/// Puts a file back where it was, at its owner's request. Its path must be free.
pub fn take_back(state: &Path, run: &str, place: usize, thing: &HeldThing) -> io::Result<()> {
    let workspace = beneath::open_absolute(Path::new(OsStr::from_bytes(&thing.workspace)))?;
    let path = Path::new(OsStr::from_bytes(&thing.path));
    let parent = path.parent().unwrap_or(Path::new(""));
    let parent = beneath::open_folder(&workspace, parent)?;
    let folder = open_own(&state.join(HELD).join(run))?;
    let (from, to) = (place.to_string(), path.file_name().unwrap_or_default());
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(&folder, &from, &parent, to, flags) {
        Err(Errno::XDEV) => copy_back(&folder, &from, &parent, to),
        moved => Ok(moved?),
    }
}

/// The same from another disk. The file gets its name when it is complete.
fn copy_back(held: &OwnedFd, from: &str, parent: &OwnedFd, to: &OsStr) -> io::Result<()> {
    if beneath::look(parent, to)?.is_some() {
        return Err(Errno::EXIST.into());
    }
    let (from, draft) = (OsStr::new(from), format!("{DRAFT}{from}"));
    // Left by an interrupted attempt.
    remove(parent.as_fd(), draft.as_ref())?;
    let (source, mut room) = ((held.as_fd(), from), u64::MAX);
    let copied = copy_tree(source, (parent.as_fd(), &draft), &mut room);
    let copied = copied.and_then(|()| {
        rustix::fs::syncfs(parent)?;
        let flags = RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(
            parent, &draft, parent, to, flags,
        )?)
    });
    match copied {
        Ok(()) => remove(held.as_fd(), from),
        Err(why) => {
            remove(parent.as_fd(), draft.as_ref())?;
            Err(why)
        }
    }
}

/// Removes what was taken out at a run's end.
pub fn discard_held(state: &Path, run: &str) -> io::Result<()> {
    let held = open_own(&state.join(HELD))?;
    if beneath::look(&held, run)?.is_none() {
        return Err(io::Error::other("nothing is held back from this run"));
    }
    if state
        .join(HELD)
        .join(run)
        .join(START)
        .symlink_metadata()
        .is_ok()
    {
        return Err(io::Error::other(
            "the run has not ended, or is not swept yet",
        ));
    }
    remove(held.as_fd(), OsStr::new(run))
}

fn open_own(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A last line without a line end was cut by a crash: its move was not done.
fn read_list(folder: &OwnedFd) -> io::Result<Vec<HeldThing>> {
    let mut text = String::new();
    match beneath::open(folder, LIST, OFlags::RDONLY) {
        Ok(file) => {
            _ = File::from(file)
                .take(MAX_LIST_BYTES)
                .read_to_string(&mut text)?
        }
        Err(none) if none.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let whole = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    whole.map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// A folder without write permission, or in one, cannot be moved.
fn make_changeable(folder: BorrowedFd<'_>, name: &OsStr) {
    let add = |file: &OwnedFd| {
        let found = rustix::fs::fstat(file)?;
        beneath::set_mode(file, found.st_mode & 0o7777 | 0o700)
    };
    // Where the mode cannot be changed, the next attempt reports the error.
    _ = beneath::open(folder, ".", OFlags::PATH).and_then(|file| add(&file));
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    _ = beneath::open(folder, Path::new(name), flags).and_then(|file| add(&file));
}

fn names_in(folder: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Removes a name and all below it, following no link.
pub(super) fn remove(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let options = RemoveOptions {
        max_steps: usize::MAX,
        // What the host mounts there while the program runs is not the program's.
        one_mount: true,
        open_closed: true,
    };
    let removed = || Dir::from_fd(folder).remove_tree(name, options);
    match removed() {
        Err(RemoveError::Io(gone)) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(RemoveError::Io(denied)) if denied.kind() == io::ErrorKind::PermissionDenied => {
            make_changeable(folder, name);
            removed().map_err(io::Error::other)
        }
        other => other.map_err(io::Error::other),
    }
}
