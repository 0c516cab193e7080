//! Pipes of programs that have ended, which somebody whom they left behind still holds. They are read on, within a bound:
//! each costs the server a descriptor. Beyond it the oldest is closed, and its writer gets EPIPE.

use super::{SessionStatus, Shared};
use crate::streams::Reading;
use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::oneshot;

/// Such pipes of one session.
const MOST_PIPES: usize = 64;
/// The same, of all sessions of this process. Beyond it a session has one at a time.
const MOST_IN_ALL: usize = 1024;
static IN_ALL: AtomicUsize = AtomicUsize::new(0);

const NOTE: &str =
    "programs left more behind than is read on for: the oldest of their pipes were closed";

/// The pipes of one session, the oldest first. Whoever drops a sender closes its pipe.
#[derive(Debug, Default)]
pub(super) struct LeftBehind {
    pipes: Mutex<VecDeque<oneshot::Sender<()>>>,
}

/// Counted as long as it is there.
struct Counted;

impl Counted {
    fn new() -> (Counted, usize) {
        (Counted, IN_ALL.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        IN_ALL.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LeftBehind {
    /// Reads and throws away, until nobody writes any more, the session ends, or newer ones need the room.
    pub(super) async fn drain(&self, session: &Shared, reading: Reading) {
        let (_counted, others) = Counted::new();
        let (keep, closed) = oneshot::channel();
        if self.add(keep, if others < MOST_IN_ALL { MOST_PIPES } else { 1 }) {
            let mut book = session.book();
            if !book.state.notes.iter().any(|note| note == NOTE) {
                book.state.notes.push(NOTE.to_owned());
            }
        }
        let mut status = session.status.subscribe();
        tokio::select! {
            () = reading.drain() => {}
            _ = closed => {}
            _ = status.wait_for(|status| *status == SessionStatus::Ended) => {}
        }
    }

    /// Whether older ones had to go.
    fn add(&self, pipe: oneshot::Sender<()>, most: usize) -> bool {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        pipes.retain(|pipe| !pipe.is_closed());
        pipes.push_back(pipe);
        let extra = pipes.len().saturating_sub(most);
        pipes.drain(..extra);
        extra > 0
    }
}
