//! HTTP headers of artifacts: digest, content type, range, and the response headers.

use crate::{Problem, problem::Answer};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use store::{ByteRange, StoredArtifact, VersionReader};

const CHECKSUM: &str = "x-checksum-sha256";
const REPR_DIGEST: &str = "repr-digest";

/// The SHA-256 that the client announced, in hex.
pub(super) fn expected_digest(headers: &HeaderMap) -> Answer<Option<String>> {
    let bad = |what: &str| {
        Problem::invalid(
            format!("`{what}` is no SHA-256"),
            "send 64 hexadecimal digits",
        )
    };
    if let Some(value) = headers.get(CHECKSUM) {
        let text = value
            .to_str()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        let digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        return digest
            .then_some(Some(text))
            .ok_or_else(|| bad("X-Checksum-Sha256"));
    }
    let Some(value) = headers.get(REPR_DIGEST) else {
        return Ok(None);
    };
    let sha256_member = |member: &str| {
        Some(
            member
                .trim()
                .strip_prefix("sha-256=:")?
                .strip_suffix(':')?
                .to_owned(),
        )
    };
    let text = value
        .to_str()
        .unwrap_or_default()
        .split(',')
        .find_map(sha256_member);
    // Other digest algorithms are ignored.
    let Some(text) = text else { return Ok(None) };
    match STANDARD.decode(text) {
        Ok(bytes) if bytes.len() == 32 => Ok(Some(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        )),
        _ => Err(bad("Repr-Digest")),
    }
}

/// The content type that the client announced. Note that curl sends
/// `application/x-www-form-urlencoded` with -d.
pub(super) fn content_type(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Problem::invalid(
            "the content type is no text",
            "such as text/plain",
        )),
    }
}

/// The announced body length.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

pub(super) fn etag(kept: &StoredArtifact) -> String {
    format!("\"{}\"", kept.sha256)
}

/// Whether the header lists this ETag.
pub(super) fn matches_etag(headers: &HeaderMap, name: HeaderName, etag: &str) -> bool {
    let all = headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(','))
        .any(|one| matches!(one.trim(), "*") || one.trim() == etag)
}

/// The single requested range; anything else is answered with the whole content (RFC 9110, 14.2).
pub(super) fn requested_range(headers: &HeaderMap, etag: &str) -> Option<ByteRange> {
    if headers.contains_key(header::IF_RANGE) && !matches_etag(headers, header::IF_RANGE, etag) {
        return None;
    }
    let text = headers
        .get(header::RANGE)?
        .to_str()
        .ok()?
        .strip_prefix("bytes=")?;
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().ok())
            .flatten()
    };
    match text.split_once('-')? {
        ("", last) => Some(ByteRange::Last(number(last)?)),
        (first, "") => Some(ByteRange::From(number(first)?, None)),
        (first, last) => {
            let first = number(first)?;
            let last = number(last)?;
            (first <= last).then_some(ByteRange::From(first, Some(last)))
        }
    }
}

/// Sets the response headers, so that no browser renders the content as a page of this server: the
/// artifact's author is not trusted.
pub(super) fn set_response_headers(
    headers: &mut HeaderMap,
    reading: &VersionReader,
    partial: bool,
) {
    let kept = reading.artifact();
    let left = reading.left();
    let mut set = |name: HeaderName, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, kept.content_type.clone());
    set(header::CONTENT_LENGTH, (left.end - left.start).to_string());
    set(header::ETAG, etag(kept));
    set(header::ACCEPT_RANGES, "bytes".to_owned());
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned());
    set(header::CONTENT_DISPOSITION, "attachment".to_owned());
    set(
        header::CONTENT_SECURITY_POLICY,
        "sandbox; default-src 'none'".to_owned(),
    );
    set(header::CACHE_CONTROL, "private, no-cache".to_owned());
    set(
        HeaderName::from_static("x-artifact-version"),
        kept.version.to_string(),
    );
    if partial {
        let range = format!(
            "bytes {}-{}/{}",
            left.start,
            left.end.saturating_sub(1),
            kept.size_bytes
        );
        set(header::CONTENT_RANGE, range);
    }
}

/// Decodes percent-encoding; `None` if it is malformed.
pub(crate) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next()?)? * 16 + digit(rest.next()?)?).ok()?,
            plain => plain,
        });
    }
    Some(bytes)
}
