//! The audit: who asked for what, what was decided by which rule, and what came of it. Only added to.
//!
//! ```text
//! STATE/audit/server.jsonl ─▶ server~2.jsonl ─▶ …      lines bound by hashes (crate `journal`), one owner by lock
//! STATE/airlock.db            where each file begins, and the last line that is surely on the disk (`marks`)
//! ```
//!
//! A line outlasts the process at once, and the power within a second. What is cut off behind the last mark is not found by
//! ourselves: it is by whoever noted a head elsewhere.

mod file;
mod marks;
mod page;
mod tidy;
mod verify;

pub use file::{AuditSettings, Note, set_aside};
pub use journal::{Durability, JournalProblem};
pub use page::{Asked, Page, Row, WrongPlace, page};
pub use verify::{Verified, Wrong, head, parsed as hash, verify};

use file::Shared;
use std::{
    io,
    path::Path,
    sync::{Arc, PoisonError},
    thread::JoinHandle,
};

/// The folder in the state folder.
const FOLDER: &str = "audit";
/// The journal that a server writes.
const NAME: &str = "server";

/// How it was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// It may be done.
    Allowed,
    /// It may not.
    Refused,
    /// It happened.
    #[default]
    Happened,
}

impl Decision {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Decision::Allowed => "allowed",
            Decision::Refused => "refused",
            Decision::Happened => "happened",
        }
    }
}

/// One line. What is empty is left out; no field ever holds a secret, an argument list or a program's output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry<'a> {
    /// `run.accept`, `run.start`, `run.deny`, `run.end`, `job.accept`, `job.end`, `sandbox.make`, `sandbox.exec`, `key.make`,
    /// `key.revoke`, `image.allow`, `server.start`, …
    pub what: &'a str,
    /// How it was decided.
    pub decision: Decision,
    /// Whose it is.
    pub tenant: &'a str,
    /// The key by which it was asked for.
    pub key: &'a str,
    /// The run or sandbox.
    pub run: &'a str,
    /// The task that it belongs to.
    pub task: &'a str,
    /// The job that it belongs to.
    pub job: &'a str,
    /// Which rule decided: a scope, a quota, a barrier, a rule of an egress door.
    pub rule: &'a str,
    /// In a few words, what of it: a status, a target, a limit.
    pub about: &'a str,
}

/// The audit of a state folder, written by whoever owns that.
#[derive(Debug)]
pub struct Audit {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Audit {
    /// Goes on with the audit of a state folder; begins one if there is none.
    pub fn open(state: &Path) -> io::Result<Audit> {
        Audit::open_with(state, AuditSettings::default())
    }

    /// The same, kept as these settings say.
    pub fn open_with(state: &Path, settings: AuditSettings) -> io::Result<Audit> {
        let shared = Arc::new(Shared::open(state, settings)?);
        let mut audit = Audit {
            shared,
            threads: Vec::new(),
        };
        for (name, work) in [
            ("audit", tidy::work as fn(&Shared)),
            ("audit-marks", tidy::keep),
        ] {
            let theirs = Arc::clone(&audit.shared);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || work(&theirs))?;
            audit.threads.push(thread);
        }
        Ok(audit)
    }

    /// Whether [`note`](Audit::note) waits for the disk, and is not to be called where others wait for their turn.
    pub fn waits(&self) -> bool {
        self.shared.waits()
    }

    /// Adds a line. Once it returns, the line outlasts this process; if it fails, what it tells of must not be done.
    pub fn note(&self, entry: &Entry<'_>) -> io::Result<()> {
        self.shared.note(entry)
    }

    /// Adds a line about what has happened already. If it cannot be written now it is later; there is a bound on how many
    /// wait, and how many were left out is written, too.
    pub fn note_happened(&self, entry: &Entry<'_>) {
        self.shared.note_happened(entry);
    }

    /// Makes sure of everything that was written, and marks it, so that nothing of it can be cut off unseen.
    pub fn mark(&self) {
        // A mark that is missing makes less certain, and nothing wrong.
        _ = tidy::sync_and_mark(&self.shared);
    }

    /// Why lines cannot be written, or no longer be made to last.
    pub fn trouble(&self) -> Option<String> {
        let state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state
            .synced
            .as_ref()
            .err()
            .or(state.trouble.as_ref())
            .cloned()
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.shared.finish();
        for thread in self.threads.drain(..) {
            // If it panicked the last mark is an older one, and nothing is lost.
            _ = thread.join();
        }
        self.mark();
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
