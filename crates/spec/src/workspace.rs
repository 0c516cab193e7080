//! What of a workspace is kept from its program: names that it may only read, and files whose contents it does not see.
//!
//! How names and files are covered is in `sandbox/src/native/protect`.

use crate::{SpecError, WorkspacePath, run::invalid};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Switches the usual list off.
const NONE: &str = "none";
/// Patterns of one run.
const MAX_PATTERNS: usize = 64;
/// Bytes of one pattern.
const MAX_PATTERN_BYTES: usize = 1024;

/// An entry of the usual list, in any letter case.
enum Usual {
    Name(&'static str),
    Beginning(&'static str),
    Ending(&'static str),
    /// The last folders above it, and its name.
    InFolder(&'static str, &'static str),
}

/// Files that commonly hold credentials.
const USUAL: &[Usual] = &[
    Usual::Name(".env"),
    Usual::Beginning(".env."),
    Usual::Ending(".key"),
    Usual::Ending(".p12"),
    Usual::Ending(".pfx"),
    Usual::Ending(".ppk"),
    Usual::Ending(".kdbx"),
    Usual::Ending(".keystore"),
    Usual::Name("id_rsa"),
    Usual::Name("id_dsa"),
    Usual::Name("id_ecdsa"),
    Usual::Name("id_ecdsa_sk"),
    Usual::Name("id_ed25519"),
    Usual::Name("id_ed25519_sk"),
    Usual::Name(".netrc"),
    Usual::Name("_netrc"),
    Usual::Name(".pgpass"),
    Usual::Name(".pypirc"),
    Usual::Name(".git-credentials"),
    Usual::Name(".vault-token"),
    Usual::Name("credentials.tfrc.json"),
    Usual::InFolder(".aws", "credentials"),
    Usual::InFolder(".kube", "config"),
    Usual::InFolder(".docker", "config.json"),
    Usual::InFolder(".cargo", "credentials"),
    Usual::InFolder(".cargo", "credentials.toml"),
    Usual::InFolder(".gem", "credentials"),
    Usual::InFolder(".config/gh", "hosts.yml"),
    Usual::InFolder("gcloud", "application_default_credentials.json"),
];

/// What projects keep to be filled in.
const EXAMPLES: &[&str] = &[
    ".env.example",
    ".env.sample",
    ".env.template",
    ".env.dist",
    ".env.defaults",
];

/// Certificates are as often in such a file as keys: its contents decide.
const PEM: &str = ".pem";

/// Where repositories of git have credentials, if they do: their contents decide.
const GIT_SETTINGS: [&str; 2] = ["config", "config.worktree"];

/// Names of a workspace that are protected beyond the usual, or not protected after all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProtectedNames {
    /// Names, or a folder and a name in it, that the operator or the project adds.
    pub added: Vec<String>,
    /// Of the usual names those that the operator takes away.
    pub removed: Vec<String>,
    /// Paths that the configuration of git names.
    pub paths: Vec<WorkspacePath>,
    /// Paths that may be written after all, with what lies below them.
    pub allowed: Vec<WorkspacePath>,
}

impl ProtectedNames {
    /// Whether `--allow-protected` names this path or a folder above it.
    pub fn allows(&self, path: &Path) -> bool {
        self.allowed.iter().any(|it| path.starts_with(it.as_path()))
    }
}

/// Files of a workspace that the program does not see: they cannot be opened inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hide {
    usual: bool,
    patterns: Vec<Vec<String>>,
    /// Of the usual those that the program can read from the objects of its repository anyway.
    tracked: BTreeSet<PathBuf>,
    /// Where settings of git are shown as they are: the program may even write them.
    lifted: Vec<WorkspacePath>,
}

/// Whether a file is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// If it holds a private key.
    IfPrivateKey,
    /// If it holds a credential of git's.
    IfCredentials,
}

impl Default for Hide {
    /// The usual list.
    fn default() -> Self {
        Hide {
            usual: true,
            patterns: Vec::new(),
            tracked: BTreeSet::new(),
            lifted: Vec::new(),
        }
    }
}

impl Hide {
    /// Nothing.
    pub fn nothing() -> Hide {
        Hide {
            usual: false,
            ..Hide::default()
        }
    }

    /// The usual list with these patterns; without the list if one of them is `none`.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Hide, SpecError> {
        let mut hide = Hide::default();
        for pattern in patterns {
            match pattern {
                NONE => hide.usual = false,
                pattern => hide.patterns.push(check(pattern)?),
            }
        }
        match hide.patterns.len() > MAX_PATTERNS {
            true => Err(invalid(
                format!("more than {MAX_PATTERNS} patterns of what to hide"),
                "use * and ? to name several files with one",
            )),
            false => Ok(hide),
        }
    }

    /// Whether no file can be hidden.
    pub fn is_nothing(&self) -> bool {
        !self.usual && self.patterns.is_empty()
    }

    /// Whether the usual list counts.
    pub fn has_usual(&self) -> bool {
        self.usual
    }

    /// Files that are not hidden by the usual list.
    pub fn except_tracked(&mut self, tracked: impl IntoIterator<Item = PathBuf>) {
        self.tracked.extend(tracked);
    }

    /// Shows settings of git below these paths, whatever they hold.
    pub fn lift(&mut self, allowed: &[WorkspacePath]) {
        self.lifted.extend_from_slice(allowed);
    }

    /// Whether a path, relative to the workspace, is hidden. What lies below a hidden folder is hidden with it.
    pub fn judge(&self, path: &Path) -> Hidden {
        if !self.patterns.is_empty() {
            let parts: Vec<&OsStr> = path.iter().collect();
            if self.patterns.iter().any(|it| matches(it, &parts)) {
                return Hidden::Yes;
            }
        }
        let usual = match self.usual {
            true => judge_usual(path),
            false => Hidden::No,
        };
        match usual {
            Hidden::Yes | Hidden::IfPrivateKey if self.tracked.contains(path) => Hidden::No,
            Hidden::IfCredentials if self.is_lifted(path) => Hidden::No,
            usual => usual,
        }
    }

    fn is_lifted(&self, path: &Path) -> bool {
        let mut lifted = self.lifted.iter();
        lifted.any(|above| path.starts_with(above.as_path()))
    }
}

/// Whether the usual list hides this path.
fn judge_usual(path: &Path) -> Hidden {
    let Some(name) = path.file_name() else {
        return Hidden::No;
    };
    if USUAL.iter().any(|it| is_usual(path, name.as_bytes(), it)) {
        let is_example = EXAMPLES
            .iter()
            .any(|it| name.eq_ignore_ascii_case(OsStr::new(it)));
        return match is_example {
            true => Hidden::No,
            false => Hidden::Yes,
        };
    }
    if is_git_settings(path, name) {
        return Hidden::IfCredentials;
    }
    match ends_with(name.as_bytes(), PEM) {
        true => Hidden::IfPrivateKey,
        false => Hidden::No,
    }
}

/// Whether a path is the configuration of a repository of git, of a submodule or of a worktree.
fn is_git_settings(path: &Path, name: &OsStr) -> bool {
    let is_one = GIT_SETTINGS.iter().any(|it| name.eq_ignore_ascii_case(it));
    let mut above = path.iter().rev().skip(1);
    is_one && above.any(|part| part.eq_ignore_ascii_case(".git"))
}

/// Whether one entry of the usual list means this path, whose last part is `name`. Asked of each name in a workspace:
/// the last part decides first.
fn is_usual(path: &Path, name: &[u8], usual: &Usual) -> bool {
    match *usual {
        Usual::Name(wanted) => name.eq_ignore_ascii_case(wanted.as_bytes()),
        Usual::Ending(ending) => ends_with(name, ending),
        Usual::Beginning(beginning) => name
            .get(..beginning.len())
            .is_some_and(|it| it.eq_ignore_ascii_case(beginning.as_bytes())),
        Usual::InFolder(folder, wanted) => {
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

/// The parts of a pattern: of a name at every depth, or with a `/` of a path relative to the workspace.
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

/// `**` stands for any number of folders. Letter case is ignored.
fn matches(pattern: &[String], parts: &[&OsStr]) -> bool {
    // Where the last `**` was, and up to where it stands for folders.
    let (mut at, mut place, mut last) = (0, 0, None);
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

/// `*` stands for any characters of a name, `?` for one byte.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place, mut last) = (0, 0, None);
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

    fn judge(patterns: &[&str], path: &str) -> Hidden {
        let hide = Hide::new(patterns.iter().copied()).unwrap();
        hide.judge(Path::new(path))
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
            assert_eq!(judge(&[], path), Hidden::Yes, "{path}");
            assert_eq!(judge(&["none"], path), Hidden::No, "{path}");
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
            assert_eq!(judge(&[], path), Hidden::No, "{path}");
        }
        assert_eq!(judge(&[], "certs/ca.pem"), Hidden::IfPrivateKey);
        assert_eq!(judge(&["*.pem"], "certs/ca.pem"), Hidden::Yes);
        for path in [
            ".git/config",
            "a/.git/config",
            "a/.git/modules/b/config",
            "a/.git/worktrees/w/config.worktree",
        ] {
            assert_eq!(judge(&[], path), Hidden::IfCredentials, "{path}");
            assert_eq!(judge(&["none"], path), Hidden::No, "{path}");
        }
    }

    #[test]
    fn a_name_is_hidden_at_every_depth_and_a_path_where_it_is() {
        assert_eq!(judge(&["*.secret"], "a/b/x.Secret"), Hidden::Yes);
        assert_eq!(judge(&["config/*.json"], "config/x.json"), Hidden::Yes);
        assert_eq!(judge(&["config/*.json"], "a/config/x.json"), Hidden::No);
        assert_eq!(judge(&["config/*.json"], "config/a/x.json"), Hidden::No);
        assert_eq!(judge(&["a/**/x?"], "a/b/c/x1"), Hidden::Yes);
        assert_eq!(judge(&["a/**/x?"], "a/x1"), Hidden::Yes);
        assert_eq!(judge(&["a/**/x?"], "b/x1"), Hidden::No);
        assert_eq!(judge(&["/workspace/a/"], "a"), Hidden::Yes);
        for bad in ["", "/etc/x", "../x", "a//b", "*", "**", "/"] {
            assert!(Hide::new([bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_of_git_that_may_be_written_are_shown() {
        let mut hide = Hide::default();
        hide.lift(&[WorkspacePath::new(".git".as_ref()).unwrap()]);
        assert_eq!(hide.judge(Path::new(".git/config")), Hidden::No);
        assert_eq!(
            hide.judge(Path::new("a/.git/config")),
            Hidden::IfCredentials
        );
    }

    #[test]
    fn what_a_repository_tracks_is_hidden_only_by_ones_own_word() {
        let tracked = [PathBuf::from("test/.env")];
        let mut usual = Hide::default();
        usual.except_tracked(tracked.clone());
        assert_eq!(usual.judge(Path::new("test/.env")), Hidden::No);
        assert_eq!(usual.judge(Path::new(".env")), Hidden::Yes);
        let mut said = Hide::new([".env"]).unwrap();
        said.except_tracked(tracked);
        assert_eq!(said.judge(Path::new("test/.env")), Hidden::Yes);
    }
}
