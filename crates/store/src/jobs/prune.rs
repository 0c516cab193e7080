//! Prunes ended jobs: the expired ones, and of the tenant with the most jobs the oldest, in small
//! batches. A job whose dependents are not updated yet (`dependents.rs`) is kept until then, so
//! nothing waits for a pruned job.

use crate::{
    DatabaseError,
    server_database::{IDEMPOTENCY_WINDOW_MS, ServerDatabase, sql_integer},
};
use rusqlite::{OptionalExtension, Transaction, params};

/// Jobs removed in one transaction, so that writers do not wait long.
const BATCH_SIZE: i64 = 500;
/// Limit of idempotency keys of one tenant whose jobs have ended; the oldest are removed first.
pub const MAX_IDEMPOTENCY_KEYS: u32 = 200_000;
/// The propagation to its dependents is incomplete.
const PROPAGATING: &str = "EXISTS (SELECT 1 FROM job_followed WHERE job_followed.id = job.id)";

impl ServerDatabase {
    /// Removes jobs that are expired or too many. Returns the number of jobs removed.
    pub fn prune_jobs(
        &self,
        now_ms: u64,
        most: u64,
        most_bytes: u64,
    ) -> Result<usize, DatabaseError> {
        let mut gone = 0;
        loop {
            let some = self.transact(|transaction| {
                let pruned = prune_old(transaction.inner, now_ms).and_then(|old| match old {
                    0 => prune_many(
                        transaction.inner,
                        sql_integer(most),
                        sql_integer(most_bytes),
                    ),
                    old => Ok(old),
                });
                transaction.map_error(pruned)
            })?;
            gone += some;
            if some == 0 {
                break;
            }
        }
        self.transact(|transaction| {
            transaction.map_error(prune_idempotency_keys(
                transaction.inner,
                now_ms,
                MAX_IDEMPOTENCY_KEYS,
            ))
        })?;
        Ok(gone)
    }
}

fn prune_old(transaction: &Transaction<'_>, now_ms: u64) -> rusqlite::Result<usize> {
    let old = format!(
        "DELETE FROM job WHERE n IN
            (SELECT n FROM job WHERE keep_until < ? AND NOT {PROPAGATING} ORDER BY keep_until LIMIT ?)"
    );
    transaction
        .prepare_cached(&old)?
        .execute(params![sql_integer(now_ms), BATCH_SIZE])
}

fn prune_many(
    transaction: &Transaction<'_>,
    most: i64,
    most_bytes: i64,
) -> rusqlite::Result<usize> {
    let all = "SELECT ended - ?, over > ? FROM job_tenant WHERE tenant = ''";
    let all: Option<(i64, bool)> = transaction
        .query_row(all, params![most, most_bytes], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let (excess, order) = match all {
        Some((excess, _)) if excess > 0 => (excess.min(BATCH_SIZE), "ended"),
        // By bytes, only a few are removed at a time: one job may have most of them.
        Some((_, true)) => (16, "over"),
        _ => return Ok(0),
    };
    let richest = format!(
        "SELECT tenant, ended FROM job_tenant WHERE tenant <> '' AND ended > 0 ORDER BY {order} DESC LIMIT 2"
    );
    let richest: Vec<(String, i64)> = transaction
        .prepare_cached(&richest)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let Some((tenant, ended)) = richest.first() else {
        return Ok(0);
    };
    // Not below the tenant with the second most: then that one loses jobs.
    let lead = richest
        .get(1)
        .map_or(*ended, |(_, second)| ended - second)
        .max(1);
    let drop = format!(
        "DELETE FROM job WHERE n IN
            (SELECT n FROM job WHERE tenant = ? AND ended_ms IS NOT NULL AND NOT {PROPAGATING} ORDER BY n LIMIT ?)"
    );
    transaction
        .prepare_cached(&drop)?
        .execute(params![tenant, excess.min(lead)])
}

/// Keys of unfinished jobs are kept, however old they are.
fn prune_idempotency_keys(
    transaction: &Transaction<'_>,
    now_ms: u64,
    most: u32,
) -> rusqlite::Result<()> {
    const ENDED: &str =
        "NOT EXISTS (SELECT 1 FROM job WHERE job.id = job_promise.job AND job.ended_ms IS NULL)";
    let old = format!("DELETE FROM job_promise WHERE at_ms < ? AND {ENDED}");
    transaction.execute(
        &old,
        [sql_integer(now_ms.saturating_sub(IDEMPOTENCY_WINDOW_MS))],
    )?;
    let mut too_many = transaction
        .prepare("SELECT tenant FROM job_promise GROUP BY tenant HAVING count(*) > ?")?;
    let tenants: Vec<String> = too_many
        .query_map([most], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for tenant in tenants {
        let oldest = format!(
            "DELETE FROM job_promise WHERE tenant = ?1 AND {ENDED} AND at_ms <= (SELECT at_ms FROM job_promise
             WHERE tenant = ?1 ORDER BY at_ms DESC LIMIT 1 OFFSET ?2)"
        );
        transaction.execute(&oldest, params![tenant, most])?;
    }
    Ok(())
}
