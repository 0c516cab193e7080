//! What went wrong, in the words of the mesh: texts, not numbers.

use serde::Serialize;

/// The code of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Code {
    SandboxTimeout,
    SandboxFailed,
    ToolNotFound,
    /// Only what the asker may try again elsewhere: it does so once.
    ToolNotAvailable,
    ImportError,
    ExecutionError,
    ToolError,
    ArtifactError,
    InvalidRequest,
    InternalError,
    InitError,
    AuthenticationFailed,
    ResourceExhausted,
}

/// Why there is no result: what the asker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of thing.
    pub code: Code,
    /// In words, without paths of this machine.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: Code, message: impl Into<String>) -> Refusal {
        Refusal {
            code,
            message: message.into(),
        }
    }
}
