//! What a program sees of the kernel, of devices, of other programs and of the host.

use crate::{
    runner::Proof,
    world::{Mode, Outcome, World, allowed, mount, outcome},
};
use spec::RunRequest;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::Command,
};

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        telling_files_of_proc_cannot_be_read,
        settings_of_the_kernel_are_read_only,
        the_first_process_cannot_be_looked_into,
        only_the_plain_devices_are_there,
        set_id_programs_gain_nothing,
        no_capability_is_in_any_set,
        shared_memory_is_not_shared_between_sandboxes,
        dev_shm_is_not_shared_between_sandboxes,
        abstract_sockets_are_not_shared_between_sandboxes,
        mounts_of_a_sandbox_do_not_reach_the_host,
        homes_and_secrets_of_the_host_are_not_there,
    ]
}

fn got(text: &str) -> Outcome {
    Outcome::Allowed(text.to_owned())
}

/// Those that this kernel has. Covered by a device that no mount inside lets anybody open; outside, some have
/// something in them.
fn telling_files_of_proc_cannot_be_read(world: &World) {
    let files = [
        "keys",
        "key-users",
        "timer_list",
        "kallsyms",
        "sched_debug",
        "latency_stats",
    ];
    let there: Vec<_> = files
        .iter()
        .filter(|name| fs::metadata(format!("/proc/{name}")).is_ok())
        .collect();
    let outside = there
        .iter()
        .filter(|name| fs::read(format!("/proc/{name}")).is_ok_and(|text| !text.is_empty()));
    assert!(
        outside.count() > 0,
        "the control: none of {there:?} has anything in it outside"
    );
    for name in there {
        let got = world.attempt(world.probe(&["read", &format!("/proc/{name}")]));
        // Container engines cover them with something empty.
        let covered = if world.maker.is_some() {
            allowed()
        } else {
            Outcome::Refused(libc::EACCES)
        };
        assert_eq!(got, covered, "/proc/{name}");
    }
    for name in ["acpi", "scsi"]
        .iter()
        .filter(|name| fs::metadata(format!("/proc/{name}")).is_ok())
    {
        assert_eq!(
            world.attempt(world.probe(&["list", &format!("/proc/{name}")])),
            allowed(),
            "/proc/{name}"
        );
    }
}

/// A user's program owns the settings of its network namespace: only the mount stops it.
fn settings_of_the_kernel_are_read_only(world: &World) {
    const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
    // A new namespace may have this host's setting: the other value is written.
    let now = match world.attempt(world.probe(&["read", FORWARD])) {
        now if now == got("0") => "0",
        now => {
            assert_eq!(now, got("1"));
            "1"
        }
    };
    let other = if now == "0" { "1" } else { "0" };
    let write = |path: &str| world.attempt(world.probe(&["write", path, other]));
    assert_eq!(write(FORWARD), Outcome::Refused(libc::EROFS));
    assert_eq!(write("/proc/self/comm"), allowed());
    assert_eq!(world.attempt(world.probe(&["read", FORWARD])), got(now));
}

fn the_first_process_cannot_be_looked_into(world: &World) {
    let refused = Outcome::Refused(libc::EACCES);
    let attempt = |name, path: &str| world.attempt(world.probe(&[name, path]));
    for name in ["root", "cwd", "exe"] {
        assert_eq!(
            attempt("link-target", &format!("/proc/1/{name}")),
            refused,
            "{name}"
        );
    }
    for name in ["environ", "mem", "maps"] {
        assert_eq!(
            attempt("read", &format!("/proc/1/{name}")),
            refused,
            "{name}"
        );
    }
    let own =
        ["root", "cwd", "exe"].map(|name| attempt("link-target", &format!("/proc/self/{name}")));
    assert_eq!(own, [got("/"), got("/workspace"), got("/probe/probe")]);
}

fn only_the_plain_devices_are_there(world: &World) {
    let inside = world.attempt(world.probe(&["list", "/dev"]));
    let plain = match world.maker {
        None => "fd full null random shm stderr stdin stdout urandom zero",
        // Every container has these; message queues are of its own namespace, terminals of its own file system.
        Some(_) => "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero",
    };
    assert_eq!(inside, got(plain));
    assert_eq!(
        world.attempt(world.probe(&["write", "/dev/null", "x"])),
        allowed()
    );
    assert_eq!(
        world.attempt(world.probe(&["write", "/dev/full", "x"])),
        Outcome::Refused(libc::ENOSPC)
    );
}

/// As root, a copy of the probe that makes everybody root outside, which is the control. A user can only make one
/// for himself.
fn set_id_programs_gain_nothing(world: &World) {
    let folder = world.fresh_folder("setuid");
    let copy = folder.join("probe");
    fs::copy(world.probe_folder.join("probe"), &copy).expect("a copy");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o6755)).expect("mode");
    if world.mode == Mode::Root {
        let outside = Command::new(&copy)
            .arg("ids")
            .uid(12345)
            .gid(12345)
            .output()
            .expect("a child");
        let ids = String::from_utf8_lossy(&outside.stdout).into_owned();
        assert_eq!(ids, "allowed [12345, 0, 0] [12345, 0, 0]\n", "the control");
    }
    let mounts = vec![mount(&folder, "/setuid", "ro")];
    let result = world.run(RunRequest {
        mounts,
        ..world.command(&["/setuid/probe", "ids"])
    });
    assert_eq!(
        outcome(&result),
        got("[1000, 1000, 1000] [1000, 1000, 1000]")
    );
}

fn no_capability_is_in_any_set(world: &World) {
    let result = world.run(world.command(&["grep", "^Cap", "/proc/self/status"]));
    let expected: String = ["Inh", "Prm", "Eff", "Bnd", "Amb"]
        .map(|set| format!("Cap{set}:\t{:016x}\n", 0))
        .concat();
    assert_eq!(String::from_utf8_lossy(&result.stdout), expected);
}

/// Runs a script beside another sandbox in which `before` has run, and then alone after `before`.
fn beside_and_after(world: &World, before: &str, attempt: &str) -> [Outcome; 2] {
    let shell = |script: String| {
        let probe = world.probe(&["true"]);
        RunRequest {
            command: ["sh", "-c", &script].map(Into::into).to_vec(),
            ..probe
        }
    };
    let engine = world.engine(&Default::default());
    let other = world.start_ready(
        &engine,
        shell(format!("{before}; exec /probe/probe hold other")),
    );
    let beside = outcome(&world.run_in(&engine, shell(format!("exec {attempt}"))));
    world.finish(other);
    let after = outcome(&world.run_in(&engine, shell(format!("{before}; {attempt}"))));
    [beside, after]
}

fn shared_memory_is_not_shared_between_sandboxes(world: &World) {
    let outcomes = beside_and_after(
        world,
        "/probe/probe shm-make 4711 > /dev/null",
        "/probe/probe shm-find 4711",
    );
    assert_eq!(outcomes, [Outcome::Refused(libc::ENOENT), allowed()]);
}

fn dev_shm_is_not_shared_between_sandboxes(world: &World) {
    for path in world.few([
        "/dev/shm/note",
        "/tmp/note",
        "/workspace/note",
        "/home/agent/note",
    ]) {
        let outcomes = beside_and_after(
            world,
            &format!("echo mine > {path}"),
            &format!("/probe/probe read {path}"),
        );
        assert_eq!(
            outcomes,
            [Outcome::Refused(libc::ENOENT), got("mine")],
            "{path}"
        );
    }
}

fn abstract_sockets_are_not_shared_between_sandboxes(world: &World) {
    // A FIFO keeps the server's input open; its first line says that it listens.
    let serve = "mkfifo /tmp/in /tmp/out; /probe/probe serve-abstract meet < /tmp/in > /tmp/out & \
                 exec 8> /tmp/in 9< /tmp/out; read ready <&9";
    let outcomes = beside_and_after(world, serve, "/probe/probe connect-abstract meet");
    assert_eq!(
        outcomes,
        [Outcome::Refused(libc::ECONNREFUSED), got("greetings")]
    );
}

fn mounts_of_a_sandbox_do_not_reach_the_host(world: &World) {
    let ours = |table: &str| {
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let ours = points.filter(|point| {
            ["/probe", "/workspace"].contains(point) || point.starts_with("/shown")
        });
        ours.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let folder = world.fresh_folder("shown");
    let mut request = world.command(&["sh", "-c", "cat /proc/self/mountinfo; echo ready; cat"]);
    request.mounts = vec![mount(&folder, "/shown", "rw")];
    let engine = world.engine(&Default::default());
    let run = world.start_ready(&engine, request);
    let outside = fs::read_to_string("/proc/self/mountinfo").expect("mounts of the host");
    let inside = String::from_utf8_lossy(&world.finish(run).stdout).into_owned();
    let expected = ["/workspace", "/shown"].map(str::to_owned).into();
    assert_eq!((ours(&outside), ours(&inside)), (BTreeSet::new(), expected));
    assert!(
        !outside.contains("airlock-conformance"),
        "nothing is mounted in our folder outside"
    );
}

fn homes_and_secrets_of_the_host_are_not_there(world: &World) {
    let root = world.attempt(world.probe(&["list", "/"]));
    let Outcome::Allowed(names) = root else {
        panic!("{root:?}")
    };
    // Container engines leave their own marks.
    let engines = [".airlock", ".dockerenv", "var"].map(|name| (name, world.maker.is_some()));
    let usual = ["bin", "lib", "lib32", "lib64", "libx32", "sbin"].map(|name| (name, true));
    let unexpected: Vec<_> = names
        .split(' ')
        .filter(|name| !usual.contains(&(*name, true)) && !engines.contains(&(*name, true)))
        .collect();
    assert_eq!(
        unexpected,
        [
            "dev",
            "etc",
            "home",
            "probe",
            "proc",
            "run",
            "sys",
            "tmp",
            "usr",
            "workspace"
        ]
    );
    for path in world.few(["/etc/shadow", "/var", "/home/root", "/boot", "/root"]) {
        assert_eq!(
            world.attempt(world.probe(&["read", path])),
            Outcome::Refused(libc::ENOENT),
            "{path}"
        );
    }
    let users = world.attempt(world.probe(&["read", "/etc/group"]));
    assert_eq!(users, got("agent:x:1000: nogroup:x:65534:"));
}
