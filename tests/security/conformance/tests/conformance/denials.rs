//! What a program was denied is told, with what would allow it; what it was not denied never is. The control for
//! each answer is the kernel's own, in a sandbox in which nobody looks at calls.

use crate::{
    runner::Proof,
    world::{Mode, Outcome, World, admit, allowed, mount, native, outcome},
};
use engine::{Engine, PoolSettings, Settings};
use init::{
    seccomp::{self, FilterAction},
    step::Step,
};
use spec::{Denial, Network, RunEvent, RunRequest, RunResult, Status, StdStream};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// In which time a denial must be heard of.
const SOON: Duration = Duration::from_secs(5);

/// What container engines are told to refuse themselves, and tell nobody of.
const REFUSED_BY_ENGINES: [&str; 10] = [
    "acct",
    "bpf",
    "delete_module",
    "finit_module",
    "init_module",
    "kexec_file_load",
    "kexec_load",
    "reboot",
    "swapoff",
    "swapon",
];

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        every_refused_call_is_told_once_and_by_its_name,
        calls_refused_by_argument_are_told,
        the_number_of_denials_told_is_bounded,
        connections_out_are_told_and_those_within_are_not,
        an_address_alone_is_no_connection,
        writes_to_the_read_only_root_are_told,
        writes_to_a_read_only_mount_are_told,
        writes_to_protected_names_are_told,
        a_session_that_works_is_denied_nothing,
        the_answers_are_those_of_the_kernel,
        what_fails_for_other_reasons_is_left_to_the_kernel,
        a_denial_is_heard_of_while_the_program_runs,
        a_path_that_changes_under_the_look_opens_nothing,
        neither_a_second_listener_nor_an_undumpable_program_escapes_the_look,
        a_sandbox_made_ahead_tells_as_much,
    ]
}

fn denial(what: &str, target: &str, rule: &str, allow_with: &str) -> Denial {
    let [what, target, rule, allow_with] = [what, target, rule, allow_with].map(str::to_owned);
    Denial {
        what,
        target,
        rule,
        allow_with,
    }
}

fn refused(what: &str, target: &str) -> Denial {
    denial(what, target, "syscall_filter", "nothing")
}

fn in_root(target: &str) -> Denial {
    denial("write", target, "read_only_root", "--mount HOST:INSIDE:rw")
}

/// Every call twice.
fn calls(world: &World, calls: &[String]) -> RunResult {
    let twice: Vec<_> = ["calls".to_owned()]
        .into_iter()
        .chain(calls.iter().cloned())
        .chain(calls.iter().cloned())
        .collect();
    world.run(world.probe(&twice))
}

fn always_refused() -> Vec<(i64, i32)> {
    (0..)
        .zip(seccomp::table())
        .filter_map(|(number, verdict)| match verdict {
            FilterAction::Refuse(errno) => Some((number, i32::from(errno))),
            _ => None,
        })
        .collect()
}

fn every_refused_call_is_told_once_and_by_its_name(world: &World) {
    let all = always_refused();
    assert!(
        all.len() > 60 && all.contains(&(libc::SYS_mount, libc::EPERM)),
        "{all:?}"
    );
    for some in all.chunks(40) {
        let numbers: Vec<_> = some.iter().map(|(number, _)| number.to_string()).collect();
        let result = calls(world, &numbers);
        let errors: Vec<_> = some
            .iter()
            .chain(some)
            .map(|(_, errno)| errno.to_string())
            .collect();
        assert_eq!(outcome(&result), Outcome::Allowed(errors.join(" ")));
        let names = some
            .iter()
            .map(|(number, _)| seccomp::name(*number).expect("a name"));
        let heard =
            names.filter(|name| world.maker.is_none() || !REFUSED_BY_ENGINES.contains(name));
        let expected: Vec<_> = heard.map(|name| refused(name, "")).collect();
        assert_eq!(result.denials, expected);
    }
}

fn calls_refused_by_argument_are_told(world: &World) {
    let user = libc::CLONE_NEWUSER;
    let rows = [
        (
            format!("{}:{user}", libc::SYS_clone),
            libc::EPERM,
            refused("clone", "flags 0x10000000"),
        ),
        (
            format!("{}:{user}", libc::SYS_unshare),
            libc::EPERM,
            refused("unshare", "flags 0x10000000"),
        ),
        (
            format!("{}:40:1:0", libc::SYS_socket),
            libc::EAFNOSUPPORT,
            refused("socket", "family 40"),
        ),
        // NETLINK_AUDIT
        (
            format!("{}:16:3:9", libc::SYS_socket),
            libc::EAFNOSUPPORT,
            refused("socket", "family 16"),
        ),
        (
            format!("{}:2:1:262", libc::SYS_socket),
            libc::EPROTONOSUPPORT,
            refused("socket", "protocol 262"),
        ),
        // SOCK_PACKET
        (
            format!("{}:2:10:0", libc::SYS_socket),
            libc::ESOCKTNOSUPPORT,
            refused("socket", "kind 10"),
        ),
        (
            format!("{}:0:1:{}", libc::SYS_setsockopt, libc::SO_ATTACH_FILTER),
            libc::ENOPROTOOPT,
            refused("setsockopt", "option 26"),
        ),
        (
            format!("{}:9:9:2", libc::SYS_close_range),
            libc::EINVAL,
            refused("close_range", "flags 0x2"),
        ),
        (
            format!("{}:2:1:0", libc::SYS_socketpair),
            libc::EAFNOSUPPORT,
            refused("socketpair", "family 2"),
        ),
        (
            format!("{}:1:{}", libc::SYS_fchmod, 0o4755),
            libc::EPERM,
            refused("fchmod", ""),
        ),
        (
            format!("{}:1:0:0", libc::SYS_prlimit64),
            libc::EPERM,
            refused("prlimit64", "pid 1"),
        ),
        (
            format!("{}:1:{}:0", libc::SYS_fcntl, libc::F_SETLEASE),
            libc::EPERM,
            refused("fcntl", "F_SETLEASE"),
        ),
        (
            format!("{}:1:{}:0", libc::SYS_fcntl, libc::F_OFD_SETLK),
            libc::EINVAL,
            refused("fcntl", "F_OFD_SETLK"),
        ),
        (
            format!("{}:0:{}", libc::SYS_ioctl, 0x5412),
            libc::EPERM,
            refused("ioctl", "request 0x5412"),
        ),
        (
            format!("{}:{}", libc::SYS_personality, 0x4_0000),
            libc::EPERM,
            refused("personality", "0x40000"),
        ),
    ];
    let made: Vec<_> = rows.iter().map(|(call, ..)| call.clone()).collect();
    let result = calls(world, &made);
    let errors: Vec<_> = rows
        .iter()
        .chain(&rows)
        .map(|(_, errno, _)| errno.to_string())
        .collect();
    assert_eq!(outcome(&result), Outcome::Allowed(errors.join(" ")));
    assert_eq!(result.denials, rows.map(|(_, _, denial)| denial));
    let named = world.run(world.probe(&["mount", "/mnt"]));
    assert_eq!(named.denials, [refused("mount", "/mnt")]);
    // What C libraries try in passing: a new way to fork, and routes in name lookups.
    let in_passing = [
        format!("{}", libc::SYS_clone3),
        format!("{}:16:3:0", libc::SYS_socket),
        "500".to_owned(),
    ];
    assert_eq!(calls(world, &in_passing).denials, []);
}

fn the_number_of_denials_told_is_bounded(world: &World) {
    let numbers = always_refused()
        .into_iter()
        .map(|(number, _)| number.to_string());
    let families = (30..44).map(|family| format!("{}:{family}:1:0", libc::SYS_socket));
    let result = calls(world, &numbers.chain(families).collect::<Vec<_>>());
    assert_eq!(result.denials.len(), 64);
    assert!(
        result
            .notes
            .iter()
            .any(|note| note.contains("more than 64")),
        "{:?}",
        result.notes
    );
}

fn connections_out_are_told_and_those_within_are_not(world: &World) {
    let unreachable = Outcome::Refused(libc::ENETUNREACH);
    for network in [Network::None, Network::Doors] {
        for out in world.few(["1.2.3.4:443", "[2001:db8::1]:80", "[::ffff:1.2.3.4]:80"]) {
            let request = || RunRequest {
                network: Some(network),
                ..world.probe(&["connect", out])
            };
            let result = world.run(request());
            assert_eq!(outcome(&result), unreachable, "{out}");
            assert_eq!(
                result.denials,
                [denial("connect", out, "network", "--allow-host HOST")]
            );
            assert_eq!(
                world.attempt_without(request(), &[Step::SyscallFilter]),
                unreachable,
                "the kernel's {out}"
            );
        }
        let all = [
            "127.0.0.1:9",
            "127.1.2.3:9",
            "[::1]:9",
            "0.0.0.0:9",
            "[::ffff:127.0.0.1]:9",
        ];
        // Docker gives no container an address of IP version 6.
        let all = all
            .into_iter()
            .filter(|to| world.maker.is_none() || *to != "[::1]:9");
        for within in world.few(all) {
            let result = world.run(RunRequest {
                network: Some(network),
                ..world.probe(&["connect", within])
            });
            assert_eq!(
                (outcome(&result), result.denials),
                (Outcome::Refused(libc::ECONNREFUSED), vec![])
            );
        }
    }
    let request = world.probe(&["connect", &crate::barriers::greet_on_loopback()]);
    let host = world.run(RunRequest {
        network: Some(Network::Host),
        ..native(request)
    });
    assert_eq!(
        (outcome(&host), host.denials),
        (Outcome::Allowed("greetings".to_owned()), vec![])
    );
}

fn an_address_alone_is_no_connection(world: &World) {
    for (socket, errno) in [
        ("unix", libc::EINVAL),
        ("closed", libc::EBADF),
        ("output", libc::ENOTSOCK),
    ] {
        let result = world.run(world.probe(&["connect-as", socket, "1.2.3.4:443"]));
        assert_eq!(
            (outcome(&result), result.denials),
            (Outcome::Refused(errno), vec![]),
            "{socket}"
        );
    }
}

fn writes_to_the_read_only_root_are_told(world: &World) {
    let rows: [(&[&str], &str); 10] = [
        (&["write", "/usr/x", "x"], "/usr/x"),
        (&["write", "/etc/x", "x"], "/etc/x"),
        (&["write", "/x", "x"], "/x"),
        (&["write", "../usr/bin/../x", "x"], "/usr/x"),
        (&["make-new", "/usr/x"], "/usr/x"),
        (&["make-folder", "/usr/x/"], "/usr/x"),
        (&["make-link", "/tmp", "/usr/x"], "/usr/x"),
        (&["remove", "/usr/bin/env"], "/usr/bin/env"),
        (&["rename", "/usr/bin/env", "/usr/bin/x"], "/usr/bin/x"),
        (&["write", "/etc/hosts", "x"], "/etc/hosts"),
    ];
    for (attempt, target) in world.few(rows) {
        let result = world.run(world.probe(attempt));
        assert!(
            matches!(outcome(&result), Outcome::Refused(_)),
            "{attempt:?}"
        );
        assert_eq!(result.denials, [in_root(target)], "{attempt:?}");
    }
    let kernel = world.run(world.probe(&["write", "/proc/sys/kernel/hostname", "x"]));
    assert_eq!(
        kernel.denials,
        [denial(
            "write",
            "/proc/sys/kernel/hostname",
            "read_only_root",
            "nothing"
        )]
    );
}

fn writes_to_a_read_only_mount_are_told(world: &World) {
    let folder = world.fresh_folder("mounted");
    let result = |access: &str| {
        let mut request = world.probe(&["write", "/mounted/x", "x"]);
        request.mounts.push(mount(&folder, "/mounted", access));
        world.run(request).denials
    };
    let remedy = format!("--mount {}:/mounted:rw", folder.display());
    assert_eq!(
        result("ro"),
        [denial("write", "/mounted/x", "mount", &remedy)]
    );
    assert_eq!(result("rw"), []);
}

fn repository(world: &World) -> PathBuf {
    let workspace = world.fresh_workspace();
    fs::create_dir(workspace.join(".vscode")).expect("a folder");
    for (name, content) in [(".envrc", "as it was"), ("own", "own")] {
        fs::write(workspace.join(name), content).expect("a file");
    }
    world.give(&workspace);
    workspace
}

fn in_workspace(world: &World, workspace: &Path, arguments: &[&str]) -> RunRequest {
    RunRequest {
        workspace: Some(workspace.to_owned()),
        ..world.probe(arguments)
    }
}

fn writes_to_protected_names_are_told(world: &World) {
    let workspace = repository(world);
    let truncate = libc::SYS_truncate.to_string();
    // What, the protected name, the error.
    let rows: [(&[&str], &str, &str, i32); 6] = [
        (
            &["call-on", &truncate, ".envrc"],
            ".envrc",
            ".envrc",
            libc::EROFS,
        ),
        (
            &["write", ".vscode/x", "x"],
            ".vscode/x",
            ".vscode",
            libc::EROFS,
        ),
        (&["write", ".envrc", "x"], ".envrc", ".envrc", libc::EROFS),
        (
            &["rename", "own", ".envrc"],
            ".envrc",
            ".envrc",
            libc::EBUSY,
        ),
        (&["remove", ".envrc"], ".envrc", ".envrc", libc::EBUSY),
        (
            &["rename", ".vscode", "moved"],
            ".vscode",
            ".vscode",
            libc::EBUSY,
        ),
    ];
    for (attempt, target, name, errno) in world.few(rows) {
        let result = world.run(in_workspace(world, &workspace, attempt));
        assert_eq!(outcome(&result), Outcome::Refused(errno), "{attempt:?}");
        let (target, remedy) = (
            format!("/workspace/{target}"),
            format!("--allow-protected {name}"),
        );
        assert_eq!(
            result.denials,
            [denial("write", &target, "protected", &remedy)],
            "{attempt:?}"
        );
        let kernels = world.attempt_without(
            in_workspace(world, &workspace, attempt),
            &[Step::SyscallFilter],
        );
        assert_eq!(kernels, Outcome::Refused(errno), "the kernel's {attempt:?}");
        // The remedy is one.
        let mut request = in_workspace(world, &workspace, attempt);
        request.allow_protected = vec![name.into()];
        let released = world.run(request);
        assert_eq!(
            (outcome(&released), released.denials),
            (allowed(), vec![]),
            "{attempt:?}"
        );
        fs::remove_dir_all(&workspace).expect("our own folder");
        fs::rename(repository(world), &workspace).expect("a fresh one in its place");
    }
    // From one mount to another nothing is renamed, so `mv` copies: where it may.
    let moved = |allowed: &[&str]| RunRequest {
        workspace: Some(workspace.clone()),
        allow_protected: allowed.iter().map(Into::into).collect(),
        ..world.command(&["mv", "own", ".vscode/x"])
    };
    let denied = world.run(moved(&[]));
    let told = denial(
        "write",
        "/workspace/.vscode/x",
        "protected",
        "--allow-protected .vscode",
    );
    assert_eq!(
        (denied.status, denied.denials),
        (Status::Failed, vec![told])
    );
    let released = world.run(moved(&[".vscode"]));
    assert_eq!(
        (released.status, released.denials),
        (Status::Succeeded, vec![])
    );
}

/// Whatever fails here fails for reasons of its own.
fn a_session_that_works_is_denied_nothing(world: &World) {
    let script = "set -e; cd /workspace; echo a > a; cp a b; mv b c; ln c d; ln -s d e; mkdir -p f/g; cp a f/g; chmod 600 a
        : > /dev/null; echo x > /dev/null; echo y > /tmp/y; rm /tmp/y; cat /etc/passwd > e; ls -l /usr/bin > /tmp/l 2>&1
        mkdir -p /usr/bin /workspace/f/g /tmp; cd f/g; echo > ../../here; cd /; rm -rf /workspace/f; rm -f /workspace/none /usr/none
        sh -c 'echo > /none/x' 2>&1 || true; mkdir /usr/none/x 2>&1 || true; cat < /etc/none 2>&1 || true; sh -c 'cd /usr && ls > /tmp/l'
        mkdir /usr/bin 2>&1 || true; rmdir /workspace/none 2>&1 || true; mv /tmp/none /usr/x 2>&1 || true; head -c 1 /dev/zero > /tmp/z
        sh -c 'echo x > /etc' 2>&1 || true; : > /proc/self/comm; echo done";
    let workspaces = [None, Some(repository(world))];
    for workspace in workspaces {
        let result = world.run(RunRequest {
            workspace,
            ..world.command(&["sh", "-c", script])
        });
        let said = String::from_utf8_lossy(&result.stdout).into_owned();
        assert!(
            result.status == Status::Succeeded && said.ends_with("done\n"),
            "{result:?}"
        );
        assert_eq!(result.denials, []);
    }
    let result = world.run(world.probe(&["make-new", "/usr/bin/env"]));
    assert_eq!(
        (outcome(&result), result.denials),
        (Outcome::Refused(libc::EEXIST), vec![])
    );
    let opened = |flags: i32| {
        let result = world.run(world.probe(&["open-with", &flags.to_string(), "/usr/bin/env"]));
        (outcome(&result), result.denials)
    };
    let folder = libc::O_RDWR | libc::O_DIRECTORY;
    let got = [
        libc::O_RDONLY,
        libc::O_PATH | libc::O_CLOEXEC,
        libc::O_CREAT,
        folder,
    ]
    .map(opened);
    let not_a_folder = (Outcome::Refused(libc::ENOTDIR), vec![]);
    assert_eq!(
        got,
        [
            (allowed(), vec![]),
            (allowed(), vec![]),
            (allowed(), vec![]),
            not_a_folder
        ]
    );
    // Where it is a link, the file that it leads to.
    let real = match world.maker {
        Some(_) => PathBuf::from("/usr/bin/busybox"),
        None => fs::canonicalize("/usr/bin/env").expect("it is there"),
    };
    assert_eq!(
        opened(libc::O_RDWR).1,
        [in_root(real.to_str().expect("a plain name"))],
        "the control"
    );
}

/// Each attempt comes to the same as where the kernel alone decides.
fn the_answers_are_those_of_the_kernel(world: &World) {
    let attempts: [&[&str]; 16] = [
        &["write", "/usr/x", "x"],
        &["write", "/usr/bin/env", "x"],
        &["write", "/etc/hosts", "x"],
        &["write", "/usr", "x"],
        &["write", "/usr/none/x", "x"],
        &["write", "/usr/bin/env/x", "x"],
        &["write", "/dev/null", "x"],
        &["write", "/dev/full", "x"],
        &["make-new", "/usr/bin/env"],
        &["make-folder", "/usr"],
        &["make-folder", "/usr/x"],
        &["make-link", "x", "/usr/x"],
        &["add-name", "/usr/bin/env", "/usr/x"],
        &["add-name", "/usr/bin/none", "/usr/x"],
        &["remove", "/usr/bin/env"],
        &["rename", "/usr/bin/env", "/tmp/x"],
    ];
    for attempt in world.few(attempts) {
        let looked_at = world.attempt(world.probe(attempt));
        let kernels = world.attempt_without(world.probe(attempt), &[Step::SyscallFilter]);
        assert_eq!(looked_at, kernels, "{attempt:?}");
    }
}

/// Nothing here is denied: it is wrong, or it works, or it would come to the same without the mount.
fn what_fails_for_other_reasons_is_left_to_the_kernel(world: &World) {
    let (empty, theirs) = (world.fresh_folder("empty"), world.fresh_folder("theirs"));
    fs::write(theirs.join("own"), "not the program's").expect("a file");
    let request = |attempt: &str| {
        let workspace = repository(world);
        fs::write(workspace.join(".bashrc"), "").expect("a file");
        world.give(&workspace);
        let mut request = in_workspace(world, &workspace, &[attempt]);
        request.mounts.extend([
            mount(&empty, "/empty", "ro"),
            mount(&theirs, "/theirs", "ro"),
        ]);
        request
    };
    let root = world.mode == Mode::Root;
    for attempt in ["odd-opens", "odd-names", "odd-connections"] {
        let result = world.run(request(attempt));
        let kernels = world.attempt_without(request(attempt), &[Step::SyscallFilter]);
        assert!(
            matches!(kernels, Outcome::Allowed(_)),
            "{attempt}: {kernels:?}"
        );
        assert_eq!(outcome(&result), kernels, "{attempt}");
        let own = |it: &&Denial| root || it.target != "/theirs/own";
        assert_eq!(
            result.denials.iter().filter(own).collect::<Vec<_>>(),
            Vec::<&Denial>::new(),
            "{attempt}"
        );
    }
}

fn a_denial_is_heard_of_while_the_program_runs(world: &World) {
    let script = "echo x > /usr/x; echo ready; cat";
    let request = RunRequest {
        stdin: true,
        ..world.command(&["sh", "-c", script])
    };
    let engine = world.engine(&Default::default());
    let result = world.runtime.block_on(async {
        let mut run = engine.start(admit(request));
        let (mut denied, mut ready) = (None, None);
        while denied.is_none() || ready.is_none() {
            match run.next_event().await.expect("it waits for its input") {
                RunEvent::Denied(denial) => {
                    assert_eq!(denial, in_root("/usr/x"));
                    denied = Some(Instant::now());
                }
                RunEvent::Output {
                    stream: StdStream::Stdout,
                    ..
                } => ready = Some(Instant::now()),
                RunEvent::Output { .. } | RunEvent::Started { .. } => {}
            }
        }
        let late = denied
            .zip(ready)
            .map(|(denied, ready)| denied.saturating_duration_since(ready));
        assert!(late.is_some_and(|late| late < SOON), "{late:?}");
        run.finish().await
    });
    assert_eq!(
        (result.status, result.denials),
        (Status::Succeeded, vec![in_root("/usr/x")])
    );
}

/// Whatever is looked at, and whatever the kernel then finds: the mount holds.
fn a_path_that_changes_under_the_look_opens_nothing(world: &World) {
    let workspace = repository(world);
    let attempt = [
        "flip",
        "/workspace/visible/hooks/evil",
        "/workspace/.vscode/hooks/evil",
        "1000",
    ];
    for folder in ["visible/hooks", ".vscode/hooks"] {
        fs::create_dir_all(workspace.join(folder)).expect("a folder");
    }
    world.give(&workspace);
    let result = world.run(in_workspace(world, &workspace, &attempt.map(|it| it)));
    assert_eq!(outcome(&result), Outcome::Allowed("true true".to_owned()));
    let told: BTreeSet<_> = result.denials.iter().map(|it| it.target.as_str()).collect();
    assert_eq!(told, BTreeSet::from(["/workspace/.vscode/hooks/evil"]));
    assert_eq!(
        fs::read_dir(workspace.join(".vscode/hooks"))
            .expect("a folder")
            .count(),
        0
    );
    assert!(workspace.join("visible/hooks/evil").exists(), "the control");
}

fn neither_a_second_listener_nor_an_undumpable_program_escapes_the_look(world: &World) {
    let second = world.probe(&["second-listener"]);
    assert_eq!(world.attempt(second.clone()), Outcome::Refused(libc::EBUSY));
    assert_eq!(
        world.attempt_without(second, &[Step::SyscallFilter]),
        allowed()
    );
    let hidden = world.run(world.probe(&["undumpable", "mount", "/mnt"]));
    assert_eq!(
        (outcome(&hidden), hidden.denials),
        (
            Outcome::Refused(libc::EPERM),
            vec![refused("mount", "/mnt")]
        )
    );
    let hidden = world.run(world.probe(&["undumpable", "write", "/usr/x", "x"]));
    assert_eq!(
        (outcome(&hidden), hidden.denials),
        (Outcome::Refused(libc::EROFS), vec![in_root("/usr/x")])
    );
}

fn a_sandbox_made_ahead_tells_as_much(world: &World) {
    let pool = PoolSettings {
        warm_sandboxes: 1,
        ..PoolSettings::OFF
    };
    let state = world.folder.join(world.unique("state"));
    let engine = Engine::open(Settings {
        pool,
        ..Settings::new(state)
    })
    .expect("an engine");
    let spec = admit(world.command(&[
        "sh",
        "-c",
        "echo x > /usr/x; echo y > y; mount -t tmpfs x /mnt",
    ]));
    let results = world.runtime.block_on(async {
        engine.warm(&spec).await;
        let results = [engine.run(spec.clone()).await, engine.run(spec).await];
        engine.close().await;
        results
    });
    for result in results {
        let writes: Vec<_> = result
            .denials
            .iter()
            .filter(|it| it.what == "write")
            .cloned()
            .collect();
        assert!(writes.contains(&in_root("/usr/x")), "{:?}", result.denials);
        assert!(
            result.denials.contains(&refused("mount", "/mnt")),
            "{:?}",
            result.denials
        );
    }
}
