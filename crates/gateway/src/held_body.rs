//! Response bodies that hold a guard (a share, a slot) until they are sent. A large body is sent in
//! slices, and each slice holds the guard: it is dropped when the last slice is written to the
//! socket, not when it is polled.

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// Bytes that are handed to the connection at a time. A body in one piece would leave our control
/// at once.
const SLICE: usize = 64 << 10;

/// Whether the body is complete and at most one slice long; it is then sent at once.
pub(crate) fn fits_one_slice(body: &Body) -> bool {
    http_body::Body::size_hint(body)
        .exact()
        .is_some_and(|length| length <= SLICE as u64)
}

/// Wraps a body so that `held` is dropped when the body is sent.
pub(crate) fn hold_until_sent(body: Body, held: impl Send + Sync + 'static) -> Body {
    Body::new(HeldBody {
        body,
        rest: Bytes::new(),
        held: Arc::new(held),
    })
}

struct HeldBody<T> {
    body: Body,
    /// Remainder of the frame that is being sliced.
    rest: Bytes,
    held: Arc<T>,
}

/// Bytes on their way to the socket, with the guard.
struct Slice<T> {
    bytes: Bytes,
    _held: Arc<T>,
}

impl<T> AsRef<[u8]> for Slice<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T: Send + Sync + 'static> http_body::Body for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else {
                return Poll::Ready(None);
            };
            match frame.into_data() {
                Ok(piece) => self.rest = piece,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let length = self.rest.len().min(SLICE);
        let slice = Slice {
            bytes: self.rest.split_to(length),
            _held: self.held.clone(),
        };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(slice)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let mut hint = self.body.size_hint();
        // The upper bound is set first: the lower bound must not exceed it.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use http_body_util::BodyExt;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::mpsc::error::TryRecvError,
    };

    #[tokio::test]
    async fn what_is_held_stays_until_the_last_slice_is_written() {
        let text: Vec<u8> = (0..3 * SLICE + 5).map(|index| index as u8).collect();
        let held = Arc::new(());
        let mut body = hold_until_sent(text.clone().into(), held.clone());
        let (mut taken, mut slices) = (Vec::new(), Vec::new());
        while !body.is_end_stream() {
            assert_eq!(
                body.size_hint().exact(),
                Some((text.len() - taken.len()) as u64)
            );
            let slice = body.frame().await.unwrap().unwrap().into_data().unwrap();
            taken.extend_from_slice(&slice);
            slices.push(slice);
        }
        assert_eq!(
            slices.iter().map(Bytes::len).collect::<Vec<_>>(),
            [SLICE, SLICE, SLICE, 5]
        );
        assert!(taken == text);
        drop(body);
        let last = slices.pop();
        drop(slices);
        assert_eq!(
            Arc::strong_count(&held),
            2,
            "one slice is still to be written"
        );
        drop(last);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn what_is_held_stays_while_a_client_takes_nothing() {
        let (held, mut given_back) = tokio::sync::mpsc::channel::<()>(1);
        let held = std::sync::Mutex::new(Some(held));
        let answer =
            move || hold_until_sent(vec![b' '; 32 << 20].into(), held.lock().unwrap().take());
        let (answer, listener) = (
            Arc::new(answer),
            tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let mut client = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let router = axum::Router::new().route("/", axum::routing::get(async move || answer()));
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        client.read_u8().await.unwrap();
        assert_eq!(given_back.try_recv(), Err(TryRecvError::Empty));
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert!(rest.len() > 32 << 20);
        assert_eq!(given_back.recv().await, None);
        server.abort();
    }
}
