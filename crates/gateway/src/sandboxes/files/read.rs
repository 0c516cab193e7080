//! Files out: whole or in part, and what lies in a folder.

use super::{
    FileFacts, FolderListing, aside, failed, found, path,
    range::{self, Wanted},
};
use crate::{
    Caller, Gateway, Problem,
    fitting::{self, Room},
    problem::Answer,
    sandboxes::body::{Asked, Chunks, Outgoing},
};
use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use engine::tree::{Entry, EntryKind, MOST_LISTED, Tree, TreeError};
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
use store::Buffers;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What is read at a time. With those on their way a download takes a few of them, however large the file is.
const CHUNK: u64 = 256 << 10;
const ROOM: usize = 2;
/// How deep a listing with what lies in folders goes.
const DEEPEST: usize = 32;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(get))
        .routes(routes!(workspace))
}

/// How a folder is listed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    /// With what lies in its folders, 32 deep.
    #[serde(default)]
    recursive: bool,
    /// Only names behind this one; not with `recursive`.
    after: Option<String>,
}

/// What was found there.
enum Opened {
    File(File, Entry),
    /// As JSON, which takes its time where programs chose long names.
    Folder(Vec<u8>),
}

/// Reads a file, whole or in part (`Range`, `If-Range`); or lists a folder, up to 10,000 names and 4 MiB.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Path, description = "Relative to /workspace; slashes stand for themselves"),
        Listing,
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
    Asked(listing): Asked<Listing>,
) -> Answer<Response> {
    let (tree, place) = found(&gateway, &caller, &uri)?;
    if listing.recursive && listing.after.is_some() {
        return Err(Problem::invalid(
            "`recursive` and `after` exclude each other",
            "give one of them",
        ));
    }
    match aside(&gateway, &caller, move || {
        open(&tree, &place.path, place.folder, &listing)
    })
    .await?
    {
        Opened::Folder(json) => fitting::sent(gateway.answering(), &caller.tenant, json),
        Opened::File(file, entry) => contents(file, &entry, &headers, &method),
    }
}

fn open(tree: &Tree, path: &Path, folder: bool, listing: &Listing) -> Result<Opened, TreeError> {
    if !folder && tree.stat(path)?.kind != EntryKind::Folder {
        return tree
            .open(path)
            .map(|(file, entry)| Opened::File(file, entry));
    }
    let listed = match listing.recursive {
        true => below(tree, path)?,
        false => {
            let listed = tree.list(path, listing.after.as_deref().map(OsStr::new), MOST_LISTED)?;
            let (files, more) = Room::new().fill(listed.entries.into_iter().map(FileFacts::from));
            FolderListing {
                files,
                truncated: listed.more || more,
            }
        }
    };
    let failed = |error: serde_json::Error| TreeError::Other {
        path: String::new(),
        source: error.into(),
    };
    serde_json::to_vec(&listed)
        .map(Opened::Folder)
        .map_err(failed)
}

/// What lies in a folder and in those below it, each folder before what is in it.
fn below(tree: &Tree, top: &Path) -> Result<FolderListing, TreeError> {
    let (mut files, mut truncated, mut fitting) = (Vec::new(), false, Room::new());
    let mut waiting = vec![(PathBuf::new(), 1)];
    while let Some((folder, depth)) = waiting.pop() {
        let room = MOST_LISTED - files.len();
        let listed = match tree.list(&top.join(&folder), None, room.max(1)) {
            // It went meanwhile, or became something else.
            Err(TreeError::Missing { .. } | TreeError::Kind { .. } | TreeError::Link { .. })
                if depth > 1 =>
            {
                continue;
            }
            // One that nobody can name or look into hides itself, and nothing else.
            Err(_) if depth > 1 => {
                truncated = true;
                continue;
            }
            listed => listed?,
        };
        truncated |= listed.more;
        let mut folders = Vec::new();
        for entry in listed.entries {
            let (name, is_folder) = (folder.join(&entry.name), entry.kind == EntryKind::Folder);
            let entry = FileFacts::from(Entry {
                name: name.clone().into_os_string(),
                ..entry
            });
            if files.len() == MOST_LISTED || !fitting.takes(&entry) {
                return Ok(FolderListing {
                    files,
                    truncated: true,
                });
            }
            files.push(entry);
            if is_folder {
                truncated |= depth == DEEPEST;
                folders.push((name, depth + 1));
            }
        }
        waiting.extend(
            folders
                .into_iter()
                .rev()
                .filter(|(_, depth)| *depth <= DEEPEST),
        );
    }
    Ok(FolderListing { files, truncated })
}

/// Lists the workspace itself.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files", tag = "files", params(("id" = String, Path), Listing),
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
    listing: Asked<Listing>,
) -> Answer<Response> {
    get(gateway, caller, method, uri, headers, listing).await
}

/// A version of a file: another one for every change that the file system tells apart.
fn tag(file: &File) -> io::Result<(String, u64)> {
    let facts = file.metadata()?;
    let (inode, seconds, nanoseconds, size) =
        (facts.ino(), facts.mtime(), facts.mtime_nsec(), facts.size());
    Ok((
        format!("\"{inode:x}-{seconds:x}.{nanoseconds:x}-{size:x}\""),
        size,
    ))
}

fn contents(file: File, entry: &Entry, headers: &HeaderMap, method: &Method) -> Answer<Response> {
    let (tag, size) = tag(&file).map_err(|_| failed())?;
    let (status, from, count) = match range::wanted(headers, &tag, size) {
        Wanted::Whole => (StatusCode::OK, 0, size),
        Wanted::Part(from, count) => (StatusCode::PARTIAL_CONTENT, from, count),
        Wanted::Known => return Ok((StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response()),
        Wanted::Nowhere => return Ok(nowhere(size)),
    };
    let body = match method == Method::HEAD {
        true => Body::empty(),
        false => sent(file, from, count),
    };
    // What a program wrote is never shown as a page of ours.
    let head = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (ACCEPT_RANGES, "bytes".to_owned()),
        (CACHE_CONTROL, "no-cache".to_owned()),
        (
            CONTENT_DISPOSITION,
            format!(
                "attachment; filename*=UTF-8''{}",
                path::encoded(&entry.name)
            ),
        ),
        (CONTENT_LENGTH, count.to_string()),
        (ETAG, tag),
    ];
    let mut response = (status, head, body).into_response();
    if status == StatusCode::PARTIAL_CONTENT
        && let Ok(place) = format!("bytes {from}-{}/{size}", from + count - 1).parse()
    {
        response.headers_mut().insert(CONTENT_RANGE, place);
    }
    Ok(response)
}

fn nowhere(size: u64) -> Response {
    let title = format!("the file has {size} bytes, and none of those that were asked for");
    let problem = Problem::new(
        StatusCode::RANGE_NOT_SATISFIABLE,
        "invalid_spec",
        title,
        None,
    );
    ([(CONTENT_RANGE, format!("bytes */{size}"))], problem).into_response()
}

fn sent(file: File, from: u64, count: u64) -> Body {
    let (outgoing, body) = Chunks::body(ROOM, Some(count));
    tokio::spawn(send(file, from, count, outgoing));
    body
}

/// Reads ahead of whoever takes it, a chunk at a time: a slow reader holds no thread.
async fn send(file: File, mut at: u64, count: u64, outgoing: Outgoing) {
    let (end, file, buffers) = (at + count, Arc::new(file), Buffers::default());
    while at < end {
        let (length, file, buffers) = (CHUNK.min(end - at) as usize, file.clone(), buffers.clone());
        let Ok(read) = tokio::task::spawn_blocking(move || buffers.read(&file, at, length)).await
        else {
            return;
        };
        let sent = match read {
            // A file that has become shorter ends early, and the reader sees it by the length that was told.
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
