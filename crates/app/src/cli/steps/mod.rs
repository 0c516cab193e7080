//! `airlock steps`: runs a job of steps from a file in a fresh sandbox and writes its result to
//! another file. A complete result is written in every case.

mod callback;
mod job_file;

use super::{
    Global, REFUSED, conclude,
    message::{self, Failure, Message},
    print_json, print_lines, run,
};
use crate::config::{self, ProcessEnv};
use callback::Callback;
use clap::Args;
use engine::steps::{JobControl, JobOutcome, JobRunner};
use serde::Serialize;
use serde_json::json;
use spec::{ExecutionMode, StepJob, StepJobResult, StepStatus, WorkspaceChanges};
use std::{ffi::OsStr, path::PathBuf, sync::Arc};
use tokio::sync::watch;

pub(super) const EXAMPLES: &str = "\
Examples:
  airlock steps --job job.json --result result.json --workspace .
  airlock steps --stdin < job.json | jq .status
  airlock steps --job job.json --result result.json --profile standard --image localhost/tools
  airlock steps --job job.json --result result.json --workspace . --llm=anthropic
  airlock steps --job job.json --result result.json --image localhost/my-agent -- my-agent

Options of `run` about a single command do not apply. With a COMMAND, that program runs the job: it reads /job/job.json
and writes /job/result.json. The variables SBA_JOB_PATH, SBA_RESULT_PATH, SBA_WORKSPACE, SBA_STDIN_STDOUT,
SBA_EXECUTION_MODE, SBA_DIRECT_STEPS and SBA_CALLBACK_URL are used for options that are not given.

Exit status: 0 if the job succeeded, 1 if it failed, 123 if not all of its changes could be applied,
124 after its timeout, 125 if nothing of it was started.";

const JOB_HEADING: &str = "The job";

/// The exit status of `airlock run`, too, if the program succeeded but not all of its changes could
/// be applied.
const CONFLICT: u8 = 123;

/// The options of `airlock steps`.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Options {
    /// File with the job; --stdin reads it from standard input, and prints the result [env: SBA_JOB_PATH]
    #[arg(long, value_name = "FILE", help_heading = JOB_HEADING)]
    job: Option<PathBuf>,
    /// File for the result [env: SBA_RESULT_PATH]
    #[arg(long, value_name = "FILE", help_heading = JOB_HEADING)]
    result: Option<PathBuf>,
    /// Override the job's mode: direct_steps or agent_inference [env: SBA_EXECUTION_MODE]
    #[arg(long, value_name = "MODE", help_heading = JOB_HEADING)]
    mode: Option<String>,
    /// Notify this URL when the job begins, and of its result [env: SBA_CALLBACK_URL]
    #[arg(long, value_name = "URL", help_heading = JOB_HEADING)]
    callback: Option<String>,
    #[command(flatten)]
    run: run::Options,
}

/// Hides options that apply to a single command.
pub(super) fn hide_command_options(argument: clap::Arg) -> clap::Arg {
    let hidden = ["entrypoint", "tty", "explain", "contract", "artifact"];
    if hidden.contains(&argument.get_id().as_str()) {
        argument.hide(true)
    } else {
        argument
    }
}

/// The request, from options and variables.
struct StepsRequest {
    job: Option<PathBuf>,
    result: Option<PathBuf>,
    stdin: bool,
    json: bool,
    mode: Option<ExecutionMode>,
    callback: Option<Callback>,
}

pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.run.json;
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let (request, run) = StepsRequest::of(options, global, env)?;
    let (outcome, began) = match request.read_document() {
        Err(result) => (JobOutcome::from(*result), false),
        Ok(read_document) => request.run_job(&read_document, run, global, env),
    };
    request.write_result(&outcome)?;
    Ok(match (outcome.result.status, began) {
        (StepStatus::Success, _) => 0,
        (StepStatus::Failure, _) if is_conflict(&outcome) => CONFLICT,
        (_, false) => REFUSED,
        (StepStatus::Timeout, true) => 124,
        (StepStatus::Failure, true) => 1,
    })
}

impl StepsRequest {
    fn of(
        options: Options,
        global: &Global,
        env: &ProcessEnv,
    ) -> Result<(StepsRequest, run::Options), Failure> {
        let Options {
            job,
            result,
            mode,
            callback,
            mut run,
        } = options;
        let variable = |name: &str| env.variable(name).filter(|value| !value.is_empty());
        let path = |given: Option<PathBuf>, name: &str| {
            let path = given.or_else(|| variable(name).map(PathBuf::from));
            path.map(|path| env.current_folder.join(path))
        };
        let is_set =
            |name: &str| variable(name).is_some_and(|value| value == "1" || value == "true");
        run.use_workspace(variable("SBA_WORKSPACE").map(PathBuf::from));
        let stdin = run.reads_stdin() || (job.is_none() && is_set("SBA_STDIN_STDOUT"));
        let job = if stdin {
            None
        } else {
            path(job, "SBA_JOB_PATH")
        };
        if job.is_none() && !stdin {
            let hint = "give --job FILE, or --stdin to read it from standard input";
            return Err(Failure::invalid("no job is given", hint));
        }
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let mode = mode.or_else(|| text("SBA_EXECUTION_MODE"));
        let direct = || is_set("SBA_DIRECT_STEPS").then_some(ExecutionMode::DirectSteps);
        let mode = match mode.as_deref() {
            None => direct(),
            Some(name) => Some(ExecutionMode::named(name).ok_or_else(|| {
                let message = format!("`{}` is not a mode", name.escape_debug());
                Failure::invalid(message, "the modes are direct_steps and agent_inference")
            })?),
        };
        let address = callback
            .or_else(|| text("SBA_JOB_STATUS_URL"))
            .or_else(|| text("SBA_CALLBACK_URL"));
        let callback = address
            .map(|url| Callback::to(&url, global, env))
            .transpose()?;
        let result = path(result, "SBA_RESULT_PATH");
        let json = run.json;
        Ok((
            StepsRequest {
                job,
                result,
                stdin,
                json,
                mode,
                callback,
            },
            run,
        ))
    }

    /// Reads the job; an unreadable job is a result, too.
    fn read_document(&self) -> Result<Vec<u8>, Box<StepJobResult>> {
        let read = match &self.job {
            Some(path) => job_file::read(path),
            None => job_file::read_stdin(),
        };
        read.map_err(|error| {
            let message = format!("the job cannot be read: {error}");
            Box::new(StepJobResult::of("").failed("schema_validation", message))
        })
    }

    /// Runs the job. Returns the outcome, and whether anything was started.
    fn run_job(
        &self,
        read_document: &[u8],
        run: run::Options,
        global: &Global,
        env: &ProcessEnv,
    ) -> (JobOutcome, bool) {
        let job = match engine::steps::read_job(read_document, self.mode) {
            Ok(job) => job,
            Err(result) => return (JobOutcome::from(*result), false),
        };
        match self.prepare(&job, read_document, run, global, env) {
            Ok(done) => done,
            Err(failure) => {
                let message = format!("{}; {}", failure.message, failure.hint);
                (
                    StepJobResult::of(job.job_id.as_str())
                        .failed("start_failed", message)
                        .into(),
                    false,
                )
            }
        }
    }

    fn prepare(
        &self,
        job: &StepJob,
        read_document: &[u8],
        run: run::Options,
        global: &Global,
        env: &ProcessEnv,
    ) -> Result<(JobOutcome, bool), Failure> {
        run.refuse_for_steps()?;
        let begun = engine::PrespawnedLauncher::give();
        let mut config = global.configure(env)?;
        config::narrow(&mut config, run.profile(), env)?;
        let follow_links = run.follow_links;
        let confirmed = run.confirm_workspace;
        let mut request = run.into_request(env)?;
        let command = std::mem::take(&mut request.command);
        request.stdin = false;
        let mut spec = match engine::steps::admit(&config.policy, request, job) {
            Ok(spec) => spec,
            Err(result) => return Ok((JobOutcome::from(*result), false)),
        };
        if !follow_links {
            run::pin(&mut spec.run, &env.current_folder)?;
        }
        if !spec.run.grants.ports().is_empty() || !spec.run.grants.secrets.is_empty() {
            super::leave_no_dump()?;
        }
        super::settings(&config)?.check(&spec.run)?;
        if !confirmed {
            run::refuse_broad_workspace(spec.run.sandbox.workspace.as_deref(), env)?;
        }
        let runner = if command.is_empty() {
            JobRunner::BuiltIn
        } else {
            JobRunner::Program(command)
        };
        let runtime = super::runtime()?;
        let outcome = runtime.block_on(async {
            let signals = run::Signals::listen();
            let signals = signals.map_err(|e| Failure::internal(format!("cannot wait for signals: {e}")))?;
            let engine = super::open_engine(&config, Some(begun))?;
            self.notify(json!({ "status": "in_progress", "job_id": job.job_id.as_str() })).await;
            let (cancel, cancelled) = watch::channel(false);
            // A signal does not wait for the grace period.
            let (_, terminated) = watch::channel(None);
            // File steps are not limited: no other job shares the machine.
            let places = Arc::new(|| Some(Box::new(()) as Box<dyn Send>));
            let wishes = JobControl { cancelled, terminated, file_slots: places };
            let work = engine.run_job(spec, job, read_document, runner, wishes, |_| ());
            let outcome = until_signal(signals, cancel, work).await;
            self.notify(
                json!({ "status": "completed", "job_id": job.job_id.as_str(), "result": StepsReport::of(&outcome) }),
            )
            .await;
            engine.close().await;
            Ok::<_, Failure>(outcome)
        })?;
        runtime.shutdown_background();
        let began = outcome.result.failure_code.is_none() || has_started(&outcome);
        Ok((outcome, began))
    }

    /// A failed callback does not fail the job.
    async fn notify(&self, what: serde_json::Value) {
        if let Some(callback) = &self.callback
            && let Err(why) = callback.send(&what).await
        {
            message::print(&[Message::Note(why)]);
        }
    }

    fn write_result(&self, outcome: &JobOutcome) -> Result<(), Failure> {
        let report = StepsReport::of(outcome);
        if let Some(path) = &self.result {
            job_file::write(path, &report)?;
        }
        if self.json || self.stdin {
            return print_json(&report);
        }
        say_output(&outcome.program_output.stdout);
        say_output(&outcome.program_output.stderr);
        print_lines(lines(&outcome.result))?;
        let notes = outcome.notes.iter().cloned().map(Message::Note);
        message::print(&notes.collect::<Vec<_>>());
        Ok(())
    }
}

/// The printed result: the job's, with workspace changes and notes.
#[derive(Serialize)]
struct StepsReport<'a> {
    #[serde(flatten)]
    result: &'a StepJobResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<&'a WorkspaceChanges>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [String],
}

impl StepsReport<'_> {
    fn of(outcome: &JobOutcome) -> StepsReport<'_> {
        StepsReport {
            result: &outcome.result,
            workspace: outcome.workspace.as_ref(),
            notes: &outcome.notes,
        }
    }
}

/// Whether the job failed only because of a conflict. The program's own result is not trusted.
fn is_conflict(outcome: &JobOutcome) -> bool {
    let code = outcome.result.failure_code.as_deref();
    outcome.not_applied.is_some() && code == Some("workspace_conflict")
}

fn has_started(outcome: &JobOutcome) -> bool {
    let result = &outcome.result;
    let by_agent = matches!(
        result.failure_code.as_deref(),
        Some("agent_failed" | "constraint_violation" | "timeout")
    );
    !result.steps.is_empty() || outcome.program_output.exit_code.is_some() || by_agent
}

/// Runs the job. The first signal cancels it, the second exits at once.
async fn until_signal<T>(
    mut signals: run::Signals,
    cancel: watch::Sender<bool>,
    work: impl Future<Output = T>,
) -> T {
    tokio::pin!(work);
    let mut cancelled = false;
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = signals.next() => if cancelled {run::exit_now()} else {
                    cancelled = true;
                    cancel.send_replace(true);
                },
        }
    }
}

/// Prints the program's output on stderr, where it cannot be taken for the result.
fn say_output(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: String = text
        .lines()
        .map(|line| format!("{}\n", message::printable(line)))
        .collect();
    message::print_plain(&lines);
}

fn lines(result: &StepJobResult) -> Vec<String> {
    let named = |status: StepStatus| match status {
        StepStatus::Success => "success",
        StepStatus::Failure => "failure",
        StepStatus::Timeout => "timeout",
    };
    let mut lines = Vec::new();
    for step in &result.steps {
        let code = step
            .exit_code
            .map(|code| format!(", exit code {code}"))
            .unwrap_or_default();
        lines.push(format!(
            "step {} {}: {}{code}",
            step.index,
            step.kind,
            named(step.status)
        ));
        lines.extend(
            step.output
                .iter()
                .flat_map(|output| output.lines())
                .map(|line| format!("  {line}")),
        );
        lines.extend(step.error.iter().map(|error| format!("  {error}")));
    }
    lines.extend(
        result
            .final_answer
            .iter()
            .flat_map(|answer| answer.lines())
            .map(str::to_owned),
    );
    let why = result.failure_code.iter().map(|code| format!(" ({code})"));
    let message = result
        .failure_message
        .iter()
        .map(|message| format!(": {message}"));
    let job = OsStr::new(&result.job_id).display().to_string();
    lines.push(format!(
        "job {job}: {}{}",
        named(result.status),
        why.chain(message).collect::<String>()
    ));
    lines
}
