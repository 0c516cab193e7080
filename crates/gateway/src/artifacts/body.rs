//! Bodies as streams, a piece at a time in both directions: no artifact is ever in memory as a whole.

use super::problem;
use crate::{Problem, problem::Answer};
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use http_body_util::BodyExt;
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use store::{Kept, Putting, Reading, StoreError};
use tokio::sync::mpsc;

/// A caller that sends nothing for so long has gone.
const IDLE: Duration = Duration::from_secs(60);

/// Keeps what comes, if all that was announced does and has the digest that was announced.
pub(super) async fn receive(
    mut putting: Putting,
    mut body: Body,
    announced: Option<u64>,
    expected: Option<&str>,
) -> Answer<Kept> {
    let mut size = 0;
    loop {
        let late = |_| {
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the body stopped coming",
                None,
            )
        };
        let Some(frame) = tokio::time::timeout(IDLE, body.frame())
            .await
            .map_err(late)?
        else {
            break;
        };
        let frame = frame.map_err(|_| Problem::invalid("the body was cut off", "send it again"))?;
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        size += bytes.len() as u64;
        putting.write(bytes).await.map_err(problem)?;
    }
    if announced.is_some_and(|announced| announced != size) {
        return Err(Problem::invalid(
            "the body is not as long as was announced",
            "send it again",
        ));
    }
    putting.finish(expected).await.map_err(problem)
}

/// What is still to be read, at the pace of whoever takes it. A damaged one ends without its end.
pub(super) fn send(mut reading: Reading) -> Body {
    let (sender, pieces) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            let piece = reading.next().await;
            let last = !matches!(piece, Ok(Some(_)));
            let Some(piece) = piece.transpose() else {
                return;
            };
            // Nobody takes it any more.
            if sender.send(piece).await.is_err() || last {
                return;
            }
        }
    });
    Body::new(Pieces(pieces))
}

struct Pieces(mpsc::Receiver<Result<Bytes, StoreError>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = StoreError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StoreError>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
