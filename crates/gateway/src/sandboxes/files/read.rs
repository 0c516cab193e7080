//! File downloads, whole or in part, and folder listings.

use super::{
    FileFacts, FolderListing, failed, locate, path,
    range::{self, RequestedRange},
    run_blocking,
};
use crate::{
    Caller, Gateway, Problem,
    json_response::{self, ResponseLimit},
    problem::Answer,
    sandboxes::body::{ChunkSender, ChunkedBody, QueryParams},
};
use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use engine::tree::{EntryKind, MAX_LISTED, Tree, TreeError, WorkspaceEntry};
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{
        ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
        CONTENT_TYPE, ETAG, X_CONTENT_TYPE_OPTIONS,
    },
};
use serde::Deserialize;
use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use store::BufferPool;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Bytes that are read at a time. With those in the channel, a download needs a few of them,
/// whatever the file size.
const CHUNK: u64 = 256 << 10;
const CHANNEL_CAPACITY: usize = 2;
/// Maximum depth of a recursive listing.
const MAX_DEPTH: usize = 32;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(get))
        .routes(routes!(workspace))
}

/// How a folder is listed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// With what lies in its folders, 32 deep.
    #[serde(default)]
    recursive: bool,
    /// Only names behind this one; not with `recursive`.
    after: Option<String>,
}

/// A file, or the listing of a folder.
enum FileOrListing {
    File(File, WorkspaceEntry),
    /// Serialized on the blocking thread: programs may choose long names.
    Listing(Vec<u8>),
}

/// Reads a file, whole or in part (`Range`, `If-Range`); or lists a folder, up to 10,000 names and 4 MiB.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Path, description = "Relative to /workspace; slashes stand for themselves"),
        ListQuery,
        ("Range" = Option<String>, Header), ("If-Range" = Option<String>, Header),
        ("If-None-Match" = Option<String>, Header),
    ),
    responses(
        (status = 200, description = "The file; or, of a folder, what lies in it",
            content((Vec<u8> = "application/octet-stream"), (FolderListing = "application/json"))),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "It is the version that is known already"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "A link is in the way, or it is no file"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    QueryParams(listing): QueryParams<ListQuery>,
) -> Answer<Response> {
    let (tree, location) = locate(&gateway, &caller, &uri)?;
    if listing.recursive && listing.after.is_some() {
        return Err(Problem::invalid(
            "`recursive` and `after` exclude each other",
            "give one of them",
        ));
    }
    match run_blocking(&gateway, &caller, move || {
        open(&tree, &location.path, location.folder, &listing)
    })
    .await?
    {
        FileOrListing::Listing(json) => {
            json_response::from_bytes(gateway.response_bytes(), &caller.tenant, json)
        }
        FileOrListing::File(file, entry) => contents(file, &entry.name, &headers, &method),
    }
}

fn open(
    tree: &Tree,
    path: &Path,
    folder: bool,
    listing: &ListQuery,
) -> Result<FileOrListing, TreeError> {
    if !folder && tree.stat(path)?.kind != EntryKind::Folder {
        return tree
            .open(path)
            .map(|(file, entry)| FileOrListing::File(file, entry));
    }
    let listed = if listing.recursive {
        list_recursive(tree, path)?
    } else {
        let listed = tree.list(path, listing.after.as_deref().map(OsStr::new), MAX_LISTED)?;
        let (files, more) =
            ResponseLimit::new().fill(listed.entries.into_iter().map(FileFacts::from));
        FolderListing {
            files,
            truncated: listed.more || more,
        }
    };
    let failed = |error: serde_json::Error| TreeError::Other {
        path: String::new(),
        source: error.into(),
    };
    serde_json::to_vec(&listed)
        .map(FileOrListing::Listing)
        .map_err(failed)
}

/// Lists a folder recursively, each folder before its contents.
fn list_recursive(tree: &Tree, top: &Path) -> Result<FolderListing, TreeError> {
    let mut files = Vec::new();
    let mut truncated = false;
    let mut limit = ResponseLimit::new();
    let mut waiting = vec![(PathBuf::new(), 1)];
    while let Some((folder, depth)) = waiting.pop() {
        let room = MAX_LISTED - files.len();
        let listed = match tree.list(&top.join(&folder), None, room.max(1)) {
            // The entry was removed or replaced meanwhile.
            Err(TreeError::Missing { .. } | TreeError::Kind { .. } | TreeError::Link { .. })
                if depth > 1 =>
            {
                continue;
            }
            // A folder that cannot be opened is left out; the rest is listed.
            Err(_) if depth > 1 => {
                truncated = true;
                continue;
            }
            listed => listed?,
        };
        truncated |= listed.more;
        let mut folders = Vec::new();
        for entry in listed.entries {
            let name = folder.join(&entry.name);
            let is_folder = entry.kind == EntryKind::Folder;
            let entry = FileFacts::from(WorkspaceEntry {
                name: name.clone().into_os_string(),
                ..entry
            });
            if files.len() == MAX_LISTED || !limit.accepts(&entry) {
                return Ok(FolderListing {
                    files,
                    truncated: true,
                });
            }
            files.push(entry);
            if is_folder {
                truncated |= depth == MAX_DEPTH;
                folders.push((name, depth + 1));
            }
        }
        waiting.extend(
            folders
                .into_iter()
                .rev()
                .filter(|(_, depth)| *depth <= MAX_DEPTH),
        );
    }
    Ok(FolderListing { files, truncated })
}

/// Lists the workspace itself.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files", tag = "files", params(("id" = String, Path), ListQuery),
    responses(
        (status = 200, body = FolderListing),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn workspace(
    gateway: State<Gateway>,
    caller: Caller,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    listing: QueryParams<ListQuery>,
) -> Answer<Response> {
    get(gateway, caller, method, uri, headers, listing).await
}

/// The ETag of a file, which changes with every change that the file system records.
fn etag(file: &File) -> io::Result<(String, u64)> {
    let facts = file.metadata()?;
    let inode = facts.ino();
    let seconds = facts.mtime();
    let nanoseconds = facts.mtime_nsec();
    let size = facts.size();
    Ok((
        format!("\"{inode:x}-{seconds:x}.{nanoseconds:x}-{size:x}\""),
        size,
    ))
}

/// Responds with a file, whole or in part.
pub(crate) fn contents(
    file: File,
    name: &OsStr,
    headers: &HeaderMap,
    method: &Method,
) -> Answer<Response> {
    let (tag, size) = etag(&file).map_err(|_| failed())?;
    let (status, from, count) = match range::requested_range(headers, &tag, size) {
        RequestedRange::Whole => (StatusCode::OK, 0, size),
        RequestedRange::Part(from, count) => (StatusCode::PARTIAL_CONTENT, from, count),
        RequestedRange::NotModified => {
            return Ok((StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response());
        }
        RequestedRange::Unsatisfiable => return Ok(unsatisfiable(size)),
    };
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        file_body(file, from, count)
    };
    // Contents written by a program must not be rendered by a browser.
    let head = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (ACCEPT_RANGES, "bytes".to_owned()),
        (CACHE_CONTROL, "no-cache".to_owned()),
        (
            CONTENT_DISPOSITION,
            format!("attachment; filename*=UTF-8''{}", path::encoded(name)),
        ),
        (CONTENT_LENGTH, count.to_string()),
        (ETAG, tag),
    ];
    let mut response = (status, head, body).into_response();
    if status == StatusCode::PARTIAL_CONTENT
        && let Ok(location) = format!("bytes {from}-{}/{size}", from + count - 1).parse()
    {
        response.headers_mut().insert(CONTENT_RANGE, location);
    }
    Ok(response)
}

fn unsatisfiable(size: u64) -> Response {
    let title = format!("the file has {size} bytes, and none of those that were asked for");
    let problem = Problem::new(
        StatusCode::RANGE_NOT_SATISFIABLE,
        "invalid_spec",
        title,
        None,
    );
    ([(CONTENT_RANGE, format!("bytes */{size}"))], problem).into_response()
}

fn file_body(file: File, from: u64, count: u64) -> Body {
    let (outgoing, body) = ChunkedBody::body(CHANNEL_CAPACITY, Some(count));
    tokio::spawn(send_chunks(file, from, count, outgoing));
    body
}

/// Sends chunks at the client's pace: a slow client holds no thread.
async fn send_chunks(file: File, mut at: u64, count: u64, outgoing: ChunkSender) {
    let end = at + count;
    let file = Arc::new(file);
    let buffers = BufferPool::default();
    while at < end {
        let length = CHUNK.min(end - at) as usize;
        let file = file.clone();
        let buffers = buffers.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || buffers.read(&file, at, length)).await
        else {
            return;
        };
        let sent = match read {
            // A file that was truncated ends early, which the client sees by the length.
            Ok(bytes) if bytes.is_empty() => return,
            Ok(bytes) => {
                at += bytes.len() as u64;
                outgoing.send(Ok(bytes)).await
            }
            Err(error) => {
                _ = outgoing.send(Err(error)).await;
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}
