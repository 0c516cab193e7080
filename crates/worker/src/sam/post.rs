//! What goes out: answers, which are sent until the broker has them, and only then is the request settled.

use super::{
    noted::{How, Note, Noted, Which},
    sizes::{Fate, Sizes},
};
use crate::{
    call::Outcome,
    transport::{Family, Gone, Outgoing, Properties, Reach, Receipt, Subscription},
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
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// Between two tries to send an answer that the broker does not take for now; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// An answer over which the broker ends its connections may be too large for it if it is not smaller: the error in its stead is
/// much smaller than this.
pub(super) const LARGE: usize = 8 << 10;

/// Sends. Cheap to clone.
#[derive(Clone)]
pub(super) struct Post {
    reach: Reach,
    note: Note,
    sizes: Arc<Sizes>,
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

/// An answer, and what is settled by it.
pub(super) struct Letter {
    pub(super) which: Arc<Which>,
    pub(super) id: String,
    pub(super) reply: Reply,
    pub(super) answer: Bytes,
    pub(super) receipts: Vec<Receipt>,
    /// What its asker is told in its stead, or is not told: the broker does not take it.
    pub(super) instead: Option<Refusal>,
    /// The broker did not take an error in its stead, either: its size is not the reason.
    is_small_enough: bool,
    /// By it is learnt whether the broker takes such a size again, as soon as it goes.
    is_tried: bool,
    /// It is offered for the last time, whatever is held against its agent.
    is_last: bool,
}

impl Letter {
    pub(super) fn new(
        which: Arc<Which>,
        id: String,
        reply: Reply,
        answer: Bytes,
        receipts: Vec<Receipt>,
    ) -> Letter {
        let (is_small_enough, is_tried, is_last) = (false, false, false);
        Letter {
            which,
            id,
            reply,
            answer,
            receipts,
            instead: None,
            is_small_enough,
            is_tried,
            is_last,
        }
    }

    /// What is said in its stead.
    fn replacement(&self) -> (Bytes, Refusal) {
        let why = format!(
            "the broker does not take the answer, which has {} bytes",
            self.answer.len()
        );
        let refusal = Refusal::new(Code::ExecutionError, why);
        (Bytes::from(answer::error(&self.id, &refusal)), refusal)
    }

    fn replace(&mut self, (answer, refusal): (Bytes, Refusal)) {
        (self.answer, self.instead) = (answer, Some(refusal));
    }

    fn may_be_too_large(&self) -> bool {
        self.instead.is_none() && !self.is_small_enough && self.answer.len() >= LARGE
    }

    async fn settle(&mut self) {
        for receipt in std::mem::take(&mut self.receipts) {
            receipt.settle().await;
        }
    }
}

impl Post {
    pub(super) fn new(reach: Reach, note: Note, largest: usize) -> Post {
        Post {
            reach,
            note,
            sizes: Arc::default(),
            largest,
        }
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

    /// Sends what is worth no second try: a broker that does not take it for now shall hold nothing else back. A failure is
    /// noted, but not again and again what is held back because of one.
    pub(super) async fn mention(
        &self,
        which: Option<&Arc<Which>>,
        topic: &str,
        payload: Bytes,
        echoed: &Properties,
    ) -> Result<(), Gone> {
        let family = which.map_or(Family::Words, |_| audience(topic));
        let sent = self
            .reach
            .publish_of(family, outgoing(topic, payload, echoed))
            .await;
        if let Err(gone @ (Gone::Refused(_) | Gone::NotNow(_) | Gone::Ended(_) | Gone::Over)) =
            &sent
        {
            self.failed(which, topic, &gone.to_string());
        }
        sent
    }

    fn failed(&self, which: Option<&Arc<Which>>, topic: &str, why: &str) {
        let (which, topic, why) = (which.cloned(), topic.to_owned(), why.to_owned());
        self.note(Noted::PublishFailed { which, topic, why });
    }

    /// Answers, and settles what is settled by that. An answer that the broker does not want (it may have its own bound of
    /// sizes), or lately did not want of such a size, is replaced by an error that says so. One that it does not take for now settles nothing.
    pub(super) async fn answer(&self, letter: &mut Letter) -> Result<(), Gone> {
        self.weigh(letter);
        let sent = match self.offer(letter).await {
            Err(Gone::Refused(why)) if letter.instead.is_none() => {
                self.failed(Some(&letter.which), &letter.reply.to, &why);
                letter.replace(letter.replacement());
                self.offer(letter).await
            }
            Err(Gone::Ended(why)) if letter.may_be_too_large() => {
                self.failed(Some(&letter.which), &letter.reply.to, &why);
                self.offer_less(letter, why).await
            }
            sent => sent,
        };
        match &sent {
            Ok(()) => {
                self.sizes.taken(letter.answer.len());
                letter.settle().await;
            }
            Err(Gone::NotNow(_) | Gone::Ended(_) | Gone::HeldBack(_)) => {}
            // What the broker never takes need not come again, either.
            Err(Gone::Refused(why)) => {
                self.failed(Some(&letter.which), &letter.reply.to, why);
                letter.settle().await;
            }
            Err(over @ Gone::Over) => {
                self.failed(Some(&letter.which), &letter.reply.to, &over.to_string())
            }
        }
        sent
    }

    /// Replaces it if the broker lately did not want such a size.
    fn weigh(&self, letter: &mut Letter) {
        if letter.is_tried || !letter.may_be_too_large() {
            return;
        }
        match self.sizes.fate(letter.answer.len(), Instant::now()) {
            Fate::Sent => {}
            Fate::Tried => letter.is_tried = true,
            Fate::Replaced => letter.replace(letter.replacement()),
        }
    }

    async fn offer(&self, letter: &Letter) -> Result<(), Gone> {
        let Reply { to, echoed, .. } = &letter.reply;
        let (family, message) = (audience(to), outgoing(to, letter.answer.clone(), echoed));
        match self.reach.publish_of(family.clone(), message.clone()).await {
            // A connection that the broker ends over it costs nobody anything then.
            Err(Gone::HeldBack(_)) if letter.is_last => {
                self.reach.publish_alone(family, message).await
            }
            sent => sent,
        }
    }

    /// Offers an error, at once and alone, which tells whether it was the size.
    async fn offer_less(&self, letter: &mut Letter, why: String) -> Result<(), Gone> {
        let Reply { to, echoed, .. } = &letter.reply;
        let (error, refusal) = letter.replacement();
        match self
            .reach
            .publish_alone(audience(to), outgoing(to, error.clone(), echoed))
            .await
        {
            Ok(()) => {
                self.sizes
                    .replaced(letter.answer.len(), letter.is_tried, Instant::now());
                letter.replace((error, refusal));
            }
            Err(Gone::Over) => return Err(Gone::Over),
            Err(_) => {
                letter.is_small_enough = true;
                return Err(Gone::NotNow(why));
            }
        }
        Ok(())
    }

    /// Answers what was not run. Nothing is lost with that but words, so that it is tried once: whoever asks nonsense in the
    /// name of those who do not listen shall not keep others waiting.
    pub(super) async fn answer_once(&self, mut letter: Letter) {
        if let Err(Gone::NotNow(why) | Gone::Ended(why) | Gone::HeldBack(why)) =
            self.answer(&mut letter).await
        {
            self.give_up(&mut letter, why).await;
        }
    }

    /// Answers again and again what the broker did not take, as long as its asker may wait for it. Told that this is the last
    /// try, it is not settled if that fails: whoever comes after us may have more luck.
    pub(super) async fn insist(
        &self,
        letter: &mut Letter,
        mut why: String,
        until: Instant,
        mut last_try: watch::Receiver<bool>,
    ) -> Result<(), Gone> {
        let mut pause = FIRST_PAUSE;
        while Instant::now() + pause <= until {
            letter.is_last = tokio::select! {
                () = sleep(pause) => false,
                _ = last_try.wait_for(|is| *is) => true,
            };
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.answer(letter).await {
                Err(Gone::NotNow(why) | Gone::Ended(why) | Gone::HeldBack(why))
                    if letter.is_last =>
                {
                    self.failed(Some(&letter.which), &letter.reply.to, &why);
                    return Err(Gone::Over);
                }
                Err(Gone::NotNow(again) | Gone::Ended(again) | Gone::HeldBack(again)) => {
                    why = again
                }
                sent => return sent,
            }
        }
        self.give_up(letter, why.clone()).await;
        Err(Gone::Refused(why))
    }

    /// Nobody waits for it any more, or too many others do. It is settled: the broker sends only so many that are not, and this
    /// one would come again to be refused.
    async fn give_up(&self, letter: &mut Letter, why: String) {
        self.failed(Some(&letter.which), &letter.reply.to, &why);
        let told = format!("the broker did not take the answer while it was of use: {why}");
        letter.instead = Some(Refusal::new(Code::ExecutionError, told));
        if letter.is_tried {
            self.sizes.not_learnt(Instant::now());
        }
        letter.settle().await;
    }
}

fn outgoing(topic: &str, payload: Bytes, echoed: &Properties) -> Outgoing {
    let properties = answer::properties(echoed, SystemTime::now());
    Outgoing {
        topic: topic.to_owned(),
        payload,
        properties,
    }
}

/// An agent has a topic for each of its calls, and one queue for all of them.
fn audience(topic: &str) -> Family {
    Family::Audience(
        topic
            .rsplit_once('/')
            .map_or(topic, |(audience, _)| audience)
            .to_owned(),
    )
}

/// The words for an outcome.
pub(super) fn words(
    asker: &Asker,
    outcome: &Outcome,
    ended_by: &str,
    largest: usize,
) -> (Vec<u8>, How) {
    let since = asker.arrived.elapsed();
    match outcome {
        Outcome::Success {
            result, artifacts, ..
        } => match answer::success(&asker.id, result, since, artifacts, largest) {
            Ok(answer) => (
                answer,
                How::Success {
                    artifacts: artifacts.len(),
                },
            ),
            Err(refusal) => (answer::error(&asker.id, &refusal), How::Error(refusal)),
        },
        Outcome::TimedOut { .. } => (answer::timed_out(&asker.id, since), How::TimedOut),
        Outcome::Refused(refusal) => (
            answer::error(&asker.id, refusal),
            How::Error(refusal.clone()),
        ),
        Outcome::Cancelled => (
            answer::error(&asker.id, &cancelled(ended_by)),
            How::Cancelled,
        ),
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
