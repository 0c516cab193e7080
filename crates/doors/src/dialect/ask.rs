//! What a request's body asks for, found without building a tree of it; and the few changes made to it, as splices
//! of bytes, so that everything else arrives as it was sent.

use super::Operation;
use bytes::Bytes;
use std::ops::Range;

/// What matters of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The model it names, decoded, and where.
    pub model: Option<(String, Range<usize>)>,
    /// A stream is asked for.
    pub stream: bool,
    /// The limit of output tokens, if one is given.
    pub cap: Option<Cap>,
    /// How many answers (`n`, `best_of`, `candidateCount`); at least 1.
    pub choices: u64,
    /// The usage of a stream is asked for by the program itself.
    pub wants_usage: bool,
    /// It names things that are not in it (stored conversations, files, images by address), so that its length does
    /// not bound its tokens.
    pub refers_beyond: bool,
    /// It asks for tools that the provider runs by itself.
    pub server_tools: bool,
    /// It asks for a tier of service with another price.
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

/// Where things can be put in; the business of [`rewrite`] alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {}

/// Why a body is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadAsk(pub String);

/// What to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change<'a> {
    /// Another name for the model.
    pub model: Option<&'a str>,
    /// The limit of output tokens to set or lower to.
    pub cap: Option<u64>,
    /// What that limit is called if the body has none (chat only; other dialects know one name).
    pub cap_name: &'a str,
    /// Ask for the usage of a stream.
    pub ask_usage: bool,
    /// Who is calling, put in place of what the body says of that.
    pub identity: &'a str,
}

/// Reads a body. Duplicate keys that matter, trailing bytes, a byte order mark, depth beyond bound are refused: what
/// is checked is what is forwarded.
pub fn ask(_operation: Operation, _body: &[u8]) -> Result<Ask, BadAsk> {
    Err(BadAsk("not yet".to_owned()))
}

/// The body with the changes. Without any it is the same bytes, uncopied.
pub fn rewrite(_operation: Operation, body: &Bytes, _ask: &Ask, _change: &Change<'_>) -> Bytes {
    body.clone()
}
