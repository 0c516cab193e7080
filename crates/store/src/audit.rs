//! The audit log: who requested what, which rule decided, and the outcome. Append-only.
//!
//! ```text
//! STATE/audit/server.jsonl ─▶ server~2.jsonl ─▶ …      lines bound by hashes (crate `journal`), one owner by lock
//! STATE/airlock.db            where each file begins, and the last line that is surely on the disk (`marks`)
//! ```
//!
//! A record survives the end of the process at once, and power loss within a second. Truncation
//! after the last checkpoint cannot be detected by the log itself: compare it with a head hash that
//! was stored elsewhere.

mod checkpoints;
mod maintenance;
mod query;
mod verify;
mod writer;

pub use journal::{Durability, JournalProblem};
pub use query::{AuditFilter, AuditPage, AuditRow, BadCursor, read_page};
pub use verify::{VerifyError, VerifyReport, head, parse_hash, verify};
pub use writer::{AuditSettings, OwnedAuditEntry, set_aside};

use std::{
    io,
    path::Path,
    sync::{Arc, PoisonError},
    thread::JoinHandle,
};
use writer::AuditWriter;

/// Folder in the state folder.
const FOLDER: &str = "audit";
/// Name of the server's journal.
const NAME: &str = "server";

/// The decision about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// Allowed.
    Allowed,
    /// Refused.
    Refused,
    /// No decision: an event that happened.
    #[default]
    Happened,
}

impl Decision {
    /// The name in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Decision::Allowed => "allowed",
            Decision::Refused => "refused",
            Decision::Happened => "happened",
        }
    }
}

/// One record. Empty fields are left out; no field ever contains a secret, an argument list or a
/// program's output.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditEntry<'a> {
    /// `run.accept`, `run.start`, `run.deny`, `run.end`, `job.accept`, `job.end`, `sandbox.make`,
    /// `sandbox.exec`, `key.make`, `key.revoke`, `image.allow`, `server.start`, …
    pub what: &'a str,
    /// The decision.
    pub decision: Decision,
    /// Tenant.
    pub tenant: &'a str,
    /// API key of the request.
    pub key: &'a str,
    /// Run or sandbox.
    pub run: &'a str,
    /// Task that it belongs to.
    pub task: &'a str,
    /// Job that it belongs to.
    pub job: &'a str,
    /// Rule that decided: a scope, a quota, a barrier, an egress rule.
    pub rule: &'a str,
    /// A few words of detail: a status, a target, a limit.
    pub about: &'a str,
}

/// The audit log of a state folder, written by the process that owns it.
#[derive(Debug)]
pub struct AuditLog {
    shared: Arc<AuditWriter>,
    threads: Vec<JoinHandle<()>>,
}

impl AuditLog {
    /// Continues the audit log of a state folder; starts one if there is none.
    pub fn open(state: &Path) -> io::Result<AuditLog> {
        AuditLog::open_with(state, AuditSettings::default())
    }

    /// The same with these settings.
    pub fn open_with(state: &Path, settings: AuditSettings) -> io::Result<AuditLog> {
        let shared = Arc::new(AuditWriter::open(state, settings)?);
        let mut audit = AuditLog {
            shared,
            threads: Vec::new(),
        };
        for (name, work) in [
            ("audit", maintenance::sync_loop as fn(&AuditWriter)),
            ("audit-marks", maintenance::retention_loop),
        ] {
            let theirs = Arc::clone(&audit.shared);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || work(&theirs))?;
            audit.threads.push(thread);
        }
        Ok(audit)
    }

    /// Whether [`append`](AuditLog::append) waits for the disk, so that it must not be called from
    /// the event loop.
    pub fn waits_for_disk(&self) -> bool {
        self.shared.waits_for_disk()
    }

    /// Appends a record. Once it returns, the record survives this process; if it fails, the
    /// recorded action must not be done.
    pub fn append(&self, entry: &AuditEntry<'_>) -> io::Result<()> {
        self.shared.append(entry)
    }

    /// Appends a record of an event that has already happened. If it cannot be written now, it is
    /// queued; the queue is bounded, and the number of dropped records is recorded.
    pub fn append_event(&self, entry: &AuditEntry<'_>) {
        self.shared.append_event(entry);
    }

    /// Syncs all records and stores a checkpoint, so that they cannot be truncated unnoticed.
    pub fn checkpoint(&self) {
        // A missing checkpoint weakens the proof; it makes nothing wrong.
        _ = maintenance::sync_and_checkpoint(&self.shared);
    }

    /// Why records cannot be written or synced.
    pub fn write_error(&self) -> Option<String> {
        let state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state
            .synced
            .as_ref()
            .err()
            .or(state.write_error.as_ref())
            .cloned()
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.shared.finish();
        for thread in self.threads.drain(..) {
            // If the thread panicked, the last checkpoint is older; nothing is lost.
            _ = thread.join();
        }
        self.checkpoint();
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
