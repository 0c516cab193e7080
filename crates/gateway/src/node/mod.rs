//! The worker API of a node: the words of another system's orchestrator for the same runs, sandboxes and records.

use crate::Gateway;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
}
