//! One attempt of a job. An attempt is a run: the transaction that marks its job as running also
//! accepts the run, and the transaction that ends the run also decides what follows for the job.
//!
//! Before the program starts, the start of a job that must not run twice is committed to survive
//! power loss. A job that is run again after a crash anyway does not wait for the disk.

use super::{JobOrder, change, scheduler::ClaimedJob, validate};
use crate::{
    Gateway, Problem,
    problem::Answer,
    runs::{
        self,
        active::{self, ActiveRun, RunMeta},
    },
    tenants::{ResourceDemand, WorkKind},
};
use http::StatusCode;
use spec::{Day, Id, RunSpec};
use std::{sync::Arc, time::Duration};
use store::{
    DatabaseError,
    audit::{AuditEntry, Decision},
    jobs::{AttemptEnd, JobChange, JobRow},
    server_database::{AcceptRunOutcome, NewRun, TenantActivity, WriteTransaction},
};

/// Pause after an internal error.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Backoff of a job that waits for its tenant's quota: as long as it has waited so far, within
/// these bounds.
const MIN_QUOTA_WAIT: Duration = Duration::from_secs(60);
const MAX_QUOTA_WAIT: Duration = Duration::from_secs(15 * 60);

/// Poll interval while a previous attempt ends.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs one attempt of a claimed job. Its slot is taken until this returns.
pub(super) async fn run_attempt(gateway: Gateway, claimed: ClaimedJob) {
    match begin(&gateway, &claimed.id).await {
        Ok(Some((live, task))) => {
            drop(claimed);
            // A task that panicked has not written the end of its run; the job must not stay
            // running.
            if task.await.is_err() {
                let mut result = active::lost_result(live.id.clone(), engine::now());
                result.error = result.error.map(|error| spec::ErrorInfo {
                    message: "the run broke off".to_owned(),
                    ..error
                });
                active::finish(&gateway, &live, result).await;
            }
        }
        Ok(None) => {}
        Err(problem) => {
            crate::log_warning(format_args!(
                "airlock: a job cannot start now: {}",
                problem.to_error_json()
            ));
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Starts the attempt; `None` if the job is not due any more, or was rejected, which ends it.
async fn begin(
    gateway: &Gateway,
    id: &str,
) -> Answer<Option<(Arc<ActiveRun>, tokio::task::JoinHandle<()>)>> {
    let name = id.to_owned();
    let Some((row, order)) = gateway
        .query_database(move |database| database.job_with_order(&name))
        .await?
    else {
        return Ok(None);
    };
    // Blocking: keys are read from the database, and the job spec may be long.
    let handle = gateway.clone();
    let readmitted =
        tokio::task::spawn_blocking(move || (readmit(&handle, &row, &order), row)).await;
    let (admitted, row) = readmitted.map_err(|_| crate::db_writer::busy())?;
    let (spec, stdin) = match admitted {
        Ok(admitted) => admitted,
        Err(Rejection { problem, .. }) if problem.status().is_server_error() => {
            return Err(*problem);
        }
        Err(refused) => return reject(gateway, row, refused).await.map(|()| None),
    };
    let needs = ResourceDemand {
        what: WorkKind::Job,
        llm: spec.grants.llm.is_some(),
        storage: spec.sandbox.copy_on_write,
        memory: 0,
    };
    match gateway.check_quota(&row.tenant, needs).await {
        Ok(()) => {}
        Err(problem) if is_quota(problem.code()) => {
            return defer(gateway, row, problem).await.map(|()| None);
        }
        Err(problem) => return Err(problem),
    }
    wait_for_previous_attempt(gateway, &row).await?;
    let owner = crate::caller::owner_of(&row.tenant)?;
    let live = Arc::new(ActiveRun::attempt(
        gateway,
        engine::fresh_id(),
        &owner,
        (row.id.clone(), spec.task_id.clone()),
        RunMeta::by(&row.key, &spec).with_stdin(stdin.as_ref().map_or(0, Vec::len)),
    ));
    let writer = if row.rerun {
        gateway.writer()
    } else {
        gateway.durable_writer()
    };
    let handle = gateway.clone();
    let listed = live.clone();
    let task = spec.task_id.clone();
    let written = writer
        .write(move |transaction| claim(&handle, transaction, &row, &listed, task.as_ref()))
        .await;
    match written {
        Ok(Some(changed)) => {
            change::notify_changes(gateway, &[changed]);
            active::prune_periodically(gateway);
            let task = runs::start(gateway, &live, spec, stdin);
            Ok(Some((live, task)))
        }
        Ok(None) => Ok(None),
        Err(problem) => {
            gateway.runs().remove(&live);
            Err(problem)
        }
    }
}

/// Waits until nothing of the previous attempt is left. Its processes end with their server, but
/// not at once; the engine sweeps leftovers when it opens, and once more here if that failed. Two
/// attempts of a job never overlap.
async fn wait_for_previous_attempt(gateway: &Gateway, row: &JobRow) -> Answer<()> {
    let Some(before) = row.run.as_deref().and_then(|run| Id::new(run).ok()) else {
        return Ok(());
    };
    let end = tokio::time::Instant::now() + RETRY_PAUSE;
    // The record of a finished run is removed shortly after its end, without a notification.
    while gateway.engine().may_be_left(&before) && tokio::time::Instant::now() < end {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if gateway.engine().may_be_left(&before) {
        let engine = gateway.engine().clone();
        // Leftovers of the sweep are checked next.
        _ = tokio::task::spawn_blocking(move || engine.sweep()).await;
    }
    if gateway.engine().may_be_left(&before) {
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "internal",
            format!(
                "something of the run `{before}` is left, and its job does not run beside itself"
            ),
            Some("see what `airlock sweep` says".to_owned()),
        ))
    } else {
        Ok(())
    }
}

/// Why an accepted job may not run.
struct Rejection {
    status: &'static str,
    problem: Box<Problem>,
}

/// Admits the job again, with the current rights of its key.
fn readmit(
    gateway: &Gateway,
    row: &JobRow,
    order: &str,
) -> Result<(RunSpec, Option<Vec<u8>>), Rejection> {
    let not_started = |problem| Rejection {
        status: "not_started",
        problem: Box::new(problem),
    };
    let holder = gateway
        .keys()
        .holder(&row.key)
        .map_err(|error| not_started(error.into()))?;
    let Some(caller) = holder.filter(|caller| caller.tenant == row.tenant) else {
        let title = "the key by which it was asked for was revoked or has expired";
        let hint = Some("ask for it again by another".to_owned());
        let problem = Problem::new(StatusCode::FORBIDDEN, "policy_denied", title, hint);
        return Err(Rejection {
            status: "cancelled",
            problem: Box::new(problem),
        });
    };
    let admit = || {
        caller.require(crate::Scope::Runs)?;
        let order: JobOrder = serde_json::from_str(order)
            .map_err(|error| crate::wire::body_problem(&error.to_string()))?;
        let id = Id::new(&row.id).map_err(|_| Problem::not_found("job"))?;
        validate::admit(gateway, &caller, order, &id)
    };
    admit().map_err(not_started)
}

/// Whether the error code means that a quota is used up.
pub(super) fn is_quota(code: &str) -> bool {
    matches!(code, "quota_exceeded" | "budget_exceeded")
}

/// Defers a job until its tenant's quota allows it. Other jobs of the tenant may start before it.
async fn defer(gateway: &Gateway, row: JobRow, problem: Problem) -> Answer<()> {
    let now = engine::now();
    let waited = Duration::from_millis(now.0.saturating_sub(row.accepted_ms));
    let pause = waited.clamp(MIN_QUOTA_WAIT, MAX_QUOTA_WAIT).as_millis() as u64;
    // Daily quotas start again with the next day; storage does not.
    let due_ms = (now.0 + pause).min(Day::of(now).next().start().0);
    let handle = gateway.clone();
    let written = gateway.writer().write(move |transaction| {
        let before = row
            .error
            .as_ref()
            .is_some_and(|error| problem.matches_error(error));
        // A job that is deferred again for the same reason is audited once.
        if transaction.defer_job(&row.id, due_ms, &problem.to_error_json())? && !before {
            let entry = AuditEntry {
                what: "job.start",
                decision: Decision::Refused,
                tenant: &row.tenant,
                key: &row.key,
                job: &row.id,
                rule: problem.rule(),
                ..AuditEntry::default()
            };
            change::write_audit(&handle, &entry)?;
        }
        Ok(())
    });
    written.await
}

async fn reject(gateway: &Gateway, row: JobRow, refused: Rejection) -> Answer<()> {
    let handle = gateway.clone();
    let at_ms = engine::now().0;
    let written = gateway.durable_writer().write(move |transaction| {
        let error = refused.problem.to_error_json();
        let rule = refused.problem.rule().to_owned();
        let end = AttemptEnd {
            status: refused.status,
            result: None,
            error: Some(&error),
            at_ms,
        };
        let changes = transaction.refuse_job(&row.id, &end)?;
        let entry = AuditEntry {
            what: "job.start",
            decision: Decision::Refused,
            tenant: &row.tenant,
            key: &row.key,
            job: &row.id,
            rule: &rule,
            ..AuditEntry::default()
        };
        change::write_audit(&handle, &entry)?;
        change::record_changes(&handle, transaction, &changes, at_ms)?;
        Ok(changes)
    });
    change::notify_changes(gateway, &written.await?);
    Ok(())
}

/// Accepts the run and marks the job as running in one transaction. The run is registered before
/// its id can be known to anybody.
fn claim(
    gateway: &Gateway,
    transaction: &WriteTransaction<'_>,
    job: &JobRow,
    live: &Arc<ActiveRun>,
    task: Option<&Id>,
) -> Result<Option<JobChange>, DatabaseError> {
    let Some(_listing) = gateway.admission_permit() else {
        return Ok(None);
    };
    let jobs = gateway.jobs();
    let at_ms = engine::now().0;
    let is_full = gateway.runs_full(&job.tenant).is_some() || gateway.is_out_of_memory(&job.tenant);
    if is_full || !transaction.start_job(&job.id, live.id.as_str(), &jobs.lease_owner, at_ms)? {
        return Ok(None);
    }
    let id = live.id.as_str();
    let owner = job.tenant.as_str();
    let task = task.map(|task| task.as_str());
    let run = NewRun {
        id,
        owner,
        task,
        job: Some(&job.id),
        at_ms,
        idempotency_key: None,
    };
    match transaction.accept(&run, true)? {
        AcceptRunOutcome::Accepted => {}
        // A fresh id that exists already: the transaction is rolled back.
        AcceptRunOutcome::Duplicate(_)
        | AcceptRunOutcome::KeyReused
        | AcceptRunOutcome::IdTaken
        | AcceptRunOutcome::Full => {
            let why = "a run of a fresh name was there before".to_owned();
            return Err(DatabaseError::Unusable {
                path: gateway.state().to_owned(),
                why,
            });
        }
    }
    let day = gateway.daily_usage().count(owner, TenantActivity::ONE_RUN);
    transaction.add_tenant_activity(owner, day, TenantActivity::ONE_RUN)?;
    active::add_container(gateway, transaction, &run, live.meta())?;
    let changed = JobChange {
        id: job.id.clone(),
        tenant: job.tenant.clone(),
        status: "running".to_owned(),
        run: Some(live.id.to_string()),
        webhook: job.webhook.clone(),
        wait_changed: false,
    };
    change::record_changes(gateway, transaction, std::slice::from_ref(&changed), at_ms)?;
    gateway.runs().add(live);
    Ok(Some(changed))
}
