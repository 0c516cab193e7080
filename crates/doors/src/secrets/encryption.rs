//! Encryption of one record: a version, a fresh nonce, and AES-256-GCM of the value. The record's
//! name is associated data, so that files cannot be swapped.

use super::{SecretsError, master_key::MasterKeyBytes};
use crate::secret::Secret;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
    rand::{SecureRandom, SystemRandom},
};
use spec::Id;
use zeroize::Zeroizing;

const VERSION: u8 = 1;
const TAG_LEN: usize = 16;
const HEADER_LEN: usize = 1 + NONCE_LEN;
/// Largest record: the longest secret with its overhead.
pub(super) const MAX_RECORD_BYTES: u64 = (64 << 10) + (HEADER_LEN + TAG_LEN) as u64;

pub(super) fn seal(
    key: &MasterKeyBytes,
    name: &Id,
    value: &Secret,
) -> Result<Vec<u8>, SecretsError> {
    encrypt(key, name, value).map_err(|Unspecified| {
        SecretsError::new(
            "the secret could not be encrypted",
            "try again; the kernel gave no random numbers",
        )
    })
}

fn encrypt(key: &MasterKeyBytes, name: &Id, value: &Secret) -> Result<Vec<u8>, Unspecified> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce)?;
    // With capacity for the tag: a reallocation would leave a copy of the secret.
    let mut sealed = Vec::with_capacity(HEADER_LEN + value.expose().len() + TAG_LEN);
    sealed.push(VERSION);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(value.expose());
    let tag = cipher(key)?.seal_in_place_separate_tag(
        Nonce::assume_unique_for_key(nonce),
        Aad::from(associated_data(name)),
        &mut sealed[HEADER_LEN..],
    )?;
    sealed.extend_from_slice(tag.as_ref());
    Ok(sealed)
}

pub(super) fn open(
    key: &MasterKeyBytes,
    name: &Id,
    sealed: Vec<u8>,
) -> Result<Secret, SecretsError> {
    decrypt(key, name, sealed).map(Secret::from_zeroizing).map_err(|Unspecified| {
        SecretsError::new(
            format!("the secret `{name}` cannot be decrypted: the master key is another one, or the file was changed"),
            format!("use the key it was set with, or set it anew: airlock secrets set {name}"),
        )
    })
}

fn decrypt(
    key: &MasterKeyBytes,
    name: &Id,
    sealed: Vec<u8>,
) -> Result<Zeroizing<Vec<u8>>, Unspecified> {
    let mut sealed = Zeroizing::new(sealed);
    let (head, _) = sealed
        .split_first_chunk::<HEADER_LEN>()
        .ok_or(Unspecified)?;
    let (VERSION, nonce) = (head[0], Nonce::try_assume_unique_for_key(&head[1..])?) else {
        return Err(Unspecified);
    };
    let plain = cipher(key)?.open_in_place(
        nonce,
        Aad::from(associated_data(name)),
        &mut sealed[HEADER_LEN..],
    )?;
    Ok(Zeroizing::new(plain.to_vec()))
}

fn cipher(key: &MasterKeyBytes) -> Result<LessSafeKey, Unspecified> {
    UnboundKey::new(&AES_256_GCM, key.as_slice()).map(LessSafeKey::new)
}

/// Includes the version: a record cannot pass for one of another version.
fn associated_data(name: &Id) -> Vec<u8> {
    [b"airlock secret ", &[VERSION][..], name.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(name: &str) -> Id {
        Id::new(name).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_as_the_same_and_only_so(
            key: [u8; 32],
            value in proptest::collection::vec(any::<u8>(), 1..200),
            at: prop::sample::Index,
            bit in 0..8_u8,
        ) {
            let key = Zeroizing::new(key);
            let secret = Secret::from_zeroizing(Zeroizing::new(value.clone()));
            let sealed = seal(&key, &id("name"), &secret).unwrap();
            let opened = open(&key, &id("name"), sealed.clone()).unwrap();
            prop_assert_eq!(opened.expose(), &value[..]);
            prop_assert!(open(&key, &id("other"), sealed.clone()).is_err(), "it is bound to its name");
            let other = Zeroizing::new(key.map(|byte| byte ^ 1));
            prop_assert!(open(&other, &id("name"), sealed.clone()).is_err(), "another key opens nothing");
            let mut changed = sealed.clone();
            let place = at.index(changed.len());
            changed[place] ^= 1 << bit;
            prop_assert!(open(&key, &id("name"), changed).is_err(), "no bit can change");
            prop_assert!(open(&key, &id("name"), sealed[..place].to_vec()).is_err(), "nothing can be cut off");
        }
    }

    #[test]
    fn the_same_secret_twice_is_not_the_same_record() {
        let (key, secret) = (
            Zeroizing::new([7; 32]),
            Secret::new(b"sk-canary".to_vec()).unwrap(),
        );
        let [one, two] = [(); 2].map(|()| seal(&key, &id("a"), &secret).unwrap());
        assert_ne!(one, two);
        assert!(!one.windows(9).any(|part| part == b"sk-canary"));
        assert_eq!(one.len(), HEADER_LEN + 9 + TAG_LEN);
    }
}
