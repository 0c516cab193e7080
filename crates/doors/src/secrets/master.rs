//! The master key: 32 bytes from the best place that is configured. One of a wrong length, or that others may read, is
//! refused rather than used.

use super::{Guard, SecretsError, folder::Folder, guarded};
use crate::secret::Secret;
use base64::{Engine, alphabet, engine::GeneralPurpose, engine::general_purpose::PAD};
use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};
use ring::rand::{SecureRandom, SystemRandom};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The key itself.
pub(super) type Key = Zeroizing<[u8; 32]>;

/// Where the master key lies.
#[derive(Clone, Debug, Default)]
pub enum MasterKey {
    /// It was given, as a variable; base64 or hexadecimal.
    Given(Secret),
    /// A credential of the service, as systemd passes them: 32 bytes, or their base64 or hexadecimal.
    Credential(PathBuf),
    /// A file of the operator's, in the same forms, that nobody else may read.
    File(PathBuf),
    /// The kernel's keyring: the key `airlock:master` of the type `user`, of this session or this user.
    Keyring,
    /// A file beside what it protects, made when the first secret is kept: protects copies of single files, and nothing
    /// else.
    #[default]
    Beside,
}

/// What the key is called in the kernel's keyring.
const DESCRIPTION: &str = "airlock:master";

impl MasterKey {
    /// The key; none where it lies beside the data and has not been made.
    pub(super) fn read(&self, folder: &Folder) -> Result<Option<Key>, SecretsError> {
        match self {
            MasterKey::Given(text) => decode(text.expose())
                .map(Some)
                .ok_or_else(|| wrong("AIRLOCK_MASTER_KEY", "base64 of exactly 32 bytes")),
            MasterKey::Credential(path) => of_file(path, Guard::Service).map(Some),
            MasterKey::File(path) => of_file(path, Guard::Owner).map(Some),
            MasterKey::Keyring => of_keyring(DESCRIPTION).map(Some),
            MasterKey::Beside => folder.key(),
        }
    }

    /// The same, and made where it lies beside the data.
    pub(super) fn read_or_make(&self, folder: &Folder) -> Result<Key, SecretsError> {
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
                folder.keep_key(&key)
            }
        }
    }
}

fn of_file(path: &std::path::Path, guard: Guard) -> Result<Key, SecretsError> {
    let bytes = guarded(path, guard)?;
    let form = "32 bytes, or their base64 or hexadecimal";
    raw_or_text(&bytes).ok_or_else(|| wrong(&path.display().to_string(), form))
}

fn wrong(place: &str, form: &str) -> SecretsError {
    SecretsError::new(
        format!("`{place}` is no master key: it must be {form}"),
        "make one: head -c 32 /dev/urandom | base64",
    )
}

fn of_keyring(description: &str) -> Result<Key, SecretsError> {
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
    raw_or_text(bytes).ok_or_else(|| wrong(description, "32 bytes, or their base64 or hexadecimal"))
}

/// What has 32 bytes is the key itself, whatever they are.
pub(super) fn raw_or_text(bytes: &[u8]) -> Option<Key> {
    match <[u8; 32]>::try_from(bytes) {
        Ok(key) => Some(Zeroizing::new(key)),
        Err(_) => decode(bytes.trim_ascii_end()),
    }
}

/// 64 hexadecimal digits, or base64 in either alphabet, with or without padding.
fn decode(text: &[u8]) -> Option<Key> {
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
    // The decoder wants room for a group more than there is.
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
        let absent = of_keyring(&name).unwrap_err();
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
        let found = of_keyring(&name);
        key.update(&[7; 31]).unwrap();
        let short = of_keyring(&name);
        ring.unlink_key(key).unwrap();
        assert_eq!(found.unwrap().as_slice(), [7; 32]);
        assert!(short.unwrap_err().message.contains("is no master key"));
        assert!(of_keyring(&name).is_err(), "nothing is left of it");
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
            assert_eq!(raw_or_text(&line).as_deref(), Some(&key));
        }
        assert_eq!(raw_or_text(&key).as_deref(), Some(&key));
        let raw_with_line_break = [&key[..], b"\n"].concat();
        for bad in [
            &b""[..],
            b"short",
            &key[..31],
            &raw_with_line_break,
            &encoded[..42],
            &hex.as_bytes()[..63],
        ] {
            assert_eq!(raw_or_text(bad).as_deref(), None, "{} bytes", bad.len());
        }
        assert_eq!(
            decode(&[b'a'; 32]).as_deref(),
            None,
            "a word of 32 letters is no key"
        );
        assert_eq!(decode(&[b'g'; 64]).as_deref(), None);
    }
}
