//! Jobs: runs that outlast the server. Written down when they are accepted, run when their turn comes, and again after a
//! crash, if that is what was asked for.

use crate::Gateway;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
}
