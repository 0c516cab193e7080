//! The one task that owns the desk, and knows every request that is not answered. It waits for nothing but what happens.

use super::{
    Called, Calls, Defaults, Ended, Stop,
    announce::changed,
    clocks::Clocks,
    ending::Phase,
    noted::{How, Note, Noted},
    post::{self, Asker, LARGE, Letter, Post},
    run::{self, Listener},
};
use crate::{
    call::{Order, Outcome},
    desk::{Bounds, Desk, PATIENCE, Ticket},
    tools::Catalog,
    transport::{Arrived, Gone, LinkState, Receipt},
    wire::{
        answer,
        code::{Code, Refusal},
        request::Invoke,
        topic::Base,
    },
};
use bytes::Bytes;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{mpsc, watch},
    task::{self, JoinError, JoinSet},
    time::{Instant, sleep_until},
};

/// What waits for the broker besides the answers of calls, which are bounded by the slots: answers to what was not begun, to
/// questions, and what is settled. Beyond that a request gets no answer, which is noted, and is settled all the same: it comes
/// again only by another connection, and until then the broker would send one less.
const MOST_POSTED: usize = 4096;
/// Of those that are [`LARGE`]: errors find room whatever else waits.
const MOST_POSTED_BYTES: usize = 64 << 20;
pub(super) const TOO_MANY: &str = "too many answers wait for the broker";
/// Answers of calls that the broker does not take for now, and that wait without a slot: no others are kept from beginning. Each
/// is of a request that is not settled, of which a broker sends only so many: see `transport/choose.rs`.
pub(super) const MOST_DELAYED: usize = 64;
const MOST_DELAYED_BYTES: usize = 32 << 20;
/// For no longer they wait, whatever time their askers have: whoever gives a call a day shall not have a place for a day.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// For so long those wait that are too many, each in its slot.
const IN_ITS_SLOT: Duration = Duration::from_secs(8);

/// See [`super::Worker`].
pub(super) struct Settings<C> {
    pub(super) base: Base,
    pub(super) calls: C,
    pub(super) catalog: watch::Receiver<Catalog>,
    pub(super) defaults: Defaults,
    pub(super) grace: Duration,
    pub(super) is_kept: bool,
    pub(super) keeps_listening: bool,
    pub(super) is_full: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(super) note: Note,
}

pub(super) struct Service<C> {
    pub(super) settings: Settings<C>,
    pub(super) post: Post,
    pub(super) desk: Desk<Turn>,
    /// By key.
    pub(super) running: HashMap<String, Running>,
    /// Copies of requests that wait, are under way or are being answered, by key.
    pub(super) held: HashMap<String, Vec<Receipt>>,
    pub(super) tasks: JoinSet<Done>,
    /// Which of the tasks are of calls, by key.
    pub(super) of_calls: HashMap<task::Id, String>,
    /// Which of them send something else.
    pub(super) posted: HashMap<task::Id, Posted>,
    pub(super) posted_bytes: usize,
    /// Which requests they answer, by key.
    pub(super) answering: HashSet<String>,
    /// Which of the tasks send an answer again that has no slot any more, and how much.
    pub(super) delayed: HashMap<task::Id, usize>,
    /// Tells them to try once more and no more.
    pub(super) last_try: watch::Sender<bool>,
    /// What is settled as soon as fewer send something.
    pub(super) unsettled: Vec<Receipt>,
    /// What others may take when this worker has ended.
    pub(super) left: Vec<Asker>,
    pub(super) clocks: Clocks,
    pub(super) strays: mpsc::Sender<String>,
    pub(super) closes: watch::Sender<bool>,
    pub(super) phase: Phase,
    pub(super) link: LinkState,
    pub(super) load: (usize, usize),
    /// Calls that were not let finish, or of whose answer nobody knows, by key: some are both.
    pub(super) cut: HashSet<String>,
    /// What else reached nobody.
    pub(super) lost: usize,
    /// When a call was last asked for, or since when none should be.
    pub(super) asked: Instant,
}

/// A call that waits for its turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) asker: Asker,
    pub(super) invoke: Box<Invoke>,
}

/// A call that runs.
pub(super) struct Running {
    pub(super) asker: Asker,
    pub(super) cancel: watch::Sender<bool>,
    pub(super) started: Instant,
    /// Until then its asker waits.
    pub(super) until: Instant,
    /// Why, if it was cancelled.
    pub(super) ended_by: Option<&'static str>,
}

/// What a task sends besides the answers of calls.
#[derive(Default)]
pub(super) struct Posted {
    pub(super) weight: usize,
    /// Of the request that it answers, if it may come again.
    pub(super) key: Option<String>,
}

/// What a task has done.
pub(super) enum Done {
    Called { key: String, called: Box<Called> },
    Answered(Box<Answered>),
    Posted,
}

pub(super) struct Answered {
    pub(super) key: String,
    pub(super) letter: Letter,
    sent: Result<(), Gone>,
    pub(super) how: How,
    took: Duration,
    queued: Duration,
    /// Until then its asker waits.
    until: Instant,
}

impl<C: Calls> Service<C> {
    pub(super) fn new(
        settings: Settings<C>,
        post: Post,
        bounds: Bounds,
        strays: mpsc::Sender<String>,
        closes: watch::Sender<bool>,
    ) -> Service<C> {
        Service {
            settings,
            post,
            desk: Desk::new(bounds),
            running: HashMap::new(),
            held: HashMap::new(),
            tasks: JoinSet::new(),
            of_calls: HashMap::new(),
            posted: HashMap::new(),
            posted_bytes: 0,
            answering: HashSet::new(),
            delayed: HashMap::new(),
            last_try: watch::Sender::new(false),
            unsettled: Vec::new(),
            left: Vec::new(),
            clocks: Clocks::default(),
            strays,
            closes,
            phase: Phase::Open,
            link: LinkState::Connecting {
                why: String::new(),
                after: 0,
            },
            load: (0, 0),
            cut: HashSet::new(),
            lost: 0,
            asked: Instant::now(),
        }
    }

    /// Until it is told to end, and everything has an answer or has had its time.
    pub(super) async fn run(
        mut self,
        mut arrived: mpsc::Receiver<Arrived>,
        mut link: watch::Receiver<LinkState>,
        mut stop: watch::Receiver<Stop>,
    ) -> Ended {
        let mut is_deaf = false;
        loop {
            let state = link.borrow_and_update().clone();
            self.link_is(state);
            let wish = *stop.borrow_and_update();
            self.heed(wish);
            self.begin();
            self.tell_load();
            self.hasten(arrived.is_empty());
            if self.is_over(arrived.is_empty()) {
                return Ended {
                    cut: self.cut.len() + self.lost,
                };
            }
            let until = self.deadline();
            tokio::select! {
                message = arrived.recv(), if !is_deaf => match message {
                    Some(message) => self.arrived(message),
                    // The link has ended, which its state tells.
                    None => is_deaf = true,
                },
                Some(done) = self.tasks.join_next_with_id() => self.done(done),
                () = changed(&mut link) => {}
                () = changed(&mut stop) => {}
                () = at(until) => self.late(&mut arrived),
            }
            if is_deaf {
                self.heed(Stop::Drain);
            }
        }
    }

    fn link_is(&mut self, state: LinkState) {
        if state == self.link {
            return;
        }
        if matches!(state, LinkState::Lost { .. }) {
            self.heed(Stop::Drain);
        }
        self.link = state.clone();
        self.note(Noted::Link(state));
    }

    fn tell_load(&mut self) {
        let load = self.desk.load();
        if load != self.load {
            self.load = load;
            self.note(Noted::Load {
                waiting: load.0,
                running: load.1,
            });
        }
    }

    pub(super) fn note(&self, noted: Noted) {
        (self.settings.note)(noted);
    }
}

/// Calls.
impl<C: Calls> Service<C> {
    /// All that may.
    fn begin(&mut self) {
        while let Some((ticket, time)) = self.desk.next(now_ms()) {
            let exhausted = |why: &str| Refusal::new(Code::ResourceExhausted, why);
            match time {
                None => self.refuse(
                    ticket.what.asker,
                    &exhausted("it waited until nobody waits for it"),
                ),
                Some(_) if (self.settings.is_full)() => {
                    self.refuse(
                        ticket.what.asker,
                        &exhausted("there is no room left for a tool's files"),
                    );
                }
                Some(time) => {
                    let until = patience(&ticket, now_ms());
                    self.start(ticket.what, time, until);
                }
            }
        }
    }

    /// By what its tool's entry says now, which may have changed while it waited, or be gone. Its asker waits no longer for
    /// that: it may have less time, and no more.
    fn start(&mut self, turn: Turn, time: Duration, until: Instant) {
        let Turn { asker, invoke } = turn;
        let Some(tool) = self.tool(&invoke.tool) else {
            return self.stray(&invoke.tool, asker);
        };
        let (profile, time) = (
            self.profile(&invoke, &tool, &asker.which),
            time.min(self.time(&invoke, &tool)),
        );
        let queued = asker.arrived.elapsed();
        self.note(Noted::Started {
            which: asker.which.clone(),
            profile,
            time,
            queued,
        });
        let (cancel, cancelled) = watch::channel(false);
        let (post, which, reply) = (self.post.clone(), asker.which.clone(), asker.reply.clone());
        let listener = Listener { post, which, reply };
        let order = Order {
            tool,
            invoke,
            time,
            profile,
        };
        let (calls, key) = (self.settings.calls.clone(), asker.key.clone());
        let running = Running {
            asker,
            cancel,
            started: Instant::now(),
            until,
            ended_by: None,
        };
        self.running.insert(key.clone(), running);
        let of = key.clone();
        let task = self.tasks.spawn(async move {
            let called = run::carry_out(calls, order, cancelled, listener).await;
            Done::Called {
                key: of,
                called: Box::new(called),
            }
        });
        self.of_calls.insert(task.id(), key);
    }

    pub(super) fn stop(&mut self, key: &str, why: &'static str) {
        let Some(running) = self.running.get_mut(key) else {
            return;
        };
        running.ended_by.get_or_insert(why);
        running.cancel.send_replace(true);
        let which = running.asker.which.clone();
        self.note(Noted::Cancelled(which));
    }

    fn done(&mut self, done: Result<(task::Id, Done), JoinError>) {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let key = self.of_calls.remove(&id);
        self.delayed.remove(&id);
        let copies = self
            .posted
            .remove(&id)
            .map(|posted| self.was_posted(posted));
        self.settle(copies.unwrap_or_default());
        match (done, key) {
            (Ok((_, Done::Called { key, called })), _) => self.called(&key, *called),
            (Ok((_, Done::Answered(answered))), _) => self.answered(answered),
            (Err(_), Some(key)) if self.running.contains_key(&key) => {
                let why = "the worker failed at this call";
                self.called(
                    &key,
                    Called::from(Outcome::Refused(Refusal::new(Code::InternalError, why))),
                );
            }
            // Its answer could not be sent: whoever sends it again is served.
            (Err(_), Some(key)) => {
                self.desk.given_up(&key);
                self.held.remove(&key);
            }
            (Ok((_, Done::Posted)) | Err(_), _) => {}
        }
    }

    /// There is an outcome: it is said, and the slot is kept until the broker has it. So, while there is no broker, no more
    /// answers gather than there are slots.
    fn called(&mut self, key: &str, called: Called) {
        let Some(running) = self.running.remove(key) else {
            return;
        };
        let Called { outcome, seen } = called;
        self.note(Noted::Ran {
            which: running.asker.which.clone(),
            seen,
        });
        let Running {
            asker,
            started,
            until,
            ended_by,
            ..
        } = running;
        let post = self.post.clone();
        let queued = started - asker.arrived;
        let took = post::took(&outcome).unwrap_or_else(|| started.elapsed());
        let task = self.tasks.spawn(async move {
            let (answer, how) = post::words(
                &asker,
                &outcome,
                ended_by.unwrap_or("nobody says why"),
                post.largest,
            );
            let Asker {
                key,
                id,
                reply,
                which,
                receipt,
                ..
            } = asker;
            let mut letter = Letter::new(which, id, reply, Bytes::from(answer), vec![receipt]);
            let sent = post.answer(&mut letter).await;
            Done::Answered(Box::new(Answered {
                key,
                letter,
                sent,
                how,
                took,
                queued,
                until,
            }))
        });
        self.of_calls.insert(task.id(), key.to_owned());
    }

    fn answered(&mut self, answered: Box<Answered>) {
        let held = self.held.remove(&answered.key).unwrap_or_default();
        match &answered.sent {
            Err(Gone::Over) => {
                self.desk.given_up(&answered.key);
                self.unanswered(&answered, &held);
            }
            Err(Gone::NotNow(why) | Gone::Ended(why) | Gone::HeldBack(why)) => {
                let why = why.clone();
                self.delay(answered, held, why);
            }
            Ok(()) | Err(Gone::Refused(_)) => {
                let Answered {
                    key,
                    letter,
                    how,
                    took,
                    queued,
                    ..
                } = *answered;
                let Letter {
                    which,
                    answer,
                    instead,
                    ..
                } = letter;
                self.desk.answered(&key, answer, Some(took), now_ms());
                self.settle(held);
                let how = instead.map_or(how, How::Error);
                self.note(Noted::Answered {
                    which,
                    how,
                    took,
                    queued,
                });
            }
        }
    }

    /// The broker does not take it for now. It is sent again as long as its asker waits, and its slot is free for others
    /// meanwhile, unless too many wait so: then it keeps its slot, and not for long.
    fn delay(&mut self, mut answered: Box<Answered>, held: Vec<Receipt>, why: String) {
        let letter = &mut answered.letter;
        self.note(Noted::Delayed {
            which: letter.which.clone(),
            why: why.clone(),
        });
        let mut surplus = std::mem::take(&mut letter.receipts);
        surplus.extend(held);
        // One is enough for it to come again: the newest, the others may be of connections that are gone. It is held here and
        // not sent along, so that a copy that comes meanwhile takes its place.
        let newest = surplus.pop().into_iter().collect();
        let (key, weight) = (answered.key.clone(), letter.answer.len());
        self.held.insert(key.clone(), newest);
        let delayed_bytes: usize = self.delayed.values().sum();
        let has_room =
            self.delayed.len() < MOST_DELAYED && delayed_bytes + weight <= MOST_DELAYED_BYTES;
        let longest = if has_room { LONGEST_DELAY } else { IN_ITS_SLOT };
        let until = answered.until.min(Instant::now() + longest);
        let (post, took, last_try) = (self.post.clone(), answered.took, self.last_try.subscribe());
        let task = self.tasks.spawn(async move {
            answered.sent = post
                .insist(&mut answered.letter, why, until, last_try)
                .await;
            Done::Answered(answered)
        });
        if has_room {
            self.desk.delay(&key, took);
            self.delayed.insert(task.id(), weight);
        }
        self.of_calls.insert(task.id(), key);
        self.settle(surplus);
    }
}

/// Answers to what is not run.
impl<C: Calls> Service<C> {
    /// Remembered as well: one that comes again is not run after it was refused.
    pub(super) fn refuse(&mut self, asker: Asker, refusal: &Refusal) {
        self.note(Noted::Refused {
            which: asker.which.clone(),
            refusal: refusal.clone(),
        });
        let answer = Bytes::from(answer::error(&asker.id, refusal));
        let names = [asker.id.clone(), asker.reply.correlation.clone()];
        self.desk
            .refused(&asker.key, names, answer.clone(), now_ms());
        self.dispatch(asker, answer);
    }

    pub(super) fn dispatch(&mut self, asker: Asker, answer: Bytes) {
        let Asker {
            key,
            id,
            reply,
            which,
            receipt,
            ..
        } = asker;
        let mut receipts = self.held.remove(&key).unwrap_or_default();
        receipts.push(receipt);
        self.send(Letter::new(which, id, reply, answer, receipts), Some(key));
    }

    pub(super) fn send(&mut self, letter: Letter, key: Option<String>) {
        let weight = letter.answer.len();
        if !self.has_room(weight) {
            return self.too_many(letter);
        }
        let post = self.post.clone();
        self.answering.extend(key.clone());
        self.background(Posted { weight, key }, async move {
            post.answer_once(letter).await
        });
    }

    /// Gives the copies that came meanwhile.
    fn was_posted(&mut self, posted: Posted) -> Vec<Receipt> {
        self.posted_bytes -= posted.weight;
        let Some(key) = posted.key else {
            return Vec::new();
        };
        self.answering.remove(&key);
        self.held.remove(&key).unwrap_or_default()
    }

    /// Whether one more answer of this weight can wait for the broker.
    pub(super) fn has_room(&self, weight: usize) -> bool {
        let fits = weight < LARGE || self.posted_bytes.saturating_add(weight) <= MOST_POSTED_BYTES;
        fits && self.posted.len() < MOST_POSTED
    }

    fn too_many(&mut self, letter: Letter) {
        let (which, topic, why) = (Some(letter.which), letter.reply.to, TOO_MANY.to_owned());
        self.note(Noted::PublishFailed { which, topic, why });
        self.settle(letter.receipts);
    }

    /// Nothing more is to be done about these. They weigh nothing, and a broker gives only so many before some are settled.
    pub(super) fn settle(&mut self, receipts: Vec<Receipt>) {
        self.unsettled
            .extend(receipts.into_iter().filter(Receipt::comes_again));
        if self.unsettled.is_empty() || self.posted.len() >= MOST_POSTED {
            return;
        }
        let receipts = std::mem::take(&mut self.unsettled);
        self.background(Posted::default(), async move {
            for receipt in receipts {
                receipt.settle().await;
            }
        });
    }

    pub(super) fn background(
        &mut self,
        what: Posted,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.tasks.spawn(async move {
            work.await;
            Done::Posted
        });
        self.posted_bytes += what.weight;
        self.posted.insert(task.id(), what);
    }
}

/// Until when its asker waits.
fn patience(ticket: &Ticket<Turn>, now_ms: u64) -> Instant {
    let age = Duration::from_millis(now_ms.saturating_sub(ticket.sent_ms));
    Instant::now() + (ticket.timeout + PATIENCE).saturating_sub(age)
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
