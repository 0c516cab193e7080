//! Files of a sandbox's workspace, kept as artifacts of whoever made it.

use super::body::to_the_end;
use crate::{Caller, Gateway, Problem, Scope, path::Path, problem::Answer, wire::Raw};
use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use spec::WorkspacePath;
use std::path::Path as FilePath;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Paths of one request.
const MOST_PATHS: usize = 1000;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(keep))
}

/// What is to be kept.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeepAsked {
    /// Files, or folders with what is in them, relative to the workspace; each file keeps its path as its name.
    paths: Vec<String>,
}

/// What was kept.
#[derive(Debug, Serialize, ToSchema)]
struct KeptOfSandbox {
    artifacts: Vec<KeptFile>,
    left_out: Vec<LeftOut>,
    /// How many more were left out than are told.
    more_left_out: u64,
}

/// A version that was made.
#[derive(Debug, Serialize, ToSchema)]
struct KeptFile {
    name: String,
    version: u64,
    size_bytes: u64,
    sha256: String,
}

/// What was not kept, and why.
#[derive(Debug, Serialize, ToSchema)]
struct LeftOut {
    name: String,
    reason: String,
}

/// Keeps files of a sandbox as artifacts: those that are named, and all in `.artifacts`.
///
/// They belong to the key that made the sandbox. A file that is being written is kept as it is read.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/artifacts", tag = "sandboxes", params(("id" = String, Path)),
    request_body(content = KeepAsked),
    responses(
        (status = 200, body = KeptOfSandbox),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn keep(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    body: Raw,
) -> Answer<Json<KeptOfSandbox>> {
    caller.require(Scope::Artifacts)?;
    let session = gateway.session(&caller, &id)?;
    let asked: KeepAsked = body.json()?;
    if asked.paths.len() > MOST_PATHS {
        return Err(Problem::invalid(
            format!("`paths` has more than {MOST_PATHS} names"),
            "name folders, or ask more than once",
        ));
    }
    let path = |text: &String| {
        let bad =
            |why: spec::BadPath| Problem::invalid(format!("`{text}` cannot be kept"), why.why);
        WorkspacePath::new(FilePath::new(text)).map_err(bad)
    };
    let paths = asked.paths.iter().map(path).collect::<Answer<Vec<_>>>()?;
    let kept =
        to_the_end(async move { Ok(gateway.engine().keep_of_session(&session, paths).await?) })
            .await?;
    let artifacts = kept.kept.into_iter().map(|kept| KeptFile {
        name: kept.name,
        version: kept.version,
        size_bytes: kept.size_bytes,
        sha256: kept.sha256,
    });
    let left_out = kept.left_out.into_iter().map(|left| LeftOut {
        name: left.name,
        reason: left.reason,
    });
    Ok(Json(KeptOfSandbox {
        artifacts: artifacts.collect(),
        left_out: left_out.collect(),
        more_left_out: kept.more_left_out,
    }))
}
