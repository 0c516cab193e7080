//! Servers as processes: started where they shall run, ended with us, and read in /proc: what they cost and hold.

use crate::peers::Trouble;
use rustix::{
    process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit},
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Ticks of `utime` and `stime` in a second; Linux tells user space 100 everywhere.
const TICKS: f64 = 100.0;

/// Where servers run, and where load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processors {
    /// Everybody wherever there is room, as in life.
    Shared,
    /// Servers alone on the first; what they take is not what others leave them.
    Apart,
}

/// A process, with all that it starts.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts it; it ends with us, however we end. What it says is in `log` of its folder.
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        environment: &[(&str, &str)],
        folder: &Path,
        processors: Processors,
    ) -> Result<Process, Trouble> {
        let path = folder.join("log");
        let log = || {
            File::create(&path).map_err(|source| Trouble::File {
                path: path.clone(),
                source,
            })
        };
        let list = match processors {
            Processors::Shared => "0-1",
            Processors::Apart => "0",
        };
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "taskset", "--cpu-list", list])
            .arg(program)
            .args(arguments);
        command
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log()?)
            .stderr(log()?);
        let failed = |source| Trouble::Start {
            program: program.display().to_string(),
            source,
        };
        command.spawn().map(Process).map_err(failed)
    }

    /// Processor time of the whole tree so far, in seconds. Those that ended and were waited for are in it.
    pub(crate) fn processor_time(&self) -> io::Result<f64> {
        let ticks: u64 = tree(self.0.id())?.iter().map(|stat| stat.ticks).sum();
        Ok(ticks as f64 / TICKS)
    }

    /// Its share of memory, in KiB: PSS of the whole tree.
    pub(crate) fn memory(&self) -> io::Result<f64> {
        let share = |pid| kib(pid, "smaps_rollup", "Pss:");
        let below = tree(self.0.id())?
            .into_iter()
            .filter(|stat| stat.pid != self.0.id());
        // Of those below, some may have ended since.
        Ok(share(self.0.id())? + below.filter_map(|stat| share(stat.pid).ok()).sum::<f64>())
    }

    /// From now on the kernel counts anew how much memory it had at most; what it has right now, in KiB. Of the process
    /// itself, without what it starts.
    pub(crate) fn forget_peak(&self) -> io::Result<f64> {
        fs::write(format!("/proc/{}/clear_refs", self.0.id()), "5")?;
        kib(self.0.id(), "status", "VmRSS:")
    }

    /// The most that the process itself had since, in KiB.
    pub(crate) fn peak(&self) -> io::Result<f64> {
        kib(self.0.id(), "status", "VmHWM:")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Not the last signal at once: its children would stay.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            _ = kill_process(pid, Signal::TERM);
        }
        _ = self.0.wait();
    }
}

/// Waits until somebody listens there; what the process said last if it ends or takes too long.
pub(crate) fn await_listener(
    name: &'static str,
    address: SocketAddr,
    process: &mut Process,
    folder: &Path,
    longest: Duration,
) -> Result<(), Trouble> {
    let deadline = Instant::now() + longest;
    while TcpStream::connect(address).is_err() {
        if !matches!(process.0.try_wait(), Ok(None)) || Instant::now() > deadline {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            let last = log.lines().rev().take(3).collect::<Vec<_>>().join(" / ");
            return Err(Trouble::NoListener { name, last });
        }
        // Servers tell nobody when they are ready.
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A number of KiB in a file of /proc.
fn kib(pid: u32, file: &str, name: &str) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("{file} has no {name}")))
}

struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
}

/// A process and its descendants.
fn tree(root: u32) -> io::Result<Vec<Stat>> {
    let names =
        fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let all = names.filter_map(|name| name.parse::<u32>().ok());
    // One that ends meanwhile is nobody's.
    let all = all.filter_map(|pid| stat(pid, Path::new(&format!("/proc/{pid}/stat"))));
    let mut all: BTreeMap<_, _> = all.map(|stat| (stat.pid, stat)).collect();
    let mut found: Vec<Stat> = Vec::from_iter(all.remove(&root));
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|stat| stat.pid) {
        let children: Vec<_> = all
            .values()
            .filter(|stat| stat.parent == parent)
            .map(|stat| stat.pid)
            .collect();
        found.extend(children.iter().filter_map(|pid| all.remove(pid)));
        next += 1;
    }
    Ok(found)
}

fn stat(pid: u32, path: &Path) -> Option<Stat> {
    let text = fs::read_to_string(path).ok()?;
    // The name may have spaces and parentheses; numbers follow behind the last of these.
    let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // utime, stime, cutime, cstime.
    let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
    Some(Stat {
        pid,
        parent: u32::try_from(number(1)?).ok()?,
        ticks,
    })
}

/// Whatever is orphaned below us stays below us: some servers' helpers are nobody's children.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(
        rustix::process::getpid(),
    ))?)
}

/// The share of memory of all that lives below us, in KiB: PSS. Those that have ended hold nothing.
pub(crate) fn memory_below_us() -> io::Result<f64> {
    let below = tree(std::process::id())?;
    Ok(below
        .iter()
        .skip(1)
        .filter_map(|stat| kib(stat.pid, "smaps_rollup", "Pss:").ok())
        .sum())
}

/// Processor time so far of all that lives below us, and of what they waited for, in seconds.
pub(crate) fn processor_time_below_us() -> io::Result<f64> {
    let ticks: u64 = tree(std::process::id())?
        .iter()
        .skip(1)
        .map(|stat| stat.ticks)
        .sum();
    Ok(ticks as f64 / TICKS)
}

/// Processor time so far of whatever this `stat` of /proc is about, in seconds.
pub(crate) fn processor_time_at(path: &Path) -> io::Result<f64> {
    stat(0, path)
        .map(|stat| stat.ticks as f64 / TICKS)
        .ok_or_else(|| io::Error::other("no stat"))
}

/// Keeps us, and the threads that we start from now on, off the servers' processor.
pub(crate) fn move_aside() -> io::Result<()> {
    let mut second = CpuSet::new();
    second.set(1);
    Ok(sched_setaffinity(None, &second)?)
}

/// A thousand connections through a server are up to four thousand descriptors, half of them ours.
pub(crate) fn allow_files() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum.map(|most| most.min(16_384)),
            maximum,
        },
    )?)
}
