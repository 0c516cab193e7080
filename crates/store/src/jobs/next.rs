//! Decides what follows an attempt of a job. Pure: uses data alone.

/// How often a job is rerun because its server ended.
pub const MOST_RERUNS: u32 = 10;
/// Maximum pause between two attempts.
const LONGEST_PAUSE_MS: u64 = 3_600_000;

/// State of a job when an attempt ends, and its policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Attempts that counted, including the one that ended.
    pub attempt: u32,
    /// Maximum attempts that count.
    pub most_attempts: u32,
    /// Reruns so far.
    pub reruns: u32,
    /// Statuses to retry on, separated by spaces.
    pub retry_on: String,
    /// Pause before the second attempt.
    pub pause_ms: u64,
    /// Whether to run again if the server ended.
    pub rerun: bool,
    /// Whether a cancellation was requested.
    pub cancelled: bool,
}

/// What follows the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The job ends with the status of this attempt.
    Final,
    /// The job ends as cancelled: that was requested, and the server ended first.
    Cancelled,
    /// Another attempt, which counts, after this many milliseconds.
    Retry(u64),
    /// Another attempt in place of this one.
    Rerun,
}

/// Decides what follows an attempt with this status.
pub fn next(policy: &Policy, status: &str) -> Next {
    let is_lost = status == "lost";
    if policy.cancelled {
        return if is_lost {
            Next::Cancelled
        } else {
            Next::Final
        };
    }
    if is_lost && policy.rerun && policy.reruns < MOST_RERUNS {
        return Next::Rerun;
    }
    let wanted = policy.retry_on.split(' ').any(|name| name == status);
    match wanted && policy.attempt < policy.most_attempts {
        true => Next::Retry(pause(policy)),
        false => Next::Final,
    }
}

/// Exponential backoff: doubles with each attempt.
fn pause(policy: &Policy) -> u64 {
    let doublings = policy.attempt.saturating_sub(1).min(32);
    policy
        .pause_ms
        .saturating_mul(1 << doublings)
        .min(LONGEST_PAUSE_MS)
}
