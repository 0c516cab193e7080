//! The names in a workspace that a program may not write, and why.
//!
//! The measure: a tool, shell, editor or agent of the host executes or obeys it when the user merely
//! enters the folder, opens it, or asks git for its state. What runs only when the user runs the
//! project itself (makefiles, package scripts, `.npmrc`) is not here: that is as good as its sources.

/// One protected name, at every depth of a workspace. Letter case is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedName<'a> {
    /// The name, or a folder and a name in it. In a usual one `*` stands for any characters.
    pub name: &'a str,
    /// Why the program must not write it.
    pub reason: &'a str,
    /// Whether it counts below folders of installed packages, too.
    pub in_packages: bool,
}

impl<'a> ProtectedName<'a> {
    /// One that counts below folders of installed packages, too.
    pub const fn everywhere(name: &'a str, reason: &'a str) -> ProtectedName<'a> {
        ProtectedName {
            name,
            reason,
            in_packages: true,
        }
    }

    /// Whether it is settings of an editor, a shell or an agent, and no repository.
    pub fn is_settings(&self) -> bool {
        !self.in_packages
    }
}

/// Where version control of the workspace is.
const GIT: &str = ".git";
const fn everywhere(name: &'static str, reason: &'static str) -> ProtectedName<'static> {
    ProtectedName::everywhere(name, reason)
}

const fn obeyed(name: &'static str, reason: &'static str) -> ProtectedName<'static> {
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
    obeyed(
        "mise.*.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        ".mise.*.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(
        "mise/config.*.toml",
        "mise runs what it names on entering the folder",
    ),
    obeyed(".rvmrc", "RVM runs it on entering the folder"),
    obeyed(".autoenv.zsh", "autoenv runs it on entering the folder"),
    obeyed(
        ".autoenv_leave.zsh",
        "autoenv runs it on leaving the folder",
    ),
    obeyed(".devcontainer", "`initializeCommand` runs on the host"),
    obeyed(".devcontainer.json", "`initializeCommand` runs on the host"),
    obeyed(".vscode", "tasks that run on opening, paths of tools"),
    obeyed(".idea", "run configurations and startup tasks"),
    obeyed(
        "*.code-workspace",
        "tasks that run on opening, paths of tools",
    ),
    obeyed(".fleet", "run configurations and settings of Fleet"),
    obeyed(".vs", "settings and tasks of Visual Studio"),
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
    obeyed("lefthook.jsonc", HOOKS),
    obeyed(".lefthook.jsonc", HOOKS),
    obeyed("lefthook-local.jsonc", HOOKS),
    obeyed(".lefthook-local.yml", HOOKS),
    obeyed(".lefthook-local.yaml", HOOKS),
    obeyed(".lefthook-local.toml", HOOKS),
    obeyed(".lefthook-local.json", HOOKS),
    obeyed(".lefthook-local.jsonc", HOOKS),
    obeyed(".lefthook-local", HOOKS),
    obeyed("prek.toml", HOOKS),
    obeyed("hk.pkl", HOOKS),
    obeyed("captainhook.json", HOOKS),
    obeyed(".overcommit.yml", HOOKS),
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
