//! One try of a job, from its turn to its end. It is a run like any other: written down before it starts, in the
//! transaction that says that its job is under way, and with its end in the one that says what follows for the job.
//!
//! What must be sure before the program starts: if a job must not run twice, that it has started outlasts a power cut. One
//! that is run again after a crash anyway need not wait for the disk.

use super::{JobOrder, change, order, scheduler::Picked};
use crate::{
    Gateway, Problem,
    problem::Answer,
    runs::{
        self,
        live::{self, About, Live},
    },
    tenants::{Needs, What},
};
use http::StatusCode;
use spec::{Day, Id, RunSpec};
use std::{sync::Arc, time::Duration};
use store::{
    DatabaseError,
    audit::{Decision, Entry},
    jobs::{Change, End, JobRow},
    served::{Accepted, DayUse, NewRun, Writing},
};

/// How long nothing is tried when something of the server's own stands in the way.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a job waits for what its tenant has none of now: as long as it has waited before, within these.
const SHORTEST_WAIT: Duration = Duration::from_secs(60);
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Between two looks whether the try before is gone.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Carries the job whose turn it is through one try. Its slot is taken until this returns.
pub(super) async fn carry_out(gateway: Gateway, picked: Picked) {
    match begin(&gateway, &picked.id).await {
        Ok(Some((live, task))) => {
            drop(picked);
            // A task that broke off has not written the end down; the job is not under way for ever.
            if task.await.is_err() {
                let mut result = live::lost(live.id.clone(), engine::now());
                result.error = result.error.map(|error| spec::ErrorInfo {
                    message: "the run broke off".to_owned(),
                    ..error
                });
                live::conclude(&gateway, &live, result).await;
            }
        }
        Ok(None) => {}
        Err(problem) => {
            crate::say(format_args!(
                "airlock: a job cannot start now: {}",
                problem.as_error()
            ));
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Starts it; none if that is not its turn any more, or if it may not run at all, which is its end.
async fn begin(
    gateway: &Gateway,
    id: &str,
) -> Answer<Option<(Arc<Live>, tokio::task::JoinHandle<()>)>> {
    let name = id.to_owned();
    let Some((row, order)) = gateway
        .look_up(move |served| served.job_with_order(&name))
        .await?
    else {
        return Ok(None);
    };
    // Keys are read from the disk, and an order may be long.
    let of = gateway.clone();
    let asked = tokio::task::spawn_blocking(move || (admitted(&of, &row, &order), row)).await;
    let (admitted, row) = asked.map_err(|_| crate::writer::busy())?;
    let (spec, stdin) = match admitted {
        Ok(admitted) => admitted,
        Err(Refused { problem, .. }) if problem.status().is_server_error() => return Err(*problem),
        Err(refused) => return refuse(gateway, row, refused).await.map(|()| None),
    };
    let needs = Needs {
        what: What::Job,
        llm: spec.grants.llm.is_some(),
        storage: spec.sandbox.copy_on_write,
    };
    match gateway.may_begin(&row.tenant, needs).await {
        Ok(()) => {}
        Err(problem) if is_quota(problem.code()) => {
            return put_off(gateway, row, problem).await.map(|()| None);
        }
        Err(problem) => return Err(problem),
    }
    rest_is_gone(gateway, &row).await?;
    let owner = crate::caller::owner_of(&row.tenant)?;
    let live = Arc::new(Live::attempt(
        gateway,
        engine::fresh_id(),
        &owner,
        (row.id.clone(), spec.task_id.clone()),
        About::by(&row.key, &spec),
    ));
    let writer = if row.rerun {
        gateway.writer()
    } else {
        gateway.durable()
    };
    let (of, listed, task) = (gateway.clone(), live.clone(), spec.task_id.clone());
    let written = writer
        .write(move |writing| take(&of, writing, &row, &listed, task.as_ref()))
        .await;
    match written {
        Ok(Some(changed)) => {
            change::after(gateway, &[changed]);
            live::prune_now_and_then(gateway);
            let task = runs::start(gateway, &live, spec, stdin);
            Ok(Some((live, task)))
        }
        Ok(None) => Ok(None),
        Err(problem) => {
            gateway.runs().remove(&live);
            Err(problem)
        }
    }
}

/// Waits until nothing of the try before is left. Its processes end with their server, but not at once, and what is left of
/// them the engine sweeps at its opening; should that have failed it is swept now. A job never runs beside itself.
async fn rest_is_gone(gateway: &Gateway, row: &JobRow) -> Answer<()> {
    let Some(before) = row.run.as_deref().and_then(|run| Id::new(run).ok()) else {
        return Ok(());
    };
    let end = tokio::time::Instant::now() + PAUSE;
    // The record of one that ended in order is removed right behind its end; nobody tells when.
    while gateway.engine().may_be_left(&before) && tokio::time::Instant::now() < end {
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    if gateway.engine().may_be_left(&before) {
        let engine = gateway.engine().clone();
        // What it could not remove is still there, which is asked next.
        _ = tokio::task::spawn_blocking(move || engine.sweep()).await;
    }
    match gateway.engine().may_be_left(&before) {
        false => Ok(()),
        true => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "internal",
            format!(
                "something of the run `{before}` is left, and its job does not run beside itself"
            ),
            Some("see what `airlock sweep` says".to_owned()),
        )),
    }
}

/// Why a job that was accepted may not run.
struct Refused {
    status: &'static str,
    problem: Box<Problem>,
}

/// What it runs, with the rights that its key has now.
fn admitted(
    gateway: &Gateway,
    row: &JobRow,
    order: &str,
) -> Result<(RunSpec, Option<Vec<u8>>), Refused> {
    let not_started = |problem| Refused {
        status: "not_started",
        problem: Box::new(problem),
    };
    let holder = gateway
        .keys()
        .holder(&row.key)
        .map_err(|error| not_started(error.into()))?;
    let Some(caller) = holder.filter(|caller| caller.tenant == row.tenant) else {
        let title = "the key by which it was asked for was revoked or has expired";
        let hint = Some("ask for it again by another".to_owned());
        let problem = Problem::new(StatusCode::FORBIDDEN, "policy_denied", title, hint);
        return Err(Refused {
            status: "cancelled",
            problem: Box::new(problem),
        });
    };
    let admit = || {
        caller.require(crate::Scope::Runs)?;
        let order: JobOrder = serde_json::from_str(order)
            .map_err(|error| crate::wire::unreadable(&error.to_string()))?;
        let id = Id::new(&row.id).map_err(|_| Problem::not_found("job"))?;
        order::admit(gateway, &caller, order, &id)
    };
    admit().map_err(not_started)
}

/// Whether something is refused because its tenant has none of it left.
pub(super) fn is_quota(code: &str) -> bool {
    matches!(code, "quota_exceeded" | "budget_exceeded")
}

/// Lets a job wait for what its tenant has none of now. Others go before it meanwhile: they may need none of that.
async fn put_off(gateway: &Gateway, row: JobRow, problem: Problem) -> Answer<()> {
    let now = engine::now();
    let waited = Duration::from_millis(now.0.saturating_sub(row.accepted_ms));
    let pause = waited.clamp(SHORTEST_WAIT, LONGEST_WAIT).as_millis() as u64;
    // With the day all of it begins anew, but for storage.
    let due_ms = (now.0 + pause).min(Day::of(now).next().start().0);
    let of = gateway.clone();
    let written = gateway.writer().write(move |writing| {
        let before = row
            .error
            .as_ref()
            .is_some_and(|error| problem.is_said_by(error));
        // Whoever waits for long is told of once.
        if writing.put_off_job(&row.id, due_ms, &problem.as_error())? && !before {
            let (what, decision) = ("job.start", Decision::Refused);
            let entry = Entry {
                what,
                decision,
                tenant: &row.tenant,
                key: &row.key,
                job: &row.id,
                ..Entry::default()
            };
            change::note(
                &of,
                &Entry {
                    rule: problem.rule(),
                    ..entry
                },
            )?;
        }
        Ok(())
    });
    written.await
}

async fn refuse(gateway: &Gateway, row: JobRow, refused: Refused) -> Answer<()> {
    let (of, at_ms) = (gateway.clone(), engine::now().0);
    let written = gateway.durable().write(move |writing| {
        let (error, rule) = (
            refused.problem.as_error(),
            refused.problem.rule().to_owned(),
        );
        let end = End {
            status: refused.status,
            result: None,
            error: Some(&error),
            at_ms,
        };
        let changes = writing.refuse_job(&row.id, &end)?;
        let (what, decision) = ("job.start", Decision::Refused);
        let entry = Entry {
            what,
            decision,
            tenant: &row.tenant,
            key: &row.key,
            job: &row.id,
            ..Entry::default()
        };
        change::note(
            &of,
            &Entry {
                rule: &rule,
                ..entry
            },
        )?;
        change::follow(&of, writing, &changes, at_ms)?;
        Ok(changes)
    });
    change::after(gateway, &written.await?);
    Ok(())
}

/// The run is accepted and the job under way, both or neither. The run is listed before anybody can learn of it.
fn take(
    gateway: &Gateway,
    writing: &Writing<'_>,
    job: &JobRow,
    live: &Arc<Live>,
    task: Option<&Id>,
) -> Result<Option<Change>, DatabaseError> {
    let Some(_listing) = gateway.may_list() else {
        return Ok(None);
    };
    let (jobs, at_ms) = (gateway.jobs(), engine::now().0);
    let is_full = gateway.runs_full(&job.tenant).is_some();
    if is_full || !writing.start_job(&job.id, live.id.as_str(), &jobs.boot, at_ms)? {
        return Ok(None);
    }
    let (id, owner) = (live.id.as_str(), job.tenant.as_str());
    let task = task.map(|task| task.as_str());
    let run = NewRun {
        id,
        owner,
        task,
        job: Some(&job.id),
        at_ms,
        promise: None,
    };
    match writing.accept(&run, true)? {
        Accepted::New => {}
        // A fresh name that is taken: none of it is written.
        Accepted::Before(_) | Accepted::OtherRequest | Accepted::NameTaken | Accepted::Full => {
            let why = "a run of a fresh name was there before".to_owned();
            return Err(DatabaseError::Place {
                path: gateway.state().to_owned(),
                why,
            });
        }
    }
    let day = gateway.days().count(owner, DayUse::RUN);
    writing.add_to_day(owner, day, DayUse::RUN)?;
    live::contain(gateway, writing, &run, live.about())?;
    let changed = Change {
        id: job.id.clone(),
        tenant: job.tenant.clone(),
        status: "running".to_owned(),
        run: Some(live.id.to_string()),
        webhook: job.webhook.clone(),
        moved: false,
    };
    change::follow(gateway, writing, std::slice::from_ref(&changed), at_ms)?;
    gateway.runs().add(live);
    Ok(Some(changed))
}
