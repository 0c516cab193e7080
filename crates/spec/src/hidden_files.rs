//! Hidden files: files of a workspace, mostly credentials, that its program cannot open.

use crate::{SpecError, WorkspacePath, run::invalid};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The pattern that switches the default list off.
const NONE: &str = "none";
/// Patterns of one run.
const MAX_PATTERNS: usize = 64;
/// Bytes of one pattern.
const MAX_PATTERN_BYTES: usize = 1024;

/// An entry of the default list. Letter case is ignored.
enum DefaultPattern {
    Name(&'static str),
    Beginning(&'static str),
    Ending(&'static str),
    /// A name in a folder, which may have several parts.
    InFolder(&'static str, &'static str),
}

/// Files that commonly hold credentials.
const DEFAULT_PATTERNS: &[DefaultPattern] = &[
    DefaultPattern::Name(".env"),
    DefaultPattern::Beginning(".env."),
    DefaultPattern::Ending(".key"),
    DefaultPattern::Ending(".p12"),
    DefaultPattern::Ending(".pfx"),
    DefaultPattern::Ending(".ppk"),
    DefaultPattern::Ending(".kdbx"),
    DefaultPattern::Ending(".keystore"),
    DefaultPattern::Name("id_rsa"),
    DefaultPattern::Name("id_dsa"),
    DefaultPattern::Name("id_ecdsa"),
    DefaultPattern::Name("id_ecdsa_sk"),
    DefaultPattern::Name("id_ed25519"),
    DefaultPattern::Name("id_ed25519_sk"),
    DefaultPattern::Name(".netrc"),
    DefaultPattern::Name("_netrc"),
    DefaultPattern::Name(".pgpass"),
    DefaultPattern::Name(".pypirc"),
    DefaultPattern::Name(".git-credentials"),
    DefaultPattern::Name(".vault-token"),
    DefaultPattern::Name("credentials.tfrc.json"),
    DefaultPattern::InFolder(".aws", "credentials"),
    DefaultPattern::InFolder(".kube", "config"),
    DefaultPattern::InFolder(".docker", "config.json"),
    DefaultPattern::InFolder(".cargo", "credentials"),
    DefaultPattern::InFolder(".cargo", "credentials.toml"),
    DefaultPattern::InFolder(".gem", "credentials"),
    DefaultPattern::InFolder(".config/gh", "hosts.yml"),
    DefaultPattern::InFolder("gcloud", "application_default_credentials.json"),
];

/// Examples that projects keep for their users to fill in.
const EXAMPLES: &[&str] = &[
    ".env.example",
    ".env.sample",
    ".env.template",
    ".env.dist",
    ".env.defaults",
];

/// Such a file may hold a certificate or a key, so that its contents decide.
const PEM_ENDING: &str = ".pem";

/// Configuration files of git. They may hold credentials, so that their contents decide.
const GIT_CONFIG_FILES: [&str; 2] = ["config", "config.worktree"];

/// The hidden files of a workspace: those of the default list, and those of the patterns.
#[derive(Clone, PartialEq, Eq)]
pub struct HiddenFiles {
    default_list: bool,
    patterns: Vec<Vec<String>>,
    /// Files of the default list that stay visible: the program can read them from the objects of
    /// its repository.
    tracked: BTreeSet<PathBuf>,
    /// Paths below which configuration files of git stay visible, because the program may write
    /// them.
    visible_settings: Vec<WorkspacePath>,
}

/// The decision for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HideDecision {
    /// It is hidden.
    Yes,
    /// It is visible.
    No,
    /// It is hidden if it holds a private key.
    IfPrivateKey,
    /// It is hidden if it holds a credential of git.
    IfCredentials,
}

/// The engine's `policy_hash` is a digest of this output, so it keeps the names of its first
/// version: `tests/policy_digest.rs` compares it.
impl fmt::Debug for HiddenFiles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Hide")
            .field("usual", &self.default_list)
            .field("patterns", &self.patterns)
            .field("tracked", &self.tracked)
            .field("lifted", &self.visible_settings)
            .finish()
    }
}

impl Default for HiddenFiles {
    /// The default list.
    fn default() -> Self {
        HiddenFiles {
            default_list: true,
            patterns: Vec::new(),
            tracked: BTreeSet::new(),
            visible_settings: Vec::new(),
        }
    }
}

impl HiddenFiles {
    /// No hidden files.
    pub fn none() -> HiddenFiles {
        HiddenFiles {
            default_list: false,
            ..HiddenFiles::default()
        }
    }

    /// The default list with these patterns; the patterns alone if one of them is `none`.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<HiddenFiles, SpecError> {
        let mut hide = HiddenFiles::default();
        for pattern in patterns {
            match pattern {
                NONE => hide.default_list = false,
                pattern => hide.patterns.push(check(pattern)?),
            }
        }
        if hide.patterns.len() > MAX_PATTERNS {
            return Err(invalid(
                format!("more than {MAX_PATTERNS} patterns of what to hide"),
                "use * and ? to name several files with one",
            ));
        }
        Ok(hide)
    }

    /// Whether no file can be hidden.
    pub fn is_empty(&self) -> bool {
        !self.default_list && self.patterns.is_empty()
    }

    /// Whether the default list applies.
    pub fn has_default_list(&self) -> bool {
        self.default_list
    }

    /// Excepts files that git tracks from the default list.
    pub fn show_tracked(&mut self, tracked: impl IntoIterator<Item = PathBuf>) {
        self.tracked.extend(tracked);
    }

    /// Keeps configuration files of git below these paths visible.
    pub fn show_git_settings_below(&mut self, allowed: &[WorkspacePath]) {
        self.visible_settings.extend_from_slice(allowed);
    }

    /// Decides on a path relative to the workspace. Everything below a hidden folder is hidden with
    /// it.
    pub fn decide(&self, path: &Path) -> HideDecision {
        if !self.patterns.is_empty() {
            let parts: Vec<&OsStr> = path.iter().collect();
            if self.patterns.iter().any(|it| matches(it, &parts)) {
                return HideDecision::Yes;
            }
        }
        if !self.default_list {
            return HideDecision::No;
        }
        match decide_by_defaults(path) {
            HideDecision::Yes | HideDecision::IfPrivateKey if self.tracked.contains(path) => {
                HideDecision::No
            }
            HideDecision::IfCredentials if self.shows_git_settings(path) => HideDecision::No,
            decision => decision,
        }
    }

    fn shows_git_settings(&self, path: &Path) -> bool {
        let mut visible_settings = self.visible_settings.iter();
        visible_settings.any(|above| path.starts_with(above.as_path()))
    }
}

/// The decision of the default list.
fn decide_by_defaults(path: &Path) -> HideDecision {
    let Some(name) = path.file_name() else {
        return HideDecision::No;
    };
    if DEFAULT_PATTERNS
        .iter()
        .any(|it| matches_default(path, name.as_bytes(), it))
    {
        let is_example = EXAMPLES
            .iter()
            .any(|it| name.eq_ignore_ascii_case(OsStr::new(it)));
        return if is_example {
            HideDecision::No
        } else {
            HideDecision::Yes
        };
    }
    if is_git_config(path, name) {
        return HideDecision::IfCredentials;
    }
    if ends_with(name.as_bytes(), PEM_ENDING) {
        HideDecision::IfPrivateKey
    } else {
        HideDecision::No
    }
}

/// Whether a path is the configuration file of a git repository, a submodule or a worktree.
fn is_git_config(path: &Path, name: &OsStr) -> bool {
    let is_one = GIT_CONFIG_FILES
        .iter()
        .any(|it| name.eq_ignore_ascii_case(it));
    let mut above = path.iter().rev().skip(1);
    is_one && above.any(|part| part.eq_ignore_ascii_case(".git"))
}

/// Whether an entry of the default list matches a path with the last part `name`. The last part is
/// compared first, because the function runs for each name in a workspace.
fn matches_default(path: &Path, name: &[u8], pattern: &DefaultPattern) -> bool {
    match *pattern {
        DefaultPattern::Name(wanted) => name.eq_ignore_ascii_case(wanted.as_bytes()),
        DefaultPattern::Ending(ending) => ends_with(name, ending),
        DefaultPattern::Beginning(beginning) => name
            .get(..beginning.len())
            .is_some_and(|it| it.eq_ignore_ascii_case(beginning.as_bytes())),
        DefaultPattern::InFolder(folder, wanted) => {
            let mut above = path.iter().rev().skip(1);
            name.eq_ignore_ascii_case(wanted.as_bytes())
                && folder.rsplit('/').all(|wanted| {
                    above
                        .next()
                        .is_some_and(|part| part.eq_ignore_ascii_case(wanted))
                })
        }
    }
}

fn ends_with(name: &[u8], ending: &str) -> bool {
    let start = name.len().checked_sub(ending.len());
    start.is_some_and(|start| name[start..].eq_ignore_ascii_case(ending.as_bytes()))
}

/// The parts of a pattern. A pattern without `/` is a name at every depth, any other a path
/// relative to the workspace.
fn check(pattern: &str) -> Result<Vec<String>, SpecError> {
    let bad = |why: &str| {
        let shown: String = pattern.escape_debug().take(80).collect();
        invalid(
            format!("`{shown}` cannot be hidden: {why}"),
            "give a name such as `*.secret`, or a path in the workspace such as `config/*.json`",
        )
    };
    let relative = pattern.strip_prefix("/workspace/").unwrap_or(pattern);
    let relative = relative.strip_prefix("./").unwrap_or(relative);
    let relative = relative.strip_suffix('/').unwrap_or(relative);
    if relative.is_empty() || relative.len() > MAX_PATTERN_BYTES || relative.contains('\0') {
        return Err(bad("it is empty or too long"));
    }
    let mut parts: Vec<String> = relative.split('/').map(str::to_owned).collect();
    if parts
        .iter()
        .any(|it| it.is_empty() || it == "." || it == "..")
    {
        return Err(bad("it leads out of the workspace"));
    }
    if parts.iter().all(|it| it.bytes().all(|byte| byte == b'*')) {
        return Err(bad("it would hide the whole workspace"));
    }
    if parts.len() == 1 {
        parts.insert(0, "**".to_owned());
    }
    Ok(parts)
}

/// Whether a path matches. `**` stands for any number of folders; letter case is ignored.
fn matches(pattern: &[String], parts: &[&OsStr]) -> bool {
    // The place of the last `**`, and the first part that it does not stand for.
    let mut last = None;
    let (mut at, mut place) = (0, 0);
    while place < parts.len() {
        match pattern.get(at) {
            Some(folders) if folders == "**" => {
                last = Some((at, place));
                at += 1;
            }
            Some(name) if name_matches(name.as_bytes(), parts[place].as_bytes()) => {
                (at, place) = (at + 1, place + 1);
            }
            _ => match last {
                Some((folders, from)) => {
                    last = Some((folders, from + 1));
                    (at, place) = (folders + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    at == pattern.len()
}

/// Whether a name matches. `*` stands for any characters, `?` for one byte.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut last = None;
    let (mut at, mut place) = (0, 0);
    while place < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                last = Some((at, place));
                at += 1;
            }
            Some(byte) if *byte == b'?' || byte.eq_ignore_ascii_case(&name[place]) => {
                (at, place) = (at + 1, place + 1);
            }
            _ => match last {
                Some((star, from)) => {
                    last = Some((star, from + 1));
                    (at, place) = (star + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(patterns: &[&str], path: &str) -> HideDecision {
        let hide = HiddenFiles::new(patterns.iter().copied()).unwrap();
        hide.decide(Path::new(path))
    }

    #[test]
    fn the_usual_list_hides_credentials_and_not_their_examples() {
        for path in [
            ".env",
            "a/b/.env.local",
            ".ENV",
            "server.key",
            "x/id_ed25519",
            "home/.aws/credentials",
            ".docker/config.json",
        ] {
            assert_eq!(judge(&[], path), HideDecision::Yes, "{path}");
            assert_eq!(judge(&["none"], path), HideDecision::No, "{path}");
        }
        for path in [
            ".env.example",
            ".envrc",
            "env",
            "id_rsa.pub",
            "credentials",
            "config.json",
            "keys.rs",
            "",
        ] {
            assert_eq!(judge(&[], path), HideDecision::No, "{path}");
        }
        assert_eq!(judge(&[], "certs/ca.pem"), HideDecision::IfPrivateKey);
        assert_eq!(judge(&["*.pem"], "certs/ca.pem"), HideDecision::Yes);
        for path in [
            ".git/config",
            "a/.git/config",
            "a/.git/modules/b/config",
            "a/.git/worktrees/w/config.worktree",
        ] {
            assert_eq!(judge(&[], path), HideDecision::IfCredentials, "{path}");
            assert_eq!(judge(&["none"], path), HideDecision::No, "{path}");
        }
    }

    #[test]
    fn a_name_is_hidden_at_every_depth_and_a_path_where_it_is() {
        assert_eq!(judge(&["*.secret"], "a/b/x.Secret"), HideDecision::Yes);
        assert_eq!(
            judge(&["config/*.json"], "config/x.json"),
            HideDecision::Yes
        );
        assert_eq!(
            judge(&["config/*.json"], "a/config/x.json"),
            HideDecision::No
        );
        assert_eq!(
            judge(&["config/*.json"], "config/a/x.json"),
            HideDecision::No
        );
        assert_eq!(judge(&["a/**/x?"], "a/b/c/x1"), HideDecision::Yes);
        assert_eq!(judge(&["a/**/x?"], "a/x1"), HideDecision::Yes);
        assert_eq!(judge(&["a/**/x?"], "b/x1"), HideDecision::No);
        assert_eq!(judge(&["/workspace/a/"], "a"), HideDecision::Yes);
        for bad in ["", "/etc/x", "../x", "a//b", "*", "**", "/"] {
            assert!(HiddenFiles::new([bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_of_git_that_may_be_written_are_shown() {
        let mut hide = HiddenFiles::default();
        hide.show_git_settings_below(&[WorkspacePath::new(".git".as_ref()).unwrap()]);
        assert_eq!(hide.decide(Path::new(".git/config")), HideDecision::No);
        assert_eq!(
            hide.decide(Path::new("a/.git/config")),
            HideDecision::IfCredentials
        );
    }

    #[test]
    fn what_a_repository_tracks_is_hidden_only_by_ones_own_word() {
        let tracked = [PathBuf::from("test/.env")];
        let mut usual = HiddenFiles::default();
        usual.show_tracked(tracked.clone());
        assert_eq!(usual.decide(Path::new("test/.env")), HideDecision::No);
        assert_eq!(usual.decide(Path::new(".env")), HideDecision::Yes);
        let mut said = HiddenFiles::new([".env"]).unwrap();
        said.show_tracked(tracked);
        assert_eq!(said.decide(Path::new("test/.env")), HideDecision::Yes);
    }
}
