//! Backup and restore of a state folder, also of one that is in use.
//!
//! ```text
//! backup.json            archive format, version of Airlock, schema of the database
//! state/airlock.db       a snapshot
//! state/artifacts/…      versions are immutable: each is there completely or not at all
//! state/audit/…          prefixes that end with a line
//! state/ledger/…         the same, each line verified
//! state/secrets/NAME.secret
//! manifest.jsonl         path, size and SHA-256 of all of these, in this order
//! ```
//! The database is copied first. It knows how far ledger and audit were read; those are
//! append-only, so what is copied later has everything that the database refers to. Nothing may be
//! retired meanwhile: both take `upkeep.lock`.
//!
//! Not in the archive: the master key of the secrets, run records, sockets and locks, images (they
//! are pulled or loaded again), workspace layers, audits and ledgers that were set aside
//! (`audit-aside-…`, `ledger-aside-…`).

mod read;
mod restore;
mod tar;
#[cfg(test)]
mod tests;
mod verify;
mod write;

pub use read::{Sink, check};
pub use restore::{PendingWork, examine, restore};
pub use write::{Backup, BackupProgress, backup};

use serde::{Deserialize, Serialize};
use std::{io, path::PathBuf};

/// The version of the archive format.
const FORMAT: u32 = 1;
const INFO_FILE: &str = "backup.json";
const MANIFEST: &str = "manifest.jsonl";
const STATE_PREFIX: &str = "state/";
const DATABASE: &str = "airlock.db";

/// The parts of a state folder that are in a backup.
const PARTS: [&str; 5] = [DATABASE, "artifacts", "audit", "ledger", "secrets"];

/// The description of a backup, in `backup.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupInfo {
    /// The version of the archive format.
    pub format: u32,
    /// The version of Airlock that made it.
    pub airlock: String,
    /// The schema of its database; none without a database.
    pub schema: Option<i64>,
    /// The time of the backup in milliseconds since 1970.
    pub made_ms: u64,
}

/// The contents of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// The description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<BackupInfo>,
    /// The number of files of the state folder.
    pub files: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// Inconsistencies of ledger or audit, which are in the backup as they were, and files that
    /// could not be copied.
    pub problems: Vec<String>,
    /// The pending work that a restore held back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<store::backup::CancelledWork>,
}

/// Why a backup or restore failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file of the state folder.
    #[error("cannot {verb} `{}`: {source}", path.display())]
    File {
        /// What was tried.
        verb: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The database.
    #[error(transparent)]
    Database(#[from] store::DatabaseError),
    /// The output of the archive.
    #[error("cannot write the backup: {0}")]
    Output(#[source] io::Error),
    /// An invalid archive.
    #[error("this is no whole backup: {0}")]
    Archive(String),
    /// A path that is in use.
    #[error("`{}` {why}", path.display())]
    Taken {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
}

impl BackupError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            BackupError::File { .. } => {
                "look whether the folder is yours, and whether its disk is full"
            }
            BackupError::Database(error) => error.hint(),
            BackupError::Output(_) => "look whether its disk is full, or choose another place",
            BackupError::Archive(_) => "nothing was restored; use another backup",
            BackupError::Taken { .. } => "choose another place, or move what is there away",
        }
    }

    fn file(verb: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> BackupError {
        let path = path.into();
        move |source| BackupError::File { verb, path, source }
    }
}

/// A line of the manifest.
#[derive(Serialize)]
struct ManifestEntry<'a> {
    path: &'a str,
    size: u64,
    sha256: String,
}

impl ManifestEntry<'_> {
    fn line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

fn hexadecimal(hash: &[u8]) -> String {
    use std::fmt::Write;
    hash.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}
