//! A job as clients see it.

use super::{
    attempt::is_quota,
    webhook::{self, KeptWebhook},
};
use crate::Gateway;
use serde::Serialize;
use serde_json::Value;
use spec::Timestamp;
use std::collections::BTreeMap;
use store::jobs::JobRow;
use utoipa::ToSchema;

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Job {
    pub(crate) job_id: String,
    name: Option<String>,
    labels: BTreeMap<String, String>,
    /// `queued`, `running`, or how it ended: `succeeded`, `failed`, `timed_out`, `oom_killed`, `cancelled`, `not_started`, `lost`.
    pub(crate) status: String,
    priority: i32,
    /// Which try this is, or was. Tries that their server did not outlive do not count where they are made again.
    attempt: u32,
    most_attempts: u32,
    /// The run of the present try, or of the last.
    run_id: Option<String>,
    /// Those of all tries.
    runs: Vec<String>,
    accepted_at: String,
    not_before: Option<String>,
    /// While it waits for its time, or for a quota: when it is tried next.
    next_try_at: Option<String>,
    started_at: Option<String>,
    ended_at: Option<String>,
    after: Vec<String>,
    /// While it is queued: `turn`, `time`, `jobs` or `quota`.
    waiting_for: Option<String>,
    webhook: Option<webhook::Shown>,
    /// Why it ended so, or why it is tried again: code, message, hint.
    #[schema(value_type = Option<Object>)]
    error: Option<Value>,
}

impl Job {
    /// As it stands now.
    pub(crate) fn of(gateway: &Gateway, row: &JobRow) -> Job {
        let time = |ms: Option<u64>| ms.map(|ms| Timestamp(ms).to_string());
        let webhook = row
            .webhook
            .as_deref()
            .and_then(|text| serde_json::from_str::<KeptWebhook>(text).ok());
        Job {
            job_id: row.id.clone(),
            name: row.name.clone(),
            labels: row.labels.clone(),
            status: row.status.clone(),
            priority: row.priority,
            attempt: row.attempt,
            most_attempts: row.most_attempts,
            run_id: row.run.clone(),
            runs: row.runs.clone(),
            accepted_at: Timestamp(row.accepted_ms).to_string(),
            not_before: time(row.not_before_ms),
            next_try_at: time(
                Some(row.due_ms).filter(|_| row.waits_for.as_deref() == Some("time")),
            ),
            started_at: time(row.started_ms),
            ended_at: time(row.ended_ms),
            after: row.after.clone(),
            waiting_for: row
                .waits_for
                .as_deref()
                .map(|word| waiting_for(gateway, row, word).to_owned()),
            webhook: webhook.map(|kept| webhook::shown(kept, row.told.as_ref())),
            error: row
                .error
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok()),
        }
    }

    /// As JSON, without its result.
    pub(crate) fn text(&self) -> String {
        // Nothing in it can fail to be JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// As JSON, with what came of its last try, which is JSON already.
    pub(crate) fn whole(&self, result: Option<&str>) -> String {
        let mut text = self.text();
        text.pop();
        text.push_str(r#","result":"#);
        text.push_str(result.unwrap_or("null"));
        text.push('}');
        text
    }
}

fn waiting_for<'a>(gateway: &Gateway, row: &JobRow, word: &'a str) -> &'a str {
    let may_not =
        || gateway.runs_full(&row.tenant).is_some() || gateway.has_cpu(&row.tenant).is_err();
    // It was its turn, and there was none of what it needs.
    let was_put_off = || {
        let error: Option<Value> = row
            .error
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok());
        error.is_some_and(|error| error["code"].as_str().is_some_and(is_quota))
    };
    match word == "turn" && may_not() || word == "time" && was_put_off() {
        true => "quota",
        false => word,
    }
}
