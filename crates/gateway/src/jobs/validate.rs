//! Validation of job requests. Everything that can be checked is checked when the job is accepted,
//! so that the caller learns of errors; the run is validated again at each start, with the current
//! rights of its key.

use super::{JobOrder, OnLost, RetryOrder, webhook::StoredWebhook};
use crate::{Caller, Gateway, Problem, problem::Answer, runs};
use http::StatusCode;
use spec::{Id, JobQueueLimits, RunSpec, Time, Timestamp};
use std::{collections::BTreeMap, time::Duration};

const MAX_NAME: usize = 100;
const MAX_LABELS: usize = 32;
const MAX_LABEL: (usize, usize) = (63, 255);
/// Limit of all labels as JSON: lists read them for many jobs.
const MAX_LABEL_BYTES: usize = 4 << 10;
const MAX_RETRIES: u32 = 100;
const MAX_AFTER: usize = 100;
const MAX_DELAY_MS: u64 = 366 * 24 * 3_600_000;
const DEFAULT_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_secs(3600);
const RETRYABLE: [&str; 4] = ["failed", "timed_out", "oom_killed", "lost"];

/// A validated job, without its run.
#[derive(Debug)]
pub(super) struct JobTerms {
    pub(super) name: Option<String>,
    /// JSON.
    pub(super) labels: String,
    pub(super) priority: i32,
    pub(super) not_before_ms: Option<u64>,
    pub(super) most_attempts: u32,
    pub(super) retry_on: String,
    pub(super) pause_ms: u64,
    pub(super) rerun: bool,
    pub(super) after: Vec<String>,
    /// JSON.
    pub(super) webhook: Option<String>,
    pub(super) keep_ms: u64,
}

impl JobTerms {
    /// Validates an order at this time.
    pub(super) fn of(order: &JobOrder, bounds: &JobQueueLimits, now_ms: u64) -> Answer<JobTerms> {
        let (most_attempts, retry_on, pause_ms) = retries(order.retries.as_ref())?;
        let webhook: Option<StoredWebhook> = order
            .webhook
            .clone()
            .map(|order| order.validate())
            .transpose()?;
        Ok(JobTerms {
            name: order.name.clone().map(name).transpose()?,
            labels: labels(&order.labels)?,
            priority: priority(order.priority)?,
            not_before_ms: order
                .not_before
                .as_deref()
                .map(|text| not_before(text, now_ms))
                .transpose()?,
            most_attempts,
            retry_on,
            pause_ms,
            rerun: order.on_lost == Some(OnLost::Rerun),
            after: after(&order.after)?,
            // Serialization cannot fail.
            webhook: webhook.and_then(|webhook| serde_json::to_string(&webhook).ok()),
            keep_ms: keep(order, bounds)?,
        })
    }
}

fn is_plain(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

fn name(name: String) -> Answer<String> {
    if is_plain(&name, MAX_NAME) {
        Ok(name)
    } else {
        Err(Problem::invalid(
            "`name` is no name for a job",
            "give 1 to 100 characters",
        ))
    }
}

fn labels(labels: &BTreeMap<String, String>) -> Answer<String> {
    crate::wire::check_label_names(labels)?;
    let (key, value) = MAX_LABEL;
    let fits = |(name, text): (&String, &String)| {
        is_plain(name, key) && (text.is_empty() || is_plain(text, value))
    };
    let text = serde_json::to_string(labels).unwrap_or_default();
    if labels.len() <= MAX_LABELS && labels.iter().all(fits) && text.len() <= MAX_LABEL_BYTES {
        Ok(text)
    } else {
        Err(Problem::invalid(
            "`labels` cannot be kept",
            "give at most 32, with names of 1 to 63 characters and values of at most 255, 4 KiB of JSON in all",
        ))
    }
}

fn priority(priority: i32) -> Answer<i32> {
    if (-100..=100).contains(&priority) {
        Ok(priority)
    } else {
        Err(Problem::invalid(
            "`priority` is out of range",
            "give -100 to 100",
        ))
    }
}

fn not_before(text: &str, now_ms: u64) -> Answer<u64> {
    let moment: Timestamp = text.parse().map_err(|bad| {
        Problem::invalid(
            format!("`not_before` has a bad value: {bad}"),
            "write it as RFC 3339, with a Z at its end",
        )
    })?;
    if moment.0 <= now_ms.saturating_add(MAX_DELAY_MS) {
        Ok(moment.0)
    } else {
        Err(Problem::invalid(
            "`not_before` is too far ahead",
            "give a moment of the next 366 days",
        ))
    }
}

fn retries(order: Option<&RetryOrder>) -> Answer<(u32, String, u64)> {
    let Some(order) = order else {
        return Ok((1, String::new(), 0));
    };
    let on = order
        .on
        .clone()
        .unwrap_or_else(|| RETRYABLE.map(str::to_owned).to_vec());
    if let Some(other) = on.iter().find(|name| !RETRYABLE.contains(&name.as_str())) {
        let shown: String = other.chars().take(64).collect();
        let title = format!("`retries.on` knows no `{}`", shown.escape_debug());
        return Err(Problem::invalid(
            title,
            format!("there are {}", RETRYABLE.join(", ")),
        ));
    }
    let pause = order
        .pause
        .as_ref()
        .map(|pause| pause.parse::<Time>("retries.pause"))
        .transpose()?;
    let pause = pause.map_or(DEFAULT_PAUSE, |pause| pause.0);
    if order.most > MAX_RETRIES || pause > MAX_PAUSE || on.len() > RETRYABLE.len() {
        let hint = "give at most 100 retries, each status once, and a pause of at most 1h";
        return Err(Problem::invalid("`retries` is out of range", hint));
    }
    Ok((order.most + 1, on.join(" "), pause.as_millis() as u64))
}

fn after(after: &[String]) -> Answer<Vec<String>> {
    if after.len() > MAX_AFTER {
        return Err(Problem::invalid(
            "`after` names too many jobs",
            "name at most 100",
        ));
    }
    let mut once: Vec<String> = Vec::new();
    for id in after {
        if Id::new(id).is_err() {
            return Err(unknown_job(id));
        }
        if !once.contains(id) {
            once.push(id.clone());
        }
    }
    Ok(once)
}

/// The job does not exist or belongs to another tenant; the answer does not tell which.
pub(super) fn unknown_job(id: &str) -> Problem {
    let shown: String = id.chars().take(64).collect();
    let title = format!(
        "`after` names `{}`, and there is no such job",
        shown.escape_debug()
    );
    let hint = Some("name jobs that were accepted and are not forgotten yet".to_owned());
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_spec",
        title,
        hint,
    )
}

fn keep(order: &JobOrder, bounds: &JobQueueLimits) -> Answer<u64> {
    let asked = order
        .keep_for
        .as_ref()
        .map(|time| time.parse::<Time>("keep_for"))
        .transpose()?;
    let keep = asked.map_or(bounds.keep_for, |time| time.0);
    if keep <= bounds.keep_for {
        Ok(keep.as_millis() as u64)
    } else {
        Err(Problem::invalid(
            "`keep_for` is longer than this server remembers jobs",
            format!(
                "ask for at most {}s; the operator sets `keep_for` under [jobs]",
                bounds.keep_for.as_secs()
            ),
        ))
    }
}

/// Admits the run of a job for the holder of its key.
pub(super) fn admit(
    gateway: &Gateway,
    caller: &Caller,
    order: JobOrder,
    id: &Id,
) -> Answer<(RunSpec, Option<Vec<u8>>)> {
    let run = match (order.run, order.agent) {
        (Some(run), None) => run,
        (None, Some(agent)) => agent.into_run(id.as_str())?,
        _ => {
            return Err(Problem::invalid(
                "a job has either `run` or `agent`",
                "give one of them",
            ));
        }
    };
    if run.has_own_id() {
        let hint = "leave `run_id` and `job_id` away: the job has its own name, and each try, too";
        return Err(Problem::invalid("the run of a job cannot be named", hint));
    }
    let (request, stdin) = run.into_request()?;
    let mut spec = runs::admit(gateway, caller, request)?;
    spec.job_id = Some(id.clone());
    Ok((spec, stdin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(text: &str) -> Result<JobTerms, u16> {
        let order: JobOrder = serde_json::from_str(text).map_err(|_| 0u16)?;
        JobTerms::of(&order, &JobQueueLimits::default(), 1_893_456_000_000)
            .map_err(|problem| problem.status().as_u16())
    }

    #[test]
    fn what_is_not_said_is_the_usual() {
        let usual = terms("{}").unwrap();
        assert_eq!(
            (usual.most_attempts, usual.retry_on.as_str(), usual.rerun),
            (1, "", false)
        );
        assert_eq!(
            (usual.labels.as_str(), usual.priority, usual.keep_ms),
            ("{}", 0, 604_800_000)
        );
        let retries = terms(r#"{"retries":{"most":2}}"#).unwrap();
        assert_eq!((retries.most_attempts, retries.pause_ms), (3, 10_000));
        assert_eq!(retries.retry_on, "failed timed_out oom_killed lost");
        let said = terms(
            r#"{"not_before":"2030-01-01T00:00:01Z","after":["a","b","a"],"on_lost":"rerun","keep_for":"1h"}"#,
        );
        let said = said.unwrap();
        assert_eq!(
            (said.not_before_ms, said.rerun),
            (Some(1_893_456_001_000), true)
        );
        assert_eq!(
            (said.after, said.keep_ms),
            (vec!["a".to_owned(), "b".to_owned()], 3_600_000)
        );
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for text in [
            r#"{"priority":101}"#,
            r#"{"name":""}"#,
            r#"{"name":"a\nb"}"#,
            r#"{"labels":{"":"x"}}"#,
            r#"{"labels":{"$serde_json::private::RawValue":"x"}}"#,
            r#"{"not_before":"tomorrow"}"#,
            r#"{"not_before":"2031-01-03T00:00:00Z"}"#,
            r#"{"retries":{"most":101}}"#,
            r#"{"retries":{"most":1,"on":["cancelled"]}}"#,
            r#"{"retries":{"most":1,"pause":"2h"}}"#,
            r#"{"keep_for":"169h"}"#,
        ] {
            assert_eq!(terms(text).map(drop), Err(400), "{text}");
        }
        let listed = r#"[{"labels":{"$serde_json::private::RawValue":"x"}}]"#;
        let usual = serde_json::from_str::<serde_json::Value>(listed);
        assert!(
            usual.is_err(),
            "the control: a list with such a label could not be read: {usual:?}"
        );
        assert!(terms(r#"{"labels":{"$serde_json":"x"}}"#).is_ok());
        let labels = |count: usize, value: &str| {
            let all: BTreeMap<_, _> = (0..count)
                .map(|number| (number.to_string(), value.repeat(255)))
                .collect();
            terms(&serde_json::json!({ "labels": all }).to_string()).map(drop)
        };
        assert_eq!((labels(15, "x"), labels(16, "x")), (Ok(()), Err(400)));
        assert_eq!(
            (labels(3, "\u{1f512}"), labels(4, "\u{1f512}")),
            (Ok(()), Err(400)),
            "bytes, not characters"
        );
        assert_eq!(terms(r#"{"after":["../x"]}"#).map(drop), Err(422));
        for unknown in [
            r#"{"ru":{}}"#,
            r#"{"on_lost":"again"}"#,
            r#"{"retries":{"times":1}}"#,
        ] {
            assert_eq!(terms(unknown).map(drop), Err(0), "{unknown}");
        }
    }
}
