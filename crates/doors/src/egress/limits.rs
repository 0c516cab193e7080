//! How much may pass: beginnings within a minute, bytes each way. One meter for each rule, one for the whole door.

use spec::EgressLimits;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const MINUTE: Duration = Duration::from_secs(60);

/// What passed, and how much may.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: EgressLimits,
    minute: Mutex<(Instant, u32)>,
    begun: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    In,
}

/// Which limit was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spent {
    PerMinute,
    Sent,
    Received,
}

impl Spent {
    /// Its key in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Spent::PerMinute => "per_minute",
            Spent::Sent => "sent",
            Spent::Received => "received",
        }
    }
}

impl Meter {
    pub(crate) fn new(limits: &EgressLimits) -> Meter {
        let minute = Mutex::new((Instant::now(), 0));
        Meter {
            limits: limits.clone(),
            minute,
            begun: 0.into(),
            sent: 0.into(),
            received: 0.into(),
        }
    }

    /// One more request or connection, if it may begin.
    pub(crate) fn begin(&self) -> Result<(), Spent> {
        self.begin_at(Instant::now())
    }

    fn begin_at(&self, now: Instant) -> Result<(), Spent> {
        self.check(Way::Out)?;
        self.check(Way::In)?;
        if let Some(most) = self.limits.per_minute {
            let mut minute = self.minute.lock().unwrap_or_else(PoisonError::into_inner);
            if now.saturating_duration_since(minute.0) >= MINUTE {
                *minute = (now, 0);
            }
            if minute.1 >= most {
                return Err(Spent::PerMinute);
            }
            minute.1 += 1;
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes that passed; an error from the one on that is too many.
    pub(crate) fn count(&self, way: Way, bytes: usize) -> Result<(), Spent> {
        let counter = match way {
            Way::Out => &self.sent,
            Way::In => &self.received,
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        self.check(way)
    }

    fn check(&self, way: Way) -> Result<(), Spent> {
        let (counter, most, spent) = match way {
            Way::Out => (&self.sent, self.limits.sent, Spent::Sent),
            Way::In => (&self.received, self.limits.received, Spent::Received),
        };
        match most {
            Some(most) if counter.load(Ordering::Relaxed) > most.0 => Err(spent),
            _ => Ok(()),
        }
    }

    /// Begun, sent, received.
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
        let meter = Meter::new(&EgressLimits {
            per_minute: Some(2),
            ..EgressLimits::default()
        });
        let now = Instant::now();
        assert_eq!((meter.begin_at(now), meter.begin_at(now)), (Ok(()), Ok(())));
        assert_eq!(meter.begin_at(now), Err(Spent::PerMinute));
        assert_eq!(meter.begin_at(now + MINUTE), Ok(()));
        assert_eq!(meter.totals().0, 3);
    }

    #[test]
    fn bytes_beyond_the_limit_are_told_and_end_every_beginning() {
        let meter = Meter::new(&EgressLimits {
            sent: Some(Size(10)),
            ..EgressLimits::default()
        });
        assert_eq!(
            (meter.count(Way::Out, 10), meter.count(Way::In, 1 << 40)),
            (Ok(()), Ok(()))
        );
        assert_eq!(meter.begin(), Ok(()));
        assert_eq!(
            (meter.count(Way::Out, 1), meter.begin()),
            (Err(Spent::Sent), Err(Spent::Sent))
        );
    }
}
