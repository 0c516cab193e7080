//! Finds the end of a JSON string. Most strings are short, where setting up a vector search costs
//! more than it saves.

use memchr::memchr2;

/// This many bytes are searched eight at a time before the vector search starts.
const SHORT: usize = 48;
const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGHS: u64 = u64::from_le_bytes([0x80; 8]);

/// Position of the first quote or backslash.
#[inline]
pub(super) fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    for (number, word) in bytes.chunks_exact(8).take(SHORT / 8).enumerate() {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        let found = matches(word, b'"') | matches(word, b'\\');
        if found != 0 {
            return Some(number * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    if bytes.len() >= SHORT {
        return memchr2(b'"', b'\\', &bytes[SHORT..]).map(|found| SHORT + found);
    }
    let looked_at = bytes.len() / 8 * 8;
    let found = bytes[looked_at..]
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\'));
    found.map(|found| looked_at + found)
}

/// Sets the high bit of each byte that equals `byte`; bytes above the first match may be set, too.
#[inline]
fn matches(word: u64, byte: u8) -> u64 {
    let same = word ^ (ONES * u64::from(byte));
    same.wrapping_sub(ONES) & !same & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_found_wherever_it_is(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), thin in any::<bool>()) {
            if thin {
                bytes.iter_mut().for_each(|byte| if *byte < 0xf0 { *byte |= 0x80 } else { *byte = b'"' });
            }
            let expected = bytes.iter().position(|byte| [b'"', b'\\'].contains(byte));
            prop_assert_eq!(quote_or_backslash(&bytes), expected);
        }
    }
}
