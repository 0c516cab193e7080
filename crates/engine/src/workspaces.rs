//! Workspaces that are copied on writing: the program changes a layer of its own, in the state folder, while the folder
//! that it is based on stays as it is. Afterwards the changes can be looked at, taken over, or dropped.
//!
//! ```text
//! workspaces/.new-ID ─ copied ─▶ workspaces/ID/{about.json, base, tree/} ─ discarded ─▶ workspaces/.gone-ID
//! ```
//!
//! A layer is the user's: a sweep removes only what a crash left half made or half removed, and what a key has forgotten.
//! Whoever uses one holds a shared lock on its folder, which dies with its owner.

mod base;
mod commit;
mod diff;
pub mod held;
pub(crate) mod live;
pub(crate) mod measure;
mod owned;
mod tree;
mod wire;

pub use commit::Left;
pub use diff::{Change, What};
pub use tree::Kind;
pub(crate) use tree::{names as names_in, remove as remove_tree};

use crate::{Rights, files};
use base::{Base, NotCopied};
use commit::{Applied, Commit};
use diff::{Compared, Sides};
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};
use sandbox::native::protect;
use serde::{Deserialize, Serialize};
use spec::{
    ErrorCode, ErrorInfo, FileId, Hide, Id, ProtectedNames, SandboxSpec, Timestamp, WorkspacePath,
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// Where layers are, in the state folder.
const LAYERS: &str = "workspaces";
const NEW: &str = ".new-";
const GONE: &str = ".gone-";
const ABOUT: &str = "about.json";
const TREE: &str = "tree";
/// How often somebody else may be faster, and what is waited for in between.
const TRIES: usize = 16;
const MOMENT: Duration = Duration::from_millis(5);
/// Layers that are listed.
const MOST_LISTED: usize = 10_000;

/// Why something could not be done with a layer.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// There is none of that name.
    #[error("there is no workspace `{id}`")]
    Absent {
        /// What was asked for.
        id: Id,
    },
    /// A box uses it, or somebody else is at it.
    #[error("the workspace `{id}` is in use")]
    InUse {
        /// Which.
        id: Id,
    },
    /// The folder it is based on is not there any more.
    #[error(
        "the folder `{}` is not the one that the workspace is based on",
        shown(folder)
    )]
    Elsewhere {
        /// Where it was.
        folder: PathBuf,
        /// The cause, if it cannot be opened.
        #[source]
        source: Option<io::Error>,
    },
    /// The folder is not what it was when it was admitted.
    #[error("`{}` is no longer what it was when it was admitted", shown(folder))]
    Replaced {
        /// Which.
        folder: PathBuf,
    },
    /// Something stands against taking all of it over; nothing was done.
    #[error("{} of the changes cannot be taken over as they are", left.len())]
    Refused {
        /// What, and why.
        left: Vec<Left>,
    },
    /// The folder is too much to be copied.
    #[error("the folder `{}` cannot be copied: {reason}", shown(folder))]
    TooMuch {
        /// Which.
        folder: PathBuf,
        /// Of what.
        reason: String,
    },
    /// There is no room for a copy of the folder.
    #[error("the folder `{}` cannot be copied: {reason}", shown(folder))]
    NoRoom {
        /// Which.
        folder: PathBuf,
        /// Where.
        reason: String,
    },
    /// A layer of that name is there already.
    #[error("there is a workspace `{id}` already")]
    Taken {
        /// Which.
        id: Id,
    },
    /// Nobody waits for it any more.
    #[error("cancelled")]
    Cancelled,
    /// The file system said no.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl LayerError {
    /// The same for a caller.
    pub fn info(&self) -> ErrorInfo {
        let (code, hint) = match self {
            LayerError::Absent { .. } => (
                ErrorCode::InvalidSpec,
                "`airlock workspace list` shows what there is",
            ),
            LayerError::InUse { .. } => (
                ErrorCode::InvalidSpec,
                "end its run or session first, or wait",
            ),
            LayerError::Elsewhere { .. } => (
                ErrorCode::InvalidSpec,
                "put the folder back in its place, or discard the workspace",
            ),
            LayerError::Replaced { .. } => (
                ErrorCode::PolicyDenied,
                "ask again once nobody moves or replaces anything on the way to it",
            ),
            LayerError::Refused { .. } => (
                ErrorCode::PolicyDenied,
                "--partial takes over the rest; --force also what conflicts",
            ),
            LayerError::TooMuch { .. } => {
                (ErrorCode::InvalidSpec, "give --workspace a smaller folder")
            }
            LayerError::NoRoom { .. } => (
                ErrorCode::QuotaExceeded,
                "commit or discard workspaces that are kept, or make room on the disk",
            ),
            LayerError::Taken { .. } => (
                ErrorCode::InvalidSpec,
                "commit or discard that one, or choose another id",
            ),
            LayerError::Cancelled => (ErrorCode::Cancelled, "ask again"),
            LayerError::Io { .. } => (
                ErrorCode::Internal,
                "see that both folders can be read and written",
            ),
        };
        let message = match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        };
        ErrorInfo {
            code,
            message,
            hint: Some(hint.to_owned()),
        }
    }
}

/// What is written down of a layer.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct About {
    #[serde(with = "base::bytes")]
    folder: OsString,
    device: u64,
    inode: u64,
    made_at: u64,
    /// Protected names that may be written after all.
    allowed: Vec<PathBuf>,
    /// Names that are protected beyond the usual, those that are not, and what the configuration of git names.
    #[serde(default)]
    added: Vec<String>,
    #[serde(default)]
    removed: Vec<String>,
    #[serde(default)]
    named: Vec<PathBuf>,
    /// The key it was made for, where there are several.
    owner: Option<String>,
}

/// A layer, as it is listed.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The run or session that it was made for.
    pub id: Id,
    /// The folder that it is based on.
    pub folder: PathBuf,
    /// When it was made.
    pub made_at: Timestamp,
    /// Whoever it was made for, where there are several.
    pub owner: Option<String>,
    /// Whether a box uses it.
    pub in_use: bool,
}

/// What a program changed.
#[derive(Clone, Debug)]
pub struct Diff {
    /// Sorted by path.
    pub changes: Vec<Change>,
    /// Folders of the layer that could not be looked into, and why.
    pub unknown: Vec<(PathBuf, String)>,
    /// Whether the folder could be compared, too; without it conflicts are not known.
    pub compared: bool,
}

/// How changes are taken over.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitOptions {
    /// Also where the folder has changed meanwhile.
    pub force: bool,
    /// What can be, although not everything can.
    pub partial: bool,
    /// The layer stays, although all of it was taken over.
    pub keep: bool,
}

/// What was taken over.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Sorted by path.
    pub applied: Vec<Change>,
    /// What was not, and why.
    pub left: Vec<Left>,
    /// Whether the layer is gone: nothing was left in it, and nobody used it.
    pub discarded: bool,
}

/// A layer in use. Dropping it leaves the layer to the user.
#[derive(Debug)]
pub struct Hold {
    state: PathBuf,
    id: Id,
    folder: OwnedFd,
    /// What of the folder the program does not see.
    hidden: Vec<PathBuf>,
}

impl Hold {
    /// What there is to say of it before the program runs.
    pub fn notes(&self) -> Vec<String> {
        protect::hiding_note(&self.hidden).into_iter().collect()
    }

    /// What the program is to see.
    fn tree(&self) -> PathBuf {
        self.state.join(LAYERS).join(self.id.as_str()).join(TREE)
    }

    /// What the program has changed so far; what the layer takes by now is written down.
    pub fn diff(&self) -> Result<Diff, LayerError> {
        // First: a program can see to it that its layer cannot be compared.
        let room = measure::layer(&self.folder);
        owned::note(&self.folder, room).map_err(failed("write down what the workspace takes"))?;
        diff(&self.state, &self.id)
    }

    /// Gives the layer up: nobody wants it.
    pub fn discard(self) -> Result<(), LayerError> {
        let Hold {
            state, id, folder, ..
        } = self;
        drop(folder);
        discard(&state, &id)
    }
}

/// Bytes that the layers of this owner take, as they were written down last.
pub fn taken(state: &Path, owner: &str) -> Result<u64, LayerError> {
    match owned::sum(state, Some(owner)) {
        // Without a folder there are none.
        Err(LayerError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(0),
        sum => sum,
    }
}

/// Gives a box whose workspace is to be copied on writing a layer, and shows it that instead of the folder. The caller has
/// looked whether the folder may be shown at all.
pub fn lay(
    state: &Path,
    id: &Id,
    spec: &mut SandboxSpec,
    owner: Option<String>,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Hold>, LayerError> {
    let Some(folder) = spec.workspace.clone().filter(|_| spec.copy_on_write) else {
        return Ok(None);
    };
    let hold = make(state, id, spec, &folder, owner, is_cancelled)?;
    let tree = hold.tree();
    crate::guard::add_own(spec, &tree).map_err(failed("look at the workspace"))?;
    spec.workspace = Some(tree);
    Ok(Some(hold))
}

/// Makes a layer of a folder.
fn make(
    state: &Path,
    id: &Id,
    spec: &SandboxSpec,
    asked: &Path,
    owner: Option<String>,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Hold, LayerError> {
    let elsewhere = |source: io::Error| LayerError::Elsewhere {
        folder: asked.to_owned(),
        source: Some(source),
    };
    let folder = std::fs::canonicalize(asked).map_err(elsewhere)?;
    let from = rustix::fs::open(&folder, FOLDER, Mode::empty())
        .map_err(|source| elsewhere(source.into()))?;
    let found = rustix::fs::fstat(&from).map_err(|source| elsewhere(source.into()))?;
    if !spec.admits(
        asked,
        FileId {
            device: found.st_dev,
            inode: found.st_ino,
        },
    ) {
        return Err(LayerError::Replaced {
            folder: asked.to_owned(),
        });
    }
    let about = About {
        folder: folder.clone().into(),
        device: found.st_dev,
        inode: found.st_ino,
        made_at: crate::now().0,
        allowed: paths(&spec.protected.allowed),
        added: spec.protected.added.clone(),
        removed: spec.protected.removed.clone(),
        named: paths(&spec.protected.paths),
        owner,
    };
    let layers = open_layers(state, true)?;
    let draft = format!("{NEW}{id}");
    let new = begin(&layers, id, &draft)
        .map_err(|error| error.unwrap_or(LayerError::Taken { id: id.clone() }))?;
    let growing = owned::Growing::begin(state, about.owner.as_deref());
    let made = owned::sum(state, about.owner.as_deref()).and_then(|before| {
        let watch = |room| match is_cancelled() {
            true => Err(NotCopied::Cancelled),
            false => owned::fits(state, before, growing.to(room)),
        };
        fill(&new, &from, &folder, &about, &spec.hide, &watch)
    });
    let made = made.and_then(|hidden| {
        let named = rustix::fs::renameat_with(
            &layers,
            &draft,
            &layers,
            id.as_str(),
            RenameFlags::NOREPLACE,
        );
        named.map_err(|error| match error {
            Errno::EXIST => LayerError::Taken { id: id.clone() },
            error => failed("name the workspace")(error.into()),
        })?;
        Ok(hidden)
    });
    match made {
        Ok(hidden) => {
            growing.stays();
            Ok(Hold {
                state: state.to_owned(),
                id: id.clone(),
                folder: new,
                hidden,
            })
        }
        Err(error) => {
            // What cannot be removed now, a sweep removes.
            let _ = tree::remove(&layers, draft.as_ref());
            Err(error)
        }
    }
}

/// No other call changes the mode of a folder that cannot be searched.
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

/// The folder of a layer in the making, locked; no error of its own if the name is taken.
fn begin(layers: &OwnedFd, id: &Id, draft: &str) -> Result<OwnedFd, Option<LayerError>> {
    let made = failed("make a workspace");
    if rustix::fs::statat(layers, id.as_str(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(None);
    }
    for _ in 0..TRIES {
        match rustix::fs::mkdirat(layers, draft, Mode::RWXU) {
            Err(Errno::EXIST) => return Err(None),
            done => done.map_err(|source| Some(made(source.into())))?,
        }
        // A sweep may take it for a dead one's before it is locked.
        let locked = tree::open(layers, draft, FOLDER).and_then(|new| {
            rustix::fs::flock(&new, FlockOperation::LockShared)?;
            Ok((rustix::fs::fstat(&new)?.st_nlink > 0).then_some(new))
        });
        match locked {
            Ok(Some(new)) => return Ok(new),
            Ok(None) => {}
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Some(made(source))),
        }
    }
    Err(Some(made(Errno::AGAIN.into())))
}

/// Copies the folder with its owner's rights: what he cannot read is not in the layer, and all of the layer is his.
fn fill(
    new: &OwnedFd,
    from: &OwnedFd,
    folder: &Path,
    about: &About,
    hide: &Hide,
    watch: base::Watch<'_>,
) -> Result<Vec<PathBuf>, LayerError> {
    let written = failed("write a workspace down");
    rustix::fs::mkdirat(new, TREE, Mode::RWXU).map_err(|source| written(source.into()))?;
    let tree = tree::open(new, TREE, FOLDER).map_err(&written)?;
    let rights = Rights::of_owner(from.as_fd()).map_err(&written)?;
    files::give(&tree, rights.user()).map_err(&written)?;
    let copied = rights
        .act(|| Ok(base::copy(from.as_fd(), tree.as_fd(), hide, watch)))
        .map_err(&written)?;
    let base::Copied { base, room, hidden } = copied.map_err(|error| match error {
        NotCopied::Bound(reason) => LayerError::TooMuch {
            folder: folder.to_owned(),
            reason,
        },
        NotCopied::NoRoom(reason) => LayerError::NoRoom {
            folder: folder.to_owned(),
            reason,
        },
        NotCopied::Cancelled => LayerError::Cancelled,
        NotCopied::Io(path, source) => {
            failed(&format!("copy `{}`", shown(&folder.join(path))))(source)
        }
    })?;
    owned::note(new, room).map_err(&written)?;
    base::write(new, &base).map_err(&written)?;
    let file =
        tree::open(new, ABOUT, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).map_err(&written)?;
    let text = serde_json::to_vec(about).map_err(|source| written(source.into()))?;
    File::from(file).write_all(&text).map_err(&written)?;
    Ok(hidden)
}

/// A layer that is there, opened.
struct Opened {
    id: Id,
    layer: OwnedFd,
    /// Locked by whoever changes the layer's base.
    file: File,
    about: About,
}

impl Opened {
    fn open(state: &Path, id: &Id) -> Result<Opened, LayerError> {
        let absent = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => LayerError::Absent { id: id.clone() },
            _ => failed("open the workspace")(source),
        };
        let layers =
            open_layers(state, false).map_err(|_| LayerError::Absent { id: id.clone() })?;
        // An identifier may begin with a dot nowhere, so that nothing half made has one.
        let layer = tree::open(&layers, id.as_str(), FOLDER).map_err(absent)?;
        let mut file = File::from(tree::open(&layer, ABOUT, OFlags::RDONLY).map_err(absent)?);
        let mut text = Vec::new();
        (&mut file)
            .take(1 << 20)
            .read_to_end(&mut text)
            .map_err(failed("read what the workspace is"))?;
        let about = serde_json::from_slice(&text);
        let about = about.map_err(|source| failed("read what the workspace is")(source.into()))?;
        Ok(Opened {
            id: id.clone(),
            layer,
            file,
            about,
        })
    }

    fn folder(&self) -> Result<OwnedFd, LayerError> {
        let folder = PathBuf::from(&self.about.folder);
        let elsewhere = |source| LayerError::Elsewhere {
            folder: folder.clone(),
            source,
        };
        let opened = rustix::fs::open(&folder, FOLDER, Mode::empty());
        let opened = opened.map_err(|source| elsewhere(Some(source.into())))?;
        let found = rustix::fs::fstat(&opened).map_err(|source| elsewhere(Some(source.into())))?;
        match (found.st_dev, found.st_ino) == (self.about.device, self.about.inode) {
            true => Ok(opened),
            false => Err(elsewhere(None)),
        }
    }

    fn tree(&self) -> Result<OwnedFd, LayerError> {
        // The program may have taken the rights to its folder away, from its owner, too.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = tree::open(&self.layer, TREE, flags)
            .and_then(|top| open_for_owner(&top))
            .and_then(|()| tree::open(&self.layer, TREE, FOLDER));
        opened.map_err(failed("open what the program left"))
    }

    /// Which names were protected when the layer was made.
    fn protected(&self) -> ProtectedNames {
        let paths = |paths: &[PathBuf]| {
            let paths = paths
                .iter()
                .filter_map(|path| WorkspacePath::new(path).ok());
            paths.collect()
        };
        let about = &self.about;
        ProtectedNames {
            added: about.added.clone(),
            removed: about.removed.clone(),
            paths: paths(&about.named),
            allowed: paths(&about.allowed),
        }
    }

    /// Nobody else is at it. Whoever merely looks whether a box uses it is gone in a moment.
    fn lock(&self, what: impl AsFd) -> Result<(), LayerError> {
        for _ in 0..TRIES {
            match rustix::fs::flock(&what, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(MOMENT),
                Err(error) => return Err(failed("lock the workspace")(error.into())),
            }
        }
        Err(LayerError::InUse {
            id: self.id.clone(),
        })
    }

    fn listed(&self) -> Layer {
        let alone = rustix::fs::flock(&self.layer, FlockOperation::NonBlockingLockExclusive);
        let in_use = alone == Err(Errno::WOULDBLOCK);
        Layer {
            id: self.id.clone(),
            folder: PathBuf::from(&self.about.folder),
            made_at: Timestamp(self.about.made_at),
            owner: self.about.owner.clone(),
            in_use,
        }
    }
}

/// One layer.
pub fn find(state: &Path, id: &Id) -> Result<Layer, LayerError> {
    Ok(Opened::open(state, id)?.listed())
}

/// The layers of a state folder, the oldest first.
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
        .take(MOST_LISTED)
        .filter_map(|id| find(state, &id).ok())
        .collect();
    found.sort_by(|one, other| {
        (one.made_at, one.id.as_str()).cmp(&(other.made_at, other.id.as_str()))
    });
    Ok(found)
}

/// What a program changed in its layer.
pub fn diff(state: &Path, id: &Id) -> Result<Diff, LayerError> {
    let opened = Opened::open(state, id)?;
    let (folder, protected) = (opened.folder().ok(), opened.protected());
    let base = base::read(&opened.layer).map_err(failed("read what the workspace is based on"))?;
    let tree = opened.tree()?;
    let sides = Sides {
        base: &base,
        layer: tree.as_fd(),
        folder: folder.as_ref().map(AsFd::as_fd),
        protected: &protected,
    };
    let looked = Rights::of_owner(tree.as_fd()).and_then(|rights| rights.act(|| sides.compare()));
    let Compared { changes, unknown } = looked.map_err(failed("look at what the program left"))?;
    Ok(Diff {
        changes,
        unknown,
        compared: folder.is_some(),
    })
}

/// Takes a layer's changes over into its folder: all of them, or with `partial` what can be. After a crash it can be asked
/// for again. Who owns the layer, as whom its program ran, does it: what he may not do in the folder is left.
pub fn commit(state: &Path, id: &Id, options: CommitOptions) -> Result<Committed, LayerError> {
    let opened = Opened::open(state, id)?;
    opened.lock(&opened.file)?;
    let (folder, tree, protected) = (opened.folder()?, opened.tree()?, opened.protected());
    let base = base::read(&opened.layer).map_err(failed("read what the workspace is based on"))?;
    let sides = Sides {
        base: &base,
        layer: tree.as_fd(),
        folder: Some(folder.as_fd()),
        protected: &protected,
    };
    let draft = Commit::draft_name(&opened.layer).map_err(failed("choose a name for drafts"))?;
    let commit = Commit {
        sides,
        folder: folder.as_fd(),
        force: options.force,
        draft,
    };
    let taken = Rights::of_owner(tree.as_fd())
        .and_then(|rights| rights.act(|| Ok(take_over(&commit, &base, options.partial))));
    let (outcome, now) = taken.map_err(failed("act as the owner of the folder"))??;
    let written = failed("write down what was taken over");
    if !outcome.applied.is_empty() {
        // Once, not for each file: only now may the layer forget them.
        rustix::fs::syncfs(&folder).map_err(|source| written(source.into()))?;
    }
    base::write(&opened.layer, &now).map_err(written)?;
    drop(opened);
    let clean = outcome.left.is_empty() && !options.keep;
    let discarded = clean && discard(state, id).is_ok();
    Ok(Committed {
        applied: outcome.applied,
        left: outcome.left,
        discarded,
    })
}

/// What came of it, and what the layer is based on from now on.
fn take_over(
    commit: &Commit<'_>,
    base: &Base,
    partial: bool,
) -> Result<(Applied, Base), LayerError> {
    let compared = commit
        .sides
        .compare()
        .map_err(failed("look at what the program left"))?;
    let unknown = compared.unknown.into_iter();
    let unknown = unknown.map(|(path, reason)| Left {
        path,
        reason,
        conflict: false,
    });
    let mut left: Vec<_> = commit
        .obstacles(&compared.changes)
        .into_iter()
        .chain(unknown.clone())
        .collect();
    if !left.is_empty() && !partial {
        left.sort_by(|one, other| one.path.cmp(&other.path));
        return Err(LayerError::Refused { left });
    }
    let mut now = base.clone();
    let mut outcome = commit.apply(&compared.changes, &mut now);
    outcome.left.extend(unknown);
    outcome.left.sort_by(|one, other| one.path.cmp(&other.path));
    outcome
        .left
        .dedup_by(|later, earlier| later.path == earlier.path);
    Ok((outcome, now))
}

/// Drops a layer with all changes in it. Refused while a box uses it.
pub fn discard(state: &Path, id: &Id) -> Result<(), LayerError> {
    let opened = Opened::open(state, id)?;
    // Neither an engine uses it, nor a box that outlives its engine for a moment, nor does anybody take it over.
    opened.lock(&opened.layer)?;
    let tree = opened.tree()?;
    opened.lock(&tree)?;
    opened.lock(&opened.file)?;
    let layers = open_layers(state, false)?;
    let gone = format!("{GONE}{id}-{}", crate::fresh_id());
    let removed = failed("remove the workspace");
    rustix::fs::renameat(&layers, id.as_str(), &layers, &gone)
        .map_err(|source| removed(source.into()))?;
    tree::remove(&layers, gone.as_ref()).map_err(removed)
}

/// Removes what a crash left half made or half removed, and what was forgotten; gives back what could not be done.
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
        ids.filter(|id| Opened::open(state, id).is_ok_and(|layer| owned::is_forgotten(&layer)))
    {
        // One that is in use is not forgotten; what is left half removed is tried again below or next time.
        let _ = discard(state, &id);
    }
    let half = |name: &OsString| {
        name.to_str()
            .is_some_and(|name| name.starts_with(NEW) || name.starts_with(GONE))
    };
    let swept = names.into_iter().filter(half).map(|name| {
        sweep_one(&layers, &name)
            .map_err(|source| format!("the workspace `{}`: {source}", name.display()))
    });
    swept.filter_map(Result::err).collect()
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
