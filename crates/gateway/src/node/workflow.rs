//! Who works on a task: one holder at a time, by a lease that he renews, with a checkpoint for whoever goes on.

use super::wire::{Sent, Uuid, Version};
use crate::{Caller, Gateway, Problem, Scope, jobs, problem::Answer};
use axum::{Json, extract::State};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use store::{
    DatabaseError,
    audit::{Decision, Entry},
    served::{Lease, MOST_CHECKPOINTS, MOST_WORKFLOWS, NewLease, Taking, Writing},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

const LONGEST_LEASE: u64 = 86_400;
const LONGEST_HOLDER: usize = 128;
const LARGEST_CHECKPOINT: usize = 256 << 10;

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
struct WorkflowTold {
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

fn visible(text: &str, field: &str) -> Answer<()> {
    let fits = (1..=LONGEST_HOLDER).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    match fits {
        true => Ok(()),
        false => Err(Problem::invalid(
            format!("`{field}` is no name"),
            format!("give 1 to {LONGEST_HOLDER} visible characters without spaces"),
        )),
    }
}

fn lease(caller: &Caller, task: &Uuid, holder: &str, seconds: Option<u64>) -> Answer<NewLease> {
    visible(holder, "holder")?;
    if seconds.is_some_and(|seconds| !(1..=LONGEST_LEASE).contains(&seconds)) {
        return Err(Problem::invalid(
            "`lease_seconds` is out of range",
            "give 1 to 86400",
        ));
    }
    Ok(NewLease {
        owner: caller.tenant.clone(),
        task: task.as_str().to_ascii_lowercase(),
        run: Uuid::fresh()?.to_string(),
        holder: holder.to_owned(),
        idempotency: None,
        lease_ms: seconds.map(|seconds| seconds * 1000),
        now_ms: engine::now().0,
    })
}

/// What was taken, or why it was not.
fn taken(taking: Taking) -> Answer<(Lease, bool)> {
    match taking {
        Taking::Started(lease) => Ok((lease, true)),
        Taking::AlreadyHis(lease) => Ok((lease, false)),
        Taking::Held => {
            let hint = "wait until its holder releases it, or until its lease is over";
            Err(Problem::conflict("somebody else works on this task", hint))
        }
        Taking::Unknown => Err(Problem::not_found("workflow")),
        Taking::TooMuch => Err(Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "quota_exceeded",
            format!(
                "the checkpoints of all tasks would be more than {} MiB",
                MOST_CHECKPOINTS >> 20
            ),
            Some("release tasks that are done, or keep the rest as artifacts".to_owned()),
        )),
        Taking::Full => Err(Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "quota_exceeded",
            format!("{MOST_WORKFLOWS} tasks are worked on, and no more can be"),
            Some("release some of them".to_owned()),
        )),
    }
}

/// Changes who works on a task. What was given is in the audit or was not given; that something was not is the gate's to
/// write.
async fn change<T: Send + 'static>(
    gateway: &Gateway,
    caller: &Caller,
    (what, task, holder): (&'static str, &Uuid, &str),
    work: impl FnOnce(&Writing<'_>) -> Result<(T, bool), DatabaseError> + Send + 'static,
) -> Answer<T> {
    let (of, caller) = (gateway.clone(), caller.clone());
    let (task, holder) = (task.to_string(), holder.to_owned());
    let write = gateway.writer().write(move |writing| {
        let (done, given) = work(writing)?;
        if given {
            let (tenant, key, task, about) = (&*caller.tenant, &*caller.key, &*task, &*holder);
            let decision = Decision::Allowed;
            jobs::note(
                &of,
                &Entry {
                    what,
                    decision,
                    tenant,
                    key,
                    task,
                    about,
                    ..Entry::default()
                },
            )?;
        }
        Ok(done)
    });
    write.await
}

/// Whether it was given to whoever asked.
fn told_apart(taking: Taking) -> (Taking, bool) {
    let given = matches!(taking, Taking::Started(_) | Taking::AlreadyHis(_));
    (taking, given)
}

/// Begin to work on a task
///
/// One holder at a time: for another it is 409 until the lease is over or given back; for the same one `already_running`.
#[utoipa::path(post, path = "/v1/workflow/start", tag = "workflow", request_body = WorkflowOrder, responses(
    (status = 200, description = "It is his", body = WorkflowTold),
    (status = 409, description = "It is somebody else's", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn start(
    State(gateway): State<Gateway>,
    caller: Caller,
    Sent(order): Sent<WorkflowOrder>,
) -> Answer<Json<WorkflowTold>> {
    caller.require(Scope::Runs)?;
    gateway.has_room()?;
    let mut wanted = lease(&caller, &order.task_id, &order.holder, order.lease_seconds)?;
    if let Some(name) = order.idempotency {
        visible(&name, "idempotency")?;
        wanted.idempotency = Some(name);
    }
    let line = ("workflow.start", &order.task_id, order.holder.as_str());
    let start = move |writing: &Writing<'_>| writing.start_workflow(&wanted).map(told_apart);
    let (lease, fresh) = taken(change(&gateway, &caller, line, start).await?)?;
    Ok(Json(told(
        lease,
        if fresh { "started" } else { "already_running" },
        false,
    )))
}

fn told(lease: Lease, status: &'static str, with_checkpoint: bool) -> WorkflowTold {
    let checkpoint = lease.checkpoint.filter(|_| with_checkpoint);
    WorkflowTold {
        run_id: lease.run,
        status,
        expires_at: spec::Timestamp(lease.expires_ms).to_string(),
        // It was JSON when it came.
        checkpoint: checkpoint.and_then(|text| RawValue::from_string(text).ok()),
    }
}

/// Go on with a task
///
/// For its holder, or for anybody once the lease is over.
#[utoipa::path(post, path = "/v1/workflow/resume", tag = "workflow", request_body = WorkflowOrder, responses(
    (status = 200, description = "It is his, with how far it has come", body = WorkflowTold),
    (status = 409, description = "It is somebody else's", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn resume(
    State(gateway): State<Gateway>,
    caller: Caller,
    Sent(order): Sent<WorkflowOrder>,
) -> Answer<Json<WorkflowTold>> {
    caller.require(Scope::Runs)?;
    if order.idempotency.is_some() {
        return Err(Problem::invalid(
            "`idempotency` is for `start`",
            "leave it away: resuming can be repeated",
        ));
    }
    let wanted = lease(&caller, &order.task_id, &order.holder, order.lease_seconds)?;
    let line = ("workflow.resume", &order.task_id, order.holder.as_str());
    let resume = move |writing: &Writing<'_>| writing.resume_workflow(&wanted).map(told_apart);
    let (lease, _) = taken(change(&gateway, &caller, line, resume).await?)?;
    Ok(Json(told(lease, "resumed", true)))
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
    Sent(order): Sent<WorkflowCheckpoint>,
) -> Answer<StatusCode> {
    caller.require(Scope::Runs)?;
    gateway.has_room()?;
    let text = order.checkpoint.get().to_owned();
    if text.len() > LARGEST_CHECKPOINT {
        let hint = Some("keep the rest as an artifact".to_owned());
        let title = "`checkpoint` is more than 256 KiB";
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "quota_exceeded",
            title,
            hint,
        ));
    }
    let wanted = lease(&caller, &order.task_id, &order.holder, order.lease_seconds)?;
    let write = gateway
        .writer()
        .write(move |writing| writing.checkpoint_workflow(&wanted, &text));
    taken(write.await?).map(|_| StatusCode::NO_CONTENT)
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
    Sent(order): Sent<WorkflowRelease>,
) -> Answer<StatusCode> {
    caller.require(Scope::Runs)?;
    visible(&order.holder, "holder")?;
    let (owner, holder) = (caller.tenant.clone(), order.holder.clone());
    let task = order.task_id.as_str().to_ascii_lowercase();
    let line = ("workflow.release", &order.task_id, order.holder.as_str());
    let release = move |writing: &Writing<'_>| {
        writing
            .release_workflow(&owner, &task, &holder)
            .map(|released| (released, released))
    };
    match change(&gateway, &caller, line, release).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => taken(Taking::Held).map(|_| StatusCode::NO_CONTENT),
    }
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(resume))
        .routes(routes!(checkpoint))
        .routes(routes!(release))
}
