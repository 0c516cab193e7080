//! Limits the file locks of a sandbox: kernel memory that the memory cgroup does not count.
//!
//! Taking a lock costs CPU time, so locks are counted only after the sandbox has used some, and
//! never while it waits.

use sandbox::{FileLocks, LockCount, Sandbox};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The interval between two checks. In that time one CPU takes some 30,000 locks, 6 MB.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The interval for a session in which no program runs.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The CPU time after which locks are counted again: enough for some 60,000 where there were few.
const CPU_BETWEEN_CHECKS: Duration = Duration::from_millis(100);
/// The same where there were more than a few, and once a second: enough for some 3,000.
const MIN_CPU_BETWEEN_CHECKS: Duration = Duration::from_millis(5);
const FEW_LOCKS: u64 = 1000;
const SECOND: Duration = Duration::from_secs(1);
/// The pause after a count, as a multiple of its duration: counting takes a tenth of a CPU at most.
const PAUSE_FACTOR: u32 = 9;
/// The incomplete counts in a row that are tolerated. A process that ends causes one.
const MAX_INCOMPLETE: u32 = 3;

/// Counts the locks of one sandbox.
#[derive(Debug)]
pub(crate) struct LockWatch {
    locks: Option<Arc<FileLocks>>,
    next: Instant,
    /// The CPU time of the sandbox when its locks were last counted.
    counted_at: Duration,
    counted: Instant,
    has_locks: bool,
    incomplete: u32,
    /// The number of processes without any program.
    initial_processes: usize,
    has_programs: bool,
}

impl LockWatch {
    /// The watch of a sandbox that ends with its program.
    pub(crate) fn of_run(sandbox: &dyn Sandbox) -> LockWatch {
        LockWatch {
            locks: sandbox.file_locks().map(Arc::new),
            next: Instant::now() + CHECK_INTERVAL,
            counted_at: Duration::ZERO,
            counted: Instant::now(),
            has_locks: false,
            incomplete: 0,
            initial_processes: 0,
            has_programs: false,
        }
    }

    /// The watch of a session's sandbox, in which no program runs yet.
    pub(crate) fn of_session(sandbox: &dyn Sandbox) -> LockWatch {
        let watch = LockWatch::of_run(sandbox);
        LockWatch {
            initial_processes: watch.process_count(),
            ..watch
        }
    }

    fn process_count(&self) -> usize {
        let locks = self.locks.as_ref();
        locks.map_or(0, |locks| locks.process_count())
    }

    /// The time of the next check; `is_at_work` says whether a program is known to run.
    pub(crate) fn due(&self, is_at_work: bool) -> Instant {
        match &self.locks {
            None => Instant::now() + Duration::from_secs(24 * 3600),
            Some(_) if is_at_work || self.has_programs => self.next,
            Some(_) => self.next + IDLE_CHECK_INTERVAL,
        }
    }

    /// Whether the sandbox holds more locks than allowed.
    pub(crate) async fn is_over(&mut self, sandbox: &dyn Sandbox) -> bool {
        let Some(locks) = self.locks.clone() else {
            return false;
        };
        self.next = Instant::now() + CHECK_INTERVAL;
        let used = sandbox.counters().cpu;
        let work = if self.has_locks || self.counted.elapsed() >= SECOND {
            MIN_CPU_BETWEEN_CHECKS
        } else {
            CPU_BETWEEN_CHECKS
        };
        if used.is_some_and(|used| used < self.counted_at + work) {
            self.has_programs = self.has_programs && self.process_count() > self.initial_processes;
            return false;
        }
        self.counted_at = used.unwrap_or_default();
        let counted = tokio::task::spawn_blocking(move || locks.count()).await;
        let count = counted.unwrap_or(LockCount {
            is_incomplete: true,
            ..LockCount::default()
        });
        self.counted = Instant::now();
        self.has_locks = count.locks > FEW_LOCKS;
        self.next = self.counted + CHECK_INTERVAL.max(count.took * PAUSE_FACTOR);
        self.has_programs = count.processes > self.initial_processes;
        self.incomplete = if count.is_incomplete {
            self.incomplete + 1
        } else {
            0
        };
        count.is_over() || self.incomplete >= MAX_INCOMPLETE
    }
}
