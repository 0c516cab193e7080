//! HTTP routes of jobs: create, get, list, cancel, retry, logs.

use super::{
    JobOrder, change, events,
    validate::{self, JobTerms},
    view::Job,
};
use crate::{
    Caller, Gateway, Problem, Scope,
    cursor::PagedList,
    json_response::{self, ResponseLimit},
    path::Path,
    problem::Answer,
    runs::{self, active::ActiveRun},
    tenants::{ResourceDemand, WorkKind},
    wire::{self, RawBody},
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
use spec::{Id, Status, StdStream};
use std::{sync::Arc, time::Duration};
use store::{
    DatabaseError,
    audit::{AuditEntry, Decision},
    jobs::{
        AddJobOutcome, CancelJobOutcome, JobChange, JobFilter, JobPage, JobRow, NewJob,
        QueueLimits, ReachedLimit, RetryJobOutcome,
    },
    server_database::WriteTransaction,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const DEFAULT_LISTED: u32 = 50;
/// How long a cancel request waits for the run to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read from a stream at a time.
const CHUNK: usize = 64 << 10;

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
struct JobsQuery {
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
struct LogsQuery {
    /// `stdout`, unless said, or `stderr`.
    stream: Option<String>,
}

type QueryResult<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

fn parse_query<T>(query: QueryResult<T>) -> Answer<T> {
    let Query(query) = query.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    Ok(query)
}

/// The row of a job that the caller may see; another tenant's job is not found.
pub(super) async fn row(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<JobRow> {
    caller.require(Scope::Runs)?;
    let id = id.to_owned();
    let row = gateway
        .query_database(move |database| database.job(&id))
        .await?
        .filter(|row| caller.sees(&row.tenant));
    row.ok_or_else(|| Problem::not_found("job"))
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
    raw: RawBody,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    gateway.check_disk_space()?;
    let name = runs::idempotency_key(&headers)?.map(str::to_owned);
    let read = |body: &[u8]| {
        let key = name.map(|name| (name, Sha256::digest(body).into()));
        let order = wire::parse_object::<JobOrder>(body)?;
        let text = str::from_utf8(body).map_err(|_| wire::body_problem("it is not UTF-8"))?;
        Ok((key, order, text.to_owned()))
    };
    let (idempotency_key, order, text) = raw.read(&gateway, &caller.tenant, read).await?;
    let id = engine::fresh_id();
    let at_ms = engine::now().0;
    order
        .webhook
        .as_ref()
        .map_or(Ok(()), |webhook| webhook.check_allowed(&gateway))?;
    let terms = JobTerms::of(&order, &gateway.jobs().bounds, at_ms)?;
    let is_now = terms.not_before_ms.is_none_or(|moment| moment <= at_ms);
    // The job spec is validated here so that the caller learns of errors, and again when the job
    // starts.
    let (spec, _) = validate::admit(&gateway, &caller, order, &id)?;
    let needs = ResourceDemand {
        what: WorkKind::Job,
        llm: spec.grants.llm.is_some(),
        storage: spec.sandbox.copy_on_write,
        memory: 0,
    };
    // A job that starts on a later day uses that day's CPU time and money quota, which is checked
    // then.
    let quota_check = if is_now {
        gateway.check_quota(&caller.tenant, needs).await
    } else {
        Ok(())
    };
    let new = NewJobRequest {
        id: id.clone(),
        caller: caller.clone(),
        at_ms,
        terms,
        order: text,
        idempotency_key,
        quota_check,
    };
    match run_to_completion(accept(gateway.clone(), new)).await? {
        AcceptedJob::New(row, _) => accepted(&gateway, &row),
        AcceptedJob::Existing(id) => {
            accepted(&gateway, &existing_job(&gateway, &caller, &id).await?)
        }
        AcceptedJob::Refused(problem) => Err(problem),
    }
}

/// Runs a task to its end even if the client disconnects: what is stored is carried out.
async fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = Answer<T>> + Send + 'static,
) -> Answer<T> {
    tokio::spawn(work)
        .await
        .map_err(|_| crate::db_writer::busy())?
}

async fn accept(gateway: Gateway, new: NewJobRequest) -> Answer<AcceptedJob> {
    let handle = gateway.clone();
    let taken = gateway
        .durable_writer()
        .write(move |transaction| new.insert(&handle, transaction))
        .await?;
    if let AcceptedJob::New(_, changes) = &taken {
        change::notify_changes(&gateway, changes);
    }
    Ok(taken)
}

fn audit_entry(caller: &Caller) -> AuditEntry<'_> {
    AuditEntry {
        what: "job.accept",
        tenant: &caller.tenant,
        key: &caller.key,
        ..AuditEntry::default()
    }
}

/// A job that is about to be stored.
struct NewJobRequest {
    id: Id,
    caller: Caller,
    at_ms: u64,
    terms: JobTerms,
    order: String,
    idempotency_key: Option<(String, [u8; 32])>,
    /// Result of the quota check; an existing job of the same Idempotency-Key is answered in any
    /// case.
    quota_check: Answer<()>,
}

enum AcceptedJob {
    /// With the changes that followed at once.
    New(Box<JobRow>, Vec<JobChange>),
    Existing(String),
    Refused(Problem),
}

impl NewJobRequest {
    fn insert(
        self,
        gateway: &Gateway,
        transaction: &WriteTransaction<'_>,
    ) -> Result<AcceptedJob, DatabaseError> {
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
            max_attempts: terms.most_attempts,
            retry_on: &terms.retry_on,
            pause_ms: terms.pause_ms,
            rerun: terms.rerun,
            after: &terms.after,
            webhook: terms.webhook.as_deref(),
            order: &self.order,
            idempotency_key: self
                .idempotency_key
                .as_ref()
                .map(|(name, body)| (name.as_str(), *body)),
        };
        let room = gateway.job_limits(&self.caller.tenant);
        let queued = if self.quota_check.is_ok() {
            room.queued
        } else {
            0
        };
        let added = transaction.add_job(&new, &QueueLimits { queued, ..room })?;
        // A dependent of a failed job ends at once, which is recorded like any end.
        let (added, changes) = match added {
            AddJobOutcome::DependencyFailed(changes) => (AddJobOutcome::Accepted, changes),
            added => (added, Vec::new()),
        };
        let problem = match (added, self.quota_check) {
            (AddJobOutcome::Accepted | AddJobOutcome::DependencyFailed(_), _) => {
                let entry = AuditEntry {
                    decision: Decision::Allowed,
                    job: self.id.as_str(),
                    rule: Scope::Runs.name(),
                    ..audit_entry(&self.caller)
                };
                change::write_audit(gateway, &entry)?;
                change::record_changes(gateway, transaction, &changes, self.at_ms)?;
                let row = transaction.job(self.id.as_str())?;
                return Ok(row.map_or_else(
                    || AcceptedJob::Refused(Problem::not_found("job")),
                    |row| AcceptedJob::New(Box::new(row), changes),
                ));
            }
            (AddJobOutcome::Duplicate(id), _) => return Ok(AcceptedJob::Existing(id)),
            (AddJobOutcome::KeyReused, _) => other_request(),
            (AddJobOutcome::UnknownDependency(id), _) => validate::unknown_job(&id),
            (AddJobOutcome::Full(_), Err(refusal)) => refusal,
            (AddJobOutcome::Full(bound), Ok(())) => limit_problem(bound),
        };
        Ok(AcceptedJob::Refused(problem))
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

fn limit_problem(bound: ReachedLimit) -> Problem {
    let (title, hint) = match bound {
        ReachedLimit::Queued => (
            "too many jobs wait on this server: a tenant may have half of what the others leave",
            "wait until some have started, or raise `queued` under [jobs]",
        ),
        ReachedLimit::QueuedPerTenant => (
            "too many jobs of this tenant wait",
            "wait until some have started, or raise `queued_per_tenant` under [jobs]",
        ),
        ReachedLimit::Jobs => (
            "this tenant has as many jobs as it may",
            "wait until one has ended; the operator sets the quota `jobs`",
        ),
        ReachedLimit::Bytes => (
            "the orders and results of jobs take too much room",
            "wait until some are forgotten; keep large files as artifacts",
        ),
        ReachedLimit::BytesPerTenant => (
            "the orders and results of this tenant's jobs take too much room",
            "ask for a shorter `keep_for`; keep large files as artifacts",
        ),
        ReachedLimit::Dependents => (
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

/// The job of an Idempotency-Key. The key may outlive its job; the job is not run again.
async fn existing_job(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<JobRow> {
    let id = id.to_owned();
    let row = gateway
        .query_database(move |database| database.job(&id))
        .await?
        .filter(|row| row.tenant == caller.tenant);
    row.ok_or_else(|| {
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
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(JobsQuery), responses(
    (status = 200, description = "One page of them, without results", body = JobList),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: QueryResult<JobsQuery>,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let query = parse_query(query)?;
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
    let label = |text: String| {
        let split = text
            .split_once('=')
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        split.ok_or_else(|| Problem::invalid("`label` is no label", "write label=name=value"))
    };
    let filter = JobFilter {
        tenant: (!caller.is_admin()).then(|| caller.tenant.clone()),
        status: query.status,
        name: query.name,
        label: query.label.map(label).transpose()?,
        open: false,
        before: gateway
            .cursors()
            .open(&caller.tenant, PagedList::Jobs, query.before.as_deref())?,
        limit,
    };
    let handle = gateway.clone();
    let tenant = caller.tenant.clone();
    let page = move || page(&handle, &tenant, handle.database().list_jobs(&filter)?);
    json_response::compute(&gateway, &caller, page).await
}

/// The jobs that fit into one response; the cursor continues after them.
fn page(gateway: &Gateway, tenant: &str, JobPage { rows, before }: JobPage) -> Answer<JobList> {
    let (jobs, more) = ResponseLimit::new().fill(rows.iter().map(|row| Job::of(gateway, row)));
    let last = jobs.len().checked_sub(1).map(|last| rows[last].n);
    let before = if more { last } else { before };
    let before = before
        .map(|n| gateway.cursors().seal(tenant, PagedList::Jobs, n))
        .transpose()?;
    Ok(JobList { jobs, before })
}

/// The job with the result of its last attempt.
async fn job_response(gateway: &Gateway, caller: &Caller, id: &str) -> Answer<Response> {
    let row = row(gateway, caller, id).await?;
    let id = row.id.clone();
    let result = gateway
        .query_database(move |database| database.job_result(&id))
        .await?;
    let text = Job::of(gateway, &row).to_json_with_result(result.as_deref());
    let mut response = json_response::from_bytes(gateway.response_bytes(), &caller.tenant, text)
        .map_err(|problem| problem.with_instance(format!("/v1/jobs/{}", row.id)))?;
    // The run is still ending.
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
    let mut response = job_response(&gateway, &caller, &id).await?;
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
    if let Some(live) = run_to_completion(end_job(gateway.clone(), row, caller.key.clone())).await?
    {
        // After the timeout the status shows that it still runs.
        _ = tokio::time::timeout(CANCEL_TIMEOUT, live.ended()).await;
    }
    job_response(&gateway, &caller, &id).await
}

/// Cancels a job; returns the run that is about to end, if there is one.
async fn end_job(gateway: Gateway, row: JobRow, key: String) -> Answer<Option<Arc<ActiveRun>>> {
    let handle = gateway.clone();
    let id = row.id.clone();
    let at_ms = engine::now().0;
    let cancelled = gateway.durable_writer().write(move |transaction| {
        let entry = AuditEntry {
            what: "job.cancel",
            decision: Decision::Allowed,
            tenant: &row.tenant,
            key: &key,
            job: &row.id,
            ..AuditEntry::default()
        };
        change::write_audit(&handle, &entry)?;
        let cancelled = transaction.cancel_job(&row.id, at_ms)?;
        if let CancelJobOutcome::Cancelled(changes) = &cancelled {
            change::record_changes(&handle, transaction, changes, at_ms)?;
        }
        Ok(cancelled)
    });
    match cancelled.await? {
        CancelJobOutcome::Cancelled(changes) => change::notify_changes(&gateway, &changes),
        CancelJobOutcome::Running(run) => {
            gateway.jobs().notify(&id);
            let live = gateway.runs().find(&run);
            live.iter().for_each(|live| live.cancel());
            return Ok(live);
        }
        CancelJobOutcome::AlreadyEnded | CancelJobOutcome::Unknown => {}
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
    gateway.check_disk_space()?;
    match run_to_completion(requeue(gateway.clone(), before, caller.key.clone())).await? {
        RetryJobOutcome::Queued => accepted(&gateway, &row(&gateway, &caller, &id).await?),
        RetryJobOutcome::NotEnded => Err(Problem::conflict(
            "the job has not ended",
            "wait for its end, or cancel it first",
        )),
        RetryJobOutcome::DependencyFailed(needed) => Err(Problem::conflict(
            format!("it comes after the job `{needed}`, which did not succeed"),
            "retry that one first",
        )),
        RetryJobOutcome::DependentsPending => Err(Problem::conflict(
            "not all jobs that come after it have followed its end yet",
            "try again in a moment",
        )),
        RetryJobOutcome::Full(bound) => Err(limit_problem(bound)),
        RetryJobOutcome::Unknown => Err(Problem::not_found("job")),
    }
}

/// Queues a finished job again.
async fn requeue(gateway: Gateway, before: JobRow, key: String) -> Answer<RetryJobOutcome> {
    let handle = gateway.clone();
    let id = before.id.clone();
    let at_ms = engine::now().0;
    let retried = gateway.durable_writer().write(move |transaction| {
        let retried =
            transaction.retry_job(&before.id, at_ms, &handle.job_limits(&before.tenant))?;
        let decision = if retried == RetryJobOutcome::Queued {
            Decision::Allowed
        } else {
            Decision::Refused
        };
        let entry = AuditEntry {
            what: "job.retry",
            decision,
            tenant: &before.tenant,
            key: &key,
            job: &before.id,
            ..AuditEntry::default()
        };
        change::write_audit(&handle, &entry)?;
        Ok(retried)
    });
    let retried = retried.await?;
    if retried == RetryJobOutcome::Queued {
        gateway.jobs().notify(&id);
        gateway.jobs().wake();
    }
    Ok(retried)
}

/// What its last try wrote
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", tag = "jobs", params(("id" = String, Path,), LogsQuery), responses(
    (status = 200, description = "As much as is kept: 64 KiB of each stream once it is long over. With the header `airlock-truncated: true` there was more", body = String, content_type = "text/plain"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn logs(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    query: QueryResult<LogsQuery>,
) -> Answer<Response> {
    let row = row(&gateway, &caller, &id).await?;
    let stream = match parse_query(query)?.stream.as_deref() {
        None | Some("stdout") => StdStream::Stdout,
        Some("stderr") => StdStream::Stderr,
        Some(_) => {
            return Err(Problem::invalid(
                "there is no such stream",
                "there are stdout, stderr",
            ));
        }
    };
    let live = row.run.as_deref().and_then(|run| gateway.runs().find(run));
    let (bytes, truncated) = match live {
        Some(live) => tokio::task::spawn_blocking(move || live_output(&live.feed, stream))
            .await
            .map_err(|_| crate::db_writer::busy())?,
        None => {
            let id = row.id.clone();
            stored_output(
                gateway
                    .query_database(move |database| database.job_result(&id))
                    .await?,
                stream,
            )
        }
    };
    let mut response = json_response::from_bytes(gateway.response_bytes(), &caller.tenant, bytes)?;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    // Output of a program must not be rendered by a browser.
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    if truncated {
        headers.insert("airlock-truncated", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The output so far; does not wait for more.
fn live_output(feed: &engine::OutputLog, stream: StdStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let mut from = 0;
    let mut truncated = false;
    let [stdout, stderr] = feed.lengths();
    let end = if stream == StdStream::Stdout {
        stdout
    } else {
        stderr
    };
    loop {
        let piece = feed.read(stream, from, CHUNK);
        truncated |= piece.from > from;
        if piece.bytes.is_empty() || from >= end {
            return (bytes, truncated);
        }
        from = piece.from + piece.bytes.len() as u64;
        bytes.extend_from_slice(&piece.bytes);
    }
}

/// The stored output.
fn stored_output(result: Option<String>, stream: StdStream) -> (Vec<u8>, bool) {
    let result: Value = result
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let name = match stream {
        StdStream::Stdout => "stdout",
        StdStream::Stderr => "stderr",
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
