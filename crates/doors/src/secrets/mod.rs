//! Where credentials come from: the encrypted store, a variable, a file, a vault. Read when a door opens, never shown.

use crate::secret::Secret;
use std::path::PathBuf;

/// Where a credential comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The encrypted store, by name.
    Stored(String),
    /// A variable of Airlock's own environment.
    Variable(String),
    /// A file.
    File(PathBuf),
    /// A field of a secret of the configured Vault (KV version 2).
    Vault {
        /// The path below the mount.
        path: String,
        /// The field, `value` if not said.
        field: String,
    },
}

/// Why there is no credential. Never says what it is.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SecretsError {
    /// What happened.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Finds credentials.
#[derive(Clone, Debug, Default)]
pub struct Secrets {}

impl Secrets {
    /// The credential, read now.
    pub async fn find(&self, _source: &KeySource) -> Result<Secret, SecretsError> {
        Err(SecretsError { message: "not yet".to_owned(), hint: String::new() })
    }
}
