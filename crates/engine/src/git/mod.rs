//! The repository of a mounted workspace. The program gets a git folder of ours over the host's, which it neither sees nor
//! changes; what it commits arrives there afterwards, checked, under `refs/airlock/RUN/`.
//!
//! ```text
//! prepare ─ host's .git read as its owner ─ folder in the state ─ mounts ──▶ the program runs
//! settle  ─ anything new? ─ box A: list and pack ─ own check, own index ─ box B: fsck, connected? ─ placed as the owner
//! ```
//!
//! Git itself runs in boxes only. Whatever fails leaves the host's repository as it was, and our folder where it is.

mod boxes;
mod folder;
mod import;
mod look;

pub(crate) use folder::sweep;
pub(crate) use import::settle;
pub(crate) use look::look;

use crate::{Rights, making::open_regular};
use ::git::{
    Config, GitError, ObjectFolder,
    snapshot::{DotGit, GitFolders, Snapshot, lent},
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

/// Where a repository is mounted inside.
const DOT_GIT: &str = "/workspace/.git";
/// Where it is mounted if `.git` is a file, which then leads there.
const BESIDE: &str = "/airlock-git";
/// Bytes of a user's configuration.
const MOST_CONFIG: u64 = 1 << 20;

/// One repository of a run: that of the workspace, or of a submodule.
#[derive(Debug)]
pub(crate) struct Repository {
    /// Below our git folder; empty for the workspace's own.
    place: String,
    host: GitFolders,
    snapshot: Snapshot,
}

/// What stands for the repository of a workspace while a program runs.
#[derive(Debug)]
pub(crate) struct Hold {
    folder: GitFolder,
    rights: Rights,
    repositories: Vec<Repository>,
    /// Which names are protected in the workspace.
    names: ProtectedNames,
}

/// A mount, and what must turn out to be there.
struct Shown {
    mount: Mount,
    id: FileId,
}

/// What a workspace gets.
enum Prepared {
    /// Nothing of ours: it has no repository, or its protection is another's.
    Nothing,
    /// A git folder of ours.
    Ours(Box<Hold>, Vec<Shown>),
    /// Its own, read-only, and the reason.
    ReadOnly(Vec<Shown>, String),
    /// What protects a file `.git` anyway, and the reason why it is no more.
    AsItIs(String),
}

/// Gives the box a git folder of its own if its workspace has a repository. What cannot be read or is of a kind that is
/// not handled is shown read-only; the notes say so.
pub(crate) async fn prepare(
    state: &Path,
    id: &Id,
    sandbox: &mut SandboxSpec,
    notes: &mut Vec<String>,
) -> io::Result<Option<Hold>> {
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
    let (hold, mounts) = match prepared.map_err(io::Error::other)?? {
        Prepared::Nothing => return Ok(None),
        Prepared::Ours(hold, mounts) => (Some(*hold), mounts),
        Prepared::ReadOnly(mounts, why) => {
            notes.push(format!("`.git` is read-only inside: {why}"));
            (None, mounts)
        }
        Prepared::AsItIs(why) => {
            notes.push(format!("the repository is not shown inside: {why}"));
            return Ok(None);
        }
    };
    for Shown { mount, id } in mounts {
        sandbox.add_own(&mount.host, id);
        sandbox.git.insert(mount.host.clone(), id);
        sandbox.mounts.push(mount);
    }
    Ok(hold)
}

fn prepare_now(
    state: &Path,
    id: &Id,
    workspace: &Path,
    names: ProtectedNames,
) -> io::Result<Prepared> {
    let opened = open_folder(workspace)?;
    let rights = Rights::of_owner(opened.as_fd())?;
    let user = rights
        .user()
        .map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
    let read = rights.act(|| Ok(read_repositories(&opened, workspace, user)))?;
    let (repositories, is_folder) = match read {
        Ok(None) => return Ok(Prepared::Nothing),
        Ok(Some(read)) => read,
        Err(why) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let Ok(own) = crate::files::open(&opened, ".git", flags) else {
                return Ok(Prepared::AsItIs(in_words(&why)));
            };
            let id = id_of(&own)?;
            let shown = show_as(workspace.join(".git"), id, DOT_GIT, Access::ReadOnly)?;
            return Ok(Prepared::ReadOnly(vec![shown], in_words(&why)));
        }
    };
    let folder = GitFolder::make(state, id)?;
    for repository in &repositories {
        let place = folder.place(&repository.place, rights.user())?;
        repository.snapshot.write(place.as_fd(), rights.user())?;
    }
    let base = match is_folder {
        true => DOT_GIT,
        false => BESIDE,
    };
    let mut mounts = show(
        &folder.shown(),
        &folder.empty(),
        base,
        &repositories,
        Access::ReadWrite,
    )?;
    if !is_folder {
        let file = folder.write("dot-git", format!("gitdir: {BESIDE}\n").as_bytes())?;
        mounts.push(mount(file, DOT_GIT, Access::ReadOnly)?);
    }
    let hold = Hold {
        folder,
        rights,
        repositories,
        names,
    };
    Ok(Prepared::Ours(Box::new(hold), mounts))
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

/// The repository and its submodules, and whether `.git` is a folder. A submodule of a kind that is not handled is left out.
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
        snapshot: Snapshot::read(&host, &identity, user)?,
        host,
    }];
    for (place, host) in modules {
        if let Ok(snapshot) = Snapshot::read(&host, &identity, user) {
            all.push(Repository {
                place,
                host,
                snapshot,
            });
        }
    }
    Ok(Some((all, is_folder)))
}

/// Our git folder at `base`, and in it, read-only, the objects that it borrows.
fn show(
    folder: &Path,
    empty: &Path,
    base: &str,
    repositories: &[Repository],
    access: Access,
) -> io::Result<Vec<Shown>> {
    let mut mounts = vec![mount(folder.to_owned(), base, access)?];
    for repository in repositories {
        for (number, objects) in repository.snapshot.objects.iter().enumerate() {
            let inside = Path::new(base).join(&repository.place).join(lent(number));
            let has_info = has_info(&objects.path);
            mounts.push(show_objects(objects, &inside)?);
            if number == 0 && repository.snapshot.objects.len() > 1 && has_info {
                // It names places that are not there inside, of which git would complain.
                mounts.push(mount(
                    empty.to_owned(),
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

/// Something of our own in the state.
fn mount(host: PathBuf, inside: impl AsRef<Path>, access: Access) -> io::Result<Shown> {
    let found = fs::metadata(&host)?;
    let (device, inode) = (found.dev(), found.ino());
    show_as(host, FileId { device, inode }, inside, access)
}

/// Objects of the host's, read-only.
fn show_objects(objects: &ObjectFolder, inside: impl AsRef<Path>) -> io::Result<Shown> {
    let (device, inode) = (objects.device, objects.inode);
    let id = FileId { device, inode };
    show_as(objects.path.clone(), id, inside, Access::ReadOnly)
}

fn show_as(
    host: PathBuf,
    id: FileId,
    inside: impl AsRef<Path>,
    access: Access,
) -> io::Result<Shown> {
    let inside =
        InsidePath::new(inside.as_ref()).map_err(|why| io::Error::other(why.to_string()))?;
    let mount = Mount {
        host,
        inside,
        access,
    };
    Ok(Shown { mount, id })
}

/// Who commits, by the configuration of that user: only his name and address are taken from it.
fn identity(user: u32) -> Config {
    let Some(home) = home_of(user) else {
        return Config::default();
    };
    let mut all = Config::default();
    for name in [".config/git/config", ".gitconfig"] {
        let mut text = Vec::new();
        let read = open_regular(&home.join(name))
            .and_then(|file| file.take(MOST_CONFIG).read_to_end(&mut text));
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
        let is_him = fields.get(2)?.parse() == Ok(user);
        is_him.then(|| PathBuf::from(fields.get(5).copied().unwrap_or_default()))
    })?;
    home.is_absolute().then_some(home)
}

/// With its cause, on one line.
fn in_words(error: &GitError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
