//! Where the mesh keeps its files, in its own layout, so that agents find what tools made and the other way round: memory, a
//! folder, S3, GCS. Versions count from 0; two writers never get the same.

use bytes::Bytes;

/// Whose file it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Scope {
    pub app: String,
    pub user: String,
    pub session: String,
}

/// A file with what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Loaded {
    pub version: i64,
    pub mime_type: String,
    pub content: Bytes,
}
