//! `airlock steps`: a job from a file, carried out in a fresh sandbox, and its result in another file. Whatever happens, there
//! is a whole result.

mod callback;
mod paper;

use super::{
    Global, REFUSED, conclude,
    message::{self, Failure, Line},
    print_json, print_lines, run,
};
use crate::config::{self, Surroundings};
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

Of the options of `run`, those about one command have no meaning here. With a COMMAND, that program carries the job out: it
finds /job/job.json and writes /job/result.json. The variables SBA_JOB_PATH, SBA_RESULT_PATH, SBA_WORKSPACE,
SBA_STDIN_STDOUT, SBA_EXECUTION_MODE, SBA_DIRECT_STEPS and SBA_CALLBACK_URL stand for options that are not given.

Exit status: 0 the job succeeded, 1 it failed, 123 not all of its changes could be applied,
124 its time was over, 125 nothing of it was carried out.";

const STEPS: &str = "The job";

/// What `airlock run` exits with, too, if the program succeeded, but not all of its changes could be applied.
const CONFLICT: u8 = 123;

/// The options of `airlock steps`.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Steps {
    /// File with the job; --stdin reads it from standard input, and prints the result [env: SBA_JOB_PATH]
    #[arg(long, value_name = "FILE", help_heading = STEPS)]
    job: Option<PathBuf>,
    /// File for the result [env: SBA_RESULT_PATH]
    #[arg(long, value_name = "FILE", help_heading = STEPS)]
    result: Option<PathBuf>,
    /// direct_steps or agent_inference, whatever the job says [env: SBA_EXECUTION_MODE]
    #[arg(long, value_name = "MODE", help_heading = STEPS)]
    mode: Option<String>,
    /// Tell this address when the job begins, and with its result when it has ended [env: SBA_CALLBACK_URL]
    #[arg(long, value_name = "URL", help_heading = STEPS)]
    callback: Option<String>,
    #[command(flatten)]
    run: run::Options,
}

/// Hides what is about one command.
pub(super) fn without_one_command(argument: clap::Arg) -> clap::Arg {
    let hidden = ["entrypoint", "tty", "explain", "contract", "artifact"];
    match hidden.contains(&argument.get_id().as_str()) {
        true => argument.hide(true),
        false => argument,
    }
}

/// What is to be done, once options and variables are put together.
struct Order {
    job: Option<PathBuf>,
    result: Option<PathBuf>,
    stdin: bool,
    json: bool,
    mode: Option<ExecutionMode>,
    callback: Option<Callback>,
}

pub(super) fn execute(options: Steps, global: &Global, surroundings: &Surroundings) -> u8 {
    let json = options.run.json;
    conclude(attempt(options, global, surroundings), json)
}

fn attempt(options: Steps, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let (order, run) = Order::of(options, global, surroundings)?;
    let (carried, began) = match order.document() {
        Err(result) => (JobOutcome::from(*result), false),
        Ok(document) => order.carry_out(&document, run, global, surroundings),
    };
    order.deliver(&carried)?;
    Ok(match (carried.result.status, began) {
        (StepStatus::Success, _) => 0,
        (StepStatus::Failure, _) if is_conflict(&carried) => CONFLICT,
        (_, false) => REFUSED,
        (StepStatus::Timeout, true) => 124,
        (StepStatus::Failure, true) => 1,
    })
}

impl Order {
    fn of(
        options: Steps,
        global: &Global,
        surroundings: &Surroundings,
    ) -> Result<(Order, run::Options), Failure> {
        let Steps {
            job,
            result,
            mode,
            callback,
            mut run,
        } = options;
        let variable = |name: &str| {
            surroundings
                .variable(name)
                .filter(|value| !value.is_empty())
        };
        let path = |given: Option<PathBuf>, name: &str| {
            let path = given.or_else(|| variable(name).map(PathBuf::from));
            path.map(|path| surroundings.current_folder.join(path))
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
            return Err(Failure::invalid("there is no job", hint));
        }
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let mode = mode.or_else(|| text("SBA_EXECUTION_MODE"));
        let direct = || is_set("SBA_DIRECT_STEPS").then_some(ExecutionMode::DirectSteps);
        let mode = match mode.as_deref() {
            None => direct(),
            Some(name) => Some(ExecutionMode::named(name).ok_or_else(|| {
                let message = format!("`{}` is no mode", name.escape_debug());
                Failure::invalid(message, "the modes are direct_steps and agent_inference")
            })?),
        };
        let address = callback
            .or_else(|| text("SBA_JOB_STATUS_URL"))
            .or_else(|| text("SBA_CALLBACK_URL"));
        let callback = address
            .map(|url| Callback::to(&url, global, surroundings))
            .transpose()?;
        let (result, json) = (path(result, "SBA_RESULT_PATH"), run.json);
        Ok((
            Order {
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

    /// The job as it was given; what cannot be read is a result, too.
    fn document(&self) -> Result<Vec<u8>, Box<StepJobResult>> {
        let read = match &self.job {
            Some(path) => paper::read(path),
            None => paper::read_stdin(),
        };
        read.map_err(|error| {
            let message = format!("the job cannot be read: {error}");
            Box::new(StepJobResult::of("").failed("schema_validation", message))
        })
    }

    /// What came of it, and whether anything was begun.
    fn carry_out(
        &self,
        document: &[u8],
        run: run::Options,
        global: &Global,
        surroundings: &Surroundings,
    ) -> (JobOutcome, bool) {
        let job = match engine::steps::read_job(document, self.mode) {
            Ok(job) => job,
            Err(result) => return (JobOutcome::from(*result), false),
        };
        match self.prepare(&job, document, run, global, surroundings) {
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
        document: &[u8],
        run: run::Options,
        global: &Global,
        surroundings: &Surroundings,
    ) -> Result<(JobOutcome, bool), Failure> {
        run.refuse_for_steps()?;
        let begun = engine::PrespawnedLauncher::give();
        let mut config = global.configure(surroundings)?;
        config::narrow(&mut config, run.profile(), surroundings)?;
        let (follow_links, confirmed) = (run.follow_links, run.confirm_workspace);
        let mut request = run.into_request(surroundings)?;
        let command = std::mem::take(&mut request.command);
        request.stdin = false;
        let mut spec = match engine::steps::admit(&config.policy, request, job) {
            Ok(spec) => spec,
            Err(result) => return Ok((JobOutcome::from(*result), false)),
        };
        if !follow_links {
            run::pin(&mut spec.run, &surroundings.current_folder)?;
        }
        if !spec.run.grants.ports().is_empty() || !spec.run.grants.secrets.is_empty() {
            super::leave_no_dump()?;
        }
        super::settings(&config)?.check(&spec.run)?;
        if !confirmed {
            run::refuse_broad_workspace(spec.run.sandbox.workspace.as_deref(), surroundings)?;
        }
        let carrier = if command.is_empty() {
            JobRunner::BuiltIn
        } else {
            JobRunner::Program(command)
        };
        let runtime = super::runtime()?;
        let carried = runtime.block_on(async {
            let signals = run::Signals::listen();
            let signals = signals.map_err(|e| Failure::internal(format!("cannot await signals: {e}")))?;
            let engine = super::open_engine(&config, Some(begun))?;
            self.tell(json!({ "status": "in_progress", "job_id": job.job_id.as_str() })).await;
            let (cancel, cancelled) = watch::channel(false);
            // Whoever sends a signal does not wait.
            let (_, terminated) = watch::channel(None);
            // There is nobody to share the machine's threads with.
            let places = Arc::new(|| Some(Box::new(()) as Box<dyn Send>));
            let wishes = JobControl { cancelled, terminated, file_slots: places };
            let work = engine.run_job(spec, job, document, carrier, wishes, |_| ());
            let carried = until_signal(signals, cancel, work).await;
            self.tell(
                json!({ "status": "completed", "job_id": job.job_id.as_str(), "result": Report::of(&carried) }),
            )
            .await;
            engine.close().await;
            Ok::<_, Failure>(carried)
        })?;
        runtime.shutdown_background();
        let began = carried.result.failure_code.is_none() || has_begun(&carried);
        Ok((carried, began))
    }

    /// That nobody hears it is no failure of the job.
    async fn tell(&self, what: serde_json::Value) {
        if let Some(callback) = &self.callback
            && let Err(why) = callback.tell(&what).await
        {
            message::say(&[Line::Note(why)]);
        }
    }

    fn deliver(&self, carried: &JobOutcome) -> Result<(), Failure> {
        let report = Report::of(carried);
        if let Some(path) = &self.result {
            paper::write(path, &report)?;
        }
        if self.json || self.stdin {
            return print_json(&report);
        }
        say_output(&carried.program_output.stdout);
        say_output(&carried.program_output.stderr);
        print_lines(lines(&carried.result))?;
        let notes = carried.notes.iter().cloned().map(Line::Note);
        message::say(&notes.collect::<Vec<_>>());
        Ok(())
    }
}

/// What is told at this machine: what came of the job, and what became of the folder that it worked in.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    result: &'a StepJobResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<&'a WorkspaceChanges>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [String],
}

impl Report<'_> {
    fn of(carried: &JobOutcome) -> Report<'_> {
        Report {
            result: &carried.result,
            workspace: carried.workspace.as_ref(),
            notes: &carried.notes,
        }
    }
}

/// Whether the job failed by that alone. What a program says of itself is not believed.
fn is_conflict(carried: &JobOutcome) -> bool {
    let code = carried.result.failure_code.as_deref();
    carried.not_applied.is_some() && code == Some("workspace_conflict")
}

fn has_begun(carried: &JobOutcome) -> bool {
    let result = &carried.result;
    let by_agent = matches!(
        result.failure_code.as_deref(),
        Some("agent_failed" | "constraint_violation" | "timeout")
    );
    !result.steps.is_empty() || carried.program_output.exit_code.is_some() || by_agent
}

/// The first signal cancels the job, the second ends us.
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
            () = signals.next() => match cancelled {
                true => run::leave_at_once(),
                false => {
                    cancelled = true;
                    cancel.send_replace(true);
                }
            },
        }
    }
}

/// What a program of the caller's said, where it cannot be taken for the result.
fn say_output(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: String = text
        .lines()
        .map(|line| format!("{}\n", message::printable(line)))
        .collect();
    message::say_plainly(&lines);
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
