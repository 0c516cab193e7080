//! A JSON scanner that allocates nothing: it reports positions, and accepts exactly the JSON
//! grammar. Parsers differ in how they read invalid JSON, so invalid JSON is not forwarded.

use super::quote::quote_or_backslash;
use std::{borrow::Cow, ops::Range};

/// Maximum nesting depth.
pub(super) const MAX_DEPTH: usize = 128;

/// Where a document violates the grammar or a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub(super) struct JsonError {
    pub(super) what: &'static str,
    pub(super) at: usize,
}

/// The range of a string, with its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StringSpan {
    pub(super) at: Range<usize>,
    pub(super) has_escapes: bool,
}

/// A position in a document.
#[derive(Debug)]
pub(super) struct JsonScanner<'b> {
    text: &'b str,
    at: usize,
    depth: usize,
    /// Nothing has been read yet in the innermost container.
    is_fresh: bool,
}

impl<'b> JsonScanner<'b> {
    pub(super) fn new(text: &'b str) -> JsonScanner<'b> {
        JsonScanner {
            text,
            at: 0,
            depth: 0,
            is_fresh: true,
        }
    }

    /// Starts at a key of an object.
    pub(super) fn within(text: &'b str, at: usize) -> JsonScanner<'b> {
        JsonScanner {
            text,
            at,
            depth: 1,
            is_fresh: true,
        }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn text(&self, at: Range<usize>) -> &'b str {
        self.text.get(at).unwrap_or_default()
    }

    /// The first byte of the next token.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(self.at) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// Enters an object or array.
    pub(super) fn enter(&mut self) -> Result<(), JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error_here("nested too deep"));
        }
        self.at += 1;
        self.depth += 1;
        self.is_fresh = true;
        Ok(())
    }

    /// The key of the next member of an object, past its colon; `None` at the end of the object.
    pub(super) fn key(&mut self) -> Result<Option<StringSpan>, JsonError> {
        if !self.has_next(b'}')? {
            return Ok(None);
        }
        if self.peek() != Some(b'"') {
            return Err(self.error_here("a key is missing"));
        }
        let key = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.error_here("a colon is missing"));
        }
        self.at += 1;
        Ok(Some(key))
    }

    /// Whether an array has another element.
    pub(super) fn element(&mut self) -> Result<bool, JsonError> {
        self.has_next(b']')
    }

    fn has_next(&mut self, end: u8) -> Result<bool, JsonError> {
        let is_fresh = std::mem::take(&mut self.is_fresh);
        match self.peek() {
            Some(byte) if byte == end => {
                self.at += 1;
                self.depth -= 1;
                Ok(false)
            }
            Some(b',') if !is_fresh => {
                self.at += 1;
                Ok(true)
            }
            _ if is_fresh => Ok(true),
            _ => Err(self.error_here("a comma is missing")),
        }
    }

    /// Scans a string; the next byte is its quote.
    pub(super) fn string(&mut self) -> Result<StringSpan, JsonError> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut at = start + 1;
        let mut has_escapes = false;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(run) = quote_or_backslash(rest) else {
                return Err(self.error_here("a string has no end"));
            };
            if rest[..run]
                .iter()
                .fold(false, |found, byte| found | (*byte < b' '))
            {
                return Err(self.error_here("a control character in a string"));
            }
            at += run;
            if bytes[at] == b'"' {
                self.at = at + 1;
                return Ok(StringSpan {
                    at: start..self.at,
                    has_escapes,
                });
            }
            has_escapes = true;
            at += self.escape(at)?;
        }
    }

    fn escape(&self, at: usize) -> Result<usize, JsonError> {
        let bytes = self.text.as_bytes();
        match bytes.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(2),
            Some(b'u')
                if bytes
                    .get(at + 2..at + 6)
                    .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) =>
            {
                Ok(6)
            }
            _ => Err(JsonError {
                what: "a bad escape",
                at,
            }),
        }
    }

    /// Skips and validates any value; returns its range.
    pub(super) fn skip(&mut self) -> Result<Range<usize>, JsonError> {
        let first = self.peek();
        let start = self.at;
        match first {
            Some(b'{') => {
                self.enter()?;
                while self.key()?.is_some() {
                    self.skip()?;
                }
            }
            Some(b'[') => {
                self.enter()?;
                while self.element()? {
                    self.skip()?;
                }
            }
            Some(b'"') => {
                self.string()?;
            }
            _ => self.scalar()?,
        }
        Ok(start..self.at)
    }

    /// A number, `true`, `false` or `null`.
    fn scalar(&mut self) -> Result<(), JsonError> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let word = [&b"true"[..], b"false", b"null"]
            .into_iter()
            .find(|word| rest.starts_with(word));
        let length = match word {
            Some(word) => word.len(),
            None => number(rest).ok_or_else(|| self.error_here("no value"))?,
        };
        self.at += length;
        Ok(())
    }

    /// Fails if anything follows the document.
    pub(super) fn finish(&mut self) -> Result<(), JsonError> {
        if self.peek().is_some() {
            Err(self.error_here("something follows the document"))
        } else {
            Ok(())
        }
    }

    /// Decodes a string. An unpaired surrogate is an error.
    pub(super) fn decode(&self, literal: &StringSpan) -> Result<Cow<'b, str>, JsonError> {
        let inner = self.text(literal.at.start + 1..literal.at.end - 1);
        if !literal.has_escapes {
            return Ok(Cow::Borrowed(inner));
        }
        let whole = self.text(literal.at.clone());
        let error_here = |_| JsonError {
            what: "half a character",
            at: literal.at.start,
        };
        serde_json::from_str(whole)
            .map(Cow::Owned)
            .map_err(error_here)
    }

    pub(super) fn error_here(&self, what: &'static str) -> JsonError {
        JsonError { what, at: self.at }
    }
}

/// Length of the number that starts here.
fn number(bytes: &[u8]) -> Option<usize> {
    let digits = |at: usize| {
        bytes
            .iter()
            .skip(at)
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let mut at = usize::from(bytes.first() == Some(&b'-'));
    at += match (bytes.get(at), digits(at)) {
        (Some(b'0'), _) => 1,
        (_, 0) => return None,
        (_, whole) => whole,
    };
    if bytes.get(at) == Some(&b'.') {
        let fraction = Some(digits(at + 1)).filter(|count| *count > 0)?;
        at += 1 + fraction;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        at += Some(digits(at)).filter(|count| *count > 0)?;
    }
    Some(at)
}

#[cfg(test)]
#[path = "json_scanner_tests.rs"]
mod tests;
