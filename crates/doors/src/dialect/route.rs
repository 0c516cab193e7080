//! The closed table of routes: what a program may ask for, and nothing beside it.

use super::{Dialect, Operation};
use http::Method;

/// A request that may be forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What is asked.
    pub operation: Operation,
    /// The language of the asker; none where two share the path (`/v1/models`).
    pub dialect: Option<Dialect>,
    /// The model, where the path names it; checked to be one plain segment.
    pub model: Option<String>,
    /// Path and query to send upstream, made by us and not the program's own bytes; `{model}` is already filled in.
    pub target: String,
    /// Whether the path itself asks for a stream.
    pub streams: bool,
}

/// Why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum NoRoute {
    NotFound,
    WrongMethod,
}

/// Finds the route. The path is compared as it came: nothing is decoded, nothing is normalised.
pub fn route(_method: &Method, _path: &str, _query: Option<&str>) -> Result<Route, NoRoute> {
    Err(NoRoute::NotFound)
}
