//! Resumes the import of commits of killed runs: finds them in their shadow folders, and imports
//! them under `refs/airlock/` when a command asks for it.
//!
//! ```text
//! STATE/git/RUN/{git/, start.json, kept}
//! ```
//!
//! Beside the mounted part, `start.json` has the references at the beginning of the run: what the
//! program changed since is imported. It is one file, because where a disk discards at once, each
//! folder costs a write when it is removed.

use super::{
    FilesLocation, Repository, ShadowRepository, describe,
    folder::{self, GitFolder},
    id_of, import, open_folder, read_repositories,
    ref_update::host_now,
};
use crate::{FileAccess, Inner, provision::internal, workspaces};
use ::git::{GitError, Head, ObjectFormat, RefMap, refs};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use spec::{ErrorCode, ErrorInfo, GitImport, Id, ProtectedNames, Timestamp, WorkspacePath};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// The file with the state at the beginning of the run.
const START: &str = "start.json";

/// The run's repositories as they were.
#[derive(Debug, Deserialize, Serialize)]
struct ShadowInfo {
    #[serde(with = "workspaces::bytes")]
    workspace: OsString,
    device: u64,
    inode: u64,
    made_at: u64,
    /// Protected names; paths of any bytes as bytes.
    added: Vec<String>,
    removed: Vec<String>,
    named: Vec<Vec<u8>>,
    allowed: Vec<Vec<u8>>,
    repositories: Vec<RepositoryStart>,
}

/// One of them.
#[derive(Debug, Deserialize, Serialize)]
struct RepositoryStart {
    /// Its path in the mounted part.
    place: String,
    /// As the file `HEAD` has it.
    head: String,
    /// As a file `packed-refs` has them.
    refs: String,
}

/// Commits of a killed run that were not imported.
#[derive(Clone, Debug)]
pub struct KeptCommits {
    /// The run.
    pub run: Id,
    /// The folder of the repository that they belong to.
    pub folder: PathBuf,
    /// The time at which the run began.
    pub made_at: Timestamp,
}

/// The result of importing kept commits.
#[derive(Clone, Debug, Default)]
pub struct BroughtCommits {
    /// One for each repository.
    pub imports: Vec<GitImport>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl BroughtCommits {
    /// Whether the commits of a repository did not arrive: they are kept.
    pub fn has_failed(&self) -> bool {
        let failed = |one: &GitImport| one.refs.is_empty() && !one.not_brought.is_empty();
        self.imports.iter().any(failed)
    }
}

/// Records the references of the repositories before the program has them.
pub(super) fn write_start(
    folder: &GitFolder,
    (path, workspace): (&Path, &OwnedFd),
    names: &ProtectedNames,
    repositories: &[Repository],
) -> io::Result<()> {
    let bytes = |paths: &[WorkspacePath]| {
        let paths = paths.iter().map(|path| path.as_path().as_os_str());
        paths.map(|path| path.as_bytes().to_owned()).collect()
    };
    let found = id_of(workspace)?;
    let about = ShadowInfo {
        workspace: path.into(),
        device: found.device,
        inode: found.inode,
        made_at: crate::now().0,
        added: names.added.clone(),
        removed: names.removed.clone(),
        named: bytes(&names.paths),
        allowed: bytes(&names.allowed),
        repositories: repositories.iter().map(RepositoryStart::of).collect(),
    };
    folder.write(START, &serde_json::to_vec(&about)?).map(drop)
}

/// The paths of a run's git folders in the mounted part.
pub(super) fn places(folder: &OwnedFd) -> Vec<String> {
    let Ok(about) = ShadowInfo::read(folder) else {
        return vec![String::new()];
    };
    let repositories = about.repositories.into_iter();
    repositories.map(|it| it.place).collect()
}

impl RepositoryStart {
    fn of(repository: &Repository) -> RepositoryStart {
        let snapshot = &repository.snapshot;
        RepositoryStart {
            place: repository.place.clone(),
            head: snapshot.head.text(),
            refs: snapshot.refs.packed(),
        }
    }

    /// Its `HEAD` and references.
    fn references(&self, format: ObjectFormat) -> io::Result<(Head, RefMap)> {
        let damaged = || io::Error::other("its record is damaged");
        let head = Head::parse(self.head.as_bytes(), format).ok_or_else(damaged)?;
        let refs = RefMap::from_packed(self.refs.as_bytes(), format);
        Ok((
            head,
            refs.map_err(|error| io::Error::other(describe(&error)))?,
        ))
    }
}

impl ShadowInfo {
    fn read(folder: &OwnedFd) -> io::Result<ShadowInfo> {
        let file = crate::files::open(folder, START, OFlags::RDONLY)?;
        Ok(serde_json::from_reader(io::BufReader::new(File::from(
            file,
        )))?)
    }

    fn names(&self) -> ProtectedNames {
        let paths = |all: &[Vec<u8>]| {
            let paths = all.iter().map(|path| Path::new(OsStr::from_bytes(path)));
            paths
                .filter_map(|path| WorkspacePath::new(path).ok())
                .collect()
        };
        ProtectedNames {
            added: self.added.clone(),
            removed: self.removed.clone(),
            paths: paths(&self.named),
            allowed: paths(&self.allowed),
        }
    }

    fn workspace(&self) -> io::Result<OwnedFd> {
        let path = Path::new(&self.workspace);
        let wrong =
            |why: String| io::Error::other(format!("the folder `{}`: {why}", path.display()));
        let opened = open_folder(path).map_err(|error| wrong(error.to_string()))?;
        let found = id_of(&opened)?;
        if (found.device, found.inode) != (self.device, self.inode) {
            return Err(wrong("another one is there by now".to_owned()));
        }
        Ok(opened)
    }
}

/// Reopens the shadow repositories of a killed run, as far as they exist, with the references at
/// the beginning of the run.
fn reopen(state: &Path, run: &Id) -> io::Result<Option<(ShadowRepository, ShadowInfo)>> {
    let Some(folder) = GitFolder::reopen(state, run.as_str())? else {
        return Ok(None);
    };
    let about = ShadowInfo::read(folder.around())?;
    let workspace = about.workspace()?;
    let rights = FileAccess::of_owner(workspace.as_fd())?;
    let user = rights.user().map(|(user, _)| user);
    let user = user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let path = PathBuf::from(&about.workspace);
    let found = rights.act(|| Ok(read_repositories(&workspace, &path, user)))?;
    let found = found.map_err(|why| io::Error::other(describe(&why)))?;
    let (found, _) = found.unwrap_or_default();
    let repositories = as_at_start(found, &about)?;
    let shadow = ShadowRepository {
        folder,
        rights,
        repositories,
        workspace,
        names: about.names(),
    };
    Ok(Some((shadow, about)))
}

fn as_at_start(mut found: Vec<Repository>, about: &ShadowInfo) -> io::Result<Vec<Repository>> {
    let mut repositories = Vec::new();
    for start in &about.repositories {
        let place = &start.place;
        let position = found.iter().position(|it| it.place == *place);
        let gone = || io::Error::other(format!("`.git/{place}` is not there any more"));
        let mut repository = found.swap_remove(position.ok_or_else(gone)?);
        let (head, refs) = start.references(repository.snapshot.format)?;
        (repository.snapshot.head, repository.snapshot.refs) = (head, refs);
        repositories.push(repository);
    }
    Ok(repositories)
}

fn read_references(folder: &OwnedFd, of: &Repository) -> Result<(Head, RefMap), GitError> {
    let format = of.snapshot.format;
    let head = refs::read_head(folder.as_fd(), format)?;
    Ok((head, RefMap::read(folder.as_fd(), format)?))
}

/// The killed runs with commits to which no reference of the host's repository leads.
pub(crate) fn kept(state: &Path) -> Vec<KeptCommits> {
    let one = |run: Id| {
        // If it cannot be read, the import reports why.
        let (shadow, about) = reopen(state, &run).ok()??;
        let is_new = |it: &Repository| !import::is_untouched(&shadow, it, false);
        let is_kept = |it: &Repository| is_new(it) && !has_arrived(&shadow, it);
        shadow
            .repositories
            .iter()
            .any(is_kept)
            .then(|| KeptCommits {
                run,
                folder: about.workspace.into(),
                made_at: Timestamp(about.made_at),
            })
    };
    folder::kept(state).into_iter().filter_map(one).collect()
}

/// Whether the host has a reference for each of the program's: the run was killed after the import.
fn has_arrived(shadow: &ShadowRepository, repository: &Repository) -> bool {
    let inside = shadow.folder.open(&repository.place);
    let inside = inside.map(|folder| read_references(&folder, repository));
    let Ok(Ok((head, refs))) = inside else {
        return false;
    };
    let (_, host) = host_now(shadow, repository);
    let detached = match &head {
        Head::Detached(id) => Some(id),
        Head::Branch(_) => None,
    };
    let before = &repository.snapshot.refs.direct;
    let changed = refs.direct.iter();
    let changed = changed.filter(|(name, id)| before.get(*name) != Some(*id));
    let mut ids = changed.map(|(_, id)| id).chain(detached);
    ids.all(|id| host.direct.values().any(|known| known == id))
}

/// Imports the kept commits of a run under `refs/airlock/`; none if there are none. `is_layer_kept`
/// says whether its files are still in a layer.
pub(crate) async fn bring(
    engine: &Arc<Inner>,
    run: &Id,
    is_layer_kept: bool,
) -> Result<Option<BroughtCommits>, ErrorInfo> {
    let (state, name) = (engine.state.clone(), run.clone());
    let opened = tokio::task::spawn_blocking(move || reopen(&state, &name)).await;
    let opened = opened.map_err(|error| internal(error.to_string()))?;
    let Some((shadow, _)) = opened.map_err(|error| not_brought(run, &error))? else {
        return Ok(None);
    };
    let files = match is_layer_kept {
        true => FilesLocation::Kept,
        false => FilesLocation::Live,
    };
    let (imports, notes) = import::import_commits(engine, run, shadow, true, files).await;
    Ok(Some(BroughtCommits { imports, notes }))
}

fn not_brought(run: &Id, error: &io::Error) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Conflict,
        message: format!("what the run `{run}` committed cannot be brought: {error}"),
        hint: Some(format!("`airlock workspace discard {run}` drops it")),
    }
}

/// Discards the kept commits of a run that has ended; returns whether there were any.
pub(crate) fn discard(state: &Path, run: &Id) -> io::Result<bool> {
    match GitFolder::reopen(state, run.as_str())? {
        Some(folder) => folder.remove().map(|()| true),
        None => Ok(false),
    }
}
