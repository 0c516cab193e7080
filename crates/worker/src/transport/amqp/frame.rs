//! AMQP frames: size, type, channel, performative, and payload.

use super::value::{DecodeError, Value};
use bytes::{Buf, BufMut, Bytes, BytesMut};

pub(super) const HEADER: usize = 8;

/// Descriptor codes of performatives, errors and outcomes.
pub(super) mod descriptor {
    pub(crate) const OPEN: u64 = 0x10;
    pub(crate) const BEGIN: u64 = 0x11;
    pub(crate) const ATTACH: u64 = 0x12;
    pub(crate) const FLOW: u64 = 0x13;
    pub(crate) const TRANSFER: u64 = 0x14;
    pub(crate) const DISPOSITION: u64 = 0x15;
    pub(crate) const DETACH: u64 = 0x16;
    pub(crate) const END: u64 = 0x17;
    pub(crate) const CLOSE: u64 = 0x18;
    pub(crate) const ERROR: u64 = 0x1d;
    pub(crate) const ACCEPTED: u64 = 0x24;
    pub(crate) const REJECTED: u64 = 0x25;
    pub(crate) const RELEASED: u64 = 0x26;
    pub(crate) const MODIFIED: u64 = 0x27;
    pub(crate) const SOURCE: u64 = 0x28;
    pub(crate) const TARGET: u64 = 0x29;
    pub(crate) const MECHANISMS: u64 = 0x40;
    pub(crate) const INIT: u64 = 0x41;
    pub(crate) const OUTCOME: u64 = 0x44;

    /// Symbolic descriptors, which some brokers use.
    pub(super) const SYMBOLS: [(&str, u64); 18] = [
        ("amqp:open:list", OPEN),
        ("amqp:begin:list", BEGIN),
        ("amqp:attach:list", ATTACH),
        ("amqp:flow:list", FLOW),
        ("amqp:transfer:list", TRANSFER),
        ("amqp:disposition:list", DISPOSITION),
        ("amqp:detach:list", DETACH),
        ("amqp:end:list", END),
        ("amqp:close:list", CLOSE),
        ("amqp:error:list", ERROR),
        ("amqp:accepted:list", ACCEPTED),
        ("amqp:rejected:list", REJECTED),
        ("amqp:released:list", RELEASED),
        ("amqp:modified:list", MODIFIED),
        ("amqp:source:list", SOURCE),
        ("amqp:target:list", TARGET),
        ("amqp:sasl-mechanisms:list", MECHANISMS),
        ("amqp:sasl-outcome:list", OUTCOME),
    ];
}

/// Frame type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Amqp,
    Sasl,
}

/// A described list. Trailing fields that are missing are null.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DescribedList {
    pub(super) name: u64,
    fields: Vec<Value>,
}

impl DescribedList {
    pub(super) fn of(value: Value) -> Option<DescribedList> {
        let Value::Described(name, value) = value else {
            return None;
        };
        let name = match *name {
            Value::Symbol(word) => {
                descriptor::SYMBOLS
                    .iter()
                    .find(|(known, _)| *known == word)?
                    .1
            }
            name => name.number()?,
        };
        match *value {
            Value::List(fields) => Some(DescribedList { name, fields }),
            _ => None,
        }
    }

    pub(super) fn get(&self, at: usize) -> &Value {
        self.fields.get(at).unwrap_or(&Value::Null)
    }

    pub(super) fn number(&self, at: usize) -> Option<u64> {
        self.get(at).number()
    }

    pub(super) fn uint(&self, at: usize) -> Option<u32> {
        self.number(at)
            .and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn flag(&self, at: usize) -> bool {
        *self.get(at) == Value::Bool(true)
    }

    /// A described list in a field.
    pub(super) fn inner(&self, at: usize) -> Option<DescribedList> {
        DescribedList::of(self.get(at).clone())
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    /// A heartbeat.
    Empty,
    Performative {
        kind: FrameKind,
        channel: u16,
        what: DescribedList,
        payload: Bytes,
    },
}

/// Why a frame is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of {0} bytes")]
    Size(usize),
    #[error("a frame of a kind that the standard does not know")]
    Kind,
    #[error("a frame without a performative")]
    Performative,
    #[error("{0}")]
    Value(#[from] DecodeError),
}

/// Takes a frame from the front of `bytes`; none if it is incomplete.
pub(super) fn read(bytes: &mut BytesMut, largest: usize) -> Result<Option<Frame>, FrameError> {
    let Some((mut head, _)) = bytes.split_at_checked(HEADER) else {
        return Ok(None);
    };
    let size = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
    let offset = usize::from(head.get_u8()) * 4;
    if size > largest || offset < HEADER || offset > size {
        return Err(FrameError::Size(size));
    }
    let kind = match head.get_u8() {
        0 => FrameKind::Amqp,
        1 => FrameKind::Sasl,
        _ => return Err(FrameError::Kind),
    };
    let channel = head.get_u16();
    if bytes.len() < size {
        return Ok(None);
    }
    let mut payload = bytes.split_to(size).freeze();
    payload.advance(offset);
    if payload.is_empty() {
        return Ok(Some(Frame::Empty));
    }
    let what = DescribedList::of(Value::read(&mut payload)?).ok_or(FrameError::Performative)?;
    Ok(Some(Frame::Performative {
        kind,
        channel,
        what,
        payload,
    }))
}

/// Writes a frame and returns its size.
pub(super) fn write(
    out: &mut BytesMut,
    kind: FrameKind,
    name: u64,
    fields: Vec<Value>,
    payload: &[u8],
) -> usize {
    let at = out.len();
    out.put_u32(0);
    out.put_slice(&[2, u8::from(kind == FrameKind::Sasl), 0, 0]);
    Value::named(name, fields).write(out);
    out.put_slice(payload);
    let size = out.len() - at;
    out[at..at + 4].copy_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
    size
}

/// Writes a heartbeat.
pub(super) fn write_empty(out: &mut BytesMut) {
    out.put_slice(&[0, 0, 0, 8, 2, 0, 0, 0]);
}

/// Text of the broker's error, truncated for messages.
pub(super) fn error(of: Option<&DescribedList>) -> String {
    let Some(error) = of.filter(|error| error.name == descriptor::ERROR) else {
        return "it does not say why".to_owned();
    };
    let condition = error.get(0).words().unwrap_or("no condition");
    let text = error.get(1).words().unwrap_or_default();
    let printable: String = format!("{condition} {text}")
        .chars()
        .filter(|letter| !letter.is_control())
        .take(300)
        .collect();
    printable.trim_end().to_owned()
}
