//! One line of a journal: its text and the hash that chains it to the line before.
//!
//! ```text
//! {"n":7,"at":1763200000000,"kind":"reserve",…,"prev":"…","hash":"…"}
//! ```
//!
//! The hash is the SHA-256 of the previous hash (32 bytes) and the text of this line up to
//! `,"hash"`. Members that are zero or empty are left out.

use sha2::{Digest, Sha256};
use std::io::Write;

/// Bytes of a line; the reader stops there.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Bytes of a text in a line before escaping, which makes six of one at worst: ten texts fit in a
/// line.
const MAX_TEXT_BYTES: usize = 512;
const HASH: &[u8] = br#","hash":""#;
const PREVIOUS: &[u8] = br#","prev":""#;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// A SHA-256.
pub type Hash = [u8; 32];

/// Writes the members of one line.
#[derive(Debug)]
pub struct LineWriter<'a>(&'a mut Vec<u8>);

impl<'a> LineWriter<'a> {
    /// Begins a line in a buffer, which it empties first. The kind is not escaped.
    pub fn begin(buffer: &'a mut Vec<u8>, n: u64, at: u64, kind: &str) -> LineWriter<'a> {
        buffer.clear();
        // Writing to a vector cannot fail.
        _ = write!(buffer, r#"{{"n":{n},"at":{at},"kind":"{kind}""#);
        LineWriter(buffer)
    }

    /// A number; left out if it is zero.
    pub fn number(&mut self, name: &str, value: u64) -> &mut Self {
        if value != 0 {
            _ = write!(self.0, r#","{name}":{value}"#);
        }
        self
    }

    /// A text, cut to a bound; left out if it is empty.
    pub fn text(&mut self, name: &str, value: &str) -> &mut Self {
        if value.is_empty() {
            return self;
        }
        let end = value.floor_char_boundary(MAX_TEXT_BYTES.min(value.len()));
        _ = write!(self.0, r#","{name}":""#);
        for &byte in &value.as_bytes()[..end] {
            match byte {
                b'"' | b'\\' => self.0.extend_from_slice(&[b'\\', byte]),
                0..0x20 | 0x7f => {
                    _ = write!(self.0, "\\u{byte:04x}");
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
        _ = write!(self.0, r#","{name}":{{"#);
        let start = self.0.len();
        for (name, value) in values {
            self.number(name, value);
        }
        // The comma before the first member.
        self.0.remove(start);
        self.0.push(b'}');
        self
    }

    /// Adds the hashes and ends the line.
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

/// Checks that a line, without its line break, follows the previous hash; returns its own hash.
pub(crate) fn check(text: &[u8], previous: &Hash) -> Result<Hash, &'static str> {
    const MARK: usize = HASH.len();
    let cut = text
        .len()
        .checked_sub(MARK + 64 + 2)
        .ok_or("it is too short")?;
    let (hashed, end) = text.split_at(cut);
    let mut last = Vec::with_capacity(MARK + 66);
    last.extend_from_slice(HASH);
    let hash = digest(previous, hashed);
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
        let mut line = LineWriter::begin(&mut buffer, 1, 1, "reserve");
        for _ in 0..10 {
            line.text("model", &"\u{1}".repeat(1 << 20))
                .text("run", &"ü".repeat(1 << 20));
        }
        line.seal(&[0; 32]);
        assert!(buffer.len() <= MAX_LINE_BYTES, "{}", buffer.len());
        assert!(std::str::from_utf8(&buffer).is_ok());
    }
}
