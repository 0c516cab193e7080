//! Limits of a run.

use crate::quantity::{Cpus, Size, Time};
use std::fmt;

/// The limits of one run. `None` where a profile sets none.
#[derive(Clone, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the whole process tree, kernel memory and tmpfs included.
    pub memory: Size,
    /// CPU time of the whole process tree.
    pub cpu_time: Option<Time>,
    /// Share of CPUs.
    pub cpus: Option<Cpus>,
    /// Time on the clock.
    pub wall_time: Time,
    /// Processes and threads.
    pub pids: u32,
    /// Largest single file.
    pub file_size: Size,
    /// Open files per process.
    pub open_files: u32,
    /// `/tmp`, `/dev/shm`, the home folder and a fresh workspace, together; see
    /// [`Limits::scratch`].
    pub disk: Size,
    /// Bytes kept of each output stream.
    pub output: Size,
    /// Stack of a process; the limit of the caller without a value. This limit and those below are
    /// only ever lowered: a lower limit of the host holds.
    pub stack: Option<Size>,
    /// Memory that a process may lock; [`Limits::DEFAULT_LOCKED_MEMORY`] without a value.
    pub locked_memory: Option<Size>,
    /// Bytes in POSIX message queues; [`Limits::DEFAULT_MESSAGE_QUEUES`] without a value.
    pub message_queues: Option<Size>,
    /// The nice value, from 0 to 19.
    pub nice: Option<u32>,
}

/// Fields without a value are left out, because `policy_hash` is a digest of this output: it must
/// not change when a limit is added.
impl fmt::Debug for Limits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("Limits");
        out.field("memory", &self.memory)
            .field("cpu_time", &self.cpu_time)
            .field("cpus", &self.cpus);
        out.field("wall_time", &self.wall_time)
            .field("pids", &self.pids)
            .field("file_size", &self.file_size);
        out.field("open_files", &self.open_files)
            .field("disk", &self.disk)
            .field("output", &self.output);
        let sizes = [
            ("stack", self.stack),
            ("locked_memory", self.locked_memory),
            ("message_queues", self.message_queues),
        ];
        for (name, size) in sizes {
            if let Some(size) = size {
                out.field(name, &size);
            }
        }
        if let Some(nice) = self.nice {
            out.field("nice", &nice);
        }
        out.finish()
    }
}

/// A set of limits, each of which may be absent: the limits of a request, or the maximum of an
/// operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSet {
    /// Memory of the whole process tree.
    pub memory: Option<Size>,
    /// CPU time of the whole process tree.
    pub cpu_time: Option<Time>,
    /// Share of CPUs.
    pub cpus: Option<Cpus>,
    /// Time on the clock.
    pub wall_time: Option<Time>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Largest single file.
    pub file_size: Option<Size>,
    /// Open files per process.
    pub open_files: Option<u32>,
    /// Writable file systems in memory, together.
    pub disk: Option<Size>,
    /// Bytes kept of each output stream.
    pub output: Option<Size>,
    /// Stack of a process.
    pub stack: Option<Size>,
    /// Memory that a process may lock.
    pub locked_memory: Option<Size>,
    /// Bytes in POSIX message queues.
    pub message_queues: Option<Size>,
    /// The nice value. As a maximum it is the lowest value, because a lower one takes more CPU
    /// time.
    pub nice: Option<u32>,
}

impl Limits {
    /// Locked memory without a value. The kernel also counts it for the user who starts the
    /// sandbox, so that a higher limit would let one sandbox take all of it.
    pub const DEFAULT_LOCKED_MEMORY: Size = Size(64 << 10);
    /// Message queues without a value, for the same reason.
    pub const DEFAULT_MESSAGE_QUEUES: Size = Size(819_200);
    /// The least memory with which a program starts. It also catches numbers without a unit.
    pub const MIN_MEMORY: Size = Size(1 << 20);
    /// The least stack with which a program starts.
    pub const MIN_STACK: Size = Size(128 << 10);
    /// The time on the clock of a run without that limit.
    pub const NO_WALL_TIME: Time = Time::MAX;
    /// The highest nice value of the kernel.
    pub const MAX_NICE: u32 = 19;

    /// The size of file systems in memory: at most the memory limit, since their files are memory.
    /// Files of the program count for `memory`; files from outside do not, and are limited by this
    /// size.
    pub fn scratch(&self) -> Size {
        self.disk.min(self.memory)
    }

    /// These limits, overridden by those that `set` has.
    pub fn with(self, set: &LimitSet) -> Limits {
        Limits {
            memory: set.memory.unwrap_or(self.memory),
            cpu_time: set.cpu_time.or(self.cpu_time),
            cpus: set.cpus.or(self.cpus),
            wall_time: set.wall_time.unwrap_or(self.wall_time),
            pids: set.pids.unwrap_or(self.pids),
            file_size: set.file_size.unwrap_or(self.file_size),
            open_files: set.open_files.unwrap_or(self.open_files),
            disk: set.disk.unwrap_or(self.disk),
            output: set.output.unwrap_or(self.output),
            stack: set.stack.or(self.stack),
            locked_memory: set.locked_memory.or(self.locked_memory),
            message_queues: set.message_queues.or(self.message_queues),
            nice: set.nice.or(self.nice),
        }
    }

    /// The lower of each; a maximum also applies where there was no limit.
    pub fn at_most(self, most: &LimitSet) -> Limits {
        fn least<T: Ord + Copy>(value: T, most: Option<T>) -> T {
            most.map_or(value, |most| most.min(value))
        }
        fn capped<T: Ord + Copy>(value: Option<T>, most: Option<T>) -> Option<T> {
            value.map(|value| least(value, most)).or(most)
        }
        /// A maximum never raises a default limit.
        fn lowered(value: Option<Size>, most: Option<Size>, default: Size) -> Option<Size> {
            value
                .map(|value| least(value, most))
                .or(most.filter(|most| *most < default))
        }
        Limits {
            memory: least(self.memory, most.memory),
            cpu_time: capped(self.cpu_time, most.cpu_time),
            cpus: capped(self.cpus, most.cpus),
            wall_time: least(self.wall_time, most.wall_time),
            pids: least(self.pids, most.pids),
            file_size: least(self.file_size, most.file_size),
            open_files: least(self.open_files, most.open_files),
            disk: least(self.disk, most.disk),
            output: least(self.output, most.output),
            stack: capped(self.stack, most.stack),
            locked_memory: lowered(
                self.locked_memory,
                most.locked_memory,
                Limits::DEFAULT_LOCKED_MEMORY,
            ),
            message_queues: lowered(
                self.message_queues,
                most.message_queues,
                Limits::DEFAULT_MESSAGE_QUEUES,
            ),
            nice: self.nice.max(most.nice),
        }
    }
}

impl LimitSet {
    /// The lower of each limit.
    pub fn and(&self, other: &LimitSet) -> LimitSet {
        fn least<T: Ord + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        LimitSet {
            memory: least(self.memory, other.memory),
            cpu_time: least(self.cpu_time, other.cpu_time),
            cpus: least(self.cpus, other.cpus),
            wall_time: least(self.wall_time, other.wall_time),
            pids: least(self.pids, other.pids),
            file_size: least(self.file_size, other.file_size),
            open_files: least(self.open_files, other.open_files),
            disk: least(self.disk, other.disk),
            output: least(self.output, other.output),
            stack: least(self.stack, other.stack),
            locked_memory: least(self.locked_memory, other.locked_memory),
            message_queues: least(self.message_queues, other.message_queues),
            nice: self.nice.max(other.nice),
        }
    }

    /// The limits of this set, and those of the other where this one has none.
    pub fn or(&self, other: &LimitSet) -> LimitSet {
        LimitSet {
            memory: self.memory.or(other.memory),
            cpu_time: self.cpu_time.or(other.cpu_time),
            cpus: self.cpus.or(other.cpus),
            wall_time: self.wall_time.or(other.wall_time),
            pids: self.pids.or(other.pids),
            file_size: self.file_size.or(other.file_size),
            open_files: self.open_files.or(other.open_files),
            disk: self.disk.or(other.disk),
            output: self.output.or(other.output),
            stack: self.stack.or(other.stack),
            locked_memory: self.locked_memory.or(other.locked_memory),
            message_queues: self.message_queues.or(other.message_queues),
            nice: self.nice.or(other.nice),
        }
    }

    /// The first limit in `requested` that exceeds this maximum: its name, its value, the maximum.
    pub fn exceeded_by(&self, requested: &LimitSet) -> Option<(&'static str, String, String)> {
        fn over<T: Ord + fmt::Display>(
            name: &'static str,
            requested: Option<T>,
            most: Option<T>,
        ) -> Option<(&'static str, String, String)> {
            let requested = requested?;
            let most = most?;
            (requested > most).then(|| (name, requested.to_string(), most.to_string()))
        }
        over("memory", requested.memory, self.memory)
            .or_else(|| over("cpu_time", requested.cpu_time, self.cpu_time))
            .or_else(|| over("cpus", requested.cpus, self.cpus))
            .or_else(|| over("wall_time", requested.wall_time, self.wall_time))
            .or_else(|| over("pids", requested.pids, self.pids))
            .or_else(|| over("file_size", requested.file_size, self.file_size))
            .or_else(|| over("open_files", requested.open_files, self.open_files))
            .or_else(|| over("disk", requested.disk, self.disk))
            .or_else(|| over("output", requested.output, self.output))
            .or_else(|| over("stack", requested.stack, self.stack))
            .or_else(|| over("locked_memory", requested.locked_memory, self.locked_memory))
            .or_else(|| {
                over(
                    "message_queues",
                    requested.message_queues,
                    self.message_queues,
                )
            })
            // A lower nice value takes more CPU time.
            .or_else(|| {
                over("nice", self.nice, requested.nice)
                    .map(|(name, most, requested)| (name, requested, most))
            })
    }
}

/// The name of a limit that was reached, as in `limits_hit`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// CPU time.
    CpuTime,
    /// Time on the clock.
    WallTime,
    /// Size of a file.
    FileSize,
    /// Open files.
    OpenFiles,
    /// Space for writing.
    Disk,
    /// Output.
    Output,
    /// The budget for models.
    Budget,
    /// Egress traffic.
    Egress,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    #[test]
    fn a_maximum_also_limits_what_had_no_limit() {
        let agent = Policy::default().profile("agent").unwrap().limits.clone();
        assert_eq!(agent.cpu_time, None);
        let most = LimitSet {
            cpu_time: "5s".parse().ok(),
            memory: "1T".parse().ok(),
            ..LimitSet::default()
        };
        let limited = agent.clone().at_most(&most);
        assert_eq!(
            limited,
            Limits {
                cpu_time: "5s".parse().ok(),
                ..agent
            }
        );
    }

    #[test]
    fn a_disk_in_memory_holds_no_more_than_the_memory() {
        let limits = |memory: &str, disk: &str| {
            let said = LimitSet {
                memory: memory.parse().ok(),
                disk: disk.parse().ok(),
                ..LimitSet::default()
            };
            let usual = Policy::default().profile("standard").unwrap().clone();
            usual.limits.with(&said).scratch()
        };
        let sizes = [limits("32M", "64G"), limits("64M", "16M")];
        assert_eq!(sizes, [Size(32 << 20), Size(16 << 20)]);
    }

    #[test]
    fn what_is_not_set_is_not_named() {
        let limits = Policy::default()
            .profile("restrictive")
            .unwrap()
            .limits
            .clone();
        let before = format!("{limits:?}");
        assert!(
            before.ends_with("output: Size(2097152) }") && before.contains("pids: 32"),
            "{before}"
        );
        let more = Limits {
            stack: Some(Size(8)),
            nice: Some(15),
            ..limits
        };
        assert!(format!("{more:?}").ends_with("output: Size(2097152), stack: Size(8), nice: 15 }"));
    }

    #[test]
    fn a_maximum_raises_nothing_that_is_low_without_a_word() {
        let limits = Policy::default()
            .profile("restrictive")
            .unwrap()
            .limits
            .clone();
        let most = |locked: &str, nice| LimitSet {
            locked_memory: locked.parse().ok(),
            stack: "8M".parse().ok(),
            nice,
            ..LimitSet::default()
        };
        let high = limits.clone().at_most(&most("1M", Some(5)));
        assert_eq!(
            (high.locked_memory, high.stack, high.nice),
            (None, "8M".parse().ok(), Some(5))
        );
        assert_eq!(
            limits.clone().at_most(&most("1K", None)).locked_memory,
            "1K".parse().ok()
        );
        let nicer = Limits {
            nice: Some(10),
            ..limits
        };
        assert_eq!(nicer.at_most(&most("1M", Some(5))).nice, Some(10));
        let asked = LimitSet {
            nice: Some(3),
            ..LimitSet::default()
        };
        let over = most("1M", Some(5)).exceeded_by(&asked);
        assert_eq!(over, Some(("nice", "3".into(), "5".into())));
    }

    #[test]
    fn of_two_maxima_the_lower_counts_or_the_first_that_says_something() {
        let most = |memory: &str, pids, nice| LimitSet {
            memory: memory.parse().ok(),
            pids,
            nice,
            ..LimitSet::default()
        };
        let (one, other) = (most("1G", None, Some(5)), most("2G", Some(7), Some(9)));
        assert_eq!(one.and(&other), most("1G", Some(7), Some(9)));
        assert_eq!(other.and(&one), most("1G", Some(7), Some(9)));
        assert_eq!(one.or(&other), most("1G", Some(7), Some(5)));
    }

    #[test]
    fn the_first_value_over_the_maximum_is_named() {
        let most = LimitSet {
            pids: Some(10),
            memory: "1G".parse().ok(),
            ..LimitSet::default()
        };
        let asked = LimitSet {
            pids: Some(11),
            memory: "1G".parse().ok(),
            ..LimitSet::default()
        };
        assert_eq!(
            most.exceeded_by(&asked),
            Some(("pids", "11".into(), "10".into()))
        );
        assert_eq!(most.exceeded_by(&LimitSet::default()), None);
    }
}
