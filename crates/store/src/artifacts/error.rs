//! Errors of the artifact store.

use spec::WorkspacePath;
use std::{io, path::PathBuf};

/// Why an artifact could not be stored, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The artifact folder cannot be opened.
    #[error("cannot open the artifact folder `{}`", folder.display())]
    Folder {
        /// Path of the folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The bucket cannot be used.
    #[error("cannot use the bucket `{bucket}` for artifacts")]
    Bucket {
        /// Name of the bucket.
        bucket: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Writing failed.
    #[error("cannot store artifact `{}`", shown(name))]
    Write {
        /// Name of the artifact.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The artifact is too large.
    #[error("artifact `{}` is larger than {limit_bytes} bytes", shown(name))]
    TooLarge {
        /// Name of the artifact.
        name: WorkspacePath,
        /// Maximum size in bytes.
        limit_bytes: u64,
    },
    /// A quota of the store is reached.
    #[error(
        "artifact `{}` is not stored: the limit of {limit} {what} is reached",
        shown(name)
    )]
    Quota {
        /// Name of the artifact.
        name: WorkspacePath,
        /// What the quota counts.
        what: &'static str,
        /// The quota.
        limit: u64,
    },
    /// The bytes do not have the announced digest.
    #[error(
        "artifact `{}` is not stored: its SHA-256 is {found}, not {expected}",
        shown(name)
    )]
    Mismatch {
        /// Name of the artifact.
        name: WorkspacePath,
        /// The announced digest.
        expected: String,
        /// The digest of the bytes.
        found: String,
    },
    /// The name is reserved by the syntax of artifact references.
    #[error(
        "artifact `{}` is not stored: a name ends neither in `/versions` nor in `@` and a number",
        shown(name)
    )]
    Name {
        /// Name of the artifact.
        name: WorkspacePath,
    },
    /// The content type is invalid.
    #[error(
        "artifact `{}` is not stored: its content type is invalid",
        shown(name)
    )]
    ContentType {
        /// Name of the artifact.
        name: WorkspacePath,
    },
    /// No such artifact.
    #[error("no artifact is called `{}`{}", shown(name), version.map_or(String::new(), |n| format!(" in version {n}")))]
    Missing {
        /// Name of the artifact.
        name: WorkspacePath,
        /// Version, if one was requested.
        version: Option<u64>,
    },
    /// The requested byte range is outside the artifact.
    #[error(
        "artifact `{}` has {size_bytes} bytes and not the requested range",
        shown(name)
    )]
    Range {
        /// Name of the artifact.
        name: WorkspacePath,
        /// Size of the artifact.
        size_bytes: u64,
    },
    /// The stored bytes or metadata are damaged.
    #[error("artifact `{}`, version {version}, is damaged: {why}", shown(name))]
    Damaged {
        /// Name of the artifact.
        name: WorkspacePath,
        /// Version of the artifact.
        version: u64,
        /// What is wrong.
        why: String,
    },
    /// Reading or removing failed.
    #[error("cannot {what} artifact `{}`", shown(name))]
    Access {
        /// `read` or `remove`.
        what: &'static str,
        /// Name of the artifact.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

pub(crate) fn shown(name: &WorkspacePath) -> String {
    name.as_path().to_string_lossy().escape_debug().to_string()
}
