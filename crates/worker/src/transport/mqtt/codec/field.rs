//! The smallest parts: numbers, texts, lengths of variable length. A cursor that cannot run past the end.

use super::Flaw;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The largest number that a length of variable length can say.
pub(crate) const LARGEST_VARIABLE: usize = 268_435_455;

/// Reads from the front.
#[derive(Debug)]
pub(crate) struct Cursor(pub(crate) Bytes);

impl Cursor {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many bytes, still part of the whole.
    pub(crate) fn take(&mut self, length: usize) -> Result<Bytes, Flaw> {
        match length <= self.0.len() {
            true => Ok(self.0.split_to(length)),
            false => Err(Flaw("it ends too early")),
        }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Flaw> {
        self.take(1).map(|mut bytes| bytes.get_u8())
    }

    pub(crate) fn two(&mut self) -> Result<u16, Flaw> {
        self.take(2).map(|mut bytes| bytes.get_u16())
    }

    pub(crate) fn four(&mut self) -> Result<u32, Flaw> {
        self.take(4).map(|mut bytes| bytes.get_u32())
    }

    pub(crate) fn variable(&mut self) -> Result<usize, Flaw> {
        match variable(&self.0)? {
            Some((value, length)) => {
                self.0.advance(length);
                Ok(value)
            }
            None => Err(Flaw("it ends too early")),
        }
    }

    pub(crate) fn binary(&mut self) -> Result<Bytes, Flaw> {
        let length = self.two()?;
        self.take(usize::from(length))
    }

    pub(crate) fn text(&mut self) -> Result<String, Flaw> {
        let bytes = self.binary()?;
        match std::str::from_utf8(&bytes) {
            Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
            _ => Err(Flaw("a text is not UTF-8, or has a NUL")),
        }
    }

    /// A number that says which packet is meant.
    pub(crate) fn packet_id(&mut self) -> Result<u16, Flaw> {
        match self.two()? {
            0 => Err(Flaw("a packet identifier is 0")),
            id => Ok(id),
        }
    }
}

/// A length at the front and how many bytes say it; none if more bytes are needed.
pub(crate) fn variable(bytes: &[u8]) -> Result<Option<(usize, usize)>, Flaw> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            // One number, one spelling: the standard wants the shortest.
            let is_padded = at > 0 && *byte == 0;
            return if is_padded {
                Err(Flaw("a length is padded"))
            } else {
                Ok(Some((value, at + 1)))
            };
        }
    }
    if bytes.len() < 4 {
        Ok(None)
    } else {
        Err(Flaw("a length has more than four bytes"))
    }
}

pub(crate) fn put_variable(out: &mut BytesMut, value: usize) -> Result<(), Flaw> {
    if value > LARGEST_VARIABLE {
        return Err(Flaw("it is larger than any packet may be"));
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

pub(crate) fn put_binary(out: &mut BytesMut, bytes: &[u8]) -> Result<(), Flaw> {
    let length =
        u16::try_from(bytes.len()).map_err(|_| Flaw("a text is longer than 65535 bytes"))?;
    out.put_u16(length);
    out.put_slice(bytes);
    Ok(())
}

pub(crate) fn put_text(out: &mut BytesMut, text: &str) -> Result<(), Flaw> {
    if text.contains('\0') {
        return Err(Flaw("a text has a NUL"));
    }
    put_binary(out, text.as_bytes())
}
