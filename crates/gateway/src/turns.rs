//! How many requests are served at once for a tenant, from their heads to the last byte of their answers, so that nobody
//! takes the connections of all. Those that last by what they are (streams, waits, bodies that come or go for long) have
//! most of the places; the rest is for short ones.

use crate::{
    problem::Answer,
    sent::{is_sent_at_once, until_sent},
    shares::{Share, Shares},
};
use axum::response::Response;
use http::Method;
use std::sync::Arc;

/// Turns of all tenants.
#[derive(Debug)]
pub(crate) struct Turns {
    requests: Shares,
    lasting: Shares,
}

/// One request's, until all who hold it are done.
#[derive(Clone, Debug)]
pub(crate) struct Turn(#[allow(dead_code, reason = "held")] Arc<[Option<Share>; 2]>);

impl Turns {
    /// Of so many connections a tenant has three quarters. An eighth is kept for what is short, and of the rest it has half of
    /// what the others leave.
    pub(crate) fn new(connections: usize) -> Turns {
        let lasting = connections.saturating_sub(connections.div_ceil(8)).max(1);
        Turns {
            requests: Shares::new(usize::MAX, (connections - connections / 4).max(1)),
            lasting: Shares::new(lasting, lasting),
        }
    }

    /// One more request of this tenant.
    pub(crate) fn take(&self, key: &str, method: &Method, route: &str) -> Answer<Turn> {
        let one = |shares: &Shares, what: &str| {
            let mut share = shares.of(key);
            shares
                .add(&mut share, 1)
                .map_err(|full| full.problem(what, "close one, or try later"))
                .map(|()| share)
        };
        let request = one(&self.requests, "requests open at once")?;
        let lasting = lasts(method, route)
            .then(|| one(&self.lasting, "streams, waits and transfers open at once"))
            .transpose()?;
        Ok(Turn(Arc::new([Some(request), lasting])))
    }
}

/// Whether a request may take long without anything being wrong.
fn lasts(method: &Method, route: &str) -> bool {
    let is_end = |ends: &[&str]| ends.iter().any(|end| route.ends_with(end));
    match *method {
        Method::GET | Method::HEAD | Method::DELETE => {
            is_end(&["/events", "/logs", "/output", "/pty", "/pty:recv", "/diff"])
                || ["/files", "/artifacts/"]
                    .iter()
                    .any(|part| route.contains(part))
        }
        // A word to what is there, with a small body or none.
        Method::POST => {
            let words = [
                "/signal",
                "/resize",
                "/pause",
                "/resume",
                "/retry",
                "/v1/keys",
                "/jobs:stop",
                "/pty:resize",
            ];
            !is_end(&words) && !route.starts_with("/v1/workflow/")
        }
        _ => true,
    }
}

impl Turn {
    /// The same answer, which is sent in this turn.
    pub(crate) fn keep(self, response: Response) -> Response {
        match is_sent_at_once(response.body()) {
            true => response,
            false => response.map(|body| until_sent(body, self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn short_requests_have_places_that_nothing_lasting_takes() {
        let turns = Turns::new(16);
        let take = |key: &str, route: &str| turns.take(key, &Method::GET, route);
        let (lasting, short) = ("/v1/sandboxes/{id}/logs", "/v1/sandboxes/{id}");
        let hers: Vec<_> = (0..7).map(|_| take("her", lasting).unwrap()).collect();
        assert_eq!(
            take("her", lasting).unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        let _more: Vec<_> = (0..5).map(|_| take("her", short).unwrap()).collect();
        assert_eq!(
            take("her", short).unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        let _his: Vec<_> = (0..4).map(|_| take("him", lasting).unwrap()).collect();
        assert_eq!(
            take("him", lasting).unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        let _theirs: Vec<_> = ["a", "a", "b"]
            .map(|key| take(key, lasting).unwrap())
            .into();
        assert_eq!(
            take("them", lasting).unwrap_err().status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert!(take("them", short).is_ok());
        drop(hers);
        assert!(take("them", lasting).is_ok());
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
            assert!(lasts(&method, route), "{method} {route}");
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
            assert!(!lasts(&method, route), "{method} {route}");
        }
    }
}
