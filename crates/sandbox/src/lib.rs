//! Boxes: what makes and holds them. `native` is Airlock's own, `container` asks Docker or Podman.
//! Knows nothing of secrets, stores or transports.

pub mod container;
mod exec;
mod file_locks;
pub mod native;
mod transparent_proxy;

pub use exec::ExecProcess;
pub use file_locks::{FileLocks, LockCount, MAX_FILE_LOCKS};
/// The static program that boxes start with, for images that want it as their first process.
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

/// An answer that takes a while.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What tells the runs of one state folder from all others: ids of runs are unique only within one. The place on disk
/// alone would not do: once the folder is gone, the next one made may well get its inode. Where the file system does
/// not know when a folder was made, the place has to.
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

/// A live box, whatever made it. Whoever has one ends it and then releases it.
pub trait Sandbox: Debug + Send + Sync {
    /// The workspace, as a handle of the host's.
    fn workspace(&self) -> BorrowedFd<'_>;
    /// Whether scratch space is full: nothing more could be written, or no more files made.
    fn scratch_is_full(&self) -> bool;
    /// ProgramIdentity owns what lies in a fresh workspace, as this process sees it; nobody in particular otherwise.
    fn owner_inside(&self) -> Option<(u32, u32)>;
    /// The listeners of its doors, in the order of the spec.
    fn take_doors(&mut self) -> Vec<TcpListener>;
    /// What arrives from programs that know of no door, if the spec asked for it; once.
    fn take_intercept_sockets(&mut self) -> Option<InterceptSockets>;
    /// Our end of its terminal, if the spec asked for one.
    fn take_terminal(&mut self) -> Option<OwnedFd>;
    /// What holds each limit.
    fn enforcers(&self) -> BTreeMap<&'static str, Enforcer>;
    /// What a reader of the result should know.
    fn notes(&self) -> Vec<String>;
    /// Paths of the workspace that the program can neither change nor remove; parents first.
    fn read_only_paths(&self) -> Vec<PathBuf>;
    /// What its cgroup counted so far; CPU time with what was used for looking at its calls.
    fn counters(&self) -> ResourceCounters;
    /// What counts its file locks; nothing where no cgroup says which processes are its own.
    fn file_locks(&self) -> Option<FileLocks>;
    /// The barriers that stand, by what the steps reported.
    fn barriers(&self) -> Vec<Barrier>;
    /// Runs a program with these standard streams.
    fn exec<'a>(
        &'a mut self,
        program: &'a Program,
        streams: [OwnedFd; 3],
    ) -> BoxFuture<'a, Result<(), SandboxError>>;
    /// Starts a further program, which the box outlives; only in a box whose spec says that it stays.
    fn start<'a>(
        &'a mut self,
        program: &'a Program,
        streams: [OwnedFd; 3],
    ) -> BoxFuture<'a, Result<ExecProcess, SandboxError>>;
    /// Opens another terminal in a box that stays: our end of it. Whoever is started with its other end on all three
    /// streams gets it as the controlling one.
    fn open_terminal(&mut self) -> BoxFuture<'_, Result<OwnedFd, SandboxError>>;
    /// Stops every process of the box where it is.
    fn freeze(&mut self) -> BoxFuture<'_, Result<(), SandboxError>>;
    /// Lets them go on.
    fn thaw(&mut self) -> BoxFuture<'_, Result<(), SandboxError>>;
    /// What the program is denied, once it has started; nothing where that cannot be known.
    fn take_denials(&mut self) -> Option<mpsc::Receiver<DenialEvent>>;
    /// Waits for the end of the program or of the box.
    fn progress(&mut self) -> BoxFuture<'_, SandboxEvent>;
    /// Sends a signal to the program.
    fn signal(&self, number: i32);
    /// Ends every process in the box and waits until they are gone; `None` if nobody could say so.
    fn end(&mut self) -> BoxFuture<'_, Option<ProcessExit>>;
    /// All that the program put into the folder for artifacts is kept.
    fn mark_artifacts_kept(&mut self);

    /// Gives a mounted workspace back; what was taken out of it, and what there is to say.
    fn give_workspace_back(&mut self) -> BoxFuture<'_, WorkspaceCleanup>;
    /// Whether a mounted workspace is still to be given back.
    fn holds_workspace(&self) -> bool;
    /// Gives back what the box held outside.
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
        // Most file systems give the inode just freed to the next.
        assert_ne!(first, made().0);
    }
}
