//! Classifies how a program ended: wait status, signals, limits and cancellation become the status,
//! the exit status and the error of a result. Also the graces and the CPU time checks.

use crate::provision::{ExecutionEnd, cancellation};
use sandbox::{MAX_FILE_LOCKS, ProcessExit, Sandbox, SandboxEvent};
use spec::{ErrorCode, ErrorInfo, LimitName, Limits, RunResult, Status};
use std::time::Duration;

/// The grace between SIGTERM and SIGKILL when the wall time is over.
pub(crate) const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// The grace of a cancelled run, for which a caller waits.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_millis(500);
/// The shortest interval between two checks of the CPU time.
const CPU_CHECK_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// Why Airlock stopped the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    WallTime,
    CpuTime,
    /// The disk of the state folder, where its workspace lies, is almost full.
    Disk,
    /// It holds more file locks than allowed, or they cannot be counted.
    FileLocks,
    Cancelled,
}

/// How the program ended and what it used.
#[derive(Debug, Default)]
pub(crate) struct ProgramEnd {
    /// The wait status of the program, if it is known.
    pub(crate) status: Option<i32>,
    pub(crate) stopped: Option<StopReason>,
    pub(crate) cpu_us: u64,
    pub(crate) peak_bytes: u64,
    /// No other process is left in the sandbox.
    pub(crate) alone: bool,
}

impl ProgramEnd {
    /// Whether the program ended, or its sandbox died under it although nobody stopped it.
    pub(crate) fn execution(&self) -> ExecutionEnd {
        match (self.status, self.stopped) {
            (None, None) => ExecutionEnd::Lost,
            (Some(_), _) | (None, Some(_)) => ExecutionEnd::Ended,
        }
    }
}

pub(crate) fn program_end(progress: SandboxEvent, stopped: Option<StopReason>) -> ProgramEnd {
    match progress {
        SandboxEvent::Exited(ProcessExit {
            status,
            cpu_us,
            peak_bytes,
            alone,
        }) => ProgramEnd {
            status: Some(status),
            stopped,
            cpu_us,
            peak_bytes,
            alone,
        },
        // The sandbox died while the program ran: the wait status is not known.
        SandboxEvent::Gone(ProcessExit {
            cpu_us,
            peak_bytes,
            alone,
            ..
        }) => ProgramEnd {
            status: None,
            stopped,
            cpu_us,
            peak_bytes,
            alone,
        },
    }
}

/// The interval at which the CPU time of an owned sandbox is sampled. Servers account for it by the
/// day.
pub(crate) const ACCOUNTING_INTERVAL: Duration = Duration::from_secs(3);

pub(crate) fn first_cpu_check(limits: &Limits) -> Duration {
    match limits.cpu_time {
        Some(_) => CPU_CHECK_INTERVAL,
        None => Duration::from_secs(24 * 3600),
    }
}

/// The time for which the CPU limit cannot be reached, even if all CPUs are busy; none if it is
/// reached. `beside` is CPU time that Airlock spent outside of the sandbox.
pub(crate) fn cpu_left(
    sandbox: &dyn Sandbox,
    beside: Duration,
    limits: &Limits,
) -> Option<Duration> {
    let (Some(limit), Some(used)) = (limits.cpu_time, sandbox.counters().cpu) else {
        // Without a counter each process has an rlimit instead.
        return Some(Duration::from_secs(24 * 3600));
    };
    let left = limit
        .0
        .checked_sub(used + beside)
        .filter(|left| !left.is_zero())?;
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    Some((left / cpus).max(CPU_CHECK_INTERVAL))
}

/// Sets status, exit status, error and limits of a result by how the program ended.
pub(crate) fn classify(end: &ProgramEnd, oom: bool, limits: &Limits, result: &mut RunResult) {
    let status = end.status.unwrap_or(SIGKILL);
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
    match end.stopped {
        Some(StopReason::WallTime) => {
            result.limits_hit.insert(LimitName::WallTime);
            let message = format!("stopped after {} on the clock", limits.wall_time);
            result.error = error(
                ErrorCode::Timeout,
                message,
                "give it more time with --timeout",
            );
            (result.status, result.exit_status) = (Status::TimedOut, 124);
        }
        Some(StopReason::Cancelled) => {
            result.error = Some(cancellation());
            (result.status, result.exit_status) = (Status::Cancelled, 130);
        }
        Some(StopReason::CpuTime) => {
            result.limits_hit.insert(LimitName::CpuTime);
            (result.status, result.exit_status) = status_of_exit(result);
        }
        Some(StopReason::FileLocks) => {
            result.limits_hit.insert(LimitName::Memory);
            let message = format!(
                "ended with more than {MAX_FILE_LOCKS} file locks, or with more open files than can be looked through: \
                 kernel memory that the memory limit does not count"
            );
            result.error = error(
                ErrorCode::OomKilled,
                message,
                "let it lock fewer parts of files at once",
            );
            (result.status, result.exit_status) = (Status::OomKilled, 137);
        }
        Some(StopReason::Disk) => {
            result.limits_hit.insert(LimitName::Disk);
            let note = "it was ended because what it wrote took more of the disk than it may, or because that is almost full";
            result.notes.push(note.to_owned());
            (result.status, result.exit_status) = status_of_exit(result);
        }
        None if oom && signal == Some(SIGKILL) => {
            let message = format!("killed at its memory limit of {}", limits.memory);
            result.error = error(ErrorCode::OomKilled, message, "give it more with --memory");
            (result.status, result.exit_status) = (Status::OomKilled, 137);
        }
        None if end.status.is_none() => {
            (result.exit_code, result.signal) = (None, None);
            let message = "the sandbox died under the program".to_owned();
            result.error = error(
                ErrorCode::Lost,
                message,
                "start it again; `airlock doctor` tries one out",
            );
            (result.status, result.exit_status) = (Status::Lost, 125);
        }
        None => (result.status, result.exit_status) = status_of_exit(result),
    }
}

fn status_of_exit(result: &RunResult) -> (Status, u8) {
    match (result.exit_code, result.signal) {
        (Some(0), _) => (Status::Succeeded, 0),
        (Some(code), _) => (Status::Failed, code as u8),
        (None, signal) => (Status::Failed, 128 + signal.unwrap_or(SIGKILL) as u8),
    }
}
