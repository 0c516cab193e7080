//! Route that keeps files of a sandbox's workspace as artifacts of its owner.

use super::body::run_to_completion;
use crate::{
    Caller, Gateway, Problem, Scope,
    path::Path,
    problem::Answer,
    wire::{RawBody, parse_object},
};
use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use spec::WorkspacePath;
use std::path::Path as FilePath;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(keep))
}

/// What is to be kept.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeepAsked)]
struct KeepRequest {
    /// Files, or folders with what is in them, relative to the workspace; each file keeps its path as its name.
    paths: Vec<String>,
}

/// What was kept.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeptOfSandbox)]
struct KeepResult {
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
    request_body(content = KeepRequest),
    responses(
        (status = 200, body = KeepResult),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn keep(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    body: RawBody,
) -> Answer<Json<KeepResult>> {
    caller.require(Scope::Artifacts)?;
    let session = gateway.session(&caller, &id)?;
    let request: KeepRequest = body.read(&gateway, &caller.tenant, parse_object).await?;
    if request.paths.len() > spec::MAX_ARTIFACT_PATHS {
        return Err(Problem::invalid(
            format!("`paths` has more than {} names", spec::MAX_ARTIFACT_PATHS),
            "name folders, or ask more than once",
        ));
    }
    let path = |text: &String| {
        let bad =
            |why: spec::BadPath| Problem::invalid(format!("`{text}` cannot be kept"), why.why);
        WorkspacePath::new(FilePath::new(text)).map_err(bad)
    };
    let paths = request.paths.iter().map(path).collect::<Answer<Vec<_>>>()?;
    let kept = run_to_completion(async move {
        Ok(gateway
            .engine()
            .keep_session_artifacts(&session, paths)
            .await?)
    })
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
    Ok(Json(KeepResult {
        artifacts: artifacts.collect(),
        left_out: left_out.collect(),
        more_left_out: kept.more_left_out,
    }))
}
