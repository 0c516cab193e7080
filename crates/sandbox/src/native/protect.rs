//! Protects a mounted workspace from the program: files that host tools execute or obey are
//! read-only for it where they exist, and what it creates under such a name is taken out of the
//! folder when it ends.
//!
//! ```text
//! put_up ── workspace scanned ─ snapshot written, locked ─ binds ──▶ run
//! take_down ── workspace compared with its snapshot ─ files taken out ─ snapshot removed
//! sweep ── the same for each snapshot without a lock holder
//! ```
//!
//! Nothing of Airlock's appears in the folder at any time. The lock ends with its holders: the
//! engine and pid 1 of the sandbox.

mod beneath;
mod held;
mod hidden_files;
mod link_targets;
mod names;
mod settle;
mod snapshot;
#[cfg(test)]
mod tests;
mod walk;

pub use beneath::target_inside;
pub use held::{HeldThing, discard_held, held_lists, held_path, take_back};
pub use hidden_files::{MAX_HIDDEN, holds_credentials, holds_key};
pub use names::{find, find_below, is_spared, lifts_nothing, protects};
pub use settle::resolve_inside;
pub use snapshot::{REPOSITORY, is_repository};

use super::mount_watch::WatchFindings;
use held::HeldFolder;
use hidden_files::HiddenFileCover;
use init::protocol::RemountedName;
use rustix::fs::{FileType, FlockOperation, OFlags};
use snapshot::WorkspaceSnapshot;
use spec::{HeldBackPath, HiddenFiles, Id, ProtectedNames, SandboxSpec};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// Names that a note lists.
const MAX_LISTED: usize = 10;
/// What to say of names that toolchains or agents obey.
const NOTED: &str = "changed: toolchains or agents obey it, so look at it before you use it";

/// A name in the workspace that the program may only read, or not even that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Relative to the workspace; resolved beneath it, through no symbolic link.
    pub path: PathBuf,
    /// Whether an empty file or folder covers it.
    pub hidden: bool,
    /// The expected inode.
    pub inode: u64,
}

/// The protection of one workspace for one run. If it is dropped without being taken down, the
/// sweep does that.
#[derive(Debug)]
pub struct Protection {
    workspace: OwnedFd,
    /// None where the changes are reviewed before they are applied.
    held: Option<(WorkspaceSnapshot, HeldFolder)>,
    /// The layer that takes the changes, locked against its removal and application.
    layer: Option<OwnedFd>,
    binds: Vec<Bind>,
    replaced: Vec<ReplacedFile>,
    artifacts_kept: bool,
    notes: Vec<String>,
}

/// A protected name that a host tool replaced while the program ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedFile {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// The file that was found once it was read-only; none for a folder.
    pub file: Option<FileState>,
    /// Whether it is hidden, and was covered again.
    pub hidden: bool,
    /// How long the program could have written it, or read a hidden file.
    pub exposed: Duration,
}

/// By what an unchanged file is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    inode: u64,
    born: (i64, i64),
    /// The change time, which only the kernel sets.
    changed: (i64, i64),
}

/// Whether a file other than a symbolic link is there.
pub fn is_file_or_folder(workspace: BorrowedFd<'_>, path: &Path) -> bool {
    let found = beneath::open(workspace, path, OFlags::PATH);
    let found = found.and_then(|file| Ok(rustix::fs::fstat(file)?));
    found.is_ok_and(|found| beneath::kind(&found) != FileType::Symlink)
}

impl FileState {
    /// Reads the state of a regular file in a workspace.
    pub fn look(workspace: BorrowedFd<'_>, path: &Path) -> Option<FileState> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let folder = beneath::open_folder(workspace, folder).ok()?;
        FileState::in_folder(folder.as_fd(), path.file_name()?)
    }

    /// The same file as it was when it became read-only again.
    pub fn as_of(self, mounted: &RemountedName) -> Option<FileState> {
        let changed = (
            mounted.changed_seconds as i64,
            mounted.changed_nanoseconds as i64,
        );
        (self.inode == mounted.inode).then_some(FileState { changed, ..self })
    }

    fn in_folder(folder: BorrowedFd<'_>, name: &OsStr) -> Option<FileState> {
        let found = beneath::look(folder, name).ok()??;
        (beneath::kind(&found) == FileType::RegularFile).then_some(())?;
        Some(FileState {
            inode: found.st_ino,
            born: beneath::born(folder, name).ok()?,
            changed: (found.st_ctime, found.st_ctime_nsec as i64),
        })
    }
}

/// The result of a cleanup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceCleanup {
    /// What was taken out of the workspace.
    pub held_back: Vec<HeldBackPath>,
    /// The run under which it is listed: the run's own id may be in use by an earlier one.
    pub held_as: Option<String>,
    /// Notes for the result.
    pub notes: Vec<String>,
}

/// Why a workspace cannot be protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// Git would obey the files in it, which are all the program's to write.
    #[error("the workspace is itself a git repository: it has `HEAD`, `objects` and `refs`")]
    Bare,
    /// It could not be scanned.
    #[error("cannot look through the workspace")]
    Look {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The snapshot could not be written.
    #[error("cannot write down what is in the workspace, in `{}`", state.display())]
    State {
        /// The state folder.
        state: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ProtectError {
    /// A hint.
    pub fn hint(&self) -> String {
        match self {
            ProtectError::Bare => "mount a checkout of it, or `--allow-protected HEAD`".to_owned(),
            ProtectError::Look { .. } => "mount a smaller folder, or one that is yours".to_owned(),
            ProtectError::State { .. } => "the state folder must be yours to write".to_owned(),
        }
    }
}

impl Protection {
    /// The protection that a workspace needs before its program starts.
    pub fn of(
        state: &Path,
        run: &Id,
        workspace: OwnedFd,
        spec: &SandboxSpec,
    ) -> Result<Protection, ProtectError> {
        let look = |source| ProtectError::Look { source };
        if let Some(overlay) = &spec.overlay {
            let layer = beneath::open_absolute(&overlay.layer).map_err(look)?;
            return Ok(Protection {
                layer: Some(in_use(layer).map_err(look)?),
                ..Protection::hiding(workspace, &overlay.hidden)?
            });
        }
        if spec.copy_on_write {
            let layer = workspace.try_clone().and_then(in_use).map_err(look)?;
            return Ok(Protection {
                layer: Some(layer),
                ..Protection::reviewed(workspace)
            });
        }
        if spec.read_only_workspace {
            return Protection::read_only(workspace, spec);
        }
        Protection::put_up(state, run, workspace.as_fd(), spec)
    }

    /// Scans a workspace that the program may write. Allowed names, and all below them, are the
    /// program's to write.
    pub fn put_up(
        state: &Path,
        run: &Id,
        workspace: BorrowedFd<'_>,
        spec: &SandboxSpec,
    ) -> Result<Protection, ProtectError> {
        let look = |source| ProtectError::Look { source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let workspace = beneath::open(workspace, ".", flags).map_err(look)?;
        let is_lifted = spec.protected.allows(Path::new(names::HEAD));
        if !is_lifted && snapshot::is_bare_repository(&workspace, Path::new(".")) {
            return Err(ProtectError::Bare);
        }
        let state_error = |source| {
            let state = state.to_owned();
            ProtectError::State { state, source }
        };
        let path = beneath::path_of(&workspace).map_err(look)?;
        let unsettled = || held::unsettled(state, &path).map_err(state_error);
        // Before and after the scan: runs may end or begin meanwhile.
        let mut others = unsettled()?;
        let mut hiding = HiddenFileCover::new(&spec.hide);
        let mut start = WorkspaceSnapshot::look(workspace.as_fd(), &spec.protected, &mut hiding)
            .map_err(look)?;
        start.expect(workspace.as_fd(), &spec.transient_inputs);
        let second = link_targets::second_names(workspace.as_fd(), &start).map_err(look)?;
        let sockets = hiding.reachable_sockets(workspace.as_fd(), &spec.protected);
        let hidden = [&hiding.found[..], &sockets].concat();
        let binds = binds(workspace.as_fd(), &start, second, &hidden).map_err(look)?;
        others.extend(unsettled()?);
        for other in &others {
            start.leave_out_news_of(other);
        }
        let hold = HeldFolder::create(state, run, &start.to_text()).map_err(state_error)?;
        let unread: Vec<_> = start.unread.iter().cloned().collect();
        let unread = listed(
            &unread,
            "could not be looked into: what tools obey there is not protected",
        );
        Ok(Protection {
            workspace,
            held: Some((start, hold)),
            layer: None,
            binds,
            replaced: Vec::new(),
            artifacts_kept: false,
            notes: lifting_notes(spec)
                .chain(unread)
                .chain(hiding_note(&hiding.found))
                .chain(sockets_note(&sockets))
                .collect(),
        })
    }

    /// For a workspace that cannot be written: only hidden files matter.
    fn read_only(workspace: OwnedFd, spec: &SandboxSpec) -> Result<Protection, ProtectError> {
        let mut hiding = HiddenFileCover::new(&spec.hide);
        let looked = hiding.look(workspace.as_fd());
        looked.map_err(|source| ProtectError::Look { source })?;
        let sockets = hiding.reachable_sockets(workspace.as_fd(), &spec.protected);
        let hidden = [&hiding.found[..], &sockets].concat();
        Ok(Protection {
            notes: hiding_note(&hiding.found)
                .into_iter()
                .chain(sockets_note(&sockets))
                .collect(),
            ..Protection::hiding(workspace, &hidden)?
        })
    }

    /// For a workspace of which only these files are hidden.
    fn hiding(workspace: OwnedFd, hidden: &[PathBuf]) -> Result<Protection, ProtectError> {
        let binds = binds(
            workspace.as_fd(),
            &WorkspaceSnapshot::default(),
            Vec::new(),
            hidden,
        );
        Ok(Protection {
            binds: binds.map_err(|source| ProtectError::Look { source })?,
            ..Protection::reviewed(workspace)
        })
    }

    /// For a workspace whose changes are reviewed before they are applied: nothing needs
    /// protection.
    pub fn reviewed(workspace: OwnedFd) -> Protection {
        Protection {
            workspace,
            held: None,
            layer: None,
            binds: Vec::new(),
            replaced: Vec::new(),
            artifacts_kept: false,
            notes: Vec::new(),
        }
    }

    /// The names to be mounted read-only, parents first.
    pub fn binds(&self) -> &[Bind] {
        &self.binds
    }

    /// The workspace.
    pub fn workspace(&self) -> BorrowedFd<'_> {
        self.workspace.as_fd()
    }

    /// The lock of the run. Pid 1 of the sandbox inherits it, out of the program's reach: then no
    /// sweep cleans up a workspace in which a program may still run.
    pub fn lock(&self) -> Option<BorrowedFd<'_>> {
        let held = self.held.as_ref().map(|(_, hold)| hold.lock.as_fd());
        held.or(self.layer.as_ref().map(AsFd::as_fd))
    }

    /// All that the program put into the artifacts folder was collected: it need not stay.
    pub fn mark_artifacts_kept(&mut self) {
        self.artifacts_kept = true;
    }

    /// Adds the findings of the mount watch.
    pub(super) fn take_in(&mut self, found: WatchFindings) {
        self.replaced.extend(found.replaced);
        self.notes.extend(found.problems);
    }

    /// Takes out what does not belong in the workspace. The program must have ended.
    pub fn take_down(self) -> WorkspaceCleanup {
        let CleanupResult { mut taken_down, .. } = match self.held {
            Some((start, hold)) => settle(
                self.workspace.as_fd(),
                &start,
                &self.replaced,
                self.artifacts_kept,
                hold,
            ),
            None => CleanupResult::default(),
        };
        taken_down.notes.splice(0..0, self.notes);
        taken_down
    }
}

/// Whether a folder of a workspace is protected or contains a protected name. A folder that cannot
/// be read may.
pub fn shows_protected(workspace: &Path, inside: &Path, names: &ProtectedNames) -> bool {
    let has = || {
        let folder = beneath::open_absolute(&workspace.join(inside))?;
        let everywhere = ProtectedNames {
            paths: Vec::new(),
            allowed: Vec::new(),
            ..names.clone()
        };
        let nothing = HiddenFiles::none();
        let start = WorkspaceSnapshot::look(
            folder.as_fd(),
            &everywhere,
            &mut HiddenFileCover::new(&nothing),
        )?;
        let mut found = start.protected.keys().map(|name| inside.join(name));
        io::Result::Ok(!start.unread.is_empty() || found.any(|name| !names.allows(&name)))
    };
    let named = names
        .paths
        .iter()
        .any(|it| it.as_path().starts_with(inside));
    named || protects(inside, names).is_some() || has().unwrap_or(true)
}

/// Names in `--allow-protected` that have no effect.
pub fn lifting_notes(spec: &SandboxSpec) -> impl Iterator<Item = String> {
    let is_folder = |path: &Path| {
        let found = spec.workspace.as_ref().map(|it| it.join(path).metadata());
        let kind = found.and_then(Result::ok).map(|found| found.file_type());
        // A socket can be allowed, too.
        kind.is_some_and(|kind| kind.is_dir() || kind.is_socket())
    };
    spec.protected.allowed.iter().filter_map(move |path| {
        let path = path.as_path();
        let why = names::lifts_nothing(path, is_folder(path), &spec.protected)?;
        let shown = path.to_string_lossy().escape_debug().to_string();
        Some(format!("`--allow-protected {shown}` lifts nothing: {why}"))
    })
}

/// A note about hidden files.
pub fn hiding_note(hidden: &[PathBuf]) -> Option<String> {
    listed(
        hidden,
        "cannot be opened inside: hidden, as `--hide` says (`--hide none` hides only what you name)",
    )
}

/// A note about covered sockets.
fn sockets_note(sockets: &[PathBuf]) -> Option<String> {
    listed(
        sockets,
        "is a socket of a program outside, and is covered: whoever listens there cannot be talked to from inside \
         (`--allow-protected` with its path uncovers it)",
    )
}

/// Of paths that a program changed and that stay, those that toolchains or agents obey.
pub fn noted_paths<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    let noted = |path: &'a Path| {
        if names::is_noted(path) {
            Some(path)
        } else {
            names::environment(path)
        }
    };
    let noted: BTreeSet<_> = paths.filter_map(noted).map(Path::to_owned).collect();
    noted.into_iter().collect()
}

/// A note about them.
pub fn noted_note(noted: &[PathBuf]) -> Option<String> {
    listed(noted, NOTED)
}

/// A note about the number of new names in packages that would be protected elsewhere.
pub fn spared_note(count: usize) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "{count} names of editors and agents are new among the packages in the workspace, and stay there: open none \
             of these folders by itself"
        )
    })
}

/// The mounts: each existing name read-only onto itself; for a link, its target in the workspace;
/// and other hard links of them. It fails if a name was replaced meanwhile, because the replacement
/// would not be protected.
fn binds(
    workspace: BorrowedFd<'_>,
    start: &WorkspaceSnapshot,
    second: Vec<PathBuf>,
    hidden: &[PathBuf],
) -> io::Result<Vec<Bind>> {
    let mut binds = BTreeMap::new();
    let mut add = |path: PathBuf, handle: OwnedFd, hidden| {
        let inode = rustix::fs::fstat(&handle)?.st_ino;
        binds.insert(path, (hidden, inode));
        io::Result::Ok(())
    };
    for (path, entry) in &start.protected {
        let place = match entry.target {
            None => path.clone(),
            Some(_) => match beneath::target_inside(workspace, path) {
                Some(place) => place,
                None => continue,
            },
        };
        let handle = beneath::open(workspace, &place, OFlags::PATH)?;
        if entry.target.is_none() && beneath::born(&handle, "")? != entry.born {
            let shown = path.to_string_lossy().escape_debug().to_string();
            let message = format!("`{shown}` was replaced meanwhile");
            return Err(io::Error::other(message));
        }
        add(place, handle, false)?;
    }
    for place in second {
        let handle = beneath::open(workspace, &place, OFlags::PATH)?;
        add(place, handle, false)?;
    }
    for path in hidden {
        // The file that a hidden link leads to must not be read.
        let place = match beneath::look(workspace, path)? {
            Some(found) if beneath::kind(&found) == FileType::Symlink => {
                beneath::target_inside(workspace, path)
            }
            Some(_) => Some(path.clone()),
            None => None,
        };
        if let Some(place) = place {
            let handle = beneath::open(workspace, &place, OFlags::PATH)?;
            add(place, handle, true)?;
        }
    }
    let binds = binds.into_iter();
    let bind = |(path, (hidden, inode))| Bind {
        path,
        hidden,
        inode,
    };
    Ok(binds.map(bind).collect())
}

/// Locks a layer for as long as one of its users lives.
fn in_use(layer: OwnedFd) -> io::Result<OwnedFd> {
    rustix::fs::flock(&layer, FlockOperation::NonBlockingLockShared)?;
    Ok(layer)
}

/// The result of the cleanup of a workspace without a running program.
#[derive(Default)]
struct CleanupResult {
    taken_down: WorkspaceCleanup,
    /// Whether something could not be done.
    failed: bool,
}

fn settle(
    workspace: BorrowedFd<'_>,
    start: &WorkspaceSnapshot,
    replaced: &[ReplacedFile],
    artifacts_kept: bool,
    mut hold: HeldFolder,
) -> CleanupResult {
    let findings = settle::settle(workspace, start, replaced, artifacts_kept, &mut hold);
    let mut failed = findings.unfinished || !findings.problems.is_empty();
    let mut notes = findings.problems;
    let more = findings.problem_count.saturating_sub(notes.len());
    if more > 0 {
        notes.push(format!(
            "{more} more names in the workspace could not be checked or taken out; look at it before you use the folder"
        ));
    }
    let held_as = Some(hold.name());
    notes.extend(replaced_notes(replaced));
    notes.extend(found_note(
        findings.cleared,
        "had set-user-id or set-group-id bits, which were cleared",
    ));
    notes.extend(found_note(
        findings.changed,
        "was changed meanwhile, by you or through a second name: look at it before you use it",
    ));
    notes.extend(found_note(findings.noted, NOTED));
    notes.extend(spared_note(findings.spared));
    if findings.unfinished {
        notes.push("`airlock sweep` looks through the workspace once more".to_owned());
        let taken_down = WorkspaceCleanup {
            held_back: hold.leave(),
            held_as,
            notes,
        };
        return CleanupResult { taken_down, failed };
    }
    let held_back = hold.close().unwrap_or_else(|error| {
        notes.push(format!("`airlock sweep` finishes the workspace: {error}"));
        failed = true;
        Vec::new()
    });
    let taken_down = WorkspaceCleanup {
        held_as: held_as.filter(|_| !held_back.is_empty()),
        held_back,
        notes,
    };
    CleanupResult { taken_down, failed }
}

fn replaced_notes(replaced: &[ReplacedFile]) -> impl Iterator<Item = String> {
    let note = |hidden: bool, then: &str| {
        let replaced: Vec<_> = replaced.iter().filter(|it| it.hidden == hidden).collect();
        let longest = replaced.iter().map(|it| it.exposed).max()?;
        let paths: BTreeSet<_> = replaced.iter().map(|it| it.path.clone()).collect();
        let paths: Vec<_> = paths.into_iter().collect();
        let what = format!(
            "was replaced by a tool of the host while the program ran, and was {then} again after about {longest:.0?}"
        );
        listed(&paths, &what)
    };
    let written = note(false, "read-only").map(|note| note + ": look at it before you use it");
    [written, note(true, "hidden")].into_iter().flatten()
}

/// One sentence about what the end found.
fn found_note(paths: settle::Paths, what: &str) -> Option<String> {
    let first: Vec<_> = paths.first.into_iter().collect();
    let note = listed(&first, what)?;
    match paths.is_cut {
        true => Some(format!("{note}; and there are others")),
        false => Some(note),
    }
}

/// One sentence about some paths.
fn listed(paths: &[PathBuf], what: &str) -> Option<String> {
    let shown = paths.iter().take(MAX_LISTED);
    let shown = shown.map(|path| format!("`{}`", path.to_string_lossy().escape_debug()));
    let mut shown: Vec<_> = shown.collect();
    if paths.len() > MAX_LISTED {
        shown.push(format!("{} more", paths.len() - MAX_LISTED));
    }
    (!paths.is_empty()).then(|| format!("{} in the workspace {what}", shown.join(", ")))
}

/// Notes about the workspaces of dead runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweptWorkspaces {
    /// What was done.
    pub notes: Vec<String>,
    /// What could not be done.
    pub problems: Vec<String>,
}

/// Cleans up the workspaces of dead runs.
pub fn sweep(state: &Path) -> SweptWorkspaces {
    let mut swept = SweptWorkspaces::default();
    let folders = held::folders(state).unwrap_or_else(|error| {
        let problem = format!("the records of workspaces: {error}");
        swept.problems.push(problem);
        Vec::new()
    });
    for folder in folders {
        if let Err(error) = sweep_one(&folder, &mut swept) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            let problem = format!("the workspace of run {name}: {error}");
            swept.problems.push(problem);
        }
    }
    swept
}

fn sweep_one(folder: &Path, swept: &mut SweptWorkspaces) -> io::Result<()> {
    let Some((hold, text)) = HeldFolder::take_over(folder)? else {
        return Ok(());
    };
    let damaged = || io::Error::other("its record is damaged");
    let start = WorkspaceSnapshot::parse(&text).ok_or_else(damaged)?;
    let shown = start.workspace.to_string_lossy().escape_debug().to_string();
    let workspace = match beneath::open_absolute(&start.workspace) {
        Ok(workspace) if rustix::fs::fstat(&workspace)?.st_ino == start.inode => workspace,
        Ok(_) => return forget(hold, &shown, swept),
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return forget(hold, &shown, swept),
        Err(error) => return Err(error),
    };
    let CleanupResult { taken_down, failed } = settle(workspace.as_fd(), &start, &[], false, hold);
    let taken = taken_down.held_back.iter().map(|it| {
        let path = it.path.escape_debug();
        format!("`{path}` was taken out of `{shown}`: {}", it.why.words())
    });
    swept.notes.extend(taken.take(MAX_LISTED));
    let said = if failed {
        &mut swept.problems
    } else {
        &mut swept.notes
    };
    said.extend(taken_down.notes);
    Ok(())
}

fn forget(hold: HeldFolder, shown: &str, swept: &mut SweptWorkspaces) -> io::Result<()> {
    hold.close()?;
    swept.problems.push(format!(
        "the workspace `{shown}` is gone or was moved: what a killed program left there was not looked at"
    ));
    Ok(())
}
