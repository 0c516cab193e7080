//! The CPU budget for examining the calls of one sandbox, shared by the watchers of all its
//! programs.
//!
//! Where the sandbox has a CPU share, its watchers get no larger share beside it: a watcher with a
//! debt waits, and so do the calls that it would answer. In any case its time counts as CPU time of
//! the sandbox, and past `--cpu-time` no call is examined any more.

use spec::Limits;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// CPU time before the sandbox's share applies: more than a working session needs.
const FREE_CPU_TIME: Duration = Duration::from_secs(1);

/// The CPU time of all watchers of a sandbox.
#[derive(Debug)]
pub(crate) struct WatchBudget {
    /// The CPU share of the sandbox, if it is limited.
    cpus: Option<f64>,
    /// The CPU time of the sandbox, if it is limited.
    cpu_time: Option<Duration>,
    used: Mutex<BudgetUsage>,
}

#[derive(Debug)]
struct BudgetUsage {
    total: Duration,
    /// Used time that is not yet paid back by elapsed time.
    owed: Duration,
    at: Instant,
}

impl WatchBudget {
    pub(crate) fn new(limits: &Limits) -> WatchBudget {
        WatchBudget {
            cpus: limits.cpus.map(|cpus| f64::from(cpus.0) / 1000.0),
            cpu_time: limits.cpu_time.map(|time| time.0),
            used: Mutex::new(BudgetUsage {
                total: Duration::ZERO,
                owed: Duration::ZERO,
                at: Instant::now(),
            }),
        }
    }

    /// Books CPU time of a watcher; returns how long it has to wait.
    pub(super) fn book(&self, spent: Duration) -> Duration {
        self.book_at(spent, Instant::now())
    }

    fn book_at(&self, spent: Duration, now: Instant) -> Duration {
        let mut used = self.used();
        used.total += spent;
        let Some(cpus) = self.cpus else {
            return Duration::ZERO;
        };
        let paid = now.saturating_duration_since(used.at).mul_f64(cpus);
        used.owed = used.owed.saturating_sub(paid) + spent;
        used.at = now.max(used.at);
        let over = used.owed.saturating_sub(FREE_CPU_TIME).as_secs_f64();
        Duration::try_from_secs_f64(over / cpus).unwrap_or_default()
    }

    /// The CPU time of all watchers.
    pub(crate) fn total(&self) -> Duration {
        self.used().total
    }

    /// Whether the watchers alone have used up the CPU time. Where a cgroup counts, the sandbox has
    /// ended before.
    pub(super) fn is_spent(&self) -> bool {
        self.cpu_time.is_some_and(|limit| self.total() >= limit)
    }

    fn used(&self) -> MutexGuard<'_, BudgetUsage> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(cpus: Option<f64>, cpu_time: Option<Duration>) -> (WatchBudget, Instant) {
        let now = Instant::now();
        let used = BudgetUsage {
            total: Duration::ZERO,
            owed: Duration::ZERO,
            at: now,
        };
        let used = Mutex::new(used);
        let budget = WatchBudget {
            cpus,
            cpu_time,
            used,
        };
        (budget, now)
    }

    #[test]
    fn looking_takes_no_larger_share_than_the_sandbox_has() {
        let millis = Duration::from_millis;
        let (half, now) = budget(Some(0.5), None);
        assert_eq!(half.book_at(millis(1000), now), millis(0));
        assert_eq!(half.book_at(millis(500), now), millis(1000));
        assert_eq!(half.book_at(millis(0), now + millis(1000)), millis(0));
        // Unused time is not saved up.
        let later = now + millis(3_600_000);
        assert_eq!(half.book_at(millis(1000), later), millis(0));
        assert_eq!(half.book_at(millis(500), later), millis(1000));
        assert_eq!(half.total(), millis(3000));
    }

    #[test]
    fn a_further_watcher_brings_no_time_of_its_own() {
        let millis = Duration::from_millis;
        let (shared, now) = budget(Some(0.5), None);
        let waits: Vec<_> = (0..4).map(|_| shared.book_at(millis(500), now)).collect();
        assert_eq!(waits, [0, 0, 1000, 2000].map(millis));
    }

    #[test]
    fn without_a_share_it_is_spent_with_the_cpu_time() {
        let second = Duration::from_secs(1);
        let (limited, now) = budget(None, Some(second));
        assert_eq!(limited.book_at(second / 2, now), Duration::ZERO);
        assert!(!limited.is_spent());
        assert_eq!(limited.book_at(second / 2, now), Duration::ZERO);
        assert!(limited.is_spent());
        let (unlimited, now) = budget(None, None);
        assert_eq!(unlimited.book_at(100 * second, now), Duration::ZERO);
        assert!(!unlimited.is_spent());
    }
}
