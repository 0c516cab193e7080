//! What is written down of requests, and how it is read again.
//!
//! The gate writes for every route: what changes something, or lets contents out, before it is carried out; every refusal
//! after it. So no route can forget it. Runs and sandboxes write what becomes of them by themselves.

use crate::{
    Caller, Gateway, Problem, Scope,
    artifacts::percent_decoded,
    cursor::List,
    fitting,
    path::Path as InPath,
    problem::{Answer, Refused},
    work,
};
use axum::{
    extract::{Query, State, rejection::QueryRejection},
    response::Response,
};
use http::{Method, StatusCode, header::CONTENT_LENGTH};
use serde::{Deserialize, Serialize};
use spec::{Denial, Event, RunResult};
use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use store::audit::{Asked, Decision, Entry, Page, Row, WrongPlace};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Refusals of one tenant, or of strangers together, that are written in a minute; the rest is counted.
const MOST_REFUSALS: u32 = 120;
const MINUTE: Duration = Duration::from_secs(60);
/// Tenants whose refusals are counted apart.
const MOST_COUNTED: usize = 10_000;
/// Denials of one run that are written; the rest is counted in the line about its end.
pub(crate) const MOST_DENIALS: u64 = 200;
const USUALLY_LISTED: usize = 100;
const MOST_LISTED: usize = 1000;

/// Accepted by a line of their own, which knows more of them.
const SPEAK_FOR_THEMSELVES: [&str; 13] = [
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
    // What is typed, shown, and how large a window is, is nobody's decision.
    "input",
];
/// What has no name of its own yet.
const REQUEST: &str = "request";

/// What cannot be written down is not done.
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

/// What a request to this route is called; nothing if it only looks.
fn called(method: &Method, route: &str) -> Option<&'static str> {
    let is_reading = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    Some(match (method.as_str(), route) {
        (_, crate::gate::UNMATCHED) => return None,
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
        ("POST", route) if is_terminal(route) => match route.ends_with(":open") {
            true => "pty.open",
            false => "input",
        },
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
        ("DELETE", "/v1/workspaces/{id}") => "workspace.discard",
        ("GET", "/v1/webhook-secret") => "secret.read",
        ("POST", "/v1/webhook-secret/rotate") => "secret.rotate",
        ("POST", "/v1/keys") => "key.make",
        ("DELETE", "/v1/keys/{id}") => "key.revoke",
        _ if is_reading => return None,
        // Whatever is added later is told of, too.
        _ => REQUEST,
    })
}

/// Those of a session of the worker.
fn is_terminal(route: &str) -> bool {
    route.starts_with("/v1/worker/sessions/{session_id}/pty:")
}

fn is_file(route: &str) -> bool {
    route.starts_with("/v1/sandboxes/{id}/files")
}

fn is_artifact(route: &str) -> bool {
    route.starts_with("/v1/artifacts/")
}

/// What of a request is written down.
#[derive(Debug)]
pub(crate) struct Told {
    what: Option<&'static str>,
    /// The run or sandbox that its path names.
    run: String,
    about: String,
    /// A line says that it may be done: then whatever it was refused by has one, too.
    is_allowed: bool,
}

/// The parts of a path that stand for the names in its route.
fn named<'a>(route: &'a str, path: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let pairs = route.split('/').zip(path.split('/'));
    pairs.filter_map(|(name, part)| Some((name.strip_prefix('{')?.trim_matches(['*', '}']), part)))
}

/// The second part of a route: `runs`, `sandboxes`, …
fn kind(route: &str) -> &str {
    route.split('/').nth(2).unwrap_or_default()
}

/// Whether what a path names is there for the caller. What is not, or is somebody else's, is nothing that could be allowed.
async fn find(gateway: &Gateway, caller: &Caller, route: &str, path: &str) -> Answer<()> {
    let of = |wanted| {
        let part = named(route, path).find_map(|(name, part)| (name == wanted).then_some(part))?;
        // What cannot be read is the name of nothing.
        Some(
            percent_decoded(part)
                .and_then(|name| String::from_utf8(name).ok())
                .unwrap_or_default(),
        )
    };
    match (kind(route), of("id"), of("exec"), of("session_id")) {
        ("runs", Some(id), ..) => crate::runs::row(gateway, caller, &id).await.map(drop),
        ("sandboxes", Some(id), Some(exec), _) => gateway.exec(caller, &id, &exec).map(drop),
        ("sandboxes", Some(id), ..) => gateway.entry(caller, &id).map(drop),
        ("workspaces", Some(id), ..) => crate::workspaces::known(gateway, caller, &id)
            .await
            .map(drop),
        ("worker", .., Some(id)) => crate::node::session(gateway, caller, id, None).map(drop),
        _ => Ok(()),
    }
}

impl Told {
    /// Before it is carried out. Of a path only what can be a name of ours is written, and nothing for whoever has no key:
    /// a token may stand there by mistake.
    pub(crate) fn of(
        request: &axum::extract::Request,
        route: &str,
        caller: Option<&Caller>,
    ) -> Told {
        let (method, path) = (request.method(), request.uri().path());
        let id = named(route, path).next().map_or("", |(_, part)| part);
        let id = if caller.is_some() && is_writable(id) {
            id
        } else {
            ""
        };
        let is_box = matches!(kind(route), "runs" | "sandboxes");
        // Names of files are the programs' business; those of things that stay here are ours.
        let mut about = format!("{method} {route}");
        if !is_box && !id.is_empty() {
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
        let run = if is_box { id.to_owned() } else { String::new() };
        Told {
            what: called(method, route),
            run,
            about,
            is_allowed: false,
        }
    }

    fn entry<'a>(&'a self, caller: Option<&'a Caller>) -> Entry<'a> {
        Entry {
            tenant: caller.map_or("", |caller| &caller.tenant),
            key: caller.map_or("", |caller| &caller.key),
            run: &self.run,
            about: &self.about,
            ..Entry::default()
        }
    }

    /// That it may be done. What cannot be written down is not done.
    pub(crate) async fn allowed(
        &mut self,
        gateway: &Gateway,
        caller: &Caller,
        (route, path): (&str, &str),
    ) -> Answer<()> {
        let told = self
            .what
            .filter(|what| !SPEAK_FOR_THEMSELVES.contains(what));
        let Some(what) = told else { return Ok(()) };
        match what {
            // A line that says so little is worth no more than a refusal; and whether there is such a route is not known yet.
            REQUEST if gateway.refusals().count(&caller.tenant).is_none() => return Ok(()),
            REQUEST => {}
            _ => find(gateway, caller, route, path).await?,
        }
        let entry = Entry {
            what,
            decision: Decision::Allowed,
            ..self.entry(Some(caller))
        };
        gateway.note_aside(&entry).await?;
        self.is_allowed = true;
        Ok(())
    }

    /// That it was not done, if the answer says so: the one line about it, whoever decided. What was said to be allowed is
    /// never left out: it would stand there as done.
    pub(crate) fn refused(&self, gateway: &Gateway, caller: Option<&Caller>, response: &Response) {
        let Some(refused) = response.extensions().get::<Refused>() else {
            return;
        };
        let tenant = caller.map_or("", |caller| &caller.tenant);
        let left_out = match self.is_allowed || refused.was_allowed {
            true => 0,
            false => match gateway.refusals().count(tenant) {
                Some(left_out) => left_out,
                None => return,
            },
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
            (_, what) => what.unwrap_or(REQUEST),
        };
        let entry = Entry {
            what,
            rule: &refused.rule,
            about: &about,
            ..self.entry(caller)
        };
        gateway.note_happened(&Entry {
            decision: Decision::Refused,
            ..entry
        });
    }
}

/// Whether a part of a path can be a name, and is no token.
fn is_writable(part: &str) -> bool {
    spec::Id::new(part).is_ok()
        && !part.to_ascii_lowercase().contains("alk_")
        && !part.starts_with("whsec_")
}

/// How many refusals were written in this minute, and how many were not.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<String, Counted>>);

#[derive(Debug)]
struct Counted {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl Refusals {
    /// Counts one; if it is to be written, how many before it were not.
    fn count(&self, tenant: &str) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > MOST_COUNTED {
            // Those whose left-out ones no line has told of yet stay until one has.
            all.retain(|_, counted| counted.since.elapsed() < MINUTE || counted.left_out > 0);
        }
        let new = || Counted {
            since: Instant::now(),
            written: 0,
            left_out: 0,
        };
        let counted = all.entry(tenant.to_owned()).or_insert_with(new);
        if counted.since.elapsed() >= MINUTE {
            (counted.since, counted.written) = (Instant::now(), 0);
        }
        if counted.written >= MOST_REFUSALS {
            counted.left_out += 1;
            return None;
        }
        counted.written += 1;
        Some(std::mem::take(&mut counted.left_out))
    }
}

/// Whose run it is, in its lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) run: &'a str,
    pub(crate) task: &'a str,
    pub(crate) job: &'a str,
}

impl Of<'_> {
    fn entry(&self) -> Entry<'_> {
        Entry {
            tenant: self.tenant,
            run: self.run,
            task: self.task,
            job: self.job,
            ..Entry::default()
        }
    }
}

impl Gateway {
    /// A run is accepted by this key.
    pub(crate) async fn note_accepted(&self, of: &Of<'_>, key: &str, about: &str) -> Answer<()> {
        let entry = Entry {
            what: "run.accept",
            decision: Decision::Allowed,
            key,
            about,
            ..of.entry()
        };
        self.note_aside(&entry).await
    }

    /// A run that was accepted is refused before anything of it starts.
    pub(crate) fn note_not_started(&self, of: &Of<'_>, rule: &str) {
        self.note_happened(&Entry {
            what: "run.start",
            decision: Decision::Refused,
            rule,
            ..of.entry()
        });
    }

    /// What the doors and the programs of a sandbox were denied, at its end; how many are not written.
    pub(crate) fn note_denials<'a>(
        &self,
        of: &Of<'_>,
        all: impl Iterator<Item = &'a Denial>,
    ) -> u64 {
        let mut denials = 0;
        for denial in all {
            denials += 1;
            self.note_denial(of, denial, denials);
        }
        denials.saturating_sub(MOST_DENIALS)
    }

    fn note_denial(&self, of: &Of<'_>, denial: &Denial, number: u64) {
        if number <= MOST_DENIALS {
            let about = format!("{} {}", denial.what, denial.target);
            let entry = Entry {
                what: "run.deny",
                rule: &denial.rule,
                about: &about,
                ..of.entry()
            };
            self.note_happened(&Entry {
                decision: Decision::Refused,
                ..entry
            });
        }
    }

    /// What a run tells of itself. Output is not told.
    pub(crate) fn note_event(&self, of: &Of<'_>, event: &Event, denials: &mut u64) {
        match event {
            Event::Started { barriers } => {
                let names: Vec<_> = barriers.iter().map(|barrier| barrier.name()).collect();
                let about = format!("barriers={}", names.join(","));
                self.note_happened(&Entry {
                    what: "run.start",
                    about: &about,
                    ..of.entry()
                });
            }
            Event::Denied(denial) => {
                *denials += 1;
                self.note_denial(of, denial, *denials);
            }
            Event::Output { .. } => {}
        }
    }

    /// How a run ended, and what it hit.
    pub(crate) fn note_ended(&self, of: &Of<'_>, result: &RunResult, denials: u64) {
        for limit in &result.limits_hit {
            let name = serde_json::to_value(limit).ok();
            let name = name
                .as_ref()
                .and_then(|name| name.as_str())
                .unwrap_or("limit");
            self.note_happened(&Entry {
                what: "run.limit",
                rule: name,
                ..of.entry()
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
        self.note_happened(&Entry {
            what: "run.end",
            rule,
            about: &about,
            ..of.entry()
        });
    }
}

/// Which lines.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Question {
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
    fn of(row: Row, caller: &Caller) -> AuditLine {
        let Row {
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

fn shown(rows: impl Iterator<Item = Row>, caller: &Caller) -> Vec<AuditLine> {
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
struct Record {
    run_id: String,
    lines: Vec<AuditLine>,
    /// Whether there are more than one answer has: the oldest of them are missing.
    truncated: bool,
}

/// Who asked for what, and what was decided: the audit, the newest first
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(Question), responses(
    (status = 200, description = "One page of it", body = AuditLines),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn audit(
    State(gateway): State<Gateway>,
    caller: Caller,
    question: Result<Query<Question>, QueryRejection>,
) -> Answer<Response> {
    caller.require(Scope::Usage)?;
    let Query(question) = question.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let limit = question.limit.unwrap_or(USUALLY_LISTED);
    if !(1..=MOST_LISTED).contains(&limit) {
        return Err(Problem::invalid(
            "`limit` is out of range",
            "give 1 to 1000",
        ));
    }
    if !caller.is_admin()
        && question
            .tenant
            .as_ref()
            .is_some_and(|tenant| *tenant != caller.tenant)
    {
        return fitting::json(
            &gateway,
            &caller,
            &AuditLines {
                lines: Vec::new(),
                before: None,
            },
        );
    }
    let moments = [question.since_ms, question.until_ms];
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
    let asked = Asked {
        run: question.run,
        tenant: question
            .tenant
            .or_else(|| (!caller.is_admin()).then(|| caller.tenant.clone())),
        what: question.what,
        since_ms: question.since_ms,
        until_ms: question.until_ms,
        before: gateway
            .cursors()
            .open(&caller.tenant, List::Audit, question.before.as_deref())?,
        limit,
    };
    let Page { rows, before } = read(&gateway, &caller, asked).await?;
    let before = before
        .map(|place| gateway.cursors().seal(&caller.tenant, List::Audit, place))
        .transpose()?;
    fitting::json(
        &gateway,
        &caller,
        &AuditLines {
            lines: shown(rows.into_iter(), &caller),
            before,
        },
    )
}

/// What is written down of one run: how it was accepted, started, denied, and how it ended
#[utoipa::path(get, path = "/v1/runs/{id}/record", tag = "runs", params(("id" = String, Path,)), responses(
    (status = 200, description = "Its lines of the audit, the oldest first", body = Record),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn record(
    State(gateway): State<Gateway>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Answer<Response> {
    let row = crate::runs::row(&gateway, &caller, &id).await?;
    let asked = Asked {
        run: Some(row.id.clone()),
        // What strangers tried with its name is not its owner's to see.
        tenant: Some(row.owner),
        since_ms: Some(row.accepted_ms.saturating_sub(1000)),
        limit: MOST_LISTED,
        ..Asked::default()
    };
    let Page { rows, before } = read(&gateway, &caller, asked).await?;
    let lines = shown(rows.into_iter().rev(), &caller);
    fitting::json(
        &gateway,
        &caller,
        &Record {
            run_id: row.id,
            lines,
            truncated: before.is_some(),
        },
    )
}

/// Off the event loop, within the caller's share.
async fn read(gateway: &Gateway, caller: &Caller, asked: Asked) -> Answer<Page> {
    let state = gateway.state().to_owned();
    let read = move || {
        store::audit::page(&state, &asked).map_err(|error| {
            if error
                .get_ref()
                .is_some_and(|cause| cause.is::<WrongPlace>())
            {
                return Problem::invalid(
                    "`before` is no cursor",
                    "give what an answer before said",
                );
            }
            crate::say(format_args!("airlock: the audit cannot be read: {error}"));
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "internal",
                "the audit cannot be read",
                None,
            )
        })
    };
    work::aside(gateway.working(), &caller.tenant, read).await
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
        let refusals = Refusals::default();
        for _ in 0..MOST_REFUSALS {
            assert_eq!(refusals.count("a"), Some(0));
        }
        assert_eq!((refusals.count("a"), refusals.count("a")), (None, None));
        assert_eq!(refusals.count("b"), Some(0), "another's are counted apart");
        let long_ago = Instant::now().checked_sub(MINUTE).unwrap();
        refusals.0.lock().unwrap().get_mut("a").unwrap().since = long_ago;
        assert_eq!(refusals.count("a"), Some(2));
    }

    #[test]
    fn what_was_left_out_is_told_however_many_others_are_counted() {
        let refusals = Refusals::default();
        assert_eq!(
            (0..=MOST_REFUSALS)
                .filter_map(|_| refusals.count("a"))
                .count(),
            MOST_REFUSALS as usize
        );
        let long_ago = Instant::now().checked_sub(MINUTE).unwrap();
        refusals.0.lock().unwrap().get_mut("a").unwrap().since = long_ago;
        assert!((0..=MOST_COUNTED).all(|number| refusals.count(&number.to_string()).is_some()));
        assert_eq!(refusals.count("a"), Some(1));
    }

    #[test]
    fn a_path_names_what_its_route_says() {
        let all = |route, path| named(route, path).collect::<Vec<_>>();
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
        let named = |method: &str, route| called(&method.parse().unwrap(), route);
        let document: serde_json::Value = serde_json::from_str(crate::openapi()).unwrap();
        let mut looks = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in ["get", "post", "put", "delete", "patch"]
                .iter()
                .filter(|of| methods.get(of).is_some())
            {
                match (*method, named(&method.to_ascii_uppercase(), path)) {
                    ("get", Some(what)) => looks.push((path.as_str(), what)),
                    ("get", None) => {}
                    (_, what) => {
                        assert!(
                            what.is_some_and(|what| what != REQUEST),
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
        assert_eq!(named("POST", "/v1/of/later"), Some(REQUEST));
        assert_eq!(named("GET", "/v1/runs/{id}"), None);
        assert_eq!(named("POST", "unmatched"), None);
    }

    #[test]
    fn what_looks_like_a_token_is_no_name() {
        assert!(is_writable("notes.txt") && is_writable("0198c0de-0000-7000-8000-000000000000"));
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
            assert!(!is_writable(part), "{part}");
        }
    }
}
