use super::{bpf::*, policy::*, *};
use crate::watched_syscalls;
use proptest::prelude::*;

/// An interpreter of BPF that shares no code with the compiler.
fn interpret(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut accumulator = 0u32;
    let mut at = 0usize;
    loop {
        let line = program[at];
        at += 1;
        match line.code {
            LD => {
                accumulator = match line.k {
                    0 => number,
                    4 => architecture,
                    offset if offset % 8 == 4 => {
                        (arguments[(offset as usize - 16) / 8] >> 32) as u32
                    }
                    offset => arguments[(offset as usize - 16) / 8] as u32,
                }
            }
            AND => accumulator &= line.k,
            JA => at += line.k as usize,
            JEQ => {
                at += usize::from(if accumulator == line.k {
                    line.jt
                } else {
                    line.jf
                })
            }
            JGE => {
                at += usize::from(if accumulator >= line.k {
                    line.jt
                } else {
                    line.jf
                })
            }
            RET => return line.k,
            other => panic!("unknown code {other}"),
        }
    }
}

fn expected(action: &FilterAction, arguments: [u64; 6]) -> u32 {
    match action.resolve(&arguments) {
        FilterAction::Allow => 0x7fff_0000,
        FilterAction::Errno(errno) => 0x0005_0000 | u32::from(*errno),
        FilterAction::Refuse(_) | FilterAction::Watch => 0x7fc0_0000,
        FilterAction::Kill => 0x8000_0000,
        FilterAction::Args(..) => panic!("an unresolved action"),
    }
}

fn action() -> impl Strategy<Value = FilterAction> {
    let plain = prop_oneof![
        Just(FilterAction::Allow),
        Just(FilterAction::Kill),
        Just(FilterAction::Watch),
        (1u16..200).prop_map(FilterAction::Errno),
        (1u16..200).prop_map(FilterAction::Refuse),
    ];
    let half = prop_oneof![Just(ArgumentHalf::Low), Just(ArgumentHalf::High)];
    let test = (0u8..6, half, any::<u32>(), any::<u32>(), plain.clone()).prop_map(
        |(argument, half, mask, value, then)| ArgumentTest {
            argument,
            half,
            mask,
            value: value & mask,
            then,
        },
    );
    let with_args = (proptest::collection::vec(test, 1..4), plain.clone())
        .prop_map(|(tests, other)| FilterAction::Args(tests, Box::new(other)));
    prop_oneof![4 => plain, 1 => with_args]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_tree_decides_as_the_table_says(
        table in proptest::collection::vec(action(), 1..300),
        arguments in any::<[u64; 6]>(),
    ) {
        let program = compile(&table, &FilterAction::Errno(38));
        for (number, action) in (0u32..).zip(&table) {
            prop_assert_eq!(interpret(&program, ARCHITECTURE, number, arguments), expected(action, arguments));
        }
        for number in [table.len() as u32, X32 - 1] {
            prop_assert_eq!(interpret(&program, ARCHITECTURE, number, arguments), 0x0005_0026);
        }
        for number in [X32, X32 | 59, u32::MAX] {
            prop_assert_eq!(interpret(&program, ARCHITECTURE, number, arguments), 0x8000_0000);
        }
        prop_assert_eq!(interpret(&program, 0x4000_0003, 0, arguments), 0x8000_0000);
    }
}

#[test]
fn every_refused_call_has_a_name_and_no_other() {
    let refuses = |action: &FilterAction| matches!(action, FilterAction::Refuse(_));
    fn any(action: &FilterAction, holds: &impl Fn(&FilterAction) -> bool) -> bool {
        match action {
            FilterAction::Args(tests, other) => {
                any(other, holds) || tests.iter().any(|test| any(&test.then, holds))
            }
            plain => holds(plain),
        }
    }
    for (number, action) in (0..).zip(table()) {
        assert_eq!(
            name(number).is_some(),
            any(&action, &refuses),
            "{number}: {action:?}"
        );
        let watches = any(&action, &|action: &FilterAction| {
            *action == FilterAction::Watch
        });
        assert_eq!(
            watched_syscalls::operation_of(number).is_some(),
            watches,
            "{number}: {action:?}"
        );
        let notifies =
            |action: &FilterAction| matches!(action, FilterAction::Refuse(_) | FilterAction::Watch);
        assert!(!any(&action.without_listener(), &notifies), "{number}");
    }
    assert_eq!(
        [name(libc::SYS_mount), name(libc::SYS_ioctl)],
        [Some("mount"), Some("ioctl")]
    );
}

#[test]
fn the_policy_is_short_and_refuses_by_argument() {
    assert!(program().len() < 520, "{} instructions", program().len());
    let filter_result = |number: libc::c_long, arguments| {
        interpret(&program(), ARCHITECTURE, number as u32, arguments)
    };
    assert_eq!(filter_result(libc::SYS_mount, [0; 6]), USER_NOTIFICATION);
    assert_eq!(
        filter_result(libc::SYS_clone3, [0; 6]),
        0x0005_0000 | libc::ENOSYS as u32
    );
    let opened = |flags: i32| filter_result(libc::SYS_openat, [0, 0, flags as u64, 0, 0, 0]);
    let reading = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY | libc::O_PATH;
    assert_eq!(
        [opened(reading), opened(libc::O_RDWR)],
        [0x7fff_0000, USER_NOTIFICATION]
    );
    let flags = |flags| filter_result(libc::SYS_seccomp, [1, flags, 0, 0, 0, 0]);
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let ebusy = 0x0005_0000 | libc::EBUSY as u32;
    assert_eq!(
        [flags(listen), flags(listen | 1), flags(1)],
        [ebusy, ebusy, 0x7fff_0000]
    );
    let lookup = filter_result(libc::SYS_socket, [libc::AF_NETLINK as u64, 3, 0, 0, 0, 0]);
    assert_eq!(lookup, 0x0005_0000 | libc::EAFNOSUPPORT as u32);
    // Without a listener the same calls are refused, with the errors that the engine would
    // send.
    let program = program_without_listener();
    let errno = |number: libc::c_long, arguments| {
        interpret(&program, ARCHITECTURE, number as u32, arguments)
    };
    let eperm = 0x0005_0000 | libc::EPERM as u32;
    for flag in [libc::CLONE_NEWUSER, libc::CLONE_PARENT | libc::SIGCHLD] {
        assert_eq!(
            errno(libc::SYS_clone, [flag as u64, 0, 0, 0, 0, 0]),
            eperm,
            "{flag:x}"
        );
    }
    assert_eq!(
        errno(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]),
        0x7fff_0000
    );
    assert_eq!(
        errno(libc::SYS_ioctl, [0, 0xffff_ffff_0000_5412, 0, 0, 0, 0]),
        eperm
    );
    for request in [0x5412, 0x541c, 0x541d, 0x5423, 0xdead_beef_0000_5423] {
        assert_eq!(
            errno(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]),
            eperm,
            "{request:x}"
        );
    }
    // TIOCGWINSZ, TIOCGETD.
    assert_eq!(
        [0x5413, 0x5424].map(|it| errno(libc::SYS_ioctl, [0, it, 0, 0, 0, 0])),
        [0x7fff_0000; 2]
    );
    assert_eq!(errno(libc::SYS_mount, [0; 6]), eperm);
    let enomem = 0x0005_0000 | libc::ENOMEM as u32;
    let map = |flags: i32| errno(libc::SYS_mmap, [0, 0, 0, flags as u64, 0, 0]);
    assert_eq!(
        [
            map(libc::MAP_PRIVATE | libc::MAP_HUGETLB),
            map(libc::MAP_PRIVATE)
        ],
        [enomem, 0x7fff_0000]
    );
    assert_eq!(
        errno(libc::SYS_shmget, [0, 0, libc::SHM_HUGETLB as u64, 0, 0, 0]),
        enomem
    );
    for (number, mode) in [(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (452, 2)] {
        let with = |bits| {
            let mut arguments = [0; 6];
            arguments[mode] = bits;
            errno(number, arguments)
        };
        assert_eq!(
            [with(0o4755), with(0o2755), with(0o1777)],
            [eperm, eperm, 0x7fff_0000]
        );
    }
    let make = |flags: i32, mode| errno(libc::SYS_openat, [0, 0, flags as u64, mode, 0, 0]);
    let reading = make(libc::O_RDONLY, 0o6777);
    assert_eq!(reading, 0x7fff_0000, "it makes nothing");
    let plain = make(libc::O_CREAT | libc::O_RDWR, 0o666);
    for flags in [libc::O_CREAT, libc::O_TMPFILE | libc::O_RDWR] {
        let actions = [0o2766, 0o4700, 0o6000].map(|mode| make(flags, mode));
        assert_eq!(actions, [eperm; 3]);
    }
    assert_ne!(plain, eperm);
    let file = u64::from(libc::S_IFREG);
    assert_eq!(
        errno(libc::SYS_mknodat, [0, 0, file | 0o2755, 0, 0, 0]),
        eperm
    );
    let core = u64::from(libc::RLIMIT_CORE);
    let files = u64::from(libc::RLIMIT_NOFILE);
    for (arguments, action) in [
        ([0, files, 1, 0, 0, 0], 0x7fff_0000),
        ([1, files, 1, 0, 0, 0], eperm),
        ([0, core, 0, 7, 0, 0], 0x7fff_0000),
        ([0, core, 7, 0, 0, 0], 0x0005_0000),
        ([0, core, 7 << 32, 0, 0, 0], 0x0005_0000),
    ] {
        assert_eq!(
            errno(libc::SYS_prlimit64, arguments),
            action,
            "{arguments:?}"
        );
    }
    assert_eq!(errno(libc::SYS_read, [0; 6]), 0x7fff_0000);
}

fn without_listener(number: libc::c_long, arguments: [u64; 6]) -> u32 {
    interpret(
        &program_without_listener(),
        ARCHITECTURE,
        number as u32,
        arguments,
    )
}

fn fails(errno: i32) -> u32 {
    0x0005_0000 | errno as u32
}

const ALLOWED: u32 = 0x7fff_0000;

#[test]
fn files_have_one_table_a_process_and_locks_that_can_be_counted() {
    let clone = |flags: i32| without_listener(libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0]);
    let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    assert_eq!(clone(thread | libc::CLONE_FILES), ALLOWED);
    assert_eq!(clone(libc::CLONE_VM | libc::CLONE_VFORK), ALLOWED);
    assert_eq!(clone(thread), fails(libc::EPERM));
    assert_eq!(clone(libc::CLONE_FILES), fails(libc::EPERM));
    let files = libc::CLONE_FILES as u64;
    assert_eq!(
        without_listener(libc::SYS_unshare, [files, 0, 0, 0, 0, 0]),
        fails(libc::EPERM)
    );
    let close = |flags: u32| without_listener(libc::SYS_close_range, [3, 9, flags.into(), 0, 0, 0]);
    assert_eq!(
        [close(0), close(4), close(2), close(6)],
        [ALLOWED, ALLOWED, fails(libc::EINVAL), fails(libc::EINVAL)]
    );
    let fcntl = |command: i32| without_listener(libc::SYS_fcntl, [0, command as u64, 0, 0, 0, 0]);
    for (command, name, errno) in REFUSED_FCNTL {
        assert_eq!(fcntl(command), fails(errno), "{name}");
        assert_eq!(fcntl_name(command as u32), Some(name));
    }
    let plain = [
        libc::F_SETLK,
        libc::F_SETLKW,
        libc::F_SETFL,
        libc::F_DUPFD_CLOEXEC,
    ];
    assert_eq!(plain.map(fcntl), [ALLOWED; 4]);
}

#[test]
fn what_the_machine_has_one_pool_of_or_keeps_is_refused() {
    let option = |level: i32, name: i32| {
        without_listener(
            libc::SYS_setsockopt,
            [3, level as u64, name as u64, 0, 0, 0],
        )
    };
    for name in [26, 50, 51, 52] {
        assert_eq!(option(libc::SOL_SOCKET, name), fails(libc::ENOPROTOOPT));
        assert_eq!(option(libc::IPPROTO_TCP, name), ALLOWED, "another level");
    }
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_REUSEADDR), ALLOWED);
    let ioctl = |request: u64| without_listener(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]);
    // btrfs snapshots and subvolumes; clones, which other file systems have, too; inode flags.
    assert_eq!(
        [0x5000_9401, 0x5000_9417, 0x5000_940e].map(ioctl),
        [fails(libc::ENOTTY); 3]
    );
    assert_eq!(
        [0x4004_9409, 0x4020_940d, 0xc018_9436].map(ioctl),
        [ALLOWED; 3]
    );
    assert_eq!(
        [0x4008_6602, 0x401c_5820].map(ioctl),
        [fails(libc::EOPNOTSUPP); 2]
    );
    // Reading them is harmless.
    assert_eq!([0x8008_6601, 0x801c_581f].map(ioctl), [ALLOWED; 2]);
    assert_eq!(without_listener(469, [0; 6]), fails(libc::EOPNOTSUPP));
    let advise = |advice: i32| without_listener(libc::SYS_madvise, [0, 0, advice as u64, 0, 0, 0]);
    assert_eq!(advise(libc::MADV_MERGEABLE), fails(libc::EINVAL));
    assert_eq!(advise(libc::MADV_DONTNEED), ALLOWED);
    let control = |option: i32| without_listener(libc::SYS_prctl, [option as u64, 1, 0, 0, 0, 0]);
    assert_eq!(control(libc::PR_SET_MEMORY_MERGE), fails(libc::EINVAL));
    assert_eq!(control(libc::PR_SET_NAME), ALLOWED);
    let make = |mode: u32| without_listener(libc::SYS_mknodat, [0, 0, mode.into(), 0, 0, 0]);
    assert_eq!(make(libc::S_IFCHR | 0o600), fails(libc::EPERM));
    assert_eq!(make(libc::S_IFIFO | 0o600), ALLOWED);
}

#[test]
fn sockets_are_plain_and_no_module_is_looked_for() {
    let socket = |family: i32, kind: i32, protocol: i32| {
        let arguments = [family as u64, kind as u64, protocol as u64, 0, 0, 0];
        without_listener(libc::SYS_socket, arguments)
    };
    let stream = libc::SOCK_STREAM;
    let datagram = libc::SOCK_DGRAM;
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    for (family, ping) in [
        (libc::AF_INET, libc::IPPROTO_ICMP),
        (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    ] {
        for (kind, protocol) in [
            (stream, 0),
            (stream, libc::IPPROTO_TCP),
            (datagram, 0),
            (datagram, libc::IPPROTO_UDP),
            (datagram, ping),
        ] {
            assert_eq!(socket(family, kind | flags, protocol), ALLOWED);
        }
        for (kind, protocol) in [
            (stream, libc::IPPROTO_UDP),
            (stream, libc::IPPROTO_MPTCP),
            (datagram, libc::IPPROTO_TCP),
            (datagram, libc::IPPROTO_ICMP + libc::IPPROTO_ICMPV6 - ping),
        ] {
            assert_eq!(socket(family, kind, protocol), fails(libc::EPROTONOSUPPORT));
        }
        assert_eq!(socket(family, libc::SOCK_RAW, 1), fails(libc::EPERM));
        const SOCK_PACKET: i32 = 10;
        for kind in [SOCK_PACKET, libc::SOCK_SEQPACKET, libc::SOCK_RDM] {
            assert_eq!(socket(family, kind, 0), fails(libc::ESOCKTNOSUPPORT));
        }
    }
    assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), ALLOWED);
    let pair = without_listener(libc::SYS_socketpair, [libc::AF_VSOCK as u64, 1, 0, 0, 0, 0]);
    assert_eq!(pair, fails(libc::EAFNOSUPPORT));
}
