//! The worker API of a node: the words of another system's orchestrator for the same runs, sandboxes and records.

pub(crate) mod capability;
pub(crate) mod problem;
mod telemetry;

use crate::Gateway;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().merge(telemetry::routes()).merge(capability::routes())
}
