//! A streaming response body that a task writes through a channel; the task waits when the client
//! does not read.

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// Chunks in the channel.
const CHANNEL_CAPACITY: usize = 4;

struct ChannelBody(mpsc::Receiver<Bytes>);

impl http_body::Body for ChannelBody {
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

/// The sender and the body. Sending fails when the client is gone.
pub(crate) fn body() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
    (sender, Body::new(ChannelBody(receiver)))
}
