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
//! The same program is also the first process of a container ([`entry`]).
//! Single-threaded, no async; the only crate with `unsafe` that runs on the host, all of it in `sys.rs`.

mod affinity;
mod container;
pub mod entry;
pub mod filter;
mod further;
pub mod inside;
mod keeper;
pub mod launcher;
pub mod lease;
mod netlink;
mod network;
pub mod notify;
pub mod plan;
mod program;
pub mod protocol;
mod redirect;
mod remount;
mod rules;
mod standby;
pub mod step;
mod steward;
pub mod submounts;
mod sys;
mod template;
mod terminal;
pub mod watch;
pub mod wire;

/// What the engine calls the launcher in `argv[0]`. Under any other name the program is [`entry`].
pub const LAUNCHER_NAME: &str = "airlock-launcher";

/// The static program, as bytes.
#[cfg(feature = "embed")]
pub static LAUNCHER: &[u8] = include_bytes!(env!("AIRLOCK_INIT_BIN"));

/// Which version of Landlock the kernel has; 0 if none.
pub fn landlock_version() -> u32 {
    sys::landlock_version()
}

/// Leaves this thread, for good, with the rights that a user has in files, and none of root's. Other threads keep theirs.
/// Root himself is such a user: owner of what is his, and a stranger to what others closed.
pub fn act_in_files_as(uid: u32, gid: u32) -> std::io::Result<()> {
    use rustix::thread::CapabilitySet as Set;
    sys::leave_groups()?;
    sys::set_file_ids(uid, gid)?;
    let over_files =
        Set::CHOWN | Set::DAC_OVERRIDE | Set::DAC_READ_SEARCH | Set::FOWNER | Set::FSETID;
    // With another user's ids the kernel takes these itself, unless the process was told to keep them.
    let mut held = rustix::thread::capabilities(None)?;
    held.effective.remove(over_files);
    rustix::thread::set_capabilities(None, held)?;
    match rustix::thread::capabilities(None)?
        .effective
        .intersects(over_files)
    {
        true => Err(std::io::Error::from_raw_os_error(libc::EPERM)),
        false => Ok(()),
    }
}

/// The first process of a container: for a backend of ours (`--box SOCKET`), or by its own orders.
pub fn first(arguments: std::env::ArgsOs) -> i32 {
    let mut ahead: Vec<_> = std::env::args_os().skip(1).take(3).collect();
    match (ahead.len(), ahead.pop()) {
        (2, Some(socket)) if ahead[0] == "--box" => inside::main(&socket),
        _ => entry::main(arguments),
    }
}
