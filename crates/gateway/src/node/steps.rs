//! Step jobs of the worker API: a job spec that the engine carries out from outside the sandbox, or
//! a program that the job names. They are accepted and stored like every job; the result of the
//! steps is the `sba_result` of the job result.

use super::{
    job_result::JobRequestInfo,
    jobs::{self, WorkerJob},
};
use crate::{
    Caller, Gateway, Problem, Scope, blocking,
    problem::Answer,
    runs::{
        self,
        active::{self, AcceptedRun, ActiveRun, RunMeta},
        host_paths,
    },
    tenants::{ResourceDemand, WorkKind},
};
use axum::response::Response;
use engine::{
    Session,
    steps::{JobOutcome, JobRunner, admit, read_job},
};
use spec::{
    ErrorCode, ErrorInfo, PhaseTimes, RunResult, SessionSpec, Status, StdStream, StepJob,
    StepJobResult, StepStatus, Timestamp,
};
use std::{sync::Arc, time::Duration};

/// Maximum output of all steps, so that the whole result can be stored.
const MAX_OUTPUT: u64 = 512 << 10;

/// A validated step job.
struct AdmittedSteps {
    job: StepJob,
    document: String,
    carrier: JobRunner,
    /// Its sandbox, or its result if it cannot have one.
    spec: Result<SessionSpec, Box<StepJobResult>>,
    profile: String,
}

impl AdmittedSteps {
    /// The details of the audit entry.
    fn audit_text(&self) -> String {
        let backend = self
            .spec
            .as_ref()
            .map_or("none", |spec| spec.run.sandbox.backend.name());
        format!("profile={} backend={backend}", self.profile)
    }
}

/// Runs a step job once, however often it is sent, and answers with its result.
pub(crate) async fn carry_out(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
    in_background: bool,
) -> Answer<Response> {
    let document = order.sandbox.job_spec_json.clone().unwrap_or_default();
    // Blocking: regular expressions of the job are compiled.
    let job = blocking::run(gateway.blocking_work(), &caller.tenant, move || {
        read(&document)
    })
    .await?;
    let (admitted, request_info) = admit_steps(gateway, caller, order, job)?;
    jobs::audit_accepted(gateway, caller, order).await?;
    let mut new_run = jobs::new_run_request(caller, order, request_info)?;
    new_run.meta.key.clone_from(&caller.key);
    let mut llm = false;
    let mut memory = 0;
    if let Ok(spec) = &admitted.spec {
        new_run.meta = RunMeta::of(caller, &spec.run);
        llm = spec.run.grants.llm.is_some();
        memory = runs::needed_memory(caller, &spec.run, 0);
    }
    let needs = ResourceDemand {
        what: WorkKind::Run,
        llm,
        storage: false,
        memory,
    };
    let quota_check = gateway.check_quota(&caller.tenant, needs).await;
    let accept = {
        let gateway = gateway.clone();
        async move {
            let key = new_run.meta.key.clone();
            let accepted = active::accept(&gateway, new_run, quota_check).await?;
            if let AcceptedRun::New(live) = &accepted {
                if let Err(problem) = gateway
                    .audit_run_accepted(&live.run_ref(), &key, &admitted.audit_text())
                    .await
                {
                    active::abort_start(&gateway, live, &admitted.profile).await;
                    return Err(problem);
                }
                tokio::spawn(run_steps(gateway.clone(), live.clone(), admitted));
            }
            Ok::<_, Problem>(accepted)
        }
    };
    // Spawned so that a client that disconnects does not leave a job that was accepted and never
    // starts.
    let accepted = tokio::spawn(accept)
        .await
        .map_err(|_| crate::db_writer::busy())?
        .map_err(jobs::conflict_problem)?;
    let live = match accepted {
        AcceptedRun::New(live) => Some(live),
        AcceptedRun::Existing(id) => gateway.runs().find(&id),
    };
    match live {
        Some(live) if in_background && !jobs::is_over(&live) => Ok(jobs::accepted(order)),
        Some(live) => jobs::result_response(gateway, caller, &live.ended().await?.stored),
        None => jobs::earlier_result(gateway, caller, order, in_background).await,
    }
}

fn read(document: &str) -> Answer<StepJob> {
    let mut job = read_job(document.as_bytes(), None).map_err(|refused| {
        let why = refused.failure_message.unwrap_or_default();
        Problem::invalid(
            format!("`sandbox.job_spec_json`: {why}"),
            "docs/steps.md shows what a job is made of",
        )
    })?;
    job.constraints.max_output_bytes = job.constraints.max_output_bytes.min(MAX_OUTPUT);
    Ok(job)
}

fn admit_steps(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
    job: StepJob,
) -> Answer<(AdmittedSteps, JobRequestInfo)> {
    let document = order.sandbox.job_spec_json.clone().unwrap_or_default();
    let mut request = host_paths::admit(gateway, caller, order.request(gateway)?)?;
    let image = request
        .image
        .as_ref()
        .map(|image| image.to_string_lossy().into_owned());
    let command = std::mem::take(&mut request.command);
    let carrier = if command.is_empty() {
        JobRunner::BuiltIn
    } else {
        JobRunner::Program(command)
    };
    let profile = request
        .profile
        .clone()
        .unwrap_or_else(|| gateway.policy().default_profile.clone());
    let mut spec = admit(gateway.policy_of(caller), request, &job);
    if let Ok(spec) = &mut spec {
        gateway.node().check_grants(&spec.run.grants)?;
        spec.run.run_id = Some(order.run_id(caller)?);
        spec.run.owner = Some(caller.owner()?);
        spec.run.keep_artifacts = caller.require(Scope::Artifacts).is_ok();
    }
    let runtime = spec
        .as_ref()
        .ok()
        .map(|spec| spec.run.sandbox.backend.name().to_owned());
    Ok((
        AdmittedSteps {
            job,
            document,
            carrier,
            spec,
            profile,
        },
        JobRequestInfo { image, runtime },
    ))
}

/// Runs the steps to their end, whether or not a client waits.
async fn run_steps(gateway: Gateway, live: Arc<ActiveRun>, admitted: AdmittedSteps) {
    gateway.metrics().running.inc();
    let started_at = engine::now();
    let AdmittedSteps {
        job,
        document,
        carrier,
        spec,
        profile,
    } = admitted;
    let carried = match spec {
        Err(result) => {
            let rule = result.failure_code.as_deref().unwrap_or_default();
            gateway.audit_run_not_started(&live.run_ref(), rule);
            JobOutcome::from(*result)
        }
        Ok(spec) => {
            live.mark_started();
            // The CPU time counts while the steps run.
            let on_start = |session: &Session| live.sandbox_started(&gateway, session);
            let engine = gateway.engine();
            let wishes = live.wishes(&gateway);
            engine
                .run_job(spec, &job, document.as_bytes(), carrier, wishes, on_start)
                .await
        }
    };
    record_output(&gateway, &live, &carried);
    let mut denials = 0;
    active::audit_late_denials(&gateway, &live, &carried.denials, &mut denials);
    let result = run_result(&live, &job, carried, started_at, profile);
    gateway.metrics().running.dec();
    let took = Duration::from_millis(result.duration_ms);
    gateway.metrics().run(
        result.status.name(),
        took,
        (result.stdout.len() + result.stderr.len()) as u64,
    );
    gateway.audit_run_ended(&live.run_ref(), &result, denials);
    active::finish(&gateway, &live, result).await;
}

/// Records the output as node telemetry.
fn record_output(gateway: &Gateway, live: &ActiveRun, carried: &JobOutcome) {
    let wrote = |stream, bytes: &[u8]| {
        gateway.recorder().wrote(live.output(), stream, bytes);
        if !bytes.is_empty() && !bytes.ends_with(b"\n") {
            gateway.recorder().wrote(live.output(), stream, b"\n");
        }
    };
    let outputs = carried
        .result
        .steps
        .iter()
        .filter_map(|step| step.output.as_deref());
    outputs.for_each(|output| wrote(StdStream::Stdout, output.as_bytes()));
    wrote(StdStream::Stdout, &carried.program_output.stdout);
    wrote(StdStream::Stderr, &carried.program_output.stderr);
}

/// The error of a job that did not start.
fn not_started_error(result: &StepJobResult) -> ErrorInfo {
    let code = result.failure_code.as_deref().unwrap_or_default();
    let message = result.failure_message.clone().unwrap_or_default();
    // Step error codes without an equivalent become `start_failed`.
    let code = serde_json::from_value(code.into()).unwrap_or(ErrorCode::StartFailed);
    ErrorInfo {
        code,
        message,
        hint: None,
    }
}

/// Converts the result of the steps to a run result.
fn run_result(
    live: &ActiveRun,
    job: &StepJob,
    carried: JobOutcome,
    started_at: Timestamp,
    profile: String,
) -> RunResult {
    let JobOutcome {
        result,
        program_output: said,
        barriers,
        usage,
        limits_hit,
        denials,
        workspace,
        notes,
        ..
    } = carried;
    let code = result.failure_code.as_deref();
    let never = barriers.is_empty();
    let status = match (result.status, code) {
        (StepStatus::Success, _) => Status::Succeeded,
        (StepStatus::Timeout, _) => Status::TimedOut,
        (StepStatus::Failure, Some("cancelled")) => Status::Cancelled,
        (StepStatus::Failure, _) if never => Status::NotStarted,
        (StepStatus::Failure, Some("oom_killed")) => Status::OomKilled,
        (StepStatus::Failure, _) => Status::Failed,
    };
    let of_step = || {
        result
            .steps
            .iter()
            .rev()
            .find_map(|step| step.exit_code.filter(|code| *code != 0))
    };
    let exit_code = match (status, code) {
        (Status::Succeeded, _) => Some(0),
        // The exit code is not known.
        (_, Some("schema_validation")) | (Status::TimedOut | Status::NotStarted, _) => None,
        (Status::Cancelled, _) => said.exit_code.or_else(of_step),
        _ => said.exit_code.or_else(of_step).or(Some(1)),
    };
    let ended_at = engine::now();
    let begun = started_at.0 * 1000;
    let ended = ended_at.0 * 1000;
    let phase_times = PhaseTimes {
        begun,
        started: if never { 0 } else { begun },
        over: ended,
        kept: ended,
        ended,
    };
    // Our own value, so the conversion cannot fail.
    let output = serde_json::to_value(&result)
        .and_then(serde_json::from_value)
        .ok();
    RunResult {
        task_id: live.task.clone(),
        job_id: live.job.clone().or_else(|| Some(job.job_id.clone())),
        status,
        exit_code,
        exit_status: match status {
            Status::Succeeded => 0,
            Status::NotStarted => 125,
            _ => 1,
        },
        error: (status == Status::NotStarted).then(|| not_started_error(&result)),
        stdout: said.stdout,
        stderr: said.stderr,
        truncated: said.truncated,
        output,
        started_at,
        ended_at,
        duration_ms: ended_at.0.saturating_sub(started_at.0),
        barriers,
        usage,
        limits_hit,
        denials,
        workspace,
        notes,
        phase_times,
        ..RunResult::blank(live.id.clone(), profile, started_at)
    }
}
