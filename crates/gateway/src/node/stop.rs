//! Worker API stop routes: one job gracefully, or everything.

use super::{
    job_result::WorkerJobState,
    jobs,
    wire::{Uuid, Version, WorkerBody},
};
use crate::{Caller, Gateway, Problem, Scope, problem::Answer};
use axum::{Json, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use store::audit::{AuditEntry, Decision};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

const DEFAULT_GRACE: u64 = 30;
const MAX_GRACE: u64 = 300;
/// How long a stop request waits for the end of the job.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for stopping everything.
const STOP_ALL_TIMEOUT: Duration = Duration::from_secs(10);

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
    WorkerBody(order): WorkerBody<StopOrder>,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let grace = order.grace_seconds.unwrap_or(DEFAULT_GRACE);
    if grace > MAX_GRACE {
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
        let task = order.task_id.as_str();
        let job = order.job_id.as_str();
        write_audit(
            &gateway,
            &caller,
            &AuditEntry {
                what: "job.stop",
                run: &row.id,
                task,
                job,
                ..AuditEntry::default()
            },
        )
        .await?;
        live.terminate(Duration::from_secs(grace));
        if let Ok(ended) = tokio::time::timeout(STOP_TIMEOUT, live.ended()).await {
            return jobs::result_response(&gateway, &caller, &ended?.stored);
        }
    }
    jobs::state_response(&gateway, &caller, &row)
}

async fn write_audit(gateway: &Gateway, caller: &Caller, entry: &AuditEntry<'_>) -> Answer<()> {
    let entry = AuditEntry {
        decision: Decision::Allowed,
        tenant: &caller.tenant,
        key: &caller.key,
        ..*entry
    };
    gateway.write_audit_async(&entry).await
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
    WorkerBody(_order): WorkerBody<StopAll>,
) -> Answer<Json<StoppedAll>> {
    caller.require(Scope::Admin)?;
    write_audit(
        &gateway,
        &caller,
        &AuditEntry {
            what: "node.stop_all",
            rule: "admin",
            ..AuditEntry::default()
        },
    )
    .await?;
    // Queued jobs first, so that they do not take the slots of stopped runs.
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

/// Cancels every run; returns for each whether it has ended.
async fn end_runs(gateway: &Gateway) -> Vec<(String, bool)> {
    let live = gateway.runs().under_way();
    live.iter().for_each(|live| live.cancel());
    let until = tokio::time::Instant::now() + STOP_ALL_TIMEOUT;
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
