//! Who may begin, and when: a bound of calls at once, a bound of those that wait, a deadline for each; who was answered
//! before is answered the same again.
//!
//! ```text
//! arrived ─┬─ known id: answered before ─▶ the same answer; under way ─▶ nothing
//!          ├─ nobody waits for it any more ─▶ dropped
//!          ├─ cannot be done in time, or too many wait ─▶ RESOURCE_EXHAUSTED
//!          └─ waits ─▶ slot ─▶ carried out ─▶ answered ─▶ settled
//!               └─ cancelled ─┴─▶ answered, settled
//! ```
