//! AMQP message sections, encoded and decoded. The body is not copied; the other sections are
//! bounded.

use super::{
    address::AddressScheme,
    value::{DecodeError, Value, skip},
};
use crate::transport::{OutgoingMessage, Properties};
use bytes::{BufMut, Bytes, BytesMut};

/// Maximum size of a section other than the body.
const MAX_SECTION_BYTES: usize = 256 << 10;

mod section {
    pub(super) const HEADER: u64 = 0x70;
    pub(super) const ANNOTATIONS: u64 = 0x72;
    pub(super) const PROPERTIES: u64 = 0x73;
    pub(super) const APPLICATION: u64 = 0x74;
    pub(super) const DATA: u64 = 0x75;
    pub(super) const VALUE: u64 = 0x77;
}

/// A received message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DecodedMessage {
    /// If the message says it.
    pub(super) topic: Option<String>,
    pub(super) payload: Bytes,
    pub(super) properties: Properties,
}

/// Why a message is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("it is no message of AMQP: {0}")]
    Decode(#[from] DecodeError),
    #[error("{0} bytes travel beside it, more than {MAX_SECTION_BYTES}")]
    Beside(usize),
    #[error("its body is neither bytes nor text")]
    Body,
}

pub(super) fn write(message: &OutgoingMessage, addresses: &AddressScheme) -> Bytes {
    let mut out = BytesMut::with_capacity(message.payload.len() + 512);
    // Durable.
    Value::named(section::HEADER, vec![Value::Bool(true)]).write(&mut out);
    let null = || Value::Null;
    let to = Value::Text(addresses.topic(&message.topic));
    let subject = addresses
        .key(&message.topic)
        .map_or(Value::Null, Value::Text);
    Value::named(section::PROPERTIES, vec![null(), null(), to, subject]).write(&mut out);
    if !message.properties.is_empty() {
        let pairs = message
            .properties
            .iter()
            .map(|(key, value)| (Value::text(key), typed(key, value)));
        described(&mut out, section::APPLICATION);
        Value::Map(pairs.collect()).write(&mut out);
    }
    described(&mut out, section::DATA);
    Value::Binary(message.payload.clone()).write(&mut out);
    out.freeze()
}

/// The mesh expects the timestamp as a number.
fn typed(key: &str, value: &str) -> Value {
    match (key, value.parse()) {
        ("timestamp", Ok(number)) => Value::Long(number),
        _ => Value::text(value),
    }
}

fn described(out: &mut BytesMut, name: u64) {
    out.put_u8(0);
    Value::Ulong(name).write(out);
}

pub(super) fn read(
    mut bytes: Bytes,
    addresses: &AddressScheme,
) -> Result<DecodedMessage, MessageError> {
    let mut incoming = DecodedMessage::default();
    let mut data: Vec<Bytes> = Vec::new();
    let mut named = None;
    let mut annotated = None;
    let mut reply_to = None;
    while !bytes.is_empty() {
        let mut one = skip(&mut bytes)?;
        let name = section_name(&mut one)?;
        match name {
            section::DATA | section::VALUE => data.push(body(name, one)?),
            section::PROPERTIES => {
                if let Value::List(fields) = beside(one)? {
                    let words = |at: usize| {
                        fields
                            .get(at)
                            .and_then(Value::words)
                            .filter(|text| !text.is_empty())
                    };
                    named = words(2)
                        .and_then(|to| addresses.topic_of(to))
                        .or_else(|| words(3).and_then(|key| addresses.topic_of_key(key)));
                    reply_to = words(4).and_then(|address| addresses.topic_of(address));
                }
            }
            section::ANNOTATIONS => {
                annotated = routing_key(&beside(one)?).and_then(|key| addresses.topic_of_key(&key))
            }
            section::APPLICATION => incoming.properties = properties(beside(one)?),
            // Header, delivery annotations and footer are not needed.
            0x70 | 0x71 | 0x78 => {}
            _ => return Err(MessageError::Body),
        }
    }
    // Without the broker's word on the topic the sender's counts: then whoever may write to the
    // queue may invoke any tool.
    incoming.topic = annotated.or(named);
    if let Some(reply_to) = reply_to {
        incoming
            .properties
            .entry("replyTo".to_owned())
            .or_insert(reply_to);
    }
    incoming.payload = match <[Bytes; 1]>::try_from(data) {
        Ok([one]) => one,
        Err(parts) => parts.concat().into(),
    };
    Ok(incoming)
}

/// Takes the descriptor of a section.
fn section_name(section: &mut Bytes) -> Result<u64, MessageError> {
    if section.first() != Some(&0) {
        return Err(DecodeError::Type.into());
    }
    _ = section.split_to(1);
    match Value::read(section)? {
        Value::Symbol(word) => Ok(match word.as_str() {
            "amqp:message-annotations:map" => section::ANNOTATIONS,
            "amqp:properties:list" => section::PROPERTIES,
            "amqp:application-properties:map" => section::APPLICATION,
            "amqp:data:binary" => section::DATA,
            "amqp:amqp-value:*" => section::VALUE,
            "amqp:header:list" | "amqp:delivery-annotations:map" | "amqp:footer:map" => {
                section::HEADER
            }
            _ => return Err(MessageError::Body),
        }),
        name => name.number().ok_or(MessageError::Decode(DecodeError::Type)),
    }
}

fn beside(mut section: Bytes) -> Result<Value, MessageError> {
    if section.len() > MAX_SECTION_BYTES {
        return Err(MessageError::Beside(section.len()));
    }
    Ok(Value::read(&mut section)?)
}

fn body(name: u64, mut section: Bytes) -> Result<Bytes, MessageError> {
    // Only flat values are read; a list of millions is not parsed.
    let is_flat = section
        .first()
        .is_some_and(|code| matches!(code, 0xa0 | 0xb0 | 0xa1 | 0xb1));
    match (is_flat, name) {
        (true, _) => match Value::read(&mut section)? {
            Value::Binary(bytes) => Ok(bytes),
            Value::Text(text) if name == section::VALUE => Ok(text.into()),
            _ => Err(MessageError::Body),
        },
        (false, _) => Err(MessageError::Body),
    }
}

/// The routing key as the broker reports it; newer versions of RabbitMQ do.
fn routing_key(annotations: &Value) -> Option<String> {
    let Value::Map(pairs) = annotations else {
        return None;
    };
    let mut known = pairs
        .iter()
        .filter(|(key, _)| matches!(key.words(), Some("x-routing-key" | "x-opt-routing-key")));
    known
        .next()
        .and_then(|(_, value)| value.words().map(str::to_owned))
}

/// Of duplicate keys the first counts.
fn properties(value: Value) -> Properties {
    let mut properties = Properties::new();
    let Value::Map(pairs) = value else {
        return properties;
    };
    for (key, value) in pairs {
        if let (Some(key), Some(value)) = (key.words(), value.plain()) {
            properties.entry(key.to_owned()).or_insert(value);
        }
    }
    properties
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
