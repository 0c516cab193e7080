//! Provisions a sandbox: from a checked spec to a created sandbox with root file system, workspace,
//! open doors and inputs; and releases all of it at the end. Runs and sessions share this path.

use crate::{
    FileAccess, Inner,
    artifacts::ArtifactCollector,
    doors::{self, OpenDoors},
    files, git, path_guard,
    pool::{self, PoolItem, PoolItemKind},
    record::Record,
    rootfs::{self, RootSource},
    workspaces::{self, LayerHandle, lifecycle::ApplyOptions},
};
use ::doors::{ledger::RunIdentity, secrets::Secrets};
use sandbox::{Sandbox, SandboxError, WorkspaceCleanup, container::EngineImage};
use spec::{
    EnvName, ErrorCode, ErrorInfo, FileId, Id, InputSource, Mount, RunResult, RunSpec, SandboxSpec,
    Status, WorkspaceChanges, WorkspaceMode,
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    net::TcpListener,
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// The timeout for creating a sandbox. Only a file system that does not answer takes this long.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The size of the files that Airlock itself puts into a job folder: the job and the agent.
const JOB_FILES_BYTES: u64 = 2 << 20;

/// The exit status of `airlock run` if the program succeeded, but not all of its changes could be
/// applied.
const WORKSPACE_CONFLICT_STATUS: u8 = 123;

/// The record of such a run stays, so that the sweep finds the container.
const LEFT_TO_SWEEP_NOTE: &str =
    "what the container engine still makes of it, `airlock sweep` removes";

/// How the programs of a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutionEnd {
    /// No program was started.
    NeverRan,
    /// They ended by themselves or were stopped.
    Ended,
    /// The sandbox died while they ran.
    Lost,
}

/// The inputs and the state of provisioning one sandbox.
pub(crate) struct Provisioner {
    pub(crate) engine: Arc<Inner>,
    pub(crate) id: Id,
    pub(crate) spec: RunSpec,
    pub(crate) cancelled: watch::Receiver<bool>,
    /// The layer of a copy-on-write workspace, from provisioning on.
    pub(crate) layer: Option<LayerHandle>,
    /// Whether everything that the program left in `.artifacts` was stored.
    pub(crate) artifacts_kept: bool,
    /// The git folders that replace the workspace's repository inside, from provisioning on.
    pub(crate) git: Option<git::ShadowRepository>,
    /// Airlock's own folders that are mounted into the sandbox. Callers cannot request them.
    pub(crate) own_mounts: Vec<Mount>,
}

/// A created sandbox and everything that is held for it.
pub(crate) struct Provisioned {
    pub(crate) root: RootSource,
    pub(crate) opened: OpenDoors,
    pub(crate) records: Vec<Record>,
    pub(crate) sandbox: Box<dyn Sandbox>,
}

/// A sandbox and the records of its resources on the host.
struct CreatedSandbox {
    records: Vec<Record>,
    sandbox: Box<dyn Sandbox>,
}

impl Provisioner {
    /// Creates the sandbox and opens its doors. On failure nothing is left behind.
    pub(crate) async fn provision(
        &mut self,
        result: &mut RunResult,
    ) -> Result<Provisioned, ErrorInfo> {
        self.engine.guard(&self.spec)?;
        // A missing secret is reported before anything is created.
        secret_variables(&self.engine.doors.secrets, &self.spec)?;
        let mut cancelled = self.cancelled.clone();
        let (root, notes) = tokio::select! {
            found = rootfs::resolve(&self.engine, &mut self.spec) => found?,
            () = until_cancelled(&mut cancelled) => return Err(cancellation()),
        };
        result.notes.extend(notes);
        result.notes.extend(path_guard::link_notes(&self.spec));
        result
            .notes
            .extend(path_guard::socket_notes(&self.spec.sandbox));
        // A second run with the same id is refused before it touches the door files of the first. A
        // generated id is unique.
        let named = self
            .spec
            .run_id
            .is_some()
            .then(|| self.record())
            .transpose()?;
        let opened = match self.open_workspace_and_doors(&mut result.notes).await {
            Ok(opened) => opened,
            Err(error) => {
                named
                    .into_iter()
                    .for_each(|record| close(record, &mut result.notes));
                return Err(error);
            }
        };
        let created = match &root {
            RootSource::Local | RootSource::Image(_) => self.create_native(named, result).await,
            RootSource::Engine(facts) => self.create_container(named, facts, result).await,
        };
        match created {
            Ok(CreatedSandbox { records, sandbox }) => Ok(Provisioned {
                root,
                opened,
                records,
                sandbox,
            }),
            Err(error) => {
                opened.close(result).await;
                Err(error)
            }
        }
    }

    /// Prepares the git folder of a workspace with a repository, the layer of a copy-on-write
    /// workspace, and the doors.
    async fn open_workspace_and_doors(
        &mut self,
        notes: &mut Vec<String>,
    ) -> Result<OpenDoors, ErrorInfo> {
        self.restrict_to_writable(notes)?;
        git::protect_repository_paths(&mut self.spec.sandbox, notes).await?;
        let state = &self.engine.state;
        let git = git::prepare(state, &self.id, &mut self.spec.sandbox, notes).await;
        self.git = git
            .map_err(|error| internal(format!("cannot make a git folder for the run: {error}")))?;
        self.layer =
            workspaces::lifecycle::prepare(state, &self.id, &mut self.spec, &self.cancelled)
                .await?;
        notes.extend(self.layer.iter().flat_map(LayerHandle::notes));
        for mount in &self.own_mounts {
            let shown = path_guard::allow_own_path(&mut self.spec.sandbox, &mount.host);
            shown.map_err(|error| {
                internal(format!("cannot look at a folder of the job: {error}"))
            })?;
            self.spec.sandbox.mounts.push(mount.clone());
        }
        doors::open(&self.engine, &self.id, &mut self.spec).await
    }

    /// A folder that its owner cannot write becomes a read-only workspace, unless its changes go to
    /// a layer.
    fn restrict_to_writable(&mut self, notes: &mut Vec<String>) -> Result<(), ErrorInfo> {
        let reaches_folder = !self.spec.sandbox.copy_on_write || self.spec.apply_changes;
        let sandbox = &mut self.spec.sandbox;
        let Some(folder) = sandbox.workspace.as_ref().filter(|_| reaches_folder) else {
            return Ok(());
        };
        if sandbox.read_only_workspace || files::is_writable(folder) {
            return Ok(());
        }
        if let Some((name, _)) = self.spec.inputs.first() {
            return Err(ErrorInfo {
                code: ErrorCode::InvalidSpec,
                message: format!(
                    "the input `{}` cannot be put into a folder that cannot be written",
                    name.as_path().to_string_lossy().escape_debug()
                ),
                hint: Some("--copy-on-write gives the program a copy of the folder".to_owned()),
            });
        }
        notes.push("the workspace cannot be written, so it is read-only inside".to_owned());
        sandbox.read_only_workspace = true;
        sandbox.copy_on_write = false;
        self.spec.apply_changes = false;
        Ok(())
    }

    /// Whether the program's writes land on the disk of the state folder.
    pub(crate) fn fills_state(&self) -> bool {
        self.layer.is_some() || self.git.is_some() || !self.own_mounts.is_empty()
    }

    /// Airlock's own folders that the program can write, and the byte limit of each: its scratch
    /// limit plus the files that it is given there.
    pub(crate) fn own_mount_limits(&self) -> (Vec<PathBuf>, u64) {
        let most = self
            .spec
            .sandbox
            .limits
            .disk
            .0
            .saturating_add(JOB_FILES_BYTES);
        (
            self.own_mounts
                .iter()
                .map(|mount| mount.host.clone())
                .collect(),
            most,
        )
    }

    /// Reports, after the sandbox is gone, what changed in a workspace with a layer, applies the
    /// changes if the workspace is staged and the program was not lost, and imports the program's
    /// commits into the host repository.
    pub(crate) async fn finish_workspace(&mut self, end: ExecutionEnd, result: &mut RunResult) {
        let ran = end != ExecutionEnd::NeverRan;
        let mut applied_paths = None;
        let mut is_kept = false;
        if let Some(layer) = self.layer.take() {
            let mode = if self.spec.apply_changes {
                WorkspaceMode::Staged
            } else {
                WorkspaceMode::CopyOnWrite
            };
            // A lost program may have stopped halfway through its changes: the user decides about
            // them.
            let applies = self.spec.apply_changes && end == ExecutionEnd::Ended;
            let apply = applies.then(|| ApplyOptions {
                artifacts_kept: self.artifacts_kept,
                protected: self.spec.sandbox.protected.clone(),
            });
            let outcome = workspaces::lifecycle::finish_layer(layer, ran, apply, mode).await;
            result.workspace = outcome.changes;
            result.notes.extend(outcome.notes);
            if let Some(error) = outcome.error {
                note_conflict(result, error);
            }
            applied_paths = outcome.applied_paths;
            is_kept = outcome.is_kept;
        }
        if let Some(git) = self.git.take() {
            let applied_check = applied_paths.map(|known| {
                move |paths: &[PathBuf]| {
                    Ok(known
                        .applied_among(paths)
                        .is_superset(&paths.iter().cloned().collect()))
                }
            });
            let files = match &applied_check {
                Some(known) => git::FilesLocation::Applied(known),
                None if is_kept => git::FilesLocation::Kept,
                None => git::FilesLocation::Live,
            };
            let (imports, notes) =
                git::import_commits(&self.engine, &self.id, git, ran, files).await;
            if let Some(changes) = &mut result.workspace {
                changes.commits = imports.iter().flat_map(|it| it.commits.clone()).collect();
                workspaces::note_commits(&self.engine.state, &self.id, &changes.commits);
            }
            result.git = imports;
            result.notes.extend(notes);
        }
    }

    /// Serves the doors and puts the inputs in place; returns the listeners that are not doors.
    /// After an error the caller must still end the sandbox.
    pub(crate) async fn start_doors_and_inputs(
        &self,
        sandbox: &mut dyn Sandbox,
        opened: &OpenDoors,
        result: &mut RunResult,
    ) -> Result<Vec<TcpListener>, ErrorInfo> {
        let listeners = opened.serve(sandbox.take_doors(), sandbox.take_intercept_sockets())?;
        result.enforced_by = sandbox.enforcers();
        result.notes.extend(sandbox.notes());
        if let Some(git) = &self.git {
            let excluded = git.exclude(&sandbox.read_only_paths());
            excluded.map_err(|error| internal(format!("cannot write `info/exclude`: {error}")))?;
        }
        let whose = RunIdentity {
            run: self.id.as_str(),
            tenant: crate::doors::tenant(&self.spec),
        };
        opened.note_secrets(whose, &self.spec.grants.secrets)?;
        self.put_inputs(sandbox).await?;
        Ok(listeners)
    }

    /// One note for each secret that was injected.
    pub(crate) fn secret_notes(&self) -> impl Iterator<Item = String> {
        self.spec.grants.secrets.iter().map(|(name, variable)| {
            format!(
                "the secret `{name}` was injected as {}",
                variable.as_os_str().display()
            )
        })
    }

    /// A native sandbox for this run: from the pool, or created now.
    async fn create_native(
        &mut self,
        named: Option<Record>,
        result: &mut RunResult,
    ) -> Result<CreatedSandbox, ErrorInfo> {
        let mut records: Vec<_> = named.into_iter().collect();
        let taken = pool::take(&self.engine, &self.spec.sandbox);
        // A pool item has a record of its own.
        if taken.is_none() && records.is_empty() {
            records.push(self.record()?);
        }
        let reservation = match taken {
            Some(PoolItem { record, made }) => {
                records.push(record);
                match made {
                    PoolItemKind::Warm(sandbox) => return Ok(CreatedSandbox { records, sandbox }),
                    PoolItemKind::Cgroup(reservation) => Some(*reservation),
                }
            }
            None => None,
        };
        let create = self
            .engine
            .native
            .create(&self.id, &self.spec.sandbox, reservation);
        match tokio::time::timeout(START_TIMEOUT, create).await {
            Ok(Ok(sandbox)) => Ok(CreatedSandbox {
                records,
                sandbox: Box::new(sandbox),
            }),
            Ok(Err(error)) => {
                let abandoned = records
                    .into_iter()
                    .map(|record| record.abandon(&self.engine.native));
                abandoned.for_each(|done| note_record(done, &mut result.notes));
                Err(refused(&error, result))
            }
            Err(_) => Err(internal("the sandbox was not made in time".to_owned())),
        }
    }

    /// A sandbox in a container engine. The record names the engine's socket before the container
    /// is created.
    async fn create_container(
        &mut self,
        named: Option<Record>,
        facts: &EngineImage,
        result: &mut RunResult,
    ) -> Result<CreatedSandbox, ErrorInfo> {
        let backend = self.spec.sandbox.backend;
        let containers = &self.engine.containers;
        let record = match named {
            Some(record) => record,
            None => self.record()?,
        };
        let (name, socket) = match containers.identify(backend).await {
            Ok(identified) => identified,
            Err(error) => {
                close(record, &mut result.notes);
                return Err(refused(&error, result));
            }
        };
        result.backend = name;
        record
            .write_socket(&socket)
            .map_err(|error| record_error(&self.id, error))?;
        let ids = [
            ("io.airlock.task", self.spec.task_id.clone()),
            ("io.airlock.job", self.spec.job_id.clone()),
        ];
        let create = containers.create(&self.id, &self.spec.sandbox, facts, ids);
        let mut cancelled = self.cancelled.clone();
        let created = tokio::select! {
            created = tokio::time::timeout(START_TIMEOUT, create) => created,
            () = until_cancelled(&mut cancelled) => {
                result.notes.push(LEFT_TO_SWEEP_NOTE.to_owned());
                return Err(cancellation());
            }
        };
        match created {
            Ok(Ok(sandbox)) => Ok(CreatedSandbox {
                records: vec![record],
                sandbox: Box::new(sandbox),
            }),
            Ok(Err(error)) => {
                let swept = record
                    .abandon_container(&self.engine.native, containers)
                    .await;
                note_record(swept, &mut result.notes);
                Err(refused(&error, result))
            }
            Err(_) => {
                result.notes.push(LEFT_TO_SWEEP_NOTE.to_owned());
                Err(internal("the container was not made in time".to_owned()))
            }
        }
    }

    fn record(&self) -> Result<Record, ErrorInfo> {
        let taken =
            self.engine
                .records
                .take(&self.id, &self.engine.native, &self.engine.containers);
        taken.map_err(|error| record_error(&self.id, error))
    }

    /// Runs on a blocking thread, like the collection of artifacts.
    async fn put_inputs(&self, sandbox: &dyn Sandbox) -> Result<(), ErrorInfo> {
        if self.spec.inputs.is_empty() {
            return Ok(());
        }
        let broken = |error: io::Error| {
            internal(format!("cannot put the inputs into the workspace: {error}"))
        };
        let workspace = sandbox.workspace().try_clone_to_owned().map_err(broken)?;
        let collector = ArtifactCollector::new(&self.engine, &self.id, &self.spec);
        let inputs = self.spec.inputs.clone();
        let owner = sandbox.owner_inside();
        let limit = self.spec.sandbox.workspace_bytes();
        let rights = FileAccess::of(&self.spec.sandbox, workspace.as_fd()).map_err(broken)?;
        let rights = rights.keeping(self.spec.apply_changes);
        let mut cancelled = self.cancelled.clone();
        let seen = self.cancelled.clone();
        let sandbox_spec = self.spec.sandbox.clone();
        let put = move || {
            inputs.iter().try_for_each(|(name, source)| {
                let mut file = UntilCancelled {
                    source: open_input(&collector, source, &sandbox_spec)?,
                    cancelled: &seen,
                };
                files::put_input(workspace.as_fd(), name, &mut file, owner, limit, &rights)
                    .map_err(|error| input_error(&error))
            })
        };
        tokio::select! {
            put = tokio::task::spawn_blocking(put) => put.map_err(|error| broken(error.into()))?,
            () = until_cancelled(&mut cancelled) => Err(cancellation()),
        }
    }
}

/// A run whose changes could not all be applied does not succeed.
fn note_conflict(result: &mut RunResult, error: ErrorInfo) {
    if result.status == Status::Succeeded {
        result.exit_status = WORKSPACE_CONFLICT_STATUS;
    }
    match &result.error {
        None => result.error = Some(error),
        Some(_) => result.notes.push(error.message),
    }
}

/// Records what was held back from a mounted workspace at its end.
pub(crate) fn note_held_back(result: &mut RunResult, taken_down: WorkspaceCleanup) {
    let WorkspaceCleanup {
        held_back,
        held_as,
        notes,
    } = taken_down;
    result.notes.extend(notes);
    if held_back.is_empty() {
        return;
    }
    let id = result.run_id.clone();
    let held_as = held_as.unwrap_or_else(|| id.to_string());
    result.notes.push(format!(
        "{} names were taken out of the workspace, because tools of the host would obey them or they lead out of it: \
         see them with `airlock workspace held {held_as}`",
        held_back.len()
    ));
    let changes = result
        .workspace
        .get_or_insert_with(|| WorkspaceChanges::none(id, WorkspaceMode::Live));
    changes.hold_back(held_back);
}

/// A reader that fails once the run is cancelled.
struct UntilCancelled<'a> {
    source: Box<dyn io::Read>,
    cancelled: &'a watch::Receiver<bool>,
}

impl io::Read for UntilCancelled<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if *self.cancelled.borrow() {
            Err(io::Error::other("cancelled"))
        } else {
            self.source.read(buffer)
        }
    }
}

/// The environment variables of stored secrets. They are not part of the spec, which is displayed
/// and stored.
pub(crate) fn secret_variables(
    secrets: &Secrets,
    spec: &RunSpec,
) -> Result<Vec<(OsString, OsString)>, ErrorInfo> {
    let bad = |message: String, hint: String| ErrorInfo {
        code: ErrorCode::InvalidSpec,
        message,
        hint: Some(hint),
    };
    let one = |(name, variable): &(String, EnvName)| {
        let value = secrets
            .stored(name)
            .map_err(|error| bad(error.message, error.hint))?;
        if value.expose().contains(&0) {
            let message = format!("the secret `{name}` has a NUL byte, which no variable can hold");
            return Err(bad(
                message,
                format!("set it anew: airlock secrets set {name}"),
            ));
        }
        Ok((
            variable.as_os_str().to_owned(),
            OsStr::from_bytes(value.expose()).to_owned(),
        ))
    };
    spec.grants.secrets.iter().map(one).collect()
}

pub(crate) async fn until_cancelled(cancelled: &mut watch::Receiver<bool>) {
    // The sender lives in `Run`; a caller who dropped it did not cancel.
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The environment of a program: the caller's variables and those that Airlock sets.
pub(crate) fn environment(id: &Id, spec: &RunSpec) -> BTreeMap<OsString, OsString> {
    let caller = spec
        .sandbox
        .env
        .iter()
        .map(|(name, value)| (name.as_os_str().to_owned(), value.clone()));
    let mut env = spec.sandbox.image_env.clone();
    env.extend(caller);
    let path = spec.sandbox.image_env.get(OsStr::new("PATH")).cloned();
    let path = path.unwrap_or_else(|| spec::DEFAULT_PATH.into());
    let fixed = [
        ("AIRLOCK_RUN_ID", id.as_str()),
        ("AIRLOCK_WORKSPACE", spec::WORKSPACE),
        ("CYNODE_ARTIFACTS_DIR", "/workspace/.artifacts"),
        ("CYNODE_WORKSPACE_DIR", spec::WORKSPACE),
        ("HOME", spec::HOME),
        ("RUN_ID", id.as_str()),
        ("TMPDIR", "/tmp"),
    ];
    let known = [
        ("CYNODE_TASK_ID", &spec.task_id),
        ("CYNODE_JOB_ID", &spec.job_id),
    ];
    let known = known
        .into_iter()
        .filter_map(|(name, id)| id.as_ref().map(|id| (name, id.as_str())));
    let known = known.chain(
        spec.traceparent
            .as_deref()
            .map(|trace| ("TRACEPARENT", trace)),
    );
    env.extend(
        fixed
            .into_iter()
            .chain(known)
            .map(|(name, value)| (name.into(), value.into())),
    );
    env.insert("PATH".into(), path);
    env
}

fn open_input(
    collector: &ArtifactCollector,
    source: &InputSource,
    spec: &SandboxSpec,
) -> Result<Box<dyn io::Read>, ErrorInfo> {
    match source {
        InputSource::File(path) => Ok(Box::new(open_file(path, spec)?)),
        InputSource::Given(bytes) => Ok(Box::new(io::Cursor::new(bytes.clone()))),
        InputSource::Artifact { name, version } => Ok(Box::new(collector.open(name, *version)?)),
    }
}

fn input_error(error: &files::InputError) -> ErrorInfo {
    let cause = std::error::Error::source(error)
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    let (code, hint) = match error {
        files::InputError::Protected { .. } => (
            ErrorCode::PolicyDenied,
            "give it another name inside, or --allow-protected NAME",
        ),
        files::InputError::Obstacle { .. } => (
            ErrorCode::InvalidSpec,
            "give it another name inside; --copy-on-write leaves the folder as it is",
        ),
        _ => (
            ErrorCode::InvalidSpec,
            "check the file, its name inside, and --disk",
        ),
    };
    ErrorInfo {
        code,
        message: format!("{error}{cause}"),
        hint: Some(hint.to_owned()),
    }
}

fn open_file(path: &Path, spec: &SandboxSpec) -> Result<File, ErrorInfo> {
    open_pinned(path, spec).map_err(|error| ErrorInfo {
        code: ErrorCode::InvalidSpec,
        message: format!("cannot read the input `{}`: {error}", path.display()),
        hint: Some("check that it is a file and that you may read it".to_owned()),
    })
}

/// Checks that the input files of a run can be read. Artifact inputs are looked up at the start.
pub(crate) fn check_file_inputs(spec: &RunSpec) -> Result<(), ErrorInfo> {
    spec.inputs.iter().try_for_each(|(_, source)| match source {
        InputSource::File(path) => open_file(path, &spec.sandbox).map(drop),
        InputSource::Artifact { .. } | InputSource::Given(_) => Ok(()),
    })
}

/// Opens a regular file, and checks that it is the file that was admitted, if one was pinned.
fn open_pinned(path: &Path, spec: &SandboxSpec) -> io::Result<File> {
    let file = open_regular(path)?;
    let found = file.metadata()?;
    let device = found.dev();
    let inode = found.ino();
    let pinned = spec.pinned.get(path);
    if pinned.is_some_and(|pinned| *pinned != FileId { device, inode }) {
        return Err(io::Error::other("it was replaced meanwhile"));
    }
    Ok(file)
}

/// Opens a regular file, with O_NONBLOCK so that a FIFO does not block.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

pub(crate) fn refused(error: &SandboxError, result: &mut RunResult) -> ErrorInfo {
    result.exit_status = error.exit_status();
    error.info()
}

pub(crate) fn internal(message: String) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Internal,
        message,
        hint: Some("`airlock doctor` may know why".to_owned()),
    }
}

pub(crate) fn cancellation() -> ErrorInfo {
    let hint = Some("start it again when you want it".to_owned());
    ErrorInfo {
        code: ErrorCode::Cancelled,
        message: "cancelled".to_owned(),
        hint,
    }
}

fn record_error(id: &Id, error: io::Error) -> ErrorInfo {
    match error.kind() {
        io::ErrorKind::AlreadyExists => ErrorInfo {
            code: ErrorCode::InvalidSpec,
            message: format!("a run called `{id}` is under way"),
            hint: Some("choose another --run-id, or leave it away".to_owned()),
        },
        _ => internal(format!("cannot write the record of the run: {error}")),
    }
}

/// Releases the host resources of a sandbox that has ended; returns notes.
pub(crate) async fn release_sandbox(
    sandbox: Box<dyn Sandbox>,
    records: Vec<Record>,
) -> Vec<String> {
    let released = sandbox.release().await;
    let mut notes = released.notes;
    if !released.held_back.is_empty() {
        let count = released.held_back.len();
        notes.push(format!(
            "{count} names were taken out of the workspace: `airlock workspace held` shows them"
        ));
    }
    if !released.left_over {
        records
            .into_iter()
            .for_each(|record| close(record, &mut notes));
    }
    notes
}

pub(crate) fn close(record: Record, notes: &mut Vec<String>) {
    note_record(record.close(), notes);
}

fn note_record(removed: io::Result<()>, notes: &mut Vec<String>) {
    if let Err(error) = removed {
        notes.push(format!(
            "the record of the run could not be removed: {error}"
        ));
    }
}
