//! Bodies: JSON and questions in, with problems as answers to bad ones; streams of bytes out.

use crate::{Gateway, Problem, problem::Answer, wire::Raw};
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

/// Reads a JSON body; none at all is an empty object.
pub(crate) fn parsed<T: DeserializeOwned>(body: &Raw) -> Answer<T> {
    match body.0.trim_ascii().is_empty() {
        true => Raw(Bytes::from_static(b"{}")).json(),
        false => body.json(),
    }
}

/// What stands behind the question mark.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Gateway> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Gateway) -> Result<Asked<T>, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(asked)) => Ok(Asked(asked)),
            Err(error) => Err(Problem::invalid(
                "the query is not what this route takes",
                error.body_text(),
            )),
        }
    }
}

/// Has something done to its end, even if whoever asked hangs up meanwhile.
pub(crate) async fn to_the_end<T: Send + 'static>(
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

/// Chunks that a task makes, at the pace of whoever reads them. An error cuts the connection: no end is pretended.
#[derive(Debug)]
pub(crate) struct Chunks {
    incoming: mpsc::Receiver<io::Result<Bytes>>,
    /// How much is still to come, where that is known.
    left: Option<u64>,
}

/// Where the task puts them.
pub(crate) type Outgoing = mpsc::Sender<io::Result<Bytes>>;

impl Chunks {
    /// A body of known or unknown length, with room for so many chunks.
    pub(crate) fn body(room: usize, length: Option<u64>) -> (Outgoing, Body) {
        let (outgoing, incoming) = mpsc::channel(room);
        (
            outgoing,
            Body::new(Chunks {
                incoming,
                left: length,
            }),
        )
    }
}

impl http_body::Body for Chunks {
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
