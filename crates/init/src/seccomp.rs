//! Seccomp: the system call filter of a sandbox.
//!
//! ```text
//! policy (a table: an action per system call) ─▶ bpf (a program for the kernel) ─▶ installed by containment
//! ```

mod bpf;
mod policy;
#[cfg(test)]
mod tests;

pub use bpf::{ArgumentHalf, ArgumentTest, FilterAction, compile};
pub use policy::{fcntl_name, name, table};

use libc::sock_filter;

/// The filter of every sandbox.
pub fn program() -> Vec<sock_filter> {
    compile(&table(), &FilterAction::Errno(libc::ENOSYS as u16))
}

/// The same without a listener.
pub fn program_without_listener() -> Vec<sock_filter> {
    let table: Vec<_> = table()
        .into_iter()
        .map(FilterAction::without_listener)
        .collect();
    compile(&table, &FilterAction::Errno(libc::ENOSYS as u16))
}
