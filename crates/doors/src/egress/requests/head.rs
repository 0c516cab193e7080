//! Which headers pass, each way. What belongs to one connection stays there; what would let a server see another request
//! than the one that was judged goes nowhere.

use crate::{egress::credential::Ready, scrub};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, FORWARDED, HOST,
        IF_RANGE, RANGE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
    },
};
use spec::Destination;

/// Of one connection only.
const HOP_BY_HOP: [HeaderName; 4] = [CONNECTION, TE, TRAILER, UPGRADE];
/// Of one connection only, too, or about who is behind it.
const NAMED: [&str; 3] = ["keep-alive", "http2-settings", "alt-svc"];
const FAMILIES: [&str; 2] = ["proxy-", "x-forwarded-"];
/// By these some servers take another method or path than the first line's.
const OVERRIDES: [&str; 6] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-original-method",
];

/// The one thing that a connection may become.
pub(super) const WEBSOCKET: &str = "websocket";

/// Takes away what belongs to one connection.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // These say where a message ends and for whom it is; nobody takes them away.
        .filter(|name| ![CONTENT_LENGTH, TRANSFER_ENCODING, HOST].contains(name))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    let odd: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_odd(name.as_str()))
        .cloned()
        .collect();
    for name in odd {
        headers.remove(name);
    }
}

fn is_odd(name: &str) -> bool {
    NAMED.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Whether somebody wants to make a WebSocket of the connection. Who offers anything else (h2c) is content with a plain
/// answer, and gets that: the offer goes no further.
pub(super) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let asks = |value: &HeaderValue| {
        let named = value.as_bytes().split(|byte| *byte == b',');
        named
            .into_iter()
            .any(|name| name.trim_ascii().eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
    };
    headers.get_all(UPGRADE).iter().any(asks)
}

/// Whether the way a body is encoded for this connection is one that goes on as it came: chunks, once, or nothing. Of
/// anything else a server would get the body and not the word for it.
pub(super) fn is_plainly_encoded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(plain) && codings.next().is_none()
}

/// The headers of a request as the server gets them.
pub(super) fn out(
    headers: &mut HeaderMap,
    to: &Destination,
    secure: bool,
    looked_at: bool,
    credential: Option<&Ready>,
) {
    let chunked = headers.contains_key(TRANSFER_ENCODING);
    strip(headers);
    for name in [VIA, FORWARDED, EXPECT, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    if chunked {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if looked_at {
        // Many servers read both alike.
        let overrides = |name: &&HeaderName| OVERRIDES.contains(&&*name.as_str().replace('_', "-"));
        let named: Vec<HeaderName> = headers.keys().filter(overrides).cloned().collect();
        for name in named {
            headers.remove(name);
        }
    }
    if let Some(host) = host(to, secure) {
        headers.insert(HOST, host);
    }
    if let Some(credential) = credential {
        // What comes back is looked through: neither packed, nor in parts between which a key could be cut in two.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for name in [RANGE, IF_RANGE] {
            headers.remove(name);
        }
        credential.put_into(headers);
    }
}

/// As browsers write it: without the usual port.
fn host(to: &Destination, secure: bool) -> Option<HeaderValue> {
    let usual = if secure { 443 } else { 80 };
    match (&to.host, to.port == usual) {
        (spec::Host::Name(name), true) => HeaderValue::from_str(name).ok(),
        (host, true) => HeaderValue::try_from(host.to_string()).ok(),
        (_, false) => HeaderValue::try_from(to.to_string()).ok(),
    }
}

/// The headers of an answer as the program gets them; why not, if there is something in the way.
pub(super) fn back(
    status: StatusCode,
    headers: &mut HeaderMap,
    credential: Option<&Ready>,
) -> Result<(), &'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {}
        // Twice the length: the first of them counts for whoever reads it.
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            headers.remove(TRANSFER_ENCODING);
            headers.remove(CONTENT_LENGTH);
        }
        _ => return Err("its answer is encoded for the way, which nobody asked for"),
    }
    if let Some(length) = headers.get(CONTENT_LENGTH).cloned() {
        headers.insert(CONTENT_LENGTH, length);
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err("it made something else of the connection, which nobody asked for");
    }
    strip(headers);
    let Some(credential) = credential else {
        return Ok(());
    };
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Err(
            "its answer is compressed although asked not to be, and so cannot be searched for the credential",
        );
    }
    let reflects = |name: &HeaderName, value| scrub::is_in(&credential.reflection, name, value);
    let reflecting: Vec<HeaderName> = headers
        .iter()
        .filter(|(name, value)| reflects(name, value))
        .map(|(name, _)| name.clone())
        .collect();
    for name in reflecting {
        headers.remove(name);
    }
    Ok(())
}

/// All of it, as it is counted.
pub(super) fn size(target: usize, headers: &HeaderMap) -> usize {
    target
        + headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 4)
            .sum::<usize>()
}
