//! The errors of layers, with hints.

use super::{commit::UnappliedChange, shown};
use spec::{ErrorCode, ErrorInfo, Id};
use std::{io, path::PathBuf};

/// Why an operation on a layer failed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// There is no such layer.
    #[error("there is no workspace `{id}`")]
    Absent {
        /// The id.
        id: Id,
    },
    /// A sandbox or another command uses it.
    #[error("the workspace `{id}` is in use")]
    InUse {
        /// The id.
        id: Id,
    },
    /// The folder that it is based on is not there any more.
    #[error(
        "the folder `{}` is not the one that the workspace is based on",
        shown(folder)
    )]
    Elsewhere {
        /// The path of the folder.
        folder: PathBuf,
        /// The cause, if it cannot be opened.
        #[source]
        source: Option<io::Error>,
    },
    /// The folder is not the one that was admitted.
    #[error("`{}` is no longer what it was when it was admitted", shown(folder))]
    Replaced {
        /// The folder.
        folder: PathBuf,
    },
    /// Some changes cannot be committed; nothing was done.
    #[error("{} of the changes cannot be taken over as they are", left.len())]
    Refused {
        /// Those changes.
        left: Vec<UnappliedChange>,
    },
    /// The folder exceeds a limit.
    #[error("the folder `{}` cannot be copied: {reason}", shown(folder))]
    TooMuch {
        /// The folder.
        folder: PathBuf,
        /// The limit.
        reason: String,
    },
    /// There is not enough space for a copy of the folder.
    #[error("the folder `{}` cannot be copied: {reason}", shown(folder))]
    NoRoom {
        /// The folder.
        folder: PathBuf,
        /// Where space is missing.
        reason: String,
    },
    /// The program renamed folders; their contents can be copied up only from an overlay that
    /// nobody uses.
    #[error("in the workspace `{id}` the program has renamed a folder, and still works there")]
    FolderMoved {
        /// The id.
        id: Id,
    },
    /// There is no such file in the workspace.
    #[error("`{}` cannot be shown: {reason}", shown(path))]
    NoFile {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The id is taken.
    #[error("there is a workspace `{id}` already")]
    Taken {
        /// The id.
        id: Id,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// An I/O error.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl LayerError {
    /// The error for a caller.
    pub fn info(&self) -> ErrorInfo {
        let (code, hint) = match self {
            LayerError::Absent { .. } => (
                ErrorCode::InvalidSpec,
                "`airlock workspace list` shows what there is",
            ),
            LayerError::InUse { .. } => (
                ErrorCode::InvalidSpec,
                "end its run or session first, or wait",
            ),
            LayerError::Elsewhere { .. } => (
                ErrorCode::InvalidSpec,
                "put the folder back in its place, or discard the workspace",
            ),
            LayerError::Replaced { .. } => (
                ErrorCode::PolicyDenied,
                "ask again once nobody moves or replaces anything on the way to it",
            ),
            LayerError::Refused { .. } => (
                ErrorCode::PolicyDenied,
                "--partial takes over the rest; --force also what conflicts",
            ),
            LayerError::TooMuch { .. } => (
                ErrorCode::InvalidSpec,
                "share it at once with --workspace DIR:live, show it read-only with DIR:ro, or give a smaller folder",
            ),
            LayerError::NoRoom { .. } => (
                ErrorCode::QuotaExceeded,
                "commit or discard workspaces that are kept, or make room on the disk; --workspace DIR:live needs none",
            ),
            LayerError::FolderMoved { .. } => (
                ErrorCode::Conflict,
                "it can be taken over once its run or session has ended",
            ),
            LayerError::NoFile { .. } => (
                ErrorCode::InvalidSpec,
                "`airlock workspace diff` lists what the program changed",
            ),
            LayerError::Taken { .. } => (
                ErrorCode::InvalidSpec,
                "commit or discard that one, or choose another id",
            ),
            LayerError::Cancelled => (ErrorCode::Cancelled, "ask again"),
            LayerError::Io { .. } => (
                ErrorCode::Internal,
                "see that both folders can be read and written",
            ),
        };
        let message = match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        };
        ErrorInfo {
            code,
            message,
            hint: Some(hint.to_owned()),
        }
    }
}
