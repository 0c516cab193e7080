//! Why nothing was pulled: what happened, why, and what to do. Words of a registry are cut short, secrets are not in.

use crate::ImageError;
use spec::Digest;
use std::{io, time::Duration};

/// Why an image was not pulled.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PullError {
    #[error("cannot reach `{host}`: {why}")]
    Unreachable { host: String, why: String },
    #[error("`{host}` is not trusted: {why}")]
    Untrusted { host: String, why: String },
    #[error("`{registry}` has no {what}")]
    Missing { registry: String, what: String },
    #[error("`{registry}` gives no access to {what}{told}")]
    Denied {
        registry: String,
        what: String,
        told: String,
    },
    #[error("`{host}` answered {status} for {what}{told}")]
    Status {
        host: String,
        status: u16,
        what: String,
        told: String,
    },
    #[error("`{host}` asks to wait {} s, longer than the {} s that we wait", asked.as_secs(), most.as_secs())]
    Busy {
        host: String,
        asked: Duration,
        most: Duration,
    },
    #[error("`{host}` broke off {what} too often: {why}")]
    BrokenOff {
        host: String,
        what: String,
        why: String,
    },
    #[error("`{host}` sends {what} in a way that is refused: {why}")]
    Protocol {
        host: String,
        what: String,
        why: String,
    },
    #[error("`{host}` does not speak TLS")]
    PlainHttp { host: String },
    #[error("{what} is not what its digest says: {why}")]
    Corrupt { what: String, why: String },
    #[error("what the registry has cannot be used")]
    Unfit(#[source] ImageError),
    #[error("{name} is not made for {wanted}; it is made for {offered}")]
    Platform {
        name: String,
        wanted: String,
        offered: String,
    },
    #[error("{what} has {size} bytes; at most {most} are taken")]
    TooLarge { what: String, size: u64, most: u64 },
    #[error("cannot {what}")]
    Local {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// What kind of failure it is, for whoever must map it to a code of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no such image, or not for us.
    Missing,
    /// What came is not taken.
    Refused,
    /// It may go well another time.
    Unavailable,
    /// This machine is at fault.
    Local,
}

impl PullError {
    /// What to do about it, on one line.
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
            PullError::Status { .. } | PullError::Busy { .. } | PullError::BrokenOff { .. } => {
                "try again later; if it stays, ask whoever runs the registry"
            }
            PullError::Protocol { .. } | PullError::Corrupt { .. } => {
                "do not trust this registry, or what lies between; nothing of it was kept"
            }
            PullError::PlainHttp { .. } => {
                "only 127.0.0.0/8, ::1 and localhost are asked without TLS; --plain-http allows it for this pull"
            }
            PullError::Unfit(_) => "pull another image or tag",
            PullError::Platform { .. } => {
                "name one of these with --platform, or pull another image"
            }
            PullError::TooLarge { .. } => "pull a smaller image",
            PullError::Local { .. } => {
                "check that there is space and that you may write to the state folder"
            }
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> Kind {
        match self {
            PullError::Missing { .. } | PullError::Denied { .. } | PullError::Platform { .. } => {
                Kind::Missing
            }
            PullError::Unreachable { .. }
            | PullError::Status { .. }
            | PullError::Busy { .. }
            | PullError::BrokenOff { .. } => Kind::Unavailable,
            PullError::Untrusted { .. }
            | PullError::Protocol { .. }
            | PullError::PlainHttp { .. }
            | PullError::Corrupt { .. }
            | PullError::Unfit(_)
            | PullError::TooLarge { .. } => Kind::Refused,
            PullError::Local { .. } => Kind::Local,
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
