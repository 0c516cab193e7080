//! Answers: exactly what the asker's models take, and nothing that they refuse.

use serde::Serialize;

/// A file that a tool made and that was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CreatedArtifact {
    pub filename: String,
    pub version: i64,
    pub mime_type: String,
    pub size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
