//! Paths of HTTP requests in one canonical spelling, and patterns over them. The door forwards the
//! spelling that it has checked.

use std::{fmt, str::FromStr};

/// The path of a request: it begins with a slash, has no dot segments and no needless escapes, and
/// its escapes are in upper case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPath(String);

/// A text that is not the path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRequestPath(&'static str);

/// A pattern of paths: segments stand for themselves, `*` for one segment or a part of one, `**` at
/// the end for any number of segments.
///
/// A segment that a server might split (`%2F`, `;`, a backslash, …) is matched only by a pattern
/// with the same segment, or by `/**` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern(String);

/// Bytes of a path.
const MAX_BYTES: usize = 8 << 10;
const MAX_SEGMENTS: usize = 256;

impl RequestPath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RequestPath {
    type Err = BadRequestPath;

    fn from_str(text: &str) -> Result<RequestPath, BadRequestPath> {
        if text.len() > MAX_BYTES {
            return Err(BadRequestPath("it is longer than 8 KiB"));
        }
        let rest = text
            .strip_prefix('/')
            .ok_or(BadRequestPath("it does not begin with a slash"))?;
        let plain = unescape(rest)?;
        if !is_utf8(&plain) {
            return Err(BadRequestPath("its escapes are not UTF-8"));
        }
        let mut segments: Vec<&str> = Vec::new();
        let mut parts = plain.split('/').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            match part {
                "." | ".." => {
                    if part == ".." && segments.pop().is_none() {
                        return Err(BadRequestPath("it leads above the root"));
                    }
                    // By RFC 3986 a final dot segment leaves a folder.
                    if last {
                        segments.push("");
                    }
                }
                part => segments.push(part),
            }
        }
        if segments.len() > MAX_SEGMENTS {
            return Err(BadRequestPath("it has more than 256 parts"));
        }
        Ok(RequestPath(format!("/{}", segments.join("/"))))
    }
}

/// Decodes needless escapes and writes the others in upper case.
fn unescape(text: &str) -> Result<String, BadRequestPath> {
    let mut plain = String::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let high = digit(bytes.next());
                let low = digit(bytes.next());
                let (Some(high), Some(low)) = (high, low) else {
                    return Err(BadRequestPath("a % in it begins no escape"));
                };
                let value = (high << 4 | low) as u8;
                match value {
                    0 => return Err(BadRequestPath("it has a NUL")),
                    value if value.is_ascii_alphanumeric() || b"-._~".contains(&value) => {
                        plain.push(char::from(value));
                    }
                    value => plain.push_str(&format!("%{value:02X}")),
                }
            }
            b'\\' | b'#' | b'?' => {
                return Err(BadRequestPath("it has a character that no path has"));
            }
            0x21..=0x7e => plain.push(char::from(byte)),
            _ => return Err(BadRequestPath("it has a character that no path has")),
        }
    }
    Ok(plain)
}

/// Whether the escapes of a path decode to UTF-8. Some servers also decode overlong forms, so that
/// `%C0%AF` is a slash to them.
fn is_utf8(plain: &str) -> bool {
    let mut decoded = Vec::with_capacity(plain.len());
    let mut bytes = plain.bytes();
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let escape = if byte == b'%' {
            digit(bytes.next()).zip(digit(bytes.next()))
        } else {
            None
        };
        decoded.push(escape.map_or(byte, |(high, low)| (high << 4 | low) as u8));
    }
    str::from_utf8(&decoded).is_ok()
}

/// Whether a server could read a segment differently than this parser.
fn is_ambiguous(segment: &str) -> bool {
    segment.contains(';')
        || ["%2F", "%5C", "%25", "%3B", "%3F", "%23"]
            .iter()
            .any(|escape| segment.contains(escape))
}

impl PathPattern {
    /// Whether a path matches.
    pub fn matches(&self, path: &RequestPath) -> bool {
        if self.0 == "/**" {
            return true;
        }
        let mut own = self.0.split('/').skip(1);
        let mut parts = path.0.split('/').skip(1);
        loop {
            match (own.next(), parts.next()) {
                (Some("**"), first) => {
                    // At least one segment, none of them ambiguous, and only the last may be empty.
                    let rest: Vec<_> = first.into_iter().chain(parts).collect();
                    let (Some(last), rest) = (rest.last(), &rest[..rest.len().saturating_sub(1)])
                    else {
                        return false;
                    };
                    return !is_ambiguous(last)
                        && rest
                            .iter()
                            .all(|part| !part.is_empty() && !is_ambiguous(part));
                }
                (Some(pattern), Some(part)) if segment_matches(pattern, part) => {}
                (None, None) => return true,
                _ => return false,
            }
        }
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn segment_matches(pattern: &str, part: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == part,
        Some((before, after)) => {
            !part.is_empty()
                && !is_ambiguous(part)
                && part.len() >= before.len() + after.len()
                && part.starts_with(before)
                && part.ends_with(after)
        }
    }
}

impl FromStr for PathPattern {
    type Err = BadRequestPath;

    fn from_str(text: &str) -> Result<PathPattern, BadRequestPath> {
        let RequestPath(path) = text.parse()?;
        if path != text {
            return Err(BadRequestPath("it is not written in its shortest form"));
        }
        let segments: Vec<_> = path.split('/').skip(1).collect();
        for (at, segment) in segments.iter().enumerate() {
            let stars = segment.matches('*').count();
            let last = at + 1 == segments.len();
            let good = stars <= 1 || *segment == "**" && last;
            if !good {
                return Err(BadRequestPath(
                    "a part of it has one * at most, and ** is the last part",
                ));
            }
        }
        Ok(PathPattern(path))
    }
}

impl fmt::Display for RequestPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for BadRequestPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the path cannot be used: {}", self.0)
    }
}

impl std::error::Error for BadRequestPath {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> Result<String, BadRequestPath> {
        text.parse::<RequestPath>().map(|path| path.0)
    }

    #[test]
    fn a_path_has_one_spelling() {
        for (text, one) in [
            ("/", "/"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/./b/.", "/a/b/"),
            ("/%61dmin", "/admin"),
            ("/a%2fb", "/a%2Fb"),
            ("/a//b", "/a//b"),
            ("/@types%2fnode", "/@types%2Fnode"),
            ("/a;x=1", "/a;x=1"),
            ("/%c3%bc%E2%82%AC", "/%C3%BC%E2%82%AC"),
        ] {
            assert_eq!(path(text).as_deref(), Ok(one), "{text}");
        }
        for text in [
            "",
            "a",
            "/..",
            "/a/../..",
            "/%",
            "/%zz",
            "/%0",
            "/%00",
            "/a\\b",
            "/a?b",
            "/a b",
            "/ü",
            "*",
            // A slash and a dot in overlong forms, a character cut in two, one of Latin-1, half a
            // pair.
            "/v1/..%C0%AFadmin",
            "/%E0%80%AF",
            "/%c0%ae%c0%ae/",
            "/%F0%80%80%AF",
            "/%C3",
            "/%C3/%BC",
            "/%E4",
            "/%ED%A0%80",
            "/%FF",
        ] {
            assert!(path(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_matches_what_it_says_and_nothing_that_could_be_read_otherwise() {
        let matches = |pattern: &str, text: &str| {
            pattern
                .parse::<PathPattern>()
                .unwrap()
                .matches(&text.parse::<RequestPath>().unwrap())
        };
        for (pattern, text) in [
            ("/**", "/a%2Fb//;c"),
            ("/v1/**", "/v1/"),
            ("/v1/**", "/v1/a/b/"),
            ("/v1/*", "/v1/a"),
            ("/v1/a*z", "/v1/az"),
            ("/@types%2Fnode", "/@types%2fnode"),
            ("/", "/"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("/v1/**", "/v1"),
            ("/v1/**", "/v1/../admin"),
            ("/v1/**", "/v1/%2e%2e%2fadmin"),
            ("/v1/**", "/v1/..%2fadmin"),
            ("/v1/**", "/v1/..;/admin"),
            ("/v1/**", "/v1//admin"),
            ("/v1/**", "/V1/a"),
            ("/v1/**", "//v1/a"),
            ("/v1/**", "/v1/%252e%252e/a"),
            ("/v1/*", "/v1/a/b"),
            ("/v1/*", "/v1/"),
            ("/v1/*/x", "/v1/a%2Fb/x"),
            ("/v1/a*z", "/v1/a"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
        for text in ["v1", "/**/a", "/a/../b", "/a**", "/*a*", "/%61"] {
            assert!(text.parse::<PathPattern>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn one_spelling_is_its_own(text in "/[a-z%0-9./;~A-F]{0,40}|\\PC{0,20}") {
            if let Ok(one) = path(&text) {
                prop_assert_eq!(path(&one).unwrap(), one.clone());
                prop_assert!(one.split('/').all(|part| part != "." && part != ".."));
            }
        }
    }
}
