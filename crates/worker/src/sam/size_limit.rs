//! Size limit of the broker, as far as it is known: a broker that speaks MQTT 3.1.1 shows it only
//! by closing the connection over each message that is larger.
//!
//! ```text
//! unknown ──an answer is replaced──▶ that size is replaced ──timeout──▶ probe ──accepted──▶ unknown
//!                                           ▲                            │
//!                                           └──rejected: with twice the timeout
//! ```

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Short at first: size may not have been the reason.
const INITIAL_DURATION: Duration = Duration::from_secs(60);
/// Bounded, because size may not be the reason and a replaced answer is lost.
const MAX_DURATION: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, Default)]
pub(super) struct SizeLimit(Mutex<Option<LearntLimit>>);

#[derive(Debug)]
struct LearntLimit {
    least: usize,
    lasts: Duration,
    until: Instant,
}

/// What to do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeDecision {
    Sent,
    /// Send it to learn whether its size is accepted.
    Tried,
    /// Replace it without sending.
    Replaced,
}

impl SizeLimit {
    /// After the timeout one answer is a probe; the others are replaced until its result is known.
    pub(super) fn decide(&self, size: usize, now: Instant) -> SizeDecision {
        let mut known = self.known();
        let Some(bound) = known.as_mut().filter(|bound| size >= bound.least) else {
            return SizeDecision::Sent;
        };
        if now < bound.until {
            return SizeDecision::Replaced;
        }
        bound.until = now + bound.lasts;
        SizeDecision::Tried
    }

    /// The broker closed connections over an answer of this size and accepted a small one instead.
    /// Only a probe extends the timeout, because others were in flight already. Smaller sizes stay
    /// as they are: they may have been replaced for another reason.
    pub(super) fn replaced(&self, size: usize, is_tried: bool, now: Instant) {
        let mut known = self.known();
        let (least, lasts) = match &*known {
            None => (size, INITIAL_DURATION),
            Some(bound) if is_tried => (size, (bound.lasts * 2).min(MAX_DURATION)),
            Some(bound) => (bound.least.min(size), bound.lasts),
        };
        *known = Some(LearntLimit {
            least,
            lasts,
            until: now + lasts,
        });
    }

    pub(super) fn taken(&self, size: usize) {
        self.known().take_if(|bound| size >= bound.least);
    }

    /// A probe was given up without a result: the next answer is a probe.
    pub(super) fn probe_failed(&self, now: Instant) {
        if let Some(bound) = self.known().as_mut() {
            bound.until = now;
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<LearntLimit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{SizeDecision::*, *};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_as_large_as_one_that_was_replaced_is_not_sent_for_longer_each_time() {
        let sizes = SizeLimit::default();
        let mut now = Instant::now();
        assert_eq!(sizes.decide(200, now), Sent);
        sizes.replaced(200, false, now);
        for minutes in [1, 2, 4, 8, 10, 10] {
            assert_eq!(
                [199, 200, 300].map(|size| sizes.decide(size, now)),
                [Sent, Replaced, Replaced]
            );
            now += MINUTE * minutes - Duration::from_secs(1);
            assert_eq!(sizes.decide(200, now), Replaced);
            now += Duration::from_secs(1);
            assert_eq!(
                [200, 300].map(|size| sizes.decide(size, now)),
                [Tried, Replaced]
            );
            sizes.replaced(200, true, now);
        }
        sizes.taken(199);
        assert_eq!(sizes.decide(200, now), Replaced);
        sizes.taken(200);
        assert_eq!(sizes.decide(200, now), Sent);
    }

    #[test]
    fn of_those_that_were_under_way_the_smallest_counts_and_they_tell_nothing_of_how_long() {
        let sizes = SizeLimit::default();
        let now = Instant::now();
        [300, 200, 400]
            .into_iter()
            .for_each(|size| sizes.replaced(size, false, now));
        assert_eq!(
            [199, 200].map(|size| sizes.decide(size, now)),
            [Sent, Replaced]
        );
        assert_eq!(sizes.decide(200, now + MINUTE), Tried);
    }

    #[test]
    fn one_that_was_tried_tells_nothing_of_smaller_ones() {
        let sizes = SizeLimit::default();
        let now = Instant::now();
        sizes.replaced(200, false, now);
        assert_eq!(sizes.decide(900, now + MINUTE), Tried);
        assert_eq!(
            sizes.decide(200, now + MINUTE),
            Replaced,
            "it is not known yet"
        );
        sizes.replaced(900, true, now + MINUTE);
        assert_eq!(
            [200, 899, 900].map(|size| sizes.decide(size, now + MINUTE)),
            [Sent, Sent, Replaced]
        );
    }
}
