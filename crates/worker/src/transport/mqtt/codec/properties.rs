//! MQTT 5 properties. The identifier determines type and allowed packets. An unknown one makes the
//! packet malformed, because its length is unknown.

use super::{
    CodecError,
    primitives::{Cursor, put_binary, put_text, put_variable},
};
use bytes::{BufMut, Bytes, BytesMut};

/// Maximum number of repeated properties; more are checked and skipped, so that a message with a
/// million of them does not cost us the connection.
const MAX_REPEATED: usize = 1024;
/// Maximum size of repeated properties.
const MAX_REPEATED_BYTES: usize = 256 << 10;

/// Identifiers that this client uses.
pub(crate) mod property {
    pub(crate) const SUBSCRIPTION_IDENTIFIER: u8 = 11;
    pub(crate) const SESSION_EXPIRY: u8 = 17;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 19;
    pub(crate) const REASON: u8 = 31;
    pub(crate) const RECEIVE_MAXIMUM: u8 = 33;
    pub(crate) const TOPIC_ALIAS: u8 = 35;
    pub(crate) const MAXIMUM_QOS: u8 = 36;
    pub(crate) const USER: u8 = 38;
    pub(crate) const MAXIMUM_PACKET_SIZE: u8 = 39;
    pub(crate) const SHARED_AVAILABLE: u8 = 42;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PropertyValue {
    Byte(u8),
    Two(u16),
    Four(u32),
    Variable(usize),
    Text(String),
    Binary(Bytes),
    Pair(String, String),
}

#[derive(Clone, Copy)]
enum PropertyType {
    /// A byte that is 0 or 1.
    Flag,
    Two,
    /// 0 is not allowed.
    TwoNotZero,
    Four,
    FourNotZero,
    Variable,
    Text,
    Binary,
    Pair,
}

/// Type of a property, and a bit mask of the packet types that may contain it.
fn property_type(number: u8) -> Option<(PropertyType, u16)> {
    const CONNECT: u16 = 1 << 1;
    const CONNACK: u16 = 1 << 2;
    const PUBLISH: u16 = 1 << 3;
    const SUBSCRIBE: u16 = 1 << 8;
    const DISCONNECT: u16 = 1 << 14;
    const ANSWERS: u16 = CONNACK | 1 << 4 | 1 << 9 | 1 << 11 | DISCONNECT;
    const ALL: u16 = u16::MAX;
    Some(match number {
        1 => (PropertyType::Flag, PUBLISH),
        2 => (PropertyType::Four, PUBLISH),
        3 | 8 => (PropertyType::Text, PUBLISH),
        9 => (PropertyType::Binary, PUBLISH),
        11 => (PropertyType::Variable, PUBLISH | SUBSCRIBE),
        17 => (PropertyType::Four, CONNECT | CONNACK | DISCONNECT),
        18 | 26 => (PropertyType::Text, CONNACK),
        19 => (PropertyType::Two, CONNACK),
        21 => (PropertyType::Text, CONNECT | CONNACK),
        22 => (PropertyType::Binary, CONNECT | CONNACK),
        23 | 25 => (PropertyType::Flag, CONNECT),
        28 => (PropertyType::Text, CONNACK | DISCONNECT),
        31 => (PropertyType::Text, ANSWERS),
        33 => (PropertyType::TwoNotZero, CONNECT | CONNACK),
        34 => (PropertyType::Two, CONNECT | CONNACK),
        35 => (PropertyType::TwoNotZero, PUBLISH),
        36 | 37 | 40 | 41 | 42 => (PropertyType::Flag, CONNACK),
        38 => (PropertyType::Pair, ALL),
        39 => (PropertyType::FourNotZero, CONNECT | CONNACK),
        _ => return None,
    })
}

/// The properties of a packet, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MqttProperties(pub(crate) Vec<(u8, PropertyValue)>);

impl MqttProperties {
    pub(crate) fn find(&self, number: u8) -> Option<&PropertyValue> {
        self.0
            .iter()
            .find(|(other, _)| *other == number)
            .map(|(_, value)| value)
    }

    /// An integer property of any size.
    pub(crate) fn number(&self, number: u8) -> Option<u32> {
        match self.find(number)? {
            PropertyValue::Byte(value) => Some(u32::from(*value)),
            PropertyValue::Two(value) => Some(u32::from(*value)),
            PropertyValue::Four(value) => Some(*value),
            PropertyValue::Variable(value) => u32::try_from(*value).ok(),
            PropertyValue::Text(_) | PropertyValue::Binary(_) | PropertyValue::Pair(..) => None,
        }
    }

    /// The reason string, or an empty text.
    pub(crate) fn reason(&self) -> &str {
        match self.find(property::REASON) {
            Some(PropertyValue::Text(text)) => text,
            _ => "",
        }
    }

    /// Reads the length and the properties. `packet` is the packet type.
    pub(crate) fn read(from: &mut Cursor, packet: u8) -> Result<MqttProperties, CodecError> {
        let length = from.variable()?;
        let mut bytes = Cursor(from.take(length)?);
        let mut properties = MqttProperties::default();
        let mut seen = 0_u64;
        let mut repeated = 0;
        let mut repeated_bytes = 0;
        while !bytes.is_empty() {
            // A variable byte integer, but all identifiers fit into one byte.
            let number = u8::try_from(bytes.variable()?)
                .map_err(|_| CodecError("it has an unknown property"))?;
            let (kind, places) =
                property_type(number).ok_or(CodecError("it has an unknown property"))?;
            if places & (1 << packet) == 0 {
                return Err(CodecError("a property stands where it must not"));
            }
            let before = bytes.0.len();
            let value = read_value(&mut bytes, kind)?;
            if matches!(number, property::USER | property::SUBSCRIPTION_IDENTIFIER) {
                repeated += 1;
                repeated_bytes += before - bytes.0.len();
                if repeated > MAX_REPEATED || repeated_bytes > MAX_REPEATED_BYTES {
                    continue;
                }
            } else if seen & (1 << number) != 0 {
                return Err(CodecError("a property stands twice"));
            }
            seen |= 1 << number;
            properties.0.push((number, value));
        }
        Ok(properties)
    }

    pub(crate) fn write(&self, out: &mut BytesMut) -> Result<(), CodecError> {
        let mut inner = BytesMut::new();
        for (number, value) in &self.0 {
            inner.put_u8(*number);
            match value {
                PropertyValue::Byte(value) => inner.put_u8(*value),
                PropertyValue::Two(value) => inner.put_u16(*value),
                PropertyValue::Four(value) => inner.put_u32(*value),
                PropertyValue::Variable(value) => put_variable(&mut inner, *value)?,
                PropertyValue::Text(text) => put_text(&mut inner, text)?,
                PropertyValue::Binary(bytes) => put_binary(&mut inner, bytes)?,
                PropertyValue::Pair(key, value) => {
                    put_text(&mut inner, key)?;
                    put_text(&mut inner, value)?;
                }
            }
        }
        put_variable(out, inner.len())?;
        out.put_slice(&inner);
        Ok(())
    }
}

fn read_value(from: &mut Cursor, kind: PropertyType) -> Result<PropertyValue, CodecError> {
    const ZERO: CodecError = CodecError("a property is 0 that must not be");
    Ok(match kind {
        PropertyType::Flag => match from.byte()? {
            value @ (0 | 1) => PropertyValue::Byte(value),
            _ => return Err(CodecError("a property is neither 0 nor 1")),
        },
        PropertyType::Two => PropertyValue::Two(from.two()?),
        PropertyType::TwoNotZero => match from.two()? {
            0 => return Err(ZERO),
            value => PropertyValue::Two(value),
        },
        PropertyType::Four => PropertyValue::Four(from.four()?),
        PropertyType::FourNotZero => match from.four()? {
            0 => return Err(ZERO),
            value => PropertyValue::Four(value),
        },
        PropertyType::Variable => match from.variable()? {
            0 => return Err(ZERO),
            value => PropertyValue::Variable(value),
        },
        PropertyType::Text => PropertyValue::Text(from.text()?),
        PropertyType::Binary => PropertyValue::Binary(from.binary()?),
        PropertyType::Pair => PropertyValue::Pair(from.text()?, from.text()?),
    })
}
