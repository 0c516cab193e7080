//! Takes the credential out of what a provider sends back. Same length, so that no frame has to change.

use crate::upstream::Reflection;
use bytes::{Bytes, BytesMut};
use http::HeaderValue;

/// Looks through one answer.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// The end of the last piece, if the credential may begin there.
    held: BytesMut,
}

impl Scrub {
    /// The next piece without the credential. What may be its beginning waits for the next piece.
    pub(crate) fn feed(&mut self, reflection: &Reflection, piece: Bytes) -> Bytes {
        let key = reflection.key.expose();
        let piece = match self.held.is_empty() {
            true => piece,
            false => {
                self.held.extend_from_slice(&piece);
                self.held.split().freeze()
            }
        };
        let piece = blank(reflection, piece);
        let waits = longest_beginning(key, &piece);
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
        Some(reflection) if reflection.finder.find(value.as_bytes()).is_some() => None,
        _ => Some(value.clone()),
    }
}

/// The same bytes with the credential blanked out.
pub(crate) fn blank(reflection: &Reflection, piece: Bytes) -> Bytes {
    if reflection.finder.find(&piece).is_none() {
        return piece;
    }
    let length = reflection.key.expose().len();
    let mut bytes = BytesMut::from(&piece[..]);
    for at in reflection.finder.find_iter(&piece) {
        bytes[at..at + length].fill(b'*');
    }
    bytes.freeze()
}

/// How many bytes at the end of the piece are a beginning of the key.
fn longest_beginning(key: &[u8], piece: &[u8]) -> usize {
    let most = key.len().saturating_sub(1).min(piece.len());
    (1..=most).rev().find(|length| key.starts_with(&piece[piece.len() - length..])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;
    use memchr::memmem::Finder;

    fn reflection(key: &str) -> Reflection {
        let finder = Finder::new(key.as_bytes()).into_owned();
        Reflection { key: Secret::new(key.as_bytes().to_vec()).unwrap(), finder }
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
    fn what_has_no_key_passes_uncopied() {
        let piece = Bytes::from_static(b"data: {\"a\":1}\n\n");
        let passed = Scrub::default().feed(&reflection("sk-key"), piece.clone());
        assert_eq!(passed.as_ptr(), piece.as_ptr());
    }
}
