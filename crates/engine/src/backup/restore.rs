//! From an archive to a state folder: unpacked beside its place, and put there as a whole once all of it is believed. Where
//! a disk is mounted nothing can take its place: there it is unpacked within, in `.restoring`, and moved up. Until that is
//! gone nobody opens the folder as a state.

use super::{BackupError, DATABASE, Report, Sink, check, judge};
use crate::files;
use image::tar::Input;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxAttributes, StatxFlags},
    io::Errno,
};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

/// What becomes of jobs and notices that waited when the backup was made, and may have been dealt with since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Jobs that must not run twice are ended, notices are given up.
    Held,
    /// All goes on.
    Resumed,
}

/// Unpacks an archive into a folder that is empty or absent.
pub fn restore(
    input: impl Input,
    state: &Path,
    waiting: Waiting,
    now_ms: u64,
) -> Result<Report, BackupError> {
    let (state, is_disk) = look(state)?;
    let draft = Draft::new(&state, is_disk)?;
    let mut unpacking = Unpacking {
        folder: draft.folder()?,
        file: None,
    };
    let mut report = check(input, &mut unpacking)?;
    report.problems = judge::all(&draft.path, &report)?;
    report.held = hold(&draft.path, &report, waiting, now_ms)?;
    rustix::fs::syncfs(&unpacking.folder)
        .map_err(|error| BackupError::file("write", &state)(error.into()))?;
    draft.publish(&state)?;
    Ok(report)
}

/// Reads all of an archive, and judges its database as a restore would, in a folder of its own below this one. Nothing stays.
pub fn examine(input: impl Input, scratch: &Path) -> Result<Report, BackupError> {
    // Of one that is killed it stays, as with everybody's who works there.
    let draft = Draft::at(
        scratch.join(format!("airlock-check-{}", crate::fresh_id())),
        false,
    )?;
    let mut database = OnlyDatabase(Unpacking {
        folder: draft.folder()?,
        file: None,
    });
    let report = check(input, &mut database)?;
    judge::database(&draft.path, &report)?;
    Ok(report)
}

/// Where it is behind all links, and whether a disk of its own; unless something is there that must not be lost.
fn look(state: &Path) -> Result<(PathBuf, bool), BackupError> {
    let taken = |why| BackupError::Taken {
        path: state.to_owned(),
        why,
    };
    let place = match state.canonicalize() {
        Ok(place) => place,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match state.symlink_metadata() {
                Ok(_) => Err(taken("is a link to what is not there")),
                Err(_) => Ok((state.to_owned(), false)),
            };
        }
        Err(error) => return Err(BackupError::file("open", state)(error)),
    };
    let failed = |error| BackupError::file("open", state)(error);
    let is_disk = is_disk(&place).map_err(failed)?;
    for entry in fs::read_dir(&place).map_err(failed)? {
        let name = entry
            .map_err(|error| BackupError::file("open", state)(error))?
            .file_name();
        if name == store::copy::RESTORING {
            return Err(taken(
                "has `.restoring`: a restore is under way, or was killed",
            ));
        }
        // Some file systems make it by themselves.
        if !(is_disk && name == "lost+found") {
            return Err(taken("is not empty"));
        }
    }
    Ok((place, is_disk))
}

/// Whether another folder cannot take its place: something is mounted there.
fn is_disk(folder: &Path) -> io::Result<bool> {
    let found =
        |path: &Path| rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS);
    let (this, above) = (found(folder)?, found(&folder.join(".."))?);
    let device = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor);
    Ok(
        device(&this) != device(&above)
            || this.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    )
}

/// Holds what waited, and leaves word for the first start, which writes it into the audit.
fn hold(
    state: &Path,
    report: &Report,
    waiting: Waiting,
    now_ms: u64,
) -> Result<Option<store::copy::Held>, BackupError> {
    let made = spec::Timestamp(report.about.as_ref().map_or(0, |about| about.made_ms)).to_string();
    let held = match (waiting, state.join(DATABASE).exists()) {
        (Waiting::Held, true) => Some(store::copy::hold(state, &made, now_ms)?),
        _ => None,
    };
    let about = match held {
        // The second line is the moment of their ends, by which the first start finds them.
        Some(held) => format!(
            "backup of {made}; jobs={} notices={}\n{now_ms}",
            held.jobs, held.notices
        ),
        None => format!("backup of {made}; resumed"),
    };
    let path = state.join(store::copy::RESTORED);
    let mut options = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
    let written = options
        .open(&path)
        .and_then(|mut file| file.write_all(about.as_bytes()));
    written.map_err(BackupError::file("write", path))?;
    Ok(held)
}

/// The folder beside or within, which goes away unless its contents are about to be published.
struct Draft {
    path: PathBuf,
    is_within: bool,
    stays: bool,
}

impl Draft {
    fn new(state: &Path, is_within: bool) -> Result<Draft, BackupError> {
        let mut name = state.file_name().unwrap_or_default().to_owned();
        name.push(store::copy::RESTORING);
        let path = if is_within {
            state.join(store::copy::RESTORING)
        } else {
            state.with_file_name(name)
        };
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(above);
            made.map_err(BackupError::file("make", above))?;
        }
        Draft::at(path, is_within)
    }

    fn at(path: PathBuf, is_within: bool) -> Result<Draft, BackupError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Draft {
                path,
                is_within,
                stays: false,
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(BackupError::Taken {
                path,
                why: "is there: a restore is under way, or was killed",
            }),
            Err(error) => Err(BackupError::file("make", path)(error)),
        }
    }

    fn folder(&self) -> Result<OwnedFd, BackupError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(&self.path, flags, Mode::empty())
            .map_err(|error| BackupError::file("open", &self.path)(error.into()))
    }

    /// Takes its place, if that is still empty.
    fn publish(mut self, state: &Path) -> Result<(), BackupError> {
        let moved = match self.is_within {
            true => self.move_up(state),
            false => fs::rename(&self.path, state),
        };
        moved.map_err(BackupError::file("put the restored folder at", state))?;
        self.stays = true;
        if let Some(above) = state.parent().filter(|above| !above.as_os_str().is_empty()) {
            File::open(above)
                .and_then(|above| above.sync_all())
                .map_err(BackupError::file("write", above))?;
        }
        Ok(())
    }

    /// One by one, the database last. Should it break off, `.restoring` stays and says that this is no state.
    fn move_up(&mut self, state: &Path) -> io::Result<()> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_by_key(|name| name == "airlock.db");
        self.stays = true;
        names
            .iter()
            .try_for_each(|name| fs::rename(self.path.join(name), state.join(name)))?;
        let folder = File::open(state)?;
        folder.sync_all()?;
        fs::remove_dir(&self.path)?;
        folder.sync_all()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.stays {
            // What stays is named when somebody tries again.
            _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Makes files beneath a handle, and never one that is there.
struct Unpacking {
    folder: OwnedFd,
    file: Option<(File, String)>,
}

impl Unpacking {
    fn parent(&self, path: &str) -> io::Result<OwnedFd> {
        let mut folder = files::open(&self.folder, ".", OFlags::DIRECTORY)?;
        let Some((above, _)) = path.rsplit_once('/') else {
            return Ok(folder);
        };
        for name in above.split('/') {
            match rustix::fs::mkdirat(&folder, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = files::open(&folder, name, OFlags::DIRECTORY)?;
        }
        Ok(folder)
    }

    fn make(&self, path: &str) -> io::Result<File> {
        let parent = self.parent(path)?;
        let name = path.rsplit('/').next().unwrap_or(path);
        // A file that a folder has to be made for, or the other way round, is refused by the kernel.
        Ok(File::from(files::open(
            &parent,
            name,
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
        )?))
    }
}

impl Sink for Unpacking {
    fn begin(&mut self, path: &str, _: u64) -> Result<(), BackupError> {
        let file = self.make(path).map_err(BackupError::file("write", path))?;
        self.file = Some((file, path.to_owned()));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        match &mut self.file {
            Some((file, path)) => file
                .write_all(bytes)
                .map_err(BackupError::file("write", path.clone())),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), BackupError> {
        self.file = None;
        Ok(())
    }
}

/// Of all files only the database is unpacked: the others are judged where they are restored.
struct OnlyDatabase(Unpacking);

impl Sink for OnlyDatabase {
    fn begin(&mut self, path: &str, size: u64) -> Result<(), BackupError> {
        match path == DATABASE {
            true => self.0.begin(path, size),
            false => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.0.write(bytes)
    }

    fn end(&mut self) -> Result<(), BackupError> {
        self.0.end()
    }
}
