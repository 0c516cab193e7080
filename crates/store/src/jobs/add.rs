//! Accepts a job: stores everything needed to run it, unless its idempotency key is known or a
//! limit is reached.

use super::{
    queries,
    transitions::{self, JobChange},
};
use crate::{
    DatabaseError,
    server_database::{IDEMPOTENCY_WINDOW_MS, WriteTransaction, from_sql, sql_integer},
};
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Maximum of direct dependents of one job, with those that have ended and are still stored.
pub const MAX_DEPENDENTS: u64 = 10_000;

/// A job to be accepted.
#[derive(Clone, Debug)]
pub struct NewJob<'a> {
    /// Job id.
    pub id: &'a str,
    /// Tenant.
    pub tenant: &'a str,
    /// API key of the request.
    pub key: &'a str,
    /// Name, if one was given.
    pub name: Option<&'a str>,
    /// Labels as JSON.
    pub labels: &'a str,
    /// Priority; larger ones go first.
    pub priority: i32,
    /// Time of acceptance.
    pub at_ms: u64,
    /// Earliest start, if one was requested.
    pub not_before_ms: Option<u64>,
    /// How long the job is stored after its end.
    pub keep_ms: u64,
    /// Maximum attempts that count.
    pub max_attempts: u32,
    /// Statuses to retry on, separated by spaces.
    pub retry_on: &'a str,
    /// Pause before the second attempt.
    pub pause_ms: u64,
    /// Whether the job runs again if its server ends first.
    pub rerun: bool,
    /// Jobs that must succeed first.
    pub after: &'a [String],
    /// Webhook as JSON.
    pub webhook: Option<&'a str>,
    /// The request, as JSON.
    pub order: &'a str,
    /// Idempotency key, with the hash of its request.
    pub idempotency_key: Option<(&'a str, [u8; 32])>,
}

/// Limits of pending jobs and of the bytes that jobs occupy.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Queued jobs of all tenants.
    pub queued: u64,
    /// Queued jobs of one tenant.
    pub queued_per_tenant: u64,
    /// Queued and running jobs of this tenant.
    pub jobs: Option<u64>,
    /// Bytes of requests and results of all tenants.
    pub bytes: u64,
    /// Bytes of requests and results of one tenant.
    pub bytes_per_tenant: u64,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachedLimit {
    /// Queued jobs of all tenants.
    Queued,
    /// Queued jobs of one tenant.
    QueuedPerTenant,
    /// Queued and running jobs of the tenant.
    Jobs,
    /// Bytes of all tenants.
    Bytes,
    /// Bytes of one tenant.
    BytesPerTenant,
    /// Dependents of one job.
    Dependents,
}

/// Result of adding a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddJobOutcome {
    /// The job is accepted.
    Accepted,
    /// The job is accepted and ends at once, because a dependency did not succeed.
    DependencyFailed(Vec<JobChange>),
    /// The idempotency key and request match an earlier job; this is its id.
    Duplicate(String),
    /// The idempotency key belongs to a different request.
    KeyReused,
    /// This dependency does not exist, or belongs to another tenant.
    UnknownDependency(String),
    /// A limit is reached.
    Full(ReachedLimit),
}

impl WriteTransaction<'_> {
    /// Stores a job.
    pub fn add_job(
        &self,
        job: &NewJob<'_>,
        room: &QueueLimits,
    ) -> Result<AddJobOutcome, DatabaseError> {
        self.map_error(add(self.inner, job, room))
    }
}

fn add(
    transaction: &Transaction<'_>,
    job: &NewJob<'_>,
    room: &QueueLimits,
) -> rusqlite::Result<AddJobOutcome> {
    if let Some((name, body)) = job.idempotency_key
        && let Some(before) = find_idempotency_key(transaction, job, name, body)?
    {
        return Ok(before);
    }
    if let Some(bound) = reached_limit(transaction, job.tenant, job.order.len() as u64, room)? {
        return Ok(AddJobOutcome::Full(bound));
    }
    let needed = match needed(transaction, job)? {
        Ok(needed) => needed,
        Err(unknown) => return Ok(AddJobOutcome::UnknownDependency(unknown)),
    };
    if needed
        .iter()
        .any(|needed| needed.dependents >= MAX_DEPENDENTS)
    {
        return Ok(AddJobOutcome::Full(ReachedLimit::Dependents));
    }
    let n = insert(transaction, job, &needed)?;
    for (place, needed) in needed.iter().enumerate() {
        let edge = "INSERT INTO job_after (job, place, needs, done) VALUES (?, ?, ?, ?)";
        let row = params![n, place as i64, needed.id, needed.status == "succeeded"];
        transaction.prepare_cached(edge)?.execute(row)?;
        let count = "UPDATE job SET behind = behind + 1 WHERE id = ?";
        transaction.prepare_cached(count)?.execute([&needed.id])?;
    }
    transaction
        .prepare_cached("INSERT INTO job_order (n, body) VALUES (?, ?)")?
        .execute(params![n, job.order])?;
    if let Some((name, body)) = job.idempotency_key {
        let idempotency_key = "INSERT OR REPLACE INTO job_promise (tenant, name, body, job, at_ms) VALUES (?, ?, ?, ?, ?)";
        transaction.execute(
            idempotency_key,
            params![job.tenant, name, &body[..], job.id, sql_integer(job.at_ms)],
        )?;
    }
    // The failed dependency is reported with the acceptance.
    match needed.iter().find(|needed| has_failed(&needed.status)) {
        Some(ended) => transitions::cancel_waiting(
            transaction,
            n,
            &transitions::dependency_failed(&ended.id),
            job.at_ms,
        )
        .map(AddJobOutcome::DependencyFailed),
        None => Ok(AddJobOutcome::Accepted),
    }
}

/// Whether a dependency with this status can no longer succeed.
pub(super) fn has_failed(status: &str) -> bool {
    !matches!(status, "queued" | "running" | "succeeded")
}

fn insert(
    transaction: &Transaction<'_>,
    job: &NewJob<'_>,
    needed: &[Dependency],
) -> rusqlite::Result<i64> {
    let due = job.not_before_ms.unwrap_or_default();
    let waits_for = if needed.iter().any(|needed| needed.status != "succeeded") {
        "jobs"
    } else if due > job.at_ms {
        "time"
    } else {
        "turn"
    };
    let insert = "INSERT INTO job (id, tenant, key, name, labels, status, waits_for, priority, accepted_ms, not_before_ms,
            due_ms, keep_ms, most_attempts, retry_on, pause_ms, on_lost, webhook, bytes)
        VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    transaction.prepare_cached(insert)?.insert(params![
        job.id,
        job.tenant,
        job.key,
        job.name,
        job.labels,
        waits_for,
        job.priority,
        sql_integer(job.at_ms),
        job.not_before_ms.map(sql_integer),
        sql_integer(due),
        sql_integer(job.keep_ms),
        job.max_attempts,
        job.retry_on,
        sql_integer(job.pause_ms),
        if job.rerun { "rerun" } else { "lost" },
        job.webhook,
        job.order.len() as i64,
    ])
}

/// A job that the new job depends on.
struct Dependency {
    id: String,
    status: String,
    dependents: u64,
}

/// The dependencies of a job; or the first one that its tenant does not have.
fn needed(
    transaction: &Transaction<'_>,
    job: &NewJob<'_>,
) -> rusqlite::Result<Result<Vec<Dependency>, String>> {
    let mut found = Vec::with_capacity(job.after.len());
    let mut find = transaction
        .prepare_cached("SELECT id, status, behind FROM job WHERE id = ? AND tenant = ?")?;
    for id in job.after {
        let needed = |row: &Row<'_>| {
            Ok(Dependency {
                id: row.get(0)?,
                status: row.get(1)?,
                dependents: from_sql(row.get(2)?),
            })
        };
        match find.query_row([id, job.tenant], needed).optional()? {
            Some(needed) => found.push(needed),
            None => return Ok(Err(id.clone())),
        }
    }
    Ok(Ok(found))
}

/// One tenant's share of a common limit: half of what the others leave, so that no two tenants can
/// take everything.
fn tenant_share(most: u64, all: u64, own: u64) -> u64 {
    most.saturating_sub(all.saturating_sub(own)).div_ceil(2)
}

/// The limit that one more job of this tenant, with so many bytes, would exceed.
pub(super) fn reached_limit(
    transaction: &Transaction<'_>,
    tenant: &str,
    more: u64,
    room: &QueueLimits,
) -> rusqlite::Result<Option<ReachedLimit>> {
    let own = queries::counts(transaction, tenant)?;
    let all = queries::counts(transaction, "")?;
    let reached = [
        (
            ReachedLimit::Jobs,
            room.jobs
                .is_some_and(|most| own.queued + own.running >= most),
        ),
        (
            ReachedLimit::QueuedPerTenant,
            own.queued >= room.queued_per_tenant,
        ),
        (
            ReachedLimit::Queued,
            own.queued >= tenant_share(room.queued, all.queued, own.queued),
        ),
        (
            ReachedLimit::BytesPerTenant,
            own.bytes.saturating_add(more) > room.bytes_per_tenant,
        ),
        (
            ReachedLimit::Bytes,
            own.bytes.saturating_add(more) > tenant_share(room.bytes, all.bytes, own.bytes),
        ),
    ];
    Ok(reached
        .into_iter()
        .find_map(|(bound, reached)| reached.then_some(bound)))
}

/// The job that an idempotency key belongs to, if the key is known and valid.
fn find_idempotency_key(
    transaction: &Transaction<'_>,
    job: &NewJob<'_>,
    name: &str,
    body: [u8; 32],
) -> rusqlite::Result<Option<AddJobOutcome>> {
    let find = "SELECT body, job FROM job_promise WHERE tenant = ? AND name = ?
        AND (at_ms >= ? OR EXISTS (SELECT 1 FROM job WHERE id = job_promise.job AND ended_ms IS NULL))";
    let since = sql_integer(job.at_ms.saturating_sub(IDEMPOTENCY_WINDOW_MS));
    let found: Option<(Vec<u8>, String)> = transaction
        .prepare_cached(find)?
        .query_row(params![job.tenant, name, since], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    Ok(found.map(|(before, id)| {
        if before == body {
            AddJobOutcome::Duplicate(id)
        } else {
            AddJobOutcome::KeyReused
        }
    }))
}
