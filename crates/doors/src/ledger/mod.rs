//! The ledger: what was reserved and what was spent, written before the first byte goes out. One file a segment, one
//! owner a segment, one JSON object a line, each bound to the one before by its hash.

use crate::usage::{Source, Usage};
use spec::Money;
use std::{io, path::Path};

/// How lasting a record must be before a call goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Survives the end of this process, whatever ends it.
    #[default]
    Process,
    /// Survives loss of power.
    Power,
}

/// Who is calling, and what.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Call {
    pub run: String,
    pub session: String,
    pub tenant: String,
    pub door: String,
    pub provider: String,
    pub model: String,
    pub operation: String,
    /// 1 for the first try.
    pub attempt: u32,
    pub price_book: String,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Outcome {
    pub usage: Usage,
    pub source: Source,
    pub money: Money,
    /// What of it went beyond the reservation.
    pub overrun: Money,
    /// The provider's status; 0 if there was none.
    pub status: u16,
    /// `complete`, `cut`, `client_gone`, `upstream_failed`, `revoked`, …
    pub ending: String,
    pub duration_ms: u64,
}

/// A segment that this process owns.
#[derive(Debug)]
pub struct Ledger {}

impl Ledger {
    /// Begins a segment `name` in a folder, which is made if absent (mode 0700), or goes on with it after recovery.
    pub fn open(_folder: &Path, _name: &str, _durability: Durability) -> io::Result<Ledger> {
        Ok(Ledger {})
    }
}
