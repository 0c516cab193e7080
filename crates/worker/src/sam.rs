//! The loop: what arrives is read, takes its turn, is called and answered. Each request has one answer, and is settled only
//! when the broker has that: whatever kills this process in between, the request comes again where the broker can do that.
//!
//! ```text
//! arrived ─ read ─┬─ invoke ─ desk ─┬─ waits ─▶ runs ─▶ answered ─▶ settled
//!                 │                 ├─ the same is under way ─▶ settled with it
//!                 │                 └─ answered before, refused ─▶ answered ─▶ settled
//!                 ├─ what is a tool? ─▶ answered, if it is ours ─▶ settled
//!                 └─ cancel ─▶ out of the desk, or stopped; answered as such
//!
//! told to end: open ─▶ draining (nothing new, calls go on) ─▶ cancelling ─▶ cut
//! ```
//! One task owns all of this and waits for nothing of the link, as the link demands of whoever takes what arrives: everything
//! that is sent, is sent by tasks of its own. `announce.rs` follows the tools: subscribes, and tells the mesh of them.

mod announce;
mod clocks;
mod ending;
mod intake;
mod noted;
mod post;
mod run;
mod service;
mod sizes;

pub use announce::subscriptions;
pub use noted::{How, Note, Noted, Seen, Which};

use crate::{
    call::{self, Caller, Order, Outcome, profile::Profile},
    desk::Bounds,
    tools::{Cards, Catalog, Code, Tool},
    transport::{Link, LinkState, Notice, Subscription},
    wire::{answer::ToolCard, code::Refusal, topic::Base},
};
use announce::Announcer;
use post::Post;
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

/// What must be free where calls have their files, in bytes; with less nothing is begun.
const LEAST_FREE: u64 = 500_000_000;
/// How long it may take to say farewell to the broker, and until every box is gone.
const LONGEST_FAREWELL: Duration = Duration::from_secs(5);
const LONGEST_CLOSING: Duration = Duration::from_secs(30);
/// Topics that nobody should have sent to us, and that wait to be unsubscribed.
const MOST_STRAYS: usize = 16;

/// Whoever carries orders out.
pub trait Calls: Clone + Send + Sync + 'static {
    /// Carries one out: see [`Caller::call`].
    fn call(
        &self,
        order: Order,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> impl Future<Output = Called> + Send;

    /// What a tool is with this configuration, soon.
    fn describe(
        &self,
        tool: Arc<Tool>,
        config: Map<String, Value>,
    ) -> impl Future<Output = Result<ToolCard, Refusal>> + Send;

    /// Code that is not called any more: what was made ready from it is of no use.
    fn forget(&self, code: &Code);

    /// Waits until nothing is left of any.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Who carries calls out in boxes, and asks tools there what they are.
#[derive(Clone, Debug)]
pub struct Hands {
    caller: Caller,
    cards: Arc<Cards<Caller>>,
}

impl Hands {
    /// With this interpreter, as it is inside.
    pub fn new(caller: Caller, python: PathBuf) -> Hands {
        Hands {
            cards: Arc::new(Cards::new(Arc::new(caller.clone()), python)),
            caller,
        }
    }
}

impl Calls for Hands {
    async fn call(
        &self,
        order: Order,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> Called {
        Called::from(self.caller.carry_out(order, cancelled, statuses).await)
    }

    async fn describe(
        &self,
        tool: Arc<Tool>,
        config: Map<String, Value>,
    ) -> Result<ToolCard, Refusal> {
        self.cards.describe(&tool, &config).await
    }

    fn forget(&self, code: &Code) {
        self.caller.forget(code);
    }

    async fn close(&self) {
        self.caller.close().await;
    }
}

/// What came of a call, and what only the log is told.
#[derive(Debug)]
pub struct Called {
    /// What its asker is told.
    pub outcome: Outcome,
    /// The rest.
    pub seen: Seen,
}

impl From<call::Done> for Called {
    fn from(done: call::Done) -> Called {
        let call::Done {
            outcome,
            stdout,
            stderr,
            limits_hit,
            notes,
            spent,
            was_warm,
            bytes_in,
            unsaid,
        } = done;
        let bytes_out = match &outcome {
            Outcome::Success { artifacts, .. } => {
                artifacts.iter().map(|artifact| artifact.size_bytes).sum()
            }
            Outcome::TimedOut { .. } | Outcome::Refused(_) | Outcome::Cancelled => 0,
        };
        let seen = Seen {
            stdout,
            stderr,
            limits_hit,
            notes,
            spent,
            was_warm,
            bytes_in,
            bytes_out,
            unsaid,
        };
        Called { outcome, seen }
    }
}

impl From<Outcome> for Called {
    fn from(outcome: Outcome) -> Called {
        Called {
            outcome,
            seen: Seen::default(),
        }
    }
}

/// What it takes to serve.
pub struct Worker<C> {
    /// Whose mesh.
    pub base: Base,
    /// The way to its broker.
    pub link: Link,
    /// What the link was begun with: see [`subscriptions`]. All else that is subscribed, this here says.
    pub subscribed: BTreeSet<Subscription>,
    /// What tools there are, at any time.
    pub catalog: watch::Receiver<Catalog>,
    /// Tools that do not say what they are; the mesh is told.
    pub undiscovered: mpsc::Receiver<Undiscovered>,
    /// Who carries orders out.
    pub calls: C,
    /// How much may go on, and wait.
    pub bounds: Bounds,
    /// What holds where a request says nothing.
    pub defaults: Defaults,
    /// How long calls may go on when it is to end.
    pub grace: Duration,
    /// Whether the broker keeps what is not settled for whoever comes after us. If not, requests that wait when it is to end
    /// are answered: their askers try once more. If so, and they cannot be given back to others, they are listened to until the
    /// end: the broker keeps only what somebody listens to.
    pub is_kept: bool,
    /// Whether there is too little room for another call: see [`is_short_of_room`].
    pub is_full: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whom everything is told that happens, for logs and numbers.
    pub note: Note,
}

impl<C> fmt::Debug for Worker<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Worker")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

/// What holds where a request says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Where the tool says nothing, either.
    pub timeout: Duration,
    /// The same.
    pub profile: Profile,
    /// The largest message, in bytes, both ways.
    pub largest: usize,
}

/// A tool that does not say what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Undiscovered {
    pub tool: String,
    pub why: String,
}

/// Whether it is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// It goes on.
    #[default]
    No,
    /// When the calls that run have ended, or their grace has.
    Drain,
    /// As fast as their askers can be told.
    Now,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Calls that were not let finish.
    pub cut: usize,
}

/// Why it ended though nobody told it to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// There is no connection, and none is tried any more.
    #[error("the broker is lost: {why}")]
    Lost {
        /// The last trouble.
        why: String,
    },
}

/// Whether a folder's disk has too little room for another call. One that says nothing has room.
pub fn is_short_of_room(folder: &Path) -> bool {
    rustix::fs::statvfs(folder)
        .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < LEAST_FREE)
}

/// Serves until it is told to end, or the broker is lost for good.
pub async fn serve<C: Calls>(
    worker: Worker<C>,
    stop: watch::Receiver<Stop>,
) -> Result<Ended, Failed> {
    let (closes, closing) = watch::channel(false);
    let (strays, astray) = mpsc::channel(MOST_STRAYS);
    let calls = worker.calls.clone();
    let Link {
        arrived,
        state,
        reach,
        task,
        notices,
        releases,
        ..
    } = worker.link;
    let keeps_listening = worker.is_kept && !releases;
    tokio::spawn(tell_notices(notices, worker.note.clone()));
    let forgetting = tokio::spawn(forget_old(worker.calls.clone(), worker.catalog.clone()));
    let post = Post::new(reach, worker.note.clone(), worker.defaults.largest);
    let announcer = Announcer {
        base: worker.base.clone(),
        catalog: worker.catalog.clone(),
        state: state.clone(),
        undiscovered: worker.undiscovered,
        strays: astray,
        subscribed: worker.subscribed,
        keeps_listening,
        post: post.clone(),
    };
    let mut announcer = tokio::spawn(announcer.run(closing));
    let settings = service::Settings {
        base: worker.base,
        calls: worker.calls,
        catalog: worker.catalog,
        defaults: worker.defaults,
        grace: worker.grace,
        is_kept: worker.is_kept,
        keeps_listening,
        is_full: worker.is_full,
        note: worker.note,
    };
    let service = Service::new(settings, post, worker.bounds, strays, closes);
    let wish = stop.clone();
    let ended = service.run(arrived, state.clone(), stop).await;
    forgetting.abort();
    // It has been told to leave, unless it waits for a broker that does not answer.
    if timeout(LONGEST_FAREWELL, &mut announcer).await.is_err() {
        announcer.abort();
        _ = announcer.await;
    }
    // Nobody is left who uses the link: it says farewell, if there is anybody to say it to.
    let end = task.abort_handle();
    let is_connected = *state.borrow() == LinkState::Connected;
    if !is_connected || timeout(LONGEST_FAREWELL, task).await.is_err() {
        end.abort();
    }
    _ = timeout(LONGEST_CLOSING, calls.close()).await;
    let lost = match &*state.borrow() {
        LinkState::Lost { why } => Some(why.clone()),
        // Nobody wished it.
        _ if *wish.borrow() == Stop::No => Some("the link to it has ended".to_owned()),
        LinkState::Connecting { .. } | LinkState::Connected => None,
    };
    match lost {
        Some(why) => Err(Failed::Lost { why }),
        None => Ok(ended),
    }
}

/// Until the link is over.
async fn tell_notices(mut notices: mpsc::Receiver<Notice>, note: Note) {
    while let Some(notice) = notices.recv().await {
        note(Noted::Notice(notice));
    }
}

/// What was made ready from code that is another now, or gone, is of no use.
async fn forget_old<C: Calls>(calls: C, mut catalog: watch::Receiver<Catalog>) {
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
