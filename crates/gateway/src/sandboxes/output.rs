//! Output of a program as bytes: a range with an optional wait, or a stream that follows it.

use super::{
    body::{ChunkSender, ChunkedBody, QueryParams},
    output_cursor::{OutputCursor, OutputItem, stream_index},
    wire::StreamName,
};
use crate::{Caller, Gateway, Problem, path::Path, problem::Answer};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use engine::{Exec, OutputChunk, Session};
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use spec::StdStream;
use std::{io, time::Duration};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Default and maximum bytes of a response.
const DEFAULT_LIMIT: u64 = 1 << 20;
const MAX_LIMIT: u64 = 16 << 20;
const MAX_WAIT_SECONDS: f64 = 60.0;
/// Bytes that are sent at a time.
const CHUNK: usize = 128 << 10;
const TOUCH_INTERVAL: Duration = Duration::from_secs(5);

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(output))
        .routes(routes!(logs))
}

/// Which piece.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct OutputQuery {
    /// `stdout` unless said.
    #[serde(default)]
    #[param(inline)]
    stream: StreamName,
    /// Where it begins.
    #[serde(default)]
    offset: u64,
    /// How much at most: 1 MiB unless said, 16 MiB at most. While the program runs a piece may be shorter.
    limit: Option<u64>,
    /// So many seconds are waited for something to be there, 60 at most.
    #[serde(default)]
    wait: f64,
}

/// Reads a piece of what a program wrote. `Airlock-Offset` says where it begins: later than asked for if the rest is
/// forgotten; `Airlock-Next-Offset` where the next one does; `Airlock-Complete` whether nothing more will come.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/exec/{exec}/output", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path), OutputQuery),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>, headers(
            ("Airlock-Exec" = String), ("Airlock-Offset" = u64), ("Airlock-Next-Offset" = u64),
            ("Airlock-Total" = u64), ("Airlock-Complete" = bool))),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn output(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    QueryParams(query): QueryParams<OutputQuery>,
) -> Answer<Response> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    output_piece(&exec, &query).await
}

async fn output_piece(exec: &Exec, query: &OutputQuery) -> Answer<Response> {
    let stream = query.stream.into();
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if limit == 0 || limit > MAX_LIMIT || !(0.0..=MAX_WAIT_SECONDS).contains(&query.wait) {
        let hint =
            format!("`limit` is 1 to {MAX_LIMIT} bytes, `wait` 0 to {MAX_WAIT_SECONDS} seconds");
        return Err(Problem::invalid("`limit` or `wait` is out of bounds", hint));
    }
    // After the timeout the answer is empty.
    let _ = tokio::time::timeout(
        Duration::from_secs_f64(query.wait),
        wait_for_output(exec, stream, query.offset),
    )
    .await;
    let complete = exec.output().has_ended();
    // While the program writes, old output may be discarded before it is sent: the response is then
    // limited to what can be read at once.
    let limit = if complete {
        limit
    } else {
        limit.min(CHUNK as u64)
    };
    let first = read(exec, stream, query.offset, limit).await;
    let read = first.from + first.bytes.len() as u64;
    let total = exec.output().lengths()[stream_index(stream)].max(read);
    let next = if complete {
        first.from + limit.min(total - first.from)
    } else {
        read
    };
    let headers = offset_headers(exec, first.from, next, total, complete && next == total);
    if next == read {
        return Ok((headers, first.bytes).into_response());
    }
    let (outgoing, body) = ChunkedBody::body(1, Some(next - first.from));
    tokio::spawn(send(exec.clone(), stream, first, next, outgoing));
    Ok((headers, body).into_response())
}

/// Reads at the client's pace: a large request of a client that reads nothing costs only a few
/// chunks.
async fn send(
    exec: Exec,
    stream: StdStream,
    mut piece: OutputChunk,
    end: u64,
    outgoing: ChunkSender,
) {
    // If output was discarded meanwhile, the connection is cut; the next request continues after
    // the gap.
    while !piece.bytes.is_empty() {
        let at = piece.from + piece.bytes.len() as u64;
        if outgoing.send(Ok(piece.bytes.into())).await.is_err() {
            return;
        }
        piece = read(&exec, stream, at, end - at).await;
        if piece.from != at {
            return;
        }
    }
}

/// Reads one chunk on a blocking thread: most output is on disk.
async fn read(exec: &Exec, stream: StdStream, from: u64, limit: u64) -> OutputChunk {
    let exec = exec.clone();
    let limit = limit.min(CHUNK as u64) as usize;
    let chunk = move || exec.output().read(stream, from, limit);
    tokio::task::spawn_blocking(chunk)
        .await
        .unwrap_or(OutputChunk {
            from,
            bytes: Vec::new(),
        })
}

/// Waits until a stream is longer than this, or has ended.
pub(crate) async fn wait_for_output(exec: &Exec, stream: StdStream, than: u64) {
    loop {
        let seen = exec.output().lengths();
        if seen[stream_index(stream)] > than {
            return;
        }
        if !exec.output().wait_for_more(seen).await {
            // The result follows the last byte immediately, and belongs to the answer.
            exec.wait().await;
            return;
        }
    }
}

fn offset_headers(
    exec: &Exec,
    from: u64,
    next: u64,
    total: u64,
    complete: bool,
) -> impl axum::response::IntoResponseParts {
    [
        (CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()),
        ("x-content-type-options", "nosniff".to_owned()),
        ("airlock-exec", exec.id().to_owned()),
        ("airlock-offset", from.to_string()),
        ("airlock-next-offset", next.to_string()),
        ("airlock-total", total.to_string()),
        ("airlock-complete", complete.to_string()),
    ]
}

/// Which program, and which piece.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LogsQuery {
    /// The newest program unless said.
    exec: Option<String>,
    /// `stdout` unless said.
    #[serde(default)]
    #[param(inline)]
    stream: StreamName,
    /// Where it begins.
    #[serde(default)]
    offset: u64,
    /// How much at most: 1 MiB unless said, 16 MiB at most; while the program runs a piece may be shorter. Not with `follow`.
    limit: Option<u64>,
    /// Goes on until the program has ended.
    #[serde(default)]
    follow: bool,
}

/// What a program of the sandbox wrote: the newest one, or the one that is named.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/logs", tag = "programs", params(("id" = String, Path), LogsQuery),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>, headers(
            ("Airlock-Exec" = String), ("Airlock-Offset" = u64), ("Airlock-Next-Offset" = u64),
            ("Airlock-Total" = u64), ("Airlock-Complete" = bool))),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn logs(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<LogsQuery>,
) -> Answer<Response> {
    let session = gateway.session(&caller, &id)?;
    let exec = find_exec(&session, query.exec.as_deref())?;
    let output = OutputQuery {
        stream: query.stream,
        offset: query.offset,
        limit: query.limit,
        wait: 0.0,
    };
    if !query.follow {
        return output_piece(&exec, &output).await;
    }
    if query.limit.is_some() {
        return Err(Problem::invalid(
            "`limit` and `follow` exclude each other",
            "give one of them",
        ));
    }
    Ok(follow_response(session, &exec, output))
}

fn find_exec(session: &Session, named: Option<&str>) -> Answer<Exec> {
    let found = match named {
        Some(name) => session.find_exec(name),
        None => session.execs().pop(),
    };
    found.ok_or_else(|| Problem::not_found("program"))
}

fn follow_response(session: Session, exec: &Exec, query: OutputQuery) -> Response {
    let stream: StdStream = query.stream.into();
    let total = exec.output().lengths()[stream_index(stream)];
    // The offset header tells what was already discarded.
    let from = exec
        .output()
        .read(stream, query.offset.min(total), 1)
        .from
        .max(query.offset);
    let mut at = [0, 0];
    at[stream_index(stream)] = from;
    let (outgoing, body) = ChunkedBody::body(4, None);
    tokio::spawn(follow(
        session,
        OutputCursor::new(exec.output(), at, &[stream], CHUNK),
        outgoing,
    ));
    (offset_headers(exec, from, from, total, false), body).into_response()
}

async fn follow(session: Session, mut cursor: OutputCursor, outgoing: ChunkSender) {
    loop {
        // Reading counts as use of the sandbox, even without output.
        session.touch();
        let next = tokio::select! {
            next = cursor.next() => next,
            () = outgoing.closed() => return,
            () = tokio::time::sleep(TOUCH_INTERVAL) => continue,
        };
        let chunk = match next {
            OutputItem::Chunk(_, _, bytes) => Ok(bytes.into()),
            // A byte stream cannot express a gap: the connection is cut, and the next one continues
            // after it.
            OutputItem::Gap(..) => Err(io::Error::other("the reader was too slow")),
            OutputItem::End => return,
        };
        if outgoing.send(chunk).await.is_err() {
            return;
        }
    }
}
