//! The task that owns admission control and all unanswered requests. It waits for events only.

use super::{
    CallDefaults, CompletedCall, Executor, Shutdown, ShutdownReport,
    announce::changed,
    call_task::{self, StatusListener},
    clock_skew::ClockSkew,
    events::{AnswerStatus, EventSink, WorkerEvent},
    responder::{self, LARGE_ANSWER_BYTES, Requester, Responder, Response},
    shutdown::Phase,
};
use crate::{
    admission::{Admission, AdmissionLimits, CLIENT_GRACE, PendingCall},
    call::{CallOrder, ToolCallOutcome},
    tools::Catalog,
    transport::{IncomingMessage, LinkState, PublishError, Receipt},
    wire::{
        answer,
        code::{CallRefusal, MeshErrorCode},
        request::Invoke,
        topic::TopicBase,
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

/// Answers and settlements in progress, besides the answers of calls, which the slots bound. Beyond
/// this a request gets no answer, which is reported, and is settled all the same: it would be
/// redelivered on another connection only, and until then reduce the broker's credit.
const MAX_SENDING: usize = 4096;
/// Size of those of at least [`LARGE_ANSWER_BYTES`]; errors are always small enough.
const MAX_SENDING_BYTES: usize = 64 << 20;
pub(super) const TOO_MANY: &str = "too many answers wait for the broker";
/// Delayed answers without a slot, so that they do not block other calls. Each keeps a request
/// unsettled, of which a broker sends only so many: see `transport/protocol.rs`.
pub(super) const MAX_DELAYED: usize = 64;
const MAX_DELAYED_BYTES: usize = 32 << 20;
/// Maximum delay of an answer, whatever the requester's timeout: a call with a timeout of a day
/// must not occupy an entry for a day.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(300);
/// Maximum delay of an answer that keeps its slot, because there are too many delayed answers.
const MAX_DELAY_IN_SLOT: Duration = Duration::from_secs(8);

/// See [`super::Worker`].
pub(super) struct ServiceSettings<C> {
    pub(super) base: TopicBase,
    pub(super) calls: C,
    pub(super) catalog: watch::Receiver<Catalog>,
    pub(super) defaults: CallDefaults,
    pub(super) grace: Duration,
    pub(super) redelivers: bool,
    pub(super) keeps_listening: bool,
    pub(super) is_disk_full: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(super) events: EventSink,
}

pub(super) struct Service<C> {
    pub(super) settings: ServiceSettings<C>,
    pub(super) responder: Responder,
    pub(super) admission: Admission<QueuedCall>,
    /// By key.
    pub(super) running: HashMap<String, RunningCall>,
    /// Receipts of further copies of a request, by key.
    pub(super) held: HashMap<String, Vec<Receipt>>,
    pub(super) tasks: JoinSet<TaskResult>,
    /// Keys of the calls that tasks work on.
    pub(super) call_tasks: HashMap<task::Id, String>,
    /// Tasks that send something else.
    pub(super) sending: HashMap<task::Id, SendTask>,
    pub(super) posted_bytes: usize,
    /// Keys of the requests that these tasks answer.
    pub(super) answering: HashSet<String>,
    /// Tasks that retry an answer without a slot, and its size.
    pub(super) delayed: HashMap<task::Id, usize>,
    /// Tells delayed answers to try once more and no more.
    pub(super) last_try: watch::Sender<bool>,
    /// Receipts to be settled as soon as fewer tasks are sending.
    pub(super) unsettled: Vec<Receipt>,
    /// Requests left to other workers.
    pub(super) left: Vec<Requester>,
    pub(super) clocks: ClockSkew,
    pub(super) strays: mpsc::Sender<String>,
    pub(super) closes: watch::Sender<bool>,
    pub(super) phase: Phase,
    pub(super) link: LinkState,
    pub(super) load: (usize, usize),
    /// Keys of calls that were cut short or whose answer may be lost: some are both.
    pub(super) cut: HashSet<String>,
    /// Number of other requests without an answer.
    pub(super) lost: usize,
    /// Time of the last invocation, or since when none should come.
    pub(super) asked: Instant,
}

/// A call in the queue.
#[derive(Debug)]
pub(super) struct QueuedCall {
    pub(super) requester: Requester,
    pub(super) invoke: Box<Invoke>,
}

/// A running call.
pub(super) struct RunningCall {
    pub(super) requester: Requester,
    pub(super) cancel: watch::Sender<bool>,
    pub(super) started: Instant,
    /// The requester waits until then.
    pub(super) until: Instant,
    /// Reason of a cancellation.
    pub(super) ended_by: Option<&'static str>,
}

/// A task that sends something other than the answer of a call.
#[derive(Default)]
pub(super) struct SendTask {
    pub(super) weight: usize,
    /// Key of the request that it answers, if that may be redelivered.
    pub(super) key: Option<String>,
}

/// Result of a task.
pub(super) enum TaskResult {
    Called {
        key: String,
        called: Box<CompletedCall>,
    },
    Answered(Box<AnsweredCall>),
    Sent,
}

pub(super) struct AnsweredCall {
    pub(super) key: String,
    pub(super) response: Response,
    sent: Result<(), PublishError>,
    pub(super) how: AnswerStatus,
    took: Duration,
    queued: Duration,
    /// The requester waits until then.
    until: Instant,
}

impl<C: Executor> Service<C> {
    pub(super) fn new(
        settings: ServiceSettings<C>,
        responder: Responder,
        bounds: AdmissionLimits,
        strays: mpsc::Sender<String>,
        closes: watch::Sender<bool>,
    ) -> Service<C> {
        Service {
            settings,
            responder,
            admission: Admission::new(bounds),
            running: HashMap::new(),
            held: HashMap::new(),
            tasks: JoinSet::new(),
            call_tasks: HashMap::new(),
            sending: HashMap::new(),
            posted_bytes: 0,
            answering: HashSet::new(),
            delayed: HashMap::new(),
            last_try: watch::Sender::new(false),
            unsettled: Vec::new(),
            left: Vec::new(),
            clocks: ClockSkew::default(),
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

    /// Runs until the shutdown is complete: everything has an answer or has timed out.
    pub(super) async fn run(
        mut self,
        mut arrived: mpsc::Receiver<IncomingMessage>,
        mut link: watch::Receiver<LinkState>,
        mut stop: watch::Receiver<Shutdown>,
    ) -> ShutdownReport {
        let mut is_deaf = false;
        loop {
            let state = link.borrow_and_update().clone();
            self.set_link_state(state);
            let wish = *stop.borrow_and_update();
            self.handle_shutdown(wish);
            self.start_queued();
            self.report_load();
            self.shorten_drain(arrived.is_empty());
            if self.is_over(arrived.is_empty()) {
                return ShutdownReport {
                    cut: self.cut.len() + self.lost,
                };
            }
            let until = self.deadline();
            tokio::select! {
                message = arrived.recv(), if !is_deaf => match message {
                    Some(message) => self.arrived(message),
                    // The link has ended, as its state shows.
                    None => is_deaf = true,
                },
                Some(done) = self.tasks.join_next_with_id() => self.handle_task(done),
                () = changed(&mut link) => {}
                () = changed(&mut stop) => {}
                () = at(until) => self.handle_deadline(&mut arrived),
            }
            if is_deaf {
                self.handle_shutdown(Shutdown::Drain);
            }
        }
    }

    fn set_link_state(&mut self, state: LinkState) {
        if state == self.link {
            return;
        }
        if matches!(state, LinkState::Lost { .. }) {
            self.handle_shutdown(Shutdown::Drain);
        }
        self.link = state.clone();
        self.emit(WorkerEvent::Link(state));
    }

    fn report_load(&mut self) {
        let load = self.admission.load();
        if load != self.load {
            self.load = load;
            self.emit(WorkerEvent::Load {
                waiting: load.0,
                running: load.1,
            });
        }
    }

    pub(super) fn emit(&self, event: WorkerEvent) {
        (self.settings.events)(event);
    }
}

/// Running calls.
impl<C: Executor> Service<C> {
    /// Starts queued calls as long as there are slots.
    fn start_queued(&mut self) {
        while let Some((pending, time)) = self.admission.next(now_ms()) {
            let exhausted = |why: &str| CallRefusal::new(MeshErrorCode::ResourceExhausted, why);
            match time {
                None => self.refuse(
                    pending.payload.requester,
                    &exhausted("it waited until nobody waits for it"),
                ),
                Some(_) if (self.settings.is_disk_full)() => {
                    self.refuse(
                        pending.payload.requester,
                        &exhausted("there is no room left for a tool's files"),
                    );
                }
                Some(time) => {
                    let until = waits_until(&pending, now_ms());
                    self.start(pending.payload, time, until);
                }
            }
        }
    }

    /// Starts a call with its tool's current entry, which may have changed or be gone since the
    /// call was queued. The timeout can only become shorter, because the requester does not wait
    /// longer.
    fn start(&mut self, queued_call: QueuedCall, time: Duration, until: Instant) {
        let QueuedCall { requester, invoke } = queued_call;
        let Some(tool) = self.tool(&invoke.tool) else {
            return self.refuse_unknown_tool(&invoke.tool, requester);
        };
        let profile = self.profile(&invoke, &tool, &requester.request);
        let time = time.min(self.time(&invoke, &tool));
        let queued = requester.arrived.elapsed();
        self.emit(WorkerEvent::Started {
            request: requester.request.clone(),
            profile,
            time,
            queued,
        });
        let (cancel, cancelled) = watch::channel(false);
        let responder = self.responder.clone();
        let request = requester.request.clone();
        let reply = requester.reply.clone();
        let listener = StatusListener {
            responder,
            request,
            reply,
        };
        let order = CallOrder {
            tool,
            invoke,
            time,
            profile,
        };
        let calls = self.settings.calls.clone();
        let key = requester.key.clone();
        let running = RunningCall {
            requester,
            cancel,
            started: Instant::now(),
            until,
            ended_by: None,
        };
        self.running.insert(key.clone(), running);
        let of = key.clone();
        let task = self.tasks.spawn(async move {
            let called = call_task::carry_out(calls, order, cancelled, listener).await;
            TaskResult::Called {
                key: of,
                called: Box::new(called),
            }
        });
        self.call_tasks.insert(task.id(), key);
    }

    pub(super) fn stop(&mut self, key: &str, why: &'static str) {
        let Some(running) = self.running.get_mut(key) else {
            return;
        };
        running.ended_by.get_or_insert(why);
        running.cancel.send_replace(true);
        let request = running.requester.request.clone();
        self.emit(WorkerEvent::Cancelled(request));
    }

    fn handle_task(&mut self, done: Result<(task::Id, TaskResult), JoinError>) {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let key = self.call_tasks.remove(&id);
        self.delayed.remove(&id);
        let copies = self
            .sending
            .remove(&id)
            .map(|sending| self.send_finished(sending));
        self.settle(copies.unwrap_or_default());
        match (done, key) {
            (Ok((_, TaskResult::Called { key, called })), _) => {
                self.handle_completed(&key, *called)
            }
            (Ok((_, TaskResult::Answered(answered))), _) => self.handle_answered(answered),
            (Err(_), Some(key)) if self.running.contains_key(&key) => {
                let why = "the worker failed at this call";
                self.handle_completed(
                    &key,
                    CompletedCall::from(ToolCallOutcome::Refused(CallRefusal::new(
                        MeshErrorCode::InternalError,
                        why,
                    ))),
                );
            }
            // The answer could not be sent: a redelivered request is run again.
            (Err(_), Some(key)) => {
                self.admission.abandon(&key);
                self.held.remove(&key);
            }
            (Ok((_, TaskResult::Sent)) | Err(_), _) => {}
        }
    }

    /// Sends the answer of a call. The slot is kept until the broker has it, so that without a
    /// broker there are no more answers than slots.
    fn handle_completed(&mut self, key: &str, called: CompletedCall) {
        let Some(running) = self.running.remove(key) else {
            return;
        };
        let CompletedCall { outcome, seen } = called;
        self.emit(WorkerEvent::Ran {
            request: running.requester.request.clone(),
            seen,
        });
        let RunningCall {
            requester,
            started,
            until,
            ended_by,
            ..
        } = running;
        let responder = self.responder.clone();
        let queued = started - requester.arrived;
        let took = responder::run_time(&outcome).unwrap_or_else(|| started.elapsed());
        let task = self.tasks.spawn(async move {
            let (answer, how) = responder::encode_outcome(
                &requester,
                &outcome,
                ended_by.unwrap_or("nobody says why"),
                responder.largest,
            );
            let Requester {
                key,
                id,
                reply,
                request,
                receipt,
                ..
            } = requester;
            let mut response =
                Response::new(request, id, reply, Bytes::from(answer), vec![receipt]);
            let sent = responder.respond(&mut response).await;
            TaskResult::Answered(Box::new(AnsweredCall {
                key,
                response,
                sent,
                how,
                took,
                queued,
                until,
            }))
        });
        self.call_tasks.insert(task.id(), key.to_owned());
    }

    fn handle_answered(&mut self, answered: Box<AnsweredCall>) {
        let held = self.held.remove(&answered.key).unwrap_or_default();
        match &answered.sent {
            Err(PublishError::LinkClosed) => {
                self.admission.abandon(&answered.key);
                self.unanswered(&answered, &held);
            }
            Err(
                PublishError::Temporary(why)
                | PublishError::ConnectionEnded(why)
                | PublishError::BackedOff(why),
            ) => {
                let why = why.clone();
                self.delay(answered, held, why);
            }
            Ok(()) | Err(PublishError::Rejected(_)) => {
                let AnsweredCall {
                    key,
                    response,
                    how,
                    took,
                    queued,
                    ..
                } = *answered;
                let Response {
                    request,
                    answer,
                    replaced_by,
                    ..
                } = response;
                self.admission
                    .record_answer(&key, answer, Some(took), now_ms());
                self.settle(held);
                let how = replaced_by.map_or(how, AnswerStatus::Error);
                self.emit(WorkerEvent::Answered {
                    request,
                    how,
                    took,
                    queued,
                });
            }
        }
    }

    /// The broker does not take an answer for now. It is retried as long as its requester waits,
    /// and its slot is free meanwhile, unless too many answers wait: then it keeps the slot, for a
    /// short time.
    fn delay(&mut self, mut answered: Box<AnsweredCall>, held: Vec<Receipt>, why: String) {
        let response = &mut answered.response;
        self.emit(WorkerEvent::Delayed {
            request: response.request.clone(),
            why: why.clone(),
        });
        let mut surplus = std::mem::take(&mut response.receipts);
        surplus.extend(held);
        // One receipt is enough for a redelivery: the newest, because older ones may belong to lost
        // connections. It is kept here, so that a later copy can replace it.
        let newest = surplus.pop().into_iter().collect();
        let key = answered.key.clone();
        let weight = response.answer.len();
        self.held.insert(key.clone(), newest);
        let delayed_bytes: usize = self.delayed.values().sum();
        let has_room =
            self.delayed.len() < MAX_DELAYED && delayed_bytes + weight <= MAX_DELAYED_BYTES;
        let longest = if has_room {
            MAX_DELAY
        } else {
            MAX_DELAY_IN_SLOT
        };
        let until = answered.until.min(Instant::now() + longest);
        let responder = self.responder.clone();
        let took = answered.took;
        let last_try = self.last_try.subscribe();
        let task = self.tasks.spawn(async move {
            answered.sent = responder
                .retry_until(&mut answered.response, why, until, last_try)
                .await;
            TaskResult::Answered(answered)
        });
        if has_room {
            self.admission.delay(&key, took);
            self.delayed.insert(task.id(), weight);
        }
        self.call_tasks.insert(task.id(), key);
        self.settle(surplus);
    }
}

/// Answers to requests that are not run.
impl<C: Executor> Service<C> {
    /// Refuses a request and remembers that: a copy must not run later.
    pub(super) fn refuse(&mut self, requester: Requester, refusal: &CallRefusal) {
        self.emit(WorkerEvent::Refused {
            request: requester.request.clone(),
            refusal: refusal.clone(),
        });
        let answer = Bytes::from(answer::error(&requester.id, refusal));
        let names = [requester.id.clone(), requester.reply.correlation.clone()];
        self.admission
            .record_refusal(&requester.key, names, answer.clone(), now_ms());
        self.dispatch(requester, answer);
    }

    pub(super) fn dispatch(&mut self, requester: Requester, answer: Bytes) {
        let Requester {
            key,
            id,
            reply,
            request,
            receipt,
            ..
        } = requester;
        let mut receipts = self.held.remove(&key).unwrap_or_default();
        receipts.push(receipt);
        self.send(
            Response::new(request, id, reply, answer, receipts),
            Some(key),
        );
    }

    pub(super) fn send(&mut self, response: Response, key: Option<String>) {
        let weight = response.answer.len();
        if !self.has_room(weight) {
            return self.refuse_overload(response);
        }
        let responder = self.responder.clone();
        self.answering.extend(key.clone());
        self.background(SendTask { weight, key }, async move {
            responder.respond_once(response).await
        });
    }

    /// Returns the receipts of copies that came meanwhile.
    fn send_finished(&mut self, sending: SendTask) -> Vec<Receipt> {
        self.posted_bytes -= sending.weight;
        let Some(key) = sending.key else {
            return Vec::new();
        };
        self.answering.remove(&key);
        self.held.remove(&key).unwrap_or_default()
    }

    /// Whether another answer of this size may wait for the broker.
    pub(super) fn has_room(&self, weight: usize) -> bool {
        let fits = weight < LARGE_ANSWER_BYTES
            || self.posted_bytes.saturating_add(weight) <= MAX_SENDING_BYTES;
        fits && self.sending.len() < MAX_SENDING
    }

    fn refuse_overload(&mut self, response: Response) {
        let request = Some(response.request);
        let topic = response.reply.to;
        let why = TOO_MANY.to_owned();
        self.emit(WorkerEvent::PublishFailed {
            request,
            topic,
            why,
        });
        self.settle(response.receipts);
    }

    /// Settles requests. Receipts take no memory budget, and a broker sends only so many unsettled
    /// messages.
    pub(super) fn settle(&mut self, receipts: Vec<Receipt>) {
        self.unsettled
            .extend(receipts.into_iter().filter(Receipt::is_redeliverable));
        if self.unsettled.is_empty() || self.sending.len() >= MAX_SENDING {
            return;
        }
        let receipts = std::mem::take(&mut self.unsettled);
        self.background(SendTask::default(), async move {
            for receipt in receipts {
                receipt.settle().await;
            }
        });
    }

    pub(super) fn background(
        &mut self,
        send: SendTask,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.tasks.spawn(async move {
            work.await;
            TaskResult::Sent
        });
        self.posted_bytes += send.weight;
        self.sending.insert(task.id(), send);
    }
}

/// Until when the requester waits.
fn waits_until(pending: &PendingCall<QueuedCall>, now_ms: u64) -> Instant {
    let age = Duration::from_millis(now_ms.saturating_sub(pending.sent_ms));
    Instant::now() + (pending.timeout + CLIENT_GRACE).saturating_sub(age)
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
