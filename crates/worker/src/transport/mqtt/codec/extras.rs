//! What MQTT 5 calls properties. Each has a number that says its type and where it may stand. One with an unknown number cannot be
//! passed over, because nobody knows where it ends: the standard calls the packet malformed.

use super::{
    Flaw,
    field::{Cursor, put_binary, put_text, put_variable},
};
use bytes::{BufMut, Bytes, BytesMut};

/// Of those that may stand many times so many are kept. More are checked and passed over: whoever sends a message with a
/// million of them must not cost us the connection.
const MOST_REPEATED: usize = 1024;
/// And of their texts so many bytes.
const MOST_REPEATED_BYTES: usize = 256 << 10;

/// The numbers that this client uses.
pub(crate) mod name {
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
pub(crate) enum Value {
    Byte(u8),
    Two(u16),
    Four(u32),
    Variable(usize),
    Text(String),
    Binary(Bytes),
    Pair(String, String),
}

#[derive(Clone, Copy)]
enum Kind {
    /// A byte that is 0 or 1.
    Flag,
    Two,
    /// 0 is against the standard.
    TwoNotZero,
    Four,
    FourNotZero,
    Variable,
    Text,
    Binary,
    Pair,
}

/// The type of a property and the kinds of packets that may have it, as bits.
fn known(number: u8) -> Option<(Kind, u16)> {
    const CONNECT: u16 = 1 << 1;
    const CONNACK: u16 = 1 << 2;
    const PUBLISH: u16 = 1 << 3;
    const SUBSCRIBE: u16 = 1 << 8;
    const DISCONNECT: u16 = 1 << 14;
    const ANSWERS: u16 = CONNACK | 1 << 4 | 1 << 9 | 1 << 11 | DISCONNECT;
    const ALL: u16 = u16::MAX;
    Some(match number {
        1 => (Kind::Flag, PUBLISH),
        2 => (Kind::Four, PUBLISH),
        3 | 8 => (Kind::Text, PUBLISH),
        9 => (Kind::Binary, PUBLISH),
        11 => (Kind::Variable, PUBLISH | SUBSCRIBE),
        17 => (Kind::Four, CONNECT | CONNACK | DISCONNECT),
        18 | 26 => (Kind::Text, CONNACK),
        19 => (Kind::Two, CONNACK),
        21 => (Kind::Text, CONNECT | CONNACK),
        22 => (Kind::Binary, CONNECT | CONNACK),
        23 | 25 => (Kind::Flag, CONNECT),
        28 => (Kind::Text, CONNACK | DISCONNECT),
        31 => (Kind::Text, ANSWERS),
        33 => (Kind::TwoNotZero, CONNECT | CONNACK),
        34 => (Kind::Two, CONNECT | CONNACK),
        35 => (Kind::TwoNotZero, PUBLISH),
        36 | 37 | 40 | 41 | 42 => (Kind::Flag, CONNACK),
        38 => (Kind::Pair, ALL),
        39 => (Kind::FourNotZero, CONNECT | CONNACK),
        _ => return None,
    })
}

/// The properties of one packet, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras(pub(crate) Vec<(u8, Value)>);

impl Extras {
    pub(crate) fn find(&self, number: u8) -> Option<&Value> {
        self.0
            .iter()
            .find(|(other, _)| *other == number)
            .map(|(_, value)| value)
    }

    /// One that is a number of whatever size.
    pub(crate) fn number(&self, number: u8) -> Option<u32> {
        match self.find(number)? {
            Value::Byte(value) => Some(u32::from(*value)),
            Value::Two(value) => Some(u32::from(*value)),
            Value::Four(value) => Some(*value),
            Value::Variable(value) => u32::try_from(*value).ok(),
            Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        }
    }

    /// What the other side says of why; nothing if it says nothing.
    pub(crate) fn reason(&self) -> &str {
        match self.find(name::REASON) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Reads a length and what it spans. `packet` is the kind of the packet, a number of four bits.
    pub(crate) fn read(from: &mut Cursor, packet: u8) -> Result<Extras, Flaw> {
        let length = from.variable()?;
        let mut bytes = Cursor(from.take(length)?);
        let mut extras = Extras::default();
        let (mut seen, mut repeated, mut repeated_bytes) = (0_u64, 0, 0);
        while !bytes.is_empty() {
            // They are numbers of variable length, but none is larger than one byte can say.
            let number =
                u8::try_from(bytes.variable()?).map_err(|_| Flaw("it has an unknown property"))?;
            let (kind, places) = known(number).ok_or(Flaw("it has an unknown property"))?;
            if places & (1 << packet) == 0 {
                return Err(Flaw("a property stands where it must not"));
            }
            let before = bytes.0.len();
            let value = read_value(&mut bytes, kind)?;
            if matches!(number, name::USER | name::SUBSCRIPTION_IDENTIFIER) {
                repeated += 1;
                repeated_bytes += before - bytes.0.len();
                if repeated > MOST_REPEATED || repeated_bytes > MOST_REPEATED_BYTES {
                    continue;
                }
            } else if seen & (1 << number) != 0 {
                return Err(Flaw("a property stands twice"));
            }
            seen |= 1 << number;
            extras.0.push((number, value));
        }
        Ok(extras)
    }

    pub(crate) fn write(&self, out: &mut BytesMut) -> Result<(), Flaw> {
        let mut inner = BytesMut::new();
        for (number, value) in &self.0 {
            inner.put_u8(*number);
            match value {
                Value::Byte(value) => inner.put_u8(*value),
                Value::Two(value) => inner.put_u16(*value),
                Value::Four(value) => inner.put_u32(*value),
                Value::Variable(value) => put_variable(&mut inner, *value)?,
                Value::Text(text) => put_text(&mut inner, text)?,
                Value::Binary(bytes) => put_binary(&mut inner, bytes)?,
                Value::Pair(key, value) => {
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

fn read_value(from: &mut Cursor, kind: Kind) -> Result<Value, Flaw> {
    const ZERO: Flaw = Flaw("a property is 0 that must not be");
    Ok(match kind {
        Kind::Flag => match from.byte()? {
            value @ (0 | 1) => Value::Byte(value),
            _ => return Err(Flaw("a property is neither 0 nor 1")),
        },
        Kind::Two => Value::Two(from.two()?),
        Kind::TwoNotZero => match from.two()? {
            0 => return Err(ZERO),
            value => Value::Two(value),
        },
        Kind::Four => Value::Four(from.four()?),
        Kind::FourNotZero => match from.four()? {
            0 => return Err(ZERO),
            value => Value::Four(value),
        },
        Kind::Variable => match from.variable()? {
            0 => return Err(ZERO),
            value => Value::Variable(value),
        },
        Kind::Text => Value::Text(from.text()?),
        Kind::Binary => Value::Binary(from.binary()?),
        Kind::Pair => Value::Pair(from.text()?, from.text()?),
    })
}
