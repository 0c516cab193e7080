//! Jobs: runs by the words of the worker API. A job is carried out once, however often it is sent: its name is made from
//! its tenant and its identifier, and stands for one request until the run is forgotten.

use super::{
    steps,
    told::{self, AskedFor, MOST_OUTPUT, WorkerJobResult, WorkerJobState, WorkerJobStatus},
    wire::{NetworkPolicy, Sent, Uuid, Version, answer, digest, variables},
};
use crate::{
    Caller, Gateway, Problem, Scope,
    path::Path,
    problem::Answer,
    runs::{
        self, Begun, host,
        live::{About, Asked, Keeping, Live},
    },
    tenants::{Needs, What},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use spec::{Id, MOST_JOB_BYTES, Maximum, Network, RunRequest, RunSpec, Size, Time};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use store::{
    audit::{Decision, Entry},
    served::{LASTING, RunRow},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// A whole result in the database: control characters take six signs each.
const LARGEST_KEPT: usize = 4 << 20;

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
    /// The run that carries it out: what it is called among all runs.
    pub(crate) fn run_id(&self, caller: &Caller) -> Answer<Id> {
        run_id(&self.job_id, &caller.tenant)
    }

    /// As the rest of Airlock knows it, within what this node allows.
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
        gateway.node().takes_work()?;
        if self.sandbox.use_inference {
            gateway.node().gives_inference()?;
        }
        let has_steps = self.sandbox.job_spec_json.is_some();
        if let Some(text) = &self.sandbox.job_spec_json {
            is_short(text)?;
        }
        match self.sandbox.command.is_empty() && !has_steps {
            true => Err(Problem::invalid(
                "`sandbox.command` is empty",
                "name a program and its arguments",
            )),
            false => Ok(()),
        }
    }
}

/// What it says is read where that disturbs nobody; only what is short is.
fn is_short(text: &str) -> Answer<()> {
    match text.len() > MOST_JOB_BYTES {
        true => Err(Problem::invalid(
            "`sandbox.job_spec_json` is too large",
            format!("send one JSON object as a text of at most {MOST_JOB_BYTES} bytes"),
        )),
        false => Ok(()),
    }
}

/// What a job of this identifier is called among all runs.
pub(crate) fn run_id(job: &Uuid, tenant: &str) -> Answer<Id> {
    Id::new(&job.name("job", tenant)).map_err(|_| Problem::not_found("job"))
}

/// What a job may use: its time, what the node gives, and twice the output that is told, of which the first half is kept.
pub(crate) fn limits(gateway: &Gateway, timeout_seconds: Option<u64>) -> Answer<Maximum> {
    let node = gateway.node();
    if timeout_seconds == Some(0) {
        return Err(Problem::invalid(
            "`sandbox.timeout_seconds` is 0",
            "give at least 1, or leave it away",
        ));
    }
    let wanted = timeout_seconds
        .map_or(node.default_timeout, Duration::from_secs)
        .min(node.longest_timeout);
    let wanted = least(Time(wanted), gateway.policy().maximum.wall_time).0;
    Ok(given(gateway, wanted, wanted))
}

/// What a box may use whose programs take so long, and which itself lasts so long.
pub(crate) fn given(gateway: &Gateway, of_one: Duration, of_all: Duration) -> Maximum {
    let (node, maximum) = (gateway.node(), &gateway.policy().maximum);
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    // The time on the clock is what counts: all CPUs may be busy for that long.
    let cpu_time = least(Time(of_all.saturating_mul(cpus)), maximum.cpu_time);
    let output = least(Size(2 * MOST_OUTPUT as u64), maximum.output);
    Maximum {
        wall_time: Some(least(Time(of_one), maximum.wall_time)),
        cpu_time: Some(cpu_time),
        output: Some(output),
        memory: node
            .resources
            .memory
            .map(|memory| least(memory, maximum.memory)),
        cpus: node.resources.cpus.map(|cpus| least(cpus, maximum.cpus)),
        pids: node.resources.pids.map(|pids| least(pids, maximum.pids)),
        ..Maximum::default()
    }
}

fn least<T: Ord>(value: T, most: Option<T>) -> T {
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
    Sent(order): Sent<WorkerJob>,
) -> Answer<Response> {
    let in_background = runs::is_async(&headers);
    match begin(&gateway, &caller, &order).await? {
        Some(live) if in_background && !is_over(&live) => Ok(accepted(&order)),
        Some(live) => {
            let ended = live.ended().await?;
            told_of(&gateway, &caller, &ended.kept)
        }
        None if order.sandbox.job_spec_json.is_some() => {
            steps::carry_out(&gateway, &caller, &order, in_background).await
        }
        None => of_before(&gateway, &caller, &order, in_background).await,
    }
}

pub(super) fn is_over(live: &Live) -> bool {
    live.progress().borrow().ended.is_some()
}

/// The job under way, if it is a new one or one that still goes on; nothing if it has ended, or is one of steps.
async fn begin(gateway: &Gateway, caller: &Caller, order: &WorkerJob) -> Answer<Option<Arc<Live>>> {
    caller.require(Scope::Runs)?;
    order.check(gateway)?;
    if order.sandbox.job_spec_json.is_some() {
        return Ok(None);
    }
    let (asked, spec) = admitted(gateway, caller, order)?;
    note(gateway, caller, order).await?;
    let needs = Needs {
        what: What::Run,
        llm: spec.grants.llm.is_some(),
        storage: false,
    };
    let may = gateway.may_begin(&caller.tenant, needs).await;
    let begun = runs::begin(gateway.clone(), asked, may, spec, None, false);
    // Whoever hangs up meanwhile leaves no job behind that was accepted and never starts.
    let begun = tokio::spawn(begun)
        .await
        .map_err(|_| crate::writer::busy())?;
    match begun.map_err(of_another)? {
        Begun::New(live) | Begun::Held(live, _) => Ok(Some(live)),
        Begun::Before(id) => Ok(gateway.runs().find(&id)),
    }
}

fn admitted(gateway: &Gateway, caller: &Caller, order: &WorkerJob) -> Answer<(Asked, RunSpec)> {
    let request = host::admit(gateway, caller, order.request(gateway)?)?;
    let image = request
        .image
        .as_ref()
        .map(|image| image.to_string_lossy().into_owned());
    let mut spec = gateway.policy().admit(request)?;
    gateway.node().grants(&spec.grants)?;
    spec.run_id = Some(order.run_id(caller)?);
    spec.owner = Some(caller.owner()?);
    spec.keep = caller.require(Scope::Artifacts).is_ok();
    let about = About::of(caller, &spec);
    let runtime = Some(spec.sandbox.backend.name().to_owned());
    let mut asked = Asked {
        about,
        ..asked(caller, order, AskedFor { image, runtime })?
    };
    // The first half of what may be written is kept.
    asked.keeping.exact = usize::try_from(spec.sandbox.limits.output.0 / 2).ok();
    Ok((asked, spec))
}

/// How a job is written down, and what is kept of it.
pub(super) fn asked(caller: &Caller, order: &WorkerJob, asked: AskedFor) -> Answer<Asked> {
    let id = order.run_id(caller)?;
    let name = format!("{LASTING}job {id}");
    Ok(Asked {
        id,
        owner: caller.tenant.clone(),
        task: Id::new(order.task_id.as_str()).ok(),
        job: Id::new(order.job_id.as_str()).ok(),
        promise: Some((name, digest(order))),
        about: About::default(),
        keeping: Keeping {
            stream: MOST_OUTPUT,
            whole: LARGEST_KEPT,
            exact: Some(MOST_OUTPUT),
            asked: serde_json::to_value(asked).ok(),
        },
    })
}

/// A `job_id` stands for one job.
pub(super) fn of_another(problem: Problem) -> Problem {
    match problem.status() {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT => Problem::conflict(
            "this `job_id` stands for another job",
            "send the same body to join it or to get its result, or choose another `job_id`",
        ),
        _ => problem,
    }
}

pub(super) async fn note(gateway: &Gateway, caller: &Caller, order: &WorkerJob) -> Answer<()> {
    let run = order.run_id(caller)?;
    let entry = Entry {
        what: "job.accept",
        decision: Decision::Allowed,
        tenant: &caller.tenant,
        key: &caller.key,
        run: run.as_str(),
        task: order.task_id.as_str(),
        job: order.job_id.as_str(),
        ..Entry::default()
    };
    gateway.note_aside(&entry).await
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

/// What a job came to that was sent before.
pub(super) async fn of_before(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
    early: bool,
) -> Answer<Response> {
    match row(gateway, caller, &order.job_id).await {
        Ok(row) => match row.result {
            Some(kept) => told_of(gateway, caller, kept.as_bytes()),
            None if early => Ok(accepted(order)),
            // It was live a moment ago, or its server is ending.
            None => Err(crate::writer::busy()),
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

/// The row of a caller's job.
pub(crate) async fn row(gateway: &Gateway, caller: &Caller, job: &Uuid) -> Answer<RunRow> {
    let id = run_id(job, &caller.tenant)?;
    let row = gateway
        .look_up(move |served| served.run(id.as_str()))
        .await?;
    row.filter(|row| row.owner == caller.tenant)
        .ok_or_else(|| Problem::not_found("job"))
}

/// The result of a job, if the caller has room for it. It is not lost without.
pub(crate) fn told_of(gateway: &Gateway, caller: &Caller, kept: &[u8]) -> Answer<Response> {
    let result = told::result(kept).ok_or_else(|| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the result cannot be read",
            None,
        )
    })?;
    answer(gateway, &caller.tenant, &result)
}

/// How a job stands, or what came of it.
pub(crate) fn state_of(gateway: &Gateway, caller: &Caller, row: &RunRow) -> Answer<Response> {
    if let Some(kept) = &row.result {
        return told_of(gateway, caller, kept.as_bytes());
    }
    let live = gateway.runs().find(&row.id);
    if let Some(ended) = live
        .as_ref()
        .and_then(|live| live.progress().borrow().ended.clone())
    {
        return told_of(gateway, caller, &ended.kept);
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
    state_of(&gateway, &caller, &row)
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(run))
        .routes(routes!(get))
}
