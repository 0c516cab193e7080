//! JSON responses with a size limit, serialized off the event loop. Names in lists are chosen by
//! sandboxed programs: they are long, and a control character takes six bytes as JSON.

use crate::{
    Caller, Gateway, Problem, blocking,
    fair_share::{FairShareGuard, FairShareLimiter, ShareExceeded},
    held_body::{fits_one_slice, hold_until_sent},
    problem::Answer,
};
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{StatusCode, header::CONTENT_TYPE};
use serde::Serialize;
use std::io;

/// Maximum JSON size of the entries of a response.
pub(crate) const MAX_ENTRY_BYTES: usize = 4 << 20;
/// The same with separators and the surrounding object.
const MAX_RESPONSE_BYTES: usize = MAX_ENTRY_BYTES + MAX_ENTRY_BYTES / 4;

/// The remaining bytes of a response.
#[derive(Debug)]
pub(crate) struct ResponseLimit(usize);

impl ResponseLimit {
    /// The full size of one response.
    pub(crate) fn new() -> ResponseLimit {
        ResponseLimit(MAX_ENTRY_BYTES)
    }

    /// Whether this entry fits. After one that does not, no entry fits.
    pub(crate) fn accepts(&mut self, entry: &impl Serialize) -> bool {
        let fits = serde_json::to_writer(&mut *self, entry).is_ok();
        self.0 = if fits { self.0 } else { 0 };
        fits
    }

    /// The entries that fit, and whether some were left out.
    pub(crate) fn fill<T: Serialize>(
        &mut self,
        entries: impl IntoIterator<Item = T>,
    ) -> (Vec<T>, bool) {
        let mut entries = entries.into_iter();
        let mut accepted = Vec::new();
        let more = entries.any(|entry| {
            if self.accepts(&entry) {
                accepted.push(entry);
                false
            } else {
                true
            }
        });
        (accepted, more)
    }
}

impl io::Write for ResponseLimit {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self
            .0
            .checked_sub(bytes.len())
            .ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs blocking work and serializes its result on the same thread. Response memory is reserved
/// first: work that was carried out is not refused afterwards.
pub(crate) async fn compute<T: Serialize>(
    gateway: &Gateway,
    caller: &Caller,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<Response> {
    let mut share = reserve(gateway.response_bytes(), &caller.tenant, MAX_RESPONSE_BYTES)?;
    let compute = move || {
        let json = serde_json::to_vec(&work()?).map_err(|_| failed())?;
        share.shrink_to(json.len());
        Ok((json, share))
    };
    let (json, share) = blocking::run(gateway.blocking_work(), &caller.tenant, compute).await?;
    Ok(json_response(hold_until_sent(json.into(), share)))
}

/// Responds with serialized JSON. The body counts against the tenant's share of response memory
/// until it is sent.
pub(crate) fn from_bytes(
    response_bytes: &FairShareLimiter,
    key: &str,
    json: impl Into<Bytes>,
) -> Answer<Response> {
    let json = json.into();
    let length = json.len();
    let body = Body::from(json);
    Ok(json_response(if fits_one_slice(&body) {
        body
    } else {
        hold_until_sent(body, reserve(response_bytes, key, length)?)
    }))
}

/// Serializes a value and responds with it.
pub(crate) fn from_value(
    gateway: &Gateway,
    caller: &Caller,
    compute: &impl Serialize,
) -> Answer<Response> {
    from_bytes(
        gateway.response_bytes(),
        &caller.tenant,
        serde_json::to_vec(compute).map_err(|_| failed())?,
    )
}

/// The refusal of a response that is longer than a tenant's share, so that it need not be made.
pub(crate) fn longer_than_a_share(response_bytes: &FairShareLimiter) -> Problem {
    refusal(ShareExceeded::Tenant(response_bytes.max_per_tenant()))
}

/// Reserves response memory for this length, until the guard is dropped.
pub(crate) fn reserve(
    response_bytes: &FairShareLimiter,
    key: &str,
    length: usize,
) -> Answer<FairShareGuard> {
    let mut share = response_bytes.guard(key);
    response_bytes
        .acquire(&mut share, length)
        .map_err(refusal)?;
    Ok(share)
}

fn refusal(full: ShareExceeded) -> Problem {
    full.problem(
        "bytes of answers that are not taken yet",
        "read them, or try again in a moment",
    )
}

fn json_response(body: Body) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

fn failed() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the answer could not be made",
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use http_body_util::BodyExt;

    #[test]
    fn what_is_measured_is_what_is_sent() {
        let (plain, hostile) = ("x".repeat(4095), "\u{1}".repeat(4095));
        for name in [plain, hostile] {
            let (accepted, more) = ResponseLimit::new().fill(std::iter::repeat_n(&name, 10_000));
            let sent = serde_json::to_vec(&accepted).unwrap().len();
            assert!(
                more && sent > MAX_ENTRY_BYTES * 9 / 10 && sent < MAX_ENTRY_BYTES * 11 / 10,
                "{sent}"
            );
        }
        let (few, more) = ResponseLimit::new().fill(["a", "b"]);
        assert_eq!((few, more), (vec!["a", "b"], false));
    }

    #[tokio::test]
    async fn answers_that_nobody_takes_are_bounded() {
        const LARGE: usize = 100 << 10;
        let shares = FairShareLimiter::new(3 * LARGE - 1, LARGE);
        let send = |key, length| from_bytes(&shares, key, vec![b' '; length]);
        let mut untaken = send("her", LARGE).unwrap().into_body();
        let first = untaken.frame().await.unwrap();
        assert_eq!(
            send("her", LARGE).unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        let _his = send("him", LARGE).unwrap();
        assert_eq!(
            send("them", LARGE).unwrap_err().status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert!(
            send("her", 1 << 10).is_ok(),
            "what is small never waits in memory for long"
        );
        let last = untaken.frame().await.unwrap();
        assert!(untaken.is_end_stream());
        drop(untaken);
        assert!(
            send("her", LARGE).is_err(),
            "its last slice is not written yet"
        );
        drop((first, last));
        assert!(send("her", LARGE).is_ok());
    }

    #[test]
    fn nothing_comes_behind_what_did_not_fit() {
        let mut room = ResponseLimit::new();
        assert!(!room.accepts(&"x".repeat(MAX_ENTRY_BYTES)) && !room.accepts(&"x"));
    }
}
