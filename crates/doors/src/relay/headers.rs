//! Which headers pass. Lists of what may, never of what may not.

use crate::{
    dialect::{Dialect, Operation, TapKind},
    scrub::{self, Reflection},
    session::Session,
    upstream::Upstream,
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::time::Duration;

/// Of the program, by dialect. Neither names a place, a user or a credential.
fn passed_up(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::OpenAi => &["openai-beta", "idempotency-key"],
        Dialect::Anthropic => &["anthropic-version", "anthropic-beta", "idempotency-key"],
        Dialect::Gemini | Dialect::Ollama => &[],
    }
}

/// Of the provider.
const PASSED_DOWN: [&str; 9] = [
    "content-type",
    "content-length",
    "cache-control",
    "request-id",
    "x-request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "openai-processing-ms",
];
const PASSED_DOWN_FAMILIES: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];

/// The headers of a request to the provider.
pub(super) fn upstream(upstream: &Upstream, session: &Session, asked: &HeaderMap) -> HeaderMap {
    let mut headers = upstream.headers();
    let provider = &upstream.provider;
    // What was read as JSON is sent as JSON: another type would let the provider read it in another way.
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    for name in passed_up(provider.dialect) {
        for value in asked.get_all(*name) {
            headers.append(HeaderName::from_static(name), value.clone());
        }
    }
    for name in &provider.forward_headers {
        // What we set ourselves is nobody else's to set.
        if !upstream.headers().contains_key(name) {
            for value in asked.get_all(name) {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    if provider.identify {
        identify(session, &mut headers);
    }
    headers
}

/// Tells a LiteLLM upstream who is calling, in its own words.
fn identify(session: &Session, headers: &mut HeaderMap) {
    let terms = &session.terms;
    let metadata =
        serde_json::json!({"run_id": terms.run, "session": terms.id, "tenant": terms.tenant});
    let user = if terms.tenant.is_empty() {
        &terms.id
    } else {
        &terms.tenant
    };
    for (name, value) in [
        ("x-litellm-end-user-id", user.clone()),
        ("x-litellm-spend-logs-metadata", metadata.to_string()),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
}

/// The headers of an answer to the program.
pub(super) fn downstream(given: &HeaderMap, reflection: Option<&Reflection>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    for (name, value) in given {
        let passes = PASSED_DOWN.contains(&name.as_str())
            || PASSED_DOWN_FAMILIES
                .iter()
                .any(|family| name.as_str().starts_with(family));
        if passes && let Some(value) = scrub::header(reflection, value) {
            headers.append(name.clone(), value);
        }
    }
    headers
}

/// How long the provider wants to be left alone.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms")
        .map(|ms| ms / 1000.0)
        .or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// How an answer is to be read.
pub(super) fn kind(headers: &HeaderMap, operation: Operation, streams: bool) -> TapKind {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    match kind.to_ascii_lowercase().as_str() {
        "text/event-stream" => TapKind::Events,
        "application/x-ndjson" | "application/jsonl" | "application/ndjson" => TapKind::Lines,
        // Gemini streams an array unless asked for events.
        _ if streams && operation == Operation::Generate => TapKind::Lines,
        _ => TapKind::Whole,
    }
}
