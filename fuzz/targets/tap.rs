//! Answers of a provider, or of whoever stands in for it. Where they are cut changes nothing, bytes pass as they are,
//! and what is kept is bounded, however long they are.
//!
//! The first three bytes say which operation it is, how the answer comes, and where it is cut.

#![no_main]

use bytes::Bytes;
use doors::{
    TokenUsage,
    dialect::{ModelOperation, Tap, ResponseFormat},
};
use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const OPERATIONS: [ModelOperation; 8] = [
    ModelOperation::Chat,
    ModelOperation::Responses,
    ModelOperation::Embeddings,
    ModelOperation::Messages,
    ModelOperation::Generate,
    ModelOperation::GeminiEmbed,
    ModelOperation::OllamaChat,
    ModelOperation::Models,
];

/// A line of 64 KiB at most is held back, in a buffer that may have grown to twice that, and copied once.
const MOST: usize = 4 * (64 << 10);

#[derive(Debug, PartialEq, Eq)]
struct Learnt {
    usage: Option<TokenUsage>,
    is_final: bool,
    is_complete: bool,
    least: u64,
    bytes: u64,
    passed: Vec<u8>,
}

fuzz_target!(|input: &[u8]| {
    let [operation, kind, cut, text @ ..] = input else {
        return;
    };
    let operation = OPERATIONS[usize::from(*operation) % OPERATIONS.len()];
    let strip = kind & 4 != 0 || *kind == 3;
    let kind = [
        ResponseFormat::Whole,
        ResponseFormat::Events,
        ResponseFormat::Lines,
        ResponseFormat::Events,
    ][usize::from(*kind) % 4];
    let new = || Tap::new(operation, kind, strip);
    let whole = learn(new(), text, text.len().max(1));
    assert_eq!(
        whole,
        learn(new(), text, usize::from(*cut).max(1)),
        "where it is cut changes nothing"
    );
    assert_eq!(whole, learn(new(), text, 1), "byte by byte");
    if !strip || operation != ModelOperation::Chat {
        assert_eq!(whole.passed, text, "bytes pass as they are");
    }
    keeps_little(new(), Bytes::copy_from_slice(text));
});

fn learn(mut tap: Tap, text: &[u8], size: usize) -> Learnt {
    let mut passed = Vec::new();
    for piece in text.chunks(size) {
        passed.extend_from_slice(&tap.feed(Bytes::copy_from_slice(piece)));
    }
    passed.extend_from_slice(&tap.rest());
    Learnt {
        usage: tap.usage(),
        is_final: tap.is_final(),
        is_complete: tap.is_complete(),
        least: tap.least_output(),
        bytes: tap.output_bytes(),
        passed,
    }
}

/// The same again and again, without an end.
fn keeps_little(mut tap: Tap, text: Bytes) {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let mut least = 0;
    for _ in 0..64 {
        drop(tap.feed(text.clone()));
        assert!(
            tap.least_output() >= least,
            "what was written stays written"
        );
        least = tap.least_output();
    }
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= MOST + 4 * text.len(), "{taken} bytes");
}
