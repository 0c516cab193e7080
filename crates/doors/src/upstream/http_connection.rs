//! One HTTP/1 connection to a provider. It is polled by its user, within the same task: a second
//! task would cost a wake-up per chunk.

use super::maybe_tls_stream::MaybeTlsStream;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder, Connection, SendRequest},
};
use hyper_util::rt::TokioIo;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Instant,
};

/// Maximum number of response headers.
const MAX_HEADERS: usize = 100;
/// Also the maximum that is read at once.
const READ_BUFFER: usize = 64 << 10;

/// An exclusively owned connection, for requests with this body type.
pub(crate) struct HttpConnection<B: Body + 'static = Full<Bytes>> {
    connection: Pin<Box<Connection<TokioIo<MaybeTlsStream>, B>>>,
    sender: SendRequest<B>,
    has_ended: bool,
    /// When it became idle.
    pub(super) idle_since: Instant,
}

/// Why a request got no response.
#[derive(Debug)]
pub(crate) enum SendError<B> {
    /// Nothing was sent. The request can be sent again.
    NotSent(Box<Request<B>>),
    /// At least a part was sent, and no response came.
    Lost,
}

/// The next chunk of a response.
pub(crate) enum ResponseChunk {
    Data(Bytes),
    /// The response is complete.
    End,
    /// The response broke off.
    Broken,
}

impl<B> HttpConnection<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) async fn new(io: MaybeTlsStream) -> Result<HttpConnection<B>, hyper::Error> {
        let mut builder = Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(READ_BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        Ok(HttpConnection {
            connection: Box::pin(connection),
            sender,
            has_ended: false,
            idle_since: Instant::now(),
        })
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.has_ended && self.connection.as_mut().poll(cx).is_ready() {
            self.has_ended = true;
        }
    }

    /// Whether another request can be sent: the provider has neither closed the connection nor sent
    /// unrequested bytes.
    pub(crate) async fn is_ready(&mut self) -> bool {
        poll_fn(|cx| {
            self.drive(cx);
            Poll::Ready(!self.has_ended && self.sender.is_ready())
        })
        .await
    }

    /// Sends a request and waits for the response head.
    pub(crate) async fn send(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, SendError<B>> {
        let answer = self.sender.try_send_request(request);
        let mut answer = pin!(answer);
        poll_fn(|cx| {
            // The response may be ready although the connection has ended after it.
            if !self.has_ended && self.connection.as_mut().poll(cx).is_ready() {
                self.has_ended = true;
            }
            answer.as_mut().poll(cx)
        })
        .await
        .map_err(|mut error| match error.take_message() {
            Some(request) => SendError::NotSent(Box::new(request)),
            None => SendError::Lost,
        })
    }

    /// Polls the next chunk of the response body.
    pub(crate) fn poll_chunk(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<ResponseChunk> {
        // Polling the body first signals demand to the connection; what it then reads is polled
        // again.
        for _ in 0..2 {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => return Poll::Ready(ResponseChunk::Data(data)),
                    // Trailers are dropped.
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(_))) => return Poll::Ready(ResponseChunk::Broken),
                Poll::Ready(None) => return Poll::Ready(ResponseChunk::End),
                Poll::Pending => self.drive(cx),
            }
        }
        match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                Poll::Ready(ResponseChunk::Data(frame.into_data().unwrap_or_default()))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(ResponseChunk::Broken),
            Poll::Ready(None) => Poll::Ready(ResponseChunk::End),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The underlying stream after an upgrade, and the bytes already read from it.
    pub(crate) fn into_io(self) -> (MaybeTlsStream, Bytes) {
        let parts = Pin::into_inner(self.connection).into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }
}
