//! Default limits for keys without `admin`, derived from the machine's size, so that one of them
//! cannot use all of it.

use spec::{LimitSet, Size, Time};
use std::{fs, time::Duration};

/// The assumed memory of a machine whose /proc/meminfo cannot be read.
const DEFAULT_MEMORY: u64 = 2 << 30;
const MIN_PIDS: u64 = 512;
const MAX_PIDS: u64 = 8192;
const MAX_WALL_TIME: Duration = Duration::from_secs(24 * 3600);

/// The size of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MachineSize {
    memory_bytes: u64,
    /// The kernel's maximum of threads, for all users together.
    threads: u64,
}

impl MachineSize {
    /// Reads the size of this machine.
    pub(super) fn read() -> MachineSize {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let threads = fs::read_to_string("/proc/sys/kernel/threads-max").unwrap_or_default();
        MachineSize {
            memory_bytes: total_memory(&meminfo).unwrap_or(DEFAULT_MEMORY),
            threads: threads.trim().parse().unwrap_or(0),
        }
    }

    /// The maximum of one run or sandbox: half of the memory, the same for its disk in memory, a
    /// sixteenth of the threads, a day. CPUs are not limited beyond their number.
    pub(super) fn maximum(&self) -> LimitSet {
        let half = whole_mib(self.memory_bytes / 2);
        let pids = (self.threads / 16).clamp(MIN_PIDS, MAX_PIDS);
        LimitSet {
            memory: Some(half),
            disk: Some(half),
            pids: Some(pids as u32),
            wall_time: Some(Time(MAX_WALL_TIME)),
            ..LimitSet::default()
        }
    }

    /// The memory limits of one tenant's sandboxes together: three quarters of the memory, so that
    /// other tenants have some.
    pub(super) fn tenant_memory(&self) -> Size {
        whole_mib(self.memory_bytes / 4 * 3)
    }
}

/// Rounds down to a readable number.
fn whole_mib(bytes: u64) -> Size {
    Size(bytes >> 20 << 20)
}

/// Parses `MemTotal` of `/proc/meminfo`.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_files_and_a_key_has_half_of_it() {
        assert_eq!(total_memory("MemTotal:  8 kB\nMemFree: 1 kB\n"), Some(8192));
        assert_eq!(total_memory("nothing"), None);
        let machine = MachineSize {
            memory_bytes: 16 << 30,
            threads: 32_768,
        };
        let maximum = machine.maximum();
        let size = |text: &str| text.parse().ok();
        assert_eq!((maximum.memory, maximum.disk), (size("8G"), size("8G")));
        assert_eq!((maximum.cpus, maximum.pids), (None, Some(2048)));
        assert_eq!(maximum.wall_time, "24h".parse().ok());
        assert_eq!(Some(machine.tenant_memory()), size("12G"));
        let here = MachineSize::read();
        assert!(here.memory_bytes > 64 << 20, "{here:?}");
    }
}
