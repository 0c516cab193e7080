//! What a program is told when something does not pass: the rule, and what would allow it, in words that an agent
//! understands.

use super::{dial::NoWay, policy::Refusal};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use spec::Host;

/// Bodies of answers.
pub(crate) type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

const RULE: HeaderName = HeaderName::from_static("x-airlock-rule");

/// A body that is there already.
pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Words, as an answer. A client that gets one has no claim to the connection.
pub(crate) fn words(status: StatusCode, text: String) -> Response<Body> {
    let mut answer = Response::new(full(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

/// Something may not pass.
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
    let mut answer = words(StatusCode::FORBIDDEN, text);
    if let Ok(rule) = HeaderValue::from_str(&refusal.rule) {
        answer.headers_mut().insert(RULE, rule);
    }
    answer
}

/// Nothing came of it.
pub(crate) fn no_way(what: &str, run: &str, host: Option<&Host>, no_way: &NoWay) -> Response<Body> {
    match no_way {
        NoWay::Refused(refusal) => refused(what, run, host, refusal),
        NoWay::Failed(why) => words(
            StatusCode::BAD_GATEWAY,
            format!("airlock: {what} failed: {why}.\n"),
        ),
    }
}

/// It cannot be understood; whatever follows cannot be, either.
pub(crate) fn bad(text: &str) -> Response<Body> {
    let mut answer = words(StatusCode::BAD_REQUEST, format!("airlock: {text}.\n"));
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
