//! Files of a sandbox's workspace: read, list, write, remove. Paths are resolved by handle below
//! the workspace, and through no symbolic link. Contents are streamed in bounded chunks, and the
//! event loop does not wait for disks.

mod path;
mod range;
mod read;
mod write;

pub(super) use path::decoded;
pub(crate) use path::parse_workspace_location;
pub(crate) use read::contents;

use super::wire::name_or_base64;
use crate::{Caller, Gateway, Problem, blocking, problem::Answer};
use axum::routing::get;
use engine::tree::{EntryKind, Tree, TreeError, WorkspaceEntry};
use http::{StatusCode, Uri};
use path::FileLocation;
use serde::Serialize;
use spec::Timestamp;
use std::{io, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    let router = OpenApiRouter::new()
        .merge(read::routes())
        .merge(write::routes());
    // The same folder with a trailing slash.
    router.route("/v1/sandboxes/{id}/files/", get(read::get))
}

/// The workspace of a live sandbox, and the location that the URL names.
fn locate(gateway: &Gateway, caller: &Caller, uri: &Uri) -> Answer<(Arc<Tree>, FileLocation)> {
    let place = path::parse_location(uri.path())?;
    let session = gateway.session(caller, &place.sandbox)?;
    Ok((Arc::new(session.tree()?), place))
}

/// Runs blocking file work within the caller's fair share.
async fn run_blocking<T: Send + 'static>(
    gateway: &Gateway,
    caller: &Caller,
    work: impl FnOnce() -> Result<T, TreeError> + Send + 'static,
) -> Answer<T> {
    blocking::run(gateway.blocking_work(), &caller.tenant, move || {
        work().map_err(tree_problem)
    })
    .await
}

fn failed() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the workspace cannot be used",
        None,
    )
}

/// The problem of a file operation.
fn tree_problem(error: TreeError) -> Problem {
    use TreeError as Is;
    let (status, code, hint) = match &error {
        Is::Path { .. } => (
            StatusCode::BAD_REQUEST,
            "invalid_spec",
            "name something below the workspace",
        ),
        Is::Missing { .. } => (
            StatusCode::NOT_FOUND,
            "not_found",
            "list its folder to see what is there",
        ),
        Is::Kind { .. } => (
            StatusCode::CONFLICT,
            "conflict",
            "only files and folders are opened; anything can be removed",
        ),
        Is::Link { .. } => (
            StatusCode::CONFLICT,
            "conflict",
            "name what it points at, or remove it",
        ),
        Is::Exists { .. } => (StatusCode::CONFLICT, "conflict", "choose another name"),
        Is::NotEmpty { .. } => (
            StatusCode::CONFLICT,
            "conflict",
            "remove it with `?recursive=true`",
        ),
        Is::TooLarge { .. } => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "quota_exceeded",
            "make a sandbox with more `disk` and `memory`",
        ),
        Is::Full { .. } => (
            StatusCode::INSUFFICIENT_STORAGE,
            "quota_exceeded",
            "remove something, or make a sandbox with more `disk` and `memory`",
        ),
        Is::TooMany { .. } => (
            StatusCode::CONFLICT,
            "quota_exceeded",
            "ask again, or for what lies deeper",
        ),
        Is::Protected { .. } => (
            StatusCode::FORBIDDEN,
            "policy_denied",
            "make a sandbox with `allow_protected` for this name",
        ),
        Is::Other { source, .. } => match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => (
                StatusCode::FORBIDDEN,
                "policy_denied",
                "it may not be touched",
            ),
            // A program moves names on the path faster than they can be resolved.
            io::ErrorKind::WouldBlock => (
                StatusCode::CONFLICT,
                "conflict",
                "its path keeps changing; ask again",
            ),
            io::ErrorKind::InvalidFilename => (
                StatusCode::BAD_REQUEST,
                "invalid_spec",
                "choose another name",
            ),
            _ => return failed(),
        },
    };
    Problem::new(status, code, error.to_string(), Some(hint.to_owned()))
}

/// A name in a workspace.
#[derive(Debug, Serialize, ToSchema)]
struct FileFacts {
    /// Relative to the folder that was asked for.
    name: String,
    /// Where `name` does not show it exactly: the bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    /// `file`, `folder`, `link` or `special`.
    kind: &'static str,
    size_bytes: u64,
    /// As `chmod` takes it.
    mode: String,
    #[schema(value_type = String)]
    modified_at: Timestamp,
    /// Where a link points; nobody follows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<WorkspaceEntry> for FileFacts {
    fn from(entry: WorkspaceEntry) -> FileFacts {
        let (name, name_base64) = name_or_base64(entry.name);
        FileFacts {
            name,
            name_base64,
            kind: match entry.kind {
                EntryKind::File => "file",
                EntryKind::Folder => "folder",
                EntryKind::Link => "link",
                EntryKind::Special => "special",
            },
            size_bytes: entry.size_bytes,
            mode: format!("{:04o}", entry.mode),
            modified_at: entry.modified_at,
            target: entry
                .target
                .map(|target| target.to_string_lossy().into_owned()),
        }
    }
}

/// What lies in a folder, by name.
#[derive(Debug, Serialize, ToSchema)]
struct FolderListing {
    files: Vec<FileFacts>,
    /// There are more than are listed here: ask again with `after` set to the last name.
    truncated: bool,
}
