//! Group E: resources, and how boxes end.

use crate::{
    Case, Control, Finding, Outcome, Peer, Trouble, case, nothing, oracle, peer,
    world::{Ground, LONGEST_SECONDS, Place, each},
};
use engine::Step;
use spec::{Enforcer, LimitName, LimitSet, RunRequest};
use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const NO_OUTPUT: Peer = Peer::Nothing("it passes output on itself and keeps none");

pub(crate) const CASES: &[Case] = &[
    case(
        "E80",
        "a bomb of processes and threads",
        fork_bomb,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "E81",
        "memory: anonymous, memfd, tmpfs",
        memory,
        Control::Given,
        Peer::Nothing("its limit counts each process, not the box"),
    ),
    case(
        "E82",
        "a flood of output without a line in it",
        flood,
        Control::Given,
        NO_OUTPUT,
    ),
    case(
        "E83",
        "double fork, own session, deaf to signals",
        linger,
        Control::WithoutCgroups(&[Step::PidNamespace]),
        Peer::Runs,
    ),
    case(
        "E84",
        "killing the supervisor at some moment",
        killed_supervisor,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "E85",
        "a storm of zombies",
        zombies,
        Control::Given,
        Peer::Runs,
    ),
    nothing(
        "E86",
        "a fork during a snapshot",
        "this build makes no snapshots",
    ),
    case(
        "E87",
        "filling every writable place, files and names",
        fill,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "E88",
        "a very deep tree with very long names",
        deep,
        Control::Given,
        Peer::Nothing("it keeps and removes nothing"),
    ),
    case(
        "E89",
        "CPUs and memory of the host seen inside",
        numbers,
        Control::Given,
        Peer::Runs,
    ),
];

/// How long after the end something of a box may still be seen: the kernel has much to do.
fn soon(ground: &Ground<'_>) -> Duration {
    Duration::from_secs(if ground.is_control() { 1 } else { 5 })
}

fn limited(attack: RunRequest, change: impl FnOnce(&mut LimitSet)) -> RunRequest {
    let mut limits = attack.limits.clone();
    change(&mut limits);
    RunRequest { limits, ..attack }
}

fn size(text: &str) -> Option<spec::Size> {
    text.parse().ok()
}

/// What a box may have here; the control may have more than the bomb makes.
const PIDS: usize = 32;

fn fork_bomb(ground: &Ground<'_>) -> Outcome {
    let pids = if ground.is_control() {
        1000
    } else {
        PIDS as u32
    };
    let request = limited(ground.attack("fork", ["100"]), |limits| {
        limits.pids = Some(pids)
    });
    let held = ground.hold(request)?;
    let count: usize = held.processes().into_iter().map(oracle::tasks).sum();
    let result = held.finish()?.result;
    if count > PIDS {
        return Ok(Finding::Escape(format!(
            "{count} processes and threads at once"
        )));
    }
    let silent = result.is_some_and(|result| {
        result.enforced_by.get("pids") != Some(&Enforcer::Rlimit)
            && !result.limits_hit.contains(&LimitName::Pids)
    });
    Ok(if silent {
        Finding::Escape("held, but the result does not name the limit".to_owned())
    } else {
        Finding::Nothing
    })
}

const MEMORY_MIB: u64 = 64;
const TAKEN_MIB: u64 = 160;

/// Over the limit, in each kind of memory.
fn memory(ground: &Ground<'_>) -> Outcome {
    let calm = ground
        .run(ground.attack("plant", [""; 0]))?
        .finished()?
        .result;
    let by = calm.and_then(|result| result.enforced_by.get("memory").copied());
    if !matches!(by, Some(Enforcer::CgroupV1 | Enforcer::CgroupV2)) {
        return Err(Trouble::Missing(
            "a cgroup for memory; without one the limit is each process's".to_owned(),
        ));
    }
    let mut parts = Vec::new();
    for kind in ["anonymous", "memfd", "tmpfs"] {
        parts.push((kind.to_owned(), memory_of(ground, kind)?));
    }
    each(ground, parts)
}

/// What the host saw taken; a box that is ended for it must say why.
fn memory_of(ground: &Ground<'_>, kind: &str) -> Outcome {
    let request = limited(
        ground.attack("memory", [kind, &TAKEN_MIB.to_string()]),
        |limits| {
            limits.memory = size(if ground.is_control() { "512M" } else { "64M" });
            (limits.file_size, limits.disk) = (size("1G"), size("1G"));
        },
    );
    match ground.hold_or_end(request)? {
        Ok(held) => {
            let pid = held.process()?;
            let taken = oracle::resident_mib(pid).max(oracle::folder_mib(pid, "dev/shm"));
            Ok(Finding::when(
                taken > MEMORY_MIB,
                &format!("{taken} MiB of {kind} memory"),
            ))
        }
        Err(report) => {
            let named = report
                .result
                .is_some_and(|result| result.limits_hit.contains(&LimitName::Memory));
            Ok(Finding::when(
                !named,
                "held, but the result does not name the limit",
            ))
        }
    }
}

/// What a flood may cost the supervisor.
const MOST_GROWTH_MIB: u64 = 24;

fn flood(ground: &Ground<'_>) -> Outcome {
    let mebibytes: u64 = if ground.world.settings.full && !ground.is_control() {
        4096
    } else {
        64
    };
    let request = limited(ground.attack("flood", [mebibytes.to_string()]), |limits| {
        limits.output = if ground.is_control() {
            size("1G")
        } else {
            None
        };
    });
    let own = std::process::id();
    // Forgets the most memory we ever had.
    fs::write("/proc/self/clear_refs", "5")?;
    let before = oracle::resident_mib(own);
    let report = ground.run(request)?.finished()?;
    let grown = oracle::peak_mib(own).saturating_sub(before);
    let told = report.result.is_some_and(|result| result.truncated.stdout);
    Ok(match (grown > MOST_GROWTH_MIB, told) {
        (true, _) => Finding::Escape(format!("the supervisor grew by {grown} MiB")),
        (false, false) => Finding::Escape("the result does not say that output was cut".to_owned()),
        (false, true) => Finding::Nothing,
    })
}

/// Whether everything of an attack is gone soon.
fn gone(ground: &Ground<'_>, marker: &str) -> Finding {
    let end = Instant::now() + soon(ground);
    while !oracle::attacks_with(marker).is_empty() {
        if Instant::now() > end {
            return Finding::Escape("a process outlived its box".to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Finding::Nothing
}

fn linger(ground: &Ground<'_>) -> Outcome {
    // Longer than is looked for them.
    let attack = ground.attack("linger", ["15"]);
    let marker = attack.command[3].to_string_lossy().into_owned();
    ground.run(attack)?.finished()?;
    Ok(gone(ground, &marker))
}

/// At ever later moments of a run. The control: it is not killed.
fn killed_supervisor(ground: &Ground<'_>) -> Outcome {
    let rounds = match (ground.is_control(), ground.world.settings.full) {
        (true, _) => 1,
        (false, true) => 200,
        (false, false) => 8,
    };
    for round in 0..rounds {
        // From before the box is made to well after the program has begun.
        let longest = if ground.containers().is_some() {
            600
        } else {
            80
        };
        let moment = Duration::from_millis(round * longest / rounds.max(2));
        match kill_once(ground, moment)? {
            Finding::Nothing => {}
            other => return Ok(other),
        }
    }
    Ok(Finding::Nothing)
}

fn kill_once(ground: &Ground<'_>, moment: Duration) -> Outcome {
    let (attack, run) = (
        ground.attack("wait", [""; 0]),
        ground.world.unique("killed"),
    );
    let marker = attack.command[3].to_string_lossy().into_owned();
    let mut command = match (ground.place, &ground.world.peer) {
        (Place::Peer, Ok(found)) => peer::command(found, ground.world, &attack, LONGEST_SECONDS),
        _ => {
            let mut command = Command::new(&ground.world.settings.airlock);
            command.arg("run").arg("--state").arg(ground.state());
            command.arg("--config").arg(ground.world.settings_file());
            ground.tell(&mut command);
            command
                .args(["--stdin", "--run-id", &run, "--mount"])
                .args(&attack.mounts);
            command.arg("--").args(&attack.command);
            command
        }
    };
    let mut supervisor = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if moment.is_zero() || ground.is_control() {
        wait_for(&marker);
    } else {
        std::thread::sleep(moment);
    }
    if ground.is_control() {
        let found = gone(ground, &marker);
        supervisor.kill()?;
        supervisor.wait()?;
        return Ok(found);
    }
    supervisor.kill()?;
    supervisor.wait()?;
    let left = gone(ground, &marker);
    // Under load the kernel may need longer to end what was killed than one sweep waits; it then says so.
    let end = Instant::now() + Duration::from_secs(10);
    let mut swept = ground.place == Place::Peer;
    // Of a container its folder, which is removed last.
    let remains = || {
        let folder = ground.state().join("containers").join(&run);
        oracle::cgroups_with(&run)
            .into_iter()
            .chain(folder.exists().then_some(folder))
            .next()
    };
    while !swept {
        ground.engine()?.sweep();
        swept = remains().is_none() || Instant::now() > end;
    }
    Ok(left.or(|| match remains() {
        Some(path) => Finding::Escape(format!("{} is left", path.display())),
        None => Finding::Nothing,
    }))
}

/// Until the attack is in the process table, or could have been long ago.
fn wait_for(marker: &str) {
    let end = Instant::now() + Duration::from_secs(30);
    while oracle::attacks_with(marker).is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The control: children that the attack itself does not reap.
fn zombies(ground: &Ground<'_>) -> Outcome {
    let (name, count) = if ground.is_control() {
        ("zombies", "10")
    } else {
        ("orphans", "300")
    };
    let held = ground.hold(ground.attack(name, [count]))?;
    let pid = held.process()?;
    let end = Instant::now() + soon(ground);
    let mut left = oracle::zombies_of_box(pid);
    while left > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        left = oracle::zombies_of_box(pid);
    }
    held.finish()?;
    Ok(match left {
        0 => Finding::Nothing,
        count => Finding::Escape(format!("{count} zombies are left")),
    })
}

const DISK_MIB: u64 = 16;
/// What 16 MiB allow, with room to spare.
const MOST_FILES: usize = 5000;

fn fill(ground: &Ground<'_>) -> Outcome {
    let request = limited(ground.attack("fill", ["24", "3000"]), |limits| {
        limits.disk = size(if ground.is_control() { "256M" } else { "16M" });
    });
    let held = ground.hold(request)?;
    let pid = held.process()?;
    let places = ["tmp", "dev/shm", "workspace"];
    let taken: u64 = places
        .iter()
        .map(|place| oracle::folder_mib(pid, place))
        .sum();
    let files: usize = places
        .iter()
        .map(|place| oracle::folder_count(pid, place))
        .sum();
    held.finish()?;
    let taken = Finding::when(taken > DISK_MIB, &format!("{taken} MiB in scratch space"));
    // Podman cannot bound their number; what they take of the kernel's memory is counted.
    let counted = ground
        .containers()
        .is_none_or(|containers| containers.backend != "podman");
    let files = Finding::when(
        counted && files > MOST_FILES,
        &format!("{files} files in scratch space"),
    );
    each(
        ground,
        [("bytes".to_owned(), taken), ("files".to_owned(), files)],
    )
}

/// What a hostile tree may cost.
const LONGEST_END_MS: u64 = 120_000;

/// The control: a tree that is not deep, whose file is kept.
fn deep(ground: &Ground<'_>) -> Outcome {
    let secret = ground.world.secret();
    let whole = ground.is_control() || !ground.world.settings.full;
    let depth = match (ground.is_control(), whole) {
        (true, _) => "3",
        (false, true) => "2000",
        (false, false) => "100000",
    };
    // The kernel's path rules look at every folder on the way up, so the deepest tree ends with the time of its run.
    let attack = limited(ground.attack("deep", [depth, &secret]), |limits| {
        limits.wall_time = "12s".parse().ok();
    });
    let report = ground.run(attack)?;
    let report = if whole { report.finished()? } else { report };
    let slow = report
        .result
        .is_some_and(|result| result.duration_ms > LONGEST_END_MS);
    Ok(
        match (oracle::folder_has(&ground.state(), &secret)?, slow) {
            (true, _) => Finding::Escape("the file at its bottom was kept".to_owned()),
            (false, true) => Finding::Escape("ending the box took too long".to_owned()),
            (false, false) => Finding::Nothing,
        },
    )
}

/// What programs take for the size of the machine. The control may use more.
fn numbers(ground: &Ground<'_>) -> Outcome {
    let request = limited(ground.attack("numbers", [""; 0]), |limits| {
        limits.memory = size(if ground.is_control() { "128M" } else { "64M" });
        limits.cpus = if ground.is_control() {
            None
        } else {
            "1".parse().ok()
        };
    });
    let report = ground.run(request)?.finished()?;
    let number = |name: &str| {
        report
            .value(name)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(u64::MAX)
    };
    let host = fs::read_to_string("/proc/meminfo")?;
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .unwrap_or_default();
    let host: u64 = host
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .unwrap_or(0);
    let (cpus, kib) = (number("cpus"), number("memory"));
    if ground.place == Place::Airlock && kib == host {
        return Err(Trouble::Missing(
            "this build does not show the limits inside".to_owned(),
        ));
    }
    Ok(
        match kib > MEMORY_MIB << 10 || (cpus > 1 && ground.place != Place::Peer) {
            true => Finding::Escape(format!("{cpus} CPUs and {kib} KiB")),
            false => Finding::Nothing,
        },
    )
}
