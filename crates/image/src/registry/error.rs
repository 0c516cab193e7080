//! Errors of a pull. Messages of a registry are cut short; secrets are not included.

use crate::ImageError;
use spec::Digest;
use std::{io, time::Duration};

/// Why an image was not pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The host cannot be reached.
    #[error("cannot reach `{host}`: {why}")]
    Unreachable {
        /// Host and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The host's certificate is not trusted.
    #[error("`{host}` is not trusted: {why}")]
    Untrusted {
        /// Host and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The registry does not have it.
    #[error("`{registry}` has no {what}")]
    Missing {
        /// The registry.
        registry: String,
        /// What was requested.
        what: String,
    },
    /// The registry denies access.
    #[error("`{registry}` denies access to {what}{reason}")]
    Denied {
        /// The registry.
        registry: String,
        /// What was requested.
        what: String,
        /// The registry's message, or nothing.
        reason: String,
    },
    /// An error response.
    #[error("`{host}` answered {status} for {what}{reason}")]
    Status {
        /// Host and port.
        host: String,
        /// HTTP status.
        status: u16,
        /// What was requested.
        what: String,
        /// The registry's message, or nothing.
        reason: String,
    },
    /// The registry requests a pause that is too long.
    #[error("`{host}` requests a pause of {} s; the maximum is {} s", requested.as_secs(), max.as_secs())]
    Busy {
        /// Host and port.
        host: String,
        /// The requested pause.
        requested: Duration,
        /// The maximum.
        max: Duration,
    },
    /// The transfer was interrupted too often.
    #[error("`{host}` interrupted {what} too often: {why}")]
    Interrupted {
        /// Host and port.
        host: String,
        /// What was requested.
        what: String,
        /// The reason.
        why: String,
    },
    /// The response violates the protocol, or is refused for safety.
    #[error("the response of `{host}` for {what} is refused: {why}")]
    Protocol {
        /// Host and port.
        host: String,
        /// What was requested.
        what: String,
        /// The reason.
        why: String,
    },
    /// The host speaks plain HTTP only.
    #[error("`{host}` does not speak TLS")]
    PlainHttp {
        /// Host and port.
        host: String,
    },
    /// The contents do not have the expected digest.
    #[error("{what} does not match its digest: {why}")]
    Corrupt {
        /// Which part.
        what: String,
        /// The reason.
        why: String,
    },
    /// The documents of the image are refused.
    #[error("the registry's image cannot be used")]
    InvalidImage(#[source] ImageError),
    /// The image is for other platforms.
    #[error("{name} is not for {wanted}, but for {offered}")]
    Platform {
        /// Name of the image.
        name: String,
        /// The requested platform.
        wanted: String,
        /// The platforms of the image.
        offered: String,
    },
    /// The image is too large.
    #[error("{what} has {size} bytes; the maximum is {max}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size in bytes.
        size: u64,
        /// The maximum.
        max: u64,
    },
    /// A local operation failed.
    #[error("cannot {what}")]
    Local {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Class of a failure, which callers map to their own codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullErrorKind {
    /// The image does not exist or is not accessible.
    Missing,
    /// The response was refused.
    Refused,
    /// The failure may be temporary.
    Unavailable,
    /// The failure is local.
    Local,
}

impl PullError {
    /// What the user can do about it, in one line.
    pub fn hint(&self) -> &'static str {
        match self {
            PullError::Unreachable { .. } => {
                "check the name of the registry and the network, then try again"
            }
            PullError::Untrusted { .. } => {
                "add its certificate authority to the system's, or name a file of authorities in SSL_CERT_FILE"
            }
            PullError::Missing { .. } => "check the name and the tag",
            PullError::Denied { .. } => {
                "check the name; if it is right, log in with `docker login` or `podman login`, whose files are read"
            }
            PullError::Status { .. } | PullError::Busy { .. } | PullError::Interrupted { .. } => {
                "try again later; if the error persists, ask the registry's operator"
            }
            PullError::Protocol { .. } | PullError::Corrupt { .. } => {
                "do not trust this registry or the network to it; nothing was stored"
            }
            PullError::PlainHttp { .. } => {
                "only 127.0.0.0/8, ::1 and localhost are contacted without TLS; --plain-http allows it for this pull"
            }
            PullError::InvalidImage(_) => "pull another image or tag",
            PullError::Platform { .. } => {
                "name one of these with --platform, or pull another image"
            }
            PullError::TooLarge { .. } => "pull a smaller image",
            PullError::Local { .. } => {
                "check that there is space and that you may write to the state folder"
            }
        }
    }

    /// Class of the failure.
    pub fn kind(&self) -> PullErrorKind {
        match self {
            PullError::Missing { .. } | PullError::Denied { .. } | PullError::Platform { .. } => {
                PullErrorKind::Missing
            }
            PullError::Unreachable { .. }
            | PullError::Status { .. }
            | PullError::Busy { .. }
            | PullError::Interrupted { .. } => PullErrorKind::Unavailable,
            PullError::Untrusted { .. }
            | PullError::Protocol { .. }
            | PullError::PlainHttp { .. }
            | PullError::Corrupt { .. }
            | PullError::InvalidImage(_)
            | PullError::TooLarge { .. } => PullErrorKind::Refused,
            PullError::Local { .. } => PullErrorKind::Local,
        }
    }

    pub(super) fn corrupt(digest: &Digest, why: impl Into<String>) -> PullError {
        PullError::Corrupt {
            what: format!("blob {digest}"),
            why: why.into(),
        }
    }

    pub(super) fn local(what: impl Into<String>, source: impl Into<io::Error>) -> PullError {
        PullError::Local {
            what: what.into(),
            source: source.into(),
        }
    }
}
