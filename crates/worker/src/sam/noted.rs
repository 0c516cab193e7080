//! What happens, for logs and numbers: names and times, nothing of what was asked or answered but the words of refusals.

use crate::{
    call::profile::Profile,
    ipc::Spent,
    transport::{LinkState, Notice},
    wire::{code::Refusal, request::Invoke},
};
use spec::LimitName;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Whom everything is told. Must not wait.
pub type Note = Arc<dyn Fn(Noted) + Send + Sync>;

/// Which request: what it is known by. Strangers' words, bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Which {
    pub id: String,
    pub tool: String,
    pub task: String,
    pub correlation: String,
    pub trace: Option<String>,
}

impl Which {
    pub(super) fn of(invoke: &Invoke) -> Arc<Which> {
        Arc::new(Which {
            id: invoke.id.clone(),
            tool: invoke.tool.clone(),
            task: invoke.task_id.clone(),
            correlation: invoke.reply.correlation.clone(),
            trace: invoke.reply.echoed.get("traceId").cloned(),
        })
    }
}

/// What only the log is told of a call. What a tool wrote is a stranger's, and may have secrets in it that it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Seen {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub limits_hit: BTreeSet<LimitName>,
    pub notes: Vec<String>,
    pub was_warm: bool,
    /// What it spent on models, if it could ask any.
    pub spent: Option<Spent>,
    /// Files that it was given, and that were kept of it.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// What it said at its end, and too much: a part of [`Noted::StatusesDropped`].
    pub unsaid: u64,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum How {
    Success { artifacts: usize },
    TimedOut,
    Error(Refusal),
    Cancelled,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Noted {
    /// An invocation was understood.
    Received(Arc<Which>),
    /// It was not understood, or is not begun; its asker is told.
    Refused { which: Arc<Which>, refusal: Refusal },
    /// The tool is run.
    Started {
        which: Arc<Which>,
        profile: Profile,
        time: Duration,
        queued: Duration,
    },
    /// The tool has run.
    Ran { which: Arc<Which>, seen: Seen },
    /// The broker has the answer of a call that was run, or did not take it as long as it was of use. `took` is the run alone.
    Answered {
        which: Arc<Which>,
        how: How,
        took: Duration,
        queued: Duration,
    },
    /// It came before: the same answer is for both, or is given again.
    Duplicate {
        which: Arc<Which>,
        is_answered: bool,
    },
    /// Its asker wants no answer any more; it gets one all the same.
    Cancelled(Arc<Which>),
    /// The request names a profile that nobody knows.
    UnknownProfile {
        which: Arc<Which>,
        name: String,
        instead: Profile,
    },
    /// The request names a profile that is wider than the operator lets requests be.
    ProfileTooWide {
        which: Arc<Which>,
        name: String,
        instead: Profile,
    },
    /// What a tool said meanwhile was passed on.
    Status(Arc<Which>),
    /// What a tool said meanwhile and too fast, or where the broker ends connections over it.
    StatusesDropped { which: Arc<Which>, count: u64 },
    /// Nobody can be told: it says nowhere where its asker listens.
    Unanswerable { topic: String, refusal: Refusal },
    /// The broker does not take this, or has too much to take; `which` is none for what is told everybody.
    PublishFailed {
        which: Option<Arc<Which>>,
        topic: String,
        why: String,
    },
    /// The broker does not take an answer for now; it is sent again.
    Delayed { which: Arc<Which>, why: String },
    /// Everybody was told of so many tools.
    Announced { tools: usize },
    /// It stands so with the broker.
    Link(LinkState),
    /// What the link noticed.
    Notice(Notice),
    /// So many wait, and run.
    Load { waiting: usize, running: usize },
    /// Nothing more is begun; so many calls are let finish.
    Draining { running: usize },
    /// So many calls are not let finish.
    Cutting { running: usize },
}
