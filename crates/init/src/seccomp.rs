//! Seccomp: which system calls are refused, and the compilation of that table into a balanced tree.
//!
//! The kernel runs the filter for every number at installation to fill its bitmap, so the shape of
//! the program decides the cost of installing it; a tree is many times shorter to walk than a
//! chain.

use crate::watched_syscalls;
use libc::sock_filter;

/// What the filter does with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// The call is executed.
    Allow,
    /// It fails with this error, without a notification: what C libraries try and do without.
    Errno(u16),
    /// The engine is notified, and responds with this error. Without an engine the call fails, too
    /// (ENOSYS).
    Refuse(u16),
    /// The engine is notified. It may refuse a call that would fail anyway, to report it; otherwise
    /// the kernel executes it.
    Watch,
    /// It kills the process.
    Kill,
    /// The first matching test decides, else the last action.
    Args(Vec<ArgumentTest>, Box<FilterAction>),
}

/// Tests 32 bits of one argument: right for flags and `int`; a pointer takes two tests, one in the
/// other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentTest {
    /// The argument, from 0.
    pub argument: u8,
    /// Its half.
    pub half: ArgumentHalf,
    /// The bits that are compared.
    pub mask: u32,
    /// Their expected value.
    pub value: u32,
    /// The action if they match.
    pub then: FilterAction,
}

/// A half of a 64-bit argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ArgumentHalf {
    /// All of an `int`.
    Low = 0,
    /// The part that only pointers and 64-bit numbers have. Both architectures are little-endian.
    High = 4,
}

const LD: u16 = 0x20;
const AND: u16 = 0x54;
const JA: u16 = 0x05;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const RET: u16 = 0x06;

const USER_NOTIFICATION: u32 = 0x7fc0_0000;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// On x86-64, this bit of a number means the x32 ABI.
const X32: u32 = 0x4000_0000;

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

impl FilterAction {
    /// The action for these arguments: what the filter does, for a process that got a notification.
    pub fn resolve(&self, arguments: &[u64; 6]) -> &FilterAction {
        let FilterAction::Args(tests, other) = self else {
            return self;
        };
        let holds = |test: &&ArgumentTest| {
            let argument = arguments[usize::from(test.argument)];
            let half = match test.half {
                ArgumentHalf::Low => argument as u32,
                ArgumentHalf::High => (argument >> 32) as u32,
            };
            half & test.mask == test.value
        };
        tests
            .iter()
            .find(holds)
            .map_or(&**other, |test| &test.then)
            .resolve(arguments)
    }

    /// The same without notifications: no weaker, only unreported.
    fn without_listener(self) -> FilterAction {
        match self {
            FilterAction::Refuse(errno) => FilterAction::Errno(errno),
            FilterAction::Watch => FilterAction::Allow,
            FilterAction::Args(tests, other) => {
                let quiet = |test: ArgumentTest| ArgumentTest {
                    then: test.then.without_listener(),
                    ..test
                };
                FilterAction::Args(
                    tests.into_iter().map(quiet).collect(),
                    Box::new(other.without_listener()),
                )
            }
            FilterAction::Allow | FilterAction::Errno(_) | FilterAction::Kill => self,
        }
    }
}

fn leaf(action: &FilterAction) -> Vec<sock_filter> {
    match action {
        FilterAction::Allow => vec![op(RET, 0x7fff_0000)],
        FilterAction::Errno(errno) => vec![op(RET, 0x0005_0000 | u32::from(*errno))],
        FilterAction::Refuse(_) | FilterAction::Watch => vec![op(RET, USER_NOTIFICATION)],
        FilterAction::Kill => vec![op(RET, 0x8000_0000)],
        FilterAction::Args(tests, other) => {
            let mut out = vec![];
            for test in tests {
                let then = leaf(&test.then);
                let over = u8::try_from(then.len()).expect("a leaf is short");
                out.push(op(LD, 16 + 8 * u32::from(test.argument) + test.half as u32));
                out.push(op(AND, test.mask));
                out.push(jump(JEQ, test.value, 0, over));
                out.extend(then);
            }
            out.extend(leaf(other));
            out
        }
    }
}

fn tree(ranges: &[(u32, &FilterAction)]) -> Vec<sock_filter> {
    if let [(_, action)] = ranges {
        return leaf(action);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (first, rest) = (tree(low), tree(high));
    // A conditional jump reaches 255 instructions, JA anywhere.
    let mut out = match u8::try_from(first.len()) {
        Ok(over) => vec![jump(JGE, high[0].0, over, 0)],
        Err(_) => vec![jump(JGE, high[0].0, 0, 1), op(JA, first.len() as u32)],
    };
    out.extend(first);
    out.extend(rest);
    out
}

/// Whether two actions compile to the same instructions: all notifications do.
fn compile_alike(one: &FilterAction, other: &FilterAction) -> bool {
    let told =
        |action: &FilterAction| matches!(action, FilterAction::Refuse(_) | FilterAction::Watch);
    one == other || told(one) && told(other)
}

/// Compiles `table[number]`; numbers above it get `other`; foreign ABIs and x32 kill the process.
pub fn compile(table: &[FilterAction], other: &FilterAction) -> Vec<sock_filter> {
    let numbers = (0u32..)
        .zip(table)
        .chain([(table.len() as u32, other), (X32, &FilterAction::Kill)]);
    let mut ranges: Vec<(u32, &FilterAction)> = vec![];
    for (number, action) in numbers {
        if ranges
            .last()
            .is_none_or(|(_, last)| !compile_alike(last, action))
        {
            ranges.push((number, action));
        }
    }
    // The architecture first: the same number is another call in a foreign ABI.
    let mut out = vec![
        op(LD, 4),
        jump(JEQ, ARCHITECTURE, 1, 0),
        op(RET, 0x8000_0000),
        op(LD, 0),
    ];
    out.extend(tree(&ranges));
    out
}

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
const REFUSED_FCNTL: [(i32, &str, i32); 5] = [
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
    let (of_map, of_segment) = (libc::MAP_HUGETLB as u32, libc::SHM_HUGETLB as u32);
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

/// The filter of every sandbox.
pub fn program() -> Vec<sock_filter> {
    compile(&table(), &FilterAction::Errno(libc::ENOSYS as u16))
}

/// The same without a listener.
pub fn program_without_listener() -> Vec<sock_filter> {
    let table: Vec<_> = table()
        .into_iter()
        .map(FilterAction::without_listener)
        .collect();
    compile(&table, &FilterAction::Errno(libc::ENOSYS as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An interpreter of BPF that shares no code with the compiler.
    fn interpret(
        program: &[sock_filter],
        architecture: u32,
        number: u32,
        arguments: [u64; 6],
    ) -> u32 {
        let (mut accumulator, mut at) = (0u32, 0usize);
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
            let told = |action: &FilterAction| {
                matches!(action, FilterAction::Refuse(_) | FilterAction::Watch)
            };
            assert!(!any(&action.without_listener(), &told), "{number}");
        }
        assert_eq!(
            [name(libc::SYS_mount), name(libc::SYS_ioctl)],
            [Some("mount"), Some("ioctl")]
        );
    }

    #[test]
    fn the_policy_is_short_and_refuses_by_argument() {
        assert!(program().len() < 520, "{} instructions", program().len());
        let told = |number: libc::c_long, arguments| {
            interpret(&program(), ARCHITECTURE, number as u32, arguments)
        };
        assert_eq!(told(libc::SYS_mount, [0; 6]), USER_NOTIFICATION);
        assert_eq!(
            told(libc::SYS_clone3, [0; 6]),
            0x0005_0000 | libc::ENOSYS as u32
        );
        let opened = |flags: i32| told(libc::SYS_openat, [0, 0, flags as u64, 0, 0, 0]);
        let reading = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY | libc::O_PATH;
        assert_eq!(
            [opened(reading), opened(libc::O_RDWR)],
            [0x7fff_0000, USER_NOTIFICATION]
        );
        let flags = |flags| told(libc::SYS_seccomp, [1, flags, 0, 0, 0, 0]);
        let (listen, ebusy) = (
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            0x0005_0000 | libc::EBUSY as u32,
        );
        assert_eq!(
            [flags(listen), flags(listen | 1), flags(1)],
            [ebusy, ebusy, 0x7fff_0000]
        );
        let lookup = told(libc::SYS_socket, [libc::AF_NETLINK as u64, 3, 0, 0, 0, 0]);
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
        let (core, files) = (u64::from(libc::RLIMIT_CORE), u64::from(libc::RLIMIT_NOFILE));
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
        let close =
            |flags: u32| without_listener(libc::SYS_close_range, [3, 9, flags.into(), 0, 0, 0]);
        assert_eq!(
            [close(0), close(4), close(2), close(6)],
            [ALLOWED, ALLOWED, fails(libc::EINVAL), fails(libc::EINVAL)]
        );
        let fcntl =
            |command: i32| without_listener(libc::SYS_fcntl, [0, command as u64, 0, 0, 0, 0]);
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
        let advise =
            |advice: i32| without_listener(libc::SYS_madvise, [0, 0, advice as u64, 0, 0, 0]);
        assert_eq!(advise(libc::MADV_MERGEABLE), fails(libc::EINVAL));
        assert_eq!(advise(libc::MADV_DONTNEED), ALLOWED);
        let control =
            |option: i32| without_listener(libc::SYS_prctl, [option as u64, 1, 0, 0, 0, 0]);
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
        let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
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
}
