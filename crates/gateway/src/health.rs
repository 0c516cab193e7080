//! Whether it lives, and whether it could carry out a run: it carries one out to know.

use crate::{Gateway, Problem, problem::Answer};
use axum::extract::State;
use http::StatusCode;
use spec::{RunRequest, Status};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use utoipa_axum::{router::OpenApiRouter, routes};

/// How long an answer is good.
const FRESH: Duration = Duration::from_secs(5);

/// What the last trial showed. The lock lets one trial be made at a time; the others wait for its answer.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Instant, Answer<()>)>>);

impl Readiness {
    async fn look(&self, gateway: &Gateway) -> Answer<()> {
        let mut last = self.0.lock().await;
        if let Some((when, answer)) = &*last
            && when.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = try_one(gateway).await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// The smallest run there is.
pub(crate) fn trial() -> RunRequest {
    RunRequest { command: vec!["/bin/true".into()], ..RunRequest::default() }
}

async fn try_one(gateway: &Gateway) -> Answer<()> {
    let spec = gateway.policy().admit(trial())?;
    let result = gateway.engine().run(spec).await;
    match (result.status, result.error) {
        (Status::Succeeded, _) => Ok(()),
        (_, Some(error)) => {
            let problem = Problem::from(error);
            Err(problem.with_status(StatusCode::SERVICE_UNAVAILABLE))
        }
        (status, None) => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "start_failed",
            format!("the trial run ended as {}", status.name()),
            Some("`airlock doctor` shows what this host gives".to_owned()),
        )),
    }
}

/// Whether the server lives
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses(
    (status = 200, description = "It does", body = String, content_type = "text/plain"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether a sandbox can be had: one is made, at most every five seconds
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses(
    (status = 200, description = "It can", body = String, content_type = "text/plain"),
    (status = 503, description = "It cannot, and why", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn readyz(State(gateway): State<Gateway>) -> Answer<&'static str> {
    gateway.readiness().look(&gateway).await.map(|()| "ready\n")
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}
