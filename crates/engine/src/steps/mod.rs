//! Jobs of steps, carried out from outside: no guarantee rests on code inside, and any image will do.
//!
//! ```text
//! job.json ─ read_job ─ admit ─ box ─┬─ direct steps: programs in the box, files by handle, one after the other ─┐
//!                                    ├─ airlock-agent with a model, told what the job says ────────────────────┼─ result
//!                                    └─ the caller's own command, which finds /job and writes /job/result.json ─┘
//! ```
//!
//! Whatever happens, there is a whole result.

mod agent;
mod bench;
mod command;
mod denied;
mod diff;
mod files;
mod folder;
mod patch;
mod search;

pub(crate) use folder::sweep;

use crate::{
    Engine, Session, SessionEnd, SessionKept,
    files::Bounds,
    keep::Keeper,
    making::until_cancelled,
    verdict::{SIGKILL, SIGTERM},
};
use bench::Bench;
use folder::JobFolder;
use spec::{
    ArtifactRef, BadJob, Barrier, Denial, ErrorCode, ErrorInfo, ExecutionMode, InferenceSource,
    Json, LimitName, MOST_JOB_BYTES, Policy, RunRequest, SessionRequest, SessionSpec, StepAction,
    StepArtifact, StepJob, StepsResult, Time, Truncated, Usage, WorkspacePath,
};
use std::{
    collections::{BTreeSet, HashSet},
    ffi::OsString,
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// How long a box may take longer than its job: to be made, and to be cleared away.
const SPARE: Duration = Duration::from_secs(120);
/// Steps of one job that search: each has patterns, and compiling one costs time and memory.
const MOST_SEARCHES: usize = 64;
/// How often it is looked whether a program began that is to end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// How long a step that is killed may take to be gone.
const LONGEST_LAST_STEP: Duration = Duration::from_secs(2);
/// Artifacts that a result names.
const MOST_ARTIFACTS: usize = 1000;

/// Who carries a job out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Airlock itself: the steps, or its reference agent.
    Own,
    /// A program of the caller's in the box, which finds the job at `/job/job.json` and writes `/job/result.json`.
    Program(Vec<OsString>),
}

/// Reads a job. What is refused is told as the result that it has. Whoever starts it may say how it is carried out. Takes its
/// time: patterns are compiled.
pub fn read_job(bytes: &[u8], mode: Option<ExecutionMode>) -> Result<StepJob, Box<StepsResult>> {
    let refused = |job_id: String, why: String| {
        Box::new(
            StepsResult::of(job_id)
                .failed("schema_validation", format!("the job is not taken: {why}")),
        )
    };
    if bytes.len() > MOST_JOB_BYTES {
        return Err(refused(
            String::new(),
            format!("it is longer than {MOST_JOB_BYTES} bytes"),
        ));
    }
    let document: Json = serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
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

/// Patterns are part of what is checked before anything is carried out.
fn check_patterns(job: &StepJob) -> Result<(), BadJob> {
    let searches = |step: &&spec::Step| matches!(step.action, StepAction::SearchFiles { .. });
    if job.steps.iter().filter(searches).count() > MOST_SEARCHES {
        let why = format!("has more than {MOST_SEARCHES} steps that search");
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

/// What a job that is not taken says that it is called, as far as that can be repeated.
fn claimed_id(document: &Json) -> String {
    match document {
        Json::Object(fields) => match fields.get("job_id") {
            Some(Json::Text(id)) => id.chars().take(128).collect(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

/// The box that a job gets: what the caller grants, narrowed to what the job may use.
pub fn admit(
    policy: &Policy,
    mut request: RunRequest,
    job: &StepJob,
) -> Result<SessionSpec, Box<StepsResult>> {
    let refused = |code: &str, message: String| {
        Box::new(StepsResult::of(job.job_id.as_str()).failed(code, message))
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
    let lifetime = Some(runtime + SPARE);
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

/// Only the models that the job may use, and only at the door that it names.
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

/// The failure code of an error of ours.
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
        ErrorCode::Conflict => "conflict",
        ErrorCode::Lost => "lost",
        ErrorCode::Internal => "internal",
    }
}

fn told(error: &ErrorInfo) -> String {
    match &error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message.clone(),
    }
}

/// What came of a job, and what a program that carried it out said meanwhile.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Carried {
    pub result: StepsResult,
    pub said: Said,
    /// Behind which it was carried out; none if it never was.
    pub barriers: Vec<Barrier>,
    /// Of its box, from its beginning to its end.
    pub usage: Usage,
    pub limits_hit: BTreeSet<LimitName>,
    /// What its doors, the boxes of its programs and we refused.
    pub denials: Vec<Denial>,
}

/// What a program wrote, the beginning of it, and how it exited. Steps have their own outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of a run's result")]
pub struct Said {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub truncated: Truncated,
    pub exit_code: Option<i32>,
}

impl From<StepsResult> for Carried {
    fn from(result: StepsResult) -> Carried {
        let (said, barriers, usage, limits_hit, denials) = Default::default();
        Carried {
            result,
            said,
            barriers,
            usage,
            limits_hit,
            denials,
        }
    }
}

/// What others want of it.
pub struct Wishes {
    /// That its end comes.
    pub cancelled: watch::Receiver<bool>,
    /// That its program brings its end about within a time.
    pub terminated: watch::Receiver<Option<Duration>>,
    /// That what is done with its files waits for a place.
    pub places: Places,
}

/// Gives a place among what is done with files at a time, which is held meanwhile; none while all are taken.
pub type Places = Arc<dyn Fn() -> Option<Box<dyn Send>> + Send + Sync>;

impl Engine {
    /// Carries a job out in a box of its own, and clears that away; `document` is the job as it was given, for a
    /// program that wants to read it. `begun` hears of the box as soon as it stands. Becomes `cancelled` once the first
    /// wish says so; and once the second does, after the program that runs has had so long to end by itself. To be awaited
    /// to its end: whoever lets go of it leaves the box to its lifetime, and the folder of the job to the next sweep.
    pub async fn carry_out(
        &self,
        spec: SessionSpec,
        job: &StepJob,
        document: &[u8],
        carrier: Carrier,
        wishes: Wishes,
        begun: impl FnOnce(&Session),
    ) -> Carried {
        let blank = StepsResult::of(job.job_id.as_str());
        if carrier == Carrier::Own && job.mode == ExecutionMode::DirectSteps {
            return self
                .carry_out_in(spec, job, None, carrier, wishes, begun)
                .await;
        }
        if spec
            .run
            .sandbox
            .mounts
            .iter()
            .any(|mount| mount.inside.as_path().starts_with(folder::INSIDE))
        {
            return blank
                .failed(
                    "invalid_spec",
                    "something else is mounted at /job, where the job is shown",
                )
                .into();
        }
        let (state, run, document) = (
            self.inner.state.clone(),
            spec.run.clone(),
            document.to_owned(),
        );
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
        let carried = self
            .carry_out_in(spec, job, Some(&folder), carrier, wishes, begun)
            .await;
        // What cannot be removed now, a sweep removes.
        _ = tokio::task::spawn_blocking(move || folder.remove()).await;
        carried
    }

    async fn carry_out_in(
        &self,
        spec: SessionSpec,
        job: &StepJob,
        folder: Option<&JobFolder>,
        carrier: Carrier,
        wishes: Wishes,
        begun: impl FnOnce(&Session),
    ) -> Carried {
        let (mut cancelled, terminated) = (wishes.cancelled.clone(), wishes.terminated.clone());
        let result = StepsResult::of(job.job_id.as_str());
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
            Err(error) => return result.failed(code_of(error.code), told(&error)).into(),
        };
        begun(&session);
        let mut bench = Bench::new(session.clone(), job, result, wishes);
        let cut_short = {
            let working = work(&mut bench, &carrier);
            tokio::pin!(working);
            let is_cut = tokio::select! {
                () = &mut working => false,
                () = terminate(&session, terminated.clone()) => true,
                () = until_cancelled(&mut cancelled) => true,
            };
            if is_cut {
                // What was under way is told of with what it had written; where it does not end it is left away.
                session.execs().iter().for_each(|exec| exec.signal(SIGKILL));
                _ = tokio::time::timeout(LONGEST_LAST_STEP, working).await;
            }
            is_cut || terminated.borrow().is_some()
        };
        let Bench {
            mut result,
            said,
            mut denied,
            is_cut,
            ..
        } = bench;
        if cut_short || is_cut {
            result = result.failed("cancelled", "the job was cancelled");
        }
        let keep = session.spec().run.keep;
        let kept = match keep {
            true => self
                .keep_of_session(&session, Vec::new())
                .await
                .unwrap_or_default(),
            false => SessionKept::default(),
        };
        let ended = session.end().await;
        if let (Carrier::Program(_), Some(folder)) = (&carrier, folder) {
            result = agent::read_result(folder, job, &said, result);
        }
        if let Some(folder) = folder {
            result.inference_used = Some(ended.usage.llm.calls > 0);
            if keep {
                name_artifacts(
                    &mut result,
                    self.keep_of_job(&session, folder).await,
                    "/job/",
                );
            }
        }
        name_artifacts(&mut result, kept.kept, "/workspace/");
        let has = |limit| ended.limits_hit.contains(&limit);
        let is_full = ended.ended == Some(SessionEnd::Limit)
            && has(LimitName::Disk)
            && !has(LimitName::CpuTime);
        if is_full && folder.is_some() {
            let most = session.spec().run.sandbox.limits.disk;
            let message = format!(
                "what the job wrote to {} takes more than its limit `disk` ({most}), or fills the disk of the state folder",
                folder::INSIDE
            );
            result = result.failed("constraint_violation", message);
        }
        let crate::SessionState {
            barriers,
            usage,
            limits_hit,
            denials,
            ..
        } = ended;
        // By its doors; and of programs that were no step, or one that was cut short.
        denied.add(denials);
        denied.add(
            session
                .execs()
                .iter()
                .filter_map(|exec| exec.result())
                .flat_map(|result| result.denials),
        );
        let denials = denied.into_list();
        Carried {
            result,
            said,
            barriers,
            usage,
            limits_hit,
            denials,
        }
    }

    /// What lies in `/job/artifacts`, kept like that of a workspace.
    async fn keep_of_job(&self, session: &Session, folder: &JobFolder) -> Vec<ArtifactRef> {
        let (Ok(handle), Ok(wanted)) =
            (folder.handle(), WorkspacePath::new(Path::new("artifacts")))
        else {
            return Vec::new();
        };
        let run = &session.spec().run;
        let keeper = Keeper::of_session(&self.inner, session.id(), run);
        let sandbox = run.sandbox.clone();
        let collect = move || keeper.collect(&handle, &[wanted], Bounds::default(), &sandbox);
        let collected = tokio::task::spawn_blocking(collect).await;
        collected
            .ok()
            .and_then(Result::ok)
            .map(|(kept, _)| kept)
            .unwrap_or_default()
    }
}

/// Adds what was kept to what the result names, or its reference to what it names already.
fn name_artifacts(result: &mut StepsResult, kept: Vec<ArtifactRef>, place: &str) {
    for kept in kept.into_iter().take(MOST_ARTIFACTS) {
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

/// Whether an agent that named an artifact, by its whole path or a part of it, meant this one.
fn is_same(known: &str, path: &str) -> bool {
    Path::new(path).ends_with(known.trim_start_matches('/'))
}

/// Once somebody asks for it, asks the programs of the box to end by themselves, and waits as long as they have for that.
async fn terminate(session: &Session, mut terminated: watch::Receiver<Option<Duration>>) {
    // One who dropped the sender asks for nothing.
    if terminated.wait_for(Option::is_some).await.is_err() {
        std::future::pending::<()>().await;
    }
    let (asked, mut told) = (tokio::time::Instant::now(), HashSet::new());
    while asked.elapsed() < terminated.borrow().unwrap_or_default() {
        for exec in session.execs() {
            if exec.result().is_none() && told.insert(exec.id().to_owned()) {
                exec.signal(SIGTERM);
            }
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

async fn work(bench: &mut Bench<'_>, carrier: &Carrier) {
    match (carrier, bench.job.mode) {
        (Carrier::Own, ExecutionMode::DirectSteps) => bench.carry_out().await,
        (Carrier::Own, ExecutionMode::AgentInference) => agent::infer(bench).await,
        (Carrier::Program(argv), _) => agent::run_program(bench, argv).await,
    }
}
