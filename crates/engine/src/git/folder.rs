//! The shadow folder in the state: `STATE/git/RUN`, locked while its run goes on. A sweep removes
//! what a crash left; a folder with commits that could not be imported stays for [`RETENTION`].

use super::{journal, resume};
use crate::{files, workspaces};
use ::git::snapshot::make_module;
use rustix::{
    fs::{AtFlags, CWD, FlockOperation, Mode, OFlags},
    io::Errno,
};
use spec::Id;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// The folder of shadow folders in the state.
const FOLDERS: &str = "git";
/// The part that is mounted. The folder around it and its lock are accessible to Airlock only.
const SHOWN: &str = "git";
/// An empty folder, to cover folders that mean nothing inside.
const EMPTY: &str = "empty";
/// Marks a folder with commits that were not imported.
const KEPT_MARK: &str = "kept";
/// How long such a folder stays.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// A shadow folder in use.
#[derive(Debug)]
pub(super) struct GitFolder {
    folders: OwnedFd,
    name: String,
    path: PathBuf,
    /// Held for its lock.
    locked: OwnedFd,
    shown: OwnedFd,
}

impl GitFolder {
    pub(super) fn make(state: &Path, run: &Id) -> io::Result<GitFolder> {
        let folders = open_folders(state, true)?;
        // An earlier run of that name may have left its folder.
        let names = [run.to_string(), format!("{run}-{}", crate::fresh_id())];
        let made = names.into_iter().find_map(|name| {
            let locked = make_locked(&folders, &name);
            match locked {
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => None,
                locked => Some(locked.map(|locked| (name, locked))),
            }
        });
        let (name, locked) = made.unwrap_or_else(|| Err(Errno::EXIST.into()))?;
        rustix::fs::mkdirat(&locked, SHOWN, Mode::from_raw_mode(0o700))?;
        let shown = files::open(&locked, SHOWN, FOLDER)?;
        let path = state.join(FOLDERS).join(&name);
        Ok(GitFolder {
            folders,
            name,
            path,
            locked,
            shown,
        })
    }

    /// Reopens the folder of a run that has ended, if it exists; first completes or undoes an
    /// interrupted import.
    pub(super) fn reopen(state: &Path, name: &str) -> io::Result<Option<GitFolder>> {
        let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let folders = match open_folders(state, false) {
            Err(gone) if is_gone(&gone) => return Ok(None),
            folders => folders?,
        };
        let locked = match files::open(&folders, name, FOLDER) {
            Err(gone) if is_gone(&gone) => return Ok(None),
            locked => locked?,
        };
        match rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other(
                    "its run has not ended, or somebody is at it",
                ));
            }
            locked => locked?,
        }
        if rustix::fs::fstat(&locked)?.st_nlink == 0 {
            return Ok(None);
        }
        journal::recover(locked.as_fd())?;
        let shown = files::open(&locked, SHOWN, FOLDER)?;
        Ok(Some(GitFolder {
            folders,
            name: name.to_owned(),
            path: state.join(FOLDERS).join(name),
            locked,
            shown,
        }))
    }

    /// The path of the mounted part.
    pub(super) fn shown(&self) -> PathBuf {
        self.path.join(SHOWN)
    }

    /// The path of an empty folder, which is made when it is needed.
    pub(super) fn empty(&self) -> io::Result<PathBuf> {
        files::make_folder(&self.locked, EMPTY.as_ref(), None)?;
        Ok(self.path.join(EMPTY))
    }

    /// The path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the git folder of one repository and sets its owner.
    pub(super) fn place(&self, place: &str, owner: Option<(u32, u32)>) -> io::Result<OwnedFd> {
        files::set_owner(&self.shown, owner)?;
        make_module(self.shown.as_fd(), place, owner)
    }

    /// Opens the git folder of one repository after the program ran, which may have put anything
    /// there.
    pub(super) fn open(&self, place: &str) -> io::Result<OwnedFd> {
        let place = if place.is_empty() { "." } else { place };
        files::open(&self.shown, place, FOLDER)
    }

    /// Writes a file that the program does not see in the mounted part; returns its path.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        write(&self.locked, name, bytes)?;
        Ok(self.path.join(name))
    }

    /// Replaces a folder that the program does not see with these files; returns its path.
    pub(super) fn write_input(&self, name: &str, all: &[(&str, &[u8])]) -> io::Result<PathBuf> {
        match workspaces::remove_tree(&self.locked, name.as_ref()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let top = files::make_folder(&self.locked, name.as_ref(), None)?;
        let top = files::open(&top, ".", FOLDER)?;
        for (path, bytes) in all {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let folder = make_module(top.as_fd(), folder, None)?;
            write(&folder, name, bytes)?;
        }
        Ok(self.path.join(name))
    }

    /// The folder around the mounted part.
    pub(super) fn around(&self) -> &OwnedFd {
        &self.locked
    }

    /// Writes the entry of the folder to disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.folders)?)
    }

    /// The folder for the journal.
    pub(super) fn journal(&self) -> BorrowedFd<'_> {
        self.locked.as_fd()
    }

    /// Marks the folder and keeps it.
    pub(super) fn keep(self) -> io::Result<PathBuf> {
        match write(&self.locked, KEPT_MARK, b"") {
            // It was marked by an earlier attempt.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(self.path),
        }
    }

    /// Removes the folder, unless its journal is open: then the next sweep completes it.
    pub(super) fn remove(self) -> io::Result<()> {
        match journal::is_open(self.journal()) {
            true => Ok(()),
            false => workspaces::remove_tree(&self.folders, self.name.as_ref()),
        }
    }
}

/// World-readable: the folder around it is closed to other users.
fn write(folder: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = File::from(files::open(folder, name, flags)?);
    file.write_all(bytes)?;
    Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?)
}

fn open_folders(state: &Path, make: bool) -> io::Result<OwnedFd> {
    let path = state.join(FOLDERS);
    if make {
        match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rustix::fs::open(&path, FOLDER, Mode::empty())?)
}

/// Creates and locks a folder. A sweep may remove it before it is locked.
fn make_locked(folders: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    for _ in 0..16 {
        rustix::fs::mkdirat(folders, name, Mode::RWXU)?;
        let folder = match files::open(folders, name, FOLDER) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
            folder => folder?,
        };
        rustix::fs::flock(&folder, FlockOperation::LockShared)?;
        if rustix::fs::fstat(&folder)?.st_nlink > 0 {
            return Ok(folder);
        }
    }
    Err(Errno::AGAIN.into())
}

/// The runs that have ended and whose folders have commits that were not imported.
pub(super) fn kept(state: &Path) -> Vec<Id> {
    let Ok(folders) = open_folders(state, false) else {
        return Vec::new();
    };
    let names = workspaces::names_in(&folders).unwrap_or_default();
    let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
    let is_one = |id: &Id| {
        let folder = files::open(&folders, id.as_str(), FOLDER);
        folder.is_ok_and(|folder| is_kept(&folder))
    };
    ids.filter(is_one).collect()
}

/// Removes folders that nobody has locked and that need not be kept; returns errors.
pub(crate) fn sweep(state: &Path) -> Vec<String> {
    let Ok(folders) = open_folders(state, false) else {
        return Vec::new();
    };
    let names = match workspaces::names_in(&folders) {
        Ok(names) => names,
        Err(error) => return vec![format!("the git folders of runs cannot be listed: {error}")],
    };
    let problem = |name: &OsString| {
        let swept = sweep_one(&folders, name).err()?;
        Some(format!(
            "the git folder of the run `{}`: {swept}",
            name.display()
        ))
    };
    names.iter().filter_map(problem).collect()
}

fn sweep_one(folders: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let folder = match files::open(folders, name, FOLDER) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        folder => folder?,
    };
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => {
            journal::recover(folder.as_fd())?;
            let was_kept =
                rustix::fs::statat(&folder, KEPT_MARK, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            if !was_kept && has_commits(&folder) {
                write(&folder, KEPT_MARK, b"")?;
            }
            match is_kept(&folder) {
                true => Ok(()),
                false => workspaces::remove_tree(folders, name),
            }
        }
    }
}

/// Whether a killed run left objects that were not imported. The host's objects are elsewhere.
fn has_commits(folder: &OwnedFd) -> bool {
    let names = |path: &str| -> Vec<OsString> {
        let listed = files::open(folder, format!("{SHOWN}/{path}"), FOLDER);
        listed
            .and_then(|folder| workspaces::names_in(&folder))
            .unwrap_or_default()
    };
    let is_object = |name: &OsString| name.len() == 2;
    // Whatever refers to them: a branch, a stash, a detached HEAD, a rebase in progress.
    resume::places(folder).iter().any(|place| {
        let of = |path: &str| names(&format!("./{place}/{path}"));
        !of("objects/pack").is_empty() || of("objects").iter().any(is_object)
    })
}

fn is_kept(folder: &OwnedFd) -> bool {
    let Ok(mark) = rustix::fs::statat(folder, KEPT_MARK, AtFlags::SYMLINK_NOFOLLOW) else {
        return false;
    };
    let now = crate::record::now().0 / 1000;
    now.saturating_sub(mark.st_mtime as u64) < RETENTION.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_is_swept_unless_it_is_to_be_kept() {
        let state = std::env::temp_dir().join(format!("airlock-git-{}", std::process::id()));
        std::fs::create_dir_all(&state).unwrap();
        let make = |name: &str| GitFolder::make(&state, &Id::new(name).unwrap()).unwrap();
        let (held, kept, dead) = (make("held"), make("kept"), make("dead"));
        // The commits of this run are not on the host yet; a folder without commits is not kept.
        let (killed, idle) = (make("killed"), make("idle"));
        let write = |folder: &GitFolder, below: &str| {
            let path = folder.shown().join(below);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
            folder.path().to_owned()
        };
        let (killed_at, idle_at) = (
            write(&killed, "objects/ab/cd"),
            write(&idle, "refs/remotes/x"),
        );
        drop((killed, idle));
        let again = make("held");
        assert_ne!(again.path(), held.path());
        again.remove().unwrap();
        let kept = kept.keep().unwrap();
        let path = dead.path().to_owned();
        drop(dead);
        assert_eq!(sweep(&state), Vec::<String>::new());
        assert!(held.path().exists() && kept.exists() && !path.exists());
        assert!(killed_at.join(KEPT_MARK).exists() && !idle_at.exists());
        held.remove().unwrap();
        std::fs::remove_dir_all(state).unwrap();
    }
}
