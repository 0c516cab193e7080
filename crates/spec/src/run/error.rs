//! Why a request is refused.

use crate::{ErrorCode, ErrorInfo};
use std::{ffi::OsStr, fmt};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The kind of the refusal.
    pub code: ErrorCode,
    /// What is wrong, on one line.
    pub message: String,
    /// What to do, on one line.
    pub hint: String,
}

/// A refusal with the code `invalid_spec`.
pub(crate) fn invalid(message: impl fmt::Display, hint: impl fmt::Display) -> SpecError {
    SpecError {
        code: ErrorCode::InvalidSpec,
        message: message.to_string(),
        hint: hint.to_string(),
    }
}

/// Text of a caller, escaped for one line of a message.
pub(super) fn shown(text: &OsStr) -> String {
    text.to_string_lossy().escape_debug().to_string()
}

impl From<SpecError> for ErrorInfo {
    fn from(error: SpecError) -> Self {
        ErrorInfo {
            code: error.code,
            message: error.message,
            hint: Some(error.hint),
        }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SpecError {}
