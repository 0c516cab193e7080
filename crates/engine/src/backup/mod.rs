//! Backup and restore of a state folder, also of one that is in use.
//!
//! ```text
//! backup.json            which form, which Airlock, which schema of the database
//! state/airlock.db       as it was at one moment
//! state/artifacts/…      versions are never changed: each is there as a whole or not at all
//! state/audit/…          beginnings that end with a line
//! state/ledger/…         the same, each line checked
//! state/secrets/NAME.secret
//! manifest.jsonl         path, size and SHA-256 of all of these, in this order
//! ```
//! The database is copied first. It knows how far ledger and audit were read; those are only added to, so what is copied
//! later has all that the database knows of. Nothing may be retired meanwhile: both take `upkeep.lock`.
//!
//! Not in it: the master key of the secrets, run records, sockets and locks, images (they are pulled or loaded again),
//! layers of workspaces, audits and ledgers that were set aside (`audit-aside-…`, `ledger-aside-…`).

mod judge;
mod read;
mod restore;
mod tar;
#[cfg(test)]
mod tests;
mod write;

pub use read::{Sink, check};
pub use restore::{Waiting, examine, restore};
pub use write::{Backup, Progress, backup};

use serde::{Deserialize, Serialize};
use std::{io, path::PathBuf};

/// The form of the archive.
const FORMAT: u32 = 1;
const ABOUT: &str = "backup.json";
const MANIFEST: &str = "manifest.jsonl";
const STATE: &str = "state/";
const DATABASE: &str = "airlock.db";

/// What of a state folder is in a backup.
const PARTS: [&str; 5] = [DATABASE, "artifacts", "audit", "ledger", "secrets"];

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// The form of the archive.
    pub format: u32,
    /// The version of Airlock that made it.
    pub airlock: String,
    /// The schema of its database; none if there was none.
    pub schema: Option<i64>,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
}

/// What is in a backup, or was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What it says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// Files of the state folder.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What does not fit together in ledger or audit, or could not be taken; it is in the backup as it was found.
    pub problems: Vec<String>,
    /// What a restore held back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<store::copy::Held>,
}

/// Why there is no backup, or nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Something of the state folder.
    #[error("cannot {verb} `{}`: {source}", path.display())]
    File {
        /// What was tried.
        verb: &'static str,
        /// With what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The database.
    #[error(transparent)]
    Database(#[from] store::DatabaseError),
    /// Where the archive is written to.
    #[error("cannot write the backup: {0}")]
    Output(#[source] io::Error),
    /// An archive that is not believed.
    #[error("this is no whole backup: {0}")]
    Archive(String),
    /// A place that is taken.
    #[error("`{}` {why}", path.display())]
    Taken {
        /// Which.
        path: PathBuf,
        /// By what.
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

/// One line of the manifest.
#[derive(Serialize)]
struct Entry<'a> {
    path: &'a str,
    size: u64,
    sha256: String,
}

impl Entry<'_> {
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
