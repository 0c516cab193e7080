//! Memory budget for the files of all calls, one for input and one for output. A call that wants
//! more than is free waits, while its timeout runs.

use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The whole budget, which is also the largest file.
pub(crate) const MAX_BYTES: u64 = 256 << 20;
/// Granularity of a lease.
const UNIT_BYTES: u64 = 4 << 10;

/// A fair semaphore: a large lease is not overtaken by small ones.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget(Arc<Semaphore>);

/// A part of the budget, returned on drop.
#[derive(Debug)]
pub(crate) struct MemoryLease(
    #[allow(dead_code, reason = "it is dropped")] Option<OwnedSemaphorePermit>,
);

impl MemoryBudget {
    pub(crate) fn new() -> MemoryBudget {
        MemoryBudget(Arc::new(Semaphore::new((MAX_BYTES / UNIT_BYTES) as usize)))
    }

    /// Waits for this many bytes, at most [`MAX_BYTES`]. The holder of a lease must not ask for
    /// another one: two holders would deadlock.
    pub(crate) async fn lease(&self, bytes: u64) -> MemoryLease {
        let units = bytes.min(MAX_BYTES).div_ceil(UNIT_BYTES) as u32;
        // The semaphore is never closed.
        MemoryLease(self.0.clone().acquire_many_owned(units).await.ok())
    }
}

impl MemoryLease {
    /// Binds the lease to these bytes: it is returned when the last clone is dropped.
    pub(crate) fn attach(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(LeasedBytes {
            bytes,
            _lease: self,
        })
    }
}

struct LeasedBytes {
    bytes: Vec<u8>,
    _lease: MemoryLease,
}

impl AsRef<[u8]> for LeasedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::Future, pin::pin, task::Poll};

    async fn waits(future: impl Future<Output = MemoryLease>) -> bool {
        let mut future = pin!(future);
        std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()))
            .await
    }

    #[tokio::test]
    async fn no_more_is_given_out_than_there_is_and_what_is_given_back_is_others() {
        let budget = MemoryBudget::new();
        let first = budget.lease(MAX_BYTES - 1).await;
        assert!(waits(budget.lease(1)).await);
        drop(first);
        let half = budget.lease(MAX_BYTES / 2).await;
        assert!(!waits(budget.lease(MAX_BYTES / 2)).await, "the other half");
        assert!(waits(budget.lease(u64::MAX)).await);
        drop(half);
        assert!(!waits(budget.lease(u64::MAX)).await, "more than all is all");
        assert!(!waits(budget.lease(0)).await);
        let bytes = budget.lease(MAX_BYTES).await.attach(vec![1, 2]);
        let piece = bytes.slice(1..);
        drop(bytes);
        assert!(waits(budget.lease(1)).await, "{piece:?} is still there");
        drop(piece);
        assert!(!waits(budget.lease(1)).await);
    }
}
