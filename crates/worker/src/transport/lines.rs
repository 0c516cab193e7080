//! The dialect of development brokers: JSON objects, one a line, each request with one reply. What both ends share.
//!
//! What clients send each other stays as it was written, and is looked into by nobody between them: it may be as deep as they
//! like, and cannot break off the link of whoever gets it.

use super::Properties;
use crate::wire::lenient;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, io};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The longest line that either end takes.
pub const LONGEST: usize = 10 << 20;
/// How long is waited for a message where a client does not say.
const RECEIVE_MS: f64 = 5000.0;

/// Properties, each as it was written: its kind counts, too.
pub type Written = BTreeMap<String, Box<RawValue>>;

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "UPPERCASE", try_from = "Fields")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Command {
    Connect {
        client_id: String,
        queue_name: String,
        subscriptions: Vec<String>,
    },
    Subscribe {
        topic_pattern: String,
    },
    Unsubscribe {
        topic_pattern: String,
    },
    Publish {
        topic: String,
        payload: Box<RawValue>,
        user_properties: Written,
    },
    Receive {
        timeout_ms: u64,
    },
    Ack,
    Disconnect,
}

/// All that a line can have: what is to stay as it was written cannot be read after its kind is known.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    cmd: String,
    client_id: String,
    queue_name: String,
    subscriptions: Vec<String>,
    topic_pattern: Option<String>,
    topic: Option<String>,
    /// `null` is a message, too.
    #[serde(deserialize_with = "present")]
    payload: Option<Box<RawValue>>,
    user_properties: Option<Written>,
    /// Python's clients count it with fractions.
    timeout_ms: Option<f64>,
}

fn present<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

fn milliseconds(said: f64) -> Result<u64, String> {
    match (0.0..=f64::MAX).contains(&said) {
        // The longest if it is longer.
        true => Ok(said as u64),
        false => Err(format!("`timeout_ms`: {said} is no time")),
    }
}

impl TryFrom<Fields> for Command {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Command, String> {
        let lacks = |name: &str| format!("{} lacks `{name}`", fields.cmd);
        let pattern = || {
            fields
                .topic_pattern
                .clone()
                .ok_or_else(|| lacks("topic_pattern"))
        };
        Ok(match fields.cmd.as_str() {
            "CONNECT" => Command::Connect {
                client_id: fields.client_id,
                queue_name: fields.queue_name,
                subscriptions: fields.subscriptions,
            },
            "SUBSCRIBE" => Command::Subscribe {
                topic_pattern: pattern()?,
            },
            "UNSUBSCRIBE" => Command::Unsubscribe {
                topic_pattern: pattern()?,
            },
            "PUBLISH" => Command::Publish {
                topic: fields.topic.clone().ok_or_else(|| lacks("topic"))?,
                payload: fields.payload.clone().ok_or_else(|| lacks("payload"))?,
                user_properties: fields.user_properties.unwrap_or_default(),
            },
            "RECEIVE" => Command::Receive {
                timeout_ms: milliseconds(fields.timeout_ms.unwrap_or(RECEIVE_MS))?,
            },
            "ACK" => Command::Ack,
            "DISCONNECT" => Command::Disconnect,
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(format!("`{}` is no command", other.escape_debug()));
            }
        })
    }
}

/// What is answered.
#[derive(Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Reply {
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Nobody needs it who reads this, and other brokers have other kinds.
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub message_id: Option<u64>,
    /// A [`Delivered`]. What is wrong with it is not wrong with the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// A message on its way to a client.
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Delivered {
    #[serde(skip_deserializing)]
    pub message_id: u64,
    pub topic: String,
    pub payload: Box<RawValue>,
    pub user_properties: Option<Written>,
}

impl Reply {
    /// All is well.
    pub fn ok() -> Reply {
        Reply {
            status: "OK".to_owned(),
            ..Reply::default()
        }
    }

    /// Nothing came in time.
    pub fn timeout() -> Reply {
        Reply {
            status: "TIMEOUT".to_owned(),
            ..Reply::default()
        }
    }

    /// It cannot be done.
    pub fn error(code: &str, message: impl Into<String>) -> Reply {
        Reply {
            status: "ERROR".to_owned(),
            error_code: Some(code.to_owned()),
            error_message: Some(message.into()),
            ..Reply::default()
        }
    }
}

/// One of these as a line.
pub fn line(what: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    Ok(line)
}

/// What a line says. Python's clients and brokers write some that is no JSON: that is mended, not held against them.
pub fn read<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(line).or_else(|error| match lenient::mended(line) {
        Cow::Owned(mended) => serde_json::from_slice(&mended),
        Cow::Borrowed(_) => Err(error),
    })
}

/// Reads on until `held` is a whole line, without its end; false at the end of the stream. May be dropped and called again:
/// what was read stays in `held`.
pub async fn fill(from: &mut (impl AsyncBufRead + Unpin), held: &mut Vec<u8>) -> io::Result<bool> {
    let room = (LONGEST + 1).saturating_sub(held.len()) as u64;
    from.take(room).read_until(b'\n', held).await?;
    match held.last() {
        Some(b'\n') => {
            held.pop();
            Ok(true)
        }
        _ if held.len() > LONGEST => Err(too_long()),
        _ => Ok(false),
    }
}

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("a line of more than {LONGEST} bytes"),
    )
}

/// Reads to the end of a line of which nothing is kept.
pub async fn pass_over(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
    loop {
        let read = from.fill_buf().await?;
        let end = read.iter().position(|byte| *byte == b'\n');
        let (is_over, used) = (
            end.is_some() || read.is_empty(),
            end.map_or(read.len(), |at| at + 1),
        );
        from.consume(used);
        if is_over {
            return Ok(());
        }
    }
}

/// A text is what it says; everything else is what is written.
pub fn as_text(written: &RawValue) -> String {
    let text = written.get();
    let said = if text.starts_with('"') {
        read(text.as_bytes()).ok()
    } else {
        None
    };
    said.unwrap_or_else(|| text.to_owned())
}

/// Properties as texts, without those that say nothing.
pub fn as_texts(properties: Written) -> Properties {
    let said = properties
        .into_iter()
        .filter(|(_, value)| value.get() != "null");
    said.map(|(name, value)| (name, as_text(&value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_a_message_and_nothing_is_none() {
        let sent = |line: &str| match read(line.as_bytes()) {
            Ok(Command::Publish { payload, .. }) => Ok(payload.get().to_owned()),
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
        let waits = |time: &str| match read(format!(r#"{{"cmd":"RECEIVE"{time}}}"#).as_bytes()) {
            Ok(Command::Receive { timeout_ms }) => Some(timeout_ms),
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
        assert!(fill(&mut endless, &mut held).await.is_err());
        assert!(held.len() <= LONGEST + 1);
        let (mut held, mut two) = (b"al".to_vec(), &b"l\nmore"[..]);
        assert!(fill(&mut two, &mut held).await.unwrap());
        assert_eq!(held, b"all");
        held.clear();
        assert!(
            !fill(&mut two, &mut held).await.unwrap(),
            "half a line is none"
        );
    }

    #[tokio::test]
    async fn a_line_that_is_passed_over_hides_nothing_behind_it() {
        let mut from = tokio::io::BufReader::with_capacity(3, &b"too long\nnext\nend"[..]);
        pass_over(&mut from).await.unwrap();
        let mut held = Vec::new();
        assert!(fill(&mut from, &mut held).await.unwrap());
        assert_eq!(held, b"next");
        pass_over(&mut from).await.unwrap();
        assert!(!fill(&mut from, &mut Vec::new()).await.unwrap());
    }
}
