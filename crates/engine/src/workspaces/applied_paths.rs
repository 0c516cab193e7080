//! The paths of the folder that are as the program left them, for updates of the folder's
//! repository.

use super::{
    base::Baseline,
    diff::is_still,
    tree::{self, PathLookup},
};
use crate::FileAccess;
use std::{
    collections::BTreeSet,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Answers after a commit which paths are applied. The default value knows of none.
#[derive(Clone, Debug, Default)]
pub struct AppliedPaths(Option<Arc<AppliedFacts>>);

#[derive(Debug)]
pub(super) struct AppliedFacts {
    /// The baseline after the commit: what the folder got for each committed path.
    pub(super) base: Baseline,
    pub(super) folder: OwnedFd,
    pub(super) rights: FileAccess,
    /// The changes that were not committed.
    pub(super) left: BTreeSet<PathBuf>,
}

impl AppliedPaths {
    pub(super) fn of(facts: AppliedFacts) -> AppliedPaths {
        AppliedPaths(Some(Arc::new(facts)))
    }

    pub(crate) fn applied_among(&self, paths: &[PathBuf]) -> BTreeSet<PathBuf> {
        let Some(facts) = &self.0 else {
            return BTreeSet::new();
        };
        let settled = facts.rights.act(|| {
            let mut lookup = PathLookup::beneath(facts.folder.as_fd());
            let paths = paths.iter();
            let settled = paths.filter(|path| facts.is_applied(path, &mut lookup));
            Ok(settled.cloned().collect())
        });
        // Without access to the folder nothing is known.
        settled.unwrap_or_default()
    }
}

impl AppliedFacts {
    fn is_applied(&self, path: &Path, lookup: &mut tree::PathLookup<'_>) -> bool {
        if path.ancestors().any(|above| self.left.contains(above)) {
            return false;
        }
        match (self.base.get(path), lookup.try_stat(path)) {
            (None, Ok(None)) => true,
            (Some(was), Ok(Some(now))) => is_still(was, &now),
            _ => false,
        }
    }
}
