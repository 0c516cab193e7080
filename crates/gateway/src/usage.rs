//! Usage and cost for billing, as `airlock usage` reports it. An admin sees all tenants, any other
//! key its own tenant only.

use crate::{Caller, Gateway, Problem, Scope, blocking, problem::Answer};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use engine::usage::{
    self as projection, GroupBy, UsageError, UsageFilter, UsageProjection, UsageTotal,
};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use spec::{Day, Money, Period, Timestamp};
use std::path::PathBuf;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

const CSV: &str = "text/csv";

/// What to sum up.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct UsageQuery {
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
#[schema(as = Row)]
struct UsageRow {
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
#[schema(as = Sums)]
struct UsageTotals {
    by: Column,
    rows: Vec<UsageRow>,
    /// How many lines of the ledger could not be believed, and are left out; only an admin is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<usize>,
}

impl Column {
    fn by(self) -> GroupBy {
        match self {
            Column::Run => GroupBy::Run,
            Column::Session => GroupBy::Session,
            Column::Tenant => GroupBy::Tenant,
            Column::Model => GroupBy::Model,
            Column::Provider => GroupBy::Provider,
            Column::Day => GroupBy::Day,
        }
    }
}

impl From<UsageTotal> for UsageRow {
    fn from(total: UsageTotal) -> UsageRow {
        UsageRow {
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

impl UsageQuery {
    fn filter(&self, caller: &Caller) -> Answer<UsageFilter> {
        let Period { since, until } = self.span()?;
        // Another tenant's name has the same answer as an unknown one: nothing.
        let tenant = if caller.is_admin() {
            self.tenant.clone()
        } else {
            Some(caller.tenant.clone())
        };
        let since_ms = Some(since.0).filter(|since| *since > 0);
        let until_ms = Some(until.0);
        let until_ms = until_ms.filter(|until| *until < u64::MAX);
        Ok(UsageFilter {
            run: self.run.clone(),
            tenant,
            since_ms,
            until_ms,
        })
    }

    fn span(&self) -> Answer<Period> {
        let bad = |_| {
            Problem::invalid(
                "this is no day or month",
                "such as day=2026-11-16 or month=2026-11",
            )
        };
        let moments = self.since_ms.is_some() || self.until_ms.is_some();
        let given = [moments, self.day.is_some(), self.month.is_some()]
            .into_iter()
            .filter(|given| *given);
        if given.count() > 1 {
            let hint = "give `since_ms` and `until_ms`, or `day`, or `month`";
            return Err(Problem::invalid(
                "several spans of time are asked for",
                hint,
            ));
        }
        if let Some(day) = &self.day {
            return day.parse::<Day>().map(Day::period).map_err(bad);
        }
        if let Some(month) = &self.month {
            return Period::month(month).map_err(bad);
        }
        for (name, moment) in [("since_ms", self.since_ms), ("until_ms", self.until_ms)] {
            if moment.is_some_and(|moment| i64::try_from(moment).is_err()) {
                let title = format!("`{name}` is no moment");
                return Err(Problem::invalid(title, "give milliseconds since 1970"));
            }
        }
        let since = self.since_ms.unwrap_or(0);
        let until = self.until_ms.unwrap_or(u64::MAX);
        Ok(Period {
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
#[utoipa::path(get, path = "/v1/usage", tag = "usage", params(UsageQuery), responses(
    (status = 200, description = "Sums", content((UsageTotals = "application/json"), (String = "text/csv"))),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn usage(
    State(gateway): State<Gateway>,
    caller: Caller,
    headers: HeaderMap,
    query: Result<Query<UsageQuery>, QueryRejection>,
) -> Answer<Response> {
    caller.require(Scope::Usage)?;
    let Query(query) = query.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let filter = query.filter(&caller)?;
    check_run_visible(&gateway, &caller, query.run.clone()).await?;
    let state = gateway.state().to_owned();
    let by = query.by.unwrap_or(Column::Run);
    // Counts active work, so that the sums of the day are current.
    gateway.count_usage_now().await;
    let unwritten = gateway.daily_usage().has_unwritten();
    let read = move || {
        read_totals(state, by, &filter).map_err(|error| {
            crate::log_warning(format_args!("airlock: {error}"));
            unavailable()
        })
    };
    // On a blocking thread, within the caller's share: the time grows with the ledger.
    let (mut totals, problems) =
        blocking::run(gateway.blocking_work(), &caller.tenant, read).await?;
    // Unwritten CPU time may belong to a day that is over.
    totals
        .iter_mut()
        .filter(|total| total.activity.is_some())
        .for_each(|total| total.may_change |= unwritten);
    if query.wants_csv(&headers) {
        // CSV has no field for the number of problems.
        if problems > 0 {
            return Err(unavailable());
        }
        let content_type = "text/csv; charset=utf-8; header=present";
        let csv = projection::csv(by.by(), &totals);
        return Ok(([(header::CONTENT_TYPE, content_type)], csv).into_response());
    }
    let problems = caller.is_admin().then_some(problems);
    Ok(Json(UsageTotals {
        by,
        rows: totals.into_iter().map(UsageRow::from).collect(),
        problems,
    })
    .into_response())
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

/// A caller may only ask for a run that it can see.
async fn check_run_visible(gateway: &Gateway, caller: &Caller, run: Option<String>) -> Answer<()> {
    let Some(run) = run.filter(|_| !caller.is_admin()) else {
        return Ok(());
    };
    if gateway.sees_sandbox(caller, &run) {
        return Ok(());
    }
    let found = gateway
        .query_database(move |database| database.run(&run))
        .await?;
    if found.is_some_and(|row| caller.sees(&row.owner)) {
        Ok(())
    } else {
        Err(Problem::not_found("run"))
    }
}

fn read_totals(
    state: PathBuf,
    by: Column,
    filter: &UsageFilter,
) -> Result<(Vec<UsageTotal>, usize), UsageError> {
    let projection = UsageProjection::open(&state)?;
    let problems = projection.refresh()?.len();
    Ok((projection.totals(by.by(), filter)?, problems))
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(usage))
}
