//! The git repository of a mounted workspace. The program works on a shadow repository that is
//! mounted over the host's `.git`, which it neither sees nor changes. Its commits are verified and
//! imported under `refs/airlock/RUN/` afterwards. Where the program's changes were applied to the
//! folder, branches, index and `HEAD` are updated too, if nothing conflicts.
//!
//! ```text
//! prepare ─ host's .git read as its owner ─ folder in the state ─ mounts ──▶ the program runs
//! settle  ─ anything new? ─ export: list and pack ─ own check, own index ─ verify: fsck ─ imported as the owner
//! staged  ─ what may move? ─ index: merge ─ locks ─ compare ─ decided ─ index, references, HEAD
//! ```
//!
//! Git itself runs in sandboxes only. A failure leaves the host's repository as it was, and the
//! shadow repository where it is; the next command completes or undoes what a crash interrupted
//! (`journal.rs`).

mod folder;
mod import;
mod journal;
mod ref_update;
mod report;
mod repository_scan;
mod resume;
mod risk;
mod sandboxes;
mod verification;

pub(crate) use folder::sweep;
pub(crate) use import::import_commits;
pub(crate) use repository_scan::protect_repository_paths;
pub use resume::{BroughtCommits, KeptCommits};
pub(crate) use resume::{bring, discard, kept};

use crate::{FileAccess, provision::open_regular};
use ::git::{
    Config, GitError, ObjectFolder,
    snapshot::{self, DotGit, GitFolders, Snapshot, host_objects_dir},
};
use folder::GitFolder;
use rustix::fs::{Mode, OFlags};
use spec::{Access, Backend, FileId, Id, InsidePath, Mount, ProtectedNames, SandboxSpec};
use std::{
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

/// The mount point of a repository.
const DOT_GIT: &str = "/workspace/.git";
/// The mount point if `.git` is a file, which then points there.
const SEPARATE_GIT_DIR: &str = "/airlock-git";
/// The largest configuration file of a user.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// One repository of a run: the workspace's own, or a submodule.
#[derive(Debug)]
pub(crate) struct Repository {
    /// The path below the shadow folder; empty for the workspace's own.
    place: String,
    /// The path of its worktree in the workspace, if it is known.
    worktree: Option<PathBuf>,
    host: GitFolders,
    snapshot: Snapshot,
}

/// The shadow repositories of a workspace while a program runs.
#[derive(Debug)]
pub(crate) struct ShadowRepository {
    folder: GitFolder,
    rights: FileAccess,
    repositories: Vec<Repository>,
    /// The workspace folder, as it was opened.
    workspace: OwnedFd,
    /// The protected names of the workspace.
    names: ProtectedNames,
}

/// A mount, and the inode that must be there.
struct VerifiedMount {
    mount: Mount,
    id: FileId,
}

/// How a workspace's repository is made available.
enum GitAccess {
    /// Not at all: there is no repository, or another protection applies.
    Nothing,
    /// As a shadow repository.
    Ours(Box<ShadowRepository>, Vec<VerifiedMount>),
    /// The host's own, read-only, with the reason.
    ReadOnly(Vec<VerifiedMount>, String),
    /// Not mounted: `.git` is a protected file anyway; with the reason.
    AsItIs(String),
}

/// Prepares a shadow repository if the workspace has a repository. One that cannot be read or is
/// not supported is mounted read-only; the notes say so.
pub(crate) async fn prepare(
    state: &Path,
    id: &Id,
    sandbox: &mut SandboxSpec,
    notes: &mut Vec<String>,
) -> io::Result<Option<ShadowRepository>> {
    let lifted = |path: &spec::WorkspacePath| path.as_path() == Path::new(".git");
    let Some(workspace) = sandbox.workspace.clone() else {
        return Ok(None);
    };
    if sandbox.backend != Backend::Native
        || sandbox.read_only_workspace
        || sandbox.protected.allowed.iter().any(lifted)
    {
        return Ok(None);
    }
    let (state, id, names) = (state.to_owned(), id.clone(), sandbox.protected.clone());
    let prepared =
        tokio::task::spawn_blocking(move || prepare_now(&state, &id, &workspace, names)).await;
    let (shadow, mounts) = match prepared.map_err(io::Error::other)?? {
        GitAccess::Nothing => return Ok(None),
        GitAccess::Ours(shadow, mounts) => (Some(*shadow), mounts),
        GitAccess::ReadOnly(mounts, why) => {
            notes.push(format!("`.git` is read-only inside: {why}"));
            (None, mounts)
        }
        GitAccess::AsItIs(why) => {
            notes.push(format!("the repository is not shown inside: {why}"));
            return Ok(None);
        }
    };
    for VerifiedMount { mount, id } in mounts {
        sandbox.allow_own_path(&mount.host, id);
        sandbox.git.insert(mount.host.clone(), id);
        sandbox.mounts.push(mount);
    }
    Ok(shadow)
}

fn prepare_now(
    state: &Path,
    id: &Id,
    workspace: &Path,
    names: ProtectedNames,
) -> io::Result<GitAccess> {
    let opened = open_folder(workspace)?;
    let rights = FileAccess::of_owner(opened.as_fd())?;
    let user = rights
        .user()
        .map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
    let read = rights.act(|| Ok(read_repositories(&opened, workspace, user)))?;
    let (repositories, is_folder) = match read {
        Ok(None) => return Ok(GitAccess::Nothing),
        Ok(Some(read)) => read,
        Err(why) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let Ok(own) = crate::files::open(&opened, ".git", flags) else {
                return Ok(GitAccess::AsItIs(describe(&why)));
            };
            let id = id_of(&own)?;
            let shown = mount_as(workspace.join(".git"), id, DOT_GIT, Access::ReadOnly)?;
            return Ok(GitAccess::ReadOnly(vec![shown], describe(&why)));
        }
    };
    let folder = GitFolder::make(state, id)?;
    for repository in &repositories {
        let place = folder.place(&repository.place, rights.user())?;
        repository.snapshot.write(place.as_fd(), rights.user())?;
    }
    resume::write_start(&folder, (workspace, &opened), &names, &repositories)?;
    let base = match is_folder {
        true => DOT_GIT,
        false => SEPARATE_GIT_DIR,
    };
    let mut mounts = shadow_mounts(&folder, base, &repositories, Access::ReadWrite)?;
    if !is_folder {
        let file = folder.write(
            "dot-git",
            format!("gitdir: {SEPARATE_GIT_DIR}\n").as_bytes(),
        )?;
        mounts.push(mount(file, DOT_GIT, Access::ReadOnly)?);
    }
    let shadow = ShadowRepository {
        folder,
        rights,
        repositories,
        workspace: opened,
        names,
    };
    Ok(GitAccess::Ours(Box::new(shadow), mounts))
}

impl ShadowRepository {
    /// Has git leave alone what it does not know and the program cannot remove: `clean` and `stash -u` would try. Only
    /// before the program runs.
    pub(crate) fn exclude(&self, paths: &[PathBuf]) -> io::Result<()> {
        for repository in &self.repositories {
            let Some(worktree) = &repository.worktree else {
                continue;
            };
            let below = paths
                .iter()
                .filter_map(|path| path.strip_prefix(worktree).ok());
            let place = self.folder.open(&repository.place)?;
            snapshot::exclude(place.as_fd(), below, self.rights.user())?;
        }
        Ok(())
    }
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn id_of(file: &OwnedFd) -> io::Result<FileId> {
    let found = rustix::fs::fstat(file)?;
    let (device, inode) = (found.st_dev, found.st_ino);
    Ok(FileId { device, inode })
}

/// The repository and its submodules, and whether `.git` is a folder. Unsupported submodules are
/// left out.
fn read_repositories(
    workspace: &OwnedFd,
    path: &Path,
    user: u32,
) -> Result<Option<(Vec<Repository>, bool)>, GitError> {
    let (host, is_folder) = match DotGit::find(workspace.as_fd(), path, user)? {
        DotGit::Absent => return Ok(None),
        DotGit::Folder(host) => (host, true),
        DotGit::File(host) => (host, false),
    };
    let identity = identity(user);
    let modules = host.modules();
    let mut all = vec![Repository {
        place: String::new(),
        worktree: Some(PathBuf::new()),
        snapshot: Snapshot::read(&host, &identity, user)?,
        host,
    }];
    for (place, host) in modules {
        if let Ok(snapshot) = Snapshot::read(&host, &identity, user) {
            let worktree = snapshot.settings.worktree.as_ref();
            let worktree = worktree.and_then(|tree| below(&host.path.join(tree), path));
            all.push(Repository {
                place,
                worktree,
                host,
                snapshot,
            });
        }
    }
    Ok(Some((all, is_folder)))
}

/// The path of a folder relative to the workspace; none if it is elsewhere.
fn below(folder: &Path, workspace: &Path) -> Option<PathBuf> {
    let (folder, workspace) = (folder.canonicalize().ok()?, workspace.canonicalize().ok()?);
    let below = folder.strip_prefix(workspace).ok()?;
    (!below.as_os_str().is_empty()).then(|| below.to_owned())
}

/// Whether the folder has all of these paths, relative to the workspace, as the program left them:
/// its change was applied, or neither side changed the file.
pub(crate) type AppliedCheck<'a> = dyn Fn(&[PathBuf]) -> io::Result<bool> + Sync + 'a;

/// Where the files are that belong to the program's commits.
#[derive(Clone, Copy)]
pub(crate) enum FilesLocation<'a> {
    /// In the folder, where the program wrote them.
    Live,
    /// In a layer, until its owner commits it.
    Kept,
    /// In the folder, as far as they could be applied.
    Applied(&'a AppliedCheck<'a>),
}

/// The mounts of the shadow folder at `base`, and of the host's object folders below it, read-only.
fn shadow_mounts(
    folder: &GitFolder,
    base: &str,
    repositories: &[Repository],
    access: Access,
) -> io::Result<Vec<VerifiedMount>> {
    let mut mounts = vec![mount(folder.shown(), base, access)?];
    for repository in repositories {
        for (number, objects) in repository.snapshot.objects.iter().enumerate() {
            let inside = Path::new(base)
                .join(&repository.place)
                .join(host_objects_dir(number));
            let has_info = has_info(&objects.path);
            mounts.push(mount_objects(objects, &inside)?);
            if number == 0 && repository.snapshot.objects.len() > 1 && has_info {
                // Its alternates name paths that do not exist inside, and git would complain.
                mounts.push(mount(
                    folder.empty()?,
                    inside.join("info"),
                    Access::ReadOnly,
                )?);
            }
        }
    }
    Ok(mounts)
}

fn has_info(objects: &Path) -> bool {
    fs::symlink_metadata(objects.join("info")).is_ok_and(|found| found.is_dir())
}

/// A mount of a file or folder in the state.
fn mount(host: PathBuf, inside: impl AsRef<Path>, access: Access) -> io::Result<VerifiedMount> {
    let found = fs::metadata(&host)?;
    let (device, inode) = (found.dev(), found.ino());
    mount_as(host, FileId { device, inode }, inside, access)
}

/// A read-only mount of the host's objects.
fn mount_objects(objects: &ObjectFolder, inside: impl AsRef<Path>) -> io::Result<VerifiedMount> {
    let (device, inode) = (objects.device, objects.inode);
    let id = FileId { device, inode };
    mount_as(objects.path.clone(), id, inside, Access::ReadOnly)
}

fn mount_as(
    host: PathBuf,
    id: FileId,
    inside: impl AsRef<Path>,
    access: Access,
) -> io::Result<VerifiedMount> {
    let inside =
        InsidePath::new(inside.as_ref()).map_err(|why| io::Error::other(why.to_string()))?;
    let mount = Mount {
        host,
        inside,
        access,
    };
    Ok(VerifiedMount { mount, id })
}

/// The user's git configuration, of which only name and address are used for commits.
fn identity(user: u32) -> Config {
    let Some(home) = home_of(user) else {
        return Config::default();
    };
    let mut all = Config::default();
    for name in [".config/git/config", ".gitconfig"] {
        let mut text = Vec::new();
        let read = open_regular(&home.join(name))
            .and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_end(&mut text));
        if read.is_ok() {
            all.entries.extend(Config::parse(&text).identity().entries);
        }
    }
    all
}

fn home_of(user: u32) -> Option<PathBuf> {
    let accounts = fs::read_to_string("/etc/passwd").ok()?;
    let home = accounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let is_user = fields.get(2)?.parse() == Ok(user);
        is_user.then(|| PathBuf::from(fields.get(5).copied().unwrap_or_default()))
    })?;
    home.is_absolute().then_some(home)
}

/// The error with its cause, on one line.
fn describe(error: &GitError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
