//! Fake `/proc` and `/sys` files: the limits of the run, where runtimes look for the size of the
//! machine. They show what may be used, not what is in use, so they never change and are written
//! once.

use super::{SandboxError, c_string};
use init::plan::{RootEntry, RootEntryKind};
use rustix::thread::sched_getaffinity;
use spec::{Cpus, Limits};
use std::{fmt::Write, fs, io::Read, ops::Range, sync::OnceLock, time::SystemTime};

/// The files that pid 1 mounts over those of `/proc`; visible here, too, which is harmless.
pub(crate) const COVER_FOLDER: &str = "run/airlock";
/// An empty directory that covers others.
pub(super) const EMPTY_FOLDER: &str = "run/airlock/empty";
/// A device file on a mount without devices, which covers unreadable files.
pub(super) const UNREADABLE_DEVICE: &str = "run/airlock/nothing";
const CPU: &str = "sys/devices/system/cpu";
const CGROUP: &str = "sys/fs/cgroup";
const FOLDERS: [&str; 5] = ["sys/devices", "sys/devices/system", CPU, "sys/fs", CGROUP];
/// The period of a CPU quota, as in the cgroups of a sandbox.
const PERIOD_US: u64 = 100_000;
/// The lines of `/proc/cpuinfo` that a CPU reports itself, and by which programs choose their code.
/// Name, microcode and frequency are left out: they tell one host from another.
const SHOWN_CPUINFO_KEYS: [&str; 11] = [
    "vendor_id",
    "cpu family",
    "model",
    "stepping",
    "flags",
    "Features",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
];

/// The host facts that stay true inside.
#[derive(Debug)]
struct HostFacts {
    /// Memory in bytes: a limit above it is no promise.
    memory: u64,
    /// The boot time, in seconds since 1970; any clock inside shows it, too.
    booted: u64,
    /// The numbers that its CPUs may have.
    possible: String,
    /// The lines of `/proc/cpuinfo` that all CPUs share.
    kind: String,
}

impl HostFacts {
    /// Read once: none of it changes.
    fn look() -> &'static HostFacts {
        static HOST: OnceLock<HostFacts> = OnceLock::new();
        HOST.get_or_init(|| {
            let info = rustix::system::sysinfo();
            let possible = fs::read_to_string(format!("/{CPU}/possible"));
            HostFacts {
                memory: info.totalram * u64::from(info.mem_unit),
                booted: boot_time(u64::try_from(info.uptime).unwrap_or(0)),
                possible: possible.unwrap_or_else(|_| range(allowed().unwrap_or(1))),
                kind: kind(&start_of_cpuinfo()),
            }
        })
    }
}

/// Its beginning: on a large host the file is long, and only the first CPU is needed.
fn start_of_cpuinfo() -> String {
    const ENOUGH: u64 = 1 << 13;
    let mut text = Vec::new();
    // What the host does not show, we do not show either.
    _ = fs::File::open("/proc/cpuinfo").and_then(|file| file.take(ENOUGH).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

fn boot_time(uptime: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs().saturating_sub(uptime))
}

/// The shown lines of the first CPU.
fn kind(cpuinfo: &str) -> String {
    let first = cpuinfo.lines().take_while(|line| !line.is_empty());
    let kept = first.filter(|line| {
        let name = line.split(':').next().unwrap_or_default().trim();
        SHOWN_CPUINFO_KEYS.contains(&name)
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}

/// The number of CPUs of our affinity, which programs inherit; unknown on hosts with more than fit
/// a set.
pub(super) fn allowed() -> Option<u32> {
    sched_getaffinity(None).ok().map(|cpus| cpus.count().max(1))
}

/// A part of a CPU counts as one.
pub(super) fn whole_cpus(cpus: Cpus) -> u32 {
    cpus.0.div_ceil(1000).max(1)
}

/// As many CPUs as the limit allows and the host has.
pub(super) fn processors(limits: &Limits) -> u32 {
    let host = allowed().unwrap_or_else(|| count(&HostFacts::look().possible));
    limits.cpus.map_or(host, |cpus| whole_cpus(cpus).min(host))
}

/// The number of CPUs in a list such as `0-3,8`.
fn count(list: &str) -> u32 {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(
            last.parse::<u32>()
                .ok()?
                .saturating_sub(first.parse().ok()?)
                + 1,
        )
    };
    list.trim().split(',').filter_map(part).sum::<u32>().max(1)
}

fn range(processors: u32) -> String {
    match processors {
        0 | 1 => "0\n".to_owned(),
        more => format!("0-{}\n", more - 1),
    }
}

/// The fake files, parents first: below folders of the template that hold nothing else.
pub(crate) fn root_entries(limits: &Limits) -> Result<Vec<RootEntry>, SandboxError> {
    let processors = processors(limits);
    let files = describe(HostFacts::look(), limits, processors);
    let files = files
        .into_iter()
        .map(|(path, text)| (path, RootEntryKind::File, text));
    let folders = FOLDERS
        .into_iter()
        .map(|path| (path.to_owned(), RootEntryKind::Directory, String::new()));
    let all = folders
        .chain(files)
        .chain((0..processors).flat_map(|number| cpu(number, processors)));
    all.map(|(path, kind, content)| {
        Ok(RootEntry {
            path: c_string(path)?,
            kind,
            content: c_string(content)?,
        })
    })
    .collect()
}

/// One CPU, a core of its own: old C libraries count these folders, and `lscpu` reads which CPUs
/// share a core.
fn cpu(number: u32, processors: u32) -> [(String, RootEntryKind, String); 4] {
    let folder = format!("{CPU}/cpu{number}");
    let topology = format!("{folder}/topology");
    let alone = format!("{topology}/thread_siblings");
    let all = format!("{topology}/core_siblings");
    let (kind, siblings) = match number {
        0 => (RootEntryKind::File, mask(0..processors)),
        _ => (
            RootEntryKind::Link,
            "../../cpu0/topology/core_siblings".to_owned(),
        ),
    };
    [
        (folder, RootEntryKind::Directory, String::new()),
        (topology, RootEntryKind::Directory, String::new()),
        (alone, RootEntryKind::File, mask(number..number + 1)),
        (all, kind, siblings),
    ]
}

/// A CPU mask as the kernel writes it: groups of 32 bits, the highest first.
fn mask(numbers: Range<u32>) -> String {
    let groups = (0..=numbers.end.saturating_sub(1) / 32).rev().map(|group| {
        let bits = (0..32).filter(|bit| numbers.contains(&(group * 32 + bit)));
        format!("{:08x}", bits.fold(0u32, |all, bit| all | 1 << bit))
    });
    groups.collect::<Vec<_>>().join(",") + "\n"
}

fn describe(host: &HostFacts, limits: &Limits, processors: u32) -> [(String, String); 9] {
    let all = [
        (
            COVER_FOLDER,
            "meminfo",
            meminfo(limits.memory.0.min(host.memory)),
        ),
        (COVER_FOLDER, "cpuinfo", cpuinfo(&host.kind, processors)),
        (COVER_FOLDER, "stat", stat(host.booted, processors)),
        (CPU, "online", range(processors)),
        (CPU, "present", range(processors)),
        // Not the count, but the highest number: allocators reserve memory for each number that a
        // CPU may have.
        (CPU, "possible", host.possible.clone()),
        (CGROUP, "cgroup.controllers", "cpu memory\n".to_owned()),
        (CGROUP, "memory.max", format!("{}\n", limits.memory.0)),
        (CGROUP, "cpu.max", cpu_max(limits.cpus)),
    ];
    all.map(|(folder, name, text)| (format!("{folder}/{name}"), text))
}

/// All memory is free: the program can ask about its own usage elsewhere.
fn meminfo(bytes: u64) -> String {
    let total = bytes / 1024;
    let full = ["MemTotal", "MemFree", "MemAvailable"].map(|name| (name, total));
    let none = [
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "SwapTotal",
        "SwapFree",
        "Dirty",
        "Writeback",
        "AnonPages",
        "Mapped",
        "Shmem",
        "Slab",
        "SReclaimable",
        "SUnreclaim",
    ]
    .map(|name| (name, 0));
    full.into_iter()
        .chain(none)
        .map(|(name, kib)| format!("{:<16}{kib:>8} kB\n", format!("{name}:")))
        .collect()
}

/// One socket with this many cores.
fn cpuinfo(kind: &str, processors: u32) -> String {
    let mut text = String::new();
    for number in 0..processors {
        // Writing to a String cannot fail.
        _ = write!(
            text,
            "processor\t: {number}\n{kind}model name\t: airlock\nphysical id\t: 0\nsiblings\t: {processors}\n\
             core id\t\t: {number}\ncpu cores\t: {processors}\n\n"
        );
    }
    text
}

/// No times: the host's would show its other work.
fn stat(booted: u64, processors: u32) -> String {
    let none = " 0 0 0 0 0 0 0 0 0 0\n";
    let lines: String = (0..processors)
        .map(|number| format!("cpu{number}{none}"))
        .collect();
    format!(
        "cpu {none}{lines}intr 0\nctxt 0\nbtime {booted}\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n\
         softirq 0{none}"
    )
}

fn cpu_max(cpus: Option<Cpus>) -> String {
    let quota = cpus.map(|cpus| (u64::from(cpus.0) * PERIOD_US / 1000).to_string());
    format!("{} {PERIOD_US}\n", quota.as_deref().unwrap_or("max"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spec::{Policy, Size};
    use std::collections::BTreeMap;

    const CPUINFO: &str = "processor\t: 0\nvendor_id\t: Maker\nmodel\t\t: 17\nmodel name\t: Maker 9000\n\
                           microcode\t: 0x1\nflags\t\t: fpu sse\nbugs\t\t: many\n\nprocessor\t: 1\nmodel\t\t: 18\n";

    fn host() -> HostFacts {
        HostFacts {
            memory: 1 << 40,
            booted: 1_700_000_000,
            possible: "0-63\n".to_owned(),
            kind: kind(CPUINFO),
        }
    }

    fn limits(memory: u64, cpus: Option<u32>) -> Limits {
        let usual = Policy::default()
            .profile("restrictive")
            .unwrap()
            .limits
            .clone();
        Limits {
            memory: Size(memory),
            cpus: cpus.map(Cpus),
            ..usual
        }
    }

    fn described(memory: u64, cpus: Option<u32>, processors: u32) -> BTreeMap<String, String> {
        describe(&host(), &limits(memory, cpus), processors)
            .into_iter()
            .collect()
    }

    #[test]
    fn a_cpu_is_told_by_what_it_would_tell_itself() {
        assert_eq!(
            kind(CPUINFO),
            "vendor_id\t: Maker\nmodel\t\t: 17\nflags\t\t: fpu sse\n"
        );
    }

    #[test]
    fn a_limit_of_one_and_a_half_cpus_shows_two() {
        let files = described(512 << 20, Some(1500), whole_cpus(Cpus(1500)));
        let expected = [
            ("sys/devices/system/cpu/online", "0-1\n"),
            ("sys/devices/system/cpu/possible", "0-63\n"),
            ("sys/devices/system/cpu/present", "0-1\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
        ];
        let sys: Vec<_> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        assert_eq!(sys[3..], expected);
        let meminfo = &files["run/airlock/meminfo"];
        assert!(
            meminfo.starts_with("MemTotal:         524288 kB\nMemFree:          524288 kB\n"),
            "{meminfo}"
        );
        let one = "processor\t: 1\nvendor_id\t: Maker\nmodel\t\t: 17\nflags\t\t: fpu sse\nmodel name\t: airlock\n\
                   physical id\t: 0\nsiblings\t: 2\ncore id\t\t: 1\ncpu cores\t: 2\n\n";
        assert!(files["run/airlock/cpuinfo"].ends_with(one), "{files:?}");
    }

    #[test]
    fn no_more_memory_is_shown_than_the_host_has() {
        let total = |memory| {
            described(memory, None, 1)["run/airlock/meminfo"]
                .lines()
                .next()
                .unwrap()
                .to_owned()
        };
        assert_eq!(total(1 << 50), total(1 << 40));
        assert_ne!(total(1 << 39), total(1 << 40));
    }

    #[test]
    fn masks_are_in_groups_of_32() {
        assert_eq!(
            [mask(0..1), mask(3..4), mask(0..32)],
            ["00000001\n", "00000008\n", "ffffffff\n"]
        );
        assert_eq!(
            [mask(33..34), mask(0..33)],
            ["00000002,00000000\n", "00000001,ffffffff\n"]
        );
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        let counts = ["0\n", "0-3", "0-3,8", "5,7-8\n", ""].map(count);
        assert_eq!(counts, [1, 4, 5, 3, 1]);
    }

    #[test]
    fn this_host_tells_what_we_pass_on() {
        let host = HostFacts::look();
        assert!(
            host.memory > 1 << 20 && host.booted > 1_000_000_000,
            "{host:?}"
        );
        assert!(
            host.kind.contains("flags\t") || host.kind.contains("Features\t"),
            "{host:?}"
        );
        assert!(count(&host.possible) >= allowed().unwrap());
    }

    proptest! {
        #[test]
        fn every_file_reads_back_as_the_limit(memory in 1u64 << 20..1 << 40, cpus in 10u32..=1_024_000) {
            let processors = whole_cpus(Cpus(cpus));
            let files = described(memory, Some(cpus), processors);
            let line = |path: &str, name: &str| -> u64 {
                let found = files[path].lines().find_map(|line| line.strip_prefix(name)).unwrap();
                found.trim_end_matches(" kB").trim().parse().unwrap()
            };
            for name in ["MemTotal:", "MemFree:", "MemAvailable:"] {
                prop_assert_eq!(line("run/airlock/meminfo", name), memory / 1024);
            }
            prop_assert_eq!(line("run/airlock/meminfo", "SwapTotal:"), 0);
            prop_assert_eq!(line("sys/fs/cgroup/memory.max", ""), memory);
            let (quota, period) = files["sys/fs/cgroup/cpu.max"].trim().split_once(' ').unwrap();
            let (quota, period): (u64, u64) = (quota.parse().unwrap(), period.parse().unwrap());
            prop_assert_eq!(quota * 1000 / period, u64::from(cpus));
            let lines = |path: &str, start: &str| {
                files[path].lines().filter(|line| line.starts_with(start)).count() as u32
            };
            prop_assert_eq!(lines("run/airlock/cpuinfo", "processor"), processors);
            // One for all, and one for each.
            prop_assert_eq!(lines("run/airlock/stat", "cpu"), processors + 1);
            prop_assert_eq!(count(&files["sys/devices/system/cpu/online"]), processors);
            prop_assert!(processors * 1000 >= cpus && (processors - 1) * 1000 < cpus);
        }
    }
}
