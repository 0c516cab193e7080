//! Gateways as processes: started on the first processor, ended with us, and read in /proc: what they cost and hold.

use crate::Trouble;
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    collections::BTreeMap,
    fs, io,
    process::{Child, Command},
};

/// Ticks of `utime` and `stime` in a second; Linux tells user space 100 everywhere.
const TICKS: f64 = 100.0;

/// A process, with all that it starts.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
}

impl Gateway {
    /// Starts it on the first processor; it ends with us, however we end.
    pub(crate) fn start(
        program: &str,
        arguments: &[String],
        also: impl FnOnce(&mut Command),
    ) -> Result<Gateway, Trouble> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "taskset", "--cpu-list", "0", program]).args(arguments);
        also(&mut command);
        let child =
            command.spawn().map_err(|source| Trouble::Start { program: program.to_owned(), source })?;
        Ok(Gateway { child })
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Processor time of the whole tree so far, in microseconds. Those that ended and were waited for are in it.
    pub(crate) fn processor_time(&self) -> io::Result<f64> {
        let ticks: u64 = tree(self.child.id())?.iter().map(|stat| stat.ticks).sum();
        Ok(ticks as f64 * 1e6 / TICKS)
    }

    /// Its share of memory, in KiB: PSS of the whole tree.
    pub(crate) fn memory(&self) -> io::Result<f64> {
        let mut sum = 0.0;
        for stat in tree(self.child.id())? {
            let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", stat.pid))?;
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            let number = line
                .and_then(|line| line.split_whitespace().next())
                .and_then(|word| word.parse::<f64>().ok());
            sum += number.ok_or_else(|| io::Error::other("smaps_rollup has no Pss"))?;
        }
        Ok(sum)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Not the last signal at once: its children would stay.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            _ = kill_process(pid, Signal::TERM);
        }
        _ = self.child.wait();
    }
}

struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
}

/// A process and its descendants.
fn tree(root: u32) -> io::Result<Vec<Stat>> {
    let names = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let all = names.filter_map(|name| name.parse::<u32>().ok());
    // One that ends meanwhile is nobody's.
    let all = all.filter_map(|pid| stat(pid, &format!("/proc/{pid}/stat")));
    let mut all: BTreeMap<_, _> = all.map(|stat| (stat.pid, stat)).collect();
    let mut found: Vec<Stat> = Vec::from_iter(all.remove(&root));
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|stat| stat.pid) {
        let children: Vec<_> =
            all.values().filter(|stat| stat.parent == parent).map(|stat| stat.pid).collect();
        found.extend(children.iter().filter_map(|pid| all.remove(pid)));
        next += 1;
    }
    Ok(found)
}

fn stat(pid: u32, path: &str) -> Option<Stat> {
    let text = fs::read_to_string(path).ok()?;
    // The name may have spaces and parentheses; numbers follow behind the last of these.
    let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // utime, stime, cutime, cstime.
    let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
    Some(Stat { pid, parent: u32::try_from(number(1)?).ok()?, ticks })
}

/// Processor time of our provider's thread so far, in microseconds.
pub(crate) fn provider_time() -> io::Result<f64> {
    for entry in fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        if fs::read_to_string(path.join("comm"))?.trim() == provider::THREAD {
            let stat = stat(0, &path.join("stat").to_string_lossy());
            return stat
                .map(|stat| stat.ticks as f64 * 1e6 / TICKS)
                .ok_or_else(|| io::Error::other("no stat"));
        }
    }
    Err(io::Error::other("the provider's thread is not there"))
}

/// Keeps us, and the threads that we start from now on, off the gateways' processor.
pub(crate) fn move_aside() -> io::Result<()> {
    let mut second = CpuSet::new();
    second.set(1);
    Ok(sched_setaffinity(None, &second)?)
}
