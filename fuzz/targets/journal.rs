//! Lines of a journal whose records are not known beforehand, as `airlock audit verify` reads them. No bytes make the reader
//! panic; what it believes is numbered without a gap and ends where the text does; a byte that is changed is not believed
//! any more, and nor is a line that is missing.
//!
//! The first two bytes say which byte of the rest is changed, the third to what.

#![no_main]

use journal::{ChainHead, NumberedRecord, JournalReader};
use libfuzzer_sys::fuzz_target;

#[derive(serde::Deserialize)]
struct Any {
    n: u64,
}

impl NumberedRecord for Any {
    fn n(&self) -> u64 {
        self.n
    }
}

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
    if let Some(end) = text
        .iter()
        .position(|byte| *byte == b'\n')
        .filter(|_| lines > 1)
    {
        assert!(!believed(&text[end + 1..]).1, "the first line is missing");
    }
});

/// How many lines were believed, and whether that were all.
fn believed(text: &[u8]) -> (u64, bool) {
    let mut reader = JournalReader::new(text, ChainHead::default());
    let mut lines = 0;
    loop {
        match reader.next_record::<Any>() {
            Ok(Some(line)) => {
                lines += 1;
                assert_eq!(line.n, lines);
            }
            Ok(None) => {
                assert_eq!(reader.head().offset, text.len() as u64);
                return (lines, true);
            }
            Err(_) => return (lines, false),
        }
    }
}
