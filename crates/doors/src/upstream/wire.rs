//! One connection to a provider. It is driven by whoever uses it, within the same task: a second task would cost a
//! wake-up for every piece.

use super::io::Io;
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

/// What a provider may say before its answer begins.
const MOST_HEADERS: usize = 100;
/// Also what is read at once, at most.
const READ_BUFFER: usize = 64 << 10;

/// A connection that nobody else uses, for requests with such bodies.
pub(crate) struct Wire<B: Body + 'static = Full<Bytes>> {
    connection: Pin<Box<Connection<TokioIo<Io>, B>>>,
    sender: SendRequest<B>,
    ended: bool,
    /// Since when it has been idle.
    pub(super) idle_since: Instant,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer<B> {
    /// Nothing of the request went out. It can be sent again.
    NotSent(Box<Request<B>>),
    /// It went out, at least in part, and no answer came.
    Lost,
}

/// The next piece of an answer.
pub(crate) enum Piece {
    Data(Bytes),
    /// The whole answer has come.
    End,
    /// It broke off.
    Broken,
}

impl<B> Wire<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) async fn new(io: Io) -> Result<Wire<B>, hyper::Error> {
        let mut builder = Builder::new();
        builder.max_headers(MOST_HEADERS).max_buf_size(READ_BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        Ok(Wire {
            connection: Box::pin(connection),
            sender,
            ended: false,
            idle_since: Instant::now(),
        })
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended && self.connection.as_mut().poll(cx).is_ready() {
            self.ended = true;
        }
    }

    /// Whether another request can be sent: the provider has not hung up, nor sent what nobody asked for.
    pub(crate) async fn is_ready(&mut self) -> bool {
        poll_fn(|cx| {
            self.drive(cx);
            Poll::Ready(!self.ended && self.sender.is_ready())
        })
        .await
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, NoAnswer<B>> {
        let answer = self.sender.try_send_request(request);
        let mut answer = pin!(answer);
        poll_fn(|cx| {
            // The answer may lie ready although the connection has ended behind it.
            if !self.ended && self.connection.as_mut().poll(cx).is_ready() {
                self.ended = true;
            }
            answer.as_mut().poll(cx)
        })
        .await
        .map_err(|mut error| match error.take_message() {
            Some(request) => NoAnswer::NotSent(Box::new(request)),
            None => NoAnswer::Lost,
        })
    }

    /// The next piece of the answer's body.
    pub(crate) fn poll_piece(&mut self, body: &mut Incoming, cx: &mut Context<'_>) -> Poll<Piece> {
        // Asking first tells the connection that something is wanted; what it then finds is asked for again.
        for _ in 0..2 {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => return Poll::Ready(Piece::Data(data)),
                    // Trailers: nobody asked for them, and they are not passed on.
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Piece::Broken),
                Poll::Ready(None) => return Poll::Ready(Piece::End),
                Poll::Pending => self.drive(cx),
            }
        }
        match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                Poll::Ready(Piece::Data(frame.into_data().unwrap_or_default()))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(Piece::Broken),
            Poll::Ready(None) => Poll::Ready(Piece::End),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The connection itself, which is no longer one for requests, and what was read of it already.
    pub(crate) fn into_io(self) -> (Io, Bytes) {
        let parts = Pin::into_inner(self.connection).into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }
}
