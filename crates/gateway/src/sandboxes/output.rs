//! What a program wrote, as bytes: a piece from an offset on, with a wait for more, or all that comes.

use super::{
    body::{Asked, Chunks, Outgoing},
    cursor::{Cursor, Next, index},
    wire::StreamName,
};
use crate::{Caller, Gateway, Problem, path::Path, problem::Answer};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use engine::{Exec, Piece, Session};
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use spec::Stream;
use std::{io, time::Duration};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What one answer carries unless said, and at most.
const USUAL: u64 = 1 << 20;
const MOST: u64 = 16 << 20;
const LONGEST_WAIT: f64 = 60.0;
/// What is handed on at a time.
const CHUNK: usize = 128 << 10;
const TOUCH: Duration = Duration::from_secs(5);

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(output))
        .routes(routes!(logs))
}

/// Which piece.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Part {
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
    params(("id" = String, Path), ("exec" = String, Path), Part),
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
    Asked(part): Asked<Part>,
) -> Answer<Response> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    piece(&exec, &part).await
}

async fn piece(exec: &Exec, part: &Part) -> Answer<Response> {
    let (stream, most) = (part.stream.into(), part.limit.unwrap_or(USUAL));
    if most == 0 || most > MOST || !(0.0..=LONGEST_WAIT).contains(&part.wait) {
        let hint = format!("`limit` is 1 to {MOST} bytes, `wait` 0 to {LONGEST_WAIT} seconds");
        return Err(Problem::invalid("`limit` or `wait` is out of bounds", hint));
    }
    // Whoever waits in vain gets what there is: nothing.
    let _ = tokio::time::timeout(
        Duration::from_secs_f64(part.wait),
        longer(exec, stream, part.offset),
    )
    .await;
    let complete = exec.output().has_ended();
    // While a program writes it may overwrite what is still to be sent: then a piece is what can be read at once.
    let most = if complete {
        most
    } else {
        most.min(CHUNK as u64)
    };
    let first = read(exec, stream, part.offset, most).await;
    let read = first.from + first.bytes.len() as u64;
    let total = exec.output().lengths()[index(stream)].max(read);
    let next = if complete {
        first.from + most.min(total - first.from)
    } else {
        read
    };
    let headers = place(exec, first.from, next, total, complete && next == total);
    if next == read {
        return Ok((headers, first.bytes).into_response());
    }
    let (outgoing, body) = Chunks::body(1, Some(next - first.from));
    tokio::spawn(send(exec.clone(), stream, first, next, outgoing));
    Ok((headers, body).into_response())
}

/// Reads no further than its reader does: who asks for much and takes nothing costs a few chunks.
async fn send(exec: Exec, stream: Stream, mut piece: Piece, end: u64, outgoing: Outgoing) {
    // What was forgotten meanwhile cuts the connection; the next one begins behind it.
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

/// A chunk at most, off the event loop: most of it lies on the disk.
async fn read(exec: &Exec, stream: Stream, from: u64, most: u64) -> Piece {
    let (exec, most) = (exec.clone(), most.min(CHUNK as u64) as usize);
    let chunk = move || exec.output().read(stream, from, most);
    tokio::task::spawn_blocking(chunk).await.unwrap_or(Piece {
        from,
        bytes: Vec::new(),
    })
}

/// Waits until a stream is longer than this, or nothing more will come.
pub(crate) async fn longer(exec: &Exec, stream: Stream, than: u64) {
    loop {
        let seen = exec.output().lengths();
        if seen[index(stream)] > than {
            return;
        }
        if !exec.output().grown(seen).await {
            // Its result is there a moment after its last byte, and belongs to the answer.
            exec.wait().await;
            return;
        }
    }
}

fn place(
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
struct Logged {
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
    get, path = "/v1/sandboxes/{id}/logs", tag = "programs", params(("id" = String, Path), Logged),
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
    Asked(logged): Asked<Logged>,
) -> Answer<Response> {
    let session = gateway.session(&caller, &id)?;
    let exec = chosen(&session, logged.exec.as_deref())?;
    let part = Part {
        stream: logged.stream,
        offset: logged.offset,
        limit: logged.limit,
        wait: 0.0,
    };
    match logged.follow {
        false => piece(&exec, &part).await,
        true if logged.limit.is_some() => Err(Problem::invalid(
            "`limit` and `follow` exclude each other",
            "give one of them",
        )),
        true => Ok(followed(session, &exec, part)),
    }
}

fn chosen(session: &Session, named: Option<&str>) -> Answer<Exec> {
    let found = match named {
        Some(name) => session.find_exec(name),
        None => session.execs().pop(),
    };
    found.ok_or_else(|| Problem::not_found("program"))
}

fn followed(session: Session, exec: &Exec, part: Part) -> Response {
    let stream: Stream = part.stream.into();
    let total = exec.output().lengths()[index(stream)];
    // What is forgotten already is told by the offset at which this begins.
    let from = exec
        .output()
        .read(stream, part.offset.min(total), 1)
        .from
        .max(part.offset);
    let mut at = [0, 0];
    at[index(stream)] = from;
    let (outgoing, body) = Chunks::body(4, None);
    tokio::spawn(follow(
        session,
        Cursor::new(exec.output(), at, &[stream], CHUNK),
        outgoing,
    ));
    (place(exec, from, from, total, false), body).into_response()
}

async fn follow(session: Session, mut cursor: Cursor, outgoing: Outgoing) {
    loop {
        // Whoever listens uses the sandbox, even if there is nothing to hear.
        session.touch();
        let next = tokio::select! {
            next = cursor.next() => next,
            () = outgoing.closed() => return,
            () = tokio::time::sleep(TOUCH) => continue,
        };
        let chunk = match next {
            Next::Piece(_, _, bytes) => Ok(bytes.into()),
            // Bytes alone cannot say that some are missing. The connection is cut; the next one begins behind them.
            Next::Gap(..) => Err(io::Error::other("the reader was too slow")),
            Next::End => return,
        };
        if outgoing.send(chunk).await.is_err() {
            return;
        }
    }
}
