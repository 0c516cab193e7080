//! What goes out: answers, which are sent until the broker has them, and only then is the request settled.

use super::noted::{How, Note, Noted, Which};
use crate::{
    call::Outcome,
    transport::{Gone, LinkState, Outgoing, Properties, Reach, Receipt, Subscription},
    wire::{
        answer,
        code::{Code, Refusal},
        request::Reply,
    },
};
use bytes::Bytes;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::watch, time::Instant};

/// Sends. Cheap to clone.
#[derive(Clone)]
pub(super) struct Post {
    reach: Reach,
    state: watch::Receiver<LinkState>,
    note: Note,
    pub(super) largest: usize,
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) struct Asker {
    /// By which the same request is known again: its id alone is a stranger's word, and an answer must reach nobody else.
    pub(super) key: String,
    pub(super) id: String,
    pub(super) reply: Reply,
    pub(super) which: Arc<Which>,
    pub(super) receipt: Receipt,
    pub(super) arrived: Instant,
}

/// What an asker was told.
pub(super) struct Said {
    pub(super) answer: Bytes,
    pub(super) sent: Sent,
    /// What the broker took in its stead.
    pub(super) instead: Option<Refusal>,
}

/// What came of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The broker has it.
    Confirmed,
    /// The broker does not want it, and never will.
    Refused,
    /// There is no broker any more.
    Gone,
}

impl Post {
    pub(super) fn new(reach: Reach, state: watch::Receiver<LinkState>, note: Note, largest: usize) -> Post {
        Post { reach, state, note, largest }
    }

    pub(super) fn note(&self, noted: Noted) {
        (self.note)(noted);
    }

    pub(super) async fn subscribe(&self, to: Subscription) {
        self.reach.subscribe(to).await;
    }

    pub(super) async fn unsubscribe(&self, from: Subscription) {
        self.reach.unsubscribe(from).await;
    }

    /// The same for what is worth no second try: a broker that does not take it for now shall not hold the answer back.
    pub(super) async fn mention(
        &self,
        which: &Arc<Which>,
        topic: &str,
        payload: Bytes,
        echoed: &Properties,
    ) -> Sent {
        let properties = answer::properties(echoed, SystemTime::now());
        let sent = self.reach.offer(Outgoing { topic: topic.to_owned(), payload, properties }).await;
        self.judged(sent, Some(which), topic)
    }

    /// Sends, and waits until the broker has it. A failure is noted.
    pub(super) async fn send(
        &self,
        which: Option<&Arc<Which>>,
        topic: &str,
        payload: Bytes,
        echoed: &Properties,
    ) -> Sent {
        let properties = answer::properties(echoed, SystemTime::now());
        let message = Outgoing { topic: topic.to_owned(), payload, properties };
        // What nobody waits for is told again in any case.
        let sent = match which {
            Some(_) => self.reach.publish(message).await,
            None => self.reach.offer(message).await,
        };
        self.judged(sent, which, topic)
    }

    fn judged(&self, sent: Result<(), Gone>, which: Option<&Arc<Which>>, topic: &str) -> Sent {
        match sent {
            Ok(()) => Sent::Confirmed,
            Err(gone) => {
                let (which, topic) = (which.cloned(), topic.to_owned());
                self.note(Noted::PublishFailed { which, topic, why: gone.to_string() });
                match *self.state.borrow() {
                    LinkState::Lost { .. } => Sent::Gone,
                    LinkState::Connecting { .. } | LinkState::Connected => Sent::Refused,
                }
            }
        }
    }

    /// Answers, and settles what is settled by that. An answer that the broker does not want (it may have its own bound of
    /// sizes) is replaced by an error that says so. Gives what was said in the end.
    pub(super) async fn answer(
        &self,
        which: &Arc<Which>,
        id: &str,
        reply: &Reply,
        payload: Bytes,
        receipts: Vec<Receipt>,
    ) -> Said {
        let (mut said, size, mut instead) = (payload.clone(), payload.len(), None);
        let mut sent = self.send(Some(which), &reply.to, payload, &reply.echoed).await;
        if sent == Sent::Refused {
            let why = format!("the broker does not take the answer, which has {size} bytes");
            let refusal = Refusal::new(Code::ExecutionError, why);
            said = Bytes::from(answer::error(id, &refusal));
            instead = Some(refusal);
            sent = self.send(Some(which), &reply.to, said.clone(), &reply.echoed).await;
        }
        // What the broker never takes need not come again, either.
        if sent != Sent::Gone {
            for receipt in receipts {
                receipt.settle().await;
            }
        }
        Said { answer: said, sent, instead }
    }
}

/// The words for an outcome.
pub(super) fn words(asker: &Asker, outcome: &Outcome, ended_by: &str, largest: usize) -> (Vec<u8>, How) {
    let since = asker.arrived.elapsed();
    match outcome {
        Outcome::Success { result, artifacts, .. } => {
            match answer::success(&asker.id, result, since, artifacts, largest) {
                Ok(answer) => (answer, How::Success { artifacts: artifacts.len() }),
                Err(refusal) => (answer::error(&asker.id, &refusal), How::Error(refusal)),
            }
        }
        Outcome::TimedOut { .. } => (answer::timed_out(&asker.id, since), How::TimedOut),
        Outcome::Refused(refusal) => (answer::error(&asker.id, refusal), How::Error(refusal.clone())),
        Outcome::Cancelled => (answer::error(&asker.id, &cancelled(ended_by)), How::Cancelled),
    }
}

/// What whoever cancels is told: an error like any other, but of nothing that could be tried again.
pub(super) fn cancelled(ended_by: &str) -> Refusal {
    Refusal::new(Code::ExecutionError, format!("cancelled: {ended_by}"))
}

/// How long the tool itself ran, where that is known.
pub(super) fn took(outcome: &Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Success { took, .. } | Outcome::TimedOut { took } => Some(*took),
        Outcome::Refused(_) | Outcome::Cancelled => None,
    }
}
