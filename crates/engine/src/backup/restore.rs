//! From an archive to a state folder: unpacked beside its place, and put there as a whole once all of it is believed.

use super::{BackupError, DATABASE, Report, Sink, check, judge};
use image::tar::Input;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
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
    look(state)?;
    let draft = Draft::new(state)?;
    let mut unpacking = Unpacking { folder: draft.folder()?, file: None };
    let mut report = check(input, &mut unpacking)?;
    report.problems = judge::all(&draft.path, &report)?;
    report.held = hold(&draft.path, &report, waiting, now_ms)?;
    rustix::fs::syncfs(&unpacking.folder).map_err(|error| BackupError::file("write", state)(error.into()))?;
    draft.publish(state)?;
    Ok(report)
}

/// Reads all of an archive, and judges its database as a restore would, in a folder of its own below this one. Nothing stays.
pub fn examine(input: impl Input, scratch: &Path) -> Result<Report, BackupError> {
    // Of one that is killed it stays, as with everybody's who works there.
    let draft = Draft::at(scratch.join(format!("airlock-check-{}", crate::fresh_id())))?;
    let mut database = OnlyDatabase(Unpacking { folder: draft.folder()?, file: None });
    let report = check(input, &mut database)?;
    judge::database(&draft.path, &report)?;
    Ok(report)
}

/// Whether something is there that must not be lost.
fn look(state: &Path) -> Result<(), BackupError> {
    match fs::read_dir(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BackupError::file("open", state)(error)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(BackupError::Taken { path: state.to_owned(), why: "is not empty" }),
        },
    }
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
        Some(held) => format!("backup of {made}; jobs={} notices={}", held.jobs, held.notices),
        None => format!("backup of {made}; resumed"),
    };
    let path = state.join(store::copy::RESTORED);
    let mut options = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
    let written = options.open(&path).and_then(|mut file| file.write_all(about.as_bytes()));
    written.map_err(BackupError::file("write", path))?;
    Ok(held)
}

/// The folder beside, which goes away unless it is published.
struct Draft {
    path: PathBuf,
    published: bool,
}

impl Draft {
    fn new(state: &Path) -> Result<Draft, BackupError> {
        let mut name = state.file_name().unwrap_or_default().to_owned();
        name.push(".restoring");
        let path = state.with_file_name(name);
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(above);
            made.map_err(BackupError::file("make", above))?;
        }
        Draft::at(path)
    }

    fn at(path: PathBuf) -> Result<Draft, BackupError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Draft { path, published: false }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(BackupError::Taken { path, why: "is there: a restore is under way, or was killed" })
            }
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
        match fs::rename(&self.path, state) {
            Ok(()) => self.published = true,
            Err(error) => return Err(BackupError::file("put the restored folder at", state)(error)),
        }
        if let Some(above) = state.parent().filter(|above| !above.as_os_str().is_empty()) {
            File::open(above)
                .and_then(|above| above.sync_all())
                .map_err(BackupError::file("write", above))?;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
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
        let mut folder = beneath(&self.folder, ".", OFlags::DIRECTORY)?;
        let Some((above, _)) = path.rsplit_once('/') else { return Ok(folder) };
        for name in above.split('/') {
            match rustix::fs::mkdirat(&folder, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = beneath(&folder, name, OFlags::DIRECTORY)?;
        }
        Ok(folder)
    }

    fn make(&self, path: &str) -> io::Result<File> {
        let parent = self.parent(path)?;
        let name = path.rsplit('/').next().unwrap_or(path);
        // A file that a folder has to be made for, or the other way round, is refused by the kernel.
        Ok(File::from(beneath(&parent, name, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?))
    }
}

fn beneath(folder: impl AsFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::io::retry_on_intr(|| rustix::fs::openat2(&folder, name, flags, mode, resolve))?)
}

impl Sink for Unpacking {
    fn begin(&mut self, path: &str, _: u64) -> Result<(), BackupError> {
        let file = self.make(path).map_err(BackupError::file("write", path))?;
        self.file = Some((file, path.to_owned()));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        match &mut self.file {
            Some((file, path)) => file.write_all(bytes).map_err(BackupError::file("write", path.clone())),
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
