//! Admission control for tool calls: slots, a bounded queue, deadlines and duplicate suppression.
//! Decides and remembers; runs nothing.
//!
//! ```text
//! arrived ─┬─ answered before ─▶ the same answer; running or queued ─▶ nothing
//!          ├─ deadline passed, cannot start in time, queue full ─▶ RESOURCE_EXHAUSTED
//!          └─ queued ─▶ gets a slot ─▶ answered
//!               └─ cancelled, or deadline passed ─┴─▶ answered
//! ```
//! Each client has its own queue (see `fair_queue.rs`) and the queues take turns, so a client that
//! sends many calls delays only itself.

mod fair_queue;

use crate::wire::code::{CallRefusal, MeshErrorCode};
use bytes::Bytes;
use fair_queue::FairQueue;
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// A requester waits this long beyond the timeout that it gave the tool.
pub const CLIENT_GRACE: Duration = Duration::from_secs(10);
/// Upper bound for the delivery of an answer; a call that would end later than this is not started.
const DELIVERY_MARGIN: Duration = Duration::from_secs(1);
/// Answers kept to answer duplicates, and for how long: a broker redelivers unsettled messages soon
/// after a connection is lost.
const MAX_ANSWERED: usize = 4096;
const MAX_ANSWERED_BYTES: usize = 64 << 20;
const ANSWER_RETENTION: Duration = Duration::from_secs(900);
/// Cancellations that arrived before their call.
const MAX_CANCELLED: usize = 1024;
/// Tools whose typical duration is tracked.
const MAX_TOOLS: usize = 1024;

/// Bounds of running and queued calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Concurrent calls.
    pub slots: usize,
    /// Queued calls.
    pub waiting: usize,
    /// Memory of queued calls, in bytes.
    pub waiting_bytes: usize,
}

/// A call that waits for a slot. Times are milliseconds since 1970.
#[derive(Debug)]
pub struct PendingCall<T> {
    /// Unique key of the call.
    pub id: String,
    /// Names by which the requester knows the call and may cancel it.
    pub names: [String; 2],
    /// The client that sent the call. Each client has one queue.
    pub client: String,
    /// The tool; calls of one tool take about equally long.
    pub tool: String,
    /// When the sender says that it sent the call; the time of arrival if it does not say.
    pub sent_ms: u64,
    /// Timeout of the tool.
    pub timeout: Duration,
    /// Memory that the call takes while it is queued, in bytes.
    pub weight: usize,
    /// Everything else that is needed to run the call.
    pub payload: T,
}

/// What to do with a call that arrived.
#[derive(Debug)]
pub enum Arrival<T> {
    /// The call is queued; [`Admission::next`] returns it.
    Queued,
    /// The call was answered before; the same answer is sent again.
    Answered(T, Bytes),
    /// The same call is queued or running: one answer serves both.
    Known(T),
    /// The call is not started.
    Refused(T, CallRefusal),
    /// The call was cancelled before it arrived.
    Cancelled(T),
}

/// State of an earlier copy of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorCall {
    /// It was answered with this message.
    Answered(Bytes),
    /// It is queued or running.
    Active,
}

/// Effect of a cancellation.
#[derive(Debug)]
pub enum CancelOutcome<T> {
    /// The call was queued and is removed from the queue.
    Removed(PendingCall<T>),
    /// The call with this key is running, or its answer is being sent.
    Active(String),
    /// No such call is known yet.
    Unknown,
}

/// A running call.
#[derive(Debug)]
struct ActiveCall {
    names: [String; 2],
    tool: String,
}

/// An answered call.
#[derive(Debug)]
struct AnsweredCall {
    at_ms: u64,
    names: [String; 2],
    answer: Bytes,
}

/// Admission control with its queue, running calls and remembered answers.
#[derive(Debug)]
pub struct Admission<T> {
    bounds: AdmissionLimits,
    waiting: FairQueue<T>,
    /// By key.
    under_way: HashMap<String, ActiveCall>,
    /// Calls without a slot whose answer the requester does not have yet: their names, by key.
    delayed: HashMap<String, [String; 2]>,
    answered: HashMap<String, AnsweredCall>,
    /// Keys in the order in which the calls were answered.
    order: VecDeque<String>,
    answered_bytes: usize,
    cancelled: VecDeque<(u64, String)>,
    /// Moving average of call durations, by tool.
    typical_durations: HashMap<String, Duration>,
    /// After a close nothing is started.
    is_closed: bool,
}

impl<T> Admission<T> {
    /// Without any calls.
    pub fn new(bounds: AdmissionLimits) -> Admission<T> {
        Admission {
            bounds,
            waiting: FairQueue::default(),
            under_way: HashMap::new(),
            delayed: HashMap::new(),
            answered: HashMap::new(),
            order: VecDeque::new(),
            answered_bytes: 0,
            cancelled: VecDeque::new(),
            typical_durations: HashMap::new(),
            is_closed: false,
        }
    }

    /// Number of queued and of running calls.
    pub fn load(&self) -> (usize, usize) {
        (self.waiting.len(), self.under_way.len())
    }

    /// Stops starting calls. The queued calls are returned unanswered, so that another worker can
    /// take them.
    pub fn close(&mut self) -> Vec<PendingCall<T>> {
        self.is_closed = true;
        std::iter::from_fn(|| self.waiting.next()).collect()
    }

    /// The next deadline of a queued call; after it [`Admission::next`] returns that call.
    pub fn deadline(&self) -> Option<u64> {
        self.waiting.iter().map(start_deadline).min()
    }

    /// Looks up an earlier copy of the same call.
    pub fn find_prior(&mut self, id: &str, now_ms: u64) -> Option<PriorCall> {
        self.prune(now_ms);
        if let Some(answered) = self.answered.get(id) {
            return Some(PriorCall::Answered(answered.answer.clone()));
        }
        let has_begun = self.under_way.contains_key(id) || self.is_delayed(id);
        let is_here = has_begun || self.waiting.iter().any(|other| other.id == id);
        is_here.then_some(PriorCall::Active)
    }

    /// Admits, queues or refuses a call.
    pub fn admit(&mut self, mut pending: PendingCall<T>, now_ms: u64) -> Arrival<T> {
        // A sender whose clock is ahead of ours gains no time by it.
        pending.sent_ms = pending.sent_ms.min(now_ms);
        match self.find_prior(&pending.id, now_ms) {
            Some(PriorCall::Answered(answer)) => return Arrival::Answered(pending.payload, answer),
            Some(PriorCall::Active) => return Arrival::Known(pending.payload),
            None => {}
        }
        if self
            .cancelled
            .iter()
            .any(|(_, name)| pending.has_name(name))
        {
            return Arrival::Cancelled(pending.payload);
        }
        match self.rejection(&pending, now_ms) {
            Some(why) => Arrival::Refused(
                pending.payload,
                CallRefusal::new(MeshErrorCode::ResourceExhausted, why),
            ),
            None => {
                self.waiting.push(pending);
                Arrival::Queued
            }
        }
    }

    /// Why a call is not queued, if it is refused.
    fn rejection(&self, pending: &PendingCall<T>, now_ms: u64) -> Option<String> {
        if self.is_closed {
            return Some("this worker is ending".to_owned());
        }
        let Some(time_left) = time_left(pending, now_ms) else {
            return Some(too_old_message(pending, now_ms));
        };
        // With a free slot the call does not wait, whatever the size of the queue.
        let free = self.bounds.slots.saturating_sub(self.under_way.len());
        let bounds = AdmissionLimits {
            waiting: self.bounds.waiting.max(free),
            ..self.bounds
        };
        if let Some(why) = self.waiting.rejection(pending, bounds) {
            return Some(why);
        }
        let wait = self.expected_wait(&pending.client);
        (wait > time_left).then(|| {
            format!(
                "its turn would come in about {} s, and its asker waits for {} s more",
                wait.as_secs(),
                time_left.as_secs()
            )
        })
    }

    /// Expected time until a call of this client gets a slot. Tools that never ran count as zero.
    fn expected_wait(&self, client: &str) -> Duration {
        let typical = |tool: &str| {
            self.typical_durations
                .get(tool)
                .copied()
                .unwrap_or_default()
        };
        let waiting = self
            .waiting
            .before(client)
            .map(|pending| typical(&pending.tool));
        let under_way = self.under_way.values().map(|call| typical(&call.tool));
        let (count, sum) = waiting
            .chain(under_way)
            .fold((0_usize, Duration::ZERO), |(count, sum), one| {
                (count + 1, sum.saturating_add(one))
            });
        let of = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        sum.saturating_mul(of(count / self.bounds.slots.max(1))) / of(count.max(1))
    }

    /// The next call whose deadline has passed (without a time), or the next call that gets a slot
    /// (with the time it has left).
    pub fn next(&mut self, now_ms: u64) -> Option<(PendingCall<T>, Option<Duration>)> {
        if let Some(pending) = self
            .waiting
            .take(|pending| start_deadline(pending) <= now_ms)
        {
            return Some((pending, None));
        }
        if self.under_way.len() >= self.bounds.slots {
            return None;
        }
        let pending = self.waiting.next()?;
        let time = time_left(&pending, now_ms).map(|time_left| time_left.min(pending.timeout));
        let call = ActiveCall {
            names: pending.names.clone(),
            tool: pending.tool.clone(),
        };
        self.under_way.insert(pending.id.clone(), call);
        Some((pending, time))
    }

    /// A running call has an answer that the broker does not take yet. The call stays known, and
    /// its slot is free.
    pub fn delay(&mut self, id: &str, took: Duration) {
        if let Some(ActiveCall { names, tool }) = self.under_way.remove(id) {
            self.record_duration(tool, took);
            self.delayed.insert(id.to_owned(), names);
        }
    }

    /// Whether the call has given up its slot while its answer waits for the broker.
    pub fn is_delayed(&self, id: &str) -> bool {
        self.delayed.contains_key(id)
    }

    /// A running call has been answered with this message.
    pub fn record_answer(&mut self, id: &str, answer: Bytes, took: Option<Duration>, now_ms: u64) {
        let delayed = self.delayed.remove(id);
        let (names, tool) = self
            .under_way
            .remove(id)
            .map(|call| (call.names, call.tool))
            .unzip();
        if let (Some(tool), Some(took)) = (tool, took) {
            self.record_duration(tool, took);
        }
        let names = names.or(delayed).unwrap_or_default();
        self.store_answer(
            id,
            AnsweredCall {
                at_ms: now_ms,
                names,
                answer,
            },
        );
    }

    /// A call that was not started has been answered with this message.
    pub fn record_refusal(&mut self, id: &str, names: [String; 2], answer: Bytes, now_ms: u64) {
        self.under_way.remove(id);
        self.store_answer(
            id,
            AnsweredCall {
                at_ms: now_ms,
                names,
                answer,
            },
        );
    }

    fn store_answer(&mut self, id: &str, answered: AnsweredCall) {
        let now_ms = answered.at_ms;
        self.answered_bytes += answered.answer.len();
        if let Some(before) = self.answered.insert(id.to_owned(), answered) {
            self.answered_bytes -= before.answer.len();
        } else {
            self.order.push_back(id.to_owned());
        }
        self.prune(now_ms);
    }

    fn record_duration(&mut self, tool: String, took: Duration) {
        if self.typical_durations.len() >= MAX_TOOLS && !self.typical_durations.contains_key(&tool)
        {
            // Tools come and go; the averages of those that are left are soon rebuilt.
            self.typical_durations.clear();
        }
        let typical = self.typical_durations.entry(tool).or_insert(took);
        // Exponential moving average: recent calls count most.
        *typical = (*typical * 7 + took) / 8;
    }

    /// A call has ended without an answer; a redelivered copy will be run.
    pub fn abandon(&mut self, id: &str) {
        self.under_way.remove(id);
        self.delayed.remove(id);
    }

    /// The requester cancels the call of this name.
    pub fn cancel(&mut self, name: &str, now_ms: u64) -> CancelOutcome<T> {
        if let Some(pending) = self.waiting.take(|pending| pending.has_name(name)) {
            return CancelOutcome::Removed(pending);
        }
        let has_name =
            |id: &String, names: &[String; 2]| id == name || names.iter().any(|one| one == name);
        let under_way = self.under_way.iter().map(|(id, call)| (id, &call.names));
        if let Some((id, _)) = under_way
            .chain(&self.delayed)
            .find(|(id, names)| has_name(id, names))
        {
            return CancelOutcome::Active(id.clone());
        }
        if !self
            .answered
            .iter()
            .any(|(id, answered)| has_name(id, &answered.names))
        {
            if self.cancelled.len() >= MAX_CANCELLED {
                self.cancelled.pop_front();
            }
            self.cancelled.push_back((now_ms, name.to_owned()));
        }
        CancelOutcome::Unknown
    }

    /// Drops remembered answers and cancellations that are too old or too many.
    fn prune(&mut self, now_ms: u64) {
        let since = now_ms.saturating_sub(millis(ANSWER_RETENTION));
        while let Some(oldest) = self.order.front() {
            let is_old = self
                .answered
                .get(oldest)
                .is_none_or(|answered| answered.at_ms < since);
            if !is_old
                && self.order.len() <= MAX_ANSWERED
                && self.answered_bytes <= MAX_ANSWERED_BYTES
            {
                break;
            }
            if let Some(answered) = self.answered.remove(oldest) {
                self.answered_bytes -= answered.answer.len();
            }
            self.order.pop_front();
        }
        while self.cancelled.front().is_some_and(|(at, _)| *at < since) {
            self.cancelled.pop_front();
        }
    }
}

impl<T> PendingCall<T> {
    fn has_name(&self, name: &str) -> bool {
        self.id == name || self.names.iter().any(|one| one == name)
    }
}

/// The latest time at which it is still useful to start the call.
fn start_deadline<T>(pending: &PendingCall<T>) -> u64 {
    pending
        .sent_ms
        .saturating_add(millis(pending.timeout + CLIENT_GRACE - DELIVERY_MARGIN))
}

/// Time until then; none if it has passed.
fn time_left<T>(pending: &PendingCall<T>, now_ms: u64) -> Option<Duration> {
    let time_left = start_deadline(pending).saturating_sub(now_ms);
    (time_left > 0).then(|| Duration::from_millis(time_left))
}

fn too_old_message<T>(pending: &PendingCall<T>, now_ms: u64) -> String {
    let age = now_ms.saturating_sub(pending.sent_ms) / 1000;
    format!(
        "nobody waits for it any more: its timestamp is {age} s old. If it was sent just now, are the clocks apart?"
    )
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
