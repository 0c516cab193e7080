//! The outbox of webhook notices about jobs: written in the transaction that changes the job,
//! removed once delivered or given up.
//!
//! ```text
//! enqueue ── waiting ── due ── settle ──┬── delivered
//!               ▲                │      └── given_up
//!               └── put off ─────┘
//! ```

use crate::{
    database::DatabaseError,
    server_database::{ServerDatabase, WriteTransaction, from_sql, sql_integer},
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::collections::HashMap;

/// Notices scanned of one tenant at a time; the next scan continues after them.
const MAX_SCANNED_NOTICES: usize = 256;

/// Limits of waiting notices: per job, per tenant, and their bytes per tenant. Beyond them the
/// oldest notice is given up.
pub const MAX_NOTICES_PER_JOB: u32 = 16;
/// Waiting notices of one tenant.
pub const MAX_NOTICES_PER_TENANT: u32 = 10_000;
const MAX_BYTES_PER_TENANT: i64 = 256 << 20;
/// Notices stored of one job, settled ones included.
const MAX_STORED_PER_JOB: u32 = 32;

/// A notice to be queued.
#[derive(Clone, Copy, Debug)]
pub struct NewWebhookNotice<'a> {
    /// Notice id.
    pub id: &'a str,
    /// Job id.
    pub job: &'a str,
    /// Tenant.
    pub tenant: &'a str,
    /// URL of the receiver.
    pub url: &'a str,
    /// Event name.
    pub event: &'a str,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Body of the request.
    pub body: &'a str,
}

/// A waiting notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookNotice {
    /// Row number.
    pub n: i64,
    /// Notice id.
    pub id: String,
    /// Job id.
    pub job: String,
    /// Tenant.
    pub tenant: String,
    /// URL of the receiver.
    pub url: String,
    /// Body of the request.
    pub body: String,
    /// Attempts so far.
    pub attempts: u32,
}

/// The fields of a due notice that decide whether it is sent now.
#[derive(Clone, Copy, Debug)]
pub struct DueNotice<'a> {
    /// Job id.
    pub job: &'a str,
    /// Tenant.
    pub tenant: &'a str,
    /// URL of the receiver.
    pub url: &'a str,
}

/// Whether a due notice is sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeChoice {
    /// Send it.
    Send,
    /// Skip it; another notice of the same tenant may be sent.
    Skip,
    /// Send none of its tenant.
    SkipTenant,
}

/// Position of the round-robin over tenants and their notices.
#[derive(Clone, Debug, Default)]
pub struct DeliveryRound {
    /// The tenant that was served last.
    last: String,
    /// Where the next scan of a tenant continues, unless at the beginning.
    positions: HashMap<String, ScanPosition>,
}

/// Position in a tenant's notices. A pass covers the notices that were due when it began, so it
/// ends, and the next one starts at the beginning.
#[derive(Clone, Copy, Debug)]
struct ScanPosition {
    due_ms: i64,
    n: i64,
    until_ms: i64,
}

/// Result of a delivery attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver accepted it.
    Delivered,
    /// It will not be tried again.
    GivenUp(String),
    /// It is tried again at this time, and no later notice of its job before.
    Deferred {
        /// Time of the next attempt.
        due_ms: u64,
        /// Why the attempt failed.
        problem: String,
    },
}

/// Delivery progress of a job's notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryProgress {
    /// `waiting` while one waits, otherwise how the last one ended.
    pub state: String,
    /// Attempts of all notices together.
    pub attempts: u32,
    /// Why the last attempt failed, if it did.
    pub problem: Option<String>,
}

impl DeliveryProgress {
    /// Reads the notices of one job in order, a JSON list of state, attempts and problem each.
    pub(crate) fn read(text: &str) -> Option<DeliveryProgress> {
        let notices: Vec<(String, u32, Option<String>)> = serde_json::from_str(text).ok()?;
        notices
            .into_iter()
            .fold(None, |before, (state, attempts, problem)| {
                Some(match before {
                    Some(before) if before.state == "waiting" => DeliveryProgress {
                        attempts: before.attempts.saturating_add(attempts),
                        ..before
                    },
                    Some(before) => DeliveryProgress {
                        state,
                        attempts: before.attempts.saturating_add(attempts),
                        problem,
                    },
                    None => DeliveryProgress {
                        state,
                        attempts,
                        problem,
                    },
                })
            })
    }
}

/// Generation of the signing secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretGeneration {
    /// Counts from 1.
    pub number: u64,
    /// Start of the generation in milliseconds; 0 for the first.
    pub since_ms: u64,
}

/// Queues a notice after those of the same job. If too many wait, the oldest is given up.
pub fn enqueue(
    transaction: &WriteTransaction<'_>,
    notice: &NewWebhookNotice<'_>,
) -> Result<(), DatabaseError> {
    transaction.map_error(insert_notice(transaction.inner, notice))
}

fn insert_notice(
    transaction: &Transaction<'_>,
    notice: &NewWebhookNotice<'_>,
) -> rusqlite::Result<()> {
    let NewWebhookNotice {
        id,
        job,
        tenant,
        url,
        event,
        at_ms,
        body,
    } = *notice;
    make_room(transaction, job, tenant, body.len() as i64)?;
    let add = "INSERT INTO webhook_notice (id, job, tenant, url, event, at_ms, body, state, attempts, due_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'waiting', 0,
                 max(?6, coalesce((SELECT max(due_ms) FROM webhook_notice WHERE job = ?2 AND state = 'waiting'), 0)))";
    let row = params![id, job, tenant, url, event, sql_integer(at_ms), body];
    transaction.prepare_cached(add)?.execute(row).map(drop)
}

/// Gives up or removes the oldest notices beyond the limits.
fn make_room(
    transaction: &Transaction<'_>,
    job: &str,
    tenant: &str,
    more: i64,
) -> rusqlite::Result<()> {
    let forget = "DELETE FROM webhook_notice WHERE job = ?1 AND state <> 'waiting' AND n <=
        (SELECT n FROM webhook_notice WHERE job = ?1 ORDER BY n DESC LIMIT 1 OFFSET ?2)";
    transaction
        .prepare_cached(forget)?
        .execute(params![job, MAX_STORED_PER_JOB - 1])?;
    let of_job = "SELECT n FROM webhook_notice WHERE job = ?1 AND state = 'waiting' ORDER BY n DESC LIMIT 1 OFFSET ?2";
    let excess: Option<i64> = transaction
        .prepare_cached(of_job)?
        .query_row(params![job, MAX_NOTICES_PER_JOB - 1], |row| row.get(0))
        .optional()?;
    if let Some(n) = excess {
        let why = format!("more than {MAX_NOTICES_PER_JOB} notices of this job waited");
        give_up(transaction, job, n, &why)?;
    }
    let counts = "SELECT waiting >= ?2 OR bytes + ?3 > ?4 FROM webhook_tenant WHERE tenant = ?1";
    let counts = |transaction: &Transaction<'_>| {
        let row = params![tenant, MAX_NOTICES_PER_TENANT, more, MAX_BYTES_PER_TENANT];
        transaction
            .prepare_cached(counts)?
            .query_row(row, |row| row.get(0))
            .optional()
    };
    while counts(transaction)? == Some(true) {
        let oldest = "SELECT n, job FROM webhook_notice WHERE state = 'waiting' AND tenant = ? ORDER BY n LIMIT 1";
        let (n, job): (i64, String) = transaction
            .prepare_cached(oldest)?
            .query_row([tenant], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let why = format!(
            "more than {MAX_NOTICES_PER_TENANT} notices of this tenant waited, or more than 256 MiB"
        );
        give_up(transaction, &job, n, &why)?;
    }
    Ok(())
}

/// Also gives up the earlier notices of the job: delivered later, they would be out of order.
fn give_up(transaction: &Transaction<'_>, job: &str, n: i64, why: &str) -> rusqlite::Result<()> {
    let drop = "UPDATE webhook_notice SET state = 'given_up', body = '', problem = ?3
        WHERE job = ?1 AND n <= ?2 AND state = 'waiting'";
    transaction
        .prepare_cached(drop)?
        .execute(params![job, n, why])
        .map(|_| ())
}

/// Result of the job's last attempt as JSON, as seen by this transaction.
pub fn job_result(
    transaction: &WriteTransaction<'_>,
    job: &str,
) -> Result<Option<String>, DatabaseError> {
    let find = "SELECT body FROM job_result WHERE n = (SELECT n FROM job WHERE id = ?)";
    let found = transaction
        .inner
        .prepare_cached(find)
        .and_then(|mut find| find.query_row([job], |row| row.get(0)).optional());
    transaction.map_error(found)
}

/// Stores the result of a delivery attempt.
pub fn settle(
    transaction: &WriteTransaction<'_>,
    notice: &WebhookNotice,
    outcome: &DeliveryOutcome,
) -> Result<(), DatabaseError> {
    transaction.map_error(store_outcome(transaction.inner, notice, outcome))
}

fn store_outcome(
    transaction: &Transaction<'_>,
    notice: &WebhookNotice,
    outcome: &DeliveryOutcome,
) -> rusqlite::Result<()> {
    let end =
        "UPDATE webhook_notice SET state = ?2, attempts = attempts + 1, body = '', problem = ?3
         WHERE n = ?1 AND state = 'waiting'";
    match outcome {
        DeliveryOutcome::Delivered => {
            transaction.execute(end, params![notice.n, "delivered", None::<&str>])?;
        }
        DeliveryOutcome::GivenUp(problem) => {
            transaction.execute(end, params![notice.n, "given_up", problem])?;
            give_up(transaction, &notice.job, notice.n, problem)?;
        }
        DeliveryOutcome::Deferred { due_ms, problem } => {
            let again =
                "UPDATE webhook_notice SET attempts = attempts + 1, problem = ?2 WHERE n = ?1";
            transaction.execute(again, params![notice.n, problem])?;
            let behind = "UPDATE webhook_notice SET due_ms = max(due_ms, ?2) WHERE job = ?1 AND state = 'waiting'";
            transaction.execute(behind, params![notice.job, sql_integer(*due_ms)])?;
        }
    }
    let orphans = "DELETE FROM webhook_notice WHERE job = ?1 AND state <> 'waiting'
        AND NOT EXISTS (SELECT 1 FROM job WHERE id = ?1)";
    transaction.execute(orphans, [&notice.job])?;
    Ok(())
}

/// Starts a new generation of a tenant's signing secret.
pub fn rotate_secret(
    transaction: &WriteTransaction<'_>,
    tenant: &str,
    now_ms: u64,
) -> Result<SecretGeneration, DatabaseError> {
    let next = "INSERT INTO webhook_secret (tenant, generation, since_ms) VALUES (?1, 2, ?2)
         ON CONFLICT (tenant) DO UPDATE SET generation = generation + 1, since_ms = excluded.since_ms
         RETURNING generation, since_ms";
    let rotated =
        transaction
            .inner
            .query_row(next, params![tenant, sql_integer(now_ms)], generation);
    transaction.map_error(rotated)
}

/// Removes old settled notices whose jobs are gone.
pub fn prune_notices(
    transaction: &WriteTransaction<'_>,
    before_ms: u64,
) -> Result<usize, DatabaseError> {
    let old = "DELETE FROM webhook_notice WHERE state <> 'waiting' AND at_ms < ?";
    transaction.map_error(transaction.inner.execute(old, [sql_integer(before_ms)]))
}

impl ServerDatabase {
    /// Due notices that `choose` accepts: the first of each job, up to `limit`. Round-robin: starts
    /// with the tenant after the one served last.
    pub fn due_notices(
        &self,
        now_ms: u64,
        round: &mut DeliveryRound,
        most: usize,
        mut choose: impl FnMut(DueNotice<'_>) -> NoticeChoice,
    ) -> Result<Vec<WebhookNotice>, DatabaseError> {
        self.reader.read(|connection| {
            let mut next = connection.prepare_cached(
                "SELECT min(tenant) FROM webhook_notice WHERE state = 'waiting' AND tenant > ?",
            )?;
            let first = round.last.clone();
            let mut found = Vec::new();
            let mut at = first.clone();
            let mut again = false;
            while found.len() < most {
                let tenant: Option<String> = next.query_row([&at], |row| row.get(0))?;
                let tenant = match tenant {
                    Some(tenant) if !again || tenant <= first => tenant,
                    // No tenant name is empty: start again from the beginning, once.
                    None if !again && !first.is_empty() => {
                        (at, again) = (String::new(), true);
                        continue;
                    }
                    _ => break,
                };
                let room = most - found.len();
                let of_one = due_notices_of_tenant(
                    connection,
                    &tenant,
                    now_ms,
                    &mut round.positions,
                    room,
                    &mut choose,
                )?;
                if !of_one.is_empty() {
                    round.last.clone_from(&tenant);
                }
                found.extend(of_one);
                at = tenant;
            }
            Ok(found)
        })
    }

    /// The generation of the secret that signs this tenant's notices.
    pub fn webhook_generation(&self, tenant: &str) -> Result<SecretGeneration, DatabaseError> {
        self.reader.read(|connection| {
            let found = connection
                .prepare_cached("SELECT generation, since_ms FROM webhook_secret WHERE tenant = ?")?
                .query_row([tenant], generation)
                .optional()?;
            Ok(found.unwrap_or(SecretGeneration {
                number: 1,
                since_ms: 0,
            }))
        })
    }
}

/// The due notices of one tenant. The next scan continues where this one stopped: however many
/// notices wait for a receiver that refuses them, the others get their turn.
fn due_notices_of_tenant(
    connection: &Connection,
    tenant: &str,
    now_ms: u64,
    positions: &mut HashMap<String, ScanPosition>,
    most: usize,
    choose: &mut impl FnMut(DueNotice<'_>) -> NoticeChoice,
) -> rusqlite::Result<Vec<WebhookNotice>> {
    let mut due = connection.prepare_cached(
        "SELECT n, id, job, tenant, url, attempts, due_ms FROM webhook_notice AS notice
         WHERE state = 'waiting' AND tenant = ?1 AND due_ms <= ?2 AND (due_ms, n) > (?3, ?4) AND NOT EXISTS (
            SELECT 1 FROM webhook_notice AS earlier
            WHERE earlier.job = notice.job AND earlier.n < notice.n AND earlier.state = 'waiting')
         ORDER BY due_ms, n",
    )?;
    let before = positions.remove(tenant);
    let mut position = before.unwrap_or(ScanPosition {
        due_ms: i64::MIN,
        n: 0,
        until_ms: sql_integer(now_ms),
    });
    let mut rows = due.query(params![
        tenant,
        position.until_ms,
        position.due_ms,
        position.n
    ])?;
    let mut found = Vec::new();
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        let job = row.get_ref("job")?.as_str()?;
        let url = row.get_ref("url")?.as_str()?;
        let is_enough = seen == MAX_SCANNED_NOTICES || found.len() == most;
        let choice = if is_enough {
            NoticeChoice::SkipTenant
        } else {
            choose(DueNotice { job, tenant, url })
        };
        match choice {
            NoticeChoice::Send => found.push(notice(connection, row)?),
            NoticeChoice::Skip => {}
            NoticeChoice::SkipTenant => {
                if before.is_some() || seen == MAX_SCANNED_NOTICES {
                    positions.insert(tenant.to_owned(), position);
                }
                break;
            }
        }
        position = ScanPosition {
            due_ms: row.get("due_ms")?,
            n: row.get("n")?,
            ..position
        };
        seen += 1;
    }
    Ok(found)
}

fn generation(row: &Row<'_>) -> rusqlite::Result<SecretGeneration> {
    Ok(SecretGeneration {
        number: from_sql(row.get(0)?),
        since_ms: from_sql(row.get(1)?),
    })
}

/// Loads the body only now: it is large and not needed of skipped notices.
fn notice(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<WebhookNotice> {
    let n = row.get("n")?;
    let body = "SELECT body FROM webhook_notice WHERE n = ?";
    Ok(WebhookNotice {
        n,
        id: row.get("id")?,
        job: row.get("job")?,
        tenant: row.get("tenant")?,
        url: row.get("url")?,
        body: connection
            .prepare_cached(body)?
            .query_row([n], |row| row.get(0))?,
        attempts: row.get("attempts")?,
    })
}

#[cfg(test)]
#[path = "webhooks_tests.rs"]
mod tests;
