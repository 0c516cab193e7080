//! Carries out runs: one run from a checked [`spec::RunSpec`] to a [`spec::RunResult`].
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

/// What the README shows of this library must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub mod backup;
mod capture;
mod contract;
pub mod control;
mod courier;
mod denials;
mod doctor;
mod doors;
mod driver;
mod egress;
mod feed;
pub mod files;
mod git;
mod guard;
mod interpreter;
mod keep;
mod making;
mod origin;
mod pool;
mod record;
mod rights;
mod room;
mod session;
mod sparse;
pub mod steps;
mod streams;
mod terminal;
pub mod tree;
mod unix_sockets;
pub mod usage;
mod verdict;
pub mod weight;
pub mod workspaces;

pub use crate::doors::{DoorSettings, ModelDoor};
pub use ::doors::courier::{BadReceiver, Courier, CourierSettings, Receiver, Undelivered};
pub use ::doors::till::Day;
pub use courier::OwnKey;
pub use doctor::{Check, CheckState};
pub use feed::{Feed, Piece};
pub use record::{Swept, fresh_id, now, now_us};
pub use rights::Rights;
pub use sandbox::{
    FIRST_PROCESS,
    container::Hosts,
    native::{HeadStart, Native, Step},
};
pub use session::{
    Exec, ExecResult, NotTyped, Session, SessionEnd, SessionKept, SessionState, SessionStatus,
    Unread,
};
pub use spec::Pool;
pub use terminal::{Terminal, Window};

use record::Records;
use sandbox::{Program, container::Containers};
use spec::{ErrorInfo, Event, Id, RunResult, RunSpec};
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, atomic::AtomicU64},
};
use tokio::{
    net::unix::pipe,
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};

/// What an engine is given; it reads neither environment nor home.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder for run records and artifacts. Made if absent, mode 0700.
    pub state: PathBuf,
    /// Where artifacts are kept, how many, and for how long.
    pub artifacts: store::ArtifactSettings,
    /// What is made ahead of runs.
    pub pool: Pool,
    /// Where container engines may listen.
    pub containers: Hosts,
    /// What doors are opened with.
    pub doors: DoorSettings,
    /// Files that no run may be shown, such as the operator's own and those with keys; the state folder always is one.
    pub guarded: Vec<PathBuf>,
}

impl Settings {
    /// A state folder, and defaults.
    pub fn new(state: impl Into<PathBuf>) -> Settings {
        let state = state.into();
        let doors = DoorSettings::new(&state);
        let artifacts = store::ArtifactSettings::folder(state.join("artifacts"));
        Settings {
            state,
            artifacts,
            pool: Pool::OFF,
            containers: Hosts::default(),
            doors,
            guarded: Vec::new(),
        }
    }

    /// Looks at what a run names on this host, before an engine makes its state folder for it.
    pub fn look(&self, spec: &RunSpec) -> Result<(), ErrorInfo> {
        guard::check(&self.state, &self.guarded, &spec.sandbox)?;
        making::look_at_inputs(spec)?;
        making::injected(&self.doors.secrets, spec)?;
        origin::look(&self.state, spec)?;
        sandbox::native::look(&spec.sandbox).map_err(|error| error.info())
    }
}

/// Why an engine cannot be had.
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

/// Carries out runs. Cheap to clone; the last clone ends its launchers and its sessions.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    /// Told when it closes, and gone with the last clone: no session outlives that.
    closing: Arc<watch::Sender<bool>>,
}

#[derive(Debug)]
struct Inner {
    state: PathBuf,
    native: Native,
    containers: Containers,
    records: Records,
    artifacts: store::Artifacts,
    swept_at_opening: Swept,
    pools: pool::Pools,
    /// Work that nobody waits for but [`Engine::close`].
    behind: std::sync::Mutex<JoinSet<()>>,
    doors: DoorSettings,
    guarded: Vec<PathBuf>,
    /// What output may have on the disk.
    feeds: Arc<feed::Disk>,
}

impl Inner {
    /// Refuses a run that would be shown what Airlock itself lives by, before anything is made for it.
    fn guard(&self, spec: &RunSpec) -> Result<(), ErrorInfo> {
        guard::check(&self.state, &self.guarded, &spec.sandbox)
    }

    /// Has something done that no run waits for.
    fn behind(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        while behind.try_join_next().is_some() {}
        behind.spawn(work);
    }
}

/// One run under way.
#[derive(Debug)]
pub struct Run {
    id: Id,
    events: mpsc::Receiver<Event>,
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

/// How many events may wait for a reader before the program has to.
const MOST_WAITING_EVENTS: usize = 16;

impl Engine {
    /// Opens the state folder and sweeps what dead owners left there.
    pub fn open(settings: Settings) -> Result<Engine, EngineError> {
        let native = Native::new(settings.state.clone());
        Engine::with(settings, native)
    }

    /// The same, with the process of its first launcher already on its way.
    pub fn open_after(begun: HeadStart, settings: Settings) -> Result<Engine, EngineError> {
        let mut native = Native::new(settings.state.clone());
        native.use_head_start(begun);
        Engine::with(settings, native)
    }

    /// An engine whose sandboxes lack a step, so that a control can show what it is for.
    pub fn dangerously_open_with(
        settings: Settings,
        change: impl FnOnce(&mut Native),
    ) -> Result<Engine, EngineError> {
        let mut native = Native::new(settings.state.clone());
        change(&mut native);
        Engine::with(settings, native)
    }

    fn with(settings: Settings, mut native: Native) -> Result<Engine, EngineError> {
        let Settings {
            state,
            artifacts,
            pool,
            containers,
            doors,
            guarded,
        } = settings;
        native.keep_namespaces_ahead(pool::namespaces(&pool));
        native.hide(guarded.iter().cloned());
        let failed = |source| EngineError {
            message: format!("cannot use the state folder `{}`", state.display()),
            hint: "choose one that you may write with --state DIR".to_owned(),
            source: Some(source),
        };
        let records = Records::open(state.clone()).map_err(failed)?;
        let artifacts = store::Artifacts::open(artifacts).map_err(of_artifacts)?;
        let containers = Containers::new(state.clone(), containers);
        let swept_at_opening = sweep(&state, &native, &containers, &records, &artifacts);
        let (pools, behind) = (pool::Pools::new(pool), std::sync::Mutex::default());
        let feeds = feed::Disk::of(state.clone());
        Ok(Engine {
            inner: Arc::new(Inner {
                feeds,
                state,
                native,
                containers,
                records,
                artifacts,
                swept_at_opening,
                pools,
                behind,
                doors,
                guarded,
            }),
            closing: Arc::default(),
        })
    }

    /// Where output of this owner's is kept: the newest `most` bytes of each stream, what is more than little on the
    /// disk, within what his output and everybody's may have there.
    pub fn feed(&self, owner: Option<&Id>, most: u64) -> Feed {
        Feed::within(&self.inner.feeds.owner(owner), most, &self.inner.state)
    }

    /// Starts a run; must be called within a tokio runtime.
    pub fn start(&self, spec: RunSpec) -> Run {
        let id = spec.run_id.clone().unwrap_or_else(record::fresh_id);
        self.start_as(id, spec)
    }

    /// The same under an identifier that is known before: the one that the caller chose, or a fresh one. What is fresh
    /// is nobody else's, so that nothing has to be kept from a second run of that name.
    pub fn start_as(&self, id: Id, spec: RunSpec) -> Run {
        let (sender, events) = mpsc::channel(MOST_WAITING_EVENTS);
        let (cancel, cancelled) = watch::channel(false);
        let (terminate, terminated) = watch::channel(None);
        let (is_over, over) = watch::channel(false);
        let (doors_out, doors) = oneshot::channel();
        let (terminal_out, terminal) = spec.sandbox.tty.map(|_| oneshot::channel()).unzip();
        let (stdin, input) = match spec.stdin.then(streams::input_pipe).transpose() {
            Ok(ends) => ends.map_or((None, Ok(None)), |(ours, theirs)| {
                (Some(ours), Ok(Some(theirs)))
            }),
            // The driver says so in the result.
            Err(error) => (None, Err(error)),
        };
        let (blank, cpu_ms) = (driver::blank(&id, &spec), Arc::<AtomicU64>::default());
        let task = driver::Driver {
            making: making::Making {
                engine: self.inner.clone(),
                id: id.clone(),
                spec,
                cancelled,
                layer: None,
                git: None,
                own: Vec::new(),
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

    /// Starts a run and waits for its result. A run that could not start has a result, too.
    pub async fn run(&self, spec: RunSpec) -> RunResult {
        self.start(spec).finish().await
    }

    /// Makes ready for runs of this kind as the pool allows, and waits until that is done. For a run that could not
    /// start, or that a container engine carries out, nothing can be made ahead.
    pub async fn warm(&self, spec: &RunSpec) {
        if self.inner.guard(spec).is_err() {
            return;
        }
        let mut spec = spec.clone();
        // As the run itself will: what is made ahead has the root that it will have.
        if let Ok((origin::Origin::Here | origin::Origin::Stored(_), _)) =
            origin::find(&self.inner, &mut spec).await
        {
            pool::warm(&self.inner, &spec.sandbox).await;
        }
    }

    /// Ends sessions and what was made ahead, and waits for the clean-up behind finished runs. An engine that is merely dropped
    /// leaves that to the next sweep.
    pub async fn close(self) {
        self.closing.send_replace(true);
        pool::close(&self.inner).await;
        loop {
            let mut behind = std::mem::take(
                &mut *self
                    .inner
                    .behind
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            if behind.is_empty() {
                return;
            }
            while behind.join_next().await.is_some() {}
        }
    }

    /// What a run would do, step by step, without doing it.
    pub async fn explain(&self, spec: &RunSpec) -> Result<Vec<PlanLine>, ErrorInfo> {
        self.inner.guard(spec)?;
        let mut spec = spec.clone();
        let (origin, _) = origin::find(&self.inner, &mut spec).await?;
        let id = spec.run_id.clone().unwrap_or_else(record::fresh_id);
        let (argv, env) = (spec.command.clone(), making::environment(&id, &spec));
        let program = Program {
            argv,
            env,
            terminal: spec.sandbox.tty.is_some(),
            ..Program::default()
        };
        let lines = match &origin {
            origin::Origin::Engine(facts) => {
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
        let layer = spec.sandbox.copy_on_write.then(|| PlanLine {
            step: "copy on write".to_owned(),
            detail: "the program gets a copy of the workspace's folder, which stays as it is"
                .to_owned(),
        });
        Ok(lines.chain(layer).chain(secrets).collect())
    }

    /// What this host can enforce. Makes a real sandbox to know.
    pub async fn doctor(&self) -> Vec<Check> {
        doctor::examine(self).await
    }

    /// Removes what dead owners left.
    pub fn sweep(&self) -> Swept {
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

    /// Whether something of this run may still be there: its record stays until nothing is.
    pub fn may_be_left(&self, run: &spec::Id) -> bool {
        self.inner.records.has(run)
    }

    /// What was removed when this engine was opened.
    pub fn swept_at_opening(&self) -> &Swept {
        &self.inner.swept_at_opening
    }

    /// The folder that everything is kept in.
    pub fn state_folder(&self) -> &Path {
        &self.inner.state
    }

    /// Where the images of this machine lie.
    pub fn images_folder(&self) -> PathBuf {
        self.inner.state.join("images")
    }

    /// How it stands with the money of a tenant's day; none where no server owns the ledger.
    pub fn money_of_day(&self, tenant: &str) -> Option<Day> {
        self.inner.doors.day(tenant)
    }

    /// Writes what runs of a server spend from now on to the ledger of this day.
    pub fn begin_day(&self, today: spec::Day) -> std::io::Result<()> {
        self.inner.doors.begin_day(&self.inner.state, today)
    }

    /// Bytes that the artifacts of an owner take.
    pub async fn stored(&self, owner: &Id) -> std::io::Result<u64> {
        self.inner.artifacts.held(&store::Owner::key(owner)).await
    }

    /// Bytes that the layers of his workspaces take. Reads the disk, as long as there are layers of anybody.
    pub fn stored_layers(&self, owner: &Id) -> std::io::Result<u64> {
        workspaces::taken(&self.inner.state, owner.as_str()).map_err(std::io::Error::other)
    }

    /// Whether the disk of the state folder has so little left that nothing new should begin.
    pub fn is_nearly_full(&self) -> bool {
        room::is_nearly_full(&self.inner.state)
    }

    /// The artifacts kept on this machine.
    pub fn artifacts(&self) -> &store::Artifacts {
        &self.inner.artifacts
    }
}

fn of_artifacts(error: store::StoreError) -> EngineError {
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
    native: &Native,
    containers: &Containers,
    records: &Records,
    artifacts: &store::Artifacts,
) -> Swept {
    let mut swept = records.sweep(native, containers);
    swept.problems.extend(artifacts.sweep());
    swept.problems.extend(workspaces::sweep(state));
    swept.problems.extend(steps::sweep(state));
    swept.problems.extend(git::sweep(state));
    doors::sweep(state);
    swept
}

impl Run {
    /// Its identifier.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The next event, or none after the last. A program waits when nobody takes its output.
    pub async fn next_event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The program's standard input, once, if the spec asked for it. Dropping it closes it.
    pub fn take_stdin(&mut self) -> Option<pipe::Sender> {
        self.stdin.take()
    }

    /// Its terminal, once, as soon as the box stands, if the spec asked for one.
    pub fn take_terminal(&mut self) -> Option<oneshot::Receiver<Terminal>> {
        self.terminal.take()
    }

    /// The listeners of its doors, once, as soon as the box stands; none if it never did. Close them, and every
    /// connection accepted on them, when the run ends: they keep its network namespace alive.
    pub async fn take_doors(&mut self) -> Vec<TcpListener> {
        match self.doors.take() {
            Some(doors) => doors.await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Asks for the end: the whole tree is gone within a second.
    pub fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Asks the program to end by itself (SIGTERM), and ends the whole tree after this grace. Of several graces the
    /// shortest counts; none goes beyond the time that the run has.
    pub fn terminate(&self, grace: std::time::Duration) {
        self.terminate
            .send_modify(|asked| *asked = Some(asked.map_or(grace, |before| before.min(grace))));
    }

    /// Becomes true, or loses its sender, once the box is gone: what there is of output then is all there will be, and
    /// no program waits any more for whoever takes it.
    pub fn over(&self) -> watch::Receiver<bool> {
        self.over.clone()
    }

    /// Milliseconds of CPU time that a run of somebody's has used, as of a few seconds ago; the result says it exactly.
    pub fn cpu_ms(&self) -> Arc<AtomicU64> {
        self.cpu_ms.clone()
    }

    /// Waits for the result; events not yet taken are dropped.
    pub async fn finish(self) -> RunResult {
        let Run {
            events,
            stdin,
            driver,
            blank,
            ..
        } = self;
        drop((events, stdin));
        driver.await.unwrap_or_else(|_| driver::broken(blank))
    }
}
