//! Files out: whole or in part, and what lies in a folder.

use super::{FolderListing, aside, found, path, range::{self, Wanted}, refused, tag};
use crate::{
    Caller, Gateway, Problem,
    problem::Answer,
    sandboxes::body::{Asked, Chunks, Outgoing},
};
use axum::{
    Json,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use engine::tree::{Bounds, Facts, Opened};
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{
        ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use serde::Deserialize;
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What is read at a time. With those on their way a download takes a few of them, however large the file is.
const CHUNK: u64 = 512 << 10;
const ROOM: usize = 2;
/// What one listing names.
const MOST_LISTED: usize = 10_000;
const DEEPEST: usize = 32;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(workspace))
}

/// How a folder is listed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    /// With what lies in its folders.
    #[serde(default)]
    recursive: bool,
}

/// Reads a file, whole or in part (`Range`, `If-Range`); or lists a folder, up to 10,000 names.
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
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 401, body = Problem, content_type = "application/problem+json"),
        (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "A link is in the way, or it is no file"),
        (status = 410, body = Problem, content_type = "application/problem+json"),
        (status = 416, body = Problem, content_type = "application/problem+json"),
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
    let (name, wants_folder) = (place.path.clone(), place.folder);
    let opened = aside(move || match tree.open(&place.path)? {
        Opened::File(file, facts) => Ok(Ok((file, facts))),
        Opened::Folder(folder) => {
            let bounds = Bounds { entries: MOST_LISTED, depth: if listing.recursive { DEEPEST } else { 1 } };
            folder.list(bounds).map(Err)
        }
    });
    match opened.await? {
        Err(listed) => Ok(Json(FolderListing::from(listed)).into_response()),
        Ok(_) if wants_folder => Err(refused(&io::ErrorKind::NotADirectory.into())),
        Ok((file, facts)) => {
            let name = name.file_name().unwrap_or_default();
            let mut response = contents(file, &facts, &headers, &method)?;
            let shown = format!("attachment; filename*=UTF-8''{}", path::encoded(name));
            if let Ok(shown) = shown.parse() {
                response.headers_mut().insert(CONTENT_DISPOSITION, shown);
            }
            Ok(response)
        }
    }
}

/// Lists the workspace itself.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files", tag = "files", params(("id" = String, Path), Listing),
    responses(
        (status = 200, body = FolderListing),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 401, body = Problem, content_type = "application/problem+json"),
        (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 410, body = Problem, content_type = "application/problem+json"),
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

fn contents(file: File, facts: &Facts, headers: &HeaderMap, method: &Method) -> Answer<Response> {
    let (tag, size) = (tag(facts), facts.size_bytes);
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
    let problem = Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "invalid_spec", title, None);
    ([(CONTENT_RANGE, format!("bytes */{size}"))], problem).into_response()
}

fn sent(file: File, from: u64, count: u64) -> Body {
    let (outgoing, body) = Chunks::body(ROOM, Some(count));
    tokio::spawn(send(file, from, count, outgoing));
    body
}

/// Reads ahead of whoever takes it, a chunk at a time: a slow reader holds no thread.
async fn send(file: File, mut at: u64, count: u64, outgoing: Outgoing) {
    let (end, mut file) = (at + count, file);
    while at < end {
        let length = CHUNK.min(end - at);
        let read = tokio::task::spawn_blocking(move || (chunk(&file, at, length), file)).await;
        let Ok((read, again)) = read else { return };
        file = again;
        // A file that has become shorter ends early, and the reader sees it by the length that was told.
        let over = !matches!(&read, Ok(bytes) if !bytes.is_empty());
        at += read.as_ref().map_or(0, |bytes| bytes.len() as u64);
        if over && read.is_ok() || outgoing.send(read).await.is_err() || over {
            return;
        }
    }
}

fn chunk(file: &File, at: u64, length: u64) -> io::Result<Bytes> {
    let mut bytes = Vec::with_capacity(length as usize);
    At { file, at }.take(length).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// A file read from a place on, whatever others do with its handle.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
