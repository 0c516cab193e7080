//! A job is accepted: written down with all that is needed to run it, unless it was before or there is no room.

use super::{end, read};
use crate::{
    DatabaseError,
    served::{PROMISED_MS, Writing, number},
};
use rusqlite::{OptionalExtension, Transaction, params};

/// A job that is about to be accepted.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct NewJob<'a> {
    pub id: &'a str,
    pub tenant: &'a str,
    pub key: &'a str,
    pub name: Option<&'a str>,
    /// JSON.
    pub labels: &'a str,
    pub priority: i32,
    pub at_ms: u64,
    pub not_before_ms: Option<u64>,
    pub keep_ms: u64,
    pub most_attempts: u32,
    /// Names of statuses, with spaces between.
    pub retry_on: &'a str,
    pub pause_ms: u64,
    /// Run it again if its server ends before it.
    pub rerun: bool,
    pub after: &'a [String],
    /// JSON.
    pub webhook: Option<&'a str>,
    /// The request itself.
    pub order: &'a str,
    /// An idempotency key with the hash of the request that it stands for.
    pub promise: Option<(&'a str, [u8; 32])>,
}

/// How many may wait, and what they may take.
#[derive(Clone, Copy, Debug)]
pub struct JobRoom {
    /// Jobs that wait, of all tenants.
    pub queued: u64,
    /// The same of one.
    pub queued_of_one: u64,
    /// Jobs of this tenant that wait or run.
    pub jobs: Option<u64>,
    /// Bytes of orders and results, of all tenants.
    pub bytes: u64,
    /// The same of one.
    pub bytes_of_one: u64,
}

/// Which bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the room")]
pub enum WhichBound {
    Queued,
    QueuedOfOne,
    Jobs,
    Bytes,
    BytesOfOne,
}

/// What became of a request to accept a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is accepted.
    New,
    /// The same request came before: this is its job.
    Before(String),
    /// Its idempotency key stands for another request.
    OtherRequest,
    /// It is to come after one that there is not, or that is somebody else's.
    NoSuchJob(String),
    /// There is no room.
    Full(WhichBound),
}

impl Writing<'_> {
    /// Writes a job down.
    pub fn add_job(&self, job: &NewJob<'_>, room: &JobRoom) -> Result<Added, DatabaseError> {
        self.done(add(self.transaction, job, room))
    }
}

fn add(transaction: &Transaction<'_>, job: &NewJob<'_>, room: &JobRoom) -> rusqlite::Result<Added> {
    if let Some((name, body)) = job.promise
        && let Some(before) = promised(transaction, job, name, body)?
    {
        return Ok(before);
    }
    if let Some(bound) = full(transaction, job.tenant, job.order.len() as u64, room)? {
        return Ok(Added::Full(bound));
    }
    let needed = match needed(transaction, job)? {
        Ok(needed) => needed,
        Err(unknown) => return Ok(Added::NoSuchJob(unknown)),
    };
    let n = insert(transaction, job, &needed)?;
    for (place, (needs, status)) in needed.iter().enumerate() {
        let edge = "INSERT INTO job_after (job, place, needs, done) VALUES (?, ?, ?, ?)";
        let row = params![n, place as i64, needs, status == "succeeded"];
        transaction.prepare_cached(edge)?.execute(row)?;
    }
    transaction
        .prepare_cached("INSERT INTO job_order (n, body) VALUES (?, ?)")?
        .execute(params![n, job.order])?;
    if let Some((name, body)) = job.promise {
        let promise =
            "INSERT OR REPLACE INTO job_promise (tenant, name, body, job, at_ms) VALUES (?, ?, ?, ?, ?)";
        transaction.execute(promise, params![job.tenant, name, &body[..], job.id, number(job.at_ms)])?;
    }
    // Whoever waits for what did not succeed is told at once.
    if let Some((ended, _)) = needed.iter().find(|(_, status)| is_in_vain(status)) {
        end::cancel_one(transaction, n, &end::in_vain(ended), job.at_ms)?;
    }
    Ok(Added::New)
}

/// Whether nothing comes of waiting for a job of this status.
fn is_in_vain(status: &str) -> bool {
    !matches!(status, "queued" | "running" | "succeeded")
}

fn insert(
    transaction: &Transaction<'_>,
    job: &NewJob<'_>,
    needed: &[(String, String)],
) -> rusqlite::Result<i64> {
    let due = job.not_before_ms.unwrap_or_default();
    let waits_for = match needed.iter().any(|(_, status)| status != "succeeded") {
        true => "jobs",
        false if due > job.at_ms => "time",
        false => "turn",
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
        number(job.at_ms),
        job.not_before_ms.map(number),
        number(due),
        number(job.keep_ms),
        job.most_attempts,
        job.retry_on,
        number(job.pause_ms),
        if job.rerun { "rerun" } else { "lost" },
        job.webhook,
        job.order.len() as i64,
    ])
}

/// Those that it comes after, each with its status; or the first that its tenant does not have.
fn needed(
    transaction: &Transaction<'_>,
    job: &NewJob<'_>,
) -> rusqlite::Result<Result<Vec<(String, String)>, String>> {
    let mut found = Vec::with_capacity(job.after.len());
    let mut find = transaction.prepare_cached("SELECT status FROM job WHERE id = ? AND tenant = ?")?;
    for id in job.after {
        match find.query_row([id, job.tenant], |row| row.get(0)).optional()? {
            Some(status) => found.push((id.clone(), status)),
            None => return Ok(Err(id.clone())),
        }
    }
    Ok(Ok(found))
}

/// Which bound one more of this tenant, with so many bytes, would be beyond.
pub(super) fn full(
    transaction: &Transaction<'_>,
    tenant: &str,
    more: u64,
    room: &JobRoom,
) -> rusqlite::Result<Option<WhichBound>> {
    let (own, all) = (read::counts(transaction, tenant)?, read::counts(transaction, "")?);
    let reached = [
        (WhichBound::Jobs, room.jobs.is_some_and(|most| own.queued + own.running >= most)),
        (WhichBound::QueuedOfOne, own.queued >= room.queued_of_one),
        (WhichBound::Queued, all.queued >= room.queued),
        (WhichBound::BytesOfOne, own.bytes.saturating_add(more) > room.bytes_of_one),
        (WhichBound::Bytes, all.bytes.saturating_add(more) > room.bytes),
    ];
    Ok(reached.into_iter().find_map(|(bound, reached)| reached.then_some(bound)))
}

/// What an idempotency key stands for, if it is known and still holds.
fn promised(
    transaction: &Transaction<'_>,
    job: &NewJob<'_>,
    name: &str,
    body: [u8; 32],
) -> rusqlite::Result<Option<Added>> {
    let find = "SELECT body, job FROM job_promise WHERE tenant = ? AND name = ? AND at_ms >= ?";
    let since = number(job.at_ms.saturating_sub(PROMISED_MS));
    let found: Option<(Vec<u8>, String)> = transaction
        .prepare_cached(find)?
        .query_row(params![job.tenant, name, since], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.map(|(before, id)| match before == body {
        true => Added::Before(id),
        false => Added::OtherRequest,
    }))
}
