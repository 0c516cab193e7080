//! Routes of container images. Images belong to the machine: any key with the scope `images` reads
//! them, only an admin changes them.

use crate::{Caller, Gateway, Problem, Scope, path::Path, problem::Answer};
use axum::{
    Json,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
};
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use image::{ImageError, ImageLimits, ImageSource, ImageStore, ImageSummary};
use serde::{Deserialize, Serialize};
use spec::{ErrorCode, ErrorInfo, ImageRef};
use std::{error::Error, fs::File};
use tokio::{io::AsyncWriteExt, net::unix::pipe};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Maximum size of an image archive.
const MAX_ARCHIVE_BYTES: u64 = 16 << 30;

/// The route pattern of an image, and its path in OpenAPI.
const ROUTED: &str = "/v1/images/{*name}";
const DESCRIBED: &str = "/v1/images/{name}";

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    let mut all = OpenApiRouter::new()
        .routes(routes!(list_images, load_image))
        .routes(routes!(show_image, remove_image));
    // OpenAPI has no catch-all parameter, which names with slashes need.
    let paths = &mut all.get_openapi_mut().paths.paths;
    if let Some(item) = paths.remove(ROUTED) {
        paths.insert(DESCRIBED.to_owned(), item);
    }
    all
}

/// One name of an image.
#[derive(Debug, Serialize, ToSchema)]
struct ListedImage {
    /// What it is called.
    name: String,
    /// The digest of its manifest where one is known, else of its configuration.
    digest: String,
    /// The digest of its configuration.
    id: String,
    /// What its files take.
    size_bytes: u64,
    /// Which machines it is for.
    platform: String,
    /// When it was made, in its own words.
    created: Option<String>,
}

/// All images.
#[derive(Debug, Serialize, ToSchema)]
struct ImageList {
    /// In the order of their names.
    images: Vec<ListedImage>,
}

/// What an image says of itself, and what became of it here.
#[derive(Debug, Serialize, ToSchema)]
struct ShownImage {
    /// Its names.
    names: Vec<String>,
    /// The digest of its manifest where one is known, else of its configuration.
    digest: String,
    /// The digest of its configuration.
    id: String,
    /// Which machines it is for.
    platform: String,
    /// When it was made, in its own words.
    created: Option<String>,
    /// What its files take.
    size_bytes: u64,
    /// How many there are.
    files: u64,
    /// Devices and pipes that were left out.
    left_out: u64,
    /// Its configuration: user, variables, entrypoint, labels.
    #[schema(value_type = Object)]
    config: serde_json::Value,
}

/// What a load came to.
#[derive(Debug, Serialize, ToSchema)]
struct LoadedImage {
    /// Its names.
    names: Vec<String>,
    /// The digest of its manifest where one is known, else of its configuration.
    digest: String,
    /// The digest of its configuration.
    id: String,
    /// What its files take.
    size_bytes: u64,
    /// Whether it was not there before.
    fresh: bool,
}

/// What a removal did.
#[derive(Debug, Serialize, ToSchema)]
struct RemovedImage {
    /// Names that are gone.
    names: Vec<String>,
    /// Images that are gone, since no name is left.
    images: Vec<String>,
    /// What that freed.
    freed_bytes: u64,
}

/// How to call what is loaded.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct LoadQuery {
    /// What to call it; without this, what it calls itself.
    name: Option<String>,
}

/// Show the images of this machine.
#[utoipa::path(get, path = "/v1/images", tag = "images",
    responses((status = 200, body = ImageList), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn list_images(State(gateway): State<Gateway>, caller: Caller) -> Answer<Json<ImageList>> {
    caller.require(Scope::Images)?;
    let listing = run_blocking(&gateway, |images| images.list()).await?;
    Ok(Json(ImageList {
        images: listing.images.into_iter().map(listed).collect(),
    }))
}

/// Load an image from an archive, as `docker save` writes it or in OCI's layout, plain or compressed by gzip or zstd.
#[utoipa::path(post, path = "/v1/images", tag = "images", params(LoadQuery),
    request_body(content_type = "application/octet-stream"),
    responses((status = 201, body = LoadedImage), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn load_image(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: Result<Query<LoadQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Answer<(StatusCode, Json<LoadedImage>)> {
    caller.require(Scope::Admin)?;
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > MAX_ARCHIVE_BYTES) {
        return Err(too_large());
    }
    let Query(query) = query.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "only `name` is known",
        )
    })?;
    let name = query.name.as_deref().map(reference).transpose()?;
    let broken = |error: std::io::Error| internal(format!("cannot take the archive: {error}"));
    let (into, archive) = pipe::pipe().map_err(broken)?;
    let archive = File::from(archive.into_blocking_fd().map_err(broken)?);
    let load = run_blocking(&gateway, move |images| {
        images.load(
            ImageSource::File(archive),
            name,
            &ImageLimits::default(),
            &mut |_| {},
        )
    });
    let (loaded, passed) = tokio::join!(load, forward_body(body, into, MAX_ARCHIVE_BYTES));
    // When the loader refuses the archive it stops reading, and its error is the better answer,
    // unless the size limit cut the body off.
    let loaded = match passed {
        Err(problem) if problem.status() == StatusCode::PAYLOAD_TOO_LARGE => return Err(problem),
        passed => loaded.and_then(|loaded| passed.map(|()| loaded))?,
    };
    let image = &loaded.image;
    let answer = LoadedImage {
        names: image.names().iter().map(ImageRef::familiar).collect(),
        digest: image.digest().to_string(),
        id: image.id().to_string(),
        size_bytes: image.size_bytes(),
        fresh: loaded.fresh,
    };
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Show one image.
#[utoipa::path(get, path = "/v1/images/{*name}", tag = "images",
    params(("name" = String, Path, description = "NAME, NAME:TAG or NAME@sha256:DIGEST")),
    responses((status = 200, body = ShownImage), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn show_image(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(name): Path<String>,
) -> Answer<Json<ShownImage>> {
    caller.require(Scope::Images)?;
    let name = reference(&name)?;
    let image = run_blocking(&gateway, move |images| images.get(&name)).await?;
    let config = serde_json::to_value(image.config());
    Ok(Json(ShownImage {
        names: image.names().iter().map(ImageRef::familiar).collect(),
        digest: image.digest().to_string(),
        id: image.id().to_string(),
        platform: image.platform().to_string(),
        created: image.created().map(str::to_owned),
        size_bytes: image.size_bytes(),
        files: image.files(),
        left_out: image.left_out(),
        config: config.map_err(|error| internal(error.to_string()))?,
    }))
}

/// Take a name away, and the image with its last one.
#[utoipa::path(delete, path = "/v1/images/{*name}", tag = "images",
    params(("name" = String, Path, description = "NAME, NAME:TAG or NAME@sha256:DIGEST")),
    responses((status = 200, body = RemovedImage), (status = "default", body = Problem, content_type = "application/problem+json")))]
async fn remove_image(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(name): Path<String>,
) -> Answer<Json<RemovedImage>> {
    caller.require(Scope::Admin)?;
    let name = reference(&name)?;
    let removed = run_blocking(&gateway, move |images| images.remove(&name)).await?;
    Ok(Json(RemovedImage {
        names: removed.names.iter().map(ImageRef::familiar).collect(),
        images: removed.images.iter().map(ToString::to_string).collect(),
        freed_bytes: removed.freed_bytes,
    }))
}

/// A client that sends nothing for this long is disconnected.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Forwards the request body to the loader through a pipe; the end of the pipe marks the end of the
/// archive. The loader detects a truncated archive by its digests.
async fn forward_body(mut body: Body, mut into: pipe::Sender, mut left: u64) -> Answer<()> {
    loop {
        let late = |_| {
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the archive stopped coming",
                None,
            )
        };
        let Some(frame) = tokio::time::timeout(READ_TIMEOUT, body.frame())
            .await
            .map_err(late)?
        else {
            return Ok(());
        };
        let frame =
            frame.map_err(|_| Problem::invalid("the archive was cut short", "send all of it"))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        left = left.checked_sub(piece.len() as u64).ok_or_else(too_large)?;
        if into.write_all(&piece).await.is_err() {
            // Bytes after the end of the archive are read and ignored.
            return Ok(());
        }
    }
}

fn too_large() -> Problem {
    let hint = format!("an archive has at most {MAX_ARCHIVE_BYTES} bytes");
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "quota_exceeded",
        "the archive is too large",
        Some(hint),
    )
}

async fn run_blocking<T: Send + 'static>(
    gateway: &Gateway,
    work: impl FnOnce(&ImageStore) -> Result<T, ImageError> + Send + 'static,
) -> Answer<T> {
    let folder = gateway.engine().images_folder();
    let work = move || ImageStore::open(folder).and_then(|images| work(&images));
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| internal(error.to_string()))?
        .map_err(image_problem)
}

fn listed(listed: ImageSummary) -> ListedImage {
    ListedImage {
        name: listed.name.familiar(),
        digest: listed.digest.to_string(),
        id: listed.id.to_string(),
        size_bytes: listed.size_bytes,
        platform: listed.platform.to_string(),
        created: listed.created,
    }
}

fn reference(text: &str) -> Answer<ImageRef> {
    let hint = "write NAME, NAME:TAG or NAME@sha256:DIGEST; GET /v1/images shows those there are";
    text.parse()
        .map_err(|bad: spec::BadImageRef| Problem::invalid(bad.to_string(), hint))
}

fn image_problem(error: ImageError) -> Problem {
    match &error {
        ImageError::NotFound { .. } => Problem::not_found("image"),
        ImageError::InUse(_) => Problem::conflict(error.to_string(), error.hint()),
        // The I/O causes contain paths of this machine.
        ImageError::Store { .. } | ImageError::Write { .. } => internal(error.to_string()),
        _ => {
            let cause = error
                .source()
                .map(|cause| format!(": {cause}"))
                .unwrap_or_default();
            let message = format!("{error}{cause}");
            let hint = Some(error.hint());
            Problem::from(ErrorInfo {
                code: ErrorCode::ImageRefused,
                message,
                hint,
            })
        }
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
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_archive_is_counted_as_it_passes() {
        for (most, fits) in [(6, true), (5, false)] {
            let (into, from) = pipe::pipe().unwrap();
            let passed = forward_body(Body::from("abcdef"), into, most).await;
            assert_eq!(
                passed.err().map(|problem| problem.status().as_u16()),
                (!fits).then_some(413)
            );
            drop(from);
        }
    }
}
