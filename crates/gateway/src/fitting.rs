//! Lists in which hostile programs choose the words: as much of them as one answer carries, made into JSON off the event
//! loop. Names are long, and control characters take six bytes each.

use crate::{
    Caller, Gateway, Problem,
    problem::Answer,
    sent::{is_sent_at_once, until_sent},
    shares::{Share, Shares},
    work,
};
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{StatusCode, header::CONTENT_TYPE};
use serde::Serialize;
use std::io;

/// What the entries of one answer take as JSON.
pub(crate) const MOST_BYTES: usize = 4 << 20;
/// With what stands between and around them.
const LARGEST: usize = MOST_BYTES + MOST_BYTES / 4;

/// What is left of it.
#[derive(Debug)]
pub(crate) struct Room(usize);

impl Room {
    /// For one answer.
    pub(crate) fn new() -> Room {
        Room(MOST_BYTES)
    }

    /// Whether this fits, too. What does not leaves no room for anything behind it.
    pub(crate) fn takes(&mut self, entry: &impl Serialize) -> bool {
        let fits = serde_json::to_writer(&mut *self, entry).is_ok();
        self.0 = if fits { self.0 } else { 0 };
        fits
    }

    /// Those that fit, and whether some do not.
    pub(crate) fn fill<T: Serialize>(
        &mut self,
        entries: impl IntoIterator<Item = T>,
    ) -> (Vec<T>, bool) {
        let mut entries = entries.into_iter();
        let mut fitting = Vec::new();
        let more = entries.any(|entry| match self.takes(&entry) {
            true => {
                fitting.push(entry);
                false
            }
            false => true,
        });
        (fitting, more)
    }
}

impl io::Write for Room {
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

/// Does something where it disturbs nobody, and makes JSON of it there, too. There is room for the answer before anything
/// is done: what was carried out is not refused.
pub(crate) async fn answer<T: Serialize>(
    gateway: &Gateway,
    caller: &Caller,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<Response> {
    let mut share = room(gateway.answering(), &caller.tenant, LARGEST)?;
    let made = move || {
        let json = serde_json::to_vec(&work()?).map_err(|_| failed())?;
        share.shrink_to(json.len());
        Ok((json, share))
    };
    let (json, share) = work::aside(gateway.working(), &caller.tenant, made).await?;
    Ok(as_json(until_sent(json.into(), share)))
}

/// Sends it. It lies in memory until somebody takes it, and of that a tenant has its share.
pub(crate) fn sent(answering: &Shares, key: &str, json: impl Into<Bytes>) -> Answer<Response> {
    let json = json.into();
    let (length, body) = (json.len(), Body::from(json));
    Ok(as_json(match is_sent_at_once(&body) {
        true => body,
        false => until_sent(body, room(answering, key, length)?),
    }))
}

/// The same, of something that is made already.
pub(crate) fn json(gateway: &Gateway, caller: &Caller, made: &impl Serialize) -> Answer<Response> {
    sent(
        gateway.answering(),
        &caller.tenant,
        serde_json::to_vec(made).map_err(|_| failed())?,
    )
}

/// Room for an answer of this length, for as long as it is held.
pub(crate) fn room(answering: &Shares, key: &str, length: usize) -> Answer<Share> {
    let mut share = answering.of(key);
    answering.add(&mut share, length).map_err(|full| {
        full.problem(
            "bytes of answers that are not taken yet",
            "read them, or try again in a moment",
        )
    })?;
    Ok(share)
}

fn as_json(body: Body) -> Response {
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
            let (fitting, more) = Room::new().fill(std::iter::repeat_n(&name, 10_000));
            let sent = serde_json::to_vec(&fitting).unwrap().len();
            assert!(
                more && sent > MOST_BYTES * 9 / 10 && sent < MOST_BYTES * 11 / 10,
                "{sent}"
            );
        }
        let (few, more) = Room::new().fill(["a", "b"]);
        assert_eq!((few, more), (vec!["a", "b"], false));
    }

    #[tokio::test]
    async fn answers_that_nobody_takes_are_bounded() {
        const LARGE: usize = 100 << 10;
        let shares = Shares::new(3 * LARGE - 1, LARGE);
        let send = |key, length| sent(&shares, key, vec![b' '; length]);
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
        let mut room = Room::new();
        assert!(!room.takes(&"x".repeat(MOST_BYTES)) && !room.takes(&"x"));
    }
}
