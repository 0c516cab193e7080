//! Responder: sends answers, retries them until the broker has them, and only then settles the
//! request.

use super::{
    events::{AnswerStatus, EventSink, RequestIds, WorkerEvent},
    size_limit::{SizeDecision, SizeLimit},
};
use crate::{
    call::ToolCallOutcome,
    transport::{
        MessageClass, OutgoingMessage, Properties, PublishError, Publisher, Receipt, Subscription,
    },
    wire::{
        answer,
        code::{CallRefusal, MeshErrorCode},
        request::ReplyAddress,
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

/// Backoff between tries to send an answer that the broker does not take for now; it doubles.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(250);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(8);
/// An answer over which the broker closes its connections may be too large only if it is at least
/// this large: the error that replaces it is much smaller.
pub(super) const LARGE_ANSWER_BYTES: usize = 8 << 10;

/// Sends messages. Cheap to clone.
#[derive(Clone)]
pub(super) struct Responder {
    publisher: Publisher,
    events: EventSink,
    size_limit: Arc<SizeLimit>,
    pub(super) largest: usize,
}

/// The sender of a request, who waits for an answer.
#[derive(Debug)]
pub(super) struct Requester {
    /// Key that identifies copies of the request: the id alone is untrusted, and an answer must
    /// reach nobody else.
    pub(super) key: String,
    pub(super) id: String,
    pub(super) reply: ReplyAddress,
    pub(super) request: Arc<RequestIds>,
    pub(super) receipt: Receipt,
    pub(super) arrived: Instant,
}

/// An answer and the receipts that it settles.
pub(super) struct Response {
    pub(super) request: Arc<RequestIds>,
    pub(super) id: String,
    pub(super) reply: ReplyAddress,
    pub(super) answer: Bytes,
    pub(super) receipts: Vec<Receipt>,
    /// The refusal that replaced the answer, sent or not, because the broker did not take it.
    pub(super) replaced_by: Option<CallRefusal>,
    /// The broker did not take a small error either: size is not the reason.
    is_size_ruled_out: bool,
    /// Sending it shows whether the broker takes this size again.
    is_size_probe: bool,
    /// The last try, regardless of a backoff for its recipient.
    is_last_try: bool,
}

impl Response {
    pub(super) fn new(
        request: Arc<RequestIds>,
        id: String,
        reply: ReplyAddress,
        answer: Bytes,
        receipts: Vec<Receipt>,
    ) -> Response {
        Response {
            request,
            id,
            reply,
            answer,
            receipts,
            replaced_by: None,
            is_size_ruled_out: false,
            is_size_probe: false,
            is_last_try: false,
        }
    }

    /// The error that replaces the answer.
    fn replacement(&self) -> (Bytes, CallRefusal) {
        let why = format!(
            "the broker does not take the answer, which has {} bytes",
            self.answer.len()
        );
        let refusal = CallRefusal::new(MeshErrorCode::ExecutionError, why);
        (Bytes::from(answer::error(&self.id, &refusal)), refusal)
    }

    fn replace(&mut self, (answer, refusal): (Bytes, CallRefusal)) {
        self.answer = answer;
        self.replaced_by = Some(refusal);
    }

    fn may_be_too_large(&self) -> bool {
        self.replaced_by.is_none()
            && !self.is_size_ruled_out
            && self.answer.len() >= LARGE_ANSWER_BYTES
    }

    async fn settle(&mut self) {
        for receipt in std::mem::take(&mut self.receipts) {
            receipt.settle().await;
        }
    }
}

impl Responder {
    pub(super) fn new(publisher: Publisher, events: EventSink, largest: usize) -> Responder {
        Responder {
            publisher,
            events,
            size_limit: Arc::default(),
            largest,
        }
    }

    pub(super) fn emit(&self, event: WorkerEvent) {
        (self.events)(event);
    }

    pub(super) async fn subscribe(&self, to: Subscription) {
        self.publisher.subscribe(to).await;
    }

    pub(super) async fn unsubscribe(&self, from: Subscription) {
        self.publisher.unsubscribe(from).await;
    }

    /// Publishes a message that is not retried, so that it never delays others. A failure is
    /// reported, except for repeated failures because of a backoff.
    pub(super) async fn publish_once(
        &self,
        request: Option<&Arc<RequestIds>>,
        topic: &str,
        payload: Bytes,
        echoed: &Properties,
    ) -> Result<(), PublishError> {
        let family = request.map_or(MessageClass::SamePayload, |_| recipient(topic));
        let sent = self
            .publisher
            .publish_class(family, outgoing(topic, payload, echoed))
            .await;
        if let Err(
            gone @ (PublishError::Rejected(_)
            | PublishError::Temporary(_)
            | PublishError::ConnectionEnded(_)
            | PublishError::LinkClosed),
        ) = &sent
        {
            self.failed(request, topic, &gone.to_string());
        }
        sent
    }

    fn failed(&self, request: Option<&Arc<RequestIds>>, topic: &str, why: &str) {
        let request = request.cloned();
        let topic = topic.to_owned();
        let why = why.to_owned();
        self.emit(WorkerEvent::PublishFailed {
            request,
            topic,
            why,
        });
    }

    /// Sends an answer and settles its request. An answer that the broker rejects, perhaps for its
    /// size, or whose size it rejected lately, is replaced by an error that says so. If the broker
    /// does not take it for now, nothing is settled.
    pub(super) async fn respond(&self, response: &mut Response) -> Result<(), PublishError> {
        self.check_size(response);
        let sent = match self.publish(response).await {
            Err(PublishError::Rejected(why)) if response.replaced_by.is_none() => {
                self.failed(Some(&response.request), &response.reply.to, &why);
                response.replace(response.replacement());
                self.publish(response).await
            }
            Err(PublishError::ConnectionEnded(why)) if response.may_be_too_large() => {
                self.failed(Some(&response.request), &response.reply.to, &why);
                self.publish_smaller(response, why).await
            }
            sent => sent,
        };
        match &sent {
            Ok(()) => {
                self.size_limit.taken(response.answer.len());
                response.settle().await;
            }
            Err(
                PublishError::Temporary(_)
                | PublishError::ConnectionEnded(_)
                | PublishError::BackedOff(_),
            ) => {}
            // A rejected answer is not worth a redelivery, either.
            Err(PublishError::Rejected(why)) => {
                self.failed(Some(&response.request), &response.reply.to, why);
                response.settle().await;
            }
            Err(over @ PublishError::LinkClosed) => self.failed(
                Some(&response.request),
                &response.reply.to,
                &over.to_string(),
            ),
        }
        sent
    }

    /// Replaces the answer if the broker lately rejected this size.
    fn check_size(&self, response: &mut Response) {
        if response.is_size_probe || !response.may_be_too_large() {
            return;
        }
        match self
            .size_limit
            .decide(response.answer.len(), Instant::now())
        {
            SizeDecision::Sent => {}
            SizeDecision::Tried => response.is_size_probe = true,
            SizeDecision::Replaced => response.replace(response.replacement()),
        }
    }

    async fn publish(&self, response: &Response) -> Result<(), PublishError> {
        let ReplyAddress { to, echoed, .. } = &response.reply;
        let family = recipient(to);
        let message = outgoing(to, response.answer.clone(), echoed);
        match self
            .publisher
            .publish_class(family.clone(), message.clone())
            .await
        {
            // At the end, a closed connection costs nobody anything.
            Err(PublishError::BackedOff(_)) if response.is_last_try => {
                self.publisher.publish_alone(family, message).await
            }
            sent => sent,
        }
    }

    /// Sends an error instead, at once and alone, which shows whether size was the reason.
    async fn publish_smaller(
        &self,
        response: &mut Response,
        why: String,
    ) -> Result<(), PublishError> {
        let ReplyAddress { to, echoed, .. } = &response.reply;
        let (error, refusal) = response.replacement();
        match self
            .publisher
            .publish_alone(recipient(to), outgoing(to, error.clone(), echoed))
            .await
        {
            Ok(()) => {
                self.size_limit.replaced(
                    response.answer.len(),
                    response.is_size_probe,
                    Instant::now(),
                );
                response.replace((error, refusal));
            }
            Err(PublishError::LinkClosed) => return Err(PublishError::LinkClosed),
            Err(_) => {
                response.is_size_ruled_out = true;
                return Err(PublishError::Temporary(why));
            }
        }
        Ok(())
    }

    /// Answers a request that was not run, with one try: only an error message is lost, and invalid
    /// requests in the name of absent agents must not delay others.
    pub(super) async fn respond_once(&self, mut response: Response) {
        if let Err(
            PublishError::Temporary(why)
            | PublishError::ConnectionEnded(why)
            | PublishError::BackedOff(why),
        ) = self.respond(&mut response).await
        {
            self.give_up(&mut response, why).await;
        }
    }

    /// Retries an answer as long as its requester may wait for it. If the last try fails, the
    /// request is not settled: the next worker may have more luck.
    pub(super) async fn retry_until(
        &self,
        response: &mut Response,
        mut why: String,
        until: Instant,
        mut last_try: watch::Receiver<bool>,
    ) -> Result<(), PublishError> {
        let mut pause = INITIAL_RETRY_DELAY;
        while Instant::now() + pause <= until {
            response.is_last_try = tokio::select! {
                () = sleep(pause) => false,
                _ = last_try.wait_for(|is| *is) => true,
            };
            pause = (pause * 2).min(MAX_RETRY_DELAY);
            match self.respond(response).await {
                Err(
                    PublishError::Temporary(why)
                    | PublishError::ConnectionEnded(why)
                    | PublishError::BackedOff(why),
                ) if response.is_last_try => {
                    self.failed(Some(&response.request), &response.reply.to, &why);
                    return Err(PublishError::LinkClosed);
                }
                Err(
                    PublishError::Temporary(again)
                    | PublishError::ConnectionEnded(again)
                    | PublishError::BackedOff(again),
                ) => why = again,
                sent => return sent,
            }
        }
        self.give_up(response, why.clone()).await;
        Err(PublishError::Rejected(why))
    }

    /// Gives up an answer: its requester has stopped waiting, or too many answers are waiting. The
    /// request is settled, because a broker sends only so many unsettled messages and would only
    /// redeliver this one.
    async fn give_up(&self, response: &mut Response, why: String) {
        self.failed(Some(&response.request), &response.reply.to, &why);
        let message = format!("the broker did not take the answer while it was of use: {why}");
        response.replaced_by = Some(CallRefusal::new(MeshErrorCode::ExecutionError, message));
        if response.is_size_probe {
            self.size_limit.probe_failed(Instant::now());
        }
        response.settle().await;
    }
}

fn outgoing(topic: &str, payload: Bytes, echoed: &Properties) -> OutgoingMessage {
    let properties = answer::properties(echoed, SystemTime::now());
    OutgoingMessage {
        topic: topic.to_owned(),
        payload,
        properties,
    }
}

/// Class of an agent's messages: it has one topic per call, and one queue for all of them.
fn recipient(topic: &str) -> MessageClass {
    MessageClass::Recipient(
        topic
            .rsplit_once('/')
            .map_or(topic, |(recipient, _)| recipient)
            .to_owned(),
    )
}

/// Encodes the answer for an outcome.
pub(super) fn encode_outcome(
    requester: &Requester,
    outcome: &ToolCallOutcome,
    ended_by: &str,
    largest: usize,
) -> (Vec<u8>, AnswerStatus) {
    let since = requester.arrived.elapsed();
    match outcome {
        ToolCallOutcome::Success {
            result, artifacts, ..
        } => match answer::success(&requester.id, result, since, artifacts, largest) {
            Ok(answer) => (
                answer,
                AnswerStatus::Success {
                    artifacts: artifacts.len(),
                },
            ),
            Err(refusal) => (
                answer::error(&requester.id, &refusal),
                AnswerStatus::Error(refusal),
            ),
        },
        ToolCallOutcome::TimedOut { .. } => (
            answer::timed_out(&requester.id, since),
            AnswerStatus::TimedOut,
        ),
        ToolCallOutcome::Refused(refusal) => (
            answer::error(&requester.id, refusal),
            AnswerStatus::Error(refusal.clone()),
        ),
        ToolCallOutcome::Cancelled => (
            answer::error(&requester.id, &cancelled(ended_by)),
            AnswerStatus::Cancelled,
        ),
    }
}

/// Refusal of a cancelled call: an error that must not invite a retry.
pub(super) fn cancelled(ended_by: &str) -> CallRefusal {
    CallRefusal::new(
        MeshErrorCode::ExecutionError,
        format!("cancelled: {ended_by}"),
    )
}

/// Duration of the tool's run, where it is known.
pub(super) fn run_time(outcome: &ToolCallOutcome) -> Option<Duration> {
    match outcome {
        ToolCallOutcome::Success { took, .. } | ToolCallOutcome::TimedOut { took } => Some(*took),
        ToolCallOutcome::Refused(_) | ToolCallOutcome::Cancelled => None,
    }
}
