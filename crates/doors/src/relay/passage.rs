//! An answer on its way to the program.
//!
//! ```text
//!            ┌─ end ────────────▶ settled, connection kept
//! streaming ─┼─ broken, stalled ─▶ last words ─▶ cut off
//!            ├─ money spent ─────▶ last words ─▶ cut off
//!            ├─ session ended ───▶ last words ─▶ cut off
//!            └─ reader gone ─────▶ drained or hung up, settled
//! ```

use super::{
    fault,
    flow::{Flow, Step},
};
use crate::{catalogue::OnAbort, dialect::Fault, line::Line, session::Session};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// Pieces that lie ready are joined up to this, so that many small ones cost one write. Never waited for.
const JOINED: usize = 16 << 10;
/// What is read on after its reader left.
const MOST_DRAINED: usize = 4 << 20;
const LONGEST_DRAIN: Duration = Duration::from_secs(30);

/// An answer's body.
pub(crate) struct Passage {
    session: Arc<Session>,
    line: Arc<Line>,
    flow: Option<Flow>,
    idle: Duration,
    /// When it has to be over, if that is limited.
    end: Option<Instant>,
    last: Instant,
    alarm: Pin<Box<Sleep>>,
    state: State,
    length: Option<u64>,
}

enum State {
    Streaming,
    /// These are the last words.
    Failing(Bytes),
    /// They were said, and must get out before the connection is dropped.
    Said,
    Cut,
    Ended,
}

/// Small pieces made one.
#[derive(Default)]
struct Joined {
    first: Bytes,
    all: BytesMut,
}

impl Passage {
    pub(super) fn new(
        session: Arc<Session>,
        line: Arc<Line>,
        flow: Flow,
        length: Option<u64>,
        end: Option<Instant>,
    ) -> Passage {
        let (idle, now) = (flow.upstream.provider.patience.idle, Instant::now());
        let alarm = Box::pin(sleep_until(
            end.map_or(now + idle, |end| end.min(now + idle)),
        ));
        line.is_busy(true);
        let (flow, state) = (Some(flow), State::Streaming);
        Passage {
            session,
            line,
            flow,
            idle,
            end,
            last: now,
            alarm,
            state,
            length,
        }
    }

    /// What can be passed on now. Says how it goes on by the state it leaves.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let mut joined = Joined::default();
        while let Some(flow) = &mut self.flow {
            match flow.poll(cx) {
                Poll::Ready(Step::Data(data)) => {
                    self.last = Instant::now();
                    joined.push(data);
                    if flow.is_spent() {
                        self.session.note_budget();
                        self.fail("cut", fault::cut());
                    } else if joined.len() < JOINED {
                        continue;
                    }
                }
                Poll::Ready(Step::End(rest)) => {
                    joined.push(rest);
                    self.state = State::Ended;
                    if let Some(flow) = self.flow.take() {
                        flow.settle("complete", true);
                    }
                }
                Poll::Ready(Step::Broken) => self.fail("upstream_failed", fault::broken()),
                Poll::Pending if joined.len() > 0 => {}
                Poll::Pending => return self.poll_alarm(cx),
            }
            break;
        }
        Poll::Ready(joined.take())
    }

    /// Looks at the clock only when it strikes, not for every piece.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        while self.alarm.as_mut().poll(cx).is_ready() {
            let due = self.last + self.idle;
            let due = self.end.map_or(due, |end| end.min(due));
            if due <= Instant::now() {
                self.fail("upstream_stalled", fault::stalled());
                return Poll::Ready(Bytes::new());
            }
            self.alarm.as_mut().reset(due);
        }
        Poll::Pending
    }

    /// Settles, and leaves the last words.
    fn fail(&mut self, ending: &str, fault: Fault) {
        let mut words = Bytes::new();
        if let Some(flow) = self.flow.take() {
            words = flow.tap.interruption(&fault);
            flow.settle(ending, false);
        }
        // Into one document nothing can be put.
        self.state = if words.is_empty() {
            State::Cut
        } else {
            State::Failing(words)
        };
    }

    /// The end of a broken answer: words in the program's dialect, time to get out, then no proper end.
    fn poll_last_words(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match std::mem::replace(&mut self.state, State::Cut) {
            State::Failing(words) => {
                self.state = State::Said;
                Poll::Ready(Some(Ok(Frame::data(words))))
            }
            State::Said => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into()))),
        }
    }
}

impl Body for Passage {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            match this.state {
                State::Streaming => {}
                State::Ended => return Poll::Ready(None),
                State::Failing(_) | State::Said | State::Cut => return this.poll_last_words(cx),
            }
            if this.line.is_asked(cx) {
                this.fail("revoked", fault::revoked());
                continue;
            }
            match this.poll_data(cx) {
                Poll::Ready(data) if data.is_empty() => continue,
                Poll::Ready(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl Drop for Passage {
    /// The reader left, or was made to.
    fn drop(&mut self) {
        self.line.is_busy(false);
        let Some(mut flow) = self.flow.take() else {
            return;
        };
        // Where the length is known, nobody asks for what comes behind the last byte.
        if flow.is_read() {
            return flow.settle("complete", true);
        }
        if self.session.crowd.has_ended() {
            return flow.settle("revoked", false);
        }
        let drains = flow.upstream.provider.on_abort == OnAbort::Drain;
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if drains => {
                self.session.draining.begin();
                runtime.spawn(drain(self.session.clone(), flow));
            }
            _ => flow.settle("client_gone", false),
        }
    }
}

/// Reads on for the usage alone, within bounds.
async fn drain(session: Arc<Session>, mut flow: Flow) {
    let permit = session.doors.drains.try_acquire();
    let mut at_end = false;
    if permit.is_ok() {
        let read = async {
            let mut bytes = 0;
            while bytes < MOST_DRAINED && !flow.is_spent() {
                match poll_fn(|cx| flow.poll(cx)).await {
                    Step::Data(data) => bytes += data.len(),
                    Step::End(_) => return true,
                    Step::Broken => return false,
                }
            }
            false
        };
        at_end = tokio::select! {
            ended = timeout(LONGEST_DRAIN, read) => ended.unwrap_or(false),
            () = session.draining.stop.notified() => false,
        };
    }
    flow.settle("client_gone", at_end);
    session.draining.end();
}

impl Joined {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all
                .reserve(JOINED.min(4 * (self.first.len() + piece.len())));
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&piece);
    }

    fn take(self) -> Bytes {
        if self.all.is_empty() {
            self.first
        } else {
            self.all.freeze()
        }
    }
}
