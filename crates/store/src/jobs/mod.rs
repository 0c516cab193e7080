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
mod behind;
mod end;
mod next;
mod prune;
mod read;

pub use add::{Added, JobRoom, MOST_BEHIND, NewJob, WhichBound};
pub use end::{Cancelled, Change, End, Retried};
pub use next::{MOST_RERUNS, Next, Policy, next};
pub use prune::MOST_PROMISES;
pub use read::{Counts, Ended, JobFilter, JobRow, Listed};

#[cfg(test)]
mod tests;
