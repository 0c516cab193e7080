//! A secret value that is not printed by `Debug` and is wiped on drop.

use std::fmt;
use zeroize::Zeroizing;

/// A credential. Call [`Secret::expose`] only where it is sent.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// Why bytes are not a valid secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// The secret is empty.
    #[error("the secret is empty")]
    Empty,
    /// Longer than any header may be.
    #[error("the secret is longer than 64 KiB")]
    TooLong,
    /// It could end a header and start another.
    #[error(
        "the secret has a character that no HTTP header can carry (a line break, a control character, or not ASCII)"
    )]
    NotHeader,
}

const MAX_LENGTH: usize = 64 << 10;

impl Secret {
    /// Takes the bytes that were read. One trailing line break, as editors and `echo` leave it, is
    /// removed.
    pub fn new(bytes: Vec<u8>) -> Result<Secret, BadSecret> {
        let mut bytes = Zeroizing::new(bytes);
        for end in [b'\n', b'\r'] {
            if bytes.last() == Some(&end) {
                bytes.pop();
            }
        }
        match bytes.len() {
            0 => Err(BadSecret::Empty),
            MAX_LENGTH.. => Err(BadSecret::TooLong),
            _ => Ok(Secret(bytes)),
        }
    }

    /// Wraps bytes that were a secret before, unchanged.
    pub(crate) fn from_zeroizing(bytes: Zeroizing<Vec<u8>>) -> Secret {
        Secret(bytes)
    }

    /// Whether it can be sent in a header.
    pub fn check_header(&self) -> Result<(), BadSecret> {
        if self.0.iter().all(|byte| matches!(byte, 0x20..=0x7e)) {
            Ok(())
        } else {
            Err(BadSecret::NotHeader)
        }
    }

    /// The secret bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_and_has_no_line_break() {
        let secret = Secret::new(b"sk-canary\r\n".to_vec()).unwrap();
        assert_eq!(
            (format!("{secret:?}").as_str(), secret.expose()),
            ("Secret(..)", b"sk-canary".as_slice())
        );
        assert_eq!(secret.check_header(), Ok(()));
        assert_eq!(
            Secret::new(b"a\r\nX-Other: b".to_vec())
                .unwrap()
                .check_header(),
            Err(BadSecret::NotHeader)
        );
        assert_eq!(Secret::new(b"\n".to_vec()).unwrap_err(), BadSecret::Empty);
    }
}
