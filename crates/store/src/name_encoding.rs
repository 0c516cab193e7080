//! Encodes artifact names as folder names: any bytes in, one plain file name out, and no two alike.

use sha2::{Digest, Sha256};

/// Longer names are replaced by their digest: most file systems limit a name to 255 bytes.
const MAX_NAME_BYTES: usize = 200;

/// The folder name of an artifact name.
pub(crate) fn folder_name(name: &[u8]) -> String {
    let plain = percent_encoded(name);
    // `~` is never left unencoded, so a digest cannot be mistaken for an encoded name.
    if plain.len() > MAX_NAME_BYTES {
        format!("~{}", hexadecimal(&Sha256::digest(name)))
    } else {
        plain
    }
}

/// Letters, digits, `.`, `_` and `-` stay. A leading dot is encoded: dot names are reserved for the
/// store.
pub(crate) fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        let plain =
            byte.is_ascii_alphanumeric() || b"_-".contains(byte) || (*byte == b'.' && at > 0);
        if plain {
            text.push(char::from(*byte))
        } else {
            text.push_str(&format!("%{byte:02X}"))
        }
    }
    text
}

/// Decodes a name; `None` if the text is no such encoding.
pub(crate) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next()?)? * 16 + digit(rest.next()?)?).ok()?,
            plain => plain,
        });
    }
    Some(bytes)
}

/// Lower-case hexadecimal digits of bytes.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_could_be_another_place_are_encoded() {
        assert_eq!(folder_name(b"a/b.txt"), "a%2Fb.txt");
        assert_eq!(folder_name(b".."), "%2E.");
        assert_eq!(folder_name(b".drafts"), "%2Edrafts");
        assert_eq!(folder_name(b"100%\n\xff"), "100%25%0A%FF");
        assert_eq!(folder_name(b"~x"), "%7Ex");
        assert_eq!(folder_name(&[b'x'; 200]), "x".repeat(200));
        assert_eq!(folder_name(&[b'x'; 201]).len(), 65);
    }

    proptest! {
        #[test]
        fn every_name_becomes_one_plain_file_name(name in prop::collection::vec(any::<u8>(), 1..400)) {
            let folder = folder_name(&name);
            prop_assert!(folder.len() <= MAX_NAME_BYTES);
            prop_assert!(!folder.starts_with('.') && !folder.contains('/') && folder.is_ascii());
            prop_assert!(folder.bytes().all(|byte| byte.is_ascii_graphic()));
        }

        #[test]
        fn an_encoding_decodes_to_the_same_bytes(name in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(percent_decoded(&percent_encoded(&name)), Some(name));
        }

        #[test]
        fn different_names_have_different_folders(
            one in prop::collection::vec(prop::sample::select(b"a.%/~2F\xff".to_vec()), 1..90),
            other in prop::collection::vec(prop::sample::select(b"a.%/~2F\xff".to_vec()), 1..90),
        ) {
            prop_assert_eq!(one == other, folder_name(&one) == folder_name(&other));
        }

        #[test]
        fn decoding_never_panics(text in ".{0,60}") {
            let _ = percent_decoded(&text);
        }
    }
}
