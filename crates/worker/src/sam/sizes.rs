//! How large answers may be, as far as the broker has shown: one that speaks MQTT 3.1.1 says it only by ending the connection over
//! what is larger, each time.
//!
//! ```text
//! unknown ──one is replaced──▶ all as large are replaced ──after a while──▶ one is tried ──is taken──▶ unknown
//!                                        ▲                                      │
//!                                        └──is replaced: all as large as it, for twice as long
//! ```

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Short at first: it may have been something else.
const FIRST: Duration = Duration::from_secs(60);
/// It may still have been something else, and what is replaced unsent is lost.
const LONGEST: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, Default)]
pub(super) struct Sizes(Mutex<Option<Bound>>);

#[derive(Debug)]
struct Bound {
    least: usize,
    lasts: Duration,
    until: Instant,
}

/// What is to be done with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Sent,
    /// The same, to learn whether it is taken.
    Tried,
    /// It is replaced unsent.
    Replaced,
}

impl Sizes {
    /// Of those that come when they have been replaced long enough, one is tried: until it is known what became of it, the
    /// others are not.
    pub(super) fn fate(&self, size: usize, now: Instant) -> Fate {
        let mut known = self.known();
        let Some(bound) = known.as_mut().filter(|bound| size >= bound.least) else {
            return Fate::Sent;
        };
        if now < bound.until {
            return Fate::Replaced;
        }
        bound.until = now + bound.lasts;
        Fate::Tried
    }

    /// The broker ended connections over one of this size, and took a small one in its stead. Only one that was tried tells
    /// that it lasts; others were under way already. It tells nothing of smaller ones: those may have been replaced for another
    /// reason.
    pub(super) fn replaced(&self, size: usize, is_tried: bool, now: Instant) {
        let mut known = self.known();
        let (least, lasts) = match &*known {
            None => (size, FIRST),
            Some(bound) if is_tried => (size, (bound.lasts * 2).min(LONGEST)),
            Some(bound) => (bound.least.min(size), bound.lasts),
        };
        *known = Some(Bound {
            least,
            lasts,
            until: now + lasts,
        });
    }

    pub(super) fn taken(&self, size: usize) {
        self.known().take_if(|bound| size >= bound.least);
    }

    /// One that was tried is given up, and nobody knows whether for its size: the next is tried.
    pub(super) fn not_learnt(&self, now: Instant) {
        if let Some(bound) = self.known().as_mut() {
            bound.until = now;
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<Bound>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fate::*, *};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_as_large_as_one_that_was_replaced_is_not_sent_for_longer_each_time() {
        let (sizes, mut now) = (Sizes::default(), Instant::now());
        assert_eq!(sizes.fate(200, now), Sent);
        sizes.replaced(200, false, now);
        for minutes in [1, 2, 4, 8, 10, 10] {
            assert_eq!(
                [199, 200, 300].map(|size| sizes.fate(size, now)),
                [Sent, Replaced, Replaced]
            );
            now += MINUTE * minutes - Duration::from_secs(1);
            assert_eq!(sizes.fate(200, now), Replaced);
            now += Duration::from_secs(1);
            assert_eq!(
                [200, 300].map(|size| sizes.fate(size, now)),
                [Tried, Replaced]
            );
            sizes.replaced(200, true, now);
        }
        sizes.taken(199);
        assert_eq!(sizes.fate(200, now), Replaced);
        sizes.taken(200);
        assert_eq!(sizes.fate(200, now), Sent);
    }

    #[test]
    fn of_those_that_were_under_way_the_smallest_counts_and_they_tell_nothing_of_how_long() {
        let (sizes, now) = (Sizes::default(), Instant::now());
        [300, 200, 400]
            .into_iter()
            .for_each(|size| sizes.replaced(size, false, now));
        assert_eq!(
            [199, 200].map(|size| sizes.fate(size, now)),
            [Sent, Replaced]
        );
        assert_eq!(sizes.fate(200, now + MINUTE), Tried);
    }

    #[test]
    fn one_that_was_tried_tells_nothing_of_smaller_ones() {
        let (sizes, now) = (Sizes::default(), Instant::now());
        sizes.replaced(200, false, now);
        assert_eq!(sizes.fate(900, now + MINUTE), Tried);
        assert_eq!(
            sizes.fate(200, now + MINUTE),
            Replaced,
            "it is not known yet"
        );
        sizes.replaced(900, true, now + MINUTE);
        assert_eq!(
            [200, 899, 900].map(|size| sizes.fate(size, now + MINUTE)),
            [Sent, Sent, Replaced]
        );
    }
}
