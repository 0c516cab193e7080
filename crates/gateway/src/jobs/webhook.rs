//! Webhooks: signed HTTP notifications of job changes.
//!
//! A notice is stored in the transaction that changes the job (`enqueue`), so that none is lost. A
//! task delivers queued notices (`webhook/delivery.rs`) at least once, in order for each job.
//! Signatures follow Standard Webhooks (`webhook/signature.rs`).

pub(crate) mod delivery;
mod secret;
mod signature;

use crate::{Gateway, Problem, problem::Answer};
use engine::{Engine, WebhookClient, WebhookClientSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spec::Timestamp;
use store::{
    DatabaseError,
    server_database::WriteTransaction,
    webhooks::{self, DeliveryProgress, NewWebhookNotice},
};
use utoipa::ToSchema;

pub(crate) use secret::routes;

/// Maximum size of a job in a notice; the receiver can fetch the rest.
const MAX_RESULT_BYTES: usize = 64 << 10;
/// The event names.
const EVENTS: [&str; 2] = ["running", "final"];

/// Webhook settings of the operator.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// Maximum delivery attempts of a notice.
    pub attempts: u32,
    /// Where notices may be sent.
    pub courier: WebhookClientSettings,
}

/// The webhook client and signer.
#[derive(Debug)]
pub(crate) struct Webhooks {
    courier: WebhookClient,
    attempts: u32,
    signer: signature::Signer,
}

impl Webhooks {
    pub(crate) fn new(settings: WebhookSettings, engine: &Engine) -> Webhooks {
        let WebhookSettings { attempts, courier } = settings;
        let signer = signature::Signer::new(engine.clone());
        Webhooks {
            courier: engine.webhook_client(courier),
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

/// A validated webhook, as stored with a job.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct StoredWebhook {
    pub(crate) url: String,
    pub(crate) events: Vec<String>,
}

/// A webhook as a job shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Shown)]
pub(crate) struct WebhookState {
    url: String,
    /// `none` before there is anything to tell, then `waiting`, `delivered` or `given_up`.
    state: String,
    /// Requests so far, of all notices.
    attempts: u32,
    /// Why the last one failed, if it did.
    error: Option<String>,
}

impl WebhookOrder {
    /// Checks the address against the operator's rules.
    pub(crate) fn check_allowed(&self, gateway: &Gateway) -> Answer<()> {
        let checked = gateway.webhooks().courier.check(&self.url);
        checked
            .map(drop)
            .map_err(|bad| Problem::invalid(format!("`webhook.url`: {bad}"), bad.hint))
    }

    /// Validates what does not depend on the operator's rules.
    pub(crate) fn validate(self) -> Answer<StoredWebhook> {
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
        Ok(StoredWebhook {
            url: self.url,
            events: events.map(str::to_owned).collect(),
        })
    }
}

/// Queues a notice in the transaction of the change. `body` is the JSON view of the job.
pub(crate) fn enqueue(
    transaction: &WriteTransaction<'_>,
    webhook: &StoredWebhook,
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
    let body = notice_body(event, at_ms, body);
    let url = webhook.url.as_str();
    let body = body.as_str();
    webhooks::enqueue(
        transaction,
        &NewWebhookNotice {
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

/// The delivery state of a job's webhook.
pub(crate) fn state_of(
    webhook: StoredWebhook,
    progress: Option<&DeliveryProgress>,
) -> WebhookState {
    let url = webhook.url;
    match progress {
        None => WebhookState {
            url,
            state: "none".to_owned(),
            attempts: 0,
            error: None,
        },
        Some(DeliveryProgress {
            state,
            attempts,
            problem,
        }) => WebhookState {
            url,
            state: state.clone(),
            attempts: *attempts,
            error: problem.clone(),
        },
    }
}

/// The body of a notice. Fields that are too long are left out and named.
fn notice_body(event: &str, at_ms: u64, job: String) -> String {
    let is_long = job.len() > MAX_RESULT_BYTES;
    // The job is our own JSON; anything else would be passed on as text.
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
        if data["result"].to_string().len() > MAX_RESULT_BYTES {
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
            .validate()
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
        let short: Value = serde_json::from_str(&notice_body("final", 0, job("hi"))).unwrap();
        assert_eq!(short["data"]["result"]["stdout"], "hi");
        assert_eq!(
            (&short["type"], &short["timestamp"]),
            (&json!("job.final"), &json!("1970-01-01T00:00:00.000Z"))
        );
        let long = notice_body("final", 0, job(&"x".repeat(MAX_RESULT_BYTES)));
        assert!(long.len() < 1000);
        let long: Value = serde_json::from_str(&long).unwrap();
        assert_eq!(
            long["data"]["result"],
            json!({ "exit_code": 0, "left_out": ["stdout"] })
        );
        let other =
            json!({ "result": { "artifacts": ["x".repeat(MAX_RESULT_BYTES)] } }).to_string();
        let other: Value = serde_json::from_str(&notice_body("final", 0, other)).unwrap();
        assert_eq!(other["data"]["result"], json!({ "left_out": ["all"] }));
    }
}
