//! One call, with what its tool says meanwhile: passed on in order, all of it before the answer. A tool may say what it wants
//! and as fast as it wants; what is passed on is bounded, and what is not is counted.

use super::{
    Called, Calls,
    noted::{Noted, Which},
    post::Post,
};
use crate::{
    call::{Order, Outcome},
    transport::Gone,
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
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep},
};

/// Words of a tool that wait to be sent.
const MOST_WAITING: usize = 64;
/// So many at once, and from then on so many a second.
const AT_ONCE: u64 = 100;
const A_SECOND: u64 = 20;
/// After one that the broker does not take for now none is sent for so long: each may be waited for, and the answer with it.
const QUIET: Duration = Duration::from_secs(30);
/// A call that has not ended so long after its time, or after it was cancelled, never will.
const OVERDUE: Duration = Duration::from_secs(60);

/// To whom a tool speaks.
pub(super) struct Listener {
    pub(super) post: Post,
    pub(super) which: Arc<Which>,
    pub(super) reply: Reply,
}

/// Carries an order out; there is an outcome when all that was said is sent.
pub(super) async fn carry_out<C: Calls>(
    calls: C,
    order: Order,
    cancelled: watch::Receiver<bool>,
    listener: Listener,
) -> Called {
    let (statuses, spoken) = mpsc::channel(MOST_WAITING);
    let (ends, ended) = oneshot::channel();
    let time = order.time;
    let call = async {
        let called = tokio::select! {
            called = calls.call(order, cancelled.clone(), statuses) => called,
            () = overdue(time, cancelled.clone()) => {
                let why = "the call did not end, and was given up";
                Called::from(Outcome::Refused(Refusal::new(Code::InternalError, why)))
            }
        };
        // It may be that nobody listens any more.
        _ = ends.send(());
        called
    };
    let (called, dropped) = tokio::join!(call, listener.pass_on(spoken, ended));
    let count = dropped + called.seen.unsaid;
    if count > 0 {
        listener.post.note(Noted::StatusesDropped {
            which: listener.which.clone(),
            count,
        });
    }
    called
}

async fn overdue(time: Duration, mut cancelled: watch::Receiver<bool>) {
    let is_cancelled = async {
        if cancelled.wait_for(|is| *is).await.is_err() {
            // Nobody can cancel it any more.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = sleep(time) => {}
        () = is_cancelled => {}
    }
    sleep(OVERDUE).await;
}

impl Listener {
    /// Until the call is over, whoever still holds the other end. Tells how many were not passed on.
    async fn pass_on(
        &self,
        mut spoken: mpsc::Receiver<String>,
        mut ended: oneshot::Receiver<()>,
    ) -> u64 {
        let (begun, mut said, mut dropped) = (Instant::now(), 0, 0);
        let (mut is_over, mut quiet_until) = (false, begun);
        loop {
            let text = match is_over {
                true => spoken.try_recv().ok(),
                false => tokio::select! {
                    biased;
                    text = spoken.recv() => text,
                    _ = &mut ended => {
                        is_over = true;
                        spoken.close();
                        continue;
                    }
                },
            };
            let Some(text) = text else { break };
            let most = AT_ONCE.saturating_add(begun.elapsed().as_secs().saturating_mul(A_SECOND));
            if said >= most || Instant::now() < quiet_until {
                dropped += 1;
                continue;
            }
            said += 1;
            match self.say(&text).await {
                Ok(()) | Err(Gone::Refused(_) | Gone::Ended(_) | Gone::Over) => {}
                Err(Gone::NotNow(_)) => quiet_until = Instant::now() + QUIET,
                Err(Gone::HeldBack(_)) => dropped += 1,
            }
        }
        dropped
    }

    /// What the broker does not take is noted; a status is worth no more.
    async fn say(&self, text: &str) -> Result<(), Gone> {
        let Some(topic) = &self.reply.status_to else {
            return Ok(());
        };
        let payload = Bytes::from(answer::status(&self.which.task, text, SystemTime::now()));
        let sent = self
            .post
            .mention(Some(&self.which), topic, payload, &self.reply.echoed)
            .await;
        if sent.is_ok() {
            self.post.note(Noted::Status(self.which.clone()));
        }
        sent
    }
}
