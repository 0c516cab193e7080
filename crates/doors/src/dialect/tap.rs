//! The tap: meters a response while it passes. Bytes are forwarded unchanged; only what the door
//! asked for itself is removed again.
//!
//! ```text
//! chunk ─┬─ SSE parser ─ JSON parser ─ usage meter     (what it costs)
//!        └─ usage filter ─ chunk                       (what is forwarded)
//! ```

use super::api_error::{self, ApiError};
use super::json_stream::JsonStreamParser;
use super::node::Node;
use super::sse::SseParser;
use super::usage_filter::UsageFilter;
use super::usage_meter::UsageMeter;
use super::{Dialect, ModelOperation};
use crate::usage::TokenUsage;
use bytes::Bytes;
use memchr::memchr;

/// Format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFormat {
    /// One JSON document.
    Whole,
    /// Server-sent events.
    Events,
    /// One JSON document per line; or Gemini's array of documents.
    Lines,
}

/// Meters one response while it passes.
#[derive(Debug)]
pub struct Tap {
    operation: ModelOperation,
    kind: ResponseFormat,
    events: SseParser,
    reader: JsonStreamParser,
    meter: UsageMeter,
    filter: Option<UsageFilter>,
    /// The forwarded bytes end within a line.
    within_line: bool,
}

impl Tap {
    /// `strip` removes the usage event that the program did not ask for.
    pub fn new(operation: ModelOperation, kind: ResponseFormat, strip: bool) -> Tap {
        let root = Node::root(operation);
        let can_strip = operation == ModelOperation::Chat && kind == ResponseFormat::Events;
        Tap {
            operation,
            kind,
            events: SseParser::new(),
            reader: JsonStreamParser::new(root),
            meter: UsageMeter::new(root, kind),
            filter: (strip && can_strip).then(UsageFilter::default),
            within_line: false,
        }
    }

    /// Takes the next chunk and returns what to forward now: usually the same bytes, uncopied. A
    /// complete line is never held back; the start of one only where something may have to be
    /// removed.
    pub fn feed(&mut self, piece: Bytes) -> Bytes {
        match self.kind {
            ResponseFormat::Events => self.events.feed(&piece, &mut self.reader, &mut self.meter),
            ResponseFormat::Lines if self.operation.dialect() == Some(Dialect::Ollama) => {
                self.lines(&piece)
            }
            ResponseFormat::Lines | ResponseFormat::Whole => {
                self.reader.feed(&piece, &mut self.meter)
            }
        }
        let passed = match &mut self.filter {
            Some(filter) => filter.feed(piece),
            None => piece,
        };
        self.note(passed)
    }

    /// What was held back, at the end of the stream.
    pub fn rest(&mut self) -> Bytes {
        self.reader.end(&mut self.meter);
        self.events.end(&mut self.meter);
        let rest = self
            .filter
            .as_mut()
            .map(UsageFilter::rest)
            .unwrap_or_default();
        self.note(rest)
    }

    /// The usage reported so far: the maximum of each field, never a sum. Free operations report
    /// nothing.
    pub fn usage(&self) -> Option<TokenUsage> {
        if self.operation.is_free() {
            Some(TokenUsage::default())
        } else {
            self.meter.usage()
        }
    }

    /// The provider has reported its final usage (or the stream has ended properly after reporting
    /// it).
    pub fn is_final(&self) -> bool {
        self.operation.is_free() || self.meter.is_final()
    }

    /// The stream has ended properly for its dialect (`[DONE]`, `message_stop`, `done: true`, a
    /// whole document).
    pub fn is_complete(&self) -> bool {
        self.meter.is_complete()
    }

    /// Lower bound of the output tokens that passed: chunks with content, or what the provider
    /// reported.
    pub fn least_output(&self) -> u64 {
        let reported = self.usage().map_or(0, |usage| usage.output_tokens());
        self.meter.pieces().max(reported)
    }

    /// Bytes of text that passed, for an estimate where the provider reports nothing.
    pub fn output_bytes(&self) -> u64 {
        self.meter.text_bytes()
    }

    /// The error event for this response: [`super::stream_error`], on a fresh line. Empty for a
    /// single document, which cannot carry one.
    pub fn stream_error(&self, error: &ApiError) -> Bytes {
        let (before, event) = api_error::event(self.operation, error);
        match (self.kind, self.operation) {
            (ResponseFormat::Events, _) => Bytes::from([before, &event].concat()),
            (
                ResponseFormat::Lines,
                ModelOperation::OllamaChat | ModelOperation::OllamaGenerate,
            ) if self.within_line => Bytes::from([before, &event].concat()),
            // Ollama's own library rejects an empty line.
            (
                ResponseFormat::Lines,
                ModelOperation::OllamaChat | ModelOperation::OllamaGenerate,
            ) => Bytes::from(event),
            (ResponseFormat::Lines | ResponseFormat::Whole, _) => Bytes::new(),
        }
    }

    /// A line that is not JSON affects only itself.
    fn lines(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr(b'\n', bytes) {
            self.reader.feed(&bytes[..=end], &mut self.meter);
            if self.reader.is_within() {
                self.meter.abort_document();
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
