//! What can be wrong with an image, or with the store. Images come from strangers: their words are shown cut and escaped.

use crate::tar::TarError;
use std::io;

/// Why an image could not be loaded, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The store itself failed.
    #[error("cannot {what}")]
    Store {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// What was to be loaded cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// What it is.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// It is no image, or one that contradicts itself.
    #[error("{what}: {why}")]
    Malformed {
        /// Which part.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// Part of it is not tar.
    #[error("{what} cannot be read as tar")]
    Tar {
        /// Which part.
        what: String,
        /// Why.
        #[source]
        source: TarError,
    },
    /// The bytes are not those that were promised.
    #[error("{what} is not what its digest says: it is {found}, not {expected}")]
    Digest {
        /// Which part.
        what: String,
        /// The digest it should have.
        expected: String,
        /// The digest it has.
        found: String,
    },
    /// A part is not there.
    #[error("{0} is missing")]
    Missing(String),
    /// A kind of image that is not unpacked here.
    #[error("{what} is not supported: {kind}")]
    Unsupported {
        /// Which part.
        what: String,
        /// What it is.
        kind: String,
    },
    /// It is for other machines.
    #[error("the image is not for {wanted}, which this machine is; it is for {}", found.join(", "))]
    Platform {
        /// This machine.
        wanted: String,
        /// What there is.
        found: Vec<String>,
    },
    /// It has no name, and was given none.
    #[error("nothing says what the image is to be called")]
    Unnamed,
    /// More than one image, and no word which.
    #[error("there are {} images in it: {}", names.len(), names.join(", "))]
    Several {
        /// Their names.
        names: Vec<String>,
    },
    /// A bound was reached.
    #[error("{what} has more than {limit}")]
    Limit {
        /// What is too large.
        what: String,
        /// The bound, with its unit.
        limit: String,
    },
    /// A layer wants something that no honest layer wants.
    #[error("layer {layer}: the entry `{entry}` is refused: {why}")]
    Entry {
        /// Counted from one.
        layer: usize,
        /// Its name.
        entry: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry could not be written.
    #[error("layer {layer}: cannot unpack `{entry}`")]
    Write {
        /// Counted from one.
        layer: usize,
        /// Its name.
        entry: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The user that the image wants to run as is not to be had.
    #[error("the image wants to run as `{user}`: {why}")]
    User {
        /// As the image names it.
        user: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such image.
    #[error("there is no image `{name}` on this machine")]
    NotFound {
        /// The name.
        name: String,
        /// Names that are much like it.
        near: Vec<String>,
    },
    /// It is needed.
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

    /// What a reader can do about it.
    pub fn hint(&self) -> String {
        let text = match self {
            ImageError::Store { .. } | ImageError::Write { .. } => {
                "look at the space and the rights of the state folder; `airlock sweep` removes what crashes left"
            }
            ImageError::Read { .. } => "give a file, a folder, or - for standard input",
            ImageError::Malformed { .. } | ImageError::Tar { .. } | ImageError::Missing(_) => {
                "make it again with `docker save`, or as an OCI layout, and whole"
            }
            ImageError::Digest { .. } => {
                "it was damaged or tampered with on its way: fetch it again"
            }
            ImageError::Unsupported { .. } => "layers are tar, plain or compressed by gzip or zstd",
            ImageError::Platform { .. } => "build or fetch it for this machine",
            ImageError::Unnamed => "add --name NAME:TAG",
            ImageError::Several { .. } => "say which with --name",
            ImageError::Limit { .. } => "docs/images.md says what the bounds are for",
            ImageError::Entry { .. } => {
                "no honest tool makes such a layer: do not trust this image"
            }
            ImageError::User { .. } => {
                "mend USER in its recipe, or add the user to its /etc/passwd"
            }
            ImageError::InUse(_) => "wait for the run to end, or cancel it",
            ImageError::NotFound { near, .. } => return nearest(near),
        };
        text.to_owned()
    }
}

fn nearest(near: &[String]) -> String {
    match near {
        [] => "`airlock image list` shows those there are".to_owned(),
        names => format!("did you mean `{}`?", names.join("` or `")),
    }
}

/// Bytes of a stranger, fit for one line of ours.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * LONGEST)]);
    let mut shown: String = text
        .chars()
        .take(LONGEST)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().count() > LONGEST || bytes.len() > 4 * LONGEST {
        shown.push('…');
    }
    shown
}
