//! Server-sent events of a program's output. Each event id is the reader's position; a client that
//! reconnects with the last id continues exactly there.

use super::{
    body::{ChunkSender, ChunkedBody, QueryParams},
    output_cursor::{OutputCursor, OutputItem, stream_index},
    wire::{ExecState, StreamName, text_or_base64},
};
use crate::{Caller, Gateway, Problem, path::Path, problem::Answer};
use axum::{
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
};
use engine::{Exec, Session};
use http::{
    HeaderMap, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::{Deserialize, Serialize};
use spec::StdStream;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Maximum bytes of output in one event.
const MAX_EVENT_BYTES: usize = 64 << 10;
/// Events in the channel of one client.
const CHANNEL_CAPACITY: usize = 4;
/// Interval of keep-alive comments, so that proxies do not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Suffix of the last event id.
const FINISHED_SUFFIX: &str = "exited";

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Output of a program.
#[derive(Debug, Serialize, ToSchema)]
struct OutputEvent {
    stream: StreamName,
    /// Where it begins in its stream.
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Instead of `text` where that is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// Output that is not kept any more.
#[derive(Debug, Serialize, ToSchema)]
struct GapEvent {
    stream: StreamName,
    from: u64,
    to: u64,
}

/// Where to go on.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct SinceQuery {
    /// Bytes of standard output that are known already.
    stdout: Option<u64>,
    /// Bytes of standard error that are known already.
    stderr: Option<u64>,
}

/// Streams what a program writes, from the beginning or from where a reader was: `started`, `output`, `gap`, `exited`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/exec/{exec}/events", tag = "programs",
    params(
        ("id" = String, Path), ("exec" = String, Path), SinceQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The identifier of the last event that was seen"),
    ),
    responses(
        (status = 200, content_type = "text/event-stream", body = String),
        (status = 204, description = "The last event was seen already"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn events(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    QueryParams(since): QueryParams<SinceQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (session, exec) = gateway.exec(&caller, &id, &exec)?;
    let at = match headers.get("last-event-id") {
        None => [since.stdout.unwrap_or(0), since.stderr.unwrap_or(0)],
        Some(last) => match last.to_str().ok().and_then(parse_position) {
            Some((_, true)) => return Ok(StatusCode::NO_CONTENT.into_response()),
            Some((at, false)) => at,
            None => {
                let hint = "give the identifier of an event of this program";
                return Err(Problem::invalid("this Last-Event-ID is none of ours", hint));
            }
        },
    };
    Ok(stream(session, exec, at))
}

/// Parses an event id: the position, and whether everything was sent.
fn parse_position(identifier: &str) -> Option<([u64; 2], bool)> {
    let mut parts = identifier.split('-');
    let at = [parts.next()?.parse().ok()?, parts.next()?.parse().ok()?];
    match (parts.next(), parts.next()) {
        (None, _) => Some((at, false)),
        (Some(FINISHED_SUFFIX), None) => Some((at, true)),
        _ => None,
    }
}

/// The events of a program from a position on. Reading them counts as use of the sandbox.
pub(super) fn stream(session: Session, exec: Exec, at: [u64; 2]) -> Response {
    let (outgoing, body) = ChunkedBody::body(CHANNEL_CAPACITY, None);
    tokio::spawn(async move {
        let mut streamer = EventStreamer {
            session,
            at,
            incomplete: Default::default(),
            outgoing,
        };
        // An error means that the client disconnected.
        let _ = streamer.run(&exec).await;
    });
    let head = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
    ];
    (head, body).into_response()
}

/// Sends the events to one client.
struct EventStreamer {
    session: Session,
    /// Position in each stream.
    at: [u64; 2],
    /// Incomplete UTF-8 character at the end of each stream.
    incomplete: [Vec<u8>; 2],
    outgoing: ChunkSender,
}

/// The client has disconnected.
struct Disconnected;

impl EventStreamer {
    async fn run(&mut self, exec: &Exec) -> Result<(), Disconnected> {
        self.send("started", "", &ExecState::brief(exec)).await?;
        let mut cursor = OutputCursor::new(
            exec.output(),
            self.at,
            &[StdStream::Stdout, StdStream::Stderr],
            MAX_EVENT_BYTES,
        );
        loop {
            let next = tokio::select! {
                next = cursor.next() => next,
                () = self.outgoing.closed() => return Err(Disconnected),
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    self.put(Bytes::from_static(b":\n\n")).await?;
                    continue;
                }
            };
            match next {
                OutputItem::Chunk(stream, _, bytes) => self.piece(stream, bytes).await?,
                OutputItem::Gap(stream, from, to) => self.gap(stream, from, to).await?,
                OutputItem::End => break,
            }
        }
        for stream in [StdStream::Stdout, StdStream::Stderr] {
            self.flush(stream).await?;
        }
        exec.wait().await;
        self.send("exited", FINISHED_SUFFIX, &ExecState::brief(exec))
            .await
    }

    /// Sends complete characters, and keeps the start of an incomplete one.
    async fn piece(&mut self, stream: StdStream, bytes: Vec<u8>) -> Result<(), Disconnected> {
        let incomplete = &mut self.incomplete[stream_index(stream)];
        incomplete.extend_from_slice(&bytes);
        let rest = incomplete.split_off(incomplete.len() - incomplete_suffix(incomplete));
        let whole = std::mem::replace(incomplete, rest);
        self.written(stream, whole).await
    }

    async fn gap(&mut self, stream: StdStream, from: u64, to: u64) -> Result<(), Disconnected> {
        self.flush(stream).await?;
        self.at[stream_index(stream)] = to;
        self.send(
            "gap",
            "",
            &GapEvent {
                stream: stream.into(),
                from,
                to,
            },
        )
        .await
    }

    async fn flush(&mut self, stream: StdStream) -> Result<(), Disconnected> {
        let rest = std::mem::take(&mut self.incomplete[stream_index(stream)]);
        self.written(stream, rest).await
    }

    async fn written(&mut self, stream: StdStream, bytes: Vec<u8>) -> Result<(), Disconnected> {
        if bytes.is_empty() {
            return Ok(());
        }
        let offset = self.at[stream_index(stream)];
        self.at[stream_index(stream)] += bytes.len() as u64;
        let (text, base64) = text_or_base64(bytes);
        self.send(
            "output",
            "",
            &OutputEvent {
                stream: stream.into(),
                offset,
                text,
                base64,
            },
        )
        .await
    }

    async fn send(
        &self,
        name: &str,
        over: &str,
        data: &impl Serialize,
    ) -> Result<(), Disconnected> {
        let [stdout, stderr] = self.at;
        let dash = if over.is_empty() { "" } else { "-" };
        let data = serde_json::to_string(data).map_err(|_| Disconnected)?;
        self.put(
            format!("id: {stdout}-{stderr}{dash}{over}\nevent: {name}\ndata: {data}\n\n").into(),
        )
        .await
    }

    async fn put(&self, bytes: Bytes) -> Result<(), Disconnected> {
        self.session.touch();
        self.outgoing
            .send(Ok(bytes))
            .await
            .map_err(|_| Disconnected)
    }
}

/// Number of bytes at the end that may start an incomplete character.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_says_how_far_a_reader_is() {
        assert_eq!(parse_position("12-3"), Some(([12, 3], false)));
        assert_eq!(parse_position("12-3-exited"), Some(([12, 3], true)));
        for other in ["", "12", "12-", "a-b", "1-2-3", "1-2-exited-x", "-1-2"] {
            assert_eq!(parse_position(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_character_waits() {
        let euro = "€".as_bytes();
        assert_eq!(incomplete_suffix(b"plain"), 0);
        assert_eq!(incomplete_suffix(&euro[..2]), 2);
        assert_eq!(incomplete_suffix(&[b"x", &euro[..1]].concat()), 1);
        assert_eq!(incomplete_suffix(euro), 0);
        assert_eq!(
            incomplete_suffix(&[0xff, 0xe2]),
            0,
            "what is no text at all does not wait"
        );
    }
}
