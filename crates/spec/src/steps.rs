//! A job of steps (`/job/job.json`) and its result (`/job/result.json`), with their checks.
//!
//! A job is read once, as a whole, before any of it is carried out. Paths are only checked for
//! their form here; whether one leads out of the workspace is decided where it is opened.

mod fields;
mod job;
mod result;
#[cfg(test)]
mod tests;

pub use job::{
    ExecutionMode, InferenceSource, JobConstraints, JobContext, JobInference, Step, StepAction,
    StepJob,
};
pub use result::{StepArtifact, StepJobResult, StepResult, StepStatus};

use fields::Fields;
use std::fmt;

/// Bytes of a job or of a result.
pub const MAX_JOB_BYTES: usize = 1 << 20;
/// Steps of one job.
pub const MAX_STEPS: usize = 1000;
/// Bytes that all steps of a job may write together, whatever the job allows.
pub const MAX_STEP_OUTPUT: u64 = 16 << 20;
/// The version of the protocol.
pub const STEPS_PROTOCOL: &str = "1.0";

/// Entries of any other list in a job or a result.
const MAX_LIST: usize = 1000;

/// Why a job or a result is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJob {
    /// The field, as in `steps[2].args.path`; empty for the document itself.
    pub field: String,
    /// The reason, as a predicate of the field.
    pub why: String,
}

impl fmt::Display for BadJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.why.escape_debug();
        if self.field.is_empty() {
            write!(f, "the document {why}")
        } else {
            write!(f, "`{}` {why}", self.field.escape_debug())
        }
    }
}

impl std::error::Error for BadJob {}

/// The version of the protocol that a document names.
fn protocol(document: &Fields<'_>) -> Result<String, BadJob> {
    let version = document.required_text("protocol_version")?;
    let minor = |rest: &str| {
        let digits = rest.strip_prefix('.').unwrap_or_default();
        rest.is_empty()
            || (1..=6).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !version.strip_prefix('1').is_some_and(minor) {
        return Err(document.wrong(
            "protocol_version",
            "is not 1.x, the version that this program speaks",
        ));
    }
    Ok(version.to_owned())
}
