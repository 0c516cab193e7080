//! How long keys are good for those who are being served. A key that ends takes its open requests with it: waits,
//! bodies in both directions, terminals. Keys may be revoked by another process, so those in use are looked at every second.

use crate::sent::{is_sent_at_once, until_sent};
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

/// Between two looks.
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// The keys of requests that are being served.
#[derive(Debug, Default)]
pub(crate) struct InUse(Mutex<HashMap<String, watch::Sender<bool>>>);

/// Tells when a key ends.
#[derive(Clone, Debug)]
pub(crate) struct Validity(watch::Receiver<bool>);

impl InUse {
    fn keys(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<bool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For one more request of this key.
    pub(crate) fn watch(&self, key: &str) -> Validity {
        let mut keys = self.keys();
        let over = match keys.get(key) {
            Some(over) => over.subscribe(),
            None => keys
                .entry(key.to_owned())
                .or_insert_with(|| watch::Sender::new(false))
                .subscribe(),
        };
        Validity(over)
    }

    /// Those that are in use; the others are forgotten.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut keys = self.keys();
        keys.retain(|_, over| over.receiver_count() > 0);
        keys.keys().cloned().collect()
    }

    /// Ends everything that this key has under way.
    pub(crate) fn end(&self, key: &str) {
        if let Some(over) = self.keys().remove(key) {
            over.send_replace(true);
        }
    }
}

impl Validity {
    /// Waits for the end of the key.
    pub(crate) async fn over(mut self) {
        if self.0.wait_for(|over| *over).await.is_err() {
            // Nobody looks at it any more: there is no end to come.
            std::future::pending().await
        }
    }

    /// The same answer, which breaks off when the key ends: between two of its slices.
    pub(crate) fn guard(self, response: Response) -> Response {
        match is_sent_at_once(response.body()) {
            true => response,
            false => response.map(|body| {
                Body::new(Guarded {
                    body: until_sent(body, ()),
                    over: Box::pin(self.over()),
                })
            }),
        }
    }
}

struct Guarded {
    body: Body,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl http_body::Body for Guarded {
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
        let keys = InUse::default();
        let mut answers = ["her", "him"].map(|key| {
            let large = Response::new(Body::from(vec![b' '; 1 << 20]));
            keys.watch(key).guard(large).into_body()
        });
        for answer in &mut answers {
            assert!(answer.frame().await.unwrap().is_ok());
        }
        keys.end("her");
        let [hers, his] = answers;
        assert!(hers.collect().await.is_err());
        assert!(
            his.collect()
                .await
                .is_ok_and(|rest| rest.to_bytes().len() > 900 << 10)
        );
    }
}
