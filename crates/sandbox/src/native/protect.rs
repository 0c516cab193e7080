//! Protected names in a mounted workspace: what tools of the host execute or obey there stays as it
//! is while a program runs, also when it is absent.
//!
//! The sandbox binds each such name read-only onto itself ([`Bind`]). A name that is absent gets a
//! stand-in (an empty folder, mostly) to be bound, which is removed after the last run.
//!
//! ```text
//! put_up ── record locked ─ workspace held (shared) ─ stand-ins written down, made ──▶ runs
//! take_down ── record locked ─ last holder? ── yes ─▶ stand-ins removed, record removed
//!                                          └── no ──▶ the last one does it
//! ```
//!
//! The hold is a shared `flock` on the workspace folder itself, so that it counts the runs of every
//! user and state folder: removing a name on which another run has its mount would detach that
//! mount. It dies with its holder; what a dead one left goes with the next run there or the sweep of
//! its state folder. If runs of two state folders overlap, the stand-ins of the one that ended first
//! stay until its sweep.
//!
//! What this does not hold: the host's own tools can replace a protected file while a program runs
//! (`git config` does), which detaches its mount; [`TakenDown::changed`] then names it. Repositories
//! below the top of the workspace, and their hooks, are the program's to make.

mod beneath;
mod names;
mod record;

pub use names::{PROTECTED, Protected, held, may_stand_in, touched};

use names::{GIT, HEAD, HOME, Stub};
use record::{Record, Records};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use spec::WorkspacePath;
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// How often an absent name may appear and vanish again while it is looked at.
const TRIES: usize = 8;

/// One mount that the sandbox makes in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Relative to the workspace; to be resolved beneath it, through no symbolic link.
    pub path: PathBuf,
    /// What is mounted there.
    pub kind: BindKind,
}

/// What is mounted on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindKind {
    /// The folder itself, writable: a mount point cannot be moved away.
    Guard,
    /// The file or folder itself, read-only.
    ReadOnly,
    /// The tmpfs of the program's home.
    Home,
}

/// The protection of one workspace for one run. Dropping it leaves the stand-ins to the next run or
/// the sweep.
#[derive(Debug)]
pub struct Protection {
    state: PathBuf,
    /// The workspace, held.
    hold: OwnedFd,
    binds: Vec<Bind>,
    before: Vec<(PathBuf, Option<Version>)>,
    /// Whether the workspace could be taken for a repository before the run.
    had_head: bool,
}

/// What taking down found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenDown {
    /// Protected names that somebody changed during the run.
    pub changed: Vec<PathBuf>,
    /// What could not be removed, and why.
    pub problems: Vec<String>,
}

/// Tells a changed file or folder: inode and time of its last change.
type Version = (u64, i64, u64);

/// Why a workspace cannot be protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// It is a symbolic link: a mount would go to what it points at, and the link could be replaced.
    #[error("`{name}` in the workspace is a symbolic link and cannot be protected")]
    Link {
        /// Which name.
        name: String,
    },
    /// Git obeys what lies beside it, which is all the program's to write.
    #[error("the workspace is itself a git repository: it has a `{HEAD}`")]
    Bare,
    /// The same, named by a file `.git`.
    #[error(
        "`{GIT}` in the workspace names a repository that lies in the workspace and cannot be protected"
    )]
    Inside,
    /// The home's place is taken.
    #[error("`{HOME}` in the workspace is not a folder, and the program's home goes there")]
    Home,
    /// A stand-in could not be made.
    #[error("cannot make a stand-in for `{name}` in the workspace")]
    StandIn {
        /// Which name.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A name could not be looked at.
    #[error("cannot look at `{name}` in the workspace")]
    Look {
        /// Which name.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The workspace could not be held.
    #[error("cannot hold the workspace: another program locks the folder")]
    Hold {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The records of stand-ins.
    #[error("cannot use the records of stand-ins in `{}`", state.display())]
    State {
        /// The state folder.
        state: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ProtectError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            ProtectError::Link { name } | ProtectError::Look { name, .. } => {
                format!("`--allow-protected {name}` runs without this protection")
            }
            ProtectError::StandIn { name, .. } if name == HOME => {
                "the workspace must be a folder that you may write to".to_owned()
            }
            ProtectError::StandIn { name, .. } => {
                format!("make the folder writable for you, or `--allow-protected {name}`")
            }
            ProtectError::Bare => format!("mount a checkout of it, or `--allow-protected {HEAD}`"),
            ProtectError::Inside => {
                format!("`--allow-protected {GIT}` runs without this protection")
            }
            ProtectError::Home => format!("move `{HOME}` away"),
            ProtectError::Hold { .. } => "`lslocks` shows who locks the folder".to_owned(),
            ProtectError::State { .. } => "the state folder must be yours to write".to_owned(),
        }
    }
}

impl Protection {
    /// Makes a mounted workspace ready for its binds; names in `allowed`, and what lies below them,
    /// stay writable.
    pub fn put_up(
        state: &Path,
        workspace: BorrowedFd<'_>,
        allowed: &[WorkspacePath],
    ) -> Result<Protection, ProtectError> {
        let bad_state = |source| ProtectError::State {
            state: state.to_owned(),
            source,
        };
        let not_held = |source| ProtectError::Hold { source };
        // A lock belongs to an open file: this one is nobody else's.
        let hold =
            beneath::open(workspace, ".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(not_held)?;
        let records = Records::open(state).map_err(bad_state)?;
        let record = records.of(hold.as_fd()).map_err(bad_state)?;
        if record::is_last(&hold).map_err(not_held)? {
            // Only a crash left anything. What stays in spite of this is bound like any other file.
            record.clean(hold.as_fd());
        }
        record::take(&hold, FlockOperation::NonBlockingLockShared).map_err(not_held)?;
        let put_up = PuttingUp::new(hold.as_fd(), &record, allowed).and_then(PuttingUp::all);
        match put_up {
            Ok(binds) => {
                let before = versions(hold.as_fd(), &binds);
                let had_head = has_head(hold.as_fd());
                Ok(Protection {
                    state: state.to_owned(),
                    hold,
                    binds,
                    before,
                    had_head,
                })
            }
            Err(error) => {
                if record::is_last(&hold).unwrap_or(false) {
                    record.clean(hold.as_fd());
                }
                Err(error)
            }
        }
    }

    /// The mounts to make, in this order.
    pub fn binds(&self) -> &[Bind] {
        &self.binds
    }

    /// What holds the workspace. The first process of the box should inherit it, out of the program's
    /// reach: then no sweep takes a stand-in from under a box that outlives its engine for a moment.
    pub fn hold(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }

    /// Removes the stand-ins if this was the last run here. The program must be gone.
    pub fn take_down(self) -> TakenDown {
        let now = versions(self.hold.as_fd(), &self.binds);
        let changed = self
            .before
            .iter()
            .zip(now)
            .filter(|(before, now)| *before != now);
        let changed = changed.map(|(before, _)| before.0.clone()).collect();
        let mut problems = self
            .clean()
            .unwrap_or_else(|source| vec![source.to_string()]);
        if !self.had_head && has_head(self.hold.as_fd()) {
            problems.push(format!(
                "`{HEAD}` appeared in the workspace: if `{GIT}` is broken, git obeys the `config` beside it; look before you use git there"
            ));
        }
        TakenDown { changed, problems }
    }

    fn clean(&self) -> io::Result<Vec<String>> {
        let records = Records::open(&self.state)?;
        let record = records.of(self.hold.as_fd())?;
        let problems = match record::is_last(&self.hold)? {
            true => record.clean(self.hold.as_fd()),
            false => Vec::new(),
        };
        // Closing would do, were it not for a descriptor that the box may still have.
        rustix::fs::flock(&self.hold, FlockOperation::Unlock)?;
        Ok(problems)
    }
}

/// Removes the stand-ins of workspaces that nobody holds; gives back what could not be done.
pub fn sweep(state: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let swept = Records::open(state).and_then(|records| {
        records.each(|name, record| {
            let outcome = record.and_then(|record| sweep_one(&record));
            problems.extend(outcome.unwrap_or_else(|source| {
                vec![format!("the record of stand-ins `{name}`: {source}")]
            }));
        })
    });
    problems.extend(
        swept
            .err()
            .map(|source| format!("the records of stand-ins: {source}")),
    );
    problems
}

fn sweep_one(record: &Record<'_>) -> io::Result<Vec<String>> {
    match record.workspace()? {
        None => Ok(Vec::new()),
        Some((path, None)) => {
            record.forget()?;
            let path = path.to_string_lossy().escape_debug().to_string();
            Ok(vec![format!(
                "the workspace `{path}` is gone or was moved: empty stand-ins may be left in it"
            )])
        }
        Some((_, Some(workspace))) => match record::is_last(&workspace)? {
            true => Ok(record.clean(workspace.as_fd())),
            false => Ok(Vec::new()),
        },
    }
}

/// The protection in the making.
struct PuttingUp<'a> {
    workspace: BorrowedFd<'a>,
    record: &'a Record<'a>,
    allowed: &'a [WorkspacePath],
    /// The owner of the stand-ins, if it is not us.
    owner: Option<(rustix::fs::Uid, rustix::fs::Gid)>,
    binds: Vec<Bind>,
}

impl<'a> PuttingUp<'a> {
    fn new(
        workspace: BorrowedFd<'a>,
        record: &'a Record<'a>,
        allowed: &'a [WorkspacePath],
    ) -> Result<Self, ProtectError> {
        let found = rustix::fs::fstat(workspace).map_err(|source| looking(".", source.into()))?;
        let owner = (
            rustix::fs::Uid::from_raw(found.st_uid),
            rustix::fs::Gid::from_raw(found.st_gid),
        );
        let owner = rustix::process::geteuid().is_root().then_some(owner);
        Ok(PuttingUp {
            workspace,
            record,
            allowed,
            owner,
            binds: Vec::new(),
        })
    }

    fn all(mut self) -> Result<Vec<Bind>, ProtectError> {
        self.git()?;
        let elsewhere = |name| names::within_git(name).is_none() && name != HEAD;
        for protected in PROTECTED
            .iter()
            .filter(|protected| elsewhere(protected.name))
        {
            self.read_only(self.workspace, protected.name)?;
        }
        self.home()?;
        Ok(self.binds)
    }

    fn git(&mut self) -> Result<(), ProtectError> {
        let found = self.look(self.workspace, GIT)?;
        let is_folder = found.is_some_and(|found| is(&found, FileType::Directory));
        if self.is_allowed(GIT) || !is_folder {
            return match found {
                None => self.no_repository(),
                Some(found) if !self.is_allowed(GIT) && is(&found, FileType::RegularFile) => {
                    self.git_file()
                }
                Some(_) => self.read_only(self.workspace, GIT),
            };
        }
        let folder = beneath::open(self.workspace, GIT, OFlags::RDONLY | OFlags::DIRECTORY);
        let folder = folder.map_err(|source| looking(GIT, source))?;
        // An empty one is no repository: most likely the stand-in of another run.
        if beneath::is_empty(&folder).map_err(|source| looking(GIT, source))? {
            return self.no_repository();
        }
        self.bind(GIT, BindKind::Guard);
        PROTECTED
            .iter()
            .filter(|protected| names::within_git(protected.name).is_some())
            .try_for_each(|protected| self.read_only(folder.as_fd(), protected.name))
    }

    /// It names the folder whose config and hooks git takes: that must not be the program's to write.
    fn git_file(&mut self) -> Result<(), ProtectError> {
        let at = |source| looking(GIT, source);
        let file = beneath::open(self.workspace, GIT, OFlags::RDONLY).map_err(at)?;
        let mut text = Vec::new();
        // As much of it as git would read, with room to spare.
        File::from(file)
            .take(1 << 16)
            .read_to_end(&mut text)
            .map_err(at)?;
        match beneath::leads_inside(self.workspace, &text).map_err(at)? {
            true => Err(ProtectError::Inside),
            false => self.read_only(self.workspace, GIT),
        }
    }

    fn no_repository(&mut self) -> Result<(), ProtectError> {
        if self.is_allowed(GIT) {
            return Ok(());
        }
        self.read_only(self.workspace, GIT)?;
        self.read_only(self.workspace, HEAD)
    }

    fn home(&mut self) -> Result<(), ProtectError> {
        let found = self.look_or_stand_in(self.workspace, HOME)?;
        if !is(&found, FileType::Directory) {
            return Err(ProtectError::Home);
        }
        self.bind(HOME, BindKind::Home);
        Ok(())
    }

    /// `folder` is what holds the last part of `name`.
    fn read_only(&mut self, folder: BorrowedFd<'_>, name: &str) -> Result<(), ProtectError> {
        if self.is_allowed(name) {
            return Ok(());
        }
        let found = self.look_or_stand_in(folder, name)?;
        if is(&found, FileType::Symlink) {
            return Err(ProtectError::Link {
                name: name.to_owned(),
            });
        }
        if name == HEAD && is(&found, FileType::RegularFile) {
            return Err(ProtectError::Bare);
        }
        self.bind(name, BindKind::ReadOnly);
        Ok(())
    }

    fn look_or_stand_in(&self, folder: BorrowedFd<'_>, name: &str) -> Result<Stat, ProtectError> {
        for _ in 0..TRIES {
            if let Some(found) = self.look(folder, name)? {
                return Ok(found);
            }
            match self.stand_in(folder, name) {
                // A run of another state folder was faster.
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return Err(ProtectError::StandIn {
                        name: name.to_owned(),
                        source,
                    });
                }
                Ok(()) => {}
            }
        }
        let source = io::Error::other("it comes and goes");
        Err(ProtectError::StandIn {
            name: name.to_owned(),
            source,
        })
    }

    fn is_allowed(&self, name: &str) -> bool {
        self.allowed
            .iter()
            .any(|allowed| Path::new(name).starts_with(allowed.as_path()))
    }

    fn bind(&mut self, name: &str, kind: BindKind) {
        self.binds.push(Bind {
            path: PathBuf::from(name),
            kind,
        });
    }

    fn look(&self, folder: BorrowedFd<'_>, name: &str) -> Result<Option<Stat>, ProtectError> {
        beneath::look(folder, last_part(name)).map_err(|source| looking(name, source))
    }

    /// Makes what stands in for an absent name, written down before and after.
    fn stand_in(&self, folder: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        self.record.intend(self.workspace, name)?;
        let inode = match names::stub(name) {
            Some(Stub::File(content)) => self.make_file(folder, last_part(name), content)?,
            Some(Stub::Folder) | None => self.make_folder(folder, last_part(name))?,
        };
        self.record.made(name, inode)
    }

    fn make_folder(&self, parent: BorrowedFd<'_>, name: &str) -> io::Result<u64> {
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
        let folder = beneath::open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if let Some((user, group)) = self.owner {
            // Whoever swapped it for another folder gets nothing that is worth having.
            if !beneath::is_empty(&folder)? {
                return Err(io::Error::other("it was replaced while it was made"));
            }
            rustix::fs::fchown(&folder, Some(user), Some(group))?;
        }
        Ok(rustix::fs::fstat(&folder)?.st_ino)
    }

    fn make_file(&self, parent: BorrowedFd<'_>, name: &str, content: &[u8]) -> io::Result<u64> {
        let file = beneath::open(parent, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        if let Some((user, group)) = self.owner {
            rustix::fs::fchown(&file, Some(user), Some(group))?;
        }
        let inode = rustix::fs::fstat(&file)?.st_ino;
        File::from(file).write_all(content)?;
        Ok(inode)
    }
}

/// Whether the top of the workspace has what makes a folder a repository.
fn has_head(workspace: BorrowedFd<'_>) -> bool {
    let found = beneath::look(workspace, HEAD).ok().flatten();
    found.is_some_and(|found| !is(&found, FileType::Directory))
}

fn is(found: &Stat, kind: FileType) -> bool {
    beneath::kind(found) == kind
}

fn last_part(name: &str) -> &str {
    names::within_git(name).unwrap_or(name)
}

fn looking(name: &str, source: io::Error) -> ProtectError {
    ProtectError::Look {
        name: name.to_owned(),
        source,
    }
}

/// What the read-only names are right now.
fn versions(workspace: BorrowedFd<'_>, binds: &[Bind]) -> Vec<(PathBuf, Option<Version>)> {
    let read_only = binds.iter().filter(|bind| bind.kind == BindKind::ReadOnly);
    let version = |path: &Path| {
        let handle = beneath::open(workspace, path, OFlags::PATH).ok()?;
        let found = rustix::fs::fstat(handle).ok()?;
        Some((
            found.st_ino,
            found.st_ctime as i64,
            found.st_ctime_nsec as u64,
        ))
    };
    read_only
        .map(|bind| (bind.path.clone(), version(&bind.path)))
        .collect()
}

#[cfg(test)]
#[path = "protect/tests.rs"]
mod tests;
