//! Input to a running program: standard input, signals, terminal size.

use super::{
    body::{QueryParams, parse_json},
    wire::{SignalName, TtySize},
};
use crate::{Caller, Gateway, Problem, path::Path, problem::Answer, wire::RawBody};
use axum::{Json, body::Body, extract::State};
use engine::{Exec, StdinError};
use http::StatusCode;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Read timeout of a standard input request; long, because a person may be typing.
const READ_TIMEOUT: Duration = Duration::from_secs(600);
/// Byte limit and timeout for draining a body that nobody reads.
const MAX_DRAINED: usize = 8 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

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
struct StdinQuery {
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
#[schema(as = Typed)]
struct StdinWritten {
    written: u64,
}

/// Types the body, at the pace at which the program reads. Requests at the same time are mixed as they come.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec/{exec}/stdin", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = StdinWritten),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It does not read, or not any more; or something else was typed at that offset"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn stdin(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    QueryParams(query): QueryParams<StdinQuery>,
    body: Body,
) -> Answer<Json<StdinWritten>> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    if !exec.request().stdin && exec.request().tty.is_none() {
        return Err(Problem::conflict(
            "this program has no standard input",
            "start it with `open_stdin`",
        ));
    }
    if let Some(offset) = query.offset
        && let Err(error) = exec.wait_for_offset(offset).await
    {
        return Err(drain_body(body, stdin_problem(error, 0)).await);
    }
    let written = copy(&exec, body, query.offset).await?;
    if query.close {
        exec.close_input();
    }
    Ok(Json(StdinWritten { written }))
}

async fn copy(exec: &Exec, mut body: Body, offset: Option<u64>) -> Answer<u64> {
    let mut written = 0;
    loop {
        let frame = tokio::select! {
            frame = tokio::time::timeout(READ_TIMEOUT, body.frame()) => frame.map_err(|_| read_timed_out(written))?,
            // The program will not read the rest.
            _ = exec.wait() => return Err(drain_body(body, not_reading(written)).await),
        };
        let Some(frame) = frame else { break };
        let Ok(bytes) = frame.map_err(|_| body_cut_off(written))?.into_data() else {
            continue;
        };
        let at = offset.map(|offset| offset.saturating_add(written));
        if let Err(error) = exec.write_from(at, &bytes).await {
            return Err(drain_body(body, stdin_problem(error, written)).await);
        }
        written += bytes.len() as u64;
    }
    Ok(written)
}

/// Drains the body before the answer: closing a socket with unread data would lose the answer.
async fn drain_body(mut body: Body, answer: Problem) -> Problem {
    let drained = async {
        let mut left = MAX_DRAINED;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, |bytes| bytes.len());
            let Some(less) = left.checked_sub(length) else {
                return;
            };
            left = less;
        }
    };
    // The answer is the same in any case.
    _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    answer
}

fn stdin_problem(error: StdinError, written: u64) -> Problem {
    match error {
        StdinError::Gap { typed } => offset_ahead(typed),
        StdinError::Mismatch { typed } => different_bytes(typed),
        StdinError::Closed => not_reading(written),
    }
}

fn different_bytes(typed: u64) -> Problem {
    let title = format!("something else was typed at that offset: {typed} bytes were typed");
    Problem::conflict(
        title,
        format!("somebody else types there, too; type behind it with `offset={typed}`"),
    )
}

fn offset_ahead(typed: u64) -> Problem {
    let title = format!("what comes before that offset is missing: {typed} bytes were typed");
    Problem::invalid(title, format!("begin at {typed} or before"))
}

fn not_reading(written: u64) -> Problem {
    let title = format!("the program does not read any more; {written} bytes were typed");
    Problem::conflict(title, "look at what came of it with `GET …/exec/{exec}`")
}

fn read_timed_out(written: u64) -> Problem {
    let title = format!("nothing was sent for {} seconds", READ_TIMEOUT.as_secs());
    let hint = format!("{written} bytes were typed; type the rest with another request");
    Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", title, Some(hint))
}

fn body_cut_off(written: u64) -> Problem {
    Problem::invalid(
        "the body ended before its end",
        format!("{written} bytes were typed"),
    )
}

/// A signal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Signalled)]
struct SignalRequest {
    signal: SignalName,
}

/// Sends a signal to a program and what it started.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec/{exec}/signal", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path)), request_body = SignalRequest,
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
    body: RawBody,
) -> Answer<StatusCode> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    let request: SignalRequest = body.read(&gateway, &caller.tenant, parse_json).await?;
    let number = request.signal.number()?;
    check_running(&exec)?;
    exec.signal(number);
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the size of a program's terminal.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec/{exec}/resize", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path)), request_body = TtySize,
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
    body: RawBody,
) -> Answer<StatusCode> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    let size: TtySize = body.read(&gateway, &caller.tenant, parse_json).await?;
    let size = size.validate()?;
    if exec.request().tty.is_none() {
        return Err(Problem::conflict(
            "this program has no terminal",
            "start it with `tty`",
        ));
    }
    check_running(&exec)?;
    exec.resize(size).map_err(|_| ended())?;
    Ok(StatusCode::NO_CONTENT)
}

fn check_running(exec: &Exec) -> Answer<()> {
    exec.result().map_or(Ok(()), |_| Err(ended()))
}

fn ended() -> Problem {
    Problem::conflict(
        "this program has ended",
        "look at what came of it with `GET …/exec/{exec}`",
    )
}
