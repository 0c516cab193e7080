//! The parsed request body: what it asks for, and where, without building a JSON tree. What is
//! parsed here is exactly what is sent upstream, so anything that two JSON parsers could read in
//! two ways is rejected.

use super::ModelOperation;
use super::body_parser::BodyParser;
use super::json_scanner::JsonError;
use std::ops::Range;

/// What matters of a request body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedBody {
    /// The model, decoded, and its position. Gemini names it in the path; if the body names it,
    /// too, both must agree (here without `models/`).
    pub model: Option<(String, Range<usize>)>,
    /// The request asks for a stream.
    pub stream: bool,
    /// The output token limit, if there is one; the highest, if there are two.
    pub cap: Option<OutputLimit>,
    /// Number of answers (`n`, `best_of`, `candidateCount`); at least 1.
    pub choices: u64,
    /// The program itself asks for the usage of a stream.
    pub wants_usage: bool,
    /// The body refers to content outside itself (stored conversations, files, images by URL), or
    /// holds content whose length says little (audio, video, documents), so its length does not
    /// bound its tokens.
    pub refers_beyond: bool,
    /// Number of images: each may be more tokens than it has bytes.
    pub pictures: u64,
    /// The body contains a URL for the provider to fetch: a way out of the sandbox, and a way in.
    pub fetches: bool,
    /// The body defines tools, which providers explain to the model in extra prompt tokens.
    pub tools: bool,
    /// The body asks for tools that the provider runs by itself.
    pub server_tools: bool,
    /// The first such tool, by its type or its member name; for messages.
    pub server_tool: Option<String>,
    /// The body asks for something with another price: a tier, a speed, a region, images as output.
    pub priced_otherwise: bool,
    /// Positions of values that identify the user; they are overwritten.
    pub identities: Vec<Range<usize>>,
    /// Where the body can be edited.
    pub(super) edit_points: EditPoints,
}

/// An output token limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    /// The limit.
    pub tokens: u64,
    /// Its position in the body.
    pub at: Range<usize>,
}

/// Where the body can be edited; used by [`super::rewrite`] only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EditPoints {
    pub(super) root: ObjectStart,
    pub(super) models: Vec<Range<usize>>,
    pub(super) limits: Vec<LimitMember>,
    pub(super) stream_options: ObjectMember,
    pub(super) include_usage: Option<Range<usize>>,
    pub(super) settings: ObjectMember,
}

/// An output token limit as the body gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitMember {
    pub(super) name: &'static str,
    pub(super) at: Range<usize>,
    pub(super) given: LimitValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitValue {
    Null,
    Unlimited,
    Tokens(u64),
}

/// The position right behind the opening brace of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectStart {
    pub(super) at: usize,
    pub(super) is_empty: bool,
}

/// A member whose value is an object, if it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ObjectMember {
    #[default]
    Absent,
    Null(Range<usize>),
    Object(ObjectStart),
}

/// Why a body is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BodyError(pub String);

/// Parses a request body. Rejects duplicate keys that matter, trailing bytes, a byte order mark and
/// excessive depth: what is checked is what is forwarded.
pub fn parse_body(operation: ModelOperation, body: &[u8]) -> Result<ParsedBody, BodyError> {
    let default = ParsedBody {
        choices: 1,
        stream: streams_unasked(operation),
        ..ParsedBody::default()
    };
    if takes_no_body(operation) {
        let refusal = || bad("this request takes no body");
        return body.is_empty().then_some(default).ok_or_else(refusal);
    }
    let text = str::from_utf8(body).map_err(|_| bad("the body is not UTF-8"))?;
    BodyParser::new(operation, text, default).root()
}

fn streams_unasked(operation: ModelOperation) -> bool {
    matches!(
        operation,
        ModelOperation::OllamaChat | ModelOperation::OllamaGenerate
    )
}

fn takes_no_body(operation: ModelOperation) -> bool {
    use ModelOperation::{GeminiModels, Models, OllamaRunning, OllamaTags, OllamaVersion};
    matches!(
        operation,
        Models | GeminiModels | OllamaTags | OllamaRunning | OllamaVersion
    )
}

pub(super) fn bad(why: impl Into<String>) -> BodyError {
    BodyError(why.into())
}

impl From<JsonError> for BodyError {
    fn from(error_here: JsonError) -> BodyError {
        bad(format!(
            "the body is not JSON that can be passed on: {error_here}"
        ))
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
