//! Refusals in the words of the worker API: the same problem documents under the types that its callers know.

use crate::Problem;
use http::StatusCode;

/// The routes that speak so.
pub(crate) fn speaks(route: &str) -> bool {
    route.strip_prefix("/v1/worker").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Problem {
    /// The same for a caller of the worker API.
    pub(crate) fn for_worker(self) -> Problem {
        let kind = match self.status() {
            StatusCode::UNAUTHORIZED => "authentication",
            StatusCode::FORBIDDEN => "authorization",
            StatusCode::NOT_FOUND | StatusCode::GONE => "not_found",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit",
            status if status.is_server_error() => "internal",
            _ => "validation",
        };
        self.with_kind(format!("urn:cynodeai:error:{kind}"))
    }
}
