//! Shapes of answers that providers and servers send, each with what it costs, counted by hand.

mod anthropic;
mod gemini;
mod ollama;
mod openai;
mod responses;

use super::super::{Operation, TapKind};
use crate::usage::Usage;

/// One answer.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) operation: Operation,
    pub(super) kind: TapKind,
    pub(super) text: String,
    pub(super) usage: Option<Usage>,
    pub(super) ends: Ends,
    /// At least so many tokens were written.
    pub(super) least: u64,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// The last word on usage was said, and the stream has ended in its own way.
    Well,
    /// The last word was said, but the end of the stream is missing.
    Said,
    /// It ended in its own way, and something about usage is missing.
    Unsaid,
    /// It broke off.
    Cut,
}

pub(super) fn shapes() -> Vec<Shape> {
    [
        openai::shapes(),
        responses::shapes(),
        anthropic::shapes(),
        gemini::shapes(),
        ollama::shapes(),
    ]
    .concat()
}

/// A usage of this input and output, to which more may be added.
fn usage(input: u64, output: u64) -> Usage {
    Usage {
        input,
        output,
        ..Usage::default()
    }
}

/// Events of these data.
fn events(data: &[&str]) -> String {
    data.iter()
        .map(|data| format!("data: {data}\n\n"))
        .collect()
}
