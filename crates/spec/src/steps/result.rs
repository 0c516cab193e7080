//! The result of a job of steps.

use super::{BadJob, Fields, MAX_LIST, MAX_STEPS, STEPS_PROTOCOL, StepJob, protocol};
use crate::Json;

/// How a job or a step of one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// It did what it should.
    Success,
    /// It failed.
    Failure,
    /// It reached its time limit.
    Timeout,
}

/// The result of a job. It is complete even for a job that was refused.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StepJobResult {
    /// The version of the protocol.
    pub protocol_version: String,
    /// The identifier of the job.
    pub job_id: String,
    /// How the job ended.
    pub status: StepStatus,
    /// The results of its steps.
    pub steps: Vec<StepResult>,
    /// Files that it leaves.
    pub artifacts: Vec<StepArtifact>,
    /// The kind of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_code: Option<String>,
    /// The failure in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
    /// The answer of an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_answer: Option<String>,
    /// Whether a model was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inference_used: Option<bool>,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StepResult {
    /// Its number, from 0.
    pub index: u64,
    /// The type of the step.
    #[serde(rename = "type")]
    pub kind: String,
    /// How it ended.
    pub status: StepStatus,
    /// The exit status of a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A file that a job leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StepArtifact {
    /// Its path inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The name under which it is stored.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

impl StepJobResult {
    /// The result of a job before its first step.
    pub fn of(job_id: impl Into<String>) -> StepJobResult {
        StepJobResult {
            protocol_version: STEPS_PROTOCOL.to_owned(),
            job_id: job_id.into(),
            status: StepStatus::Success,
            steps: Vec::new(),
            artifacts: Vec::new(),
            failure_code: None,
            failure_message: None,
            final_answer: None,
            inference_used: None,
        }
    }

    /// The same result as a failure; the steps so far stay in it.
    #[must_use]
    pub fn failed(self, code: &str, message: impl Into<String>) -> StepJobResult {
        let status = if code == "timeout" {
            StepStatus::Timeout
        } else {
            StepStatus::Failure
        };
        StepJobResult {
            status,
            failure_code: Some(code.to_owned()),
            failure_message: Some(message.into()),
            ..self
        }
    }

    /// Checks a result that an agent wrote.
    pub fn read(document: &Json, job: &StepJob) -> Result<StepJobResult, BadJob> {
        const KNOWN: [&str; 9] = [
            "protocol_version",
            "job_id",
            "status",
            "steps",
            "artifacts",
            "failure_code",
            "failure_message",
            "final_answer",
            "inference_used",
        ];
        let read = Fields::of(document, String::new(), &KNOWN)?;
        let protocol_version = protocol(&read)?;
        if read.required_text("job_id")? != job.job_id.as_str() {
            return Err(read.wrong("job_id", "is not that of the job"));
        }
        let steps = read.list("steps", MAX_STEPS)?.iter().enumerate();
        let steps = steps.map(|(index, value)| step_result(value, format!("steps[{index}]")));
        let artifacts = read.list("artifacts", MAX_LIST)?.iter().enumerate();
        let artifacts =
            artifacts.map(|(index, value)| artifact(value, format!("artifacts[{index}]")));
        let result = StepJobResult {
            protocol_version,
            job_id: job.job_id.to_string(),
            status: status(&read)?,
            steps: steps.collect::<Result<_, _>>()?,
            artifacts: artifacts.collect::<Result<_, _>>()?,
            failure_code: read.owned("failure_code")?,
            failure_message: read.owned("failure_message")?,
            final_answer: read.owned("final_answer")?,
            inference_used: read.truth("inference_used")?,
        };
        if result.status == StepStatus::Success && result.failure_code.is_some() {
            return Err(read.wrong("failure_code", "is there although the status is `success`"));
        }
        Ok(result)
    }
}

fn status(read: &Fields<'_>) -> Result<StepStatus, BadJob> {
    match read.required_text("status")? {
        "success" => Ok(StepStatus::Success),
        "failure" => Ok(StepStatus::Failure),
        "timeout" => Ok(StepStatus::Timeout),
        _ => Err(read.wrong("status", "is none of `success`, `failure`, `timeout`")),
    }
}

fn step_result(value: &Json, place: String) -> Result<StepResult, BadJob> {
    let read = Fields::of(
        value,
        place,
        &["index", "type", "status", "exit_code", "output", "error"],
    )?;
    let index = match read.required("index")? {
        Json::Whole(index) => *index,
        _ => return Err(read.wrong("index", "is not a whole number")),
    };
    let number = |value: &Json| match value {
        Json::Whole(value) => i32::try_from(*value).ok(),
        Json::Negative(value) => i32::try_from(*value).ok(),
        _ => None,
    };
    let exit_code = match read.get("exit_code") {
        None => None,
        Some(value) => {
            Some(number(value).ok_or_else(|| read.wrong("exit_code", "is no exit code"))?)
        }
    };
    Ok(StepResult {
        index,
        kind: read.required_text("type")?.to_owned(),
        status: status(&read)?,
        exit_code,
        output: read.owned("output")?,
        error: read.owned("error")?,
    })
}

fn artifact(value: &Json, place: String) -> Result<StepArtifact, BadJob> {
    let read = Fields::of(value, place, &["path", "ref"])?;
    let found = StepArtifact {
        path: read.owned("path")?,
        reference: read.owned("ref")?,
    };
    if found == StepArtifact::default() {
        return Err(read.wrong("path", "is missing, and so is `ref`"));
    }
    Ok(found)
}
