//! The worker API of a node: the protocol of another system's orchestrator, for the same runs,
//! sandboxes and records.
//!
//! `jobs` maps to runs, `sessions` to sandboxes and `pty` to their terminals; `stop` ends one job
//! or everything, and `workflow` leases tasks to holders. `settings` is the operator's node file;
//! `wire` has what all bodies share.

pub(crate) mod capability;
mod job_result;
mod jobs;
mod pty;
mod sessions;
pub(crate) mod settings;
mod steps;
mod stop;
mod telemetry;
mod wire;
mod workflow;

pub(crate) use sessions::entry as session;

use crate::{Gateway, Problem};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .merge(jobs::routes())
        .merge(stop::routes())
        .merge(sessions::routes())
        .merge(pty::routes())
        .merge(workflow::routes())
        .merge(telemetry::routes())
        .merge(capability::routes())
}

/// Whether a path belongs to the worker API, known or not.
pub(crate) fn is_worker_path(path: &str) -> bool {
    path.starts_with("/v1/worker/") || path.starts_with("/v1/workflow/")
}

/// Replaces the problem type with the error type of the worker API.
pub(crate) fn with_worker_error_type(mut response: Response) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let translated = problem
        .clone()
        .with_type(kind(problem.status()))
        .into_response();
    let (mut parts, _) = response.into_parts();
    let (new, body) = translated.into_parts();
    parts.headers.remove(http::header::CONTENT_LENGTH);
    parts.headers.extend(new.headers);
    Response::from_parts(parts, body)
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "urn:cynodeai:error:authentication",
        StatusCode::FORBIDDEN => "urn:cynodeai:error:authorization",
        StatusCode::NOT_FOUND | StatusCode::GONE => "urn:cynodeai:error:not_found",
        StatusCode::TOO_MANY_REQUESTS => "urn:cynodeai:error:rate_limit",
        status if status.is_server_error() => "urn:cynodeai:error:internal",
        _ => "urn:cynodeai:error:validation",
    }
}
