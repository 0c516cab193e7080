//! Doors: host-side proxies, the only ways out of a sandbox. They inject credentials, check the policy,
//! enforce budgets and record every call.
//!
//! ```text
//! listener ─ session ─ route ─ body ─ policy ─ reserve ─ credential ─ upstream ─ tap ─ settle
//! ```
//!
//! The listener is the identity: it was created inside one sandbox, so its clients belong to that sandbox.
//! Nothing that a program claims about itself is believed.

pub mod admin;
pub mod budget;
pub mod catalogue;
mod connections;
pub mod dialect;
pub mod egress;
mod http_server;
pub mod ledger;
pub mod price;
pub mod registry;
mod relay;
mod scrub;
mod secret;
pub mod secrets;
mod session;
mod socket_dir;
mod tls;
mod token;
mod token_listener;
mod upstream;
mod usage;
pub mod webhook;

pub use http_server::DoorListener;
pub use secret::{BadSecret, Secret};
pub use session::{
    DoorKind, DoorSession, Doors, MAX_BODY_BYTES, OpenError, SessionReport, SessionTerms,
};
pub use token::{RandomError, SessionToken, TokenHash};
pub use upstream::UpstreamError;
pub use usage::{TokenUsage, UsageSource};
