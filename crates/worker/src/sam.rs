//! The worker's main loop: messages are parsed, admitted, run and answered. Each request has one
//! answer and is settled (acknowledged) only when the broker has that: if the process dies in
//! between, the broker redelivers the request where it can.
//!
//! ```text
//! arrived ─ parsed ─┬─ invoke ─ admission ─┬─ queued ─▶ running ─▶ answered ─▶ settled
//!                   │                      ├─ the same call is running ─▶ settled with it
//!                   │                      └─ answered before, refused ─▶ answered ─▶ settled
//!                   ├─ describe a tool ─▶ answered, if it is ours ─▶ settled
//!                   └─ cancel ─▶ removed from the queue, or stopped; answered as cancelled
//!
//! shutdown: open ─▶ draining (nothing new, calls go on) ─▶ cancelling ─▶ cut
//! ```
//! One task owns this state and never waits for the link, as the link requires of its reader:
//! everything is sent by separate tasks. `announce.rs` follows the catalog: it subscribes and
//! announces tools to the mesh.

mod announce;
mod call_task;
mod clock_skew;
mod events;
mod intake;
mod responder;
mod service;
mod shutdown;
mod size_limit;

pub use announce::subscriptions;
pub use events::{AnswerStatus, CallDetails, EventSink, RequestIds, WorkerEvent};

use crate::{
    admission::AdmissionLimits,
    call::{self, CallOrder, CallRunner, ToolCallOutcome, profile::ToolProfile},
    tools::{Catalog, Tool, ToolCardCache, ToolCode},
    transport::{Link, LinkNotice, LinkState, Subscription},
    wire::{answer::ToolCard, code::CallRefusal, topic::TopicBase},
};
use announce::Announcer;
use responder::Responder;
use serde_json::{Map, Value};
use service::Service;
use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

/// Free disk space that a new call needs, in bytes.
const MIN_FREE_BYTES: u64 = 500_000_000;
/// Timeouts for saying goodbye to the broker, and for ending all sandboxes.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Topics of unknown tools that wait to be unsubscribed.
const MAX_STRAYS: usize = 16;

/// Runs calls.
pub trait Executor: Clone + Send + Sync + 'static {
    /// Runs one call: see [`CallRunner::call`].
    fn call(
        &self,
        order: CallOrder,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> impl Future<Output = CompletedCall> + Send;

    /// Describes a tool with this configuration, with a short timeout.
    fn describe(
        &self,
        tool: Arc<Tool>,
        config: Map<String, Value>,
    ) -> impl Future<Output = Result<ToolCard, CallRefusal>> + Send;

    /// Drops everything prepared from code that is no longer used.
    fn forget(&self, code: &ToolCode);

    /// Waits until all sandboxes are gone.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Runs calls in sandboxes, and probes tools there.
#[derive(Clone, Debug)]
pub struct SandboxExecutor {
    caller: CallRunner,
    cards: Arc<ToolCardCache<CallRunner>>,
}

impl SandboxExecutor {
    /// With this interpreter, as a path inside.
    pub fn new(caller: CallRunner, python: PathBuf) -> SandboxExecutor {
        SandboxExecutor {
            cards: Arc::new(ToolCardCache::new(Arc::new(caller.clone()), python)),
            caller,
        }
    }
}

impl Executor for SandboxExecutor {
    async fn call(
        &self,
        order: CallOrder,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> CompletedCall {
        CompletedCall::from(self.caller.carry_out(order, cancelled, statuses).await)
    }

    async fn describe(
        &self,
        tool: Arc<Tool>,
        config: Map<String, Value>,
    ) -> Result<ToolCard, CallRefusal> {
        self.cards.describe(&tool, &config).await
    }

    fn forget(&self, code: &ToolCode) {
        self.caller.forget(code);
    }

    async fn close(&self) {
        self.caller.close().await;
    }
}

/// Outcome of a call and the details for the log.
#[derive(Debug)]
pub struct CompletedCall {
    /// The outcome for the requester.
    pub outcome: ToolCallOutcome,
    /// The details.
    pub seen: CallDetails,
}

impl From<call::CallReport> for CompletedCall {
    fn from(done: call::CallReport) -> CompletedCall {
        let call::CallReport {
            outcome,
            stdout,
            stderr,
            limits_hit,
            notes,
            spent,
            was_warm,
            bytes_in,
            dropped_statuses,
        } = done;
        let bytes_out = match &outcome {
            ToolCallOutcome::Success { artifacts, .. } => {
                artifacts.iter().map(|artifact| artifact.size_bytes).sum()
            }
            ToolCallOutcome::TimedOut { .. }
            | ToolCallOutcome::Refused(_)
            | ToolCallOutcome::Cancelled => 0,
        };
        let seen = CallDetails {
            stdout,
            stderr,
            limits_hit,
            notes,
            spent,
            was_warm,
            bytes_in,
            bytes_out,
            dropped_statuses,
        };
        CompletedCall { outcome, seen }
    }
}

impl From<ToolCallOutcome> for CompletedCall {
    fn from(outcome: ToolCallOutcome) -> CompletedCall {
        CompletedCall {
            outcome,
            seen: CallDetails::default(),
        }
    }
}

/// Everything that [`serve`] needs.
pub struct Worker<C> {
    /// Base of the mesh's topics.
    pub base: TopicBase,
    /// Link to the broker.
    pub link: Link,
    /// Initial subscriptions of the link: see [`subscriptions`]. The worker makes all others.
    pub subscribed: BTreeSet<Subscription>,
    /// The current tools.
    pub catalog: watch::Receiver<Catalog>,
    /// Tools whose description failed; the mesh is told.
    pub undiscovered: mpsc::Receiver<UndiscoveredTool>,
    /// Runs the calls.
    pub calls: C,
    /// Bounds of running and queued calls.
    pub bounds: AdmissionLimits,
    /// Defaults for requests.
    pub defaults: CallDefaults,
    /// How long calls may go on during a shutdown.
    pub grace: Duration,
    /// Whether the broker keeps unsettled messages for another worker. If not, queued requests are
    /// answered at a shutdown, so that their requesters try again. If it does and messages cannot
    /// be released, the worker stays subscribed until the end: the broker keeps messages only for
    /// subscribers.
    pub redelivers: bool,
    /// Whether the disk has no room for another call: see [`is_disk_low`].
    pub is_disk_full: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Receives all events, for log and metrics.
    pub events: EventSink,
}

impl<C> fmt::Debug for Worker<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Worker")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

/// Defaults for requests.
#[derive(Clone, Copy, Debug)]
pub struct CallDefaults {
    /// Timeout if neither request nor tool has one.
    pub timeout: Duration,
    /// Widest profile that a request may have, and the default.
    pub profile: ToolProfile,
    /// Maximum size of a message in both directions, in bytes.
    pub largest: usize,
}

/// A tool whose description failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndiscoveredTool {
    /// Name of the tool.
    pub tool: String,
    /// Why its description failed.
    pub why: String,
}

/// How the worker should end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    /// Keep running.
    #[default]
    No,
    /// Let running calls finish, within the grace period.
    Drain,
    /// Cancel running calls and tell their requesters.
    Now,
}

/// How the worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Calls that were cut short.
    pub cut: usize,
}

/// Why the worker ended on its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The link is lost for good.
    #[error("the broker is lost: {why}")]
    Lost {
        /// The last error.
        why: String,
    },
}

/// Whether a folder's file system is short of free space; unknown counts as enough.
pub fn is_disk_low(folder: &Path) -> bool {
    rustix::fs::statvfs(folder)
        .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < MIN_FREE_BYTES)
}

/// Serves until a shutdown, or until the link is lost for good.
pub async fn serve<C: Executor>(
    worker: Worker<C>,
    stop: watch::Receiver<Shutdown>,
) -> Result<ShutdownReport, WorkerError> {
    let (closes, closing) = watch::channel(false);
    let (strays, astray) = mpsc::channel(MAX_STRAYS);
    let calls = worker.calls.clone();
    let Link {
        arrived,
        state,
        publisher,
        task,
        notices,
        releases,
        ..
    } = worker.link;
    let keeps_listening = worker.redelivers && !releases;
    tokio::spawn(tell_notices(notices, worker.events.clone()));
    let forgetting = tokio::spawn(forget_old(worker.calls.clone(), worker.catalog.clone()));
    let responder = Responder::new(publisher, worker.events.clone(), worker.defaults.largest);
    let announcer = Announcer {
        base: worker.base.clone(),
        catalog: worker.catalog.clone(),
        state: state.clone(),
        undiscovered: worker.undiscovered,
        strays: astray,
        subscribed: worker.subscribed,
        keeps_listening,
        responder: responder.clone(),
    };
    let mut announcer = tokio::spawn(announcer.run(closing));
    let settings = service::ServiceSettings {
        base: worker.base,
        calls: worker.calls,
        catalog: worker.catalog,
        defaults: worker.defaults,
        grace: worker.grace,
        redelivers: worker.redelivers,
        keeps_listening,
        is_disk_full: worker.is_disk_full,
        events: worker.events,
    };
    let service = Service::new(settings, responder, worker.bounds, strays, closes);
    let wish = stop.clone();
    let ended = service.run(arrived, state.clone(), stop).await;
    forgetting.abort();
    // It has been told to leave, unless it waits for a broker that does not respond.
    if timeout(FAREWELL_TIMEOUT, &mut announcer).await.is_err() {
        announcer.abort();
        _ = announcer.await;
    }
    // Nothing uses the link any more: it disconnects, if it is connected.
    let end = task.abort_handle();
    let is_connected = *state.borrow() == LinkState::Connected;
    if !is_connected || timeout(FAREWELL_TIMEOUT, task).await.is_err() {
        end.abort();
    }
    _ = timeout(CLOSE_TIMEOUT, calls.close()).await;
    let lost = match &*state.borrow() {
        LinkState::Lost { why } => Some(why.clone()),
        // There was no shutdown request.
        _ if *wish.borrow() == Shutdown::No => Some("the link to it has ended".to_owned()),
        LinkState::Connecting { .. } | LinkState::Connected => None,
    };
    match lost {
        Some(why) => Err(WorkerError::Lost { why }),
        None => Ok(ended),
    }
}

/// Forwards the link's notices.
async fn tell_notices(mut notices: mpsc::Receiver<LinkNotice>, events: EventSink) {
    while let Some(notice) = notices.recv().await {
        events(WorkerEvent::Notice(notice));
    }
}

/// Drops what was prepared from code that has changed or is gone.
async fn forget_old<C: Executor>(calls: C, mut catalog: watch::Receiver<Catalog>) {
    let mut known = catalog.borrow_and_update().clone();
    while catalog.changed().await.is_ok() {
        let now = catalog.borrow_and_update().clone();
        let codes: BTreeSet<_> = now.values().map(|tool| &tool.code).collect();
        known
            .values()
            .filter(|tool| !codes.contains(&tool.code))
            .for_each(|tool| calls.forget(&tool.code));
        known = now;
    }
}

#[cfg(test)]
#[path = "sam_tests.rs"]
mod tests;
