//! A job of steps, as `/job/job.json` has it, and what came of one, as `/job/result.json` has it: data and its checks.
//!
//! A job is read once, whole, before anything of it is carried out. What it says of paths is only checked for its
//! shape here; whether one leads out of the workspace is decided where it is opened.
//!
//! What the types of steps do is in `engine/src/steps/execution.rs`.

mod fields;
#[cfg(test)]
mod tests;

use crate::{Id, Json, LONGEST_LIFETIME, ModelPattern};
use fields::Fields;
use std::{collections::BTreeMap, fmt, time::Duration};

/// How long a job or a result may be, in bytes.
pub const MOST_JOB_BYTES: usize = 1 << 20;
/// Steps of one job.
pub const MOST_STEPS: usize = 1000;
/// What all steps of a job may write together, whatever the job says.
pub const MOST_STEP_OUTPUT: u64 = 16 << 20;
/// The version of the protocol that is spoken here.
pub const STEPS_PROTOCOL: &str = "1.0";

const MOST_WORDS: usize = 4096;
const MOST_LIST: usize = 1000;
const LONGEST_PATTERN: usize = 4096;
const LONGEST_GLOB: usize = 1000;

/// Why a job or a result is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJob {
    /// Which field, as in `steps[2].args.path`; empty for the document itself.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for BadJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.is_empty() {
            true => write!(f, "the document {}", self.why.escape_debug()),
            false => write!(
                f,
                "`{}` {}",
                self.field.escape_debug(),
                self.why.escape_debug()
            ),
        }
    }
}

impl std::error::Error for BadJob {}

/// A checked job.
#[derive(Clone, Debug, PartialEq)]
pub struct StepJob {
    /// As it was given: `1` or `1.x`.
    pub protocol_version: String,
    /// Its identifier.
    pub job_id: Id,
    /// The task that it belongs to.
    pub task_id: Option<Id>,
    /// How it is carried out.
    pub mode: ExecutionMode,
    /// What it may use.
    pub constraints: Constraints,
    /// What is to be done, in this order. For an agent, no more than advice.
    pub steps: Vec<Step>,
    /// Which models an agent may use.
    pub inference: Inference,
    /// What an agent is told.
    pub context: JobContext,
}

/// Who carries a job out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// Its steps, one after the other; no model is asked.
    DirectSteps,
    /// An agent with a model.
    AgentInference,
}

impl ExecutionMode {
    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            ExecutionMode::DirectSteps => "direct_steps",
            ExecutionMode::AgentInference => "agent_inference",
        }
    }

    /// By its public name.
    pub fn named(name: &str) -> Option<ExecutionMode> {
        [ExecutionMode::DirectSteps, ExecutionMode::AgentInference]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// What a job may use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct Constraints {
    pub max_runtime: Duration,
    /// Of all steps together.
    pub max_output_bytes: u64,
    pub ext_net_allowed: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: StepAction,
    /// Whether the next one follows although this one failed.
    pub goes_on: bool,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub enum StepAction {
    RunCommand {
        argv: Vec<String>,
        cwd: Option<String>,
    },
    WriteFile {
        path: String,
        content: String,
    },
    ReadFile {
        path: String,
        start_line: Option<u64>,
        end_line: Option<u64>,
    },
    ApplyUnifiedDiff {
        diff: String,
    },
    ListTree {
        path: Option<String>,
    },
    SearchFiles {
        pattern: String,
        path: Option<String>,
        include: Option<String>,
    },
}

impl StepAction {
    /// The public name of its type.
    pub const fn name(&self) -> &'static str {
        match self {
            StepAction::RunCommand { .. } => "run_command",
            StepAction::WriteFile { .. } => "write_file",
            StepAction::ReadFile { .. } => "read_file",
            StepAction::ApplyUnifiedDiff { .. } => "apply_unified_diff",
            StepAction::ListTree { .. } => "list_tree",
            StepAction::SearchFiles { .. } => "search_files",
        }
    }
}

/// Which models an agent may use, and whose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inference {
    /// These and no others; all that are granted if it is empty.
    pub allowed_models: Vec<ModelPattern>,
    /// Where they are; wherever a door leads if it is not said.
    pub source: Option<InferenceSource>,
}

/// Where models are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InferenceSource {
    /// At the model server of the machine: the inference door.
    Worker,
    /// At a provider: the LLM door.
    ApiEgress,
}

/// What an agent is told beside its job.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct JobContext {
    pub baseline_context: Option<String>,
    pub project_context: Option<String>,
    pub task_context: Option<String>,
    pub requirements: Vec<String>,
    pub acceptance_criteria: Vec<String>,
    pub preferences: BTreeMap<String, Json>,
    pub additional_context: Option<String>,
    pub skill_ids: Vec<String>,
    pub skills: Option<Json>,
    /// Who the agent is to be: a title and a description.
    pub persona: Option<(String, String)>,
    pub persona_id: Option<String>,
}

impl StepJob {
    /// Checks a job. Whoever starts it may say how it is carried out, whatever it says itself.
    pub fn read(document: &Json, mode: Option<ExecutionMode>) -> Result<StepJob, BadJob> {
        const KNOWN: [&str; 10] = [
            "protocol_version",
            "job_id",
            "task_id",
            "execution_mode",
            "constraints",
            "steps",
            "inference",
            "context",
            "persona",
            "persona_id",
        ];
        let job = Fields::of(document, String::new(), &KNOWN)?;
        let protocol_version = protocol(&job)?;
        let job_id =
            identifier(&job, "job_id")?.ok_or_else(|| job.wrong("job_id", "is missing"))?;
        let task_id = identifier(&job, "task_id")?;
        let constraints = constraints(&job)?;
        let steps = steps(&job)?;
        let said = match job.text("execution_mode")? {
            None => None,
            Some(name) => Some(ExecutionMode::named(name).ok_or_else(|| {
                job.wrong(
                    "execution_mode",
                    "is neither `agent_inference` nor `direct_steps`",
                )
            })?),
        };
        let usual = match steps.is_empty() {
            true => ExecutionMode::AgentInference,
            false => ExecutionMode::DirectSteps,
        };
        let mode = mode.or(said).unwrap_or(usual);
        if mode == ExecutionMode::DirectSteps && steps.is_empty() {
            return Err(job.wrong("steps", "is empty, and nothing else is to be carried out"));
        }
        let (inference, context) = (inference(&job)?, context(&job)?);
        Ok(StepJob {
            protocol_version,
            job_id,
            task_id,
            mode,
            constraints,
            steps,
            inference,
            context,
        })
    }
}

fn protocol(document: &Fields<'_>) -> Result<String, BadJob> {
    let version = document.required_text("protocol_version")?;
    let minor = |rest: &str| {
        let digits = rest.strip_prefix('.').unwrap_or_default();
        rest.is_empty()
            || (1..=6).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    match version.strip_prefix('1').is_some_and(minor) {
        true => Ok(version.to_owned()),
        false => Err(document.wrong(
            "protocol_version",
            "is not 1.x, which is what is spoken here",
        )),
    }
}

fn identifier(document: &Fields<'_>, name: &str) -> Result<Option<Id>, BadJob> {
    let id = document.text(name)?.map(Id::new).transpose();
    id.map_err(|_| {
        document.wrong(
            name,
            "is not 1 to 128 of A-Z a-z 0-9 . _ - without a dot in front",
        )
    })
}

fn constraints(job: &Fields<'_>) -> Result<Constraints, BadJob> {
    let known = ["max_runtime_seconds", "max_output_bytes", "ext_net_allowed"];
    let read = Fields::of(
        job.required("constraints")?,
        job.place("constraints"),
        &known,
    )?;
    let needed = |name: &str| {
        read.positive(name)?
            .ok_or_else(|| read.wrong(name, "is missing"))
    };
    let longest = LONGEST_LIFETIME - Duration::from_secs(3600);
    let seconds = needed("max_runtime_seconds")?;
    if seconds > longest.as_secs() {
        return Err(read.wrong(
            "max_runtime_seconds",
            format!("is more than {}", longest.as_secs()),
        ));
    }
    Ok(Constraints {
        max_runtime: Duration::from_secs(seconds),
        max_output_bytes: needed("max_output_bytes")?,
        ext_net_allowed: read.truth("ext_net_allowed")?.unwrap_or(false),
    })
}

fn steps(job: &Fields<'_>) -> Result<Vec<Step>, BadJob> {
    let one = |(index, value)| step(value, job.place(&format!("steps[{index}]")));
    job.list("steps", MOST_STEPS)?
        .iter()
        .enumerate()
        .map(one)
        .collect()
}

fn step(value: &Json, place: String) -> Result<Step, BadJob> {
    let step = Fields::of(value, place, &["type", "args", "on_failure"])?;
    let kind = step.required_text("type")?;
    let none = Json::Object(BTreeMap::new());
    let args = step.get("args").unwrap_or(&none);
    let args = |known: &[&str]| Fields::of(args, step.place("args"), known);
    let action = match kind {
        "run_command" => run_command(&args(&["argv", "cwd"])?)?,
        "write_file" => {
            let args = args(&["path", "content"])?;
            let content = args.required_text("content")?.to_owned();
            StepAction::WriteFile {
                path: path(&args)?,
                content,
            }
        }
        "read_file" => read_file(&args(&["path", "start_line", "end_line"])?)?,
        "apply_unified_diff" => StepAction::ApplyUnifiedDiff {
            diff: args(&["diff"])?.required_text("diff")?.to_owned(),
        },
        "list_tree" => StepAction::ListTree {
            path: args(&["path"])?.owned("path")?,
        },
        "search_files" => search_files(&args(&["pattern", "path", "include"])?)?,
        _ => return Err(step.wrong("type", "is no type of step")),
    };
    let goes_on = match step.text("on_failure")? {
        None | Some("stop") => false,
        Some("continue") => true,
        Some(_) => return Err(step.wrong("on_failure", "is neither `stop` nor `continue`")),
    };
    Ok(Step { action, goes_on })
}

fn path(args: &Fields<'_>) -> Result<String, BadJob> {
    match args.required_text("path")? {
        "" => Err(args.wrong("path", "is empty")),
        path => Ok(path.to_owned()),
    }
}

fn run_command(args: &Fields<'_>) -> Result<StepAction, BadJob> {
    let argv = args.texts("argv", MOST_WORDS)?;
    if argv.first().is_none_or(String::is_empty) {
        return Err(args.wrong("argv", "names no program"));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(args.wrong("argv", "has a NUL byte, which no program can be given"));
    }
    Ok(StepAction::RunCommand {
        argv,
        cwd: args.owned("cwd")?,
    })
}

fn read_file(args: &Fields<'_>) -> Result<StepAction, BadJob> {
    let (start_line, end_line) = (args.positive("start_line")?, args.positive("end_line")?);
    if end_line.is_some_and(|end| end < start_line.unwrap_or(1)) {
        return Err(args.wrong("end_line", "is before the first line"));
    }
    Ok(StepAction::ReadFile {
        path: path(args)?,
        start_line,
        end_line,
    })
}

fn search_files(args: &Fields<'_>) -> Result<StepAction, BadJob> {
    let pattern = args.required_text("pattern")?.to_owned();
    let include = args.owned("include")?;
    if pattern.len() > LONGEST_PATTERN {
        return Err(args.wrong("pattern", format!("is longer than {LONGEST_PATTERN} bytes")));
    }
    if include
        .as_ref()
        .is_some_and(|glob| glob.len() > LONGEST_GLOB)
    {
        return Err(args.wrong("include", format!("is longer than {LONGEST_GLOB} bytes")));
    }
    Ok(StepAction::SearchFiles {
        pattern,
        path: args.owned("path")?,
        include,
    })
}

fn inference(job: &Fields<'_>) -> Result<Inference, BadJob> {
    let Some(value) = job.get("inference") else {
        return Ok(Inference::default());
    };
    let read = Fields::of(value, job.place("inference"), &["allowed_models", "source"])?;
    let models = read.texts("allowed_models", MOST_LIST)?;
    let patterns = models
        .iter()
        .map(|model| model.parse())
        .collect::<Result<Vec<_>, _>>();
    let allowed_models =
        patterns.map_err(|_| read.wrong("allowed_models", "has a name that no model has"))?;
    let source = match read.text("source")? {
        None => None,
        Some("worker") => Some(InferenceSource::Worker),
        Some("api_egress") => Some(InferenceSource::ApiEgress),
        Some(_) => return Err(read.wrong("source", "is neither `worker` nor `api_egress`")),
    };
    Ok(Inference {
        allowed_models,
        source,
    })
}

fn context(job: &Fields<'_>) -> Result<JobContext, BadJob> {
    let (persona, persona_id) = (persona(job)?, job.owned("persona_id")?);
    let Some(value) = job.get("context") else {
        return Ok(JobContext {
            persona,
            persona_id,
            ..JobContext::default()
        });
    };
    let known = [
        "baseline_context",
        "project_context",
        "task_context",
        "requirements",
        "acceptance_criteria",
        "preferences",
        "additional_context",
        "skill_ids",
        "skills",
    ];
    let read = Fields::of(value, job.place("context"), &known)?;
    let preferences = match read.get("preferences") {
        None => BTreeMap::new(),
        Some(Json::Object(preferences)) => preferences.clone(),
        Some(_) => return Err(read.wrong("preferences", "is not an object")),
    };
    Ok(JobContext {
        baseline_context: read.owned("baseline_context")?,
        project_context: read.owned("project_context")?,
        task_context: read.owned("task_context")?,
        requirements: read.texts("requirements", MOST_LIST)?,
        acceptance_criteria: read.texts("acceptance_criteria", MOST_LIST)?,
        preferences,
        additional_context: read.owned("additional_context")?,
        skill_ids: read.texts("skill_ids", MOST_LIST)?,
        skills: read.get("skills").cloned(),
        persona,
        persona_id,
    })
}

fn persona(job: &Fields<'_>) -> Result<Option<(String, String)>, BadJob> {
    let Some(value) = job.get("persona") else {
        return Ok(None);
    };
    let read = Fields::of(value, job.place("persona"), &["title", "description"])?;
    let text = |name| Ok::<_, BadJob>(read.text(name)?.unwrap_or_default().to_owned());
    Ok(Some((text("title")?, text("description")?)))
}

/// How a job or a step of one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub enum StepStatus {
    Success,
    Failure,
    Timeout,
}

/// What came of a job. Always whole, also of one that was refused.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct StepsResult {
    pub protocol_version: String,
    pub job_id: String,
    pub status: StepStatus,
    pub steps: Vec<StepResult>,
    pub artifacts: Vec<StepArtifact>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_answer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inference_used: Option<bool>,
}

/// What came of one step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct StepResult {
    pub index: u64,
    #[serde(rename = "type")]
    pub kind: String,
    pub status: StepStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A file that a job leaves: by its path inside, or by what it is kept under.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct StepArtifact {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

impl StepsResult {
    /// Of a job of which nothing has happened yet.
    pub fn of(job_id: impl Into<String>) -> StepsResult {
        StepsResult {
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

    /// The same, failed. What is known of it stays.
    #[must_use]
    pub fn failed(self, code: &str, message: impl Into<String>) -> StepsResult {
        let status = if code == "timeout" {
            StepStatus::Timeout
        } else {
            StepStatus::Failure
        };
        StepsResult {
            status,
            failure_code: Some(code.to_owned()),
            failure_message: Some(message.into()),
            ..self
        }
    }

    /// Checks what an agent wrote of its job.
    pub fn read(document: &Json, job: &StepJob) -> Result<StepsResult, BadJob> {
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
        let steps = read.list("steps", MOST_STEPS)?.iter().enumerate();
        let steps = steps.map(|(index, value)| step_result(value, format!("steps[{index}]")));
        let artifacts = read.list("artifacts", MOST_LIST)?.iter().enumerate();
        let artifacts =
            artifacts.map(|(index, value)| artifact(value, format!("artifacts[{index}]")));
        let result = StepsResult {
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
        match result.status == StepStatus::Success && result.failure_code.is_some() {
            true => Err(read.wrong("failure_code", "is there although the status is `success`")),
            false => Ok(result),
        }
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
    match found == StepArtifact::default() {
        true => Err(read.wrong("path", "is missing, and so is `ref`")),
        false => Ok(found),
    }
}
