//! One static program, which is told by its arguments what it is: the launcher of boxes, or the first process of a
//! container ([`init::entry`]).
//!
//! Without the start-up of Rust's own runtime (a stack guard, a name for the thread, a signal stack), which would be
//! a tenth of the time that the launcher takes to begin, and of which nobody here uses anything.

#![no_main]

use std::ffi::{c_char, c_int};

// SAFETY: it is the entry that the C library calls, with its signature, and no other symbol has the name.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    let mut arguments = std::env::args_os();
    match arguments.next() {
        Some(name) if name == init::LAUNCHER_NAME => init::launcher::main(),
        _ => init::first(arguments),
    }
}
