//! Jobs that are steps: a job spec, carried out by the engine from outside the box, or by the program that the job names. They are
//! accepted and kept like every job: what came of the steps is the `sba_result` of the result.

use super::{
    jobs::{self, WorkerJob},
    told::AskedFor,
};
use crate::{
    Caller, Gateway, Problem, Scope,
    problem::Answer,
    runs::{
        host,
        live::{self, About, Live, Taken},
    },
    tenants::{Needs, What},
    work,
};
use axum::response::Response;
use engine::{
    Session,
    steps::{Carried, Carrier, admit, read_job},
};
use spec::{
    ErrorCode, ErrorInfo, Moments, RunResult, SessionSpec, Status, StepJob, StepStatus,
    StepsResult, Stream, Timestamp,
};
use std::{sync::Arc, time::Duration};

/// What the steps of a job may write together here, so that the result can be kept whole.
const MOST_OUTPUT: u64 = 512 << 10;

/// A job of steps that has been checked.
struct Admitted {
    job: StepJob,
    document: String,
    carrier: Carrier,
    /// Its box; or what it has come to if there is none for it.
    spec: Result<SessionSpec, Box<StepsResult>>,
    profile: String,
}

impl Admitted {
    /// What the audit says of it.
    fn told(&self) -> String {
        let backend = self
            .spec
            .as_ref()
            .map_or("none", |spec| spec.run.sandbox.backend.name());
        format!("profile={} backend={backend}", self.profile)
    }
}

/// Carries out the steps of a job, once however often it is sent, and answers with what came of it.
pub(crate) async fn carry_out(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
    in_background: bool,
) -> Answer<Response> {
    let document = order.sandbox.job_spec_json.clone().unwrap_or_default();
    // Its patterns are compiled, which takes as long as they like.
    let job = work::aside(gateway.working(), &caller.tenant, move || read(&document)).await?;
    let (admitted, asked_for) = admitted(gateway, caller, order, job)?;
    jobs::note(gateway, caller, order).await?;
    let mut asked = jobs::asked(caller, order, asked_for)?;
    asked.about.key.clone_from(&caller.key);
    let mut llm = false;
    if let Ok(spec) = &admitted.spec {
        asked.about = About::of(caller, &spec.run);
        llm = spec.run.grants.llm.is_some();
    }
    let needs = Needs {
        what: What::Run,
        llm,
        storage: false,
    };
    let may = gateway.may_begin(&caller.tenant, needs).await;
    let begin = {
        let gateway = gateway.clone();
        async move {
            let key = asked.about.key.clone();
            let taken = live::take(&gateway, asked, may).await?;
            if let Taken::New(live) = &taken {
                if let Err(problem) = gateway
                    .note_accepted(&live.of(), &key, &admitted.told())
                    .await
                {
                    live::give_up(&gateway, live, &admitted.profile).await;
                    return Err(problem);
                }
                tokio::spawn(attend(gateway.clone(), live.clone(), admitted));
            }
            Ok::<_, Problem>(taken)
        }
    };
    // Whoever hangs up meanwhile leaves no job behind that was accepted and never starts.
    let taken = tokio::spawn(begin)
        .await
        .map_err(|_| crate::writer::busy())?
        .map_err(jobs::of_another)?;
    let live = match taken {
        Taken::New(live) => Some(live),
        Taken::Before(id) => gateway.runs().find(&id),
    };
    match live {
        Some(live) if in_background && !jobs::is_over(&live) => Ok(jobs::accepted(order)),
        Some(live) => jobs::told_of(gateway, caller, &live.ended().await?.kept),
        None => jobs::of_before(gateway, caller, order, in_background).await,
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
    job.constraints.max_output_bytes = job.constraints.max_output_bytes.min(MOST_OUTPUT);
    Ok(job)
}

fn admitted(
    gateway: &Gateway,
    caller: &Caller,
    order: &WorkerJob,
    job: StepJob,
) -> Answer<(Admitted, AskedFor)> {
    let document = order.sandbox.job_spec_json.clone().unwrap_or_default();
    let mut request = host::admit(gateway, caller, order.request(gateway)?)?;
    let image = request
        .image
        .as_ref()
        .map(|image| image.to_string_lossy().into_owned());
    let command = std::mem::take(&mut request.command);
    let carrier = if command.is_empty() {
        Carrier::Own
    } else {
        Carrier::Program(command)
    };
    let profile = request
        .profile
        .clone()
        .unwrap_or_else(|| gateway.policy().default_profile.clone());
    let mut spec = admit(gateway.policy(), request, &job);
    if let Ok(spec) = &mut spec {
        gateway.node().grants(&spec.run.grants)?;
        spec.run.run_id = Some(order.run_id(caller)?);
        spec.run.owner = Some(caller.owner()?);
        spec.run.keep = caller.require(Scope::Artifacts).is_ok();
    }
    let runtime = spec
        .as_ref()
        .ok()
        .map(|spec| spec.run.sandbox.backend.name().to_owned());
    Ok((
        Admitted {
            job,
            document,
            carrier,
            spec,
            profile,
        },
        AskedFor { image, runtime },
    ))
}

/// Carries it through to its end, whoever waits for it.
async fn attend(gateway: Gateway, live: Arc<Live>, admitted: Admitted) {
    gateway.metrics().running.inc();
    let started_at = engine::now();
    let Admitted {
        job,
        document,
        carrier,
        spec,
        profile,
    } = admitted;
    let carried = match spec {
        Err(result) => {
            let rule = result.failure_code.as_deref().unwrap_or_default();
            gateway.note_not_started(&live.of(), rule);
            Carried::from(*result)
        }
        Ok(spec) => {
            live.begins();
            // It counts while it goes on.
            let begun = |session: &Session| live.has_box(&gateway, session);
            let (engine, wishes) = (gateway.engine(), live.wishes(&gateway));
            engine
                .carry_out(spec, &job, document.as_bytes(), carrier, wishes, begun)
                .await
        }
    };
    record(&gateway, &live, &carried);
    gateway.note_denials(&live.of(), carried.denials.iter());
    let result = as_run(&live, &job, carried, started_at, profile);
    gateway.metrics().running.dec();
    let took = Duration::from_millis(result.duration_ms);
    gateway.metrics().run(
        result.status.name(),
        took,
        (result.stdout.len() + result.stderr.len()) as u64,
    );
    gateway.note_ended(&live.of(), &result, result.denials.len() as u64);
    live::conclude(&gateway, &live, result).await;
}

/// What was written becomes records of the node.
fn record(gateway: &Gateway, live: &Live, carried: &Carried) {
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
    outputs.for_each(|output| wrote(Stream::Stdout, output.as_bytes()));
    wrote(Stream::Stdout, &carried.said.stdout);
    wrote(Stream::Stderr, &carried.said.stderr);
}

/// Why it never was carried out, if so.
fn why_not(result: &StepsResult) -> ErrorInfo {
    let code = result.failure_code.as_deref().unwrap_or_default();
    let message = result.failure_message.clone().unwrap_or_default();
    // Codes of steps have no other name here.
    let code = serde_json::from_value(code.into()).unwrap_or(ErrorCode::StartFailed);
    ErrorInfo {
        code,
        message,
        hint: None,
    }
}

/// What came of it as of every run; what came of the steps is its output.
fn as_run(
    live: &Live,
    job: &StepJob,
    carried: Carried,
    started_at: Timestamp,
    profile: String,
) -> RunResult {
    let Carried {
        result,
        said,
        barriers,
        usage,
        limits_hit,
        denials,
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
        // Nobody knows what it would have been.
        (_, Some("schema_validation")) | (Status::TimedOut | Status::NotStarted, _) => None,
        (Status::Cancelled, _) => said.exit_code.or_else(of_step),
        _ => said.exit_code.or_else(of_step).or(Some(1)),
    };
    let ended_at = engine::now();
    let (begun, ended) = (started_at.0 * 1000, ended_at.0 * 1000);
    let moments = Moments {
        begun,
        started: if never { 0 } else { begun },
        over: ended,
        kept: ended,
        ended,
    };
    // It was serialized from a value of ours.
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
        error: (status == Status::NotStarted).then(|| why_not(&result)),
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
        moments,
        ..RunResult::blank(live.id.clone(), profile, started_at)
    }
}
