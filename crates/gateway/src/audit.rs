//! Audit log of HTTP requests, and the routes that read it.
//!
//! The middleware writes an entry for every route: before the handler for a request that changes
//! something or returns contents, and after it for every refusal. A route cannot forget it. Runs
//! and sandboxes write entries about their own life cycle.
//!
//! A new route is named in `action_name`, a refusal's rule by `Problem::with_rule`; both have rows in `docs/audit.md`.

use crate::{
    Caller, Gateway, Problem, Scope,
    artifacts::percent_decoded,
    blocking,
    cursor::PagedList,
    json_response,
    path::Path as InPath,
    problem::{Answer, RefusalInfo},
};
use axum::{
    extract::{Query, State, rejection::QueryRejection},
    response::Response,
};
use http::{Method, StatusCode, header::CONTENT_LENGTH};
use serde::{Deserialize, Serialize};
use spec::{Denial, RunEvent, RunResult};
use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use store::audit::{AuditEntry, AuditFilter, AuditPage, AuditRow, BadCursor, Decision};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Rate limit of refusal entries per minute, for each tenant and for all unauthenticated callers
/// together; the rest is counted.
const MAX_REFUSALS_PER_MINUTE: u32 = 120;
const MINUTE: Duration = Duration::from_secs(60);
/// Maximum number of tenants with a refusal counter of their own.
const MAX_COUNTED_TENANTS: usize = 10_000;
/// Maximum number of denial entries of one run; the number of the others is in the entry about its
/// end.
pub(crate) const MAX_DENIALS_PER_RUN: u64 = 200;
const DEFAULT_LISTED: usize = 100;
const MAX_LISTED: usize = 1000;

/// Actions whose handler writes the `allowed` entry itself, because it knows more details.
const AUDITED_BY_HANDLER: [&str; 13] = [
    "run.accept",
    "job.accept",
    "job.cancel",
    "job.retry",
    "job.stop",
    "node.stop_all",
    "session.make",
    "session.exec",
    "session.end",
    "workflow.start",
    "workflow.resume",
    "workflow.release",
    // Terminal input, output and size are not audited one by one.
    "input",
];
/// Actions that end or remove something: they may use the disk reserve.
const FREES_SPACE: [&str; 14] = [
    "run.cancel",
    "job.cancel",
    "job.stop",
    "node.stop_all",
    "session.end",
    "workflow.release",
    "sandbox.end",
    "sandbox.stop",
    "sandbox.signal",
    "file.remove",
    "artifact.remove",
    "image.remove",
    "workspace.discard",
    "key.revoke",
];
/// Actions that revoke access are carried out even if the entry cannot be written now: it is queued
/// in memory.
const NEVER_BLOCKED: [&str; 4] = ["key.revoke", "run.cancel", "sandbox.end", "sandbox.stop"];
/// Action name of a route that has no entry in `action_name`.
const UNNAMED_ACTION: &str = "request";

/// The refusal when the audit log cannot be written: nothing is done without its audit entry.
pub(crate) fn unwritable() -> Problem {
    let hint =
        "nothing is done that cannot be written down; look whether the disk of this server is full";
    let title = "the audit cannot be written";
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "internal",
        title,
        Some(hint.to_owned()),
    )
}

/// The audit action of a request; `None` for a request that only reads state.
fn action_name(method: &Method, route: &str) -> Option<&'static str> {
    let is_reading = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    Some(match (method.as_str(), route) {
        (_, crate::middleware::UNMATCHED) => return None,
        ("POST", "/v1/runs") => "run.accept",
        ("DELETE", "/v1/runs/{id}") => "run.cancel",
        ("POST", "/v1/jobs" | "/v1/worker/jobs:run") => "job.accept",
        ("DELETE", "/v1/jobs/{id}") => "job.cancel",
        ("POST", "/v1/jobs/{id}/retry") => "job.retry",
        ("POST", "/v1/worker/jobs:stop") => "job.stop",
        ("POST", "/v1/worker/admin/stop-all-orchestrator-directed") => "node.stop_all",
        ("POST", "/v1/worker/sessions") => "session.make",
        ("POST", "/v1/worker/sessions/{session_id}/exec") => "session.exec",
        ("POST", "/v1/worker/sessions/{session_id}/end") => "session.end",
        ("POST", route) if is_terminal(route) => {
            if route.ends_with(":open") {
                "pty.open"
            } else {
                "input"
            }
        }
        ("POST", "/v1/workflow/start") => "workflow.start",
        ("POST", "/v1/workflow/resume") => "workflow.resume",
        ("POST", "/v1/workflow/checkpoint") => "workflow.checkpoint",
        ("POST", "/v1/workflow/release") => "workflow.release",
        ("POST", "/v1/sandboxes") => "sandbox.make",
        ("DELETE", "/v1/sandboxes/{id}") => "sandbox.end",
        ("POST", "/v1/sandboxes/{id}/pause") => "sandbox.pause",
        ("POST", "/v1/sandboxes/{id}/resume") => "sandbox.resume",
        ("POST", "/v1/sandboxes/{id}/fork") => "sandbox.fork",
        ("POST", "/v1/sandboxes/{id}/exec") => "sandbox.exec",
        ("POST", "/v1/sandboxes/{id}/exec/{exec}/signal") => "sandbox.signal",
        ("DELETE", "/v1/sandboxes/{id}/exec/{exec}") => "sandbox.stop",
        (
            "POST",
            "/v1/sandboxes/{id}/exec/{exec}/stdin" | "/v1/sandboxes/{id}/exec/{exec}/resize",
        ) => "input",
        ("GET", "/v1/sandboxes/{id}/pty") => "pty.open",
        ("POST", "/v1/sandboxes/{id}/artifacts") => "artifact.keep",
        ("PUT", route) if is_file(route) => "file.write",
        ("POST", route) if is_file(route) => "file.make",
        ("DELETE", route) if is_file(route) => "file.remove",
        ("GET", route) if is_file(route) => "file.read",
        ("PUT", route) if is_artifact(route) => "artifact.put",
        ("DELETE", route) if is_artifact(route) => "artifact.remove",
        ("GET", route) if is_artifact(route) => "artifact.read",
        ("POST", "/v1/images") => "image.load",
        ("DELETE", "/v1/images/{*name}" | "/v1/images/{name}") => "image.remove",
        ("POST", "/v1/workspaces/{id}/commit") => "workspace.commit",
        ("POST", "/v1/sandboxes/{id}/workspace/apply") => "workspace.apply",
        ("GET", "/v1/workspaces/{id}/files/{*path}") => "workspace.read",
        ("DELETE", "/v1/workspaces/{id}") => "workspace.discard",
        ("GET", "/v1/webhook-secret") => "secret.read",
        ("POST", "/v1/webhook-secret/rotate") => "secret.rotate",
        ("POST", "/v1/keys") => "key.make",
        ("DELETE", "/v1/keys/{id}") => "key.revoke",
        _ if is_reading => return None,
        // Routes that are added later are audited under a generic name.
        _ => UNNAMED_ACTION,
    })
}

/// Whether the route is a terminal of a worker session.
fn is_terminal(route: &str) -> bool {
    route.starts_with("/v1/worker/sessions/{session_id}/pty:")
}

fn is_file(route: &str) -> bool {
    route.starts_with("/v1/sandboxes/{id}/files")
}

fn is_artifact(route: &str) -> bool {
    route.starts_with("/v1/artifacts/")
}

/// The audit entry of one request.
#[derive(Debug)]
pub(crate) struct RequestAudit {
    what: Option<&'static str>,
    /// Id of the run or sandbox in the path.
    run: String,
    about: String,
    /// An `allowed` entry was written; a later refusal must then be written, too.
    is_allowed: bool,
}

/// Pairs of parameter name and value, from a route template and the path that matched it.
fn path_parameters<'a>(route: &'a str, path: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let pairs = route.split('/').zip(path.split('/'));
    pairs.filter_map(|(name, part)| Some((name.strip_prefix('{')?.trim_matches(['*', '}']), part)))
}

/// The resource in a route: `runs`, `sandboxes`, …
fn route_kind(route: &str) -> &str {
    route.split('/').nth(2).unwrap_or_default()
}

/// Checks that the resource in the path exists and that the caller may see it; without it there is
/// nothing to allow.
async fn check_exists(gateway: &Gateway, caller: &Caller, route: &str, path: &str) -> Answer<()> {
    let of = |wanted| {
        let part = path_parameters(route, path)
            .find_map(|(name, part)| (name == wanted).then_some(part))?;
        // Text that cannot be decoded is the id of nothing.
        Some(
            percent_decoded(part)
                .and_then(|name| String::from_utf8(name).ok())
                .unwrap_or_default(),
        )
    };
    match (route_kind(route), of("id"), of("exec"), of("session_id")) {
        ("runs", Some(id), ..) => crate::runs::row(gateway, caller, &id).await.map(drop),
        ("sandboxes", Some(id), Some(exec), _) => gateway.exec(caller, &id, &exec).map(drop),
        ("sandboxes", Some(id), ..) => gateway.entry(caller, &id).map(drop),
        ("workspaces", Some(id), ..) => crate::workspaces::find_workspace(gateway, caller, &id)
            .await
            .map(drop),
        ("worker", .., Some(id)) => crate::node::session(gateway, caller, id, None).map(drop),
        _ => Ok(()),
    }
}

impl RequestAudit {
    /// Builds the entry before the handler runs. Of the path only a valid id is logged, and for an
    /// unauthenticated caller nothing: the path may contain a token by mistake.
    pub(crate) fn of(
        request: &axum::extract::Request,
        route: &str,
        caller: Option<&Caller>,
    ) -> RequestAudit {
        let method = request.method();
        let path = request.uri().path();
        let id = path_parameters(route, path)
            .next()
            .map_or("", |(_, part)| part);
        let id = if caller.is_some() && is_loggable_id(id) {
            id
        } else {
            ""
        };
        let has_run_id = matches!(route_kind(route), "runs" | "sandboxes");
        // File names in a sandbox belong to its programs; ids of resources on this server are
        // logged.
        let mut about = format!("{method} {route}");
        if !has_run_id && !id.is_empty() {
            _ = write!(about, " {id}");
        }
        let length = request
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok());
        if let Some(bytes) = length
            .and_then(|length| length.parse::<u64>().ok())
            .filter(|bytes| *bytes > 0)
        {
            _ = write!(about, " bytes={bytes}");
        }
        let run = if has_run_id {
            id.to_owned()
        } else {
            String::new()
        };
        RequestAudit {
            what: action_name(method, route),
            run,
            about,
            is_allowed: false,
        }
    }

    fn entry<'a>(&'a self, caller: Option<&'a Caller>) -> AuditEntry<'a> {
        AuditEntry {
            tenant: caller.map_or("", |caller| &caller.tenant),
            key: caller.map_or("", |caller| &caller.key),
            run: &self.run,
            about: &self.about,
            ..AuditEntry::default()
        }
    }

    /// Writes the `allowed` entry. If it cannot be written, the request is refused.
    pub(crate) async fn record_allowed(
        &mut self,
        gateway: &Gateway,
        caller: &Caller,
        (route, path): (&str, &str),
    ) -> Answer<()> {
        self.check_disk_reserve(gateway, caller)?;
        let action = self.what.filter(|what| !AUDITED_BY_HANDLER.contains(what));
        let Some(what) = action else { return Ok(()) };
        match what {
            // The generic entry is rate-limited like a refusal, and whether the route exists is not
            // known yet.
            UNNAMED_ACTION if gateway.refusals().admit(&caller.tenant).is_none() => return Ok(()),
            UNNAMED_ACTION => {}
            _ => check_exists(gateway, caller, route, path).await?,
        }
        let entry = AuditEntry {
            what,
            decision: Decision::Allowed,
            ..self.entry(Some(caller))
        };
        match gateway.write_audit_async(&entry).await {
            Err(_) if NEVER_BLOCKED.contains(&what) => gateway.audit_event(&entry),
            noted => noted?,
        }
        self.is_allowed = true;
        Ok(())
    }

    /// Releases the disk reserve for an action that frees space, if the disk is full. While the
    /// reserve is released, no other audited action is accepted.
    fn check_disk_reserve(&self, gateway: &Gateway, caller: &Caller) -> Answer<()> {
        match self.what {
            Some(what) if FREES_SPACE.contains(&what) => {
                gateway.reserve().release_if_full();
                // Rate-limited except for admins, so that one tenant's audit entries do not use up
                // the reserve.
                let is_bounded = gateway.reserve().is_released() && !caller.is_admin();
                if is_bounded && gateway.refusals().admit(&caller.tenant).is_none() {
                    Err(Problem::disk_full())
                } else {
                    Ok(())
                }
            }
            Some(what) if what != "input" && gateway.reserve().is_released() => {
                Err(Problem::disk_full())
            }
            _ => Ok(()),
        }
    }

    /// Writes the `refused` entry of a response that is a refusal, whoever refused it. After an
    /// `allowed` entry it is never suppressed: the action would appear as done.
    pub(crate) fn record_refusal(
        &self,
        gateway: &Gateway,
        caller: Option<&Caller>,
        response: &Response,
    ) {
        let Some(refused) = response.extensions().get::<RefusalInfo>() else {
            return;
        };
        let tenant = caller.map_or("", |caller| &caller.tenant);
        let left_out = if self.is_allowed || refused.was_allowed {
            0
        } else if gateway.reserve().is_released() {
            // Refusals of actions that were not allowed do not use the disk reserve.
            gateway.refusals().suppress(tenant);
            return;
        } else {
            match gateway.refusals().admit(tenant) {
                Some(left_out) => left_out,
                None => return,
            }
        };
        let mut about = format!("{} {}", self.about, response.status().as_u16());
        if left_out > 0 {
            _ = write!(about, "; {left_out} before it were left out");
        }
        let what = match (response.status(), self.what) {
            (StatusCode::UNAUTHORIZED, _) => "auth",
            (_, Some("session.make")) => "sandbox.make",
            (_, Some("session.exec")) => "sandbox.exec",
            (_, Some("session.end")) => "sandbox.end",
            (_, what) => what.unwrap_or(UNNAMED_ACTION),
        };
        let entry = AuditEntry {
            what,
            rule: &refused.rule,
            about: &about,
            ..self.entry(caller)
        };
        gateway.audit_event(&AuditEntry {
            decision: Decision::Refused,
            ..entry
        });
    }
}

/// Whether a path segment is a valid id and not a token.
fn is_loggable_id(part: &str) -> bool {
    spec::Id::new(part).is_ok()
        && !part.to_ascii_lowercase().contains("alk_")
        && !part.starts_with("whsec_")
}

/// Rate limiter of refusal entries: written and suppressed in the current minute, per tenant.
#[derive(Debug, Default)]
pub(crate) struct RefusalLimiter(Mutex<HashMap<String, RefusalWindow>>);

#[derive(Debug)]
struct RefusalWindow {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl RefusalLimiter {
    /// Counts a refusal that is not written.
    fn suppress(&self, tenant: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counted) = all.get_mut(tenant) {
            counted.left_out += 1;
        }
    }

    /// Counts a refusal. Returns the number suppressed before it if it may be written.
    fn admit(&self, tenant: &str) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > MAX_COUNTED_TENANTS {
            // Windows with suppressed refusals that no entry has reported yet are kept.
            all.retain(|_, counted| counted.since.elapsed() < MINUTE || counted.left_out > 0);
        }
        let new = || RefusalWindow {
            since: Instant::now(),
            written: 0,
            left_out: 0,
        };
        let counted = all.entry(tenant.to_owned()).or_insert_with(new);
        if counted.since.elapsed() >= MINUTE {
            (counted.since, counted.written) = (Instant::now(), 0);
        }
        if counted.written >= MAX_REFUSALS_PER_MINUTE {
            counted.left_out += 1;
            return None;
        }
        counted.written += 1;
        Some(std::mem::take(&mut counted.left_out))
    }
}

/// The run, and its tenant, task and job, in audit entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunRef<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) run: &'a str,
    pub(crate) task: &'a str,
    pub(crate) job: &'a str,
}

impl RunRef<'_> {
    fn entry(&self) -> AuditEntry<'_> {
        AuditEntry {
            tenant: self.tenant,
            run: self.run,
            task: self.task,
            job: self.job,
            ..AuditEntry::default()
        }
    }
}

impl Gateway {
    /// Writes that a run was accepted, with the API key that asked for it.
    pub(crate) async fn audit_run_accepted(
        &self,
        run: &RunRef<'_>,
        key: &str,
        about: &str,
    ) -> Answer<()> {
        let entry = AuditEntry {
            what: "run.accept",
            decision: Decision::Allowed,
            key,
            about,
            ..run.entry()
        };
        self.write_audit_async(&entry).await
    }

    /// Writes that an accepted run was refused before it started.
    pub(crate) fn audit_run_not_started(&self, run: &RunRef<'_>, rule: &str) {
        self.audit_event(&AuditEntry {
            what: "run.start",
            decision: Decision::Refused,
            rule,
            ..run.entry()
        });
    }

    /// Writes the denials of a sandbox at its end; returns how many were left out.
    pub(crate) fn audit_denials<'a>(
        &self,
        run: &RunRef<'_>,
        all: impl Iterator<Item = &'a Denial>,
    ) -> u64 {
        let mut denials = 0;
        let mut left_out = 0;
        for denial in all {
            denials += 1;
            left_out += u64::from(!self.audit_denial(run, denial, denials));
        }
        left_out
    }

    /// Writes a denial. `false` if it was left out: beyond the limit of a run, or while the disk
    /// reserve is released.
    fn audit_denial(&self, run: &RunRef<'_>, denial: &Denial, number: u64) -> bool {
        if number > MAX_DENIALS_PER_RUN || self.reserve().is_released() {
            return false;
        }
        let about = format!("{} {}", denial.what, denial.target);
        self.audit_event(&AuditEntry {
            what: "run.deny",
            decision: Decision::Refused,
            rule: &denial.rule,
            about: &about,
            ..run.entry()
        });
        true
    }

    /// Writes an event of a run. Output is not audited.
    pub(crate) fn audit_run_event(&self, run: &RunRef<'_>, event: &RunEvent, denials: &mut u64) {
        match event {
            RunEvent::Started { barriers } => {
                let names: Vec<_> = barriers.iter().map(|barrier| barrier.name()).collect();
                let about = format!("barriers={}", names.join(","));
                self.audit_event(&AuditEntry {
                    what: "run.start",
                    about: &about,
                    ..run.entry()
                });
            }
            RunEvent::Denied(denial) => {
                *denials += 1;
                self.audit_denial(run, denial, *denials);
            }
            RunEvent::Output { .. } => {}
        }
    }

    /// Writes how a run ended and which limits it hit.
    pub(crate) fn audit_run_ended(&self, run: &RunRef<'_>, result: &RunResult, denials: u64) {
        for limit in &result.limits_hit {
            let name = serde_json::to_value(limit).ok();
            let name = name
                .as_ref()
                .and_then(|name| name.as_str())
                .unwrap_or("limit");
            self.audit_event(&AuditEntry {
                what: "run.limit",
                rule: name,
                ..run.entry()
            });
        }
        let mut about = format!(
            "{} exit={} cpu_ms={} ms={}",
            result.status.name(),
            result.exit_status,
            result.usage.cpu_ms,
            result.duration_ms
        );
        let counts = [
            ("model_calls", result.usage.llm.calls),
            ("denials", denials),
            ("egress", result.usage.egress.passed),
        ];
        for (name, number) in counts.into_iter().filter(|(_, number)| *number > 0) {
            _ = write!(about, " {name}={number}");
        }
        if result.usage.llm.cost_usd > 0.0 {
            _ = write!(about, " cost_usd={:.9}", result.usage.llm.cost_usd);
        }
        let code = result
            .error
            .as_ref()
            .and_then(|error| serde_json::to_value(error.code).ok());
        let rule = code
            .as_ref()
            .and_then(|code| code.as_str())
            .unwrap_or_default();
        self.audit_event(&AuditEntry {
            what: "run.end",
            rule,
            about: &about,
            ..run.entry()
        });
    }
}

/// Which lines.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Only those of this run or sandbox.
    run: Option<String>,
    /// Only those of this tenant. Whoever is no admin is only told of his own.
    tenant: Option<String>,
    /// Only those of this kind, such as `run.end`; `run.` is all that begin so.
    what: Option<String>,
    /// Only since this moment, in milliseconds since 1970.
    since_ms: Option<u64>,
    /// Only until this moment, in milliseconds since 1970.
    until_ms: Option<u64>,
    /// At most so many: 1 to 1000, 100 unless said.
    limit: Option<usize>,
    /// Only older ones than this cursor.
    before: Option<String>,
}

/// One line. What is not there was not said.
#[derive(Debug, Serialize, ToSchema)]
struct AuditLine {
    /// Its number among all lines; only an admin is told, because it tells how busy the others are.
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    /// Milliseconds since 1970.
    at_ms: u64,
    what: String,
    /// `allowed`, `refused` or `happened`.
    decision: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    tenant: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    run: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    task: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    rule: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    about: String,
    /// SHA-256 of the line with everything before it.
    hash: String,
}

impl AuditLine {
    fn of(row: AuditRow, caller: &Caller) -> AuditLine {
        let AuditRow {
            n,
            at_ms,
            what,
            decision,
            tenant,
            key,
            run,
            task,
            job,
            rule,
            about,
            hash,
        } = row;
        let n = caller.is_admin().then_some(n);
        AuditLine {
            n,
            at_ms,
            what,
            decision,
            tenant,
            key,
            run,
            task,
            job,
            rule,
            about,
            hash,
        }
    }
}

fn audit_lines(rows: impl Iterator<Item = AuditRow>, caller: &Caller) -> Vec<AuditLine> {
    rows.map(|row| AuditLine::of(row, caller)).collect()
}

/// Lines, the newest first.
#[derive(Debug, Serialize, ToSchema)]
struct AuditLines {
    lines: Vec<AuditLine>,
    /// Give it as `before` to read on, which may give an empty page; null at the end.
    before: Option<String>,
}

/// What is written down of one run, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Record)]
struct RunRecord {
    run_id: String,
    lines: Vec<AuditLine>,
    /// Whether there are more than one answer has: the oldest of them are missing.
    truncated: bool,
}

/// Who asked for what, and what was decided: the audit, the newest first
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(AuditQuery), responses(
    (status = 200, description = "One page of it", body = AuditLines),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn audit(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Answer<Response> {
    caller.require(Scope::Usage)?;
    let Query(query) = query.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let limit = query.limit.unwrap_or(DEFAULT_LISTED);
    if !(1..=MAX_LISTED).contains(&limit) {
        return Err(Problem::invalid(
            "`limit` is out of range",
            "give 1 to 1000",
        ));
    }
    if !caller.is_admin()
        && query
            .tenant
            .as_ref()
            .is_some_and(|tenant| *tenant != caller.tenant)
    {
        return json_response::from_value(
            &gateway,
            &caller,
            &AuditLines {
                lines: Vec::new(),
                before: None,
            },
        );
    }
    let moments = [query.since_ms, query.until_ms];
    if moments
        .into_iter()
        .flatten()
        .any(|moment| i64::try_from(moment).is_err())
    {
        return Err(Problem::invalid(
            "this is no moment",
            "give milliseconds since 1970",
        ));
    }
    let page_query = AuditFilter {
        run: query.run,
        tenant: query
            .tenant
            .or_else(|| (!caller.is_admin()).then(|| caller.tenant.clone())),
        what: query.what,
        since_ms: query.since_ms,
        until_ms: query.until_ms,
        before: gateway.cursors().open(
            &caller.tenant,
            PagedList::Audit,
            query.before.as_deref(),
        )?,
        limit,
    };
    let AuditPage { rows, before } = read(&gateway, &caller, page_query).await?;
    let before = before
        .map(|place| {
            gateway
                .cursors()
                .seal(&caller.tenant, PagedList::Audit, place)
        })
        .transpose()?;
    json_response::from_value(
        &gateway,
        &caller,
        &AuditLines {
            lines: audit_lines(rows.into_iter(), &caller),
            before,
        },
    )
}

/// What is written down of one run: how it was accepted, started, denied, and how it ended
#[utoipa::path(get, path = "/v1/runs/{id}/record", tag = "runs", params(("id" = String, Path,)), responses(
    (status = 200, description = "Its lines of the audit, the oldest first", body = RunRecord),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn record(
    State(gateway): State<Gateway>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Answer<Response> {
    let row = crate::runs::row(&gateway, &caller, &id).await?;
    let page_query = AuditFilter {
        run: Some(row.id.clone()),
        // Entries of other tenants that used this run's id are not shown to its owner.
        tenant: Some(row.owner),
        since_ms: Some(row.accepted_ms.saturating_sub(1000)),
        limit: MAX_LISTED,
        ..AuditFilter::default()
    };
    let AuditPage { rows, before } = read(&gateway, &caller, page_query).await?;
    let lines = audit_lines(rows.into_iter().rev(), &caller);
    json_response::from_value(
        &gateway,
        &caller,
        &RunRecord {
            run_id: row.id,
            lines,
            truncated: before.is_some(),
        },
    )
}

/// Reads a page on a blocking thread, within the caller's fair share.
async fn read(gateway: &Gateway, caller: &Caller, page_query: AuditFilter) -> Answer<AuditPage> {
    let state = gateway.state().to_owned();
    let read = move || {
        store::audit::read_page(&state, &page_query).map_err(|error| {
            if error.get_ref().is_some_and(|cause| cause.is::<BadCursor>()) {
                return Problem::invalid(
                    "`before` is no cursor",
                    "give what an answer before said",
                );
            }
            crate::log_warning(format_args!("airlock: the audit cannot be read: {error}"));
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "internal",
                "the audit cannot be read",
                None,
            )
        })
    };
    blocking::run(gateway.blocking_work(), &caller.tenant, read).await
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(audit))
        .routes(routes!(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_bounded_and_what_was_left_out_is_counted() {
        let refusals = RefusalLimiter::default();
        for _ in 0..MAX_REFUSALS_PER_MINUTE {
            assert_eq!(refusals.admit("a"), Some(0));
        }
        assert_eq!((refusals.admit("a"), refusals.admit("a")), (None, None));
        assert_eq!(refusals.admit("b"), Some(0), "another's are counted apart");
        let long_ago = Instant::now().checked_sub(MINUTE).unwrap();
        refusals.0.lock().unwrap().get_mut("a").unwrap().since = long_ago;
        assert_eq!(refusals.admit("a"), Some(2));
    }

    #[test]
    fn what_was_left_out_is_told_however_many_others_are_counted() {
        let refusals = RefusalLimiter::default();
        assert_eq!(
            (0..=MAX_REFUSALS_PER_MINUTE)
                .filter_map(|_| refusals.admit("a"))
                .count(),
            MAX_REFUSALS_PER_MINUTE as usize
        );
        let long_ago = Instant::now().checked_sub(MINUTE).unwrap();
        refusals.0.lock().unwrap().get_mut("a").unwrap().since = long_ago;
        assert!(
            (0..=MAX_COUNTED_TENANTS).all(|number| refusals.admit(&number.to_string()).is_some())
        );
        assert_eq!(refusals.admit("a"), Some(1));
    }

    #[test]
    fn a_path_names_what_its_route_says() {
        let all = |route, path| path_parameters(route, path).collect::<Vec<_>>();
        assert_eq!(
            all("/v1/sandboxes/{id}/exec/{exec}", "/v1/sandboxes/a/exec/b"),
            [("id", "a"), ("exec", "b")]
        );
        assert_eq!(all("/v1/images/{*name}", "/v1/images/a/b"), [("name", "a")]);
        let session = "/v1/worker/sessions/{session_id}/pty:open";
        assert_eq!(
            all(session, "/v1/worker/sessions/c/pty:open"),
            [("session_id", "c")]
        );
        assert_eq!(
            all("/v1/webhook-secret/rotate", "/v1/webhook-secret/rotate"),
            []
        );
    }

    #[test]
    fn every_change_has_a_name_and_so_has_every_look_that_hands_out_contents() {
        let name_of = |method: &str, route| action_name(&method.parse().unwrap(), route);
        let document: serde_json::Value = serde_json::from_str(crate::openapi()).unwrap();
        let mut looks = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in ["get", "post", "put", "delete", "patch"]
                .iter()
                .filter(|of| methods.get(of).is_some())
            {
                match (*method, name_of(&method.to_ascii_uppercase(), path)) {
                    ("get", Some(what)) => looks.push((path.as_str(), what)),
                    ("get", None) => {}
                    (_, what) => {
                        assert!(
                            what.is_some_and(|what| what != UNNAMED_ACTION),
                            "{method} {path}: {what:?}"
                        )
                    }
                }
            }
        }
        // Whatever else is got is a state, a list, or what a program wrote, which its owner asked for.
        assert_eq!(
            looks,
            [
                ("/v1/artifacts/{name}", "artifact.read"),
                ("/v1/artifacts/{name}/versions", "artifact.read"),
                ("/v1/sandboxes/{id}/files", "file.read"),
                ("/v1/sandboxes/{id}/files/{path}", "file.read"),
                ("/v1/sandboxes/{id}/pty", "pty.open"),
                ("/v1/webhook-secret", "secret.read"),
            ]
        );
        assert_eq!(name_of("POST", "/v1/of/later"), Some(UNNAMED_ACTION));
        assert_eq!(name_of("GET", "/v1/runs/{id}"), None);
        assert_eq!(name_of("POST", "unmatched"), None);
    }

    #[test]
    fn what_looks_like_a_token_is_no_name() {
        assert!(
            is_loggable_id("notes.txt") && is_loggable_id("0198c0de-0000-7000-8000-000000000000")
        );
        let long = "a".repeat(129);
        for part in [
            "",
            "alk_0_a",
            "ALK_0_a",
            "x-alk_0",
            "whsec_AAAA",
            "a%61",
            "a b",
            ".x",
            "a=",
            &long,
        ] {
            assert!(!is_loggable_id(part), "{part}");
        }
    }
}
