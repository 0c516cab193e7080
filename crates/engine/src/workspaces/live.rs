//! Layers of runs and sessions that go on: made before the box, settled behind it, off the event loop.

use super::{Hold, LayerError, What, lay};
use crate::making::internal;
use spec::{ErrorInfo, Id, RunSpec, WorkspaceChanges};
use std::path::Path;
use tokio::sync::watch;

/// Gives the box a layer if it is to have one. A cancelled one is given up by whoever makes it.
pub(crate) async fn prepare(
    state: &Path,
    id: &Id,
    spec: &mut RunSpec,
    cancelled: &watch::Receiver<bool>,
) -> Result<Option<Hold>, ErrorInfo> {
    if !spec.sandbox.copy_on_write {
        return Ok(None);
    }
    let (state, id, mut sandbox) = (state.to_owned(), id.clone(), spec.sandbox.clone());
    let (owner, cancelled) = (
        spec.owner.as_ref().map(ToString::to_string),
        cancelled.clone(),
    );
    let make = move || {
        let is_cancelled = || *cancelled.borrow();
        lay(&state, &id, &mut sandbox, owner, &is_cancelled).map(|hold| (hold, sandbox))
    };
    let made = tokio::task::spawn_blocking(make).await;
    let made = made.map_err(|error| internal(format!("cannot make the workspace: {error}")))?;
    let (hold, sandbox) = made.map_err(|error: LayerError| error.info())?;
    spec.sandbox = sandbox;
    Ok(hold)
}

/// Says what the program changed, once its box is gone. A layer without a change is dropped, and one that no program ever
/// saw.
pub(crate) async fn settle(hold: Hold, ran: bool) -> (Option<WorkspaceChanges>, Vec<String>) {
    let id = hold.id.clone();
    let settled = tokio::task::spawn_blocking(move || settle_now(hold, ran)).await;
    match settled {
        Ok(settled) => settled,
        Err(error) => (
            None,
            vec![format!("the workspace `{id}` was not looked at: {error}")],
        ),
    }
}

fn settle_now(hold: Hold, ran: bool) -> (Option<WorkspaceChanges>, Vec<String>) {
    let id = hold.id.clone();
    let problem = |error: &LayerError| format!("the workspace `{id}`: {}", error.info().message);
    let diff = match ran.then(|| hold.diff()) {
        Some(Err(error)) => return (None, vec![problem(&error)]),
        Some(Ok(diff)) => {
            Some(diff).filter(|diff| !(diff.changes.is_empty() && diff.unknown.is_empty()))
        }
        None => None,
    };
    let Some(diff) = diff else {
        return (None, hold.discard().err().iter().map(problem).collect());
    };
    let count = |wanted: &dyn Fn(What) -> bool| {
        diff.changes
            .iter()
            .filter(|change| wanted(change.what))
            .count() as u64
    };
    let changes = WorkspaceChanges {
        id: id.clone(),
        added: count(&|what| what == What::Added),
        changed: count(&|what| matches!(what, What::Changed | What::Replaced | What::Mode)),
        removed: count(&|what| what == What::Removed),
        held_back: Vec::new(),
    };
    let WorkspaceChanges {
        added,
        changed,
        removed,
        ..
    } = &changes;
    let note = format!(
        "the folder is as it was; {added} added, {changed} changed and {removed} removed names are kept apart: \
         see them with `airlock workspace diff {id}`, then `commit` or `discard` them"
    );
    (Some(changes), vec![note])
}
