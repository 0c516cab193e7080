//! A secret that cannot print, and is wiped when it goes.

use std::fmt;
use zeroize::Zeroizing;

/// A credential. [`Secret::expose`] is called where it is sent, and nowhere else.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// Why bytes are no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// Nothing there.
    #[error("the secret is empty")]
    Empty,
    /// Longer than any header may be.
    #[error("the secret is longer than 64 KiB")]
    TooLong,
    /// It could end a header and begin another.
    #[error(
        "the secret has a character that no HTTP header can carry (a line break, a control character, or not ASCII)"
    )]
    NotHeader,
}

const LONGEST: usize = 64 << 10;

impl Secret {
    /// Takes what was read. One line break at the end, as editors and `echo` leave it, is not part of a secret.
    pub fn new(bytes: Vec<u8>) -> Result<Secret, BadSecret> {
        let mut bytes = Zeroizing::new(bytes);
        for end in [b'\n', b'\r'] {
            if bytes.last() == Some(&end) {
                bytes.pop();
            }
        }
        match bytes.len() {
            0 => Err(BadSecret::Empty),
            LONGEST.. => Err(BadSecret::TooLong),
            _ => Ok(Secret(bytes)),
        }
    }

    /// Takes back what was a secret before, as it is.
    pub(crate) fn again(bytes: Zeroizing<Vec<u8>>) -> Secret {
        Secret(bytes)
    }

    /// Whether it can be sent in a header.
    pub fn check_header(&self) -> Result<(), BadSecret> {
        match self.0.iter().all(|byte| matches!(byte, 0x20..=0x7e)) {
            true => Ok(()),
            false => Err(BadSecret::NotHeader),
        }
    }

    /// The bytes themselves.
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
