//! Takes the credential out of what a server sends back, however it is written. Same length, so that no frame has to
//! change.

mod spellings;

use crate::Secret;
use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue};
use memchr::{
    memchr_iter,
    memmem::{self, Finder},
};
use zeroize::Zeroizing;

/// A shorter piece of an encoded credential also stands where it means nothing.
const SHORTEST_FORM: usize = 8;

/// A shorter beginning of a credential is an accident.
const SHORTEST_BEGINNING: usize = 5;

/// What must never come back from a server: the credential, and other ways of writing it. All of it is printable ASCII,
/// as headers are.
pub(crate) struct Reflection {
    needles: Vec<Needle>,
    longest: usize,
}

struct Needle {
    bytes: Secret,
    finder: Finder<'static>,
}

/// Looks through one answer.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// The end of the last piece, where a credential may have begun.
    held: BytesMut,
}

impl Reflection {
    /// Of a credential.
    pub(crate) fn new(key: &Secret) -> Reflection {
        let mut reflection = Reflection {
            needles: Vec::new(),
            longest: 0,
        };
        reflection.add(key.expose());
        for form in spellings::of(key.expose())
            .iter()
            .filter(|form| form.len() >= SHORTEST_FORM)
        {
            reflection.add(form);
        }
        reflection
    }

    /// Nor may this come back.
    pub(crate) fn and(mut self, other: &[u8]) -> Reflection {
        self.add(other);
        self
    }

    fn add(&mut self, bytes: &[u8]) {
        // One that has another in it is found with that, but would be blanked in part only.
        if !bytes.is_empty()
            && self
                .needles
                .iter()
                .all(|known| known.bytes.expose() != bytes)
        {
            let finder = Finder::new(bytes).into_owned();
            self.longest = self.longest.max(bytes.len());
            self.needles.push(Needle {
                bytes: Secret::again(Zeroizing::new(bytes.to_vec())),
                finder,
            });
        }
    }

    fn is_in(&self, text: &[u8]) -> bool {
        self.needles
            .iter()
            .any(|needle| needle.finder.find(text).is_some())
    }
}

impl Scrub {
    /// The next piece without the credential. What waits for the piece after it is the same whatever the credential is:
    /// who could see that it waits for a beginning of it, and not for another text, would guess it letter by letter.
    pub(crate) fn feed(&mut self, reflection: &Reflection, piece: Bytes) -> Bytes {
        let piece = match self.held.is_empty() {
            true => piece,
            false => {
                self.held.extend_from_slice(&piece);
                self.held.split().freeze()
            }
        };
        let piece = blank(reflection, piece);
        let most = reflection.longest.saturating_sub(1);
        // No credential goes over the end of a line, and events end with one.
        let waits = piece
            .iter()
            .rev()
            .take(most)
            .take_while(|byte| matches!(byte, 0x20..=0x7e))
            .count();
        if waits == 0 {
            return piece;
        }
        let passed = piece.slice(..piece.len() - waits);
        self.held.extend_from_slice(&piece[piece.len() - waits..]);
        passed
    }

    /// What still waited, when there is no more. It may end within the credential, if the server showed only so many bytes
    /// of something: the larger part of one is blanked like the whole. Not less, or there would be letters to guess again.
    pub(crate) fn rest(&mut self, reflection: &Reflection) -> Bytes {
        let mut held = self.held.split();
        let beginning = |needle: &Needle| {
            let found = longest_beginning(needle.bytes.expose(), &held);
            if found > needle.bytes.expose().len() / 2 {
                found
            } else {
                0
            }
        };
        let found = reflection.needles.iter().map(beginning).max().unwrap_or(0);
        if found >= SHORTEST_BEGINNING {
            let end = held.len();
            held[end - found..].fill(b'*');
        }
        held.freeze()
    }
}

/// A header's value without the credential, or nothing.
pub(crate) fn header(reflection: Option<&Reflection>, value: &HeaderValue) -> Option<HeaderValue> {
    match reflection {
        Some(reflection) if reflection.is_in(value.as_bytes()) => None,
        _ => Some(value.clone()),
    }
}

/// Whether the credential is in a header, be it in its name.
pub(crate) fn is_in(reflection: &Reflection, name: &HeaderName, value: &HeaderValue) -> bool {
    let name = name.as_str().as_bytes();
    // Names come in small letters, whatever the server wrote.
    let lower = |needle: &Needle| Zeroizing::new(needle.bytes.expose().to_ascii_lowercase());
    let has = |needle: &Needle| {
        needle.bytes.expose().len() <= name.len() && memmem::find(name, &lower(needle)).is_some()
    };
    reflection.is_in(value.as_bytes()) || reflection.needles.iter().any(has)
}

/// The same bytes with the credential blanked out.
pub(crate) fn blank(reflection: &Reflection, piece: Bytes) -> Bytes {
    let mut blanked: Option<BytesMut> = None;
    for needle in &reflection.needles {
        // In what came, not in what is left: one form may lie within another.
        for at in needle.finder.find_iter(&piece) {
            let bytes = blanked.get_or_insert_with(|| BytesMut::from(&piece[..]));
            bytes[at..at + needle.bytes.expose().len()].fill(b'*');
        }
    }
    blanked.map_or(piece, BytesMut::freeze)
}

/// How many bytes at the end of the piece are a beginning of the key.
fn longest_beginning(key: &[u8], piece: &[u8]) -> usize {
    let most = key.len().saturating_sub(1).min(piece.len());
    let end = &piece[piece.len() - most..];
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

    fn reflection(key: &str) -> Reflection {
        Reflection::new(&Secret::new(key.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn a_key_is_blanked_wherever_the_answer_is_split() {
        let (text, expected) = ("data: sk-sk-key and sk-k", "data: sk-****** and sk-k");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let (reflection, mut scrub, mut all) =
                    (reflection("sk-key"), Scrub::default(), Vec::new());
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    all.extend_from_slice(
                        &scrub.feed(&reflection, Bytes::copy_from_slice(piece.as_bytes())),
                    );
                }
                all.extend_from_slice(&scrub.rest(&reflection));
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
        let reflection = reflection(key);
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
            let left = blank(&reflection, Bytes::from(text.clone()));
            let stars = left.iter().filter(|byte| **byte == b'*').count();
            assert!(
                stars >= key.len() && stars > text.len() / 2,
                "{text} {left:?}"
            );
            let mut cut = Scrub::default();
            let mut all = Vec::new();
            for byte in text.bytes() {
                all.extend_from_slice(&cut.feed(&reflection, Bytes::copy_from_slice(&[byte])));
            }
            all.extend_from_slice(&cut.rest(&reflection));
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
        assert_eq!(blank(&reflection, other.clone()), other);
    }

    /// How long each piece is that comes out for these.
    fn sizes(reflection: &Reflection, pieces: &[&str]) -> Vec<usize> {
        let mut scrub = Scrub::default();
        let feed = |piece: &&str| {
            scrub
                .feed(reflection, Bytes::copy_from_slice(piece.as_bytes()))
                .len()
        };
        pieces.iter().map(feed).collect()
    }

    #[test]
    fn when_something_comes_tells_nothing_of_the_key() {
        let key = "canary/0123456789+abcdef";
        let reflection = reflection(key);
        for length in 1..key.len() {
            let wrong = "x".repeat(length);
            let pieces = |guess: &str| [format!(" {guess}"), "!".repeat(200), format!("{guess}\n")];
            let shown = |guess: &str| {
                let pieces = pieces(guess);
                sizes(
                    &reflection,
                    &pieces.iter().map(String::as_str).collect::<Vec<_>>(),
                )
            };
            assert_eq!(shown(&key[..length]), shown(&wrong), "{length}");
        }
        assert_eq!(
            sizes(&reflection, &["data: {\"a\": \"canary\"}\n\n"]),
            [23],
            "an event does not wait"
        );
        assert_eq!(
            sizes(&reflection, &["canary"]),
            [0],
            "but what may go on does"
        );
    }

    #[test]
    fn an_answer_that_ends_within_the_key_shows_no_more_than_half_of_it() {
        let (key, text) = ("canary/0123456789+abcdef", "Authorization: Bearer ");
        let reflection = reflection(key);
        for length in 0..=key.len() {
            let mut scrub = Scrub::default();
            let piece = Bytes::from(format!("{text}{}", &key[..length]));
            let all = [scrub.feed(&reflection, piece), scrub.rest(&reflection)].concat();
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
        let reflection = reflection("Canary-0123456789");
        let (name, value) = (
            HeaderName::from_static("x-canary-0123456789"),
            HeaderValue::from_static("1"),
        );
        assert!(is_in(&reflection, &name, &value));
        let value = HeaderValue::from_static("Canary-0123456789");
        assert!(is_in(
            &reflection,
            &HeaderName::from_static("x-key"),
            &value
        ));
        assert!(!is_in(
            &reflection,
            &HeaderName::from_static("x-canary"),
            &HeaderValue::from_static("1")
        ));
    }

    #[test]
    fn what_has_no_key_passes_uncopied() {
        let piece = Bytes::from_static(b"data: {\"a\":1}\n\n");
        let passed = Scrub::default().feed(&reflection("sk-key"), piece.clone());
        assert_eq!(passed.as_ptr(), piece.as_ptr());
    }
}
