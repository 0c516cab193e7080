//! Which paths of a workspace have a protected name.

use spec::{PROTECTED, ProtectedName, ProtectedNames};
use std::{collections::HashMap, ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, sync::LazyLock};

/// With the other names of a repository beside it, it makes a repository of its folder.
pub(super) const HEAD: &str = "HEAD";
/// The reason for names that are not built in.
const BY_CONFIGURATION: &str = "the configuration protects it";
const BY_GIT: &str = "the configuration of git names it";

/// Folders of installed packages: editor and agent settings in them are not obeyed.
const PACKAGES: [&str; 3] = ["node_modules", ".venv", "site-packages"];

/// A folder that is reported as a whole: editors run the interpreter in it.
const ENVIRONMENT: &str = ".venv";

/// Names that toolchains obey, or agents read: reported when a program changes them, and left in
/// place.
const REPORTED_NAMES: [&str; 13] = [
    "rust-toolchain",
    "rust-toolchain.toml",
    ".cargo/config",
    ".cargo/config.toml",
    ".tool-versions",
    "AGENTS.md",
    "CLAUDE.md",
    "CLAUDE.local.md",
    "GEMINI.md",
    ".clinerules",
    ".cursorrules",
    ".windsurfrules",
    ".github/copilot-instructions.md",
];

/// The built-in names by their last part in lower case, for a fast lookup of each name in a
/// workspace.
static BUILT_IN: LazyLock<HashMap<Vec<u8>, Vec<ProtectedName<'static>>>> = LazyLock::new(|| {
    let mut usual: HashMap<_, Vec<_>> = HashMap::new();
    for protected in PROTECTED.iter().filter(|it| !it.name.contains(ANY)) {
        let last = last_part(protected.name).to_ascii_lowercase().into_bytes();
        usual.entry(last).or_default().push(*protected);
    }
    usual
});

/// In a built-in name, any characters.
const ANY: char = '*';

/// The built-in names with a wildcard in the last part.
static PATTERNS: LazyLock<Vec<ProtectedName<'static>>> = LazyLock::new(|| {
    let patterns = PROTECTED.iter().filter(|it| it.name.contains(ANY));
    patterns.copied().collect()
});

/// Bytes of the longest last part of a built-in name.
static MAX_BUILT_IN_BYTES: LazyLock<usize> =
    LazyLock::new(|| BUILT_IN.keys().map(Vec::len).max().unwrap_or(0));

/// The protected name that `path` (relative to the workspace) is, or is below.
pub fn find<'a>(path: &'a Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    let above = path.ancestors();
    above.filter_map(|above| find_last(above, rules)).last()
}

/// The same for a path whose folders are known to be unprotected: only its last part is compared.
pub(super) fn find_last<'a>(path: &Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    let usual = usual_name(path);
    let usual = usual.filter(|it| it.in_packages || !is_in_packages(path));
    let usual = usual.filter(|it| !is_removed(it.name, rules));
    let added = || rules.added.iter().find(|it| ends_with(path, it));
    let named = || {
        let mut paths = rules.paths.iter().map(|it| it.as_path());
        let found = paths.find(|it| is_path(path, it))?;
        Some(found.to_str().unwrap_or("it"))
    };
    usual
        .or_else(|| Some(ProtectedName::everywhere(added()?, BY_CONFIGURATION)))
        .or_else(|| Some(ProtectedName::everywhere(named()?, BY_GIT)))
}

/// Whether a protected name is spared because it is below a folder of installed packages.
pub fn is_spared(path: &Path, rules: &ProtectedNames) -> bool {
    let is_one = |it: ProtectedName<'_>| !it.in_packages && !is_removed(it.name, rules);
    usual_name(path).is_some_and(is_one) && is_in_packages(path)
}

/// The protected name that a link at `path` could lead to with a further part.
pub fn find_below<'a>(path: &Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    let begins = |name: &str| {
        let heads = name.match_indices('/').map(|(at, _)| &name[..at]);
        heads.into_iter().any(|head| ends_with(path, head))
    };
    let usual = PROTECTED.iter().find(|it| begins(it.name));
    let usual = usual.filter(|it| !is_removed(it.name, rules)).copied();
    let added = || rules.added.iter().find(|it| begins(it));
    let named = || {
        let mut paths = rules.paths.iter().map(|it| it.as_path());
        let found = paths.find(|it| it.ancestors().skip(1).any(|above| is_path(path, above)))?;
        Some(found.to_str().unwrap_or("it"))
    };
    usual
        .or_else(|| Some(ProtectedName::everywhere(added()?, BY_CONFIGURATION)))
        .or_else(|| Some(ProtectedName::everywhere(named()?, BY_GIT)))
}

/// The built-in name that a path ends with.
fn usual_name(path: &Path) -> Option<ProtectedName<'static>> {
    let mut same = usual_names(path).iter();
    let mut patterns = PATTERNS.iter();
    same.find(|it| ends_with(path, it.name))
        .or_else(|| patterns.find(|it| matches(path, it.name)))
        .copied()
}

/// Whether the path's last parts match this pattern, in any letter case. Called for each name in a
/// workspace: the end is compared first.
fn matches(path: &Path, pattern: &str) -> bool {
    let Some((before, ending)) = pattern.split_once(ANY) else {
        return false;
    };
    let (folder, beginning) = before.rsplit_once('/').unwrap_or(("", before));
    let (beginning, ending) = (beginning.as_bytes(), ending.as_bytes());
    let name = path.file_name().unwrap_or_default().as_bytes();
    let Some(rest) = name.len().checked_sub(ending.len()) else {
        return false;
    };
    let is_name = name[rest..].eq_ignore_ascii_case(ending)
        && rest >= beginning.len()
        && name[..beginning.len()].eq_ignore_ascii_case(beginning);
    let above = path.parent().unwrap_or(Path::new(""));
    is_name && (folder.is_empty() || ends_with(above, folder))
}

/// The built-in names with the same last part as a path.
fn usual_names(path: &Path) -> &'static [ProtectedName<'static>] {
    let Some(last) = path.file_name().map(OsStr::as_bytes) else {
        return &[];
    };
    if last.len() > *MAX_BUILT_IN_BYTES {
        return &[];
    }
    let usual = BUILT_IN.get(&last.to_ascii_lowercase());
    usual.map_or(&[], Vec::as_slice)
}

fn last_part(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, last)| last)
}

fn is_removed(name: &str, rules: &ProtectedNames) -> bool {
    rules.removed.iter().any(|it| it.eq_ignore_ascii_case(name))
}

fn is_in_packages(path: &Path) -> bool {
    let is_package = |part: &OsStr| PACKAGES.iter().any(|name| part == OsStr::new(name));
    path.iter().rev().skip(1).any(is_package)
}

/// Whether two paths are equal in any letter case.
fn is_path(path: &Path, other: &Path) -> bool {
    path.as_os_str().eq_ignore_ascii_case(other) && !path.as_os_str().is_empty()
}

/// Whether a change of this path is reported.
pub(super) fn is_noted(path: &Path) -> bool {
    REPORTED_NAMES.iter().any(|name| ends_with(path, name))
}

/// Whether a path is a virtual environment.
pub(super) fn is_environment(path: &Path) -> bool {
    path.file_name() == Some(OsStr::new(ENVIRONMENT))
}

/// The virtual environment that a path is, or is in.
pub(super) fn environment(path: &Path) -> Option<&Path> {
    // Called for every new file: most paths do not contain the word.
    let bytes = path.as_os_str().as_bytes();
    let mut words = bytes.windows(ENVIRONMENT.len());
    words.find(|word| *word == ENVIRONMENT.as_bytes())?;
    let mut above = path.ancestors();
    above.find(|it| is_environment(it))
}

/// Whether the path's last parts are this name, in any letter case.
fn ends_with(path: &Path, name: &str) -> bool {
    let mut parts = path.iter().rev();
    name.rsplit('/').all(|wanted| {
        parts
            .next()
            .is_some_and(|part| part.eq_ignore_ascii_case(wanted))
    })
}

/// The protected name that forbids a change at `path`, if there is one.
pub fn protects<'a>(path: &'a Path, rules: &'a ProtectedNames) -> Option<ProtectedName<'a>> {
    find(path, rules).filter(|_| !rules.allows(path))
}

/// Why allowing a name has no effect, if it has none. A folder is fine: protected names below it
/// are allowed.
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
    let near = path.to_str().and_then(|it| spec::closest_name(it, &known));
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
    fn names_with_a_part_that_may_be_anything_are_found() {
        for (path, name) in [
            ("mise.production.toml", "mise.*.toml"),
            ("a/.Mise.ci.local.toml", ".mise.*.toml"),
            ("mise/config.dev.toml", "mise/config.*.toml"),
            ("a/Team.Code-Workspace", "*.code-workspace"),
            (".rvmrc", ".rvmrc"),
            ("a/.vs/tasks.vs.json", ".vs"),
        ] {
            assert_eq!(named(path).as_deref(), Some(name), "{path}");
        }
        for path in ["mise.toml.md", "config.dev.toml", "code-workspace", "a.vs"] {
            assert_eq!(named(path), None, "{path}");
        }
        assert_eq!(named("node_modules/x/a.code-workspace"), None);
        let below = |path: &str| find_below(Path::new(path), &ProtectedNames::default()).is_some();
        assert!(below("a/mise"));
        assert!(is_noted(Path::new("a/.cargo/config")) && is_noted(Path::new(".cursorrules")));
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
