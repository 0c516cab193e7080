//! How a worker ends: see the drawing in `sam.rs`.

use super::{
    Calls, Stop,
    noted::{How, Noted},
    post::Asker,
    service::{Answered, Posted, Service, now_ms},
};
use crate::{
    transport::{Arrived, LinkState, Receipt},
    wire::code::{Code, Refusal},
};
use std::time::Duration;
use tokio::{sync::mpsc, task, time::Instant};

/// For calls that were cancelled at the end to be answered: their tools get a signal first.
const LAST_GRACE: Duration = Duration::from_secs(15);
/// The same for those in a hurry.
const NO_GRACE: Duration = Duration::from_secs(5);
/// What is on its way to us when we stop listening comes so soon; some of it would not come again.
const QUIET: Duration = Duration::from_millis(500);
/// Requests that are left to others, and that may be cancelled as long as this worker is there.
const MOST_LEFT: usize = 4096;
const BY_END: &str = "this worker is ending";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Nothing is begun; until then calls go on.
    Draining(Instant),
    /// They were cancelled; until then their answers are waited for.
    Cancelling(Instant),
    Cut,
}

impl<C: Calls> Service<C> {
    pub(super) fn heed(&mut self, wish: Stop) {
        let now = Instant::now();
        match (wish, self.phase) {
            (Stop::Drain, Phase::Open) => {
                self.close();
                self.phase = Phase::Draining(now + self.settings.grace);
                self.note(Noted::Draining {
                    running: self.running.len(),
                });
            }
            (Stop::Now, Phase::Open | Phase::Draining(_)) => {
                self.close();
                self.cancel_all();
                self.phase = Phase::Cancelling(now + NO_GRACE);
            }
            (Stop::Now, Phase::Cancelling(until)) => {
                self.phase = Phase::Cancelling(until.min(now + NO_GRACE))
            }
            (Stop::No | Stop::Drain | Stop::Now, _) => {}
        }
    }

    /// Nothing more is begun. What waits is for others, or its askers are told to ask others.
    fn close(&mut self) {
        self.closes.send_replace(true);
        self.asked = Instant::now();
        for ticket in self.desk.close() {
            self.leave(ticket.what.asker);
        }
    }

    /// Silence begins anew. Who listens until the end is asked until then, and would wait for it in vain.
    pub(super) fn was_asked(&mut self) {
        if self.phase == Phase::Open || !self.settings.keeps_listening {
            self.asked = Instant::now();
        }
    }

    pub(super) fn leave(&mut self, asker: Asker) {
        if self.settings.is_kept && asker.receipt.can_go_back() {
            let copies = self.held.remove(&asker.key).unwrap_or_default();
            return self.background(Posted::default(), async move {
                for receipt in copies.into_iter().chain([asker.receipt]) {
                    receipt.release().await;
                }
            });
        }
        if self.is_for_others(&asker.receipt) {
            // It is kept here as well, in case that it is cancelled yet.
            self.left.retain(|other| other.key != asker.key);
            if self.left.len() < MOST_LEFT {
                self.left.push(asker);
            }
            return;
        }
        let refusal = Refusal::new(Code::ToolNotAvailable, BY_END);
        self.refuse(asker, &refusal);
    }

    /// What is not to be done here is for others as soon as this worker is ending.
    pub(super) fn refuse_or_leave(&mut self, asker: Asker, refusal: &Refusal) {
        match self.phase {
            Phase::Open => self.refuse(asker, refusal),
            Phase::Draining(_) | Phase::Cancelling(_) | Phase::Cut => self.leave(asker),
        }
    }

    pub(super) fn late(&mut self, arrived: &mut mpsc::Receiver<Arrived>) {
        let now = Instant::now();
        match self.phase {
            Phase::Draining(until) if until <= now => {
                self.cancel_all();
                self.phase = Phase::Cancelling(now + LAST_GRACE);
            }
            Phase::Cancelling(until) if until <= now => {
                self.count_lost(arrived);
                self.phase = Phase::Cut;
            }
            Phase::Open | Phase::Draining(_) | Phase::Cancelling(_) | Phase::Cut => {}
        }
    }

    /// What is left now reached nobody. Calls whose answer is delayed were let finish, and come again to be answered, if they do;
    /// what is only to be settled weighs nothing.
    fn count_lost(&mut self, arrived: &mut mpsc::Receiver<Arrived>) {
        let is_kept = |task: &task::Id| self.delayed.contains_key(task) && self.comes_again(task);
        let calls = self.of_calls.iter().filter(|(task, _)| !is_kept(task));
        let calls: Vec<_> = calls.map(|(_, key)| key.clone()).collect();
        let unread = std::iter::from_fn(|| arrived.try_recv().ok());
        let unread = unread
            .filter(|message| !self.is_for_others(&message.receipt))
            .count();
        let unsaid = self
            .posted
            .values()
            .filter(|posted| posted.weight > 0)
            .count();
        self.cut.extend(calls);
        self.lost += unread + unsaid;
    }

    /// Whether whoever comes after us has it, if it is not settled.
    fn is_for_others(&self, receipt: &Receipt) -> bool {
        self.settings.is_kept && receipt.comes_again()
    }

    /// Whether the request comes again whose answer this task sends.
    fn comes_again(&self, task: &task::Id) -> bool {
        let held = self.of_calls.get(task).and_then(|key| self.held.get(key));
        held.into_iter()
            .flatten()
            .any(|receipt| self.is_for_others(receipt))
    }

    /// Nobody has the answer of a call, and no more is tried. Whoever cancelled it wants none.
    pub(super) fn unanswered(&mut self, answered: &Answered, held: &[Receipt]) {
        let mut receipts = answered.letter.receipts.iter().chain(held);
        if answered.how != How::Cancelled && !receipts.any(|receipt| self.is_for_others(receipt)) {
            self.cut.insert(answered.key.clone());
        }
    }

    fn cancel_all(&mut self) {
        let keys: Vec<_> = self.running.keys().cloned().collect();
        self.cut.extend(keys.iter().cloned());
        if !keys.is_empty() {
            self.note(Noted::Cutting {
                running: keys.len(),
            });
        }
        for key in keys {
            self.stop(&key, BY_END);
        }
    }

    /// When nothing is left but answers that the broker does not take, they are offered once more and not waited for. Those
    /// that would be lost by that have the time that calls have.
    pub(super) fn hasten(&mut self, nothing_came: bool) {
        let until = match self.phase {
            Phase::Draining(until) if self.delayed.keys().all(|task| self.comes_again(task)) => {
                until
            }
            Phase::Cancelling(until) => until,
            Phase::Open | Phase::Draining(_) | Phase::Cut => return,
        };
        let are_left = !self.delayed.is_empty() && self.tasks.len() == self.delayed.len();
        if are_left && self.is_quiet(nothing_came) && !self.last_try.send_replace(true) {
            self.phase = Phase::Cancelling(until.min(Instant::now() + NO_GRACE));
        }
    }

    pub(super) fn is_over(&self, nothing_came: bool) -> bool {
        match self.phase {
            Phase::Open => false,
            Phase::Draining(_) | Phase::Cancelling(_) => {
                self.tasks.is_empty() && self.is_quiet(nothing_came)
            }
            Phase::Cut => true,
        }
    }

    fn is_quiet(&self, nothing_came: bool) -> bool {
        nothing_came && self.quiet_at() <= Instant::now()
    }

    /// When nothing is expected any more.
    fn quiet_at(&self) -> Instant {
        match self.link {
            LinkState::Connected => self.asked + QUIET,
            LinkState::Connecting { .. } | LinkState::Lost { .. } => self.asked,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            // Askers of calls that wait are told in time that nobody begins them.
            Phase::Open => {
                let left = self.desk.deadline()?.saturating_sub(now_ms());
                Instant::now().checked_add(Duration::from_millis(left))
            }
            Phase::Cut => None,
            Phase::Draining(until) | Phase::Cancelling(until) => {
                let quiet_at = self.quiet_at();
                Some(if quiet_at > Instant::now() {
                    until.min(quiet_at)
                } else {
                    until
                })
            }
        }
    }
}
