//! Scans the host's repository before a program gets its workspace: which files are tracked, and
//! which paths the git configuration names. Reads with the credentials of the folder's owner; git
//! is not executed.

use super::{describe, home_of, open_folder};
use crate::{
    FileAccess,
    provision::{internal, open_regular},
};
use ::git::{
    Config, GitFolders, ObjectFormat,
    config_references::{ConfigReference, config_references},
    snapshot::DotGit,
};
use spec::{ErrorCode, ErrorInfo, HideDecision, SandboxSpec, WorkspacePath};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

/// The largest configuration file.
const MAX_SETTINGS: u64 = 4 << 20;
/// The most configuration files that are read.
const MAX_FILES: usize = 64;
/// The most paths in a workspace that are protected because the configuration names them.
const MAX_NAMED: usize = 256;

/// The result of a scan.
#[derive(Debug, Default)]
struct RepositoryFacts {
    /// Relative to the workspace.
    named: BTreeSet<PathBuf>,
    tracked: Vec<PathBuf>,
    notes: Vec<String>,
}

/// Adds the paths that the configuration names to the protected paths, and excepts tracked files
/// from hiding.
pub(crate) async fn protect_repository_paths(
    spec: &mut SandboxSpec,
    notes: &mut Vec<String>,
) -> Result<(), ErrorInfo> {
    let Some(workspace) = spec.workspace.clone() else {
        return Ok(());
    };
    let (hide, writable) = (spec.hide.clone(), !spec.read_only_workspace);
    let looked = tokio::task::spawn_blocking(move || {
        let is_hidden = |path: &Path| hide.decide(path) != HideDecision::No;
        let wanted = |path: &Path| hide.has_default_list() && is_hidden(path);
        scan_repository(&workspace, writable, &wanted)
    });
    let cannot = |error: io::Error| internal(format!("cannot look at the repository: {error}"));
    let looked = looked.await.map_err(|error| cannot(error.into()))?;
    let found = looked.map_err(cannot)?;
    if found.named.len() > MAX_NAMED {
        return Err(ErrorInfo {
            code: ErrorCode::InvalidSpec,
            message: format!(
                "the configuration of git names more than {MAX_NAMED} paths in the workspace"
            ),
            hint: Some("name fewer files of the workspace there".to_owned()),
        });
    }
    let named = found.named.iter();
    let named = named.filter_map(|path| WorkspacePath::new(path).ok());
    spec.protected.paths.extend(named);
    spec.hide.show_tracked(found.tracked);
    notes.extend(found.notes);
    Ok(())
}

fn scan_repository(
    workspace: &Path,
    writable: bool,
    wanted: &(dyn Fn(&Path) -> bool + Sync),
) -> io::Result<RepositoryFacts> {
    let real = fs::canonicalize(workspace)?;
    let opened = open_folder(&real)?;
    let rights = FileAccess::of_owner(opened.as_fd())?;
    let user = rights
        .user()
        .map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
    rights.act(|| {
        let mut found = RepositoryFacts::default();
        if let Ok(DotGit::Folder(host) | DotGit::File(host)) =
            DotGit::find(opened.as_fd(), &real, user)
        {
            found.track(&host, wanted);
        }
        if writable {
            found.read_configs(&real, user);
        }
        Ok(found)
    })
}

impl RepositoryFacts {
    fn track(&mut self, host: &GitFolders, wanted: &(dyn Fn(&Path) -> bool + Sync)) {
        let is_sha256 =
            |config: Config| config.last("extensions", "objectformat") == Some("sha256");
        let format = match settings(&host.path.join("config")).is_ok_and(is_sha256) {
            true => ObjectFormat::Sha256,
            false => ObjectFormat::Sha1,
        };
        let wanted = |path: &[u8]| wanted(Path::new(OsStr::from_bytes(path)));
        // Without the index more files are hidden, and not fewer.
        self.tracked = ::git::tracked_paths(host, format, wanted).unwrap_or_default();
    }

    /// Reads the configuration of the repository that contains the workspace, and of its user.
    fn read_configs(&mut self, workspace: &Path, user: u32) {
        let home = home_of(user);
        let mut files = vec![PathBuf::from("/etc/gitconfig")];
        for name in [".config/git/config", ".gitconfig"] {
            files.extend(home.iter().map(|home| home.join(name)));
        }
        let mut top = workspace.to_owned();
        for above in workspace.ancestors() {
            let Ok(folder) = open_folder(above) else {
                break;
            };
            match DotGit::find(folder.as_fd(), above, user) {
                Ok(DotGit::Absent) => continue,
                Ok(DotGit::Folder(host) | DotGit::File(host)) => {
                    let own = fs::read_link(format!("/proc/self/fd/{}", host.git.as_raw_fd()));
                    files.push(host.path.join("config"));
                    files.extend(own.map(|own| own.join("config.worktree")));
                }
                Err(why) => self.notes.push(format!(
                    "which files of the workspace the configuration of git names is not known, and none of them is protected: {}",
                    describe(&why)
                )),
            }
            top = above.to_owned();
            break;
        }
        let mut scope = ConfigScope {
            workspace,
            top: &top,
            home: home.as_deref(),
        };
        self.read_files(&mut scope, files);
    }

    fn read_files(&mut self, scope: &mut ConfigScope<'_>, mut files: Vec<PathBuf>) {
        let mut seen = BTreeSet::new();
        while let Some(file) = files.pop() {
            if !seen.insert(file.clone()) {
                continue;
            }
            let shown = file.to_string_lossy().escape_debug().to_string();
            if seen.len() > MAX_FILES {
                self.notes.push(format!(
                    "git reads more than {MAX_FILES} files of settings; what `{shown}` names is not protected"
                ));
                return;
            }
            let config = match settings(&file) {
                Ok(config) => config,
                // Git does not read it either.
                Err(gone) if is_unread(&gone) => continue,
                Err(error) => {
                    self.notes.push(format!(
                        "`{shown}` cannot be read, and what it names is not protected: {error}"
                    ));
                    continue;
                }
            };
            for named in config_references(&config) {
                let (text, base) = match &named {
                    ConfigReference::ConfigFile(text) => (text, file.parent().unwrap_or(scope.top)),
                    ConfigReference::Path(text) => (text, scope.top),
                    ConfigReference::Word { word, first } => {
                        if !word.contains('/') && (*first || !scope.top.join(word).is_file()) {
                            continue;
                        }
                        (word, scope.top)
                    }
                };
                let path = scope.resolve(text, base);
                if let ConfigReference::ConfigFile(_) = named {
                    files.push(path.clone());
                }
                self.add(scope.workspace, &path);
            }
        }
    }

    /// Adds a path as it is written and as it resolves.
    fn add(&mut self, workspace: &Path, path: &Path) {
        for path in [normalize(path), resolve_links(path)] {
            let Ok(inside) = path.strip_prefix(workspace) else {
                continue;
            };
            if inside.as_os_str().is_empty() {
                self.notes.push(
                    "the configuration of git names the workspace itself, which is the program's to write"
                        .to_owned(),
                );
                continue;
            }
            if self.named.len() <= MAX_NAMED {
                self.named.insert(inside.to_owned());
            }
        }
    }
}

struct ConfigScope<'a> {
    workspace: &'a Path,
    /// The top of the worktree.
    top: &'a Path,
    home: Option<&'a Path>,
}

impl ConfigScope<'_> {
    fn resolve(&self, text: &str, base: &Path) -> PathBuf {
        match (text.strip_prefix("~/"), self.home) {
            (Some(below), Some(home)) => home.join(below),
            _ => base.join(text),
        }
    }
}

fn settings(path: &Path) -> io::Result<Config> {
    let mut text = Vec::new();
    open_regular(path)?
        .take(MAX_SETTINGS + 1)
        .read_to_end(&mut text)?;
    match text.len() as u64 > MAX_SETTINGS {
        true => Err(io::Error::other(format!(
            "it is longer than {MAX_SETTINGS} bytes"
        ))),
        false => Ok(Config::parse(&text)),
    }
}

fn is_unread(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

/// Removes `.` and `..` lexically.
fn normalize(path: &Path) -> PathBuf {
    let mut normalize = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normalize.pop(),
            Component::CurDir => {}
            part => normalize.push(part),
        }
    }
    normalize
}

/// Resolves symbolic links, as far as the path exists.
fn resolve_links(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|above| {
        let real = fs::canonicalize(above).ok()?;
        Some(normalize(&real.join(path.strip_prefix(above).ok()?)))
    });
    found.unwrap_or_else(|| normalize(path))
}
