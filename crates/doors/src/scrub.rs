//! Credential scrubbing: redacts a credential in server responses, in every encoding. The length
//! does not change, so that framing stays valid.

mod encodings;

use crate::Secret;
use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue};
use memchr::{
    memchr_iter,
    memmem::{self, Finder},
};
use zeroize::Zeroizing;

/// Shorter encoded forms also occur by chance.
const MIN_ENCODING_LENGTH: usize = 8;

/// Shorter prefixes of a credential occur by chance.
const MIN_PREFIX_LENGTH: usize = 5;

/// The patterns to redact: the credential and its encodings. All of them are printable ASCII, as
/// headers are.
pub(crate) struct CredentialPatterns {
    needles: Vec<Needle>,
    longest: usize,
}

struct Needle {
    bytes: Secret,
    finder: Finder<'static>,
}

/// Scrubs one response.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    /// The end of the last chunk, where a credential may have started.
    held: BytesMut,
}

impl CredentialPatterns {
    /// The patterns of a credential.
    pub(crate) fn new(key: &Secret) -> CredentialPatterns {
        let mut patterns = CredentialPatterns {
            needles: Vec::new(),
            longest: 0,
        };
        patterns.add(key.expose());
        for form in encodings::of(key.expose())
            .iter()
            .filter(|form| form.len() >= MIN_ENCODING_LENGTH)
        {
            patterns.add(form);
        }
        patterns
    }

    /// Adds a pattern.
    pub(crate) fn with_pattern(mut self, other: &[u8]) -> CredentialPatterns {
        self.add(other);
        self
    }

    fn add(&mut self, bytes: &[u8]) {
        // A pattern that contains another is listed, too: it would only be redacted in part.
        if !bytes.is_empty()
            && self
                .needles
                .iter()
                .all(|known| known.bytes.expose() != bytes)
        {
            let finder = Finder::new(bytes).into_owned();
            self.longest = self.longest.max(bytes.len());
            self.needles.push(Needle {
                bytes: Secret::from_zeroizing(Zeroizing::new(bytes.to_vec())),
                finder,
            });
        }
    }

    fn matches(&self, text: &[u8]) -> bool {
        self.needles
            .iter()
            .any(|needle| needle.finder.find(text).is_some())
    }
}

impl Scrubber {
    /// Redacts the next chunk. How many bytes are held back does not depend on the credential: a
    /// server that could observe the match of a prefix could guess the credential letter by letter.
    pub(crate) fn feed(&mut self, patterns: &CredentialPatterns, piece: Bytes) -> Bytes {
        let piece = if self.held.is_empty() {
            piece
        } else {
            self.held.extend_from_slice(&piece);
            self.held.split().freeze()
        };
        let piece = redact(patterns, piece);
        let max_wait = patterns.longest.saturating_sub(1);
        // A credential contains no line break, and events end with one.
        let waits = piece
            .iter()
            .rev()
            .take(max_wait)
            .take_while(|byte| matches!(byte, 0x20..=0x7e))
            .count();
        if waits == 0 {
            return piece;
        }
        let passed = piece.slice(..piece.len() - waits);
        self.held.extend_from_slice(&piece[piece.len() - waits..]);
        passed
    }

    /// The held bytes at the end of the body. A server may have shown only the first bytes of the
    /// credential: more than half of one is redacted like the whole. Not less, or prefixes could be
    /// guessed again.
    pub(crate) fn flush(&mut self, patterns: &CredentialPatterns) -> Bytes {
        let mut held = self.held.split();
        let beginning = |needle: &Needle| {
            let found = matching_suffix_length(needle.bytes.expose(), &held);
            if found > needle.bytes.expose().len() / 2 {
                found
            } else {
                0
            }
        };
        let found = patterns.needles.iter().map(beginning).max().unwrap_or(0);
        if found >= MIN_PREFIX_LENGTH {
            let end = held.len();
            held[end - found..].fill(b'*');
        }
        held.freeze()
    }
}

/// The header value, or `None` if it contains the credential.
pub(crate) fn header(
    patterns: Option<&CredentialPatterns>,
    value: &HeaderValue,
) -> Option<HeaderValue> {
    match patterns {
        Some(patterns) if patterns.matches(value.as_bytes()) => None,
        _ => Some(value.clone()),
    }
}

/// Whether a header contains the credential, even in its name.
pub(crate) fn header_contains_credential(
    patterns: &CredentialPatterns,
    name: &HeaderName,
    value: &HeaderValue,
) -> bool {
    let name = name.as_str().as_bytes();
    // Header names are lower-cased.
    let lower = |needle: &Needle| Zeroizing::new(needle.bytes.expose().to_ascii_lowercase());
    let has = |needle: &Needle| {
        needle.bytes.expose().len() <= name.len() && memmem::find(name, &lower(needle)).is_some()
    };
    patterns.matches(value.as_bytes()) || patterns.needles.iter().any(has)
}

/// Redacts the credential in one buffer.
pub(crate) fn redact(patterns: &CredentialPatterns, piece: Bytes) -> Bytes {
    let mut redacted: Option<BytesMut> = None;
    for needle in &patterns.needles {
        // Searched in the original bytes: one pattern may lie within another.
        for at in needle.finder.find_iter(&piece) {
            let bytes = redacted.get_or_insert_with(|| BytesMut::from(&piece[..]));
            bytes[at..at + needle.bytes.expose().len()].fill(b'*');
        }
    }
    redacted.map_or(piece, BytesMut::freeze)
}

/// Length of the suffix of `piece` that is a prefix of `key`.
fn matching_suffix_length(key: &[u8], piece: &[u8]) -> usize {
    let max_wait = key.len().saturating_sub(1).min(piece.len());
    let end = &piece[piece.len() - max_wait..];
    let mut begins = memchr_iter(key.first().copied().unwrap_or_default(), end);
    begins
        .find(|at| key.starts_with(&end[*at..]))
        .map_or(0, |at| end.len() - at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::{
        Engine,
        engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
    };

    fn patterns(key: &str) -> CredentialPatterns {
        CredentialPatterns::new(&Secret::new(key.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn a_key_is_blanked_wherever_the_answer_is_split() {
        let (text, expected) = ("data: sk-sk-key and sk-k", "data: sk-****** and sk-k");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let (patterns, mut scrub, mut all) =
                    (patterns("sk-key"), Scrubber::default(), Vec::new());
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    all.extend_from_slice(
                        &scrub.feed(&patterns, Bytes::copy_from_slice(piece.as_bytes())),
                    );
                }
                all.extend_from_slice(&scrub.flush(&patterns));
                assert_eq!(
                    std::str::from_utf8(&all).unwrap(),
                    expected,
                    "{first} {second}"
                );
            }
        }
    }

    #[test]
    fn a_key_is_found_however_it_is_written() {
        let key = "a\"b/c??+ secret>~key";
        let patterns = patterns(key);
        let base64 = |before: &str, behind: &str| STANDARD.encode(format!("{before}{key}{behind}"));
        for text in [
            key.to_owned(),
            "a\\\"b/c??+ secret>~key".to_owned(),
            "a%22b%2Fc%3F%3F%2B%20secret%3E~key".to_owned(),
            "a%22b%2fc%3f%3f%2b%20secret%3e~key".to_owned(),
            "a%22b/c%3F%3F%2B%20secret%3E~key".to_owned(),
            "a\\\"b\\/c??+ secret>~key".to_owned(),
            "a\\\"b/c??+ secret\\u003e~key".to_owned(),
            "a\\u0022b/c??\\u002B secret\\u003E~key".to_owned(),
            "a\\u0022b\\u002fc??\\u002b secret\\u003e~key".to_owned(),
            "a&quot;b/c??+ secret&gt;~key".to_owned(),
            "a&quot;b&#x2F;c??+ secret&gt;~key".to_owned(),
            key.bytes().map(|byte| format!("{byte:02x}")).collect(),
            key.bytes().map(|byte| format!("{byte:02X}")).collect(),
            base64("", ""),
            base64("x:", ""),
            base64("user:", ""),
            base64("u", "\r\n"),
            URL_SAFE_NO_PAD.encode(format!("{{\"k\":\"{key}\"}}")),
        ] {
            let left = redact(&patterns, Bytes::from(text.clone()));
            let stars = left.iter().filter(|byte| **byte == b'*').count();
            assert!(
                stars >= key.len() && stars > text.len() / 2,
                "{text} {left:?}"
            );
            let mut cut = Scrubber::default();
            let mut all = Vec::new();
            for byte in text.bytes() {
                all.extend_from_slice(&cut.feed(&patterns, Bytes::copy_from_slice(&[byte])));
            }
            all.extend_from_slice(&cut.flush(&patterns));
            assert!(
                all.windows(6).all(|window| !text
                    .as_bytes()
                    .windows(6)
                    .skip(8)
                    .take(8)
                    .any(|part| part == window)),
                "{text} {all:?}"
            );
        }
        let other = Bytes::from_static(b"nothing of that kind");
        assert_eq!(redact(&patterns, other.clone()), other);
    }

    /// How long each piece is that comes out for these.
    fn sizes(patterns: &CredentialPatterns, pieces: &[&str]) -> Vec<usize> {
        let mut scrub = Scrubber::default();
        let feed = |piece: &&str| {
            scrub
                .feed(patterns, Bytes::copy_from_slice(piece.as_bytes()))
                .len()
        };
        pieces.iter().map(feed).collect()
    }

    #[test]
    fn when_something_comes_tells_nothing_of_the_key() {
        let key = "canary/0123456789+abcdef";
        let patterns = patterns(key);
        for length in 1..key.len() {
            let wrong = "x".repeat(length);
            let pieces = |guess: &str| [format!(" {guess}"), "!".repeat(200), format!("{guess}\n")];
            let shown = |guess: &str| {
                let pieces = pieces(guess);
                sizes(
                    &patterns,
                    &pieces.iter().map(String::as_str).collect::<Vec<_>>(),
                )
            };
            assert_eq!(shown(&key[..length]), shown(&wrong), "{length}");
        }
        assert_eq!(
            sizes(&patterns, &["data: {\"a\": \"canary\"}\n\n"]),
            [23],
            "an event does not wait"
        );
        assert_eq!(
            sizes(&patterns, &["canary"]),
            [0],
            "but what may go on does"
        );
    }

    #[test]
    fn an_answer_that_ends_within_the_key_shows_no_more_than_half_of_it() {
        let (key, text) = ("canary/0123456789+abcdef", "Authorization: Bearer ");
        let patterns = patterns(key);
        for length in 0..=key.len() {
            let mut scrub = Scrubber::default();
            let piece = Bytes::from(format!("{text}{}", &key[..length]));
            let all = [scrub.feed(&patterns, piece), scrub.flush(&patterns)].concat();
            let shown = if length > key.len() / 2 {
                "*".repeat(length)
            } else {
                key[..length].to_owned()
            };
            assert_eq!(std::str::from_utf8(&all).unwrap(), format!("{text}{shown}"));
        }
    }

    #[test]
    fn a_key_is_found_in_the_name_of_a_header() {
        let patterns = patterns("Canary-0123456789");
        let (name, value) = (
            HeaderName::from_static("x-canary-0123456789"),
            HeaderValue::from_static("1"),
        );
        assert!(header_contains_credential(&patterns, &name, &value));
        let value = HeaderValue::from_static("Canary-0123456789");
        assert!(header_contains_credential(
            &patterns,
            &HeaderName::from_static("x-key"),
            &value
        ));
        assert!(!header_contains_credential(
            &patterns,
            &HeaderName::from_static("x-canary"),
            &HeaderValue::from_static("1")
        ));
    }

    #[test]
    fn what_has_no_key_passes_uncopied() {
        let piece = Bytes::from_static(b"data: {\"a\":1}\n\n");
        let passed = Scrubber::default().feed(&patterns("sk-key"), piece.clone());
        assert_eq!(passed.as_ptr(), piece.as_ptr());
    }
}
