//! Session tokens: `session-` and 64 hexadecimal digits, stored only as a hash. The prefix is
//! optional, for use and for revocation.

use http::{header, request::Parts};
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const PREFIX: &str = "session-";
const DIGITS: usize = 64;

/// A session token.
#[derive(Clone)]
pub struct SessionToken(Zeroizing<String>);

/// The stored hash of a token, compared in constant time.
#[derive(Clone, Copy, Eq)]
pub struct TokenHash([u8; 32]);

/// The random number generator failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the machine gives no random bytes")]
pub struct RandomError;

impl SessionToken {
    /// Generates a new token.
    pub fn generate() -> Result<SessionToken, RandomError> {
        Ok(SessionToken(
            Zeroizing::new(random_hex::<{ DIGITS / 2 }>()?),
        ))
    }

    /// Parses either form. Anything that a person could choose, and so guess, is rejected.
    pub fn parse(text: &str) -> Option<SessionToken> {
        let digits = text.strip_prefix(PREFIX).unwrap_or(text);
        is_token_digits(digits.as_bytes()).then(|| SessionToken(Zeroizing::new(digits.to_owned())))
    }

    /// The hash to store.
    pub fn hash(&self) -> TokenHash {
        TokenHash::of(self.0.as_bytes())
    }

    /// The token, for its caller.
    pub fn expose(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{PREFIX}{}", *self.0))
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(..)")
    }
}

impl TokenHash {
    /// Hashes whatever was presented, even if it is no token, so that the time does not differ.
    pub(crate) fn of(presented: &[u8]) -> TokenHash {
        TokenHash(Sha256::digest(canonical(presented)).into())
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &TokenHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::hash::Hash for TokenHash {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TokenHash(..)")
    }
}

/// Random bytes as hexadecimal digits.
pub(crate) fn random_hex<const BYTES: usize>() -> Result<String, RandomError> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    SystemRandom::new()
        .fill(&mut *bytes)
        .map_err(|_| RandomError)?;
    Ok(bytes
        .iter()
        .fold(String::with_capacity(2 * BYTES), |mut text, byte| {
            for half in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(u32::from(half), 16));
            }
            text
        }))
}

fn canonical(presented: &[u8]) -> &[u8] {
    presented
        .strip_prefix(PREFIX.as_bytes())
        .unwrap_or(presented)
}

fn is_token_digits(text: &[u8]) -> bool {
    text.len() == DIGITS
        && text
            .iter()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The credentials of a request, in order of precedence.
pub(crate) fn presented_credentials(head: &Parts) -> impl Iterator<Item = &[u8]> {
    let bearer = head
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| bearer_token(value.as_bytes()));
    let header = |name| head.headers.get(name).map(http::HeaderValue::as_bytes);
    // Where Gemini's clients put the key. The upstream query is rebuilt without it.
    let query = head.uri.query().unwrap_or_default();
    let key = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("key="))
        .map(str::as_bytes);
    [bearer, header("x-api-key"), header("x-goog-api-key"), key]
        .into_iter()
        .flatten()
}

/// The token of a `Bearer` value.
pub(crate) fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (word, rest) = value.split_at_checked(7)?;
    word.eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())
}

/// Whether a request carries a session token other than this one. Values that are no tokens are
/// placeholders and are ignored.
pub(crate) fn carries_foreign_token(head: &Parts, own: Option<&TokenHash>) -> bool {
    presented_credentials(head).any(|credential| {
        is_token_digits(canonical(credential)) && own != Some(&TokenHash::of(credential))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn head(headers: &[(&str, &str)], target: &str) -> Parts {
        let start = Request::builder().uri(target);
        let request = headers.iter().fold(start, |request, (name, value)| {
            request.header(*name, *value)
        });
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn both_forms_are_the_same_token_and_nothing_of_it_prints() {
        let token = SessionToken::generate().unwrap();
        let whole = token.expose();
        assert!(whole.len() == 72 && whole.starts_with("session-"));
        let bare = SessionToken::parse(&whole[8..]).unwrap();
        assert_eq!(bare.hash(), token.hash());
        assert_eq!(
            TokenHash::of(whole.as_bytes()),
            TokenHash::of(&whole.as_bytes()[8..])
        );
        assert_ne!(SessionToken::generate().unwrap().hash(), token.hash());
        assert_eq!(
            format!("{token:?} {:?}", token.hash()),
            "Token(..) TokenHash(..)"
        );
    }

    #[test]
    fn what_could_be_guessed_is_no_token() {
        for text in [
            "",
            "session-",
            "session-abc",
            &"A".repeat(64),
            &"0".repeat(63),
            &"0".repeat(65),
        ] {
            assert!(SessionToken::parse(text).is_none(), "{text}");
        }
        assert!(
            SessionToken::parse(&"0".repeat(64)).is_some(),
            "the positive control"
        );
    }

    #[test]
    fn a_token_is_found_wherever_clients_put_it_and_the_first_place_is_believed() {
        let found = |headers: &[(&str, &str)], target: &str| {
            let head = head(headers, target);
            presented_credentials(&head)
                .next()
                .map(|found| String::from_utf8(found.to_vec()).unwrap())
        };
        assert_eq!(
            found(&[("authorization", "bEaReR  a ")], "/"),
            Some("a".into())
        );
        assert_eq!(found(&[("x-api-key", "b")], "/?key=d"), Some("b".into()));
        assert_eq!(
            found(&[("x-goog-api-key", "c")], "/?key=d"),
            Some("c".into())
        );
        assert_eq!(
            found(&[], "/v1beta/models?alt=sse&key=d&key=e"),
            Some("d".into())
        );
        assert_eq!(
            found(&[("authorization", "Bearer ")], "/"),
            Some(String::new())
        );
        assert_eq!(found(&[("authorization", "Basic YQ==")], "/?keys=d"), None);
    }

    #[test]
    fn a_token_of_another_session_is_known_and_a_placeholder_is_none() {
        let (own, other) = (
            SessionToken::generate().unwrap(),
            SessionToken::generate().unwrap(),
        );
        let carries = |value: &str| {
            carries_foreign_token(
                &head(&[("authorization", &format!("Bearer {value}"))], "/"),
                Some(&own.hash()),
            )
        };
        assert!(carries(&other.expose()) && carries(&other.expose()[8..]));
        assert!(!carries(&own.expose()) && !carries(&own.expose()[8..]));
        assert!(!carries("sk-placeholder") && !carries(""));
        let both = [
            ("authorization", &**own.expose()),
            ("x-api-key", &**other.expose()),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        let both = [
            ("authorization", format!("Bearer {}", both[0].1)),
            (both[1].0, both[1].1.clone()),
        ];
        let both: Vec<_> = both
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        assert!(
            carries_foreign_token(&head(&both, "/"), Some(&own.hash())),
            "no place is overlooked"
        );
        assert!(carries_foreign_token(
            &head(&[("x-api-key", &own.expose())], "/"),
            None
        ));
    }
}
