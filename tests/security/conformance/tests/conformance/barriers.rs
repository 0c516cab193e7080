//! For each barrier: with everything on it is listed and the attempt fails; without its step it is not listed and
//! the same attempt succeeds. Where another layer stops the attempt too, that layer is left out in both.

use crate::{
    runner::Proof,
    world::{Mode, Outcome, Without, World, allowed, mount, native, outcome},
};
use init::step::Step;
use spec::{Barrier, LimitName, LimitSet, Network, RunRequest, RunResult, User};
use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, TcpListener},
    os::{
        linux::net::SocketAddrExt,
        unix::{fs::PermissionsExt, net as unix},
    },
    path::PathBuf,
};

/// A variable of this process that no program may see.
pub(crate) const CANARY: &str = "AIRLOCK_CONFORMANCE_CANARY";
/// What an oracle of the host says to whoever reaches it.
const GREETINGS: &str = "greetings";

/// One row: an attempt, and what it must come to in three sandboxes.
struct Case {
    request: RunRequest,
    /// A program that runs beside it in another sandbox of the same engine.
    companion: Option<RunRequest>,
    /// Other layers that stop the same attempt.
    beside: Vec<Step>,
    /// What makes the barrier.
    omit: Without,
    /// What stands with everything on.
    standing: Vec<Barrier>,
    /// With everything on.
    full: Outcome,
    /// With this barrier alone in the way.
    alone: Outcome,
    /// Without the barrier.
    without: Outcome,
    /// Something of the host's that lives as long as the case.
    oracle: Option<Segment>,
}

/// Shared memory of the host's.
struct Segment(i32);

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: integers, and no struct for this command.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

impl Case {
    fn new(world: &World, request: RunRequest, denied: Outcome, omit: &[Step]) -> Case {
        Case {
            request,
            companion: None,
            beside: Vec::new(),
            omit: Without {
                steps: omit.to_vec(),
                cgroups: false,
            },
            standing: world.usual_barriers(),
            full: denied.clone(),
            alone: denied,
            without: allowed(),
            oracle: None,
        }
    }
}

type Row = (Barrier, fn(&World) -> Case);

/// Every barrier of this backend; the second of `path_rules` is about sockets instead of files.
const TABLE: [Row; 21] = [
    (Barrier::OwnUser, own_user),
    (Barrier::OwnPid, own_pid),
    (Barrier::OwnMount, own_mount),
    (Barrier::OwnNet, own_net),
    (Barrier::OwnIpc, own_ipc),
    (Barrier::OwnUts, own_uts),
    (Barrier::OwnCgroup, own_cgroup),
    (Barrier::NoNetwork, no_network),
    (Barrier::DoorsOnly, doors_only),
    (Barrier::ReadOnlyRoot, read_only_root),
    (Barrier::NoCapabilities, no_capabilities),
    (Barrier::NoNewPrivileges, no_new_privileges),
    (Barrier::SyscallFilter, syscall_filter),
    (Barrier::PathRules, path_rules),
    (Barrier::PathRules, path_rules_for_sockets),
    (Barrier::MemoryLimit, memory_limit),
    (Barrier::PidsLimit, pids_limit),
    (Barrier::CpuLimit, cpu_limit),
    (Barrier::DiskLimit, disk_limit),
    (Barrier::EmptyEnvironment, empty_environment),
    (Barrier::NotHostRoot, not_host_root),
];

pub(crate) fn proofs() -> Vec<Proof> {
    let row = |row: usize| Proof {
        name: format!("barrier_{}_{row}", TABLE[row].0.name()),
        claim: |world, row| prove(world, TABLE[row].1(world)),
        row,
    };
    let mut all: Vec<_> = (0..TABLE.len()).map(row).collect();
    all.extend(crate::proofs![every_barrier_has_a_proof]);
    all
}

fn every_barrier_has_a_proof(_world: &World) {
    let unproven: Vec<_> = Barrier::ALL
        .iter()
        .filter(|barrier| TABLE.iter().all(|(proven, _)| proven != *barrier))
        .collect();
    // Only a virtual machine has it, and this backend never lists it.
    assert_eq!(unproven, [&Barrier::OwnKernel]);
}

/// Whoever is out of CPU time is asked to end, and half a second later made to. A busy container engine may pass the first word on
/// too late: the limit is the same. Boxes of our own are asked without anybody in between.
fn ended(world: &World, result: &RunResult) -> Outcome {
    let is_by_time = world.maker.is_some() && result.limits_hit.contains(&LimitName::CpuTime);
    match outcome(result) {
        Outcome::Killed(libc::SIGKILL) if is_by_time => Outcome::Killed(libc::SIGXCPU),
        outcome => outcome,
    }
}

fn prove(world: &World, case: Case) {
    let beside = Without {
        steps: case.beside.clone(),
        cgroups: false,
    };
    let all_out = Without {
        steps: [case.beside.clone(), case.omit.steps.clone()].concat(),
        cgroups: case.omit.cgroups,
    };
    let sandboxes = [
        ("with everything", Without::default(), &case.full),
        ("alone", beside, &case.alone),
        ("without", all_out, &case.without),
    ];
    for (place, without, expected) in sandboxes {
        if place == "alone" && case.beside.is_empty() {
            continue; // the same sandbox as before
        }
        let control = world.maker.is_some() && !without.is_nothing();
        let made = |request: &RunRequest| match (control, &world.maker) {
            (true, _) => native(request.clone()),
            // No container is made for root: the claim is about anybody else.
            (false, Some(_)) => RunRequest {
                user: None,
                ..request.clone()
            },
            (false, None) => request.clone(),
        };
        let engine = world.engine(&without);
        let companion = case
            .companion
            .as_ref()
            .map(|request| world.start_ready(&engine, made(request)));
        let result = world.run_in(&engine, made(&case.request));
        companion
            .into_iter()
            .for_each(|run| drop(world.finish(run)));
        assert_eq!(
            ended(world, &result),
            *expected,
            "the attempt {place}, {without:?}"
        );
        if control {
            continue; // whose barriers are its own
        }
        let standing: Vec<_> = case
            .standing
            .iter()
            .copied()
            .filter(|it| !lost(world, &without, *it))
            .collect();
        assert_eq!(
            result.barriers, standing,
            "the barriers {place}, {without:?}"
        );
    }
    drop(case.oracle);
}

/// Whether a barrier falls without these: what each step is for, said independently of the product.
fn lost(world: &World, without: &Without, barrier: Barrier) -> bool {
    let lacks = |step| without.steps.contains(&step);
    let no_groups = without.cgroups || !world.has_cgroups();
    match barrier {
        Barrier::OwnUser => lacks(Step::EnterUserNamespace),
        Barrier::OwnPid => lacks(Step::PidNamespace),
        Barrier::OwnMount => lacks(Step::MountNamespace),
        Barrier::OwnNet | Barrier::NoNetwork | Barrier::DoorsOnly => lacks(Step::NetNamespace),
        Barrier::OwnIpc => lacks(Step::IpcNamespace),
        Barrier::OwnUts => lacks(Step::UtsNamespace),
        Barrier::OwnCgroup => lacks(Step::CgroupNamespace),
        Barrier::ReadOnlyRoot => lacks(Step::ReadOnlyRoot),
        Barrier::NoCapabilities => lacks(Step::NoCapabilities),
        Barrier::NoNewPrivileges => lacks(Step::NoNewPrivileges),
        Barrier::SyscallFilter => lacks(Step::SyscallFilter),
        Barrier::PathRules => lacks(Step::PathRules),
        Barrier::MemoryLimit | Barrier::CpuLimit => no_groups,
        // The resource limit counts per user namespace, so it holds only with one.
        Barrier::PidsLimit => {
            no_groups && (lacks(Step::ResourceLimits) || lacks(Step::EnterUserNamespace))
        }
        Barrier::DiskLimit => lacks(Step::Scratch),
        Barrier::EmptyEnvironment => lacks(Step::EmptyEnvironment),
        // An ordinary user's program is never the host's root.
        Barrier::NotHostRoot => world.mode == Mode::Root && lacks(Step::Credentials),
        Barrier::OwnKernel => true,
    }
}

const ROOT_INSIDE: Option<User> = Some(User { uid: 0, gid: 0 });

/// With all capabilities of its own user namespace, and nothing else in the way, it cannot change mounts, which
/// belong to the launcher's. Root's program must also stay root to keep capabilities outside of its namespace.
fn own_user(world: &World) -> Case {
    let request = RunRequest {
        user: ROOT_INSIDE,
        ..world.probe(&["mount", "/tmp"])
    };
    let omit = [Step::EnterUserNamespace, Step::Credentials];
    let beside = vec![Step::NoCapabilities, Step::SyscallFilter, Step::PathRules];
    Case {
        beside,
        ..Case::new(world, request, Outcome::Refused(libc::EPERM), &omit)
    }
}

/// To see it is enough: signals between sandboxes are stopped by Landlock and by their different ids, too.
fn own_pid(world: &World) -> Case {
    let marker = world.unique("marker");
    let request = world.probe(&["find-process", &marker]);
    let companion = Some(world.probe(&["hold", &marker]));
    let denied = Outcome::Refused(libc::ESRCH);
    Case {
        companion,
        ..Case::new(world, request, denied, &[Step::PidNamespace])
    }
}

/// The mount of another sandbox, with its host path, is in the one table then. One table has one `/proc`, in which
/// both must find themselves, so they share their processes, too.
fn own_mount(world: &World) -> Case {
    let shown = world.fresh_folder("shown");
    let name = shown
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let mut companion = world.probe(&["hold", "mounts"]);
    companion
        .mounts
        .push(mount(&shown, "/workspace/shown", "ro"));
    let request = world.probe(&["find-in", "/proc/self/mountinfo", &name]);
    let denied = Outcome::Refused(libc::ENOENT);
    let beside = vec![Step::PidNamespace];
    Case {
        companion: Some(companion),
        beside,
        ..Case::new(world, request, denied, &[Step::MountNamespace])
    }
}

/// Landlock refuses foreign abstract sockets, too.
fn own_net(world: &World) -> Case {
    let request = world.probe(&["connect-abstract", &greet_on_abstract_socket(world)]);
    let denied = Outcome::Refused(libc::ECONNREFUSED);
    let case = Case::new(world, request, denied, &[Step::NetNamespace]);
    Case {
        beside: vec![Step::PathRules],
        without: greeted(),
        ..case
    }
}

fn own_ipc(world: &World) -> Case {
    let key = std::process::id() as i32;
    // SAFETY: integers.
    let id = unsafe { libc::shmget(key, 4096, libc::IPC_CREAT | 0o666) };
    assert_ne!(id, -1, "prerequisite: System V shared memory");
    let request = world.probe(&["shm-find", &key.to_string()]);
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::ENOENT),
        &[Step::IpcNamespace],
    );
    Case {
        oracle: Some(Segment(id)),
        ..case
    }
}

fn own_uts(world: &World) -> Case {
    let host = fs::read_to_string("/proc/sys/kernel/hostname")
        .expect("host name")
        .trim_end()
        .to_owned();
    assert_ne!(
        host, "airlock",
        "prerequisite: a host that is not called like every sandbox"
    );
    let inside = Outcome::Allowed("airlock".to_owned());
    let case = Case::new(
        world,
        world.probe(&["host-name"]),
        inside,
        &[Step::UtsNamespace],
    );
    Case {
        without: Outcome::Allowed(host),
        ..case
    }
}

fn own_cgroup(world: &World) -> Case {
    let host = fs::read_link("/proc/self/ns/cgroup").expect("own namespace");
    let request = world.probe(&["same-namespace", "cgroup", &host.to_string_lossy()]);
    let held = if world.shares_cgroups() {
        allowed()
    } else {
        Outcome::Refused(libc::EXDEV)
    };
    Case::new(world, request, held, &[Step::CgroupNamespace])
}

fn no_network(world: &World) -> Case {
    let request = world.probe(&["connect", &greet_on_loopback()]);
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::ECONNREFUSED),
        &[Step::NetNamespace],
    );
    Case {
        without: greeted(),
        ..case
    }
}

fn doors_only(world: &World) -> Case {
    let asked = world.probe(&["connect", &greet_on_loopback()]);
    let request = RunRequest {
        network: Some(Network::Doors),
        doors: vec![8080],
        ..asked
    };
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::ECONNREFUSED),
        &[Step::NetNamespace],
    );
    let usual = world.usual_barriers();
    let door = |barrier| {
        if barrier == Barrier::NoNetwork {
            Barrier::DoorsOnly
        } else {
            barrier
        }
    };
    Case {
        standing: usual.into_iter().map(door).collect(),
        without: greeted(),
        ..case
    }
}

/// As the owner of the root, and without Landlock.
fn read_only_root(world: &World) -> Case {
    let request = world.probe(&["make-folder", "/made-inside"]);
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::EROFS),
        &[Step::ReadOnlyRoot],
    );
    Case {
        beside: vec![Step::PathRules, Step::Credentials],
        ..case
    }
}

fn no_capabilities(world: &World) -> Case {
    let request = RunRequest {
        user: ROOT_INSIDE,
        ..world.probe(&["read-own-unreadable"])
    };
    Case::new(
        world,
        request,
        Outcome::Refused(libc::EACCES),
        &[Step::NoCapabilities],
    )
}

/// Uid 0 gets capabilities back at exec, unless this forbids it or there are none to be had.
fn no_new_privileges(world: &World) -> Case {
    let request = RunRequest {
        user: ROOT_INSIDE,
        ..world.probe(&["regain-at-exec"])
    };
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::EACCES),
        &[Step::NoNewPrivileges],
    );
    Case {
        beside: vec![Step::NoCapabilities],
        ..case
    }
}

fn syscall_filter(world: &World) -> Case {
    Case::new(
        world,
        world.probe(&["ptrace"]),
        Outcome::Refused(libc::EPERM),
        &[Step::SyscallFilter],
    )
}

/// As the owner of a root that is not read-only.
fn path_rules(world: &World) -> Case {
    assert!(
        init::landlock_version() > 0,
        "prerequisite: a kernel with Landlock switched on"
    );
    let request = world.probe(&["make-folder", "/made-inside"]);
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::EROFS),
        &[Step::PathRules],
    );
    let beside = vec![Step::ReadOnlyRoot, Step::Credentials];
    Case {
        beside,
        alone: Outcome::Refused(libc::EACCES),
        ..case
    }
}

/// On the host's network. Landlock before version 6 does not know about sockets.
fn path_rules_for_sockets(world: &World) -> Case {
    let request = world.probe(&["connect-abstract", &greet_on_abstract_socket(world)]);
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::ECONNREFUSED),
        &[Step::PathRules],
    );
    let scoped = init::landlock_version() >= 6;
    let alone = if scoped {
        Outcome::Refused(libc::EPERM)
    } else {
        greeted()
    };
    Case {
        beside: vec![Step::NetNamespace],
        alone,
        without: greeted(),
        ..case
    }
}

fn limited(request: RunRequest, change: impl FnOnce(&mut LimitSet)) -> RunRequest {
    let mut limits = request.limits.clone();
    change(&mut limits);
    RunRequest { limits, ..request }
}

const WITHOUT_CGROUPS: Without = Without {
    steps: Vec::new(),
    cgroups: true,
};

/// Processes each within the limit, all together far over it: whoever looks late still comes before their end. Without
/// cgroups that is not held, and not listed.
fn memory_limit(world: &World) -> Case {
    let asked = world.probe(&["take-memory", "48", "2"]);
    let request = limited(asked, |limits| limits.memory = "64M".parse().ok());
    // One of the two children was killed.
    let held = if world.has_cgroups() {
        Outcome::Refused(libc::EINTR)
    } else {
        allowed()
    };
    Case {
        omit: WITHOUT_CGROUPS,
        ..Case::new(world, request, held, &[])
    }
}

/// Held twice: by the cgroup, and by a resource limit that counts per user namespace.
fn pids_limit(world: &World) -> Case {
    let request = limited(world.probe(&["take-pids", "40"]), |limits| {
        limits.pids = Some(16)
    });
    let omit = Without {
        steps: vec![Step::ResourceLimits],
        cgroups: true,
    };
    Case {
        omit,
        ..Case::new(world, request, Outcome::Refused(libc::EAGAIN), &[])
    }
}

/// Processes each within the limit, all together far over it: whoever looks late still comes before their end. Without
/// cgroups that is not held, and not listed.
fn cpu_limit(world: &World) -> Case {
    let request = limited(world.probe(&["take-cpu", "700", "4"]), |limits| {
        limits.cpu_time = "1s".parse().ok()
    });
    let held = if world.has_cgroups() {
        Outcome::Killed(libc::SIGXCPU)
    } else {
        allowed()
    };
    Case {
        omit: WITHOUT_CGROUPS,
        ..Case::new(world, request, held, &[])
    }
}

fn disk_limit(world: &World) -> Case {
    let request = limited(world.probe(&["fill", "/tmp/full", "32"]), |limits| {
        limits.disk = "16M".parse().ok()
    });
    Case::new(
        world,
        request,
        Outcome::Refused(libc::ENOSPC),
        &[Step::Scratch],
    )
}

fn empty_environment(world: &World) -> Case {
    let request = world.probe(&["variable", CANARY]);
    let case = Case::new(
        world,
        request,
        Outcome::Refused(libc::ENOENT),
        &[Step::EmptyEnvironment],
    );
    Case {
        without: Outcome::Allowed("leaked".to_owned()),
        ..case
    }
}

/// A file that only the host's root may read. A user's program cannot be root, with or without the step.
fn not_host_root(world: &World) -> Case {
    let (folder, name) = roots_secret(world);
    let mut request = world.probe(&["read", &format!("/canary/{name}")]);
    request.mounts.push(mount(&folder, "/canary", "ro"));
    let denied = Outcome::Refused(libc::EACCES);
    let case = Case::new(world, request, denied.clone(), &[Step::Credentials]);
    let without = match world.mode {
        Mode::Root => Outcome::Allowed("secret of root".to_owned()),
        Mode::User => denied,
    };
    Case { without, ..case }
}

fn roots_secret(world: &World) -> (PathBuf, String) {
    match world.mode {
        Mode::Root => {
            let folder = world.fresh_folder("canary");
            fs::write(folder.join("secret"), "secret of root").expect("canary");
            fs::set_permissions(folder.join("secret"), fs::Permissions::from_mode(0o600))
                .expect("mode");
            (folder, "secret".to_owned())
        }
        Mode::User => {
            let path = PathBuf::from("/etc/shadow");
            assert!(
                path.exists() && fs::read(&path).is_err(),
                "prerequisite: /etc/shadow is root's alone"
            );
            (PathBuf::from("/etc"), "shadow".to_owned())
        }
    }
}

fn greeted() -> Outcome {
    Outcome::Allowed(GREETINGS.to_owned())
}

/// A listener on the host's loopback; lives as long as this process.
pub(crate) fn greet_on_loopback() -> String {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("prerequisite: loopback is up");
    let address = listener.local_addr().expect("address").to_string();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            _ = stream.write_all(GREETINGS.as_bytes());
        }
    });
    address
}

fn greet_on_abstract_socket(world: &World) -> String {
    let name = world.unique("airlock-conformance");
    let address = unix::SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = unix::UnixListener::bind_addr(&address).expect("an abstract socket");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            _ = stream.write_all(GREETINGS.as_bytes());
        }
    });
    name
}
