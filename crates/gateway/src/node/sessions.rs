//! Worker API sessions: sandboxes that belong to a task, and are found only with it.

use super::{
    job_result::{self, MAX_OUTPUT, TruncatedStreams, WorkerJobStatus},
    jobs,
    wire::{NetworkPolicy, Uuid, Version, WorkerBody, digest, json_response, variables},
};
use crate::{
    Caller, Gateway, Problem, Scope, json_response,
    path::Path,
    problem::Answer,
    runs::host_paths,
    sandboxes::{self, ExecStart, Labels, NewSandbox, QueryParams, SandboxEntry},
    wire::decoded,
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use engine::Session;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use spec::{
    DEFAULT_SESSION_LIFETIME, ExecRequest, MAX_SESSION_LIFETIME, Network, RunRequest,
    SessionRequest, Status, StdStream,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use store::{
    audit::{self, Decision},
    server_database::PERSISTENT_KEY_PREFIX,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Labels that mark a sandbox as a session of a task.
const TASK_LABEL: &str = "task_id";
const SESSION_LABEL: &str = "session_id";
/// Maximum standard input in the request.
const MAX_STDIN: usize = 1 << 20;
const MAX_ARGUMENTS: usize = 4096;

/// A session to be made.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionOrder {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
    /// Chosen by whoever asks, so that asking again makes no second one; made here unless said.
    session_id: Option<Uuid>,
    image: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    network_policy: NetworkPolicy,
    /// It ends after so long in any case: an hour unless said, seven days at most.
    lifetime_seconds: Option<u64>,
    /// It ends when nobody has used it for so long: 15 minutes unless said.
    idle_seconds: Option<u64>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionView {
    #[schema(value_type = u64)]
    version: Version,
    task_id: String,
    session_id: String,
    /// The same sandbox at `/v1/sandboxes/{id}`, where its files are.
    sandbox_id: String,
    /// `ready`, `paused` or `ended`.
    status: &'static str,
    /// Why it ended: `asked`, `idle`, `lifetime`, `limit`, `server_stopped` or `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    expires_at: String,
    idle_until: String,
}

impl SessionView {
    fn of(entry: &SandboxEntry) -> SessionView {
        let state = entry.state();
        let label = |name| entry.labels.get(name).cloned().unwrap_or_default();
        SessionView {
            version: Version,
            task_id: label(TASK_LABEL),
            session_id: label(SESSION_LABEL),
            sandbox_id: entry.id.clone(),
            status: match state.status {
                engine::SessionStatus::Ready => "ready",
                engine::SessionStatus::Paused => "paused",
                engine::SessionStatus::Ended => "ended",
            },
            reason: state.ended.map(sandboxes::end_reason),
            created_at: state.created_at.to_string(),
            ended_at: state.ended_at.map(|at| at.to_string()),
            expires_at: state.expires_at.to_string(),
            idle_until: state.idle_until.to_string(),
        }
    }
}

/// Make a session
///
/// One sandbox for many programs, whose workspace stays between them. With a `session_id` of your own the same request is
/// the same session.
#[utoipa::path(post, path = "/v1/worker/sessions", tag = "worker", request_body = SessionOrder, responses(
    (status = 201, description = "It is there", body = SessionView),
    (status = 409, description = "The `session_id` stands for another session, or one that has ended", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    WorkerBody(order): WorkerBody<SessionOrder>,
) -> Answer<Response> {
    caller.require(Scope::Sandboxes)?;
    let session = match &order.session_id {
        Some(session) => session.clone(),
        None => Uuid::fresh()?,
    };
    let run = host_paths::admit(&gateway, &caller, order.request(&gateway))?;
    let name = session.name("session", &caller.tenant);
    let labels: Labels = [
        (TASK_LABEL, order.task_id.to_string()),
        (SESSION_LABEL, session.to_string()),
    ]
    .map(|(k, v)| (k.into(), v))
    .into();
    write_audit(&gateway, &caller, "sandbox.make", &name, &order.task_id).await?;
    let new_sandbox = NewSandbox {
        owner: caller.tenant.clone(),
        is_of_admin: caller.is_admin(),
        labels,
        request: SessionRequest {
            // This id is derived, and nobody else can choose it.
            run: RunRequest {
                run_id: Some(name.clone()),
                ..run
            },
            idle: order.idle_seconds.map(Duration::from_secs),
            lifetime: order.lifetime_seconds.map(Duration::from_secs),
        },
        fork_of: None,
        idempotency: Some((
            format!("{PERSISTENT_KEY_PREFIX}{name}"),
            digest(&order).to_vec(),
        )),
    };
    let entry = gateway
        .open(new_sandbox)
        .await
        .map_err(|problem| conflict_problem(problem).already_allowed())?;
    if entry.session().is_err() {
        let ended = Problem::conflict(
            "the session of this `session_id` has ended",
            "choose another one",
        );
        return Err(ended.already_allowed());
    }
    let place = format!("/v1/worker/sessions/{session}");
    let view = Json(SessionView::of(&entry));
    Ok((StatusCode::CREATED, [(http::header::LOCATION, place)], view).into_response())
}

fn conflict_problem(problem: Problem) -> Problem {
    match problem.status() {
        StatusCode::UNPROCESSABLE_ENTITY => Problem::conflict(
            "this `session_id` stands for another session",
            "send the same body to find it, or choose another `session_id`",
        ),
        _ => problem,
    }
}

impl SessionOrder {
    fn request(&self, gateway: &Gateway) -> RunRequest {
        let lifetime = self
            .lifetime_seconds
            .map_or(DEFAULT_SESSION_LIFETIME, Duration::from_secs);
        RunRequest {
            image: self.image.as_ref().map(Into::into),
            env: variables(&self.env),
            // Each program has its own timeout, up to the maximum; several may run one after
            // another.
            limits: jobs::limits_for(
                gateway,
                gateway.node().max_timeout,
                lifetime.min(MAX_SESSION_LIFETIME),
            ),
            network: Some(Network::None),
            task_id: Some(self.task_id.to_string()),
            ..RunRequest::default()
        }
    }
}

async fn write_audit(
    gateway: &Gateway,
    caller: &Caller,
    what: &str,
    sandbox: &str,
    task: &Uuid,
) -> Answer<()> {
    let entry = audit::AuditEntry {
        what,
        decision: Decision::Allowed,
        tenant: &caller.tenant,
        key: &caller.key,
        run: sandbox,
        task: task.as_str(),
        ..audit::AuditEntry::default()
    };
    gateway.write_audit_async(&entry).await
}

/// The session of that id, alive or ended, of this task if one is given. Another task's session is
/// not found.
pub(crate) fn entry(
    gateway: &Gateway,
    caller: &Caller,
    session: String,
    task: Option<&Uuid>,
) -> Answer<Arc<SandboxEntry>> {
    caller.require(Scope::Sandboxes)?;
    let name = Uuid::of_path(session, "session_id")?.name("session", &caller.tenant);
    let unknown = || Problem::not_found("session");
    let entry = gateway.entry(caller, &name).map_err(|_| unknown())?;
    let same = |task: &Uuid| {
        entry
            .labels
            .get(TASK_LABEL)
            .is_some_and(|known| known == task.as_str())
    };
    if task.is_none_or(same) {
        Ok(entry)
    } else {
        Err(unknown())
    }
}

/// The live session of that id and task. Using it resets its idle timer.
pub(super) fn live(
    gateway: &Gateway,
    caller: &Caller,
    session: String,
    task: Option<&Uuid>,
) -> Answer<Session> {
    let entry = entry(gateway, caller, session, task)?;
    // An ended session is not found; its own route tells why it ended.
    let session = entry
        .session()
        .map_err(|gone| gone.with_status(StatusCode::NOT_FOUND))?;
    session.touch();
    Ok(session)
}

/// Of which task it must be.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TaskQuery {
    /// Only if it belongs to this task.
    task_id: Option<String>,
}

/// One session
///
/// Looking does not count as using it. One that has ended is shown for a while, with why.
#[utoipa::path(get, path = "/v1/worker/sessions/{session_id}", tag = "worker",
    params(("session_id" = String, Path), TaskQuery), responses(
    (status = 200, description = "How it is", body = SessionView),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn show(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    QueryParams(of): QueryParams<TaskQuery>,
) -> Answer<Json<SessionView>> {
    let task = of
        .task_id
        .map(|task| Uuid::of_path(task, "task_id"))
        .transpose()?;
    Ok(Json(SessionView::of(&*entry(
        &gateway,
        &caller,
        session,
        task.as_ref(),
    )?)))
}

/// A program to be run in a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct SessionExec {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
    /// Exact argument list; no shell.
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Where it starts: `/workspace` unless said.
    cwd: Option<String>,
    /// 3600 unless said; never more than the node allows.
    timeout_seconds: Option<u64>,
    /// What it reads.
    stdin_b64: Option<String>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExecTold)]
struct SessionExecResult {
    #[schema(value_type = u64)]
    version: Version,
    task_id: String,
    session_id: String,
    exec_id: String,
    status: WorkerJobStatus,
    exit_code: i32,
    stdout: String,
    stderr: String,
    truncated: TruncatedStreams,
    started_at: String,
    ended_at: String,
    /// Why it did not end by itself, as of a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Builds the request of a program, within limits.
pub(super) fn exec_request(
    command: &[String],
    env: &BTreeMap<String, String>,
) -> Answer<ExecRequest> {
    let words = command.len() + env.len();
    if command.is_empty() || words > MAX_ARGUMENTS {
        let hint = format!("name a program, with up to {MAX_ARGUMENTS} arguments and variables");
        return Err(Problem::invalid("`command` is empty or too long", hint));
    }
    let has_nul = |text: &String| text.contains('\0');
    if command
        .iter()
        .chain(env.iter().flat_map(|(name, value)| [name, value]))
        .any(has_nul)
    {
        return Err(Problem::invalid(
            "a NUL cannot be passed to a program",
            "leave it out",
        ));
    }
    let command = command.iter().map(Into::into).collect();
    Ok(ExecRequest {
        command,
        env: variables(env),
        ..ExecRequest::default()
    })
}

impl SessionExec {
    fn order(&self, gateway: &Gateway) -> Answer<ExecStart> {
        let typed = self
            .stdin_b64
            .as_deref()
            .map(|text| decoded(text, "stdin_b64"))
            .transpose()?;
        if typed.as_ref().is_some_and(|typed| typed.len() > MAX_STDIN) {
            let hint = "write a file into the workspace by /v1/sandboxes/{sandbox_id}/files";
            return Err(Problem::invalid(
                format!("`stdin_b64` is more than {MAX_STDIN} bytes"),
                hint,
            ));
        }
        let timeout = jobs::limits(gateway, self.timeout_seconds)?
            .wall_time
            .map(|time| time.0);
        let request = ExecRequest {
            directory: self.cwd.as_ref().map(Into::into),
            stdin: typed.is_some(),
            timeout,
            beginning: MAX_OUTPUT,
            ..exec_request(&self.command, &self.env)?
        };
        Ok(ExecStart {
            request,
            typed: typed.unwrap_or_default(),
            stays_open: false,
        })
    }
}

/// Run a program in a session
///
/// Waits for its end. The program goes on if the caller hangs up.
#[utoipa::path(post, path = "/v1/worker/sessions/{session_id}/exec", tag = "worker", request_body = SessionExec,
    params(("session_id" = String, Path)), responses(
    (status = 200, description = "It has ended", body = SessionExecResult),
    (status = 404, description = "There is no such session of that task any more", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn exec(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    WorkerBody(request): WorkerBody<SessionExec>,
) -> Answer<Response> {
    let live = live(&gateway, &caller, session.clone(), Some(&request.task_id))?;
    gateway.check_cpu(&caller.tenant)?;
    let order = request.order(&gateway)?;
    // Memory for the response is reserved before the program runs.
    let reserved =
        json_response::reserve(gateway.response_bytes(), &caller.tenant, 2 * MAX_OUTPUT)?;
    write_audit(
        &gateway,
        &caller,
        "sandbox.exec",
        live.id().as_str(),
        &request.task_id,
    )
    .await?;
    let context = sandboxes::ExecContext::of(&gateway, &caller).task(request.task_id.as_str());
    let mut truncated = TruncatedStreams::default();
    // Also runs to its end if the client disconnects: taken output is freed.
    let (exec, result, stdout, stderr) = sandboxes::run_to_completion(async move {
        let exec = sandboxes::start_exec(live, order, context)
            .await
            .map_err(Problem::already_allowed)?;
        let result = exec.wait().await;
        let [stdout, stderr] =
            [StdStream::Stdout, StdStream::Stderr].map(|stream| exec.take_beginning(stream));
        drop(reserved);
        Ok((exec, result, stdout, stderr))
    })
    .await?;
    let [of_stdout, of_stderr] = exec.output().lengths();
    let stdout = beginning(stdout, of_stdout, &mut truncated.stdout);
    let stderr = beginning(stderr, of_stderr, &mut truncated.stderr);
    let result_body = SessionExecResult {
        version: Version,
        task_id: request.task_id.to_string(),
        session_id: session,
        exec_id: exec.id().to_owned(),
        status: match result.status {
            Status::Succeeded => WorkerJobStatus::Completed,
            Status::TimedOut => WorkerJobStatus::Timeout,
            _ => WorkerJobStatus::Failed,
        },
        exit_code: job_result::exit_code(
            result.status,
            result.exit_code,
            result.signal,
            result.exit_status,
        ),
        stdout,
        stderr,
        truncated,
        started_at: exec.started_at().to_string(),
        ended_at: result.ended_at.to_string(),
        reason: job_result::end_reason(result.status, result.error.as_ref()),
    };
    json_response(&gateway, &caller.tenant, &result_body)
}

/// The start of an output as text, cut at a character boundary.
fn beginning(mut bytes: Vec<u8>, total: u64, cut: &mut bool) -> String {
    *cut = total > bytes.len() as u64;
    if *cut {
        let half = bytes
            .utf8_chunks()
            .last()
            .map_or(0, |last| last.invalid().len());
        bytes.truncate(bytes.len() - half);
    }
    job_result::truncated_text(job_result::lossy(&bytes), cut)
}

/// Which session is meant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "a version that is not 1 is refused")]
struct SessionEnding {
    #[schema(value_type = u64)]
    version: Version,
    task_id: Uuid,
}

/// End a session
///
/// With everything in it. Asking again changes nothing.
#[utoipa::path(post, path = "/v1/worker/sessions/{session_id}/end", tag = "worker", request_body = SessionEnding,
    params(("session_id" = String, Path)), responses(
    (status = 200, description = "It has ended", body = SessionView),
    (status = 202, description = "It is being ended, and that takes unusually long", body = SessionView),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn end(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(session): Path<String>,
    WorkerBody(request): WorkerBody<SessionEnding>,
) -> Answer<Response> {
    let entry = entry(&gateway, &caller, session, Some(&request.task_id))?;
    write_audit(
        &gateway,
        &caller,
        "sandbox.end",
        &entry.id,
        &request.task_id,
    )
    .await?;
    let ending = entry.clone();
    let status = sandboxes::run_to_completion(async move { Ok(ending.end_soon(None).await) });
    let status = status.await.map_err(Problem::already_allowed)?;
    Ok((status, Json(SessionView::of(&entry))).into_response())
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(create))
        .routes(routes!(show))
        .routes(routes!(exec))
        .routes(routes!(end))
}
