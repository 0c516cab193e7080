//! What is done to a running program: typing, signals, another size of its terminal.

use super::{
    body::{Asked, parsed},
    wire::{SignalName, Size},
};
use crate::{Caller, Gateway, Problem, path::Path, problem::Answer, wire::Raw};
use axum::{Json, body::Body, extract::State};
use engine::{Exec, NotTyped};
use http::StatusCode;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Somebody types by hand; a connection on which nothing comes for longer is given back.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);
/// What is still taken, and for how long, of a body that nobody will read.
const MOST_IN_VAIN: usize = 8 << 20;
const LONGEST_IN_VAIN: Duration = Duration::from_secs(2);

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(stdin))
        .routes(routes!(signal))
        .routes(routes!(resize))
}

/// Where the body belongs, and what comes behind it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Typing {
    /// Nothing more will be typed.
    #[serde(default)]
    close: bool,
    /// Where the body begins in all that is typed, the order's `stdin` counted; where that ends unless said. What was
    /// typed already is passed over, so that a request without an answer can be sent again; refused if it was something
    /// else, as far as its last 4096 bytes tell.
    offset: Option<u64>,
}

/// How much was typed.
#[derive(Debug, Serialize, ToSchema)]
struct Typed {
    written: u64,
}

/// Types the body, at the pace at which the program reads. Requests at the same time are mixed as they come.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec/{exec}/stdin", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path), Typing),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = Typed),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It does not read, or not any more; or something else was typed at that offset"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn stdin(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    Asked(typing): Asked<Typing>,
    body: Body,
) -> Answer<Json<Typed>> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    if !exec.request().stdin && exec.request().tty.is_none() {
        return Err(Problem::conflict(
            "this program has no standard input",
            "start it with `open_stdin`",
        ));
    }
    if let Some(offset) = typing.offset
        && let Err(error) = exec.reached(offset).await
    {
        return Err(in_vain(body, refused(error, 0)).await);
    }
    let written = copy(&exec, body, typing.offset).await?;
    if typing.close {
        exec.close_input();
    }
    Ok(Json(Typed { written }))
}

async fn copy(exec: &Exec, mut body: Body, offset: Option<u64>) -> Answer<u64> {
    let mut written = 0;
    loop {
        let frame = tokio::select! {
            frame = tokio::time::timeout(LONGEST_SILENCE, body.frame()) => frame.map_err(|_| silent(written))?,
            // Nobody will read what still comes.
            _ = exec.wait() => return Err(in_vain(body, unread(written)).await),
        };
        let Some(frame) = frame else { break };
        let Ok(bytes) = frame.map_err(|_| cut(written))?.into_data() else {
            continue;
        };
        let at = offset.map(|offset| offset.saturating_add(written));
        if let Err(error) = exec.write_from(at, &bytes).await {
            return Err(in_vain(body, refused(error, written)).await);
        }
        written += bytes.len() as u64;
    }
    Ok(written)
}

/// Closed on what is still coming, a connection would take the answer with it.
async fn in_vain(mut body: Body, answer: Problem) -> Problem {
    let drained = async {
        let mut left = MOST_IN_VAIN;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, |bytes| bytes.len());
            let Some(less) = left.checked_sub(length) else {
                return;
            };
            left = less;
        }
    };
    // Whatever comes of it, the answer is the same.
    _ = tokio::time::timeout(LONGEST_IN_VAIN, drained).await;
    answer
}

fn refused(error: NotTyped, written: u64) -> Problem {
    match error {
        NotTyped::Ahead { typed } => ahead(typed),
        NotTyped::Other { typed } => other(typed),
        NotTyped::Over => unread(written),
    }
}

fn other(typed: u64) -> Problem {
    let title = format!("something else was typed at that offset: {typed} bytes were typed");
    Problem::conflict(
        title,
        format!("somebody else types there, too; type behind it with `offset={typed}`"),
    )
}

fn ahead(typed: u64) -> Problem {
    let title = format!("what comes before that offset is missing: {typed} bytes were typed");
    Problem::invalid(title, format!("begin at {typed} or before"))
}

fn unread(written: u64) -> Problem {
    let title = format!("the program does not read any more; {written} bytes were typed");
    Problem::conflict(title, "look at what came of it with `GET …/exec/{exec}`")
}

fn silent(written: u64) -> Problem {
    let title = format!("nothing was sent for {} seconds", LONGEST_SILENCE.as_secs());
    let hint = format!("{written} bytes were typed; type the rest with another request");
    Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", title, Some(hint))
}

fn cut(written: u64) -> Problem {
    Problem::invalid(
        "the body ended before its end",
        format!("{written} bytes were typed"),
    )
}

/// A signal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Signalled {
    signal: SignalName,
}

/// Sends a signal to a program and what it started.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec/{exec}/signal", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path)), request_body = Signalled,
    responses(
        (status = 204, description = "It was sent"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It has ended"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn signal(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    body: Raw,
) -> Answer<StatusCode> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    let number = parsed::<Signalled>(&body)?.signal.number()?;
    still_runs(&exec)?;
    exec.signal(number);
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the size of a program's terminal.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec/{exec}/resize", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path)), request_body = Size,
    responses(
        (status = 204, description = "It has that size"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It has ended, or has no terminal"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn resize(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    body: Raw,
) -> Answer<StatusCode> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    let size = parsed::<Size>(&body)?.checked()?;
    if exec.request().tty.is_none() {
        return Err(Problem::conflict(
            "this program has no terminal",
            "start it with `tty`",
        ));
    }
    still_runs(&exec)?;
    exec.resize(size).map_err(|_| ended())?;
    Ok(StatusCode::NO_CONTENT)
}

fn still_runs(exec: &Exec) -> Answer<()> {
    exec.result().map_or(Ok(()), |_| Err(ended()))
}

fn ended() -> Problem {
    Problem::conflict(
        "this program has ended",
        "look at what came of it with `GET …/exec/{exec}`",
    )
}
