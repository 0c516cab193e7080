//! MQTT data types: integers, strings, variable byte integers; read by a cursor with bounds checks.

use super::CodecError;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Maximum of a variable byte integer.
pub(crate) const MAX_VARIABLE_INT: usize = 268_435_455;

/// Reads from the front.
#[derive(Debug)]
pub(crate) struct Cursor(pub(crate) Bytes);

impl Cursor {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes bytes without copying.
    pub(crate) fn take(&mut self, length: usize) -> Result<Bytes, CodecError> {
        if length <= self.0.len() {
            Ok(self.0.split_to(length))
        } else {
            Err(CodecError("it ends too early"))
        }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, CodecError> {
        self.take(1).map(|mut bytes| bytes.get_u8())
    }

    pub(crate) fn two(&mut self) -> Result<u16, CodecError> {
        self.take(2).map(|mut bytes| bytes.get_u16())
    }

    pub(crate) fn four(&mut self) -> Result<u32, CodecError> {
        self.take(4).map(|mut bytes| bytes.get_u32())
    }

    pub(crate) fn variable(&mut self) -> Result<usize, CodecError> {
        match variable(&self.0)? {
            Some((value, length)) => {
                self.0.advance(length);
                Ok(value)
            }
            None => Err(CodecError("it ends too early")),
        }
    }

    pub(crate) fn binary(&mut self) -> Result<Bytes, CodecError> {
        let length = self.two()?;
        self.take(usize::from(length))
    }

    pub(crate) fn text(&mut self) -> Result<String, CodecError> {
        let bytes = self.binary()?;
        match std::str::from_utf8(&bytes) {
            Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
            _ => Err(CodecError("a text is not UTF-8, or has a NUL")),
        }
    }

    /// A packet identifier.
    pub(crate) fn packet_id(&mut self) -> Result<u16, CodecError> {
        match self.two()? {
            0 => Err(CodecError("a packet identifier is 0")),
            id => Ok(id),
        }
    }
}

/// A variable byte integer and its length; none if it is incomplete.
pub(crate) fn variable(bytes: &[u8]) -> Result<Option<(usize, usize)>, CodecError> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            // The standard requires the shortest encoding.
            let is_padded = at > 0 && *byte == 0;
            return if is_padded {
                Err(CodecError("a length is padded"))
            } else {
                Ok(Some((value, at + 1)))
            };
        }
    }
    if bytes.len() < 4 {
        Ok(None)
    } else {
        Err(CodecError("a length has more than four bytes"))
    }
}

pub(crate) fn put_variable(out: &mut BytesMut, value: usize) -> Result<(), CodecError> {
    if value > MAX_VARIABLE_INT {
        return Err(CodecError("it is larger than any packet may be"));
    }
    let mut rest = value;
    loop {
        let byte = (rest & 0x7f) as u8;
        rest >>= 7;
        if rest == 0 {
            out.put_u8(byte);
            return Ok(());
        }
        out.put_u8(byte | 0x80);
    }
}

pub(crate) fn put_binary(out: &mut BytesMut, bytes: &[u8]) -> Result<(), CodecError> {
    let length =
        u16::try_from(bytes.len()).map_err(|_| CodecError("a text is longer than 65535 bytes"))?;
    out.put_u16(length);
    out.put_slice(bytes);
    Ok(())
}

pub(crate) fn put_text(out: &mut BytesMut, text: &str) -> Result<(), CodecError> {
    if text.contains('\0') {
        return Err(CodecError("a text has a NUL"));
    }
    put_binary(out, text.as_bytes())
}
