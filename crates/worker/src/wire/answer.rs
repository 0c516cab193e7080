//! Answers: exactly what the asker's models take, and nothing that they refuse. What does not fit into a message is replaced by
//! an error that says so: an asker that hears nothing waits in vain.

use super::{
    code::{Code, Refusal},
    request::Words,
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

/// The largest message that agents and workers send unless told otherwise, in bytes.
pub const LARGEST: usize = 10_000_000;
/// The longest text of an error or status, in bytes. What is longer is cut.
pub const LONGEST_TEXT: usize = 32 << 10;

/// A file that a tool made and that was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CreatedArtifact {
    pub filename: String,
    pub version: i64,
    pub mime_type: String,
    pub size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// What a tool is, as agents are told. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ToolCard {
    pub tool_name: String,
    pub description: Option<String>,
    /// The whole JSON Schema; what agents cannot take of it is left out on the way.
    pub parameters: Option<Value>,
    pub artifact_params: BTreeMap<String, ArtifactParam>,
    /// For the model's system prompt.
    pub instructions: Option<String>,
    pub config_schema: Option<Vec<Value>>,
    /// Python's alone.
    pub ctx_facade_param_name: Option<String>,
}

/// A parameter that is a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ArtifactParam {
    pub is_list: bool,
    pub is_optional: bool,
    /// Where the name is, in lists of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename_key: Option<String>,
}

/// A message is larger than may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {size} bytes; {largest} may be sent")]
#[allow(missing_docs, reason = "the names say it")]
pub struct TooLarge {
    pub size: usize,
    pub largest: usize,
}

#[derive(Serialize)]
struct Answer<'a, T> {
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
    code: Code,
    message: String,
}

#[derive(Serialize)]
struct Notice<T> {
    jsonrpc: &'static str,
    method: &'static str,
    params: T,
}

#[derive(Serialize)]
struct Outturn<'a> {
    tool_result: &'a Map<String, Value>,
    execution_time_ms: u64,
    timed_out: bool,
    created_artifacts: &'a [CreatedArtifact],
}

#[derive(Serialize)]
struct Said<'a> {
    task_id: &'a str,
    status_text: String,
    timestamp: String,
}

#[derive(Serialize)]
struct Named<'a> {
    tool_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What agents are told in either of the two [`Words`]: one pair of the first four is empty.
#[derive(Serialize)]
struct Card<'a> {
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

/// The tool ran. `took` is from the request's arrival on. What is too large is refused, and that is to be said instead.
pub fn success(
    id: &str,
    tool_result: &Map<String, Value>,
    took: Duration,
    created: &[CreatedArtifact],
    largest: usize,
) -> Result<Vec<u8>, Refusal> {
    let outturn = Outturn {
        tool_result,
        execution_time_ms: milliseconds(took),
        timed_out: false,
        created_artifacts: created,
    };
    fitting(answer(id, Outcome::Result(outturn)), largest).map_err(|large| {
        let TooLarge { size, largest } = large;
        let message = format!(
            "the answer has {size} bytes; a message may have {largest}. The tool ran, and its files are kept: let it \
             write large results to files"
        );
        Refusal::new(Code::ExecutionError, message)
    })
}

/// The tool was stopped because its time was up: no error to the asker's models.
pub fn timed_out(id: &str, took: Duration) -> Vec<u8> {
    let outturn = Outturn {
        tool_result: &Map::new(),
        execution_time_ms: milliseconds(took),
        timed_out: true,
        created_artifacts: &[],
    };
    answer(id, Outcome::Result(outturn))
}

/// There is no result.
pub fn error(id: &str, refusal: &Refusal) -> Vec<u8> {
    let error = Error {
        code: refusal.code,
        message: cut(&refusal.message),
    };
    answer::<()>(id, Outcome::Error(error))
}

/// What a tool says while it runs.
pub fn status(task_id: &str, text: &str, at: SystemTime) -> Vec<u8> {
    notice(
        "sam_remote_tool/status",
        Said {
            task_id,
            status_text: cut(text),
            timestamp: written(at),
        },
    )
}

/// What a tool is, for everybody.
pub fn init_broadcast(card: &ToolCard, largest: usize) -> Result<Vec<u8>, TooLarge> {
    let parameters = card.parameters.as_ref().map(schema::for_asker);
    let params = in_words(card, parameters.as_ref(), Words::Today);
    fitting(notice("sam_remote_tool/init", params), largest)
}

/// What a tool is, for one who asked.
pub fn init_answer(id: &str, card: &ToolCard, words: Words, largest: usize) -> Vec<u8> {
    let parameters = card.parameters.as_ref().map(schema::for_asker);
    let result = in_words(card, parameters.as_ref(), words);
    fitting(answer(id, Outcome::Result(result)), largest)
        .unwrap_or_else(|large| error(id, &Refusal::new(Code::InitError, large.to_string())))
}

/// A tool is gone, for everybody.
pub fn removed(tool_name: &str) -> Vec<u8> {
    notice(
        "sam_remote_tool/removed",
        Named {
            tool_name,
            error: None,
        },
    )
}

/// A tool does not say what it is. The mesh has published no more of this message than its method.
pub fn failed_discovery(tool_name: &str, why: &str) -> Vec<u8> {
    notice(
        "sam_remote_tool/failed_discovery",
        Named {
            tool_name,
            error: Some(cut(why)),
        },
    )
}

/// What goes beside each message: when it was sent, and what its asker wants back.
pub fn properties(echoed: &Properties, at: SystemTime) -> Properties {
    let mut properties = echoed.clone();
    properties.insert(
        "timestamp".to_owned(),
        milliseconds(since_1970(at)).to_string(),
    );
    properties
}

/// What a tool returned, as the object that an answer must have: other things are texts in one.
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
    json(&Answer {
        jsonrpc: "2.0",
        id,
        outcome,
    })
}

fn notice(method: &'static str, params: impl Serialize) -> Vec<u8> {
    json(&Notice {
        jsonrpc: "2.0",
        method,
        params,
    })
}

/// Nothing of ours has keys that are no texts, which is all that could fail.
fn json(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

fn fitting(message: Vec<u8>, largest: usize) -> Result<Vec<u8>, TooLarge> {
    match message.len() <= largest {
        true => Ok(message),
        false => Err(TooLarge {
            size: message.len(),
            largest,
        }),
    }
}

/// Providers refuse empty descriptions, so that none is better.
fn in_words<'a>(card: &'a ToolCard, parameters: Option<&'a Value>, words: Words) -> Card<'a> {
    let description = card.description.as_deref().filter(|text| !text.is_empty());
    let in_ = |wanted: Words| words == wanted;
    Card {
        tool_name: &card.tool_name,
        description: description.filter(|_| in_(Words::Today)),
        parameters: parameters.filter(|_| in_(Words::Today)),
        tool_description: description.filter(|_| in_(Words::Old)),
        parameters_schema: parameters.filter(|_| in_(Words::Old)),
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
fn written(at: SystemTime) -> String {
    let since = since_1970(at);
    let text = Timestamp(milliseconds(since)).to_string();
    format!(
        "{}{:03}+00:00",
        text.trim_end_matches('Z'),
        since.subsec_micros() % 1000
    )
}

/// At most [`LONGEST_TEXT`] bytes, in whole characters.
fn cut(text: &str) -> String {
    match text.len() <= LONGEST_TEXT {
        true => text.to_owned(),
        false => format!(
            "{}…",
            &text[..text.floor_char_boundary(LONGEST_TEXT - '…'.len_utf8())]
        ),
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
