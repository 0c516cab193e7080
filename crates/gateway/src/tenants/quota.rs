//! `GET /v1/quota`: what a tenant may have, and what it has now.

use crate::{Caller, Gateway, Problem, Scope, caller::owner_of, problem::Answer};
use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::{Deserialize, Serialize};
use spec::Day;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(quota))
}

/// Whose.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Whose {
    /// Another tenant's: for an admin.
    tenant: Option<String>,
}

/// What there is of something, and how much there may be.
#[derive(Debug, Serialize, ToSchema)]
struct Bound {
    now: u64,
    /// Null: no limit of its own.
    most: Option<u64>,
}

/// Money of today, in billionths of a dollar.
#[derive(Debug, Serialize, ToSchema)]
struct Money {
    spent_nano_usd: u64,
    /// Held by calls under way; what they do not spend comes back.
    held_nano_usd: u64,
    /// Null: no limit of its own.
    most_nano_usd: Option<u64>,
}

/// What a tenant may have, and has now.
#[derive(Debug, Serialize, ToSchema)]
struct Quota {
    tenant: String,
    /// Under way, those of jobs among them.
    runs: Bound,
    /// That live.
    sandboxes: Bound,
    /// The most jobs that wait or run; null: no limit of its own.
    most_jobs: Option<u64>,
    /// Milliseconds of CPU time, of today.
    cpu_day_ms: Bound,
    /// Bytes of artifacts and workspaces.
    storage_bytes: Bound,
    /// Null where no server owns the ledger.
    money_of_day: Option<Money>,
    /// How much of a busy server is its, beside others.
    weight: u32,
    /// When the day (UTC) is over.
    day_ends_at: String,
}

/// What a tenant may have, and has now
///
/// Every key may ask for its own.
#[utoipa::path(get, path = "/v1/quota", tag = "usage", params(Whose), responses(
    (status = 200, description = "Its own, or another's", body = Quota),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn quota(
    State(gateway): State<Gateway>,
    caller: Caller,
    whose: Result<Query<Whose>, QueryRejection>,
) -> Answer<Json<Quota>> {
    let Query(whose) = whose.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let tenant = whose.tenant.unwrap_or_else(|| caller.tenant.clone());
    if tenant != caller.tenant {
        caller.require(Scope::Admin)?;
    }
    let bad = |_| Problem::invalid("this is no name of a tenant", "use A-Z a-z 0-9 . _ -");
    let owner = owner_of(&tenant).map_err(bad)?;
    let stored = gateway.stored(&caller.tenant, owner).await?;
    let may = gateway.quota(&tenant);
    let money = gateway.engine().money_of_day(&tenant).map(|day| Money {
        spent_nano_usd: day.spent.0,
        held_nano_usd: day.held.0,
        most_nano_usd: day.limit.map(|limit| limit.0),
    });
    let count = |now: usize, most: Option<usize>| Bound {
        now: now as u64,
        most: most.map(|most| most as u64),
    };
    let milliseconds = |time: spec::Time| u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX);
    Ok(Json(Quota {
        runs: count(
            gateway.runs().counts(&tenant).0,
            Some(gateway.most_runs(&tenant)),
        ),
        sandboxes: count(
            gateway.live_sandboxes(&tenant),
            Some(gateway.most_sandboxes(&tenant)),
        ),
        most_jobs: may.jobs,
        cpu_day_ms: Bound {
            now: gateway.days().used(&tenant).cpu_ms,
            most: may.cpu_day.map(milliseconds),
        },
        storage_bytes: Bound {
            now: stored,
            most: may.storage.map(|size| size.0),
        },
        money_of_day: money,
        weight: may.weight,
        day_ends_at: Day::of(engine::now()).next().start().to_string(),
        tenant,
    }))
}
