//! Why an artifact could not be kept, found or removed.

use spec::WorkspacePath;
use std::{io, path::PathBuf};

/// Why an artifact could not be kept, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder itself.
    #[error("cannot open the artifact folder `{}`", folder.display())]
    Folder {
        /// Where it should be.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The bucket itself.
    #[error("cannot use the bucket `{bucket}` for artifacts")]
    Bucket {
        /// What it is called.
        bucket: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Writing failed.
    #[error("cannot keep artifact `{}`", shown(name))]
    Keep {
        /// Which one.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Too large.
    #[error("artifact `{}` is larger than {limit_bytes} bytes", shown(name))]
    TooLarge {
        /// Which one.
        name: WorkspacePath,
        /// What it may have.
        limit_bytes: u64,
    },
    /// A limit of the store.
    #[error(
        "artifact `{}` is not kept: the limit of {limit} {what} is reached",
        shown(name)
    )]
    Quota {
        /// Which one.
        name: WorkspacePath,
        /// What there is too much of.
        what: &'static str,
        /// What there may be.
        limit: u64,
    },
    /// Its bytes are not those that were announced.
    #[error(
        "artifact `{}` is not kept: its SHA-256 is {found}, not {expected}",
        shown(name)
    )]
    Mismatch {
        /// Which one.
        name: WorkspacePath,
        /// What was announced.
        expected: String,
        /// What came.
        found: String,
    },
    /// Its name means something else where artifacts are named.
    #[error(
        "artifact `{}` is not kept: a name ends neither in `/versions` nor in `@` and a number",
        shown(name)
    )]
    Name {
        /// Which one.
        name: WorkspacePath,
    },
    /// What is said of its bytes is no content type.
    #[error(
        "artifact `{}` is not kept: its content type cannot be used",
        shown(name)
    )]
    ContentType {
        /// Which one.
        name: WorkspacePath,
    },
    /// No such artifact.
    #[error("no artifact is called `{}`{}", shown(name), version.map_or(String::new(), |n| format!(" in version {n}")))]
    Missing {
        /// What was asked for.
        name: WorkspacePath,
        /// In which version, if one was named.
        version: Option<u64>,
    },
    /// A part was asked for that it does not have.
    #[error(
        "artifact `{}` has {size_bytes} bytes and not the part that was asked for",
        shown(name)
    )]
    Range {
        /// Which one.
        name: WorkspacePath,
        /// Its length.
        size_bytes: u64,
    },
    /// What is kept is not what was kept.
    #[error("artifact `{}`, version {version}, is damaged: {why}", shown(name))]
    Damaged {
        /// Which one.
        name: WorkspacePath,
        /// In which version.
        version: u64,
        /// What is wrong.
        why: String,
    },
    /// Reading or removing what is kept failed.
    #[error("cannot {what} artifact `{}`", shown(name))]
    Access {
        /// `read` or `remove`.
        what: &'static str,
        /// Which one.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

pub(crate) fn shown(name: &WorkspacePath) -> String {
    name.as_path().to_string_lossy().escape_debug().to_string()
}
