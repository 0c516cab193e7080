//! AMQP 1.0 type system: encoder and decoder. Decoding is bounded in depth, and in number by the
//! size of the input: no input causes unbounded recursion or allocation.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Maximum nesting; brokers use four or five levels.
const MAX_DEPTH: usize = 16;
/// Maximum number of array members without bytes.
const MAX_EMPTY_MEMBERS: usize = 256;

/// A value. Types that we neither send nor need are decoded as [`Value::Other`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Ubyte(u8),
    Ushort(u16),
    Uint(u32),
    Ulong(u64),
    Long(i64),
    Float(f32),
    Double(f64),
    Char(char),
    Timestamp(i64),
    Uuid(u128),
    Binary(Bytes),
    Text(String),
    Symbol(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Array(Vec<Value>),
    Described(Box<Value>, Box<Value>),
    Other,
}

/// Why bytes are no valid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("it ends in the middle of a value")]
    Short,
    #[error("values lie too deep inside of values")]
    Deep,
    #[error("a value has a type that the standard does not know, or the wrong one")]
    Type,
    #[error("a text is not UTF-8")]
    Text,
    #[error("a size contradicts what it is the size of")]
    Size,
}

impl Value {
    pub(super) fn text(text: impl Into<String>) -> Value {
        Value::Text(text.into())
    }

    /// A described list, the form of most performatives.
    pub(super) fn named(name: u64, fields: Vec<Value>) -> Value {
        Value::Described(Box::new(Value::Ulong(name)), Box::new(Value::List(fields)))
    }

    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Value::Ubyte(number) => Some(u64::from(*number)),
            Value::Ushort(number) => Some(u64::from(*number)),
            Value::Uint(number) => Some(u64::from(*number)),
            Value::Ulong(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn words(&self) -> Option<&str> {
        match self {
            Value::Text(text) | Value::Symbol(text) => Some(text),
            _ => None,
        }
    }

    /// A primitive value as text; none for other types.
    pub(super) fn plain(&self) -> Option<String> {
        Some(match self {
            Value::Bool(value) => value.to_string(),
            Value::Ubyte(_) | Value::Ushort(_) | Value::Uint(_) | Value::Ulong(_) => {
                self.number()?.to_string()
            }
            Value::Long(value) | Value::Timestamp(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Double(value) => value.to_string(),
            Value::Char(value) => value.to_string(),
            Value::Uuid(value) => {
                let hex = format!("{value:032x}");
                [
                    &hex[..8],
                    &hex[8..12],
                    &hex[12..16],
                    &hex[16..20],
                    &hex[20..],
                ]
                .join("-")
            }
            Value::Binary(bytes) => String::from_utf8(bytes.to_vec()).ok()?,
            Value::Text(text) | Value::Symbol(text) => text.clone(),
            Value::Null
            | Value::List(_)
            | Value::Map(_)
            | Value::Array(_)
            | Value::Described(..)
            | Value::Other => return None,
        })
    }

    pub(super) fn write(&self, out: &mut BytesMut) {
        match self {
            Value::Null | Value::Other => out.put_u8(0x40),
            Value::Bool(value) => out.put_u8(if *value { 0x41 } else { 0x42 }),
            Value::Ubyte(value) => put(out, 0x50, &[*value]),
            Value::Ushort(value) => put(out, 0x60, &value.to_be_bytes()),
            Value::Uint(0) => out.put_u8(0x43),
            Value::Uint(value) => put(out, 0x70, &value.to_be_bytes()),
            Value::Ulong(value) => match u8::try_from(*value) {
                Ok(small) => put(out, 0x53, &[small]),
                Err(_) => put(out, 0x80, &value.to_be_bytes()),
            },
            Value::Long(value) => put(out, 0x81, &value.to_be_bytes()),
            Value::Timestamp(value) => put(out, 0x83, &value.to_be_bytes()),
            Value::Float(value) => put(out, 0x72, &value.to_be_bytes()),
            Value::Double(value) => put(out, 0x82, &value.to_be_bytes()),
            Value::Char(value) => put(out, 0x73, &u32::from(*value).to_be_bytes()),
            Value::Uuid(value) => put(out, 0x98, &value.to_be_bytes()),
            Value::Binary(bytes) => sized(out, 0xa0, bytes),
            Value::Text(text) => sized(out, 0xa1, text.as_bytes()),
            Value::Symbol(text) => sized(out, 0xa3, text.as_bytes()),
            Value::List(members) if members.is_empty() => out.put_u8(0x45),
            Value::List(members) | Value::Array(members) => {
                compound(out, 0xd0, members.len(), |out| {
                    members.iter().for_each(|member| member.write(out));
                })
            }
            Value::Map(pairs) => compound(out, 0xd1, pairs.len() * 2, |out| {
                for (key, value) in pairs {
                    key.write(out);
                    value.write(out);
                }
            }),
            Value::Described(name, value) => {
                out.put_u8(0);
                name.write(out);
                value.write(out);
            }
        }
    }

    /// Takes one value from the front of `bytes`.
    pub(super) fn read(bytes: &mut Bytes) -> Result<Value, DecodeError> {
        read(bytes, MAX_DEPTH)
    }
}

fn put(out: &mut BytesMut, code: u8, bytes: &[u8]) {
    out.put_u8(code);
    out.put_slice(bytes);
}

/// `code` is the 8-bit form; the 32-bit form is 16 more. We write nothing of 4 GiB.
fn sized(out: &mut BytesMut, code: u8, bytes: &[u8]) {
    match u8::try_from(bytes.len()) {
        Ok(short) => {
            out.put_u8(code);
            out.put_u8(short);
        }
        Err(_) => {
            out.put_u8(code + 0x10);
            out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
    }
    out.put_slice(bytes);
}

fn compound(out: &mut BytesMut, code: u8, count: usize, members: impl FnOnce(&mut BytesMut)) {
    out.put_u8(code);
    let at = out.len();
    out.put_u32(0);
    out.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
    members(out);
    let size = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&size.to_be_bytes());
}

fn read(bytes: &mut Bytes, depth: usize) -> Result<Value, DecodeError> {
    let depth = depth.checked_sub(1).ok_or(DecodeError::Deep)?;
    match byte(bytes)? {
        0 => {
            let name = read(bytes, depth)?;
            Ok(Value::Described(
                Box::new(name),
                Box::new(read(bytes, depth)?),
            ))
        }
        code => read_as(code, bytes, depth),
    }
}

/// Decodes the value after a constructor.
fn read_as(code: u8, bytes: &mut Bytes, depth: usize) -> Result<Value, DecodeError> {
    let body = body(code, bytes)?;
    Ok(match code {
        0x40 => Value::Null,
        0x41 => Value::Bool(true),
        0x42 => Value::Bool(false),
        0x43 => Value::Uint(0),
        0x44 => Value::Ulong(0),
        0x45 => Value::List(Vec::new()),
        0x50 => Value::Ubyte(number(&body)?),
        0x51 | 0x54 | 0x55 => Value::Long(i64::from(number::<u8>(&body)?.cast_signed())),
        0x52 => Value::Uint(number::<u8>(&body)?.into()),
        0x53 => Value::Ulong(number::<u8>(&body)?.into()),
        0x56 => Value::Bool(number::<u8>(&body)? != 0),
        0x60 => Value::Ushort(number(&body)?),
        0x61 => Value::Long(number::<u16>(&body)?.cast_signed().into()),
        0x70 => Value::Uint(number(&body)?),
        0x71 => Value::Long(number::<u32>(&body)?.cast_signed().into()),
        0x72 => Value::Float(f32::from_bits(number(&body)?)),
        0x73 => Value::Char(char::from_u32(number(&body)?).ok_or(DecodeError::Text)?),
        0x80 => Value::Ulong(number(&body)?),
        0x81 => Value::Long(number::<u64>(&body)?.cast_signed()),
        0x82 => Value::Double(f64::from_bits(number(&body)?)),
        0x83 => Value::Timestamp(number::<u64>(&body)?.cast_signed()),
        0x98 => Value::Uuid(number(&body)?),
        // Decimals.
        0x74 | 0x84 | 0x94 => Value::Other,
        0xa0 | 0xb0 => Value::Binary(body),
        0xa1 | 0xb1 => Value::Text(utf8(&body)?),
        0xa3 | 0xb3 => Value::Symbol(utf8(&body)?),
        0xc0 | 0xd0 => Value::List(list(code, body, depth)?),
        0xc1 | 0xd1 => Value::Map(map(code, body, depth)?),
        0xe0 | 0xf0 => Value::Array(array(code, body, depth)?),
        _ => return Err(DecodeError::Type),
    })
}

/// The bytes of a value without its size, which the upper half of the constructor tells.
fn body(code: u8, bytes: &mut Bytes) -> Result<Bytes, DecodeError> {
    let size = match code >> 4 {
        0x4 => 0,
        0x5 => 1,
        0x6 => 2,
        0x7 => 4,
        0x8 => 8,
        0x9 => 16,
        0xa | 0xc | 0xe => usize::from(byte(bytes)?),
        0xb | 0xd | 0xf => usize::try_from(bytes.try_get_u32().map_err(|_| DecodeError::Short)?)
            .map_err(|_| DecodeError::Size)?,
        _ => return Err(DecodeError::Type),
    };
    if size > bytes.len() {
        return Err(DecodeError::Short);
    }
    Ok(bytes.split_to(size))
}

/// Takes one value from the front of `bytes` without decoding it.
pub(super) fn skip(bytes: &mut Bytes) -> Result<Bytes, DecodeError> {
    let whole = bytes.clone();
    // Descriptors may be described themselves, up to a limit.
    let mut values = 1;
    for _ in 0..MAX_DEPTH {
        match byte(bytes)? {
            0 => values += 1,
            code => {
                body(code, bytes)?;
                values -= 1;
            }
        }
        if values == 0 {
            return Ok(whole.slice(..whole.len() - bytes.len()));
        }
    }
    Err(DecodeError::Deep)
}

fn byte(bytes: &mut Bytes) -> Result<u8, DecodeError> {
    bytes.try_get_u8().map_err(|_| DecodeError::Short)
}

trait Number: Sized {
    fn of(bytes: &[u8]) -> Option<Self>;
}

macro_rules! number {
    ($($kind:ty),*) => { $(
        impl Number for $kind {
            fn of(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(<$kind>::from_be_bytes)
            }
        }
    )* };
}
number!(u8, u16, u32, u64, u128);

fn number<N: Number>(bytes: &[u8]) -> Result<N, DecodeError> {
    N::of(bytes).ok_or(DecodeError::Size)
}

fn utf8(bytes: &[u8]) -> Result<String, DecodeError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| DecodeError::Text)
}

/// The announced number of members.
fn count(code: u8, body: &mut Bytes) -> Result<usize, DecodeError> {
    match code >> 4 {
        0xc | 0xe => byte(body).map(usize::from),
        _ => usize::try_from(body.try_get_u32().map_err(|_| DecodeError::Short)?)
            .map_err(|_| DecodeError::Size),
    }
}

fn list(code: u8, mut body: Bytes, depth: usize) -> Result<Vec<Value>, DecodeError> {
    let count = count(code, &mut body)?;
    // Each member has at least one byte.
    if count > body.len() {
        return Err(DecodeError::Size);
    }
    let members = (0..count)
        .map(|_| read(&mut body, depth))
        .collect::<Result<_, _>>()?;
    if body.is_empty() {
        Ok(members)
    } else {
        Err(DecodeError::Size)
    }
}

fn map(code: u8, body: Bytes, depth: usize) -> Result<Vec<(Value, Value)>, DecodeError> {
    let mut members = list(code, body, depth)?.into_iter();
    let mut pairs = Vec::with_capacity(members.len() / 2);
    while let Some(key) = members.next() {
        pairs.push((key, members.next().ok_or(DecodeError::Size)?));
    }
    Ok(pairs)
}

fn array(code: u8, mut body: Bytes, depth: usize) -> Result<Vec<Value>, DecodeError> {
    let depth = depth.checked_sub(1).ok_or(DecodeError::Deep)?;
    let count = count(code, &mut body)?;
    let of = match byte(&mut body)? {
        0 => {
            read(&mut body, depth)?;
            byte(&mut body)?
        }
        code => code,
    };
    if count > body.len().max(MAX_EMPTY_MEMBERS) {
        return Err(DecodeError::Size);
    }
    let members = (0..count)
        .map(|_| read_as(of, &mut body, depth))
        .collect::<Result<_, _>>()?;
    if body.is_empty() {
        Ok(members)
    } else {
        Err(DecodeError::Size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(value: &Value) -> Bytes {
        let mut out = BytesMut::new();
        value.write(&mut out);
        out.freeze()
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<u8>().prop_map(Value::Ubyte),
            any::<u32>().prop_map(Value::Uint),
            any::<u64>().prop_map(Value::Ulong),
            any::<i64>().prop_map(Value::Long),
            any::<i64>().prop_map(Value::Timestamp),
            any::<u128>().prop_map(Value::Uuid),
            any::<char>().prop_map(Value::Char),
            ".{0,300}".prop_map(Value::Text),
            "[a-z:]{0,20}".prop_map(Value::Symbol),
            prop::collection::vec(any::<u8>(), 0..300)
                .prop_map(|bytes| Value::Binary(bytes.into())),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
                prop::collection::vec((inner.clone(), inner.clone()), 0..4).prop_map(Value::Map),
                inner.prop_map(|value| Value::Described(
                    Box::new(Value::Ulong(0x10)),
                    Box::new(value)
                )),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_it_was(value in any_value()) {
            let mut bytes = written(&value);
            let mut skipped = bytes.clone();
            prop_assert_eq!(skip(&mut skipped).map(|bytes| bytes.len()), Ok(bytes.len()));
            prop_assert_eq!(Value::read(&mut bytes), Ok(value));
            prop_assert!(bytes.is_empty());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            _ = Value::read(&mut Bytes::from(bytes.clone()));
            _ = skip(&mut Bytes::from(bytes));
        }
    }

    #[test]
    fn depth_and_number_are_bounded() {
        let mut deep = Value::Null;
        for _ in 0..10 {
            deep = Value::List(vec![deep]);
        }
        assert!(
            Value::read(&mut written(&deep)).is_ok(),
            "the positive control"
        );
        // A million lists, each of which is the only member of the one before.
        let mut bytes = BytesMut::new();
        for level in 0..1_000_000_u32 {
            bytes.put_u8(0xd0);
            bytes.put_u32((1_000_000 - level) * 9 - 5);
            bytes.put_u32(1);
        }
        assert_eq!(Value::read(&mut bytes.freeze()), Err(DecodeError::Deep));
        assert_eq!(
            Value::read(&mut Bytes::from(vec![0; 1000])),
            Err(DecodeError::Deep)
        );
        assert_eq!(
            skip(&mut Bytes::from(vec![0; 1000])),
            Err(DecodeError::Deep)
        );
        // Four thousand million times nothing.
        let nothings = [&[0xf0, 0, 0, 0, 5][..], &[0xff; 4], &[0x40]].concat();
        assert_eq!(
            Value::read(&mut Bytes::from(nothings)),
            Err(DecodeError::Size)
        );
    }
}
