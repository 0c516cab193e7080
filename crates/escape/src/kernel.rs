//! Group B: interfaces of the kernel, and processes.

use crate::{
    Case, Control, Finding, NOT_A_USERS, Outcome, POWER, Peer, ROOT_INSIDE, Trouble, attack, case,
    network, oracle, terminal,
    world::{Ground, Holding, each, mount},
};
use engine::Step;
use spec::RunRequest;
use std::{
    fs,
    io::Read,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::Path,
    process::{Command, Stdio},
};

const FILTER: Control = Control::Without(&[Step::SyscallFilter]);
/// Two boxes that see each other's processes, with whatever power their starter has.
const STRANGERS: Control = Control::Without(&[
    Step::PidNamespace,
    Step::EnterUserNamespace,
    Step::Credentials,
    Step::NoCapabilities,
    Step::SyscallFilter,
    Step::PathRules,
]);
const OUT_OF_CGROUP: &[Step] = &[
    Step::CgroupNamespace,
    Step::EnterUserNamespace,
    Step::Credentials,
    Step::NoCapabilities,
    Step::SyscallFilter,
    Step::PathRules,
];

pub(crate) const CASES: &[Case] = &[
    case(
        "B25",
        "settings of the kernel below /proc/sys",
        settings,
        Control::Guest(POWER, NOT_A_USERS),
        Peer::Guest,
    ),
    case(
        "B26",
        "/proc files about the host, sysrq-trigger",
        masked,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "B27",
        "leaving one's cgroup, release_agent, devices.allow",
        cgroup,
        Control::WithoutAsRoot(OUT_OF_CGROUP, NOT_A_USERS),
        Peer::Nothing("it makes no cgroup"),
    ),
    case(
        "B28",
        "overwriting the program that runs it",
        overwrite,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "B29",
        "memory, variables and files of other processes",
        read_processes,
        STRANGERS,
        Peer::Runs,
    ),
    case(
        "B30",
        "ptrace, process_vm_readv, pidfd_getfd, kcmp",
        trace,
        STRANGERS,
        Peer::Runs,
    ),
    case(
        "B31",
        "setns into what can be reached",
        join,
        STRANGERS,
        Peer::Runs,
    ),
    case(
        "B32",
        "new namespaces by unshare and clone",
        unshare,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "B33",
        "new namespaces by clone3, flags in memory",
        clone3,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "B34",
        "io_uring, which no filter sees into",
        io_uring,
        FILTER,
        Peer::Runs,
    ),
    case(
        "B35",
        "calls that administer the machine",
        table,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "B36",
        "a key of the host's session",
        keys,
        FILTER,
        Peer::Runs,
    ),
    case(
        "B37",
        "personality and modify_ldt",
        personality,
        FILTER,
        Peer::Runs,
    ),
    case(
        "B38",
        "typing into the caller's terminal (TIOCSTI, TIOCLINUX)",
        terminal::typing,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "B39",
        "escape sequences in what reaches the caller's terminal",
        terminal::escapes,
        Control::Given,
        Peer::Nothing("it prints nothing of its own"),
    ),
    case(
        "B40",
        "a path that changes while it is judged",
        flip,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "B41",
        "a second listener that lets calls go on",
        second_listener,
        FILTER,
        Peer::Runs,
    ),
    case(
        "B42",
        "an old Landlock: abstract sockets on the host's network",
        old_landlock,
        Control::Without(&[Step::PathRules]),
        Peer::Nothing("it has no Landlock"),
    ),
    case("B43", "signals to everybody", kill, STRANGERS, Peer::Runs),
    case(
        "B44",
        "a crash that leaves a core dump on the host",
        crash,
        Control::Without(&[Step::ResourceLimits, Step::SyscallFilter]),
        Peer::Runs,
    ),
    case(
        "B45",
        "other groups, or fewer of them",
        groups,
        Control::WithoutAsRoot(
            &[Step::NoCapabilities],
            "the kernel lets no user's namespace change groups",
        ),
        Peer::Runs,
    ),
    case(
        "B46",
        "System V memory, message queues, /dev/shm of another box",
        shared,
        Control::Without(&[Step::IpcNamespace, Step::PathRules]),
        Peer::Runs,
    ),
    case(
        "B47",
        "the host's name, machine id, variables, command lines",
        fingerprint,
        Control::Without(&[Step::UtsNamespace, Step::EmptyEnvironment]),
        Peer::Runs,
    ),
    case(
        "B48",
        "LD_PRELOAD and the like reaching the supervisor",
        variables,
        Control::Given,
        Peer::Runs,
    ),
];

/// Name below `/proc/sys`, and a value that would do no harm until it is put back.
const SETTINGS: [(&str, &str); 3] = [
    ("kernel/core_pattern", "core.planted"),
    ("kernel/modprobe", "/planted"),
    ("vm/overcommit_ratio", "51"),
];

fn settings(ground: &Ground<'_>) -> Outcome {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name));
    let before: Vec<_> = SETTINGS
        .iter()
        .filter_map(|(name, _)| Some((*name, read(name).ok()?)))
        .collect();
    let values = SETTINGS.iter().flat_map(|(name, value)| [*name, *value]);
    let held = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..ground.attack("settings", values)
    })?;
    held.finish()?;
    let changed: Vec<_> = before
        .iter()
        .filter(|(name, old)| read(name).is_ok_and(|now| now != *old))
        .collect();
    for (name, old) in &changed {
        fs::write(Path::new("/proc/sys").join(name), old)?;
    }
    Ok(changed.first().map_or(Finding::Nothing, |(name, _)| {
        Finding::Escape(format!("it changed {name}"))
    }))
}

/// The control looks at the command line of the kernel alone.
fn masked(ground: &Ground<'_>) -> Outcome {
    let told = fs::read_to_string("/proc/cmdline")?;
    let told = told.trim();
    if told.len() < 4 {
        return Err(Trouble::Missing(
            "a kernel that was given a command line".to_owned(),
        ));
    }
    let all = [
        "/proc/cmdline",
        "/proc/interrupts",
        "/proc/timer_list",
        "/proc/keys",
        "/proc/key-users",
    ];
    let paths = if ground.is_control() { &all[..1] } else { &all };
    let held = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..ground.attack("masked", paths)
    })?;
    let pid = held.process()?;
    let trigger = oracle::descriptors(pid)
        .into_iter()
        .find(|(_, name)| name.contains("sysrq-trigger"));
    // Under its cover it is the device of `/dev/null`.
    let trigger = trigger.filter(|(number, _)| {
        fs::metadata(format!("/proc/{pid}/fd/{number}"))
            .is_ok_and(|found| !found.file_type().is_char_device())
    });
    let report = held.finish()?;
    Ok(match (trigger, report.says(told)) {
        (Some(_), _) => Finding::Escape("it opened sysrq-trigger for writing".to_owned()),
        (None, true) => Finding::Escape("it read the kernel's command line".to_owned()),
        (None, false) => Finding::Nothing,
    })
}

/// In how many trees its control group is not the one that we are in, seen from the host.
fn cgroup(ground: &Ground<'_>) -> Outcome {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let groups = |attack: RunRequest| {
        let held = ground.hold(RunRequest {
            user: ROOT_INSIDE,
            ..attack
        })?;
        let told = fs::read_to_string(format!("/proc/{}/cgroup", held.process()?))?;
        let report = held.finish()?;
        Ok::<_, Trouble>((
            told.lines()
                .filter(|line| !own.lines().any(|ours| ours == *line))
                .count(),
            report,
        ))
    };
    let (expected, _) = groups(ground.attack("wait", [""; 0]))?;
    if expected == 0 {
        return Err(Trouble::Missing("a cgroup for the box".to_owned()));
    }
    let (left, report) = groups(ground.attack("leave-cgroup", [""; 0]))?;
    let out = Finding::when(
        left < expected,
        &format!("it is in {left} of {expected} cgroups of its box"),
    );
    Ok(out.or(|| report.claims()))
}

/// The control: it is given a copy of the program that may be written.
fn overwrite(ground: &Ground<'_>) -> Outcome {
    let (folder, original) = (ground.world.fresh("program"), ground.world.attacker());
    for name in ["airlock", "permit"] {
        fs::copy(original.join(name), folder.join(name))?;
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o777))?;
    }
    let mut request = ground.attack("overwrite-program", [""; 0]);
    let access = if ground.is_control() { "rw" } else { "ro" };
    request.mounts = vec![mount(&folder, "/attacker", access)];
    let report = ground.run(request)?.finished()?;
    let same = fs::read(folder.join("airlock"))? == fs::read(original.join("airlock"))?;
    let written = match same {
        true => Finding::Nothing,
        false => Finding::Escape("the host's program was overwritten".to_owned()),
    };
    Ok(written.or(|| report.claims()))
}

/// A harmless process in a box beside it, with a secret among its variables.
fn victim<'a>(ground: &Ground<'a>, secret: &str) -> Result<(Holding<'a>, String), Trouble> {
    let mut request = ground.attack("wait", [""; 0]);
    request.env.push(("SECRET".into(), secret.into()));
    let marker = request.command[3].to_string_lossy().into_owned();
    Ok((ground.hold(request)?, marker))
}

fn read_processes(ground: &Ground<'_>) -> Outcome {
    let secret = ground.world.secret();
    let (_victim, marker) = victim(ground, &secret)?;
    let report = ground
        .run(ground.attack("read-processes", [marker]))?
        .finished()?;
    let read = Finding::when(
        report.says(&secret),
        "it read the variables of a process in another box",
    );
    let mut parts = report.claims_of(&[
        "descriptors of another process",
        "memory of another process",
    ]);
    parts.push(("variables".to_owned(), read));
    each(ground, parts)
}

fn trace(ground: &Ground<'_>) -> Outcome {
    let (victim, marker) = victim(ground, "")?;
    let held = ground.hold(ground.attack("trace", [marker]))?;
    let tracer = oracle::status(victim.process()?, "TracerPid");
    let report = held.finish()?;
    let traced = Finding::when(
        tracer.as_deref() != Some("0"),
        "a process in another box is traced",
    );
    let mut parts = report.claims_of(&["ptrace", "pidfd_getfd", "kcmp", "process_vm_readv"]);
    parts.push(("a tracer that the host sees".to_owned(), traced));
    each(ground, parts)
}

fn join(ground: &Ground<'_>) -> Outcome {
    let (victim, marker) = victim(ground, "")?;
    let held = ground.hold(ground.attack("join", [marker]))?;
    let (theirs, own) = (victim.process()?, held.process()?);
    let joined = ["uts", "ipc", "net"].map(|kind| {
        let namespace = oracle::namespace(theirs, kind);
        let same = namespace.is_some() && namespace == oracle::namespace(own, kind);
        (
            kind.to_owned(),
            Finding::when(same, &format!("it is in another box's {kind} namespace")),
        )
    });
    held.finish()?;
    each(ground, joined)
}

fn unshare(ground: &Ground<'_>) -> Outcome {
    new_namespaces(ground, "unshare")
}

fn clone3(ground: &Ground<'_>) -> Outcome {
    new_namespaces(ground, "clone3")
}

/// One of its processes stays where it was born; all others must be there, too.
fn new_namespaces(ground: &Ground<'_>, way: &str) -> Outcome {
    let attack = ground.attack("new-namespaces", [way]);
    let held = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..attack
    })?;
    let (own, processes) = (held.process()?, held.processes());
    let parts = ["user", "mnt", "net", "uts", "ipc", "cgroup"].map(|kind| {
        let differs = processes
            .iter()
            .any(|pid| oracle::namespace(*pid, kind) != oracle::namespace(own, kind));
        (
            kind.to_owned(),
            Finding::when(differs, &format!("it has made a {kind} namespace")),
        )
    });
    held.finish()?;
    match processes.len() {
        0 | 1 => Err(Trouble::Broken(
            "it has no child to compare with".to_owned(),
        )),
        _ => each(ground, parts),
    }
}

fn io_uring(ground: &Ground<'_>) -> Outcome {
    let off = fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .is_ok_and(|value| value.trim() == "2");
    if ground.is_control() && off {
        return Err(Trouble::Missing(
            "a kernel with io_uring switched on".to_owned(),
        ));
    }
    let held = ground.hold(ground.attack("io-uring", [""; 0]))?;
    Ok(oracle::holds(held.process()?, "io_uring"))
}

/// What a user namespace gives no power over; a user's control does not reach these.
const OF_ROOT: [&str; 16] = [
    "settimeofday",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "swapon",
    "swapoff",
    "reboot",
    "acct",
    "quotactl",
    "syslog",
    "clock_settime",
    "bpf",
    "migrate_pages",
    "vhangup",
    "ioperm",
];

/// In the control every call that this kernel has must get through.
fn table(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..ground.attack("table", [""; 0])
    })?;
    let pid = held.process()?;
    let seen =
        ["bpf", "perf_event", "userfaultfd", "secretmem"].map(|part| oracle::holds(pid, part));
    let report = held.finish()?;
    let absent = report.values("absent");
    let names: Vec<_> = report.values("tried");
    let reach = |name: &&str| {
        !absent.contains(&(*name).to_owned()) && (ground.world.root || !OF_ROOT.contains(name))
    };
    let names: Vec<_> = names.iter().map(String::as_str).filter(reach).collect();
    let mut parts = report.claims_of(&names);
    let seen = seen
        .into_iter()
        .fold(Finding::Nothing, |found, next| found.or(|| next));
    parts.push(("a descriptor that the host sees".to_owned(), seen));
    match ground.is_control() {
        true => each(ground, parts),
        false => each(ground, parts).map(|found| found.or(|| report.claims())),
    }
}

fn keys(ground: &Ground<'_>) -> Outcome {
    let (name, secret) = (ground.world.unique("key"), ground.world.secret());
    let key = attack::plant_key(&name, &secret)
        .map_err(|error| Trouble::Missing(format!("a keyring of the host's: {error}")))?;
    let report = ground.run(ground.attack("keys", [name]));
    attack::remove_key(key)?;
    Ok(match report?.finished()?.says(&secret) {
        true => Finding::Escape("it read a key of the host's session".to_owned()),
        false => Finding::Nothing,
    })
}

fn personality(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(ground.attack("personality", [""; 0]))?;
    let persona = fs::read_to_string(format!("/proc/{}/personality", held.process()?))?;
    let report = held.finish()?;
    let changed = match persona.trim().trim_matches('0') {
        "" => Finding::Nothing,
        _ => Finding::Escape(format!("its personality is {}", persona.trim())),
    };
    Ok(changed.or(|| report.claims()))
}

/// The control: the name is not protected.
fn flip(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    let file = workspace.join(".envrc");
    fs::write(&file, "")?;
    ground.give(&file)?;
    let (rounds, seconds) = if ground.world.settings.full {
        ("1000000", "25")
    } else {
        ("20000", "8")
    };
    let attack = ground.attack("flip", [".fresh", ".envrc", rounds, seconds]);
    let allow_protected = if ground.is_control() {
        vec![".envrc".into()]
    } else {
        Vec::new()
    };
    let request = RunRequest {
        workspace: Some(workspace),
        allow_protected,
        ..attack
    };
    ground.run(request)?.finished()?;
    Ok(match fs::read(&file)?.is_empty() {
        true => Finding::Nothing,
        false => Finding::Escape("`.envrc` was written".to_owned()),
    })
}

fn second_listener(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(ground.attack("second-listener", [""; 0]))?;
    let rings = held
        .processes()
        .into_iter()
        .map(|pid| oracle::holds(pid, "io_uring"));
    Ok(rings.fold(Finding::Nothing, |found, next| found.or(|| next)))
}

/// Kernels before 6.12 cannot hold it: then the result must say so.
fn old_landlock(ground: &Ground<'_>) -> Outcome {
    let (name, secret) = network::greet_abstract(ground.world)?;
    let attack = ground.attack("connect-abstract", [name]);
    let report = ground
        .run(RunRequest {
            network: Some(spec::Network::Host),
            ..attack
        })?
        .finished()?;
    if !report.says(&secret) {
        return Ok(Finding::Nothing);
    }
    let notes = report.result.map(|result| result.notes).unwrap_or_default();
    let told = notes.into_iter().find(|note| note.contains("Landlock"));
    Ok(told.map_or_else(
        || Finding::Escape("it reached an abstract socket".to_owned()),
        Finding::Reported,
    ))
}

fn kill(ground: &Ground<'_>) -> Outcome {
    let (mut victim, marker) = victim(ground, "")?;
    let mut outside = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let report = ground.run(ground.attack("kill", [marker, outside.id().to_string()]));
    // With their input both come to their end, unless they were killed; who is killed may be there for a while.
    drop(outside.stdin.take());
    let killed = !outside.wait()?.success();
    report?.finished()?;
    Ok(match (victim.end()?.finished().is_err(), killed) {
        (true, _) => Finding::Escape("a process in another box was killed".to_owned()),
        (_, true) => Finding::Escape("a process of the host's was killed".to_owned()),
        (false, false) => Finding::Nothing,
    })
}

const PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// A file in the workspace; on a machine of its own also a program of the host's.
fn crash(ground: &Ground<'_>) -> Outcome {
    let pattern = fs::read_to_string(PATTERN)?;
    if pattern.starts_with(['|', '/']) {
        return Err(Trouble::Missing(format!(
            "a core_pattern that is a plain name, not `{}`",
            pattern.trim()
        )));
    }
    if ground.is_control()
        && rustix::process::getrlimit(rustix::process::Resource::Core).maximum == Some(0)
    {
        return Err(Trouble::Missing(
            "a hard limit of core dumps above 0".to_owned(),
        ));
    }
    let workspace = ground.workspace()?;
    crash_in(ground, &workspace)?;
    // Stand-ins of protected names may be there for a moment; they are folders.
    let files = fs::read_dir(&workspace)?
        .flatten()
        .filter(|entry| entry.path().is_file());
    let left = files.map(|entry| entry.file_name()).next();
    let left = left.map_or(Finding::Nothing, |name| {
        Finding::Escape(format!("`{}` was left", name.display()))
    });
    let mut parts = vec![("file".to_owned(), left)];
    if ground.world.root && ground.world.settings.dangerously_harm_this_machine {
        parts.push(("program".to_owned(), piped_crash(ground, &pattern)?));
    }
    each(ground, parts)
}

fn crash_in(ground: &Ground<'_>, workspace: &Path) -> Result<(), Trouble> {
    let attack = ground.attack("crash", [""; 0]);
    let report = ground.run(RunRequest {
        workspace: Some(workspace.to_owned()),
        ..attack
    })?;
    match report.says("crashing") {
        true => Ok(()),
        false => Err(Trouble::Broken("the attack did not crash".to_owned())),
    }
}

/// The kernel starts it as the host's root. It has ended before whoever crashed is reaped.
fn piped_crash(ground: &Ground<'_>, pattern: &str) -> Outcome {
    let (folder, workspace) = (ground.world.fresh("helper"), ground.workspace()?);
    let (program, ran) = (folder.join("helper"), folder.join("ran"));
    fs::write(
        &program,
        format!("#!/bin/sh\n: > {}\nexec cat > /dev/null\n", ran.display()),
    )?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::write(PATTERN, format!("|{}", program.display()))?;
    let crashed = crash_in(ground, &workspace);
    fs::write(PATTERN, pattern)?;
    crashed?;
    Ok(Finding::when(
        ran.exists(),
        "a program of the host's was started for it",
    ))
}

/// Started by a user, a box has that user's groups; started by root, none. A container's user has the group of its
/// own.
fn groups(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..ground.attack("groups", [""; 0])
    })?;
    let inside = oracle::status(held.process()?, "Groups").unwrap_or_default();
    let gid = oracle::status(held.process()?, "Gid").unwrap_or_default();
    let inside =
        match ground.containers().is_some() && gid.split_whitespace().all(|id| id == inside) {
            true => String::new(),
            false => inside,
        };
    held.finish()?;
    let own = oracle::status(std::process::id(), "Groups").unwrap_or_default();
    let kept = ground.place == crate::world::Place::Peer || !ground.world.root;
    Ok(match inside == if kept { own } else { String::new() } {
        true => Finding::Nothing,
        false => Finding::Escape(format!("its groups are `{inside}`")),
    })
}

fn shared(ground: &Ground<'_>) -> Outcome {
    let (name, secret) = (ground.world.unique("shared"), ground.world.secret());
    let owner = ground.hold(ground.attack("share", [name.as_str(), &secret]))?;
    let report = ground.run(ground.attack("find-shared", [name]));
    owner.finish()?;
    let report = report?.finished()?;
    let told = |kind: &str| {
        report
            .value(kind)
            .is_some_and(|text| text.contains(&secret))
    };
    let of_kernel = ["segment", "queue"].map(|kind| {
        (
            kind.to_owned(),
            Finding::when(told(kind), &format!("it read the {kind} of another box")),
        )
    });
    // Scratch space is each box's own, with or without the namespace.
    let file = Finding::when(report.says(&secret), "it read /dev/shm of another box");
    each(ground, of_kernel).map(|found| found.or(|| file))
}

/// Variables whose values also an honest box may have.
const USUAL_VARIABLES: [&str; 10] = [
    "PATH", "HOME", "PWD", "OLDPWD", "LANG", "TERM", "SHELL", "TMPDIR", "USER", "LOGNAME",
];

/// What tells this host and this caller from others.
fn traits() -> Result<Vec<(String, String)>, Trouble> {
    let mut all = Vec::new();
    for (what, path) in [
        ("name", "/proc/sys/kernel/hostname"),
        ("machine id", "/etc/machine-id"),
    ] {
        if let Ok(text) = fs::read_to_string(path) {
            all.push((format!("the host's {what}"), text.trim().to_owned()));
        }
    }
    let mut environment = Vec::new();
    fs::File::open("/proc/self/environ")?.read_to_end(&mut environment)?;
    for line in String::from_utf8_lossy(&environment).split('\0') {
        if let Some((name, value)) = line
            .split_once('=')
            .filter(|(name, _)| !USUAL_VARIABLES.contains(name))
        {
            all.push((format!("the caller's variable {name}"), value.to_owned()));
        }
    }
    // A short one proves nothing.
    all.retain(|(_, text)| text.len() >= 4 && text != "airlock");
    Ok(all)
}

fn fingerprint(ground: &Ground<'_>) -> Outcome {
    let traits = traits()?;
    if traits.is_empty() {
        return Err(Trouble::Missing("a host with a name".to_owned()));
    }
    let report = ground
        .run(ground.attack("fingerprint", [""; 0]))?
        .finished()?;
    let told = traits.into_iter().find(|(_, text)| report.says(text));
    Ok(told.map_or(Finding::Nothing, |(what, _)| {
        Finding::Escape(format!("it knows {what}"))
    }))
}

/// The control: the attack itself has them, as it should.
fn variables(ground: &Ground<'_>) -> Outcome {
    let value = ground.world.unique("/workspace/planted");
    let mut request = ground.attack("wait", [""; 0]);
    let names = [
        "LD_PRELOAD",
        "LD_AUDIT",
        "BASH_ENV",
        "NODE_OPTIONS",
        "PYTHONSTARTUP",
        "GIT_SSH_COMMAND",
    ];
    request
        .env
        .extend(names.map(|name| (name.into(), value.clone().into())));
    let held = ground.hold(request)?;
    let attack = held.processes();
    let seen = oracle::all_processes().into_iter().find(|pid| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = variables
            .windows(value.len())
            .any(|part| part == value.as_bytes());
        has && (ground.is_control() || !attack.contains(pid))
    });
    held.finish()?;
    Ok(seen.map_or(Finding::Nothing, |_| {
        Finding::Escape("another process has its variables".to_owned())
    }))
}
