//! From a checked spec to a box that stands, with its doors open and its inputs in place; and back. Runs and sessions
//! take the same way.

use crate::{
    Inner, Rights,
    doors::{self, Opened},
    files, git, guard,
    keep::Keeper,
    origin::{self, Origin},
    pool::{self, Made, Taken},
    record::Record,
    workspaces::{self, Hold},
};
use ::doors::{ledger::Whose, secrets::Secrets};
use sandbox::{Sandbox, SandboxError, TakenDown, container::ImageFacts};
use spec::{
    EnvName, ErrorCode, ErrorInfo, FileId, Id, InputSource, Mount, RunResult, RunSpec, SandboxSpec,
    WorkspaceChanges,
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

/// How long making a box may take; only a file system that does not answer takes this long.
pub(crate) const LONGEST_START: Duration = Duration::from_secs(30);

/// What Airlock itself puts into a folder of its own: a job, and the agent.
const MOST_GIVEN: u64 = 2 << 20;

/// The record of such a run stays: by it the sweep looks for what came of it.
const LEFT_TO_SWEEP: &str = "what the container engine still makes of it, `airlock sweep` removes";

/// What is to be made, and for whom.
pub(crate) struct Making {
    pub(crate) engine: Arc<Inner>,
    pub(crate) id: Id,
    pub(crate) spec: RunSpec,
    pub(crate) cancelled: watch::Receiver<bool>,
    /// What holds the changes of a workspace that is copied on writing, from the standing of the box on.
    pub(crate) layer: Option<Hold>,
    /// What stands for the repository of its workspace, likewise.
    pub(crate) git: Option<git::Hold>,
    /// Folders of Airlock's own that the box is shown, which no caller may ask for.
    pub(crate) own: Vec<Mount>,
}

/// A box that stands, with everything that is held for it.
pub(crate) struct Standing {
    pub(crate) origin: Origin,
    pub(crate) opened: Opened,
    pub(crate) records: Vec<Record>,
    pub(crate) sandbox: Box<dyn Sandbox>,
}

/// A box, and the records that hold what it has outside.
struct Berthed {
    records: Vec<Record>,
    sandbox: Box<dyn Sandbox>,
}

impl Making {
    /// Makes the box and opens its doors; whatever of it fails leaves nothing behind.
    pub(crate) async fn stand(&mut self, result: &mut RunResult) -> Result<Standing, ErrorInfo> {
        self.engine.guard(&self.spec)?;
        // A secret that is missing is no reason to have made anything.
        injected(&self.engine.doors.secrets, &self.spec)?;
        let mut cancelled = self.cancelled.clone();
        let (origin, notes) = tokio::select! {
            found = origin::find(&self.engine, &mut self.spec) => found?,
            () = until_cancelled(&mut cancelled) => return Err(cancellation()),
        };
        result.notes.extend(notes);
        result.notes.extend(guard::link_notes(&self.spec));
        result.notes.extend(guard::socket_notes(&self.spec.sandbox));
        // Of two runs with one id the second is refused, before it touches what the first one's doors have; an id that we
        // made is nobody else's.
        let named = self
            .spec
            .run_id
            .is_some()
            .then(|| self.record())
            .transpose()?;
        let opened = match self.lay_and_open(&mut result.notes).await {
            Ok(opened) => opened,
            Err(error) => {
                named
                    .into_iter()
                    .for_each(|record| close(record, &mut result.notes));
                return Err(error);
            }
        };
        let berthed = match &origin {
            Origin::Here | Origin::Stored(_) => self.berthed(named, result).await,
            Origin::Engine(facts) => self.contained(named, facts, result).await,
        };
        match berthed {
            Ok(Berthed { records, sandbox }) => Ok(Standing {
                origin,
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

    /// A git folder for a workspace that has a repository, a layer for one that is copied on writing, and the doors.
    async fn lay_and_open(&mut self, notes: &mut Vec<String>) -> Result<Opened, ErrorInfo> {
        self.shrink_to_what_is_writable(notes)?;
        git::look(&mut self.spec.sandbox, notes).await?;
        let state = &self.engine.state;
        let git = git::prepare(state, &self.id, &mut self.spec.sandbox, notes).await;
        self.git = git
            .map_err(|error| internal(format!("cannot make a git folder for the run: {error}")))?;
        self.layer =
            workspaces::live::prepare(state, &self.id, &mut self.spec, &self.cancelled).await?;
        notes.extend(self.layer.iter().flat_map(Hold::notes));
        for mount in &self.own {
            let shown = guard::add_own(&mut self.spec.sandbox, &mount.host);
            shown.map_err(|error| {
                internal(format!("cannot look at a folder of the job: {error}"))
            })?;
            self.spec.sandbox.mounts.push(mount.clone());
        }
        doors::open(&self.engine, &self.id, &mut self.spec).await
    }

    /// A folder that its owner cannot write is a read-only workspace.
    fn shrink_to_what_is_writable(&mut self, notes: &mut Vec<String>) -> Result<(), ErrorInfo> {
        let sandbox = &mut self.spec.sandbox;
        let Some(folder) = sandbox
            .workspace
            .as_ref()
            .filter(|_| !sandbox.copy_on_write)
        else {
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
        Ok(())
    }

    /// Whether what the program writes lands on the disk of the state folder.
    pub(crate) fn fills_state(&self) -> bool {
        self.layer.is_some() || self.git.is_some() || !self.own.is_empty()
    }

    /// The folders of Airlock's own that the program writes to, and what each may take: as much as its scratch space,
    /// beside what it is given there.
    pub(crate) fn own_folders(&self) -> (Vec<PathBuf>, u64) {
        let most = self.spec.sandbox.limits.disk.0.saturating_add(MOST_GIVEN);
        (
            self.own.iter().map(|mount| mount.host.clone()).collect(),
            most,
        )
    }

    /// Once the box is gone: says what was changed in a workspace that is copied on writing, and brings commits to the
    /// repository of one that is not.
    pub(crate) async fn settle_workspace(&mut self, ran: bool, result: &mut RunResult) {
        if let Some(layer) = self.layer.take() {
            let (changes, notes) = workspaces::live::settle(layer, ran).await;
            result.workspace = changes;
            result.notes.extend(notes);
        }
        if let Some(git) = self.git.take() {
            let (imports, notes) = git::settle(&self.engine, &self.id, git, ran).await;
            result.git = imports;
            result.notes.extend(notes);
        }
    }

    /// Serves at its doors and puts the inputs in; gives back the listeners that are not ours. After an error the box is
    /// still to be ended.
    pub(crate) async fn furnish(
        &self,
        sandbox: &mut dyn Sandbox,
        opened: &Opened,
        result: &mut RunResult,
    ) -> Result<Vec<TcpListener>, ErrorInfo> {
        let listeners = opened.serve(sandbox.take_doors(), sandbox.take_passing())?;
        result.enforced_by = sandbox.enforcers();
        result.notes.extend(sandbox.notes());
        let whose = Whose {
            run: self.id.as_str(),
            tenant: crate::doors::tenant(&self.spec),
        };
        opened.note_secrets(whose, &self.spec.grants.secrets)?;
        self.put_inputs(sandbox).await?;
        Ok(listeners)
    }

    /// What a reader should know of the secrets that programs were given.
    pub(crate) fn told_secrets(&self) -> impl Iterator<Item = String> {
        self.spec.grants.secrets.iter().map(|(name, variable)| {
            format!(
                "the secret `{name}` was injected as {}",
                variable.as_os_str().display()
            )
        })
    }

    /// A box for this run, made ahead or now.
    async fn berthed(
        &mut self,
        named: Option<Record>,
        result: &mut RunResult,
    ) -> Result<Berthed, ErrorInfo> {
        let mut records: Vec<_> = named.into_iter().collect();
        let taken = pool::take(&self.engine, &self.spec.sandbox);
        // What was made ahead has a record of its own.
        if taken.is_none() && records.is_empty() {
            records.push(self.record()?);
        }
        let berth = match taken {
            Some(Taken { record, made }) => {
                records.push(record);
                match made {
                    Made::Parked(sandbox) => return Ok(Berthed { records, sandbox }),
                    Made::Berth(berth) => Some(*berth),
                }
            }
            None => None,
        };
        let create = self
            .engine
            .native
            .create(&self.id, &self.spec.sandbox, berth);
        match tokio::time::timeout(LONGEST_START, create).await {
            Ok(Ok(sandbox)) => Ok(Berthed {
                records,
                sandbox: Box::new(sandbox),
            }),
            Ok(Err(error)) => {
                let abandoned = records
                    .into_iter()
                    .map(|record| record.abandon(&self.engine.native));
                abandoned.for_each(|done| note(done, &mut result.notes));
                Err(refused(&error, result))
            }
            Err(_) => Err(internal("the sandbox was not made in time".to_owned())),
        }
    }

    /// A box that a container engine makes. Its record says where, before there is anything.
    async fn contained(
        &mut self,
        named: Option<Record>,
        facts: &ImageFacts,
        result: &mut RunResult,
    ) -> Result<Berthed, ErrorInfo> {
        let (backend, containers) = (self.spec.sandbox.backend, &self.engine.containers);
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
            .note(&socket)
            .map_err(|error| of_record(&self.id, error))?;
        let ids = [
            ("io.airlock.task", self.spec.task_id.clone()),
            ("io.airlock.job", self.spec.job_id.clone()),
        ];
        let create = containers.create(&self.id, &self.spec.sandbox, facts, ids);
        let mut cancelled = self.cancelled.clone();
        let created = tokio::select! {
            created = tokio::time::timeout(LONGEST_START, create) => created,
            () = until_cancelled(&mut cancelled) => {
                result.notes.push(LEFT_TO_SWEEP.to_owned());
                return Err(cancellation());
            }
        };
        match created {
            Ok(Ok(sandbox)) => Ok(Berthed {
                records: vec![record],
                sandbox: Box::new(sandbox),
            }),
            Ok(Err(error)) => {
                let swept = record
                    .abandon_container(&self.engine.native, containers)
                    .await;
                note(swept, &mut result.notes);
                Err(refused(&error, result))
            }
            Err(_) => {
                result.notes.push(LEFT_TO_SWEEP.to_owned());
                Err(internal("the container was not made in time".to_owned()))
            }
        }
    }

    fn record(&self) -> Result<Record, ErrorInfo> {
        let taken =
            self.engine
                .records
                .take(&self.id, &self.engine.native, &self.engine.containers);
        taken.map_err(|error| of_record(&self.id, error))
    }

    /// Off the event loop, like the artifacts.
    async fn put_inputs(&self, sandbox: &dyn Sandbox) -> Result<(), ErrorInfo> {
        if self.spec.inputs.is_empty() {
            return Ok(());
        }
        let broken = |error: io::Error| {
            internal(format!("cannot put the inputs into the workspace: {error}"))
        };
        let workspace = sandbox.workspace().try_clone_to_owned().map_err(broken)?;
        let (keeper, inputs) = (
            Keeper::new(&self.engine, &self.id, &self.spec),
            self.spec.inputs.clone(),
        );
        let (owner, limit) = (sandbox.owner_inside(), self.spec.sandbox.limits.disk.0);
        let rights = Rights::of(&self.spec.sandbox, workspace.as_fd()).map_err(broken)?;
        let (mut cancelled, seen) = (self.cancelled.clone(), self.cancelled.clone());
        let sandbox_spec = self.spec.sandbox.clone();
        let put = move || {
            inputs.iter().try_for_each(|(name, source)| {
                let mut file = UntilCancelled {
                    source: open_input(&keeper, source, &sandbox_spec)?,
                    cancelled: &seen,
                };
                files::put_input(workspace.as_fd(), name, &mut file, owner, limit, &rights)
                    .map_err(|error| of_input(&error))
            })
        };
        tokio::select! {
            put = tokio::task::spawn_blocking(put) => put.map_err(|error| broken(error.into()))?,
            () = until_cancelled(&mut cancelled) => Err(cancellation()),
        }
    }
}

/// What the end of a mounted workspace brought, for its reader.
pub(crate) fn take_in(result: &mut RunResult, taken_down: TakenDown) {
    let TakenDown { held_back, notes } = taken_down;
    result.notes.extend(notes);
    if held_back.is_empty() {
        return;
    }
    let id = result.run_id.clone();
    result.notes.push(format!(
        "{} names were taken out of the workspace, because tools of the host would obey them or they lead out of it: \
         see them with `airlock workspace held {id}`",
        held_back.len()
    ));
    let changes = result.workspace.get_or_insert(WorkspaceChanges {
        id,
        added: 0,
        changed: 0,
        removed: 0,
        held_back: Vec::new(),
    });
    changes.held_back.extend(held_back);
}

/// A source that cannot be read any more once the run is cancelled.
struct UntilCancelled<'a> {
    source: Box<dyn io::Read>,
    cancelled: &'a watch::Receiver<bool>,
}

impl io::Read for UntilCancelled<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match *self.cancelled.borrow() {
            true => Err(io::Error::other("cancelled")),
            false => self.source.read(buffer),
        }
    }
}

/// The variables that stored secrets become. Kept out of the spec, which is shown and written down.
pub(crate) fn injected(
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

/// The variables of a run: the caller's, and those that Airlock sets.
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
    keeper: &Keeper,
    source: &InputSource,
    spec: &SandboxSpec,
) -> Result<Box<dyn io::Read>, ErrorInfo> {
    match source {
        InputSource::File(path) => Ok(Box::new(open_file(path, spec)?)),
        InputSource::Given(bytes) => Ok(Box::new(io::Cursor::new(bytes.clone()))),
        InputSource::Artifact { name, version } => Ok(Box::new(keeper.open(name, *version)?)),
    }
}

fn of_input(error: &files::InputError) -> ErrorInfo {
    let cause = std::error::Error::source(error)
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    let (code, hint) = match error {
        files::InputError::Protected { .. } => (
            ErrorCode::PolicyDenied,
            "give it another name inside, or --allow-protected NAME",
        ),
        files::InputError::InTheWay { .. } => (
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

/// Whether the files that a run wants can be read; artifacts are looked up when it starts.
pub(crate) fn look_at_inputs(spec: &RunSpec) -> Result<(), ErrorInfo> {
    spec.inputs.iter().try_for_each(|(_, source)| match source {
        InputSource::File(path) => open_file(path, &spec.sandbox).map(drop),
        InputSource::Artifact { .. } | InputSource::Given(_) => Ok(()),
    })
}

/// Opens the regular file that was looked at before, if one was.
fn open_pinned(path: &Path, spec: &SandboxSpec) -> io::Result<File> {
    let file = open_regular(path)?;
    let found = file.metadata()?;
    let (device, inode) = (found.dev(), found.ino());
    let pinned = spec.pinned.get(path);
    if pinned.is_some_and(|pinned| *pinned != FileId { device, inode }) {
        return Err(io::Error::other("it was replaced meanwhile"));
    }
    Ok(file)
}

/// Opens without waiting for the other end of a FIFO, and takes nothing but a regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
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

fn of_record(id: &Id, error: io::Error) -> ErrorInfo {
    match error.kind() {
        io::ErrorKind::AlreadyExists => ErrorInfo {
            code: ErrorCode::InvalidSpec,
            message: format!("a run called `{id}` is under way"),
            hint: Some("choose another --run-id, or leave it away".to_owned()),
        },
        _ => internal(format!("cannot write the record of the run: {error}")),
    }
}

/// Gives back what a box that has ended held outside; what there is to say of it.
pub(crate) async fn leave(sandbox: Box<dyn Sandbox>, records: Vec<Record>) -> Vec<String> {
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
    note(record.close(), notes);
}

fn note(removed: io::Result<()>, notes: &mut Vec<String>) {
    if let Err(error) = removed {
        notes.push(format!(
            "the record of the run could not be removed: {error}"
        ));
    }
}
