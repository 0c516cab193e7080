//! Header filtering in both directions. Hop-by-hop headers are dropped, and so are headers that
//! would let a server see another request than the one that was checked.

use crate::{egress::credential::ResolvedCredential, scrub};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{
        ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, FORWARDED, HOST,
        IF_RANGE, RANGE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
    },
};
use spec::Destination;

/// Hop-by-hop headers.
const HOP_BY_HOP: [HeaderName; 4] = [CONNECTION, TE, TRAILER, UPGRADE];
/// Also hop-by-hop, or about the client behind the proxy.
const DROPPED_HEADERS: [&str; 3] = ["keep-alive", "http2-settings", "alt-svc"];
const DROPPED_PREFIXES: [&str; 2] = ["proxy-", "x-forwarded-"];
/// Headers by which some servers and proxies override method, path, host or sender of a request.
const OVERRIDE_HEADERS: [&str; 17] = [
    "x-host",
    "x-method",
    "x-path",
    "x-uri",
    "x-url",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-sendfile",
    "x-middleware-subrequest",
    "x-waws-unencoded-url",
    "true-client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
    "client-ip",
    "base-url",
    // WebDAV's COPY and MOVE: a second path, which no rule has checked.
    "destination",
];
/// Prefixes of such headers.
const OVERRIDE_PREFIXES: [&str; 9] = [
    "x-http-",
    "x-method-",
    "x-original-",
    "x-override-",
    "x-rewrite-",
    "x-envoy-",
    "x-accel-",
    "x-ms-original-",
    "x-forward-",
];

/// The only protocol that a connection may be upgraded to.
pub(super) const WEBSOCKET: &str = "websocket";

/// Removes hop-by-hop headers.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // These frame and address the message; `Connection` must not remove them.
        .filter(|name| ![CONTENT_LENGTH, TRANSFER_ENCODING, HOST].contains(name))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    let odd: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_dropped(name.as_str()))
        .cloned()
        .collect();
    for name in odd {
        headers.remove(name);
    }
}

fn is_dropped(name: &str) -> bool {
    DROPPED_HEADERS.contains(&name)
        || DROPPED_PREFIXES
            .iter()
            .any(|family| name.starts_with(family))
}

/// Whether the client asks for a WebSocket. Clients that offer another protocol (h2c) accept a
/// plain response, and get that: the offer is not forwarded.
pub(super) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let asks = |value: &HeaderValue| {
        let named = value.as_bytes().split(|byte| *byte == b',');
        named
            .into_iter()
            .any(|name| name.trim_ascii().eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
    };
    headers.get_all(UPGRADE).iter().any(asks)
}

/// Whether the transfer coding is chunked, once, or absent. Of any other coding the server would
/// get the body without the header.
pub(super) fn has_plain_transfer_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(plain) && codings.next().is_none()
}

/// Whether a GET or HEAD has a body. Servers that expect none would read it as the next request,
/// which no rule has checked (request smuggling).
pub(super) fn has_unexpected_body(method: &Method, headers: &HeaderMap) -> bool {
    let announced = headers
        .get(CONTENT_LENGTH)
        .is_some_and(|length| length != "0");
    matches!(*method, Method::GET | Method::HEAD)
        && (announced || headers.contains_key(TRANSFER_ENCODING))
}

/// Prepares the request headers for the server.
pub(super) fn prepare_request(
    headers: &mut HeaderMap,
    to: &Destination,
    secure: bool,
    inspected: bool,
    credential: Option<&ResolvedCredential>,
) {
    let chunked = headers.contains_key(TRANSFER_ENCODING);
    remove_hop_by_hop(headers);
    for name in [VIA, FORWARDED, EXPECT, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    if chunked {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if inspected {
        // Many servers treat `_` and `-` alike.
        let overrides = |name: &&HeaderName| {
            let name = name.as_str().replace('_', "-");
            OVERRIDE_HEADERS.contains(&&*name)
                || OVERRIDE_PREFIXES
                    .iter()
                    .any(|family| name.starts_with(family))
        };
        let named: Vec<HeaderName> = headers.keys().filter(overrides).cloned().collect();
        for name in named {
            headers.remove(name);
        }
    }
    if let Some(host) = host_header(to, secure) {
        headers.insert(HOST, host);
    }
    if let Some(credential) = credential {
        // The response is searched for the credential, so it must be neither compressed nor split
        // into ranges.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for name in [RANGE, IF_RANGE] {
            headers.remove(name);
        }
        credential.put_into(headers);
    }
}

/// As browsers write it: without the default port.
fn host_header(to: &Destination, secure: bool) -> Option<HeaderValue> {
    let usual = if secure { 443 } else { 80 };
    match (&to.host, to.port == usual) {
        (spec::Host::Name(name), true) => HeaderValue::from_str(name).ok(),
        (host, true) => HeaderValue::try_from(host.to_string()).ok(),
        (_, false) => HeaderValue::try_from(to.to_string()).ok(),
    }
}

/// Prepares the response headers for the program; the error says why the response is refused.
pub(super) fn prepare_response(
    status: StatusCode,
    headers: &mut HeaderMap,
    credential: Option<&ResolvedCredential>,
) -> Result<(), &'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {}
        // Two lengths: parsers differ in which one they believe.
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
    remove_hop_by_hop(headers);
    let Some(credential) = credential else {
        return Ok(());
    };
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Err(
            "its answer is compressed although asked not to be, and so cannot be searched for the credential",
        );
    }
    let reflects = |name: &HeaderName, value| {
        scrub::header_contains_credential(&credential.patterns, name, value)
    };
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

/// Size of target and headers, as it is counted.
pub(super) fn size(target: usize, headers: &HeaderMap) -> usize {
    target
        + headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 4)
            .sum::<usize>()
}
