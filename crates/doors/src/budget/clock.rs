//! The clock of budgets. The wall clock is read once and then advanced by the monotonic clock, so
//! that setting it back or forward neither repeats nor skips a day's budget.

use std::{
    fmt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const SECONDS_PER_DAY: u64 = 86_400;

/// The monotonic time since start, and the wall clock at start.
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

    pub(super) fn now(&self) -> ClockTime {
        let elapsed = (self.elapsed)();
        ClockTime {
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

/// A point in time.
#[derive(Clone, Copy)]
pub(super) struct ClockTime {
    pub(super) elapsed: Duration,
    seconds: u64,
}

impl ClockTime {
    /// Days since 1970 (UTC).
    pub(super) fn day(self) -> u64 {
        self.seconds / SECONDS_PER_DAY
    }

    /// Seconds until midnight (UTC).
    pub(super) fn seconds_until_midnight(self) -> u64 {
        SECONDS_PER_DAY - self.seconds % SECONDS_PER_DAY
    }
}
