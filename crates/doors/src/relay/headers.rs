//! Header filtering between program and provider: allow-lists only.

use crate::{
    dialect::{Dialect, ModelOperation, ResponseFormat},
    scrub::{self, CredentialPatterns},
    session::DoorSession,
    upstream::Upstream,
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use ring::{hmac, rand::SystemRandom};
use std::{sync::LazyLock, time::Duration};

/// Request headers that are forwarded, by dialect. None of them names a host, a user or a
/// credential.
fn request_headers(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::OpenAi => &["openai-beta"],
        Dialect::Anthropic => &["anthropic-version", "anthropic-beta"],
        Dialect::Gemini | Dialect::Ollama => &[],
    }
}

/// Providers answer a repeated key from a cache. Never forwarded unchanged: all tenants share one
/// account there.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// HMAC key that binds idempotency keys to their run; `None` if the random number generator failed.
static IDEMPOTENCY_HMAC_KEY: LazyLock<Option<hmac::Key>> =
    LazyLock::new(|| hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok());

/// Response headers that are forwarded.
const RESPONSE_HEADERS: [&str; 9] = [
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
const RESPONSE_HEADER_PREFIXES: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];

/// The headers of the upstream request.
pub(super) fn upstream(
    upstream: &Upstream,
    session: &DoorSession,
    model_request: &HeaderMap,
) -> HeaderMap {
    let mut headers = upstream.headers();
    let provider = &upstream.provider;
    // The body was parsed as JSON: with another type the provider might parse it differently.
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    for name in request_headers(provider.dialect) {
        for value in model_request.get_all(*name) {
            headers.append(HeaderName::from_static(name), value.clone());
        }
    }
    if matches!(provider.dialect, Dialect::OpenAi | Dialect::Anthropic)
        && let Some(key) = model_request.get(IDEMPOTENCY_KEY)
        && let Some(bound) = bound_key(session, key)
    {
        headers.insert(IDEMPOTENCY_KEY, bound);
    }
    for name in &provider.forward_headers {
        // Headers that the door sets cannot be overridden.
        if !upstream.headers().contains_key(name) && *name != IDEMPOTENCY_KEY {
            for value in model_request.get_all(name) {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    if provider.identify {
        identify(session, &mut headers);
    }
    headers
}

/// The program's idempotency key, bound to tenant, session and run: equal keys of two runs share no
/// answer.
fn bound_key(session: &DoorSession, key: &HeaderValue) -> Option<HeaderValue> {
    let terms = &session.terms;
    let names = [&terms.tenant, &terms.id, &terms.run];
    bind(&names.map(|name| name.as_bytes()), key.as_bytes())
}

fn bind(names: &[&[u8]], key: &[u8]) -> Option<HeaderValue> {
    let mut binding = hmac::Context::with_key(IDEMPOTENCY_HMAC_KEY.as_ref()?);
    for part in names.iter().chain(&[key]) {
        binding.update(&(part.len() as u64).to_be_bytes());
        binding.update(part);
    }
    let digits = binding
        .sign()
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    HeaderValue::try_from(digits).ok()
}

/// Identifies the caller to a LiteLLM upstream.
fn identify(session: &DoorSession, headers: &mut HeaderMap) {
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

/// The headers of the response to the program.
pub(super) fn downstream(given: &HeaderMap, patterns: Option<&CredentialPatterns>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    for (name, value) in given {
        let passes = RESPONSE_HEADERS.contains(&name.as_str())
            || RESPONSE_HEADER_PREFIXES
                .iter()
                .any(|family| name.as_str().starts_with(family));
        if passes && let Some(value) = scrub::header(patterns, value) {
            headers.append(name.clone(), value);
        }
    }
    headers
}

/// The provider's `Retry-After`.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms")
        .map(|ms| ms / 1000.0)
        .or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Whether the transfer coding is chunked, once, or absent. Any other coding cannot be metered.
pub(super) fn has_plain_transfer_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(plain) && codings.next().is_none()
}

/// The format of the response.
pub(super) fn kind(
    headers: &HeaderMap,
    operation: ModelOperation,
    streams: bool,
) -> ResponseFormat {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    match kind.to_ascii_lowercase().as_str() {
        "text/event-stream" => ResponseFormat::Events,
        "application/x-ndjson" | "application/jsonl" | "application/ndjson" => {
            ResponseFormat::Lines
        }
        // Gemini streams a JSON array unless asked for events.
        _ if streams && operation == ModelOperation::Generate => ResponseFormat::Lines,
        _ => ResponseFormat::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idempotency_key_is_of_one_run_of_one_tenant() {
        let bound = |tenant: &str, run: &str, key: &str| {
            bind(&[tenant.as_bytes(), run.as_bytes()], key.as_bytes()).expect("random bytes")
        };
        let one = bound("a", "r", "k");
        assert_eq!(one, bound("a", "r", "k"), "asked again it is the same");
        assert_eq!(one.len(), 64);
        for other in [
            bound("b", "r", "k"),
            bound("a", "s", "k"),
            bound("a", "r", "l"),
            bound("", "ar", "k"),
            bound("a", "rk", ""),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn an_answer_comes_in_chunks_or_as_it_is() {
        let sent = |codings: &[&str]| {
            let mut headers = HeaderMap::new();
            for coding in codings {
                let value = HeaderValue::from_str(coding).expect("a value");
                headers.append(header::TRANSFER_ENCODING, value);
            }
            has_plain_transfer_coding(&headers)
        };
        assert!(sent(&[]) && sent(&["chunked"]) && sent(&["Chunked"]));
        for other in [
            &["gzip, chunked"][..],
            &["gzip"],
            &["identity"],
            &["chunked", "chunked"],
            &["gzip", "chunked"],
        ] {
            assert!(!sent(other), "{other:?}");
        }
    }
}
