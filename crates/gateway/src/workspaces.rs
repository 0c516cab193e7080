//! Routes of copy-on-write workspaces: list, diff, commit, apply, discard. A workspace belongs to
//! the tenant whose key made its run or session.

use crate::{
    Caller, Gateway, Problem, Scope, blocking,
    json_response::{self, ResponseLimit},
    path::Path,
    problem::Answer,
    runs::host_paths,
    sandboxes::{self, QueryParams},
    wire::RawBody,
};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use engine::{
    BroughtCommits,
    workspaces::{self as layers, CommitOptions, LayerError, ProgramFile, UnappliedChange},
};
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use serde::{Deserialize, Serialize};
use spec::{ErrorCode, ErrorInfo, GitImport, Id};
use std::path::{Path as FilePath, PathBuf};
use tokio::runtime::Handle;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Number of conflicts that a refusal names; the diff has all of them.
const MAX_NAMED: usize = 20;
/// What is said where git commits did not arrive.
const KEPT_FOR_COMMITS: &str =
    "the workspace is kept until its git commits have arrived: commit it again, or discard it";
/// Maximum size of a patch in bytes: as JSON it may double and must leave room for the names.
const MAX_PATCH_BYTES: usize = 1 << 20;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(list_workspaces))
        .routes(routes!(diff_workspace))
        .routes(routes!(show_file))
        .routes(routes!(commit_workspace))
        .routes(routes!(apply_workspace))
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
    /// Commits that the program made, once they have arrived in the repository: the beginning of each name, and its subject.
    commits: Vec<String>,
    /// With `patch=true`: the changes as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<WorkspacePatch>,
    /// There are more than the 4 MiB that are told here. A commit takes over all of them.
    truncated: bool,
}

/// Changes as a patch that `git apply` and `patch -p1` take. What a commit would not take over stands in it behind `# `.
#[derive(Debug, Serialize, ToSchema)]
struct WorkspacePatch {
    /// The patch, if it is text without control characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The patch in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// What is too large to be in it; the first 100.
    omitted: Vec<LeftOut>,
    /// How many there are.
    omitted_total: usize,
    /// How many changes stand behind `# `.
    held_back_total: usize,
}

/// What of a session's changes is applied.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct ApplyWorkspace {
    /// Also where the folder has changed meanwhile.
    force: bool,
    /// What can be, although not everything can.
    partial: bool,
    /// Only what is at these paths and below them.
    only: Vec<String>,
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
    /// Only what is at these paths and below them.
    only: Vec<String>,
    /// Nothing below the paths in `only`.
    exactly: bool,
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
    /// The commits of a run or session that was killed, which arrived now: one entry for each repository, as in the
    /// result of a run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    git: Vec<GitImport>,
    /// What there is to say about these commits, also where they did not arrive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Show the workspaces whose changes are kept.
#[utoipa::path(get, path = "/v1/workspaces", tag = "workspaces",
    responses((status = 200, body = WorkspaceList), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn list_workspaces(State(gateway): State<Gateway>, caller: Caller) -> Answer<Response> {
    caller.require(Scope::Sandboxes)?;
    let found = run_blocking(&gateway, &caller, layers::list).await?;
    let seen = found.into_iter().filter(|layer| sees(&caller, layer));
    let shown = |layer: layers::Layer| Workspace {
        id: layer.id.to_string(),
        folder: layer.folder.to_string_lossy().into_owned(),
        made_at: layer.made_at.to_string(),
        in_use: layer.in_use,
    };
    json_response::from_value(
        &gateway,
        &caller,
        &WorkspaceList {
            workspaces: seen.map(shown).collect(),
        },
    )
}

/// Show what the program changed, or has changed so far: the names, and with `patch` the lines.
#[utoipa::path(get, path = "/v1/workspaces/{id}/diff", tag = "workspaces",
    params(("id" = String, Path, description = "its run or session"),
        ("patch" = Option<bool>, Query, description = "The changes as a patch, too, of up to 1 MiB; files above 1 MiB are only named"),
        ("only" = Option<Vec<String>>, Query, description = "Only what is at this path and below it; may be there again")),
    responses((status = 200, body = WorkspaceDiff), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn diff_workspace(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<Vec<(String, String)>>,
) -> Answer<Response> {
    let DiffQuery { patch, only } = parse_diff_query(query)?;
    let id = find_shared(&gateway, &caller, &id).await?;
    json_from(&gateway, &caller, move |state| {
        if patch {
            let (diff, patch) = layers::patch(state, &id, &only, MAX_PATCH_BYTES)?;
            return Ok(diff_response(diff, Some(patch)));
        }
        layers::diff(state, &id).map(|diff| diff_response(diff.only(&only), None))
    })
    .await
}

/// Query parameters of a diff.
#[derive(Default)]
struct DiffQuery {
    patch: bool,
    only: Vec<PathBuf>,
}

fn parse_diff_query(query: Vec<(String, String)>) -> Answer<DiffQuery> {
    let mut parsed = DiffQuery::default();
    for (name, value) in query {
        match (name.as_str(), value.as_str()) {
            ("patch", "true") => parsed.patch = true,
            ("patch", "false") => parsed.patch = false,
            ("only", path) => parsed.only.push(path.into()),
            _ => {
                return Err(Problem::invalid(
                    "the query is not what this route takes",
                    "it takes `patch=true` and `only=PATH`",
                ));
            }
        }
    }
    Ok(parsed)
}

/// Read a file as the program left it, or has it now; of a link, where it points.
#[utoipa::path(get, path = "/v1/workspaces/{id}/files/{*path}", tag = "workspaces",
    params(("id" = String, Path, description = "its run or session"),
        ("path" = String, Path, description = "Relative to the workspace; slashes stand for themselves"),
        ("Range" = Option<String>, Header), ("If-Range" = Option<String>, Header),
        ("If-None-Match" = Option<String>, Header)),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "It is the version that is known already"),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn show_file(
    State(gateway): State<Gateway>,
    caller: Caller,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Answer<Response> {
    let (id, path) = sandboxes::parse_workspace_location(uri.path())?;
    let id = find_shared(&gateway, &caller, &id).await?;
    let name = path.file_name().unwrap_or_default().to_owned();
    let work = move |state: &FilePath| layers::open_file(state, &id, &path);
    match run_blocking(&gateway, &caller, work).await? {
        ProgramFile::Contents(file, _) => sandboxes::contents(file, &name, &headers, &method),
        ProgramFile::Link(target) => {
            let head = [
                (CONTENT_TYPE, "application/octet-stream"),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            Ok((head, target.into_encoded_bytes()).into_response())
        }
    }
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
    body: RawBody,
) -> Answer<Response> {
    let id = find_shared(&gateway, &caller, &id).await?;
    let CommitWorkspace {
        force,
        partial,
        keep,
        only,
        exactly,
    } = body
        .read(&gateway, &caller.tenant, sandboxes::parse_json)
        .await?;
    let options = CommitOptions {
        force,
        partial,
        keep,
        only: only.into_iter().map(PathBuf::from).collect(),
        exactly,
    };
    let (of, runtime) = ((gateway.clone(), caller.tenant.clone()), Handle::current());
    json_from(&gateway, &caller, move |state| {
        if !options.only.is_empty() {
            return layers::commit(state, &id, options).map(commit_response);
        }
        commit_all(state, &id, options, |is_layer_kept| {
            let (gateway, tenant) = &of;
            runtime.block_on(import_commits(gateway, tenant, &id, is_layer_kept))
        })
    })
    .await
}

/// The kept git commits of a run or session, as far as they were imported.
type Import = Result<Option<BroughtCommits>, ErrorInfo>;

/// Imports the kept git commits, one run or session of a tenant's at a time: an import takes a
/// sandbox and much memory.
async fn import_commits(gateway: &Gateway, tenant: &str, id: &Id, is_layer_kept: bool) -> Import {
    let _lock = gateway.git_imports().lock(tenant).await;
    gateway.engine().bring_commits(id, is_layer_kept).await
}

/// Takes all files over, then the git commits that belong to them. The layer goes last: a workspace
/// that is gone cannot be committed again.
fn commit_all(
    state: &FilePath,
    id: &Id,
    options: CommitOptions,
    import: impl FnOnce(bool) -> Import,
) -> Result<CommittedWorkspace, LayerError> {
    let is_dropped = !options.keep;
    let keep = true;
    let outcome = layers::commit(state, id, CommitOptions { keep, ..options })?;
    // Commits of a sandbox that goes on arrive when it ends.
    if outcome.in_use {
        return Ok(commit_response(outcome));
    }
    let is_dropped = is_dropped && outcome.left.is_empty();
    let mut committed = commit_response(outcome);
    let have_arrived = committed.add_commits(import(!is_dropped));
    if !is_dropped {
        return Ok(committed);
    }
    if have_arrived {
        let dropped = layers::discard(state, id);
        // Another request may have been faster.
        committed.discarded = matches!(dropped, Ok(()) | Err(LayerError::Absent { .. }));
    } else {
        committed.notes.push(KEPT_FOR_COMMITS.to_owned());
    }
    Ok(committed)
}

/// Apply a session's changes to the folder while it goes on. Its layer stays; a file that is being written is named and left.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/workspace/apply", tag = "workspaces",
    params(("id" = String, Path, description = "A sandbox with `staged` or `copy_on_write`")),
    request_body(content = ApplyWorkspace, content_type = "application/json"),
    responses((status = 200, body = CommittedWorkspace),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "Something stands against it, which is named; nothing was applied"),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn apply_workspace(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    body: RawBody,
) -> Answer<Response> {
    let session = gateway.entry(&caller, &id)?.session()?;
    session.touch();
    let id = find_layer(&gateway, &caller, &id).await?;
    let ApplyWorkspace {
        force,
        partial,
        only,
    } = body
        .read(&gateway, &caller.tenant, sandboxes::parse_json)
        .await?;
    let options = CommitOptions {
        force,
        partial,
        keep: true,
        only: only.into_iter().map(PathBuf::from).collect(),
        ..CommitOptions::default()
    };
    json_from(&gateway, &caller, move |state| {
        layers::commit(state, &id, options).map(commit_response)
    })
    .await
}

/// Checks that all changes of a sandbox could be applied now; changes that are held back anyway do
/// not count.
pub(crate) async fn check_applicable(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<()> {
    let id = find_layer(gateway, caller, id).await?;
    let diff = run_blocking(gateway, caller, move |state| layers::diff(state, &id)).await?;
    let changes = diff.changes.into_iter();
    let conflicts = changes.filter(|change| change.left_out.is_none());
    let conflicts = conflicts.filter_map(|change| {
        Some(UnappliedChange {
            reason: change.conflict?,
            path: change.path,
            conflict: true,
            why: None,
        })
    });
    let conflicts: Vec<_> = conflicts.collect();
    if conflicts.is_empty() {
        return Ok(());
    }
    Err(Problem::conflict(
        format!("the folder has changed, too, at {} names", conflicts.len()),
        format!(
            "{}; apply with `force` first, or end it without `apply`",
            name_conflicts(&conflicts)
        ),
    ))
}

/// Id of a sandbox's layer, if the caller may still use its folder.
async fn find_layer(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<Id> {
    find_shared(gateway, caller, id).await.map_err(|problem| {
        if problem.status() != StatusCode::NOT_FOUND {
            return problem;
        }
        Problem::conflict(
            "this sandbox has no layer whose changes could be applied",
            "make it with a `workspace`, and `staged` or `copy_on_write`",
        )
    })
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
    let id = find_workspace(&gateway, &caller, &id).await?.id;
    let engine = gateway.engine().clone();
    run_blocking(&gateway, &caller, move |state| {
        // The layer goes last: without it the request could not be repeated.
        layers::discard_after(state, &id, || {
            let dropped = engine.discard_commits(&id);
            dropped.map(drop).map_err(|source| LayerError::Io {
                what: "drop what was committed".to_owned(),
                source,
            })
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Id of a workspace, if the caller may still use its folder, which is compared and changed.
async fn find_shared(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<Id> {
    let layer = find_workspace(gateway, caller, id).await?;
    host_paths::check_still_shared(gateway, caller, &layer.folder)?;
    Ok(layer.id)
}

/// A workspace that the caller may see.
pub(crate) async fn find_workspace(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
) -> Answer<layers::Layer> {
    caller.require(Scope::Sandboxes)?;
    let id = Id::new(id).map_err(|_| Problem::not_found("workspace"))?;
    let layer = run_blocking(gateway, caller, move |state| layers::find(state, &id)).await?;
    if sees(caller, &layer) {
        Ok(layer)
    } else {
        Err(Problem::not_found("workspace"))
    }
}

/// A workspace without an owner was made on the command line and belongs to the admin.
fn sees(caller: &Caller, layer: &layers::Layer) -> bool {
    layer
        .owner
        .as_deref()
        .map_or(caller.is_admin(), |owner| caller.sees(owner))
}

async fn run_blocking<T: Send + 'static>(
    gateway: &Gateway,
    caller: &Caller,
    work: impl FnOnce(&FilePath) -> Result<T, LayerError> + Send + 'static,
) -> Answer<T> {
    let state: PathBuf = gateway.engine().state_folder().to_owned();
    blocking::run(gateway.blocking_work(), &caller.tenant, move || {
        work(&state).map_err(layer_problem)
    })
    .await
}

/// Runs blocking work and serializes its result there: a program chose the names.
async fn json_from<T: Serialize>(
    gateway: &Gateway,
    caller: &Caller,
    work: impl FnOnce(&FilePath) -> Result<T, LayerError> + Send + 'static,
) -> Answer<Response> {
    let state: PathBuf = gateway.engine().state_folder().to_owned();
    json_response::compute(gateway, caller, move || work(&state).map_err(layer_problem)).await
}

fn diff_response(diff: layers::Diff, patch: Option<layers::Patch>) -> WorkspaceDiff {
    let mut limit = ResponseLimit::new();
    let patch = patch
        .map(patch_response)
        .filter(|patch| limit.accepts(patch));
    let (commits, more_commits) = limit.fill(diff.commits);
    let unknown = diff.unknown.into_iter();
    let unknown = unknown.map(|(path, reason)| {
        left_out(UnappliedChange {
            path,
            reason,
            conflict: false,
            why: None,
        })
    });
    let (not_looked_into, more_unknown) = limit.fill(unknown);
    let (changes, more) = limit.fill(diff.changes.into_iter().map(change));
    WorkspaceDiff {
        changes,
        not_looked_into,
        compared: diff.compared,
        commits,
        patch,
        truncated: more || more_unknown || more_commits,
    }
}

fn patch_response(patch: layers::Patch) -> WorkspacePatch {
    let is_control = |character: char| character.is_control() && !"\n\t\r".contains(character);
    let (text, base64) = match String::from_utf8(patch.text) {
        Ok(text) if !text.contains(is_control) => (Some(text), None),
        Ok(text) => (None, Some(spec::base64(text.as_bytes()))),
        Err(bytes) => (None, Some(spec::base64(bytes.as_bytes()))),
    };
    let omitted = patch.omitted.into_iter();
    let omitted = omitted.map(|(path, reason)| {
        left_out(UnappliedChange {
            path,
            reason,
            conflict: false,
            why: None,
        })
    });
    WorkspacePatch {
        text,
        base64,
        omitted: omitted.collect(),
        omitted_total: patch.omitted_total,
        held_back_total: patch.held_total,
    }
}

/// Names the first conflicts in a message.
fn name_conflicts(left: &[UnappliedChange]) -> String {
    let named = left.iter().take(MAX_NAMED).map(|left| {
        let path = left.path.to_string_lossy();
        format!("`{}`: {}", path.escape_debug(), left.reason)
    });
    named.collect::<Vec<_>>().join("; ")
}

fn commit_response(committed: layers::CommitOutcome) -> CommittedWorkspace {
    let mut limit = ResponseLimit::new();
    // Left-out names go first: somebody has to look at them.
    let (left_out, more_left) = limit.fill(committed.left.into_iter().map(left_out));
    let (applied, more) = limit.fill(committed.applied.into_iter().map(change));
    CommittedWorkspace {
        applied,
        left_out,
        discarded: committed.discarded,
        truncated: more || more_left,
        git: Vec::new(),
        notes: Vec::new(),
    }
}

impl CommittedWorkspace {
    /// Adds the imported git commits; returns whether all of them have arrived. The files are in
    /// the folder: what keeps the commits from arriving is no failure of that.
    fn add_commits(&mut self, import: Import) -> bool {
        match import {
            Ok(brought) => {
                let brought = brought.unwrap_or_default();
                let have_arrived = !brought.has_failed();
                (self.git, self.notes) = (brought.imports, brought.notes);
                have_arrived
            }
            Err(error) => {
                self.notes = vec![error.message];
                false
            }
        }
    }
}

fn change(change: layers::LayerChange) -> WorkspaceChange {
    let (path, path_base64) = text_or_base64(change.path.as_os_str().as_encoded_bytes());
    let target = change
        .target
        .as_ref()
        .map(|target| text_or_base64(target.as_encoded_bytes()));
    let (target, target_base64) = target.unwrap_or_default();
    WorkspaceChange {
        path,
        path_base64,
        change: serde_name(&change.what),
        kind: serde_name(&change.kind),
        mode: format!("{:03o}", change.mode),
        size_bytes: (change.kind == layers::FileKind::File).then_some(change.size_bytes),
        target,
        target_base64,
        left_out: change.left_out,
        conflict: change.conflict,
    }
}

fn left_out(left: UnappliedChange) -> LeftOut {
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

fn serde_name(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn layer_problem(error: LayerError) -> Problem {
    let info = error.info();
    match error {
        LayerError::Absent { .. } => Problem::not_found("workspace"),
        LayerError::NoFile { .. } => {
            Problem::new(StatusCode::NOT_FOUND, "not_found", info.message, info.hint)
        }
        LayerError::FolderMoved { .. }
        | LayerError::InUse { .. }
        | LayerError::Taken { .. }
        | LayerError::Elsewhere { .. } => {
            Problem::conflict(error.to_string(), info.hint.unwrap_or_default())
        }
        LayerError::Refused { left } => {
            let advice = "`partial` takes over the rest, `force` also what conflicts";
            Problem::conflict(info.message, format!("{}; {advice}", name_conflicts(&left)))
        }
        LayerError::TooMuch { .. }
        | LayerError::NoRoom { .. }
        | LayerError::Replaced { .. }
        | LayerError::Cancelled => Problem::from(info),
        // The I/O causes contain paths of this machine.
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
