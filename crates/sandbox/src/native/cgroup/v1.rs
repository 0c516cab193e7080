//! Limits and counters of cgroup v1: one directory per tree. A process writes itself into
//! `cgroup.procs` and then forks the sandbox.

use super::{Controller, ResourceCounters, Subtree, dir, dir::CounterFiles};
use spec::Limits;
use std::{io, path::Path, time::Duration};

/// The cgroup v1 forker and pid 1 of the sandbox count too.
pub(super) const PIDS_ALLOWANCE: u32 = 2;
/// About the memory of those two: page tables, stacks, kernel structures.
pub(super) const MEMORY_ALLOWANCE: u64 = 2 << 20;
const TCP_SHARE: u64 = 8;
const MIN_TCP_BYTES: u64 = 8 << 20;
/// The usual period: long enough to be cheap, short enough not to be noticed.
const PERIOD_US: u64 = 100_000;

/// Whether the tree is worth moving into for these limits: a move costs milliseconds.
pub(super) fn wanted(tree: &Subtree, limits: &Limits) -> bool {
    tree.controllers.iter().any(|controller| match controller {
        Controller::Memory | Controller::Pids | Controller::CpuTime => true,
        Controller::CpuShare => limits.cpus.is_some(),
    })
}

/// Writes the limits of this tree; returns the results.
pub(super) fn limit(
    dir: &Path,
    tree: &Subtree,
    limits: &Limits,
) -> Vec<(Controller, io::Result<()>)> {
    let outcome = |controller: &Controller| match controller {
        Controller::Memory => Some(memory(dir, limits.memory.0)),
        Controller::Pids => Some(dir::set(
            dir,
            "pids.max",
            &limits.pids.saturating_add(PIDS_ALLOWANCE).to_string(),
        )),
        Controller::CpuShare => limits.cpus.map(|cpus| share(dir, cpus.0)),
        Controller::CpuTime => Some(dir::read(dir, "cpuacct.usage").map(drop)),
    };
    tree.controllers
        .iter()
        .filter_map(|controller| Some((*controller, outcome(controller)?)))
        .collect()
}

/// Memory first: the sum of memory and swap may never be below it. Equal means no swap.
fn memory(dir: &Path, limit: u64) -> io::Result<()> {
    let bytes = limit.saturating_add(MEMORY_ALLOWANCE);
    dir::set_bytes(dir, "memory.limit_in_bytes", bytes)?;
    // TCP buffers are counted apart, and not at all without a limit: even loopback could hold
    // gigabytes.
    for (file, bytes) in [
        ("memory.kmem.tcp.limit_in_bytes", tcp_bytes(limit)),
        ("memory.memsw.limit_in_bytes", bytes),
    ] {
        // An absent file: not accounted on this host.
        if dir.join(file).exists() {
            dir::set_bytes(dir, file, bytes)?;
        }
    }
    Ok(())
}

/// The limit of TCP buffers, beside the memory of a sandbox: a part of it, because they come from
/// one pool of the machine (`net.ipv4.tcp_mem`), a tenth or so of its memory. Enough for some
/// connections at full speed in the smallest sandbox.
pub(super) fn tcp_bytes(memory: u64) -> u64 {
    (memory / TCP_SHARE).max(MIN_TCP_BYTES.min(memory))
}

fn share(dir: &Path, thousandths: u32) -> io::Result<()> {
    dir::set(dir, "cpu.cfs_period_us", &PERIOD_US.to_string())?;
    dir::set(
        dir,
        "cpu.cfs_quota_us",
        &(u64::from(thousandths) * PERIOD_US / 1000).to_string(),
    )
}

/// Adds the counters of this directory.
pub(super) fn count(
    counts: &CounterFiles,
    controllers: &[Controller],
    counters: &mut ResourceCounters,
) {
    for controller in controllers {
        match controller {
            Controller::Memory => {
                counters.memory_peak = counts.number("memory.max_usage_in_bytes");
                counters.oom_kills = counts.keyed("memory.oom_control", "oom_kill");
            }
            Controller::Pids => {
                counters.pids_peak = counts.number("pids.peak");
                counters.pids_refused = counts.keyed("pids.events", "max");
            }
            Controller::CpuTime => {
                counters.cpu = counts.number("cpuacct.usage").map(Duration::from_nanos);
            }
            Controller::CpuShare => {}
        }
    }
}
