//! Journals: append-only files with one JSON object a line, in which each line carries the hash of
//! the line before. The ledger of the doors and the audit log of the server are journals; the
//! meaning of their lines is defined there.
//!
//! ```text
//! folder ─ NAME.jsonl ─▶ NAME~2.jsonl ─▶ …     the first line of a file follows from the last of the one before
//!               └─ {"n":1,…,"prev":"…","hash":"…"}
//! ```

mod journal_dir;
mod line;
mod reader;
mod sync;
mod writer;

pub use journal_dir::{JournalDir, is_unlinked, is_valid_name, try_lock};
pub use line::{Hash, LineWriter, MAX_LINE_BYTES};
pub use reader::{ChainHead, JournalReader, NumberedRecord, ReadFault};
pub use sync::Syncer;
pub use writer::{JournalWriter, now_ms};

use std::{fmt, path::PathBuf};

/// The size at which a file is followed by the next.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// How durable a record must be before the recorded action goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It survives the end of this process, even by `SIGKILL`.
    #[default]
    Process,
    /// It survives a power failure.
    Power,
}

/// A defect of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalProblem {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: u64,
    /// The defect.
    pub what: String,
}

impl fmt::Display for JournalProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "`{}`: {}", self.file.display(), self.what),
            line => write!(out, "`{}`, line {line}: {}", self.file.display(), self.what),
        }
    }
}

impl std::error::Error for JournalProblem {}
