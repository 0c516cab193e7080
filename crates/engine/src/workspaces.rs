//! Copy-on-write workspaces: the program changes a layer in the state folder, while the folder that
//! the layer is based on stays as it is. Afterwards the changes can be reviewed, committed to the
//! folder, or discarded.
//!
//! ```text
//! workspaces/.new-ID ─ copied ─▶ workspaces/ID/{about.json, base, tree/} ─ discarded ─▶ workspaces/.gone-ID
//! ```
//!
//! A layer belongs to the user: a sweep removes only layers that a crash left half created or half
//! removed, and expired layers of keys. A user of a layer holds a shared lock on its folder, which
//! ends with the process.

mod applied_paths;
mod apply;
mod base;
mod commit;
mod copy;
mod create;
mod diff;
mod error;
pub mod held;
mod json;
pub(crate) mod lifecycle;
pub(crate) mod measure;
mod mtimes;
mod open_file;
mod overlay;
mod own_files;
mod patch;
mod plan;
mod plan_execution;
mod quota;
mod review;
mod tree;
mod xattrs;

pub use applied_paths::AppliedPaths;
pub(crate) use base::bytes;
pub use commit::UnappliedChange;
pub use create::create_layer;
pub use diff::{ChangeKind, LayerChange};
pub use error::LayerError;
pub use open_file::{ProgramFile, open_file};
pub use patch::{MAX_PATCH_BYTES, Patch, patch};
pub(crate) use review::note_commits;
pub use review::{diff, find_newest};
pub use tree::FileKind;
pub(crate) use tree::{names as names_in, remove as remove_tree};

use crate::FileAccess;
use applied_paths::AppliedFacts;
use base::{Baseline, KnownBaseline};
use commit::Selection;
use diff::{Comparer, Comparison};
use mtimes::ModificationTimes;
use overlay::{UpperLayer, XattrNamespace};
use plan::Plan;
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags},
    io::Errno,
};
use sandbox::native::{UPPER, protect};
use serde::{Deserialize, Serialize};
use spec::{Id, LayerKind, LayerUsage, ProtectedNames, Timestamp, WorkspacePath};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// The folder of the layers in the state folder.
const LAYERS: &str = "workspaces";
const NEW: &str = ".new-";
const GONE: &str = ".gone-";
const INFO_FILE: &str = "about.json";
const TREE: &str = "tree";
/// The retries while another process has a lock, and the delay between them.
const TRIES: usize = 60;
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// The most layers that are listed.
const MAX_LISTED: usize = 10_000;

/// The description of a layer, in `about.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct LayerInfo {
    #[serde(with = "base::bytes")]
    folder: OsString,
    device: u64,
    inode: u64,
    made_at: u64,
    /// Protected paths that may be written all the same.
    allowed: Vec<PathBuf>,
    /// Names that were added to the protected ones or removed from them, and paths that the git
    /// configuration names.
    #[serde(default)]
    added: Vec<String>,
    #[serde(default)]
    removed: Vec<String>,
    #[serde(default)]
    named: Vec<PathBuf>,
    /// Inputs that Airlock put in, which are not changes; names of any bytes.
    #[serde(default)]
    inputs: Vec<Vec<u8>>,
    /// The key that the layer belongs to, on a server.
    owner: Option<String>,
    #[serde(default)]
    kind: LayerKind,
    /// Whether the host's root mounted the overlay.
    #[serde(default)]
    by_root: bool,
}

/// A layer in a list.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The run or session that it was created for.
    pub id: Id,
    /// The folder that it is based on.
    pub folder: PathBuf,
    /// The creation time.
    pub made_at: Timestamp,
    /// The owner, on a server.
    pub owner: Option<String>,
    /// Whether a sandbox uses it.
    pub in_use: bool,
}

/// The changes in a layer.
#[derive(Clone, Debug)]
pub struct Diff {
    /// Sorted by path.
    pub changes: Vec<LayerChange>,
    /// Folders of the layer that could not be read, and why.
    pub unknown: Vec<(PathBuf, String)>,
    /// Whether the folder was compared too; otherwise conflicts are not known.
    pub compared: bool,
    /// The kind of the layer, and its size when it was last measured.
    pub layer: LayerUsage,
    /// The program's commits, as far as they are known: each with its abbreviated id and its
    /// subject.
    pub commits: Vec<String>,
}

/// How changes are committed to the folder.
#[derive(Clone, Debug, Default)]
pub struct CommitOptions {
    /// Also commits where the folder has changed meanwhile, and, for the very paths in `only`,
    /// protected names and links that lead out, but no link to a protected name.
    pub force: bool,
    /// Commits what can be committed, even if other changes cannot.
    pub partial: bool,
    /// Keeps the layer even if all changes are committed.
    pub keep: bool,
    /// Only these paths, what is below them, and the new folders above that they need; all changes
    /// if empty.
    pub only: Vec<PathBuf>,
    /// Not what is below the paths in `only`.
    pub exactly: bool,
}

/// The result of a commit.
#[derive(Clone, Debug, Default)]
pub struct CommitOutcome {
    /// Sorted by path.
    pub applied: Vec<LayerChange>,
    /// The changes that were not committed, and why.
    pub left: Vec<UnappliedChange>,
    /// Whether the layer was removed: all changes were committed, and nobody used it.
    pub discarded: bool,
    /// Whether a sandbox used the layer meanwhile.
    pub in_use: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The paths of the folder that are now as the program left them.
    pub applied_paths: AppliedPaths,
}

impl CommitOutcome {
    /// The paths of which the folder has the program's version: the change was committed, or
    /// neither side changed the file. Conflicts, paths that were left out or not selected, paths
    /// below such a folder, and paths that were changed in the folder are not among them.
    pub fn applied_among(&self, paths: &[PathBuf]) -> BTreeSet<PathBuf> {
        self.applied_paths.applied_among(paths)
    }
}

/// A layer in use. Dropping the handle keeps the layer.
#[derive(Debug)]
pub struct LayerHandle {
    state: PathBuf,
    id: Id,
    folder: OwnedFd,
    kind: LayerKind,
    /// The paths of the folder that the program does not see.
    hidden: Vec<PathBuf>,
    notes: Vec<String>,
}

impl LayerHandle {
    /// Notes for the user, before the program runs.
    pub fn notes(&self) -> Vec<String> {
        let hidden = protect::hiding_note(&self.hidden);
        hidden.into_iter().chain(self.notes.clone()).collect()
    }

    /// The folder that the program changes.
    fn tree(&self) -> PathBuf {
        self.state.join(LAYERS).join(self.id.as_str()).join(TREE)
    }

    /// The changes so far; also records the current size of the layer.
    pub fn diff(&self) -> Result<Diff, LayerError> {
        Ok(self.diff_and_base()?.0)
    }

    fn diff_and_base(&self) -> Result<(Diff, Option<KnownBaseline>), LayerError> {
        // First: a program can make its layer impossible to compare.
        let room = measure::layer(&self.folder, self.kind);
        quota::write_size(&self.folder, room)
            .map_err(failed("write down what the workspace takes"))?;
        review::diff_and_base(&self.state, &self.id)
    }

    /// Commits the changes, once the sandbox has ended: files that nobody uses are moved instead of
    /// copied.
    pub fn commit(self, options: CommitOptions) -> Result<CommitOutcome, LayerError> {
        self.commit_without(options, &[], None)
    }

    /// Removes the layer.
    pub fn discard(self) -> Result<(), LayerError> {
        let LayerHandle {
            state, id, folder, ..
        } = self;
        drop(folder);
        discard(&state, &id)
    }
}

/// The recorded size of an owner's layers.
pub fn bytes_of_owner(state: &Path, owner: &str) -> Result<u64, LayerError> {
    match quota::sum(state, Some(owner)) {
        // Without the folder there are no layers.
        Err(LayerError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(0),
        sum => sum,
    }
}

/// The folder of the program's files in a layer.
fn tree_of(kind: LayerKind) -> PathBuf {
    match kind {
        LayerKind::Overlay => Path::new(TREE).join(OsStr::from_bytes(UPPER.to_bytes())),
        LayerKind::Reflink | LayerKind::Copy => PathBuf::from(TREE),
    }
}

/// By path: fchmod needs an open folder, and this one may not be readable.
fn open_for_owner(folder: &OwnedFd) -> io::Result<()> {
    let mode = rustix::fs::fstat(folder)?.st_mode & 0o7777;
    if mode & 0o700 == 0o700 {
        return Ok(());
    }
    let link = format!("/proc/self/fd/{}", folder.as_raw_fd());
    Ok(rustix::fs::chmod(link, Mode::from_raw_mode(mode | 0o700))?)
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// An open layer.
struct OpenLayer {
    id: Id,
    layer: OwnedFd,
    /// The description, locked by whoever changes the baseline.
    file: File,
    info: LayerInfo,
}

impl OpenLayer {
    fn open(state: &Path, id: &Id) -> Result<OpenLayer, LayerError> {
        let absent = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => LayerError::Absent { id: id.clone() },
            _ => failed("open the workspace")(source),
        };
        let layers =
            open_layers(state, false).map_err(|_| LayerError::Absent { id: id.clone() })?;
        // An id cannot begin with a dot, so that an incomplete layer is never found.
        let layer = tree::open(&layers, id.as_str(), FOLDER).map_err(absent)?;
        let mut file = File::from(tree::open(&layer, INFO_FILE, OFlags::RDONLY).map_err(absent)?);
        let mut text = Vec::new();
        (&mut file)
            .take(1 << 20)
            .read_to_end(&mut text)
            .map_err(failed("read what the workspace is"))?;
        let info = serde_json::from_slice(&text);
        let info = info.map_err(|source| failed("read what the workspace is")(source.into()))?;
        Ok(OpenLayer {
            id: id.clone(),
            layer,
            file,
            info,
        })
    }

    fn folder(&self) -> Result<OwnedFd, LayerError> {
        let folder = PathBuf::from(&self.info.folder);
        let elsewhere = |source| LayerError::Elsewhere {
            folder: folder.clone(),
            source,
        };
        let opened = rustix::fs::open(&folder, FOLDER, Mode::empty());
        let opened = opened.map_err(|source| elsewhere(Some(source.into())))?;
        let found = rustix::fs::fstat(&opened).map_err(|source| elsewhere(Some(source.into())))?;
        match (found.st_dev, found.st_ino) == (self.info.device, self.info.inode) {
            true => Ok(opened),
            false => Err(elsewhere(None)),
        }
    }

    /// Opens the folder with the program's changes.
    fn tree(&self) -> Result<OwnedFd, LayerError> {
        let path = tree_of(self.info.kind);
        // The program may have removed the owner's permissions.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = tree::open(&self.layer, &path, flags)
            .and_then(|top| open_for_owner(&top))
            .and_then(|()| tree::open(&self.layer, &path, FOLDER));
        opened.map_err(failed("open what the program left"))
    }

    /// Reads an overlay layer. Only root can read the kernel's attributes, and not the owner of the
    /// folder.
    fn upper(&self, tree: &OwnedFd, base: &Baseline) -> Result<Option<UpperLayer>, LayerError> {
        let notes = match self.info.by_root {
            true => XattrNamespace::Trusted,
            false => XattrNamespace::User,
        };
        let is_overlay = self.info.kind == LayerKind::Overlay;
        let upper = is_overlay.then(|| overlay::read(tree.as_fd(), base, notes));
        upper
            .transpose()
            .map_err(failed("look at what the program left"))
    }

    /// Reads an overlay layer after a copy-up of everything that was moved, so that it no longer
    /// depends on the folder. Only for a layer that no sandbox uses.
    fn upper_copied_up(
        &self,
        base: &Baseline,
        (tree, folder): (&OwnedFd, &OwnedFd),
        rights: &FileAccess,
        (force, is_alone): (bool, bool),
    ) -> Result<Option<UpperLayer>, LayerError> {
        let Some(upper) = self.upper(tree, base)? else {
            return Ok(None);
        };
        if upper.moved.is_empty() {
            return Ok(Some(upper));
        }
        if !is_alone {
            // The contents are in the folder, and only the kernel may write to a layer in use.
            return Err(LayerError::FolderMoved {
                id: self.id.clone(),
            });
        }
        let (layer, folder) = (tree.as_fd(), folder.as_fd());
        let brought = rights.act(|| Ok(overlay::copy_up(&upper, base, layer, folder, force)));
        let stuck = brought.map_err(failed("copy what the program moved"))?;
        let upper = self.upper(tree, base)?;
        Ok(upper.map(|upper| UpperLayer { stuck, ..upper }))
    }

    /// The protected names at the time of creation.
    fn protected(&self) -> ProtectedNames {
        let paths = |paths: &[PathBuf]| {
            let paths = paths
                .iter()
                .filter_map(|path| WorkspacePath::new(path).ok());
            paths.collect()
        };
        let info = &self.info;
        ProtectedNames {
            added: info.added.clone(),
            removed: info.removed.clone(),
            paths: paths(&info.named),
            allowed: paths(&info.allowed),
        }
    }

    /// Takes a lock, with retries: a process that only tests whether a sandbox uses the layer holds
    /// it for a moment.
    fn lock(&self, what: impl AsFd, how: FlockOperation) -> Result<(), LayerError> {
        for _ in 0..TRIES {
            match rustix::fs::flock(&what, how) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(RETRY_DELAY),
                Err(error) => return Err(failed("lock the workspace")(error.into())),
            }
        }
        Err(LayerError::InUse {
            id: self.id.clone(),
        })
    }

    fn unlock(&self) -> Result<(), LayerError> {
        let unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        unlocked.map_err(|source| failed("unlock the workspace")(source.into()))
    }

    /// The folder that the sandbox sees and locks.
    fn top(&self) -> Result<OwnedFd, LayerError> {
        tree::open(&self.layer, TREE, FOLDER).map_err(failed("open the workspace"))
    }

    /// Locks the layer exclusively as long as the result lives; none if a sandbox uses it. Only
    /// then files may be moved out of it, and only then it can be removed.
    fn alone(&self) -> Option<OwnedFd> {
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        self.lock(&self.layer, exclusive).ok()?;
        let top = self.top().ok()?;
        self.lock(&top, exclusive).ok()?;
        Some(top)
    }

    /// Plans the commit, and writes the plan before its first step.
    fn plan(
        &self,
        base: &Baseline,
        choice: &Selection<'_>,
        rights: &FileAccess,
        (options, moves, drop): (&CommitOptions, bool, bool),
    ) -> Result<Plan, LayerError> {
        let planning = failed("write down what is to be done");
        let draft = commit::draft_name(&self.layer).map_err(&planning)?;
        let mut plan = Plan::new(draft, moves, options.force, drop);
        let folder = PathBuf::from(&self.info.folder);
        let (user, _) = owner(rights);
        let steps = rights.act(|| {
            let times =
                ModificationTimes::of(base, &choice.wanted, self.info.made_at, &folder, user);
            Ok(commit::steps(&choice.wanted, &times))
        });
        plan.steps = steps.map_err(&planning)?;
        if !plan.steps.is_empty() {
            plan.write(&self.layer).map_err(planning)?;
        }
        Ok(plan)
    }

    fn listed(&self) -> Layer {
        let alone = rustix::fs::flock(&self.layer, FlockOperation::NonBlockingLockExclusive);
        let in_use = alone == Err(Errno::WOULDBLOCK);
        Layer {
            id: self.id.clone(),
            folder: PathBuf::from(&self.info.folder),
            made_at: Timestamp(self.info.made_at),
            owner: self.info.owner.clone(),
            in_use,
        }
    }
}

/// The owner of files that are created with this access.
fn owner(rights: &FileAccess) -> (u32, u32) {
    rights.user().unwrap_or_else(|| {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        (user.as_raw(), group.as_raw())
    })
}

/// A layer by its id.
pub fn find(state: &Path, id: &Id) -> Result<Layer, LayerError> {
    Ok(OpenLayer::open(state, id)?.listed())
}

/// Whether there is a layer of this id; an error if that cannot be found out.
pub fn exists(state: &Path, id: &Id) -> Result<bool, LayerError> {
    match OpenLayer::open(state, id) {
        Ok(_) => Ok(true),
        Err(LayerError::Absent { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// All layers of a state folder, the oldest first.
pub fn list(state: &Path) -> Result<Vec<Layer>, LayerError> {
    let layers = match open_layers(state, false) {
        Ok(layers) => layers,
        Err(LayerError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let names = tree::names(&layers).map_err(failed("list the workspaces"))?;
    let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
    let mut found: Vec<_> = ids
        .take(MAX_LISTED)
        .filter_map(|id| find(state, &id).ok())
        .collect();
    found.sort_by(|one, other| {
        (one.made_at, one.id.as_str()).cmp(&(other.made_at, other.id.as_str()))
    });
    Ok(found)
}

/// Commits a layer's changes to its folder: all of them, or with `partial` those that can be
/// committed. First completes a commit that a crash interrupted. Acts as the owner of the layer, as
/// whom the program ran: what the owner may not change stays.
pub fn commit(state: &Path, id: &Id, options: CommitOptions) -> Result<CommitOutcome, LayerError> {
    commit_without(state, id, options, &[], None)
}

fn commit_without(
    state: &Path,
    id: &Id,
    options: CommitOptions,
    without: &[PathBuf],
    known: Option<KnownBaseline>,
) -> Result<CommitOutcome, LayerError> {
    let opened = OpenLayer::open(state, id)?;
    opened.lock(&opened.file, FlockOperation::NonBlockingLockExclusive)?;
    let alone = opened.alone();
    let before = plan_execution::complete(&opened)?;
    let (folder, tree, protected) = (opened.folder()?, opened.tree()?, opened.protected());
    let known = base::read_again(&opened.layer, known);
    let mut base = known
        .map_err(failed("read what the workspace is based on"))?
        .base;
    let rights =
        FileAccess::of_owner(tree.as_fd()).map_err(failed("act as the owner of the folder"))?;
    let how = (options.force, alone.is_some());
    let upper = opened.upper_copied_up(&base, (&tree, &folder), &rights, how)?;
    let sides = Comparer {
        base: &base,
        layer: tree.as_fd(),
        upper: upper.as_ref(),
        folder: Some(folder.as_fd()),
        protected: &protected,
    };
    let looking = failed("look at what the program left");
    let (compared, inputs) = opened.compare(&sides, &rights).map_err(looking)?;
    let Comparison { assessed, unknown } = compared;
    let mut choice = commit::choose(&assessed, &options);
    own_files::deselect(&mut choice, without);
    choice.left.extend(commit::unknown(&unknown, &options));
    if !choice.left.is_empty() && !options.partial {
        commit::sort(&mut choice.left);
        return Err(LayerError::Refused { left: choice.left });
    }
    let clean = choice.left.is_empty() && choice.others.is_empty();
    let may_go = alone.as_ref().filter(|_| clean && !options.keep);
    let plan = opened.plan(
        &base,
        &choice,
        &rights,
        (&options, alone.is_some(), may_go.is_some()),
    )?;
    let others = choice.others.iter().map(|path| path.to_path_buf());
    let mut unsettled: BTreeSet<PathBuf> = others.chain(inputs).collect();
    let mut left = choice.left;
    drop(assessed);
    let mut outcome = plan_execution::execute(&plan, &mut base, (&tree, &folder), &rights, false)?;
    left.append(&mut outcome.left);
    left.extend(before.left);
    commit::sort(&mut left);
    unsettled.extend(left.iter().map(|left| left.path.clone()));
    let discarded = match may_go.filter(|_| left.is_empty()) {
        Some(_) => remove_layer(state, &opened).is_ok(),
        None => false,
    };
    if !discarded {
        plan_execution::record_done(&opened, &base)?;
    }
    outcome.applied.extend(before.applied);
    outcome
        .applied
        .sort_by(|one, other| one.path.cmp(&other.path));
    Ok(CommitOutcome {
        applied: outcome.applied,
        left,
        discarded,
        in_use: alone.is_none(),
        notes: plan_execution::notes(outcome.attributes_left + before.attributes_left),
        applied_paths: AppliedPaths::of(AppliedFacts {
            base,
            folder,
            rights,
            left: unsettled,
        }),
    })
}

/// Removes a layer with its changes. First completes a commit that a crash interrupted. Refused
/// while a sandbox uses it.
pub fn discard(state: &Path, id: &Id) -> Result<(), LayerError> {
    discard_after(state, id, || Ok(()))
}

/// The same, once `before` has succeeded; nobody uses the layer while it runs.
pub fn discard_after(
    state: &Path,
    id: &Id,
    before: impl FnOnce() -> Result<(), LayerError>,
) -> Result<(), LayerError> {
    let opened = OpenLayer::open(state, id)?;
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    // No engine uses it, no sandbox that outlives its engine for a moment, and no commit.
    opened.lock(&opened.layer, exclusive)?;
    let tree = opened.top()?;
    opened.lock(&tree, exclusive)?;
    opened.lock(&opened.file, exclusive)?;
    match plan_execution::complete(&opened) {
        // Without the folder there is nothing to complete.
        Ok(_) | Err(LayerError::Elsewhere { .. }) => {}
        Err(error) => return Err(error),
    }
    before()?;
    remove_layer(state, &opened)
}

/// Removes a layer that is locked exclusively.
fn remove_layer(state: &Path, opened: &OpenLayer) -> Result<(), LayerError> {
    let (layers, id) = (open_layers(state, false)?, &opened.id);
    let gone = format!("{GONE}{id}-{}", crate::fresh_id());
    let removed = failed("remove the workspace");
    rustix::fs::renameat(&layers, id.as_str(), &layers, &gone)
        .map_err(|source| removed(source.into()))?;
    tree::remove(&layers, gone.as_ref()).map_err(removed)
}

/// Removes layers that a crash left half created or half removed, and expired ones; completes
/// interrupted commits; returns errors.
pub(crate) fn sweep(state: &Path) -> Vec<String> {
    let Ok(layers) = open_layers(state, false) else {
        return Vec::new();
    };
    let names = match tree::names(&layers) {
        Ok(names) => names,
        Err(source) => return vec![format!("the workspaces cannot be listed: {source}")],
    };
    let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
    for id in
        ids.filter(|id| OpenLayer::open(state, id).is_ok_and(|layer| quota::is_expired(&layer)))
    {
        // A layer in use has not expired; a half removed layer is handled below or next time.
        let _ = discard(state, &id);
    }
    let unfinished = names
        .iter()
        .filter_map(|name| Id::new(name.to_str()?).ok())
        .filter_map(|id| {
            let done = plan_execution::complete_unlocked(state, &id);
            done.err()
                .map(|error| format!("the workspace `{id}`: {}", error.info().message))
        });
    let unfinished: Vec<_> = unfinished.collect();
    let half = |name: &OsString| {
        name.to_str()
            .is_some_and(|name| name.starts_with(NEW) || name.starts_with(GONE))
    };
    let swept = names.into_iter().filter(half).map(|name| {
        sweep_one(&layers, &name)
            .map_err(|source| format!("the workspace `{}`: {source}", name.display()))
    });
    swept.filter_map(Result::err).chain(unfinished).collect()
}

fn sweep_one(layers: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let folder = match tree::open(layers, name, FOLDER) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        folder => folder?,
    };
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(()),
        Err(source) => Err(source.into()),
        Ok(()) => tree::remove(layers, name),
    }
}

fn open_layers(state: &Path, make: bool) -> Result<OwnedFd, LayerError> {
    let path = state.join(LAYERS);
    let opening = failed("open the folder of workspaces");
    if make {
        match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(source) => return Err(opening(source.into())),
        }
    }
    rustix::fs::open(&path, FOLDER, Mode::empty()).map_err(|source| opening(source.into()))
}

fn failed(what: &str) -> impl Fn(io::Error) -> LayerError + use<> {
    let what = what.to_owned();
    move |source| LayerError::Io {
        what: what.clone(),
        source,
    }
}

fn paths(paths: &[WorkspacePath]) -> Vec<PathBuf> {
    let paths = paths.iter().map(|path| path.as_path().to_owned());
    paths.collect()
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
#[path = "workspaces/tests.rs"]
mod tests;
