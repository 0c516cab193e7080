//! A session: a box that outlives its programs, with a task that owns it.
//!
//! ```text
//! open ─ box, doors, inputs ─ ready ◀─▶ paused ─┬─ asked ────┐
//!                               │               ├─ idle      │
//!                          programs, each       ├─ lifetime  ├─ box ended ─ programs told ─ doors closed ─ released
//!                          with its own task    ├─ CPU time  │
//!                                               └─ lost ─────┘
//! ```

mod actor;
mod exec;
mod fork;
mod left_behind;

pub use exec::{Exec, ExecResult, NotTyped, Unread};

use crate::{
    Engine, Rights,
    feed::Budget,
    files::{Bounds, Skipped},
    keep::Keeper,
    making::{Making, internal},
    record,
    tree::Tree,
};
use actor::Order;
use left_behind::LeftBehind;
use sandbox::Counters;
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

/// Programs under way at once.
const MOST_RUNNING: usize = 32;
/// Programs that have ended and are still known; the oldest are forgotten.
const MOST_ENDED: usize = 64;
/// What the output of all its programs may have on the disk together.
const MOST_OUTPUT: u64 = 256 << 20;
/// Who wait for the session's task.
const MOST_WAITING: usize = 64;

/// A session. Cheap to clone; all clones are the same. Its box ends when it is ended, when its time is up, or with
/// the engine; not with the last clone.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

/// How a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Programs can be started.
    Ready,
    /// All its processes are stopped where they are.
    Paused,
    /// Its box is gone.
    Ended,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Somebody asked for it.
    Asked,
    /// Nobody used it for too long.
    Idle,
    /// Its lifetime was over.
    Lifetime,
    /// A limit of the whole box was spent: `limits_hit` says which.
    Limit,
    /// Its server was stopped: whoever keeps sessions says so, they do not know it themselves.
    ServerStopped,
    /// The box died by itself.
    Lost,
}

/// What there is to say of a session now.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SessionState {
    pub status: SessionStatus,
    /// Whether somebody paused it; while it is copied, it stands still without that.
    pub is_asked_to_pause: bool,
    pub ended: Option<SessionEnd>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// When it ends at the latest.
    pub expires_at: Timestamp,
    /// When it ends if nobody uses it meanwhile.
    pub idle_until: Timestamp,
    pub backend: String,
    pub profile: String,
    pub barriers: Vec<Barrier>,
    /// As of the last look; what passed its doors is counted at the end.
    pub usage: Usage,
    /// The same; those of its doors, too, are known at the end.
    pub limits_hit: BTreeSet<LimitName>,
    /// What its doors refused, at the end. Each program has a list of its own.
    pub denials: Vec<Denial>,
    pub learned: Vec<LearnedRule>,
    /// What was changed in a workspace that is copied on writing, once it has ended.
    pub workspace: Option<WorkspaceChanges>,
    pub notes: Vec<String>,
}

/// What all clones have in common with the task.
#[derive(Debug)]
struct Shared {
    id: Id,
    spec: SessionSpec,
    orders: mpsc::Sender<Order>,
    status: watch::Sender<SessionStatus>,
    /// Why it is to end, as soon as that is decided.
    ending: watch::Sender<Option<SessionEnd>>,
    owner: Option<(u32, u32)>,
    feeds: Arc<Budget>,
    left_behind: LeftBehind,
    book: Mutex<Book>,
}

/// What changes.
#[derive(Debug)]
struct Book {
    state: SessionState,
    /// The CPU time of it, for whoever counts while it goes on.
    cpu_ms: Arc<AtomicU64>,
    /// The oldest first.
    execs: Vec<Exec>,
    started: u64,
    /// What of it was used inside, and what for it by Airlock itself.
    box_cpu: Duration,
    own_cpu: Duration,
    /// What programs that have ended used: all that is known where nothing counts for the whole box.
    ended_cpu_us: u64,
    largest_bytes: u64,
    used: Instant,
    /// Copies that are being made of it, or into it.
    copies: usize,
    workspace: Option<OwnedFd>,
}

impl Engine {
    /// Makes a session's box, and waits until it stands. Whoever does not wait for it has none.
    pub async fn open_session(&self, spec: SessionSpec) -> Result<Session, ErrorInfo> {
        self.open_session_with(spec, Vec::new()).await
    }

    /// The same, with mounts of Airlock's own.
    pub(crate) async fn open_session_with(
        &self,
        spec: SessionSpec,
        own: Vec<Mount>,
    ) -> Result<Session, ErrorInfo> {
        if *self.closing.borrow() {
            return Err(gone("the engine closes"));
        }
        let id = spec.run.run_id.clone().unwrap_or_else(record::fresh_id);
        let (cancel, cancelled) = watch::channel(false);
        let making = Making {
            engine: self.inner.clone(),
            id,
            spec: spec.run.clone(),
            cancelled,
            layer: None,
            git: None,
            own,
        };
        let (ready, session) = oneshot::channel();
        // The task does not hold the engine's own clone: it ends with the last of them.
        self.inner.behind(actor::live(
            making,
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

/// What a session kept.
#[derive(Clone, Debug, Default)]
pub struct SessionKept {
    /// The versions that were made.
    pub kept: Vec<ArtifactRef>,
    /// What was not kept, and why.
    pub left_out: Vec<Skipped>,
    /// How many more were left out than are told.
    pub more_left_out: u64,
}

impl Engine {
    /// Keeps files of a session's workspace as artifacts of its owner: those that are named, and what lies in
    /// `.artifacts`. Somebody may be writing them; each is kept as it is read.
    pub async fn keep_of_session(
        &self,
        session: &Session,
        wanted: Vec<WorkspacePath>,
    ) -> Result<SessionKept, ErrorInfo> {
        session.touch();
        let (workspace, _) = session.workspace()?;
        let run = &session.spec().run;
        let keeper = Keeper::of_session(&self.inner, session.id(), run);
        let usual = Bounds::default();
        // As of a run: files with holes are larger than they are.
        let most = if run.sandbox.workspace.is_some() {
            u64::MAX
        } else {
            run.sandbox.limits.disk.0
        };
        let bounds = Bounds {
            total_bytes: usual.total_bytes.min(most),
            ..usual
        };
        let sandbox = run.sandbox.clone();
        let keeping = tokio::task::spawn_blocking(move || {
            keeper.collect(&workspace, &wanted, bounds, &sandbox)
        });
        let kept = keeping.await.unwrap_or_else(|error| Err(error.into()));
        let (kept, collected) = kept.map_err(|error| internal(error.to_string()))?;
        Ok(SessionKept {
            kept,
            left_out: collected.skipped,
            more_left_out: collected.more_skipped,
        })
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_paused(&self) -> bool {
        *self.status.borrow() == SessionStatus::Paused
    }
}

/// Which limits of the whole box its processes ran into.
fn hit(counters: &Counters) -> impl Iterator<Item = LimitName> {
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

impl Book {
    /// A program in the background does not keep a session from being idle, nor does one that is paused; to be copied
    /// does, although it stands still meanwhile.
    fn is_at_work(&self) -> bool {
        let runs = |exec: &Exec| !exec.request().background && exec.result().is_none();
        self.copies > 0 || self.state.status == SessionStatus::Ready && self.execs.iter().any(runs)
    }

    /// Takes over what the box has used so far.
    fn tally(&mut self, counters: &Counters) {
        let cpu = counters
            .cpu
            .unwrap_or(Duration::from_micros(self.ended_cpu_us));
        self.box_cpu = self.box_cpu.max(cpu);
        self.sum_cpu();
        let usage = &mut self.state.usage;
        usage.memory_peak_bytes = counters
            .memory_peak
            .unwrap_or(self.largest_bytes)
            .max(usage.memory_peak_bytes);
        usage.pids_peak = counters.pids_peak.or(usage.pids_peak);
        self.state.limits_hit.extend(hit(counters));
    }

    fn sum_cpu(&mut self) {
        let cpu_ms = (self.box_cpu + self.own_cpu).as_millis() as u64;
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
        let mut over = (self.execs.len() - self.running()).saturating_sub(MOST_ENDED);
        self.execs.retain(|exec| {
            let forget = over > 0 && exec.result().is_some();
            over -= usize::from(forget);
            !forget
        });
    }
}

impl Session {
    /// Its identifier.
    pub fn id(&self) -> &Id {
        &self.shared.id
    }

    /// What it was made from.
    pub fn spec(&self) -> &SessionSpec {
        &self.shared.spec
    }

    /// How it is now.
    pub fn state(&self) -> SessionState {
        let book = self.shared.book();
        let used = if book.is_at_work() {
            Duration::ZERO
        } else {
            book.used.elapsed()
        };
        let left = self.shared.spec.idle.saturating_sub(used).as_millis() as u64;
        let idle_until = match book.state.ended_at {
            Some(ended) => ended,
            None => Timestamp(record::now().0 + left).min(book.state.expires_at),
        };
        SessionState {
            idle_until,
            ..book.state.clone()
        }
    }

    /// Milliseconds of CPU time so far, counted every now and then while it goes on.
    pub fn cpu_ms(&self) -> Arc<AtomicU64> {
        self.shared.book().cpu_ms.clone()
    }

    /// Airlock itself worked so long for it, outside of its box.
    pub(crate) fn worked_for(&self, cpu: Duration) {
        let mut book = self.shared.book();
        book.own_cpu += cpu;
        book.sum_cpu();
    }

    /// Somebody uses it: the idle time begins anew.
    pub fn touch(&self) {
        self.shared.book().used = Instant::now();
    }

    /// Starts a program, and waits until it runs.
    pub async fn exec(&self, request: ExecRequest) -> Result<Exec, ErrorInfo> {
        let request = request.checked().map_err(ErrorInfo::from)?;
        self.touch();
        self.ask(|answer| Order::Start(Box::new(request), answer))
            .await
    }

    /// Its programs, the oldest first: those that run, and the newest of those that have ended.
    pub fn execs(&self) -> Vec<Exec> {
        self.shared.book().execs.clone()
    }

    /// One of them.
    pub fn find_exec(&self, id: &str) -> Option<Exec> {
        self.shared
            .book()
            .execs
            .iter()
            .find(|exec| exec.id() == id)
            .cloned()
    }

    /// Its workspace, as a handle of the host's, and who owns what is put there; refused once the box is gone.
    pub fn workspace(&self) -> Result<(OwnedFd, Option<(u32, u32)>), ErrorInfo> {
        let book = self.shared.book();
        let workspace = book
            .workspace
            .as_ref()
            .ok_or_else(|| gone("the session has ended"))?;
        let handle = workspace.try_clone();
        Ok((
            handle.map_err(|error| internal(error.to_string()))?,
            self.shared.owner,
        ))
    }

    /// The files of its workspace; refused once the box is gone. A file gets no more bytes than its disk may have.
    pub fn tree(&self) -> Result<Tree, ErrorInfo> {
        let (workspace, owner) = self.workspace()?;
        let sandbox = &self.shared.spec.run.sandbox;
        let rights =
            Rights::of(sandbox, workspace.as_fd()).map_err(|error| internal(error.to_string()))?;
        Ok(Tree::new(workspace, owner, sandbox.limits.disk.0).with(rights))
    }

    /// Stops everything in it where it is. The clocks of its programs stop, too; its own go on.
    pub async fn pause(&self) -> Result<(), ErrorInfo> {
        self.touch();
        self.ask(Order::Pause).await
    }

    /// Lets it go on.
    pub async fn resume(&self) -> Result<(), ErrorInfo> {
        self.touch();
        self.ask(Order::Resume).await
    }

    /// Ends it, and waits until nothing is left of it.
    pub async fn end(&self) -> SessionState {
        self.shared.ending.send_if_modified(|ending| {
            let first = ending.is_none();
            *ending = ending.or(Some(SessionEnd::Asked));
            first
        });
        self.ended().await
    }

    /// Waits for its end, whatever brings it about.
    pub async fn ended(&self) -> SessionState {
        let mut status = self.shared.status.subscribe();
        // Its sender lives as long as this does.
        _ = status
            .wait_for(|status| *status == SessionStatus::Ended)
            .await;
        self.state()
    }

    async fn ask<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T, ErrorInfo>>) -> Order,
    ) -> Result<T, ErrorInfo> {
        let (answer, answered) = oneshot::channel();
        let sent = self.shared.orders.send(order(answer)).await;
        let ended = || gone("the session has ended");
        sent.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn gone(message: &str) -> ErrorInfo {
    conflict(message, "open another session")
}

fn conflict(message: &str, hint: &str) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Conflict,
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}
