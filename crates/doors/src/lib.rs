//! The only ways out of a sandbox: host-side services that inject the credential, check the policy, meter and record.
//!
//! ```text
//! listener ─ session ─ route ─ body ─ policy ─ reserve ─ credential ─ upstream ─ tap ─ settle
//! ```
//!
//! The listener is the identity: it was made inside one sandbox, so whoever calls is that sandbox. Nothing that a
//! program says of itself is believed.

pub mod admin;
pub mod catalogue;
pub mod courier;
pub mod dialect;
pub mod egress;
mod front;
pub mod ledger;
mod line;
mod place;
pub mod price;
pub mod registry;
mod relay;
mod scrub;
mod secret;
pub mod secrets;
mod serve;
mod session;
pub mod till;
mod tls;
mod token;
mod upstream;
mod usage;

pub use secret::{BadSecret, Secret};
pub use serve::Listener;
pub use session::{Doors, Kind, OpenError, Report, Session, SessionTerms};
pub use token::{NoRandom, Token, TokenHash};
pub use upstream::UpstreamError;
pub use usage::{Source, Usage};
