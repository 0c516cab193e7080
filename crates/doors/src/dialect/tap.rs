//! Reads what passes to learn what it costs. Bytes go through as they are; only what we asked for ourselves is taken
//! out again.
//!
//! ```text
//! piece ─┬─ events ─ reader ─ meter      (what it costs)
//!        └─ strip ─ piece                (what is passed on)
//! ```

use super::error::{self, Fault};
use super::events::Events;
use super::meter::Meter;
use super::node::Node;
use super::reader::Reader;
use super::strip::Strip;
use super::{Dialect, Operation};
use crate::usage::Usage;
use bytes::Bytes;
use memchr::memchr;

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapKind {
    /// One JSON document.
    Whole,
    /// Server-sent events.
    Events,
    /// A JSON document a line; or Gemini's array of documents.
    Lines,
}

/// Reads one answer.
#[derive(Debug)]
pub struct Tap {
    operation: Operation,
    kind: TapKind,
    events: Events,
    reader: Reader,
    meter: Meter,
    strip: Option<Strip>,
    /// What was passed on ends within a line.
    within_line: bool,
}

impl Tap {
    /// For an answer of this kind; `strip` takes out the usage event that the program did not ask for.
    pub fn new(operation: Operation, kind: TapKind, strip: bool) -> Tap {
        let root = Node::root(operation);
        let can_strip = operation == Operation::Chat && kind == TapKind::Events;
        Tap {
            operation,
            kind,
            events: Events::new(),
            reader: Reader::new(root),
            meter: Meter::new(root, kind),
            strip: (strip && can_strip).then(Strip::default),
            within_line: false,
        }
    }

    /// Takes the next piece and gives what is to be passed on now: usually the same bytes, uncopied. A whole line is
    /// never held back; the beginning of one only where something may have to be taken out.
    pub fn feed(&mut self, piece: Bytes) -> Bytes {
        match self.kind {
            TapKind::Events => self.events.feed(&piece, &mut self.reader, &mut self.meter),
            TapKind::Lines if self.operation.dialect() == Some(Dialect::Ollama) => {
                self.lines(&piece)
            }
            TapKind::Lines | TapKind::Whole => self.reader.feed(&piece, &mut self.meter),
        }
        let passed = match &mut self.strip {
            Some(strip) => strip.feed(piece),
            None => piece,
        };
        self.note(passed)
    }

    /// What was held back, at the end of the stream.
    pub fn rest(&mut self) -> Bytes {
        self.reader.end(&mut self.meter);
        self.events.end(&mut self.meter);
        let rest = self.strip.as_mut().map(Strip::rest).unwrap_or_default();
        self.note(rest)
    }

    /// What the provider said so far; the most so far of each field, never a sum. What costs nothing says nothing.
    pub fn usage(&self) -> Option<Usage> {
        if self.operation.is_free() {
            Some(Usage::default())
        } else {
            self.meter.usage()
        }
    }

    /// The provider has said its last word on usage (or the stream has ended in the dialect's own way after saying it).
    pub fn is_final(&self) -> bool {
        self.operation.is_free() || self.meter.is_final()
    }

    /// The stream has ended in the dialect's own way (`[DONE]`, `message_stop`, `done: true`, a whole document).
    pub fn is_complete(&self) -> bool {
        self.meter.is_complete()
    }

    /// The least number of output tokens that can have passed: pieces with content, what the provider said.
    pub fn least_output(&self) -> u64 {
        let said = self.usage().map_or(0, |usage| usage.output_tokens());
        self.meter.pieces().max(said)
    }

    /// Bytes of text that passed, for an estimate where the provider says nothing.
    pub fn output_bytes(&self) -> u64 {
        self.meter.text_bytes()
    }

    /// What is put into this answer where it cannot go on: [`super::interruption`], on a fresh line. Empty for one
    /// document, into which nothing can be put.
    pub fn interruption(&self, fault: &Fault) -> Bytes {
        let (before, event) = error::event(self.operation, fault);
        match (self.kind, self.operation) {
            (TapKind::Events, _) => Bytes::from([before, &event].concat()),
            (TapKind::Lines, Operation::OllamaChat | Operation::OllamaGenerate)
                if self.within_line =>
            {
                Bytes::from([before, &event].concat())
            }
            // Ollama's own library does not take an empty line.
            (TapKind::Lines, Operation::OllamaChat | Operation::OllamaGenerate) => {
                Bytes::from(event)
            }
            (TapKind::Lines | TapKind::Whole, _) => Bytes::new(),
        }
    }

    /// A line that is no JSON spoils only itself.
    fn lines(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr(b'\n', bytes) {
            self.reader.feed(&bytes[..=end], &mut self.meter);
            if self.reader.is_within() {
                self.meter.broken_off();
                self.reader.reset();
            }
            bytes = &bytes[end + 1..];
        }
        self.reader.feed(bytes, &mut self.meter);
    }

    fn note(&mut self, passed: Bytes) -> Bytes {
        if let Some(last) = passed.last() {
            self.within_line = !matches!(last, b'\n' | b'\r');
        }
        passed
    }
}

#[cfg(test)]
#[path = "tap_tests.rs"]
mod tests;
