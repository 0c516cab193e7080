//! The task of one call. Forwards the tool's statuses in order, all of them before the answer; they
//! are rate limited, and dropped ones are counted.

use super::{
    CompletedCall, Executor,
    events::{RequestIds, WorkerEvent},
    responder::Responder,
};
use crate::{
    call::{CallOrder, ToolCallOutcome},
    transport::PublishError,
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
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep},
};

/// Statuses that wait to be sent.
const MAX_QUEUED_STATUSES: usize = 64;
/// Rate limit: a burst, then this many per second.
const BURST: u64 = 100;
const PER_SECOND: u64 = 20;
/// Pause after a status that the broker does not take for now: each may be waited for, and would
/// delay the answer.
const QUIET_PERIOD: Duration = Duration::from_secs(30);
/// A call that does not end this long after its timeout or cancellation is given up.
const OVERDUE_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends the statuses of a call.
pub(super) struct StatusListener {
    pub(super) responder: Responder,
    pub(super) request: Arc<RequestIds>,
    pub(super) reply: ReplyAddress,
}

/// Runs a call; returns when all its statuses are sent.
pub(super) async fn carry_out<C: Executor>(
    calls: C,
    order: CallOrder,
    cancelled: watch::Receiver<bool>,
    listener: StatusListener,
) -> CompletedCall {
    let (statuses, spoken) = mpsc::channel(MAX_QUEUED_STATUSES);
    let (ends, ended) = oneshot::channel();
    let time = order.time;
    let call = async {
        let called = tokio::select! {
            called = calls.call(order, cancelled.clone(), statuses) => called,
            () = overdue(time, cancelled.clone()) => {
                let why = "the call did not end, and was given up";
                CompletedCall::from(ToolCallOutcome::Refused(CallRefusal::new(MeshErrorCode::InternalError, why)))
            }
        };
        // Nobody may be listening any more.
        _ = ends.send(());
        called
    };
    let (called, dropped) = tokio::join!(call, listener.pass_on(spoken, ended));
    let count = dropped + called.seen.dropped_statuses;
    if count > 0 {
        listener.responder.emit(WorkerEvent::StatusesDropped {
            request: listener.request.clone(),
            count,
        });
    }
    called
}

async fn overdue(time: Duration, mut cancelled: watch::Receiver<bool>) {
    let is_cancelled = async {
        if cancelled.wait_for(|is| *is).await.is_err() {
            // The call cannot be cancelled any more.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = sleep(time) => {}
        () = is_cancelled => {}
    }
    sleep(OVERDUE_TIMEOUT).await;
}

impl StatusListener {
    /// Forwards statuses until the call has ended. Returns the number of dropped ones.
    async fn pass_on(
        &self,
        mut spoken: mpsc::Receiver<String>,
        mut ended: oneshot::Receiver<()>,
    ) -> u64 {
        let begun = Instant::now();
        let mut sent = 0;
        let mut dropped = 0;
        let mut is_over = false;
        let mut quiet_until = begun;
        loop {
            let text = if is_over {
                spoken.try_recv().ok()
            } else {
                tokio::select! {
                    biased;
                    text = spoken.recv() => text,
                    _ = &mut ended => {
                        is_over = true;
                        spoken.close();
                        continue;
                    }
                }
            };
            let Some(text) = text else { break };
            let limit = BURST.saturating_add(begun.elapsed().as_secs().saturating_mul(PER_SECOND));
            if sent >= limit || Instant::now() < quiet_until {
                dropped += 1;
                continue;
            }
            sent += 1;
            match self.send_status(&text).await {
                Ok(())
                | Err(
                    PublishError::Rejected(_)
                    | PublishError::ConnectionEnded(_)
                    | PublishError::LinkClosed,
                ) => {}
                Err(PublishError::Temporary(_)) => quiet_until = Instant::now() + QUIET_PERIOD,
                Err(PublishError::BackedOff(_)) => dropped += 1,
            }
        }
        dropped
    }

    /// Sends one status. A failure is reported and not retried.
    async fn send_status(&self, text: &str) -> Result<(), PublishError> {
        let Some(topic) = &self.reply.status_to else {
            return Ok(());
        };
        let payload = Bytes::from(answer::status(&self.request.task, text, SystemTime::now()));
        let sent = self
            .responder
            .publish_once(Some(&self.request), topic, payload, &self.reply.echoed)
            .await;
        if sent.is_ok() {
            self.responder
                .emit(WorkerEvent::Status(self.request.clone()));
        }
        sent
    }
}
