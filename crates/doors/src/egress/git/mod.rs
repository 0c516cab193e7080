//! git over HTTP: which repository a request is for, and which refs a push updates. Pure functions of
//! bytes.
//!
//! ```text
//! method, path, query ─ parse_request ─ authorize ─┬─ a fetch passes unchanged
//!                                                  └─ a push: its ref list is held back and checked, then the pack passes unread
//! ```

mod pkt_line;
mod push;
mod ref_name;
mod request;

pub use push::{PushDecision, PushRequest, RefChange, RefUpdate};
pub use request::{GitRequest, GitRequestKind, authorize, parse_request};

/// Why a git request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitRefusal {
    /// The reason, for people.
    pub reason: String,
    /// What would allow it, or `nothing`.
    pub allow_with: String,
}

impl GitRefusal {
    /// What cannot be parsed is never allowed.
    fn unreadable(why: &str) -> GitRefusal {
        GitRefusal {
            reason: format!("the push cannot be understood: {why}"),
            allow_with: "nothing".to_owned(),
        }
    }
}
