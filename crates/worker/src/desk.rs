//! Who may begin, and when: a bound of calls at once, bounds of those that wait, a deadline for each; who was answered
//! before is answered the same again. Decides and remembers; carries nothing out.
//!
//! ```text
//! arrived ─┬─ answered before ─▶ the same answer; under way or waiting ─▶ nothing
//!          ├─ nobody waits for it any more, cannot be done in time, too many wait ─▶ RESOURCE_EXHAUSTED
//!          └─ waits ─▶ has a slot ─▶ is answered
//!               └─ cancelled ─┴─▶ is answered
//! ```

use crate::wire::code::{Code, Refusal};
use bytes::Bytes;
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
    /// The request's own name.
    pub id: String,
    /// Another name that it may be cancelled by.
    pub correlation: String,
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
    /// It is under way under this id.
    UnderWay(String),
    /// Nobody knows it, yet.
    Nobody,
}

/// The desk.
#[derive(Debug)]
pub struct Desk<T> {
    bounds: Bounds,
    waiting: VecDeque<Ticket<T>>,
    waiting_bytes: usize,
    /// By id; how else they are called.
    under_way: HashMap<String, String>,
    answered: HashMap<String, (u64, Bytes)>,
    /// In the order in which they were answered.
    order: VecDeque<String>,
    answered_bytes: usize,
    cancelled: VecDeque<(u64, String)>,
    /// How long calls take, of late.
    usual: Duration,
    /// Nothing more is begun.
    is_closed: bool,
}

impl<T> Desk<T> {
    /// An empty one.
    pub fn new(bounds: Bounds) -> Desk<T> {
        Desk {
            bounds,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            under_way: HashMap::new(),
            answered: HashMap::new(),
            order: VecDeque::new(),
            answered_bytes: 0,
            cancelled: VecDeque::new(),
            usual: Duration::ZERO,
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
        self.waiting_bytes = 0;
        self.waiting.drain(..).collect()
    }

    /// Whether the same call came before.
    pub fn before(&mut self, id: &str, now_ms: u64) -> Option<Before> {
        self.forget(now_ms);
        if let Some((_, answer)) = self.answered.get(id) {
            return Some(Before::Answered(answer.clone()));
        }
        let is_here = self.under_way.contains_key(id) || self.waiting.iter().any(|other| other.id == id);
        is_here.then_some(Before::UnderWay)
    }

    /// Takes a call in.
    pub fn arrive(&mut self, ticket: Ticket<T>, now_ms: u64) -> Arrival<T> {
        match self.before(&ticket.id, now_ms) {
            Some(Before::Answered(answer)) => return Arrival::Answered(ticket.what, answer),
            Some(Before::UnderWay) => return Arrival::Known(ticket.what),
            None => {}
        }
        match self.objection(&ticket, now_ms) {
            Some(why) => Arrival::Refused(ticket.what, Refusal::new(Code::ResourceExhausted, why)),
            None => {
                self.waiting_bytes += ticket.weight;
                self.waiting.push_back(ticket);
                Arrival::Waits
            }
        }
    }

    /// Why a call is not to wait, if so.
    fn objection(&self, ticket: &Ticket<T>, now_ms: u64) -> Option<String> {
        let Bounds { slots, waiting, waiting_bytes } = self.bounds;
        if self.cancelled.iter().any(|(_, name)| *name == ticket.id || *name == ticket.correlation) {
            return Some("it was cancelled before it came".to_owned());
        }
        if self.is_closed {
            return Some("this worker is ending".to_owned());
        }
        if self.waiting.len() >= waiting || self.waiting_bytes.saturating_add(ticket.weight) > waiting_bytes {
            return Some(format!("{} calls wait already", self.waiting.len()));
        }
        let rounds = (self.waiting.len() + self.under_way.len()) / slots.max(1);
        let wait = self.usual.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
        let left = left(ticket, now_ms);
        match left {
            None => Some("nobody waits for it any more".to_owned()),
            Some(left) if wait > left => Some(format!(
                "its turn would come in about {} s, and its asker waits for {} s more",
                wait.as_secs(),
                left.as_secs()
            )),
            Some(_) => None,
        }
    }

    /// The next that may begin, with the time that it has; or one that waited for too long, with none.
    pub fn next(&mut self, now_ms: u64) -> Option<(Ticket<T>, Option<Duration>)> {
        if self.under_way.len() >= self.bounds.slots {
            return None;
        }
        let ticket = self.waiting.pop_front()?;
        self.waiting_bytes -= ticket.weight;
        let time = left(&ticket, now_ms).map(|left| left.min(ticket.timeout));
        if time.is_some() {
            self.under_way.insert(ticket.id.clone(), ticket.correlation.clone());
        }
        Some((ticket, time))
    }

    /// A call is answered, in these words.
    pub fn answered(&mut self, id: &str, answer: Bytes, took: Option<Duration>, now_ms: u64) {
        self.under_way.remove(id);
        if let Some(took) = took {
            // The last few count most.
            self.usual = match self.usual.is_zero() {
                true => took,
                false => (self.usual * 7 + took) / 8,
            };
        }
        self.answered_bytes += answer.len();
        if let Some((_, before)) = self.answered.insert(id.to_owned(), (now_ms, answer)) {
            self.answered_bytes -= before.len();
        } else {
            self.order.push_back(id.to_owned());
        }
        self.forget(now_ms);
    }

    /// A call is over and has no answer: whoever sends it again is served.
    pub fn given_up(&mut self, id: &str) {
        self.under_way.remove(id);
    }

    /// Somebody wants no answer to this any more.
    pub fn cancel(&mut self, name: &str, now_ms: u64) -> Cancelled<T> {
        let is_meant = |ticket: &Ticket<T>| ticket.id == name || ticket.correlation == name;
        if let Some(ticket) = self.waiting.iter().position(is_meant).and_then(|at| self.waiting.remove(at)) {
            self.waiting_bytes -= ticket.weight;
            return Cancelled::Waited(ticket);
        }
        if let Some((id, _)) = self.under_way.iter().find(|(id, other)| *id == name || *other == name) {
            return Cancelled::UnderWay(id.clone());
        }
        if !self.answered.contains_key(name) {
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
            let is_old = self.answered.get(oldest).is_none_or(|(at, _)| *at < since);
            if !is_old && self.order.len() <= MOST_ANSWERED && self.answered_bytes <= MOST_ANSWERED_BYTES {
                break;
            }
            if let Some((_, answer)) = self.answered.remove(oldest) {
                self.answered_bytes -= answer.len();
            }
            self.order.pop_front();
        }
        while self.cancelled.front().is_some_and(|(at, _)| *at < since) {
            self.cancelled.pop_front();
        }
    }
}

/// The time until which something can still be begun that is of use; none if it is over.
fn left<T>(ticket: &Ticket<T>, now_ms: u64) -> Option<Duration> {
    // A clock that goes ahead of ours gives no time away.
    let sent = ticket.sent_ms.min(now_ms);
    let until = sent.saturating_add(millis(ticket.timeout + PATIENCE - ON_THE_WAY));
    let left = until.saturating_sub(now_ms);
    (left > 0).then(|| Duration::from_millis(left))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
