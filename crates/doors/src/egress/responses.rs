//! Responses for refused and failed requests: they name the rule and what would allow the request,
//! in words that an agent understands.

use super::{dial::DialError, policy::Refusal};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use spec::Host;

/// Body type of responses.
pub(crate) type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

const RULE: HeaderName = HeaderName::from_static("x-airlock-rule");

/// A body that is complete in memory.
pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A plain text response.
pub(crate) fn text_response(status: StatusCode, text: String) -> Response<Body> {
    let mut answer = Response::new(full(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

/// The response to a refused request.
pub(crate) fn refused(
    what: &str,
    run: &str,
    host: Option<&Host>,
    refusal: &Refusal,
) -> Response<Body> {
    let mut text = format!("airlock: {what} was refused: {}.\n", refusal.reason);
    match (refusal.allow_with.as_str(), host) {
        ("nothing", _) => text.push_str("Nothing allows it: do without, or ask the person you work for.\n"),
        (allow, Some(host)) if allow.starts_with("--allow-host") => text.push_str(&format!(
            "It is allowed by `airlock run {allow} …`. You cannot change this from inside; whoever started this run can, \
             while it goes on: `airlock grant {run} {host} --for 15m`.\n"
        )),
        (allow, _) => text.push_str(&format!("What would allow it: {allow}.\n")),
    }
    let mut answer = text_response(StatusCode::FORBIDDEN, text);
    if let Ok(rule) = HeaderValue::from_str(&refusal.rule) {
        answer.headers_mut().insert(RULE, rule);
    }
    answer
}

/// The response to a refused or failed connection.
pub(crate) fn dial_failed(
    what: &str,
    run: &str,
    host: Option<&Host>,
    dial_error: &DialError,
) -> Response<Body> {
    match dial_error {
        DialError::Refused(refusal) => refused(what, run, host, refusal),
        DialError::Failed(why) => text_response(
            StatusCode::BAD_GATEWAY,
            format!("airlock: {what} failed: {why}.\n"),
        ),
    }
}

/// The response to a malformed request; it closes the connection, because what follows cannot be
/// parsed.
pub(crate) fn bad_request(text: &str) -> Response<Body> {
    let mut answer = text_response(StatusCode::BAD_REQUEST, format!("airlock: {text}.\n"));
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
