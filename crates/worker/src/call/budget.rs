//! What files of all calls together may take of our memory on their way in, or on their way out: whoever wants more at once
//! waits. The time of the call goes on meanwhile.

use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All of it, which is also the largest file.
pub(crate) const MOST: u64 = 256 << 20;
/// What it is counted in.
const UNIT: u64 = 4 << 10;

/// Given out in turn: whoever wants much is not passed by those who want little.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

/// Some of it. Dropped, it is others'.
#[derive(Debug)]
pub(crate) struct Lease(#[allow(dead_code, reason = "it is dropped")] Option<OwnedSemaphorePermit>);

impl Budget {
    pub(crate) fn new() -> Budget {
        Budget(Arc::new(Semaphore::new((MOST / UNIT) as usize)))
    }

    /// Waits until there are so many bytes, at most [`MOST`]. Whoever has some must not ask for more: two would wait for ever.
    pub(crate) async fn lease(&self, bytes: u64) -> Lease {
        let units = bytes.min(MOST).div_ceil(UNIT) as u32;
        // It is never closed.
        Lease(self.0.clone().acquire_many_owned(units).await.ok())
    }
}

impl Lease {
    /// Bytes that have it for as long as anybody has them.
    pub(crate) fn over(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Leased {
            bytes,
            _lease: self,
        })
    }
}

struct Leased {
    bytes: Vec<u8>,
    _lease: Lease,
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::Future, pin::pin, task::Poll};

    async fn waits(future: impl Future<Output = Lease>) -> bool {
        let mut future = pin!(future);
        std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()))
            .await
    }

    #[tokio::test]
    async fn no_more_is_given_out_than_there_is_and_what_is_given_back_is_others() {
        let budget = Budget::new();
        let first = budget.lease(MOST - 1).await;
        assert!(waits(budget.lease(1)).await);
        drop(first);
        let half = budget.lease(MOST / 2).await;
        assert!(!waits(budget.lease(MOST / 2)).await, "the other half");
        assert!(waits(budget.lease(u64::MAX)).await);
        drop(half);
        assert!(!waits(budget.lease(u64::MAX)).await, "more than all is all");
        assert!(!waits(budget.lease(0)).await);
        let bytes = budget.lease(MOST).await.over(vec![1, 2]);
        let piece = bytes.slice(1..);
        drop(bytes);
        assert!(waits(budget.lease(1)).await, "{piece:?} is still there");
        drop(piece);
        assert!(!waits(budget.lease(1)).await);
    }
}
