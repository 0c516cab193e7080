//! Our git folder in the state: `STATE/git/RUN`, locked for as long as its run goes on. What a crash leaves is swept; what
//! could not be brought stays for [`KEPT_FOR`].

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
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// Where they are, in the state folder.
const FOLDERS: &str = "git";
/// What of one is shown inside. The folder around it is nobody's but ours, and so is its lock.
const SHOWN: &str = "git";
/// What covers a folder that means nothing inside.
const EMPTY: &str = "empty";
/// Says that something in it was not brought.
const KEPT: &str = "kept";
/// How long that stays.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// One of them, in use.
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
        // What an earlier run of that name left may still be there.
        let names = [run.to_string(), format!("{run}-{}", crate::fresh_id())];
        let made = names.into_iter().find_map(|name| {
            let locked = begin(&folders, &name);
            match locked {
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => None,
                locked => Some(locked.map(|locked| (name, locked))),
            }
        });
        let (name, locked) = made.unwrap_or_else(|| Err(Errno::EXIST.into()))?;
        rustix::fs::mkdirat(&locked, SHOWN, Mode::from_raw_mode(0o700))?;
        let shown = files::open(&locked, SHOWN, FOLDER)?;
        files::make_folder(&locked, EMPTY.as_ref(), None)?;
        let path = state.join(FOLDERS).join(&name);
        Ok(GitFolder {
            folders,
            name,
            path,
            locked,
            shown,
        })
    }

    /// Where the part is that the program sees.
    pub(super) fn shown(&self) -> PathBuf {
        self.path.join(SHOWN)
    }

    /// A folder with nothing in it.
    pub(super) fn empty(&self) -> PathBuf {
        self.path.join(EMPTY)
    }

    /// Where all of it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The git folder of one repository, made and given away where it is not there yet.
    pub(super) fn place(&self, place: &str, owner: Option<(u32, u32)>) -> io::Result<OwnedFd> {
        files::give(&self.shown, owner)?;
        make_module(self.shown.as_fd(), place, owner)
    }

    /// The same after the program ran, which may have put anything there.
    pub(super) fn open(&self, place: &str) -> io::Result<OwnedFd> {
        let place = if place.is_empty() { "." } else { place };
        files::open(&self.shown, place, FOLDER)
    }

    /// Writes a file that the program does not see in its git folder; its path.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        write(&self.locked, name, bytes)?;
        Ok(self.path.join(name))
    }

    /// A new folder that the program does not see, with these files; its path. Instead of what was there before.
    pub(super) fn lay_out(&self, name: &str, all: &[(&str, &[u8])]) -> io::Result<PathBuf> {
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

    /// Leaves it where it is, although nobody holds it any more.
    pub(super) fn keep(self) -> io::Result<PathBuf> {
        write(&self.locked, KEPT, b"")?;
        Ok(self.path)
    }

    pub(super) fn remove(self) -> io::Result<()> {
        workspaces::remove_tree(&self.folders, self.name.as_ref())
    }
}

/// Readable for whoever gets so far: only we pass the folder around it.
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

/// A new folder, locked. A sweep may take it for a dead one's before it is.
fn begin(folders: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
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

/// Removes what nobody holds any more and nobody wanted kept; says what could not be removed.
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
        Ok(()) if is_kept(&folder) => Ok(()),
        Ok(()) => workspaces::remove_tree(folders, name),
    }
}

fn is_kept(folder: &OwnedFd) -> bool {
    let Ok(mark) = rustix::fs::statat(folder, KEPT, AtFlags::SYMLINK_NOFOLLOW) else {
        return false;
    };
    let now = crate::record::now().0 / 1000;
    now.saturating_sub(mark.st_mtime as u64) < KEPT_FOR.as_secs()
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
        let again = make("held");
        assert_ne!(again.path(), held.path());
        again.remove().unwrap();
        let kept = kept.keep().unwrap();
        let path = dead.path().to_owned();
        drop(dead);
        assert_eq!(sweep(&state), Vec::<String>::new());
        assert!(held.path().exists() && kept.exists() && !path.exists());
        held.remove().unwrap();
        std::fs::remove_dir_all(state).unwrap();
    }
}
