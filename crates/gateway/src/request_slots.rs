//! Concurrent requests per tenant, from request head to the last byte of the response, so that no
//! tenant takes all connections. Long-lived requests (streams, waits, uploads, downloads) have most
//! of the slots; the rest is for short ones.

use crate::{
    fair_share::{FairShareGuard, FairShareLimiter},
    held_body::{fits_one_slice, hold_until_sent},
    problem::Answer,
};
use axum::response::Response;
use http::Method;
use std::sync::Arc;

/// The request slots of all tenants.
#[derive(Debug)]
pub(crate) struct RequestSlots {
    requests: FairShareLimiter,
    long_lived: FairShareLimiter,
}

/// The slot of one request, released by its last holder.
#[derive(Clone, Debug)]
pub(crate) struct RequestSlot(
    #[allow(dead_code, reason = "held")] Arc<[Option<FairShareGuard>; 2]>,
);

impl RequestSlots {
    /// A tenant gets three quarters of the connections. An eighth is reserved for short requests;
    /// of the rest a tenant gets half of what the others leave.
    pub(crate) fn new(connections: usize) -> RequestSlots {
        let long_lived = connections.saturating_sub(connections.div_ceil(8)).max(1);
        RequestSlots {
            requests: FairShareLimiter::new(usize::MAX, (connections - connections / 4).max(1)),
            long_lived: FairShareLimiter::new(long_lived, long_lived),
        }
    }

    /// Takes a slot for a request of this tenant.
    pub(crate) fn take(&self, key: &str, method: &Method, route: &str) -> Answer<RequestSlot> {
        let acquire_one = |shares: &FairShareLimiter, what: &str| {
            let mut share = shares.guard(key);
            shares
                .acquire(&mut share, 1)
                .map_err(|full| full.problem(what, "close one, or try later"))
                .map(|()| share)
        };
        let request = acquire_one(&self.requests, "requests open at once")?;
        let long_lived = is_long_lived(method, route)
            .then(|| {
                acquire_one(
                    &self.long_lived,
                    "streams, waits and transfers open at once",
                )
            })
            .transpose()?;
        Ok(RequestSlot(Arc::new([Some(request), long_lived])))
    }
}

/// Whether a request of this route may legitimately take long.
fn is_long_lived(method: &Method, route: &str) -> bool {
    let is_end = |ends: &[&str]| ends.iter().any(|end| route.ends_with(end));
    match *method {
        Method::GET | Method::HEAD | Method::DELETE => {
            is_end(&["/events", "/logs", "/output", "/pty", "/pty:recv", "/diff"])
                || ["/files", "/artifacts/"]
                    .iter()
                    .any(|part| route.contains(part))
        }
        // Short requests with a small body or none.
        Method::POST => {
            let short_routes = [
                "/signal",
                "/resize",
                "/pause",
                "/resume",
                "/retry",
                "/v1/keys",
                "/jobs:stop",
                "/pty:resize",
            ];
            !is_end(&short_routes) && !route.starts_with("/v1/workflow/")
        }
        _ => true,
    }
}

impl RequestSlot {
    /// Holds the slot until the response is sent.
    pub(crate) fn hold(self, response: Response) -> Response {
        if fits_one_slice(response.body()) {
            response
        } else {
            response.map(|body| hold_until_sent(body, self))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn short_requests_have_places_that_nothing_lasting_takes() {
        let request_slots = RequestSlots::new(16);
        let take = |key: &str, route: &str| request_slots.take(key, &Method::GET, route);
        let (long_lived, short) = ("/v1/sandboxes/{id}/logs", "/v1/sandboxes/{id}");
        let hers: Vec<_> = (0..7).map(|_| take("her", long_lived).unwrap()).collect();
        assert_eq!(
            take("her", long_lived).unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        let _more: Vec<_> = (0..5).map(|_| take("her", short).unwrap()).collect();
        assert_eq!(
            take("her", short).unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        let _his: Vec<_> = (0..4).map(|_| take("him", long_lived).unwrap()).collect();
        assert_eq!(
            take("him", long_lived).unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        let _theirs: Vec<_> = ["a", "a", "b"]
            .map(|key| take(key, long_lived).unwrap())
            .into();
        assert_eq!(
            take("them", long_lived).unwrap_err().status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert!(take("them", short).is_ok());
        drop(hers);
        assert!(take("them", long_lived).is_ok());
    }

    #[test]
    fn what_streams_waits_or_carries_a_body_lasts() {
        for (method, route) in [
            (Method::POST, "/v1/runs"),
            (Method::GET, "/v1/runs/{id}/events"),
            (Method::GET, "/v1/sandboxes/{id}/exec/{exec}/output"),
            (Method::GET, "/v1/sandboxes/{id}/pty"),
            (Method::GET, "/v1/sandboxes/{id}/files/{*path}"),
            (Method::PUT, "/v1/artifacts/{name}"),
            (Method::GET, "/v1/artifacts/{name}"),
            (Method::GET, "/v1/workspaces/{id}/diff"),
            (Method::POST, "/v1/workspaces/{id}/commit"),
            (Method::POST, "/v1/sandboxes/{id}/exec/{exec}/stdin"),
        ] {
            assert!(is_long_lived(&method, route), "{method} {route}");
        }
        for (method, route) in [
            (Method::GET, "/v1/runs/{id}"),
            (Method::DELETE, "/v1/sandboxes/{id}"),
            (Method::POST, "/v1/sandboxes/{id}/pause"),
            (Method::POST, "/v1/sandboxes/{id}/resume"),
            (Method::POST, "/v1/sandboxes/{id}/exec/{exec}/signal"),
            (Method::POST, "/v1/sandboxes/{id}/exec/{exec}/resize"),
            (Method::POST, "/v1/jobs/{id}/retry"),
            (Method::POST, "/v1/keys"),
        ] {
            assert!(!is_long_lived(&method, route), "{method} {route}");
        }
    }
}
