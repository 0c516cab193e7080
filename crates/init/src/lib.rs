//! Containment: the launcher, the first process of a box, and the steps before a program runs.
//!
//! ```text
//! engine ──control──▶ launcher (pid 1 of its own pid namespace, holds the template root)
//!                        │ clone3, all namespaces
//!                        ├─▶ steward   makes namespaces ahead, where asked to; clears used ones away
//!                        ├─▶ keeper    pid 1 of one box: mounts, loopback, listeners; then only reaps
//!                        │ clone3 VM|VFORK, or clone3 for one that stands by
//!                        └─▶ program   joins the keeper's namespaces, gives everything up, exec
//! ```
//!
//! When the launcher dies, the kernel ends every box with it; when the engine dies, the launcher sees
//! the end of its control socket. Nothing else is needed to clean up processes and mounts.
//! Single-threaded, no async; the only crate with `unsafe`, all of it in `sys.rs`.

mod affinity;
pub mod filter;
pub mod inside;
mod keeper;
pub mod launcher;
pub mod notify;
pub mod plan;
mod program;
pub mod protocol;
mod rules;
mod standby;
pub mod step;
mod steward;
mod sys;
mod template;
mod terminal;
pub mod watch;
pub mod wire;

/// The static launcher, as bytes.
#[cfg(feature = "embed")]
pub static LAUNCHER: &[u8] = include_bytes!(env!("AIRLOCK_INIT_BIN"));

/// Which version of Landlock the kernel has; 0 if none.
pub fn landlock_version() -> u32 {
    sys::landlock_version()
}

/// Entry of the binary. What it is, its name says; a container engine starts it with `--box SOCKET`.
pub fn main(count: std::ffi::c_int, arguments: *const *const std::ffi::c_char) -> ! {
    match &sys::arguments(count, arguments)[..] {
        [name, ..] if name.to_bytes() == b"airlock-launcher" => launcher::main(),
        [_, mode, socket] if mode.to_bytes() == b"--box" => inside::live(socket),
        _ => sys::exit(125),
    }
}
