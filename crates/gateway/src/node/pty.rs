//! Worker API terminals: open, send, receive, resize, close, one request each. Bytes are base64. A
//! terminal is a program of its sandbox and ends with it.

use super::{
    job_result, sessions,
    wire::{Uuid, Version, WorkerBody},
};
use crate::{
    Caller, Gateway, Problem,
    path::Path,
    problem::Answer,
    sandboxes::{self, ExecStart, QueryParams},
    wire::{decoded, encoded},
};
use axum::{Json, extract::State};
use engine::Exec;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use spec::{ExecRequest, StdStream, TerminalSize};
use std::{collections::BTreeMap, time::Duration};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Maximum bytes of a send and of a receive.
const MAX_SENT: usize = 64 << 10;
const MAX_RECEIVED: usize = 256 << 10;
const MAX_WAIT_SECONDS: u64 = 60;
/// Write timeout for a program that does not read its input.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Grace period of a program whose terminal is closed.
const CLOSE_GRACE: Duration = Duration::from_millis(300);

/// A terminal to be opened.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct PtyOrder {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
    /// `/bin/sh` unless said.
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cols: u16,
    rows: u16,
}

/// A terminal.
#[derive(Debug, Serialize, ToSchema)]
struct PtyOpened {
    #[schema(value_type = u64)]
    version: Version,
    pty_id: String,
}

fn size(cols: u16, rows: u16) -> Answer<TerminalSize> {
    if (1..=4096).contains(&rows) && (1..=4096).contains(&cols) {
        Ok(TerminalSize {
            rows,
            columns: cols,
        })
    } else {
        Err(Problem::invalid(
            "no terminal has that size",
            "give 1 to 4096 `rows` and `cols`",
        ))
    }
}

/// The terminal of that id in a live session; programs without a terminal are not found.
fn terminal(
    gateway: &Gateway,
    caller: &Caller,
    session: String,
    task: Option<&Uuid>,
    pty: &str,
) -> Answer<Exec> {
    let exec = sessions::live(gateway, caller, session, task)?.find_exec(pty);
    exec.filter(|exec| exec.request().tty.is_some())
        .ok_or_else(|| Problem::not_found("terminal"))
}

/// Open a terminal
#[utoipa::path(post, path = "/v1/worker/sessions/{session_id}/pty:open", tag = "worker", request_body = PtyOrder,
    params(("session_id" = String, Path)), responses(
    (status = 200, description = "It is open", body = PtyOpened),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn open(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    WorkerBody(order): WorkerBody<PtyOrder>,
) -> Answer<Json<PtyOpened>> {
    let live = sessions::live(&gateway, &caller, session, Some(&order.task_id))?;
    gateway.check_cpu(&caller.tenant)?;
    let context = sandboxes::ExecContext::of(&gateway, &caller).task(order.task_id.as_str());
    let command = if order.command.is_empty() {
        vec!["/bin/sh".to_owned()]
    } else {
        order.command
    };
    let request = sessions::exec_request(&command, &order.env)?;
    // The terminal lives as long as its session; only sending and receiving keep the session from
    // being idle.
    let tty = Some(size(order.cols, order.rows)?);
    let background = true;
    let stdin = true;
    let request = ExecRequest {
        tty,
        background,
        stdin,
        ..request
    };
    let order = ExecStart {
        request,
        typed: Vec::new(),
        stays_open: true,
    };
    let exec = sandboxes::start_exec(live, order, context).await?;
    Ok(Json(PtyOpened {
        version: Version,
        pty_id: exec.id().to_owned(),
    }))
}

/// What is typed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct PtySent {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
    pty_id: String,
    /// At most 64 KiB of bytes.
    data_b64: String,
}

/// How much of it was.
#[derive(Debug, Serialize, ToSchema)]
struct PtyTyped {
    #[schema(value_type = u64)]
    version: Version,
    /// Bytes typed at this terminal in all.
    typed: u64,
}

/// Type at a terminal
#[utoipa::path(post, path = "/v1/worker/sessions/{session_id}/pty:send", tag = "worker", request_body = PtySent,
    params(("session_id" = String, Path)), responses(
    (status = 200, description = "It is typed", body = PtyTyped),
    (status = 409, description = "The program has ended, or does not read", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn send(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    WorkerBody(sent): WorkerBody<PtySent>,
) -> Answer<Json<PtyTyped>> {
    let exec = terminal(
        &gateway,
        &caller,
        session,
        Some(&sent.task_id),
        &sent.pty_id,
    )?;
    let bytes = decoded(&sent.data_b64, "data_b64")?;
    if bytes.len() > MAX_SENT {
        let hint = "send at most 64 KiB at a time".to_owned();
        let title = "`data_b64` is too long";
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "quota_exceeded",
            title,
            Some(hint),
        ));
    }
    match tokio::time::timeout(WRITE_TIMEOUT, exec.write(&bytes)).await {
        Ok(Ok(())) => Ok(Json(PtyTyped {
            version: Version,
            typed: exec.input_offset(),
        })),
        Ok(Err(why)) => Err(Problem::conflict(
            format!("it was not typed: {why}"),
            "receive what is left",
        )),
        Err(_) => Err(Problem::conflict(
            format!(
                "the program does not read what is typed; {} bytes were in all",
                exec.input_offset()
            ),
            "receive what it writes, then send the rest",
        )),
    }
}

/// Which piece of what is shown.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct RecvQuery {
    pty_id: String,
    /// Only if the session belongs to this task.
    task_id: Option<String>,
    /// Where it begins: 0, then the `next` of the answer before.
    #[serde(default)]
    after: u64,
    /// So many seconds are waited for something to be there, 60 at most.
    #[serde(default)]
    wait_seconds: u64,
}

/// A piece of what a terminal shows.
#[derive(Debug, Serialize, ToSchema)]
struct PtyShown {
    #[schema(value_type = u64)]
    version: Version,
    /// At most 256 KiB of bytes.
    data_b64: String,
    /// Where this piece begins: later than asked for if what was between is forgotten.
    from: u64,
    /// Where the next one begins.
    next: u64,
    /// Whether nothing more will come.
    ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

/// Receive what a terminal shows
///
/// Waits for something to be there, if asked to.
#[utoipa::path(get, path = "/v1/worker/sessions/{session_id}/pty:recv", tag = "worker",
    params(("session_id" = String, Path), RecvQuery), responses(
    (status = 200, description = "The next piece, or an empty one", body = PtyShown),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn recv(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    QueryParams(part): QueryParams<RecvQuery>,
) -> Answer<Json<PtyShown>> {
    let task = part
        .task_id
        .map(|task| Uuid::of_path(task, "task_id"))
        .transpose()?;
    let exec = terminal(&gateway, &caller, session, task.as_ref(), &part.pty_id)?;
    if part.wait_seconds > MAX_WAIT_SECONDS {
        return Err(Problem::invalid(
            "`wait_seconds` is too long",
            "give at most 60",
        ));
    }
    let wait = Duration::from_secs(part.wait_seconds);
    // After the timeout the answer is empty.
    _ = tokio::time::timeout(
        wait,
        sandboxes::wait_for_output(&exec, StdStream::Stdout, part.after),
    )
    .await;
    let over = exec.output().has_ended();
    let piece = exec
        .output()
        .read(StdStream::Stdout, part.after, MAX_RECEIVED);
    let next = piece.from + piece.bytes.len() as u64;
    let ended = over && next >= exec.output().lengths()[0];
    let result = exec.result().filter(|_| ended);
    Ok(Json(PtyShown {
        version: Version,
        data_b64: encoded(&piece.bytes),
        from: piece.from,
        next,
        ended,
        exit_code: result.map(|end| {
            job_result::exit_code(end.status, end.exit_code, end.signal, end.exit_status)
        }),
    }))
}

/// Which terminal gets which size.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct PtyResize {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
    pty_id: String,
    cols: u16,
    rows: u16,
}

/// Give a terminal another size
#[utoipa::path(post, path = "/v1/worker/sessions/{session_id}/pty:resize", tag = "worker", request_body = PtyResize,
    params(("session_id" = String, Path)), responses(
    (status = 204, description = "It has it"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn resize(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    WorkerBody(request): WorkerBody<PtyResize>,
) -> Answer<StatusCode> {
    let exec = terminal(
        &gateway,
        &caller,
        session,
        Some(&request.task_id),
        &request.pty_id,
    )?;
    // A program that has just ended cannot be resized.
    _ = exec.resize(size(request.cols, request.rows)?);
    Ok(StatusCode::NO_CONTENT)
}

/// Which terminal is to be closed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct PtyClose {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
    pty_id: String,
}

/// How its program ended.
#[derive(Debug, Serialize, ToSchema)]
struct PtyClosed {
    #[schema(value_type = u64)]
    version: Version,
    exit_code: i32,
}

/// Close a terminal
///
/// Its program is ended. Asking again changes nothing.
#[utoipa::path(post, path = "/v1/worker/sessions/{session_id}/pty:close", tag = "worker", request_body = PtyClose,
    params(("session_id" = String, Path)), responses(
    (status = 200, description = "It is closed", body = PtyClosed),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn close(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    WorkerBody(request): WorkerBody<PtyClose>,
) -> Answer<Json<PtyClosed>> {
    let exec = terminal(
        &gateway,
        &caller,
        session,
        Some(&request.task_id),
        &request.pty_id,
    )?;
    let end = sandboxes::run_to_completion(async move { Ok(exec.stop(CLOSE_GRACE).await) }).await?;
    let exit_code = job_result::exit_code(end.status, end.exit_code, end.signal, end.exit_status);
    Ok(Json(PtyClosed {
        version: Version,
        exit_code,
    }))
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(open))
        .routes(routes!(send))
        .routes(routes!(recv))
        .routes(routes!(resize))
        .routes(routes!(close))
}
