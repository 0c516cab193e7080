//! Error codes of the mesh, which are strings.

use serde::Serialize;

/// Error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MeshErrorCode {
    /// The sandbox timed out.
    SandboxTimeout,
    /// The sandbox could not be created, or was lost.
    SandboxFailed,
    /// The tool's code has no such function or class.
    ToolNotFound,
    /// The only code after which the requester tries another worker, once.
    ToolNotAvailable,
    /// The tool's module cannot be imported.
    ImportError,
    /// The tool was ended, or its result cannot be used.
    ExecutionError,
    /// The tool returned or raised an error.
    ToolError,
    /// A file cannot be loaded or saved.
    ArtifactError,
    /// The request is invalid.
    InvalidRequest,
    /// The worker failed.
    InternalError,
    /// The tool cannot be described.
    InitError,
    /// Authentication failed.
    AuthenticationFailed,
    /// The worker is out of slots, time or space.
    ResourceExhausted,
}

/// A refused or failed call, as the requester is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRefusal {
    /// Error code.
    pub code: MeshErrorCode,
    /// Message without host paths.
    pub message: String,
}

impl CallRefusal {
    /// A refusal with this code and message.
    pub fn new(code: MeshErrorCode, message: impl Into<String>) -> CallRefusal {
        CallRefusal {
            code,
            message: message.into(),
        }
    }
}
