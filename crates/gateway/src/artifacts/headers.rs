//! What headers say of an artifact: its digest, its type, which part is wanted, and how an answer describes one.

use crate::{Problem, problem::Answer};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use store::{Kept, Part, Reading};

const CHECKSUM: &str = "x-checksum-sha256";
const REPR_DIGEST: &str = "repr-digest";

/// The digest that the caller says its bytes have, in hexadecimal.
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
    let of = |member: &str| {
        Some(
            member
                .trim()
                .strip_prefix("sha-256=:")?
                .strip_suffix(':')?
                .to_owned(),
        )
    };
    let text = value.to_str().unwrap_or_default().split(',').find_map(of);
    // Digests of other kinds are no statement that we could check.
    let Some(text) = text else { return Ok(None) };
    match STANDARD.decode(text) {
        Ok(bytes) if bytes.len() == 32 => Ok(Some(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        )),
        _ => Err(bad("Repr-Digest")),
    }
}

/// What the bytes are, if the caller says; curl says `application/x-www-form-urlencoded` of whatever it sends with -d.
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

/// How long the body is, if the caller says.
pub(super) fn length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

pub(super) fn etag(kept: &Kept) -> String {
    format!("\"{}\"", kept.sha256)
}

/// Whether a header names this version.
pub(super) fn has(headers: &HeaderMap, name: HeaderName, etag: &str) -> bool {
    let all = headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(','))
        .any(|one| matches!(one.trim(), "*") || one.trim() == etag)
}

/// The one part that is asked for; with anything else the whole is the right answer (RFC 9110, 14.2).
pub(super) fn part(headers: &HeaderMap, etag: &str) -> Option<Part> {
    if headers.contains_key(header::IF_RANGE) && !has(headers, header::IF_RANGE, etag) {
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
        ("", last) => Some(Part::Last(number(last)?)),
        (first, "") => Some(Part::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Part::From(first, Some(last)))
        }
    }
}

/// What it is, and that no browser may take it for a page of ours: whoever made it is not trusted.
pub(super) fn describe(headers: &mut HeaderMap, reading: &Reading, partial: bool) {
    let (kept, left) = (reading.kept(), reading.left());
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

/// The bytes of a path; none if its encoding is broken.
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
