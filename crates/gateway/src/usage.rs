//! Routes of usage.

use crate::Gateway;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
}
