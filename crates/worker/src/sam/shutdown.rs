//! Shutdown of a worker: see the state machine in `sam.rs`.

use super::{
    Executor, Shutdown,
    events::{AnswerStatus, WorkerEvent},
    responder::Requester,
    service::{AnsweredCall, SendTask, Service, now_ms},
};
use crate::{
    transport::{IncomingMessage, LinkState, Receipt},
    wire::code::{CallRefusal, MeshErrorCode},
};
use std::time::Duration;
use tokio::{sync::mpsc, task, time::Instant};

/// Time for calls that are cancelled at the end of a drain to be answered: their tools get SIGTERM
/// first.
const DRAIN_CANCEL_GRACE: Duration = Duration::from_secs(15);
/// The same without a drain.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Messages in transit arrive within this time after the unsubscribe; some of them would not be
/// redelivered.
const QUIET_PERIOD: Duration = Duration::from_millis(500);
/// Requests left to other workers that can still be cancelled here.
const MAX_LEFT: usize = 4096;
const ENDED_BY_SHUTDOWN: &str = "this worker is ending";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Nothing is started; running calls go on until then.
    Draining(Instant),
    /// Running calls are cancelled; their answers are awaited until then.
    Cancelling(Instant),
    Cut,
}

impl<C: Executor> Service<C> {
    pub(super) fn handle_shutdown(&mut self, wish: Shutdown) {
        let now = Instant::now();
        match (wish, self.phase) {
            (Shutdown::Drain, Phase::Open) => {
                self.close();
                self.phase = Phase::Draining(now + self.settings.grace);
                self.emit(WorkerEvent::Draining {
                    running: self.running.len(),
                });
            }
            (Shutdown::Now, Phase::Open | Phase::Draining(_)) => {
                self.close();
                self.cancel_all();
                self.phase = Phase::Cancelling(now + CANCEL_GRACE);
            }
            (Shutdown::Now, Phase::Cancelling(until)) => {
                self.phase = Phase::Cancelling(until.min(now + CANCEL_GRACE))
            }
            (Shutdown::No | Shutdown::Drain | Shutdown::Now, _) => {}
        }
    }

    /// Stops starting calls. Queued ones are left to other workers, or their requesters are told to
    /// try elsewhere.
    fn close(&mut self) {
        self.closes.send_replace(true);
        self.asked = Instant::now();
        for pending in self.admission.close() {
            self.leave(pending.payload.requester);
        }
    }

    /// Restarts the quiet period. A worker that stays subscribed until the end would wait for it in
    /// vain.
    pub(super) fn was_asked(&mut self) {
        if self.phase == Phase::Open || !self.settings.keeps_listening {
            self.asked = Instant::now();
        }
    }

    pub(super) fn leave(&mut self, requester: Requester) {
        if self.settings.redelivers && requester.receipt.can_release() {
            let copies = self.held.remove(&requester.key).unwrap_or_default();
            return self.background(SendTask::default(), async move {
                for receipt in copies.into_iter().chain([requester.receipt]) {
                    receipt.release().await;
                }
            });
        }
        if self.is_for_others(&requester.receipt) {
            // Kept, because it may still be cancelled.
            self.left.retain(|other| other.key != requester.key);
            if self.left.len() < MAX_LEFT {
                self.left.push(requester);
            }
            return;
        }
        let refusal = CallRefusal::new(MeshErrorCode::ToolNotAvailable, ENDED_BY_SHUTDOWN);
        self.refuse(requester, &refusal);
    }

    /// During a shutdown a request that is not run here is left to other workers.
    pub(super) fn refuse_or_leave(&mut self, requester: Requester, refusal: &CallRefusal) {
        match self.phase {
            Phase::Open => self.refuse(requester, refusal),
            Phase::Draining(_) | Phase::Cancelling(_) | Phase::Cut => self.leave(requester),
        }
    }

    pub(super) fn handle_deadline(&mut self, arrived: &mut mpsc::Receiver<IncomingMessage>) {
        let now = Instant::now();
        match self.phase {
            Phase::Draining(until) if until <= now => {
                self.cancel_all();
                self.phase = Phase::Cancelling(now + DRAIN_CANCEL_GRACE);
            }
            Phase::Cancelling(until) if until <= now => {
                self.count_lost(arrived);
                self.phase = Phase::Cut;
            }
            Phase::Open | Phase::Draining(_) | Phase::Cancelling(_) | Phase::Cut => {}
        }
    }

    /// Counts what will not be answered. Delayed answers belong to finished calls, which may be
    /// redelivered and answered; pending settlements do not count.
    fn count_lost(&mut self, arrived: &mut mpsc::Receiver<IncomingMessage>) {
        let is_kept =
            |task: &task::Id| self.delayed.contains_key(task) && self.is_redeliverable(task);
        let calls = self.call_tasks.iter().filter(|(task, _)| !is_kept(task));
        let calls: Vec<_> = calls.map(|(_, key)| key.clone()).collect();
        let unread = std::iter::from_fn(|| arrived.try_recv().ok());
        let unread = unread
            .filter(|message| !self.is_for_others(&message.receipt))
            .count();
        let dropped_statuses = self
            .sending
            .values()
            .filter(|sending| sending.weight > 0)
            .count();
        self.cut.extend(calls);
        self.lost += unread + dropped_statuses;
    }

    /// Whether another worker gets the message if it is not settled.
    fn is_for_others(&self, receipt: &Receipt) -> bool {
        self.settings.redelivers && receipt.is_redeliverable()
    }

    /// Whether the request that this task answers is redelivered.
    fn is_redeliverable(&self, task: &task::Id) -> bool {
        let held = self.call_tasks.get(task).and_then(|key| self.held.get(key));
        held.into_iter()
            .flatten()
            .any(|receipt| self.is_for_others(receipt))
    }

    /// The answer of a call was given up. A cancelled call does not count.
    pub(super) fn unanswered(&mut self, answered: &AnsweredCall, held: &[Receipt]) {
        let mut receipts = answered.response.receipts.iter().chain(held);
        if answered.how != AnswerStatus::Cancelled
            && !receipts.any(|receipt| self.is_for_others(receipt))
        {
            self.cut.insert(answered.key.clone());
        }
    }

    fn cancel_all(&mut self) {
        let keys: Vec<_> = self.running.keys().cloned().collect();
        self.cut.extend(keys.iter().cloned());
        if !keys.is_empty() {
            self.emit(WorkerEvent::Cutting {
                running: keys.len(),
            });
        }
        for key in keys {
            self.stop(&key, ENDED_BY_SHUTDOWN);
        }
    }

    /// When only delayed answers are left, they are tried once more. If they would be lost by that,
    /// they get the time that running calls have.
    pub(super) fn shorten_drain(&mut self, nothing_came: bool) {
        let until = match self.phase {
            Phase::Draining(until)
                if self.delayed.keys().all(|task| self.is_redeliverable(task)) =>
            {
                until
            }
            Phase::Cancelling(until) => until,
            Phase::Open | Phase::Draining(_) | Phase::Cut => return,
        };
        let are_left = !self.delayed.is_empty() && self.tasks.len() == self.delayed.len();
        if are_left && self.is_quiet(nothing_came) && !self.last_try.send_replace(true) {
            self.phase = Phase::Cancelling(until.min(Instant::now() + CANCEL_GRACE));
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

    /// When no more messages are expected.
    fn quiet_at(&self) -> Instant {
        match self.link {
            LinkState::Connected => self.asked + QUIET_PERIOD,
            LinkState::Connecting { .. } | LinkState::Lost { .. } => self.asked,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            // Requesters of queued calls are told in time that the call is not started.
            Phase::Open => {
                let left = self.admission.deadline()?.saturating_sub(now_ms());
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
