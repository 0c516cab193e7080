//! The worker API's view of a job result: the run result without details of this machine.

use super::wire::Version;
use serde::{Deserialize, Serialize};
use spec::{ArtifactRef, ErrorInfo, Status};
use utoipa::ToSchema;

/// Maximum bytes of a stream in a result.
pub(crate) const MAX_OUTPUT: usize = 262_144;

/// How a job stands or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerJobStatus {
    Accepted,
    InProgress,
    Completed,
    Failed,
    Timeout,
}

/// A job that has not ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerJobState {
    #[schema(value_type = u64)]
    pub(crate) version: Version,
    pub(crate) task_id: String,
    pub(crate) job_id: String,
    pub(crate) status: WorkerJobStatus,
    /// Whether its end was asked for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stopping: bool,
}

/// What came of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerJobResult {
    #[schema(value_type = u64)]
    version: Version,
    task_id: String,
    job_id: String,
    status: WorkerJobStatus,
    /// Of the program; 128 and the signal that killed it; -1 where there was none.
    exit_code: i32,
    /// At most 262,144 bytes.
    stdout: String,
    stderr: String,
    started_at: String,
    ended_at: String,
    truncated: TruncatedStreams,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<WorkerArtifact>,
    /// Of a job of steps: what came of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    sba_result: Option<serde_json::Value>,
    run_diagnostics: RunDiagnostics,
}

/// Which streams were longer.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Cut)]
pub(crate) struct TruncatedStreams {
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// A file that was kept.
#[derive(Debug, Serialize, ToSchema)]
struct WorkerArtifact {
    name: String,
    content_type: &'static str,
    size_bytes: u64,
    /// Where it is fetched.
    #[serde(rename = "ref")]
    place: String,
}

/// How it was carried out, without anything of this machine.
#[derive(Debug, Serialize, ToSchema)]
struct RunDiagnostics {
    runtime: String,
    /// None where it started from the host's own `/usr`.
    image: Option<String>,
    /// Left away where nobody knows any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    container_started: Option<bool>,
    /// Why it did not end by itself: `oom_killed`, `cancelled`, `timeout`, `lost`, `not_started: …`.
    reason: Option<String>,
}

/// Details of the request that are stored with the result.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct JobRequestInfo {
    #[serde(default)]
    pub(crate) image: Option<String>,
    /// The requested container runtime.
    #[serde(default)]
    pub(crate) runtime: Option<String>,
}

/// A stored run result.
#[derive(Debug, Deserialize)]
struct StoredRunResult {
    #[serde(default)]
    task_id: Option<String>,
    #[serde(default)]
    job_id: Option<String>,
    status: Status,
    exit_code: Option<i32>,
    signal: Option<i32>,
    exit_status: u8,
    #[serde(default)]
    stdout: Option<String>,
    #[serde(default)]
    stdout_base64: Option<String>,
    #[serde(default)]
    stderr: Option<String>,
    #[serde(default)]
    stderr_base64: Option<String>,
    truncated: TruncatedStreams,
    error: Option<ErrorInfo>,
    started_at: String,
    ended_at: String,
    artifacts: Vec<ArtifactRef>,
    #[serde(default)]
    output: Option<serde_json::Value>,
    backend: String,
    barriers: Vec<serde_json::Value>,
    #[serde(default)]
    asked: JobRequestInfo,
}

/// Converts a stored run result; `None` if it cannot be parsed.
pub(crate) fn from_stored(stored: &[u8]) -> Option<WorkerJobResult> {
    let stored: StoredRunResult = serde_json::from_slice(stored).ok()?;
    let status = stored.job_status();
    let exit_code = stored.exit_code();
    let diagnostics = stored.diagnostics();
    let mut truncated = stored.truncated;
    let stdout = text(
        stored.stdout,
        stored.stdout_base64.as_deref(),
        &mut truncated.stdout,
    );
    let stderr = text(
        stored.stderr,
        stored.stderr_base64.as_deref(),
        &mut truncated.stderr,
    );
    Some(WorkerJobResult {
        version: Version,
        task_id: stored.task_id.unwrap_or_default(),
        job_id: stored.job_id.unwrap_or_default(),
        status,
        exit_code,
        stdout,
        stderr,
        started_at: stored.started_at,
        ended_at: stored.ended_at,
        truncated,
        artifacts: stored.artifacts.into_iter().map(artifact).collect(),
        sba_result: stored.output,
        run_diagnostics: diagnostics,
    })
}

impl StoredRunResult {
    fn job_status(&self) -> WorkerJobStatus {
        match self.status {
            Status::Succeeded => WorkerJobStatus::Completed,
            Status::TimedOut => WorkerJobStatus::Timeout,
            Status::Queued
            | Status::Running
            | Status::Failed
            | Status::OomKilled
            | Status::Cancelled
            | Status::NotStarted
            | Status::Lost => WorkerJobStatus::Failed,
        }
    }

    fn exit_code(&self) -> i32 {
        exit_code(self.status, self.exit_code, self.signal, self.exit_status)
    }

    fn diagnostics(&self) -> RunDiagnostics {
        let reason = end_reason(self.status, self.error.as_ref());
        RunDiagnostics {
            // A run that did not start does not know its runtime.
            runtime: if self.barriers.is_empty() {
                self.asked
                    .runtime
                    .clone()
                    .unwrap_or_else(|| self.backend.clone())
            } else {
                self.backend.clone()
            },
            image: self.asked.image.clone(),
            container_started: (self.status != Status::Lost).then_some(!self.barriers.is_empty()),
            reason,
        }
    }
}

/// Why the program did not end by itself, if so.
pub(crate) fn end_reason(status: Status, error: Option<&ErrorInfo>) -> Option<String> {
    let said = || error.map_or("", |error| error.message.as_str());
    match status {
        Status::Queued | Status::Running | Status::Succeeded | Status::Failed => None,
        Status::TimedOut => Some("timeout".to_owned()),
        Status::NotStarted => Some(format!("not_started: {}", said())),
        other => Some(other.name().to_owned()),
    }
}

/// The exit code of the worker API: 128 plus the signal if killed; 126 or 127 if the program could
/// not be executed or found; -1 on timeout, or if its end was not seen.
pub(crate) fn exit_code(
    status: Status,
    exit: Option<i32>,
    signal: Option<i32>,
    exit_status: u8,
) -> i32 {
    match (status, exit, signal) {
        (Status::TimedOut | Status::Lost, ..) => -1,
        (Status::NotStarted, ..) if matches!(exit_status, 126 | 127) => i32::from(exit_status),
        (Status::NotStarted, ..) => -1,
        (_, Some(exit), _) => exit,
        (_, None, Some(signal)) => 128 + signal,
        (_, None, None) => -1,
    }
}

/// Text within the size limit; invalid UTF-8 is replaced.
fn text(text: Option<String>, base64: Option<&str>, cut: &mut bool) -> String {
    let bytes = base64.and_then(|base64| crate::wire::decoded(base64, "output").ok());
    let text = text.unwrap_or_else(|| bytes.map(|bytes| lossy(&bytes)).unwrap_or_default());
    truncated_text(text, cut)
}

pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Truncates to the maximum output, at a character boundary.
pub(crate) fn truncated_text(mut text: String, cut: &mut bool) -> String {
    if text.len() > MAX_OUTPUT {
        *cut = true;
        text.truncate(text.floor_char_boundary(MAX_OUTPUT));
    }
    text
}

fn artifact(stored: ArtifactRef) -> WorkerArtifact {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    let path: String = stored.name.bytes().map(encode).collect();
    WorkerArtifact {
        place: format!("/v1/artifacts/{path}?version={}", stored.version),
        content_type: "application/octet-stream",
        size_bytes: stored.size_bytes,
        name: stored.name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_an_exit_code() {
        for (status, exit, signal, shell, wanted) in [
            (Status::Succeeded, Some(0), None, 0, 0),
            (Status::Failed, Some(7), None, 7, 7),
            (Status::Failed, None, Some(9), 137, 137),
            (Status::OomKilled, None, Some(9), 137, 137),
            (Status::TimedOut, None, Some(15), 124, -1),
            (Status::TimedOut, Some(0), None, 124, -1),
            (Status::Cancelled, Some(3), None, 130, 3),
            (Status::Cancelled, None, None, 130, -1),
            (Status::NotStarted, None, None, 125, -1),
            (Status::NotStarted, None, None, 127, 127),
            (Status::Lost, None, None, 125, -1),
        ] {
            assert_eq!(exit_code(status, exit, signal, shell), wanted, "{status:?}");
        }
    }

    #[test]
    fn what_is_no_text_is_told_within_the_bound_all_the_same() {
        let mut cut = false;
        let told = text(
            None,
            Some(&crate::wire::encoded(&vec![0xff; MAX_OUTPUT])),
            &mut cut,
        );
        assert!(cut && told.len() <= MAX_OUTPUT && told.chars().all(|sign| sign == '\u{fffd}'));
        let mut cut = false;
        assert_eq!(text(Some("x".into()), None, &mut cut), "x");
        assert!(!cut);
    }
}
