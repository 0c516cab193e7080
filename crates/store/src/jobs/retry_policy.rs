//! Decides what follows an attempt of a job. Pure: uses data alone.

/// How often a job is rerun because its server ended.
pub const MAX_RERUNS: u32 = 10;
/// Maximum pause between two attempts.
const MAX_RETRY_PAUSE_MS: u64 = 3_600_000;

/// State of a job when an attempt ends, and its policy.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// Attempts that counted, including the one that ended.
    pub attempt: u32,
    /// Maximum attempts that count.
    pub max_attempts: u32,
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
pub enum NextStep {
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
pub fn next_step(policy: &RetryPolicy, status: &str) -> NextStep {
    let is_lost = status == "lost";
    if policy.cancelled {
        return if is_lost {
            NextStep::Cancelled
        } else {
            NextStep::Final
        };
    }
    if is_lost && policy.rerun && policy.reruns < MAX_RERUNS {
        return NextStep::Rerun;
    }
    let wanted = policy.retry_on.split(' ').any(|name| name == status);
    if wanted && policy.attempt < policy.max_attempts {
        NextStep::Retry(pause(policy))
    } else {
        NextStep::Final
    }
}

/// Exponential backoff: doubles with each attempt.
fn pause(policy: &RetryPolicy) -> u64 {
    let doublings = policy.attempt.saturating_sub(1).min(32);
    policy
        .pause_ms
        .saturating_mul(1 << doublings)
        .min(MAX_RETRY_PAUSE_MS)
}
