//! `GET /v1/quota`: limits and current usage of a tenant.

use crate::{
    Caller, Gateway, Problem, Scope, caller::owner_of, problem::Answer, runs::host_paths::max_cpus,
};
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
struct QuotaQuery {
    /// Another tenant's: for an admin.
    tenant: Option<String>,
}

/// What there is of something, and how much there may be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Bound)]
struct UsedAndMax {
    now: u64,
    /// Null: no limit of its own.
    most: Option<u64>,
}

/// Money of today, in billionths of a dollar.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Money)]
struct DailyMoney {
    spent_nano_usd: u64,
    /// Held by calls under way; what they do not spend comes back.
    held_nano_usd: u64,
    /// Null: no limit of its own.
    most_nano_usd: Option<u64>,
}

/// What one run or sandbox of a key without `admin` may have. Null: no limit of its own.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MostOfOne)]
struct RunMaximum {
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    cpus: f64,
    pids: Option<u32>,
    wall_time_ms: Option<u64>,
    cpu_time_ms: Option<u64>,
}

/// What a tenant may have, and has now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Quota)]
struct TenantQuota {
    tenant: String,
    /// Under way, those of jobs among them.
    runs: UsedAndMax,
    /// That live.
    sandboxes: UsedAndMax,
    /// The most jobs that wait or run; null: no limit of its own.
    most_jobs: Option<u64>,
    /// Milliseconds of CPU time, of today.
    cpu_day_ms: UsedAndMax,
    /// Bytes of artifacts and workspaces.
    storage_bytes: UsedAndMax,
    /// Bytes of the machine's memory that its runs and sandboxes may take by their limits, with their workspaces.
    memory_bytes: UsedAndMax,
    /// What one run or sandbox may have.
    most_of_one: RunMaximum,
    /// Null where no server owns the ledger.
    money_of_day: Option<DailyMoney>,
    /// How much of a busy server is its, beside others.
    weight: u32,
    /// When the day (UTC) is over.
    day_ends_at: String,
}

/// What a tenant may have, and has now
///
/// Every key may ask for its own.
#[utoipa::path(get, path = "/v1/quota", tag = "usage", params(QuotaQuery), responses(
    (status = 200, description = "Its own, or another's", body = TenantQuota),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn quota(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: Result<Query<QuotaQuery>, QueryRejection>,
) -> Answer<Json<TenantQuota>> {
    let Query(query) = query.map_err(|error| {
        Problem::invalid(
            format!("the query cannot be read: {}", error.body_text()),
            "see /openapi.json",
        )
    })?;
    let tenant = query.tenant.unwrap_or_else(|| caller.tenant.clone());
    if tenant != caller.tenant {
        caller.require(Scope::Admin)?;
    }
    let bad = |_| Problem::invalid("this is no name of a tenant", "use A-Z a-z 0-9 . _ -");
    let owner = owner_of(&tenant).map_err(bad)?;
    let stored = gateway.stored_bytes(&caller.tenant, owner).await?;
    let may = gateway.quota(&tenant);
    let money = gateway
        .engine()
        .money_of_day(&tenant)
        .map(|day| DailyMoney {
            spent_nano_usd: day.spent.0,
            held_nano_usd: day.held.0,
            most_nano_usd: day.limit.map(|limit| limit.0),
        });
    let count = |now: usize, most: Option<usize>| UsedAndMax {
        now: now as u64,
        most: most.map(|most| most as u64),
    };
    let maximum = &gateway.policy_of_keys().maximum;
    let milliseconds = |time: spec::Time| u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX);
    Ok(Json(TenantQuota {
        runs: count(
            gateway.runs().counts(&tenant).0,
            Some(gateway.max_runs(&tenant)),
        ),
        sandboxes: count(
            gateway.live_sandboxes(&tenant),
            Some(gateway.max_sandboxes(&tenant)),
        ),
        most_jobs: may.jobs,
        cpu_day_ms: UsedAndMax {
            now: gateway.daily_usage().used(&tenant).cpu_ms,
            most: may.cpu_day.map(milliseconds),
        },
        storage_bytes: UsedAndMax {
            now: stored,
            most: may.storage.map(|size| size.0),
        },
        memory_bytes: UsedAndMax {
            now: gateway.memory_taken(&tenant),
            most: gateway.max_memory(&tenant),
        },
        most_of_one: RunMaximum {
            memory_bytes: maximum.memory.map(|size| size.0),
            disk_bytes: maximum.disk.map(|size| size.0),
            cpus: f64::from(max_cpus(&gateway).0) / 1000.0,
            pids: maximum.pids,
            wall_time_ms: maximum.wall_time.map(milliseconds),
            cpu_time_ms: maximum.cpu_time.map(milliseconds),
        },
        money_of_day: money,
        weight: may.weight,
        day_ends_at: Day::of(engine::now()).next().start().to_string(),
        tenant,
    }))
}
