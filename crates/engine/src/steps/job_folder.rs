//! The folder that the caller's program sees as `/job`: the job, a place for artifacts, and at the
//! end the result. It is locked while it is used and removed afterwards; a sweep removes what a
//! crash left.

use crate::{files, workspaces};
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags},
    io::Errno,
};
use spec::{Access, Backend, Id, InsidePath, MAX_JOB_BYTES, Mount, RunSpec};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// The folder of job folders in the state folder.
const FOLDERS: &str = "job-folders";
/// The part that is mounted. The folder around it and its lock are accessible to Airlock only.
const SHOWN: &str = "job";
/// The mount point inside.
pub(super) const INSIDE: &str = "/job";

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// A job folder in use.
#[derive(Debug)]
pub(super) struct JobFolder {
    folders: OwnedFd,
    name: Id,
    path: PathBuf,
    /// Held for its lock.
    _locked: OwnedFd,
    shown: OwnedFd,
}

impl JobFolder {
    pub(super) fn make(state: &Path, run: &RunSpec, document: &[u8]) -> io::Result<JobFolder> {
        let folders = open_folders(state, true)?;
        let name = crate::fresh_id();
        let locked = make_locked(&folders, &name)?;
        rustix::fs::mkdirat(&locked, SHOWN, Mode::RWXU)?;
        let shown = files::open(&locked, SHOWN, FOLDER)?;
        let path = state.join(FOLDERS).join(name.as_str()).join(SHOWN);
        let made = JobFolder {
            folders,
            name,
            path,
            _locked: locked,
            shown,
        };
        match made.fill(owner(run)?, document) {
            Ok(()) => Ok(made),
            Err(error) => {
                // A sweep removes what cannot be removed now.
                _ = made.remove();
                Err(error)
            }
        }
    }

    fn fill(&self, owner: Option<(u32, u32)>, document: &[u8]) -> io::Result<()> {
        let (_, agent) = image::recipe::REFERENCE_AGENT;
        for (name, bytes, mode) in [
            ("job.json", document, 0o444),
            ("airlock-agent", agent.as_bytes(), 0o555),
        ] {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let mut file = File::from(rustix::fs::openat(
                &self.shown,
                name,
                flags,
                Mode::from_raw_mode(0o600),
            )?);
            file.write_all(bytes)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            files::set_owner(&file, owner)?;
        }
        files::make_folder(&self.shown, "artifacts".as_ref(), owner)?;
        files::set_owner(&self.shown, owner)
    }

    /// The mount of the folder into the sandbox.
    pub(super) fn mount(&self) -> Result<Mount, spec::BadPath> {
        let inside = InsidePath::new(Path::new(INSIDE))?;
        Ok(Mount {
            host: self.path.clone(),
            inside,
            access: Access::ReadWrite,
        })
    }

    pub(super) fn handle(&self) -> io::Result<OwnedFd> {
        self.shown.as_fd().try_clone_to_owned()
    }

    /// Reads the result file: a regular file of limited size.
    pub(super) fn result(&self) -> Result<Vec<u8>, String> {
        let unread = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => "there is no /job/result.json".to_owned(),
            _ => format!("/job/result.json cannot be read: {error}"),
        };
        // A symbolic link is not followed, and a FIFO does not block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(files::open(&self.shown, "result.json", flags).map_err(unread)?);
        if !file.metadata().map_err(unread)?.is_file() {
            return Err("/job/result.json is not a regular file".to_owned());
        }
        let mut bytes = Vec::new();
        file.take(MAX_JOB_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(unread)?;
        if bytes.len() > MAX_JOB_BYTES {
            Err(format!(
                "/job/result.json is longer than {MAX_JOB_BYTES} bytes"
            ))
        } else {
            Ok(bytes)
        }
    }

    pub(super) fn remove(self) -> io::Result<()> {
        workspaces::remove_tree(&self.folders, self.name.as_str().as_ref())
    }
}

/// As root, the user and group that the program has outside: the owner of its workspace, or its
/// user in a container.
fn owner(run: &RunSpec) -> io::Result<Option<(u32, u32)>> {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    match (&run.sandbox.workspace, run.sandbox.backend) {
        (Some(workspace), Backend::Native) => {
            std::fs::metadata(workspace).map(|found| Some((found.uid(), found.gid())))
        }
        (None, Backend::Native) => Ok(None),
        (_, Backend::Docker | Backend::Podman | Backend::Container) => {
            Ok(Some((run.sandbox.user.uid, run.sandbox.user.gid)))
        }
    }
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
fn make_locked(folders: &OwnedFd, name: &Id) -> io::Result<OwnedFd> {
    for _ in 0..16 {
        match rustix::fs::mkdirat(folders, name.as_str(), Mode::RWXU) {
            Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        let folder = match files::open(folders, name.as_str(), FOLDER) {
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

/// Removes folders that nobody has locked; returns errors.
pub(crate) fn sweep(state: &Path) -> Vec<String> {
    let Ok(folders) = open_folders(state, false) else {
        return Vec::new();
    };
    let names = match workspaces::names_in(&folders) {
        Ok(names) => names,
        Err(error) => return vec![format!("the folders of jobs cannot be listed: {error}")],
    };
    let one = |name: &std::ffi::OsStr| -> io::Result<()> {
        let folder = match files::open(&folders, name, FOLDER) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
            folder => folder?,
        };
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => workspaces::remove_tree(&folders, name),
        }
    };
    let problem = |name: &std::ffi::OsString| {
        one(name)
            .err()
            .map(|error| format!("the folder of the job `{}`: {error}", name.display()))
    };
    names.iter().filter_map(problem).collect()
}
