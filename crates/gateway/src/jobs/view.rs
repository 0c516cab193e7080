//! The JSON view of a job.

use super::{
    attempt::is_quota,
    webhook::{self, StoredWebhook},
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
    webhook: Option<webhook::WebhookState>,
    /// Why it ended so, or why it is tried again: code, message, hint.
    #[schema(value_type = Option<Object>)]
    error: Option<Value>,
}

impl Job {
    /// The current state of a job.
    pub(crate) fn of(gateway: &Gateway, row: &JobRow) -> Job {
        let time = |ms: Option<u64>| ms.map(|ms| Timestamp(ms).to_string());
        let webhook = row
            .webhook
            .as_deref()
            .and_then(|text| serde_json::from_str::<StoredWebhook>(text).ok());
        Job {
            job_id: row.id.clone(),
            name: row.name.clone(),
            labels: row.labels.clone(),
            status: row.status.clone(),
            priority: row.priority,
            attempt: row.attempt,
            most_attempts: row.max_attempts,
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
            webhook: webhook.map(|stored| webhook::state_of(stored, row.webhook_progress.as_ref())),
            error: row
                .error
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok()),
        }
    }

    /// JSON without the result.
    pub(crate) fn to_json(&self) -> String {
        // Serialization cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// JSON with the result of the last attempt, which is stored as JSON.
    pub(crate) fn to_json_with_result(&self, result: Option<&str>) -> String {
        let mut text = self.to_json();
        text.pop();
        text.push_str(r#","result":"#);
        text.push_str(result.unwrap_or("null"));
        text.push('}');
        text
    }
}

fn waiting_for<'a>(gateway: &Gateway, row: &JobRow, word: &'a str) -> &'a str {
    let is_over_quota = || {
        gateway.runs_full(&row.tenant).is_some()
            || gateway.is_out_of_memory(&row.tenant)
            || gateway.check_cpu(&row.tenant).is_err()
    };
    // The job was due, and a quota was used up.
    let was_deferred = || {
        let error: Option<Value> = row
            .error
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok());
        error.is_some_and(|error| error["code"].as_str().is_some_and(is_quota))
    };
    if word == "turn" && is_over_quota() || word == "time" && was_deferred() {
        "quota"
    } else {
        word
    }
}
