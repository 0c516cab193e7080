//! Blocking work (disk I/O) on the thread pool that all tenants share, within each tenant's fair
//! share. Work continues when its caller disconnects, so the work holds the share until it is done.

use crate::{
    Problem,
    fair_share::{FairShareGuard, FairShareLimiter},
    problem::Answer,
};
use http::StatusCode;
use std::time::Duration;
use tokio::time::Instant;

/// Concurrent blocking tasks of all tenants, and of one. The thread pool is larger, which leaves
/// threads for the server itself.
const MAX_TOTAL: usize = 64;
const MAX_PER_TENANT: usize = 16;
/// Queue timeout of `run_queued`, and its poll interval.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
const QUEUE_POLL: Duration = Duration::from_millis(10);

/// The limiter of all blocking work.
pub(crate) fn limiter() -> FairShareLimiter {
    FairShareLimiter::new(MAX_TOTAL, MAX_PER_TENANT)
}

/// Runs blocking work if the tenant has a free share; refuses it otherwise.
pub(crate) async fn run<T: Send + 'static>(
    limiter: &FairShareLimiter,
    key: &str,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    spawn(acquire_one(limiter, key)?, work).await
}

/// Runs blocking work once the tenant has a free share: for the final step of expensive work.
pub(crate) async fn run_queued<T: Send + 'static>(
    limiter: &FairShareLimiter,
    key: &str,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let deadline = Instant::now() + QUEUE_TIMEOUT;
    let share = loop {
        match acquire_one(limiter, key) {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(QUEUE_POLL).await,
            taken => break taken?,
        }
    };
    spawn(share, work).await
}

/// Reserves a share for work that runs elsewhere, until it is dropped; `None` if the tenant has no
/// free share.
pub(crate) fn try_reserve(limiter: &FairShareLimiter, key: &str) -> Option<Box<dyn Send>> {
    acquire_one(limiter, key)
        .ok()
        .map(|share| Box::new(share) as Box<dyn Send>)
}

async fn spawn<T: Send + 'static>(
    share: FairShareGuard,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let held = move || {
        let _share = share;
        work()
    };
    tokio::task::spawn_blocking(held)
        .await
        .unwrap_or_else(|_| Err(failed()))
}

fn acquire_one(limiter: &FairShareLimiter, key: &str) -> Answer<FairShareGuard> {
    let mut share = limiter.guard(key);
    limiter.acquire(&mut share, 1).map_err(|full| {
        full.problem(
            "pieces of work on files under way at once",
            "nothing was done; try again in a moment",
        )
    })?;
    Ok(share)
}

pub(crate) fn failed() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "this could not be carried out",
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn work_that_nobody_waits_for_counts_until_it_is_done() {
        let (limiter, (end, ends)) = (FairShareLimiter::new(4, 1), mpsc::channel::<()>());
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let long = run(&limiter, "her", move || {
            _ = begin.send(());
            ends.recv().map_err(|_| failed())
        });
        tokio::select! {
            _ = long => unreachable!("it was not told to end"),
            _ = begun.recv() => {}
        }
        // Whoever asked is gone.
        let refused = run(&limiter, "her", || Ok(())).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(
            run(&limiter, "him", || Ok(())).await.is_ok(),
            "others go on"
        );
        let (waiting, ended) = tokio::join!(run_queued(&limiter, "her", || Ok(7)), async {
            end.send(())
        });
        assert_eq!((waiting.unwrap(), ended.is_ok()), (7, true));
        assert!(run(&limiter, "her", || Ok(())).await.is_ok());
    }
}
