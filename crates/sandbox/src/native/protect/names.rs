//! The names that are protected, and why.
//!
//! The measure: a tool, shell, editor or agent of the host executes or obeys it when the user merely
//! enters the folder, opens it, or asks git for its state. What runs only when the user runs the
//! project itself (makefiles, package scripts, `.npmrc`) is not here: that is as good as its sources.

use spec::ProtectedNames;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

/// One protected name, at every depth of a workspace. Letter case is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedName<'a> {
    /// The name, or a folder and a name in it.
    pub name: &'a str,
    /// Why the program must not write it.
    pub reason: &'a str,
    /// Whether it counts below folders of installed packages, too.
    in_packages: bool,
}

impl ProtectedName<'_> {
    /// Whether it is settings of an editor, a shell or an agent, and no repository.
    pub(super) fn is_settings(&self) -> bool {
        !self.in_packages
    }
}

/// Where version control of the workspace is.
const GIT: &str = ".git";
/// With the others of a repository beside it, it makes one of the folder that holds it.
pub(super) const HEAD: &str = "HEAD";

const fn everywhere<'a>(name: &'a str, reason: &'a str) -> ProtectedName<'a> {
    ProtectedName {
        name,
        reason,
        in_packages: true,
    }
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
/// What is said of names that are not built in.
const BY_CONFIGURATION: &str = "the configuration protects it";
const BY_GIT: &str = "the configuration of git names it";
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
    obeyed("lefthook.jsonc", HOOKS),
    obeyed(".lefthook.jsonc", HOOKS),
    obeyed("lefthook-local.jsonc", HOOKS),
    obeyed(".lefthook-local.yml", HOOKS),
    obeyed(".lefthook-local.yaml", HOOKS),
    obeyed(".lefthook-local.toml", HOOKS),
    obeyed(".lefthook-local.json", HOOKS),
    obeyed(".lefthook-local.jsonc", HOOKS),
    obeyed(".lefthook-local", HOOKS),
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

/// A folder whose change is said once, not for each file in it: editors run the interpreter in it.
const ENVIRONMENT: &str = ".venv";

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
pub fn find<'a>(path: &'a Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    let parts: Vec<&OsStr> = path.iter().collect();
    (0..parts.len()).find_map(|last| find_at(&parts[..=last], rules))
}

/// The same for a path whose folders are known to be unprotected: only its last name is looked at.
pub(super) fn find_last<'a>(path: &Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    let parts: Vec<&OsStr> = path.iter().collect();
    find_at(&parts, rules)
}

fn find_at<'a>(parts: &[&OsStr], rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    let usual = PROTECTED.iter().find(|it| ends_with(parts, it.name));
    let usual = usual.filter(|it| it.in_packages || !is_in_packages(parts));
    let usual = usual.filter(|it| !is_removed(it.name, rules)).copied();
    let added = || rules.added.iter().find(|it| ends_with(parts, it));
    let named = || {
        let mut paths = rules.paths.iter().map(|it| it.as_path());
        let found = paths.find(|it| is_path(parts, it))?;
        Some(found.to_str().unwrap_or("it"))
    };
    usual
        .or_else(|| Some(everywhere(added()?, BY_CONFIGURATION)))
        .or_else(|| Some(everywhere(named()?, BY_GIT)))
}

/// Below folders of installed packages what editors and agents would obey stays.
pub(super) fn is_spared(path: &Path, rules: &ProtectedNames) -> bool {
    let parts: Vec<&OsStr> = path.iter().collect();
    let is_one = |it: &&ProtectedName<'_>| {
        !it.in_packages && ends_with(&parts, it.name) && !is_removed(it.name, rules)
    };
    is_in_packages(&parts) && PROTECTED.iter().any(|it| is_one(&it))
}

/// The protected name to which a link at `path` could lead by what lies below where it leads.
pub fn find_below<'a>(path: &Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    let parts: Vec<&OsStr> = path.iter().collect();
    let begins = |name: &str| {
        let heads = name.match_indices('/').map(|(at, _)| &name[..at]);
        heads.into_iter().any(|head| ends_with(&parts, head))
    };
    let usual = PROTECTED.iter().find(|it| begins(it.name));
    let usual = usual.filter(|it| !is_removed(it.name, rules)).copied();
    let added = || rules.added.iter().find(|it| begins(it));
    let named = || {
        let mut paths = rules.paths.iter().map(|it| it.as_path());
        let found = paths.find(|it| it.ancestors().skip(1).any(|above| is_path(&parts, above)))?;
        Some(found.to_str().unwrap_or("it"))
    };
    usual
        .or_else(|| Some(everywhere(added()?, BY_CONFIGURATION)))
        .or_else(|| Some(everywhere(named()?, BY_GIT)))
}

fn is_removed(name: &str, rules: &ProtectedNames) -> bool {
    rules.removed.iter().any(|it| it.eq_ignore_ascii_case(name))
}

fn is_in_packages(parts: &[&OsStr]) -> bool {
    let folders = &parts[..parts.len().saturating_sub(1)];
    let is_package = |part: &&OsStr| PACKAGES.iter().any(|name| *part == OsStr::new(name));
    folders.iter().any(is_package)
}

/// Whether these are the parts of a path, in any letter case.
fn is_path(parts: &[&OsStr], path: &Path) -> bool {
    let mut others = path.iter();
    !parts.is_empty()
        && parts.iter().all(|part| {
            others
                .next()
                .is_some_and(|other| part.eq_ignore_ascii_case(other))
        })
        && others.next().is_none()
}

/// Whether a change of this path is to be said.
pub(super) fn is_noted(path: &Path) -> bool {
    let parts: Vec<&OsStr> = path.iter().collect();
    NOTED.iter().any(|name| ends_with(&parts, name))
}

/// The virtual environment that a path is, or lies in.
pub(super) fn environment(path: &Path) -> Option<&Path> {
    let mut above = path.ancestors();
    above.find(|it| it.file_name() == Some(OsStr::new(ENVIRONMENT)))
}

/// Whether the path's last parts are this name, in any letter case. Asked of each name in a workspace for each that is
/// protected, so that the last part decides first.
fn ends_with(parts: &[&OsStr], name: &str) -> bool {
    let Some((last, above)) = parts.split_last() else {
        return false;
    };
    let (last, name) = (last.as_bytes(), name.as_bytes());
    let Some(start) = name.len().checked_sub(last.len()) else {
        return false;
    };
    let begins_there = start == 0 || name[start - 1] == b'/';
    if !begins_there || !name[start..].eq_ignore_ascii_case(last) {
        return false;
    }
    let folders = name[..start].strip_suffix(b"/");
    let folders = folders.map(|it| it.rsplit(|byte| *byte == b'/'));
    let mut above = above.iter().rev();
    folders.into_iter().flatten().all(|folder| {
        above
            .next()
            .is_some_and(|part| part.as_bytes().eq_ignore_ascii_case(folder))
    })
}

/// The protected name that stands against a change at `path`, if any does.
pub fn protects<'a>(path: &'a Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    find(path, rules).filter(|_| !rules.allows(path))
}

/// What is wrong with a name to be lifted, if anything is. A folder is none: what is protected below it is lifted.
pub fn lifts_nothing(path: &Path, is_folder: bool, rules: &ProtectedNames) -> Option<String> {
    if find_last(path, rules).is_some() || path == Path::new(HEAD) {
        return None;
    }
    if let Some(whole) = find(path, rules) {
        return Some(format!(
            "`{}` is protected as a whole: name that",
            whole.name
        ));
    }
    let known: Vec<&str> = PROTECTED.iter().map(|it| it.name).collect();
    let near = path.to_str().and_then(|it| spec::nearest(it, &known));
    let near = near.map(|near| format!("; did you mean `{near}`?"));
    (!is_folder).then(|| format!("it is no protected name{}", near.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::WorkspacePath;

    fn named(path: &str) -> Option<String> {
        let rules = ProtectedNames::default();
        find(Path::new(path), &rules).map(|found| found.name.to_owned())
    }

    #[test]
    fn names_are_found_at_every_depth_and_in_any_case() {
        assert_eq!(named(".git").as_deref(), Some(".git"));
        assert_eq!(named("vendor/lib/.GIT/config").as_deref(), Some(".git"));
        assert_eq!(named("a/b/.Envrc").as_deref(), Some(".envrc"));
        assert_eq!(
            named("a/.config/mise/config.toml").as_deref(),
            Some(".config/mise")
        );
        assert_eq!(named(".github/workflows/ci.yml"), None);
        assert_eq!(named(".gitignore"), None);
        assert_eq!(named("src/git"), None);
        assert_eq!(
            named("src/.dir-locals-2.el"),
            Some(".dir-locals-2.el".to_owned())
        );
        let below = |path: &str| find_below(Path::new(path), &ProtectedNames::default()).is_some();
        assert!(below(".config") && below("a/.GitHub") && !below("config") && !below(".vscode"));
        assert_eq!(named(""), None);
    }

    #[test]
    fn settings_of_installed_packages_are_left_alone_but_their_repositories_are_not() {
        assert_eq!(named("node_modules/x/.vscode/settings.json"), None);
        assert_eq!(named("lib/site-packages/x/.idea"), None);
        assert_eq!(named("node_modules/x/.git/config").as_deref(), Some(".git"));
        assert_eq!(named(".vscode/node_modules").as_deref(), Some(".vscode"));
    }

    #[test]
    fn an_allowed_name_is_not_protected_and_others_are() {
        let rules = ProtectedNames {
            allowed: vec![WorkspacePath::new(".envrc".as_ref()).unwrap()],
            ..ProtectedNames::default()
        };
        assert!(protects(Path::new(".envrc"), &rules).is_none());
        assert!(protects(Path::new("sub/.envrc"), &rules).is_some());
        assert!(protects(Path::new(".vscode"), &rules).is_some());
    }

    #[test]
    fn names_are_added_and_removed_and_paths_are_where_they_are() {
        let rules = ProtectedNames {
            added: vec![".mytool".into(), "deploy/run.sh".into()],
            removed: vec![".idea".into()],
            paths: vec![WorkspacePath::new("tools/hooks".as_ref()).unwrap()],
            allowed: Vec::new(),
        };
        let named = |path: &str| find(Path::new(path), &rules).map(|it| it.name.to_owned());
        assert_eq!(named("a/.MyTool/x").as_deref(), Some(".mytool"));
        assert_eq!(named("node_modules/a/.mytool").as_deref(), Some(".mytool"));
        assert_eq!(named("a/deploy/run.sh").as_deref(), Some("deploy/run.sh"));
        assert_eq!(named("a/deploy/other"), None);
        assert_eq!(named(".idea/x"), None);
        assert_eq!(
            named("Tools/Hooks/pre-commit").as_deref(),
            Some("tools/hooks")
        );
        assert_eq!(named("a/tools/hooks"), None);
        let below = |path: &str| find_below(Path::new(path), &rules).is_some();
        assert!(below("tools") && below("a/deploy") && below("x/.github"));
        assert!(!below("a/tools") && !below("deploy/run.sh") && !below("src"));
    }

    #[test]
    fn what_lifts_nothing_is_told_with_what_may_be_meant() {
        let rules = ProtectedNames::default();
        let told = |path: &str, is_folder| lifts_nothing(Path::new(path), is_folder, &rules);
        assert_eq!(told(".git", true), None);
        assert_eq!(told("sub/.envrc", false), None);
        assert_eq!(told("vendor", true), None);
        assert!(
            told(".git/hook", false)
                .unwrap()
                .contains("`.git` is protected as a whole")
        );
        assert!(
            told(".evnrc", false)
                .unwrap()
                .contains("did you mean `.envrc`?")
        );
        assert_eq!(told("vendor", false).unwrap(), "it is no protected name");
    }
}
