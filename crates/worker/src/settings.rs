//! What a worker is given. It reads neither environment nor files of the operator; the command does.

use crate::transport::Patience;
use std::{path::PathBuf, time::Duration};

/// Everything about a worker that its operator chooses.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Settings {
    pub namespace: String,
    /// Workers of the same name share their work.
    pub worker_id: String,
    pub patience: Patience,
    pub manifest: PathBuf,
    pub tools_folder: PathBuf,
    pub python: PathBuf,
    /// Of calls that say none.
    pub default_timeout: Duration,
    pub default_profile: String,
    /// Calls at once.
    pub slots: usize,
    /// Largest message, in bytes, both ways.
    pub largest_message: usize,
    /// Interpreters that are kept warm, all together.
    pub warm: usize,
}
