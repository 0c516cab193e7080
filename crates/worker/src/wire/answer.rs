//! Answers, exactly as the agents' models accept them. One that does not fit into a message is
//! replaced by an error, because a requester without an answer waits until its timeout.

use super::{
    code::{CallRefusal, MeshErrorCode},
    request::CardFormat,
    schema,
};
use crate::transport::Properties;
use serde::Serialize;
use serde_json::{Map, Value};
use spec::Timestamp;
use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

/// Default maximum size of a message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 10_000_000;
/// Maximum length of an error or status text, in bytes; longer ones are truncated.
pub const MAX_TEXT_BYTES: usize = 32 << 10;

/// A saved output file of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CreatedArtifact {
    /// File name.
    pub filename: String,
    /// Version number.
    pub version: i64,
    /// MIME type.
    pub mime_type: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Description by the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Description of a tool for agents. Unknown parts are omitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCard {
    /// Name of the tool.
    pub tool_name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// The complete JSON Schema; what agents do not accept is removed when it is sent.
    pub parameters: Option<Value>,
    /// Parameters that are files.
    pub artifact_params: BTreeMap<String, ArtifactParam>,
    /// For the model's system prompt.
    pub instructions: Option<String>,
    /// Configuration keys.
    pub config_schema: Option<Vec<Value>>,
    /// Python only.
    pub ctx_facade_param_name: Option<String>,
}

/// A parameter that is a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArtifactParam {
    /// Whether it is a list of files.
    pub is_list: bool,
    /// Whether it may be absent.
    pub is_optional: bool,
    /// Key of the file name, in lists of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename_key: Option<String>,
}

/// A message exceeds the maximum size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {size} bytes; {largest} may be sent")]
pub struct TooLarge {
    /// Size of the message.
    pub size: usize,
    /// Maximum size.
    pub largest: usize,
}

#[derive(Serialize)]
struct RpcResponse<'a, T> {
    jsonrpc: &'static str,
    id: &'a str,
    #[serde(flatten)]
    outcome: Outcome<T>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome<T> {
    Result(T),
    Error(Error),
}

#[derive(Serialize)]
struct Error {
    code: MeshErrorCode,
    message: String,
}

#[derive(Serialize)]
struct RpcNotification<T> {
    jsonrpc: &'static str,
    method: &'static str,
    params: T,
}

#[derive(Serialize)]
struct InvokeResult<'a> {
    tool_result: &'a Map<String, Value>,
    execution_time_ms: u64,
    timed_out: bool,
    created_artifacts: &'a [CreatedArtifact],
}

#[derive(Serialize)]
struct StatusParams<'a> {
    task_id: &'a str,
    status_text: String,
    timestamp: String,
}

#[derive(Serialize)]
struct ToolNameParams<'a> {
    tool_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A tool's description in one of the two [`CardFormat`]s: one pair of the first four is empty.
#[derive(Serialize)]
struct CardFields<'a> {
    tool_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters_schema: Option<&'a Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    artifact_params: &'a BTreeMap<String, ArtifactParam>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config_schema: Option<&'a [Value]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ctx_facade_param_name: Option<&'a str>,
}

/// Result of a tool. `took` begins with the arrival of the request. A result that is too large
/// becomes a refusal.
pub fn success(
    id: &str,
    tool_result: &Map<String, Value>,
    took: Duration,
    created: &[CreatedArtifact],
    largest: usize,
) -> Result<Vec<u8>, CallRefusal> {
    let outturn = InvokeResult {
        tool_result,
        execution_time_ms: milliseconds(took),
        timed_out: false,
        created_artifacts: created,
    };
    check_size(answer(id, Outcome::Result(outturn)), largest).map_err(|large| {
        let TooLarge { size, largest } = large;
        let message = format!(
            "the answer has {size} bytes; a message may have {largest}. The tool ran, and its files are kept: let it \
             write large results to files"
        );
        CallRefusal::new(MeshErrorCode::ExecutionError, message)
    })
}

/// The tool timed out: no error in the agents' models.
pub fn timed_out(id: &str, took: Duration) -> Vec<u8> {
    let outturn = InvokeResult {
        tool_result: &Map::new(),
        execution_time_ms: milliseconds(took),
        timed_out: true,
        created_artifacts: &[],
    };
    answer(id, Outcome::Result(outturn))
}

/// An error.
pub fn error(id: &str, refusal: &CallRefusal) -> Vec<u8> {
    let error = Error {
        code: refusal.code,
        message: cut(&refusal.message),
    };
    answer::<()>(id, Outcome::Error(error))
}

/// A status message of a running tool.
pub fn status(task_id: &str, text: &str, at: SystemTime) -> Vec<u8> {
    notice(
        "sam_remote_tool/status",
        StatusParams {
            task_id,
            status_text: cut(text),
            timestamp: iso_8601(at),
        },
    )
}

/// Announcement of a tool.
pub fn init_broadcast(card: &ToolCard, largest: usize) -> Result<Vec<u8>, TooLarge> {
    let parameters = card.parameters.as_ref().map(schema::for_asker);
    let params = format_card(card, parameters.as_ref(), CardFormat::Current);
    check_size(notice("sam_remote_tool/init", params), largest)
}

/// Description of a tool for one requester.
pub fn init_answer(id: &str, card: &ToolCard, format: CardFormat, largest: usize) -> Vec<u8> {
    let parameters = card.parameters.as_ref().map(schema::for_asker);
    let result = format_card(card, parameters.as_ref(), format);
    check_size(answer(id, Outcome::Result(result)), largest).unwrap_or_else(|large| {
        error(
            id,
            &CallRefusal::new(MeshErrorCode::InitError, large.to_string()),
        )
    })
}

/// Announcement that a tool was removed.
pub fn removed(tool_name: &str) -> Vec<u8> {
    notice(
        "sam_remote_tool/removed",
        ToolNameParams {
            tool_name,
            error: None,
        },
    )
}

/// Announcement that a tool cannot be described. Only the method of this message is specified by
/// the mesh.
pub fn failed_discovery(tool_name: &str, why: &str) -> Vec<u8> {
    notice(
        "sam_remote_tool/failed_discovery",
        ToolNameParams {
            tool_name,
            error: Some(cut(why)),
        },
    )
}

/// Properties of a message: timestamp and echoed properties.
pub fn properties(echoed: &Properties, at: SystemTime) -> Properties {
    let mut properties = echoed.clone();
    properties.insert(
        "timestamp".to_owned(),
        milliseconds(since_1970(at)).to_string(),
    );
    properties
}

/// The result as an object, as answers require; other values are wrapped as text.
pub fn tool_result(returned: Value) -> Map<String, Value> {
    let text = match returned {
        Value::Object(map) => return map,
        Value::Null | Value::String(_) => returned,
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => Value::String(returned.to_string()),
    };
    Map::from_iter([
        ("text".to_owned(), text),
        ("data_objects".to_owned(), Value::Array(Vec::new())),
    ])
}

fn answer<T: Serialize>(id: &str, outcome: Outcome<T>) -> Vec<u8> {
    json(&RpcResponse {
        jsonrpc: "2.0",
        id,
        outcome,
    })
}

fn notice(method: &'static str, params: impl Serialize) -> Vec<u8> {
    json(&RpcNotification {
        jsonrpc: "2.0",
        method,
        params,
    })
}

/// Cannot fail: all keys are strings.
fn json(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

fn check_size(message: Vec<u8>, largest: usize) -> Result<Vec<u8>, TooLarge> {
    if message.len() <= largest {
        Ok(message)
    } else {
        Err(TooLarge {
            size: message.len(),
            largest,
        })
    }
}

/// Empty descriptions are omitted, because model providers refuse them.
fn format_card<'a>(
    card: &'a ToolCard,
    parameters: Option<&'a Value>,
    format: CardFormat,
) -> CardFields<'a> {
    let description = card.description.as_deref().filter(|text| !text.is_empty());
    let in_ = |wanted: CardFormat| format == wanted;
    CardFields {
        tool_name: &card.tool_name,
        description: description.filter(|_| in_(CardFormat::Current)),
        parameters: parameters.filter(|_| in_(CardFormat::Current)),
        tool_description: description.filter(|_| in_(CardFormat::Legacy)),
        parameters_schema: parameters.filter(|_| in_(CardFormat::Legacy)),
        artifact_params: &card.artifact_params,
        instructions: card.instructions.as_deref(),
        config_schema: card.config_schema.as_deref(),
        ctx_facade_param_name: card.ctx_facade_param_name.as_deref(),
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// ISO 8601 in UTC with microseconds, as Python writes it.
fn iso_8601(at: SystemTime) -> String {
    let since = since_1970(at);
    let text = Timestamp(milliseconds(since)).to_string();
    format!(
        "{}{:03}+00:00",
        text.trim_end_matches('Z'),
        since.subsec_micros() % 1000
    )
}

/// At most [`MAX_TEXT_BYTES`] bytes, at a character boundary.
fn cut(text: &str) -> String {
    if text.len() <= MAX_TEXT_BYTES {
        text.to_owned()
    } else {
        format!(
            "{}…",
            &text[..text.floor_char_boundary(MAX_TEXT_BYTES - '…'.len_utf8())]
        )
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
