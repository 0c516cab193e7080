//! A reader of JSON that builds nothing: it says where things are, and takes what the grammar takes and no more.
//! Readers differ in what they make of bad JSON, so bad JSON is not passed on.

use super::quote::quote_or_backslash;
use std::{borrow::Cow, ops::Range};

/// No document is nested deeper.
pub(super) const DEEPEST: usize = 128;

/// Where a document breaks the grammar, or a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub(super) struct Broken {
    pub(super) what: &'static str,
    pub(super) at: usize,
}

/// A string, with its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Literal {
    pub(super) at: Range<usize>,
    pub(super) has_escapes: bool,
}

/// A place in a document.
#[derive(Debug)]
pub(super) struct Scanner<'b> {
    text: &'b str,
    at: usize,
    depth: usize,
    /// Nothing has been read in the innermost container.
    is_fresh: bool,
}

impl<'b> Scanner<'b> {
    pub(super) fn new(text: &'b str) -> Scanner<'b> {
        Scanner {
            text,
            at: 0,
            depth: 0,
            is_fresh: true,
        }
    }

    /// Begins at a key of an object.
    pub(super) fn within(text: &'b str, at: usize) -> Scanner<'b> {
        Scanner {
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

    /// The first byte of what comes next.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(self.at) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// Goes into an object or array.
    pub(super) fn enter(&mut self) -> Result<(), Broken> {
        if self.depth == DEEPEST {
            return Err(self.broken("nested too deep"));
        }
        (self.at, self.depth, self.is_fresh) = (self.at + 1, self.depth + 1, true);
        Ok(())
    }

    /// The key of the next member of an object, with the colon behind it; none at the object's end.
    pub(super) fn key(&mut self) -> Result<Option<Literal>, Broken> {
        if !self.goes_on(b'}')? {
            return Ok(None);
        }
        if self.peek() != Some(b'"') {
            return Err(self.broken("a key is missing"));
        }
        let key = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.broken("a colon is missing"));
        }
        self.at += 1;
        Ok(Some(key))
    }

    /// Whether an array has another element.
    pub(super) fn element(&mut self) -> Result<bool, Broken> {
        self.goes_on(b']')
    }

    fn goes_on(&mut self, end: u8) -> Result<bool, Broken> {
        let is_fresh = std::mem::take(&mut self.is_fresh);
        match self.peek() {
            Some(byte) if byte == end => {
                (self.at, self.depth) = (self.at + 1, self.depth - 1);
                Ok(false)
            }
            Some(b',') if !is_fresh => {
                self.at += 1;
                Ok(true)
            }
            _ if is_fresh => Ok(true),
            _ => Err(self.broken("a comma is missing")),
        }
    }

    /// A string; the next byte is its quote.
    pub(super) fn string(&mut self) -> Result<Literal, Broken> {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        let (mut at, mut has_escapes) = (start + 1, false);
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(run) = quote_or_backslash(rest) else {
                return Err(self.broken("a string has no end"));
            };
            if rest[..run]
                .iter()
                .fold(false, |found, byte| found | (*byte < b' '))
            {
                return Err(self.broken("a control character in a string"));
            }
            at += run;
            if bytes[at] == b'"' {
                self.at = at + 1;
                return Ok(Literal {
                    at: start..self.at,
                    has_escapes,
                });
            }
            has_escapes = true;
            at += self.escape(at)?;
        }
    }

    fn escape(&self, at: usize) -> Result<usize, Broken> {
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
            _ => Err(Broken {
                what: "a bad escape",
                at,
            }),
        }
    }

    /// Passes over any value, checking it, and says where it was.
    pub(super) fn skip(&mut self) -> Result<Range<usize>, Broken> {
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
    fn scalar(&mut self) -> Result<(), Broken> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let word = [&b"true"[..], b"false", b"null"]
            .into_iter()
            .find(|word| rest.starts_with(word));
        let length = match word {
            Some(word) => word.len(),
            None => number(rest).ok_or_else(|| self.broken("no value"))?,
        };
        self.at += length;
        Ok(())
    }

    /// Nothing may follow the document.
    pub(super) fn finish(&mut self) -> Result<(), Broken> {
        if self.peek().is_some() {
            Err(self.broken("something follows the document"))
        } else {
            Ok(())
        }
    }

    /// What a string says. Half of a surrogate pair says nothing.
    pub(super) fn decode(&self, literal: &Literal) -> Result<Cow<'b, str>, Broken> {
        let inner = self.text(literal.at.start + 1..literal.at.end - 1);
        if !literal.has_escapes {
            return Ok(Cow::Borrowed(inner));
        }
        let whole = self.text(literal.at.clone());
        let broken = |_| Broken {
            what: "half a character",
            at: literal.at.start,
        };
        serde_json::from_str(whole).map(Cow::Owned).map_err(broken)
    }

    pub(super) fn broken(&self, what: &'static str) -> Broken {
        Broken { what, at: self.at }
    }
}

/// How long the number is that begins here.
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
#[path = "json_tests.rs"]
mod tests;
