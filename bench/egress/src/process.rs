//! Doors as processes: started where they shall run, ended with us, and read in /proc: what they cost and hold.

use crate::Trouble;
use rustix::{
    process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit},
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    fs::{self, File},
    io,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Ticks of `utime` and `stime` in a second; Linux tells user space 100 everywhere.
const TICKS: f64 = 100.0;

/// Where doors run, and where server and load do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processors {
    /// Everybody wherever there is room, as in life.
    Shared,
    /// Doors alone on the first; what they take is not what others leave them.
    Apart,
}

/// One process: each peer is told not to make others.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts it; it ends with us, however we end. What it says is in `log` of its folder.
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        folder: &Path,
        processors: Processors,
    ) -> Result<Process, Trouble> {
        let path = folder.join("log");
        let log = || File::create(&path).map_err(|source| Trouble::File { path: path.clone(), source });
        let mut command = Command::new("setpriv");
        let list = match processors {
            Processors::Shared => "0-1",
            Processors::Apart => "0",
        };
        command.args(["--pdeathsig", "TERM", "taskset", "--cpu-list", list]).arg(program).args(arguments);
        command.stdin(Stdio::null()).stdout(log()?).stderr(log()?);
        let failed = |source| Trouble::Start { program: program.display().to_string(), source };
        command.spawn().map(Process).map_err(failed)
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Processor time so far, in seconds.
    pub(crate) fn processor_time(&self) -> io::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name may have spaces and parentheses; numbers follow behind the last of these: utime and stime.
        let fields = text.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().skip(11).take(2));
        let ticks: Option<u64> =
            fields.and_then(|fields| fields.map(|field| field.parse::<u64>().ok()).sum());
        ticks.map(|ticks| ticks as f64 / TICKS).ok_or_else(|| io::Error::other("stat has no times"))
    }

    /// Its share of memory, in KiB.
    pub(crate) fn memory(&self) -> io::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.0.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        number.ok_or_else(|| io::Error::other("smaps_rollup has no Pss"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            _ = kill_process(pid, Signal::TERM);
        }
        _ = self.0.wait();
    }
}

/// Keeps us, and the threads that we start from now on, off the doors' processor.
pub(crate) fn move_aside() -> io::Result<()> {
    let mut second = CpuSet::new();
    second.set(1);
    Ok(sched_setaffinity(None, &second)?)
}

/// A thousand tunnels are four thousand descriptors, half of them ours.
pub(crate) fn allow_files() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum.map(|most| most.min(16_384)), maximum })?)
}
