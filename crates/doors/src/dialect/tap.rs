//! Reads what passes to learn what it costs. Bytes go through as they are; only the usage event that we asked for
//! ourselves is taken out again.

use super::Operation;
use crate::usage::Usage;
use bytes::Bytes;

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapKind {
    /// One JSON document.
    Whole,
    /// Server-sent events.
    Events,
    /// A JSON document a line.
    Lines,
}

/// Reads one answer.
#[derive(Debug)]
pub struct Tap {
    usage: Usage,
}

impl Tap {
    /// For an answer of this kind; `strip` takes out the usage event that the program did not ask for.
    pub fn new(_operation: Operation, _kind: TapKind, _strip: bool) -> Tap {
        Tap { usage: Usage::default() }
    }

    /// Takes the next piece and gives what is to be passed on now: usually the same bytes, uncopied.
    pub fn feed(&mut self, piece: Bytes) -> Bytes {
        piece
    }

    /// What was held back, at the end of the stream.
    pub fn rest(&mut self) -> Bytes {
        Bytes::new()
    }

    /// What the provider said so far; the most so far of each field, never a sum.
    pub fn usage(&self) -> Option<Usage> {
        Some(self.usage)
    }

    /// The provider has said its last word on usage (or the stream has ended in the dialect's own way after saying it).
    pub fn is_final(&self) -> bool {
        false
    }

    /// The stream has ended in the dialect's own way (`[DONE]`, `message_stop`, `done: true`, a whole document).
    pub fn is_complete(&self) -> bool {
        false
    }

    /// The least number of output tokens that can have passed: pieces with content, what the provider said.
    pub fn least_output(&self) -> u64 {
        0
    }

    /// Bytes of text that passed, for an estimate where the provider says nothing.
    pub fn output_bytes(&self) -> u64 {
        0
    }
}
