//! Limits and counters of cgroup v2, and how to be allowed to set them: a cgroup below the root
//! delegates controllers only while no process is in it, so the engine moves into a leaf.
//!
//! ```text
//! own cgroup ─┬─ airlock.engine      the engine and its children
//!             └─ airlock ── airlock-<state folder>-<run id>
//! ```

use super::{Controller, ResourceCounters, Subtree, dir, dir::CounterFiles};
use spec::Limits;
use std::{fs, io, path::Path, process, time::Duration};

/// The leaf of the engine. No run's cgroup can have this name: those begin with `airlock-`.
pub(super) const LEAF: &str = "airlock.engine";
/// Pid 1 of the sandbox counts too.
pub(super) const PIDS_ALLOWANCE: u32 = 1;
/// About its memory: page tables, stack, kernel structures.
pub(super) const MEMORY_ALLOWANCE: u64 = 1 << 20;
const PERIOD_US: u64 = 100_000;
/// Our children may fork while they are moved; more rounds are no race.
const MAX_ROUNDS: usize = 16;
/// A longer ancestry does not lead to us.
const MAX_ANCESTORS: usize = 64;

/// The root cgroup delegates with processes in it, and is the only one without a type.
pub(super) fn is_root(own: &Path) -> bool {
    !own.join("cgroup.type").exists()
}

/// Delegates these controllers; returns the results. Done already is fine.
pub(super) fn hand_down(dir: &Path, wanted: &[Controller]) -> Vec<(Controller, io::Result<()>)> {
    let handed = dir::read(dir, "cgroup.subtree_control").unwrap_or_default();
    let has = |name: &str| handed.split_whitespace().any(|handed| handed == name);
    let enable = |controller: &Controller| match controller.v2_name() {
        Some(name) if !has(name) => dir::write(dir, "cgroup.subtree_control", &format!("+{name}")),
        _ => Ok(()),
    };
    // One by one: a controller that is refused (cpu, with a realtime process about) must not cost
    // the others.
    wanted
        .iter()
        .map(|controller| (*controller, enable(controller)))
        .collect()
}

/// The same without a check first. The write waits for another writer.
pub(super) fn insist(dir: &Path, wanted: &[Controller]) {
    for name in wanted.iter().filter_map(|controller| controller.v2_name()) {
        // If it is refused again, its file stays absent, which is reported.
        _ = dir::write(dir, "cgroup.subtree_control", &format!("+{name}"));
    }
}

/// Whether all of these are delegated already, so that no process has to move.
pub(super) fn hands_down(dir: &Path, wanted: &[Controller]) -> bool {
    let handed = dir::read(dir, "cgroup.subtree_control").unwrap_or_default();
    let mut names = wanted.iter().filter_map(|controller| controller.v2_name());
    names.all(|name| handed.split_whitespace().any(|handed| handed == name))
}

/// A process in our cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupNeighbour {
    /// The engine or its child.
    Ours,
    /// Another process of this program: it will move itself when it creates its first run.
    Fellow,
    /// Another process, which is not ours to move.
    Stranger,
}

/// The processes that prevent dividing this cgroup, and are not ours to move.
pub(super) fn strangers(own: &Path) -> Vec<i32> {
    let listed = dir::processes(own).unwrap_or_default();
    listed
        .into_iter()
        .filter(|pid| neighbour(*pid) == CgroupNeighbour::Stranger)
        .collect()
}

/// Makes our cgroup able to delegate these: where it does not yet, we have to leave it.
pub(super) fn make_room(own: &Path, wanted: &[Controller]) -> io::Result<()> {
    if is_root(own) || hands_down(own, wanted) {
        Ok(())
    } else {
        step_aside(own)
    }
}

/// Moves the engine and its children into the leaf. Nothing moves if a stranger would stay anyway.
fn step_aside(own: &Path) -> io::Result<()> {
    let leaf = own.join(LEAF);
    for _ in 0..MAX_ROUNDS {
        let listed = dir::processes(own)?;
        if let Some(pid) = listed
            .iter()
            .find(|pid| neighbour(**pid) == CgroupNeighbour::Stranger)
        {
            return Err(io::Error::other(format!(
                "process {pid}, not ours, sits in our cgroup"
            )));
        }
        let ours: Vec<_> = listed
            .iter()
            .filter(|pid| neighbour(**pid) == CgroupNeighbour::Ours)
            .collect();
        if ours.is_empty() {
            let late =
                |pid: &i32| format!("process {pid} of this program has not stepped aside yet");
            return listed
                .first()
                .map_or(Ok(()), |pid| Err(io::Error::other(late(pid))));
        }
        made(&leaf)?;
        for pid in ours {
            match dir::write(&leaf, "cgroup.procs", &pid.to_string()) {
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                moved => moved?,
            }
        }
    }
    Err(io::Error::other(
        "our own processes kept coming back into our cgroup",
    ))
}

fn made(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn neighbour(pid: i32) -> CgroupNeighbour {
    if descends_from_us(pid) {
        return CgroupNeighbour::Ours;
    }
    let program = |who: &str| fs::metadata(format!("/proc/{who}/exe")).ok();
    match (program("self"), program(&pid.to_string())) {
        (Some(us), Some(them)) if same_file(&us, &them) => CgroupNeighbour::Fellow,
        _ => CgroupNeighbour::Stranger,
    }
}

fn same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn descends_from_us(pid: i32) -> bool {
    let us = process::id().cast_signed();
    let mut next = Some(pid);
    for _ in 0..MAX_ANCESTORS {
        match next {
            Some(pid) if pid == us => return true,
            Some(pid) if pid > 1 => {
                next = fs::read(format!("/proc/{pid}/stat"))
                    .ok()
                    .and_then(|stat| parent(&stat))
            }
            _ => return false,
        }
    }
    false
}

/// The fourth field of `/proc/PID/stat`; the second is a name in brackets that may contain
/// anything.
fn parent(stat: &[u8]) -> Option<i32> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// Writes the limits; returns the results.
pub(super) fn limit(
    dir: &Path,
    tree: &Subtree,
    limits: &Limits,
) -> Vec<(Controller, io::Result<()>)> {
    let outcome = |controller: &Controller| match controller {
        Controller::Memory => Some(memory(
            dir,
            limits.memory.0.saturating_add(MEMORY_ALLOWANCE),
        )),
        Controller::Pids => Some(dir::set(
            dir,
            "pids.max",
            &limits.pids.saturating_add(PIDS_ALLOWANCE).to_string(),
        )),
        Controller::CpuShare => limits.cpus.map(|cpus| {
            dir::set(
                dir,
                "cpu.max",
                &format!("{} {PERIOD_US}", u64::from(cpus.0) * PERIOD_US / 1000),
            )
        }),
        Controller::CpuTime => Some(dir::read(dir, "cpu.stat").map(drop)),
    };
    tree.controllers
        .iter()
        .filter_map(|controller| Some((*controller, outcome(controller)?)))
        .collect()
}

/// `memory.oom.group` stays 0: it must be possible to kill one process alone.
fn memory(dir: &Path, bytes: u64) -> io::Result<()> {
    dir::set_bytes(dir, "memory.max", bytes)?;
    if dir.join("memory.swap.max").exists() {
        dir::set(dir, "memory.swap.max", "0")
    } else {
        // swap is not accounted on this host
        Ok(())
    }
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
                counters.memory_peak = counts.number("memory.peak");
                counters.oom_kills = counts.keyed("memory.events", "oom_kill");
            }
            Controller::Pids => {
                counters.pids_peak = counts.number("pids.peak");
                counters.pids_refused = counts.keyed("pids.events", "max");
            }
            Controller::CpuTime => {
                counters.cpu = counts
                    .keyed("cpu.stat", "usage_usec")
                    .map(Duration::from_micros);
            }
            Controller::CpuShare => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_past_a_name_that_imitates_the_format() {
        assert_eq!(parent(b"7 (a) R 1 (b) S 42 7 7 0"), Some(42));
        for odd in [
            &b""[..],
            b"7",
            b"7 (x)",
            b"7 (x) S",
            b"7 (x) S y",
            b"7 (x) \xff 1",
        ] {
            assert_eq!(parent(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn we_and_our_children_are_ours_and_the_first_process_of_the_machine_is_not() {
        let mut child = process::Command::new("cat")
            .stdin(process::Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(
            neighbour(process::id().cast_signed()),
            CgroupNeighbour::Ours
        );
        assert_eq!(neighbour(child.id().cast_signed()), CgroupNeighbour::Ours);
        assert_eq!(neighbour(1), CgroupNeighbour::Stranger);
        assert_eq!(neighbour(0), CgroupNeighbour::Stranger);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
