//! The launcher, started by the engine with its control socket as standard input; and, by another name, the first
//! process of a container.
//!
//! Without the start-up of Rust's own runtime (a stack guard, a name for the thread, a signal stack), which would be
//! a tenth of the time that the launcher takes to begin, and of which it uses nothing.

#![no_main]

use std::ffi::{c_char, c_int};

// SAFETY: it is the entry that the C library calls, with its signature, and no other symbol has the name.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    init::main(count, arguments)
}
