//! Propagates the end of a job to its dependents: they become ready, or are cancelled together with
//! their own dependents. Works in batches, because one job may have thousands of dependents and
//! every write transaction blocks the others.
//!
//! Until the propagation is complete, the job is neither retried nor pruned, and none of its
//! dependents starts.

use super::transitions::{JobChange, RETURNING_CHANGE, dependency_failed, job_change};
use crate::server_database::sql_integer;
use rusqlite::{OptionalExtension, Transaction, params};

/// Dependents handled in one transaction.
pub(super) const BATCH_SIZE: usize = if cfg!(test) { 3 } else { 100 };

/// Starts the propagation for a job.
pub(super) fn begin_propagation(
    transaction: &Transaction<'_>,
    id: &str,
    root: &str,
    succeeded: bool,
) -> rusqlite::Result<()> {
    let begin_propagation = "INSERT INTO job_followed (id, root, succeeded)
        SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM job_after WHERE needs = ?1) ON CONFLICT (id) DO NOTHING";
    transaction
        .prepare_cached(begin_propagation)?
        .execute(params![id, root, succeeded])?;
    Ok(())
}

/// Whether the propagation of a job is incomplete.
pub(super) fn is_propagating(transaction: &Transaction<'_>, id: &str) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached("SELECT 1 FROM job_followed WHERE id = ?")?
        .exists([id])
}

/// An ended job with an incomplete propagation.
struct PropagatingJob {
    id: String,
    root: String,
    succeeded: bool,
    seen: i64,
}

/// Propagates one batch: of the chain that began with this job, or of any.
pub(super) fn propagate(
    transaction: &Transaction<'_>,
    root: Option<&str>,
    now_ms: u64,
) -> rusqlite::Result<Vec<JobChange>> {
    let of = if root.is_some() {
        "WHERE root = ?1"
    } else {
        "WHERE ?1 IS NULL"
    };
    let first =
        format!("SELECT id, root, succeeded, seen FROM job_followed {of} ORDER BY n LIMIT 1");
    let mut changes = Vec::new();
    let mut left = BATCH_SIZE;
    while left > 0 {
        let first = transaction
            .prepare_cached(&first)?
            .query_row([root], |row| {
                Ok(PropagatingJob {
                    id: row.get(0)?,
                    root: row.get(1)?,
                    succeeded: row.get(2)?,
                    seen: row.get(3)?,
                })
            });
        let Some(first) = first.optional()? else {
            break;
        };
        let looked = propagate_batch(transaction, &first, left, now_ms, &mut changes)?;
        // Each job costs something, even one without remaining dependents.
        left -= looked.clamp(1, left);
    }
    Ok(changes)
}

/// Handles up to `limit` dependents of this job. Returns how many were handled.
fn propagate_batch(
    transaction: &Transaction<'_>,
    job: &PropagatingJob,
    most: usize,
    now_ms: u64,
    changes: &mut Vec<JobChange>,
) -> rusqlite::Result<usize> {
    let next = "SELECT job FROM job_after WHERE needs = ? AND job > ? ORDER BY job LIMIT ?";
    let next: Vec<i64> = transaction
        .prepare_cached(next)?
        .query_map(params![job.id, job.seen, most as i64], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for n in &next {
        let change = if job.succeeded {
            release(transaction, *n, &job.id, now_ms)?
        } else {
            cancel(transaction, *n, &job.root, now_ms)?
        };
        changes.extend(change);
    }
    match next.last().filter(|_| next.len() == most) {
        Some(last) => transaction
            .prepare_cached("UPDATE job_followed SET seen = ? WHERE id = ?")?
            .execute(params![last, job.id])?,
        None => transaction
            .prepare_cached("DELETE FROM job_followed WHERE id = ?")?
            .execute([&job.id])?,
    };
    Ok(next.len())
}

/// A job whose dependencies are all met waits for its time or for its turn.
fn release(
    transaction: &Transaction<'_>,
    n: i64,
    needs: &str,
    now_ms: u64,
) -> rusqlite::Result<Option<JobChange>> {
    let met = "UPDATE job_after SET done = 1 WHERE job = ? AND needs = ?";
    transaction
        .prepare_cached(met)?
        .execute(params![n, needs])?;
    // A dependent that is about to be cancelled does not start before.
    let release = format!(
        "UPDATE job SET waits_for = CASE WHEN due_ms > ?2 THEN 'time' ELSE 'turn' END, version = version + 1
        WHERE n = ?1 AND waits_for = 'jobs' AND NOT EXISTS (SELECT 1 FROM job_after AS edge WHERE edge.job = ?1
            AND (edge.done = 0 OR EXISTS (SELECT 1 FROM job_followed WHERE id = edge.needs AND succeeded = 0)))
        {RETURNING_CHANGE}"
    );
    let released = transaction
        .prepare_cached(&release)?
        .query_row(params![n, sql_integer(now_ms)], job_change)
        .optional()?;
    Ok(released.map(|change| JobChange {
        wait_changed: true,
        ..change
    }))
}

/// Cancels a waiting job and starts the propagation to its own dependents. There are no cycles: a
/// job depends only on older ones.
fn cancel(
    transaction: &Transaction<'_>,
    n: i64,
    root: &str,
    now_ms: u64,
) -> rusqlite::Result<Option<JobChange>> {
    let cancel = format!(
        "UPDATE job SET status = 'cancelled', waits_for = '', version = version + 1, ended_ms = ?2,
            keep_until = ?2 + keep_ms, error = ?3 WHERE n = ?1 AND waits_for = 'jobs' {RETURNING_CHANGE}"
    );
    let row = params![n, sql_integer(now_ms), dependency_failed(root)];
    let cancelled = transaction
        .prepare_cached(&cancel)?
        .query_row(row, job_change)
        .optional()?;
    if let Some(change) = &cancelled {
        begin_propagation(transaction, &change.id, root, false)?;
    }
    Ok(cancelled)
}
