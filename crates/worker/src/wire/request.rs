//! Requests: an invocation of a tool, a question for what a tool is. Unknown fields are passed over, nulls are as if absent.

use crate::transport::Properties;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

/// An invocation, as far as it was understood.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Invoke {
    pub id: String,
    pub task_id: String,
    pub tool: String,
    pub args: Map<String, Value>,
    /// Secrets are among it.
    pub tool_config: Map<String, Value>,
    pub app_name: String,
    pub user_id: String,
    pub session_id: String,
    pub preloaded: BTreeMap<String, Preloaded>,
    pub references: BTreeMap<String, Reference>,
    pub timeout: Option<Duration>,
    pub profile: Option<String>,
    pub reply: Reply,
}

/// A file that came with the request.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Preloaded {
    pub filename: String,
    pub content: Vec<u8>,
    pub mime_type: String,
    pub version: i64,
}

/// A file that lies where artifacts do.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Its name.
    pub filename: String,
    /// None is the latest.
    pub version: Option<i64>,
}

/// Where the answer goes, and what goes with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The topic of the one answer.
    pub to: String,
    /// The topic of what is said meanwhile.
    pub status_to: Option<String>,
    /// What is sent back as it came: `traceId`.
    pub echoed: Properties,
    /// When it was sent, by the sender's clock; milliseconds since 1970.
    pub sent_ms: Option<u64>,
}
