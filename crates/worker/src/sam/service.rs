//! The one task that owns the desk, and knows every request that is not answered. It waits for nothing but what happens.

use super::{
    Called, Calls, Defaults, Ended, Stop,
    announce::changed,
    noted::{How, Note, Noted, Which},
    post::{self, Asker, Post, Sent},
    run::{self, Listener},
};
use crate::{
    call::{Order, Outcome, profile::Profile},
    desk::{Arrival, Before, Bounds, Cancelled, Desk, Ticket},
    tools::{Catalog, Tool},
    transport::{Arrived, LinkState, Receipt},
    wire::{
        answer,
        code::{Code, Refusal},
        request::{
            self, InitRequest, Invoke, LONGEST_TIMEOUT, Message, Refused, Reply, Request, SHORTEST_TIMEOUT,
            Unread,
        },
        topic::{Base, Topic},
    },
};
use bytes::Bytes;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{mpsc, watch},
    task::{self, JoinError, JoinSet},
    time::{Instant, sleep_until},
};

/// What waits for the broker besides the answers of calls, which are bounded by the slots: answers to what was not begun, to
/// questions, and what is settled. Beyond that a request gets no answer; it is not settled, either.
const MOST_POSTED: usize = 4096;
const MOST_POSTED_BYTES: usize = 64 << 20;
/// Copies of one request that wait for its answer. Of older ones the broker has been told, or their connection is gone.
const MOST_HELD: usize = 8;
/// For calls that were cancelled at the end to be answered: their tools get a signal first.
const LAST_GRACE: Duration = Duration::from_secs(15);
/// The same for those in a hurry.
const NO_GRACE: Duration = Duration::from_secs(5);

/// What is on its way to us when we stop listening comes so soon; some of it would not come again.
const QUIET: Duration = Duration::from_millis(500);

const BY_ASKER: &str = "its asker wants no answer any more";
const BY_END: &str = "this worker is ending";

/// See [`super::Worker`].
pub(super) struct Settings<C> {
    pub(super) base: Base,
    pub(super) calls: C,
    pub(super) catalog: watch::Receiver<Catalog>,
    pub(super) defaults: Defaults,
    pub(super) grace: Duration,
    pub(super) is_kept: bool,
    pub(super) is_full: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(super) note: Note,
}

pub(super) struct Service<C> {
    settings: Settings<C>,
    post: Post,
    desk: Desk<Turn>,
    /// By key.
    running: HashMap<String, Running>,
    /// Copies of requests that wait or are under way, by key.
    held: HashMap<String, Vec<Receipt>>,
    tasks: JoinSet<Done>,
    /// Which of the tasks are of calls, by key.
    of_calls: HashMap<task::Id, String>,
    posted: usize,
    posted_bytes: usize,
    strays: mpsc::Sender<String>,
    closes: watch::Sender<bool>,
    phase: Phase,
    link: LinkState,
    load: (usize, usize),
    cut: usize,
    /// When a call was last asked for, or since when none should be.
    asked: Instant,
}

/// A call that waits for its turn.
#[derive(Debug)]
struct Turn {
    asker: Asker,
    tool: Arc<Tool>,
    invoke: Box<Invoke>,
    profile: Profile,
}

/// A call that runs.
struct Running {
    asker: Asker,
    cancel: watch::Sender<bool>,
    started: Instant,
    /// Why, if it was cancelled.
    ended_by: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing is begun; until then calls go on.
    Draining(Instant),
    /// They were cancelled; until then their answers are waited for.
    Cancelling(Instant),
    Cut,
}

/// What a task has done.
enum Done {
    Called { key: String, called: Box<Called> },
    Answered(Box<Answered>),
    Posted { weight: usize },
}

struct Answered {
    key: String,
    which: Arc<Which>,
    answer: Bytes,
    sent: Sent,
    how: How,
    took: Duration,
    queued: Duration,
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
            posted: 0,
            posted_bytes: 0,
            strays,
            closes,
            phase: Phase::Open,
            link: LinkState::Connecting { why: String::new() },
            load: (0, 0),
            cut: 0,
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
            if self.is_over(arrived.is_empty()) {
                return Ended { cut: self.cut };
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
                () = at(until) => self.late(arrived.len()),
            }
            if is_deaf {
                self.heed(Stop::Drain);
            }
        }
    }

    fn is_over(&self, nothing_came: bool) -> bool {
        match self.phase {
            Phase::Open => false,
            Phase::Draining(_) | Phase::Cancelling(_) => {
                self.tasks.is_empty() && nothing_came && self.quiet_at() <= Instant::now()
            }
            Phase::Cut => true,
        }
    }

    /// When nothing is expected any more.
    fn quiet_at(&self) -> Instant {
        match self.link {
            LinkState::Connected => self.asked + QUIET,
            LinkState::Connecting { .. } | LinkState::Lost { .. } => self.asked,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open | Phase::Cut => None,
            Phase::Draining(until) | Phase::Cancelling(until) => {
                let quiet_at = self.quiet_at();
                Some(if quiet_at > Instant::now() { until.min(quiet_at) } else { until })
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
            self.note(Noted::Load { waiting: load.0, running: load.1 });
        }
    }

    fn note(&self, noted: Noted) {
        (self.settings.note)(noted);
    }
}

/// What arrives.
impl<C: Calls> Service<C> {
    fn arrived(&mut self, arrived: Arrived) {
        let Arrived { topic, payload, properties, receipt } = arrived;
        let message = Message { topic: &topic, payload: &payload, properties: &properties };
        match request::read(&self.settings.base, message, self.settings.defaults.largest) {
            Ok(Request::Invoke(invoke)) => self.invoked(invoke, receipt, payload.len()),
            Ok(Request::Init(asked)) => self.asked(*asked, receipt),
            Ok(Request::Cancel(name)) => {
                self.settle(vec![receipt]);
                self.cancel(&name);
            }
            Err(Unread::NotARequest) => self.settle(vec![receipt]),
            Err(Unread::Refused(refused)) => self.misunderstood(&topic, *refused, receipt),
            Err(Unread::Unanswerable(refusal)) => {
                self.note(Noted::Unanswerable { topic, refusal });
                self.settle(vec![receipt]);
            }
        }
    }

    fn invoked(&mut self, invoke: Box<Invoke>, receipt: Receipt, weight: usize) {
        let which = Which::of(&invoke);
        self.asked = Instant::now();
        self.note(Noted::Received(which.clone()));
        let (id, reply) = (invoke.id.clone(), invoke.reply.clone());
        let key = format!("{}\n{}\n{id}", invoke.tool, reply.to);
        let asker = Asker { key, id, reply, which, receipt, arrived: Instant::now() };
        let now = now_ms();
        // First of all: a call goes on though its tool is gone, and one that is refused now is not run later.
        match self.desk.before(&asker.key, now) {
            Some(Before::Answered(answer)) => return self.answer_again(asker, answer),
            Some(Before::UnderWay) => return self.hold(asker),
            None => {}
        }
        let tool = self.settings.catalog.borrow().get(&invoke.tool).cloned();
        let Some(tool) = tool else { return self.stray(&invoke.tool, asker) };
        let ticket = Ticket {
            id: asker.key.clone(),
            correlation: asker.reply.correlation.clone(),
            sent_ms: asker.reply.sent_ms.unwrap_or(now),
            timeout: self.time(&invoke, &tool),
            weight,
            what: Turn { profile: self.profile(&invoke, &tool, &asker.which), asker, tool, invoke },
        };
        match self.desk.arrive(ticket, now) {
            Arrival::Waits => {}
            Arrival::Answered(turn, answer) => self.answer_again(turn.asker, answer),
            Arrival::Known(turn) => self.hold(turn.asker),
            Arrival::Refused(turn, refusal) => match self.phase {
                Phase::Open => self.refuse(turn.asker, &refusal),
                Phase::Draining(_) | Phase::Cancelling(_) | Phase::Cut => self.leave(turn.asker),
            },
        }
    }

    /// What the request says, or its tool, or nobody.
    fn time(&self, invoke: &Invoke, tool: &Tool) -> Duration {
        let said = invoke.timeout.or(tool.timeout).unwrap_or(self.settings.defaults.timeout);
        said.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
    }

    /// What its entry insists on, or the request wishes.
    fn profile(&self, invoke: &Invoke, tool: &Tool, which: &Arc<Which>) -> Profile {
        let wished = || {
            let name = invoke.profile.as_deref()?;
            Some(Profile::named(name).unwrap_or_else(|| {
                let (which, name) = (which.clone(), name.to_owned());
                self.note(Noted::UnknownProfile { which, name });
                Profile::Standard
            }))
        };
        tool.profile.or_else(wished).unwrap_or(self.settings.defaults.profile)
    }

    /// A tool that is gone, or one of a subscription that outlived another worker.
    fn stray(&mut self, tool: &str, asker: Asker) {
        // When many wait to be unsubscribed, this one will come again.
        _ = self.strays.try_send(tool.to_owned());
        let refusal = Refusal::new(Code::ToolNotAvailable, format!("there is no tool `{tool}` here"));
        self.refuse(asker, &refusal);
    }

    fn answer_again(&mut self, asker: Asker, answer: Bytes) {
        self.note(Noted::Duplicate { which: asker.which.clone(), is_answered: true });
        self.dispatch(asker, answer);
    }

    /// One answer is for both. Should we die before it, the copy is the one that comes again: the first may be of a
    /// connection that is gone.
    fn hold(&mut self, asker: Asker) {
        self.note(Noted::Duplicate { which: asker.which, is_answered: false });
        let held = self.held.entry(asker.key).or_default();
        held.push(asker.receipt);
        let surplus = (held.len() > MOST_HELD).then(|| held.remove(0));
        self.settle(surplus.into_iter().collect());
    }

    /// Nobody but the owner of a tool knows what it is: about others there is silence.
    fn asked(&mut self, asked: InitRequest, receipt: Receipt) {
        let tool = self.settings.catalog.borrow().get(&asked.tool).cloned();
        let Some(tool) = tool else { return self.settle(vec![receipt]) };
        let answer = answer::init_answer(&asked.id, &tool.card, asked.words, self.post.largest);
        let which = which(&asked.id, &asked.tool, &asked.reply);
        self.send(which, &asked.id, asked.reply, Bytes::from(answer), vec![receipt]);
    }

    fn misunderstood(&mut self, topic: &str, refused: Refused, receipt: Receipt) {
        let Refused { id, reply, refusal } = refused;
        let tool = match self.settings.base.read(topic) {
            Some(Topic::InitRequest(tool) | Topic::Init(tool)) => {
                // Whoever has the tool says so.
                if !self.settings.catalog.borrow().contains_key(tool) {
                    return self.settle(vec![receipt]);
                }
                tool
            }
            Some(Topic::Invoke(tool)) => tool,
            _ => "",
        };
        let which = which(&id, tool, &reply);
        self.note(Noted::Refused { which: which.clone(), refusal: refusal.clone() });
        let answer = Bytes::from(answer::error(&id, &refusal));
        self.send(which, &id, reply, answer, vec![receipt]);
    }

    fn cancel(&mut self, name: &str) {
        match self.desk.cancel(name, now_ms()) {
            Cancelled::Waited(ticket) => {
                let asker = ticket.what.asker;
                self.note(Noted::Cancelled(asker.which.clone()));
                self.refuse(asker, &post::cancelled(BY_ASKER));
            }
            Cancelled::UnderWay(key) => self.stop(&key, BY_ASKER),
            Cancelled::Nobody => {
                // By its other name.
                let is_meant = |running: &&Running| running.asker.id == name;
                let key = self.running.values().find(is_meant).map(|running| running.asker.key.clone());
                if let Some(key) = key {
                    self.stop(&key, BY_ASKER);
                }
            }
        }
    }
}

/// Calls.
impl<C: Calls> Service<C> {
    /// All that may.
    fn begin(&mut self) {
        while let Some((ticket, time)) = self.desk.next(now_ms()) {
            let exhausted = |why: &str| Refusal::new(Code::ResourceExhausted, why);
            match time {
                None => self.refuse(ticket.what.asker, &exhausted("it waited until nobody waits for it")),
                Some(_) if (self.settings.is_full)() => {
                    self.refuse(ticket.what.asker, &exhausted("there is no room left for a tool's files"));
                }
                Some(time) => self.start(ticket.what, time),
            }
        }
    }

    fn start(&mut self, turn: Turn, time: Duration) {
        let Turn { asker, tool, invoke, profile } = turn;
        let queued = asker.arrived.elapsed();
        self.note(Noted::Started { which: asker.which.clone(), profile, time, queued });
        let (cancel, cancelled) = watch::channel(false);
        let (post, which, reply) = (self.post.clone(), asker.which.clone(), asker.reply.clone());
        let listener = Listener { post, which, reply };
        let order = Order { tool, invoke, time, profile };
        let (calls, key) = (self.settings.calls.clone(), asker.key.clone());
        let running = Running { asker, cancel, started: Instant::now(), ended_by: None };
        self.running.insert(key.clone(), running);
        let of = key.clone();
        let task = self.tasks.spawn(async move {
            let called = run::carry_out(calls, order, cancelled, listener).await;
            Done::Called { key: of, called: Box::new(called) }
        });
        self.of_calls.insert(task.id(), key);
    }

    fn stop(&mut self, key: &str, why: &'static str) {
        let Some(running) = self.running.get_mut(key) else { return };
        running.ended_by.get_or_insert(why);
        running.cancel.send_replace(true);
        let which = running.asker.which.clone();
        self.note(Noted::Cancelled(which));
    }

    fn done(&mut self, done: Result<(task::Id, Done), JoinError>) {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let key = self.of_calls.remove(&id);
        match (done, key) {
            (Ok((_, Done::Called { key, called })), _) => self.called(&key, *called),
            (Ok((_, Done::Answered(answered))), _) => self.answered(*answered),
            (Ok((_, Done::Posted { weight })), _) => {
                self.posted -= 1;
                self.posted_bytes -= weight;
            }
            (Err(_), Some(key)) if self.running.contains_key(&key) => {
                let why = "the worker failed at this call";
                self.called(&key, Called::from(Outcome::Refused(Refusal::new(Code::InternalError, why))));
            }
            // Its answer could not be sent: whoever sends it again is served.
            (Err(_), Some(key)) => {
                self.desk.given_up(&key);
                self.held.remove(&key);
            }
            (Err(_), None) => {}
        }
    }

    /// There is an outcome: it is said, and the slot is kept until the broker has it. So, while there is no broker, no more
    /// answers gather than there are slots.
    fn called(&mut self, key: &str, called: Called) {
        let Some(running) = self.running.remove(key) else { return };
        let Called { outcome, seen } = called;
        self.note(Noted::Ran { which: running.asker.which.clone(), seen });
        let Running { asker, started, ended_by, .. } = running;
        let post = self.post.clone();
        let queued = started - asker.arrived;
        let took = post::took(&outcome).unwrap_or_else(|| started.elapsed());
        let task = self.tasks.spawn(async move {
            let (answer, how) =
                post::words(&asker, &outcome, ended_by.unwrap_or("nobody says why"), post.largest);
            let Asker { key, id, reply, which, receipt, .. } = asker;
            let (answer, sent) = post.answer(&which, &id, &reply, Bytes::from(answer), vec![receipt]).await;
            Done::Answered(Box::new(Answered { key, which, answer, sent, how, took, queued }))
        });
        self.of_calls.insert(task.id(), key.to_owned());
    }

    fn answered(&mut self, answered: Answered) {
        let Answered { key, which, answer, sent, how, took, queued } = answered;
        let held = self.held.remove(&key).unwrap_or_default();
        match sent {
            Sent::Gone => self.desk.given_up(&key),
            Sent::Confirmed | Sent::Refused => {
                self.desk.answered(&key, answer, Some(took), now_ms());
                self.settle(held);
                self.note(Noted::Answered { which, how, took, queued });
            }
        }
    }
}

/// Answers to what is not run.
impl<C: Calls> Service<C> {
    /// Remembered as well: one that comes again is not run after it was refused.
    fn refuse(&mut self, asker: Asker, refusal: &Refusal) {
        self.note(Noted::Refused { which: asker.which.clone(), refusal: refusal.clone() });
        let answer = Bytes::from(answer::error(&asker.id, refusal));
        self.desk.answered(&asker.key, answer.clone(), None, now_ms());
        self.dispatch(asker, answer);
    }

    fn dispatch(&mut self, asker: Asker, answer: Bytes) {
        let mut receipts = self.held.remove(&asker.key).unwrap_or_default();
        receipts.push(asker.receipt);
        self.send(asker.which, &asker.id, asker.reply, answer, receipts);
    }

    fn send(&mut self, which: Arc<Which>, id: &str, reply: Reply, answer: Bytes, receipts: Vec<Receipt>) {
        let weight = answer.len();
        if self.posted >= MOST_POSTED || self.posted_bytes.saturating_add(weight) > MOST_POSTED_BYTES {
            let (topic, why) = (reply.to, "too many answers wait for the broker".to_owned());
            return self.note(Noted::PublishFailed { which: Some(which), topic, why });
        }
        let (post, id) = (self.post.clone(), id.to_owned());
        self.background(weight, async move {
            // Whether it could be sent is noted.
            _ = post.answer(&which, &id, &reply, answer, receipts).await;
        });
    }

    /// Nothing more is to be done about these.
    fn settle(&mut self, receipts: Vec<Receipt>) {
        let receipts: Vec<_> = receipts.into_iter().filter(Receipt::comes_again).collect();
        if receipts.is_empty() || self.posted >= MOST_POSTED {
            return;
        }
        self.background(0, async move {
            for receipt in receipts {
                receipt.settle().await;
            }
        });
    }

    fn background(&mut self, weight: usize, work: impl Future<Output = ()> + Send + 'static) {
        self.posted += 1;
        self.posted_bytes += weight;
        self.tasks.spawn(async move {
            work.await;
            Done::Posted { weight }
        });
    }
}

/// The end.
impl<C: Calls> Service<C> {
    fn heed(&mut self, wish: Stop) {
        let now = Instant::now();
        match (wish, self.phase) {
            (Stop::Drain, Phase::Open) => {
                self.close();
                self.phase = Phase::Draining(now + self.settings.grace);
                self.note(Noted::Draining { running: self.running.len() });
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

    fn leave(&mut self, asker: Asker) {
        if self.settings.is_kept && asker.receipt.comes_again() {
            self.held.remove(&asker.key);
            return;
        }
        let refusal = Refusal::new(Code::ToolNotAvailable, BY_END);
        self.refuse(asker, &refusal);
    }

    fn late(&mut self, unread: usize) {
        let now = Instant::now();
        match self.phase {
            Phase::Draining(until) if until <= now => {
                self.cancel_all();
                self.phase = Phase::Cancelling(now + LAST_GRACE);
            }
            Phase::Cancelling(until) if until <= now => {
                // Those that were cancelled are counted; what is left now are they, and what reached nobody.
                self.cut = self.cut.max(self.tasks.len() + unread);
                self.phase = Phase::Cut;
            }
            Phase::Open | Phase::Draining(_) | Phase::Cancelling(_) | Phase::Cut => {}
        }
    }

    fn cancel_all(&mut self) {
        let keys: Vec<_> = self.running.keys().cloned().collect();
        self.cut += keys.len();
        if !keys.is_empty() {
            self.note(Noted::Cutting { running: keys.len() });
        }
        for key in keys {
            self.stop(&key, BY_END);
        }
    }
}

fn which(id: &str, tool: &str, reply: &Reply) -> Arc<Which> {
    Arc::new(Which {
        id: id.to_owned(),
        tool: tool.to_owned(),
        task: String::new(),
        correlation: reply.correlation.clone(),
        trace: reply.echoed.get("traceId").cloned(),
    })
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
