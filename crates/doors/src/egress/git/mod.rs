//! git over HTTP: what a request asks of which repository, and what a push wants to change. Pure functions of bytes.
//!
//! ```text
//! method, path, query ─ ask ─ decide ─┬─ a fetch passes as it is
//!                                     └─ a push: its list of refs is held back and read, then the pack passes unread
//! ```

mod pkt;
mod push;
mod reference;
mod route;

pub use push::{Change, Command, Decision, Push};
pub use route::{Ask, Kind, ask, decide};

/// Why git may not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// In words.
    pub reason: String,
    /// What would allow it, or `nothing`.
    pub allow_with: String,
}

impl Denied {
    /// What cannot be understood is allowed by nothing.
    fn unreadable(why: &str) -> Denied {
        Denied {
            reason: format!("the push cannot be understood: {why}"),
            allow_with: "nothing".to_owned(),
        }
    }
}
