//! Messages in sections: what we say and what we understand. The body is taken as it lies there; what travels beside it is
//! bounded.

use super::{
    address::Addresses,
    value::{Flaw, Value, skip},
};
use crate::transport::{Outgoing, Properties};
use bytes::{BufMut, Bytes, BytesMut};

/// What travels beside the body, in bytes.
const MOST_BESIDE: usize = 256 << 10;

mod section {
    pub(super) const HEADER: u64 = 0x70;
    pub(super) const ANNOTATIONS: u64 = 0x72;
    pub(super) const PROPERTIES: u64 = 0x73;
    pub(super) const APPLICATION: u64 = 0x74;
    pub(super) const DATA: u64 = 0x75;
    pub(super) const VALUE: u64 = 0x77;
}

/// A message that came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Incoming {
    /// As far as the message says it.
    pub(super) topic: Option<String>,
    pub(super) payload: Bytes,
    pub(super) properties: Properties,
}

/// Why a message cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unclear {
    #[error("it is no message of AMQP: {0}")]
    Flaw(#[from] Flaw),
    #[error("{0} bytes travel beside it, more than {MOST_BESIDE}")]
    Beside(usize),
    #[error("its body is neither bytes nor text")]
    Body,
}

pub(super) fn write(message: &Outgoing, addresses: &Addresses) -> Bytes {
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

/// In the mesh one property is a number.
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

pub(super) fn read(mut bytes: Bytes, addresses: &Addresses) -> Result<Incoming, Unclear> {
    let mut incoming = Incoming::default();
    let mut data: Vec<Bytes> = Vec::new();
    let (mut named, mut annotated, mut reply_to) = (None, None, None);
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
            // How it came here, or what is to be checked: not for us.
            0x70 | 0x71 | 0x78 => {}
            _ => return Err(Unclear::Body),
        }
    }
    // Where the broker does not say it, the sender's word counts: then whoever may write to the queue may ask for any tool.
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

/// Takes the name from before a section.
fn section_name(section: &mut Bytes) -> Result<u64, Unclear> {
    if section.first() != Some(&0) {
        return Err(Flaw::Type.into());
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
            _ => return Err(Unclear::Body),
        }),
        name => name.number().ok_or(Unclear::Flaw(Flaw::Type)),
    }
}

fn beside(mut section: Bytes) -> Result<Value, Unclear> {
    if section.len() > MOST_BESIDE {
        return Err(Unclear::Beside(section.len()));
    }
    Ok(Value::read(&mut section)?)
}

fn body(name: u64, mut section: Bytes) -> Result<Bytes, Unclear> {
    // Only these are read: a list of millions is not even looked at.
    let is_flat = section
        .first()
        .is_some_and(|code| matches!(code, 0xa0 | 0xb0 | 0xa1 | 0xb1));
    match (is_flat, name) {
        (true, _) => match Value::read(&mut section)? {
            Value::Binary(bytes) => Ok(bytes),
            Value::Text(text) if name == section::VALUE => Ok(text.into()),
            _ => Err(Unclear::Body),
        },
        (false, _) => Err(Unclear::Body),
    }
}

/// The broker's own word on where it went; newer versions of RabbitMQ give it.
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

/// Of two with one name the first counts.
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
