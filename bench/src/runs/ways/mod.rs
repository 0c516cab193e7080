//! Ways to run a command, each ready to be measured: prepared off the clock, then taken many times.

pub(crate) mod cgroup;
pub(crate) mod docker;
pub(crate) mod image;
pub(crate) mod library;
pub(crate) mod pool;
mod program;
mod root;

pub(crate) use program::Program;

use crate::runs::{Options, rows::Kind};
use docker::Docker;
use library::Library;
use pool::Ahead;
use root::Root;
use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// Why a way cannot be taken, or was not this time; one line for the reader.
pub(crate) type Reason = String;

/// A way to run one command.
#[derive(Debug)]
pub(crate) enum Way {
    Program(Program),
    Docker(Docker),
    Library(Box<Library>),
    Cgroup(cgroup::Attach),
}

/// Prepares a way; what is not there on this host is the reason.
pub(crate) async fn prepare(
    kind: Kind,
    command: &[OsString],
    options: &Options,
) -> Result<Way, Reason> {
    let root = Root::of_host();
    let library = |library| Way::Library(Box::new(library));
    Ok(match kind {
        Kind::Spawn => Way::Program(program::spawn(command)),
        Kind::SpawnWithPipes => Way::Program(program::spawn(command).with_pipes()),
        Kind::Bwrap => Way::Program(program::bwrap(command, &root, options)?),
        Kind::Firejail => Way::Program(program::firejail(command, options)?),
        Kind::Crun | Kind::Runc => {
            Way::Program(program::bundle(kind.name(), command, &root, options)?)
        }
        Kind::Podman => Way::Program(program::podman(command, &root, options)?),
        Kind::Docker => Way::Docker(Docker::prepare(command, &root, options)?),
        Kind::DockerWithImage => {
            let file = image::make(command, options)?;
            Way::Docker(Docker::with_image(
                command,
                &file,
                &options.docker_socket,
                None,
            )?)
        }
        Kind::Cli => {
            let probe = Library::plain(command, Ahead::Nothing, options)?;
            Way::Program(program::cli(
                command,
                &probe.barriers_here().await?,
                options,
            ))
        }
        Kind::Bare => library(Library::plain(command, Ahead::Nothing, options)?),
        Kind::Cold => library(Library::plain(
            command,
            Ahead::Berths(options.pool),
            options,
        )?),
        Kind::ColdWithMounts => library(Library::with_mounts(
            command,
            Ahead::Berths(options.pool),
            options,
        )?),
        Kind::ColdWithFiles | Kind::ColdWithRepository | Kind::ColdWithManyFiles => {
            library(Library::with_files(
                command,
                kind.files().unwrap_or_default(),
                kind == Kind::ColdWithRepository,
                Ahead::Berths(options.pool),
                options,
            )?)
        }
        Kind::ColdWithImage => {
            let file = image::make(command, options)?;
            library(Library::with_image(
                command,
                &file,
                Ahead::Berths(options.pool),
                options,
            )?)
        }
        Kind::Warm | Kind::WarmSustained => library(Library::plain(
            command,
            Ahead::Parked(options.pool),
            options,
        )?),
        Kind::Attach => Way::Cgroup(cgroup::Attach::prepared()?),
        Kind::MakeAndAttach => Way::Cgroup(cgroup::Attach::made_each_time()?),
    })
}

impl Way {
    /// Runs the command once and says how long that took, if it really succeeded.
    pub(crate) async fn once(&mut self) -> Result<Duration, Reason> {
        match self {
            Way::Program(program) => program.once(),
            Way::Docker(docker) => docker.once(),
            Way::Library(library) => library.once().await,
            Way::Cgroup(attach) => attach.once(),
        }
    }

    /// Waits until nothing of this way goes on in the background, so that the next row is not disturbed by it.
    pub(crate) async fn settle(&self) {
        if let Way::Library(library) = self {
            library.settle().await;
        }
    }

    /// Barriers that this way lacks on this host, for those of ours.
    pub(crate) fn missing_barriers(&self) -> Option<Vec<&'static str>> {
        match self {
            Way::Library(library) => library.missing_barriers(),
            Way::Program(_) | Way::Docker(_) | Way::Cgroup(_) => None,
        }
    }

    /// Removes what was prepared outside of the scratch folder.
    pub(crate) async fn end(self) {
        match self {
            Way::Docker(docker) => docker.end(),
            Way::Cgroup(attach) => attach.end(),
            Way::Library(library) => library.end().await,
            Way::Program(_) => {}
        }
    }
}

/// A folder of its own for each use.
pub(crate) fn fresh_folder(options: &Options, name: &str) -> Result<PathBuf, Reason> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let folder = options
        .scratch
        .join(format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&folder)
        .map_err(|error| format!("cannot make `{}`: {error}", folder.display()))?;
    Ok(folder)
}
