//! Who may begin, and when: a bound of calls at once, bounds of those that wait, a deadline for each; who was answered
//! before is answered the same again. Decides and remembers; carries nothing out.
//!
//! ```text
//! arrived ─┬─ answered before ─▶ the same answer; under way or waiting ─▶ nothing
//!          ├─ nobody waits for it any more, cannot be done in time, too many wait ─▶ RESOURCE_EXHAUSTED
//!          └─ waits ─▶ has a slot ─▶ is answered
//!               └─ cancelled, or its time is up ─┴─▶ is answered
//! ```
//! Those who ask wait in a line each (see `line.rs`), and the lines take turns: whoever asks for much waits for long, and
//! nobody else does.

mod line;

use crate::wire::code::{Code, Refusal};
use bytes::Bytes;
use line::Lines;
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// An asker waits this long beyond the time that it gave the tool.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What an answer takes on its way, at most; a call that would end later is not begun.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// Answers that are remembered, and for how long: a broker sends again what was not settled, soon after it lost us.
const MOST_ANSWERED: usize = 4096;
const MOST_ANSWERED_BYTES: usize = 64 << 20;
const REMEMBERED: Duration = Duration::from_secs(900);
/// Cancellations of calls that have not come yet.
const MOST_CANCELLED: usize = 1024;
/// Tools whose usual time is known.
const MOST_TOOLS: usize = 1024;

/// How much may go on, and wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Bounds {
    pub slots: usize,
    pub waiting: usize,
    pub waiting_bytes: usize,
}

/// A call that asks for its turn. Times are milliseconds since 1970.
#[derive(Debug)]
pub struct Ticket<T> {
    /// By which it is known, and by nothing else: no other has it.
    pub id: String,
    /// What its asker calls it, and may cancel it by.
    pub names: [String; 2],
    /// Who asks: all of one wait in one line.
    pub party: String,
    /// What is asked for: calls of one take about as long as each other.
    pub tool: String,
    /// When it was sent, as its sender says; now, if it does not.
    pub sent_ms: u64,
    /// The time that the tool may have.
    pub timeout: Duration,
    /// What it takes in memory while it waits, in bytes.
    pub weight: usize,
    /// All else.
    pub what: T,
}

/// What is to be done with what came.
#[derive(Debug)]
pub enum Arrival<T> {
    /// It waits; [`Desk::next`] gives it back.
    Waits,
    /// It was answered, in these words, and is answered the same again.
    Answered(T, Bytes),
    /// The same call waits or is under way: one answer is for both.
    Known(T),
    /// It is not begun.
    Refused(T, Refusal),
    /// It was cancelled before it came.
    Cancelled(T),
}

/// What became of a call that came before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// It was answered, in these words.
    Answered(Bytes),
    /// It waits or is under way.
    UnderWay,
}

/// What a cancellation met.
#[derive(Debug)]
pub enum Cancelled<T> {
    /// It waited, and is out.
    Waited(Ticket<T>),
    /// It is under way under this id, or its answer is.
    UnderWay(String),
    /// Nobody knows it, yet.
    Nobody,
}

/// A call that is under way.
#[derive(Debug)]
struct UnderWay {
    names: [String; 2],
    tool: String,
}

/// A call that was answered.
#[derive(Debug)]
struct Answered {
    at_ms: u64,
    names: [String; 2],
    answer: Bytes,
}

/// The desk.
#[derive(Debug)]
pub struct Desk<T> {
    bounds: Bounds,
    waiting: Lines<T>,
    /// By id.
    under_way: HashMap<String, UnderWay>,
    /// Calls that have an answer and no slot, and whose asker does not have it yet: their names, by id.
    delayed: HashMap<String, [String; 2]>,
    answered: HashMap<String, Answered>,
    /// In the order in which they were answered.
    order: VecDeque<String>,
    answered_bytes: usize,
    cancelled: VecDeque<(u64, String)>,
    /// How long calls take, of late, by tool.
    usual: HashMap<String, Duration>,
    /// Nothing more is begun.
    is_closed: bool,
}

impl<T> Desk<T> {
    /// An empty one.
    pub fn new(bounds: Bounds) -> Desk<T> {
        Desk {
            bounds,
            waiting: Lines::default(),
            under_way: HashMap::new(),
            delayed: HashMap::new(),
            answered: HashMap::new(),
            order: VecDeque::new(),
            answered_bytes: 0,
            cancelled: VecDeque::new(),
            usual: HashMap::new(),
            is_closed: false,
        }
    }

    /// How many wait, and how many are under way.
    pub fn load(&self) -> (usize, usize) {
        (self.waiting.len(), self.under_way.len())
    }

    /// From now on nothing is begun; those that wait are given back, and are not answered: others may take them.
    pub fn close(&mut self) -> Vec<Ticket<T>> {
        self.is_closed = true;
        std::iter::from_fn(|| self.waiting.next()).collect()
    }

    /// When nobody waits any more for one of those that wait: then [`Desk::next`] gives it back.
    pub fn deadline(&self) -> Option<u64> {
        self.waiting.iter().map(until).min()
    }

    /// Whether the same call came before.
    pub fn before(&mut self, id: &str, now_ms: u64) -> Option<Before> {
        self.forget(now_ms);
        if let Some(answered) = self.answered.get(id) {
            return Some(Before::Answered(answered.answer.clone()));
        }
        let has_begun = self.under_way.contains_key(id) || self.is_delayed(id);
        let is_here = has_begun || self.waiting.iter().any(|other| other.id == id);
        is_here.then_some(Before::UnderWay)
    }

    /// Takes a call in.
    pub fn arrive(&mut self, mut ticket: Ticket<T>, now_ms: u64) -> Arrival<T> {
        // A clock that goes ahead of ours gives no time away.
        ticket.sent_ms = ticket.sent_ms.min(now_ms);
        match self.before(&ticket.id, now_ms) {
            Some(Before::Answered(answer)) => return Arrival::Answered(ticket.what, answer),
            Some(Before::UnderWay) => return Arrival::Known(ticket.what),
            None => {}
        }
        if self
            .cancelled
            .iter()
            .any(|(_, name)| ticket.is_called(name))
        {
            return Arrival::Cancelled(ticket.what);
        }
        match self.objection(&ticket, now_ms) {
            Some(why) => Arrival::Refused(ticket.what, Refusal::new(Code::ResourceExhausted, why)),
            None => {
                self.waiting.push(ticket);
                Arrival::Waits
            }
        }
    }

    /// Why a call is not to wait, if so.
    fn objection(&self, ticket: &Ticket<T>, now_ms: u64) -> Option<String> {
        if self.is_closed {
            return Some("this worker is ending".to_owned());
        }
        let Some(left) = left(ticket, now_ms) else {
            return Some(too_old(ticket, now_ms));
        };
        // For whom a slot is free, that is place enough.
        let free = self.bounds.slots.saturating_sub(self.under_way.len());
        let bounds = Bounds {
            waiting: self.bounds.waiting.max(free),
            ..self.bounds
        };
        if let Some(why) = self.waiting.objection(ticket, bounds) {
            return Some(why);
        }
        let wait = self.expected_wait(&ticket.party);
        (wait > left).then(|| {
            format!(
                "its turn would come in about {} s, and its asker waits for {} s more",
                wait.as_secs(),
                left.as_secs()
            )
        })
    }

    /// Until the turn of one who comes now: all before it, a slot for each. Of a tool that was never run nothing is known.
    fn expected_wait(&self, party: &str) -> Duration {
        let usual = |tool: &str| self.usual.get(tool).copied().unwrap_or_default();
        let waiting = self.waiting.before(party).map(|ticket| usual(&ticket.tool));
        let under_way = self.under_way.values().map(|call| usual(&call.tool));
        let (count, sum) = waiting
            .chain(under_way)
            .fold((0_usize, Duration::ZERO), |(count, sum), one| {
                (count + 1, sum.saturating_add(one))
            });
        let of = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        sum.saturating_mul(of(count / self.bounds.slots.max(1))) / of(count.max(1))
    }

    /// One that waited until nobody waits for it, with no time; or the next that may begin, with the time that it has.
    pub fn next(&mut self, now_ms: u64) -> Option<(Ticket<T>, Option<Duration>)> {
        if let Some(ticket) = self.waiting.take(|ticket| until(ticket) <= now_ms) {
            return Some((ticket, None));
        }
        if self.under_way.len() >= self.bounds.slots {
            return None;
        }
        let ticket = self.waiting.next()?;
        let time = left(&ticket, now_ms).map(|left| left.min(ticket.timeout));
        let call = UnderWay {
            names: ticket.names.clone(),
            tool: ticket.tool.clone(),
        };
        self.under_way.insert(ticket.id.clone(), call);
        Some((ticket, time))
    }

    /// A call that was under way has an answer that does not get through for now. It is still known, and others may have its
    /// slot.
    pub fn delay(&mut self, id: &str, took: Duration) {
        if let Some(UnderWay { names, tool }) = self.under_way.remove(id) {
            self.learn(tool, took);
            self.delayed.insert(id.to_owned(), names);
        }
    }

    /// Whether it has an answer that does not get through for now, and no slot.
    pub fn is_delayed(&self, id: &str) -> bool {
        self.delayed.contains_key(id)
    }

    /// A call that was under way is answered, in these words.
    pub fn answered(&mut self, id: &str, answer: Bytes, took: Option<Duration>, now_ms: u64) {
        let delayed = self.delayed.remove(id);
        let (names, tool) = self
            .under_way
            .remove(id)
            .map(|call| (call.names, call.tool))
            .unzip();
        if let (Some(tool), Some(took)) = (tool, took) {
            self.learn(tool, took);
        }
        let names = names.or(delayed).unwrap_or_default();
        self.remember(
            id,
            Answered {
                at_ms: now_ms,
                names,
                answer,
            },
        );
    }

    /// A call that was not begun is answered, in these words.
    pub fn refused(&mut self, id: &str, names: [String; 2], answer: Bytes, now_ms: u64) {
        self.under_way.remove(id);
        self.remember(
            id,
            Answered {
                at_ms: now_ms,
                names,
                answer,
            },
        );
    }

    fn remember(&mut self, id: &str, answered: Answered) {
        let now_ms = answered.at_ms;
        self.answered_bytes += answered.answer.len();
        if let Some(before) = self.answered.insert(id.to_owned(), answered) {
            self.answered_bytes -= before.answer.len();
        } else {
            self.order.push_back(id.to_owned());
        }
        self.forget(now_ms);
    }

    fn learn(&mut self, tool: String, took: Duration) {
        if self.usual.len() >= MOST_TOOLS && !self.usual.contains_key(&tool) {
            // Tools come and go; those that are left are soon known again.
            self.usual.clear();
        }
        let usual = self.usual.entry(tool).or_insert(took);
        // The last few count most.
        *usual = (*usual * 7 + took) / 8;
    }

    /// A call is over and has no answer: whoever sends it again is served.
    pub fn given_up(&mut self, id: &str) {
        self.under_way.remove(id);
        self.delayed.remove(id);
    }

    /// Somebody wants no answer to this any more.
    pub fn cancel(&mut self, name: &str, now_ms: u64) -> Cancelled<T> {
        if let Some(ticket) = self.waiting.take(|ticket| ticket.is_called(name)) {
            return Cancelled::Waited(ticket);
        }
        let is_called =
            |id: &String, names: &[String; 2]| id == name || names.iter().any(|one| one == name);
        let under_way = self.under_way.iter().map(|(id, call)| (id, &call.names));
        if let Some((id, _)) = under_way
            .chain(&self.delayed)
            .find(|(id, names)| is_called(id, names))
        {
            return Cancelled::UnderWay(id.clone());
        }
        if !self
            .answered
            .iter()
            .any(|(id, answered)| is_called(id, &answered.names))
        {
            if self.cancelled.len() >= MOST_CANCELLED {
                self.cancelled.pop_front();
            }
            self.cancelled.push_back((now_ms, name.to_owned()));
        }
        Cancelled::Nobody
    }

    /// What is old, or too much.
    fn forget(&mut self, now_ms: u64) {
        let since = now_ms.saturating_sub(millis(REMEMBERED));
        while let Some(oldest) = self.order.front() {
            let is_old = self
                .answered
                .get(oldest)
                .is_none_or(|answered| answered.at_ms < since);
            if !is_old
                && self.order.len() <= MOST_ANSWERED
                && self.answered_bytes <= MOST_ANSWERED_BYTES
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

impl<T> Ticket<T> {
    fn is_called(&self, name: &str) -> bool {
        self.id == name || self.names.iter().any(|one| one == name)
    }
}

/// When nothing that is of use can be begun any more.
fn until<T>(ticket: &Ticket<T>) -> u64 {
    ticket
        .sent_ms
        .saturating_add(millis(ticket.timeout + PATIENCE - ON_THE_WAY))
}

/// The time until then; none if it is over.
fn left<T>(ticket: &Ticket<T>, now_ms: u64) -> Option<Duration> {
    let left = until(ticket).saturating_sub(now_ms);
    (left > 0).then(|| Duration::from_millis(left))
}

fn too_old<T>(ticket: &Ticket<T>, now_ms: u64) -> String {
    let age = now_ms.saturating_sub(ticket.sent_ms) / 1000;
    format!(
        "nobody waits for it any more: its timestamp is {age} s old. If it was sent just now, are the clocks apart?"
    )
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
