//! Files in: put as a stream, all of it or nothing; folders made; both removed.

use super::{FileFacts, aside, found, refused, tag};
use crate::{
    Caller, Gateway, Problem,
    problem::Answer,
    sandboxes::body::{Asked, to_the_end},
};
use axum::{
    Json,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use engine::tree::{Draft, Tree};
use http::{
    HeaderMap, StatusCode, Uri,
    header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG},
};
use http_body_util::BodyExt;
use serde::Deserialize;
use std::{
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};
use tokio::task::JoinHandle;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What is gathered before it is written; as much again is being written meanwhile.
const BATCH: usize = 512 << 10;
/// A sender who sends nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Names that one request removes.
const MOST_REMOVED: usize = 1_000_000;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(put, make, remove))
}

/// How it is put there.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Putting {
    /// Who may do what, as `chmod` takes it: 644 unless said, 755 for a folder.
    mode: Option<String>,
    /// Makes the folders above it.
    #[serde(default)]
    mkdir: bool,
    /// Makes a folder; there is no body.
    #[serde(default)]
    directory: bool,
}

impl Putting {
    fn mode(&self, usual: u32) -> Answer<u32> {
        let mode = self.mode.as_deref().map_or(Ok(usual), |mode| u32::from_str_radix(mode, 8));
        // Neither set-user-ID nor the like: those are for programs of the host's.
        mode.ok().filter(|mode| *mode <= 0o777).ok_or_else(|| {
            Problem::invalid("`mode` is none that a file can have here", "give 0 to 777, as in `mode=755`")
        })
    }
}

/// Puts a file there, or makes a folder (`directory=true`). The file appears whole or not at all.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path, description = "Relative to /workspace"), Putting),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = FileFacts, description = "It replaced what was there"),
        (status = 201, body = FileFacts),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 401, body = Problem, content_type = "application/problem+json"),
        (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 408, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "A link, folder or device is in the way"),
        (status = 410, body = Problem, content_type = "application/problem+json"),
        (status = 413, body = Problem, content_type = "application/problem+json"),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "The workspace is full"),
    )
)]
async fn put(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
    Asked(putting): Asked<Putting>,
    body: Body,
) -> Answer<Response> {
    let (tree, place) = found(&gateway, &caller, &uri)?;
    if headers.contains_key(CONTENT_RANGE) {
        return Err(Problem::invalid("a file is put whole, not in parts", "leave Content-Range out"));
    }
    if putting.directory {
        return folder(tree, place.path, &putting).await;
    }
    if place.folder {
        return Err(Problem::invalid("a file's name ends with no slash", "add `?directory=true` for a folder"));
    }
    let most = gateway.entry(&caller, &place.sandbox)?.disk_bytes;
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(refused(&io::ErrorKind::FileTooLarge.into()));
    }
    let mode = putting.mode(0o644)?;
    to_the_end(async move { file(tree, place.path, putting.mkdir, mode, body, most).await }).await
}

async fn file(tree: Tree, path: PathBuf, mkdir: bool, mode: u32, body: Body, most: u64) -> Answer<Response> {
    let name = path.file_name().unwrap_or_default().to_owned();
    let draft = aside(move || tree.draft(&path, mkdir)).await?;
    let mut upload = Upload { draft: Some(draft), writing: None };
    let received = upload.receive(body, most).await;
    let Some(draft) = upload.idle().await?.draft.take() else {
        return Err(refused(&io::ErrorKind::Other.into()));
    };
    if let Err(problem) = received {
        aside(move || Ok(draft.discard())).await?;
        return Err(problem);
    }
    let (facts, replaced) = aside(move || draft.publish(mode)).await?;
    let status = if replaced { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, [(ETAG, tag(&facts))], Json(FileFacts::new(name, &facts))).into_response())
}

/// A file on its way in: one batch is written while the next one is gathered.
struct Upload {
    draft: Option<Draft>,
    writing: Option<JoinHandle<(Draft, io::Result<()>)>>,
}

impl Upload {
    async fn receive(&mut self, mut body: Body, most: u64) -> Answer<()> {
        let (mut batch, mut gathered, mut total) = (Vec::new(), 0, 0);
        while let Some(frame) = arriving(&mut body).await? {
            total += frame.len() as u64;
            gathered += frame.len();
            if total > most {
                return Err(refused(&io::ErrorKind::FileTooLarge.into()));
            }
            batch.push(frame);
            if gathered >= BATCH {
                self.write(std::mem::take(&mut batch)).await?;
                gathered = 0;
            }
        }
        self.write(batch).await?;
        self.idle().await.map(drop)
    }

    async fn write(&mut self, batch: Vec<Bytes>) -> Answer<()> {
        let draft = self.idle().await?.draft.take();
        let Some(mut draft) = draft else { return Err(refused(&io::ErrorKind::Other.into())) };
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let written = batch.iter().try_for_each(|bytes| draft.file().write_all(bytes));
            (draft, written)
        }));
        Ok(())
    }

    /// Waits for the batch that is being written.
    async fn idle(&mut self) -> Answer<&mut Upload> {
        if let Some(writing) = self.writing.take() {
            let (draft, written) = writing.await.map_err(|_| refused(&io::ErrorKind::Other.into()))?;
            self.draft = Some(draft);
            written.map_err(|error| refused(&error))?;
        }
        Ok(self)
    }
}

/// The next bytes of a body; none at its end.
async fn arriving(body: &mut Body) -> Answer<Option<Bytes>> {
    loop {
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(Problem::invalid("the body ended before its end", "nothing was put there; send it again"));
            }
            Err(_) => {
                let title = format!("nothing more came for {} seconds", SILENCE.as_secs());
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", title, None));
            }
        };
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
}

async fn folder(tree: Tree, path: PathBuf, putting: &Putting) -> Answer<Response> {
    let (mode, mkdir) = (putting.mode(0o755)?, putting.mkdir);
    let name = path.file_name().unwrap_or_default().to_owned();
    let (facts, made) = aside(move || tree.make_folder(&path, mkdir, mode)).await?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(FileFacts::new(name, &facts))).into_response())
}

/// Makes a folder, and with `mkdir=true` those above it.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path, description = "Relative to /workspace"), Putting),
    responses(
        (status = 200, body = FileFacts, description = "It was there already"),
        (status = 201, body = FileFacts),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 401, body = Problem, content_type = "application/problem+json"),
        (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "Something else has that name"),
        (status = 410, body = Problem, content_type = "application/problem+json"),
        (status = 507, body = Problem, content_type = "application/problem+json"),
    )
)]
async fn make(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    Asked(putting): Asked<Putting>,
) -> Answer<Response> {
    let (tree, place) = found(&gateway, &caller, &uri)?;
    folder(tree, place.path, &putting).await
}

/// What is removed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Removing {
    /// A folder with all that lies in it.
    #[serde(default)]
    recursive: bool,
}

/// Removes a file, a link (never what it points at), an empty folder, or with `recursive=true` a folder with all in it.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path, description = "Relative to /workspace"), Removing),
    responses(
        (status = 204, description = "It is gone"),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 401, body = Problem, content_type = "application/problem+json"),
        (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The folder is not empty"),
        (status = 410, body = Problem, content_type = "application/problem+json"),
    )
)]
async fn remove(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    Asked(removing): Asked<Removing>,
) -> Answer<StatusCode> {
    let (tree, place) = found(&gateway, &caller, &uri)?;
    let most = if removing.recursive { MOST_REMOVED } else { 0 };
    to_the_end(async move { aside(move || tree.remove(&place.path, most)).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
