//! One connection: hyper reads requests, we write answers. Every lie about framing is a few bytes of ours, and what has
//! left is known by the byte; nothing waits in a buffer.

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    http::request::Parts,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

/// Agents send long prompts; nothing sends more than this.
const LARGEST_BODY: usize = 256 << 20;

/// TCP, with or without TLS.
pub(crate) enum Carrier {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A carrier, and what was read of it ahead of its time.
pub(crate) struct Wire {
    carrier: Carrier,
    ahead: Bytes,
}

/// What a connection's next request turned out to be.
pub(crate) enum Next {
    Request(Box<Parts>, Bytes, Wire),
    Malformed,
    Closed,
}

impl Wire {
    pub(crate) fn new(carrier: Carrier) -> Wire {
        Wire {
            carrier,
            ahead: Bytes::new(),
        }
    }

    /// Waits for a whole request.
    pub(crate) async fn next(self) -> Next {
        let slot = Arc::new(Mutex::new(None));
        let filled = slot.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let slot = slot.clone();
            Box::pin(async move {
                let (head, body) = request.into_parts();
                if let Ok(body) = Limited::new(body, LARGEST_BODY).collect().await {
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some((head, body.to_bytes()));
                }
                // Never answers: the answer is ours.
                pending::<Result<Response<Empty<Bytes>>, Infallible>>().await
            })
        });
        let mut connection = http1::Builder::new()
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(self), service);
        let request = poll_fn(|context| {
            let ended = Pin::new(&mut connection).poll(context);
            match filled.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(request) => Poll::Ready(Ok(request)),
                None => ended.map(Err),
            }
        });
        match request.await {
            Ok((head, body)) => {
                let parts = connection.into_parts();
                Next::Request(
                    Box::new(head),
                    body,
                    parts.io.into_inner().put_back(parts.read_buf),
                )
            }
            Err(Err(error)) if error.is_parse() => Next::Malformed,
            Err(_) => Next::Closed,
        }
    }

    fn put_back(mut self, read: Bytes) -> Wire {
        // What lay ahead was drained before anything new was read, so one of the two is empty.
        if !read.is_empty() {
            self.ahead = if self.ahead.is_empty() {
                read
            } else {
                [read, self.ahead].concat().into()
            };
        }
        self
    }

    /// Hands it all to the socket.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.write_all(bytes).await.map_err(|_| Gone)?;
        // TLS keeps records back until it is told.
        if matches!(self.carrier, Carrier::Tls(_)) {
            self.flush().await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Looks, without waiting, whether the client is still there.
    pub(crate) async fn check(&mut self) -> Result<(), Gone> {
        poll_fn(|context| Poll::Ready(self.poll_gone(context).is_ready()))
            .await
            .then_some(Gone)
            .map_or(Ok(()), Err)
    }

    /// Waits until the client goes away.
    pub(crate) async fn gone(&mut self) -> Gone {
        poll_fn(|context| self.poll_gone(context)).await;
        Gone
    }

    /// Waits so long, unless the client goes away.
    pub(crate) async fn sleep(&mut self, time: Duration) -> Result<(), Gone> {
        self.unless_gone(tokio::time::sleep(time)).await
    }

    /// Waits for this, unless the client goes away.
    pub(crate) async fn unless_gone(
        &mut self,
        event: impl Future<Output = ()>,
    ) -> Result<(), Gone> {
        tokio::select! {
            gone = self.gone() => Err(gone),
            () = event => Ok(()),
        }
    }

    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut space = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut self.carrier).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.ahead = [&self.ahead, buffer.filled()].concat().into();
                }
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
    }

    /// Closes it, well for TLS.
    pub(crate) async fn close(mut self) {
        _ = self.shutdown().await;
    }

    /// Ends it so that the client's next read fails.
    pub(crate) fn reset(self) {
        let socket = match &self.carrier {
            Carrier::Plain(socket) => socket,
            Carrier::Tls(stream) => stream.get_ref().0,
        };
        _ = socket.set_zero_linger();
    }
}

/// The client has gone away.
#[derive(Debug)]
pub(crate) struct Gone;

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.carrier).poll_read(context, buffer);
        }
        let length = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(&self.ahead.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.carrier {
            Carrier::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Carrier::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.carrier {
            Carrier::Plain(socket) => Pin::new(socket).poll_flush(context),
            Carrier::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.carrier {
            Carrier::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Carrier::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl AsyncRead for Carrier {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Carrier::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Carrier::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}
