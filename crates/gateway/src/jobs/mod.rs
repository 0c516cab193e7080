//! Jobs: runs that outlast the server. Written down when they are accepted, run when their turn comes, and again after a
//! crash, if that is what was asked for.

#![allow(dead_code, reason = "the rooms are marked out first")]

pub(crate) mod agent;
pub(crate) mod webhook;

use crate::{
    Gateway,
    wire::{Quantity, RunOrder},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

/// A job: what to run, when, and what to do if it does not succeed.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JobOrder {
    /// What to run; or an `agent`.
    pub(crate) run: Option<RunOrder>,
    /// The agent to run.
    pub(crate) agent: Option<agent::AgentOrder>,
    /// What it is called; need not be its alone.
    pub(crate) name: Option<String>,
    /// To find it by.
    pub(crate) labels: BTreeMap<String, String>,
    /// -100 to 100; higher ones of a tenant start first.
    #[schema(minimum = -100, maximum = 100)]
    pub(crate) priority: i32,
    /// RFC 3339, UTC, at most 366 days ahead.
    pub(crate) not_before: Option<String>,
    /// What to do if it does not succeed.
    pub(crate) retries: Option<RetryOrder>,
    /// What to do if the server ends before it: `rerun`, or `lost` unless said.
    pub(crate) on_lost: Option<OnLost>,
    /// Jobs that must have succeeded before. If one ends otherwise, this is cancelled.
    pub(crate) after: Vec<String>,
    /// Whom to tell.
    pub(crate) webhook: Option<webhook::WebhookOrder>,
    /// How long it is remembered once it has ended.
    pub(crate) keep_for: Option<Quantity>,
}

/// Tries after the first.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetryOrder {
    /// So many at most.
    #[schema(maximum = 100)]
    pub(crate) most: u32,
    /// After these ends: `failed`, `timed_out`, `oom_killed`, `lost`; all of them unless said.
    pub(crate) on: Option<Vec<String>>,
    /// Before the first of them; doubles each time, up to an hour. 10s unless said.
    pub(crate) pause: Option<Quantity>,
}

/// What to do with a job whose server ended before it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnLost {
    /// Run it again, at most ten times.
    Rerun,
    /// It is `lost`: nobody knows how far it came.
    #[default]
    Lost,
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
}
