//! Write timeout of a connection: a write without progress for this long fails. Otherwise a client
//! that never reads would hold a connection forever, without any key.
//!
//! A client that got its answer before it sent all of its body may read only after sending. The
//! rest of the body is therefore drained for a while before the close: closing a socket with unread
//! data resets it, and the answer is lost.

use http_body::{Body, Frame, SizeHint};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// Timeout and byte limit of draining before a close.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_DRAINED: usize = 64 << 20;

/// A stream whose writes time out.
pub(crate) struct WriteTimeoutStream<S> {
    stream: S,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    /// A write is pending and the timer runs.
    is_waiting: bool,
    /// A request body was not read to its end.
    unread: UnreadFlag,
    /// After the shutdown of writing: bytes that may still be drained.
    drain_left: Option<usize>,
}

/// Set while a request body is not read to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadFlag(Arc<AtomicBool>);

impl<S> WriteTimeoutStream<S> {
    /// Wraps a stream with a write timeout.
    pub(crate) fn new(stream: S, timeout: Duration, unread: UnreadFlag) -> WriteTimeoutStream<S> {
        let timer = Box::pin(tokio::time::sleep(timeout));
        WriteTimeoutStream {
            stream,
            timeout,
            timer,
            is_waiting: false,
            unread,
            drain_left: None,
        }
    }

    fn progress<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.is_waiting = false;
            return done;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.timer.as_mut().reset(Instant::now() + self.timeout);
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.progress(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.progress(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.progress(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(mut left) = self.drain_left else {
            let shut = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.progress(context, shut))?;
            if !self.unread.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            self.drain_left = Some(MAX_DRAINED);
            self.timer.as_mut().reset(Instant::now() + DRAIN_TIMEOUT);
            return self.poll_shutdown(context);
        };
        let mut bytes = [0; 16 << 10];
        while left > 0 && self.timer.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            // On a broken connection there is nothing to preserve.
            if ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)).is_err() {
                break;
            }
            left = match buffer.filled().len() {
                0 => 0,
                count => left.saturating_sub(count),
            };
            self.drain_left = Some(left);
        }
        Poll::Ready(Ok(()))
    }
}

/// A request body that sets the flag while it is incomplete.
pub(crate) struct TrackedBody<B> {
    body: B,
    unread: UnreadFlag,
}

impl<B: Body> TrackedBody<B> {
    pub(crate) fn new(body: B, unread: &UnreadFlag) -> TrackedBody<B> {
        unread.0.store(!body.is_end_stream(), Ordering::Relaxed);
        TrackedBody {
            body,
            unread: unread.clone(),
        }
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        // Incomplete until its end is known.
        self.unread.0.store(
            frame.is_some() && !self.body.is_end_stream(),
            Ordering::Relaxed,
        );
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
