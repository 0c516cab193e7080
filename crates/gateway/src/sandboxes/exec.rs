//! Programs of a sandbox: start, list, show, end. A program does not end with whoever asked for it.

use super::{
    body::{Asked, parsed, to_the_end},
    events,
    wire::{ExecAsked, ExecList, ExecState, Order},
};
use crate::{
    Caller, Gateway, Problem, fitting,
    path::Path,
    problem::Answer,
    telemetry::Output,
    trace::{self, Spot},
    wire::Raw,
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
use spec::{ErrorCode, ErrorInfo, Status, Stream};
use std::time::Duration;
use store::audit::{Decision, Entry};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What a program has to end by itself before it is killed, unless said: with it, an end takes less than a second.
const GRACE: Duration = Duration::from_millis(300);
/// What is read at once of what it writes.
const LARGEST_PIECE: usize = 64 << 10;
const LONGEST_GRACE: Duration = Duration::from_secs(60);

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(start, list))
        .routes(routes!(show, stop))
}

/// For whom a program is started: where it is told of.
#[derive(Debug)]
pub(crate) struct For {
    gateway: Gateway,
    tenant: String,
    key: String,
    task: String,
    spot: Option<Spot>,
}

impl For {
    pub(crate) fn of(gateway: &Gateway, caller: &Caller) -> For {
        let (tenant, key) = (caller.tenant.clone(), caller.key.clone());
        For {
            gateway: gateway.clone(),
            tenant,
            key,
            task: String::new(),
            spot: None,
        }
    }

    pub(crate) fn task(self, task: &str) -> For {
        For {
            task: task.to_owned(),
            ..self
        }
    }

    fn entry<'a>(&'a self, sandbox: &'a str) -> Entry<'a> {
        let For {
            tenant, key, task, ..
        } = self;
        Entry {
            what: "sandbox.pty",
            tenant,
            key,
            task,
            run: sandbox,
            ..Entry::default()
        }
    }
}

/// Starts a program, and types what was given with it behind the caller's back. It is followed to its end.
pub(crate) async fn begin(session: Session, order: Order, whose: For) -> Answer<Exec> {
    if session.state().status == SessionStatus::Paused {
        return Err(paused());
    }
    to_the_end(async move {
        let Order {
            request,
            typed,
            stays_open,
        } = order;
        let has_input = request.stdin;
        // Of others the gate has written it down.
        if request.tty.is_some() && !whose.task.is_empty() {
            let entry = whose.entry(session.id().as_str());
            whose.gateway.note(&Entry {
                decision: Decision::Allowed,
                ..entry
            })?;
        }
        let exec = session.exec(request).await.map_err(not_started)?;
        tokio::spawn(tell(whose, session.id().to_string(), exec.clone()));
        if has_input {
            let exec = exec.clone();
            tokio::spawn(async move {
                // A program that does not read to the end has no use for the rest.
                let written = exec.write(&typed).await;
                if !stays_open || written.is_err() {
                    exec.close_input();
                }
            });
        }
        Ok(exec)
    })
    .await
}

/// Follows a program to its end: what it writes becomes records of the node, and itself part of a trace.
async fn tell(whose: For, sandbox: String, exec: Exec) {
    let For {
        gateway,
        tenant,
        spot,
        ..
    } = &whose;
    let output = Output::new(&sandbox, tenant);
    let (feed, mut seen) = (exec.output().clone(), [0, 0]);
    loop {
        let more = feed.grown(seen).await;
        for (index, stream) in [Stream::Stdout, Stream::Stderr].into_iter().enumerate() {
            loop {
                let piece = feed.read(stream, seen[index], LARGEST_PIECE);
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
        let (id, typed, shown) = (exec.id(), exec.typed(), feed.lengths()[0]);
        let about = format!("exec={id} typed={typed} shown={shown}");
        let entry = Entry {
            decision: Decision::Happened,
            about: &about,
            ..whose.entry(&sandbox)
        };
        gateway.note_happened(&entry);
    }
    let Some(spot) = spot else { return };
    let attributes = vec![
        trace::text("airlock.sandbox", &sandbox),
        trace::text("airlock.exec", exec.id()),
        trace::text("airlock.tenant", tenant),
        trace::text("airlock.status", result.status.name()),
    ];
    let time = (exec.started_at().0 * 1000, result.ended_at.0 * 1000);
    gateway.tracer().tell(
        spot,
        "exec",
        time,
        result.status != Status::Succeeded,
        attributes,
    );
}

/// A program that is not there is the caller's mistake, not ours.
fn not_started(error: ErrorInfo) -> Problem {
    match error.code {
        ErrorCode::StartFailed => {
            Problem::from(error).with_status(StatusCode::UNPROCESSABLE_ENTITY)
        }
        _ => error.into(),
    }
}

fn paused() -> Problem {
    Problem::conflict(
        "this sandbox is paused",
        "let it go on with `…/resume` first",
    )
}

fn names(headers: &HeaderMap, header: impl http::header::AsHeaderName, wanted: &str) -> bool {
    let values = headers
        .get_all(header)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split([',', ';']))
        .any(|word| word.trim().eq_ignore_ascii_case(wanted))
}

/// Starts a program. Waits for its end; or streams what it writes with `Accept: text/event-stream`; or answers at once
/// with `Prefer: respond-async` or `background`.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec", tag = "programs",
    params(
        ("id" = String, Path),
        ("Prefer" = Option<String>, Header, description = "`respond-async`: answer as soon as it runs"),
    ),
    request_body = ExecAsked,
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
    spot: Option<Extension<Spot>>,
    headers: HeaderMap,
    body: Raw,
) -> Answer<Response> {
    let session = gateway.session_to_work_in(&caller, &id)?;
    let asked: ExecAsked = parsed(&body)?;
    let background = asked.background();
    let spot = spot.map(|Extension(spot)| spot.child());
    let whose = For {
        spot,
        ..For::of(&gateway, &caller)
    };
    let exec = begin(session.clone(), asked.order()?, whose).await?;
    if names(&headers, ACCEPT, "text/event-stream") {
        return Ok(events::stream(session, exec, [0, 0]));
    }
    let early = match (background, names(&headers, "prefer", "respond-async")) {
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
    fitting::json(&gateway, &caller, &ExecList { execs })
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
    fitting::json(&gateway, &caller, &state)
}

/// How it is to be ended.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Ending {
    /// Seconds between SIGTERM and SIGKILL; 0.3 unless said, 60 at most.
    grace: Option<f64>,
}

/// Ends a program: SIGTERM, then SIGKILL. Waits until it is gone, and answers with what came of it.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/exec/{exec}", tag = "programs",
    params(("id" = String, Path), ("exec" = String, Path), Ending),
    responses(
        (status = 200, body = ExecState),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn stop(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    Asked(ending): Asked<Ending>,
) -> Answer<Json<ExecState>> {
    let (_, exec) = gateway.exec(&caller, &id, &exec)?;
    let grace = match ending.grace.map(Duration::try_from_secs_f64) {
        None => GRACE,
        Some(Ok(grace)) if grace <= LONGEST_GRACE => grace,
        Some(_) => {
            return Err(Problem::invalid(
                "`grace` is no time that is waited",
                "give 0 to 60 seconds",
            ));
        }
    };
    let stopped = exec.clone();
    to_the_end(async move { Ok(stopped.stop(grace).await) }).await?;
    Ok(Json(ExecState::whole(&exec)))
}
