//! Streaming upload and download of artifacts; no artifact is in memory as a whole.

use super::store_problem;
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
use store::{ArtifactError, StoredArtifact, VersionReader, VersionWriter};
use tokio::sync::mpsc;

/// A client that sends nothing for this long is disconnected.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Stores a body if its length and digest match what the client announced.
pub(super) async fn receive(
    mut putting: VersionWriter,
    mut body: Body,
    announced: Option<u64>,
    expected: Option<&str>,
) -> Answer<StoredArtifact> {
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
        let Some(frame) = tokio::time::timeout(READ_TIMEOUT, body.frame())
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
        putting.write(bytes).await.map_err(store_problem)?;
    }
    if announced.is_some_and(|announced| announced != size) {
        return Err(Problem::invalid(
            "the body is not as long as was announced",
            "send it again",
        ));
    }
    putting.finish(expected).await.map_err(store_problem)
}

/// Streams an artifact at the client's pace. If the content is damaged, the stream is cut off.
pub(super) fn send(mut reading: VersionReader) -> Body {
    let (sender, pieces) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            let piece = reading.next().await;
            let last = !matches!(piece, Ok(Some(_)));
            let Some(piece) = piece.transpose() else {
                return;
            };
            // The client is gone.
            if sender.send(piece).await.is_err() || last {
                return;
            }
        }
    });
    Body::new(ArtifactBody(pieces))
}

struct ArtifactBody(mpsc::Receiver<Result<Bytes, ArtifactError>>);

impl http_body::Body for ArtifactBody {
    type Data = Bytes;
    type Error = ArtifactError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ArtifactError>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
