//! Which paths of a workspace have a protected name.

use spec::{PROTECTED, ProtectedName, ProtectedNames};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

/// With the others of a repository beside it, it makes one of the folder that holds it.
pub(super) const HEAD: &str = "HEAD";
/// What is said of names that are not built in.
const BY_CONFIGURATION: &str = "the configuration protects it";
const BY_GIT: &str = "the configuration of git names it";

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
        .or_else(|| Some(ProtectedName::everywhere(added()?, BY_CONFIGURATION)))
        .or_else(|| Some(ProtectedName::everywhere(named()?, BY_GIT)))
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
        .or_else(|| Some(ProtectedName::everywhere(added()?, BY_CONFIGURATION)))
        .or_else(|| Some(ProtectedName::everywhere(named()?, BY_GIT)))
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
