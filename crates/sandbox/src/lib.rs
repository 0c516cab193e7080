//! Sandboxes: `native` creates Airlock's own, `container` asks Docker or Podman. This crate knows
//! nothing of secrets, stores or transports.

pub mod container;
mod exec;
mod file_locks;
pub mod native;
mod transparent_proxy;

pub use exec::ExecProcess;
pub use file_locks::{FileLocks, LockCount, MAX_FILE_LOCKS};
/// The static program that sandboxes start with, for images that want it as their first process.
pub use init::LAUNCHER as INIT_PROGRAM;
pub use init::use_file_rights_of;
pub use native::protect::WorkspaceCleanup;
pub use native::{
    DenialEvent, ProcessExit, Program, ReleaseOutcome, SandboxError, SandboxEvent,
    cgroup::ResourceCounters,
};
pub use transparent_proxy::{InterceptSockets, OriginalDestination};

use spec::{Barrier, Enforcer};
use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::TcpListener,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    pin::Pin,
    time::UNIX_EPOCH,
};
use tokio::sync::mpsc;

/// A boxed future, as the methods of a `dyn Sandbox` return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells the runs of one state folder from all others: run ids are unique only within one. The
/// inode alone is not enough: after the folder is removed, the next one may get it. On a file
/// system without birth times it has to do.
fn owner(state: &Path) -> Result<String, SandboxError> {
    let found = state.metadata().map_err(|source| SandboxError::Look {
        path: state.to_owned(),
        source,
    })?;
    let made = found
        .created()
        .ok()
        .and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let made = made.map_or(0, |since| since.as_nanos());
    Ok(format!("{:x}-{:x}-{made:x}", found.dev(), found.ino()))
}

/// A live sandbox of any backend. Its owner ends it and then releases it.
pub trait Sandbox: Debug + Send + Sync {
    /// The workspace, as a descriptor on the host.
    fn workspace(&self) -> BorrowedFd<'_>;
    /// Whether scratch space is full: no more bytes or no more files fit.
    fn scratch_is_full(&self) -> bool;
    /// The owner of files in a fresh workspace, as this process sees it; none if it is this
    /// process.
    fn owner_inside(&self) -> Option<(u32, u32)>;
    /// The listeners of its doors, in the order of the spec.
    fn take_doors(&mut self) -> Vec<TcpListener>;
    /// The sockets of transparent proxying, if the spec asked for it; once.
    fn take_intercept_sockets(&mut self) -> Option<InterceptSockets>;
    /// The master of its terminal, if the spec asked for one.
    fn take_terminal(&mut self) -> Option<OwnedFd>;
    /// What enforces each limit.
    fn enforcers(&self) -> BTreeMap<&'static str, Enforcer>;
    /// Notes for the result.
    fn notes(&self) -> Vec<String>;
    /// Paths of the workspace that the program can neither change nor remove; parents first.
    fn read_only_paths(&self) -> Vec<PathBuf>;
    /// The counters of its cgroup. CPU time includes what the denial watcher used.
    fn counters(&self) -> ResourceCounters;
    /// The counter of its file locks; none where no cgroup lists its processes.
    fn file_locks(&self) -> Option<FileLocks>;
    /// The barriers in force, concluded from the reported steps.
    fn barriers(&self) -> Vec<Barrier>;
    /// Runs the program with these standard streams.
    fn exec<'a>(
        &'a mut self,
        program: &'a Program,
        streams: [OwnedFd; 3],
    ) -> BoxFuture<'a, Result<(), SandboxError>>;
    /// Starts an exec, which the sandbox outlives; only in a session.
    fn start<'a>(
        &'a mut self,
        program: &'a Program,
        streams: [OwnedFd; 3],
    ) -> BoxFuture<'a, Result<ExecProcess, SandboxError>>;
    /// Opens another terminal of a session: its master. A program that is started with the other
    /// end on all three streams gets it as controlling terminal.
    fn open_terminal(&mut self) -> BoxFuture<'_, Result<OwnedFd, SandboxError>>;
    /// Stops every process of the sandbox.
    fn freeze(&mut self) -> BoxFuture<'_, Result<(), SandboxError>>;
    /// Continues them.
    fn thaw(&mut self) -> BoxFuture<'_, Result<(), SandboxError>>;
    /// The denials of the program, once it has started; none where they cannot be observed.
    fn take_denials(&mut self) -> Option<mpsc::Receiver<DenialEvent>>;
    /// Waits for the exit of the program or of the sandbox.
    fn progress(&mut self) -> BoxFuture<'_, SandboxEvent>;
    /// Signals the program.
    fn signal(&self, number: i32);
    /// Kills every process of the sandbox and waits until they are gone; `None` if that is not
    /// certain.
    fn end(&mut self) -> BoxFuture<'_, Option<ProcessExit>>;
    /// All that the program put into the artifacts folder was collected.
    fn mark_artifacts_kept(&mut self);

    /// Releases a mounted workspace; returns what was taken out of it, and notes.
    fn give_workspace_back(&mut self) -> BoxFuture<'_, WorkspaceCleanup>;
    /// Whether a mounted workspace is still to be released.
    fn holds_workspace(&self) -> bool;
    /// Releases what the sandbox holds on the host.
    fn release(self: Box<Self>) -> BoxFuture<'static, ReleaseOutcome>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_made_anew_in_the_same_place_is_another_owner() {
        let folder = std::env::temp_dir().join(format!("airlock-owner-{}", std::process::id()));
        let made = || {
            std::fs::create_dir(&folder).unwrap();
            let found = (owner(&folder).unwrap(), owner(&folder).unwrap());
            std::fs::remove_dir(&folder).unwrap();
            found
        };
        let (first, again) = made();
        assert_eq!(first, again);
        // Most file systems give a freed inode to the next file.
        assert_ne!(first, made().0);
    }
}
