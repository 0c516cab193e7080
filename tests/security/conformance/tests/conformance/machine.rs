//! The machine that a program sees is as large as the limits of its run, wherever runtimes look for its size.

use crate::{
    images,
    runner::Proof,
    world::{Outcome, Without, World, allowed, quick},
};
use init::step::Step;
use spec::{LimitSet, Network, RunRequest, Status, User};
use std::fs;

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        files_about_the_machine_show_the_limits,
        without_the_step_the_files_are_those_of_the_host,
        programs_count_as_many_cpus_as_they_may_use,
        the_machine_is_as_large_in_images_and_with_all_of_etc,
        what_tells_the_limits_cannot_be_written,
        what_tells_the_limits_cannot_be_taken_away,
    ]
}

/// What the files say, each of them read as its readers do.
#[derive(Debug, PartialEq, Eq)]
struct MachineFiles {
    /// Total, free and available memory in KiB.
    memory: [u64; 3],
    swap: u64,
    /// Entries of `cpuinfo`, and lines of `stat` for one CPU each.
    cpus: [usize; 2],
    online: String,
    memory_max: String,
    cpu_max: String,
}

const SCRIPT: &str = "for file in /proc/meminfo /proc/cpuinfo /proc/stat /sys/devices/system/cpu/online \
                      /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max; do echo @; cat $file 2> /dev/null; done; echo @";

/// From the output of the script, which has a line with `@` before each file.
fn read(output: &[u8]) -> MachineFiles {
    let text = String::from_utf8_lossy(output);
    let parts: Vec<_> = text.split("@\n").skip(1).collect();
    let [meminfo, cpuinfo, stat, online, memory_max, cpu_max, _] = parts[..] else {
        panic!("{text}")
    };
    let number = |name: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim_end_matches(" kB").trim().parse().ok())
            .expect("a number of KiB")
    };
    let single = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| !rest.starts_with(' '))
    };
    MachineFiles {
        memory: ["MemTotal:", "MemFree:", "MemAvailable:"].map(number),
        swap: number("SwapTotal:"),
        cpus: [
            cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            stat.lines().filter(single).count(),
        ],
        online: online.to_owned(),
        memory_max: memory_max.to_owned(),
        cpu_max: cpu_max.to_owned(),
    }
}

/// How many CPUs this process may use: an oracle that is not the one of the product.
fn cpus_outside() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .expect("CPUs");
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        last.parse::<usize>().expect("a number") - first.parse::<usize>().expect("a number") + 1
    };
    list.trim().split(',').map(part).sum()
}

fn limited(request: RunRequest, memory: &str, cpus: Option<&str>) -> RunRequest {
    let cpus = cpus.map(|text| text.parse().expect("CPUs"));
    RunRequest {
        limits: LimitSet {
            memory: memory.parse().ok(),
            cpus,
            ..quick()
        },
        ..request
    }
}

fn told(world: &World, request: RunRequest, without: &Without) -> MachineFiles {
    let result = world.run_without(request, without);
    assert_eq!(result.status, Status::Succeeded, "{result:?}");
    read(&result.stdout)
}

fn expected(mebibytes: u64, cpus: usize, cpu_max: &str) -> MachineFiles {
    let cpus = cpus.min(cpus_outside());
    MachineFiles {
        memory: [mebibytes * 1024; 3],
        swap: 0,
        cpus: [cpus; 2],
        online: if cpus == 1 {
            "0\n".to_owned()
        } else {
            format!("0-{}\n", cpus - 1)
        },
        memory_max: format!("{}\n", mebibytes << 20),
        cpu_max: cpu_max.to_owned(),
    }
}

fn files_about_the_machine_show_the_limits(world: &World) {
    let shown = |memory, cpus| {
        told(
            world,
            limited(world.command(&["sh", "-c", SCRIPT]), memory, cpus),
            &Without::default(),
        )
    };
    assert_eq!(shown("64M", Some("0.5")), expected(64, 1, "50000 100000\n"));
    assert_eq!(
        shown("100M", Some("1.5")),
        expected(100, 2, "150000 100000\n")
    );
    // More than there are: no more are promised.
    assert_eq!(
        shown("64M", Some("1024")),
        expected(64, 1024, "102400000 100000\n")
    );
    assert_eq!(
        shown("64M", None),
        expected(64, cpus_outside(), "max 100000\n")
    );
}

fn without_the_step_the_files_are_those_of_the_host(world: &World) {
    let request = limited(world.command(&["sh", "-c", SCRIPT]), "64M", Some("0.5"));
    let shown = told(
        world,
        request,
        &Without {
            steps: vec![Step::ShowLimits],
            cgroups: false,
        },
    );
    let host = std::process::Command::new("sh")
        .args(["-c", SCRIPT])
        .output()
        .expect("sh");
    let host = read(&host.stdout);
    assert_ne!(
        host.memory[0],
        64 << 10,
        "prerequisite: a host of another size"
    );
    assert_eq!((shown.memory[0], shown.cpus), (host.memory[0], host.cpus));
    assert_eq!([shown.online, shown.memory_max, shown.cpu_max], [""; 3]);
}

fn programs_count_as_many_cpus_as_they_may_use(world: &World) {
    let outside = cpus_outside();
    let counted = |affinity: usize, online: usize| Outcome::Allowed(format!("{affinity} {online}"));
    let limits = |cpus| limited(world.probe(&["count-cpus"]), "64M", cpus);
    for (limit, cpus) in world.few([("0.5", 1), ("1", 1), ("1.5", 2), ("2", 2)]) {
        let cpus = outside.min(cpus);
        assert_eq!(
            world.attempt(limits(Some(limit))),
            counted(cpus, cpus),
            "{limit}"
        );
    }
    assert_eq!(world.attempt(limits(None)), counted(outside, outside));
    assert_eq!(
        world.attempt_without(limits(Some("1")), &[Step::Affinity]),
        counted(outside, 1)
    );
}

fn the_machine_is_as_large_in_images_and_with_all_of_etc(world: &World) {
    let command = || limited(world.command(&["sh", "-c", SCRIPT]), "64M", Some("1"));
    let in_image = RunRequest {
        image: Some(images::image(world)),
        ..command()
    };
    let permissive = RunRequest {
        profile: Some("permissive".to_owned()),
        network: Some(Network::None),
        ..command()
    };
    for request in [in_image, permissive] {
        assert_eq!(
            told(world, request, &Without::default()),
            expected(64, 1, "100000 100000\n")
        );
    }
}

fn what_tells_the_limits_cannot_be_written(world: &World) {
    let write = |path: &str| world.attempt(world.probe(&["write", path, "1"]));
    let files = [
        "/proc/meminfo",
        "/proc/cpuinfo",
        "/proc/stat",
        "/sys/devices/system/cpu/online",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/new",
        if world.maker.is_some() {
            "/.airlock/machine/run/airlock/meminfo"
        } else {
            "/run/airlock/meminfo"
        },
    ];
    for path in files {
        assert_eq!(write(path), Outcome::Refused(libc::EROFS), "{path}");
    }
    assert_eq!(write("/tmp/file"), allowed());
}

/// It cannot even with every capability of its own user namespace; outside of one it could.
fn what_tells_the_limits_cannot_be_taken_away(world: &World) {
    let root = Some(User { uid: 0, gid: 0 });
    let all = [
        Step::SyscallFilter,
        Step::PathRules,
        Step::NoCapabilities,
        Step::EnterUserNamespace,
        Step::Credentials,
    ];
    for path in ["/proc/meminfo", "/proc/cpuinfo", "/proc/stat"] {
        let request = RunRequest {
            user: root,
            ..world.probe(&["unmount", path])
        };
        let refused = Outcome::Refused(libc::EPERM);
        // No container is made for root.
        let user = root.filter(|_| world.maker.is_none());
        assert_eq!(
            world.attempt(RunRequest {
                user,
                ..request.clone()
            }),
            refused,
            "{path}"
        );
        assert_eq!(
            world.attempt_without(request.clone(), &all[..3]),
            refused,
            "{path}"
        );
        assert_eq!(world.attempt_without(request, &all), allowed(), "{path}");
    }
}
