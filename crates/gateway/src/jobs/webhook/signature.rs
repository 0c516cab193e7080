//! Webhook signatures (Standard Webhooks). A tenant's secret is derived from a key of this node,
//! the tenant's name and its rotation count, so that no secret is stored in the database.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use engine::{Engine, OwnKey};
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use ring::hmac;
use spec::{ErrorCode, ErrorInfo};
use std::sync::{Mutex, OnceLock, PoisonError};
use store::webhooks::SecretGeneration;
use zeroize::Zeroizing;

/// Name of the node's key in the secret store.
const KEY_NAME: &str = "airlock.webhooks";
/// How long the previous secret still signs after a rotation.
pub(super) const OVERLAP_MS: u64 = 24 * 3_600_000;

/// A tenant's signing secret.
type Secret = Zeroizing<[u8; 32]>;

/// Signs notices; loads its key on first use.
#[derive(Debug)]
pub(super) struct Signer {
    engine: Engine,
    key: OnceLock<NodeKey>,
    /// Held while the key is loaded: two concurrent loads could create two different keys.
    loading: Mutex<()>,
}

/// The node's key; its `Debug` output hides it.
struct NodeKey(OwnKey);

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Hidden(..)")
    }
}

impl Signer {
    pub(super) fn new(engine: Engine) -> Signer {
        Signer {
            engine,
            key: OnceLock::new(),
            loading: Mutex::default(),
        }
    }

    /// The secret of a tenant. The first call reads the disk.
    fn secret(&self, tenant: &str, generation: u64) -> Result<Secret, ErrorInfo> {
        if self.key.get().is_none() {
            let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
            if self.key.get().is_none() {
                let key = self.engine.own_key(KEY_NAME)?;
                self.key.get_or_init(|| NodeKey(key));
            }
        }
        let key = self.key.get().ok_or_else(|| ErrorInfo {
            code: ErrorCode::Internal,
            message: "there is no key to sign by".to_owned(),
            hint: None,
        })?;
        Ok(derive_secret(&key.0, tenant, generation))
    }

    /// The secret as receivers configure it.
    pub(super) fn encoded_secret(
        &self,
        tenant: &str,
        generation: u64,
    ) -> Result<String, ErrorInfo> {
        let secret = self.secret(tenant, generation)?;
        Ok(format!("whsec_{}", STANDARD.encode(&secret[..])))
    }

    /// The signed headers of a notice: by the current secret, and for a day by the previous one.
    pub(super) fn headers(
        &self,
        tenant: &str,
        generation: SecretGeneration,
        (id, body): (&str, &str),
        now_ms: u64,
    ) -> Result<HeaderMap, ErrorInfo> {
        let seconds = now_ms / 1000;
        let mut secrets = vec![self.secret(tenant, generation.number)?];
        if has_predecessor(generation, now_ms) {
            secrets.push(self.secret(tenant, generation.number - 1)?);
        }
        let signatures: Vec<_> = secrets
            .iter()
            .map(|secret| sign(secret, id, seconds, body))
            .collect();
        let texts = [
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", signatures.join(" ")),
        ];
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Our values contain only valid header characters.
        headers.extend(texts.into_iter().filter_map(|(name, text)| {
            Some((
                http::HeaderName::from_static(name),
                HeaderValue::try_from(text).ok()?,
            ))
        }));
        Ok(headers)
    }
}

/// Whether the previous secret still signs.
pub(super) fn has_predecessor(generation: SecretGeneration, now_ms: u64) -> bool {
    generation.number > 1 && now_ms < generation.since_ms.saturating_add(OVERLAP_MS)
}

/// One step of HMAC key derivation: the key is random and as long as the output.
fn derive_secret(key: &[u8; 32], tenant: &str, generation: u64) -> Secret {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    // A tenant's name contains no zero byte, so inputs are unambiguous.
    let words = [
        b"airlock webhook secret 1\0",
        tenant.as_bytes(),
        b"\0",
        generation.to_string().as_bytes(),
    ]
    .concat();
    let mut secret = Zeroizing::new([0; 32]);
    secret.copy_from_slice(hmac::sign(&key, &words).as_ref());
    secret
}

fn sign(secret: &[u8; 32], id: &str, seconds: u64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mut context = hmac::Context::with_key(&key);
    for part in [id, ".", &seconds.to_string(), ".", body] {
        context.update(part.as_bytes());
    }
    format!("v1,{}", STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_as_the_scheme_says() {
        // By Python's hmac: key 0x00…0x1f, "msg_1.1700000000.{}".
        let secret: [u8; 32] = std::array::from_fn(|index| index as u8);
        assert_eq!(
            sign(&secret, "msg_1", 1_700_000_000, "{}"),
            "v1,fhksJF5ElKjlPoT/jtefCO5XjQPvhf7Dhf/8R1ad9yU="
        );
    }

    #[test]
    fn every_tenant_and_every_generation_has_a_secret_of_its_own() {
        let key = [7; 32];
        let one = derive_secret(&key, "a", 1);
        assert_eq!(one, derive_secret(&key, "a", 1));
        for other in [
            derive_secret(&key, "b", 1),
            derive_secret(&key, "a", 2),
            derive_secret(&key, "a\u{1}", 1),
            derive_secret(&[8; 32], "a", 1),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn the_secret_before_signs_for_a_day() {
        let first = SecretGeneration {
            number: 1,
            since_ms: 0,
        };
        let second = SecretGeneration {
            number: 2,
            since_ms: 1000,
        };
        assert!(!has_predecessor(first, 5));
        assert!(
            has_predecessor(second, 1000 + OVERLAP_MS - 1)
                && !has_predecessor(second, 1000 + OVERLAP_MS)
        );
    }
}
