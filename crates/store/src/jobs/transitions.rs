//! State transitions of jobs: start and end of attempts, cancellation, retry and the final state.

use super::{
    add::{self, QueueLimits, ReachedLimit},
    dependents, queries,
    retry_policy::{NextStep, RetryPolicy, next_step},
};
use crate::{
    DatabaseError,
    server_database::{WriteTransaction, from_sql, sql_integer},
};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use spec::{ErrorCode, ErrorInfo};

/// Run ids stored for one job.
const MAX_STORED_RUNS: i64 = 200;

/// A changed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobChange {
    /// Job id.
    pub id: String,
    /// Tenant.
    pub tenant: String,
    /// Status.
    pub status: String,
    /// Run id of the last attempt.
    pub run: Option<String>,
    /// Webhook as JSON.
    pub webhook: Option<String>,
    /// Only what the job waits for has changed, not its status.
    pub wait_changed: bool,
}

/// The end of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd<'a> {
    /// Status of the attempt.
    pub status: &'a str,
    /// Result as stored JSON.
    pub result: Option<&'a str>,
    /// Error as JSON.
    pub error: Option<&'a str>,
    /// Time of the end.
    pub at_ms: u64,
}

/// Result of cancelling a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelJobOutcome {
    /// The job was queued; it is cancelled, with its dependents.
    Cancelled(Vec<JobChange>),
    /// The job is running as this run, which the caller must end.
    Running(String),
    /// The job had ended before.
    AlreadyEnded,
    /// There is no such job.
    Unknown,
}

/// Result of retrying a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryJobOutcome {
    /// The job is queued again.
    Queued,
    /// The job has not ended.
    NotEnded,
    /// The job depends on this one, which did not succeed.
    DependencyFailed(String),
    /// The job has ended, but its dependents are not updated yet.
    DependentsPending,
    /// A limit is reached.
    Full(ReachedLimit),
    /// There is no such job.
    Unknown,
}

impl WriteTransaction<'_> {
    /// Starts an attempt; false unless the job is ready. A job is started by one server only.
    pub fn start_job(
        &self,
        id: &str,
        run: &str,
        lease_owner: &str,
        now_ms: u64,
    ) -> Result<bool, DatabaseError> {
        self.map_error(start(self.inner, id, run, lease_owner, now_ms))
    }

    /// Ends the attempt with this run. Returns the changed jobs, the job itself first; none if it
    /// is not running as this run.
    pub fn end_job(
        &self,
        run: &str,
        end: &AttemptEnd<'_>,
    ) -> Result<Vec<JobChange>, DatabaseError> {
        self.map_error(end_try(self.inner, run, end))
    }

    /// Defers a ready job until this time, for this reason (JSON). False if it is not ready any
    /// more.
    pub fn defer_job(&self, id: &str, due_ms: u64, why: &str) -> Result<bool, DatabaseError> {
        let put_off =
            "UPDATE job SET waits_for = 'time', due_ms = ?2, error = ?3, version = version + 1
            WHERE id = ?1 AND waits_for = 'turn'";
        let changed = self.inner.prepare_cached(put_off);
        self.map_error(
            changed.and_then(|mut put| put.execute(params![id, sql_integer(due_ms), why])),
        )
        .map(|rows| rows == 1)
    }

    /// Makes all deferred jobs due at this time, because the missing quota may be available now.
    /// Returns how many.
    pub fn requeue_deferred_jobs(&self, now_ms: u64) -> Result<usize, DatabaseError> {
        let queue_again = "UPDATE job SET due_ms = ?1 WHERE waits_for = 'time' AND due_ms > ?1
            AND json_extract(error, '$.code') IN ('quota_exceeded', 'budget_exceeded')";
        self.map_error(self.inner.execute(queue_again, [sql_integer(now_ms)]))
    }

    /// Ends a queued job without another attempt.
    pub fn refuse_job(
        &self,
        id: &str,
        end: &AttemptEnd<'_>,
    ) -> Result<Vec<JobChange>, DatabaseError> {
        self.map_error(refuse(self.inner, id, end))
    }

    /// Cancels a job: at once if it is queued, otherwise the caller must end its run.
    pub fn cancel_job(&self, id: &str, now_ms: u64) -> Result<CancelJobOutcome, DatabaseError> {
        self.map_error(cancel(self.inner, id, now_ms))
    }

    /// Queues an ended job again, as if it had not been tried, unless a limit is reached.
    pub fn retry_job(
        &self,
        id: &str,
        now_ms: u64,
        room: &QueueLimits,
    ) -> Result<RetryJobOutcome, DatabaseError> {
        self.map_error(retry(self.inner, id, now_ms, room))
    }

    /// Makes the jobs ready whose time has come, up to `limit`. Returns their ids.
    pub fn release_due_jobs(&self, now_ms: u64, most: u32) -> Result<Vec<String>, DatabaseError> {
        let due = "UPDATE job SET waits_for = 'turn', version = version + 1 WHERE n IN
            (SELECT n FROM job WHERE waits_for = 'time' AND due_ms <= ? ORDER BY due_ms LIMIT ?) RETURNING id";
        let wait_changed = self.inner.prepare_cached(due);
        self.map_error(wait_changed.and_then(|mut due| {
            due.query_map(params![sql_integer(now_ms), most], |row| row.get(0))?
                .collect()
        }))
    }

    /// Propagates ended jobs to one batch of their dependents; empty once all is done.
    pub fn propagate_ended_jobs(&self, now_ms: u64) -> Result<Vec<JobChange>, DatabaseError> {
        self.map_error(dependents::propagate(self.inner, None, now_ms))
    }
}

fn start(
    transaction: &Transaction<'_>,
    id: &str,
    run: &str,
    lease_owner: &str,
    now_ms: u64,
) -> rusqlite::Result<bool> {
    let start =
        "UPDATE job SET status = 'running', waits_for = '', version = version + 1, boot = ?2, run = ?3,
            started_ms = ?4, attempt = attempt + 1, error = NULL
        WHERE id = ?1 AND waits_for = 'turn' RETURNING n";
    let started: Option<i64> = transaction
        .prepare_cached(start)?
        .query_row(params![id, lease_owner, run, sql_integer(now_ms)], |row| {
            row.get(0)
        })
        .optional()?;
    let Some(n) = started else { return Ok(false) };
    let note = "INSERT INTO job_run (job, place, run)
        VALUES (?1, coalesce((SELECT max(place) + 1 FROM job_run WHERE job = ?1), 1), ?2)";
    transaction.prepare_cached(note)?.execute(params![n, run])?;
    let forget = "DELETE FROM job_run WHERE job = ?1 AND place <= (SELECT max(place) FROM job_run WHERE job = ?1) - ?2";
    transaction
        .prepare_cached(forget)?
        .execute(params![n, MAX_STORED_RUNS])?;
    Ok(true)
}

fn end_try(
    transaction: &Transaction<'_>,
    run: &str,
    end: &AttemptEnd<'_>,
) -> rusqlite::Result<Vec<JobChange>> {
    let find = "SELECT n, attempt, most_attempts, reruns, retry_on, pause_ms, on_lost, cancelled
        FROM job WHERE run = ? AND status = 'running'";
    let found = transaction
        .prepare_cached(find)?
        .query_row([run], policy)
        .optional()?;
    let Some((n, policy)) = found else {
        return Ok(Vec::new());
    };
    if let Some(result) = end.result {
        store_result(transaction, n, result)?;
    }
    match next_step(&policy, end.status) {
        NextStep::Final => finish(transaction, n, end),
        NextStep::Cancelled => finish(
            transaction,
            n,
            &AttemptEnd {
                status: "cancelled",
                ..*end
            },
        ),
        NextStep::Retry(pause) => {
            queue_again(transaction, n, end, pause, 0).map(|job_change| vec![job_change])
        }
        NextStep::Rerun => {
            queue_again(transaction, n, end, 0, 1).map(|job_change| vec![job_change])
        }
    }
}

fn policy(row: &Row<'_>) -> rusqlite::Result<(i64, RetryPolicy)> {
    let policy = RetryPolicy {
        attempt: row.get("attempt")?,
        max_attempts: row.get("most_attempts")?,
        reruns: row.get("reruns")?,
        retry_on: row.get("retry_on")?,
        pause_ms: from_sql(row.get("pause_ms")?),
        rerun: row.get::<_, String>("on_lost")? == "rerun",
        cancelled: row.get("cancelled")?,
    };
    Ok((row.get("n")?, policy))
}

fn store_result(transaction: &Transaction<'_>, n: i64, result: &str) -> rusqlite::Result<()> {
    let weigh = "UPDATE job SET bytes = bytes + ?2 - coalesce((SELECT length(CAST(body AS BLOB)) FROM job_result WHERE n = ?1), 0)
        WHERE n = ?1";
    transaction
        .prepare_cached(weigh)?
        .execute(params![n, result.len() as i64])?;
    let store_result = "INSERT INTO job_result (n, body) VALUES (?, ?) ON CONFLICT (n) DO UPDATE SET body = excluded.body";
    transaction
        .prepare_cached(store_result)?
        .execute(params![n, result])?;
    Ok(())
}

pub(super) const RETURNING_CHANGE: &str = "RETURNING id, tenant, status, run, webhook";

pub(super) fn job_change(row: &Row<'_>) -> rusqlite::Result<JobChange> {
    Ok(JobChange {
        id: row.get(0)?,
        tenant: row.get(1)?,
        status: row.get(2)?,
        run: row.get(3)?,
        webhook: row.get(4)?,
        wait_changed: false,
    })
}

/// Queues another attempt; with `rerun` 1 it replaces this one.
fn queue_again(
    transaction: &Transaction<'_>,
    n: i64,
    end: &AttemptEnd<'_>,
    pause_ms: u64,
    rerun: i64,
) -> rusqlite::Result<JobChange> {
    let queue_again = format!(
        "UPDATE job SET status = 'queued', waits_for = CASE WHEN ?2 > 0 THEN 'time' ELSE 'turn' END, version = version + 1,
            due_ms = ?3, boot = NULL, attempt = attempt - ?4, reruns = reruns + ?4, error = ?5 WHERE n = ?1 {RETURNING_CHANGE}"
    );
    let due = queries::later(end.at_ms, pause_ms);
    let row = params![n, sql_integer(pause_ms), due, rerun, end.error];
    transaction
        .prepare_cached(&queue_again)?
        .query_row(row, job_change)
}

/// Stores the final state and updates the dependents.
fn finish(
    transaction: &Transaction<'_>,
    n: i64,
    end: &AttemptEnd<'_>,
) -> rusqlite::Result<Vec<JobChange>> {
    let finish = format!(
        "UPDATE job SET status = ?2, waits_for = '', version = version + 1, boot = NULL, ended_ms = ?3,
            keep_until = ?3 + keep_ms, error = ?4 WHERE n = ?1 AND ended_ms IS NULL {RETURNING_CHANGE}"
    );
    let row = params![n, end.status, sql_integer(end.at_ms), end.error];
    let Some(first) = transaction
        .prepare_cached(&finish)?
        .query_row(row, job_change)
        .optional()?
    else {
        return Ok(Vec::new());
    };
    let mut changes = vec![first];
    dependents::begin_propagation(
        transaction,
        &changes[0].id,
        &changes[0].id,
        end.status == "succeeded",
    )?;
    // A few dependents are updated at once; the others soon after.
    changes.extend(dependents::propagate(
        transaction,
        Some(&changes[0].id),
        end.at_ms,
    )?);
    Ok(changes)
}

/// Error of a job whose dependency did not succeed.
pub(super) fn dependency_failed(id: &str) -> String {
    error(
        ErrorCode::Cancelled,
        format!("it depends on the job `{id}`, which did not succeed"),
        "see that job; once it has succeeded, retry this one",
    )
}

fn error(code: ErrorCode, message: String, hint: &str) -> String {
    let error = ErrorInfo {
        code,
        message,
        hint: Some(hint.to_owned()),
    };
    // Serialization of this struct cannot fail.
    serde_json::to_string(&error).unwrap_or_default()
}

/// Cancels a waiting job that has no dependents yet.
pub(super) fn cancel_waiting(
    transaction: &Transaction<'_>,
    n: i64,
    error: &str,
    now_ms: u64,
) -> rusqlite::Result<Vec<JobChange>> {
    let end = AttemptEnd {
        status: "cancelled",
        result: None,
        error: Some(error),
        at_ms: now_ms,
    };
    finish(transaction, n, &end)
}

fn refuse(
    transaction: &Transaction<'_>,
    id: &str,
    end: &AttemptEnd<'_>,
) -> rusqlite::Result<Vec<JobChange>> {
    let find = "SELECT n FROM job WHERE id = ? AND status = 'queued'";
    let found: Option<i64> = transaction
        .prepare_cached(find)?
        .query_row([id], |row| row.get(0))
        .optional()?;
    found.map_or(Ok(Vec::new()), |n| finish(transaction, n, end))
}

fn cancel(
    transaction: &Transaction<'_>,
    id: &str,
    now_ms: u64,
) -> rusqlite::Result<CancelJobOutcome> {
    let find = "SELECT n, status, run FROM job WHERE id = ?";
    let found: Option<(i64, String, Option<String>)> = transaction
        .prepare_cached(find)?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((n, status, run)) = found else {
        return Ok(CancelJobOutcome::Unknown);
    };
    match status.as_str() {
        "queued" => {
            let why = error(
                ErrorCode::Cancelled,
                "it was cancelled before it started".to_owned(),
                "retry it",
            );
            let end = AttemptEnd {
                status: "cancelled",
                result: None,
                error: Some(&why),
                at_ms: now_ms,
            };
            Ok(CancelJobOutcome::Cancelled(finish(transaction, n, &end)?))
        }
        "running" => {
            let ask =
                "UPDATE job SET cancelled = 1, version = version + 1 WHERE n = ? AND cancelled = 0";
            transaction.execute(ask, [n])?;
            Ok(CancelJobOutcome::Running(run.unwrap_or_default()))
        }
        _ => Ok(CancelJobOutcome::AlreadyEnded),
    }
}

fn retry(
    transaction: &Transaction<'_>,
    id: &str,
    now_ms: u64,
    room: &QueueLimits,
) -> rusqlite::Result<RetryJobOutcome> {
    let Some(row) = queries::find(transaction, id)? else {
        return Ok(RetryJobOutcome::Unknown);
    };
    if !row.is_final() {
        return Ok(RetryJobOutcome::NotEnded);
    }
    if let Some(bound) = add::reached_limit(transaction, &row.tenant, 0, room)? {
        return Ok(RetryJobOutcome::Full(bound));
    }
    if dependents::is_propagating(transaction, id)? {
        return Ok(RetryJobOutcome::DependentsPending);
    }
    let needed = "SELECT needs, done, (SELECT status FROM job WHERE id = needs) FROM job_after WHERE job = ?";
    let needed: Vec<(String, bool, Option<String>)> = transaction
        .prepare_cached(needed)?
        .query_map([row.n], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    // A dependency that had succeeded and was pruned since is met.
    let has_failed = |done: bool, status: Option<&str>| status.map_or(!done, add::has_failed);
    if let Some((needs, ..)) = needed
        .iter()
        .find(|(_, done, status)| has_failed(*done, status.as_deref()))
    {
        return Ok(RetryJobOutcome::DependencyFailed(needs.clone()));
    }
    let met = "UPDATE job_after SET done = 1 WHERE job = ?
        AND (SELECT status FROM job WHERE id = needs) = 'succeeded'";
    transaction.execute(met, [row.n])?;
    let is_open = |(_, done, status): &(String, bool, Option<String>)| {
        !done && status.as_deref() != Some("succeeded")
    };
    let due = now_ms.max(row.not_before_ms.unwrap_or_default());
    let waits_for = if needed.iter().any(is_open) {
        "jobs"
    } else if due > now_ms {
        "time"
    } else {
        "turn"
    };
    delete_result(transaction, row.n)?;
    let queue_again = "UPDATE job SET status = 'queued', waits_for = ?2, version = version + 1, due_ms = ?3, ended_ms = NULL,
            keep_until = NULL, attempt = 0, reruns = 0, cancelled = 0, error = NULL WHERE n = ?1";
    transaction.execute(queue_again, params![row.n, waits_for, sql_integer(due)])?;
    Ok(RetryJobOutcome::Queued)
}

/// Results of earlier attempts are not results of the new ones.
fn delete_result(transaction: &Transaction<'_>, n: i64) -> rusqlite::Result<()> {
    let weigh =
        "UPDATE job SET bytes = bytes - (SELECT length(CAST(body AS BLOB)) FROM job_result WHERE n = ?1)
        WHERE n = ?1 AND EXISTS (SELECT 1 FROM job_result WHERE n = ?1)";
    transaction.execute(weigh, [n])?;
    transaction.execute("DELETE FROM job_result WHERE n = ?", [n])?;
    Ok(())
}
