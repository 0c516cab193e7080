//! Git's formats, for repositories that a hostile program works on. Nothing here runs git.
//!
//! ```text
//! host's .git ── Snapshot::read ─▶ a git folder of ours ─▶ the program commits there
//!                                                          │
//! host's .git ◀── place ── plan ◀── Pack::check ◀── pack and listing of a sandboxed git
//!      ▲
//!      └── Transaction (index, references, HEAD) ◀── what `moves` lets move
//! ```
//!
//! Files are opened by handle, through no symbolic link (`handle.rs`); every length is bounded.

pub mod config;
mod handle;
mod host;
pub mod import;
mod index;
pub mod moves;
pub mod named;
pub mod pack;
pub mod refs;
pub mod snapshot;
pub mod transaction;

pub use config::Config;
pub use host::HostState;
pub use import::{Listing, Plan, PlannedRef};
pub use index::{check as check_index, tracked};
pub use pack::{Bounds, Pack};
pub use refs::{Head, RefMap};
pub use snapshot::{GitFolders, ObjectFolder, Snapshot};
pub use transaction::Transaction;

use std::{fmt, io};

/// Which hash names the objects of a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ObjectFormat {
    #[default]
    Sha1,
    Sha256,
}

impl ObjectFormat {
    /// Bytes of a name.
    pub const fn id_bytes(self) -> usize {
        match self {
            ObjectFormat::Sha1 => 20,
            ObjectFormat::Sha256 => 32,
        }
    }

    /// As `extensions.objectFormat` has it.
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

    /// Reads its hexadecimal form, in lower case as git writes it.
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
        // All zeros is what git writes for "none".
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

/// Why a repository is not read, or what was made in it not taken.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// A kind of repository that is not handled.
    #[error("{0}")]
    Unsupported(String),
    /// A file could not be read or written.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What came out of a sandbox is not taken.
    #[error("{0}")]
    Refused(String),
}

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> GitError {
    let what = what.into();
    move |source| GitError::Io { what, source }
}

/// Names and messages of strangers, for a terminal or a log: no controls, no direction marks.
pub fn escape(text: &str) -> String {
    let plain = |c: char| c == ' ' || c.is_alphanumeric() || c.is_ascii_graphic();
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match plain(c) {
            true => shown.push(c),
            false => shown.extend(c.escape_unicode()),
        }
    }
    shown
}
