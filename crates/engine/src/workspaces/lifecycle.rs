//! The layers of runs and sessions: created before the sandbox, and settled after its end, on
//! blocking threads.

use super::{
    AppliedPaths, ChangeKind, CommitOptions, Diff, LayerChange, LayerError, LayerHandle,
    UnappliedChange, base::KnownBaseline, create_layer, shown,
};
use crate::provision::internal;
use sandbox::native::protect;
use spec::{
    Conflict, ErrorCode, ErrorInfo, HeldBackPath, HoldReason, Id, MAX_LISTED_CHANGES,
    ProtectedNames, RunSpec, WorkspaceChanges, WorkspaceMode,
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use tokio::sync::watch;

/// Creates the layer of a sandbox that needs one. If it is cancelled, the creation itself removes
/// it.
pub(crate) async fn prepare(
    state: &Path,
    id: &Id,
    spec: &mut RunSpec,
    cancelled: &watch::Receiver<bool>,
) -> Result<Option<LayerHandle>, ErrorInfo> {
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
        create_layer(&state, &id, &mut sandbox, owner, &is_cancelled)
            .map(|handle| (handle, sandbox))
    };
    let made = tokio::task::spawn_blocking(make).await;
    let made = made.map_err(|error| internal(format!("cannot make the workspace: {error}")))?;
    let (handle, sandbox) = made.map_err(|error: LayerError| error.info())?;
    spec.sandbox = sandbox;
    Ok(handle)
}

/// How the changes of a staged workspace are applied.
#[derive(Clone, Debug)]
pub(crate) struct ApplyOptions {
    /// Whether everything that the program left in `.artifacts` was stored.
    pub(crate) artifacts_kept: bool,
    /// The protected names.
    pub(crate) protected: ProtectedNames,
}

/// The outcome of a copy-on-write workspace.
#[derive(Debug, Default)]
pub(crate) struct LayerOutcome {
    /// The changes; none if they are not known, or if no program ran.
    pub(crate) changes: Option<WorkspaceChanges>,
    /// Whether the layer has the changes.
    pub(crate) is_kept: bool,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
    /// Why not all changes could be applied, where that was requested.
    pub(crate) error: Option<ErrorInfo>,
    /// The paths that are as the program left them, where changes were applied.
    pub(crate) applied_paths: Option<AppliedPaths>,
}

/// Reports the changes once the sandbox is gone, and applies them to the folder if requested.
/// Removes a layer without changes, or that no program used.
pub(crate) async fn finish_layer(
    handle: LayerHandle,
    ran: bool,
    apply: Option<ApplyOptions>,
    mode: WorkspaceMode,
) -> LayerOutcome {
    let id = handle.id.clone();
    let outcome =
        tokio::task::spawn_blocking(move || finish_layer_now(handle, ran, apply, mode)).await;
    outcome.unwrap_or_else(|error| LayerOutcome {
        notes: vec![format!("the workspace `{id}` was not looked at: {error}")],
        ..LayerOutcome::default()
    })
}

fn finish_layer_now(
    handle: LayerHandle,
    ran: bool,
    apply: Option<ApplyOptions>,
    mode: WorkspaceMode,
) -> LayerOutcome {
    let id = handle.id.clone();
    let apply = match apply.filter(|_| ran) {
        None => None,
        Some(options) => match handle.remove_artifacts(options.artifacts_kept) {
            Ok(without) => Some((options, without)),
            Err(error) => return not_applied(&id, None, &error),
        },
    };
    let problem = |error: &LayerError| format!("the workspace `{id}`: {}", error.info().message);
    let with_note = |note: Option<String>| LayerOutcome {
        notes: note.into_iter().collect(),
        ..LayerOutcome::default()
    };
    let diff = match ran.then(|| handle.diff_and_base()) {
        Some(Err(error)) if apply.is_some() => return not_applied(&id, None, &error),
        Some(Err(error)) => return with_note(Some(problem(&error))),
        Some(Ok(diff)) => Some(diff),
        None => None,
    };
    let Some((diff, known)) = diff else {
        return with_note(handle.discard().err().as_ref().map(problem));
    };
    let changes = count(&id, &diff, mode);
    let is_unchanged = diff.changes.is_empty() && diff.unknown.is_empty();
    match apply {
        Some(_) if is_unchanged => nothing_to_apply(handle, changes, known),
        Some((apply, without)) => {
            let plan = ApplyPlan {
                protected: apply.protected,
                without,
                never: never_applied(diff),
                known,
            };
            apply_now(handle, changes, plan)
        }
        None if is_unchanged => LayerOutcome {
            changes: Some(changes),
            ..with_note(handle.discard().err().as_ref().map(problem))
        },
        None => kept_apart(changes),
    }
}

/// The paths that are held back in any case.
fn never_applied(diff: Diff) -> BTreeSet<PathBuf> {
    let out = diff.changes.into_iter();
    let out = out.filter(|change| change.left_out.is_some());
    let unknown = diff.unknown.into_iter().map(|(path, _)| path);
    out.map(|change| change.path).chain(unknown).collect()
}

/// Commits nothing: the program may still have made git commits of unchanged files.
fn nothing_to_apply(
    handle: LayerHandle,
    changes: WorkspaceChanges,
    known: Option<KnownBaseline>,
) -> LayerOutcome {
    let id = handle.id.clone();
    match handle.commit_without(CommitOptions::default(), &[], known) {
        Ok(committed) => LayerOutcome {
            changes: Some(changes),
            applied_paths: Some(committed.applied_paths),
            ..LayerOutcome::default()
        },
        Err(error) => not_applied(&id, Some(changes), &error),
    }
}

fn count(id: &Id, diff: &Diff, mode: WorkspaceMode) -> WorkspaceChanges {
    let count = |wanted: &dyn Fn(ChangeKind) -> bool| {
        let changes = diff.changes.iter();
        changes.filter(|change| wanted(change.what)).count() as u64
    };
    WorkspaceChanges {
        added: count(&|what| what == ChangeKind::Added),
        changed: count(&|what| {
            matches!(
                what,
                ChangeKind::Changed | ChangeKind::Replaced | ChangeKind::Mode
            )
        }),
        removed: count(&|what| what == ChangeKind::Removed),
        layer: Some(diff.layer),
        ..WorkspaceChanges::none(id.clone(), mode)
    }
}

fn kept_apart(changes: WorkspaceChanges) -> LayerOutcome {
    let WorkspaceChanges {
        id,
        added,
        changed,
        removed,
        ..
    } = &changes;
    let note = format!(
        "the folder is as it was; {added} added, {changed} changed and {removed} removed names are kept apart: \
         see them with `airlock workspace diff {id}`, then `commit` or `discard` them"
    );
    LayerOutcome {
        notes: vec![note],
        changes: Some(changes),
        is_kept: true,
        ..LayerOutcome::default()
    }
}

/// What is known before changes are applied.
struct ApplyPlan {
    protected: ProtectedNames,
    /// The paths that must stay in the layer.
    without: Vec<PathBuf>,
    /// The paths that are held back in any case.
    never: BTreeSet<PathBuf>,
    /// What the changes were compared with.
    known: Option<KnownBaseline>,
}

/// Applies what can be applied; the rest stays in the layer. A change that is neither applied nor
/// held back is an error.
fn apply_now(handle: LayerHandle, mut changes: WorkspaceChanges, plan: ApplyPlan) -> LayerOutcome {
    let id = handle.id.clone();
    let options = CommitOptions {
        partial: true,
        ..CommitOptions::default()
    };
    let committed = match handle.commit_without(options, &plan.without, plan.known) {
        Ok(committed) => committed,
        Err(error) => return not_applied(&id, Some(changes), &error),
    };
    changes.applied = committed.applied.len() as u64;
    let is_held = |left: &UnappliedChange| {
        !left.conflict && (left.why.is_some() || plan.never.contains(&left.path))
    };
    let (held, conflicts): (Vec<_>, Vec<_>) = committed.left.into_iter().partition(is_held);
    changes.hold_back(held.iter().map(|left| HeldBackPath {
        path: lossy_path(left),
        why: left.why.unwrap_or(HoldReason::Unreadable),
    }));
    changes.conflicts_total = conflicts.len() as u64;
    let listed = conflicts.iter().take(MAX_LISTED_CHANGES);
    changes.conflicts = listed
        .map(|left| Conflict {
            path: lossy_path(left),
            why: left.reason.clone(),
        })
        .collect();
    let error = conflict_error(&id, &conflicts);
    let mut notes = committed.notes;
    notes.extend(obeyed_notes(&committed.applied, &plan.protected));
    notes.extend(held_back_note(&id, &held));
    LayerOutcome {
        notes,
        changes: Some(changes),
        is_kept: false,
        error,
        applied_paths: Some(committed.applied_paths),
    }
}

/// Notes on applied files that tools obey or agents read.
fn obeyed_notes(
    applied: &[LayerChange],
    protected: &ProtectedNames,
) -> impl Iterator<Item = String> + use<> {
    let stays = applied
        .iter()
        .filter(|change| change.what != ChangeKind::Removed);
    let noted = protect::noted_paths(stays.map(|change| &*change.path));
    let added = applied
        .iter()
        .filter(|change| change.what == ChangeKind::Added);
    let spared = added.filter(|change| protect::is_spared(&change.path, protected));
    let spared = protect::spared_note(spared.count());
    protect::noted_note(&noted).into_iter().chain(spared)
}

fn lossy_path(left: &UnappliedChange) -> String {
    left.path.to_string_lossy().into_owned()
}

fn held_back_note(id: &Id, held: &[UnappliedChange]) -> Option<String> {
    let first = held.first()?;
    let more = match held.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let by_name = [HoldReason::ProtectedName, HoldReason::LinkOut];
    let can_be_taken = |left: &UnappliedChange| left.why.is_some_and(|why| by_name.contains(&why));
    let take = match held.iter().any(can_be_taken) {
        true => format!("take one with `airlock workspace commit {id} --only PATH --force`, "),
        false => String::new(),
    };
    Some(format!(
        "held back in the workspace's layer: `{}` ({}){more}; see `airlock workspace diff {id}`, {take}or drop them with \
         `airlock workspace discard {id}`",
        shown(&first.path),
        first.reason,
    ))
}

fn conflict_error(id: &Id, conflicts: &[UnappliedChange]) -> Option<ErrorInfo> {
    let first = conflicts.iter().find(|left| left.conflict);
    let first = first.or(conflicts.first())?;
    let more = match conflicts.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let which = format!(
        "`{}` ({}){more} was not applied",
        shown(&first.path),
        first.reason
    );
    let (message, takes) = if first.conflict {
        (format!("the folder has changed, too: {which}"), " --force")
    } else {
        (which, "")
    };
    Some(ErrorInfo {
        code: ErrorCode::WorkspaceConflict,
        message,
        hint: Some(format!(
            "the program's version is kept: `airlock workspace diff {id}` shows it, `commit {id}{takes}` takes it, \
             `discard {id}` drops it"
        )),
    })
}

/// The outcome if nothing was applied, or if that is not known.
fn not_applied(id: &Id, changes: Option<WorkspaceChanges>, error: &LayerError) -> LayerOutcome {
    LayerOutcome {
        changes,
        is_kept: true,
        error: Some(ErrorInfo {
            code: ErrorCode::WorkspaceConflict,
            message: format!(
                "the program's changes could not be applied: {}",
                error.info().message
            ),
            hint: Some(format!(
                "they are kept: `airlock workspace diff {id}`, then `commit {id}` or `discard {id}`"
            )),
        }),
        ..LayerOutcome::default()
    }
}
