//! Journals: files that are only added to, one JSON object a line, each line bound to the one before by its hash. The
//! ledger of the doors is one, the audit of a server another; what their lines mean is theirs.
//!
//! ```text
//! folder ─ NAME.jsonl ─▶ NAME~2.jsonl ─▶ …     the first line of a file follows from the last of the one before
//!               └─ {"n":1,…,"prev":"…","hash":"…"}
//! ```

mod folder;
mod line;
mod reader;
mod sync;
mod writer;

pub use folder::{Folder, is_gone, is_name, lock};
pub use line::{Hash, LONGEST, Line};
pub use reader::{Fault, Head, Numbered, Reader};
pub use sync::Syncer;
pub use writer::{Writer, now};

use std::{fmt, path::PathBuf};

/// A file that has grown to this is followed by the next.
pub const LARGEST: u64 = 64 << 20;

/// How lasting a record must be before what it tells of goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Survives the end of this process, whatever ends it.
    #[default]
    Process,
    /// Survives loss of power.
    Power,
}

/// Something that is wrong with a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Problem {
    pub file: PathBuf,
    /// 0 if it is the file as a whole.
    pub line: u64,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "`{}`: {}", self.file.display(), self.what),
            line => write!(out, "`{}`, line {line}: {}", self.file.display(), self.what),
        }
    }
}

impl std::error::Error for Problem {}
