//! A session: a sandbox that outlives its programs, owned by a task.
//!
//! ```text
//! open ─ sandbox, doors, inputs ─ ready ◀─▶ paused ─┬─ asked ────┐
//!                                   │               ├─ idle      │
//!                              programs, each       ├─ lifetime  ├─ sandbox ended ─ programs told
//!                              with its own task    ├─ limit     │    ─ doors closed ─ released
//!                                                   └─ lost ─────┘
//! ```

mod actor;
mod exec;
mod fork;
mod orphan_pipes;

pub use exec::{Exec, ExecResult, StdinError, UnreadInput};

use crate::{
    Engine, FileAccess,
    artifacts::ArtifactCollector,
    files::{CollectLimits, SkippedFile},
    outcome::StopReason,
    output_log::LogBudget,
    provision::{Provisioner, internal},
    record,
    tree::Tree,
};
use actor::SessionCommand;
use orphan_pipes::OrphanPipes;
use sandbox::ResourceCounters;
use spec::{
    ArtifactRef, Barrier, Denial, ErrorCode, ErrorInfo, ExecRequest, Id, LearnedRule, LimitName,
    Mount, SessionSpec, Timestamp, Usage, WorkspaceChanges, WorkspacePath,
};
use std::{
    collections::BTreeSet,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot, watch};

/// The most programs that run at the same time.
const MAX_RUNNING: usize = 32;
/// The most ended programs that are kept; the oldest are forgotten.
const MAX_ENDED: usize = 64;
/// The disk budget for the output of all programs.
const MAX_OUTPUT_BYTES: u64 = 256 << 20;
/// The capacity of the session's command queue.
const COMMAND_QUEUE_LENGTH: usize = 64;

/// A session. Cheap to clone; all clones are the same. Its sandbox ends on request, by a timeout or
/// limit, or with the engine, but not with the last clone.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

/// The status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Programs can be started.
    Ready,
    /// All processes are frozen.
    Paused,
    /// The sandbox is gone.
    Ended,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// On request.
    Asked,
    /// The idle timeout.
    Idle,
    /// The maximum lifetime.
    Lifetime,
    /// A limit of the whole sandbox: `limits_hit` says which.
    Limit,
    /// The server stopped. The server that keeps the session sets this.
    ServerStopped,
    /// The sandbox died.
    Lost,
}

/// The state of a session.
#[derive(Clone, Debug)]
pub struct SessionState {
    /// The status.
    pub status: SessionStatus,
    /// Whether a caller paused it; a session that is being copied is frozen without that.
    pub is_asked_to_pause: bool,
    /// Why it ended, once it has.
    pub ended: Option<SessionEnd>,
    /// The creation time.
    pub created_at: Timestamp,
    /// The end time.
    pub ended_at: Option<Timestamp>,
    /// The latest time at which it ends.
    pub expires_at: Timestamp,
    /// The time at which it ends if nobody uses it before.
    pub idle_until: Timestamp,
    /// The backend: `native`, or the name of a container engine.
    pub backend: String,
    /// The name of the profile.
    pub profile: String,
    /// The barriers that are in force.
    pub barriers: Vec<Barrier>,
    /// The usage as of the last sample; what passed its doors is added at the end.
    pub usage: Usage,
    /// The limits that were hit; those of the doors are added at the end.
    pub limits_hit: BTreeSet<LimitName>,
    /// What its doors denied, at the end. Each program has a list of its own.
    pub denials: Vec<Denial>,
    /// The rules that `--learn` found, at the end.
    pub learned: Vec<LearnedRule>,
    /// The changes in a copy-on-write workspace, once the session has ended.
    pub workspace: Option<WorkspaceChanges>,
    /// Why not all changes could be applied, where that was requested; `notes` has the message too.
    pub not_applied: Option<ErrorInfo>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The state that the clones share with the task.
#[derive(Debug)]
struct Shared {
    id: Id,
    spec: SessionSpec,
    commands: mpsc::Sender<SessionCommand>,
    status: watch::Sender<SessionStatus>,
    /// Why the session is to end, as soon as that is decided.
    ending: watch::Sender<Option<SessionEnd>>,
    owner: Option<(u32, u32)>,
    log_budget: Arc<LogBudget>,
    orphan_pipes: OrphanPipes,
    data: Mutex<SessionData>,
}

/// The mutable state.
#[derive(Debug)]
struct SessionData {
    state: SessionState,
    /// CPU time in milliseconds, for accounting while the session runs.
    cpu_ms: Arc<AtomicU64>,
    /// The oldest first.
    execs: Vec<Exec>,
    started: u64,
    /// CPU time inside the sandbox, and of Airlock itself for the session.
    sandbox_cpu: Duration,
    own_cpu: Duration,
    /// CPU time of ended programs: the only number where nothing counts for the whole sandbox.
    ended_cpu_us: u64,
    largest_bytes: u64,
    used: Instant,
    /// Copies that are being made of it or into it.
    copies: usize,
    /// Whether the changes in the workspace are applied at the end, if the request to end said so.
    applies: Option<bool>,
    workspace: Option<OwnedFd>,
    /// The limit that ends the session, for the results of its programs.
    limit: Option<StopReason>,
}

impl Engine {
    /// Creates a session and waits until its sandbox is ready. If the future is dropped, the
    /// session ends.
    pub async fn open_session(&self, spec: SessionSpec) -> Result<Session, ErrorInfo> {
        self.open_session_with(spec, Vec::new()).await
    }

    /// Like `open_session`, with Airlock's own mounts.
    pub(crate) async fn open_session_with(
        &self,
        spec: SessionSpec,
        own_mounts: Vec<Mount>,
    ) -> Result<Session, ErrorInfo> {
        if *self.closing.borrow() {
            return Err(session_gone("the engine closes"));
        }
        let id = spec.run.run_id.clone().unwrap_or_else(record::fresh_id);
        let (cancel, cancelled) = watch::channel(false);
        let provisioner = Provisioner {
            engine: self.inner.clone(),
            id,
            spec: spec.run.clone(),
            cancelled,
            layer: None,
            artifacts_kept: false,
            git: None,
            own_mounts,
        };
        let (ready, session) = oneshot::channel();
        // The task does not hold a clone of the engine, so that it ends with the last of them.
        self.inner.spawn_background(actor::run_session(
            provisioner,
            spec,
            cancel,
            self.closing.subscribe(),
            ready,
        ));
        session
            .await
            .unwrap_or_else(|_| Err(internal("the session's task failed".to_owned())))
    }
}

/// The artifacts of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionArtifacts {
    /// The stored versions.
    pub kept: Vec<ArtifactRef>,
    /// The files that were not stored, and why.
    pub left_out: Vec<SkippedFile>,
    /// The number of further files that were not stored.
    pub more_left_out: u64,
}

impl Engine {
    /// Stores files of a session's workspace as artifacts of its owner: the named ones, and those
    /// in `.artifacts`. A file that is being written is stored as it is read.
    pub async fn keep_session_artifacts(
        &self,
        session: &Session,
        wanted: Vec<WorkspacePath>,
    ) -> Result<SessionArtifacts, ErrorInfo> {
        session.touch();
        let (workspace, _) = session.workspace()?;
        let run = &session.spec().run;
        let collector = ArtifactCollector::of_session(&self.inner, session.id(), run);
        let usual = CollectLimits::default();
        // As for a run: sparse files have a larger size than disk usage.
        let most = if run.sandbox.workspace.is_some() {
            u64::MAX
        } else {
            run.sandbox.workspace_bytes()
        };
        let bounds = CollectLimits {
            total_bytes: usual.total_bytes.min(most),
            ..usual
        };
        let sandbox = run.sandbox.clone();
        let keeping = tokio::task::spawn_blocking(move || {
            collector.collect(&workspace, &wanted, bounds, &sandbox, &|| false)
        });
        let kept = keeping.await.unwrap_or_else(|error| Err(error.into()));
        let (kept, collected) = kept.map_err(|error| internal(error.to_string()))?;
        Ok(SessionArtifacts {
            kept,
            left_out: collected.skipped,
            more_left_out: collected.more_skipped,
        })
    }
}

impl Shared {
    fn data(&self) -> MutexGuard<'_, SessionData> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_paused(&self) -> bool {
        *self.status.borrow() == SessionStatus::Paused
    }
}

/// The limits of the whole sandbox that its processes hit.
fn limits_hit_by(counters: &ResourceCounters) -> impl Iterator<Item = LimitName> {
    let hits = [
        (
            LimitName::Memory,
            counters.oom_kills.is_some_and(|kills| kills > 0),
        ),
        (
            LimitName::Pids,
            counters.pids_refused.is_some_and(|times| times > 0),
        ),
    ];
    hits.into_iter()
        .filter(|(_, hit)| *hit)
        .map(|(name, _)| name)
}

impl SessionData {
    /// Whether the session is busy. A background program does not keep it from being idle, nor does
    /// a paused one; being copied does, although it is frozen meanwhile.
    fn is_at_work(&self) -> bool {
        let runs = |exec: &Exec| !exec.request().background && exec.result().is_none();
        self.copies > 0 || self.state.status == SessionStatus::Ready && self.execs.iter().any(runs)
    }

    /// Adds a sample of the sandbox's counters.
    fn update_usage(&mut self, counters: &ResourceCounters) {
        let cpu = counters
            .cpu
            .unwrap_or(Duration::from_micros(self.ended_cpu_us));
        self.sandbox_cpu = self.sandbox_cpu.max(cpu);
        self.sum_cpu();
        let usage = &mut self.state.usage;
        usage.memory_peak_bytes = counters
            .memory_peak
            .unwrap_or(self.largest_bytes)
            .max(usage.memory_peak_bytes);
        usage.pids_peak = counters.pids_peak.or(usage.pids_peak);
        self.state.limits_hit.extend(limits_hit_by(counters));
    }

    fn sum_cpu(&mut self) {
        let cpu_ms = (self.sandbox_cpu + self.own_cpu).as_millis() as u64;
        self.state.usage.cpu_ms = cpu_ms;
        self.cpu_ms.store(cpu_ms, Ordering::Relaxed);
    }

    fn running(&self) -> usize {
        self.execs
            .iter()
            .filter(|exec| exec.result().is_none())
            .count()
    }

    fn add(&mut self, exec: Exec) {
        self.execs.push(exec);
        let mut over = (self.execs.len() - self.running()).saturating_sub(MAX_ENDED);
        self.execs.retain(|exec| {
            let forget = over > 0 && exec.result().is_some();
            over -= usize::from(forget);
            !forget
        });
    }
}

impl Session {
    /// The session's id.
    pub fn id(&self) -> &Id {
        &self.shared.id
    }

    /// The spec from which it was created.
    pub fn spec(&self) -> &SessionSpec {
        &self.shared.spec
    }

    /// The current state.
    pub fn state(&self) -> SessionState {
        let data = self.shared.data();
        let used = if data.is_at_work() {
            Duration::ZERO
        } else {
            data.used.elapsed()
        };
        let left = self.shared.spec.idle.saturating_sub(used).as_millis() as u64;
        let idle_until = match data.state.ended_at {
            Some(ended) => ended,
            None => Timestamp(record::now().0 + left).min(data.state.expires_at),
        };
        SessionState {
            idle_until,
            ..data.state.clone()
        }
    }

    /// CPU time in milliseconds so far, sampled while the session runs.
    pub fn cpu_ms(&self) -> Arc<AtomicU64> {
        self.shared.data().cpu_ms.clone()
    }

    /// Adds CPU time that Airlock itself spent for the session, outside of the sandbox.
    pub(crate) fn add_own_cpu(&self, cpu: Duration) {
        let mut data = self.shared.data();
        data.own_cpu += cpu;
        data.sum_cpu();
    }

    /// Restarts the idle timeout.
    pub fn touch(&self) {
        self.shared.data().used = Instant::now();
    }

    /// Starts a program, and waits until it runs.
    pub async fn exec(&self, request: ExecRequest) -> Result<Exec, ErrorInfo> {
        let request = request.checked().map_err(ErrorInfo::from)?;
        self.touch();
        self.ask(|reply| SessionCommand::Start(Box::new(request), reply))
            .await
    }

    /// The programs, the oldest first: all that run, and the newest of those that have ended.
    pub fn execs(&self) -> Vec<Exec> {
        self.shared.data().execs.clone()
    }

    /// The program with this id.
    pub fn find_exec(&self, id: &str) -> Option<Exec> {
        self.shared
            .data()
            .execs
            .iter()
            .find(|exec| exec.id() == id)
            .cloned()
    }

    /// A handle of the workspace, and the owner for new files; refused once the sandbox is gone.
    pub fn workspace(&self) -> Result<(OwnedFd, Option<(u32, u32)>), ErrorInfo> {
        let data = self.shared.data();
        let workspace = data
            .workspace
            .as_ref()
            .ok_or_else(|| session_gone("the session has ended"))?;
        let handle = workspace.try_clone();
        Ok((
            handle.map_err(|error| internal(error.to_string()))?,
            self.shared.owner,
        ))
    }

    /// The files of the workspace; refused once the sandbox is gone. A file gets no more bytes than
    /// the workspace may have.
    pub fn tree(&self) -> Result<Tree, ErrorInfo> {
        let (workspace, owner) = self.workspace()?;
        let sandbox = &self.shared.spec.run.sandbox;
        let rights = FileAccess::of(sandbox, workspace.as_fd())
            .map_err(|error| internal(error.to_string()))?;
        Ok(Tree::new(workspace, owner, sandbox.workspace_bytes()).with_access(rights))
    }

    /// Freezes all processes. The wall clocks of its programs stop too; those of the session go on.
    pub async fn pause(&self) -> Result<(), ErrorInfo> {
        self.touch();
        self.ask(SessionCommand::Pause).await
    }

    /// Thaws all processes.
    pub async fn resume(&self) -> Result<(), ErrorInfo> {
        self.touch();
        self.ask(SessionCommand::Resume).await
    }

    /// Like [`Session::end`]; `applies` overrides whether the changes in the workspace's layer are
    /// applied.
    pub async fn end_and_apply(&self, applies: Option<bool>) -> SessionState {
        if applies.is_some() {
            self.shared.data().applies = applies;
        }
        self.end().await
    }

    /// Ends the session and waits until everything is released.
    pub async fn end(&self) -> SessionState {
        self.shared.ending.send_if_modified(|ending| {
            let first = ending.is_none();
            *ending = ending.or(Some(SessionEnd::Asked));
            first
        });
        self.ended().await
    }

    /// Waits for the end, whatever causes it.
    pub async fn ended(&self) -> SessionState {
        let mut status = self.shared.status.subscribe();
        // The sender lives as long as this does.
        _ = status
            .wait_for(|status| *status == SessionStatus::Ended)
            .await;
        self.state()
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ErrorInfo>>) -> SessionCommand,
    ) -> Result<T, ErrorInfo> {
        let (reply, answered) = oneshot::channel();
        let sent = self.shared.commands.send(command(reply)).await;
        let ended = || session_gone("the session has ended");
        sent.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn session_gone(message: &str) -> ErrorInfo {
    conflict(message, "open another session")
}

fn conflict(message: &str, hint: &str) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Conflict,
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}
