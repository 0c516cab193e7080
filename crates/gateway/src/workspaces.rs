//! Workspaces that are copied on writing: what programs changed in them, taken over or dropped. Each belongs to the tenant
//! whose key its run or session was made with.

use crate::{
    Caller, Gateway, Problem, Scope,
    fitting::{self, Room},
    path::Path,
    problem::Answer,
    runs::host,
    wire::Raw,
    work,
};
use axum::{extract::State, response::Response};
use engine::workspaces::{self as layers, CommitOptions, LayerError, Left};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use spec::{ErrorCode, ErrorInfo, Id};
use std::path::{Path as FilePath, PathBuf};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What stands against a commit is told of so many names; all of them are in the diff.
const MOST_TOLD: usize = 20;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(list_workspaces))
        .routes(routes!(diff_workspace))
        .routes(routes!(commit_workspace))
        .routes(routes!(discard_workspace))
}

/// A workspace whose changes are kept.
#[derive(Debug, Serialize, ToSchema)]
struct Workspace {
    /// The run or session it was made for.
    id: String,
    /// The folder it is based on.
    folder: String,
    /// When it was made.
    made_at: String,
    /// Whether a sandbox uses it.
    in_use: bool,
}

/// All workspaces that the key may see.
#[derive(Debug, Serialize, ToSchema)]
struct WorkspaceList {
    /// The oldest first.
    workspaces: Vec<Workspace>,
}

/// One change of a program's.
#[derive(Debug, Serialize, ToSchema)]
struct WorkspaceChange {
    /// Its name, if that is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Its name in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    /// `added`, `changed`, `removed`, `replaced` (by something of another kind) or `mode`.
    change: String,
    /// `file`, `folder`, `link` or `other`.
    kind: String,
    /// Its permissions, in octal.
    mode: String,
    /// The size of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// Where a link points, if that is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// Where a link points in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_base64: Option<String>,
    /// Why it is never taken over.
    left_out: Option<String>,
    /// Why it is taken over only by force.
    conflict: Option<String>,
}

/// A name that was not taken over, or not looked into.
#[derive(Debug, Serialize, ToSchema)]
struct LeftOut {
    /// Its name, if that is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Its name in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    /// Why.
    reason: String,
    /// Whether force would take it over.
    conflict: bool,
}

/// What a program changed.
#[derive(Debug, Serialize, ToSchema)]
struct WorkspaceDiff {
    /// Sorted by name.
    changes: Vec<WorkspaceChange>,
    /// Folders whose contents are not known.
    not_looked_into: Vec<LeftOut>,
    /// Whether the folder itself was there to be compared; without it conflicts are not known.
    compared: bool,
    /// There are more than the 4 MiB that are told here. A commit takes over all of them.
    truncated: bool,
}

/// How changes are taken over.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct CommitWorkspace {
    /// Also where the folder has changed meanwhile.
    force: bool,
    /// What can be, although not everything can.
    partial: bool,
    /// The workspace stays, although all of it was taken over.
    keep: bool,
}

/// What was taken over.
#[derive(Debug, Serialize, ToSchema)]
struct CommittedWorkspace {
    /// Sorted by name.
    applied: Vec<WorkspaceChange>,
    /// What was not, and why.
    left_out: Vec<LeftOut>,
    /// Whether the workspace is gone: nothing was left in it, and nobody used it.
    discarded: bool,
    /// There are more than the 4 MiB that are told here.
    truncated: bool,
}

/// Show the workspaces whose changes are kept.
#[utoipa::path(get, path = "/v1/workspaces", tag = "workspaces",
    responses((status = 200, body = WorkspaceList), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn list_workspaces(State(gateway): State<Gateway>, caller: Caller) -> Answer<Response> {
    caller.require(Scope::Sandboxes)?;
    let found = off_the_loop(&gateway, &caller, layers::list).await?;
    let seen = found.into_iter().filter(|layer| sees(&caller, layer));
    let shown = |layer: layers::Layer| Workspace {
        id: layer.id.to_string(),
        folder: layer.folder.to_string_lossy().into_owned(),
        made_at: layer.made_at.to_string(),
        in_use: layer.in_use,
    };
    fitting::json(
        &gateway,
        &caller,
        &WorkspaceList {
            workspaces: seen.map(shown).collect(),
        },
    )
}

/// Show what the program changed.
#[utoipa::path(get, path = "/v1/workspaces/{id}/diff", tag = "workspaces",
    params(("id" = String, Path, description = "its run or session")),
    responses((status = 200, body = WorkspaceDiff), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn diff_workspace(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    let id = shared(&gateway, &caller, &id).await?;
    told(&gateway, &caller, move |state| {
        layers::diff(state, &id).map(shown)
    })
    .await
}

/// Take the changes over into the folder, then drop the workspace.
#[utoipa::path(post, path = "/v1/workspaces/{id}/commit", tag = "workspaces",
    params(("id" = String, Path, description = "its run or session")),
    request_body(content = CommitWorkspace, content_type = "application/json"),
    responses((status = 200, body = CommittedWorkspace), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn commit_workspace(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    body: Raw,
) -> Answer<Response> {
    let id = shared(&gateway, &caller, &id).await?;
    let CommitWorkspace {
        force,
        partial,
        keep,
    } = crate::sandboxes::parsed(&body)?;
    let options = CommitOptions {
        force,
        partial,
        keep,
    };
    told(&gateway, &caller, move |state| {
        layers::commit(state, &id, options).map(taken_over)
    })
    .await
}

/// Drop the changes.
#[utoipa::path(delete, path = "/v1/workspaces/{id}", tag = "workspaces",
    params(("id" = String, Path, description = "its run or session")),
    responses((status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn discard_workspace(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let id = known(&gateway, &caller, &id).await?.id;
    off_the_loop(&gateway, &caller, move |state| layers::discard(state, &id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The identifier of a workspace whose folder the caller may still use: what is compared and taken over lies there.
async fn shared(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<Id> {
    let layer = known(gateway, caller, id).await?;
    host::still_shared(gateway, caller, &layer.folder)?;
    Ok(layer.id)
}

/// A workspace that the caller may see.
pub(crate) async fn known(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<layers::Layer> {
    caller.require(Scope::Sandboxes)?;
    let id = Id::new(id).map_err(|_| Problem::not_found("workspace"))?;
    let layer = off_the_loop(gateway, caller, move |state| layers::find(state, &id)).await?;
    match sees(caller, &layer) {
        true => Ok(layer),
        false => Err(Problem::not_found("workspace")),
    }
}

/// One that was made on this machine's own command line is the admin's.
fn sees(caller: &Caller, layer: &layers::Layer) -> bool {
    layer
        .owner
        .as_deref()
        .map_or(caller.is_admin(), |owner| caller.sees(owner))
}

async fn off_the_loop<T: Send + 'static>(
    gateway: &Gateway,
    caller: &Caller,
    work: impl FnOnce(&FilePath) -> Result<T, LayerError> + Send + 'static,
) -> Answer<T> {
    let state: PathBuf = gateway.engine().state_folder().to_owned();
    work::aside(gateway.working(), &caller.tenant, move || {
        work(&state).map_err(refused)
    })
    .await
}

/// As JSON, which is made there, too: a program chose the names.
async fn told<T: Serialize>(
    gateway: &Gateway,
    caller: &Caller,
    work: impl FnOnce(&FilePath) -> Result<T, LayerError> + Send + 'static,
) -> Answer<Response> {
    let state: PathBuf = gateway.engine().state_folder().to_owned();
    fitting::answer(gateway, caller, move || work(&state).map_err(refused)).await
}

fn shown(diff: layers::Diff) -> WorkspaceDiff {
    let mut room = Room::new();
    let unknown = diff.unknown.into_iter();
    let unknown = unknown.map(|(path, reason)| {
        left_out(Left {
            path,
            reason,
            conflict: false,
        })
    });
    let (not_looked_into, more_unknown) = room.fill(unknown);
    let (changes, more) = room.fill(diff.changes.into_iter().map(change));
    WorkspaceDiff {
        changes,
        not_looked_into,
        compared: diff.compared,
        truncated: more || more_unknown,
    }
}

fn taken_over(committed: layers::Committed) -> CommittedWorkspace {
    let mut room = Room::new();
    // What was not taken over is what somebody has to look at.
    let (left_out, more_left) = room.fill(committed.left.into_iter().map(left_out));
    let (applied, more) = room.fill(committed.applied.into_iter().map(change));
    CommittedWorkspace {
        applied,
        left_out,
        discarded: committed.discarded,
        truncated: more || more_left,
    }
}

fn change(change: layers::Change) -> WorkspaceChange {
    let (path, path_base64) = text_or_base64(change.path.as_os_str().as_encoded_bytes());
    let target = change
        .target
        .as_ref()
        .map(|target| text_or_base64(target.as_encoded_bytes()));
    let (target, target_base64) = target.unwrap_or_default();
    WorkspaceChange {
        path,
        path_base64,
        change: word(&change.what),
        kind: word(&change.kind),
        mode: format!("{:03o}", change.mode),
        size_bytes: (change.kind == layers::Kind::File).then_some(change.size_bytes),
        target,
        target_base64,
        left_out: change.left_out,
        conflict: change.conflict,
    }
}

fn left_out(left: Left) -> LeftOut {
    let (path, path_base64) = text_or_base64(left.path.as_os_str().as_encoded_bytes());
    LeftOut {
        path,
        path_base64,
        reason: left.reason,
        conflict: left.conflict,
    }
}

fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(spec::base64(bytes))),
    }
}

fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn refused(error: LayerError) -> Problem {
    let info = error.info();
    match error {
        LayerError::Absent { .. } => Problem::not_found("workspace"),
        LayerError::InUse { .. } | LayerError::Taken { .. } | LayerError::Elsewhere { .. } => {
            Problem::conflict(error.to_string(), info.hint.unwrap_or_default())
        }
        LayerError::Refused { left } => {
            let told = left.iter().take(MOST_TOLD);
            let told: Vec<_> = told
                .map(|left| {
                    format!(
                        "`{}`: {}",
                        left.path.to_string_lossy().escape_debug(),
                        left.reason
                    )
                })
                .collect();
            let advice = "`partial` takes over the rest, `force` also what conflicts";
            Problem::conflict(info.message, format!("{}; {advice}", told.join("; ")))
        }
        LayerError::TooMuch { .. }
        | LayerError::NoRoom { .. }
        | LayerError::Replaced { .. }
        | LayerError::Cancelled => Problem::from(info),
        // Its causes name places of this machine.
        LayerError::Io { .. } => internal(error.to_string()),
    }
}

fn internal(message: String) -> Problem {
    Problem::from(ErrorInfo {
        code: ErrorCode::Internal,
        message,
        hint: None,
    })
}

#[cfg(test)]
pub(crate) mod tests;
