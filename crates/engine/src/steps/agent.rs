//! Jobs that a program in the sandbox carries out: the reference agent with a model, or a program
//! of the caller's that implements the `/job` contract.

use super::{
    ProgramOutput,
    command::{self, FollowedOutput},
    execution::JobExecution,
    job_folder::{INSIDE, JobFolder},
};
use crate::{Exec, contract};
use serde_json::{Value, json};
use spec::{
    Contract, ErrorInfo, ExecRequest, ExecutionMode, Json, Status, StdStream, StepAction, StepJob,
    StepJobResult, StepStatus,
};
use std::{ffi::OsString, time::Duration};

/// The bytes of each stream that are kept.
const MAX_OUTPUT_BYTES: usize = 262_144;
/// The longest answer of the agent: its contract allows no more.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// The end of stderr that is quoted when the agent failed.
const LAST_STDERR_BYTES: u64 = 400;

impl JobExecution<'_> {
    fn fail(&mut self, code: &str, message: impl Into<String>) {
        self.result =
            std::mem::replace(&mut self.result, StepJobResult::of("")).failed(code, message);
    }

    fn fail_by_timeout(&mut self) {
        let message = self.timeout_message();
        self.fail("timeout", message);
    }

    async fn start(&mut self, request: ExecRequest) -> Option<Exec> {
        let timeout = Some(self.time_left().max(Duration::from_millis(1)));
        match self.session.exec(ExecRequest { timeout, ..request }).await {
            Ok(exec) => Some(exec),
            Err(error) => {
                self.fail(super::code_of(error.code), super::message_with_hint(&error));
                None
            }
        }
    }
}

fn words(texts: &[&str]) -> Vec<OsString> {
    texts.iter().map(OsString::from).collect()
}

/// Runs the reference agent; its answer is the result of the job.
pub(super) async fn run_agent(execution: &mut JobExecution<'_>) {
    let grants = &execution.session.spec().run.grants;
    if grants.llm.is_none() {
        let message = match grants.inference {
            None => "the job needs a model, and no door leads to one: grant --llm",
            Some(_) => {
                "the inference door speaks Ollama's API, which airlock-agent does not: grant --llm, or name a program of \
                 your own that does"
            }
        };
        return execution.fail("inference_unavailable", message);
    }
    let command = words(&["python3", "/job/airlock-agent", "task"]);
    let request = ExecRequest {
        command,
        stdin: true,
        ..ExecRequest::default()
    };
    let task = task(execution.job).to_string();
    let Some(exec) = execution.start(request).await else {
        return;
    };
    // An agent that does not read its task ends without an answer and reports that.
    let typing = async {
        _ = exec.write(task.as_bytes()).await;
        exec.close_input();
    };
    let (_, printed) = tokio::join!(
        typing,
        command::follow(&exec, &[StdStream::Stdout], MAX_ANSWER_BYTES)
    );
    let ended = exec.wait().await;
    execution.program_output = ProgramOutput::of(&exec, ended.exit_code);
    match (ended.status, ended.exit_code) {
        (Status::TimedOut, _) => execution.fail_by_timeout(),
        (Status::Succeeded | Status::Failed, Some(code)) => answer(execution, &exec, printed, code),
        (_, _) => {
            let why = ended
                .error
                .as_ref()
                .map_or_else(|| ended.status.name().to_owned(), super::message_with_hint);
            execution.fail(
                "agent_failed",
                format!("the agent ended without an answer: {why}"),
            );
        }
    }
}

fn answer(execution: &mut JobExecution<'_>, exec: &Exec, printed: FollowedOutput, code: i32) {
    let read = contract::read(Contract::Task, &printed.bytes, printed.too_much, code);
    let fields = match read {
        Ok(Some(Json::Object(fields))) => fields,
        Ok(_) => return execution.fail("agent_failed", "the agent printed no answer"),
        Err(violation) => {
            let last = last_stderr(exec);
            return execution.fail(
                "agent_failed",
                format!("the agent gave no answer: {violation}{last}"),
            );
        }
    };
    let text = |value: Option<&Json>| match value {
        Some(Json::Text(text)) => text.clone(),
        None | Some(Json::Null) => String::new(),
        Some(other) => serde_json::to_string(other).unwrap_or_default(),
    };
    if code != 0 {
        let error = text(fields.get("error"));
        return execution.fail(
            "agent_failed",
            format!("the agent did not complete the job: {error}"),
        );
    }
    let mut answer = text(fields.get("result"));
    let too_much = answer.len() > execution.room;
    answer.truncate(answer.floor_char_boundary(execution.room));
    execution.result.final_answer = Some(answer);
    if too_much {
        let most = execution.room;
        execution.fail(
            "constraint_violation",
            format!("the answer is longer than the {most} bytes of max_output_bytes"),
        );
    }
}

/// The last bytes that the agent wrote to stderr, for the error message.
fn last_stderr(exec: &Exec) -> String {
    let log = exec.output();
    let from = log.lengths()[1].saturating_sub(LAST_STDERR_BYTES);
    let bytes = log
        .read(StdStream::Stderr, from, LAST_STDERR_BYTES as usize)
        .bytes;
    match String::from_utf8_lossy(&bytes).trim() {
        "" => String::new(),
        last => format!("; its last words: {}", last.escape_debug()),
    }
}

/// The task document for the reference agent.
fn task(job: &StepJob) -> Value {
    let mut task =
        json!({ "task_id": job.job_id.as_str(), "prompt": prompt(job), "max_iterations": 0 });
    let exact = job
        .inference
        .allowed_models
        .iter()
        .map(spec::ModelPattern::as_str)
        .find(|name| !name.contains('*'));
    if let Some(model) = exact {
        task["model"] = model.into();
    }
    if let Some((title, description)) = &job.context.persona {
        task["system_prompt"] = format!("You are {title}. {description}").into();
    }
    task
}

/// The prompt, with a section for each part of the job that is set.
fn prompt(job: &StepJob) -> String {
    let context = &job.context;
    let list = |items: &[String]| {
        items
            .iter()
            .map(|item| format!("- {item}\n"))
            .collect::<String>()
    };
    let data = |value: &Json| serde_json::to_string(value).unwrap_or_default();
    let preferences = context
        .preferences
        .iter()
        .map(|(name, value)| format!("{name}: {}", data(value)));
    let steps = job.steps.iter().map(|step| advice(&step.action));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let parts = [
        ("Task", text(&context.task_context)),
        ("Requirements", list(&context.requirements)),
        ("Acceptance criteria", list(&context.acceptance_criteria)),
        ("Suggested steps", list(&steps.collect::<Vec<_>>())),
        ("Background", text(&context.baseline_context)),
        ("Project", text(&context.project_context)),
        ("Preferences", list(&preferences.collect::<Vec<_>>())),
        (
            "Skills",
            context.skills.as_ref().map(data).unwrap_or_default(),
        ),
        ("Further context", text(&context.additional_context)),
    ];
    let parts = parts
        .into_iter()
        .filter(|(_, text)| !text.trim().is_empty());
    let prompt: Vec<_> = parts
        .map(|(title, text)| format!("# {title}\n{}\n", text.trim_end()))
        .collect();
    if prompt.is_empty() {
        "Say that the job has no task.".to_owned()
    } else {
        prompt.join("\n")
    }
}

fn advice(action: &StepAction) -> String {
    let path = |path: &Option<String>| path.clone().unwrap_or_else(|| ".".to_owned());
    match action {
        StepAction::RunCommand { argv, .. } => format!("run_command {}", json!(argv)),
        StepAction::WriteFile { path, content } => format!("write_file {path}: {}", json!(content)),
        StepAction::ReadFile { path, .. } => format!("read_file {path}"),
        StepAction::ApplyUnifiedDiff { diff } => format!("apply_unified_diff\n{diff}"),
        StepAction::ListTree { path: at } => format!("list_tree {}", path(at)),
        StepAction::SearchFiles {
            pattern, path: at, ..
        } => {
            format!("search_files {pattern} in {}", path(at))
        }
    }
}

/// Runs the caller's program. The result of the job is in its file, which is read once the sandbox
/// is gone.
pub(super) async fn run_program(execution: &mut JobExecution<'_>, argv: &[OsString]) {
    let job = format!("{INSIDE}/job.json");
    let result = format!("{INSIDE}/result.json");
    let direct = execution.job.mode == ExecutionMode::DirectSteps;
    let mut env = vec![
        ("SBA_JOB_PATH", job.as_str()),
        ("SBA_RESULT_PATH", result.as_str()),
        ("SBA_WORKSPACE", spec::WORKSPACE),
        ("SBA_EXECUTION_MODE", execution.job.mode.name()),
    ];
    env.extend(direct.then_some(("SBA_DIRECT_STEPS", "1")));
    let env = env
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    let request = ExecRequest {
        command: argv.to_vec(),
        env,
        ..ExecRequest::default()
    };
    let Some(exec) = execution.start(request).await else {
        return;
    };
    let ended = exec.wait().await;
    execution.program_output = ProgramOutput::of(&exec, ended.exit_code);
    let message = |error: &Option<ErrorInfo>| {
        error
            .as_ref()
            .map(super::message_with_hint)
            .unwrap_or_default()
    };
    match ended.status {
        Status::Succeeded | Status::Failed => {}
        Status::TimedOut => execution.fail_by_timeout(),
        Status::NotStarted => execution.fail("start_failed", message(&ended.error)),
        Status::OomKilled => execution.fail("oom_killed", message(&ended.error)),
        Status::Lost | Status::Cancelled | Status::Queued | Status::Running => {
            execution.fail(
                "lost",
                format!("the program ended with its box: {}", message(&ended.error)),
            );
        }
    }
}

impl ProgramOutput {
    fn of(exec: &Exec, exit_code: Option<i32>) -> ProgramOutput {
        let log = exec.output();
        let first = |stream| {
            let mut bytes = Vec::new();
            while bytes.len() < MAX_OUTPUT_BYTES {
                let piece = log.read(stream, bytes.len() as u64, MAX_OUTPUT_BYTES - bytes.len());
                if piece.bytes.is_empty() || piece.from != bytes.len() as u64 {
                    break;
                }
                bytes.extend(piece.bytes);
            }
            bytes
        };
        let lengths = log.lengths();
        let stdout = first(StdStream::Stdout);
        let stderr = first(StdStream::Stderr);
        let truncated = spec::Truncation {
            stdout: lengths[0] > stdout.len() as u64,
            stderr: lengths[1] > stderr.len() as u64,
        };
        ProgramOutput {
            stdout,
            stderr,
            truncated,
            exit_code,
        }
    }
}

/// Reads the result that the caller's program left in `/job`, once the sandbox is gone. An earlier
/// failure takes precedence.
pub(super) fn read_result(
    folder: &JobFolder,
    job: &StepJob,
    program_output: &ProgramOutput,
    known: StepJobResult,
) -> StepJobResult {
    let read = folder.result().and_then(|bytes| {
        let unread = "/job/result.json is not one JSON object, or a name stands twice in it";
        let document: Json = serde_json::from_slice(&bytes).map_err(|_| unread.to_owned())?;
        StepJobResult::read(&document, job)
            .map_err(|bad| format!("/job/result.json is not taken: {bad}"))
    });
    match (read, &known.failure_code) {
        (Ok(read), Some(_)) => StepJobResult {
            status: known.status,
            failure_code: known.failure_code,
            failure_message: known.failure_message,
            ..read
        },
        (Err(_), Some(_)) => known,
        (Err(why), None) => known.failed("schema_validation", why),
        (Ok(read), None) => match (read.status, program_output.exit_code) {
            (StepStatus::Success, Some(code @ 1..)) => read.failed(
                "schema_validation",
                format!("/job/result.json says `success`, but the program exited with {code}"),
            ),
            (StepStatus::Success, None) => read.failed(
                "schema_validation",
                "/job/result.json says `success`, but the program was killed",
            ),
            _ => read,
        },
    }
}
