//! What was used, as `airlock usage` says it, for bills. An admin is told everything; anybody else everything of his own
//! tenant, and of nobody else whether there is anything.

use crate::{Caller, Gateway, Problem, Scope, problem::Answer, work};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use engine::usage::{self as books, Books, By, Filter, Total, UsageError};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use spec::{Day, Money, Span, Timestamp};
use std::path::PathBuf;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const CSV: &str = "text/csv";

/// What to sum up.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct Question {
    /// What sums are made by: `run` unless said.
    by: Option<Column>,
    /// Only this run or sandbox.
    run: Option<String>,
    /// Only this tenant; whoever is no admin is told of his own anyway.
    tenant: Option<String>,
    /// Only from this moment on, in milliseconds since 1970.
    since_ms: Option<u64>,
    /// Only before this moment.
    until_ms: Option<u64>,
    /// Only of this day (UTC), such as 2026-11-16.
    day: Option<String>,
    /// Only of this month (UTC), such as 2026-11.
    month: Option<String>,
    /// `csv` for comma-separated values, as `Accept: text/csv`; `json` unless said.
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Column {
    Run,
    Session,
    Tenant,
    Model,
    Provider,
    Day,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    Json,
    Csv,
}

/// A sum.
#[derive(Debug, Serialize, ToSchema)]
struct Row {
    key: String,
    calls: u64,
    input_tokens: u64,
    /// Of the input, what was read from a cache.
    cached_tokens: u64,
    output_tokens: u64,
    cost_usd: f64,
    cost_nano_usd: u64,
    /// What of it went beyond reservations.
    overrun_nano_usd: u64,
    /// Calls whose real cost is not known, so that they count in full.
    unsettled_calls: u64,
    unsettled_nano_usd: u64,
    /// Runs that were begun; by tenant and by day only, of whole days.
    runs: Option<u64>,
    /// Sandboxes that were begun.
    sandboxes: Option<u64>,
    /// CPU time of both.
    cpu_ms: Option<u64>,
    /// More may come to it, or it may become less: its time is not over, or a call of it goes on. What may not change never
    /// does.
    may_change: bool,
}

/// Sums, the dearest first; days in their order.
#[derive(Debug, Serialize, ToSchema)]
struct Sums {
    by: Column,
    rows: Vec<Row>,
    /// How many lines of the ledger could not be believed, and are left out; only an admin is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<usize>,
}

impl Column {
    fn by(self) -> By {
        match self {
            Column::Run => By::Run,
            Column::Session => By::Session,
            Column::Tenant => By::Tenant,
            Column::Model => By::Model,
            Column::Provider => By::Provider,
            Column::Day => By::Day,
        }
    }
}

impl From<Total> for Row {
    fn from(total: Total) -> Row {
        Row {
            key: total.key,
            calls: total.calls,
            input_tokens: total.input_tokens,
            cached_tokens: total.cached_tokens,
            output_tokens: total.output_tokens,
            cost_usd: Money(total.money).dollars(),
            cost_nano_usd: total.money,
            overrun_nano_usd: total.overrun,
            unsettled_calls: total.unsettled,
            unsettled_nano_usd: total.unsettled_money,
            runs: total.activity.map(|used| used.runs),
            sandboxes: total.activity.map(|used| used.sandboxes),
            cpu_ms: total.activity.map(|used| used.cpu_ms),
            may_change: total.may_change,
        }
    }
}

impl Question {
    fn filter(&self, caller: &Caller) -> Answer<Filter> {
        let Span { since, until } = self.span()?;
        // Another's name is no different from one that nobody has: there is nothing of it to be told.
        let tenant = match caller.is_admin() {
            true => self.tenant.clone(),
            false => Some(caller.tenant.clone()),
        };
        let (since_ms, until_ms) = (Some(since.0).filter(|since| *since > 0), Some(until.0));
        let until_ms = until_ms.filter(|until| *until < u64::MAX);
        Ok(Filter {
            run: self.run.clone(),
            tenant,
            since_ms,
            until_ms,
        })
    }

    fn span(&self) -> Answer<Span> {
        let bad = |_| {
            Problem::invalid(
                "this is no day or month",
                "such as day=2026-11-16 or month=2026-11",
            )
        };
        let moments = self.since_ms.is_some() || self.until_ms.is_some();
        let told = [moments, self.day.is_some(), self.month.is_some()]
            .into_iter()
            .filter(|told| *told);
        if told.count() > 1 {
            let hint = "give `since_ms` and `until_ms`, or `day`, or `month`";
            return Err(Problem::invalid(
                "several spans of time are asked for",
                hint,
            ));
        }
        if let Some(day) = &self.day {
            return day.parse::<Day>().map(Day::span).map_err(bad);
        }
        if let Some(month) = &self.month {
            return Span::month(month).map_err(bad);
        }
        for (name, moment) in [("since_ms", self.since_ms), ("until_ms", self.until_ms)] {
            if moment.is_some_and(|moment| i64::try_from(moment).is_err()) {
                let title = format!("`{name}` is no moment");
                return Err(Problem::invalid(title, "give milliseconds since 1970"));
            }
        }
        let (since, until) = (
            self.since_ms.unwrap_or(0),
            self.until_ms.unwrap_or(u64::MAX),
        );
        Ok(Span {
            since: Timestamp(since),
            until: Timestamp(until),
        })
    }

    fn wants_csv(&self, headers: &HeaderMap) -> bool {
        let kinds = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let mut kinds = kinds
            .flat_map(|value| value.split(','))
            .filter_map(|kind| kind.split(';').next());
        self.format.map_or_else(
            || kinds.any(|kind| kind.trim().eq_ignore_ascii_case(CSV)),
            |format| format == Format::Csv,
        )
    }
}

/// What was used, and what it cost
///
/// As JSON, or as comma-separated values (RFC 4180) with the same numbers. Exact to the ledger.
#[utoipa::path(get, path = "/v1/usage", tag = "usage", params(Question), responses(
    (status = 200, description = "Sums", content((Sums = "application/json"), (String = "text/csv"))),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn usage(
    State(gateway): State<Gateway>,
    caller: Caller,
    headers: HeaderMap,
    question: Result<Query<Question>, QueryRejection>,
) -> Answer<Response> {
    caller.require(Scope::Usage)?;
    let Query(question) = question.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let filter = question.filter(&caller)?;
    allow(&gateway, &caller, question.run.clone()).await?;
    let (state, by) = (
        gateway.state().to_owned(),
        question.by.unwrap_or(Column::Run),
    );
    // What goes on is in the sums of days as of now.
    gateway.count_now().await;
    let unwritten = gateway.days().are_unwritten();
    let read = move || {
        sums(state, by, &filter).map_err(|error| {
            crate::say(format_args!("airlock: {error}"));
            unavailable()
        })
    };
    // Off the event loop, within the caller's share: it takes as long as the ledger is long.
    let (mut totals, problems) = work::aside(gateway.working(), &caller.tenant, read).await?;
    // What waits to be written may be of a day that is over.
    totals
        .iter_mut()
        .filter(|total| total.activity.is_some())
        .for_each(|total| total.may_change |= unwritten);
    match question.wants_csv(&headers) {
        // A table has no place to say that something is missing.
        true if problems > 0 => Err(unavailable()),
        true => Ok((
            [(
                header::CONTENT_TYPE,
                "text/csv; charset=utf-8; header=present",
            )],
            books::csv(by.by(), &totals),
        )
            .into_response()),
        false => {
            let problems = caller.is_admin().then_some(problems);
            Ok(Json(Sums {
                by,
                rows: totals.into_iter().map(Row::from).collect(),
                problems,
            })
            .into_response())
        }
    }
}

fn unavailable() -> Problem {
    let hint = "the operator finds what is wrong with it by `airlock usage --verify`".to_owned();
    let title = "the ledger cannot be read whole";
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "internal",
        title,
        Some(hint),
    )
}

/// Whoever names a run must be able to see it.
async fn allow(gateway: &Gateway, caller: &Caller, run: Option<String>) -> Answer<()> {
    let Some(run) = run.filter(|_| !caller.is_admin()) else {
        return Ok(());
    };
    if gateway.sees_sandbox(caller, &run) {
        return Ok(());
    }
    let found = gateway.look_up(move |served| served.run(&run)).await?;
    match found.is_some_and(|row| caller.sees(&row.owner)) {
        true => Ok(()),
        false => Err(Problem::not_found("run")),
    }
}

fn sums(state: PathBuf, by: Column, filter: &Filter) -> Result<(Vec<Total>, usize), UsageError> {
    let books = Books::open(&state)?;
    let problems = books.refresh()?.len();
    Ok((books.totals(by.by(), filter)?, problems))
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(usage))
}
