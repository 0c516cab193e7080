//! One static program whose arguments say what it is: the launcher of sandboxes, or the first
//! process of a container ([`init::entry`]).
//!
//! It skips the start-up of Rust's runtime (stack guard, thread name, signal stack), which would be
//! a tenth of the launcher's start time and is not used here.

#![no_main]

use std::ffi::{c_char, c_int};

// SAFETY: this is the entry that the C library calls, with its signature, and no other symbol has
// the name.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    let mut arguments = std::env::args_os();
    match arguments.next() {
        Some(name) if name == init::LAUNCHER_NAME => init::launcher::main(),
        _ => init::first(arguments),
    }
}
