//! Names in a workspace that a program may not write, with the reasons.
//!
//! A name is protected if a tool, shell, editor or agent of the host executes or obeys the file as
//! soon as the user enters the folder, opens it, or asks git for its state. Files that run only
//! when the user runs the project itself (makefiles, package scripts, `.npmrc`) are not in the
//! list: trusting them is trusting the sources.

use crate::WorkspacePath;
use std::path::Path;

/// One protected name, at every depth of a workspace. Letter case is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedName<'a> {
    /// The name, or a folder and a name in it. In a built-in name `*` stands for any characters.
    pub name: &'a str,
    /// Why the program must not write it.
    pub reason: &'a str,
    /// Whether it is protected below folders of installed packages, too.
    pub in_packages: bool,
}

impl<'a> ProtectedName<'a> {
    /// A name that is protected below folders of installed packages, too.
    pub const fn everywhere(name: &'a str, reason: &'a str) -> ProtectedName<'a> {
        ProtectedName {
            name,
            reason,
            in_packages: true,
        }
    }

    /// Whether it is a settings file of an editor, a shell or an agent, rather than a repository.
    pub fn is_settings(&self) -> bool {
        !self.in_packages
    }
}

/// Changes to the built-in list of protected names, for one workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProtectedNames {
    /// Names, or a folder and a name in it, that the operator or the project adds.
    pub added: Vec<String>,
    /// Built-in names that the operator removes.
    pub removed: Vec<String>,
    /// Paths that the configuration of git names, such as hooks.
    pub paths: Vec<WorkspacePath>,
    /// Paths that the program may write, with everything below them.
    pub allowed: Vec<WorkspacePath>,
}

impl ProtectedNames {
    /// Whether `--allow-protected` names this path or a folder above it.
    pub fn allows(&self, path: &Path) -> bool {
        self.allowed.iter().any(|it| path.starts_with(it.as_path()))
    }
}

/// The folder of git.
const GIT: &str = ".git";

const fn everywhere(name: &'static str, reason: &'static str) -> ProtectedName<'static> {
    ProtectedName::everywhere(name, reason)
}

/// A name that is protected outside folders of installed packages only.
const fn settings(name: &'static str, reason: &'static str) -> ProtectedName<'static> {
    ProtectedName {
        name,
        reason,
        in_packages: false,
    }
}

const AGENT: &str = "settings of an agent: hooks, permissions, tool servers that it starts";
const HOOKS: &str = "names hooks that git runs";
const SHELL: &str = "run by shells where the folder is a home";

/// The built-in list.
pub const PROTECTED: &[ProtectedName<'static>] = &[
    everywhere(GIT, "its config and hooks name programs that git runs"),
    everywhere(
        ".hg",
        "its hgrc names hooks and extensions that Mercurial runs",
    ),
    everywhere(".jj", "its config names programs that Jujutsu runs"),
    everywhere(".sl", "its config names programs that Sapling runs"),
    everywhere(".svn", "its hooks and config are obeyed by Subversion"),
    everywhere(".bzr", "its config names programs that Bazaar runs"),
    everywhere("_darcs", "its preferences name programs that darcs runs"),
    everywhere(".pijul", "its config names hooks that Pijul runs"),
    settings(".envrc", "direnv runs it on entering the folder"),
    settings(
        "mise.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        ".mise.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        "mise.local.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        ".mise.local.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        ".config/mise.local.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        "mise/config.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        "mise/config.local.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(".mise", "mise runs what it names on entering the folder"),
    settings(
        ".config/mise",
        "mise runs what it names on entering the folder",
    ),
    settings(
        ".config/mise.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        "mise.*.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        ".mise.*.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(
        "mise/config.*.toml",
        "mise runs what it names on entering the folder",
    ),
    settings(".rvmrc", "RVM runs it on entering the folder"),
    settings(".autoenv.zsh", "autoenv runs it on entering the folder"),
    settings(
        ".autoenv_leave.zsh",
        "autoenv runs it on leaving the folder",
    ),
    settings(".devcontainer", "`initializeCommand` runs on the host"),
    settings(".devcontainer.json", "`initializeCommand` runs on the host"),
    settings(".vscode", "tasks that run on opening, paths of tools"),
    settings(".idea", "run configurations and startup tasks"),
    settings(
        "*.code-workspace",
        "tasks that run on opening, paths of tools",
    ),
    settings(".fleet", "run configurations and settings of Fleet"),
    settings(".vs", "settings and tasks of Visual Studio"),
    settings(".zed", "tasks, paths of language servers"),
    settings(".helix", "paths of language servers"),
    settings(".exrc", "run by vi on opening"),
    settings("_exrc", "run by vi on opening"),
    settings(".nvim.lua", "run by Neovim on opening"),
    settings(".nvimrc", "run by Neovim on opening"),
    settings(".vimrc", "run by vim where the folder is a home"),
    settings("_vimrc", "run by vim on opening, as `.exrc`"),
    settings(".gvimrc", "run by gvim on opening, as `.exrc`"),
    settings("_gvimrc", "run by gvim on opening, as `.exrc`"),
    settings(".dir-locals.el", "obeyed by Emacs on opening"),
    settings(".dir-locals-2.el", "obeyed by Emacs on opening"),
    settings(".cursor", AGENT),
    settings(".claude", AGENT),
    settings(".codex", AGENT),
    settings(".gemini", AGENT),
    settings(".mcp.json", "tool servers that agents start"),
    settings("opencode.json", AGENT),
    settings("opencode.jsonc", AGENT),
    settings(".opencode", AGENT),
    settings(".aider.conf.yml", AGENT),
    settings(".kiro", AGENT),
    settings(".amazonq", AGENT),
    settings(".windsurf", AGENT),
    settings(".roo", AGENT),
    settings(".continue", AGENT),
    settings(".qwen", AGENT),
    settings(".factory", AGENT),
    settings("crush.json", AGENT),
    settings(".crush.json", AGENT),
    settings(".github/hooks", AGENT),
    settings(".husky", "hooks that `core.hooksPath` often names"),
    settings(".githooks", "hooks that `core.hooksPath` often names"),
    settings(".pre-commit-config.yaml", HOOKS),
    settings(".pre-commit-config.yml", HOOKS),
    settings("lefthook.yml", HOOKS),
    settings("lefthook.yaml", HOOKS),
    settings("lefthook.toml", HOOKS),
    settings("lefthook.json", HOOKS),
    settings(".lefthook.yml", HOOKS),
    settings(".lefthook.yaml", HOOKS),
    settings(".lefthook.toml", HOOKS),
    settings(".lefthook.json", HOOKS),
    settings(".lefthook", HOOKS),
    settings("lefthook-local.yml", HOOKS),
    settings("lefthook-local.yaml", HOOKS),
    settings("lefthook-local.toml", HOOKS),
    settings("lefthook-local.json", HOOKS),
    settings("lefthook.jsonc", HOOKS),
    settings(".lefthook.jsonc", HOOKS),
    settings("lefthook-local.jsonc", HOOKS),
    settings(".lefthook-local.yml", HOOKS),
    settings(".lefthook-local.yaml", HOOKS),
    settings(".lefthook-local.toml", HOOKS),
    settings(".lefthook-local.json", HOOKS),
    settings(".lefthook-local.jsonc", HOOKS),
    settings(".lefthook-local", HOOKS),
    settings("prek.toml", HOOKS),
    settings("hk.pkl", HOOKS),
    settings("captainhook.json", HOOKS),
    settings(".overcommit.yml", HOOKS),
    settings(".lfsconfig", "names programs that git-lfs runs"),
    settings(".gitconfig", "read by git where the folder is a home"),
    settings(".bashrc", SHELL),
    settings(".bash_profile", SHELL),
    settings(".bash_login", SHELL),
    settings(".bash_logout", SHELL),
    settings(".profile", SHELL),
    settings(".zshrc", SHELL),
    settings(".zprofile", SHELL),
    settings(".zshenv", SHELL),
    settings(".zlogin", SHELL),
    settings(".zlogout", SHELL),
];
