//! A mounted workspace that cannot be turned on its owner: what tools of the host execute or obey
//! there is read-only for the program where it exists, and what the program makes under such a name
//! is taken out of the folder when it ends.
//!
//! ```text
//! put_up ── workspace looked through ─ start written down, locked ─ binds ──▶ run
//! take_down ── workspace compared with its start ─ things taken out ─ start removed
//! sweep ── the same for each start that nobody has locked any more
//! ```
//!
//! Nothing of Airlock's appears in the folder at any time. The lock dies with its holders: the
//! engine and the sandbox's first process.

mod beneath;
mod hold;
mod names;
mod settle;
mod start;
mod targets;
#[cfg(test)]
mod tests;
mod walk;

pub use beneath::target_inside;
pub use hold::{HeldThing, discard_held, held_lists, held_path, take_back};
pub use names::{PROTECTED, ProtectedName, find, find_below, is_allowed, protects};
pub use settle::resolve_inside;
pub use start::{REPOSITORY, is_repository};

use hold::HoldFolder;
use rustix::fs::OFlags;
use spec::{HeldBack, Id, WorkspacePath};
use start::{ProtectedEntry, Start};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Names that a note lists.
const MAX_LISTED: usize = 10;

/// One name in the workspace that the program may only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Relative to the workspace; to be resolved beneath it, through no symbolic link.
    pub path: PathBuf,
}

/// The protection of one workspace for one run. Dropped without being taken down, it is left to the sweep.
#[derive(Debug)]
pub struct Protection {
    workspace: OwnedFd,
    /// Nothing where the changes are looked at before they are taken over.
    held: Option<(Start, HoldFolder)>,
    binds: Vec<Bind>,
    notes: Vec<String>,
}

/// What taking down found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenDown {
    /// What was taken out of the workspace.
    pub held_back: Vec<HeldBack>,
    /// What a reader of the result should know.
    pub notes: Vec<String>,
}

/// Why a workspace cannot be protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// Git obeys what lies beside it, which is all the program's to write.
    #[error("the workspace is itself a git repository: it has `HEAD`, `objects` and `refs`")]
    Bare,
    /// It could not be looked through.
    #[error("cannot look through the workspace")]
    Look {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What was found could not be written down.
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
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            ProtectError::Bare => "mount a checkout of it, or `--allow-protected HEAD`".to_owned(),
            ProtectError::Look { .. } => "mount a smaller folder, or one that is yours".to_owned(),
            ProtectError::State { .. } => "the state folder must be yours to write".to_owned(),
        }
    }
}

impl Protection {
    /// Looks through a workspace before a program is let in. Names in `allowed`, and what lies below them, are the
    /// program's to write.
    pub fn put_up(
        state: &Path,
        run: &Id,
        workspace: BorrowedFd<'_>,
        allowed: &[WorkspacePath],
    ) -> Result<Protection, ProtectError> {
        let look = |source| ProtectError::Look { source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let workspace = beneath::open(workspace, ".", flags).map_err(look)?;
        let is_lifted = is_allowed(Path::new(names::HEAD), allowed);
        if !is_lifted && start::is_bare_repository(&workspace, Path::new(".")) {
            return Err(ProtectError::Bare);
        }
        let start = Start::look(workspace.as_fd(), allowed).map_err(look)?;
        let hold = HoldFolder::create(state, run, &start.to_text()).map_err(|source| {
            let state = state.to_owned();
            ProtectError::State { state, source }
        })?;
        let second = targets::second_names(workspace.as_fd(), &start).map_err(look)?;
        let binds = binds(workspace.as_fd(), &start, second);
        let unread: Vec<_> = start.unread.iter().cloned().collect();
        let notes = listed(
            &unread,
            "could not be looked into: what tools obey there is not protected",
        );
        Ok(Protection {
            workspace,
            held: Some((start, hold)),
            binds,
            notes: notes.into_iter().collect(),
        })
    }

    /// For a workspace that cannot be written, or whose changes are looked at before they are taken over: nothing needs
    /// to be kept from it.
    pub fn reviewed(workspace: OwnedFd) -> Protection {
        Protection {
            workspace,
            held: None,
            binds: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The names to be mounted read-only, parents first.
    pub fn binds(&self) -> &[Bind] {
        &self.binds
    }

    /// The workspace itself.
    pub fn workspace(&self) -> BorrowedFd<'_> {
        self.workspace.as_fd()
    }

    /// The lock of the run. The first process of the sandbox should inherit it, out of the program's reach: then no
    /// sweep settles a workspace in which a program may still run.
    pub fn lock(&self) -> Option<BorrowedFd<'_>> {
        self.held.as_ref().map(|(_, hold)| hold.lock.as_fd())
    }

    /// Takes out what does not belong into the workspace. The program must be gone.
    pub fn take_down(self) -> TakenDown {
        let Some((start, hold)) = self.held else {
            return TakenDown::default();
        };
        let mut taken_down = settle(self.workspace.as_fd(), &start, hold);
        taken_down.notes.splice(0..0, self.notes);
        taken_down
    }
}

/// Whether a folder of a workspace is protected or has something protected in it. What cannot be looked at may have.
pub fn shows_protected(workspace: &Path, inside: &Path, allowed: &[WorkspacePath]) -> bool {
    let has = || {
        let folder = beneath::open_absolute(&workspace.join(inside))?;
        let start = Start::look(folder.as_fd(), &[])?;
        let mut names = start.protected.keys().map(|name| inside.join(name));
        io::Result::Ok(!start.unread.is_empty() || names.any(|name| !is_allowed(&name, allowed)))
    };
    protects(inside, allowed).is_some() || has().unwrap_or(true)
}

/// What exists is mounted read-only onto itself; of a link, what it leads to in the workspace; and by its second names.
fn binds(workspace: BorrowedFd<'_>, start: &Start, second: Vec<PathBuf>) -> Vec<Bind> {
    let bind = |(path, entry): (&PathBuf, &ProtectedEntry)| match entry.target {
        None => Some(path.clone()),
        Some(_) => beneath::target_inside(workspace, path),
    };
    let paths = start.protected.iter().filter_map(bind);
    let mut paths: Vec<_> = paths.chain(second).collect();
    paths.sort();
    paths.dedup();
    paths.into_iter().map(|path| Bind { path }).collect()
}

fn settle(workspace: BorrowedFd<'_>, start: &Start, mut hold: HoldFolder) -> TakenDown {
    let findings = settle::settle(workspace, start, &mut hold);
    let mut notes = findings.problems;
    notes.extend(listed(
        &findings.cleared,
        "had set-user-id or set-group-id bits, which were cleared",
    ));
    notes.extend(listed(
        &findings.changed,
        "was changed meanwhile, by you or through a second name: look at it before you use it",
    ));
    notes.extend(listed(
        &findings.noted,
        "changed: toolchains or agents obey it, so look at it before you use it",
    ));
    match hold.close() {
        Ok(held_back) => TakenDown { held_back, notes },
        Err(error) => {
            notes.push(format!("`airlock sweep` finishes the workspace: {error}"));
            let held_back = Vec::new();
            TakenDown { held_back, notes }
        }
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

/// Settles workspaces whose runs are dead; gives back what there is to say.
pub fn sweep(state: &Path) -> Vec<String> {
    let folders = match hold::folders(state) {
        Ok(folders) => folders,
        Err(error) => return vec![format!("the records of workspaces: {error}")],
    };
    let swept = folders.iter().map(|folder| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        sweep_one(folder)
            .unwrap_or_else(|error| vec![format!("the workspace of run {name}: {error}")])
    });
    swept.flatten().collect()
}

fn sweep_one(folder: &Path) -> io::Result<Vec<String>> {
    let Some((hold, text)) = HoldFolder::take_over(folder)? else {
        return Ok(Vec::new());
    };
    let damaged = || io::Error::other("its record is damaged");
    let start = Start::parse(&text).ok_or_else(damaged)?;
    let shown = start.workspace.to_string_lossy().escape_debug().to_string();
    let workspace = match beneath::open_absolute(&start.workspace) {
        Ok(workspace) if rustix::fs::fstat(&workspace)?.st_ino == start.inode => workspace,
        Ok(_) => return forget(hold, &shown),
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return forget(hold, &shown),
        Err(error) => return Err(error),
    };
    let TakenDown { held_back, notes } = settle(workspace.as_fd(), &start, hold);
    let taken = held_back.iter().map(|it| {
        let path = it.path.escape_debug();
        format!("`{path}` was taken out of `{shown}`: {}", it.why.words())
    });
    Ok(taken.take(MAX_LISTED).chain(notes).collect())
}

fn forget(hold: HoldFolder, shown: &str) -> io::Result<Vec<String>> {
    hold.close()?;
    Ok(vec![format!(
        "the workspace `{shown}` is gone or was moved: what a killed program left there was not looked at"
    )])
}
