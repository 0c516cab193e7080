//! One line of the ledger: how it is written, and what is read of it.
//!
//! ```text
//! {"n":7,"at":1763200000000,"kind":"reserve",…,"prev":"…","hash":"…"}
//! ```
//!
//! The hash is SHA-256 of the hash before (its 32 bytes) and of this line's text up to `,"hash"`. What is zero or empty is
//! left out.

use crate::usage::{Source, Usage};
use sha2::{Digest, Sha256};
use std::{borrow::Cow, io::Write};

/// No line is longer; the reader stops there.
pub(super) const LONGEST: usize = 64 << 10;
/// A text in a line, before it is escaped (each byte to six at worst): ten of them fit in a line.
const LONGEST_TEXT: usize = 512;
const HASH: &[u8] = br#","hash":""#;
const PREVIOUS: &[u8] = br#","prev":""#;
const HEX: &[u8; 16] = b"0123456789abcdef";

pub(super) type Hash = [u8; 32];

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    /// An owner takes the segment over.
    Open,
    Reserve,
    /// The end of the reservation `of`.
    Settle,
    /// A secret was put into a run.
    Inject,
    /// Something passed at an egress door, or did not.
    Egress,
    /// A session is over.
    Revoke,
    /// The owner went in peace.
    Close,
}

/// What a line says; each kind uses its own part.
#[derive(Debug, serde::Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Row<'a> {
    pub n: u64,
    /// Milliseconds since 1970.
    pub at: u64,
    pub kind: Kind,
    #[serde(borrow, default)]
    pub segment: Cow<'a, str>,
    #[serde(borrow, default)]
    pub run: Cow<'a, str>,
    #[serde(borrow, default)]
    pub session: Cow<'a, str>,
    #[serde(borrow, default)]
    pub tenant: Cow<'a, str>,
    #[serde(borrow, default)]
    pub door: Cow<'a, str>,
    #[serde(borrow, default)]
    pub provider: Cow<'a, str>,
    #[serde(borrow, default)]
    pub model: Cow<'a, str>,
    #[serde(borrow, default)]
    pub operation: Cow<'a, str>,
    #[serde(default)]
    pub attempt: u32,
    #[serde(borrow, default)]
    pub price_book: Cow<'a, str>,
    /// Nano-dollars: reserved, or spent.
    #[serde(default)]
    pub money: u64,
    /// Reserved.
    #[serde(default)]
    pub tokens: u64,
    #[serde(default)]
    pub of: u64,
    #[serde(default)]
    pub source: Option<Source>,
    #[serde(default)]
    pub overrun: u64,
    #[serde(default)]
    pub status: u16,
    #[serde(borrow, default)]
    pub ending: Cow<'a, str>,
    #[serde(default)]
    pub duration_ms: u64,
    #[serde(default)]
    pub usage: Usage,
    #[serde(borrow, default)]
    pub secret: Cow<'a, str>,
    #[serde(borrow, default)]
    pub variable: Cow<'a, str>,
}

/// Writes one line, member by member.
pub(super) struct Line<'a>(&'a mut Vec<u8>);

impl<'a> Line<'a> {
    pub(super) fn begin(buffer: &'a mut Vec<u8>, n: u64, at: u64, kind: &str) -> Line<'a> {
        buffer.clear();
        // Writing to a vector cannot fail.
        let _ = write!(buffer, r#"{{"n":{n},"at":{at},"kind":"{kind}""#);
        Line(buffer)
    }

    pub(super) fn number(&mut self, name: &str, value: u64) -> &mut Self {
        if value != 0 {
            let _ = write!(self.0, r#","{name}":{value}"#);
        }
        self
    }

    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Self {
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

    pub(super) fn usage(&mut self, usage: &Usage) -> &mut Self {
        if *usage != Usage::default() {
            self.0.extend_from_slice(br#","usage":{"#);
            let start = self.0.len();
            self.number("input", usage.input)
                .number("cache_read", usage.cache_read)
                .number("cache_write_5m", usage.cache_write_5m)
                .number("cache_write_1h", usage.cache_write_1h)
                .number("audio_in", usage.audio_in)
                .number("output", usage.output)
                .number("reasoning", usage.reasoning)
                .number("audio_out", usage.audio_out)
                .number("tool_requests", usage.tool_requests);
            // The comma before the first member.
            self.0.remove(start);
            self.0.push(b'}');
        }
        self
    }

    /// Binds the line to the one before, and ends it.
    pub(super) fn seal(self, previous: &Hash) -> Hash {
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
pub(super) fn check(text: &[u8], previous: &Hash) -> Result<Hash, &'static str> {
    const MARK: usize = HASH.len();
    let cut = text.len().checked_sub(MARK + 64 + 2).ok_or("it is too short")?;
    let (told, end) = text.split_at(cut);
    let mut last = Vec::with_capacity(MARK + 66);
    last.extend_from_slice(HASH);
    let hash = digest(previous, told);
    push_hex(&mut last, &hash);
    last.extend_from_slice(b"\"}");
    if end != last {
        return Err("its hash does not fit: it, or what stood before it, was changed or taken away");
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let mut buffer = Vec::new();
        let usage = Usage { cache_read: 3, audio_out: u64::MAX, ..Usage::default() };
        let mut line = Line::begin(&mut buffer, 7, 8, "settle");
        let hostile = "a\"b\\c\n\u{0}\u{7f}ü😀";
        line.text("model", hostile).number("money", 9).text("source", "final").usage(&usage).text("run", "");
        line.seal(&[1; 32]);
        let text = buffer.strip_suffix(b"\n").unwrap();
        check(text, &[1; 32]).unwrap();
        assert!(check(text, &[2; 32]).is_err());
        let row: Row<'_> = serde_json::from_slice(text).unwrap();
        assert_eq!((row.n, row.at, row.kind, row.money), (7, 8, Kind::Settle, 9));
        assert_eq!((&*row.model, row.usage, row.source), (hostile, usage, Some(Source::Final)));
    }

    #[test]
    fn the_longest_names_fit_in_a_line() {
        let mut buffer = Vec::new();
        let mut line = Line::begin(&mut buffer, 1, 1, "reserve");
        for _ in 0..10 {
            line.text("model", &"\u{1}".repeat(1 << 20)).text("run", &"ü".repeat(1 << 20));
        }
        line.seal(&[0; 32]);
        assert!(buffer.len() <= LONGEST, "{}", buffer.len());
        assert!(std::str::from_utf8(&buffer).is_ok());
    }
}
