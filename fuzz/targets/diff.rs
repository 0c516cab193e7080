//! A unified diff of a stranger's. No bytes make the reader panic or change a file beyond its bound; what is applied to a text and
//! leaves it as it was had nothing to change; what is refused is told shortly.
//!
//! Before the first NUL stands the text, behind it the diff. The reader is no library of its own, so that this includes it.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "only the reader is tried")]
#[path = "../../crates/engine/src/steps/diff/mod.rs"]
mod diff;

fuzz_target!(|input: &[u8]| {
    let Ok(input) = std::str::from_utf8(input) else {
        return;
    };
    let Some((text, patch)) = input.split_once('\0') else {
        return;
    };
    match diff::parse(patch) {
        Ok(changes) => {
            assert!(!changes.is_empty() && changes.len() <= diff::MAX_FILES);
            for change in changes {
                match diff::apply(text.as_bytes(), &change.hunks) {
                    Ok(new) => assert!(new.len() <= text.len() + patch.len()),
                    Err(bad) => told(&bad.to_string()),
                }
            }
        }
        Err(bad) => told(&bad.to_string()),
    }
});

fn told(text: &str) {
    assert!(!text.is_empty() && text.len() < 8192, "{text:?}");
}
