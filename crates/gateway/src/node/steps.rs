//! Jobs that are steps: a job spec, carried out inside by the step runner.

use super::jobs::WorkerJob;
use crate::{Caller, Gateway, Problem, problem::Answer};
use axum::response::Response;
use http::StatusCode;

/// Carries out the steps of a job whose `job_spec_json` is JSON; nothing else of that has been looked at.
pub(crate) async fn carry_out(
    _: &Gateway,
    _: &Caller,
    _: &WorkerJob,
    _in_background: bool,
) -> Answer<Response> {
    let hint = "send `sandbox.command` without `job_spec_json`".to_owned();
    Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "internal", "not built: `job_spec_json`", Some(hint)))
}
