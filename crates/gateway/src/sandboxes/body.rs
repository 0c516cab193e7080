//! Extractors for JSON bodies and queries, and streaming response bodies.

use crate::{Gateway, Problem, problem::Answer, wire::parse_object};
use axum::{
    body::{Body, Bytes},
    extract::{FromRequestParts, Query},
};
use http::request::Parts;
use http_body::{Frame, SizeHint};
use serde::de::DeserializeOwned;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// Parses a JSON body; an empty body is an empty object.
pub(crate) fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    if body.trim_ascii().is_empty() {
        parse_object(b"{}")
    } else {
        parse_object(body)
    }
}

/// The query parameters.
#[derive(Debug)]
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Gateway> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Gateway) -> Result<QueryParams<T>, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(asked)) => Ok(QueryParams(asked)),
            Err(error) => Err(Problem::invalid(
                "the query is not what this route takes",
                error.body_text(),
            )),
        }
    }
}

/// Runs a task to its end, even if the client disconnects.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = Answer<T>> + Send + 'static,
) -> Answer<T> {
    tokio::spawn(work).await.unwrap_or_else(|_| {
        let title = "this could not be carried out";
        Err(Problem::new(
            http::StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            title,
            None,
        ))
    })
}

/// A streaming body whose chunks a task produces at the client's pace. An error aborts the
/// connection, so that a truncated body is noticed.
#[derive(Debug)]
pub(crate) struct ChunkedBody {
    incoming: mpsc::Receiver<io::Result<Bytes>>,
    /// Remaining bytes, if the length is known.
    left: Option<u64>,
}

/// The sender of chunks.
pub(crate) type ChunkSender = mpsc::Sender<io::Result<Bytes>>;

impl ChunkedBody {
    /// A body of known or unknown length, with a channel of this capacity.
    pub(crate) fn body(room: usize, length: Option<u64>) -> (ChunkSender, Body) {
        let (outgoing, incoming) = mpsc::channel(room);
        (
            outgoing,
            Body::new(ChunkedBody {
                incoming,
                left: length,
            }),
        )
    }
}

impl http_body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = std::task::ready!(self.incoming.poll_recv(context));
        match (next, self.left) {
            (Some(Ok(bytes)), left) => {
                self.left = left.map(|left| left.saturating_sub(bytes.len() as u64));
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            (Some(Err(error)), _) => Poll::Ready(Some(Err(error))),
            (None, Some(1..)) => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            (None, _) => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
