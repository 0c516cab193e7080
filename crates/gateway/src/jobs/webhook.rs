//! Webhooks: whoever wants to hear of a job is told by a signed request to an address of his.
//!
//! A notice is written in the transaction that changes the job (`enqueue`), so that none is lost; a task delivers what
//! waits (`webhook/delivery.rs`), at least once, in order for each job. Signatures are those of Standard Webhooks
//! (`webhook/signature.rs`).

pub(crate) mod delivery;
mod secret;
mod signature;

use crate::{Gateway, Problem, problem::Answer};
use engine::{Courier, CourierSettings, Engine};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spec::Timestamp;
use store::{
    DatabaseError,
    served::Writing,
    webhooks::{self, NewNotice, Progress},
};
use utoipa::ToSchema;

pub(crate) use secret::routes;

/// What of a job's words goes along, at most; the rest is asked for.
const MOST_WORDS: usize = 64 << 10;
/// The events that there are.
const EVENTS: [&str; 2] = ["running", "final"];

/// What an operator says of webhooks.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// How often one notice is tried.
    pub attempts: u32,
    /// Where notices may go.
    pub courier: CourierSettings,
}

/// What tells of jobs.
#[derive(Debug)]
pub(crate) struct Webhooks {
    courier: Courier,
    attempts: u32,
    signer: signature::Signer,
}

impl Webhooks {
    pub(crate) fn new(settings: WebhookSettings, engine: &Engine) -> Webhooks {
        let WebhookSettings { attempts, courier } = settings;
        let signer = signature::Signer::new(engine.clone());
        Webhooks {
            courier: engine.courier(courier),
            attempts: attempts.max(1),
            signer,
        }
    }
}

/// Where to tell of a job, and of what.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebhookOrder {
    /// An address on the web: `https://…`, at most 2,048 characters.
    #[schema(max_length = 2048)]
    url: String,
    /// `running`, `final`; only the latter unless said.
    events: Option<Vec<String>>,
}

/// The same, checked, as it is kept with a job.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct KeptWebhook {
    pub(crate) url: String,
    pub(crate) events: Vec<String>,
}

/// A webhook as a job shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Shown {
    url: String,
    /// `none` before there is anything to tell, then `waiting`, `delivered` or `given_up`.
    state: String,
    /// Requests so far, of all notices.
    attempts: u32,
    /// Why the last one failed, if it did.
    error: Option<String>,
}

impl WebhookOrder {
    /// Whether the operator lets notices go there, as far as the address says.
    pub(crate) fn allowed(&self, gateway: &Gateway) -> Answer<()> {
        let checked = gateway.webhooks().courier.check(&self.url);
        checked
            .map(drop)
            .map_err(|bad| Problem::invalid(format!("`webhook.url`: {bad}"), bad.hint))
    }

    /// Checks what can be said of it without the operator's rules.
    pub(crate) fn checked(self) -> Answer<KeptWebhook> {
        let given = self.events.unwrap_or_else(|| vec!["final".to_owned()]);
        let known = |event: &String| EVENTS.contains(&event.as_str());
        if given.is_empty() || !given.iter().all(known) {
            return Err(Problem::invalid(
                "`webhook.events` has no event, or an unknown one",
                "there are running, final",
            ));
        }
        let events = EVENTS
            .into_iter()
            .filter(|event| given.iter().any(|given| given == event));
        Ok(KeptWebhook {
            url: self.url,
            events: events.map(str::to_owned).collect(),
        })
    }
}

/// Puts a notice into the outbox, in the transaction that makes it true. `body` is the job as it is shown.
pub(crate) fn enqueue(
    writing: &Writing<'_>,
    webhook: &KeptWebhook,
    job: &str,
    tenant: &str,
    event: &str,
    at_ms: u64,
    body: String,
) -> Result<(), DatabaseError> {
    if !webhook.events.iter().any(|wanted| wanted == event) {
        return Ok(());
    }
    let id = format!("msg_{}", engine::fresh_id());
    let body = notice(event, at_ms, body);
    let (url, body) = (webhook.url.as_str(), body.as_str());
    webhooks::enqueue(
        writing,
        &NewNotice {
            id: &id,
            job,
            tenant,
            url,
            event,
            at_ms,
            body,
        },
    )
}

/// How far the webhook of a job is.
pub(crate) fn shown(webhook: KeptWebhook, progress: Option<&Progress>) -> Shown {
    let url = webhook.url;
    match progress {
        None => Shown {
            url,
            state: "none".to_owned(),
            attempts: 0,
            error: None,
        },
        Some(Progress {
            state,
            attempts,
            problem,
        }) => Shown {
            url,
            state: state.clone(),
            attempts: *attempts,
            error: problem.clone(),
        },
    }
}

/// What a receiver reads. Words that are too long for a notice are left out, and named.
fn notice(event: &str, at_ms: u64, job: String) -> String {
    let is_long = job.len() > MOST_WORDS;
    // It is ours; if it were no JSON, it would be passed on as text.
    let mut data = serde_json::from_str(&job).unwrap_or(Value::String(job));
    if is_long && let Some(result) = data.get_mut("result").and_then(Value::as_object_mut) {
        let words = [
            "stdout",
            "stderr",
            "stdout_base64",
            "stderr_base64",
            "output",
            "denials",
            "notes",
        ];
        let left_out: Vec<_> = words
            .into_iter()
            .filter(|name| result.remove(*name).is_some())
            .collect();
        result.insert("left_out".to_owned(), json!(left_out));
        if data["result"].to_string().len() > MOST_WORDS {
            data["result"] = json!({ "left_out": ["all"] });
        }
    }
    json!({ "type": format!("job.{event}"), "timestamp": Timestamp(at_ms).to_string(), "data": data })
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_known_ones_and_the_end_unless_said() {
        let of = |events: Option<&[&str]>| {
            let events =
                events.map(|events| events.iter().map(|event| (*event).to_owned()).collect());
            WebhookOrder {
                url: "https://x".into(),
                events,
            }
            .checked()
            .map(|kept| kept.events)
        };
        assert_eq!(of(None).unwrap(), ["final"]);
        assert_eq!(
            of(Some(&["final", "running", "final"])).unwrap(),
            ["running", "final"]
        );
        assert!(of(Some(&[])).is_err() && of(Some(&["queued"])).is_err());
    }

    #[test]
    fn long_words_are_left_out_of_a_notice_and_named() {
        let job = |text: &str| {
            json!({ "job_id": "j", "result": { "stdout": text, "exit_code": 0 } }).to_string()
        };
        let short: Value = serde_json::from_str(&notice("final", 0, job("hi"))).unwrap();
        assert_eq!(short["data"]["result"]["stdout"], "hi");
        assert_eq!(
            (&short["type"], &short["timestamp"]),
            (&json!("job.final"), &json!("1970-01-01T00:00:00.000Z"))
        );
        let long = notice("final", 0, job(&"x".repeat(MOST_WORDS)));
        assert!(long.len() < 1000);
        let long: Value = serde_json::from_str(&long).unwrap();
        assert_eq!(
            long["data"]["result"],
            json!({ "exit_code": 0, "left_out": ["stdout"] })
        );
        let other = json!({ "result": { "artifacts": ["x".repeat(MOST_WORDS)] } }).to_string();
        let other: Value = serde_json::from_str(&notice("final", 0, other)).unwrap();
        assert_eq!(other["data"]["result"], json!({ "left_out": ["all"] }));
    }
}
