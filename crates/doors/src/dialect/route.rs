//! The routing table: the requests that are forwarded; everything else is rejected.

use super::{Dialect, ModelOperation};
use http::Method;

/// A request that is forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The operation.
    pub operation: ModelOperation,
    /// The caller's dialect; `None` where two share the path (`/v1/models`).
    pub dialect: Option<Dialect>,
    /// The model, where the path names it; checked to be one plain segment.
    pub model: Option<String>,
    /// Path and query to send upstream, built from known parts and not from the program's bytes;
    /// `{model}` is filled in.
    pub target: String,
    /// Whether the path itself asks for a stream.
    pub streams: bool,
}

/// Why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// 404: the path is not served.
    NotFound,
    /// 405: the path is served with another method.
    WrongMethod,
}

/// Longest model name.
const MAX_MODEL_NAME: usize = 200;
/// Longest query value.
const MAX_QUERY_VALUE: usize = 512;

/// Routes without a variable part.
#[rustfmt::skip]
const FIXED: [(&str, Method, ModelOperation); 15] = [
    ("/v1/chat/completions", Method::POST, ModelOperation::Chat),
    ("/v1/responses", Method::POST, ModelOperation::Responses),
    ("/v1/embeddings", Method::POST, ModelOperation::Embeddings),
    ("/v1/models", Method::GET, ModelOperation::Models),
    ("/v1/messages", Method::POST, ModelOperation::Messages),
    ("/v1/messages/count_tokens", Method::POST, ModelOperation::CountTokens),
    ("/v1beta/models", Method::GET, ModelOperation::GeminiModels),
    ("/api/chat", Method::POST, ModelOperation::OllamaChat),
    ("/api/generate", Method::POST, ModelOperation::OllamaGenerate),
    ("/api/embed", Method::POST, ModelOperation::OllamaEmbed),
    ("/api/embeddings", Method::POST, ModelOperation::OllamaEmbed),
    ("/api/tags", Method::GET, ModelOperation::OllamaTags),
    ("/api/show", Method::POST, ModelOperation::OllamaShow),
    ("/api/ps", Method::GET, ModelOperation::OllamaRunning),
    ("/api/version", Method::GET, ModelOperation::OllamaVersion),
];

/// Gemini's verbs after the model name.
const VERBS: [(&str, ModelOperation); 5] = [
    ("generateContent", ModelOperation::Generate),
    ("streamGenerateContent", ModelOperation::Generate),
    ("countTokens", ModelOperation::GeminiCountTokens),
    ("embedContent", ModelOperation::GeminiEmbed),
    ("batchEmbedContents", ModelOperation::GeminiEmbed),
];

/// Finds the route. The path is compared as received: nothing is decoded or normalised.
pub fn route(method: &Method, path: &str, query: Option<&str>) -> Result<Route, RouteError> {
    let mut found = match FIXED.iter().find(|(fixed, ..)| *fixed == path) {
        Some((_, allowed, operation)) => with_method(method, allowed, fixed(path, *operation))?,
        None => with_model(method, path)?,
    };
    add_query(&mut found, query.unwrap_or_default())?;
    Ok(found)
}

impl Route {
    /// Path and query with another model, for aliases. `None` if the path names no model, or if the
    /// name cannot be part of a path.
    pub fn target_for(&self, model: &str) -> Option<String> {
        let own = self.model.as_deref().filter(|_| is_model(model))?;
        let (before, rest) = self.target.split_once("/models/")?;
        let after = rest.strip_prefix(own)?;
        Some(format!("{before}/models/{model}{after}"))
    }
}

fn fixed(path: &str, operation: ModelOperation) -> Route {
    let dialect = operation.dialect();
    let target = path.to_owned();
    Route {
        operation,
        dialect,
        model: None,
        target,
        streams: false,
    }
}

fn with_method(method: &Method, allowed: &Method, route: Route) -> Result<Route, RouteError> {
    if method == allowed {
        Ok(route)
    } else {
        Err(RouteError::WrongMethod)
    }
}

/// `…/models/{model}` and `…/models/{model}:{verb}`. A verb takes precedence over a name with a
/// colon: a path has one meaning, whatever the method.
fn with_model(method: &Method, path: &str) -> Result<Route, RouteError> {
    let beta = path.strip_prefix("/v1beta/models/");
    let rest = beta
        .or_else(|| path.strip_prefix("/v1/models/"))
        .ok_or(RouteError::NotFound)?;
    let verb = rest.rsplit_once(':').and_then(|(model, verb)| {
        VERBS
            .iter()
            .find(|(name, _)| *name == verb)
            .map(|(name, operation)| (model, *name, *operation))
    });
    let (model, operation, allowed, streams) = match verb {
        Some((model, verb, operation)) => (
            model,
            operation,
            Method::POST,
            verb == "streamGenerateContent",
        ),
        None if beta.is_some() => (rest, ModelOperation::GeminiModels, Method::GET, false),
        None => (rest, ModelOperation::Models, Method::GET, false),
    };
    let colons = operation == ModelOperation::Models;
    if !is_model(model) || (!colons && model.contains(':')) {
        return Err(RouteError::NotFound);
    }
    let found = Route {
        model: Some(model.to_owned()),
        streams,
        ..fixed(path, operation)
    };
    with_method(method, &allowed, found)
}

/// One plain path segment that every server parses alike.
fn is_model(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=MAX_MODEL_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// Builds the query from known, well-formed parameters; others are dropped. A duplicate is
/// rejected, because servers differ in which one they believe.
fn add_query(route: &mut Route, query: &str) -> Result<(), RouteError> {
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let Some(known) = known_parameter(route, name) else {
            continue;
        };
        if seen.contains(&known) {
            return Err(RouteError::NotFound);
        }
        seen.push(known);
        if is_value(known, value) {
            let content_key = if route.target.contains('?') { '&' } else { '?' };
            route
                .target
                .extend([content_key.to_string().as_str(), known, "=", value]);
        }
    }
    Ok(())
}

fn known_parameter(route: &Route, name: &str) -> Option<&'static str> {
    let known: &[&'static str] = match route.operation {
        ModelOperation::Messages | ModelOperation::CountTokens => &["beta"],
        ModelOperation::Models => &["limit", "after_id", "before_id", "beta"],
        ModelOperation::GeminiModels => &["pageSize", "pageToken"],
        ModelOperation::Generate if route.streams => &["alt"],
        ModelOperation::Generate
        | ModelOperation::GeminiCountTokens
        | ModelOperation::GeminiEmbed => &[],
        ModelOperation::Chat | ModelOperation::Responses | ModelOperation::Embeddings => &[],
        ModelOperation::OllamaChat
        | ModelOperation::OllamaGenerate
        | ModelOperation::OllamaEmbed => &[],
        ModelOperation::OllamaTags
        | ModelOperation::OllamaShow
        | ModelOperation::OllamaRunning
        | ModelOperation::OllamaVersion => &[],
    };
    known.iter().copied().find(|known| *known == name)
}

fn is_value(name: &str, value: &str) -> bool {
    let all = |allowed: fn(u8) -> bool| !value.is_empty() && value.bytes().all(allowed);
    match name {
        "alt" => value == "sse",
        "beta" => value == "true",
        "limit" | "pageSize" => value.len() <= 9 && all(|byte| byte.is_ascii_digit()),
        _ => {
            value.len() <= MAX_QUERY_VALUE
                && all(|byte| byte.is_ascii_alphanumeric() || b"._~-=".contains(&byte))
        }
    }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
