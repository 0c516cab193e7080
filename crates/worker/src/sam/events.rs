//! Events for log and metrics: names and durations. They contain nothing of requests and answers
//! except the text of refusals.

use crate::{
    call::profile::ToolProfile,
    ipc::ModelUsage,
    transport::{LinkNotice, LinkState},
    wire::{code::CallRefusal, request::Invoke},
};
use spec::LimitName;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Receives events. Must not block.
pub type EventSink = Arc<dyn Fn(WorkerEvent) + Send + Sync>;

/// Ids of a request. Untrusted, but bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestIds {
    /// Id of the request.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// Task id of the agent.
    pub task: String,
    /// Correlation id of the answer.
    pub correlation: String,
    /// Trace id, if there is one.
    pub trace: Option<String>,
}

impl RequestIds {
    pub(super) fn of(invoke: &Invoke) -> Arc<RequestIds> {
        Arc::new(RequestIds {
            id: invoke.id.clone(),
            tool: invoke.tool.clone(),
            task: invoke.task_id.clone(),
            correlation: invoke.reply.correlation.clone(),
            trace: invoke.reply.echoed.get("traceId").cloned(),
        })
    }
}

/// Details of a call for the log. The tool's output is untrusted and may contain secrets that it
/// was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallDetails {
    /// Beginning and end of standard output.
    pub stdout: Vec<u8>,
    /// Beginning and end of standard error.
    pub stderr: Vec<u8>,
    /// Limits that were hit.
    pub limits_hit: BTreeSet<LimitName>,
    /// Remarks for the log.
    pub notes: Vec<String>,
    /// Whether a warm interpreter was used.
    pub was_warm: bool,
    /// Model usage, if a model is configured.
    pub spent: Option<ModelUsage>,
    /// Size of the files that the tool was given, and of those that were saved.
    pub bytes_in: u64,
    /// Size of the saved files, in bytes.
    pub bytes_out: u64,
    /// Statuses dropped at the end: part of [`WorkerEvent::StatusesDropped`].
    pub dropped_statuses: u64,
}

/// How a call was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// With a result.
    Success {
        /// Number of saved files.
        artifacts: usize,
    },
    /// With a timeout.
    TimedOut,
    /// With an error.
    Error(CallRefusal),
    /// With an error, because it was cancelled.
    Cancelled,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// An invocation was parsed.
    Received(Arc<RequestIds>),
    /// An invocation was invalid or is not started; the requester is told.
    Refused {
        /// The request.
        request: Arc<RequestIds>,
        /// The refusal.
        refusal: CallRefusal,
    },
    /// The tool is started.
    Started {
        /// The request.
        request: Arc<RequestIds>,
        /// The profile.
        profile: ToolProfile,
        /// The timeout.
        time: Duration,
        /// Time in the queue.
        queued: Duration,
    },
    /// The tool has run.
    Ran {
        /// The request.
        request: Arc<RequestIds>,
        /// Details of the call.
        seen: CallDetails,
    },
    /// The broker has the answer of a call, or did not take it while it was useful. `took` is the
    /// run alone.
    Answered {
        /// The request.
        request: Arc<RequestIds>,
        /// Kind of answer.
        how: AnswerStatus,
        /// Duration of the run.
        took: Duration,
        /// Time in the queue.
        queued: Duration,
    },
    /// A copy of a request: one answer serves both, or the answer is repeated.
    Duplicate {
        /// The request.
        request: Arc<RequestIds>,
        /// Whether the call was answered before.
        is_answered: bool,
    },
    /// The requester cancelled the call; it is answered all the same.
    Cancelled(Arc<RequestIds>),
    /// The request names an unknown profile.
    UnknownProfile {
        /// The request.
        request: Arc<RequestIds>,
        /// Name of the profile.
        name: String,
        /// The profile that is used.
        instead: ToolProfile,
    },
    /// The request names a profile that is wider than the operator allows.
    ProfileTooWide {
        /// The request.
        request: Arc<RequestIds>,
        /// Name of the profile.
        name: String,
        /// The profile that is used.
        instead: ToolProfile,
    },
    /// A status was forwarded.
    Status(Arc<RequestIds>),
    /// Statuses were dropped by the rate limit, or because the broker closes connections over them.
    StatusesDropped {
        /// The request.
        request: Arc<RequestIds>,
        /// Number of statuses.
        count: u64,
    },
    /// The requester cannot be told: the request has no valid reply address.
    Unanswerable {
        /// Topic of the message.
        topic: String,
        /// The refusal.
        refusal: CallRefusal,
    },
    /// A message could not be published; `request` is none for announcements.
    PublishFailed {
        /// The request.
        request: Option<Arc<RequestIds>>,
        /// Topic of the message.
        topic: String,
        /// The reason.
        why: String,
    },
    /// The broker does not take an answer for now; it is retried.
    Delayed {
        /// The request.
        request: Arc<RequestIds>,
        /// The reason.
        why: String,
    },
    /// This many tools were announced.
    Announced {
        /// Number of tools.
        tools: usize,
    },
    /// State of the link.
    Link(LinkState),
    /// A notice of the link.
    Notice(LinkNotice),
    /// Number of queued and running calls.
    Load {
        /// Queued calls.
        waiting: usize,
        /// Running calls.
        running: usize,
    },
    /// The worker drains; this many calls may finish.
    Draining {
        /// Running calls.
        running: usize,
    },
    /// This many calls are cancelled.
    Cutting {
        /// Running calls.
        running: usize,
    },
}
