//! The names that are protected, and why.
//!
//! The measure: a tool, shell, editor or agent of the host executes or obeys it when the user merely
//! enters the folder, opens it, or asks git for its state. What runs only when the user runs the
//! project itself (makefiles, package scripts, `.npmrc`) is not here: that is as good as its sources.

use spec::WorkspacePath;
use std::path::Path;

/// What stands in for a name that is absent while a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stub {
    /// An empty folder, also for names that are usually files: git neither shows nor adds it.
    Folder,
    /// A file, where git reads the name and a folder would make it fail.
    File(&'static [u8]),
}

/// One protected name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protected {
    /// Relative to the workspace.
    pub name: &'static str,
    /// Why the program must not write it.
    pub reason: &'static str,
    pub(super) stub: Stub,
}

/// Where the tmpfs of the program's home goes.
pub(super) const HOME: &str = ".home";
/// The repository of the workspace; itself writable, but not to be moved away.
pub(super) const GIT: &str = ".git";
/// Without it no folder is a repository.
pub(super) const HEAD: &str = "HEAD";

const fn folder(name: &'static str, reason: &'static str) -> Protected {
    Protected {
        name,
        reason,
        stub: Stub::Folder,
    }
}

const fn file(name: &'static str, reason: &'static str, content: &'static [u8]) -> Protected {
    Protected {
        name,
        reason,
        stub: Stub::File(content),
    }
}

/// Every protected name; those in `.git` apply where `.git` is a folder with something in it, `HEAD` where there
/// is no `.git` (beside one, `git diff HEAD` would ask which of them is meant).
pub const PROTECTED: &[Protected] = &[
    folder(".git/hooks", "git runs what lies there"),
    file(
        ".git/config",
        "names programs that git runs: fsmonitor, pager, editor, filters",
        b"",
    ),
    file(
        ".git/config.worktree",
        "read like `.git/config` where that switches it on",
        b"",
    ),
    // An empty one makes git fail; `.` says what git assumes without it.
    file(
        ".git/commondir",
        "names another folder whose config and hooks git takes",
        b".\n",
    ),
    folder(".git/modules", "configs and hooks of submodules"),
    folder(
        ".git/worktrees",
        "`commondir` and configs of linked worktrees",
    ),
    folder(
        HEAD,
        "makes a repository of a workspace that has none, and git obeys the `config` beside it",
    ),
    folder(".envrc", "direnv runs it on entering the folder"),
    folder(".vscode", "tasks that run on opening, paths of tools"),
    folder(".idea", "run configurations and startup tasks"),
    folder(".zed", "tasks, paths of language servers"),
    folder(".cursor", "hooks and tool servers that the editor starts"),
    folder(".claude", "hooks and permissions of an agent"),
    folder(
        ".codex",
        "settings of an agent, tool servers that it starts",
    ),
    folder(
        ".gemini",
        "settings of an agent, tool servers that it starts",
    ),
    folder(".mcp.json", "tool servers that agents start"),
    folder(".husky", "hooks that `core.hooksPath` often names"),
    folder(".githooks", "hooks that `core.hooksPath` often names"),
    // These matter where the workspace is a home.
    folder(".bashrc", "run by every bash"),
    folder(".bash_profile", "run by a login bash"),
    folder(".bash_login", "run by a login bash without `.bash_profile`"),
    folder(".profile", "run by login shells and display managers"),
    folder(".zshrc", "run by every interactive zsh"),
    folder(".zprofile", "run by a login zsh"),
    folder(".zshenv", "run by every zsh"),
    folder(".zlogin", "run by a login zsh"),
];

/// What `.git` is where there is no repository yet.
const REPOSITORY: Protected = folder(
    GIT,
    "makes a repository of the workspace, whose hooks and config git obeys",
);
/// Never lifted: in the box something is mounted there.
const OF_PROGRAM: Protected = folder(HOME, "the program's home is mounted there");

/// The protected name that a change at `path` touches: one that lies at it or above it, and where `down` is set also one
/// below it. Names compare by their bytes, as in most file systems.
pub fn touched(
    path: &Path,
    allowed: &[WorkspacePath],
    has_repository: bool,
    down: bool,
) -> Option<&'static Protected> {
    let lifted = |name: &Path| {
        allowed
            .iter()
            .any(|allowed| name.starts_with(allowed.as_path()))
    };
    let applies = |protected: &&Protected| match protected.name {
        GIT | HEAD => !has_repository,
        _ => true,
    };
    let touches = |name: &Path| path.starts_with(name) || down && name.starts_with(path);
    let mut all = PROTECTED.iter().chain([&REPOSITORY]).filter(applies);
    all.find(|protected| !lifted(Path::new(protected.name)) && touches(Path::new(protected.name)))
}

/// The same for whoever changes a mounted workspace from outside while a box is there.
pub fn held(
    path: &Path,
    allowed: &[WorkspacePath],
    has_repository: bool,
) -> Option<&'static Protected> {
    let of_program = path.starts_with(HOME).then_some(&OF_PROGRAM);
    of_program.or_else(|| touched(path, allowed, has_repository, true))
}

/// The stand-in for a name that may have one; nothing for any other name.
pub(super) fn stub(name: &str) -> Option<Stub> {
    match name {
        HOME | GIT => Some(Stub::Folder),
        _ => PROTECTED
            .iter()
            .find(|protected| protected.name == name)
            .map(|protected| protected.stub),
    }
}

/// Whether something empty of this name may stand for an absent one while a box is there.
pub fn may_stand_in(name: &Path) -> bool {
    name.to_str().is_some_and(|name| stub(name).is_some())
}

/// Below `.git`: the name within it.
pub(super) fn within_git(name: &str) -> Option<&str> {
    Path::new(name)
        .strip_prefix(GIT)
        .ok()
        .and_then(Path::to_str)
        .filter(|rest| !rest.is_empty())
}
