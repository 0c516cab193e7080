//! Workflow leases: one holder works on a task at a time, by a lease that it renews, with a
//! checkpoint for the next holder.

use super::wire::{Uuid, Version, WorkerBody};
use crate::{Caller, Gateway, Problem, Scope, jobs, problem::Answer};
use axum::{Json, extract::State};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use store::{
    DatabaseError,
    audit::{AuditEntry, Decision},
    server_database::{
        LeaseOutcome, LeaseRequest, MAX_CHECKPOINT_BYTES, MAX_WORKFLOWS, TaskLease,
        WriteTransaction,
    },
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

const MAX_LEASE_SECONDS: u64 = 86_400;
const MAX_HOLDER: usize = 128;
const MAX_CHECKPOINT: usize = 256 << 10;

/// A task that somebody wants to work on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct WorkflowOrder {
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    version: Version,
    task_id: Uuid,
    /// Who: 1 to 128 visible characters.
    holder: String,
    /// How long it is his without another word: 1 to 86400; unless said as long as before, at first 300.
    lease_seconds: Option<u64>,
    /// A name for this request: sent again by the same holder, it has the same answer.
    idempotency: Option<String>,
}

/// What is his.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorkflowTold)]
struct WorkflowLease {
    run_id: String,
    /// `started`, `already_running` or `resumed`.
    status: &'static str,
    expires_at: String,
    /// How far whoever had it before has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    checkpoint: Option<Box<RawValue>>,
}

/// How far it has come.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct WorkflowCheckpoint {
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    version: Version,
    task_id: Uuid,
    holder: String,
    /// Any JSON of at most 256 KiB. It is kept as it was written: numbers stay what they are.
    #[schema(value_type = Object)]
    checkpoint: Box<RawValue>,
    lease_seconds: Option<u64>,
}

/// Whose work ends.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct WorkflowRelease {
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    version: Version,
    task_id: Uuid,
    holder: String,
}

fn check_visible(text: &str, field: &str) -> Answer<()> {
    let fits =
        (1..=MAX_HOLDER).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits {
        Ok(())
    } else {
        Err(Problem::invalid(
            format!("`{field}` is no name"),
            format!("give 1 to {MAX_HOLDER} visible characters without spaces"),
        ))
    }
}

fn lease(caller: &Caller, task: &Uuid, holder: &str, seconds: Option<u64>) -> Answer<LeaseRequest> {
    check_visible(holder, "holder")?;
    if seconds.is_some_and(|seconds| !(1..=MAX_LEASE_SECONDS).contains(&seconds)) {
        return Err(Problem::invalid(
            "`lease_seconds` is out of range",
            "give 1 to 86400",
        ));
    }
    Ok(LeaseRequest {
        owner: caller.tenant.clone(),
        task: task.as_str().to_ascii_lowercase(),
        run: Uuid::fresh()?.to_string(),
        holder: holder.to_owned(),
        idempotency: None,
        lease_ms: seconds.map(|seconds| seconds * 1000),
        now_ms: engine::now().0,
    })
}

/// The granted lease, or the refusal.
fn granted_lease(taking: LeaseOutcome) -> Answer<(TaskLease, bool)> {
    match taking {
        LeaseOutcome::Started(lease) => Ok((lease, true)),
        LeaseOutcome::Renewed(lease) => Ok((lease, false)),
        LeaseOutcome::HeldByOther => {
            let hint = "wait until its holder releases it, or until its lease is over";
            Err(Problem::conflict("somebody else works on this task", hint))
        }
        LeaseOutcome::NotStarted => Err(Problem::not_found("workflow")),
        LeaseOutcome::CheckpointsTooLarge => Err(Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "quota_exceeded",
            format!(
                "the checkpoints of all tasks would be more than {} MiB",
                MAX_CHECKPOINT_BYTES >> 20
            ),
            Some("release tasks that are done, or keep the rest as artifacts".to_owned()),
        )),
        LeaseOutcome::TooManyWorkflows => Err(Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "quota_exceeded",
            format!("{MAX_WORKFLOWS} tasks are worked on, and no more can be"),
            Some("release some of them".to_owned()),
        )),
    }
}

/// Changes a lease and writes the audit entry if it was granted. The middleware writes refusals.
async fn change<T: Send + 'static>(
    gateway: &Gateway,
    caller: &Caller,
    (what, task, holder): (&'static str, &Uuid, &str),
    work: impl FnOnce(&WriteTransaction<'_>) -> Result<(T, bool), DatabaseError> + Send + 'static,
) -> Answer<T> {
    let handle = gateway.clone();
    let caller = caller.clone();
    let task = task.to_string();
    let holder = holder.to_owned();
    let write = gateway.writer().write(move |transaction| {
        let (done, granted) = work(transaction)?;
        if granted {
            let tenant = &*caller.tenant;
            let key = &*caller.key;
            let task = &*task;
            let about = &*holder;
            let decision = Decision::Allowed;
            jobs::write_audit(
                &handle,
                &AuditEntry {
                    what,
                    decision,
                    tenant,
                    key,
                    task,
                    about,
                    ..AuditEntry::default()
                },
            )?;
        }
        Ok(done)
    });
    write.await
}

/// Whether the lease was granted to the caller.
fn with_granted(taking: LeaseOutcome) -> (LeaseOutcome, bool) {
    let granted = matches!(taking, LeaseOutcome::Started(_) | LeaseOutcome::Renewed(_));
    (taking, granted)
}

/// Begin to work on a task
///
/// One holder at a time: for another it is 409 until the lease is over or given back; for the same one `already_running`.
#[utoipa::path(post, path = "/v1/workflow/start", tag = "workflow", request_body = WorkflowOrder, responses(
    (status = 200, description = "It is his", body = WorkflowLease),
    (status = 409, description = "It is somebody else's", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn start(
    State(gateway): State<Gateway>,
    caller: Caller,
    WorkerBody(order): WorkerBody<WorkflowOrder>,
) -> Answer<Json<WorkflowLease>> {
    caller.require(Scope::Runs)?;
    gateway.check_disk_space()?;
    let mut new_lease = lease(&caller, &order.task_id, &order.holder, order.lease_seconds)?;
    if let Some(name) = order.idempotency {
        check_visible(&name, "idempotency")?;
        new_lease.idempotency = Some(name);
    }
    let action = ("workflow.start", &order.task_id, order.holder.as_str());
    let start = move |transaction: &WriteTransaction<'_>| {
        transaction.start_workflow(&new_lease).map(with_granted)
    };
    let (lease, fresh) = granted_lease(change(&gateway, &caller, action, start).await?)?;
    Ok(Json(lease_response(
        lease,
        if fresh { "started" } else { "already_running" },
        false,
    )))
}

fn lease_response(lease: TaskLease, status: &'static str, with_checkpoint: bool) -> WorkflowLease {
    let checkpoint = lease.checkpoint.filter(|_| with_checkpoint);
    WorkflowLease {
        run_id: lease.run,
        status,
        expires_at: spec::Timestamp(lease.expires_ms).to_string(),
        // Stored as the JSON that was sent.
        checkpoint: checkpoint.and_then(|text| RawValue::from_string(text).ok()),
    }
}

/// Go on with a task
///
/// For its holder, or for anybody once the lease is over.
#[utoipa::path(post, path = "/v1/workflow/resume", tag = "workflow", request_body = WorkflowOrder, responses(
    (status = 200, description = "It is his, with how far it has come", body = WorkflowLease),
    (status = 409, description = "It is somebody else's", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn resume(
    State(gateway): State<Gateway>,
    caller: Caller,
    WorkerBody(order): WorkerBody<WorkflowOrder>,
) -> Answer<Json<WorkflowLease>> {
    caller.require(Scope::Runs)?;
    if order.idempotency.is_some() {
        return Err(Problem::invalid(
            "`idempotency` is for `start`",
            "leave it away: resuming can be repeated",
        ));
    }
    let new_lease = lease(&caller, &order.task_id, &order.holder, order.lease_seconds)?;
    let action = ("workflow.resume", &order.task_id, order.holder.as_str());
    let resume = move |transaction: &WriteTransaction<'_>| {
        transaction.resume_workflow(&new_lease).map(with_granted)
    };
    let (lease, _) = granted_lease(change(&gateway, &caller, action, resume).await?)?;
    Ok(Json(lease_response(lease, "resumed", true)))
}

/// Write down how far a task has come
///
/// Renews the lease.
#[utoipa::path(post, path = "/v1/workflow/checkpoint", tag = "workflow", request_body = WorkflowCheckpoint, responses(
    (status = 204, description = "It is written down"),
    (status = 409, description = "It is somebody else's", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn checkpoint(
    State(gateway): State<Gateway>,
    caller: Caller,
    WorkerBody(order): WorkerBody<WorkflowCheckpoint>,
) -> Answer<StatusCode> {
    caller.require(Scope::Runs)?;
    gateway.check_disk_space()?;
    let text = order.checkpoint.get().to_owned();
    if text.len() > MAX_CHECKPOINT {
        let hint = Some("keep the rest as an artifact".to_owned());
        let title = "`checkpoint` is more than 256 KiB";
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "quota_exceeded",
            title,
            hint,
        ));
    }
    let new_lease = lease(&caller, &order.task_id, &order.holder, order.lease_seconds)?;
    let write = gateway
        .writer()
        .write(move |transaction| transaction.checkpoint_workflow(&new_lease, &text));
    granted_lease(write.await?).map(|_| StatusCode::NO_CONTENT)
}

/// Give a task back
///
/// Its checkpoint is forgotten, and anybody may start. Asking again changes nothing.
#[utoipa::path(post, path = "/v1/workflow/release", tag = "workflow", request_body = WorkflowRelease, responses(
    (status = 204, description = "It is nobody's"),
    (status = 409, description = "It is somebody else's", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn release(
    State(gateway): State<Gateway>,
    caller: Caller,
    WorkerBody(order): WorkerBody<WorkflowRelease>,
) -> Answer<StatusCode> {
    caller.require(Scope::Runs)?;
    check_visible(&order.holder, "holder")?;
    let owner = caller.tenant.clone();
    let holder = order.holder.clone();
    let task = order.task_id.as_str().to_ascii_lowercase();
    let action = ("workflow.release", &order.task_id, order.holder.as_str());
    let release = move |transaction: &WriteTransaction<'_>| {
        transaction
            .release_workflow(&owner, &task, &holder)
            .map(|released| (released, released))
    };
    if change(&gateway, &caller, action, release).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        granted_lease(LeaseOutcome::HeldByOther).map(|_| StatusCode::NO_CONTENT)
    }
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(resume))
        .routes(routes!(checkpoint))
        .routes(routes!(release))
}
