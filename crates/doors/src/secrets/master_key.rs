//! The master key: 32 bytes from the configured source. A key of a wrong length, or one that others
//! may read, is refused.

use super::{AllowedReaders, SecretsError, read_guarded_file, store_dir::StoreDir};
use crate::secret::Secret;
use base64::{Engine, alphabet, engine::GeneralPurpose, engine::general_purpose::PAD};
use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};
use ring::rand::{SecureRandom, SystemRandom};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The key bytes.
pub(super) type MasterKeyBytes = Zeroizing<[u8; 32]>;

/// Source of the master key.
#[derive(Clone, Debug, Default)]
pub enum MasterKey {
    /// Given in an environment variable; base64 or hexadecimal.
    Given(Secret),
    /// A systemd service credential: 32 bytes, or their base64 or hexadecimal.
    Credential(PathBuf),
    /// A file of the operator's, in the same forms, that nobody else may read.
    File(PathBuf),
    /// The kernel keyring: the key `airlock:master` of type `user`, in the session or user keyring.
    Keyring,
    /// A file in the store directory, generated with the first secret: protects copies of single
    /// files, and nothing else.
    #[default]
    Beside,
}

/// The key's description in the kernel keyring.
const DESCRIPTION: &str = "airlock:master";

impl MasterKey {
    /// Reads the key; `None` if it belongs in the store directory and does not exist yet.
    pub(super) fn read(&self, folder: &StoreDir) -> Result<Option<MasterKeyBytes>, SecretsError> {
        match self {
            MasterKey::Given(text) => decode(text.expose())
                .map(Some)
                .ok_or_else(|| invalid_key("AIRLOCK_MASTER_KEY", "base64 of exactly 32 bytes")),
            MasterKey::Credential(path) => key_from_file(path, AllowedReaders::Service).map(Some),
            MasterKey::File(path) => key_from_file(path, AllowedReaders::Owner).map(Some),
            MasterKey::Keyring => key_from_keyring(DESCRIPTION).map(Some),
            MasterKey::Beside => folder.key(),
        }
    }

    /// Reads the key; generates it if it belongs in the store directory and does not exist.
    pub(super) fn read_or_make(&self, folder: &StoreDir) -> Result<MasterKeyBytes, SecretsError> {
        match self.read(folder)? {
            Some(key) => Ok(key),
            None => {
                let mut key = Zeroizing::new([0; 32]);
                SystemRandom::new().fill(key.as_mut_slice()).map_err(|_| {
                    SecretsError::new(
                        "the kernel gave no random numbers for a master key",
                        "try again",
                    )
                })?;
                folder.store_key(&key)
            }
        }
    }
}

fn key_from_file(
    path: &std::path::Path,
    guard: AllowedReaders,
) -> Result<MasterKeyBytes, SecretsError> {
    let bytes = read_guarded_file(path, guard)?;
    let form = "32 bytes, or their base64 or hexadecimal";
    parse_key(&bytes).ok_or_else(|| invalid_key(&path.display().to_string(), form))
}

fn invalid_key(place: &str, form: &str) -> SecretsError {
    SecretsError::new(
        format!("`{place}` is no master key: it must be {form}"),
        "make one: head -c 32 /dev/urandom | base64",
    )
}

fn key_from_keyring(description: &str) -> Result<MasterKeyBytes, SecretsError> {
    let failed = |error: KeyError| {
        SecretsError::new(
            format!("the kernel's keyring has no key `{description}` for us: {error}"),
            format!("put it there: keyctl padd user {description} @u < KEY_FILE"),
        )
    };
    let search = |ring| KeyRing::from_special_id(ring, false)?.search(description);
    let found = search(KeyRingIdentifier::Session)
        .or_else(|_| search(KeyRingIdentifier::User))
        .map_err(failed)?;
    let mut buffer = Zeroizing::new([0; 128]);
    let size = found.read(&mut *buffer).map_err(failed)?;
    let bytes = buffer.get(..size).unwrap_or_default();
    parse_key(bytes)
        .ok_or_else(|| invalid_key(description, "32 bytes, or their base64 or hexadecimal"))
}

/// 32 bytes are the key itself, whatever they contain.
pub(super) fn parse_key(bytes: &[u8]) -> Option<MasterKeyBytes> {
    match <[u8; 32]>::try_from(bytes) {
        Ok(key) => Some(Zeroizing::new(key)),
        Err(_) => decode(bytes.trim_ascii_end()),
    }
}

/// 64 hexadecimal digits, or base64 in either alphabet, with or without padding.
fn decode(text: &[u8]) -> Option<MasterKeyBytes> {
    let mut key = Zeroizing::new([0; 32]);
    if text.len() == 64 {
        for (byte, pair) in key.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        return Some(key);
    }
    let bare = text.strip_suffix(b"=").unwrap_or(text);
    let alphabet = if bare.iter().any(|byte| b"-_".contains(byte)) {
        &alphabet::URL_SAFE
    } else {
        &alphabet::STANDARD
    };
    let engine = GeneralPurpose::new(
        alphabet,
        PAD.with_decode_padding_mode(base64::engine::DecodePaddingMode::RequireNone),
    );
    // The decoder needs room for one more group.
    let mut room = Zeroizing::new([0; 36]);
    let size = (bare.len() == 43)
        .then(|| engine.decode_slice(bare, room.as_mut_slice()).ok())
        .flatten()?;
    key.copy_from_slice(room.get(..size).filter(|bytes| bytes.len() == 32)?);
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_keyring_gives_the_key_that_was_put_there() {
        let name = format!("airlock:test:{}", std::process::id());
        let absent = key_from_keyring(&name).unwrap_err();
        assert!(absent.message.contains("has no key"), "{}", absent.message);
        let ring = KeyRing::from_special_id(KeyRingIdentifier::Session, true);
        let put = ring.and_then(|ring| Ok((ring, ring.add_key(&name, &[7; 32])?)));
        let (ring, key) = match put {
            Ok(both) => both,
            Err(error) => {
                assert!(
                    std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
                    "prerequisite: a keyring: {error}"
                );
                return eprintln!("NOT TESTED: no keyring here: {error}");
            }
        };
        let found = key_from_keyring(&name);
        key.update(&[7; 31]).unwrap();
        let short = key_from_keyring(&name);
        ring.unlink_key(key).unwrap();
        assert_eq!(found.unwrap().as_slice(), [7; 32]);
        assert!(short.unwrap_err().message.contains("is no master key"));
        assert!(key_from_keyring(&name).is_err(), "nothing is left of it");
    }

    #[test]
    fn a_key_has_32_bytes_in_one_of_three_forms() {
        let key: [u8; 32] = std::array::from_fn(|at| (at * 8 + 3) as u8);
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let base64 = base64::engine::general_purpose::STANDARD;
        let mut encoded = [0; 44];
        assert_eq!(base64.encode_slice(key, &mut encoded), Ok(44));
        let url: Vec<u8> = encoded[..43]
            .iter()
            .map(|byte| match byte {
                b'+' => b'-',
                b'/' => b'_',
                other => *other,
            })
            .collect();
        assert_ne!(url, &encoded[..43], "the alphabets differ in this key");
        for text in [
            hex.as_bytes(),
            hex.to_uppercase().as_bytes(),
            &encoded,
            &encoded[..43],
            &url,
        ] {
            assert_eq!(
                decode(text).as_deref(),
                Some(&key),
                "{}",
                String::from_utf8_lossy(text)
            );
            let line = [text, b"\n"].concat();
            assert_eq!(parse_key(&line).as_deref(), Some(&key));
        }
        assert_eq!(parse_key(&key).as_deref(), Some(&key));
        let raw_with_line_break = [&key[..], b"\n"].concat();
        for bad in [
            &b""[..],
            b"short",
            &key[..31],
            &raw_with_line_break,
            &encoded[..42],
            &hex.as_bytes()[..63],
        ] {
            assert_eq!(parse_key(bad).as_deref(), None, "{} bytes", bad.len());
        }
        assert_eq!(
            decode(&[b'a'; 32]).as_deref(),
            None,
            "a word of 32 letters is no key"
        );
        assert_eq!(decode(&[b'g'; 64]).as_deref(), None);
    }
}
