//! Takes the credential out of what a server sends back, however it is written. Same length, so that no frame has to
//! change.

use crate::Secret;
use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use memchr::{memchr_iter, memmem::Finder};
use zeroize::Zeroizing;

/// A shorter piece of an encoded credential also stands where it means nothing.
const SHORTEST_FORM: usize = 8;

/// What must never come back from a server: the credential, and other ways of writing it.
pub(crate) struct Reflection {
    needles: Vec<Needle>,
}

struct Needle {
    bytes: Secret,
    finder: Finder<'static>,
}

/// Looks through one answer.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// The end of the last piece, if the credential may begin there.
    held: BytesMut,
}

impl Reflection {
    /// Of a credential.
    pub(crate) fn new(key: &Secret) -> Reflection {
        let mut reflection = Reflection { needles: Vec::new() };
        reflection.add(key.expose());
        for form in forms(key.expose()).iter().filter(|form| form.len() >= SHORTEST_FORM) {
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
        if !bytes.is_empty() && self.needles.iter().all(|known| known.bytes.expose() != bytes) {
            let finder = Finder::new(bytes).into_owned();
            self.needles.push(Needle { bytes: Secret::again(Zeroizing::new(bytes.to_vec())), finder });
        }
    }

    fn is_in(&self, text: &[u8]) -> bool {
        self.needles.iter().any(|needle| needle.finder.find(text).is_some())
    }
}

/// Other ways of writing it. Within a longer text, base64 depends on where it begins there.
fn forms(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let mut forms = vec![json(text), percent(text), base64(text)];
    for before in 0..3 {
        let encoded = base64(&Zeroizing::new([&b"..."[..before], text].concat()));
        // The first characters also carry what stood before, the last what comes behind.
        let first = [0, 2, 3][before];
        let last = encoded.len() - usize::from(!(before + text.len()).is_multiple_of(3));
        forms.push(Zeroizing::new(encoded.get(first..last).unwrap_or_default().to_vec()));
    }
    let swap = |byte: &u8| match byte {
        b'+' => b'-',
        b'/' => b'_',
        other => *other,
    };
    let swapped = |form: &Zeroizing<Vec<u8>>| Zeroizing::new(form.iter().map(swap).collect());
    let for_addresses: Vec<_> = forms[2..].iter().map(swapped).collect();
    forms.extend(for_addresses);
    forms
}

fn base64(text: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(STANDARD_NO_PAD.encode(text).into_bytes())
}

fn json(text: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut escaped = Zeroizing::new(Vec::with_capacity(text.len() * 2));
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    escaped
}

fn percent(text: &[u8]) -> Zeroizing<Vec<u8>> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut escaped = Zeroizing::new(Vec::with_capacity(text.len() * 3));
    for byte in text {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            true => escaped.push(*byte),
            false => escaped.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
        }
    }
    escaped
}

impl Scrub {
    /// The next piece without the credential. What may be its beginning waits for the next piece.
    pub(crate) fn feed(&mut self, reflection: &Reflection, piece: Bytes) -> Bytes {
        let piece = match self.held.is_empty() {
            true => piece,
            false => {
                self.held.extend_from_slice(&piece);
                self.held.split().freeze()
            }
        };
        let piece = blank(reflection, piece);
        let beginning = |needle: &Needle| longest_beginning(needle.bytes.expose(), &piece);
        let waits = reflection.needles.iter().map(beginning).max().unwrap_or(0);
        if waits == 0 {
            return piece;
        }
        let passed = piece.slice(..piece.len() - waits);
        self.held.extend_from_slice(&piece[piece.len() - waits..]);
        passed
    }

    /// What still waited.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

/// A header's value without the credential, or nothing.
pub(crate) fn header(reflection: Option<&Reflection>, value: &HeaderValue) -> Option<HeaderValue> {
    match reflection {
        Some(reflection) if reflection.is_in(value.as_bytes()) => None,
        _ => Some(value.clone()),
    }
}

/// Whether the credential is in a header's value.
pub(crate) fn is_in(reflection: &Reflection, value: &HeaderValue) -> bool {
    reflection.is_in(value.as_bytes())
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
    begins.find(|at| key.starts_with(&end[*at..])).map_or(0, |at| end.len() - at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    fn reflection(key: &str) -> Reflection {
        Reflection::new(&Secret::new(key.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn a_key_is_blanked_wherever_the_answer_is_split() {
        let (text, expected) = ("data: sk-sk-key and sk-k", "data: sk-****** and sk-k");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let (reflection, mut scrub, mut all) = (reflection("sk-key"), Scrub::default(), Vec::new());
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    all.extend_from_slice(&scrub.feed(&reflection, Bytes::copy_from_slice(piece.as_bytes())));
                }
                all.extend_from_slice(&scrub.rest());
                assert_eq!(std::str::from_utf8(&all).unwrap(), expected, "{first} {second}");
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
            base64("", ""),
            base64("x:", ""),
            base64("user:", ""),
            base64("u", "\r\n"),
            URL_SAFE_NO_PAD.encode(format!("{{\"k\":\"{key}\"}}")),
        ] {
            let left = blank(&reflection, Bytes::from(text.clone()));
            let stars = left.iter().filter(|byte| **byte == b'*').count();
            assert!(stars >= key.len() && stars > text.len() / 2, "{text} {left:?}");
            let mut cut = Scrub::default();
            let mut all = Vec::new();
            for byte in text.bytes() {
                all.extend_from_slice(&cut.feed(&reflection, Bytes::copy_from_slice(&[byte])));
            }
            all.extend_from_slice(&cut.rest());
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

    #[test]
    fn what_has_no_key_passes_uncopied() {
        let piece = Bytes::from_static(b"data: {\"a\":1}\n\n");
        let passed = Scrub::default().feed(&reflection("sk-key"), piece.clone());
        assert_eq!(passed.as_ptr(), piece.as_ptr());
    }
}
