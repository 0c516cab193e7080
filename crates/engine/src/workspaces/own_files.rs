//! Airlock's own files in a staged workspace: inputs that were put in, and artifacts that are
//! stored elsewhere. Neither is committed to the folder, as neither stays in a live workspace.

use super::{
    CommitOptions, CommitOutcome, LayerError, LayerHandle, OpenLayer,
    base::{self, KnownBaseline},
    commit::{Selection, UnappliedChange},
    diff::{AssessedChange, ChangeKind, Comparer, Comparison},
    failed,
    tree::{self, FileKind},
};
use crate::FileAccess;
use rustix::fs::AtFlags;
use spec::{HoldReason, SandboxSpec};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The folder in which a program leaves artifacts.
const ARTIFACTS: &str = ".artifacts";

/// The inputs that do not stay in the workspace, for the layer's description; names of any bytes.
pub(super) fn inputs(spec: &SandboxSpec) -> Vec<Vec<u8>> {
    let names = spec.transient_inputs.iter();
    let bytes = names.map(|name| name.as_path().as_os_str().as_bytes().to_vec());
    bytes.collect()
}

/// Removes new inputs, and the folders that were created only for them, from the changes; returns
/// their paths.
fn take_out_inputs(assessed: &mut Vec<AssessedChange>, inputs: &[Vec<u8>]) -> Vec<PathBuf> {
    if inputs.is_empty() {
        return Vec::new();
    }
    let paths = inputs
        .iter()
        .map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)));
    let inputs: BTreeSet<PathBuf> = paths.collect();
    let above: BTreeSet<&Path> = inputs
        .iter()
        .flat_map(|it| it.ancestors().skip(1))
        .collect();
    // An input that the program replaced by a folder is a change.
    let is_airlocks = |one: &AssessedChange| {
        let change = &one.change;
        let is_known = match change.kind {
            FileKind::Folder => above.contains(&*change.path),
            FileKind::File | FileKind::Link | FileKind::Other => inputs.contains(&change.path),
        };
        is_known && change.what == ChangeKind::Added
    };
    let others = assessed.iter().filter(|one| !is_airlocks(one));
    let needed: BTreeSet<PathBuf> = others
        .flat_map(|one| one.change.path.ancestors().skip(1))
        .map(Path::to_owned)
        .collect();
    let mut taken = Vec::new();
    assessed.retain(|one| {
        let path = &one.change.path;
        let stays = !is_airlocks(one) || needed.contains(path);
        if !stays {
            taken.push(path.clone());
        }
        stays
    });
    taken
}

impl OpenLayer {
    /// Compares without inputs; also returns the paths of the inputs.
    pub(super) fn compare(
        &self,
        sides: &Comparer<'_>,
        rights: &FileAccess,
    ) -> io::Result<(Comparison, Vec<PathBuf>)> {
        let mut compared = rights.act(|| sides.compare())?;
        let inputs = take_out_inputs(&mut compared.assessed, &self.info.inputs);
        Ok((compared, inputs))
    }
}

impl LayerHandle {
    /// Removes `.artifacts` if the program created it and everything in it was stored; returns the
    /// paths that must stay in the layer.
    pub(super) fn remove_artifacts(&self, all_kept: bool) -> Result<Vec<PathBuf>, LayerError> {
        let looking = failed("look at what the program left");
        let opened = OpenLayer::open(&self.state, &self.id)?;
        let tree = opened.tree()?;
        let path = Path::new(ARTIFACTS);
        let found = tree::try_stat(&tree, path).map_err(&looking)?;
        if found.is_none_or(|found| found.kind != FileKind::Folder) {
            return Ok(Vec::new());
        }
        let base = base::read(&opened.layer).map_err(looking)?;
        if base.contains_key(path) {
            return Ok(Vec::new());
        }
        let removed = match all_kept {
            true => tree::remove(&tree, path.as_os_str()),
            false => rustix::fs::unlinkat(&tree, path, AtFlags::REMOVEDIR).map_err(Into::into),
        };
        Ok(removed.err().map(|_| path.into()).into_iter().collect())
    }

    /// Commits all changes except for some paths and what is below them, which stay in the layer.
    pub(super) fn commit_without(
        self,
        options: CommitOptions,
        without: &[PathBuf],
        known: Option<KnownBaseline>,
    ) -> Result<CommitOutcome, LayerError> {
        let LayerHandle {
            state, id, folder, ..
        } = self;
        drop(folder);
        super::commit_without(&state, &id, options, without, known)
    }
}

/// Deselects these paths and what is below them.
pub(super) fn deselect(choice: &mut Selection<'_>, without: &[PathBuf]) {
    let is_below = |path: &Path| without.iter().any(|it| path.starts_with(it));
    let (held, wanted) = std::mem::take(&mut choice.wanted)
        .into_iter()
        .partition(|one| is_below(&one.change.path));
    choice.wanted = wanted;
    for one in held {
        let path = &one.change.path;
        match without.contains(path) {
            true => choice.left.push(UnappliedChange {
                path: path.clone(),
                reason: "not all of it was kept as artifacts".to_owned(),
                conflict: false,
                why: Some(HoldReason::Artifacts),
            }),
            false => choice.others.push(path),
        }
    }
}
