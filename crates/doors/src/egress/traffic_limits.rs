//! Traffic limits: new connections or requests per minute, and bytes in each direction. One meter
//! per rule, one for the whole door.

use spec::EgressLimits;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Counters and limits.
#[derive(Debug)]
pub(crate) struct TrafficMeter {
    limits: EgressLimits,
    minute: Mutex<(Instant, u32)>,
    begun: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// Direction of traffic, seen from the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Out,
    In,
}

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitExceeded {
    PerMinute,
    Sent,
    Received,
}

impl LimitExceeded {
    /// Its key in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LimitExceeded::PerMinute => "per_minute",
            LimitExceeded::Sent => "sent",
            LimitExceeded::Received => "received",
        }
    }
}

impl TrafficMeter {
    pub(crate) fn new(limits: &EgressLimits) -> TrafficMeter {
        let minute = Mutex::new((Instant::now(), 0));
        TrafficMeter {
            limits: limits.clone(),
            minute,
            begun: 0.into(),
            sent: 0.into(),
            received: 0.into(),
        }
    }

    /// Counts one more request or connection, if the limits allow it.
    pub(crate) fn begin(&self) -> Result<(), LimitExceeded> {
        self.begin_at(Instant::now())
    }

    fn begin_at(&self, now: Instant) -> Result<(), LimitExceeded> {
        self.check(Direction::Out)?;
        self.check(Direction::In)?;
        if let Some(most) = self.limits.per_minute {
            let mut minute = self.minute.lock().unwrap_or_else(PoisonError::into_inner);
            if now.saturating_duration_since(minute.0) >= MINUTE {
                *minute = (now, 0);
            }
            if minute.1 >= most {
                return Err(LimitExceeded::PerMinute);
            }
            minute.1 += 1;
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts bytes that passed; an error once the limit is exceeded.
    pub(crate) fn count(&self, direction: Direction, bytes: usize) -> Result<(), LimitExceeded> {
        let counter = match direction {
            Direction::Out => &self.sent,
            Direction::In => &self.received,
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        self.check(direction)
    }

    fn check(&self, direction: Direction) -> Result<(), LimitExceeded> {
        let (counter, most, exceeded) = match direction {
            Direction::Out => (&self.sent, self.limits.sent, LimitExceeded::Sent),
            Direction::In => (
                &self.received,
                self.limits.received,
                LimitExceeded::Received,
            ),
        };
        match most {
            Some(most) if counter.load(Ordering::Relaxed) > most.0 => Err(exceeded),
            _ => Ok(()),
        }
    }

    /// Connections and requests, bytes sent, bytes received.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.begun), load(&self.sent), load(&self.received))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::Size;

    #[test]
    fn a_minute_has_so_many_beginnings_and_the_next_has_them_again() {
        let meter = TrafficMeter::new(&EgressLimits {
            per_minute: Some(2),
            ..EgressLimits::default()
        });
        let now = Instant::now();
        assert_eq!((meter.begin_at(now), meter.begin_at(now)), (Ok(()), Ok(())));
        assert_eq!(meter.begin_at(now), Err(LimitExceeded::PerMinute));
        assert_eq!(meter.begin_at(now + MINUTE), Ok(()));
        assert_eq!(meter.totals().0, 3);
    }

    #[test]
    fn bytes_beyond_the_limit_are_told_and_end_every_beginning() {
        let meter = TrafficMeter::new(&EgressLimits {
            sent: Some(Size(10)),
            ..EgressLimits::default()
        });
        assert_eq!(
            (
                meter.count(Direction::Out, 10),
                meter.count(Direction::In, 1 << 40)
            ),
            (Ok(()), Ok(()))
        );
        assert_eq!(meter.begin(), Ok(()));
        assert_eq!(
            (meter.count(Direction::Out, 1), meter.begin()),
            (Err(LimitExceeded::Sent), Err(LimitExceeded::Sent))
        );
    }
}
