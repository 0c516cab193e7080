//! Restores a state folder from an archive: unpacked beside the target and renamed into place once
//! all of it is verified. A mount point cannot be replaced: there it is unpacked in `.restoring`
//! within, and moved up. As long as `.restoring` exists, the folder is not opened as a state.

use super::{BackupError, BackupReport, DATABASE, Sink, check, verify};
use crate::files;
use image::tar::TarInput;
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

/// What happens to jobs and notices that were pending at the time of the backup, and may have been
/// processed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingWork {
    /// Jobs that must not run twice are ended, and notices are dropped.
    Held,
    /// All of them continue.
    Resumed,
}

/// Restores an archive into a folder that is empty or absent.
pub fn restore(
    input: impl TarInput,
    state: &Path,
    waiting: PendingWork,
    now_ms: u64,
) -> Result<BackupReport, BackupError> {
    let (state, is_mount_point) = check_target(state)?;
    let draft = RestoreDraft::new(&state, is_mount_point)?;
    let mut unpacker = Unpacker {
        folder: draft.folder()?,
        file: None,
    };
    let mut report = check(input, &mut unpacker)?;
    report.problems = verify::verify_state(&draft.path, &report)?;
    report.held = hold_pending_work(&draft.path, &report, waiting, now_ms)?;
    rustix::fs::syncfs(&unpacker.folder)
        .map_err(|error| BackupError::file("write", &state)(error.into()))?;
    draft.publish(&state)?;
    Ok(report)
}

/// Reads an archive and verifies its database as a restore would, in a temporary folder below
/// `scratch`.
pub fn examine(input: impl TarInput, scratch: &Path) -> Result<BackupReport, BackupError> {
    // If the process is killed, the folder stays.
    let draft = RestoreDraft::at(
        scratch.join(format!("airlock-check-{}", crate::fresh_id())),
        false,
    )?;
    let mut database = DatabaseOnly(Unpacker {
        folder: draft.folder()?,
        file: None,
    });
    let report = check(input, &mut database)?;
    verify::verify_database(&draft.path, &report)?;
    Ok(report)
}

/// The canonical target and whether it is a mount point; refused if it is not empty.
fn check_target(state: &Path) -> Result<(PathBuf, bool), BackupError> {
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
    let is_mount_point = is_mount_point(&place).map_err(failed)?;
    for entry in fs::read_dir(&place).map_err(failed)? {
        let name = entry
            .map_err(|error| BackupError::file("open", state)(error))?
            .file_name();
        if name == store::backup::RESTORE_FOLDER {
            return Err(taken(
                "has `.restoring`: a restore is under way, or was killed",
            ));
        }
        // Some file systems create it.
        if !(is_mount_point && name == "lost+found") {
            return Err(taken("is not empty"));
        }
    }
    Ok((place, is_mount_point))
}

/// Whether another folder cannot replace it, since something is mounted there.
fn is_mount_point(folder: &Path) -> io::Result<bool> {
    let found =
        |path: &Path| rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS);
    let this = found(folder)?;
    let above = found(&folder.join(".."))?;
    let device = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor);
    Ok(
        device(&this) != device(&above)
            || this.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    )
}

/// Holds pending work back, and leaves a file from which the first start writes an audit line.
fn hold_pending_work(
    state: &Path,
    report: &BackupReport,
    waiting: PendingWork,
    now_ms: u64,
) -> Result<Option<store::backup::CancelledWork>, BackupError> {
    let made = spec::Timestamp(report.about.as_ref().map_or(0, |about| about.made_ms)).to_string();
    let held = match (waiting, state.join(DATABASE).exists()) {
        (PendingWork::Held, true) => {
            Some(store::backup::cancel_pending_work(state, &made, now_ms)?)
        }
        _ => None,
    };
    let about = match held {
        // The second line is the time at which the jobs ended, by which the first start finds them.
        Some(held) => format!(
            "backup of {made}; jobs={} notices={}\n{now_ms}",
            held.jobs, held.notices
        ),
        None => format!("backup of {made}; resumed"),
    };
    let path = state.join(store::backup::RESTORED_MARKER);
    let mut options = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
    let written = options
        .open(&path)
        .and_then(|mut file| file.write_all(about.as_bytes()));
    written.map_err(BackupError::file("write", path))?;
    Ok(held)
}

/// The temporary folder beside or within the target, which is removed unless its contents are about
/// to be published.
struct RestoreDraft {
    path: PathBuf,
    is_within: bool,
    keeps: bool,
}

impl RestoreDraft {
    fn new(state: &Path, is_within: bool) -> Result<RestoreDraft, BackupError> {
        let mut name = state.file_name().unwrap_or_default().to_owned();
        name.push(store::backup::RESTORE_FOLDER);
        let path = if is_within {
            state.join(store::backup::RESTORE_FOLDER)
        } else {
            state.with_file_name(name)
        };
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(above);
            made.map_err(BackupError::file("make", above))?;
        }
        RestoreDraft::at(path, is_within)
    }

    fn at(path: PathBuf, is_within: bool) -> Result<RestoreDraft, BackupError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(RestoreDraft {
                path,
                is_within,
                keeps: false,
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

    /// Moves the folder into place, if the target is still empty.
    fn publish(mut self, state: &Path) -> Result<(), BackupError> {
        let moved = if self.is_within {
            self.move_up(state)
        } else {
            fs::rename(&self.path, state)
        };
        moved.map_err(BackupError::file("put the restored folder at", state))?;
        self.keeps = true;
        if let Some(above) = state.parent().filter(|above| !above.as_os_str().is_empty()) {
            File::open(above)
                .and_then(|above| above.sync_all())
                .map_err(BackupError::file("write", above))?;
        }
        Ok(())
    }

    /// Moves the entries up one by one, the database last. If this is interrupted, `.restoring`
    /// stays and marks the state as incomplete.
    fn move_up(&mut self, state: &Path) -> io::Result<()> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_by_key(|name| name == "airlock.db");
        self.keeps = true;
        names
            .iter()
            .try_for_each(|name| fs::rename(self.path.join(name), state.join(name)))?;
        let folder = File::open(state)?;
        folder.sync_all()?;
        fs::remove_dir(&self.path)?;
        folder.sync_all()
    }
}

impl Drop for RestoreDraft {
    fn drop(&mut self) {
        if !self.keeps {
            // The next restore reports a folder that stays.
            _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Creates files beneath a handle, and never replaces one.
struct Unpacker {
    folder: OwnedFd,
    file: Option<(File, String)>,
}

impl Unpacker {
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
        // If a path is both a file and a folder, the kernel refuses it.
        Ok(File::from(files::open(
            &parent,
            name,
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
        )?))
    }
}

impl Sink for Unpacker {
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

/// Unpacks only the database.
struct DatabaseOnly(Unpacker);

impl Sink for DatabaseOnly {
    fn begin(&mut self, path: &str, size: u64) -> Result<(), BackupError> {
        if path == DATABASE {
            self.0.begin(path, size)
        } else {
            Ok(())
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.0.write(bytes)
    }

    fn end(&mut self) -> Result<(), BackupError> {
        self.0.end()
    }
}
