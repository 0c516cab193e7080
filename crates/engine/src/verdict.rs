//! How a program ended, and what is said of it.

use crate::making::cancellation;
use sandbox::{Ended, Progress, Sandbox};
use spec::{ErrorCode, ErrorInfo, LimitName, Limits, RunResult, Status};
use std::time::Duration;

/// What a program has to end by itself after SIGTERM when its time is up.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// The same when somebody waits for the cancelled run to be gone.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_millis(500);
/// How often CPU time is looked at, at most.
const CPU_LOOK: Duration = Duration::from_millis(50);

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// Why the program was stopped by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    WallTime,
    CpuTime,
    /// The disk of the state folder, where its workspace lies, is almost full.
    Disk,
    Cancelled,
}

/// How the program ended.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Wait status of the program, if anybody saw it.
    pub(crate) status: Option<i32>,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) cpu_us: u64,
    pub(crate) peak_bytes: u64,
    /// Nothing else is left in the box.
    pub(crate) alone: bool,
}

pub(crate) fn ending(progress: Progress, stopped: Option<Stopped>) -> Ending {
    match progress {
        Progress::Ended(Ended {
            status,
            cpu_us,
            peak_bytes,
            alone,
        }) => Ending {
            status: Some(status),
            stopped,
            cpu_us,
            peak_bytes,
            alone,
        },
        // The box died under the program: its status is not known.
        Progress::Gone(Ended {
            cpu_us,
            peak_bytes,
            alone,
            ..
        }) => Ending {
            status: None,
            stopped,
            cpu_us,
            peak_bytes,
            alone,
        },
    }
}

/// How often it is looked what somebody's box has used so far: whoever serves several counts it by the day.
pub(crate) const COUNTED_EVERY: Duration = Duration::from_secs(3);

pub(crate) fn first_look(limits: &Limits) -> Duration {
    match limits.cpu_time {
        Some(_) => CPU_LOOK,
        None => Duration::from_secs(24 * 3600),
    }
}

/// How long CPU time cannot run out, however many CPUs are busy; nothing if it has. `beside` was used outside of the box.
pub(crate) fn cpu_left(
    sandbox: &dyn Sandbox,
    beside: Duration,
    limits: &Limits,
) -> Option<Duration> {
    let (Some(limit), Some(used)) = (limits.cpu_time, sandbox.counters().cpu) else {
        // Each process has its own limit then.
        return Some(Duration::from_secs(24 * 3600));
    };
    let left = limit
        .0
        .checked_sub(used + beside)
        .filter(|left| !left.is_zero())?;
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    Some((left / cpus).max(CPU_LOOK))
}

/// From how the program ended to what is said of it.
pub(crate) fn judge(ending: &Ending, oom: bool, limits: &Limits, result: &mut RunResult) {
    let status = ending.status.unwrap_or(SIGKILL);
    let signal = Some(status & 0x7f).filter(|signal| *signal != 0);
    result.exit_code = if signal.is_none() {
        Some(status >> 8 & 0xff)
    } else {
        None
    };
    result.signal = signal;
    match signal {
        Some(SIGXCPU) => _ = result.limits_hit.insert(LimitName::CpuTime),
        Some(SIGXFSZ) => _ = result.limits_hit.insert(LimitName::FileSize),
        _ => {}
    }
    let error = |code, message: String, hint: &str| {
        Some(ErrorInfo {
            code,
            message,
            hint: Some(hint.to_owned()),
        })
    };
    match ending.stopped {
        Some(Stopped::WallTime) => {
            result.limits_hit.insert(LimitName::WallTime);
            let message = format!("stopped after {} on the clock", limits.wall_time);
            result.error = error(
                ErrorCode::Timeout,
                message,
                "give it more time with --timeout",
            );
            (result.status, result.exit_status) = (Status::TimedOut, 124);
        }
        Some(Stopped::Cancelled) => {
            result.error = Some(cancellation());
            (result.status, result.exit_status) = (Status::Cancelled, 130);
        }
        Some(Stopped::CpuTime) => {
            result.limits_hit.insert(LimitName::CpuTime);
            (result.status, result.exit_status) = by_status(result);
        }
        Some(Stopped::Disk) => {
            result.limits_hit.insert(LimitName::Disk);
            let note = "it was ended because what it wrote took more of the disk than it may, or because that is almost full";
            result.notes.push(note.to_owned());
            (result.status, result.exit_status) = by_status(result);
        }
        None if oom && signal == Some(SIGKILL) => {
            let message = format!("killed at its memory limit of {}", limits.memory);
            result.error = error(ErrorCode::OomKilled, message, "give it more with --memory");
            (result.status, result.exit_status) = (Status::OomKilled, 137);
        }
        None if ending.status.is_none() => {
            (result.exit_code, result.signal) = (None, None);
            let message = "the sandbox died under the program".to_owned();
            result.error = error(
                ErrorCode::Lost,
                message,
                "start it again; `airlock doctor` tries one out",
            );
            (result.status, result.exit_status) = (Status::Lost, 125);
        }
        None => (result.status, result.exit_status) = by_status(result),
    }
}

fn by_status(result: &RunResult) -> (Status, u8) {
    match (result.exit_code, result.signal) {
        (Some(0), _) => (Status::Succeeded, 0),
        (Some(code), _) => (Status::Failed, code as u8),
        (None, signal) => (Status::Failed, 128 + signal.unwrap_or(SIGKILL) as u8),
    }
}
