//! The egress door: the web, one named host at a time.
//!
//! ```text
//! listener ─ destination ─ rules ─ resolve ─ check ─ dial ─┬─ tunnel: server name, then bytes
//!                                                          └─ inspect: request ─ rules ─ credential ─ answer
//! ```
//!
//! What the rules do not allow is not looked up. What was looked up is what is dialled.

mod limits;
mod policy;

use crate::secrets::KeySource;
use http::HeaderName;
use spec::HostPattern;
use std::{collections::BTreeMap, path::PathBuf};

/// What egress doors are opened with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Credentials by name.
    pub credentials: BTreeMap<String, Credential>,
    /// Certificates that count for servers behind rules that look inside, instead of the system's.
    pub ca: Option<PathBuf>,
}

/// A credential, and where it may go.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Where it comes from.
    pub key: KeySource,
    /// How it is put into a request.
    pub inject: Inject,
    /// To which hosts and no others, whatever a rule says.
    pub hosts: Vec<HostPattern>,
}

/// How a credential is put into a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inject {
    /// `Authorization: Bearer …`.
    Bearer,
    /// `Authorization: Basic …`, with this user.
    Basic {
        /// The user.
        user: String,
    },
    /// A header of its own.
    Header {
        /// Its name.
        name: HeaderName,
    },
}
