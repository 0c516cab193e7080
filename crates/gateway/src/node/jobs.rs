//! Worker API jobs: runs with an idempotent id. A job runs once, however often it is sent: its run
//! id is derived from tenant and job id, and stands for one request until the run is forgotten.

use super::{
    job_result::{
        self, JobRequestInfo, MAX_OUTPUT, WorkerJobResult, WorkerJobState, WorkerJobStatus,
    },
    steps,
    wire::{NetworkPolicy, Uuid, Version, WorkerBody, digest, json_response, variables},
};
use crate::{
    Caller, Gateway, Problem, Scope,
    path::Path,
    problem::Answer,
    runs::{
        self, RunStart,
        active::{ActiveRun, NewRunRequest, ResultRetention, RunMeta},
        host_paths,
    },
    tenants::{ResourceDemand, WorkKind},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use spec::{Id, LimitSet, MAX_JOB_BYTES, Network, RunRequest, RunSpec, Size, Time};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use store::{
    audit::{AuditEntry, Decision},
    server_database::{PERSISTENT_KEY_PREFIX, RunRow},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Maximum size of a stored result: a control character takes six bytes as JSON.
const MAX_STORED_RESULT: usize = 4 << 20;

/// A job.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerJob {
    #[schema(value_type = u64, minimum = 1, maximum = 1)]
    pub(crate) version: Version,
    pub(crate) task_id: Uuid,
    pub(crate) job_id: Uuid,
    pub(crate) sandbox: WorkerJobSandbox,
}

/// What is run, and in what.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerJobSandbox {
    /// Unless said, the node's default; without one the host's own `/usr`.
    pub(crate) image: Option<String>,
    /// Exact argument list; no shell. May be empty only with `job_spec_json`.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// 3600 unless said; never more than the node allows.
    pub(crate) timeout_seconds: Option<u64>,
    #[serde(default)]
    pub(crate) network_policy: NetworkPolicy,
    /// Opens the inference door.
    #[serde(default)]
    pub(crate) use_inference: bool,
    /// Steps, as one JSON text.
    pub(crate) job_spec_json: Option<String>,
}

impl WorkerJob {
    /// Id of the run that carries out the job.
    pub(crate) fn run_id(&self, caller: &Caller) -> Answer<Id> {
        run_id(&self.job_id, &caller.tenant)
    }

    /// Converts to a run request within the limits of this node.
    pub(crate) fn request(&self, gateway: &Gateway) -> Answer<RunRequest> {
        let sandbox = &self.sandbox;
        let network = if sandbox.use_inference {
            Network::Doors
        } else {
            Network::None
        };
        Ok(RunRequest {
            command: sandbox.command.iter().map(Into::into).collect(),
            image: sandbox.image.as_ref().map(Into::into),
            env: variables(&sandbox.env),
            limits: limits(gateway, sandbox.timeout_seconds)?,
            network: Some(network),
            inference: sandbox.use_inference,
            task_id: Some(self.task_id.to_string()),
            job_id: Some(self.job_id.to_string()),
            ..RunRequest::default()
        })
    }

    fn check(&self, gateway: &Gateway) -> Answer<()> {
        gateway.node().check_takes_work()?;
        if self.sandbox.use_inference {
            gateway.node().check_inference()?;
        }
        let has_steps = self.sandbox.job_spec_json.is_some();
        if let Some(text) = &self.sandbox.job_spec_json {
            check_spec_size(text)?;
        }
        if self.sandbox.command.is_empty() && !has_steps {
            Err(Problem::invalid(
                "`sandbox.command` is empty",
                "name a program and its arguments",
            ))
        } else {
            Ok(())
        }
    }
}

/// Checks the size only; the content is parsed on a blocking thread.
fn check_spec_size(text: &str) -> Answer<()> {
    if text.len() > MAX_JOB_BYTES {
        Err(Problem::invalid(
            "`sandbox.job_spec_json` is too large",
            format!("send one JSON object as a text of at most {MAX_JOB_BYTES} bytes"),
        ))
    } else {
        Ok(())
    }
}

/// Id of the run of this job id.
pub(crate) fn run_id(job: &Uuid, tenant: &str) -> Answer<Id> {
    Id::new(&job.name("job", tenant)).map_err(|_| Problem::not_found("job"))
}

/// Limits of a job: its timeout, the node's resources, and twice the reported output, of which the
/// first half is kept.
pub(crate) fn limits(gateway: &Gateway, timeout_seconds: Option<u64>) -> Answer<LimitSet> {
    let node = gateway.node();
    if timeout_seconds == Some(0) {
        return Err(Problem::invalid(
            "`sandbox.timeout_seconds` is 0",
            "give at least 1, or leave it away",
        ));
    }
    let timeout = timeout_seconds
        .map_or(node.default_timeout, Duration::from_secs)
        .min(node.max_timeout);
    let maximum = &gateway.policy_of_keys().maximum;
    let timeout = capped(Time(timeout), maximum.wall_time).0;
    Ok(limits_for(gateway, timeout, timeout))
}

/// Limits of a sandbox whose programs take at most `of_one`, and which lasts at most `of_all`.
pub(crate) fn limits_for(gateway: &Gateway, of_one: Duration, of_all: Duration) -> LimitSet {
    let node = gateway.node();
    let maximum = &gateway.policy_of_keys().maximum;
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    // The wall clock is the limit: all CPUs may be busy for that time.
    let cpu_time = capped(Time(of_all.saturating_mul(cpus)), maximum.cpu_time);
    let output = capped(Size(2 * MAX_OUTPUT as u64), maximum.output);
    LimitSet {
        wall_time: Some(capped(Time(of_one), maximum.wall_time)),
        cpu_time: Some(cpu_time),
        output: Some(output),
        memory: node
            .resources
            .memory
            .map(|memory| capped(memory, maximum.memory)),
        cpus: node.resources.cpus.map(|cpus| capped(cpus, maximum.cpus)),
        pids: node.resources.pids.map(|pids| capped(pids, maximum.pids)),
        ..LimitSet::default()
    }
}

fn capped<T: Ord>(value: T, most: Option<T>) -> T {
    match most {
        Some(most) => value.min(most),
        None => value,
    }
}

/// Run a job
///
/// A program in a fresh sandbox. The same `job_id` with the same body is the same job, also after a restart: it is joined
/// or its result is answered, and never run twice.
#[utoipa::path(post, path = "/v1/worker/jobs:run", tag = "worker", request_body = WorkerJob,
    params(("Prefer" = Option<String>, Header, description = "`respond-async`: do not wait")),
    responses(
    (status = 200, description = "It ran, or could not start; the result says how it ended", body = WorkerJobResult),
    (status = 202, description = "It goes on", body = WorkerJobState),
    (status = 409, description = "The `job_id` stands for another job", body = Problem, content_type = "application/problem+json"),
    (status = 413, description = "The body is too large", body = Problem, content_type = "application/problem+json"),
    (status = 429, description = "Too many are under way", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn run(
    State(gateway): State<Gateway>,
    caller: Caller,
    headers: HeaderMap,
    WorkerBody(order): WorkerBody<WorkerJob>,
) -> Answer<Response> {
    let in_background = runs::is_async(&headers);
    match begin(&gateway, &caller, &order).await? {
        Some(live) if in_background && !is_over(&live) => Ok(accepted(&order)),
        Some(live) => {
            let ended = live.ended().await?;
            result_response(&gateway, &caller, &ended.stored)
        }
        None if order.sandbox.job_spec_json.is_some() => {
            steps::carry_out(&gateway, &caller, &order, in_background).await
        }
        None => earlier_result(&gateway, &caller, &order, in_background).await,
    }
}

pub(super) fn is_over(live: &ActiveRun) -> bool {
    live.progress().borrow().ended.is_some()
}

/// The active run of a job, new or existing; `None` if it has ended, or is a job of steps.
async fn begin(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
) -> Answer<Option<Arc<ActiveRun>>> {
    caller.require(Scope::Runs)?;
    order.check(gateway)?;
    if order.sandbox.job_spec_json.is_some() {
        return Ok(None);
    }
    let (new_run, spec) = admitted(gateway, caller, order)?;
    audit_accepted(gateway, caller, order).await?;
    let needs = ResourceDemand {
        what: WorkKind::Run,
        llm: spec.grants.llm.is_some(),
        storage: false,
        memory: runs::needed_memory(caller, &spec, 0),
    };
    let quota_check = gateway.check_quota(&caller.tenant, needs).await;
    let start = runs::begin(gateway.clone(), new_run, quota_check, spec, None, false);
    // Spawned so that a client that disconnects does not leave a job that was accepted and never
    // starts.
    let start = tokio::spawn(start)
        .await
        .map_err(|_| crate::db_writer::busy())?;
    match start.map_err(conflict_problem)? {
        RunStart::New(live) | RunStart::WithReader(live, _) => Ok(Some(live)),
        RunStart::Existing(id) => Ok(gateway.runs().find(&id)),
    }
}

fn admitted(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
) -> Answer<(NewRunRequest, RunSpec)> {
    let request = host_paths::admit(gateway, caller, order.request(gateway)?)?;
    let image = request
        .image
        .as_ref()
        .map(|image| image.to_string_lossy().into_owned());
    let mut spec = gateway.policy_of(caller).admit(request)?;
    gateway.node().check_grants(&spec.grants)?;
    spec.run_id = Some(order.run_id(caller)?);
    spec.owner = Some(caller.owner()?);
    spec.keep_artifacts = caller.require(Scope::Artifacts).is_ok();
    let meta = RunMeta::of(caller, &spec);
    let runtime = Some(spec.sandbox.backend.name().to_owned());
    let mut new_run = NewRunRequest {
        meta,
        ..new_run_request(caller, order, JobRequestInfo { image, runtime })?
    };
    // The first half of the output limit is kept.
    new_run.keeping.exact = usize::try_from(spec.sandbox.limits.output.0 / 2).ok();
    Ok((new_run, spec))
}

/// The run request of a job, and what is stored of its result.
pub(super) fn new_run_request(
    caller: &Caller,
    order: &WorkerJob,
    info: JobRequestInfo,
) -> Answer<NewRunRequest> {
    let id = order.run_id(caller)?;
    let name = format!("{PERSISTENT_KEY_PREFIX}job {id}");
    Ok(NewRunRequest {
        id,
        owner: caller.tenant.clone(),
        task: Id::new(order.task_id.as_str()).ok(),
        job: Id::new(order.job_id.as_str()).ok(),
        idempotency_key: Some((name, digest(order))),
        meta: RunMeta::default(),
        keeping: ResultRetention {
            stream: MAX_OUTPUT,
            whole: MAX_STORED_RESULT,
            exact: Some(MAX_OUTPUT),
            asked: serde_json::to_value(info).ok(),
        },
    })
}

/// Maps conflicts to the meaning of `job_id`: it stands for one job.
pub(super) fn conflict_problem(problem: Problem) -> Problem {
    match problem.status() {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT => Problem::conflict(
            "this `job_id` stands for another job",
            "send the same body to join it or to get its result, or choose another `job_id`",
        ),
        _ => problem,
    }
}

pub(super) async fn audit_accepted(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
) -> Answer<()> {
    let run = order.run_id(caller)?;
    let entry = AuditEntry {
        what: "job.accept",
        decision: Decision::Allowed,
        tenant: &caller.tenant,
        key: &caller.key,
        run: run.as_str(),
        task: order.task_id.as_str(),
        job: order.job_id.as_str(),
        ..AuditEntry::default()
    };
    gateway.write_audit_async(&entry).await
}

pub(super) fn accepted(order: &WorkerJob) -> Response {
    let state = WorkerJobState {
        version: Version,
        task_id: order.task_id.to_string(),
        job_id: order.job_id.to_string(),
        status: WorkerJobStatus::Accepted,
        stopping: false,
    };
    let mut response = (StatusCode::ACCEPTED, Json(state)).into_response();
    let place = format!("/v1/worker/jobs/{}", order.job_id);
    if let Ok(place) = HeaderValue::try_from(place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response.headers_mut().insert(
        "preference-applied",
        HeaderValue::from_static("respond-async"),
    );
    response
}

/// The stored result of a job that was sent before.
pub(super) async fn earlier_result(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
    early: bool,
) -> Answer<Response> {
    match row(gateway, caller, &order.job_id).await {
        Ok(row) => match row.result {
            Some(stored) => result_response(gateway, caller, stored.as_bytes()),
            None if early => Ok(accepted(order)),
            // The run has just ended, or the server is shutting down.
            None => Err(crate::db_writer::busy()),
        },
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Err(Problem::new(
            StatusCode::GONE,
            "lost",
            "this job ran, and its result is forgotten",
            Some("it is not run again; choose another `job_id`".to_owned()),
        )),
        Err(problem) => Err(problem),
    }
}

/// The row of the caller's job.
pub(crate) async fn row(gateway: &Gateway, caller: &Caller, job: &Uuid) -> Answer<RunRow> {
    let id = run_id(job, &caller.tenant)?;
    let row = gateway
        .query_database(move |database| database.run(id.as_str()))
        .await?;
    row.filter(|row| row.owner == caller.tenant)
        .ok_or_else(|| Problem::not_found("job"))
}

/// The result, within the tenant's share of response memory. A refusal does not lose it: it stays
/// in the database.
pub(crate) fn result_response(
    gateway: &Gateway,
    caller: &Caller,
    stored: &[u8],
) -> Answer<Response> {
    let result = job_result::from_stored(stored).ok_or_else(|| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the result cannot be read",
            None,
        )
    })?;
    json_response(gateway, &caller.tenant, &result)
}

/// The state or the result of a job.
pub(crate) fn state_response(gateway: &Gateway, caller: &Caller, row: &RunRow) -> Answer<Response> {
    if let Some(stored) = &row.result {
        return result_response(gateway, caller, stored.as_bytes());
    }
    let live = gateway.runs().find(&row.id);
    if let Some(ended) = live
        .as_ref()
        .and_then(|live| live.progress().borrow().ended.clone())
    {
        return result_response(gateway, caller, &ended.stored);
    }
    let started = live
        .as_ref()
        .is_some_and(|live| live.progress().borrow().started.is_some());
    let state = WorkerJobState {
        version: Version,
        task_id: row.task.clone().unwrap_or_default(),
        job_id: row.job.clone().unwrap_or_default(),
        status: if started {
            WorkerJobStatus::InProgress
        } else {
            WorkerJobStatus::Accepted
        },
        stopping: live.is_some_and(|live| live.is_to_end()),
    };
    Ok(Json(state).into_response())
}

/// One job: its result, or how far it is
#[utoipa::path(get, path = "/v1/worker/jobs/{job_id}", tag = "worker", params(("job_id" = String, Path,)), responses(
    (status = 200, description = "Its state (`accepted`, `in_progress`), or once it has ended its result", body = WorkerJobResult),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(job): Path<String>,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let row = row(&gateway, &caller, &Uuid::of_path(job, "job_id")?).await?;
    state_response(&gateway, &caller, &row)
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(run))
        .routes(routes!(get))
}
