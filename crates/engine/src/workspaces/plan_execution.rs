//! Executes commit plans, and completes those that a crash interrupted.

use super::{
    LayerError, OpenLayer,
    apply::{Apply, ApplyOutcome},
    base::{self, Baseline},
    failed, owner,
    plan::Plan,
    remove_layer,
};
use crate::FileAccess;
use rustix::{fs::FlockOperation, io::Errno};
use spec::Id;
use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Executes a plan as the owner of the folder.
pub(super) fn execute(
    plan: &Plan,
    base: &mut Baseline,
    (tree, folder): (&OwnedFd, &OwnedFd),
    rights: &FileAccess,
    resumes: bool,
) -> Result<ApplyOutcome, LayerError> {
    if plan.steps.is_empty() {
        return Ok(ApplyOutcome::default());
    }
    let owner = owner(rights);
    let done = rights.act(|| {
        let apply = Apply::new(plan, tree.as_fd(), folder.as_fd(), owner, resumes);
        Ok(apply.run(base))
    });
    let outcome = done.map_err(failed("act as the owner of the folder"))?;
    if outcome.has_copied {
        // Once and not for each file: the layer may forget them only now.
        let written = failed("write out what was taken over");
        rustix::fs::syncfs(folder).map_err(|source| written(source.into()))?;
    }
    Ok(outcome)
}

/// Records that the layer is based on the folder's new state; then the plan is removed.
pub(super) fn record_done(opened: &OpenLayer, base: &Baseline) -> Result<(), LayerError> {
    let written = failed("write down what was taken over");
    if Plan::is_there(&opened.layer) {
        base::write_lasting(&opened.layer, base).map_err(&written)?;
        Plan::remove(&opened.layer).map_err(written)?;
    }
    Ok(())
}

/// Completes an interrupted plan. The caller has the layer's lock.
pub(super) fn complete(opened: &OpenLayer) -> Result<ApplyOutcome, LayerError> {
    Ok(resume(opened)?.map_or_else(ApplyOutcome::default, |(outcome, _)| outcome))
}

/// Completes an interrupted plan; also removes the layer if the plan says so and nothing is left in
/// it. Returns whether it was removed.
pub(super) fn complete_and_remove(state: &Path, opened: &OpenLayer) -> Result<bool, LayerError> {
    let Some((outcome, drops)) = resume(opened)? else {
        return Ok(false);
    };
    match drops && outcome.left.is_empty() {
        true => match opened.alone() {
            Some(_) => remove_layer(state, opened).map(|()| true),
            None => Ok(false),
        },
        false => Ok(false),
    }
}

/// Completes an interrupted plan during a sweep, unless another process has the lock.
pub(super) fn complete_unlocked(state: &Path, id: &Id) -> Result<(), LayerError> {
    let opened = match OpenLayer::open(state, id) {
        Err(LayerError::Absent { .. }) => return Ok(()),
        opened => opened?,
    };
    if !Plan::is_there(&opened.layer) {
        return Ok(());
    }
    match rustix::fs::flock(&opened.file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(()),
        Err(source) => Err(failed("lock the workspace")(source.into())),
        Ok(()) => complete_and_remove(state, &opened).map(|_| ()),
    }
}

/// The outcome of the rest of a plan, and whether the layer is to be removed.
fn resume(opened: &OpenLayer) -> Result<Option<(ApplyOutcome, bool)>, LayerError> {
    let reading = failed("read what was to be done in the folder");
    let Some(plan) = Plan::read(&opened.layer).map_err(reading)? else {
        // An incomplete plan was never begun.
        Plan::remove(&opened.layer).map_err(failed("remove what was never begun"))?;
        return Ok(None);
    };
    let (folder, tree) = (opened.folder()?, opened.tree()?);
    let mut base =
        base::read(&opened.layer).map_err(failed("read what the workspace is based on"))?;
    let rights =
        FileAccess::of_owner(tree.as_fd()).map_err(failed("act as the owner of the folder"))?;
    let outcome = execute(&plan, &mut base, (&tree, &folder), &rights, true)?;
    record_done(opened, &base)?;
    Ok(Some((outcome, plan.head.drop)))
}

/// Notes on a commit.
pub(super) fn notes(attributes_left: usize) -> Vec<String> {
    match attributes_left {
        0 => Vec::new(),
        count => vec![format!(
            "{count} extended attributes of files were not taken over: no more than 16 of a file, of 4096 bytes each"
        )],
    }
}
