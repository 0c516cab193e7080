//! Programs of a sandbox: start, list, show, stop. A program outlives the request that started it.

use super::{
    body::{QueryParams, parse_json, run_to_completion},
    events,
    wire::{ExecList, ExecOptions, ExecStart, ExecState},
};
use crate::{
    Caller, Gateway, Problem,
    fair_share::ShareExceeded,
    json_response,
    path::Path,
    problem::Answer,
    telemetry::ContainerOutput,
    trace::{self, SpanContext},
    wire::RawBody,
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use engine::{Exec, Session, SessionStatus};
use http::{
    HeaderMap, StatusCode,
    header::{ACCEPT, LOCATION},
};
use serde::Deserialize;
use spec::{ErrorCode, ErrorInfo, Status, StdStream};
use std::time::Duration;
use store::audit::{AuditEntry, Decision};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Default grace period before a program is killed; short, so that stopping takes less than a
/// second.
const DEFAULT_GRACE: Duration = Duration::from_millis(300);
/// Bytes of output that are read at a time.
const CHUNK: usize = 64 << 10;
const MAX_GRACE: Duration = Duration::from_secs(60);

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(start, list))
        .routes(routes!(show, stop))
}

/// The tenant, key, task and span of a program, for audit and telemetry.
#[derive(Debug)]
pub(crate) struct ExecContext {
    gateway: Gateway,
    tenant: String,
    key: String,
    task: String,
    span_context: Option<SpanContext>,
}

impl ExecContext {
    pub(crate) fn of(gateway: &Gateway, caller: &Caller) -> ExecContext {
        let tenant = caller.tenant.clone();
        let key = caller.key.clone();
        ExecContext {
            gateway: gateway.clone(),
            tenant,
            key,
            task: String::new(),
            span_context: None,
        }
    }

    pub(crate) fn task(self, task: &str) -> ExecContext {
        ExecContext {
            task: task.to_owned(),
            ..self
        }
    }

    fn entry<'a>(&'a self, sandbox: &'a str) -> AuditEntry<'a> {
        let ExecContext {
            tenant, key, task, ..
        } = self;
        AuditEntry {
            what: "sandbox.pty",
            tenant,
            key,
            task,
            run: sandbox,
            ..AuditEntry::default()
        }
    }
}

/// Starts a program, writes its standard input in the background, and follows it to its end.
pub(crate) async fn start_exec(
    session: Session,
    order: ExecStart,
    context: ExecContext,
) -> Answer<Exec> {
    if session.state().status == SessionStatus::Paused {
        return Err(paused());
    }
    run_to_completion(async move {
        let ExecStart {
            request,
            typed,
            stays_open,
        } = order;
        let has_input = request.stdin;
        let unread = context.gateway.unread_stdin();
        let mut share = unread.guard(&context.tenant);
        unread
            .acquire(&mut share, typed.len())
            .map_err(unread_stdin_problem)?;
        // The middleware audits the other routes.
        if request.tty.is_some() && !context.task.is_empty() {
            let entry = context.entry(session.id().as_str());
            context.gateway.write_audit(&AuditEntry {
                decision: Decision::Allowed,
                ..entry
            })?;
        }
        let exec = session.exec(request).await.map_err(not_started)?;
        tokio::spawn(follow_to_end(
            context,
            session.id().to_string(),
            exec.clone(),
        ));
        if has_input {
            let exec = exec.clone();
            tokio::spawn(async move {
                // A program that does not read its input to the end does not need the rest.
                let written = exec.write(&typed).await;
                drop((typed, share));
                if !stays_open || written.is_err() {
                    exec.close_input();
                }
            });
        }
        Ok(exec)
    })
    .await
}

/// Follows a program to its end: records its output as telemetry, its terminal in the audit log,
/// and its span.
async fn follow_to_end(context: ExecContext, sandbox: String, exec: Exec) {
    let ExecContext {
        gateway,
        tenant,
        span_context,
        ..
    } = &context;
    let output = ContainerOutput::new(&sandbox, tenant);
    let feed = exec.output().clone();
    let mut seen = [0, 0];
    loop {
        let more = feed.wait_for_more(seen).await;
        for (index, stream) in [StdStream::Stdout, StdStream::Stderr]
            .into_iter()
            .enumerate()
        {
            loop {
                let piece = feed.read(stream, seen[index], CHUNK);
                if piece.bytes.is_empty() {
                    seen[index] = seen[index].max(piece.from);
                    break;
                }
                seen[index] = piece.from + piece.bytes.len() as u64;
                gateway.recorder().wrote(&output, stream, &piece.bytes);
            }
        }
        if !more {
            break;
        }
    }
    gateway.recorder().ended(&output);
    let result = exec.wait().await;
    if exec.request().tty.is_some() {
        let id = exec.id();
        let typed = exec.input_offset();
        let shown = feed.lengths()[0];
        let about = format!("exec={id} typed={typed} shown={shown}");
        let entry = AuditEntry {
            decision: Decision::Happened,
            about: &about,
            ..context.entry(&sandbox)
        };
        gateway.audit_event(&entry);
    }
    let Some(span_context) = span_context else {
        return;
    };
    let attributes = vec![
        trace::text("airlock.sandbox", &sandbox),
        trace::text("airlock.exec", exec.id()),
        trace::text("airlock.tenant", tenant),
        trace::text("airlock.status", result.status.name()),
    ];
    let time = (exec.started_at().0 * 1000, result.ended_at.0 * 1000);
    gateway.tracer().record_span(
        span_context,
        "exec",
        time,
        result.status != Status::Succeeded,
        attributes,
    );
}

/// A command that cannot be started is an error of the caller.
fn not_started(error: ErrorInfo) -> Problem {
    match error.code {
        ErrorCode::StartFailed => {
            Problem::from(error).with_status(StatusCode::UNPROCESSABLE_ENTITY)
        }
        _ => error.into(),
    }
}

fn unread_stdin_problem(exceeded: ShareExceeded) -> Problem {
    exceeded.problem(
        "bytes of standard input that no program has read",
        "wait until programs have read theirs or end them, or send it to `…/exec/{exec}/stdin` as it is read",
    )
}

fn paused() -> Problem {
    Problem::conflict(
        "this sandbox is paused",
        "let it go on with `…/resume` first",
    )
}

fn header_contains(
    headers: &HeaderMap,
    header: impl http::header::AsHeaderName,
    expected: &str,
) -> bool {
    let values = headers
        .get_all(header)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split([',', ';']))
        .any(|word| word.trim().eq_ignore_ascii_case(expected))
}

/// Starts a program. Waits for its end; or streams what it writes with `Accept: text/event-stream`; or answers at once
/// with `Prefer: respond-async` or `background`.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec", tag = "programs",
    params(
        ("id" = String, Path),
        ("Prefer" = Option<String>, Header, description = "`respond-async`: answer as soon as it runs"),
    ),
    request_body = ExecOptions,
    responses(
        (status = 200, description = "It has ended, or could not be found or run inside (`not_started`); or a stream of the events `started`, `output`, `gap`, `exited`",
            content((ExecState = "application/json"), (String = "text/event-stream"))),
        (status = 201, body = ExecState, description = "It runs in the background", headers(("Location" = String))),
        (status = 202, body = ExecState, description = "It runs", headers(("Location" = String))),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The sandbox is paused"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn start(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    span_context: Option<Extension<SpanContext>>,
    headers: HeaderMap,
    body: RawBody,
) -> Answer<Response> {
    let session = gateway.session_for_work(&caller, &id)?;
    let options: ExecOptions = body.read(&gateway, &caller.tenant, parse_json).await?;
    let background = options.background();
    let span_context = span_context.map(|Extension(span_context)| span_context.child());
    let context = ExecContext {
        span_context,
        ..ExecContext::of(&gateway, &caller)
    };
    let exec = start_exec(session.clone(), options.into_start()?, context).await?;
    if header_contains(&headers, ACCEPT, "text/event-stream") {
        return Ok(events::stream(session, exec, [0, 0]));
    }
    let early = match (
        background,
        header_contains(&headers, "prefer", "respond-async"),
    ) {
        (true, _) => Some(StatusCode::CREATED),
        (false, true) => Some(StatusCode::ACCEPTED),
        (false, false) => None,
    };
    if let Some(status) = early {
        let location = format!("/v1/sandboxes/{id}/exec/{}", exec.id());
        return Ok((
            status,
            [(LOCATION, location)],
            Json(ExecState::brief(&exec)),
        )
            .into_response());
    }
    exec.wait().await;
    Ok(Json(ExecState::whole(&exec)).into_response())
}

/// Lists the programs of a sandbox, the oldest first: those that run, and the newest of those that have ended.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/exec", tag = "programs", params(("id" = String, Path)),
    responses(
        (status = 200, body = ExecList),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    let session = gateway.session(&caller, &id)?;
    let execs = session.execs().iter().map(ExecState::brief).collect();
    json_response::from_value(&gateway, &caller, &ExecList { execs })
}

/// Shows a program; once it has ended, with what it wrote.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/exec/{exec}", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path)),
    responses(
        (status = 200, body = ExecState),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn show(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
) -> Answer<Response> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    let state = match exec.result() {
        Some(_) => ExecState::whole(&exec),
        None => ExecState::brief(&exec),
    };
    json_response::from_value(&gateway, &caller, &state)
}

/// How it is to be ended.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct StopQuery {
    /// Seconds between SIGTERM and SIGKILL; 0.3 unless said, 60 at most.
    grace: Option<f64>,
}

/// Ends a program: SIGTERM, then SIGKILL. Waits until it is gone, and answers with what came of it.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/exec/{exec}", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path), StopQuery),
    responses(
        (status = 200, body = ExecState),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn stop(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    QueryParams(query): QueryParams<StopQuery>,
) -> Answer<Json<ExecState>> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    let grace = match query.grace.map(Duration::try_from_secs_f64) {
        None => DEFAULT_GRACE,
        Some(Ok(grace)) if grace <= MAX_GRACE => grace,
        Some(_) => {
            return Err(Problem::invalid(
                "`grace` is no time that is waited",
                "give 0 to 60 seconds",
            ));
        }
    };
    let stopped = exec.clone();
    run_to_completion(async move { Ok(stopped.stop(grace).await) }).await?;
    Ok(Json(ExecState::whole(&exec)))
}
