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

/// No name of a model is longer.
const LONGEST_MODEL: usize = 200;
/// No value of a query is longer.
const LONGEST_VALUE: usize = 512;

/// Paths without a part that varies.
#[rustfmt::skip]
const FIXED: [(&str, Method, Operation); 15] = [
    ("/v1/chat/completions", Method::POST, Operation::Chat),
    ("/v1/responses", Method::POST, Operation::Responses),
    ("/v1/embeddings", Method::POST, Operation::Embeddings),
    ("/v1/models", Method::GET, Operation::Models),
    ("/v1/messages", Method::POST, Operation::Messages),
    ("/v1/messages/count_tokens", Method::POST, Operation::CountTokens),
    ("/v1beta/models", Method::GET, Operation::GeminiModels),
    ("/api/chat", Method::POST, Operation::OllamaChat),
    ("/api/generate", Method::POST, Operation::OllamaGenerate),
    ("/api/embed", Method::POST, Operation::OllamaEmbed),
    ("/api/embeddings", Method::POST, Operation::OllamaEmbed),
    ("/api/tags", Method::GET, Operation::OllamaTags),
    ("/api/show", Method::POST, Operation::OllamaShow),
    ("/api/ps", Method::GET, Operation::OllamaRunning),
    ("/api/version", Method::GET, Operation::OllamaVersion),
];

/// Gemini's verbs behind the name of a model.
const VERBS: [(&str, Operation); 5] = [
    ("generateContent", Operation::Generate),
    ("streamGenerateContent", Operation::Generate),
    ("countTokens", Operation::GeminiCountTokens),
    ("embedContent", Operation::GeminiEmbed),
    ("batchEmbedContents", Operation::GeminiEmbed),
];

/// Finds the route. The path is compared as it came: nothing is decoded, nothing is normalised.
pub fn route(method: &Method, path: &str, query: Option<&str>) -> Result<Route, NoRoute> {
    let mut found = match FIXED.iter().find(|(fixed, ..)| *fixed == path) {
        Some((_, allowed, operation)) => with_method(method, allowed, fixed(path, *operation))?,
        None => with_model(method, path)?,
    };
    add_query(&mut found, query.unwrap_or_default())?;
    Ok(found)
}

impl Route {
    /// Path and query with another model, where the path names one: for names that stand for others. None if the
    /// path names none, or if that model cannot stand in a path.
    pub fn target_for(&self, model: &str) -> Option<String> {
        let own = self.model.as_deref().filter(|_| is_model(model))?;
        let (before, rest) = self.target.split_once("/models/")?;
        let after = rest.strip_prefix(own)?;
        Some(format!("{before}/models/{model}{after}"))
    }
}

fn fixed(path: &str, operation: Operation) -> Route {
    let (dialect, target) = (operation.dialect(), path.to_owned());
    Route {
        operation,
        dialect,
        model: None,
        target,
        streams: false,
    }
}

fn with_method(method: &Method, allowed: &Method, route: Route) -> Result<Route, NoRoute> {
    if method == allowed {
        Ok(route)
    } else {
        Err(NoRoute::WrongMethod)
    }
}

/// `…/models/{model}` and `…/models/{model}:{verb}`. A verb goes before a name with a colon in it: a path has one
/// meaning, whatever the method.
fn with_model(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let beta = path.strip_prefix("/v1beta/models/");
    let rest = beta
        .or_else(|| path.strip_prefix("/v1/models/"))
        .ok_or(NoRoute::NotFound)?;
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
        None if beta.is_some() => (rest, Operation::GeminiModels, Method::GET, false),
        None => (rest, Operation::Models, Method::GET, false),
    };
    let colons = operation == Operation::Models;
    if !is_model(model) || (!colons && model.contains(':')) {
        return Err(NoRoute::NotFound);
    }
    let found = Route {
        model: Some(model.to_owned()),
        streams,
        ..fixed(path, operation)
    };
    with_method(method, &allowed, found)
}

/// One plain segment of a path that every server reads alike.
fn is_model(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=LONGEST_MODEL).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// Puts a query together from what is known and well formed; all else is left out. A name twice is refused, as
/// servers differ in which one they believe.
fn add_query(route: &mut Route, query: &str) -> Result<(), NoRoute> {
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let Some(known) = known_parameter(route, name) else {
            continue;
        };
        if seen.contains(&known) {
            return Err(NoRoute::NotFound);
        }
        seen.push(known);
        if is_value(known, value) {
            let mark = if route.target.contains('?') { '&' } else { '?' };
            route
                .target
                .extend([mark.to_string().as_str(), known, "=", value]);
        }
    }
    Ok(())
}

fn known_parameter(route: &Route, name: &str) -> Option<&'static str> {
    let known: &[&'static str] = match route.operation {
        Operation::Messages | Operation::CountTokens => &["beta"],
        Operation::Models => &["limit", "after_id", "before_id", "beta"],
        Operation::GeminiModels => &["pageSize", "pageToken"],
        Operation::Generate if route.streams => &["alt"],
        Operation::Generate | Operation::GeminiCountTokens | Operation::GeminiEmbed => &[],
        Operation::Chat | Operation::Responses | Operation::Embeddings => &[],
        Operation::OllamaChat | Operation::OllamaGenerate | Operation::OllamaEmbed => &[],
        Operation::OllamaTags
        | Operation::OllamaShow
        | Operation::OllamaRunning
        | Operation::OllamaVersion => &[],
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
            value.len() <= LONGEST_VALUE
                && all(|byte| byte.is_ascii_alphanumeric() || b"._~-=".contains(&byte))
        }
    }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
