//! What a run may use at most.

use crate::quantity::{Cpus, Size, Time};
use std::fmt;

/// The limits of one run. `None` where a profile sets none.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// `/tmp`, `/dev/shm`, the home folder and a fresh workspace, together.
    pub disk: Size,
    /// Bytes kept of each output stream.
    pub output: Size,
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
}

impl Limits {
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
        }
    }
}

impl Maximum {
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
    }
}

/// A limit that was reached, as listed in `limits_hit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
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
        let most = Maximum { cpu_time: "5s".parse().ok(), memory: "1T".parse().ok(), ..Maximum::default() };
        let limited = agent.clone().at_most(&most);
        assert_eq!(limited, Limits { cpu_time: "5s".parse().ok(), ..agent });
    }

    #[test]
    fn the_first_value_over_the_maximum_is_named() {
        let most = Maximum { pids: Some(10), memory: "1G".parse().ok(), ..Maximum::default() };
        let asked = Maximum { pids: Some(11), memory: "1G".parse().ok(), ..Maximum::default() };
        assert_eq!(most.exceeded_by(&asked), Some(("pids", "11".into(), "10".into())));
        assert_eq!(most.exceeded_by(&Maximum::default()), None);
    }
}
