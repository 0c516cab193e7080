//! A connection whose other side must take what it is sent: a write that waits for too long without any progress breaks it.
//! Otherwise whoever asks and never reads would keep a connection for ever, without any key.
//!
//! Whoever was answered before he had sent all of his body may only read once he has. So what he still sends is thrown away
//! for a while before the connection closes: a connection that closes with something unread takes its answer with it.

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

/// How long something is thrown away before a connection closes, and how much of it.
const LONGEST_THROWING: Duration = Duration::from_secs(10);
const MOST_THROWN: usize = 64 << 20;

/// Such a connection.
pub(crate) struct Patient<S> {
    stream: S,
    longest: Duration,
    late: Pin<Box<Sleep>>,
    /// A write waits, and since then the clock runs.
    waits: bool,
    /// Something that was announced was not read.
    unread: Unread,
    /// Once nothing more is written: what may still be thrown away.
    thrown: Option<usize>,
}

/// Whether a body was left before its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Arc<AtomicBool>);

impl<S> Patient<S> {
    /// Waits so long for a write to get on.
    pub(crate) fn new(stream: S, longest: Duration, unread: Unread) -> Patient<S> {
        let late = Box::pin(tokio::time::sleep(longest));
        Patient {
            stream,
            longest,
            late,
            waits: false,
            unread,
            thrown: None,
        }
    }

    fn progress<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.waits = false;
            return done;
        }
        if !self.waits {
            self.waits = true;
            self.late.as_mut().reset(Instant::now() + self.longest);
        }
        match self.late.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
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
        let Some(mut room) = self.thrown else {
            let shut = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.progress(context, shut))?;
            if !self.unread.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            self.thrown = Some(MOST_THROWN);
            self.late.as_mut().reset(Instant::now() + LONGEST_THROWING);
            return self.poll_shutdown(context);
        };
        let mut bytes = [0; 16 << 10];
        while room > 0 && self.late.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            // One that broke has nothing more to lose.
            if ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)).is_err() {
                break;
            }
            room = match buffer.filled().len() {
                0 => 0,
                count => room.saturating_sub(count),
            };
            self.thrown = Some(room);
        }
        Poll::Ready(Ok(()))
    }
}

/// A body that says if it was left before its end.
pub(crate) struct Watched<B> {
    body: B,
    unread: Unread,
}

impl<B: Body> Watched<B> {
    pub(crate) fn new(body: B, unread: &Unread) -> Watched<B> {
        unread.0.store(!body.is_end_stream(), Ordering::Relaxed);
        Watched {
            body,
            unread: unread.clone(),
        }
    }
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        // Until it is known how it ends.
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
