//! Limits of one tool.

use std::time::Duration;

/// What an entry says about limits; what it does not say the profile does. Never more than the profile gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Limits {
    pub cpu_time: Option<Duration>,
    pub file_bytes: Option<u64>,
    pub open_files: Option<u32>,
    pub processes: Option<u32>,
    pub stack_bytes: Option<u64>,
}
