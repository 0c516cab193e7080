//! Jobs over HTTP: asked for, found, followed, cancelled, tried again.

use super::{
    JobOrder, change, events,
    order::{self, Terms},
    show::Job,
};
use crate::{
    Caller, Gateway, Problem, Scope,
    cursor::List,
    fitting::{self, Room},
    path::Path,
    problem::Answer,
    runs::{self, live::Live},
    tenants::{Needs, What},
    wire::{self, Raw},
};
use axum::{
    Json,
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use spec::{Id, Status, Stream};
use std::{sync::Arc, time::Duration};
use store::{
    DatabaseError,
    audit::{Decision, Entry},
    jobs::{
        Added, Cancelled, Change, JobFilter, JobRoom, JobRow, Listed, NewJob, Retried, WhichBound,
    },
    served::Writing,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const USUALLY_LISTED: u32 = 50;
/// How long whoever cancels waits for the end.
const CANCELLED_WITHIN: Duration = Duration::from_secs(2);
/// Of a stream, in one answer.
const LARGEST_PIECE: usize = 64 << 10;

/// Jobs, the newest first, without what came of them.
#[derive(Debug, Serialize, ToSchema)]
struct JobList {
    jobs: Vec<Job>,
    /// Give it as `before` to read on; null at the end. 2,000 jobs are looked through for a page by label, and for one by
    /// name and status, and a page has at most 4 MiB; it may have fewer than were asked for, or none, and go on all the same.
    before: Option<String>,
}

/// Which jobs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Only those of this status.
    status: Option<String>,
    /// Only those of this name.
    name: Option<String>,
    /// Only those with this label, as `name=value`.
    label: Option<String>,
    /// At most so many: 1 to 200, 50 unless said.
    limit: Option<u32>,
    /// Only older ones than this cursor.
    before: Option<String>,
}

/// Which of its streams.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Logs {
    /// `stdout`, unless said, or `stderr`.
    stream: Option<String>,
}

type Asked<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

fn query<T>(asked: Asked<T>) -> Answer<T> {
    let Query(asked) = asked.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    Ok(asked)
}

/// The row of a job that the caller may see; somebody else's is as if there were none.
pub(super) async fn row(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<JobRow> {
    caller.require(Scope::Runs)?;
    let id = id.to_owned();
    let found = gateway
        .look_up(move |served| served.job(&id))
        .await?
        .filter(|row| caller.sees(&row.tenant));
    found.ok_or_else(|| Problem::not_found("job"))
}

/// Run a command or an agent later, whatever happens to the server
///
/// It is accepted once it would outlast a power cut, and starts when its turn comes. With an `Idempotency-Key` the same body
/// is the same job for a day.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = JobOrder,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible characters")),
    responses(
    (status = 202, description = "Accepted", body = Job),
    (status = 422, description = "`after` names no job of yours, or the Idempotency-Key stands for another body", body = Problem, content_type = "application/problem+json"),
    (status = 429, description = "Too many wait", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    headers: HeaderMap,
    raw: Raw,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    gateway.has_room()?;
    let promise =
        runs::promise(&headers)?.map(|name| (name.to_owned(), Sha256::digest(&raw.0).into()));
    let id = engine::fresh_id();
    let order = raw.json::<JobOrder>()?;
    let at_ms = engine::now().0;
    order
        .webhook
        .as_ref()
        .map_or(Ok(()), |webhook| webhook.allowed(&gateway))?;
    let terms = Terms::of(&order, &gateway.jobs().bounds, at_ms)?;
    let is_now = terms.not_before_ms.is_none_or(|moment| moment <= at_ms);
    // Whoever asks hears of mistakes now; at its start it is measured again.
    let (spec, _) = order::admit(&gateway, &caller, order, &id)?;
    let needs = Needs {
        what: What::Job,
        llm: spec.grants.llm.is_some(),
        storage: spec.sandbox.copy_on_write,
    };
    // What is to run another day has that day's CPU time and money, and is asked for them then.
    let may = if is_now {
        gateway.may_begin(&caller.tenant, needs).await
    } else {
        Ok(())
    };
    let Ok(order) = String::from_utf8(raw.0.to_vec()) else {
        return Err(wire::unreadable("it is not UTF-8"));
    };
    let new = Accepting {
        id: id.clone(),
        caller: caller.clone(),
        at_ms,
        terms,
        order,
        promise,
        may,
    };
    match to_its_end(take(gateway.clone(), new)).await? {
        Taken::New(row, _) => accepted(&gateway, &row),
        Taken::Before(id) => accepted(&gateway, &promised(&gateway, &caller, &id).await?),
        Taken::Refused(problem) => Err(problem),
    }
}

/// Goes on even if whoever asked hangs up: what is written down is carried out.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Answer<T>> + Send + 'static,
) -> Answer<T> {
    tokio::spawn(work)
        .await
        .map_err(|_| crate::writer::busy())?
}

async fn take(gateway: Gateway, new: Accepting) -> Answer<Taken> {
    let of = gateway.clone();
    let taken = gateway
        .durable()
        .write(move |writing| new.accept(&of, writing))
        .await?;
    if let Taken::New(_, changes) = &taken {
        change::after(&gateway, changes);
    }
    Ok(taken)
}

fn about(caller: &Caller) -> Entry<'_> {
    Entry {
        what: "job.accept",
        tenant: &caller.tenant,
        key: &caller.key,
        ..Entry::default()
    }
}

/// A job that is about to be written down.
struct Accepting {
    id: Id,
    caller: Caller,
    at_ms: u64,
    terms: Terms,
    order: String,
    promise: Option<(String, [u8; 32])>,
    /// Whether it may begin at all; what was promised before may be asked for again in any case.
    may: Answer<()>,
}

enum Taken {
    /// With what changed at once.
    New(Box<JobRow>, Vec<Change>),
    Before(String),
    Refused(Problem),
}

impl Accepting {
    fn accept(self, gateway: &Gateway, writing: &Writing<'_>) -> Result<Taken, DatabaseError> {
        let terms = &self.terms;
        let new = NewJob {
            id: self.id.as_str(),
            tenant: &self.caller.tenant,
            key: &self.caller.key,
            name: terms.name.as_deref(),
            labels: &terms.labels,
            priority: terms.priority,
            at_ms: self.at_ms,
            not_before_ms: terms.not_before_ms,
            keep_ms: terms.keep_ms,
            most_attempts: terms.most_attempts,
            retry_on: &terms.retry_on,
            pause_ms: terms.pause_ms,
            rerun: terms.rerun,
            after: &terms.after,
            webhook: terms.webhook.as_deref(),
            order: &self.order,
            promise: self
                .promise
                .as_ref()
                .map(|(name, body)| (name.as_str(), *body)),
        };
        let room = gateway.job_room(&self.caller.tenant);
        let queued = if self.may.is_ok() { room.queued } else { 0 };
        let added = writing.add_job(&new, &JobRoom { queued, ..room })?;
        // What was to come after a failure is over at once, and that is told like any end.
        let (added, changes) = match added {
            Added::InVain(changes) => (Added::New, changes),
            added => (added, Vec::new()),
        };
        let problem = match (added, self.may) {
            (Added::New | Added::InVain(_), _) => {
                let entry = Entry {
                    decision: Decision::Allowed,
                    job: self.id.as_str(),
                    ..about(&self.caller)
                };
                change::note(
                    gateway,
                    &Entry {
                        rule: Scope::Runs.name(),
                        ..entry
                    },
                )?;
                change::follow(gateway, writing, &changes, self.at_ms)?;
                let row = writing.job(self.id.as_str())?;
                return Ok(row.map_or_else(
                    || Taken::Refused(Problem::not_found("job")),
                    |row| Taken::New(Box::new(row), changes),
                ));
            }
            (Added::Before(id), _) => return Ok(Taken::Before(id)),
            (Added::OtherRequest, _) => other_request(),
            (Added::NoSuchJob(id), _) => order::unknown_job(&id),
            (Added::Full(_), Err(refusal)) => refusal,
            (Added::Full(bound), Ok(())) => full(bound),
        };
        Ok(Taken::Refused(problem))
    }
}

fn other_request() -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_spec",
        "this Idempotency-Key was used with another body",
        Some("use a new key for a new request".to_owned()),
    )
}

fn full(bound: WhichBound) -> Problem {
    let (title, hint) = match bound {
        WhichBound::Queued => (
            "too many jobs wait on this server: a tenant may have half of what the others leave",
            "wait until some have started, or raise `queued` under [jobs]",
        ),
        WhichBound::QueuedOfOne => (
            "too many jobs of this tenant wait",
            "wait until some have started, or raise `queued_per_tenant` under [jobs]",
        ),
        WhichBound::Jobs => (
            "this tenant has as many jobs as it may",
            "wait until one has ended; the operator sets the quota `jobs`",
        ),
        WhichBound::Bytes => (
            "the orders and results of jobs take too much room",
            "wait until some are forgotten; keep large files as artifacts",
        ),
        WhichBound::BytesOfOne => (
            "the orders and results of this tenant's jobs take too much room",
            "ask for a shorter `keep_for`; keep large files as artifacts",
        ),
        WhichBound::Behind => (
            "too many jobs come right after one that `after` names: there may be 10,000",
            "let one job come after it, and the others after that one; those that have ended count until they are forgotten",
        ),
    };
    Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "quota_exceeded",
        title,
        Some(hint.to_owned()),
    )
}

/// The job that this key was promised. A promise may outlive its job; it is not run again all the same.
async fn promised(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<JobRow> {
    let id = id.to_owned();
    let found = gateway
        .look_up(move |served| served.job(&id))
        .await?
        .filter(|row| row.tenant == caller.tenant);
    found.ok_or_else(|| {
        let hint = Some("use a new key to run it again".to_owned());
        Problem::new(
            StatusCode::GONE,
            "lost",
            "the job of this Idempotency-Key is forgotten",
            hint,
        )
    })
}

fn accepted(gateway: &Gateway, row: &JobRow) -> Answer<Response> {
    let mut response = (StatusCode::ACCEPTED, Json(Job::of(gateway, row))).into_response();
    if let Ok(place) = HeaderValue::try_from(format!("/v1/jobs/{}", row.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// Jobs, the newest first
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(Which), responses(
    (status = 200, description = "One page of them, without results", body = JobList),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    which: Asked<Which>,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let which = query(which)?;
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
    let label = |text: String| {
        let split = text
            .split_once('=')
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        split.ok_or_else(|| Problem::invalid("`label` is no label", "write label=name=value"))
    };
    let filter = JobFilter {
        tenant: (!caller.is_admin()).then(|| caller.tenant.clone()),
        status: which.status,
        name: which.name,
        label: which.label.map(label).transpose()?,
        open: false,
        before: gateway
            .cursors()
            .open(&caller.tenant, List::Jobs, which.before.as_deref())?,
        limit,
    };
    let (of, tenant) = (gateway.clone(), caller.tenant.clone());
    let page = move || page(&of, &tenant, of.served().list_jobs(&filter)?);
    fitting::answer(&gateway, &caller, page).await
}

/// As many as fit into an answer; the rest comes behind them.
fn page(gateway: &Gateway, tenant: &str, Listed { rows, before }: Listed) -> Answer<JobList> {
    let (jobs, more) = Room::new().fill(rows.iter().map(|row| Job::of(gateway, row)));
    let last = jobs.len().checked_sub(1).map(|last| rows[last].n);
    let before = if more { last } else { before };
    let before = before
        .map(|n| gateway.cursors().seal(tenant, List::Jobs, n))
        .transpose()?;
    Ok(JobList { jobs, before })
}

/// The job with what came of its last try.
async fn whole(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<Response> {
    let row = row(gateway, caller, id).await?;
    let id = row.id.clone();
    let result = gateway
        .look_up(move |served| served.job_result(&id))
        .await?;
    let text = Job::of(gateway, &row).whole(result.as_deref());
    let mut response = fitting::sent(gateway.answering(), &caller.tenant, text)
        .map_err(|problem| problem.about(format!("/v1/jobs/{}", row.id)))?;
    // It still ends.
    if row.cancelled && !row.is_final() {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

/// One job
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path,)), responses(
    (status = 200, description = "The job, with the `result` of its last try once there is one", body = Job),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    let mut response = whole(&gateway, &caller, &id).await?;
    *response.status_mut() = StatusCode::OK;
    Ok(response)
}

/// Cancel a job
///
/// One that waits is over at once, and so are up to 100 that come after it; the rest of these follow soon. Of one that runs the
/// whole tree of processes is gone when this answers 200. One that is over stays as it is.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path,)), responses(
    (status = 200, description = "It has ended; the job", body = Job),
    (status = 202, description = "It is still ending", body = Job),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn cancel(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    let row = row(&gateway, &caller, &id).await?;
    if let Some(live) = to_its_end(end(gateway.clone(), row, caller.key.clone())).await? {
        // Whether it has ended by then, the job says.
        _ = tokio::time::timeout(CANCELLED_WITHIN, live.ended()).await;
    }
    whole(&gateway, &caller, &id).await
}

/// Ends a job. The run that is about to end, if there is one.
async fn end(gateway: Gateway, row: JobRow, key: String) -> Answer<Option<Arc<Live>>> {
    let (of, id, at_ms) = (gateway.clone(), row.id.clone(), engine::now().0);
    let cancelled = gateway.durable().write(move |writing| {
        let entry = Entry {
            what: "job.cancel",
            decision: Decision::Allowed,
            ..Entry::default()
        };
        change::note(
            &of,
            &Entry {
                tenant: &row.tenant,
                key: &key,
                job: &row.id,
                ..entry
            },
        )?;
        let cancelled = writing.cancel_job(&row.id, at_ms)?;
        if let Cancelled::Queued(changes) = &cancelled {
            change::follow(&of, writing, changes, at_ms)?;
        }
        Ok(cancelled)
    });
    match cancelled.await? {
        Cancelled::Queued(changes) => change::after(&gateway, &changes),
        Cancelled::Running(run) => {
            gateway.jobs().tell(&id);
            let live = gateway.runs().find(&run);
            live.iter().for_each(|live| live.cancel());
            return Ok(live);
        }
        Cancelled::Before | Cancelled::Unknown => {}
    }
    Ok(None)
}

/// Run a job again that is over
///
/// As if it had not been tried: with all of its retries, and the rights that its key has now.
#[utoipa::path(post, path = "/v1/jobs/{id}/retry", tag = "jobs", params(("id" = String, Path,)), responses(
    (status = 202, description = "It waits", body = Job),
    (status = 409, description = "It is not over, or waits in vain", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn retry(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    let before = row(&gateway, &caller, &id).await?;
    gateway.has_room()?;
    match to_its_end(again(gateway.clone(), before, caller.key.clone())).await? {
        Retried::Queued => accepted(&gateway, &row(&gateway, &caller, &id).await?),
        Retried::NotFinal => Err(Problem::conflict(
            "the job has not ended",
            "wait for its end, or cancel it first",
        )),
        Retried::InVain(needed) => Err(Problem::conflict(
            format!("it comes after the job `{needed}`, which did not succeed"),
            "retry that one first",
        )),
        Retried::Followed => Err(Problem::conflict(
            "not all jobs that come after it have followed its end yet",
            "try again in a moment",
        )),
        Retried::Full(bound) => Err(full(bound)),
        Retried::Unknown => Err(Problem::not_found("job")),
    }
}

/// Lets a job that is over begin again.
async fn again(gateway: Gateway, before: JobRow, key: String) -> Answer<Retried> {
    let (of, id, at_ms) = (gateway.clone(), before.id.clone(), engine::now().0);
    let retried = gateway.durable().write(move |writing| {
        let retried = writing.retry_job(&before.id, at_ms, &of.job_room(&before.tenant))?;
        let decision = if retried == Retried::Queued {
            Decision::Allowed
        } else {
            Decision::Refused
        };
        let entry = Entry {
            what: "job.retry",
            decision,
            ..Entry::default()
        };
        change::note(
            &of,
            &Entry {
                tenant: &before.tenant,
                key: &key,
                job: &before.id,
                ..entry
            },
        )?;
        Ok(retried)
    });
    let retried = retried.await?;
    if retried == Retried::Queued {
        gateway.jobs().tell(&id);
        gateway.jobs().wake();
    }
    Ok(retried)
}

/// What its last try wrote
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", tag = "jobs", params(("id" = String, Path,), Logs), responses(
    (status = 200, description = "As much as is kept: 64 KiB of each stream once it is long over. With the header `airlock-truncated: true` there was more", body = String, content_type = "text/plain"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn logs(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    which: Asked<Logs>,
) -> Answer<Response> {
    let row = row(&gateway, &caller, &id).await?;
    let stream = match query(which)?.stream.as_deref() {
        None | Some("stdout") => Stream::Stdout,
        Some("stderr") => Stream::Stderr,
        Some(_) => {
            return Err(Problem::invalid(
                "there is no such stream",
                "there are stdout, stderr",
            ));
        }
    };
    let live = row.run.as_deref().and_then(|run| gateway.runs().find(run));
    let (bytes, truncated) = match live {
        Some(live) => tokio::task::spawn_blocking(move || written(&live.feed, stream))
            .await
            .map_err(|_| crate::writer::busy())?,
        None => {
            let id = row.id.clone();
            kept(
                gateway
                    .look_up(move |served| served.job_result(&id))
                    .await?,
                stream,
            )
        }
    };
    let mut response = fitting::sent(gateway.answering(), &caller.tenant, bytes)?;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    // What a program wrote is not for a browser to make a page of.
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    if truncated {
        headers.insert("airlock-truncated", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// What there is of it now; what is written meanwhile is not waited for.
fn written(feed: &engine::Feed, stream: Stream) -> (Vec<u8>, bool) {
    let (mut bytes, mut from, mut truncated) = (Vec::new(), 0, false);
    let [stdout, stderr] = feed.lengths();
    let end = if stream == Stream::Stdout {
        stdout
    } else {
        stderr
    };
    loop {
        let piece = feed.read(stream, from, LARGEST_PIECE);
        truncated |= piece.from > from;
        if piece.bytes.is_empty() || from >= end {
            return (bytes, truncated);
        }
        from = piece.from + piece.bytes.len() as u64;
        bytes.extend_from_slice(&piece.bytes);
    }
}

/// What is kept of it.
fn kept(result: Option<String>, stream: Stream) -> (Vec<u8>, bool) {
    let result: Value = result
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let text = result[name].as_str().map(|text| text.as_bytes().to_vec());
    let bytes =
        text.or_else(|| wire::decoded(result[format!("{name}_base64")].as_str()?, name).ok());
    (
        bytes.unwrap_or_default(),
        result["truncated"][name].as_bool() == Some(true),
    )
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, cancel))
        .routes(routes!(retry))
        .routes(routes!(logs))
        .routes(routes!(events::events))
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
