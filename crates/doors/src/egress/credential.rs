//! Credentials that are put into requests, each bound to its hosts.

use super::Settings;
use crate::{
    OpenError,
    secrets::{KeySource, Secrets},
};
use http::HeaderName;
use spec::{EgressRule, HostPattern};

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

/// The credentials of one door, ready to be used.
#[derive(Debug, Default)]
pub(crate) struct Credentials {}

impl Credentials {
    /// Looks for all that the rules name.
    pub(crate) async fn find(
        rules: &[EgressRule],
        settings: &Settings,
        secrets: &Secrets,
    ) -> Result<Credentials, OpenError> {
        let _ = (rules, settings, secrets);
        Ok(Credentials::default())
    }
}
