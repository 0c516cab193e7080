//! Consequences of a job state change. In the same transaction: audit entry and webhook notice, so
//! that neither is ever missing. After the commit: waiters are notified.

use super::{
    PRUNE_EVERY,
    view::Job,
    webhook::{self, StoredWebhook},
};
use crate::{
    Gateway,
    problem::Answer,
    runs::{
        self,
        active::{ActiveRun, RunEndRecord},
    },
};
use spec::{ErrorCode, ErrorInfo, Status};
use std::sync::atomic::Ordering;
use store::{
    DatabaseError,
    audit::{AuditEntry, Decision},
    jobs::{AttemptEnd, CancelJobOutcome, JobChange, JobFilter},
    server_database::WriteTransaction,
};

/// Jobs that are cancelled per transaction.
const CANCEL_BATCH: u32 = 200;

/// Writes an audit entry; if it fails, the transaction fails.
pub(crate) fn write_audit(gateway: &Gateway, entry: &AuditEntry<'_>) -> Result<(), DatabaseError> {
    gateway
        .write_audit(entry)
        .map_err(|_| DatabaseError::Unusable {
            path: gateway.state().to_owned(),
            why: "the audit cannot be written".to_owned(),
        })
}

/// Writes audit entries and webhook notices of changes, in their transaction.
pub(super) fn record_changes(
    gateway: &Gateway,
    transaction: &WriteTransaction<'_>,
    changes: &[JobChange],
    at_ms: u64,
) -> Result<(), DatabaseError> {
    // A job that only waits for something else is not audited.
    for change in changes.iter().filter(|change| !change.wait_changed) {
        let (what, event) = match change.status.as_str() {
            "queued" => ("job.again", None),
            "running" => ("job.start", Some("running")),
            _ => ("job.end", Some("final")),
        };
        let run = change.run.as_deref().unwrap_or_default();
        let tenant = change.tenant.as_str();
        let job = change.id.as_str();
        let about = change.status.as_str();
        let decision = Decision::Happened;
        write_audit(
            gateway,
            &AuditEntry {
                what,
                decision,
                tenant,
                job,
                run,
                about,
                ..AuditEntry::default()
            },
        )?;
        if let Some(event) = event {
            enqueue_webhook(gateway, transaction, change, event, at_ms)?;
        }
    }
    Ok(())
}

fn enqueue_webhook(
    gateway: &Gateway,
    transaction: &WriteTransaction<'_>,
    change: &JobChange,
    event: &str,
    at_ms: u64,
) -> Result<(), DatabaseError> {
    let webhook = change
        .webhook
        .as_deref()
        .and_then(|text| serde_json::from_str::<StoredWebhook>(text).ok());
    let Some(webhook) =
        webhook.filter(|webhook| webhook.events.iter().any(|wanted| wanted == event))
    else {
        return Ok(());
    };
    let Some(row) = transaction.job(&change.id)? else {
        return Ok(());
    };
    let result = store::webhooks::job_result(transaction, &change.id)?;
    let body = Job::of(gateway, &row).to_json_with_result(result.as_deref());
    webhook::enqueue(
        transaction,
        &webhook,
        &change.id,
        &change.tenant,
        event,
        at_ms,
        body,
    )
}

/// Notifies waiters after the commit.
pub(super) fn notify_changes(gateway: &Gateway, changes: &[JobChange]) {
    let jobs = gateway.jobs();
    for change in changes {
        jobs.notify(&change.id);
        if !matches!(change.status.as_str(), "queued" | "running") {
            gateway.metrics().job(&change.status);
            if jobs.ended.fetch_add(1, Ordering::Relaxed) % PRUNE_EVERY == PRUNE_EVERY - 1 {
                let gateway = gateway.clone();
                tokio::spawn(async move { super::prune(&gateway).await });
            }
        }
    }
    jobs.wake();
    jobs.dependents_ready.notify_one();
}

/// Cancels all unfinished jobs of every tenant; returns the ids of the queued ones. Running jobs
/// are marked, so that they are not retried. Each page is one transaction, and jobs accepted
/// meanwhile come after the first page.
pub(crate) async fn cancel_all(gateway: &Gateway, key: &str) -> Answer<Vec<String>> {
    let mut before = None;
    let mut cancelled = Vec::new();
    loop {
        let filter = JobFilter {
            open: true,
            before,
            limit: CANCEL_BATCH,
            ..JobFilter::default()
        };
        let page = gateway
            .query_database(move |database| database.list_jobs(&filter))
            .await?;
        let is_last = page.before.is_none();
        before = page.before;
        let handle = gateway.clone();
        let key = key.to_owned();
        let at_ms = engine::now().0;
        let write = move |transaction: &WriteTransaction<'_>| {
            let mut all = Vec::new();
            for row in &page.rows {
                let changes = match transaction.cancel_job(&row.id, at_ms)? {
                    CancelJobOutcome::Cancelled(changes) => changes,
                    CancelJobOutcome::Running(_) => Vec::new(),
                    CancelJobOutcome::AlreadyEnded | CancelJobOutcome::Unknown => continue,
                };
                let entry = AuditEntry {
                    what: "job.cancel",
                    decision: Decision::Allowed,
                    rule: "admin",
                    key: &key,
                    tenant: &row.tenant,
                    job: &row.id,
                    ..AuditEntry::default()
                };
                write_audit(&handle, &entry)?;
                record_changes(&handle, transaction, &changes, at_ms)?;
                all.extend(changes);
            }
            Ok(all)
        };
        let changes = gateway.durable_writer().write(write).await?;
        notify_changes(gateway, &changes);
        cancelled.extend(changes.into_iter().map(|change| change.id));
        if is_last {
            return Ok(cancelled);
        }
    }
}

/// Writes the end of an attempt: run and job in one transaction, so that they never disagree.
/// Returns whether it was written. A run that the shutdown ended does not end its job: that is
/// decided as after a crash.
pub(crate) async fn record_attempt_end(
    gateway: &Gateway,
    live: &ActiveRun,
    ending: RunEndRecord,
) -> bool {
    let handle = gateway.clone();
    let run = live.id.clone();
    let owner = live.owner.clone();
    let at_ms = engine::now().0;
    let written = gateway.durable_writer().write(move |transaction| {
        ending.write(transaction, run.as_str(), &owner)?;
        // The bytes are valid UTF-8: they were serialized as text.
        let result = String::from_utf8_lossy(&ending.stored);
        let (status, error) = if ending.interrupted {
            (Status::Lost, Some(lost_error()))
        } else {
            (ending.status, ending.error.clone())
        };
        let error = error
            .as_ref()
            .and_then(|error| serde_json::to_string(error).ok());
        let end = AttemptEnd {
            status: status.name(),
            result: Some(&result),
            error: error.as_deref(),
            at_ms,
        };
        let changes = transaction.end_job(run.as_str(), &end)?;
        record_changes(&handle, transaction, &changes, at_ms)?;
        Ok(changes)
    });
    let written = written.await;
    if let Ok(changes) = &written {
        notify_changes(gateway, changes);
    }
    written.is_ok()
}

/// Ends the attempt that was lost with its server, in the transaction that ends the run.
pub(crate) fn record_lost_attempt(
    gateway: &Gateway,
    transaction: &WriteTransaction<'_>,
    run: &str,
    result: Option<&str>,
) -> Result<(), DatabaseError> {
    let at_ms = engine::now().0;
    let error = serde_json::to_string(&lost_error()).ok();
    let end = AttemptEnd {
        status: Status::Lost.name(),
        result,
        error: error.as_deref(),
        at_ms,
    };
    let changes = transaction.end_job(run, &end)?;
    record_changes(gateway, transaction, &changes, at_ms)
}

/// Settles running jobs of a previous server. A job whose run is already ended or forgotten should
/// not exist, because both are written together; if there is one, it does not stay running.
pub(crate) fn settle_unfinished(gateway: &Gateway) -> Result<(), DatabaseError> {
    runs::active::settle_unfinished(gateway)?;
    let database = gateway.database();
    let rest = database.abandoned_jobs(&gateway.jobs().lease_owner)?;
    if !rest.is_empty() {
        database.transact_durably(|transaction| {
            rest.iter()
                .try_for_each(|job| record_lost_attempt(gateway, transaction, &job.run, None))
        })?;
    }
    // Quotas may have changed since the previous start.
    database.transact(|transaction| transaction.requeue_deferred_jobs(engine::now().0))?;
    database.prune_jobs(
        engine::now().0,
        gateway.jobs().bounds.keep_jobs,
        super::MAX_BYTES / 2,
    )?;
    Ok(())
}

fn lost_error() -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Lost,
        message: "the server ended before the job did".to_owned(),
        hint: Some(
            "nobody knows how far it came; look, then retry it, or ask for `on_lost`: `rerun`"
                .to_owned(),
        ),
    }
}
