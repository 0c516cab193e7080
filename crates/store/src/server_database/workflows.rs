//! Workflow leases: at most one holder works on a task at a time, and the next holder finds its
//! checkpoint.
//!
//! ```text
//! nobody ─ start ─▶ held ─ checkpoint, start, resume by its holder ─▶ held for longer
//!   ▲                │ └─ its time is over ─▶ anybody may start or resume; the checkpoint stays
//!   └─── release ────┘
//! ```

use super::{ServerDatabase, WriteTransaction, from_sql, sql_integer};
use crate::database::DatabaseError;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Maximum of leases of one owner, expired ones included.
pub const MAX_WORKFLOWS: u32 = 10_000;
/// Maximum bytes of checkpoints of one owner.
pub const MAX_CHECKPOINT_BYTES: u64 = 64 << 20;
/// Default lease duration.
const DEFAULT_LEASE_MS: u64 = 300_000;
/// How long an expired lease and its checkpoint are kept.
const EXPIRED_RETENTION_MS: u64 = 7 * 24 * 3_600_000;

/// A stored lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskLease {
    /// Run id of the workflow.
    pub run: String,
    /// Holder of the lease.
    pub holder: String,
    /// Idempotency key of the request that started it.
    pub idempotency: Option<String>,
    /// Duration of the lease.
    pub lease_ms: u64,
    /// Time of expiry.
    pub expires_ms: u64,
    /// Checkpoint as JSON.
    pub checkpoint: Option<String>,
}

/// A request to take or renew a lease.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Owner of the task.
    pub owner: String,
    /// Task.
    pub task: String,
    /// Run id if this request starts the workflow.
    pub run: String,
    /// Who asks for the lease.
    pub holder: String,
    /// Idempotency key of the request.
    pub idempotency: Option<String>,
    /// `None` keeps the previous duration, or the default.
    pub lease_ms: Option<u64>,
    /// Current time.
    pub now_ms: u64,
}

/// Result of a lease request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The caller holds the lease: new, or taken over after it expired.
    Started(TaskLease),
    /// The caller held the lease already; it is extended.
    Renewed(TaskLease),
    /// Another holder has the lease.
    HeldByOther,
    /// The owner has too many leases.
    TooManyWorkflows,
    /// The owner's checkpoints are too large.
    CheckpointsTooLarge,
    /// The task has no lease.
    NotStarted,
}

impl WriteTransaction<'_> {
    /// Starts a workflow, takes it over if its lease has expired, or renews it.
    pub fn start_workflow(&self, request: &LeaseRequest) -> Result<LeaseOutcome, DatabaseError> {
        self.map_error(start(self.inner, request))
    }

    /// Resumes a workflow that was started before.
    pub fn resume_workflow(&self, request: &LeaseRequest) -> Result<LeaseOutcome, DatabaseError> {
        self.map_error(resume(self.inner, request))
    }

    /// Stores a checkpoint and renews the lease.
    pub fn checkpoint_workflow(
        &self,
        request: &LeaseRequest,
        checkpoint: &str,
    ) -> Result<LeaseOutcome, DatabaseError> {
        self.map_error((|| {
            let previous = match find(self.inner, &request.owner, &request.task)? {
                None => return Ok(LeaseOutcome::NotStarted),
                Some(previous) if previous.holder != request.holder => {
                    return Ok(LeaseOutcome::HeldByOther);
                }
                Some(previous) => previous,
            };
            if exceeds_checkpoint_limit(self.inner, request, checkpoint)? {
                return Ok(LeaseOutcome::CheckpointsTooLarge);
            }
            let write = "UPDATE workflow SET checkpoint = ?3 WHERE owner = ?1 AND task = ?2";
            self.inner
                .execute(write, params![request.owner, request.task, checkpoint])?;
            renew(self.inner, request, previous).map(LeaseOutcome::Renewed)
        })())
    }

    /// Removes leases that expired long ago.
    pub fn prune_workflows(&self, now_ms: u64) -> Result<usize, DatabaseError> {
        self.map_error(prune(self.inner, now_ms))
    }

    /// Releases a lease and removes its checkpoint. False if another holder has it, even if that
    /// lease has expired.
    pub fn release_workflow(
        &self,
        owner: &str,
        task: &str,
        holder: &str,
    ) -> Result<bool, DatabaseError> {
        self.map_error((|| match find(self.inner, owner, task)? {
            Some(lease) if lease.holder != holder => Ok(false),
            Some(_) => {
                let release = "DELETE FROM workflow WHERE owner = ? AND task = ?";
                self.inner
                    .execute(release, params![owner, task])
                    .map(|_| true)
            }
            None => Ok(true),
        })())
    }
}

impl ServerDatabase {
    /// The lease of a task, expired or not.
    pub fn workflow(&self, owner: &str, task: &str) -> Result<Option<TaskLease>, DatabaseError> {
        let find = "SELECT * FROM workflow WHERE owner = ? AND task = ?";
        self.reader
            .read(|connection| connection.query_row(find, [owner, task], lease).optional())
    }
}

fn start(transaction: &Transaction<'_>, request: &LeaseRequest) -> rusqlite::Result<LeaseOutcome> {
    let previous = find(transaction, &request.owner, &request.task)?;
    match previous {
        Some(previous) if previous.holder == request.holder => {
            // A retry of the same request, whose response was lost.
            let again =
                previous.idempotency.is_some() && previous.idempotency == request.idempotency;
            let lease = renew(transaction, request, previous)?;
            Ok(if again {
                LeaseOutcome::Started(lease)
            } else {
                LeaseOutcome::Renewed(lease)
            })
        }
        Some(previous) if previous.expires_ms > request.now_ms => Ok(LeaseOutcome::HeldByOther),
        previous => {
            if previous.is_none() && is_full(transaction, request)? {
                return Ok(LeaseOutcome::TooManyWorkflows);
            }
            let checkpoint = previous.and_then(|previous| previous.checkpoint);
            write(transaction, request, &request.run, checkpoint.as_deref())
                .map(LeaseOutcome::Started)
        }
    }
}

fn resume(transaction: &Transaction<'_>, request: &LeaseRequest) -> rusqlite::Result<LeaseOutcome> {
    match find(transaction, &request.owner, &request.task)? {
        None => Ok(LeaseOutcome::NotStarted),
        Some(previous) if previous.holder == request.holder => {
            renew(transaction, request, previous).map(LeaseOutcome::Renewed)
        }
        Some(previous) if previous.expires_ms > request.now_ms => Ok(LeaseOutcome::HeldByOther),
        Some(previous) => {
            let run = previous.run;
            let checkpoint = previous.checkpoint;
            write(transaction, request, &run, checkpoint.as_deref()).map(LeaseOutcome::Started)
        }
    }
}

/// Prunes first, then counts.
fn is_full(transaction: &Transaction<'_>, request: &LeaseRequest) -> rusqlite::Result<bool> {
    prune(transaction, request.now_ms)?;
    let count = "SELECT count(*) FROM workflow WHERE owner = ?";
    let count: u32 = transaction.query_row(count, [&request.owner], |row| row.get(0))?;
    Ok(count >= MAX_WORKFLOWS)
}

fn prune(transaction: &Transaction<'_>, now_ms: u64) -> rusqlite::Result<usize> {
    let old = sql_integer(now_ms.saturating_sub(EXPIRED_RETENTION_MS));
    transaction.execute("DELETE FROM workflow WHERE expires_ms < ?", [old])
}

/// Whether the owner's checkpoints would exceed the limit. SQLite knows the lengths without reading
/// the texts.
fn exceeds_checkpoint_limit(
    transaction: &Transaction<'_>,
    request: &LeaseRequest,
    checkpoint: &str,
) -> rusqlite::Result<bool> {
    let sum = "SELECT coalesce(sum(octet_length(checkpoint)), 0) FROM workflow WHERE owner = ? AND task <> ?";
    let row = params![request.owner, request.task];
    let others: i64 = transaction
        .prepare_cached(sum)?
        .query_row(row, |row| row.get(0))?;
    Ok(from_sql(others).saturating_add(checkpoint.len() as u64) > MAX_CHECKPOINT_BYTES)
}

fn renew(
    transaction: &Transaction<'_>,
    request: &LeaseRequest,
    previous: TaskLease,
) -> rusqlite::Result<TaskLease> {
    let lease_ms = request.lease_ms.unwrap_or(previous.lease_ms);
    let expires_ms = request.now_ms.saturating_add(lease_ms);
    let renew = "UPDATE workflow SET lease_ms = ?3, expires_ms = ?4 WHERE owner = ?1 AND task = ?2";
    let row = params![
        request.owner,
        request.task,
        sql_integer(lease_ms),
        sql_integer(expires_ms)
    ];
    transaction.execute(renew, row)?;
    Ok(TaskLease {
        lease_ms,
        expires_ms,
        ..previous
    })
}

fn write(
    transaction: &Transaction<'_>,
    request: &LeaseRequest,
    run: &str,
    checkpoint: Option<&str>,
) -> rusqlite::Result<TaskLease> {
    let LeaseRequest {
        owner,
        task,
        holder,
        idempotency,
        lease_ms,
        now_ms,
        ..
    } = request;
    let lease_ms = lease_ms.unwrap_or(DEFAULT_LEASE_MS);
    let expires_ms = now_ms.saturating_add(lease_ms);
    transaction.execute(
        "INSERT OR REPLACE INTO workflow (owner, task, run, holder, idempotency, lease_ms, expires_ms, checkpoint)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        params![owner, task, run, holder, idempotency, sql_integer(lease_ms), sql_integer(expires_ms), checkpoint],
    )?;
    Ok(TaskLease {
        run: run.to_owned(),
        holder: holder.clone(),
        idempotency: idempotency.clone(),
        lease_ms,
        expires_ms,
        checkpoint: checkpoint.map(str::to_owned),
    })
}

fn find(
    transaction: &Transaction<'_>,
    owner: &str,
    task: &str,
) -> rusqlite::Result<Option<TaskLease>> {
    let find = "SELECT * FROM workflow WHERE owner = ? AND task = ?";
    transaction
        .prepare_cached(find)?
        .query_row([owner, task], lease)
        .optional()
}

fn lease(row: &Row<'_>) -> rusqlite::Result<TaskLease> {
    Ok(TaskLease {
        run: row.get("run")?,
        holder: row.get("holder")?,
        idempotency: row.get("idempotency")?,
        lease_ms: from_sql(row.get("lease_ms")?),
        expires_ms: from_sql(row.get("expires_ms")?),
        checkpoint: row.get("checkpoint")?,
    })
}
