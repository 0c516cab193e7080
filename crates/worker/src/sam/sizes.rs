//! How large answers may be, as far as the broker has shown: one that speaks MQTT 3.1.1 says it only by ending the connection over
//! what is larger, each time.
//!
//! ```text
//! unknown ──one is replaced──▶ all as large are replaced, twice as long each time ──▶ one is tried ──is taken──▶ unknown
//!                                                      ▲                                  │
//!                                                      └───────────is replaced────────────┘
//! ```

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Short at first: it may have been something else.
const FIRST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(60 * 60);

#[derive(Debug, Default)]
pub(super) struct Sizes(Mutex<Option<Bound>>);

#[derive(Debug)]
struct Bound {
    least: usize,
    lasts: Duration,
    until: Instant,
}

impl Sizes {
    /// Whether an answer of this size is to be replaced unsent. Of those that come when that has lasted long enough, one is
    /// tried: until it is known what became of it, the others are not.
    pub(super) fn is_too_large(&self, size: usize, now: Instant) -> bool {
        let mut known = self.known();
        let Some(bound) = known.as_mut().filter(|bound| size >= bound.least) else { return false };
        let is_tried = now >= bound.until;
        if is_tried {
            bound.until = now + bound.lasts;
        }
        !is_tried
    }

    /// The broker ended connections over one of this size, and took a small one in its stead.
    pub(super) fn replaced(&self, size: usize, now: Instant) {
        let mut known = self.known();
        let (least, before) =
            known.as_ref().map_or((size, Duration::ZERO), |bound| (bound.least, bound.lasts));
        let lasts = (before * 2).clamp(FIRST, LONGEST);
        *known = Some(Bound { least: least.min(size), lasts, until: now + lasts });
    }

    pub(super) fn taken(&self, size: usize) {
        self.known().take_if(|bound| size >= bound.least);
    }

    fn known(&self) -> MutexGuard<'_, Option<Bound>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_large_as_one_that_was_replaced_is_not_sent_for_longer_each_time() {
        let (sizes, mut now) = (Sizes::default(), Instant::now());
        assert!(!sizes.is_too_large(200, now));
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            sizes.replaced(200, now);
            assert_eq!([199, 200, 300].map(|size| sizes.is_too_large(size, now)), [false, true, true]);
            now += Duration::from_secs(minutes * 60 - 1);
            assert!(sizes.is_too_large(200, now));
            now += Duration::from_secs(1);
            assert_eq!([200, 300].map(|size| sizes.is_too_large(size, now)), [false, true], "one is tried");
        }
        sizes.taken(199);
        assert!(sizes.is_too_large(200, now));
        sizes.taken(200);
        assert!(!sizes.is_too_large(200, now));
    }

    #[test]
    fn the_smallest_counts() {
        let (sizes, now) = (Sizes::default(), Instant::now());
        [300, 200, 400].into_iter().for_each(|size| sizes.replaced(size, now));
        assert_eq!([199, 200].map(|size| sizes.is_too_large(size, now)), [false, true]);
    }
}
