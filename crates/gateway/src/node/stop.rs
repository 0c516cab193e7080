//! Ends of work that somebody asks for: of one job, gently; or of all there is.

use super::{
    jobs,
    told::WorkerJobState,
    wire::{Sent, Uuid, Version},
};
use crate::{Caller, Gateway, Problem, Scope, problem::Answer};
use axum::{Json, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use store::audit::{Decision, Entry};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

const USUAL_GRACE: u64 = 30;
const LONGEST_GRACE: u64 = 300;
/// How long whoever stops a job waits for its end before he is told that it goes on.
const WAITED_FOR: Duration = Duration::from_secs(2);
/// How long the end of everything is waited for.
const ALL_WITHIN: Duration = Duration::from_secs(10);

/// Which job is to end, and how.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct StopOrder {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
    job_id: Uuid,
    /// Between SIGTERM and the end of everything: 30 unless said, 300 at most.
    grace_seconds: Option<u64>,
}

/// Stop a job
///
/// SIGTERM to its program; what is left of it after the grace is killed. Asking again changes nothing but a longer grace
/// to a shorter one. Answers with the result if the end comes within two seconds, else with the state.
#[utoipa::path(post, path = "/v1/worker/jobs:stop", tag = "worker", request_body = StopOrder, responses(
    (status = 200, description = "Its state, or its result", body = WorkerJobState),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn stop(
    State(gateway): State<Gateway>,
    caller: Caller,
    Sent(order): Sent<StopOrder>,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let grace = order.grace_seconds.unwrap_or(USUAL_GRACE);
    if grace > LONGEST_GRACE {
        return Err(Problem::invalid(
            "`grace_seconds` is too long",
            "give at most 300",
        ));
    }
    let row = jobs::row(&gateway, &caller, &order.job_id).await?;
    if row.task.as_deref() != Some(order.task_id.as_str()) {
        return Err(Problem::not_found("job"));
    }
    let live = gateway
        .runs()
        .find(&row.id)
        .filter(|_| row.result.is_none());
    if let Some(live) = live {
        let (task, job) = (order.task_id.as_str(), order.job_id.as_str());
        note(
            &gateway,
            &caller,
            &Entry {
                what: "job.stop",
                run: &row.id,
                task,
                job,
                ..Entry::default()
            },
        )
        .await?;
        live.terminate(Duration::from_secs(grace));
        if let Ok(ended) = tokio::time::timeout(WAITED_FOR, live.ended()).await {
            return jobs::told_of(&gateway, &caller, &ended?.kept);
        }
    }
    jobs::state_of(&gateway, &caller, &row)
}

async fn note(gateway: &Gateway, caller: &Caller, entry: &Entry<'_>) -> Answer<()> {
    let entry = Entry {
        decision: Decision::Allowed,
        tenant: &caller.tenant,
        key: &caller.key,
        ..*entry
    };
    gateway.note_aside(&entry).await
}

/// A body that says nothing but its version.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct StopAll {
    #[schema(value_type = u64)]
    version: Version,
}

/// What was stopped.
#[derive(Debug, Serialize, ToSchema)]
struct StoppedAll {
    #[schema(value_type = u64)]
    version: Version,
    runs: Vec<String>,
    sessions: Vec<String>,
    /// Those that waited, and what waited for them.
    jobs: Vec<String>,
    /// What had not ended after ten seconds.
    left: Vec<String>,
}

/// Stop everything
///
/// Every tenant's jobs are cancelled, those that wait at once, then its runs, and its sessions ended. New work is still taken. Only for an admin.
#[utoipa::path(post, path = "/v1/worker/admin/stop-all-orchestrator-directed", tag = "worker", request_body = StopAll,
    responses((status = 200, description = "What was stopped", body = StoppedAll),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn stop_all(
    State(gateway): State<Gateway>,
    caller: Caller,
    Sent(_order): Sent<StopAll>,
) -> Answer<Json<StoppedAll>> {
    caller.require(Scope::Admin)?;
    note(
        &gateway,
        &caller,
        &Entry {
            what: "node.stop_all",
            rule: "admin",
            ..Entry::default()
        },
    )
    .await?;
    // First what waits, so that nothing of it begins in the place of what is ended.
    let jobs = crate::jobs::cancel_all(&gateway, &caller.key).await;
    let (runs, (sessions, alive)) = tokio::join!(end_runs(&gateway), gateway.end_all_sandboxes());
    let mut left: Vec<_> = alive
        .into_iter()
        .map(|id| format!("sandbox {id}"))
        .collect();
    let jobs = jobs.unwrap_or_else(|_| {
        left.push("jobs that wait".to_owned());
        Vec::new()
    });
    left.extend(
        runs.iter()
            .filter(|(_, gone)| !gone)
            .map(|(id, _)| format!("run {id}")),
    );
    let runs = runs
        .into_iter()
        .filter_map(|(id, gone)| gone.then_some(id))
        .collect();
    Ok(Json(StoppedAll {
        version: Version,
        runs,
        sessions,
        jobs,
        left,
    }))
}

/// Cancels every run, and says of each whether it is gone.
async fn end_runs(gateway: &Gateway) -> Vec<(String, bool)> {
    let live = gateway.runs().under_way();
    live.iter().for_each(|live| live.cancel());
    let until = tokio::time::Instant::now() + ALL_WITHIN;
    let mut ended = Vec::with_capacity(live.len());
    for live in live {
        let gone = tokio::time::timeout_at(until, live.ended()).await.is_ok();
        ended.push((live.id.to_string(), gone));
    }
    ended
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(stop))
        .routes(routes!(stop_all))
}
