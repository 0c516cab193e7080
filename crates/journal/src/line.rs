//! One line of a journal: how it is written and bound to the one before.
//!
//! ```text
//! {"n":7,"at":1763200000000,"kind":"reserve",…,"prev":"…","hash":"…"}
//! ```
//!
//! The hash is SHA-256 of the hash before (its 32 bytes) and of this line's text up to `,"hash"`. What is zero or empty is
//! left out.

use sha2::{Digest, Sha256};
use std::io::Write;

/// No line is longer; the reader stops there.
pub const LONGEST: usize = 64 << 10;
/// A text in a line, before it is escaped (each byte to six at worst): ten of them fit in a line.
const LONGEST_TEXT: usize = 512;
const HASH: &[u8] = br#","hash":""#;
const PREVIOUS: &[u8] = br#","prev":""#;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// SHA-256.
pub type Hash = [u8; 32];

/// Writes one line, member by member.
#[derive(Debug)]
pub struct Line<'a>(&'a mut Vec<u8>);

impl<'a> Line<'a> {
    /// Begins one in an empty buffer. The kind is written as it is.
    pub fn begin(buffer: &'a mut Vec<u8>, n: u64, at: u64, kind: &str) -> Line<'a> {
        buffer.clear();
        // Writing to a vector cannot fail.
        let _ = write!(buffer, r#"{{"n":{n},"at":{at},"kind":"{kind}""#);
        Line(buffer)
    }

    /// A number; left out if it is zero.
    pub fn number(&mut self, name: &str, value: u64) -> &mut Self {
        if value != 0 {
            let _ = write!(self.0, r#","{name}":{value}"#);
        }
        self
    }

    /// A text, cut to a bound; left out if it is empty.
    pub fn text(&mut self, name: &str, value: &str) -> &mut Self {
        if value.is_empty() {
            return self;
        }
        let end = value.floor_char_boundary(LONGEST_TEXT.min(value.len()));
        let _ = write!(self.0, r#","{name}":""#);
        for &byte in &value.as_bytes()[..end] {
            match byte {
                b'"' | b'\\' => self.0.extend_from_slice(&[b'\\', byte]),
                0..0x20 | 0x7f => {
                    let _ = write!(self.0, "\\u{byte:04x}");
                }
                _ => self.0.push(byte),
            }
        }
        self.0.push(b'"');
        self
    }

    /// An object of numbers; left out if all are zero.
    pub fn numbers<const N: usize>(&mut self, name: &str, values: [(&str, u64); N]) -> &mut Self {
        if values.iter().all(|(_, value)| *value == 0) {
            return self;
        }
        let _ = write!(self.0, r#","{name}":{{"#);
        let start = self.0.len();
        for (name, value) in values {
            self.number(name, value);
        }
        // The comma before the first member.
        self.0.remove(start);
        self.0.push(b'}');
        self
    }

    /// Binds the line to the one before, and ends it.
    pub fn seal(self, previous: &Hash) -> Hash {
        self.0.extend_from_slice(PREVIOUS);
        push_hex(self.0, previous);
        self.0.push(b'"');
        let hash = digest(previous, self.0);
        self.0.extend_from_slice(HASH);
        push_hex(self.0, &hash);
        self.0.extend_from_slice(b"\"}\n");
        hash
    }
}

fn push_hex(line: &mut Vec<u8>, hash: &Hash) {
    for byte in hash {
        line.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

fn digest(previous: &Hash, text: &[u8]) -> Hash {
    let mut digest = Sha256::new();
    digest.update(previous);
    digest.update(text);
    digest.finalize().into()
}

/// Checks that a line (without its end) follows the hash before; its own hash, or what is wrong.
pub(crate) fn check(text: &[u8], previous: &Hash) -> Result<Hash, &'static str> {
    const MARK: usize = HASH.len();
    let cut = text
        .len()
        .checked_sub(MARK + 64 + 2)
        .ok_or("it is too short")?;
    let (told, end) = text.split_at(cut);
    let mut last = Vec::with_capacity(MARK + 66);
    last.extend_from_slice(HASH);
    let hash = digest(previous, told);
    push_hex(&mut last, &hash);
    last.extend_from_slice(b"\"}");
    if end != last {
        return Err(
            "its hash does not fit: it, or what stood before it, was changed or taken away",
        );
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_fit_in_a_line() {
        let mut buffer = Vec::new();
        let mut line = Line::begin(&mut buffer, 1, 1, "reserve");
        for _ in 0..10 {
            line.text("model", &"\u{1}".repeat(1 << 20))
                .text("run", &"ü".repeat(1 << 20));
        }
        line.seal(&[0; 32]);
        assert!(buffer.len() <= LONGEST, "{}", buffer.len());
        assert!(std::str::from_utf8(&buffer).is_ok());
    }
}
