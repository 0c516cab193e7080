//! The webhook client of a server, which follows the egress rules of the doors, and the node's
//! signing keys.

use crate::{Engine, WebhookClient, WebhookClientSettings};
use spec::{ErrorCode, ErrorInfo};

/// A signing key; its memory is overwritten when it is dropped.
pub type OwnKey = zeroize::Zeroizing<[u8; 32]>;

impl Engine {
    /// A client that sends messages to addresses that callers named.
    pub fn webhook_client(&self, settings: WebhookClientSettings) -> WebhookClient {
        WebhookClient::new(settings, self.inner.doors.egress.internet.clone())
    }

    /// A signing key of this node from the encrypted secret store, created on first use.
    pub fn own_key(&self, name: &str) -> Result<OwnKey, ErrorInfo> {
        self.inner
            .doors
            .secrets
            .own_key(name)
            .map_err(|error| ErrorInfo {
                code: ErrorCode::Internal,
                message: error.message,
                hint: Some(error.hint),
            })
    }
}
