//! What follows when a job changes. In the transaction that changes it: a line of the audit, and a notice for whoever wants
//! to be told; so neither is ever missing. Behind it: whoever waits is woken.

use super::{
    PRUNED_EVERY,
    show::Job,
    webhook::{self, KeptWebhook},
};
use crate::{
    Gateway,
    problem::Answer,
    runs::{
        self,
        live::{Ending, Live},
    },
};
use spec::{ErrorCode, ErrorInfo, Status};
use std::sync::atomic::Ordering;
use store::{
    DatabaseError,
    audit::{Decision, Entry},
    jobs::{Cancelled, Change, End, JobFilter},
    served::Writing,
};

/// Jobs that are cancelled in one transaction.
const A_PAGE: u32 = 200;

/// Writes a line of the audit; what it tells of is not done without.
pub(crate) fn note(gateway: &Gateway, entry: &Entry<'_>) -> Result<(), DatabaseError> {
    gateway.note(entry).map_err(|_| DatabaseError::Place {
        path: gateway.state().to_owned(),
        why: "the audit cannot be written".to_owned(),
    })
}

/// What belongs into the transaction of these changes.
pub(super) fn follow(
    gateway: &Gateway,
    writing: &Writing<'_>,
    changes: &[Change],
    at_ms: u64,
) -> Result<(), DatabaseError> {
    // What only waits for something else is nobody's decision.
    for change in changes.iter().filter(|change| !change.moved) {
        let (what, event) = match change.status.as_str() {
            "queued" => ("job.again", None),
            "running" => ("job.start", Some("running")),
            _ => ("job.end", Some("final")),
        };
        let run = change.run.as_deref().unwrap_or_default();
        let (tenant, job, about) = (
            change.tenant.as_str(),
            change.id.as_str(),
            change.status.as_str(),
        );
        let decision = Decision::Happened;
        note(
            gateway,
            &Entry {
                what,
                decision,
                tenant,
                job,
                run,
                about,
                ..Entry::default()
            },
        )?;
        if let Some(event) = event {
            tell(gateway, writing, change, event, at_ms)?;
        }
    }
    Ok(())
}

fn tell(
    gateway: &Gateway,
    writing: &Writing<'_>,
    change: &Change,
    event: &str,
    at_ms: u64,
) -> Result<(), DatabaseError> {
    let kept = change
        .webhook
        .as_deref()
        .and_then(|text| serde_json::from_str::<KeptWebhook>(text).ok());
    let Some(kept) = kept.filter(|kept| kept.events.iter().any(|wanted| wanted == event)) else {
        return Ok(());
    };
    let Some(row) = writing.job(&change.id)? else {
        return Ok(());
    };
    let result = store::webhooks::result_of(writing, &change.id)?;
    let body = Job::of(gateway, &row).whole(result.as_deref());
    webhook::enqueue(
        writing,
        &kept,
        &change.id,
        &change.tenant,
        event,
        at_ms,
        body,
    )
}

/// What is done once they are committed.
pub(super) fn after(gateway: &Gateway, changes: &[Change]) {
    let jobs = gateway.jobs();
    for change in changes {
        jobs.tell(&change.id);
        if !matches!(change.status.as_str(), "queued" | "running") {
            gateway.metrics().job(&change.status);
            if jobs.ended.fetch_add(1, Ordering::Relaxed) % PRUNED_EVERY == PRUNED_EVERY - 1 {
                let gateway = gateway.clone();
                tokio::spawn(async move { super::forget(&gateway).await });
            }
        }
    }
    jobs.wake();
    jobs.behind.notify_one();
}

/// Cancels all that have not ended, of every tenant; which of them waited. What runs is marked, so that it does not come back
/// for another try, whoever ends it. Each page is one transaction, and what is accepted meanwhile comes behind the first.
pub(crate) async fn cancel_all(gateway: &Gateway, key: &str) -> Answer<Vec<String>> {
    let (mut before, mut cancelled) = (None, Vec::new());
    loop {
        let filter = JobFilter {
            open: true,
            before,
            limit: A_PAGE,
            ..JobFilter::default()
        };
        let page = gateway
            .look_up(move |served| served.list_jobs(&filter))
            .await?;
        let is_last = page.before.is_none();
        before = page.before;
        let (of, key, at_ms) = (gateway.clone(), key.to_owned(), engine::now().0);
        let write = move |writing: &Writing<'_>| {
            let mut all = Vec::new();
            for row in &page.rows {
                let changes = match writing.cancel_job(&row.id, at_ms)? {
                    Cancelled::Queued(changes) => changes,
                    Cancelled::Running(_) => Vec::new(),
                    Cancelled::Before | Cancelled::Unknown => continue,
                };
                let (what, decision, rule) = ("job.cancel", Decision::Allowed, "admin");
                let entry = Entry {
                    what,
                    decision,
                    rule,
                    key: &key,
                    ..Entry::default()
                };
                note(
                    &of,
                    &Entry {
                        tenant: &row.tenant,
                        job: &row.id,
                        ..entry
                    },
                )?;
                follow(&of, writing, &changes, at_ms)?;
                all.extend(changes);
            }
            Ok(all)
        };
        let changes = gateway.durable().write(write).await?;
        after(gateway, &changes);
        cancelled.extend(changes.into_iter().map(|change| change.id));
        if is_last {
            return Ok(cancelled);
        }
    }
}

/// A try is over: its run and its job are written down together, so that neither is ever without the other. Whether that
/// could be done. One that ended because the server does is not the job's end: that is decided as after a crash.
pub(crate) async fn ended(gateway: &Gateway, live: &Live, ending: Ending) -> bool {
    let (of, run, owner, at_ms) = (
        gateway.clone(),
        live.id.clone(),
        live.owner.clone(),
        engine::now().0,
    );
    let written = gateway.durable().write(move |writing| {
        ending.write(writing, run.as_str(), &owner)?;
        // It was text a moment ago.
        let result = String::from_utf8_lossy(&ending.kept);
        let (status, error) = match ending.interrupted {
            true => (Status::Lost, Some(lost())),
            false => (ending.status, ending.error.clone()),
        };
        let error = error
            .as_ref()
            .and_then(|error| serde_json::to_string(error).ok());
        let end = End {
            status: status.name(),
            result: Some(&result),
            error: error.as_deref(),
            at_ms,
        };
        let changes = writing.end_job(run.as_str(), &end)?;
        follow(&of, writing, &changes, at_ms)?;
        Ok(changes)
    });
    let written = written.await;
    if let Ok(changes) = &written {
        after(gateway, changes);
    }
    written.is_ok()
}

/// A job whose try ended with its server, in the transaction that gives the run its end.
pub(crate) fn abandoned(
    gateway: &Gateway,
    writing: &Writing<'_>,
    run: &str,
    result: Option<&str>,
) -> Result<(), DatabaseError> {
    let at_ms = engine::now().0;
    let error = serde_json::to_string(&lost()).ok();
    let end = End {
        status: Status::Lost.name(),
        result,
        error: error.as_deref(),
        at_ms,
    };
    let changes = writing.end_job(run, &end)?;
    follow(gateway, writing, &changes, at_ms)
}

/// Those whose run has an end already, or is forgotten: as long as both are written together there is none, and should
/// there be one all the same it does not stay under way for ever.
pub(crate) fn settle(gateway: &Gateway) -> Result<(), DatabaseError> {
    runs::live::settle(gateway)?;
    let served = gateway.served();
    let rest = served.abandoned_jobs(&gateway.jobs().boot)?;
    if !rest.is_empty() {
        served.together_durably(|writing| {
            rest.iter()
                .try_for_each(|job| abandoned(gateway, writing, &job.run, None))
        })?;
    }
    // Whoever starts a server may have said otherwise what tenants may have.
    served.together(|writing| writing.look_again_at_jobs(engine::now().0))?;
    served.prune_jobs(
        engine::now().0,
        gateway.jobs().bounds.keep_jobs,
        super::MOST_BYTES / 2,
    )?;
    Ok(())
}

fn lost() -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Lost,
        message: "the server ended before the job did".to_owned(),
        hint: Some(
            "nobody knows how far it came; look, then retry it, or ask for `on_lost`: `rerun`"
                .to_owned(),
        ),
    }
}
