//! Time for limits. The wall clock is read once: that it is put back or forward later gives no day twice and none for
//! free.

use std::{
    fmt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const SECONDS_A_DAY: u64 = 86_400;
const NANOS_A_MINUTE: u128 = 60_000_000_000;

/// Time since the till was opened, and what the wall clock said then.
pub(super) struct Clock {
    wall: Duration,
    elapsed: Box<dyn Fn() -> Duration + Send + Sync>,
}

impl Clock {
    pub(super) fn real() -> Clock {
        let start = Instant::now();
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Clock::new(wall, move || start.elapsed())
    }

    pub(super) fn new(
        wall: Duration,
        elapsed: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Clock {
        Clock {
            wall,
            elapsed: Box::new(elapsed),
        }
    }

    pub(super) fn now(&self) -> Now {
        let elapsed = (self.elapsed)();
        Now {
            elapsed,
            seconds: self.wall.saturating_add(elapsed).as_secs(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Clock")
            .field("wall", &self.wall)
            .finish_non_exhaustive()
    }
}

/// A moment.
#[derive(Clone, Copy)]
pub(super) struct Now {
    elapsed: Duration,
    seconds: u64,
}

impl Now {
    /// Days since 1970 (UTC).
    pub(super) fn day(self) -> u64 {
        self.seconds / SECONDS_A_DAY
    }

    /// Seconds until the next day.
    pub(super) fn until_tomorrow(self) -> u64 {
        SECONDS_A_DAY - self.seconds % SECONDS_A_DAY
    }
}

/// So much a minute: full at first, then filled evenly. In whole pieces times nanoseconds of a minute, so nothing is
/// rounded.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    rate: u64,
    level: u128,
    filled: Duration,
}

impl Bucket {
    pub(super) fn new(rate: u64, now: Now) -> Bucket {
        Bucket {
            rate,
            level: u128::from(rate) * NANOS_A_MINUTE,
            filled: now.elapsed,
        }
    }

    /// The most that can be taken at once.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    pub(super) fn fill(&mut self, now: Now) {
        let passed = now.elapsed.saturating_sub(self.filled).as_nanos();
        let full = u128::from(self.rate) * NANOS_A_MINUTE;
        self.level = self
            .level
            .saturating_add(passed.saturating_mul(u128::from(self.rate)))
            .min(full);
        self.filled = self.filled.max(now.elapsed);
    }

    /// Seconds to wait until this much is there; 0 if it is.
    pub(super) fn wait(&self, amount: u64) -> u64 {
        let missing = (u128::from(amount) * NANOS_A_MINUTE).saturating_sub(self.level);
        let a_second = u128::from(self.rate.max(1)) * 1_000_000_000;
        u64::try_from(missing.div_ceil(a_second)).unwrap_or(u64::MAX)
    }

    pub(super) fn take(&mut self, amount: u64) {
        self.level = self
            .level
            .saturating_sub(u128::from(amount) * NANOS_A_MINUTE);
    }

    pub(super) fn give_back(&mut self, amount: u64) {
        let full = u128::from(self.rate) * NANOS_A_MINUTE;
        self.level = self
            .level
            .saturating_add(u128::from(amount) * NANOS_A_MINUTE)
            .min(full);
    }
}
