//! Git's file formats, for repositories in which a hostile program commits. Nothing here runs git.
//!
//! ```text
//! host's .git ── Snapshot::read ─▶ a git folder of ours ─▶ the program commits there
//!                                                          │
//! host's .git ◀── place ── plan ◀── Pack::check ◀── pack and listing of a sandboxed git
//!      ▲
//!      └── Transaction (index, references, HEAD) ◀── what `ref_updates` allows
//! ```
//!
//! Files are opened by handle, through no symbolic link (`openat.rs`); every length is bounded.

pub mod config;
pub mod config_references;
mod host_state;
pub mod import;
mod index;
mod openat;
pub mod pack;
pub mod ref_updates;
pub mod refs;
pub mod snapshot;
pub mod transaction;

pub use config::Config;
pub use host_state::HostState;
pub use import::{ImportPlan, PlannedRef, RefListing};
pub use index::{check as check_index, tracked_paths};
pub use pack::{Pack, PackLimits};
pub use refs::{Head, RefMap};
pub use snapshot::{GitFolders, ObjectFolder, Snapshot};
pub use transaction::Transaction;

use std::{fmt, io};

/// The hash that names the objects of a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectFormat {
    /// SHA-1.
    #[default]
    Sha1,
    /// SHA-256.
    Sha256,
}

impl ObjectFormat {
    /// Bytes of an object's name.
    pub const fn id_bytes(self) -> usize {
        match self {
            ObjectFormat::Sha1 => 20,
            ObjectFormat::Sha256 => 32,
        }
    }

    /// The value of `extensions.objectFormat`.
    pub const fn name(self) -> &'static str {
        match self {
            ObjectFormat::Sha1 => "sha1",
            ObjectFormat::Sha256 => "sha256",
        }
    }
}

/// The name of an object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(Box<[u8]>);

impl ObjectId {
    pub(crate) fn of_bytes(bytes: &[u8]) -> ObjectId {
        ObjectId(bytes.into())
    }

    /// Parses hexadecimal digits in lower case, as git writes them.
    pub fn parse(text: &str, format: ObjectFormat) -> Option<ObjectId> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let bytes = text.as_bytes();
        if bytes.len() != format.id_bytes() * 2 {
            return None;
        }
        let pairs = bytes.chunks_exact(2);
        let read: Option<Vec<u8>> = pairs
            .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
            .collect();
        // Git writes zeros for "none".
        read.filter(|read| read.iter().any(|byte| *byte != 0))
            .map(|read| ObjectId(read.into()))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// Why a repository cannot be read, or its changes are refused.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The repository uses a feature that is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// A file could not be read or written.
    #[error("cannot {what}")]
    Io {
        /// The attempt.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Data from a sandbox is refused.
    #[error("{0}")]
    Refused(String),
}

/// Turns an I/O error into one that names the attempt.
pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> GitError {
    let what = what.into();
    move |source| GitError::Io { what, source }
}

/// Escapes untrusted names and messages for a terminal or a log: control characters, direction
/// marks.
pub fn escape(text: &str) -> String {
    let plain = |c: char| c == ' ' || c.is_alphanumeric() || c.is_ascii_graphic();
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if plain(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_unicode());
        }
    }
    shown
}
