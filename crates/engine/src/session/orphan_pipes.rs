//! Output pipes of ended programs that an orphaned process still holds. They are drained within a
//! limit, since each costs the server a descriptor. Beyond it the oldest pipe is closed, and its
//! writer gets EPIPE.

use super::{SessionStatus, Shared};
use crate::stdio::OutputReader;
use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::oneshot;

/// The most such pipes of one session.
const MAX_PIPES: usize = 64;
/// The most such pipes of this process. Beyond it each session has one.
const MAX_PIPES_IN_ALL: usize = 1024;
static PIPES_IN_ALL: AtomicUsize = AtomicUsize::new(0);

const NOTE: &str =
    "programs left more behind than is read on for: the oldest of their pipes were closed";

/// The pipes of one session, the oldest first. Dropping a sender closes its pipe.
#[derive(Debug, Default)]
pub(super) struct OrphanPipes {
    pipes: Mutex<VecDeque<oneshot::Sender<()>>>,
}

/// Counts one pipe of the process as long as it exists.
struct PipeCount;

impl PipeCount {
    fn new() -> (PipeCount, usize) {
        (PipeCount, PIPES_IN_ALL.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for PipeCount {
    fn drop(&mut self) {
        PIPES_IN_ALL.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OrphanPipes {
    /// Drains a pipe until its writers close it, the session ends, or newer pipes need its place.
    pub(super) async fn drain(&self, session: &Shared, reader: OutputReader) {
        let (_counted, others) = PipeCount::new();
        let (keep, closed) = oneshot::channel();
        if self.add(
            keep,
            if others < MAX_PIPES_IN_ALL {
                MAX_PIPES
            } else {
                1
            },
        ) {
            let mut data = session.data();
            if !data.state.notes.iter().any(|note| note == NOTE) {
                data.state.notes.push(NOTE.to_owned());
            }
        }
        let mut status = session.status.subscribe();
        tokio::select! {
            () = reader.drain() => {}
            _ = closed => {}
            _ = status.wait_for(|status| *status == SessionStatus::Ended) => {}
        }
    }

    /// Adds a pipe; returns whether older ones were closed.
    fn add(&self, pipe: oneshot::Sender<()>, most: usize) -> bool {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        pipes.retain(|pipe| !pipe.is_closed());
        pipes.push_back(pipe);
        let extra = pipes.len().saturating_sub(most);
        pipes.drain(..extra);
        extra > 0
    }
}
