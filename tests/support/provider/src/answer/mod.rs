//! Answers as each dialect writes them. One file a dialect; frames are whole, the sender cuts them.

mod anthropic;
mod chat;
mod gemini;
mod lists;
mod ollama;
mod responses;

pub(crate) use lists::list;

use crate::{account::Tokens, ask::Plan, route::Operation};
use serde_json::Value;

/// What a dialect says, in parts. `opening` and `closing` carry no token.
pub(crate) trait Shape: Sync {
    /// The whole answer in one.
    fn unary(&self, plan: &Plan) -> Value;
    /// Frames before the first token.
    fn opening(&self, plan: &Plan) -> Vec<String>;
    /// The frame of one token.
    fn token(&self, plan: &Plan, index: u64) -> String;
    /// Frames behind the last of them.
    fn closing(&self, plan: &Plan, served: Tokens) -> Vec<String>;
    /// Frames in place of these when the model fails in the middle.
    fn failure(&self, plan: &Plan, served: Tokens) -> Vec<String>;
}

/// The shape of a route where a model speaks.
pub(crate) fn shape(operation: Operation) -> &'static dyn Shape {
    match operation {
        Operation::OpenAiResponses => &responses::Responses,
        Operation::AnthropicMessages => &anthropic::Messages,
        Operation::GeminiGenerate | Operation::GeminiStream => &gemini::Generate,
        Operation::OllamaChat => &ollama::Ollama { chat: true },
        Operation::OllamaGenerate => &ollama::Ollama { chat: false },
        _ => &chat::Chat,
    }
}

/// One event: its name, if it has one, and its data.
fn event(name: Option<&str>, data: &str) -> String {
    match name {
        Some(name) => format!("event: {name}\ndata: {data}\n\n"),
        None => format!("data: {data}\n\n"),
    }
}

/// A text with its quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
