//! Jobs, as they last: from the moment they are accepted to exactly one final state, however often their server ends.
//!
//! ```text
//!            ┌──────── jobs ── all that it is after succeeded ──┐
//! accepted ──┼──────── time ── its moment came ─────────────────┤
//!            └───────────────────────────────────────────────▶ turn ── start ──▶ running ──▶ a final state
//!                              ▲                                ▲                   │
//!                              └── again, after a pause ────────┴── again ──────────┘
//! ```
//!
//! Every arrow is one transaction, in which whatever waits for the job follows; where that is much, soon after (`behind.rs`). A job that is `running` names the server
//! that has it under way (`boot`): after a crash there is another, and what became of the job is decided by what was asked
//! for ([`next`]). Who has how many is kept by triggers; nobody counts rows.

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
