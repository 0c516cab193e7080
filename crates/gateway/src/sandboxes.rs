//! Sandboxes: sessions, their programs, files and terminals.

use crate::Gateway;
use utoipa_axum::router::OpenApiRouter;

/// The sessions of this gateway.
#[derive(Debug, Default)]
pub(crate) struct Sandboxes {}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
}
