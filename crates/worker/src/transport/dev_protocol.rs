//! Protocol of development brokers: JSON objects, one per line, one reply per request; used by
//! client and broker.
//!
//! Payloads are passed on as they were written and never parsed by the broker: they may be nested
//! at will and cannot break the recipient's connection.

use super::Properties;
use crate::wire::lenient;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, io};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Maximum length of a line.
pub const MAX_LINE_BYTES: usize = 10 << 20;
/// Default timeout of a receive.
const DEFAULT_RECEIVE_MS: f64 = 5000.0;

/// Properties as raw JSON: their types are kept.
pub type RawProperties = BTreeMap<String, Box<RawValue>>;

/// A command of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "UPPERCASE", try_from = "Fields")]
pub enum DevCommand {
    /// Opens a session.
    Connect {
        /// Name of the client; generated if empty.
        client_id: String,
        /// Name of the queue; unused.
        queue_name: String,
        /// Initial subscriptions.
        subscriptions: Vec<String>,
    },
    /// Adds a subscription.
    Subscribe {
        /// Topic pattern.
        topic_pattern: String,
    },
    /// Removes a subscription.
    Unsubscribe {
        /// Topic pattern.
        topic_pattern: String,
    },
    /// Publishes a message.
    Publish {
        /// Topic.
        topic: String,
        /// Payload as raw JSON.
        payload: Box<RawValue>,
        /// User properties.
        user_properties: RawProperties,
    },
    /// Waits for the next message.
    Receive {
        /// Timeout in milliseconds.
        timeout_ms: u64,
    },
    /// Acknowledges a message; has no effect.
    Ack,
    /// Closes the session.
    Disconnect,
}

/// All fields of a command: raw JSON cannot be deserialized after the tag is known.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    cmd: String,
    client_id: String,
    queue_name: String,
    subscriptions: Vec<String>,
    topic_pattern: Option<String>,
    topic: Option<String>,
    /// `null` is a valid payload.
    #[serde(deserialize_with = "present")]
    payload: Option<Box<RawValue>>,
    user_properties: Option<RawProperties>,
    /// Python clients send fractions.
    timeout_ms: Option<f64>,
}

fn present<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

fn milliseconds(said: f64) -> Result<u64, String> {
    if (0.0..=f64::MAX).contains(&said) {
        // Saturates.
        Ok(said as u64)
    } else {
        Err(format!("`timeout_ms`: {said} is no time"))
    }
}

impl TryFrom<Fields> for DevCommand {
    type Error = String;

    fn try_from(fields: Fields) -> Result<DevCommand, String> {
        let lacks = |name: &str| format!("{} lacks `{name}`", fields.cmd);
        let pattern = || {
            fields
                .topic_pattern
                .clone()
                .ok_or_else(|| lacks("topic_pattern"))
        };
        Ok(match fields.cmd.as_str() {
            "CONNECT" => DevCommand::Connect {
                client_id: fields.client_id,
                queue_name: fields.queue_name,
                subscriptions: fields.subscriptions,
            },
            "SUBSCRIBE" => DevCommand::Subscribe {
                topic_pattern: pattern()?,
            },
            "UNSUBSCRIBE" => DevCommand::Unsubscribe {
                topic_pattern: pattern()?,
            },
            "PUBLISH" => DevCommand::Publish {
                topic: fields.topic.clone().ok_or_else(|| lacks("topic"))?,
                payload: fields.payload.clone().ok_or_else(|| lacks("payload"))?,
                user_properties: fields.user_properties.unwrap_or_default(),
            },
            "RECEIVE" => DevCommand::Receive {
                timeout_ms: milliseconds(fields.timeout_ms.unwrap_or(DEFAULT_RECEIVE_MS))?,
            },
            "ACK" => DevCommand::Ack,
            "DISCONNECT" => DevCommand::Disconnect,
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(format!("`{}` is no command", other.escape_debug()));
            }
        })
    }
}

/// A reply of the broker.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct DevReply {
    /// `OK`, `TIMEOUT` or `ERROR`.
    pub status: String,
    /// Name of the client, after a connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Not read by clients; other brokers use other types.
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub message_id: Option<u64>,
    /// A [`DeliveredMessage`]. If it is invalid, the reply is still valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Box<RawValue>>,
    /// Code of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Text of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// A message for a client.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeliveredMessage {
    /// Number of the message.
    #[serde(skip_deserializing)]
    pub message_id: u64,
    /// Topic.
    pub topic: String,
    /// Payload as raw JSON.
    pub payload: Box<RawValue>,
    /// User properties.
    pub user_properties: Option<RawProperties>,
}

impl DevReply {
    /// Success.
    pub fn ok() -> DevReply {
        DevReply {
            status: "OK".to_owned(),
            ..DevReply::default()
        }
    }

    /// Nothing was received in time.
    pub fn timeout() -> DevReply {
        DevReply {
            status: "TIMEOUT".to_owned(),
            ..DevReply::default()
        }
    }

    /// An error.
    pub fn error(code: &str, message: impl Into<String>) -> DevReply {
        DevReply {
            status: "ERROR".to_owned(),
            error_code: Some(code.to_owned()),
            error_message: Some(message.into()),
            ..DevReply::default()
        }
    }
}

/// Encodes a line.
pub fn encode(what: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    Ok(line)
}

/// Decodes a line. Python's clients and brokers write numbers that are no JSON, which are repaired.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(line).or_else(|error| match lenient::repair(line) {
        Cow::Owned(mended) => serde_json::from_slice(&mended),
        Cow::Borrowed(_) => Err(error),
    })
}

/// Reads until `held` contains a whole line, without its end; false at the end of the stream.
/// Cancel safe: partial input stays in `held`.
pub async fn read_line(
    from: &mut (impl AsyncBufRead + Unpin),
    held: &mut Vec<u8>,
) -> io::Result<bool> {
    let room = (MAX_LINE_BYTES + 1).saturating_sub(held.len()) as u64;
    from.take(room).read_until(b'\n', held).await?;
    match held.last() {
        Some(b'\n') => {
            held.pop();
            Ok(true)
        }
        _ if held.len() > MAX_LINE_BYTES => Err(too_long()),
        _ => Ok(false),
    }
}

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("a line of more than {MAX_LINE_BYTES} bytes"),
    )
}

/// Skips the rest of a line.
pub async fn skip_line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
    loop {
        let read = from.fill_buf().await?;
        let end = read.iter().position(|byte| *byte == b'\n');
        let is_over = end.is_some() || read.is_empty();
        let used = end.map_or(read.len(), |at| at + 1);
        from.consume(used);
        if is_over {
            return Ok(());
        }
    }
}

/// A JSON string's content; any other value as JSON.
pub fn as_text(written: &RawValue) -> String {
    let text = written.get();
    let decoded = if text.starts_with('"') {
        decode(text.as_bytes()).ok()
    } else {
        None
    };
    decoded.unwrap_or_else(|| text.to_owned())
}

/// Properties as texts, without nulls.
pub fn as_texts(properties: RawProperties) -> Properties {
    let present = properties
        .into_iter()
        .filter(|(_, value)| value.get() != "null");
    present
        .map(|(name, value)| (name, as_text(&value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_a_message_and_nothing_is_none() {
        let sent = |line: &str| match decode(line.as_bytes()) {
            Ok(DevCommand::Publish { payload, .. }) => Ok(payload.get().to_owned()),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(
            sent(r#"{"cmd":"PUBLISH","topic":"a","payload":null}"#),
            Ok("null".to_owned())
        );
        assert_eq!(
            sent(r#"{"cmd":"PUBLISH","topic":"a","payload": [1 ,2]}"#),
            Ok("[1 ,2]".to_owned())
        );
        let none = sent(r#"{"cmd":"PUBLISH","topic":"a"}"#).unwrap_err();
        assert!(none.contains("PUBLISH lacks `payload`"), "{none}");
    }

    #[test]
    fn a_time_may_be_any_number_or_left_to_us() {
        let waits = |time: &str| match decode(format!(r#"{{"cmd":"RECEIVE"{time}}}"#).as_bytes()) {
            Ok(DevCommand::Receive { timeout_ms }) => Some(timeout_ms),
            _ => None,
        };
        let said = [
            "",
            r#","timeout_ms":null"#,
            r#","timeout_ms":1000.0"#,
            r#","timeout_ms":0"#,
        ];
        assert_eq!(
            said.map(waits),
            [Some(5000), Some(5000), Some(1000), Some(0)]
        );
        assert_eq!(
            waits(r#","timeout_ms":18446744073709551615"#),
            Some(u64::MAX)
        );
        let wrong = [r#","timeout_ms":-1"#, r#","timeout_ms":"1""#];
        assert_eq!(wrong.map(waits), [None, None]);
    }

    #[tokio::test]
    async fn a_line_is_bounded_and_may_come_in_pieces() {
        let mut held = Vec::new();
        let mut endless = tokio::io::BufReader::new(tokio::io::repeat(b'x'));
        assert!(read_line(&mut endless, &mut held).await.is_err());
        assert!(held.len() <= MAX_LINE_BYTES + 1);
        let mut held = b"al".to_vec();
        let mut two = &b"l\nmore"[..];
        assert!(read_line(&mut two, &mut held).await.unwrap());
        assert_eq!(held, b"all");
        held.clear();
        assert!(
            !read_line(&mut two, &mut held).await.unwrap(),
            "half a line is none"
        );
    }

    #[tokio::test]
    async fn a_line_that_is_passed_over_hides_nothing_behind_it() {
        let mut from = tokio::io::BufReader::with_capacity(3, &b"too long\nnext\nend"[..]);
        skip_line(&mut from).await.unwrap();
        let mut held = Vec::new();
        assert!(read_line(&mut from, &mut held).await.unwrap());
        assert_eq!(held, b"next");
        skip_line(&mut from).await.unwrap();
        assert!(!read_line(&mut from, &mut Vec::new()).await.unwrap());
    }
}
