//! Passwords and tokens that cannot be printed by accident.

use std::fmt;

/// A string that debug output and messages do not show.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistrySecret(String);

impl RegistrySecret {
    /// Wraps a string.
    pub fn new(text: impl Into<String>) -> RegistrySecret {
        RegistrySecret(text.into())
    }

    /// The string, for the code that sends it.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RegistrySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Encodes base64 (RFC 4648) with padding.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = DIGITS[(word >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}

/// Decodes base64. Padding may be missing; any other deviation is refused.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut word = 0u32;
        for letter in group {
            let digit = DIGITS.iter().position(|known| known == letter)?;
            word = word << 6 | digit as u32;
        }
        let count = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        word <<= 6 * (4 - group.len());
        bytes.extend(&word.to_be_bytes()[1..1 + count]);
    }
    Some(bytes)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (plain, coded) in cases {
            assert_eq!(
                (encode(plain.as_bytes()).as_str(), decode(coded)),
                (coded, Some(plain.into()))
            );
        }
        assert_eq!(
            [decode("Zg="), decode("Z"), decode("Z g="), decode("Zm9v\n")],
            [Some(b"f".to_vec()), None, None, None]
        );
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(
            format!("{:?}", RegistrySecret::new("hunter2")),
            "Secret(..)"
        );
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
