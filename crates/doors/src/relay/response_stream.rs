//! The response stream: a response on its way to the program.
//!
//! ```text
//!            ┌─ end ──────────────▶ settled, connection kept
//! streaming ─┼─ broken, stalled ──▶ error event ─▶ cut
//!            ├─ budget exhausted ─▶ error event ─▶ cut
//!            ├─ session ended ────▶ error event ─▶ cut
//!            └─ client gone ──────▶ drained or closed, settled
//! ```

use super::{
    api_errors,
    metered_body::{BodyChunk, MeteredBody},
};
use crate::{
    catalogue::OnAbort, connections::ConnectionHandle, dialect::ApiError, session::DoorSession,
};
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

/// Ready chunks are joined up to this size, so that many small ones cost one write. Never waits for
/// more.
const MAX_JOINED_BYTES: usize = 16 << 10;
/// How much is read after the client disconnected.
const MAX_DRAINED_BYTES: usize = 4 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The streamed response body.
pub(crate) struct ResponseStream {
    session: Arc<DoorSession>,
    handle: Arc<ConnectionHandle>,
    metered: Option<MeteredBody>,
    idle: Duration,
    /// Deadline, if there is one.
    end: Option<Instant>,
    last_chunk_at: Instant,
    timer: Pin<Box<Sleep>>,
    state: StreamState,
    length: Option<u64>,
}

enum StreamState {
    Streaming,
    /// The final error event is to be sent.
    Failing(Bytes),
    /// The error event was sent and must be flushed before the connection is dropped.
    ErrorSent,
    Cut,
    Ended,
}

/// Joins small chunks.
#[derive(Default)]
struct ChunkBuffer {
    first: Bytes,
    all: BytesMut,
}

impl ResponseStream {
    pub(super) fn new(
        session: Arc<DoorSession>,
        handle: Arc<ConnectionHandle>,
        metered: MeteredBody,
        length: Option<u64>,
        end: Option<Instant>,
    ) -> ResponseStream {
        let idle = metered.upstream.provider.timeouts.idle;
        let now = Instant::now();
        let timer = Box::pin(sleep_until(
            end.map_or(now + idle, |end| end.min(now + idle)),
        ));
        handle.set_responding(true);
        let metered = Some(metered);
        let state = StreamState::Streaming;
        ResponseStream {
            session,
            handle,
            metered,
            idle,
            end,
            last_chunk_at: now,
            timer,
            state,
            length,
        }
    }

    /// Polls the data that can be forwarded now. The new state says how the stream continues.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let mut joined = ChunkBuffer::default();
        while let Some(metered) = &mut self.metered {
            match metered.poll(cx) {
                Poll::Ready(BodyChunk::Data(data)) => {
                    self.last_chunk_at = Instant::now();
                    joined.push(data);
                    if metered.is_over_limit() {
                        self.cut();
                    } else if joined.len() < MAX_JOINED_BYTES {
                        continue;
                    }
                }
                Poll::Ready(BodyChunk::End(rest)) => {
                    joined.push(rest);
                    self.state = StreamState::Ended;
                    if let Some(metered) = self.metered.take() {
                        metered.settle("complete", true);
                    }
                }
                Poll::Ready(BodyChunk::Broken) => {
                    self.fail("upstream_failed", api_errors::broken())
                }
                Poll::Pending if joined.len() > 0 => {}
                Poll::Pending => return self.poll_timeout(cx),
            }
            break;
        }
        Poll::Ready(joined.take())
    }

    /// Ends a stream that exceeds its reservation: the budget is exhausted, or the provider ignored
    /// the output limit.
    fn cut(&mut self) {
        let shortened = self
            .metered
            .as_ref()
            .is_some_and(|metered| metered.charge.call_limits.shortened);
        if shortened {
            self.session.mark_budget_hit();
            self.fail("cut", api_errors::cut());
        } else {
            self.fail("overrun", api_errors::overrun());
        }
    }

    /// Checks the clock only when the timer fires, not for every chunk.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let due = self.last_chunk_at + self.idle;
            let due = self.end.map_or(due, |end| end.min(due));
            if due <= Instant::now() {
                self.fail("upstream_stalled", api_errors::stalled());
                return Poll::Ready(Bytes::new());
            }
            self.timer.as_mut().reset(due);
        }
        Poll::Pending
    }

    /// Settles the charge and prepares the error event.
    fn fail(&mut self, ending: &str, error: ApiError) {
        let mut message = Bytes::new();
        if let Some(metered) = self.metered.take() {
            message = metered.tap.stream_error(&error);
            metered.settle(ending, false);
        }
        // A single document cannot carry an error event.
        self.state = if message.is_empty() {
            StreamState::Cut
        } else {
            StreamState::Failing(message)
        };
    }

    /// The end of a failed stream: the error event, time to flush it, then no proper end.
    fn poll_final_error(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match std::mem::replace(&mut self.state, StreamState::Cut) {
            StreamState::Failing(message) => {
                self.state = StreamState::ErrorSent;
                Poll::Ready(Some(Ok(Frame::data(message))))
            }
            StreamState::ErrorSent => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into()))),
        }
    }
}

impl Body for ResponseStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            match this.state {
                StreamState::Streaming => {}
                StreamState::Ended => return Poll::Ready(None),
                StreamState::Failing(_) | StreamState::ErrorSent | StreamState::Cut => {
                    return this.poll_final_error(cx);
                }
            }
            if this.handle.poll_ending(cx) {
                this.fail("revoked", api_errors::revoked());
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
        matches!(self.state, StreamState::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl Drop for ResponseStream {
    /// The client disconnected, or was disconnected.
    fn drop(&mut self) {
        self.handle.set_responding(false);
        let Some(mut metered) = self.metered.take() else {
            return;
        };
        // With a known length clients stop polling after the last byte.
        if metered.is_fully_read() {
            return metered.settle("complete", true);
        }
        if self.session.connections.has_ended() {
            return metered.settle("revoked", false);
        }
        let drains = metered.upstream.provider.on_abort == OnAbort::Drain;
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if drains => {
                self.session.draining.begin();
                runtime.spawn(drain(self.session.clone(), metered));
            }
            _ => metered.settle("client_gone", false),
        }
    }
}

/// Reads on, within limits, only to learn the usage.
async fn drain(session: Arc<DoorSession>, mut metered: MeteredBody) {
    let permit = session.doors.drains.try_acquire();
    let mut at_end = false;
    if permit.is_ok() {
        let read = async {
            let mut bytes = 0;
            while bytes < MAX_DRAINED_BYTES && !metered.is_over_limit() {
                match poll_fn(|cx| metered.poll(cx)).await {
                    BodyChunk::Data(data) => bytes += data.len(),
                    BodyChunk::End(_) => return true,
                    BodyChunk::Broken => return false,
                }
            }
            false
        };
        at_end = tokio::select! {
            ended = timeout(DRAIN_TIMEOUT, read) => ended.unwrap_or(false),
            () = session.draining.stop.notified() => false,
        };
    }
    metered.settle("client_gone", at_end);
    session.draining.end();
}

impl ChunkBuffer {
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
                .reserve(MAX_JOINED_BYTES.min(4 * (self.first.len() + piece.len())));
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
