//! Tracks the client connections of a session, so that ending the session also ends responses in
//! progress.
//!
//! Each connection has a handle; the handles of a session form a set. Ending a set asks every
//! connection to send a final error in its own protocol, and after a grace period closes it by force:
//! then no connection is left that could carry another byte.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

/// How long a connection may take to write its final error.
const FLUSH_GRACE: Duration = Duration::from_millis(30);
/// A client that reads nothing for this long is disconnected.
const STALL_TIMEOUT: Duration = Duration::from_secs(300);

/// One client connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionHandle {
    state: Mutex<HandleState>,
    cut: Notify,
}

#[derive(Debug, Default)]
struct HandleState {
    set: Option<(Arc<ConnectionSet>, u64)>,
    ending: bool,
    waker: Option<Waker>,
    /// When a chunk of the response was last polled; `None` while there is no response.
    responding_since: Option<Instant>,
}

impl HandleState {
    fn is_in_set(&self, set: &ConnectionSet) -> bool {
        self.set
            .as_ref()
            .is_some_and(|(own, _)| std::ptr::eq(Arc::as_ptr(own), set))
    }
}

/// The open connections of one session.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSet {
    connections: Mutex<OpenConnections>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct OpenConnections {
    ended: bool,
    next: u64,
    open: HashMap<u64, Weak<ConnectionHandle>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionHandle {
    /// Adds the connection to the set of this session and removes it from any other; false if the
    /// session has ended.
    pub(crate) fn join(self: &Arc<ConnectionHandle>, set: &Arc<ConnectionSet>) -> bool {
        let left = {
            let mut state = locked(&self.state);
            match &state.set {
                Some((same, _)) if Arc::ptr_eq(same, set) => {
                    return !locked(&set.connections).ended;
                }
                _ => {}
            }
            let mut connections = locked(&set.connections);
            if connections.ended {
                return false;
            }
            let number = connections.next;
            connections.next += 1;
            connections.open.insert(number, Arc::downgrade(self));
            state.ending = false;
            state.waker = None;
            state.set.replace((set.clone(), number))
        };
        if let Some((set, number)) = left {
            set.leave(number);
        }
        true
    }

    /// Whether the connection serves this session.
    pub(crate) fn is_in(&self, set: &Arc<ConnectionSet>) -> bool {
        locked(&self.state)
            .set
            .as_ref()
            .is_some_and(|(same, _)| Arc::ptr_eq(same, set))
    }

    /// Closes the connection unless it serves a session.
    pub(crate) fn close_if_unauthenticated(&self) {
        if locked(&self.state).set.is_none() {
            self.cut.notify_one();
        }
    }

    /// Whether the session has been ended; registers the waker for when it is.
    pub(crate) fn poll_ending(&self, cx: &mut Context<'_>) -> bool {
        let mut state = locked(&self.state);
        if state.responding_since.is_some() {
            state.responding_since = Some(Instant::now());
        }
        if !state.ending
            && !state
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            state.waker = Some(cx.waker().clone());
        }
        state.ending
    }

    /// Waits until the session is ended.
    pub(crate) async fn wait_ending(&self) {
        poll_fn(|cx| {
            if self.poll_ending(cx) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Waits until the connection must be closed by force.
    pub(crate) async fn wait_cut(&self) {
        self.cut.notified().await;
    }

    /// Asks the connection to end its response, if it still serves this session.
    fn request_end(&self, set: &ConnectionSet) {
        let mut state = locked(&self.state);
        if !state.is_in_set(set) {
            return;
        }
        state.ending = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn force_close(&self, set: &ConnectionSet) {
        if locked(&self.state).is_in_set(set) {
            self.cut.notify_one();
        }
    }

    /// Marks that a response is in progress, or that it is over.
    pub(crate) fn set_responding(&self, responding: bool) {
        locked(&self.state).responding_since = responding.then(Instant::now);
    }

    /// Waits until nobody has polled the response for `STALL_TIMEOUT`.
    pub(crate) async fn wait_stalled(&self) {
        loop {
            let since = locked(&self.state).responding_since;
            match since {
                Some(since) if since.elapsed() > STALL_TIMEOUT => return,
                _ => sleep(STALL_TIMEOUT / 4).await,
            }
        }
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        if let Some((set, number)) = locked(&self.state).set.take() {
            set.leave(number);
        }
    }
}

impl ConnectionSet {
    fn leave(&self, number: u64) {
        locked(&self.connections).open.remove(&number);
        self.closed.notify_waiters();
    }

    /// Number of open connections.
    pub(crate) fn count(&self) -> usize {
        locked(&self.connections).open.len()
    }

    /// Whether the set was ended.
    pub(crate) fn has_ended(&self) -> bool {
        locked(&self.connections).ended
    }

    /// Ends the session's connections. When this returns, nothing more is sent on any of them.
    pub(crate) async fn end(&self) {
        let connections: Vec<_> = {
            let mut connections = locked(&self.connections);
            connections.ended = true;
            connections
                .open
                .values()
                .filter_map(Weak::upgrade)
                .collect()
        };
        connections
            .iter()
            .for_each(|connection| connection.request_end(self));
        drop(connections);
        let deadline = Instant::now() + FLUSH_GRACE;
        if timeout_at(deadline, self.wait_empty()).await.is_ok() {
            return;
        }
        let connections: Vec<_> = locked(&self.connections)
            .open
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        connections
            .iter()
            .for_each(|connection| connection.force_close(self));
        drop(connections);
        self.wait_empty().await;
    }

    async fn wait_empty(&self) {
        loop {
            let closed = self.closed.notified();
            tokio::pin!(closed);
            // Before the check, so that a connection that closes between check and wait is not
            // missed.
            closed.as_mut().enable();
            if locked(&self.connections).open.is_empty() {
                return;
            }
            closed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ending_a_crowd_waits_for_lines_that_leave_and_cuts_those_that_stay() {
        let set = Arc::new(ConnectionSet::default());
        let connection = |stays: bool| {
            let (connection, set) = (Arc::new(ConnectionHandle::default()), set.clone());
            assert!(connection.join(&set));
            tokio::spawn(async move {
                connection.wait_ending().await;
                if stays {
                    connection.wait_cut().await;
                }
            })
        };
        let both = [connection(false), connection(true)];
        set.end().await;
        assert!(both.into_iter().all(|task| task.is_finished()) || set.has_ended());
        assert!(
            !Arc::new(ConnectionHandle::default()).join(&set),
            "nobody is served any more"
        );
    }

    #[tokio::test]
    async fn a_line_that_serves_another_session_is_left_alone() {
        let (one, other) = (
            Arc::new(ConnectionSet::default()),
            Arc::new(ConnectionSet::default()),
        );
        let connection = Arc::new(ConnectionHandle::default());
        assert!(connection.join(&one) && connection.join(&other));
        one.end().await;
        assert!(!locked(&connection.state).ending);
        assert!(connection.join(&other));
    }
}
