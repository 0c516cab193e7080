//! The names that are protected, and why.
//!
//! The measure: a tool, shell, editor or agent of the host executes or obeys it when the user merely
//! enters the folder, opens it, or asks git for its state. What runs only when the user runs the
//! project itself (makefiles, package scripts, `.npmrc`) is not here: that is as good as its sources.

use spec::WorkspacePath;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

/// One protected name, at every depth of a workspace. Letter case is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedName {
    /// The name, or a folder and a name in it.
    pub name: &'static str,
    /// Why the program must not write it.
    pub reason: &'static str,
    /// Whether it counts below folders of installed packages, too.
    in_packages: bool,
}

/// Where version control of the workspace is.
const GIT: &str = ".git";
/// With the others of a repository beside it, it makes one of the folder that holds it.
pub(super) const HEAD: &str = "HEAD";

const fn version_control(name: &'static str, reason: &'static str) -> ProtectedName {
    ProtectedName {
        name,
        reason,
        in_packages: true,
    }
}

const fn obeyed(name: &'static str, reason: &'static str) -> ProtectedName {
    ProtectedName {
        name,
        reason,
        in_packages: false,
    }
}

const AGENT: &str = "settings of an agent: hooks, permissions, tool servers that it starts";
const HOOKS: &str = "names hooks that git runs";
const SHELL: &str = "run by shells where the folder is a home";

/// Every protected name.
pub const PROTECTED: &[ProtectedName] = &[
    version_control(GIT, "its config and hooks name programs that git runs"),
    version_control(
        ".hg",
        "its hgrc names hooks and extensions that Mercurial runs",
    ),
    version_control(".jj", "its config names programs that Jujutsu runs"),
    version_control(".sl", "its config names programs that Sapling runs"),
    version_control(".svn", "its hooks and config are obeyed by Subversion"),
    version_control(".bzr", "its config names programs that Bazaar runs"),
    version_control("_darcs", "its preferences name programs that darcs runs"),
    version_control(".pijul", "its config names hooks that Pijul runs"),
    obeyed(".envrc", "direnv runs it on entering the folder"),
    obeyed(
        "mise.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        ".mise.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        "mise.local.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        ".mise.local.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        ".config/mise.local.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        "mise/config.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        "mise/config.local.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(".mise", "mise runs what it names on entering the folder"),
    obeyed(
        ".config/mise",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        ".config/mise.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(".devcontainer", "`initializeCommand` runs on the host"),
    obeyed(".devcontainer.json", "`initializeCommand` runs on the host"),
    obeyed(".vscode", "tasks that run on opening, paths of tools"),
    obeyed(".idea", "run configurations and startup tasks"),
    obeyed(".zed", "tasks, paths of language servers"),
    obeyed(".helix", "paths of language servers"),
    obeyed(".exrc", "run by vi on opening"),
    obeyed("_exrc", "run by vi on opening"),
    obeyed(".nvim.lua", "run by Neovim on opening"),
    obeyed(".nvimrc", "run by Neovim on opening"),
    obeyed(".vimrc", "run by vim where the folder is a home"),
    obeyed("_vimrc", "run by vim on opening, as `.exrc`"),
    obeyed(".gvimrc", "run by gvim on opening, as `.exrc`"),
    obeyed("_gvimrc", "run by gvim on opening, as `.exrc`"),
    obeyed(".dir-locals.el", "obeyed by Emacs on opening"),
    obeyed(".dir-locals-2.el", "obeyed by Emacs on opening"),
    obeyed(".cursor", AGENT),
    obeyed(".claude", AGENT),
    obeyed(".codex", AGENT),
    obeyed(".gemini", AGENT),
    obeyed(".mcp.json", "tool servers that agents start"),
    obeyed("opencode.json", AGENT),
    obeyed("opencode.jsonc", AGENT),
    obeyed(".opencode", AGENT),
    obeyed(".aider.conf.yml", AGENT),
    obeyed(".kiro", AGENT),
    obeyed(".amazonq", AGENT),
    obeyed(".windsurf", AGENT),
    obeyed(".roo", AGENT),
    obeyed(".continue", AGENT),
    obeyed(".qwen", AGENT),
    obeyed(".factory", AGENT),
    obeyed("crush.json", AGENT),
    obeyed(".crush.json", AGENT),
    obeyed(".github/hooks", AGENT),
    obeyed(".husky", "hooks that `core.hooksPath` often names"),
    obeyed(".githooks", "hooks that `core.hooksPath` often names"),
    obeyed(".pre-commit-config.yaml", HOOKS),
    obeyed(".pre-commit-config.yml", HOOKS),
    obeyed("lefthook.yml", HOOKS),
    obeyed("lefthook.yaml", HOOKS),
    obeyed("lefthook.toml", HOOKS),
    obeyed("lefthook.json", HOOKS),
    obeyed(".lefthook.yml", HOOKS),
    obeyed(".lefthook.yaml", HOOKS),
    obeyed(".lefthook.toml", HOOKS),
    obeyed(".lefthook.json", HOOKS),
    obeyed(".lefthook", HOOKS),
    obeyed("lefthook-local.yml", HOOKS),
    obeyed("lefthook-local.yaml", HOOKS),
    obeyed("lefthook-local.toml", HOOKS),
    obeyed("lefthook-local.json", HOOKS),
    obeyed(".lfsconfig", "names programs that git-lfs runs"),
    obeyed(".gitconfig", "read by git where the folder is a home"),
    obeyed(".bashrc", SHELL),
    obeyed(".bash_profile", SHELL),
    obeyed(".bash_login", SHELL),
    obeyed(".bash_logout", SHELL),
    obeyed(".profile", SHELL),
    obeyed(".zshrc", SHELL),
    obeyed(".zprofile", SHELL),
    obeyed(".zshenv", SHELL),
    obeyed(".zlogin", SHELL),
    obeyed(".zlogout", SHELL),
];

/// Folders of installed packages: editor and agent settings in them are nobody's to obey.
const PACKAGES: [&str; 3] = ["node_modules", ".venv", "site-packages"];

/// Obeyed by toolchains, or read by agents as text: said in the result when a program changes them, and left in place.
const NOTED: [&str; 8] = [
    "rust-toolchain",
    "rust-toolchain.toml",
    ".cargo/config.toml",
    ".tool-versions",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    ".github/copilot-instructions.md",
];

/// The protected name that `path` (relative to the workspace) is, or lies below.
pub fn find(path: &Path) -> Option<&'static ProtectedName> {
    let parts: Vec<&OsStr> = path.iter().collect();
    (0..parts.len()).find_map(|last| find_at(&parts[..=last]))
}

/// The same for a path whose folders are known to be unprotected: only its last name is looked at.
pub(super) fn find_last(path: &Path) -> Option<&'static ProtectedName> {
    let parts: Vec<&OsStr> = path.iter().collect();
    find_at(&parts)
}

fn find_at(parts: &[&OsStr]) -> Option<&'static ProtectedName> {
    let found = PROTECTED.iter().find(|it| ends_with(parts, it.name))?;
    let in_packages = || {
        let folders = &parts[..parts.len() - 1];
        let is_package = |part: &&OsStr| PACKAGES.iter().any(|name| *part == OsStr::new(name));
        folders.iter().any(is_package)
    };
    (found.in_packages || !in_packages()).then_some(found)
}

/// The protected name that a link at `path` would bring from elsewhere: one that is a folder and a name in it.
pub fn find_below(path: &Path) -> Option<&'static ProtectedName> {
    let parts: Vec<&OsStr> = path.iter().collect();
    PROTECTED.iter().find(|it| {
        let folder = it.name.rsplit_once('/').map(|(folder, _)| folder);
        folder.is_some_and(|folder| ends_with(&parts, folder))
    })
}

/// Whether a change of this path is to be said.
pub(super) fn is_noted(path: &Path) -> bool {
    let parts: Vec<&OsStr> = path.iter().collect();
    NOTED.iter().any(|name| ends_with(&parts, name))
}

/// Whether the path's last parts are this name, in any letter case.
fn ends_with(parts: &[&OsStr], name: &str) -> bool {
    let mut names = name.rsplit('/');
    let mut parts = parts.iter().rev();
    names.all(|name| {
        parts
            .next()
            .is_some_and(|part| part.as_bytes().eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// Whether `--allow-protected` names this path or a folder above it.
pub fn is_allowed(path: &Path, allowed: &[WorkspacePath]) -> bool {
    allowed.iter().any(|it| path.starts_with(it.as_path()))
}

/// The protected name that stands against a change at `path`, if any does.
pub fn protects(path: &Path, allowed: &[WorkspacePath]) -> Option<&'static ProtectedName> {
    find(path).filter(|_| !is_allowed(path, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_at_every_depth_and_in_any_case() {
        let named = |path: &str| find(Path::new(path)).map(|found| found.name);
        assert_eq!(named(".git"), Some(".git"));
        assert_eq!(named("vendor/lib/.GIT/config"), Some(".git"));
        assert_eq!(named("a/b/.Envrc"), Some(".envrc"));
        assert_eq!(named("a/.config/mise/config.toml"), Some(".config/mise"));
        assert_eq!(named(".github/workflows/ci.yml"), None);
        assert_eq!(named(".gitignore"), None);
        assert_eq!(named("src/git"), None);
        assert_eq!(named("src/.dir-locals-2.el"), Some(".dir-locals-2.el"));
        let below = |path: &str| find_below(Path::new(path)).is_some();
        assert!(below(".config") && below("a/.GitHub") && !below("config") && !below(".vscode"));
        assert_eq!(named(""), None);
    }

    #[test]
    fn settings_of_installed_packages_are_left_alone_but_their_repositories_are_not() {
        let named = |path: &str| find(Path::new(path)).map(|found| found.name);
        assert_eq!(named("node_modules/x/.vscode/settings.json"), None);
        assert_eq!(named("lib/site-packages/x/.idea"), None);
        assert_eq!(named("node_modules/x/.git/config"), Some(".git"));
        assert_eq!(named(".vscode/node_modules"), Some(".vscode"));
    }

    #[test]
    fn an_allowed_name_is_not_protected_and_others_are() {
        let allowed = [WorkspacePath::new(".envrc".as_ref()).unwrap()];
        assert!(protects(Path::new(".envrc"), &allowed).is_none());
        assert!(protects(Path::new("sub/.envrc"), &allowed).is_some());
        assert!(protects(Path::new(".vscode"), &allowed).is_some());
    }
}
