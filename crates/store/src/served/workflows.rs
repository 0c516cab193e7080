//! Workflow leases: at most one holder works on a task at a time, and the next holder finds its
//! checkpoint.
//!
//! ```text
//! nobody ─ start ─▶ held ─ checkpoint, start, resume by its holder ─▶ held for longer
//!   ▲                │ └─ its time is over ─▶ anybody may start or resume; the checkpoint stays
//!   └─── release ────┘
//! ```

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Maximum of leases of one owner, expired ones included.
pub const MOST_WORKFLOWS: u32 = 10_000;
/// Maximum bytes of checkpoints of one owner.
pub const MOST_CHECKPOINTS: u64 = 64 << 20;
/// Default lease duration.
const USUAL_MS: u64 = 300_000;
/// How long an expired lease and its checkpoint are kept.
const ABANDONED_MS: u64 = 7 * 24 * 3_600_000;

/// A stored lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
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
pub struct NewLease {
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
pub enum Taking {
    /// The caller holds the lease: new, or taken over after it expired.
    Started(Lease),
    /// The caller held the lease already; it is extended.
    AlreadyHis(Lease),
    /// Another holder has the lease.
    Held,
    /// The owner has too many leases.
    Full,
    /// The owner's checkpoints are too large.
    TooMuch,
    /// The task has no lease.
    Unknown,
}

impl Writing<'_> {
    fn worked<T>(&self, done: rusqlite::Result<T>) -> Result<T, DatabaseError> {
        done.map_err(|source| self.database.failed(source))
    }

    /// Starts a workflow, takes it over if its lease has expired, or renews it.
    pub fn start_workflow(&self, wanted: &NewLease) -> Result<Taking, DatabaseError> {
        self.worked(start(self.transaction, wanted))
    }

    /// Resumes a workflow that was started before.
    pub fn resume_workflow(&self, wanted: &NewLease) -> Result<Taking, DatabaseError> {
        self.worked(resume(self.transaction, wanted))
    }

    /// Stores a checkpoint and renews the lease.
    pub fn checkpoint_workflow(
        &self,
        wanted: &NewLease,
        checkpoint: &str,
    ) -> Result<Taking, DatabaseError> {
        self.worked((|| {
            let before = match find(self.transaction, &wanted.owner, &wanted.task)? {
                None => return Ok(Taking::Unknown),
                Some(before) if before.holder != wanted.holder => return Ok(Taking::Held),
                Some(before) => before,
            };
            if is_too_much(self.transaction, wanted, checkpoint)? {
                return Ok(Taking::TooMuch);
            }
            let write = "UPDATE workflow SET checkpoint = ?3 WHERE owner = ?1 AND task = ?2";
            self.transaction
                .execute(write, params![wanted.owner, wanted.task, checkpoint])?;
            renew(self.transaction, wanted, before).map(Taking::AlreadyHis)
        })())
    }

    /// Removes leases that expired long ago.
    pub fn prune_workflows(&self, now_ms: u64) -> Result<usize, DatabaseError> {
        self.worked(forget(self.transaction, now_ms))
    }

    /// Releases a lease and removes its checkpoint. False if another holder has it, even if that
    /// lease has expired.
    pub fn release_workflow(
        &self,
        owner: &str,
        task: &str,
        holder: &str,
    ) -> Result<bool, DatabaseError> {
        self.worked((|| match find(self.transaction, owner, task)? {
            Some(lease) if lease.holder != holder => Ok(false),
            Some(_) => {
                let release = "DELETE FROM workflow WHERE owner = ? AND task = ?";
                self.transaction
                    .execute(release, params![owner, task])
                    .map(|_| true)
            }
            None => Ok(true),
        })())
    }
}

impl Served {
    /// The lease of a task, expired or not.
    pub fn workflow(&self, owner: &str, task: &str) -> Result<Option<Lease>, DatabaseError> {
        let find = "SELECT * FROM workflow WHERE owner = ? AND task = ?";
        self.reading
            .read(|connection| connection.query_row(find, [owner, task], lease).optional())
    }
}

fn start(transaction: &Transaction<'_>, wanted: &NewLease) -> rusqlite::Result<Taking> {
    let before = find(transaction, &wanted.owner, &wanted.task)?;
    match before {
        Some(before) if before.holder == wanted.holder => {
            // A retry of the same request, whose response was lost.
            let again = before.idempotency.is_some() && before.idempotency == wanted.idempotency;
            let lease = renew(transaction, wanted, before)?;
            Ok(if again {
                Taking::Started(lease)
            } else {
                Taking::AlreadyHis(lease)
            })
        }
        Some(before) if before.expires_ms > wanted.now_ms => Ok(Taking::Held),
        before => {
            if before.is_none() && is_full(transaction, wanted)? {
                return Ok(Taking::Full);
            }
            let checkpoint = before.and_then(|before| before.checkpoint);
            write(transaction, wanted, &wanted.run, checkpoint.as_deref()).map(Taking::Started)
        }
    }
}

fn resume(transaction: &Transaction<'_>, wanted: &NewLease) -> rusqlite::Result<Taking> {
    match find(transaction, &wanted.owner, &wanted.task)? {
        None => Ok(Taking::Unknown),
        Some(before) if before.holder == wanted.holder => {
            renew(transaction, wanted, before).map(Taking::AlreadyHis)
        }
        Some(before) if before.expires_ms > wanted.now_ms => Ok(Taking::Held),
        Some(before) => {
            let (run, checkpoint) = (before.run, before.checkpoint);
            write(transaction, wanted, &run, checkpoint.as_deref()).map(Taking::Started)
        }
    }
}

/// Prunes first, then counts.
fn is_full(transaction: &Transaction<'_>, wanted: &NewLease) -> rusqlite::Result<bool> {
    forget(transaction, wanted.now_ms)?;
    let count = "SELECT count(*) FROM workflow WHERE owner = ?";
    let count: u32 = transaction.query_row(count, [&wanted.owner], |row| row.get(0))?;
    Ok(count >= MOST_WORKFLOWS)
}

fn forget(transaction: &Transaction<'_>, now_ms: u64) -> rusqlite::Result<usize> {
    let old = number(now_ms.saturating_sub(ABANDONED_MS));
    transaction.execute("DELETE FROM workflow WHERE expires_ms < ?", [old])
}

/// Whether the owner's checkpoints would exceed the limit. SQLite knows the lengths without reading
/// the texts.
fn is_too_much(
    transaction: &Transaction<'_>,
    wanted: &NewLease,
    checkpoint: &str,
) -> rusqlite::Result<bool> {
    let sum = "SELECT coalesce(sum(octet_length(checkpoint)), 0) FROM workflow WHERE owner = ? AND task <> ?";
    let row = params![wanted.owner, wanted.task];
    let others: i64 = transaction
        .prepare_cached(sum)?
        .query_row(row, |row| row.get(0))?;
    Ok(back(others).saturating_add(checkpoint.len() as u64) > MOST_CHECKPOINTS)
}

fn renew(
    transaction: &Transaction<'_>,
    wanted: &NewLease,
    before: Lease,
) -> rusqlite::Result<Lease> {
    let lease_ms = wanted.lease_ms.unwrap_or(before.lease_ms);
    let expires_ms = wanted.now_ms.saturating_add(lease_ms);
    let renew = "UPDATE workflow SET lease_ms = ?3, expires_ms = ?4 WHERE owner = ?1 AND task = ?2";
    let row = params![
        wanted.owner,
        wanted.task,
        number(lease_ms),
        number(expires_ms)
    ];
    transaction.execute(renew, row)?;
    Ok(Lease {
        lease_ms,
        expires_ms,
        ..before
    })
}

fn write(
    transaction: &Transaction<'_>,
    wanted: &NewLease,
    run: &str,
    checkpoint: Option<&str>,
) -> rusqlite::Result<Lease> {
    let NewLease {
        owner,
        task,
        holder,
        idempotency,
        lease_ms,
        now_ms,
        ..
    } = wanted;
    let lease_ms = lease_ms.unwrap_or(USUAL_MS);
    let expires_ms = now_ms.saturating_add(lease_ms);
    transaction.execute(
        "INSERT OR REPLACE INTO workflow (owner, task, run, holder, idempotency, lease_ms, expires_ms, checkpoint)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        params![owner, task, run, holder, idempotency, number(lease_ms), number(expires_ms), checkpoint],
    )?;
    Ok(Lease {
        run: run.to_owned(),
        holder: holder.clone(),
        idempotency: idempotency.clone(),
        lease_ms,
        expires_ms,
        checkpoint: checkpoint.map(str::to_owned),
    })
}

fn find(transaction: &Transaction<'_>, owner: &str, task: &str) -> rusqlite::Result<Option<Lease>> {
    let find = "SELECT * FROM workflow WHERE owner = ? AND task = ?";
    transaction
        .prepare_cached(find)?
        .query_row([owner, task], lease)
        .optional()
}

fn lease(row: &Row<'_>) -> rusqlite::Result<Lease> {
    Ok(Lease {
        run: row.get("run")?,
        holder: row.get("holder")?,
        idempotency: row.get("idempotency")?,
        lease_ms: back(row.get("lease_ms")?),
        expires_ms: back(row.get("expires_ms")?),
        checkpoint: row.get("checkpoint")?,
    })
}
