//! What a run may use at most.

use crate::quantity::{Cpus, Size, Time};
use std::fmt;

/// The limits of one run. `None` where a profile sets none.
#[derive(Clone, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the whole tree, kernel memory and tmpfs included.
    pub memory: Size,
    /// CPU time of the whole tree.
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
    /// `/tmp`, `/dev/shm`, the home folder and a fresh workspace, together; see [`Limits::scratch`].
    pub disk: Size,
    /// Bytes kept of each output stream.
    pub output: Size,
    /// The stack of a process; what the caller has unless said. Like all that follow it is only ever lowered: where the host
    /// gives less, that counts.
    pub stack: Option<Size>,
    /// Memory that a process may keep from being swapped out; [`Limits::LOCKED_MEMORY`] unless said.
    pub locked_memory: Option<Size>,
    /// Bytes in message queues; [`Limits::MESSAGE_QUEUES`] unless said.
    pub message_queues: Option<Size>,
    /// How far it stands back when CPUs are short, from 0 to 19.
    pub nice: Option<u32>,
}

/// What is not set is not named: digests of what a run may do stay what they were before there were more limits.
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
            size.iter().for_each(|size| _ = out.field(name, size));
        }
        self.nice
            .iter()
            .for_each(|nice| _ = out.field("nice", nice));
        out.finish()
    }
}

/// Limits given by name, for one run or as the operator's maximum: only what is said counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of `Limits`")]
pub struct Maximum {
    pub memory: Option<Size>,
    pub cpu_time: Option<Time>,
    pub cpus: Option<Cpus>,
    pub wall_time: Option<Time>,
    pub pids: Option<u32>,
    pub file_size: Option<Size>,
    pub open_files: Option<u32>,
    pub disk: Option<Size>,
    pub output: Option<Size>,
    pub stack: Option<Size>,
    pub locked_memory: Option<Size>,
    pub message_queues: Option<Size>,
    /// At least this, as a maximum: those who stand back less take more.
    pub nice: Option<u32>,
}

impl Limits {
    /// Counted also for whoever made the box: with more, one box could leave its starter none.
    pub const LOCKED_MEMORY: Size = Size(64 << 10);
    /// The same is so of these.
    pub const MESSAGE_QUEUES: Size = Size(819_200);
    /// No program begins with less; a number without a unit is bytes, and seldom meant so.
    pub const SMALLEST_MEMORY: Size = Size(1 << 20);
    /// Programs do not begin with less.
    pub const SMALLEST_STACK: Size = Size(128 << 10);
    /// Time on the clock where there is no limit: longer than anybody looks at a terminal.
    pub const NO_WALL_TIME: Time = Time::LONGEST;
    /// The kernel knows no more.
    pub const NICEST: u32 = 19;

    /// What the disks in memory hold: no more than the memory, since files there are memory. What programs write there
    /// counts for `memory`; what is put there from outside does not, and is bounded by this.
    pub fn scratch(&self) -> Size {
        self.disk.min(self.memory)
    }

    /// These limits with what `said` says instead.
    pub fn with(self, said: &Maximum) -> Limits {
        Limits {
            memory: said.memory.unwrap_or(self.memory),
            cpu_time: said.cpu_time.or(self.cpu_time),
            cpus: said.cpus.or(self.cpus),
            wall_time: said.wall_time.unwrap_or(self.wall_time),
            pids: said.pids.unwrap_or(self.pids),
            file_size: said.file_size.unwrap_or(self.file_size),
            open_files: said.open_files.unwrap_or(self.open_files),
            disk: said.disk.unwrap_or(self.disk),
            output: said.output.unwrap_or(self.output),
            stack: said.stack.or(self.stack),
            locked_memory: said.locked_memory.or(self.locked_memory),
            message_queues: said.message_queues.or(self.message_queues),
            nice: said.nice.or(self.nice),
        }
    }

    /// The smaller of each; a maximum also limits what had no limit.
    pub fn at_most(self, most: &Maximum) -> Limits {
        fn least<T: Ord + Copy>(value: T, most: Option<T>) -> T {
            most.map_or(value, |most| most.min(value))
        }
        fn capped<T: Ord + Copy>(value: Option<T>, most: Option<T>) -> Option<T> {
            value.map(|value| least(value, most)).or(most)
        }
        /// What has a limit without a word is not given more by a maximum.
        fn lowered(value: Option<Size>, most: Option<Size>, usual: Size) -> Option<Size> {
            value
                .map(|value| least(value, most))
                .or(most.filter(|most| *most < usual))
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
                Limits::LOCKED_MEMORY,
            ),
            message_queues: lowered(
                self.message_queues,
                most.message_queues,
                Limits::MESSAGE_QUEUES,
            ),
            nice: self.nice.max(most.nice),
        }
    }
}

impl Maximum {
    /// What neither of both may exceed.
    pub fn and(&self, other: &Maximum) -> Maximum {
        fn least<T: Ord + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Maximum {
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

    /// What is said here, and where nothing is said what is said there.
    pub fn or(&self, other: &Maximum) -> Maximum {
        Maximum {
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

    /// The first value of `asked` that is over this maximum: its name, what was asked, what is allowed.
    pub fn exceeded_by(&self, asked: &Maximum) -> Option<(&'static str, String, String)> {
        fn over<T: Ord + fmt::Display>(
            name: &'static str,
            asked: Option<T>,
            most: Option<T>,
        ) -> Option<(&'static str, String, String)> {
            let (asked, most) = (asked?, most?);
            (asked > most).then(|| (name, asked.to_string(), most.to_string()))
        }
        over("memory", asked.memory, self.memory)
            .or_else(|| over("cpu_time", asked.cpu_time, self.cpu_time))
            .or_else(|| over("cpus", asked.cpus, self.cpus))
            .or_else(|| over("wall_time", asked.wall_time, self.wall_time))
            .or_else(|| over("pids", asked.pids, self.pids))
            .or_else(|| over("file_size", asked.file_size, self.file_size))
            .or_else(|| over("open_files", asked.open_files, self.open_files))
            .or_else(|| over("disk", asked.disk, self.disk))
            .or_else(|| over("output", asked.output, self.output))
            .or_else(|| over("stack", asked.stack, self.stack))
            .or_else(|| over("locked_memory", asked.locked_memory, self.locked_memory))
            .or_else(|| over("message_queues", asked.message_queues, self.message_queues))
            // The less, the more.
            .or_else(|| {
                over("nice", self.nice, asked.nice).map(|(name, most, asked)| (name, asked, most))
            })
    }
}

/// A limit that was reached, as listed in `limits_hit`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of `Limits`")]
pub enum LimitName {
    Memory,
    Pids,
    CpuTime,
    WallTime,
    FileSize,
    OpenFiles,
    Disk,
    Output,
    Budget,
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
        let most = Maximum {
            cpu_time: "5s".parse().ok(),
            memory: "1T".parse().ok(),
            ..Maximum::default()
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
            let said = Maximum {
                memory: memory.parse().ok(),
                disk: disk.parse().ok(),
                ..Maximum::default()
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
        let most = |locked: &str, nice| Maximum {
            locked_memory: locked.parse().ok(),
            stack: "8M".parse().ok(),
            nice,
            ..Maximum::default()
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
        let asked = Maximum {
            nice: Some(3),
            ..Maximum::default()
        };
        let over = most("1M", Some(5)).exceeded_by(&asked);
        assert_eq!(over, Some(("nice", "3".into(), "5".into())));
    }

    #[test]
    fn of_two_maxima_the_lower_counts_or_the_first_that_says_something() {
        let most = |memory: &str, pids, nice| Maximum {
            memory: memory.parse().ok(),
            pids,
            nice,
            ..Maximum::default()
        };
        let (one, other) = (most("1G", None, Some(5)), most("2G", Some(7), Some(9)));
        assert_eq!(one.and(&other), most("1G", Some(7), Some(9)));
        assert_eq!(other.and(&one), most("1G", Some(7), Some(9)));
        assert_eq!(one.or(&other), most("1G", Some(7), Some(5)));
    }

    #[test]
    fn the_first_value_over_the_maximum_is_named() {
        let most = Maximum {
            pids: Some(10),
            memory: "1G".parse().ok(),
            ..Maximum::default()
        };
        let asked = Maximum {
            pids: Some(11),
            memory: "1G".parse().ok(),
            ..Maximum::default()
        };
        assert_eq!(
            most.exceeded_by(&asked),
            Some(("pids", "11".into(), "10".into()))
        );
        assert_eq!(most.exceeded_by(&Maximum::default()), None);
    }
}
