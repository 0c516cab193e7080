//! Errors of images and of the store. Text from images is untrusted: it is cut and escaped in
//! messages.

use crate::tar::TarError;
use std::io;

/// Why an image could not be loaded, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The store failed.
    #[error("cannot {what}")]
    Store {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The input cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// What was read.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The input is no image, or contradicts itself.
    #[error("{what}: {why}")]
    Malformed {
        /// Which part.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// Part of the input is not valid tar.
    #[error("{what} cannot be read as tar")]
    Tar {
        /// Which part.
        what: String,
        /// The cause.
        #[source]
        source: TarError,
    },
    /// The contents do not have the expected digest.
    #[error("{what} does not match its digest: it is {found}, not {expected}")]
    Digest {
        /// Which part.
        what: String,
        /// The expected digest.
        expected: String,
        /// The actual digest.
        found: String,
    },
    /// A part is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// An unsupported kind of image.
    #[error("{what} is not supported: {kind}")]
    Unsupported {
        /// Which part.
        what: String,
        /// Its kind.
        kind: String,
    },
    /// The image is for other platforms.
    #[error("the image is not for this machine ({wanted}), but for {}", found.join(", "))]
    Platform {
        /// The platform of this machine.
        wanted: String,
        /// The platforms of the image.
        found: Vec<String>,
    },
    /// The image has no name, and none was given.
    #[error("the image has no name")]
    Unnamed,
    /// The archive has several images, and none was chosen.
    #[error("there are {} images in it: {}", names.len(), names.join(", "))]
    Several {
        /// Their names.
        names: Vec<String>,
    },
    /// A limit was exceeded.
    #[error("{what} has more than {limit}")]
    Limit {
        /// What is too large.
        what: String,
        /// The limit with its unit.
        limit: String,
    },
    /// A layer has an entry that no legitimate layer has.
    #[error("layer {layer}: the entry `{entry}` is refused: {why}")]
    Entry {
        /// Number of the layer, from 1.
        layer: usize,
        /// Name of the entry.
        entry: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry could not be written.
    #[error("layer {layer}: cannot unpack `{entry}`")]
    Write {
        /// Number of the layer, from 1.
        layer: usize,
        /// Name of the entry.
        entry: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The user named by the image cannot be resolved.
    #[error("the image runs as `{user}`: {why}")]
    User {
        /// The user as the image names it.
        user: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such image.
    #[error("there is no image `{name}` on this machine")]
    NotFound {
        /// The requested name.
        name: String,
        /// Similar names.
        suggestions: Vec<String>,
    },
    /// A run uses the image.
    #[error("the image `{0}` is in use by a run")]
    InUse(String),
}

impl ImageError {
    pub(crate) fn store(what: impl Into<String>) -> impl FnOnce(io::Error) -> ImageError {
        let what = what.into();
        move |source| ImageError::Store { what, source }
    }

    pub(crate) fn read(what: impl Into<String>) -> impl FnOnce(io::Error) -> ImageError {
        let what = what.into();
        move |source| ImageError::Read { what, source }
    }

    pub(crate) fn malformed(what: impl Into<String>, why: impl Into<String>) -> ImageError {
        ImageError::Malformed {
            what: what.into(),
            why: why.into(),
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        let text = match self {
            ImageError::Store { .. } | ImageError::Write { .. } => {
                "check the free space and the permissions of the state folder; `airlock sweep` removes what crashes left"
            }
            ImageError::Read { .. } => "give a file, a folder, or - for standard input",
            ImageError::Malformed { .. } | ImageError::Tar { .. } | ImageError::Missing(_) => {
                "create it again with `docker save`, or as a complete OCI layout"
            }
            ImageError::Digest { .. } => "it was damaged or changed in transit: fetch it again",
            ImageError::Unsupported { .. } => "layers are tar, plain or compressed by gzip or zstd",
            ImageError::Platform { .. } => "build or fetch it for this machine",
            ImageError::Unnamed => "add --name NAME:TAG",
            ImageError::Several { .. } => "choose one with --name",
            ImageError::Limit { .. } => "docs/images.md explains the limits",
            ImageError::Entry { .. } => {
                "no legitimate tool creates such a layer: do not trust this image"
            }
            ImageError::User { .. } => "fix USER in its recipe, or add the user to its /etc/passwd",
            ImageError::InUse(_) => "wait for the run to end, or cancel it",
            ImageError::NotFound { suggestions, .. } => return nearest(suggestions),
        };
        text.to_owned()
    }
}

fn nearest(suggestions: &[String]) -> String {
    match suggestions {
        [] => "`airlock image list` shows those there are".to_owned(),
        names => format!("did you mean `{}`?", names.join("` or `")),
    }
}

/// Makes untrusted bytes fit for one line of a message.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MAX_CHARS: usize = 200;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MAX_CHARS)]);
    let mut shown: String = text
        .chars()
        .take(MAX_CHARS)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().count() > MAX_CHARS || bytes.len() > 4 * MAX_CHARS {
        shown.push('…');
    }
    shown
}
