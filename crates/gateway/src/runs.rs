//! HTTP routes of runs: create (synchronous, asynchronous or as an event stream), get, list,
//! cancel.

pub(crate) mod active;
pub(crate) mod events;
pub(crate) mod host_paths;
mod recent;
pub(crate) mod slow_reader;

use crate::{
    Caller, Gateway, Problem, Scope,
    cursor::PagedList,
    json_response,
    path::Path,
    problem::Answer,
    tenants::{ResourceDemand, WorkKind, memory_of_run},
    trace::SpanContext,
    wire::{RawBody, RunOrder, parse_object},
};
use active::{AcceptedRun, ActiveRun, RunMeta, WholeResult};
use axum::{
    Extension, Json,
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spec::{RunSpec, Status, Timestamp};
use std::{sync::Arc, time::Duration};
use store::server_database::{RunFilter, RunRow};
use tokio::io::AsyncWriteExt;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const MAX_IDEMPOTENCY_KEY: usize = 255;
const DEFAULT_LISTED: u32 = 50;
const MAX_OUTPUT: u64 = 16 << 20;
/// How long a cancel request waits for the run to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// A run that has not ended, or in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunState {
    run_id: String,
    task_id: Option<String>,
    job_id: Option<String>,
    /// `running`, or how it ended.
    status: String,
    accepted_at: String,
}

/// Runs, the newest first.
#[derive(Debug, Serialize, ToSchema)]
struct RunList {
    runs: Vec<RunState>,
    /// Give it as `before` to read on; null at the end.
    before: Option<String>,
}

/// Which runs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RunsQuery {
    /// Only those of this status.
    status: Option<String>,
    /// Only those of this task.
    task_id: Option<String>,
    /// At most so many: 1 to 200, 50 unless said.
    limit: Option<u32>,
    /// Only older ones than this cursor.
    before: Option<String>,
}

impl RunState {
    fn of(row: &RunRow) -> RunState {
        RunState {
            run_id: row.id.clone(),
            task_id: row.task.clone(),
            job_id: row.job.clone(),
            status: row.status.clone(),
            accepted_at: Timestamp(row.accepted_ms).to_string(),
        }
    }
}

/// Run a command in a fresh sandbox
///
/// Waits for the result, unless `Prefer: respond-async` is sent. A client that hangs up does not end the run: with
/// an `Idempotency-Key` the same body is the same run for a day, and with `Accept: text/event-stream` its events go on
/// behind `Last-Event-ID`.
#[utoipa::path(post, path = "/v1/runs", tag = "runs", request_body = RunOrder,
    params(("Prefer" = Option<String>, Header, description = "`respond-async`: do not wait"),
           ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible characters")),
    responses(
    (status = 200, description = "It ran; the result says how it ended. With `Accept: text/event-stream` its events as they come, as of /v1/runs/{id}/events; while they are not read the program waits",
        content((Object = "application/json"), (String = "text/event-stream"))),
    (status = 202, description = "It goes on", body = RunState),
    (status = 422, description = "The Idempotency-Key stands for another body", body = Problem, content_type = "application/problem+json"),
    (status = 429, description = "Too many are under way", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "It could not start", body = Problem, content_type = "application/problem+json")))]
async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    span_context: Option<Extension<SpanContext>>,
    headers: HeaderMap,
    raw: RawBody,
) -> Answer<Response> {
    let begun_us = engine::now_us();
    caller.require(Scope::Runs)?;
    let name = idempotency_key(&headers)?.map(str::to_owned);
    let read = |body: &[u8]| {
        let key = name.map(|name| (name, Sha256::digest(body).into()));
        Ok((key, parse_object::<RunOrder>(body)?.into_request()?))
    };
    let (idempotency_key, (request, stdin)) = raw.read(&gateway, &caller.tenant, read).await?;
    let mut spec = admit(&gateway, &caller, request)?;
    let span_context =
        span_context.map(|Extension(span_context)| (span_context.child(), span_context.child()));
    // The program gets a `traceparent` if the caller sent one.
    spec.traceparent = span_context
        .as_ref()
        .and_then(|(_, run)| run.traceparent_for_program());
    let mut new_run = new_run_request(&caller, &spec, idempotency_key);
    let stdin_bytes = stdin.as_ref().map_or(0, Vec::len);
    new_run.meta = new_run.meta.with_stdin(stdin_bytes);
    let needs = ResourceDemand {
        what: WorkKind::Run,
        llm: spec.grants.llm.is_some(),
        storage: spec.sandbox.copy_on_write,
        memory: needed_memory(&caller, &spec, stdin_bytes),
    };
    let quota_check = gateway.check_quota(&caller.tenant, needs).await;
    let (admission, run) = span_context.unzip();
    new_run.meta.span_context = run;
    let start = begin(
        gateway.clone(),
        new_run,
        quota_check,
        spec,
        stdin,
        wants_events(&headers),
    );
    // Spawned so that a client that disconnects does not leave a run that was accepted and never
    // starts.
    let start = tokio::spawn(start)
        .await
        .map_err(|_| crate::db_writer::busy())?;
    if let Some(admission) = admission {
        let time = (begun_us, engine::now_us());
        gateway
            .tracer()
            .record_span(&admission, "admission", time, start.is_err(), Vec::new());
    }
    let live = match start? {
        RunStart::WithReader(live, guard) => return Ok(events::guarded_response(live, guard)),
        RunStart::New(live) => live,
        RunStart::Existing(id) => {
            let live = gateway.runs().find(&id);
            let row = existing_run(&gateway, &caller, &id).await?;
            match live {
                _ if wants_events(&headers) => {
                    return events::run_events(&gateway, row, &headers, true).await;
                }
                Some(live) => live,
                None => return first_answer(&gateway, &caller, row),
            }
        }
    };
    if is_async(&headers) {
        accepted(&gateway, &live).await
    } else {
        let ended = live.ended().await?;
        match &ended.problem {
            Some(problem) => Err(problem.clone()),
            None => whole_response(&gateway, &caller, live.id.as_str(), &ended.whole),
        }
    }
}

/// Memory that the tenant's quota must have left for this run; 0 for an admin.
pub(crate) fn needed_memory(caller: &Caller, spec: &RunSpec, stdin: usize) -> u64 {
    if caller.is_admin() {
        0
    } else {
        memory_of_run(spec, stdin)
    }
}

/// Validates and admits a run request of the caller.
pub(crate) fn admit(
    gateway: &Gateway,
    caller: &Caller,
    request: spec::RunRequest,
) -> Answer<RunSpec> {
    let request = host_paths::admit(gateway, caller, request)?;
    let mut spec = gateway.policy_of(caller).admit(request)?;
    gateway.node().check_grants(&spec.grants)?;
    check_output_limit(&spec)?;
    // The owner of the artifacts and workspaces that the run uses and keeps.
    spec.owner = Some(caller.owner()?);
    spec.keep_artifacts = caller.require(Scope::Artifacts).is_ok();
    Ok(spec)
}

/// Refuses a larger output limit: the output is held in memory, and the result is one JSON
/// document.
fn check_output_limit(spec: &RunSpec) -> Answer<()> {
    if spec.sandbox.limits.output.0 > MAX_OUTPUT {
        Err(Problem::invalid(
            format!(
                "`output` is more than the {} MiB of a stream that a result can have here",
                MAX_OUTPUT >> 20
            ),
            "ask for less and follow the events, or let the program write a file and keep it as an artifact",
        ))
    } else {
        Ok(())
    }
}

/// The run of an Idempotency-Key. The key may outlive its run, whose id then is free; the run is
/// not repeated.
async fn existing_run(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<RunRow> {
    let id = id.to_owned();
    let row = gateway
        .query_database(move |database| database.run(&id))
        .await?
        .filter(|row| row.owner == caller.tenant);
    row.ok_or_else(|| {
        Problem::new(
            StatusCode::GONE,
            "lost",
            "the run of this Idempotency-Key is forgotten",
            Some("use a new key to run it again".to_owned()),
        )
    })
}

/// The response that the first request got: a run that could not start is a problem document,
/// however late it is asked for.
fn first_answer(gateway: &Gateway, caller: &Caller, row: RunRow) -> Answer<Response> {
    match row.result.as_deref().and_then(active::stored_start_failure) {
        Some(problem) => Err(problem),
        None => row_response(gateway, caller, row),
    }
}

fn new_run_request(
    caller: &Caller,
    spec: &RunSpec,
    idempotency_key: Option<(String, [u8; 32])>,
) -> active::NewRunRequest {
    active::NewRunRequest {
        id: spec.run_id.clone().unwrap_or_else(engine::fresh_id),
        owner: caller.tenant.clone(),
        task: spec.task_id.clone(),
        job: spec.job_id.clone(),
        idempotency_key,
        keeping: active::ResultRetention::default(),
        meta: RunMeta::of(caller, spec),
    }
}

/// The result of starting a run.
pub(crate) enum RunStart {
    /// The run is started.
    New(Arc<ActiveRun>),
    /// The run is started and waits for its event reader.
    #[allow(private_interfaces, reason = "only this room asks to follow")]
    WithReader(Arc<ActiveRun>, slow_reader::SlowReaderGuard),
    /// The Idempotency-Key stands for this earlier run.
    Existing(String),
}

pub(crate) async fn begin(
    gateway: Gateway,
    new_run: active::NewRunRequest,
    quota_check: Answer<()>,
    spec: RunSpec,
    stdin: Option<Vec<u8>>,
    wants_events: bool,
) -> Answer<RunStart> {
    let key = new_run.meta.key.clone();
    let live = match active::accept(&gateway, new_run, quota_check).await? {
        AcceptedRun::New(live) => live,
        AcceptedRun::Existing(id) => return Ok(RunStart::Existing(id)),
    };
    if let Err(problem) = gateway
        .audit_run_accepted(&live.run_ref(), &key, &audit_text(&spec))
        .await
    {
        active::abort_start(&gateway, &live, &spec.sandbox.profile).await;
        return Err(problem);
    }
    // Before the program can write output.
    let guard = wants_events.then(|| slow_reader::SlowReaderGuard::new(&live, [0, 0]));
    drop(start(&gateway, &live, spec, stdin));
    Ok(match guard {
        Some(guard) => RunStart::WithReader(live, guard),
        None => RunStart::New(live),
    })
}

/// The details of the audit entry.
fn audit_text(spec: &RunSpec) -> String {
    format!(
        "profile={} backend={}",
        spec.sandbox.profile,
        spec.sandbox.backend.name()
    )
}

/// Starts an accepted run; the task ends when its end is written.
pub(crate) fn start(
    gateway: &Gateway,
    live: &Arc<ActiveRun>,
    spec: RunSpec,
    stdin: Option<Vec<u8>>,
) -> tokio::task::JoinHandle<()> {
    let mut run = gateway.engine().start_as(live.id.clone(), spec);
    if let (Some(mut pipe), Some(bytes)) = (run.take_stdin(), stdin) {
        // A program need not read all of its standard input.
        tokio::spawn(async move { _ = pipe.write_all(&bytes).await });
    }
    tokio::spawn(active::drive(gateway.clone(), live.clone(), run))
}

/// `Accept: text/event-stream`: the response is the event stream.
fn wants_events(headers: &HeaderMap) -> bool {
    let kinds = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut kinds = kinds
        .flat_map(|value| value.split(','))
        .filter_map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// `Prefer: respond-async`, alone or in a list.
pub(crate) fn is_async(headers: &HeaderMap) -> bool {
    let wishes = headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok());
    wishes
        .flat_map(|value| value.split(','))
        .any(|wish| wish.trim().eq_ignore_ascii_case("respond-async"))
}

pub(crate) fn idempotency_key(headers: &HeaderMap) -> Answer<Option<&str>> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    match value.to_str().ok().map(str::trim) {
        Some(name) if (1..=MAX_IDEMPOTENCY_KEY).contains(&name.len()) => Ok(Some(name)),
        _ => Err(Problem::invalid(
            "this is no Idempotency-Key",
            "send 1 to 255 visible characters",
        )),
    }
}

/// 202 with the location of the run.
async fn accepted(gateway: &Gateway, live: &ActiveRun) -> Answer<Response> {
    let id = live.id.clone();
    let row = gateway
        .query_database(move |database| database.run(id.as_str()))
        .await?
        .ok_or_else(|| Problem::not_found("run"))?;
    let mut response = (StatusCode::ACCEPTED, Json(RunState::of(&row))).into_response();
    if let Ok(place) = HeaderValue::try_from(format!("/v1/runs/{}", live.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response.headers_mut().insert(
        "preference-applied",
        HeaderValue::from_static("respond-async"),
    );
    Ok(response)
}

/// The result, within the tenant's share of response memory. A refusal does not lose it: it stays
/// in the database.
fn result_response(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
    text: impl Into<Bytes>,
) -> Answer<Response> {
    let sent = json_response::from_bytes(gateway.response_bytes(), &caller.tenant, text);
    sent.map_err(|problem| problem.with_instance(format!("/v1/runs/{id}")))
}

/// The result with all of its output, to whoever waited for it.
fn whole_response(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
    whole: &WholeResult,
) -> Answer<Response> {
    match whole {
        WholeResult::Made(text) => result_response(gateway, caller, id, text.clone()),
        WholeResult::TooLong => {
            let refused = json_response::longer_than_a_share(gateway.response_bytes());
            Err(refused.with_instance(format!("/v1/runs/{id}")))
        }
    }
}

/// The row of a run that the caller may see; another tenant's run is not found.
pub(crate) async fn row(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<RunRow> {
    caller.require(Scope::Runs)?;
    let id = id.to_owned();
    let row = gateway
        .query_database(move |database| database.run(&id))
        .await?
        .filter(|row| caller.sees(&row.owner));
    row.ok_or_else(|| Problem::not_found("run"))
}

/// The response from the database.
async fn stored_response(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<Response> {
    row_response(gateway, caller, row(gateway, caller, id).await?)
}

fn row_response(gateway: &Gateway, caller: &Caller, mut row: RunRow) -> Answer<Response> {
    match row.result.take() {
        Some(text) => result_response(gateway, caller, &row.id, text),
        None => Ok(Json(RunState::of(&row)).into_response()),
    }
}

/// One run: its result, or how far it is
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", params(("id" = String, Path,)), responses(
    (status = 200, description = "The result once it has ended, with at most 64 KiB of each stream; else its state", body = Object),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    stored_response(&gateway, &caller, &id).await
}

/// Runs, the newest first
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(RunsQuery), responses(
    (status = 200, description = "One page of them", body = RunList),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: Result<Query<RunsQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer<Json<RunList>> {
    caller.require(Scope::Runs)?;
    let Query(query) = query.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let is_known = |name: &String| Status::ALL.iter().any(|status| status.name() == name);
    if query
        .status
        .as_ref()
        .is_some_and(|status| !is_known(status))
    {
        let names = Status::ALL.map(Status::name).join(", ");
        return Err(Problem::invalid(
            "there is no such status",
            format!("there are {names}"),
        ));
    }
    let limit = query.limit.unwrap_or(DEFAULT_LISTED);
    if !(1..=store::server_database::MAX_PAGE_ROWS).contains(&limit) {
        return Err(Problem::invalid("`limit` is out of range", "give 1 to 200"));
    }
    let filter = RunFilter {
        owner: (!caller.is_admin()).then(|| caller.tenant.clone()),
        status: query.status,
        task: query.task_id,
        before: gateway
            .cursors()
            .open(&caller.tenant, PagedList::Runs, query.before.as_deref())?,
        limit,
    };
    let rows = gateway
        .query_database(move |database| database.list(&filter))
        .await?;
    let last = rows.last().filter(|_| rows.len() == limit as usize);
    let before = last
        .map(|row| {
            gateway
                .cursors()
                .seal(&caller.tenant, PagedList::Runs, row.n)
        })
        .transpose()?;
    Ok(Json(RunList {
        runs: rows.iter().map(RunState::of).collect(),
        before,
    }))
}

/// Cancel a run
///
/// The whole tree of its processes is gone when this answers 200 with the result.
#[utoipa::path(delete, path = "/v1/runs/{id}", tag = "runs", params(("id" = String, Path,)), responses(
    (status = 200, description = "It has ended; the result", body = Object),
    (status = 202, description = "It is still ending", body = RunState),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn cancel(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    let row = row(&gateway, &caller, &id).await?;
    let Some(live) = gateway.runs().find(&id) else {
        return stored_response(&gateway, &caller, &id).await;
    };
    live.cancel();
    match tokio::time::timeout(CANCEL_TIMEOUT, live.ended()).await {
        Ok(ended) => result_response(&gateway, &caller, &id, ended?.stored.clone()),
        Err(_) => Ok((StatusCode::ACCEPTED, Json(RunState::of(&row))).into_response()),
    }
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, cancel))
        .routes(routes!(events::events))
}
