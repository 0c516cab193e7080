//! What comes after a try of a job. Decides on data alone.

/// How often a job is run again because its server ended.
pub const MOST_RERUNS: u32 = 10;
/// The longest pause between two tries.
const LONGEST_PAUSE_MS: u64 = 3_600_000;

/// How a job stands when a try ends, and what was asked for.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Policy {
    /// Tries that counted, with the one that ended.
    pub attempt: u32,
    pub most_attempts: u32,
    pub reruns: u32,
    /// Names of statuses, with spaces between.
    pub retry_on: String,
    pub pause_ms: u64,
    /// Run again if its server ended.
    pub rerun: bool,
    /// Somebody asked for its end.
    pub cancelled: bool,
}

/// What comes then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is over, with the status of this try.
    Final,
    /// It is over because somebody wanted that, although its server ended first.
    Cancelled,
    /// Another try, which counts, so many milliseconds later.
    Retry(u64),
    /// Another try in place of this one.
    Rerun,
}

/// After a try that ended so.
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

/// Twice as long each time.
fn pause(policy: &Policy) -> u64 {
    let doublings = policy.attempt.saturating_sub(1).min(32);
    policy
        .pause_ms
        .saturating_mul(1 << doublings)
        .min(LONGEST_PAUSE_MS)
}
