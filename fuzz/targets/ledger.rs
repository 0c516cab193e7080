//! Lines of a ledger, as `airlock usage --verify` and a recovery read them. No bytes make the reader panic; what it believes
//! is a chain that begins at the beginning; and a byte of it that is changed is not believed any more.
//!
//! The first two bytes say which byte of the rest is changed, the third to what.

#![no_main]

use doors::ledger::{ChainHead, LedgerReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [high, low, put, text @ ..] = input else {
        return;
    };
    let (lines, whole) = believed(text);
    if text.is_empty() || !whole {
        return;
    }
    assert!(lines > 0, "text without a line was believed");
    let at = (usize::from(*high) << 8 | usize::from(*low)) % text.len();
    let mut changed = text.to_vec();
    changed[at] = *put;
    assert!(
        changed == text || !believed(&changed).1,
        "byte {at} became {put}"
    );
});

/// How many lines were believed, and whether that were all.
fn believed(text: &[u8]) -> (u64, bool) {
    let mut reader = LedgerReader::new(text, ChainHead::default());
    loop {
        match reader.next_record() {
            Ok(Some(row)) => assert!(row.n > 0),
            Ok(None) => {
                assert_eq!(reader.head().offset, text.len() as u64);
                return (reader.head().n, true);
            }
            Err(_) => return (reader.head().n, false),
        }
    }
}
