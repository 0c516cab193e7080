//! Response shapes of providers and servers, each with its usage counted by hand.

mod anthropic;
mod gemini;
mod ollama;
mod openai;
mod responses;

use super::super::{ModelOperation, ResponseFormat};
use crate::usage::TokenUsage;

/// One response.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) operation: ModelOperation,
    pub(super) kind: ResponseFormat,
    pub(super) text: String,
    pub(super) usage: Option<TokenUsage>,
    pub(super) ends: Ends,
    /// Lower bound of output tokens.
    pub(super) least: u64,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// The final usage was reported, and the stream ended properly.
    Well,
    /// The final usage was reported, but the end of the stream is missing.
    Said,
    /// The stream ended properly, but its usage is incomplete.
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

/// A usage with this input and output.
fn usage(input: u64, output: u64) -> TokenUsage {
    TokenUsage {
        input,
        output,
        ..TokenUsage::default()
    }
}

/// SSE events with these data.
fn events(data: &[&str]) -> String {
    data.iter()
        .map(|data| format!("data: {data}\n\n"))
        .collect()
}
