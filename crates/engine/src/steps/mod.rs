//! Jobs of steps, executed from outside of the sandbox: no guarantee depends on code inside, and
//! any image works.
//!
//! ```text
//! job.json ─ read_job ─ admit ─ sandbox ─┬─ direct steps: programs inside, files by handle, in order ─────────┐
//!                                        ├─ airlock-agent with a model, prompted by the job ─────────────────┼─ result
//!                                        └─ the caller's program, which reads /job and writes its result.json ─┘
//! ```
//!
//! Every job has a complete result, whatever fails.

mod agent;
mod command;
mod denials;
mod diff;
mod execution;
mod files;
mod job_folder;
mod patch;
mod search;

pub(crate) use job_folder::sweep;

use crate::{
    Engine, Session, SessionArtifacts, SessionEnd, SessionState,
    artifacts::ArtifactCollector,
    files::CollectLimits,
    outcome::{SIGKILL, SIGTERM},
    provision::until_cancelled,
};
use execution::JobExecution;
use job_folder::JobFolder;
use spec::{
    ArtifactRef, BadJob, Barrier, Denial, ErrorCode, ErrorInfo, ExecutionMode, InferenceSource,
    Json, LimitName, MAX_JOB_BYTES, Policy, RunRequest, SessionRequest, SessionSpec, StepAction,
    StepArtifact, StepJob, StepJobResult, StepStatus, Time, Truncation, Usage, WorkspaceChanges,
    WorkspacePath,
};
use std::{
    collections::{BTreeSet, HashSet},
    ffi::OsString,
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// The time beyond that of the job for creating and releasing its sandbox.
const LIFETIME_MARGIN: Duration = Duration::from_secs(120);
/// The most search steps of a job: each compiles patterns, which costs time and memory.
const MAX_SEARCHES: usize = 64;
/// The interval at which a terminating job looks for new programs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The timeout for a killed step to finish.
const LAST_STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// The most artifacts that a result names.
const MAX_ARTIFACTS: usize = 1000;

/// Who executes a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobRunner {
    /// Airlock itself: the steps, or its reference agent.
    BuiltIn,
    /// The caller's program in the sandbox, which reads `/job/job.json` and writes
    /// `/job/result.json`.
    Program(Vec<OsString>),
}

/// Parses and validates a job. The error is the result of a refused job. `mode` overrides how it is
/// executed. Compiles patterns, which takes time.
pub fn read_job(bytes: &[u8], mode: Option<ExecutionMode>) -> Result<StepJob, Box<StepJobResult>> {
    let refused = |job_id: String, why: String| {
        Box::new(
            StepJobResult::of(job_id)
                .failed("schema_validation", format!("the job is not taken: {why}")),
        )
    };
    if bytes.len() > MAX_JOB_BYTES {
        return Err(refused(
            String::new(),
            format!("it is longer than {MAX_JOB_BYTES} bytes"),
        ));
    }
    let document: Json = serde_json::from_slice(bytes).map_err(|error| {
        let line = error.line();
        let column = error.column();
        refused(
            String::new(),
            format!(
                "it is not one JSON value, or a name stands twice: line {line}, column {column}"
            ),
        )
    })?;
    let job = StepJob::read(&document, mode).and_then(|job| check_patterns(&job).map(|()| job));
    job.map_err(|bad| refused(claimed_id(&document), bad.to_string()))
}

/// Validates the patterns before anything is executed.
fn check_patterns(job: &StepJob) -> Result<(), BadJob> {
    let searches = |step: &&spec::Step| matches!(step.action, StepAction::SearchFiles { .. });
    if job.steps.iter().filter(searches).count() > MAX_SEARCHES {
        let why = format!("has more than {MAX_SEARCHES} steps that search");
        return Err(BadJob {
            field: "steps".to_owned(),
            why,
        });
    }
    job.steps
        .iter()
        .enumerate()
        .try_for_each(|(index, step)| match &step.action {
            StepAction::SearchFiles {
                pattern, include, ..
            } => {
                let bad = |name: &str, why| BadJob {
                    field: format!("steps[{index}].args.{name}"),
                    why,
                };
                search::pattern(pattern).map_err(|why| bad("pattern", why))?;
                include
                    .as_deref()
                    .map(search::glob)
                    .transpose()
                    .map_err(|why| bad("include", why))?;
                Ok(())
            }
            _ => Ok(()),
        })
}

/// The id of a refused job, as far as it can be repeated.
fn claimed_id(document: &Json) -> String {
    match document {
        Json::Object(fields) => match fields.get("job_id") {
            Some(Json::Text(id)) => id.chars().take(128).collect(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

/// The spec of a job's sandbox: the caller's grants, narrowed to what the job may use.
pub fn admit(
    policy: &Policy,
    mut request: RunRequest,
    job: &StepJob,
) -> Result<SessionSpec, Box<StepJobResult>> {
    let refused = |code: &str, message: String| {
        Box::new(StepJobResult::of(job.job_id.as_str()).failed(code, message))
    };
    let asked = job.constraints.max_runtime;
    let limits = [request.limits.wall_time, policy.maximum.wall_time];
    let runtime = limits
        .into_iter()
        .flatten()
        .map(|time| time.0)
        .fold(asked, Duration::min);
    request.limits.wall_time = Some(Time(runtime));
    request.job_id.get_or_insert_with(|| job.job_id.to_string());
    if request.task_id.is_none() {
        request.task_id = job.task_id.as_ref().map(ToString::to_string);
    }
    let lifetime = Some(runtime + LIFETIME_MARGIN);
    let session = SessionRequest {
        run: request,
        idle: lifetime,
        lifetime,
    };
    let mut spec = policy.admit_session(session).map_err(|error| {
        refused(
            code_of(error.code),
            format!("{}; {}", error.message, error.hint),
        )
    })?;
    match (job.constraints.ext_net_allowed, spec.run.reaches_out()) {
        (false, _) => spec.run.close_egress(),
        (true, true) => {}
        (true, false) => {
            let message =
                "the job needs the network, and the profile that it runs with has no way out";
            return Err(refused("ext_net_required", message.to_owned()));
        }
    }
    narrow_models(&mut spec, job);
    Ok(spec)
}

/// Narrows the grants to the job's models and to the door that it names.
fn narrow_models(spec: &mut SessionSpec, job: &StepJob) {
    let run = &mut spec.run;
    let gone = match job.inference.source {
        None => None,
        Some(InferenceSource::Worker) => run.grants.llm.take().map(|_| spec::LLM_PORT),
        Some(InferenceSource::ApiEgress) => {
            run.grants.inference.take().map(|_| spec::INFERENCE_PORT)
        }
    };
    run.sandbox.doors.retain(|port| Some(*port) != gone);
    let models = &job.inference.allowed_models;
    if models.is_empty() {
        return;
    }
    if let Some(llm) = &mut run.grants.llm {
        llm.models.push(models.clone());
    }
    if let Some(inference) = &mut run.grants.inference {
        inference.push(models.clone());
    }
}

/// The failure code of an engine error.
fn code_of(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidSpec => "invalid_spec",
        ErrorCode::ImageMissing => "image_missing",
        ErrorCode::ImageRefused => "image_refused",
        ErrorCode::BackendUnavailable => "backend_unavailable",
        ErrorCode::BarrierMissing => "barrier_missing",
        ErrorCode::StartFailed => "start_failed",
        ErrorCode::Timeout => "timeout",
        ErrorCode::OomKilled => "oom_killed",
        ErrorCode::Cancelled => "cancelled",
        ErrorCode::PolicyDenied => "policy_denied",
        ErrorCode::BudgetExceeded => "budget_exceeded",
        ErrorCode::QuotaExceeded => "quota_exceeded",
        ErrorCode::ContractViolated => "contract_violated",
        ErrorCode::WorkspaceConflict => "workspace_conflict",
        ErrorCode::Conflict => "conflict",
        ErrorCode::Lost => "lost",
        ErrorCode::Internal => "internal",
    }
}

fn message_with_hint(error: &ErrorInfo) -> String {
    match &error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message.clone(),
    }
}

/// The outcome of a job, and the output of the program that executed it.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// The result.
    pub result: StepJobResult,
    /// The output of the program that executed the job.
    pub program_output: ProgramOutput,
    /// The barriers that were in force; none if it never started.
    pub barriers: Vec<Barrier>,
    /// The usage of its sandbox, from start to end.
    pub usage: Usage,
    /// The limits that were hit.
    pub limits_hit: BTreeSet<LimitName>,
    /// What its doors, the sandboxes of its programs, and Airlock denied.
    pub denials: Vec<Denial>,
    /// The changes of its workspace, as of a run.
    pub workspace: Option<WorkspaceChanges>,
    /// Why not all of its changes could be applied, where that was requested.
    pub not_applied: Option<ErrorInfo>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The first bytes that a program wrote, and its exit code. Steps have outputs of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// The first bytes of standard output.
    pub stdout: Vec<u8>,
    /// The first bytes of standard error.
    pub stderr: Vec<u8>,
    /// Which streams were longer.
    pub truncated: Truncation,
    /// The exit code, if the program exited by itself.
    pub exit_code: Option<i32>,
}

impl From<StepJobResult> for JobOutcome {
    fn from(result: StepJobResult) -> JobOutcome {
        let (program_output, barriers, usage, limits_hit, denials) = Default::default();
        let (workspace, not_applied, notes) = Default::default();
        JobOutcome {
            result,
            program_output,
            barriers,
            usage,
            limits_hit,
            denials,
            workspace,
            not_applied,
            notes,
        }
    }
}

/// How a caller controls a job.
pub struct JobControl {
    /// Cancels the job.
    pub cancelled: watch::Receiver<bool>,
    /// Terminates the job with a grace for its programs.
    pub terminated: watch::Receiver<Option<Duration>>,
    /// Limits concurrent file operations.
    pub file_slots: FileSlots,
}

/// Takes a slot for a file operation, which is held meanwhile; none if all are taken.
pub type FileSlots = Arc<dyn Fn() -> Option<Box<dyn Send>> + Send + Sync>;

impl Engine {
    /// Executes a job in a sandbox of its own and releases that; `document` is the job as it was
    /// given, for a program that reads it. `begun` is called with the session once it is ready. On
    /// a cancellation the job becomes `cancelled` at once, on a termination after the grace of its
    /// programs. The future must be awaited to its end: dropping it leaves the sandbox to its
    /// lifetime, and the job folder to the next sweep.
    pub async fn run_job(
        &self,
        spec: SessionSpec,
        job: &StepJob,
        document: &[u8],
        runner: JobRunner,
        control: JobControl,
        begun: impl FnOnce(&Session),
    ) -> JobOutcome {
        let blank = StepJobResult::of(job.job_id.as_str());
        if runner == JobRunner::BuiltIn && job.mode == ExecutionMode::DirectSteps {
            return self
                .run_job_in(spec, job, None, runner, control, begun)
                .await;
        }
        if spec
            .run
            .sandbox
            .mounts
            .iter()
            .any(|mount| mount.inside.as_path().starts_with(job_folder::INSIDE))
        {
            return blank
                .failed(
                    "invalid_spec",
                    "something else is mounted at /job, where the job is shown",
                )
                .into();
        }
        let state = self.inner.state.clone();
        let run = spec.run.clone();
        let document = document.to_owned();
        let make = move || JobFolder::make(&state, &run, &document);
        let made = tokio::task::spawn_blocking(make)
            .await
            .unwrap_or_else(|broken| Err(broken.into()));
        let folder = match made {
            Ok(folder) => folder,
            Err(error) => {
                return blank
                    .failed(
                        "internal",
                        format!("the folder of the job cannot be made: {error}"),
                    )
                    .into();
            }
        };
        let outcome = self
            .run_job_in(spec, job, Some(&folder), runner, control, begun)
            .await;
        // A sweep removes what cannot be removed now.
        _ = tokio::task::spawn_blocking(move || folder.remove()).await;
        outcome
    }

    async fn run_job_in(
        &self,
        spec: SessionSpec,
        job: &StepJob,
        folder: Option<&JobFolder>,
        runner: JobRunner,
        control: JobControl,
        begun: impl FnOnce(&Session),
    ) -> JobOutcome {
        let mut cancelled = control.cancelled.clone();
        let terminated = control.terminated.clone();
        let result = StepJobResult::of(job.job_id.as_str());
        let mounts = match folder.map(JobFolder::mount).transpose() {
            Ok(mount) => mount.into_iter().collect(),
            Err(error) => return result.failed("internal", error.to_string()).into(),
        };
        let opened = tokio::select! {
            opened = self.open_session_with(spec, mounts) => opened,
            () = until_cancelled(&mut cancelled) => return result.failed("cancelled", "the job was cancelled").into(),
        };
        let session = match opened {
            Ok(session) => session,
            Err(error) => {
                return result
                    .failed(code_of(error.code), message_with_hint(&error))
                    .into();
            }
        };
        begun(&session);
        let mut execution = JobExecution::new(session.clone(), job, result, control);
        let is_cut_short = {
            let working = work(&mut execution, &runner);
            tokio::pin!(working);
            let is_cut_short = tokio::select! {
                () = &mut working => false,
                () = terminate(&session, terminated.clone()) => true,
                () = until_cancelled(&mut cancelled) => true,
            };
            if is_cut_short {
                // The output of the running step is part of the result; a step that does not end is
                // left out.
                session.execs().iter().for_each(|exec| exec.signal(SIGKILL));
                _ = tokio::time::timeout(LAST_STEP_TIMEOUT, working).await;
            }
            is_cut_short || terminated.borrow().is_some()
        };
        execution.is_cut_short |= is_cut_short;
        self.conclude_job(&session, folder, &runner, execution)
            .await
    }

    /// Collects the artifacts, ends the session, and composes the outcome of a job.
    async fn conclude_job(
        &self,
        session: &Session,
        folder: Option<&JobFolder>,
        runner: &JobRunner,
        execution: JobExecution<'_>,
    ) -> JobOutcome {
        let JobExecution {
            job,
            mut result,
            program_output,
            mut denial_list,
            is_cut_short,
            ..
        } = execution;
        if is_cut_short {
            result = result.failed("cancelled", "the job was cancelled");
        }
        let keep = session.spec().run.keep_artifacts;
        let kept = if keep {
            self.keep_session_artifacts(session, Vec::new())
                .await
                .unwrap_or_default()
        } else {
            SessionArtifacts::default()
        };
        let ended = session.end().await;
        if let (JobRunner::Program(_), Some(folder)) = (runner, folder) {
            result = agent::read_result(folder, job, &program_output, result);
        }
        if let Some(folder) = folder {
            result.inference_used = Some(ended.usage.llm.calls > 0);
            if keep {
                name_artifacts(
                    &mut result,
                    self.keep_job_artifacts(session, folder).await,
                    "/job/",
                );
            }
        }
        name_artifacts(&mut result, kept.kept, "/workspace/");
        if folder.is_some() && has_ended_by_disk(&ended) {
            let most = session.spec().run.sandbox.limits.disk;
            let message = format!(
                "what the job wrote to {} takes more than its limit `disk` ({most}), or fills the disk of the state folder",
                job_folder::INSIDE
            );
            result = result.failed("constraint_violation", message);
        }
        let SessionState {
            barriers,
            usage,
            limits_hit,
            denials,
            workspace,
            not_applied,
            mut notes,
            ..
        } = ended;
        let succeeded = result.status == StepStatus::Success;
        if let Some(error) = not_applied.as_ref().filter(|_| succeeded) {
            notes.retain(|note| *note != error.message);
            result = result.failed(code_of(error.code), message_with_hint(error));
        }
        // Denials of the doors, and of programs that are no step or were cut short.
        denial_list.add(denials);
        denial_list.add(
            session
                .execs()
                .iter()
                .filter_map(|exec| exec.result())
                .flat_map(|result| result.denials),
        );
        let denials = denial_list.into_list();
        JobOutcome {
            result,
            program_output,
            barriers,
            usage,
            limits_hit,
            denials,
            workspace,
            not_applied,
            notes,
        }
    }

    /// Stores the artifacts in `/job/artifacts`.
    async fn keep_job_artifacts(&self, session: &Session, folder: &JobFolder) -> Vec<ArtifactRef> {
        let (Ok(handle), Ok(wanted)) =
            (folder.handle(), WorkspacePath::new(Path::new("artifacts")))
        else {
            return Vec::new();
        };
        let run = &session.spec().run;
        let collector = ArtifactCollector::of_session(&self.inner, session.id(), run);
        let sandbox = run.sandbox.clone();
        let collect = move || {
            collector.collect(
                &handle,
                &[wanted],
                CollectLimits::default(),
                &sandbox,
                &|| false,
            )
        };
        let collected = tokio::task::spawn_blocking(collect).await;
        collected
            .ok()
            .and_then(Result::ok)
            .map(|(kept, _)| kept)
            .unwrap_or_default()
    }
}

/// Whether the disk limit ended the session.
fn has_ended_by_disk(ended: &SessionState) -> bool {
    let has = |limit| ended.limits_hit.contains(&limit);
    ended.ended == Some(SessionEnd::Limit) && has(LimitName::Disk) && !has(LimitName::CpuTime)
}

/// Adds stored artifacts to the result, or their reference to an artifact that it names already.
fn name_artifacts(result: &mut StepJobResult, kept: Vec<ArtifactRef>, place: &str) {
    for kept in kept.into_iter().take(MAX_ARTIFACTS) {
        let path = format!("{place}{}", kept.name);
        let reference = Some(format!("{}@{}", kept.name, kept.version));
        let is_it = |known: &&mut StepArtifact| {
            known
                .path
                .as_deref()
                .is_some_and(|known| is_same(known, &path))
        };
        match result.artifacts.iter_mut().find(is_it) {
            Some(known) => known.reference = reference,
            None => result.artifacts.push(StepArtifact {
                path: Some(path),
                reference,
            }),
        }
    }
}

/// Whether an artifact that an agent named, by its whole path or a suffix of it, is this one.
fn is_same(known: &str, path: &str) -> bool {
    Path::new(path).ends_with(known.trim_start_matches('/'))
}

/// On a termination request, sends SIGTERM to the programs and waits for their grace.
async fn terminate(session: &Session, mut terminated: watch::Receiver<Option<Duration>>) {
    // A caller who dropped the sender asks for nothing.
    if terminated.wait_for(Option::is_some).await.is_err() {
        std::future::pending::<()>().await;
    }
    let asked = tokio::time::Instant::now();
    let mut told = HashSet::new();
    while asked.elapsed() < terminated.borrow().unwrap_or_default() {
        for exec in session.execs() {
            if exec.result().is_none() && told.insert(exec.id().to_owned()) {
                exec.signal(SIGTERM);
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn work(execution: &mut JobExecution<'_>, runner: &JobRunner) {
    match (runner, execution.job.mode) {
        (JobRunner::BuiltIn, ExecutionMode::DirectSteps) => execution.run_steps().await,
        (JobRunner::BuiltIn, ExecutionMode::AgentInference) => agent::run_agent(execution).await,
        (JobRunner::Program(argv), _) => agent::run_program(execution, argv).await,
    }
}
