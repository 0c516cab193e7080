//! Revocation and expiry of API keys during a request. When a key ends, its open requests end, too:
//! waits, request and response bodies, terminals. Another process may revoke a key, so the keys in
//! use are checked every second.

use crate::held_body::{fits_one_slice, hold_until_sent};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::watch;

/// Interval of the checks.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The keys of requests in progress.
#[derive(Debug, Default)]
pub(crate) struct ActiveKeys(Mutex<HashMap<String, watch::Sender<bool>>>);

/// Signals the end of a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyWatch(watch::Receiver<bool>);

impl ActiveKeys {
    fn keys(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<bool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request of this key.
    pub(crate) fn watch(&self, key: &str) -> KeyWatch {
        let mut keys = self.keys();
        let over = match keys.get(key) {
            Some(over) => over.subscribe(),
            None => keys
                .entry(key.to_owned())
                .or_insert_with(|| watch::Sender::new(false))
                .subscribe(),
        };
        KeyWatch(over)
    }

    /// Ids of the keys in use; unused ones are removed.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut keys = self.keys();
        keys.retain(|_, over| over.receiver_count() > 0);
        keys.keys().cloned().collect()
    }

    /// Ends all requests of this key.
    pub(crate) fn revoke(&self, key: &str) {
        if let Some(over) = self.keys().remove(key) {
            over.send_replace(true);
        }
    }
}

impl KeyWatch {
    /// Resolves when the key ends.
    pub(crate) async fn expired(mut self) {
        if self.0.wait_for(|over| *over).await.is_err() {
            // The sender is gone: the key has no more checks and never ends.
            std::future::pending().await
        }
    }

    /// Wraps the response so that its body fails between two slices when the key ends.
    pub(crate) fn guard_response(self, response: Response) -> Response {
        if fits_one_slice(response.body()) {
            response
        } else {
            response.map(|body| {
                Body::new(RevocableBody {
                    body: hold_until_sent(body, ()),
                    over: Box::pin(self.expired()),
                })
            })
        }
    }
}

struct RevocableBody {
    body: Body,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl http_body::Body for RevocableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(io::Error::other(
                "the key has ended",
            )))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_large_answer_of_one_piece_breaks_off_with_its_key() {
        let keys = ActiveKeys::default();
        let mut answers = ["her", "him"].map(|key| {
            let large = Response::new(Body::from(vec![b' '; 1 << 20]));
            keys.watch(key).guard_response(large).into_body()
        });
        for answer in &mut answers {
            assert!(answer.frame().await.unwrap().is_ok());
        }
        keys.revoke("her");
        let [hers, his] = answers;
        assert!(hers.collect().await.is_err());
        assert!(
            his.collect()
                .await
                .is_ok_and(|rest| rest.to_bytes().len() > 900 << 10)
        );
    }
}
