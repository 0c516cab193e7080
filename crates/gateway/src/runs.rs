//! Runs: asked for, waited for or not, followed, cancelled, found again.

pub(crate) mod events;
pub(crate) mod hold;
pub(crate) mod host;
pub(crate) mod live;
mod recent;

use crate::{
    Caller, Gateway, Problem, Scope,
    cursor::List,
    fitting,
    path::Path,
    problem::Answer,
    tenants::{Needs, What},
    trace::Spot,
    wire::{Raw, RunOrder},
};
use axum::{
    Extension, Json,
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use live::{About, Live, Taken};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spec::{RunSpec, Status, Timestamp};
use std::{sync::Arc, time::Duration};
use store::served::{RunFilter, RunRow};
use tokio::io::AsyncWriteExt;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const LONGEST_PROMISE: usize = 255;
const USUALLY_LISTED: u32 = 50;
const LARGEST_OUTPUT: u64 = 16 << 20;
/// How long whoever cancels waits for the end.
const CANCELLED_WITHIN: Duration = Duration::from_secs(2);

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
struct Which {
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
    spot: Option<Extension<Spot>>,
    headers: HeaderMap,
    raw: Raw,
) -> Answer<Response> {
    let begun_us = engine::now_us();
    caller.require(Scope::Runs)?;
    let promise = promise(&headers)?.map(|name| (name.to_owned(), Sha256::digest(&raw.0).into()));
    let (request, stdin) = raw.json::<RunOrder>()?.into_request()?;
    let mut spec = admit(&gateway, &caller, request)?;
    let spot = spot.map(|Extension(spot)| (spot.child(), spot.child()));
    // The program is told of a trace if whoever asked for it is part of one.
    spec.traceparent = spot.as_ref().and_then(|(_, run)| run.for_program());
    let mut asked = asked(&caller, &spec, promise);
    let needs = Needs {
        what: What::Run,
        llm: spec.grants.llm.is_some(),
        storage: spec.sandbox.copy_on_write,
    };
    let may = gateway.may_begin(&caller.tenant, needs).await;
    let (admission, run) = spot.unzip();
    asked.about.spot = run;
    let begun = begin(gateway.clone(), asked, may, spec, stdin, follows(&headers));
    // Whoever hangs up meanwhile leaves no run behind that was accepted and never starts.
    let begun = tokio::spawn(begun)
        .await
        .map_err(|_| crate::writer::busy())?;
    if let Some(admission) = admission {
        let time = (begun_us, engine::now_us());
        gateway
            .tracer()
            .tell(&admission, "admission", time, begun.is_err(), Vec::new());
    }
    let live = match begun? {
        Begun::Held(live, hold) => return Ok(events::held(live, hold)),
        Begun::New(live) => live,
        Begun::Before(id) => {
            let live = gateway.runs().find(&id);
            let row = promised(&gateway, &caller, &id).await?;
            match live {
                _ if follows(&headers) => return events::of(&gateway, row, &headers, true).await,
                Some(live) => live,
                None => return first_answer(&gateway, &caller, row),
            }
        }
    };
    match is_async(&headers) {
        true => accepted(&gateway, &live).await,
        false => {
            let ended = live.ended().await?;
            match &ended.problem {
                Some(problem) => Err(problem.clone()),
                None => result(&gateway, &caller, live.id.as_str(), ended.whole.clone()),
            }
        }
    }
}

/// What may be run for the caller; refused if it may not.
pub(crate) fn admit(
    gateway: &Gateway,
    caller: &Caller,
    request: spec::RunRequest,
) -> Answer<RunSpec> {
    let request = host::admit(gateway, caller, request)?;
    let mut spec = gateway.policy().admit(request)?;
    gateway.node().grants(&spec.grants)?;
    fits_an_answer(&spec)?;
    // Whose artifacts and workspaces it reads and keeps.
    spec.owner = Some(caller.owner()?);
    spec.keep = caller.require(Scope::Artifacts).is_ok();
    Ok(spec)
}

/// What is kept of a run's output is in memory, and its result is one text.
fn fits_an_answer(spec: &RunSpec) -> Answer<()> {
    match spec.sandbox.limits.output.0 > LARGEST_OUTPUT {
        false => Ok(()),
        true => Err(Problem::invalid(
            format!(
                "`output` is more than the {} MiB of a stream that a result can have here",
                LARGEST_OUTPUT >> 20
            ),
            "ask for less and follow the events, or let the program write a file and keep it as an artifact",
        )),
    }
}

/// The run that this very key was promised. A promise may outlive its run, whose name then is anybody's; it is not run
/// again all the same.
async fn promised(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<RunRow> {
    let id = id.to_owned();
    let found = gateway
        .look_up(move |served| served.run(&id))
        .await?
        .filter(|row| row.owner == caller.tenant);
    found.ok_or_else(|| {
        Problem::new(
            StatusCode::GONE,
            "lost",
            "the run of this Idempotency-Key is forgotten",
            Some("use a new key to run it again".to_owned()),
        )
    })
}

/// What whoever asked first was answered: one that could not start is a problem, however late it is asked for.
fn first_answer(gateway: &Gateway, caller: &Caller, row: RunRow) -> Answer<Response> {
    match row.result.as_deref().and_then(live::problem_kept) {
        Some(problem) => Err(problem),
        None => answered(gateway, caller, row),
    }
}

fn asked(caller: &Caller, spec: &RunSpec, promise: Option<(String, [u8; 32])>) -> live::Asked {
    live::Asked {
        id: spec.run_id.clone().unwrap_or_else(engine::fresh_id),
        owner: caller.tenant.clone(),
        task: spec.task_id.clone(),
        job: spec.job_id.clone(),
        promise,
        keeping: live::Keeping::default(),
        about: About::of(caller, spec),
    }
}

/// What became of a request.
pub(crate) enum Begun {
    /// It runs.
    New(Arc<Live>),
    /// It runs, and waits for its reader.
    #[allow(private_interfaces, reason = "only this room asks to follow")]
    Held(Arc<Live>, hold::Hold),
    /// It was asked for before, under this name.
    Before(String),
}

pub(crate) async fn begin(
    gateway: Gateway,
    asked: live::Asked,
    may: Answer<()>,
    spec: RunSpec,
    stdin: Option<Vec<u8>>,
    follows: bool,
) -> Answer<Begun> {
    let key = asked.about.key.clone();
    let live = match live::take(&gateway, asked, may).await? {
        Taken::New(live) => live,
        Taken::Before(id) => return Ok(Begun::Before(id)),
    };
    if let Err(problem) = gateway.note_accepted(&live.of(), &key, &told(&spec)).await {
        live::give_up(&gateway, &live, &spec.sandbox.profile).await;
        return Err(problem);
    }
    // Before it can write anything.
    let hold = follows.then(|| hold::Hold::take(&live, [0, 0]));
    drop(start(&gateway, &live, spec, stdin));
    Ok(match hold {
        Some(hold) => Begun::Held(live, hold),
        None => Begun::New(live),
    })
}

/// What the audit says of it.
fn told(spec: &RunSpec) -> String {
    format!(
        "profile={} backend={}",
        spec.sandbox.profile,
        spec.sandbox.backend.name()
    )
}

/// Starts what was written down; the task ends once its end is, too.
pub(crate) fn start(
    gateway: &Gateway,
    live: &Arc<Live>,
    spec: RunSpec,
    stdin: Option<Vec<u8>>,
) -> tokio::task::JoinHandle<()> {
    let mut run = gateway.engine().start_as(live.id.clone(), spec);
    if let (Some(mut pipe), Some(bytes)) = (run.take_stdin(), stdin) {
        // A program need not read all of it.
        tokio::spawn(async move { _ = pipe.write_all(&bytes).await });
    }
    tokio::spawn(live::carry_out(gateway.clone(), live.clone(), run))
}

/// `Accept: text/event-stream`: whoever asks wants to see it go on.
fn follows(headers: &HeaderMap) -> bool {
    let kinds = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut kinds = kinds
        .flat_map(|value| value.split(','))
        .filter_map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// `Prefer: respond-async`, among other wishes or alone.
pub(crate) fn is_async(headers: &HeaderMap) -> bool {
    let wishes = headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok());
    wishes
        .flat_map(|value| value.split(','))
        .any(|wish| wish.trim().eq_ignore_ascii_case("respond-async"))
}

pub(crate) fn promise(headers: &HeaderMap) -> Answer<Option<&str>> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    match value.to_str().ok().map(str::trim) {
        Some(name) if (1..=LONGEST_PROMISE).contains(&name.len()) => Ok(Some(name)),
        _ => Err(Problem::invalid(
            "this is no Idempotency-Key",
            "send 1 to 255 visible characters",
        )),
    }
}

/// Where to find it.
async fn accepted(gateway: &Gateway, live: &Live) -> Answer<Response> {
    let id = live.id.clone();
    let row = gateway
        .look_up(move |served| served.run(id.as_str()))
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

/// The result of a run, if the caller has room for it. It is not lost without.
fn result(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
    text: impl Into<Bytes>,
) -> Answer<Response> {
    let sent = fitting::sent(gateway.answering(), &caller.tenant, text);
    sent.map_err(|problem| problem.about(format!("/v1/runs/{id}")))
}

/// The row of a run that the caller may see; somebody else's is as if there were none.
pub(crate) async fn row(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<RunRow> {
    caller.require(Scope::Runs)?;
    let id = id.to_owned();
    let found = gateway
        .look_up(move |served| served.run(&id))
        .await?
        .filter(|row| caller.sees(&row.owner));
    found.ok_or_else(|| Problem::not_found("run"))
}

/// What the database has of it.
async fn kept(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<Response> {
    answered(gateway, caller, row(gateway, caller, id).await?)
}

fn answered(gateway: &Gateway, caller: &Caller, mut row: RunRow) -> Answer<Response> {
    match row.result.take() {
        Some(text) => result(gateway, caller, &row.id, text),
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
    kept(&gateway, &caller, &id).await
}

/// Runs, the newest first
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(Which), responses(
    (status = 200, description = "One page of them", body = RunList),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    which: Result<Query<Which>, axum::extract::rejection::QueryRejection>,
) -> Answer<Json<RunList>> {
    caller.require(Scope::Runs)?;
    let Query(which) = which.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let known = |name: &String| Status::ALL.iter().any(|status| status.name() == name);
    if which.status.as_ref().is_some_and(|status| !known(status)) {
        let names = Status::ALL.map(Status::name).join(", ");
        return Err(Problem::invalid(
            "there is no such status",
            format!("there are {names}"),
        ));
    }
    let limit = which.limit.unwrap_or(USUALLY_LISTED);
    if !(1..=store::served::MOST_LISTED).contains(&limit) {
        return Err(Problem::invalid("`limit` is out of range", "give 1 to 200"));
    }
    let filter = RunFilter {
        owner: (!caller.is_admin()).then(|| caller.tenant.clone()),
        status: which.status,
        task: which.task_id,
        before: gateway
            .cursors()
            .open(&caller.tenant, List::Runs, which.before.as_deref())?,
        limit,
    };
    let rows = gateway.look_up(move |served| served.list(&filter)).await?;
    let last = rows.last().filter(|_| rows.len() == limit as usize);
    let before = last
        .map(|row| gateway.cursors().seal(&caller.tenant, List::Runs, row.n))
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
        return kept(&gateway, &caller, &id).await;
    };
    live.cancel();
    match tokio::time::timeout(CANCELLED_WITHIN, live.ended()).await {
        Ok(ended) => result(&gateway, &caller, &id, ended?.kept.clone()),
        Err(_) => Ok((StatusCode::ACCEPTED, Json(RunState::of(&row))).into_response()),
    }
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, cancel))
        .routes(routes!(events::events))
}
