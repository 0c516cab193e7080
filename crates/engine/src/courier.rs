//! What a server of runs sends by itself, such as webhooks: by the same rules and the same internet as the doors, and
//! signed by keys of this node's own.

use crate::{Courier, CourierSettings, Engine};
use spec::{ErrorCode, ErrorInfo};

/// A key; it is overwritten when it is dropped.
pub type OwnKey = zeroize::Zeroizing<[u8; 32]>;

impl Engine {
    /// Carries messages to addresses that strangers named.
    pub fn courier(&self, settings: CourierSettings) -> Courier {
        Courier::new(settings, self.inner.doors.egress.internet.clone())
    }

    /// A key of this node's own from the encrypted store, made when it is first asked for.
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
