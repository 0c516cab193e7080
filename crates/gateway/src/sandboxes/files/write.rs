//! File uploads, which are atomic; creation and removal of files and folders.

use super::{FileFacts, failed, locate, run_blocking, tree_problem};
use crate::{
    Caller, Gateway, Problem, blocking,
    problem::Answer,
    sandboxes::body::{QueryParams, run_to_completion},
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
use store::ChunkBuffer;
use tokio::task::JoinHandle;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Bytes that are gathered before a write; as many are being written meanwhile.
const BATCH_BYTES: usize = 512 << 10;
/// A client that sends nothing for this long is disconnected.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(put, make, remove))
}

/// How it is put there.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct PutQuery {
    /// Who may do what with the file, as `chmod` takes it: 644 unless said.
    mode: Option<String>,
    /// Makes the folders above it.
    #[serde(default)]
    mkdir: bool,
    /// Makes a folder; there is no body.
    #[serde(default)]
    directory: bool,
}

impl PutQuery {
    fn mode(&self, usual: u32) -> Answer<u32> {
        let mode = self
            .mode
            .as_deref()
            .map_or(Ok(usual), |mode| u32::from_str_radix(mode, 8));
        // No set-user-ID, set-group-ID or sticky bit: those would matter on the host.
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
    params(("id" = String, Path), ("path" = String, Path, description = "Relative to /workspace"), PutQuery),
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
    QueryParams(query): QueryParams<PutQuery>,
    body: Body,
) -> Answer<Response> {
    let (tree, location) = locate(&gateway, &caller, &uri)?;
    if headers.contains_key(CONTENT_RANGE) {
        return Err(Problem::invalid(
            "a file is put whole, not in parts",
            "leave Content-Range out",
        ));
    }
    if query.directory {
        return make_folder(&gateway, &caller, tree, location.path, &query).await;
    }
    if location.folder {
        return Err(Problem::invalid(
            "a file's name ends with no slash",
            "add `?directory=true` for a folder",
        ));
    }
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let mode = query.mode(0o644)?;
    let open_upload = move || {
        let path = &location.path;
        let mkdir = query.mkdir;
        let replaces = tree.stat(path).is_ok();
        let mut upload = tree.put(path, mkdir)?;
        upload.expect(length.unwrap_or(0))?;
        upload.set_mode(mode);
        Ok((upload, replaces))
    };
    run_to_completion(async move { store_upload(&gateway, &caller, open_upload, body).await }).await
}

async fn store_upload(
    gateway: &Gateway,
    caller: &Caller,
    open_upload: impl FnOnce() -> Result<(Upload, bool), TreeError> + Send + 'static,
    body: Body,
) -> Answer<Response> {
    let (upload, replaces) =
        run_blocking(gateway, caller, open_upload)
            .await
            .map_err(|problem| {
                // The file itself need not exist, so it is its folder that is missing.
                if problem.status() == StatusCode::NOT_FOUND {
                    problem.with_detail("its folder is not there; `?mkdir=true` makes it")
                } else {
                    problem
                }
            })?;
    let upload = UploadReceiver {
        upload: Some(upload),
        in_flight: None,
    }
    .receive(body)
    .await?;
    // Queued, not refused: the received data must not be lost because other work of the tenant is
    // active.
    let published = move || upload.publish().map_err(tree_problem);
    let entry = blocking::run_queued(gateway.blocking_work(), &caller.tenant, published).await?;
    let status = if replaces {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    Ok((status, Json(FileFacts::from(entry))).into_response())
}

/// An upload in progress: one batch is written while the next is gathered. Dropping it discards the
/// upload.
struct UploadReceiver {
    upload: Option<Upload>,
    in_flight: Option<JoinHandle<Result<Upload, TreeError>>>,
}

impl UploadReceiver {
    async fn receive(mut self, mut body: Body) -> Answer<Upload> {
        let mut gathered = ChunkBuffer::default();
        while let Some(bytes) = next_chunk(&mut body).await? {
            gathered.push(bytes);
            if gathered.size_bytes() >= BATCH_BYTES {
                self.write(gathered.take()).await?;
            }
        }
        self.write(gathered.take()).await?;
        self.written().await
    }

    async fn write(&mut self, batch: Vec<Bytes>) -> Answer<()> {
        let mut upload = self.written().await?;
        self.in_flight = Some(tokio::task::spawn_blocking(move || {
            batch.iter().try_for_each(|bytes| upload.write(bytes))?;
            Ok(upload)
        }));
        Ok(())
    }

    /// Waits for the batch that is being written.
    async fn written(&mut self) -> Answer<Upload> {
        match (self.in_flight.take(), self.upload.take()) {
            (Some(in_flight), _) => in_flight.await.map_err(|_| failed())?.map_err(tree_problem),
            (None, Some(upload)) => Ok(upload),
            (None, None) => Err(failed()),
        }
    }
}

/// The next bytes of a body; `None` at its end.
async fn next_chunk(body: &mut Body) -> Answer<Option<Bytes>> {
    loop {
        let frame = match tokio::time::timeout(READ_TIMEOUT, body.frame()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(Problem::invalid(
                    "the body ended before its end",
                    "nothing was put there; send it again",
                ));
            }
            Err(_) => {
                let title = format!("nothing more came for {} seconds", READ_TIMEOUT.as_secs());
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

/// Creates a folder; an existing one is accepted.
async fn make_folder(
    gateway: &Gateway,
    caller: &Caller,
    tree: Arc<Tree>,
    path: PathBuf,
    query: &PutQuery,
) -> Answer<Response> {
    if query.mode.is_some() {
        return Err(Problem::invalid(
            "a folder is made with mode 755",
            "leave `mode` out",
        ));
    }
    let mkdir = query.mkdir;
    let (entry, made) = run_blocking(gateway, caller, move || {
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
    params(("id" = String, Path), ("path" = String, Path, description = "Relative to /workspace"), PutQuery),
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
    QueryParams(query): QueryParams<PutQuery>,
) -> Answer<Response> {
    let (tree, location) = locate(&gateway, &caller, &uri)?;
    make_folder(&gateway, &caller, tree, location.path, &query).await
}

/// What is removed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct RemoveQuery {
    /// A folder with all that lies in it.
    #[serde(default)]
    recursive: bool,
}

/// Removes a file, a link (never what it points at), an empty folder, or with `recursive=true` a folder with all in it.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path, description = "Relative to /workspace"), RemoveQuery),
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
    QueryParams(query): QueryParams<RemoveQuery>,
) -> Answer<StatusCode> {
    let (tree, location) = locate(&gateway, &caller, &uri)?;
    run_blocking(&gateway, &caller, move || {
        tree.remove(&location.path, query.recursive)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}
