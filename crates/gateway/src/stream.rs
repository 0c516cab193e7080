//! A body that is written while it is sent, by a task that waits when nobody reads.

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// Pieces under way.
const MOST_WAITING: usize = 4;

struct Received(mpsc::Receiver<Bytes>);

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Where to write, and what is sent. The writer learns that nobody reads any more.
pub(crate) fn body() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel(MOST_WAITING);
    (sender, Body::new(Received(receiver)))
}
