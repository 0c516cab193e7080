//! Plans and messages, as the launcher reads them. No bytes make a decoder panic or take more memory than a
//! small multiple of their number, and what is accepted survives another round trip.
//!
//! The first byte says which type the rest is read as.

#![no_main]

use init::{
    plan::{ProgramPlan, SandboxPlan, TemplatePlan},
    protocol::{LauncherRequest, Report, SandboxCommand},
    wire::{self, Wire},
};
use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;
use std::fmt::Debug;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The worst is a protected name: five bytes of input are 24 in a vector, three times that while the vector moves
/// to one twice as large, and one byte for an empty path. 73 for 5.
const MOST_PER_BYTE: usize = 15;
/// The smallest vector has room for four, and the largest thing in one is smaller than this.
const MOST_AT_FIRST: usize = 4 * 128;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind {
        b't' => check::<TemplatePlan>(bytes),
        b'b' => check::<SandboxPlan>(bytes),
        b'p' => check::<ProgramPlan>(bytes),
        b'q' => check::<LauncherRequest>(bytes),
        b'c' => check::<SandboxCommand>(bytes),
        b'r' => check::<Report>(bytes),
        _ => {}
    }
});

fn check<T: Wire + PartialEq + Debug>(bytes: &[u8]) {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let decoded = wire::decode::<T>(bytes);
    let taken = MEMORY.peak_usage() - before;
    assert!(
        taken <= MOST_AT_FIRST + MOST_PER_BYTE * bytes.len(),
        "{taken} bytes for {}",
        bytes.len()
    );
    if let Ok(value) = decoded {
        let again = wire::encode(&value);
        assert_eq!(again.len(), bytes.len(), "bytes that say nothing");
        assert_eq!(wire::decode(&again), Ok(value));
    }
}
