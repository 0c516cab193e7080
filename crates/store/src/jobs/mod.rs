//! Jobs, stored from their acceptance to exactly one final state, however often the server
//! restarts.
//!
//! ```text
//!            ┌──────── jobs ── all that it is after succeeded ──┐
//! accepted ──┼──────── time ── its moment came ─────────────────┤
//!            └───────────────────────────────────────────────▶ turn ── start ──▶ running ──▶ a final state
//!                              ▲                                ▲                   │
//!                              └── again, after a pause ────────┴── again ──────────┘
//! ```
//!
//! Every arrow is one transaction, which also updates the dependents of the job; many dependents
//! are updated soon after, in batches (`dependents.rs`). A `running` job names the server that runs
//! it (column `boot`): after a crash the next server settles it as its policy says ([`next_step`]).
//! Triggers count the jobs of each tenant, so that no query counts rows.

mod add;
mod dependents;
mod prune;
mod queries;
mod retry_policy;
mod transitions;

pub use add::{AddJobOutcome, MAX_DEPENDENTS, NewJob, QueueLimits, ReachedLimit};
pub use prune::MAX_IDEMPOTENCY_KEYS;
pub use queries::{AbandonedJob, JobCounts, JobFilter, JobPage, JobRow};
pub use retry_policy::{MAX_RERUNS, NextStep, RetryPolicy, next_step};
pub use transitions::{AttemptEnd, CancelJobOutcome, JobChange, RetryJobOutcome};

#[cfg(test)]
mod tests;
