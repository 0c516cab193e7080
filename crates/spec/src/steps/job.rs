//! A job of steps.

use super::{BadJob, Fields, MAX_LIST, MAX_STEPS, protocol};
use crate::{Id, Json, MAX_SESSION_LIFETIME, ModelPattern};
use std::{collections::BTreeMap, time::Duration};

/// Words of a command.
const MAX_WORDS: usize = 4096;
/// Bytes of a regular expression.
const MAX_PATTERN_BYTES: usize = 4096;
/// Bytes of a glob.
const MAX_GLOB_BYTES: usize = 1000;

/// A checked job.
#[derive(Clone, Debug, PartialEq)]
pub struct StepJob {
    /// As the document has it: `1` or `1.x`.
    pub protocol_version: String,
    /// Its identifier.
    pub job_id: Id,
    /// Its task.
    pub task_id: Option<Id>,
    /// Who carries it out.
    pub mode: ExecutionMode,
    /// Its limits.
    pub constraints: JobConstraints,
    /// The steps, in their order; for an agent they are only advice.
    pub steps: Vec<Step>,
    /// The models that an agent may use.
    pub inference: JobInference,
    /// Context for an agent.
    pub context: JobContext,
}

/// Who carries a job out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// The engine, step by step, without a model.
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

/// The limits of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobConstraints {
    /// Time on the clock.
    pub max_runtime: Duration,
    /// Output of all steps together.
    pub max_output_bytes: u64,
    /// Whether the network may be used.
    pub ext_net_allowed: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its action.
    pub action: StepAction,
    /// Whether the next step follows if this one fails.
    pub continues_on_failure: bool,
}

/// The action of a step, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// Runs a program.
    RunCommand {
        /// The argument list.
        argv: Vec<String>,
        /// The working directory; `/workspace` without one.
        cwd: Option<String>,
    },
    /// Replaces or creates a file.
    WriteFile {
        /// Its path.
        path: String,
        /// Its contents.
        content: String,
    },
    /// Reads a file.
    ReadFile {
        /// Its path.
        path: String,
        /// The first line, counted from 1.
        start_line: Option<u64>,
        /// The last line.
        end_line: Option<u64>,
    },
    /// Applies a unified diff.
    ApplyUnifiedDiff {
        /// Its text.
        diff: String,
    },
    /// Lists a folder and all below it.
    ListTree {
        /// The folder; the workspace without one.
        path: Option<String>,
    },
    /// Searches files for a regular expression.
    SearchFiles {
        /// The regular expression.
        pattern: String,
        /// The folder; the workspace without one.
        path: Option<String>,
        /// A glob that the names of files must match.
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

/// The models that an agent may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobInference {
    /// Patterns of models; all that are granted if empty.
    pub allowed_models: Vec<ModelPattern>,
    /// Where the models are; any door without it.
    pub source: Option<InferenceSource>,
}

/// The door through which models are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InferenceSource {
    /// The model server of the machine: the inference door.
    Worker,
    /// A provider: the LLM door.
    ApiEgress,
}

/// Context for an agent, beside its job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobContext {
    /// Context of every job.
    pub baseline_context: Option<String>,
    /// Context of the project.
    pub project_context: Option<String>,
    /// Context of the task.
    pub task_context: Option<String>,
    /// Requirements of the task.
    pub requirements: Vec<String>,
    /// Criteria by which the task is accepted.
    pub acceptance_criteria: Vec<String>,
    /// Preferences of the user.
    pub preferences: BTreeMap<String, Json>,
    /// Any further context.
    pub additional_context: Option<String>,
    /// Identifiers of skills.
    pub skill_ids: Vec<String>,
    /// Skills, in a form that only the agent reads.
    pub skills: Option<Json>,
    /// The persona of the agent: a title and a description.
    pub persona: Option<(String, String)>,
    /// The identifier of the persona.
    pub persona_id: Option<String>,
}

impl StepJob {
    /// Checks a job. `mode` overrides the execution mode that the job names.
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
        let named = match job.text("execution_mode")? {
            None => None,
            Some(name) => Some(ExecutionMode::named(name).ok_or_else(|| {
                job.wrong(
                    "execution_mode",
                    "is neither `agent_inference` nor `direct_steps`",
                )
            })?),
        };
        let default = if steps.is_empty() {
            ExecutionMode::AgentInference
        } else {
            ExecutionMode::DirectSteps
        };
        let mode = mode.or(named).unwrap_or(default);
        if mode == ExecutionMode::DirectSteps && steps.is_empty() {
            return Err(job.wrong(
                "steps",
                "is empty, but the execution mode is `direct_steps`",
            ));
        }
        Ok(StepJob {
            protocol_version,
            job_id,
            task_id,
            mode,
            constraints,
            steps,
            inference: inference(&job)?,
            context: context(&job)?,
        })
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

fn constraints(job: &Fields<'_>) -> Result<JobConstraints, BadJob> {
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
    let longest = MAX_SESSION_LIFETIME - Duration::from_secs(3600);
    let seconds = needed("max_runtime_seconds")?;
    if seconds > longest.as_secs() {
        return Err(read.wrong(
            "max_runtime_seconds",
            format!("is more than {}", longest.as_secs()),
        ));
    }
    Ok(JobConstraints {
        max_runtime: Duration::from_secs(seconds),
        max_output_bytes: needed("max_output_bytes")?,
        ext_net_allowed: read.truth("ext_net_allowed")?.unwrap_or(false),
    })
}

fn steps(job: &Fields<'_>) -> Result<Vec<Step>, BadJob> {
    let one = |(index, value)| step(value, job.place(&format!("steps[{index}]")));
    job.list("steps", MAX_STEPS)?
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
    let continues_on_failure = match step.text("on_failure")? {
        None | Some("stop") => false,
        Some("continue") => true,
        Some(_) => return Err(step.wrong("on_failure", "is neither `stop` nor `continue`")),
    };
    Ok(Step {
        action,
        continues_on_failure,
    })
}

fn path(args: &Fields<'_>) -> Result<String, BadJob> {
    match args.required_text("path")? {
        "" => Err(args.wrong("path", "is empty")),
        path => Ok(path.to_owned()),
    }
}

fn run_command(args: &Fields<'_>) -> Result<StepAction, BadJob> {
    let argv = args.texts("argv", MAX_WORDS)?;
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
    let start_line = args.positive("start_line")?;
    let end_line = args.positive("end_line")?;
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
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(args.wrong(
            "pattern",
            format!("is longer than {MAX_PATTERN_BYTES} bytes"),
        ));
    }
    if include
        .as_ref()
        .is_some_and(|glob| glob.len() > MAX_GLOB_BYTES)
    {
        return Err(args.wrong("include", format!("is longer than {MAX_GLOB_BYTES} bytes")));
    }
    Ok(StepAction::SearchFiles {
        pattern,
        path: args.owned("path")?,
        include,
    })
}

fn inference(job: &Fields<'_>) -> Result<JobInference, BadJob> {
    let Some(value) = job.get("inference") else {
        return Ok(JobInference::default());
    };
    let read = Fields::of(value, job.place("inference"), &["allowed_models", "source"])?;
    let models = read.texts("allowed_models", MAX_LIST)?;
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
    Ok(JobInference {
        allowed_models,
        source,
    })
}

fn context(job: &Fields<'_>) -> Result<JobContext, BadJob> {
    let persona = persona(job)?;
    let persona_id = job.owned("persona_id")?;
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
        requirements: read.texts("requirements", MAX_LIST)?,
        acceptance_criteria: read.texts("acceptance_criteria", MAX_LIST)?,
        preferences,
        additional_context: read.owned("additional_context")?,
        skill_ids: read.texts("skill_ids", MAX_LIST)?,
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
