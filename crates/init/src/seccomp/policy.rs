//! The policy of every sandbox: which system calls are refused, which are watched, and why.

use super::bpf::{ArgumentHalf, ArgumentTest, FilterAction};
use crate::watched_syscalls;

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
const NEW_TIME: u32 = 0x80;
/// `ioctl` requests to terminals that are refused on every descriptor, and why.
const REFUSED_REQUESTS: [(u32, &str); 4] = [
    (0x5412, "TIOCSTI: types into a terminal"),
    (0x541c, "TIOCLINUX: pastes into a console"),
    (0x541d, "TIOCCONS: takes the console's output over"),
    (
        0x5423,
        "TIOCSETD: loads and enters line disciplines, old kernel surface used in exploits",
    ),
];

/// `ioctl` requests that change inode flags, which stay on the host: synchronous writes, exclusion
/// from backups. Programs that set them continue where a file system has none.
const FILE_FLAGS: [u32; 2] = [0x4008_6602, 0x401c_5820];
const FILE_SETATTR: usize = 469;

/// Commands of `fcntl` that are refused, their names, and the error.
pub(super) const REFUSED_FCNTL: [(i32, &str, i32); 5] = [
    // A process that opens a leased file waits up to 45 seconds for its release: also host tools. A
    // delegation (Linux 6.19) does the same to folders.
    (libc::F_SETLEASE, "F_SETLEASE", libc::EPERM),
    (1040, "F_SETDELEG", libc::EPERM),
    // Open file description locks live as long as the open file, which a mapping or a message in
    // flight holds after the last descriptor is closed: they cannot be counted. Programs then use
    // `F_SETLK`, as before Linux 3.15.
    (libc::F_OFD_GETLK, "F_OFD_GETLK", libc::EINVAL),
    (libc::F_OFD_SETLK, "F_OFD_SETLK", libc::EINVAL),
    (libc::F_OFD_SETLKW, "F_OFD_SETLKW", libc::EINVAL),
];

/// The name of a refused command of `fcntl`.
pub fn fcntl_name(command: u32) -> Option<&'static str> {
    let mut all = REFUSED_FCNTL.iter();
    let (_, name, _) = all.find(|(known, ..)| *known as u32 == command)?;
    Some(name)
}

/// Options of `SOL_SOCKET` that attach a BPF program to a socket. Its machine code comes from one
/// pool for all users (`net.core.bpf_jit_limit`) that no limit of a sandbox counts; when that is
/// empty, no process of the machine can install a seccomp filter.
const PACKET_FILTERS: [i32; 4] = [
    libc::SO_ATTACH_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_ATTACH_REUSEPORT_CBPF,
    libc::SO_ATTACH_REUSEPORT_EBPF,
];

const REFUSE: FilterAction = FilterAction::Refuse(libc::EPERM as u16);

/// A system call number and its name.
type NamedSyscall = (libc::c_long, &'static str);

/// System calls by the name of their constant, then those that the library has no constant for.
macro_rules! calls {
    ($($constant:ident),* $(,)? $(; $($number:literal = $name:literal),*)?) => {
        &[$((libc::$constant, stringify!($constant)),)* $($(($number, $name),)*)?]
    };
}

/// Refused with any arguments, and why.
const REFUSED_ALWAYS: &[(&[NamedSyscall], &str)] = &[
    (
        calls![
            SYS_mount,
            SYS_umount2,
            SYS_pivot_root,
            SYS_chroot,
            SYS_open_tree,
            SYS_move_mount,
            SYS_fsopen,
            SYS_fsconfig,
            SYS_fsmount,
            SYS_fspick,
            SYS_mount_setattr;
            467 = "open_tree_attr"
        ],
        "mounts are made before the program starts, never by it",
    ),
    (calls![SYS_setns], "its namespaces are its walls"),
    (
        calls![
            SYS_ptrace,
            SYS_process_vm_readv,
            SYS_process_vm_writev,
            SYS_kcmp,
            SYS_pidfd_getfd,
        ],
        "memory and descriptors of other processes",
    ),
    (
        calls![SYS_process_madvise; 448 = "process_mrelease"],
        "memory of other processes",
    ),
    (
        calls![SYS_bpf, SYS_perf_event_open, SYS_userfaultfd],
        "large kernel surface, used in many exploits",
    ),
    (
        calls![
            SYS_io_uring_setup,
            SYS_io_uring_enter,
            SYS_io_uring_register
        ],
        "performs calls that this filter never sees",
    ),
    (
        calls![SYS_add_key, SYS_request_key, SYS_keyctl],
        "keyrings are not namespaced",
    ),
    (
        calls![SYS_name_to_handle_at, SYS_open_by_handle_at],
        "handles reach around the mount tree",
    ),
    (
        calls![
            SYS_kexec_load,
            SYS_kexec_file_load,
            SYS_init_module,
            SYS_finit_module,
            SYS_delete_module,
            SYS_reboot,
            SYS_swapon,
            SYS_swapoff,
            SYS_acct,
            SYS_quotactl,
            SYS_quotactl_fd,
            SYS_syslog,
            SYS_vhangup,
            SYS_nfsservctl,
            SYS_lookup_dcookie,
        ],
        "administers the whole machine",
    ),
    (
        calls![
            SYS_settimeofday,
            SYS_clock_settime,
            SYS_clock_adjtime,
            SYS_adjtimex
        ],
        "the clock is everybody's",
    ),
    (
        calls![SYS_sethostname, SYS_setdomainname],
        "names are set before the program starts",
    ),
    (
        calls![SYS_fanotify_init, SYS_fanotify_mark],
        "can watch and block other processes' files",
    ),
    (
        calls![SYS_move_pages, SYS_migrate_pages],
        "tells and moves physical pages",
    ),
    (
        calls![SYS_memfd_secret],
        "memory that limits and core tools cannot see",
    ),
];

/// Not `uretprobe` and `uprobe` (335, 336): newer kernels let them past every filter, so refusing
/// them would promise too much, and on older ones it ends programs that the host traces. The kernel
/// kills any other caller.
#[cfg(target_arch = "x86_64")]
const REFUSED_ON_ARCH: &[(&[NamedSyscall], &str)] = &[
    (calls![SYS_iopl, SYS_ioperm], "hardware ports"),
    (
        calls![SYS_modify_ldt],
        "old entry points into the kernel, used in exploits",
    ),
    (
        calls![SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl],
        "obsolete kernel surface",
    ),
    (
        calls![; 174 = "create_module", 177 = "get_kernel_syms", 178 = "query_module"],
        "obsolete kernel surface",
    ),
];
#[cfg(target_arch = "aarch64")]
const REFUSED_ON_ARCH: &[(&[NamedSyscall], &str)] = &[];

/// Refused only with certain arguments; [`table`] says which and why.
const REFUSED_BY_ARGUMENT: &[NamedSyscall] = calls![
    SYS_clone, SYS_unshare, SYS_socket, SYS_socketpair, SYS_setsockopt, SYS_fchmod, SYS_fchmodat, SYS_openat,
    SYS_mknodat, SYS_prlimit64, SYS_fcntl, SYS_io_setup, SYS_ioctl, SYS_personality, SYS_close_range; 452 = "fchmodat2"
];

/// The name of a refused call.
pub fn name(number: libc::c_long) -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    const ON_ARCH: &[NamedSyscall] = calls![SYS_chmod, SYS_open, SYS_creat, SYS_mknod];
    #[cfg(target_arch = "aarch64")]
    const ON_ARCH: &[NamedSyscall] = &[];
    let always = REFUSED_ALWAYS
        .iter()
        .chain(REFUSED_ON_ARCH)
        .flat_map(|(calls, _)| *calls);
    let mut all = always.chain(REFUSED_BY_ARGUMENT).chain(ON_ARCH);
    let (_, name) = all.find(|(known, _)| *known == number)?;
    Some(name.strip_prefix("SYS_").unwrap_or(name))
}

/// The last number in this table (`file_setattr`, Linux 6.17). Later ones are ENOSYS until they are
/// reviewed.
const LAST_KNOWN_SYSCALL: usize = 469;

/// The policy of every sandbox, one action per system call number.
pub fn table() -> Vec<FilterAction> {
    let mut table = vec![FilterAction::Allow; LAST_KNOWN_SYSCALL + 1];
    for watched in watched_syscalls::CALLS
        .iter()
        .chain(watched_syscalls::CALLS_ON_ARCH)
    {
        table[watched.number as usize] = match watched.unless {
            None => FilterAction::Watch,
            Some((argument, bits)) => without_bits(argument, bits, FilterAction::Watch),
        };
    }
    let refused = REFUSED_ALWAYS
        .iter()
        .chain(REFUSED_ON_ARCH)
        .flat_map(|(calls, _)| *calls);
    for (number, _) in refused {
        table[*number as usize] = REFUSE;
    }
    // Its flags are in memory, which a filter cannot read; C libraries then use `clone`.
    table[libc::SYS_clone3 as usize] = FilterAction::Errno(libc::ENOSYS as u16);
    // With `CLONE_PARENT` the child would be the launcher's: it would not be reaped, nor found in
    // the sandbox.
    table[libc::SYS_clone as usize] =
        without_bits(0, NEW_NAMESPACES | libc::CLONE_PARENT as u32, REFUSE);
    let own_files = libc::CLONE_FILES as u32;
    table[libc::SYS_unshare as usize] =
        without_bits(0, NEW_NAMESPACES | NEW_TIME | own_files, REFUSE);
    table[libc::SYS_socket as usize] = socket_families();
    table[libc::SYS_socketpair as usize] = FilterAction::Args(
        vec![test(0, u32::MAX, libc::AF_UNIX as u32, FilterAction::Allow)],
        Box::new(FilterAction::Refuse(libc::EAFNOSUPPORT as u16)),
    );
    refuse_set_id_modes(&mut table);
    limit_prlimit(&mut table);
    table[libc::SYS_fcntl as usize] = FilterAction::Args(
        REFUSED_FCNTL
            .iter()
            .map(|(command, _, errno)| {
                test(
                    1,
                    u32::MAX,
                    *command as u32,
                    FilterAction::Refuse(*errno as u16),
                )
            })
            .collect(),
        Box::new(FilterAction::Allow),
    );
    require_own_file_table(&mut table);
    table[libc::SYS_setsockopt as usize] = socket_options();
    refuse_huge_pages(&mut table);
    // Where the kernel merges equal pages, the time of a write tells what other sandboxes have in
    // memory. Programs continue without it, as on a kernel that lacks it.
    table[libc::SYS_madvise as usize] = FilterAction::Args(
        vec![test(
            2,
            u32::MAX,
            libc::MADV_MERGEABLE as u32,
            FilterAction::Errno(libc::EINVAL as u16),
        )],
        Box::new(FilterAction::Allow),
    );
    // The same for all memory of a process.
    table[libc::SYS_prctl as usize] = FilterAction::Args(
        vec![test(
            0,
            u32::MAX,
            libc::PR_SET_MEMORY_MERGE as u32,
            FilterAction::Errno(libc::EINVAL as u16),
        )],
        Box::new(FilterAction::Allow),
    );
    // The same as `FS_IOC_SETFLAGS`, by path.
    table[FILE_SETATTR] = FilterAction::Errno(libc::EOPNOTSUPP as u16);
    // One quota for the whole machine (`fs.aio-max-nr`): a sandbox could use it up.
    table[libc::SYS_io_setup as usize] = FilterAction::Refuse(libc::ENOSYS as u16);
    table[libc::SYS_ioctl as usize] = ioctl_rules();
    // Only queries, and plain Linux: other personalities switch memory protections off.
    table[libc::SYS_personality as usize] = FilterAction::Args(
        [0, u32::MAX]
            .map(|persona| test(0, u32::MAX, persona, FilterAction::Allow))
            .into(),
        Box::new(REFUSE),
    );
    // A listener installed later responds first, and could continue calls that we refuse. The
    // kernel allows one listener (EBUSY), but only while it listens: after the engine's death the
    // program could install its own. So this rule does not depend on the engine.
    table[libc::SYS_seccomp as usize] = without_bits(
        1,
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as u32,
        FilterAction::Errno(libc::EBUSY as u16),
    );
    table
}

fn test(argument: u8, mask: u32, value: u32, then: FilterAction) -> ArgumentTest {
    ArgumentTest {
        argument,
        half: ArgumentHalf::Low,
        mask,
        value,
        then,
    }
}

fn without_bits(argument: u8, mask: u32, otherwise: FilterAction) -> FilterAction {
    FilterAction::Args(
        vec![test(argument, mask, 0, FilterAction::Allow)],
        Box::new(otherwise),
    )
}

/// Unix and Internet sockets. The rest (netlink, packet, vsock, alg, xdp, …) is kernel surface that
/// the network namespace does not, or not wholly, isolate.
fn socket_families() -> FilterAction {
    /// The two families differ in one bit.
    const INTERNET: u32 = !(libc::AF_INET ^ libc::AF_INET6) as u32;
    let families = [
        (u32::MAX, libc::AF_UNIX, FilterAction::Allow),
        (INTERNET, libc::AF_INET, internet_protocols()),
        (u32::MAX, libc::AF_NETLINK, netlink_protocols()),
    ];
    FilterAction::Args(
        families
            .map(|(bits, family, then)| test(0, bits, family as u32, then))
            .into(),
        Box::new(FilterAction::Refuse(libc::EAFNOSUPPORT as u16)),
    )
}

/// The C library opens a routing socket for every name lookup, and continues without: not worth a
/// report.
fn netlink_protocols() -> FilterAction {
    let unsupported = libc::EAFNOSUPPORT as u16;
    FilterAction::Args(
        vec![test(
            2,
            u32::MAX,
            libc::NETLINK_ROUTE as u32,
            FilterAction::Errno(unsupported),
        )],
        Box::new(FilterAction::Refuse(unsupported)),
    )
}

/// TCP, UDP and ping sockets. Others (SCTP, DCCP, MPTCP, L2TP, SMC, `SOCK_PACKET`, …) are large and
/// seldom used, and asking for one that is not loaded makes the kernel search for a module each
/// time, in a process of the host.
fn internet_protocols() -> FilterAction {
    const KIND: u32 = 0xf;
    let refused = || Box::new(FilterAction::Refuse(libc::EPROTONOSUPPORT as u16));
    let plain = |protocol: i32| test(2, u32::MAX, protocol as u32, FilterAction::Allow);
    let ping = |protocol: i32, family: i32| {
        let of_family = vec![test(0, u32::MAX, family as u32, FilterAction::Allow)];
        let then = FilterAction::Args(of_family, refused());
        test(2, u32::MAX, protocol as u32, then)
    };
    let streams = vec![plain(0), plain(libc::IPPROTO_TCP)];
    let datagrams = vec![
        plain(0),
        plain(libc::IPPROTO_UDP),
        ping(libc::IPPROTO_ICMP, libc::AF_INET),
        ping(libc::IPPROTO_ICMPV6, libc::AF_INET6),
    ];
    let kinds = [
        (libc::SOCK_STREAM, FilterAction::Args(streams, refused())),
        (libc::SOCK_DGRAM, FilterAction::Args(datagrams, refused())),
        (libc::SOCK_RAW, REFUSE),
    ];
    FilterAction::Args(
        kinds
            .map(|(kind, then)| test(1, KIND, kind as u32, then))
            .into(),
        Box::new(FilterAction::Refuse(libc::ESOCKTNOSUPPORT as u16)),
    )
}

/// With this error libpcap and others filter packets themselves.
fn socket_options() -> FilterAction {
    let unknown = FilterAction::Refuse(libc::ENOPROTOOPT as u16);
    let of_socket = FilterAction::Args(
        PACKET_FILTERS
            .map(|option| test(2, u32::MAX, option as u32, unknown.clone()))
            .into(),
        Box::new(FilterAction::Allow),
    );
    FilterAction::Args(
        vec![test(1, u32::MAX, libc::SOL_SOCKET as u32, of_socket)],
        Box::new(FilterAction::Allow),
    )
}

/// Requests of `ioctl`. The kernel takes them as 32 bits, so the filter ignores the upper half,
/// too.
fn ioctl_rules() -> FilterAction {
    const KIND: u32 = 0xff00;
    const OF_BTRFS: u32 = 0x9400;
    /// `FICLONE`, `FICLONERANGE` and `FIDEDUPERANGE`, which other file systems have under the same
    /// numbers.
    const CLONES: [u32; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];
    let mut tests: Vec<_> = REFUSED_REQUESTS
        .map(|(request, _)| test(1, u32::MAX, request, REFUSE))
        .into();
    let unsupported = FilterAction::Errno(libc::EOPNOTSUPP as u16);
    tests.extend(FILE_FLAGS.map(|request| test(1, u32::MAX, request, unsupported.clone())));
    // A btrfs snapshot is of the whole subvolume around a folder, not of the folder.
    let plain = FilterAction::Args(
        CLONES
            .map(|request| test(1, u32::MAX, request, FilterAction::Allow))
            .into(),
        Box::new(FilterAction::Errno(libc::ENOTTY as u16)),
    );
    tests.push(test(1, KIND, OF_BTRFS, plain));
    FilterAction::Args(tests, Box::new(FilterAction::Allow))
}

/// The threads of a process share one file table, and no other process shares it. So all POSIX
/// locks of a table are found in its process, and go with it.
fn require_own_file_table(table: &mut [FilterAction]) {
    const OF_THREADS: u32 = (libc::CLONE_FILES | libc::CLONE_THREAD) as u32;
    let otherwise = std::mem::replace(&mut table[libc::SYS_clone as usize], REFUSE);
    table[libc::SYS_clone as usize] = FilterAction::Args(
        vec![
            test(0, OF_THREADS, libc::CLONE_FILES as u32, REFUSE),
            test(0, OF_THREADS, libc::CLONE_THREAD as u32, REFUSE),
        ],
        Box::new(otherwise),
    );
    table[libc::SYS_close_range as usize] = without_bits(
        2,
        libc::CLOSE_RANGE_UNSHARE,
        FilterAction::Refuse(libc::EINVAL as u16),
    );
}

/// In a mounted workspace a file belongs to its owner on the host, maybe the host's root: set-id
/// bits on it would lend out that user's rights. Creation with them is refused, too: the first
/// write clears the bits, but not setgid on a file that its group may not execute, which an ACL
/// (`setxattr`) can change later. `mkdir` ignores them. The mode of `openat2` is in memory, which a
/// filter cannot read: the cleanup of the workspace clears what is left.
fn refuse_set_id_modes(table: &mut [FilterAction]) {
    const FCHMODAT2: usize = 452;
    let bits = libc::S_ISUID | libc::S_ISGID;
    let mut refuse = |number: usize, mode: u8| {
        // `chmod` by path is watched, too.
        let otherwise = std::mem::replace(&mut table[number], FilterAction::Allow);
        table[number] = FilterAction::Args(vec![test(mode, bits, 0, otherwise)], Box::new(REFUSE));
    };
    #[cfg(target_arch = "x86_64")]
    refuse(libc::SYS_chmod as usize, 1);
    refuse(libc::SYS_fchmod as usize, 1);
    refuse(libc::SYS_fchmodat as usize, 2);
    refuse(FCHMODAT2, 2);
    refuse(libc::SYS_mknodat as usize, 2);
    #[cfg(target_arch = "x86_64")]
    {
        refuse(libc::SYS_mknod as usize, 1);
        refuse(libc::SYS_creat as usize, 1);
    }
    // The one device that anybody may create is an overlay's whiteout, which hides a file where the
    // folder is a layer.
    let mut refuse_devices = |number: usize, mode: u8| {
        let otherwise = std::mem::replace(&mut table[number], FilterAction::Allow);
        let device = test(mode, libc::S_IFMT, libc::S_IFCHR, REFUSE);
        table[number] = FilterAction::Args(vec![device], Box::new(otherwise));
    };
    refuse_devices(libc::SYS_mknodat as usize, 2);
    #[cfg(target_arch = "x86_64")]
    refuse_devices(libc::SYS_mknod as usize, 1);
    // Without creation the mode argument is undefined.
    const MAKES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
    let mut refuse_making = |number: usize, flags: u8, mode: u8| {
        let otherwise = std::mem::replace(&mut table[number], FilterAction::Allow);
        table[number] = FilterAction::Args(
            vec![
                test(mode, bits, 0, otherwise.clone()),
                test(flags, MAKES, 0, otherwise),
            ],
            Box::new(REFUSE),
        );
    };
    #[cfg(target_arch = "x86_64")]
    refuse_making(libc::SYS_open as usize, 1, 2);
    refuse_making(libc::SYS_openat as usize, 2, 3);
}

/// Huge pages are reserved on the host and not charged to the memory cgroup. Programs fall back, as
/// where there are none.
fn refuse_huge_pages(table: &mut [FilterAction]) {
    const OF_MEMFD: u32 = libc::MFD_HUGETLB;
    let of_map = libc::MAP_HUGETLB as u32;
    let of_segment = libc::SHM_HUGETLB as u32;
    for (number, argument, bit) in [
        (libc::SYS_mmap, 3, of_map),
        (libc::SYS_memfd_create, 1, OF_MEMFD),
        (libc::SYS_shmget, 2, of_segment),
    ] {
        table[number as usize] = FilterAction::Args(
            vec![test(
                argument,
                bit,
                bit,
                FilterAction::Errno(libc::ENOMEM as u16),
            )],
            Box::new(FilterAction::Allow),
        );
    }
}

/// Only the program's own limits: pid 1 of an ordinary user's sandbox has the program's id on the
/// host, so the kernel would let the program limit it. And never the core dump limit, see
/// `RLIMIT_CORE` in the plan: many programs set it to 0 and give up when that fails, so the call
/// reports success.
fn limit_prlimit(table: &mut [FilterAction]) {
    const CORE: u32 = libc::RLIMIT_CORE;
    let done = FilterAction::Errno(0);
    let only_asks = FilterAction::Args(
        vec![ArgumentTest {
            half: ArgumentHalf::High,
            ..test(
                2,
                u32::MAX,
                0,
                FilterAction::Args(
                    vec![test(2, u32::MAX, 0, FilterAction::Allow)],
                    Box::new(done.clone()),
                ),
            )
        }],
        Box::new(done.clone()),
    );
    let own = FilterAction::Args(
        vec![test(1, u32::MAX, CORE, only_asks)],
        Box::new(FilterAction::Allow),
    );
    table[libc::SYS_prlimit64 as usize] =
        FilterAction::Args(vec![test(0, u32::MAX, 0, own)], Box::new(REFUSE));
    table[libc::SYS_setrlimit as usize] = FilterAction::Args(
        vec![test(0, u32::MAX, CORE, done)],
        Box::new(FilterAction::Allow),
    );
}
