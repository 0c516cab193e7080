//! What a program writes, as server-sent events. Each says in its identifier how far a reader is; who comes again with
//! the last one that he saw goes on exactly there.

use super::{
    body::{Asked, Chunks, Outgoing},
    cursor::{Cursor, Next, index},
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
use spec::Stream;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// What one event carries at most.
const MOST_IN_ONE: usize = 64 << 10;
/// Events on their way to one reader.
const ROOM: usize = 4;
/// A line of silence is written so often, so that nobody between us takes the connection for dead.
const SILENCE: Duration = Duration::from_secs(15);
/// What stands behind the offsets once there is nothing left to tell.
const OVER: &str = "exited";

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Output of a program.
#[derive(Debug, Serialize, ToSchema)]
struct Written {
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
struct Forgotten {
    stream: StreamName,
    from: u64,
    to: u64,
}

/// Where to go on.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Since {
    /// Bytes of standard output that are known already.
    stdout: Option<u64>,
    /// Bytes of standard error that are known already.
    stderr: Option<u64>,
}

/// Streams what a program writes, from the beginning or from where a reader was: `started`, `output`, `gap`, `exited`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/exec/{exec}/events", tag = "programs",
    params(
        ("id" = String, Path), ("exec" = String, Path), Since,
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
    Asked(since): Asked<Since>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (session, exec) = gateway.exec(&caller, &id, &exec)?;
    let at = match headers.get("last-event-id") {
        None => [since.stdout.unwrap_or(0), since.stderr.unwrap_or(0)],
        Some(last) => match last.to_str().ok().and_then(place) {
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

/// Reads an identifier: how far the reader is, and whether he has seen all.
fn place(identifier: &str) -> Option<([u64; 2], bool)> {
    let mut parts = identifier.split('-');
    let at = [parts.next()?.parse().ok()?, parts.next()?.parse().ok()?];
    match (parts.next(), parts.next()) {
        (None, _) => Some((at, false)),
        (Some(OVER), None) => Some((at, true)),
        _ => None,
    }
}

/// The events of a program from a place on. Whoever listens uses the sandbox.
pub(super) fn stream(session: Session, exec: Exec, at: [u64; 2]) -> Response {
    let (outgoing, body) = Chunks::body(ROOM, None);
    tokio::spawn(async move {
        let mut teller = Teller {
            session,
            at,
            held: Default::default(),
            outgoing,
        };
        // An error means that nobody listens any more.
        let _ = teller.tell(&exec).await;
    });
    let head = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store"),
    ];
    (head, body).into_response()
}

/// Tells one reader.
struct Teller {
    session: Session,
    /// How much of each stream was told.
    at: [u64; 2],
    /// The beginning of a character whose rest is not written yet.
    held: [Vec<u8>; 2],
    outgoing: Outgoing,
}

/// Nobody listens any more.
struct Gone;

impl Teller {
    async fn tell(&mut self, exec: &Exec) -> Result<(), Gone> {
        self.send("started", "", &ExecState::brief(exec)).await?;
        let mut cursor = Cursor::new(
            exec.output(),
            self.at,
            &[Stream::Stdout, Stream::Stderr],
            MOST_IN_ONE,
        );
        loop {
            let next = tokio::select! {
                next = cursor.next() => next,
                () = self.outgoing.closed() => return Err(Gone),
                () = tokio::time::sleep(SILENCE) => {
                    self.put(Bytes::from_static(b":\n\n")).await?;
                    continue;
                }
            };
            match next {
                Next::Piece(stream, _, bytes) => self.piece(stream, bytes).await?,
                Next::Gap(stream, from, to) => self.gap(stream, from, to).await?,
                Next::End => break,
            }
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.flush(stream).await?;
        }
        exec.wait().await;
        self.send("exited", OVER, &ExecState::brief(exec)).await
    }

    /// Tells whole characters; what may be the beginning of one waits for its rest.
    async fn piece(&mut self, stream: Stream, bytes: Vec<u8>) -> Result<(), Gone> {
        let held = &mut self.held[index(stream)];
        held.extend_from_slice(&bytes);
        let rest = held.split_off(held.len() - unfinished(held));
        let whole = std::mem::replace(held, rest);
        self.written(stream, whole).await
    }

    async fn gap(&mut self, stream: Stream, from: u64, to: u64) -> Result<(), Gone> {
        self.flush(stream).await?;
        self.at[index(stream)] = to;
        self.send(
            "gap",
            "",
            &Forgotten {
                stream: stream.into(),
                from,
                to,
            },
        )
        .await
    }

    async fn flush(&mut self, stream: Stream) -> Result<(), Gone> {
        let rest = std::mem::take(&mut self.held[index(stream)]);
        self.written(stream, rest).await
    }

    async fn written(&mut self, stream: Stream, bytes: Vec<u8>) -> Result<(), Gone> {
        if bytes.is_empty() {
            return Ok(());
        }
        let offset = self.at[index(stream)];
        self.at[index(stream)] += bytes.len() as u64;
        let (text, base64) = text_or_base64(bytes);
        self.send(
            "output",
            "",
            &Written {
                stream: stream.into(),
                offset,
                text,
                base64,
            },
        )
        .await
    }

    async fn send(&self, name: &str, over: &str, data: &impl Serialize) -> Result<(), Gone> {
        let [stdout, stderr] = self.at;
        let dash = if over.is_empty() { "" } else { "-" };
        let data = serde_json::to_string(data).map_err(|_| Gone)?;
        self.put(
            format!("id: {stdout}-{stderr}{dash}{over}\nevent: {name}\ndata: {data}\n\n").into(),
        )
        .await
    }

    async fn put(&self, bytes: Bytes) -> Result<(), Gone> {
        self.session.touch();
        self.outgoing.send(Ok(bytes)).await.map_err(|_| Gone)
    }
}

/// How many bytes at the end may be the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
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
        assert_eq!(place("12-3"), Some(([12, 3], false)));
        assert_eq!(place("12-3-exited"), Some(([12, 3], true)));
        for other in ["", "12", "12-", "a-b", "1-2-3", "1-2-exited-x", "-1-2"] {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_character_waits() {
        let euro = "€".as_bytes();
        assert_eq!(unfinished(b"plain"), 0);
        assert_eq!(unfinished(&euro[..2]), 2);
        assert_eq!(unfinished(&[b"x", &euro[..1]].concat()), 1);
        assert_eq!(unfinished(euro), 0);
        assert_eq!(
            unfinished(&[0xff, 0xe2]),
            0,
            "what is no text at all does not wait"
        );
    }
}
