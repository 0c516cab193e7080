//! Containment: the launcher, pid 1 of a sandbox, and the steps before a program runs.
//!
//! ```text
//! engine ──control──▶ launcher (pid 1 of its own pid namespace, holds the template root)
//!                        │ clone3, all namespaces
//!                        ├─▶ namespace pool   creates namespaces in advance, if asked; closes used ones
//!                        ├─▶ pid 1            of one sandbox: mounts, loopback, listeners; then only reaps
//!                        │ clone3 VM|VFORK, or clone3 for a prepared child
//!                        └─▶ program          joins pid 1's namespaces, drops all privileges, exec
//! ```
//!
//! When the launcher dies, the kernel kills every sandbox with it; when the engine dies, the
//! launcher reads the end of file of its control socket. Nothing else is needed to clean up
//! processes and mounts. The same program is also the first process of a container ([`entry`]). It
//! is single-threaded and not async. All `unsafe` that runs on the host is in `sys.rs`.

pub mod container_init;
mod container_network;
mod containment;
mod cpu_affinity;
pub mod entry;
mod exec;
pub mod file_lease;
mod landlock;
pub mod launcher;
mod namespace_pool;
mod netlink;
mod nftables;
mod pid1;
pub mod plan;
mod prepared_child;
pub mod protocol;
mod remount;
pub mod seccomp;
pub mod seccomp_notify;
pub mod step;
pub mod submounts;
mod sys;
mod template;
mod terminal;
mod transparent_proxy;
pub mod watched_syscalls;
pub mod wire;

/// The engine starts the launcher with this `argv[0]`. Under any other name the program is
/// [`entry`].
pub const LAUNCHER_NAME: &str = "airlock-launcher";

/// The static program, as bytes.
#[cfg(feature = "embed")]
pub static LAUNCHER: &[u8] = include_bytes!(env!("AIRLOCK_INIT_BIN"));

/// The Landlock ABI version of the kernel; 0 if it has none.
pub fn landlock_version() -> u32 {
    sys::landlock_version()
}

/// Gives this thread, for good, the file access rights of a user without root's capabilities. Other
/// threads keep theirs. For uid 0 that is an owner without the right to override permissions.
pub fn use_file_rights_of(uid: u32, gid: u32) -> std::io::Result<()> {
    use rustix::thread::CapabilitySet as Set;
    sys::leave_groups()?;
    sys::set_file_ids(uid, gid)?;
    let over_files =
        Set::CHOWN | Set::DAC_OVERRIDE | Set::DAC_READ_SEARCH | Set::FOWNER | Set::FSETID;
    // With another user's ids the kernel drops these itself, unless securebits keep them.
    let mut held = rustix::thread::capabilities(None)?;
    held.effective.remove(over_files);
    rustix::thread::set_capabilities(None, held)?;
    if rustix::thread::capabilities(None)?
        .effective
        .intersects(over_files)
    {
        Err(std::io::Error::from_raw_os_error(libc::EPERM))
    } else {
        Ok(())
    }
}

/// The first process of a container: for the container backend (`--box SOCKET`), or by environment
/// and arguments.
pub fn first(arguments: std::env::ArgsOs) -> i32 {
    let mut first_arguments: Vec<_> = std::env::args_os().skip(1).take(3).collect();
    match (first_arguments.len(), first_arguments.pop()) {
        (2, Some(socket)) if first_arguments[0] == "--box" => container_init::main(&socket),
        _ => entry::main(arguments),
    }
}
