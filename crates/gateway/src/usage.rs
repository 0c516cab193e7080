//! What models were used for, as `airlock usage --json` says it. An admin is told everything; anybody else about one run
//! or sandbox of his own at a time, since nothing but these tells whose a call was.

use crate::{Caller, Gateway, Problem, Scope, problem::Answer};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use engine::usage::{Books, By, Filter, Total, UsageError};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use spec::Money;
use std::path::PathBuf;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// What to sum up.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Question {
    /// What sums are made by: `run` unless said.
    by: Option<Column>,
    /// Only this run or sandbox. Whoever is no admin must name one of his own.
    run: Option<String>,
    /// Only calls since this moment, in milliseconds since 1970.
    since_ms: Option<u64>,
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
}

/// Sums, the dearest first; days in their order.
#[derive(Debug, Serialize, ToSchema)]
struct Sums {
    by: Column,
    rows: Vec<Row>,
    /// How many lines of the ledger could not be believed, and are left out.
    problems: usize,
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
        }
    }
}

/// What models were used for, and what it cost
#[utoipa::path(get, path = "/v1/usage", tag = "usage", params(Question), responses(
    (status = 200, description = "Sums", body = Sums),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn usage(
    State(gateway): State<Gateway>,
    caller: Caller,
    question: Result<Query<Question>, QueryRejection>,
) -> Answer<Json<Sums>> {
    caller.require(Scope::Usage)?;
    let Query(question) = question.map_err(|error| {
        Problem::invalid(format!("the query cannot be read: {}", error.body_text()), "see /openapi.json")
    })?;
    if question.since_ms.is_some_and(|since| i64::try_from(since).is_err()) {
        return Err(Problem::invalid("`since_ms` is no moment", "give milliseconds since 1970"));
    }
    allow(&gateway, &caller, question.run.clone()).await?;
    let (state, by) = (gateway.state().to_owned(), question.by.unwrap_or(Column::Run));
    let filter = Filter { run: question.run, since_ms: question.since_ms };
    let summed = tokio::task::spawn_blocking(move || sums(state, by, &filter)).await;
    match summed {
        Ok(Ok(sums)) => Ok(Json(sums)),
        Ok(Err(error)) => {
            crate::say(format_args!("airlock: {error}"));
            Err(unavailable())
        }
        Err(_) => Err(unavailable()),
    }
}

fn unavailable() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "internal", "the ledger cannot be read", None)
}

async fn allow(gateway: &Gateway, caller: &Caller, run: Option<String>) -> Answer<()> {
    if caller.is_admin() {
        return Ok(());
    }
    let Some(run) = run else { return caller.require(Scope::Admin) };
    if gateway.sees_sandbox(caller, &run) {
        return Ok(());
    }
    let found = gateway.look_up(move |served| served.run(&run)).await?;
    match found.is_some_and(|row| caller.sees(&row.owner)) {
        true => Ok(()),
        false => Err(Problem::not_found("run")),
    }
}

fn sums(state: PathBuf, by: Column, filter: &Filter) -> Result<Sums, UsageError> {
    let books = Books::open(&state)?;
    let problems = books.refresh()?.len();
    let rows = books.totals(by.by(), filter)?.into_iter().map(Row::from).collect();
    Ok(Sums { by, rows, problems })
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(usage))
}
