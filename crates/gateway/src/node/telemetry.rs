//! Worker API telemetry: containers and their logs, node information and load. An admin sees
//! everything, a tenant its own records. Records are best effort, and not a basis for scheduling.

use crate::{
    Caller, Gateway, Problem, Scope, cursor::PagedList, json_response, path::Path, problem::Answer,
};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spec::Timestamp;
use std::collections::BTreeMap;
use store::telemetry::{ContainerFilter, ContainerRow, LogFilter, LogRow};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const VERSION: u32 = 1;
/// Maximum JSON size of the rows of a response, which keeps it below two MiB.
const MAX_CONTAINER_BYTES: usize = 2_000_000;
/// The same for log lines.
const MAX_LOG_BYTES: usize = 1 << 20;
const DEFAULT_CONTAINERS: u32 = 100;
const MAX_CONTAINERS: u32 = 1000;
const DEFAULT_LINES: u32 = 1000;
const MAX_LINES: u32 = 5000;
const KINDS: [&str; 2] = ["managed", "sandbox"];
const STATUSES: [&str; 5] = ["created", "running", "exited", "failed", "lost"];

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(info))
        .routes(routes!(stats))
        .routes(routes!(containers))
        .routes(routes!(container))
        .routes(routes!(logs))
}

/// Which containers.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ContainersQuery {
    /// `managed` or `sandbox`.
    kind: Option<String>,
    /// `created`, `running`, `exited`, `failed` or `lost`.
    status: Option<String>,
    /// Only those of this task.
    task_id: Option<String>,
    /// Only those of this job.
    job_id: Option<String>,
    /// At most so many: 1 to 1000, 100 unless said.
    limit: Option<u32>,
    /// What the page before gave.
    page_token: Option<String>,
}

/// Which lines.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// `service` or `container`, with `source_name`.
    source_kind: Option<String>,
    /// `node` for the server itself, or the id of a container.
    source_name: Option<String>,
    /// Instead of these two.
    container_id: Option<String>,
    /// `stdout` or `stderr`.
    stream: Option<String>,
    /// From this moment on: RFC 3339.
    since: Option<String>,
    /// Before this moment.
    until: Option<String>,
    /// At most so many: 1 to 5000, 1000 unless said.
    limit: Option<u32>,
    /// What the page before gave.
    page_token: Option<String>,
}

/// A container.
#[derive(Debug, Serialize, ToSchema)]
struct Container {
    container_id: String,
    container_name: String,
    kind: String,
    runtime: String,
    image_ref: String,
    created_at: String,
    last_seen_at: String,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<String>,
    #[schema(value_type = Object)]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    /// `created`, `started`, `stopped`, `removed`, as far as it came.
    events: Vec<ContainerEvent>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ContainerEvent {
    event: &'static str,
    at: String,
}

/// Containers, the newest first.
#[derive(Debug, Serialize, ToSchema)]
struct Containers {
    version: u32,
    containers: Vec<Container>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
}

/// One container.
#[derive(Debug, Serialize, ToSchema)]
struct OneContainer {
    version: u32,
    container: Container,
}

/// A line.
#[derive(Debug, Serialize, ToSchema)]
struct LogEvent {
    occurred_at: String,
    source_kind: String,
    source_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_id: Option<String>,
    stream: String,
    message: String,
}

/// What of the lines is missing here.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Missing)]
struct LogTruncation {
    /// `none`, `count` or `bytes`.
    limited_by: &'static str,
    max_bytes: usize,
}

/// Lines, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lines)]
struct LogPage {
    version: u32,
    events: Vec<LogEvent>,
    truncated: LogTruncation,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
}

fn invalid(title: &str, detail: &str) -> Problem {
    Problem::invalid(title, detail)
}

fn parse_query<T>(query: Result<Query<T>, QueryRejection>) -> Answer<T> {
    // The query is not repeated in the error: it may contain anything.
    let unreadable = |_| {
        invalid(
            "the query cannot be read",
            "see /openapi.json for its parameters",
        )
    };
    query.map(|Query(query)| query).map_err(unreadable)
}

fn one_of(value: Option<&String>, known: &[&str], name: &str) -> Answer<()> {
    if value.is_none_or(|value| known.contains(&value.as_str())) {
        Ok(())
    } else {
        Err(invalid(
            &format!("`{name}` is none that there is"),
            &format!("there are {}", known.join(", ")),
        ))
    }
}

fn bounded(limit: Option<u32>, default: u32, max: u32) -> Answer<u32> {
    match limit.unwrap_or(default) {
        limit if (1..=max).contains(&limit) => Ok(limit),
        _ => Err(invalid(
            "`limit` is out of range",
            &format!("give 1 to {max}"),
        )),
    }
}

impl Container {
    /// The current view of a container; a running one was seen now.
    fn of(row: ContainerRow, now: u64) -> Container {
        let moments = [
            ("created", Some(row.created_ms)),
            ("started", row.started_ms),
            ("stopped", row.stopped_ms),
            ("removed", row.removed_ms),
        ];
        let show = |ms| Timestamp(ms).to_string();
        let event = |(event, at): (&'static str, Option<u64>)| {
            Some(ContainerEvent {
                event,
                at: show(at?),
            })
        };
        Container {
            container_name: format!("airlock-{}", row.id),
            container_id: row.id,
            kind: row.kind,
            runtime: row.runtime,
            image_ref: row.image,
            created_at: show(row.created_ms),
            last_seen_at: show(row.stopped_ms.unwrap_or(now)),
            status: row.status,
            exit_code: row.exit_code,
            task_id: row.task,
            job_id: row.job,
            labels: serde_json::from_str(&row.labels).unwrap_or_default(),
            trace_id: row.trace,
            events: moments.into_iter().filter_map(event).collect(),
        }
    }
}

/// What the node is
#[utoipa::path(get, path = "/v1/worker/telemetry/node:info", tag = "worker", responses(
    (status = 200, description = "An admin is told all of it", body = Object),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn info(State(gateway): State<Gateway>, caller: Caller) -> Answer<Json<Value>> {
    caller.require(Scope::Runs)?;
    let platform = super::capability::Platform::read();
    let mut body = json!({
        "version": VERSION,
        "node_slug": gateway.facts().slug,
        "build": { "build_version": env!("CARGO_PKG_VERSION") },
        "platform": { "os": platform.os, "arch": platform.arch },
    });
    if caller.is_admin() {
        body["platform"]["kernel_version"] = platform.kernel.into();
        if let Some(report) = gateway.last_report() {
            body["last_capability_report"] = report;
        }
    }
    Ok(Json(body))
}

/// How the node is
#[utoipa::path(get, path = "/v1/worker/telemetry/node:stats", tag = "worker", responses(
    (status = 200, description = "An admin is told all of it", body = Object),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn stats(State(gateway): State<Gateway>, caller: Caller) -> Answer<Json<Value>> {
    caller.require(Scope::Runs)?;
    let mut body = json!({
        "version": VERSION,
        "captured_at": engine::now().to_string(),
        "cpu": { "cores": super::capability::cores() },
        "container_runtime": super::capability::runtime(gateway.policy(), gateway.node()),
    });
    // The load of the node may reveal other tenants' activity.
    if caller.is_admin() {
        let state = gateway.state().to_owned();
        let load = tokio::task::spawn_blocking(move || super::capability::Load::read(&state)).await;
        let load = load.unwrap_or_default();
        for (name, value) in ["load1", "load5", "load15"].into_iter().zip(load.average) {
            body["cpu"][name] = value.into();
        }
        let total = load.memory_total_mb;
        let free = load.memory_free_mb;
        body["memory"] =
            json!({ "total_mb": total, "used_mb": total.saturating_sub(free), "free_mb": free });
        body["disk"] = json!({ "state_dir_free_mb": load.disk_free_mb, "state_dir_total_mb": load.disk_total_mb });
    }
    Ok(Json(body))
}

/// Runs and sandboxes, as containers, the newest first
#[utoipa::path(get, path = "/v1/worker/telemetry/containers", tag = "worker", params(ContainersQuery), responses(
    (status = 200, description = "One page of them", body = Containers),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn containers(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: Result<Query<ContainersQuery>, QueryRejection>,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let query = parse_query(query)?;
    one_of(query.kind.as_ref(), &KINDS, "kind")?;
    one_of(query.status.as_ref(), &STATUSES, "status")?;
    let limit = bounded(query.limit, DEFAULT_CONTAINERS, MAX_CONTAINERS)?;
    let before = gateway.cursors().open(
        &caller.tenant,
        PagedList::Containers,
        query.page_token.as_deref(),
    )?;
    let filter = ContainerFilter {
        owner: (!caller.is_admin()).then(|| caller.tenant.clone()),
        kind: query.kind,
        status: query.status,
        task: query.task_id,
        job: query.job_id,
        before,
        limit: limit + 1,
    };
    let handle = gateway.clone();
    let tenant = caller.tenant.clone();
    let page = move || {
        let mut page = page(
            handle.database().containers(&filter)?,
            limit as usize,
            engine::now().0,
        );
        let seal = |n| handle.cursors().seal(&tenant, PagedList::Containers, n);
        page.next_page_token = page.next_page_token.map(seal).transpose()?;
        Ok(page)
    };
    json_response::compute(&gateway, &caller, page).await
}

/// The rows that are wanted and fit. One more row was read, to know whether there is a next page.
fn page(rows: Vec<ContainerRow>, limit: usize, now: u64) -> Containers {
    let all = rows.len();
    let mut shown = Vec::new();
    let mut bytes = 0;
    let mut last = None;
    for row in rows.into_iter().take(limit) {
        let n = row.n;
        let container = Container::of(row, now);
        bytes += serde_json::to_vec(&container).map_or(0, |json| json.len() + 1);
        // A page has at least one row: no row is larger than a page.
        if bytes > MAX_CONTAINER_BYTES && !shown.is_empty() {
            break;
        }
        last = Some(n);
        shown.push(container);
    }
    let next_page_token = last.filter(|_| shown.len() < all).map(|n| n.to_string());
    Containers {
        version: VERSION,
        containers: shown,
        next_page_token,
    }
}

/// One container
#[utoipa::path(get, path = "/v1/worker/telemetry/containers/{id}", tag = "worker", params(("id" = String, Path,)), responses(
    (status = 200, description = "It, with its events", body = OneContainer),
    (status = 404, description = "There is none, or it is somebody else's", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn container(
    State(gateway): State<Gateway>,
    caller: Caller,
    path: Result<Path<String>, Problem>,
) -> Answer<Json<OneContainer>> {
    caller.require(Scope::Runs)?;
    let Path(id) = path?;
    let found = gateway
        .query_database(move |database| database.container(&id))
        .await?;
    let row = found.filter(|row| caller.sees(&row.owner));
    let row = row.ok_or_else(|| Problem::not_found("container"))?;
    Ok(Json(OneContainer {
        version: VERSION,
        container: Container::of(row, engine::now().0),
    }))
}

/// What containers and the server itself wrote, the oldest first
///
/// A source must be named: `source_kind` with `source_name`, or `container_id`. Of a stream of a container 256 KiB and
/// 10,000 lines are kept, for seven days.
#[utoipa::path(get, path = "/v1/worker/telemetry/logs", tag = "worker", params(LogsQuery), responses(
    (status = 200, description = "One page of lines; those of somebody else's container are none", body = LogPage),
    (status = 400, description = "No source, or a bad question", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn logs(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: Result<Query<LogsQuery>, QueryRejection>,
) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let query = parse_query(query)?;
    one_of(query.stream.as_ref(), &["stdout", "stderr"], "stream")?;
    let limit = bounded(query.limit, DEFAULT_LINES, MAX_LINES)?;
    let (source_kind, source_name) = source(&query)?;
    let moment = |text: Option<&String>, name: &str| {
        let unknown = || {
            invalid(
                &format!("`{name}` is no moment"),
                "write it as 2026-01-31T12:00:00Z",
            )
        };
        text.map(|text| {
            Timestamp::from_rfc3339(text)
                .map(|moment| moment.0)
                .ok_or_else(unknown)
        })
        .transpose()
    };
    let position: Option<String> = gateway.cursors().open(
        &caller.tenant,
        PagedList::Lines,
        query.page_token.as_deref(),
    )?;
    let (from, skip) = position
        .as_deref()
        .and_then(parse_position)
        .unwrap_or_default();
    let filter = LogFilter {
        source_kind,
        source_name,
        owner: (!caller.is_admin()).then(|| caller.tenant.clone()),
        stream: query.stream.clone(),
        since_ms: moment(query.since.as_ref(), "since")?,
        until_ms: moment(query.until.as_ref(), "until")?,
        from,
    };
    let handle = gateway.clone();
    let tenant = caller.tenant.clone();
    let lines = move || {
        let mut page = LogPageBuilder {
            limit: limit as usize,
            skip: (from, skip),
            ..LogPageBuilder::default()
        };
        // Checked before any line of another tenant's container is read.
        if let Some(owner) = &filter.owner {
            let is_his = |row: ContainerRow| row.owner == *owner;
            if filter.source_kind != "container"
                || !handle
                    .database()
                    .container(&filter.source_name)?
                    .is_some_and(is_his)
            {
                return Ok(page.finish());
            }
        }
        handle.database().logs(&filter, |row| page.add(row))?;
        let mut lines = page.finish();
        let seal = |position| handle.cursors().seal(&tenant, PagedList::Lines, position);
        lines.next_page_token = lines.next_page_token.map(seal).transpose()?;
        Ok(lines)
    };
    json_response::compute(&gateway, &caller, lines).await
}

/// The single source that the query names.
fn source(query: &LogsQuery) -> Answer<(String, String)> {
    let hint = "give source_kind=service&source_name=node, or container_id=ID";
    match (&query.source_kind, &query.source_name, &query.container_id) {
        (None, None, Some(id)) => Ok(("container".to_owned(), id.clone())),
        (Some(kind), Some(name), None) => {
            one_of(Some(kind), &["service", "container"], "source_kind")?;
            Ok((kind.clone(), name.clone()))
        }
        (Some(kind), None, Some(id)) if kind == "container" => {
            Ok(("container".to_owned(), id.clone()))
        }
        (None, None, None) => Err(invalid("no source is named", hint)),
        _ => Err(invalid("one source must be named, and only one", hint)),
    }
}

/// `ROW.LINE`: where the next page begins.
fn parse_position(text: &str) -> Option<(i64, usize)> {
    let (row, line) = text.split_once('.')?;
    let plain = |text: &str| text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    (plain(row) && plain(line)).then_some((row.parse().ok()?, line.parse().ok()?))
}

/// A page of log lines that is being filled.
#[derive(Debug, Default)]
struct LogPageBuilder {
    limit: usize,
    /// Number of lines of this row that an earlier page had.
    skip: (i64, usize),
    events: Vec<LogEvent>,
    bytes: usize,
    /// Why the page is full, and where the next one begins.
    full: Option<(&'static str, String)>,
}

impl LogPageBuilder {
    /// Adds the lines of a row; returns whether the page takes more.
    fn add(&mut self, row: LogRow) -> bool {
        let skipped = if row.n == self.skip.0 { self.skip.1 } else { 0 };
        let at = Timestamp(row.at_ms).to_string();
        for (number, line) in row.lines.split('\n').enumerate().skip(skipped) {
            let of_container = row.source_kind == "container";
            let event = LogEvent {
                occurred_at: at.clone(),
                source_kind: row.source_kind.clone(),
                source_name: row.source_name.clone(),
                container_id: of_container.then(|| row.source_name.clone()),
                stream: row.stream.clone(),
                message: line.to_owned(),
            };
            let bytes = serde_json::to_vec(&event).map_or(0, |json| json.len() + 1);
            let why = if self.events.len() >= self.limit {
                "count"
            } else if self.bytes + bytes > MAX_LOG_BYTES && !self.events.is_empty() {
                "bytes"
            } else {
                self.bytes += bytes;
                self.events.push(event);
                continue;
            };
            self.full = Some((why, format!("{}.{number}", row.n)));
            return false;
        }
        true
    }

    fn finish(self) -> LogPage {
        let (limited_by, next_page_token) = self
            .full
            .map_or(("none", None), |(why, token)| (why, Some(token)));
        let truncated = LogTruncation {
            limited_by,
            max_bytes: MAX_LOG_BYTES,
        };
        LogPage {
            version: VERSION,
            events: self.events,
            truncated,
            next_page_token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: i64, lines: &str) -> LogRow {
        let (source_kind, stream) = ("service".to_owned(), "stderr".to_owned());
        LogRow {
            n,
            source_kind,
            stream,
            lines: lines.to_owned(),
            ..LogRow::default()
        }
    }

    fn read(rows: &[LogRow], limit: usize) -> Vec<(Vec<String>, &'static str)> {
        let (mut pages, mut skip) = (Vec::new(), (0, 0));
        loop {
            let mut page = LogPageBuilder {
                limit,
                skip,
                ..LogPageBuilder::default()
            };
            let rest = rows.iter().filter(|row| row.n >= skip.0).cloned();
            for row in rest {
                if !page.add(row) {
                    break;
                }
            }
            let LogPage {
                events,
                truncated,
                next_page_token,
                ..
            } = page.finish();
            pages.push((
                events.into_iter().map(|event| event.message).collect(),
                truncated.limited_by,
            ));
            match next_page_token {
                Some(next) => skip = parse_position(&next).unwrap(),
                None => return pages,
            }
        }
    }

    #[test]
    fn pages_have_every_line_once_also_when_bytes_cut_them() {
        let rows = [row(1, "a\nb\nc"), row(4, ""), row(5, "d\ne")];
        for limit in 1..8 {
            let all: Vec<_> = read(&rows, limit)
                .into_iter()
                .flat_map(|(lines, _)| lines)
                .collect();
            assert_eq!(all, ["a", "b", "c", "", "d", "e"], "{limit}");
        }
        assert_eq!(read(&rows, 6).len(), 1, "what is whole says so");
        let line = "x".repeat(16 << 10);
        let rows: Vec<_> = (1..=200).map(|n| row(n, &line)).collect();
        let pages = read(&rows, 5000);
        assert!(pages.len() > 3 && pages[0].1 == "bytes" && pages.last().unwrap().1 == "none");
        assert_eq!(
            pages.iter().map(|(lines, _)| lines.len()).sum::<usize>(),
            200
        );
    }

    #[test]
    fn a_token_is_two_numbers() {
        assert_eq!(parse_position("12.3"), Some((12, 3)));
        for bad in [
            "",
            "1",
            "1.",
            ".1",
            "-1.2",
            "1.+2",
            "1.2.3",
            "99999999999999999999.1",
            "1.é",
        ] {
            assert_eq!(parse_position(bad), None, "{bad}");
        }
    }
}
