//! CPU-heavy work (parsing long bodies, serializing large results): one piece at a time for each
//! tenant, on a thread of its own with a lower priority than the threads that answer requests.

use crate::tenants::TenantLocks;
use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// How much nicer than the rest of the server. The kernel then wakes an event loop at once on a
/// CPU that works.
const NICENESS: i32 = 10;
/// The lowest priority that the kernel has.
const MAX_NICENESS: i32 = 19;
/// Pause after the kernel gave no thread.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Runs the work once no other piece of the tenant's is under way; `None` if it panicked. The work
/// continues when its caller disconnects.
pub(crate) async fn run<T: Send + 'static>(
    locks: &TenantLocks,
    tenant: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let lock = locks.lock(tenant).await;
    let (done, is_done) = oneshot::channel();
    let work = move || {
        let _lock = lock;
        lower_priority();
        // Nobody may wait for it any more.
        _ = done.send(work());
    };
    // What cannot be started is kept here for the next attempt.
    let work = Arc::new(Mutex::new(Some(work)));
    loop {
        let started = work.clone();
        let take = move || {
            started
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
        };
        let named = thread::Builder::new().name("cpu-work".to_owned());
        match named.spawn(move || take().map(|work| work())) {
            Ok(_) => return is_done.await.ok(),
            Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
        }
    }
}

/// Lowers the priority of this thread, below that of the server whatever it is. At the usual
/// priority the result of the work is the same.
fn lower_priority() {
    if let Ok(own) = rustix::process::getpriority_process(None) {
        let niceness = (own + NICENESS).min(MAX_NICENESS);
        _ = rustix::process::setpriority_process(None, niceness);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn niceness() -> i32 {
        rustix::process::getpriority_process(None).unwrap()
    }

    #[tokio::test]
    async fn one_piece_of_a_tenants_work_at_a_time_even_if_nobody_waits_for_it() {
        let locks = TenantLocks::default();
        let (end, ends) = mpsc::channel::<()>();
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let long = run(&locks, "her", move || {
            begin.send(()).unwrap();
            ends.recv().unwrap();
        });
        tokio::select! {
            _ = long => unreachable!("it was not told to end"),
            _ = begun.recv() => {}
        }
        // Whoever asked is gone.
        let mut second = std::pin::pin!(run(&locks, "her", || 2));
        assert_eq!(run(&locks, "him", || 3).await, Some(3), "others go on");
        let waits = tokio::time::timeout(Duration::from_millis(20), second.as_mut()).await;
        assert!(waits.is_err());
        end.send(()).unwrap();
        assert_eq!(second.await, Some(2));
    }

    #[tokio::test]
    async fn its_thread_gives_way_to_the_others() {
        let locks = TenantLocks::default();
        let usual = niceness();
        let nicer = run(&locks, "her", niceness).await.unwrap();
        assert_eq!(nicer, (usual + NICENESS).min(MAX_NICENESS));
        assert_eq!(niceness(), usual);
    }
}
