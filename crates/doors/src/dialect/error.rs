//! What goes wrong, in the asker's own language.

use super::{Dialect, Operation};
use bytes::Bytes;

/// What went wrong, as the program is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The HTTP status.
    pub status: u16,
    /// Our word for it: `budget_exceeded`, `upstream_unreachable`, `permission_error`, …
    pub code: &'static str,
    /// One sentence: what happened and what would help. Never a key, never an address.
    pub message: String,
    /// Whether trying again may help; `x-should-retry`.
    pub retry: bool,
    /// Seconds to wait before.
    pub retry_after: Option<u64>,
}

/// The body of an answer, in the asker's dialect (`None`: plain problem JSON).
pub fn answer(_dialect: Option<Dialect>, _fault: &Fault) -> Bytes {
    Bytes::new()
}

/// What is put into a stream that cannot go on. The connection is then dropped without an end, so that a truncated
/// answer never looks whole.
pub fn interruption(_operation: Operation, _fault: &Fault) -> Bytes {
    Bytes::new()
}
