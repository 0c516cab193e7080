//! Files in: put as a stream, all of it or nothing; folders made; both removed.

use super::{FileFacts, aside, failed, found, refused};
use crate::{
    Caller, Gateway, Problem,
    problem::Answer,
    sandboxes::body::{Asked, to_the_end},
    work,
};
use axum::{
    Json,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use engine::tree::{EntryKind, Tree, TreeError, Upload};
use http::{
    HeaderMap, StatusCode, Uri,
    header::{CONTENT_LENGTH, CONTENT_RANGE},
};
use http_body_util::BodyExt;
use serde::Deserialize;
use std::{path::PathBuf, sync::Arc, time::Duration};
use store::Pieces;
use tokio::task::JoinHandle;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What is gathered before it is written; as much again is being written meanwhile.
const BATCH: usize = 512 << 10;
/// A sender who sends nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(60);

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(put, make, remove))
}

/// How it is put there.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Putting {
    /// Who may do what with the file, as `chmod` takes it: 644 unless said.
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
        let mode = self
            .mode
            .as_deref()
            .map_or(Ok(usual), |mode| u32::from_str_radix(mode, 8));
        // Neither set-user-ID nor the like: those are for programs of the host's.
        mode.ok().filter(|mode| *mode <= 0o777).ok_or_else(|| {
            Problem::invalid(
                "`mode` is none that a file can have here",
                "give 0 to 777, as in `mode=755`",
            )
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
        (status = 409, body = Problem, content_type = "application/problem+json", description = "A link, folder or device is in the way"),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "The workspace is full"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
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
        return Err(Problem::invalid(
            "a file is put whole, not in parts",
            "leave Content-Range out",
        ));
    }
    if putting.directory {
        return folder(&gateway, &caller, tree, place.path, &putting).await;
    }
    if place.folder {
        return Err(Problem::invalid(
            "a file's name ends with no slash",
            "add `?directory=true` for a folder",
        ));
    }
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let mode = putting.mode(0o644)?;
    let begun = move || {
        let (path, mkdir) = (&place.path, putting.mkdir);
        let replaces = tree.stat(path).is_ok();
        let mut upload = tree.put(path, mkdir)?;
        upload.expect(length.unwrap_or(0))?;
        upload.set_mode(mode);
        Ok((upload, replaces))
    };
    to_the_end(async move { file(&gateway, &caller, begun, body).await }).await
}

async fn file(
    gateway: &Gateway,
    caller: &Caller,
    begun: impl FnOnce() -> Result<(Upload, bool), TreeError> + Send + 'static,
    body: Body,
) -> Answer<Response> {
    let (upload, replaces) = aside(gateway, caller, begun).await?;
    let upload = Receiving {
        upload: Some(upload),
        writing: None,
    }
    .receive(body)
    .await?;
    // What has arrived is not thrown away because others of the key's are at work.
    let published = move || upload.publish().map_err(refused);
    let entry = work::aside_in_turn(gateway.working(), &caller.tenant, published).await?;
    let status = if replaces {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    Ok((status, Json(FileFacts::from(entry))).into_response())
}

/// A file on its way in: one batch is written while the next one is gathered. Dropped, nothing came of it.
struct Receiving {
    upload: Option<Upload>,
    writing: Option<JoinHandle<Result<Upload, TreeError>>>,
}

impl Receiving {
    async fn receive(mut self, mut body: Body) -> Answer<Upload> {
        let mut gathered = Pieces::default();
        while let Some(bytes) = arriving(&mut body).await? {
            gathered.push(bytes);
            if gathered.size_bytes() >= BATCH {
                self.write(gathered.take()).await?;
            }
        }
        self.write(gathered.take()).await?;
        self.written().await
    }

    async fn write(&mut self, batch: Vec<Bytes>) -> Answer<()> {
        let mut upload = self.written().await?;
        self.writing = Some(tokio::task::spawn_blocking(move || {
            batch.iter().try_for_each(|bytes| upload.write(bytes))?;
            Ok(upload)
        }));
        Ok(())
    }

    /// Waits for the batch that is being written.
    async fn written(&mut self) -> Answer<Upload> {
        match (self.writing.take(), self.upload.take()) {
            (Some(writing), _) => writing.await.map_err(|_| failed())?.map_err(refused),
            (None, Some(upload)) => Ok(upload),
            (None, None) => Err(failed()),
        }
    }
}

/// The next bytes of a body; none at its end.
async fn arriving(body: &mut Body) -> Answer<Option<Bytes>> {
    loop {
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(Problem::invalid(
                    "the body ended before its end",
                    "nothing was put there; send it again",
                ));
            }
            Err(_) => {
                let title = format!("nothing more came for {} seconds", SILENCE.as_secs());
                return Err(Problem::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "timeout",
                    title,
                    None,
                ));
            }
        };
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
}

/// One that is there already is as good.
async fn folder(
    gateway: &Gateway,
    caller: &Caller,
    tree: Arc<Tree>,
    path: PathBuf,
    putting: &Putting,
) -> Answer<Response> {
    if putting.mode.is_some() {
        return Err(Problem::invalid(
            "a folder is made with mode 755",
            "leave `mode` out",
        ));
    }
    let mkdir = putting.mkdir;
    let (entry, made) = aside(gateway, caller, move || {
        let was = tree
            .stat(&path)
            .is_ok_and(|entry| entry.kind == EntryKind::Folder);
        if !was {
            tree.make_folder(&path, mkdir)?;
        }
        Ok((tree.stat(&path)?, !was))
    })
    .await?;
    let status = if made {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(FileFacts::from(entry))).into_response())
}

/// Makes a folder, and with `mkdir=true` those above it.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path, description = "Relative to /workspace"), Putting),
    responses(
        (status = 200, body = FileFacts, description = "It was there already"),
        (status = 201, body = FileFacts),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "Something else has that name"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn make(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    Asked(putting): Asked<Putting>,
) -> Answer<Response> {
    let (tree, place) = found(&gateway, &caller, &uri)?;
    folder(&gateway, &caller, tree, place.path, &putting).await
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
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The folder is not empty"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn remove(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    Asked(removing): Asked<Removing>,
) -> Answer<StatusCode> {
    let (tree, place) = found(&gateway, &caller, &uri)?;
    aside(&gateway, &caller, move || {
        tree.remove(&place.path, removing.recursive)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}
