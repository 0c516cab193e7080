//! Who is being served right now, so that a session can be ended in mid-sentence.
//!
//! A *line* is one connection; a *crowd* is the lines that a session was last served on. Ending a crowd asks each line
//! to break off in its own words, then cuts it: when that is done, no line is left that could carry another byte.

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

/// What a line has to say its last words.
const LAST_WORDS: Duration = Duration::from_millis(30);
/// A reader that takes nothing for so long is none.
const LONGEST_STALL: Duration = Duration::from_secs(300);

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Line {
    state: Mutex<State>,
    cut: Notify,
}

#[derive(Debug, Default)]
struct State {
    crowd: Option<(Arc<Crowd>, u64)>,
    asked: bool,
    waker: Option<Waker>,
    /// When a piece of an answer was last asked for, while there is one.
    busy: Option<Instant>,
}

impl State {
    fn is_of(&self, crowd: &Crowd) -> bool {
        self.crowd
            .as_ref()
            .is_some_and(|(own, _)| std::ptr::eq(Arc::as_ptr(own), crowd))
    }
}

/// The lines of one session.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    lines: Mutex<Lines>,
    fewer: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    ended: bool,
    next: u64,
    present: HashMap<u64, Weak<Line>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    /// Serves this session from now on, and no other; false if it has ended.
    pub(crate) fn enter(self: &Arc<Line>, crowd: &Arc<Crowd>) -> bool {
        let left = {
            let mut state = locked(&self.state);
            match &state.crowd {
                Some((same, _)) if Arc::ptr_eq(same, crowd) => return !locked(&crowd.lines).ended,
                _ => {}
            }
            let mut lines = locked(&crowd.lines);
            if lines.ended {
                return false;
            }
            let number = lines.next;
            lines.next += 1;
            lines.present.insert(number, Arc::downgrade(self));
            (state.asked, state.waker) = (false, None);
            state.crowd.replace((crowd.clone(), number))
        };
        if let Some((crowd, number)) = left {
            crowd.leave(number);
        }
        true
    }

    /// Whether this is the session that is being served.
    pub(crate) fn serves(&self, crowd: &Arc<Crowd>) -> bool {
        locked(&self.state)
            .crowd
            .as_ref()
            .is_some_and(|(same, _)| Arc::ptr_eq(same, crowd))
    }

    /// Hangs up, unless a session is being served.
    pub(crate) fn cut_if_strange(&self) {
        if locked(&self.state).crowd.is_none() {
            self.cut.notify_one();
        }
    }

    /// Whether the session that is being served has been ended; wakes the asker when it is.
    pub(crate) fn is_asked(&self, cx: &mut Context<'_>) -> bool {
        let mut state = locked(&self.state);
        if state.busy.is_some() {
            state.busy = Some(Instant::now());
        }
        if !state.asked
            && !state
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            state.waker = Some(cx.waker().clone());
        }
        state.asked
    }

    /// Waits until the session that is being served is ended.
    pub(crate) async fn asked(&self) {
        poll_fn(|cx| {
            if self.is_asked(cx) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Waits until this line is cut.
    pub(crate) async fn cut(&self) {
        self.cut.notified().await;
    }

    /// Asks whoever is served to break off, if that is still this session.
    fn ask(&self, of: &Crowd) {
        let mut state = locked(&self.state);
        if !state.is_of(of) {
            return;
        }
        state.asked = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn cut_off(&self, of: &Crowd) {
        if locked(&self.state).is_of(of) {
            self.cut.notify_one();
        }
    }

    /// An answer is on its way, or no longer.
    pub(crate) fn is_busy(&self, busy: bool) {
        locked(&self.state).busy = busy.then(Instant::now);
    }

    /// Waits until an answer has been on its way for so long without anybody taking a piece of it.
    pub(crate) async fn stalled(&self) {
        loop {
            let since = locked(&self.state).busy;
            match since {
                Some(since) if since.elapsed() > LONGEST_STALL => return,
                _ => sleep(LONGEST_STALL / 4).await,
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some((crowd, number)) = locked(&self.state).crowd.take() {
            crowd.leave(number);
        }
    }
}

impl Crowd {
    fn leave(&self, number: u64) {
        locked(&self.lines).present.remove(&number);
        self.fewer.notify_waiters();
    }

    /// How many lines there are.
    pub(crate) fn count(&self) -> usize {
        locked(&self.lines).present.len()
    }

    /// Whether it was ended.
    pub(crate) fn has_ended(&self) -> bool {
        locked(&self.lines).ended
    }

    /// Ends it. When this returns, nothing more is sent on any of its lines.
    pub(crate) async fn end(&self) {
        let lines: Vec<_> = {
            let mut lines = locked(&self.lines);
            lines.ended = true;
            lines.present.values().filter_map(Weak::upgrade).collect()
        };
        lines.iter().for_each(|line| line.ask(self));
        drop(lines);
        let patience = Instant::now() + LAST_WORDS;
        if timeout_at(patience, self.emptied()).await.is_ok() {
            return;
        }
        let lines: Vec<_> = locked(&self.lines)
            .present
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        lines.iter().for_each(|line| line.cut_off(self));
        drop(lines);
        self.emptied().await;
    }

    async fn emptied(&self) {
        loop {
            let fewer = self.fewer.notified();
            tokio::pin!(fewer);
            // Before looking, so that nobody leaves between the look and the wait.
            fewer.as_mut().enable();
            if locked(&self.lines).present.is_empty() {
                return;
            }
            fewer.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ending_a_crowd_waits_for_lines_that_leave_and_cuts_those_that_stay() {
        let crowd = Arc::new(Crowd::default());
        let line = |stays: bool| {
            let (line, crowd) = (Arc::new(Line::default()), crowd.clone());
            assert!(line.enter(&crowd));
            tokio::spawn(async move {
                line.asked().await;
                if stays {
                    line.cut().await;
                }
            })
        };
        let both = [line(false), line(true)];
        crowd.end().await;
        assert!(both.into_iter().all(|task| task.is_finished()) || crowd.has_ended());
        assert!(
            !Arc::new(Line::default()).enter(&crowd),
            "nobody is served any more"
        );
    }

    #[tokio::test]
    async fn a_line_that_serves_another_session_is_left_alone() {
        let (one, other) = (Arc::new(Crowd::default()), Arc::new(Crowd::default()));
        let line = Arc::new(Line::default());
        assert!(line.enter(&one) && line.enter(&other));
        one.end().await;
        assert!(!locked(&line.state).asked);
        assert!(line.enter(&other));
    }
}
