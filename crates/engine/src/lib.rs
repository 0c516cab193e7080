//! The engine: it takes a checked [`spec::RunSpec`], provisions a sandbox with its doors and
//! workspace, runs the program and returns a [`spec::RunResult`]. Sessions, jobs of steps, backups
//! and usage build on it.
//!
//! ```no_run
//! use spec::{Policy, RunRequest};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let engine = engine::Engine::open(engine::Settings::new("/tmp/airlock-example"))?;
//!     let command = vec!["python3".into(), "-c".into(), "print(6 * 7)".into()];
//!     let spec = Policy::default().admit(RunRequest { command, ..RunRequest::default() })?;
//!     let result = engine.run(spec).await;
//!     println!("{:?}: {}", result.status, String::from_utf8_lossy(&result.stdout));
//!     Ok(())
//! }
//! ```

/// The library example in docs/library.md must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Readme;

mod artifacts;
pub mod backup;
mod capture;
mod contract;
pub mod control;
mod denials;
mod disk_space;
pub mod disk_usage;
mod doctor;
mod doors;
mod driver;
mod egress;
mod explain;
mod file_access;
mod file_locks;
pub mod files;
mod git;
mod outcome;
mod output_log;
mod path_guard;
mod pool;
mod provision;
mod record;
mod rootfs;
mod session;
mod shebang;
mod sparse;
mod stdio;
pub mod steps;
mod terminal;
pub mod tree;
mod unix_sockets;
pub mod usage;
mod webhook;
pub mod workspaces;

pub use crate::doors::{DoorSettings, ModelDoor};
pub use ::doors::MAX_BODY_BYTES;
pub use ::doors::budget::DailyBudget;
pub use ::doors::webhook::{
    DeliveryError, InvalidWebhookUrl, WebhookClient, WebhookClientSettings, WebhookTarget,
};
pub use doctor::{Check, CheckState};
pub use file_access::FileAccess;
pub use git::{BroughtCommits, KeptCommits};
pub use output_log::{OutputChunk, OutputLog};
pub use record::{SweepReport, fresh_id, now, now_us};
pub use sandbox::{
    INIT_PROGRAM,
    container::EngineSockets,
    native::{NativeBackend, PrespawnedLauncher, Step},
};
pub use session::{
    Exec, ExecResult, Session, SessionArtifacts, SessionEnd, SessionState, SessionStatus,
    StdinError, UnreadInput,
};
pub use spec::PoolSettings;
pub use terminal::{Terminal, TerminalWindow};
pub use webhook::OwnKey;

use record::Records;
use sandbox::{Program, container::ContainerBackend};
use spec::{ErrorInfo, Id, RunEvent, RunResult, RunSpec};
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
};
use tokio::{
    net::unix::pipe,
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};

/// A name for the sources of the engine and of the crates below it, from `build.rs`: two programs with the same name contain
/// the same engine.
pub const SOURCES: &str = env!("AIRLOCK_SOURCES");

/// The settings of an engine. The engine reads neither the environment nor the home folder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder for run records and artifacts. Created with mode 0700 if absent.
    pub state: PathBuf,
    /// Where artifacts are stored, how many are kept, and for how long.
    pub artifacts: store::ArtifactSettings,
    /// How many sandboxes and cgroups the pool prepares ahead of runs.
    pub pool: PoolSettings,
    /// The sockets on which container engines may listen.
    pub containers: EngineSockets,
    /// The settings with which doors are opened.
    pub doors: DoorSettings,
    /// Files that no run may see, such as the operator's configuration and key files. The state
    /// folder is always guarded.
    pub guarded: Vec<PathBuf>,
}

impl Settings {
    /// Default settings for a state folder.
    pub fn new(state: impl Into<PathBuf>) -> Settings {
        let state = state.into();
        let doors = DoorSettings::new(&state);
        let artifacts = store::ArtifactSettings::folder(state.join("artifacts"));
        Settings {
            state,
            artifacts,
            pool: PoolSettings::OFF,
            containers: EngineSockets::default(),
            doors,
            guarded: Vec::new(),
        }
    }

    /// Checks the host paths, inputs and secrets that a run names, before an engine creates its
    /// state folder.
    pub fn check(&self, spec: &RunSpec) -> Result<(), ErrorInfo> {
        path_guard::check(&self.state, &self.guarded, &spec.sandbox)?;
        provision::check_file_inputs(spec)?;
        provision::secret_variables(&self.doors.secrets, spec)?;
        rootfs::check_image_store(&self.state, spec)?;
        sandbox::native::look(&spec.sandbox).map_err(|error| error.info())
    }
}

/// Why an engine could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// What failed.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The cause.
    #[source]
    pub source: Option<std::io::Error>,
}

/// Runs programs in sandboxes. Cheap to clone; dropping the last clone ends its launchers and
/// sessions.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    /// Set to true by `close`. Dropped with the last clone, so that no session outlives the engine.
    closing: Arc<watch::Sender<bool>>,
}

#[derive(Debug)]
struct Inner {
    state: PathBuf,
    native: NativeBackend,
    containers: ContainerBackend,
    records: Records,
    artifacts: store::Artifacts,
    swept_at_opening: SweepReport,
    pools: pool::SandboxPool,
    /// Background tasks. Only [`Engine::close`] waits for them.
    background: std::sync::Mutex<JoinSet<()>>,
    doors: DoorSettings,
    guarded: Vec<PathBuf>,
    /// The disk budget of all output logs.
    log_budget: Arc<output_log::DiskBudget>,
}

impl Inner {
    /// Refuses a run that would expose Airlock's own files to the program, before anything is
    /// created for it.
    fn guard(&self, spec: &RunSpec) -> Result<(), ErrorInfo> {
        path_guard::check(&self.state, &self.guarded, &spec.sandbox)
    }

    /// Spawns a task that no run waits for.
    fn spawn_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while background.try_join_next().is_some() {}
        background.spawn(work);
    }
}

/// A run in progress.
///
/// Dropping it, or the future of [`Engine::run`], does not end the program: it runs on to its wall
/// time limit. Call [`Run::cancel`] first.
#[derive(Debug)]
pub struct Run {
    id: Id,
    events: mpsc::Receiver<RunEvent>,
    stdin: Option<pipe::Sender>,
    doors: Option<oneshot::Receiver<Vec<TcpListener>>>,
    terminal: Option<oneshot::Receiver<Terminal>>,
    cancel: watch::Sender<bool>,
    terminate: watch::Sender<Option<std::time::Duration>>,
    over: watch::Receiver<bool>,
    cpu_ms: Arc<AtomicU64>,
    blank: RunResult,
    driver: JoinHandle<RunResult>,
}

/// One line of the plan, for `--explain`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PlanLine {
    /// The step, e.g. `read-only root`.
    pub step: String,
    /// What exactly it will do.
    pub detail: String,
}

/// The capacity of the event channel. When it is full, the program's output blocks.
const EVENT_QUEUE_LENGTH: usize = 16;

impl Engine {
    /// Opens the state folder and sweeps what processes that are gone left there.
    pub fn open(settings: Settings) -> Result<Engine, EngineError> {
        let native = NativeBackend::new(settings.state.clone());
        Engine::with(settings, native)
    }

    /// Like `open`, with a launcher process that was spawned early.
    pub fn open_after(
        head_start: PrespawnedLauncher,
        settings: Settings,
    ) -> Result<Engine, EngineError> {
        let mut native = NativeBackend::new(settings.state.clone());
        native.use_prespawned_launcher(head_start);
        Engine::with(settings, native)
    }

    /// Opens an engine whose sandboxes lack a containment step. Control tests use it to show what
    /// the step prevents.
    pub fn dangerously_open_with(
        settings: Settings,
        change: impl FnOnce(&mut NativeBackend),
    ) -> Result<Engine, EngineError> {
        let mut native = NativeBackend::new(settings.state.clone());
        change(&mut native);
        Engine::with(settings, native)
    }

    fn with(settings: Settings, mut native: NativeBackend) -> Result<Engine, EngineError> {
        let Settings {
            state,
            artifacts,
            pool,
            containers,
            doors,
            guarded,
        } = settings;
        native.set_namespace_pool_size(pool::namespaces(&pool));
        native.hide(guarded.iter().cloned());
        let failed = |source| EngineError {
            message: format!("cannot use the state folder `{}`", state.display()),
            hint: "choose one that you may write with --state DIR".to_owned(),
            source: Some(source),
        };
        let records = Records::open(state.clone()).map_err(failed)?;
        let artifacts = store::Artifacts::open(artifacts).map_err(artifact_store_error)?;
        let containers = ContainerBackend::new(state.clone(), containers);
        let swept_at_opening = sweep(&state, &native, &containers, &records, &artifacts);
        let pools = pool::SandboxPool::new(pool);
        let background = std::sync::Mutex::default();
        let log_budget = output_log::DiskBudget::of(state.clone());
        Ok(Engine {
            inner: Arc::new(Inner {
                log_budget,
                state,
                native,
                containers,
                records,
                artifacts,
                swept_at_opening,
                pools,
                background,
                doors,
                guarded,
            }),
            closing: Arc::default(),
        })
    }

    /// A new output log for this owner. It keeps the newest `most` bytes of each stream; output
    /// beyond the memory limit goes to disk, within the budgets of the owner and the engine.
    pub fn output_log(&self, owner: Option<&Id>, most: u64) -> OutputLog {
        OutputLog::within(&self.inner.log_budget.owner(owner), most, &self.inner.state)
    }

    /// Starts a run; must be called within a tokio runtime.
    pub fn start(&self, spec: RunSpec) -> Run {
        let id = spec.run_id.clone().unwrap_or_else(record::fresh_id);
        self.start_as(id, spec)
    }

    /// Starts a run under an id that is known beforehand: the caller's, or a fresh one. A fresh id
    /// is unique, so its record needs no lock against a second run of that name.
    pub fn start_as(&self, id: Id, spec: RunSpec) -> Run {
        let (sender, events) = mpsc::channel(EVENT_QUEUE_LENGTH);
        let (cancel, cancelled) = watch::channel(false);
        let (terminate, terminated) = watch::channel(None);
        let (is_over, over) = watch::channel(false);
        let (doors_out, doors) = oneshot::channel();
        let (terminal_out, terminal) = spec.sandbox.tty.map(|_| oneshot::channel()).unzip();
        let (stdin, input) = match spec.stdin.then(stdio::input_pipe).transpose() {
            Ok(ends) => ends.map_or((None, Ok(None)), |(ours, theirs)| {
                (Some(ours), Ok(Some(theirs)))
            }),
            // The driver reports the error in the result.
            Err(error) => (None, Err(error)),
        };
        let blank = driver::blank_result(&id, &spec);
        let cpu_ms = Arc::<AtomicU64>::default();
        let task = driver::Driver {
            provisioner: provision::Provisioner {
                engine: self.inner.clone(),
                id: id.clone(),
                spec,
                cancelled,
                layer: None,
                artifacts_kept: false,
                git: None,
                own_mounts: Vec::new(),
            },
            events: sender,
            doors: Some(doors_out),
            terminal: terminal_out,
            terminated,
            over: is_over,
            cpu_ms: cpu_ms.clone(),
        };
        let driver = tokio::spawn(task.drive(input));
        Run {
            id,
            events,
            stdin,
            doors: Some(doors),
            terminal,
            cancel,
            terminate,
            over,
            cpu_ms,
            blank,
            driver,
        }
    }

    /// Starts a run and waits for its result. A run that could not start has a result as well.
    pub async fn run(&self, spec: RunSpec) -> RunResult {
        self.start(spec).finish().await
    }

    /// Fills the pool for runs of this kind and waits until it is full. Nothing is prepared for
    /// runs that cannot start or that a container engine executes.
    pub async fn warm(&self, spec: &RunSpec) {
        if self.inner.guard(spec).is_err() {
            return;
        }
        let mut spec = spec.clone();
        // The spec gets its root file system as in a run: pooled sandboxes have that root.
        if let Ok((rootfs::RootSource::Local | rootfs::RootSource::Image(_), _)) =
            rootfs::resolve(&self.inner, &mut spec).await
        {
            pool::warm(&self.inner, &spec.sandbox).await;
        }
    }

    /// Ends sessions and pooled sandboxes, and waits for the clean-up of finished runs. An engine
    /// that is only dropped leaves this to the next sweep.
    pub async fn close(self) {
        self.closing.send_replace(true);
        pool::close(&self.inner).await;
        loop {
            let mut background = std::mem::take(
                &mut *self
                    .inner
                    .background
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            if background.is_empty() {
                return;
            }
            while background.join_next().await.is_some() {}
        }
    }

    /// The plan of a run, step by step, without executing it.
    pub async fn explain(&self, spec: &RunSpec) -> Result<Vec<PlanLine>, ErrorInfo> {
        self.inner.guard(spec)?;
        let mut spec = spec.clone();
        let (root, _) = rootfs::resolve(&self.inner, &mut spec).await?;
        let provider = doors::check_grants(&self.inner, &spec).await?;
        artifacts::check_artifact_inputs(&self.inner, &spec).await?;
        let plan_lines = explain::plan_lines(&spec, provider.as_deref());
        let id = spec.run_id.clone().unwrap_or_else(record::fresh_id);
        let argv = spec.command.clone();
        let env = provision::environment(&id, &spec);
        let program = Program {
            argv,
            env,
            terminal: spec.sandbox.tty.is_some(),
            ..Program::default()
        };
        let lines = match &root {
            rootfs::RootSource::Engine(facts) => {
                self.inner
                    .containers
                    .explain(&spec.sandbox, facts, &program)
                    .await
            }
            _ => self.inner.native.explain(&id, &spec.sandbox, &program),
        };
        let lines = lines.map_err(|error| error.info())?.into_iter();
        let lines = lines.map(|line| PlanLine {
            step: line.step.to_owned(),
            detail: line.detail,
        });
        let secrets = spec.grants.secrets.iter().map(|(name, variable)| PlanLine {
            step: "secret".to_owned(),
            detail: format!(
                "`{name}` as {}, for the program to read",
                variable.as_os_str().display()
            ),
        });
        let layer = spec.sandbox.copy_on_write.then(|| {
            let (step, detail) = if spec.apply_changes {
                (
                    "staged workspace",
                    "the program works on a layer over the workspace's folder; what it changes is \
                     applied when it has ended",
                )
            } else {
                (
                    "copy on write",
                    "the program works on a layer over the workspace's folder, which stays as it is",
                )
            };
            PlanLine {
                step: step.to_owned(),
                detail: detail.to_owned(),
            }
        });
        let plan_lines = plan_lines.into_iter();
        Ok(plan_lines
            .chain(lines)
            .chain(layer)
            .chain(secrets)
            .collect())
    }

    /// Whether the changes that the program makes are applied to the workspace folder at the end of
    /// the run.
    pub fn applies_changes(&self, spec: &RunSpec) -> bool {
        let folder = spec.sandbox.workspace.as_deref();
        spec.apply_changes && folder.is_some_and(files::is_writable)
    }

    /// What this host can enforce. Runs a real sandbox to find out.
    pub async fn doctor(&self) -> Vec<Check> {
        doctor::examine(self).await
    }

    /// Removes what processes that are gone left in the state folder.
    pub fn sweep(&self) -> SweepReport {
        let Inner {
            state,
            native,
            containers,
            records,
            artifacts,
            ..
        } = &*self.inner;
        sweep(state, native, containers, records, artifacts)
    }

    /// Whether anything of this run may still exist. Its record stays until everything is removed.
    pub fn may_be_left(&self, run: &spec::Id) -> bool {
        self.inner.records.has(run)
    }

    /// What the sweep removed when this engine was opened.
    pub fn swept_at_opening(&self) -> &SweepReport {
        &self.inner.swept_at_opening
    }

    /// The commits of killed runs that are not imported into a repository yet.
    pub fn kept_commits(&self) -> Vec<KeptCommits> {
        git::kept(&self.inner.state)
    }

    /// Imports the kept commits of this run under `refs/airlock/`; none if there are none.
    /// `is_layer_kept` says whether the files that belong to them are still in a layer.
    pub async fn bring_commits(
        &self,
        run: &Id,
        is_layer_kept: bool,
    ) -> Result<Option<BroughtCommits>, ErrorInfo> {
        git::bring(&self.inner, run, is_layer_kept).await
    }

    /// Discards the kept commits of this run; returns whether there were any.
    pub fn discard_commits(&self, run: &Id) -> std::io::Result<bool> {
        git::discard(&self.inner.state, run)
    }

    /// The state folder.
    pub fn state_folder(&self) -> &Path {
        &self.inner.state
    }

    /// The folder of the images on this machine.
    pub fn images_folder(&self) -> PathBuf {
        self.inner.state.join("images")
    }

    /// The daily budget of a tenant and what is spent of it; none where no server owns the ledger.
    pub fn money_of_day(&self, tenant: &str) -> Option<DailyBudget> {
        self.inner.doors.day(tenant)
    }

    /// Stops all spending and all traffic of egress doors while the disk of the server is full.
    pub fn spend_nothing_while(&self, is_full: Arc<AtomicBool>) {
        self.inner.doors.spend_nothing_while(is_full);
    }

    /// Switches the server's ledger to the segment of this day.
    pub fn begin_day(&self, today: spec::Day) -> std::io::Result<()> {
        self.inner.doors.begin_day(&self.inner.state, today)
    }

    /// The bytes that an owner's artifacts take.
    pub async fn stored(&self, owner: &Id) -> std::io::Result<u64> {
        self.inner
            .artifacts
            .used_bytes(&store::ArtifactOwner::key(owner))
            .await
    }

    /// The bytes that the layers of an owner's workspaces take. Reads the disk if there is any
    /// layer at all.
    pub fn stored_layers(&self, owner: &Id) -> std::io::Result<u64> {
        workspaces::bytes_of_owner(&self.inner.state, owner.as_str()).map_err(std::io::Error::other)
    }

    /// Whether the disk of the state folder has so little space left that nothing new should start.
    pub fn is_nearly_full(&self) -> bool {
        disk_space::is_nearly_full(&self.inner.state)
    }

    /// The artifact store.
    pub fn artifacts(&self) -> &store::Artifacts {
        &self.inner.artifacts
    }
}

fn artifact_store_error(error: store::ArtifactError) -> EngineError {
    let hint = "look at [artifacts] in the configuration, and at --state DIR".to_owned();
    let source =
        std::error::Error::source(&error).map(|cause| std::io::Error::other(cause.to_string()));
    EngineError {
        message: error.to_string(),
        hint,
        source,
    }
}

fn sweep(
    state: &Path,
    native: &NativeBackend,
    containers: &ContainerBackend,
    records: &Records,
    artifacts: &store::Artifacts,
) -> SweepReport {
    let mut swept = records.sweep(native, containers);
    swept.problems.extend(artifacts.sweep());
    swept.problems.extend(workspaces::sweep(state));
    swept.problems.extend(steps::sweep(state));
    swept.problems.extend(git::sweep(state));
    doors::sweep(state);
    swept
}

impl Run {
    /// The run's id.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The next event, or none after the last. The program blocks when nobody takes its output.
    pub async fn next_event(&mut self) -> Option<RunEvent> {
        self.events.recv().await
    }

    /// The write end of the program's standard input, once, if the spec asked for it. Dropping it
    /// closes the stream.
    pub fn take_stdin(&mut self) -> Option<pipe::Sender> {
        self.stdin.take()
    }

    /// The run's terminal, once, as soon as the sandbox exists, if the spec asked for one.
    pub fn take_terminal(&mut self) -> Option<oneshot::Receiver<Terminal>> {
        self.terminal.take()
    }

    /// The listeners of the run's doors, once, as soon as the sandbox exists; none if it never did.
    /// Close them and every connection accepted on them when the run ends: they keep its network
    /// namespace alive.
    pub async fn take_doors(&mut self) -> Vec<TcpListener> {
        match self.doors.take() {
            Some(doors) => doors.await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Cancels the run: its whole process tree is gone within a second.
    pub fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Sends SIGTERM to the program, and ends the whole process tree after this grace. Of several
    /// graces the shortest counts; none exceeds the wall time of the run.
    pub fn terminate(&self, grace: std::time::Duration) {
        self.terminate
            .send_modify(|asked| *asked = Some(asked.map_or(grace, |before| before.min(grace))));
    }

    /// Becomes true, or loses its sender, once the sandbox is gone. From then on no output is added
    /// and no program waits for a reader.
    pub fn over(&self) -> watch::Receiver<bool> {
        self.over.clone()
    }

    /// CPU time in milliseconds of a run that has an owner, a few seconds old. The result has the
    /// exact number.
    pub fn cpu_ms(&self) -> Arc<AtomicU64> {
        self.cpu_ms.clone()
    }

    /// Waits for the result. Drops the events that were not taken.
    pub async fn finish(self) -> RunResult {
        let Run {
            events,
            stdin,
            driver,
            blank,
            ..
        } = self;
        drop((events, stdin));
        driver
            .await
            .unwrap_or_else(|_| driver::result_of_panic(blank))
    }
}
