//! Reviews a layer: its changes, compared with the baseline and the folder. Both sides are read as
//! the folder's owner, and nothing is changed.

use super::{
    Diff, Layer, LayerError, OpenLayer,
    base::{self, KnownBaseline},
    diff::{Comparer, Comparison},
    failed, list, open_layers,
    overlay::UpperLayer,
    plan::Plan,
    plan_execution, quota, tree,
};
use crate::FileAccess;
use rustix::fs::{FlockOperation, OFlags};
use spec::{Id, LayerUsage};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// The file with the subjects of the program's commits, once they are imported.
const COMMITS: &str = "commits";
/// Its largest size.
const MAX_COMMITS: u64 = 1 << 20;

/// A layer and its folder, opened for a review.
pub(super) struct Review {
    opened: OpenLayer,
    /// None if it is not there any more.
    pub(super) folder: Option<OwnedFd>,
    pub(super) tree: OwnedFd,
    pub(super) known: KnownBaseline,
    pub(super) upper: Option<UpperLayer>,
    pub(super) rights: FileAccess,
}

impl Review {
    /// Completes an interrupted commit; none if that removed the layer.
    pub(super) fn open(state: &Path, opened: OpenLayer) -> Result<Option<Review>, LayerError> {
        if Plan::is_there(&opened.layer) {
            opened.lock(&opened.file, FlockOperation::NonBlockingLockExclusive)?;
            let is_dropped = plan_execution::complete_and_remove(state, &opened)?;
            opened.unlock()?;
            if is_dropped {
                return Ok(None);
            }
        }
        let known = base::read_again(&opened.layer, None)
            .map_err(failed("read what the workspace is based on"))?;
        let tree = opened.tree()?;
        let upper = opened.upper(&tree, &known.base)?;
        let rights =
            FileAccess::of_owner(tree.as_fd()).map_err(failed("act as the owner of the folder"))?;
        Ok(Some(Review {
            folder: opened.folder().ok(),
            opened,
            tree,
            known,
            upper,
            rights,
        }))
    }

    /// All changes. Refused during a commit, when files are in two places.
    pub(super) fn compare(&self) -> Result<Comparison, LayerError> {
        let protected = self.opened.protected();
        let sides = Comparer {
            base: &self.known.base,
            layer: self.tree.as_fd(),
            upper: self.upper.as_ref(),
            folder: self.folder.as_ref().map(AsFd::as_fd),
            protected: &protected,
        };
        let compared = self.opened.compare(&sides, &self.rights);
        let (compared, _) = compared.map_err(failed("look at what the program left"))?;
        if Plan::is_there(&self.opened.layer) {
            return Err(LayerError::InUse {
                id: self.opened.id.clone(),
            });
        }
        Ok(compared)
    }
}

/// The facts of a layer without its changes.
pub(super) struct LayerSummary {
    layer: LayerUsage,
    commits: Vec<String>,
}

impl LayerSummary {
    pub(super) fn of(opened: &OpenLayer) -> LayerSummary {
        LayerSummary {
            layer: LayerUsage {
                kind: opened.info.kind,
                bytes: quota::read_size(&opened.layer),
            },
            commits: noted_commits(&opened.layer),
        }
    }

    /// For a layer that is gone, since all changes were committed.
    pub(super) fn of_nothing(self) -> Diff {
        Diff {
            changes: Vec::new(),
            unknown: Vec::new(),
            compared: true,
            layer: self.layer,
            commits: self.commits,
        }
    }

    pub(super) fn of_changes(self, review: &Review, compared: Comparison) -> Diff {
        let assessed = compared.assessed.into_iter();
        Diff {
            changes: assessed.map(|one| one.change).collect(),
            unknown: compared.unknown,
            compared: review.folder.is_some(),
            ..self.of_nothing()
        }
    }
}

/// The changes in a layer.
pub fn diff(state: &Path, id: &Id) -> Result<Diff, LayerError> {
    Ok(diff_and_base(state, id)?.0)
}

/// The changes, and what they were compared with; none of it for a layer that is gone.
pub(super) fn diff_and_base(
    state: &Path,
    id: &Id,
) -> Result<(Diff, Option<KnownBaseline>), LayerError> {
    let opened = OpenLayer::open(state, id)?;
    let summary = LayerSummary::of(&opened);
    let Some(review) = Review::open(state, opened)? else {
        return Ok((summary.of_nothing(), None));
    };
    let compared = review.compare()?;
    let diff = summary.of_changes(&review, compared);
    Ok((diff, Some(review.known)))
}

impl Diff {
    /// The changes at these paths and below; all if there are none.
    pub fn only(mut self, paths: &[PathBuf]) -> Diff {
        let is_wanted =
            |path: &Path| paths.is_empty() || paths.iter().any(|it| path.starts_with(it));
        self.changes.retain(|change| is_wanted(&change.path));
        self.unknown.retain(|(path, _)| is_wanted(path));
        self
    }
}

/// The newest layer of the command line's user.
pub fn find_newest(state: &Path) -> Result<Option<Layer>, LayerError> {
    let mut layers = list(state)?.into_iter();
    Ok(layers.rfind(|layer| layer.owner.is_none()))
}

/// Records the program's commits in its layer, so that git need not read the repository later.
pub(crate) fn note_commits(state: &Path, id: &Id, commits: &[String]) {
    if commits.is_empty() {
        return;
    }
    let noted = || -> io::Result<()> {
        let layers = open_layers(state, false).map_err(io::Error::other)?;
        let layer = tree::open(&layers, id.as_str(), super::FOLDER)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let text = serde_json::to_vec(commits)?;
        File::from(tree::open(&layer, COMMITS, flags)?).write_all(&text)
    };
    // The result of the run has them as well.
    _ = noted();
}

fn noted_commits(layer: impl AsFd) -> Vec<String> {
    let mut text = Vec::new();
    let read = tree::open(layer, COMMITS, OFlags::RDONLY)
        .and_then(|file| File::from(file).take(MAX_COMMITS).read_to_end(&mut text));
    let commits = read.ok().and_then(|_| serde_json::from_slice(&text).ok());
    commits.unwrap_or_default()
}
