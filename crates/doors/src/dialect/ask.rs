//! What a request's body asks for, found without building a tree of it. Everything that is believed here is what
//! goes upstream: what two readers could read in two ways is refused.

use super::Operation;
use super::json::Broken;
use super::peek::Reading;
use std::ops::Range;

/// What matters of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The model it names, decoded, and where. Gemini names it in the path; if the body does, too, it must be the same
    /// one (here without `models/`).
    pub model: Option<(String, Range<usize>)>,
    /// A stream is asked for.
    pub stream: bool,
    /// The limit of output tokens, if one is given; the highest, if two are.
    pub cap: Option<Cap>,
    /// How many answers (`n`, `best_of`, `candidateCount`); at least 1.
    pub choices: u64,
    /// The usage of a stream is asked for by the program itself.
    pub wants_usage: bool,
    /// It names things that are not in it (stored conversations, files, images by address), or holds things whose
    /// length says little (sound, films, documents), so that its length does not bound its tokens.
    pub refers_beyond: bool,
    /// Pictures in it: each may be more tokens than it has bytes.
    pub pictures: u64,
    /// It names an address for the provider to fetch from: a way out, and a way in.
    pub fetches: bool,
    /// It brings tools, which providers explain to the model in words of their own.
    pub tools: bool,
    /// It asks for tools that the provider runs by itself.
    pub server_tools: bool,
    /// It asks for what has another price: a tier, a speed, a place, pictures as output.
    pub priced_otherwise: bool,
    /// Where it says who the user is: values to be overwritten.
    pub identities: Vec<Range<usize>>,
    /// Where things can be put in.
    pub(super) places: Places,
}

/// A limit of output tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Cap {
    pub tokens: u64,
    pub at: Range<usize>,
}

/// Where things can be put in; the business of [`super::rewrite`] alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) root: Inside,
    pub(super) models: Vec<Range<usize>>,
    pub(super) limits: Vec<Limit>,
    pub(super) stream_options: Member,
    pub(super) include_usage: Option<Range<usize>>,
    pub(super) settings: Member,
}

/// A limit as the body gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) name: &'static str,
    pub(super) at: Range<usize>,
    pub(super) given: Given,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    Null,
    Unlimited,
    Tokens(u64),
}

/// Right behind the brace of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Inside {
    pub(super) at: usize,
    pub(super) is_empty: bool,
}

/// A member that is an object, if it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Member {
    #[default]
    Absent,
    Null(Range<usize>),
    Object(Inside),
}

/// Why a body is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadAsk(pub String);

/// Reads a body. Duplicate keys that matter, trailing bytes, a byte order mark, depth beyond bound are refused: what
/// is checked is what is forwarded.
pub fn ask(operation: Operation, body: &[u8]) -> Result<Ask, BadAsk> {
    let default = Ask {
        choices: 1,
        stream: streams_unasked(operation),
        ..Ask::default()
    };
    if takes_no_body(operation) {
        let refusal = || bad("this request takes no body");
        return body.is_empty().then_some(default).ok_or_else(refusal);
    }
    let text = str::from_utf8(body).map_err(|_| bad("the body is not UTF-8"))?;
    Reading::new(operation, text, default).root()
}

fn streams_unasked(operation: Operation) -> bool {
    matches!(operation, Operation::OllamaChat | Operation::OllamaGenerate)
}

fn takes_no_body(operation: Operation) -> bool {
    use Operation::{GeminiModels, Models, OllamaRunning, OllamaTags, OllamaVersion};
    matches!(
        operation,
        Models | GeminiModels | OllamaTags | OllamaRunning | OllamaVersion
    )
}

pub(super) fn bad(why: impl Into<String>) -> BadAsk {
    BadAsk(why.into())
}

impl From<Broken> for BadAsk {
    fn from(broken: Broken) -> BadAsk {
        bad(format!(
            "the body is not JSON that can be passed on: {broken}"
        ))
    }
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
