//! Rate limits: a token bucket for requests or tokens per minute.

use super::clock::ClockTime;
use std::time::Duration;

const NANOS_PER_MINUTE: u128 = 60_000_000_000;

/// A token bucket: full at first, then refilled evenly. The level is counted in units times
/// nanoseconds of a minute, so nothing is rounded.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    rate: u64,
    level: u128,
    filled: Duration,
}

impl TokenBucket {
    pub(super) fn new(rate: u64, now: ClockTime) -> TokenBucket {
        TokenBucket {
            rate,
            level: u128::from(rate) * NANOS_PER_MINUTE,
            filled: now.elapsed,
        }
    }

    /// The rate per minute, which is also the capacity.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    pub(super) fn refill(&mut self, now: ClockTime) {
        let passed = now.elapsed.saturating_sub(self.filled).as_nanos();
        let full = u128::from(self.rate) * NANOS_PER_MINUTE;
        self.level = self
            .level
            .saturating_add(passed.saturating_mul(u128::from(self.rate)))
            .min(full);
        self.filled = self.filled.max(now.elapsed);
    }

    /// Seconds until this amount is available; 0 if it is.
    pub(super) fn seconds_until(&self, amount: u64) -> u64 {
        let missing = (u128::from(amount) * NANOS_PER_MINUTE).saturating_sub(self.level);
        let per_second = u128::from(self.rate.max(1)) * 1_000_000_000;
        u64::try_from(missing.div_ceil(per_second)).unwrap_or(u64::MAX)
    }

    pub(super) fn take(&mut self, amount: u64) {
        self.level = self
            .level
            .saturating_sub(u128::from(amount) * NANOS_PER_MINUTE);
    }

    pub(super) fn put_back(&mut self, amount: u64) {
        let full = u128::from(self.rate) * NANOS_PER_MINUTE;
        self.level = self
            .level
            .saturating_add(u128::from(amount) * NANOS_PER_MINUTE)
            .min(full);
    }
}
