//! Every `unsafe` that runs on the host, one call per function, with the condition that makes it
//! sound. The attacks of `escape` have their own, which run inside sandboxes. What rustix offers
//! safely is called where it is needed, not wrapped here.

#![allow(unsafe_code)]

use crate::seccomp_notify::{NotificationResponse, SeccompNotification};
use libc::{c_char, c_int, c_long, c_void, sock_filter};
use rustix::thread::UnshareFlags;
use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// Exit status and resource usage of a reaped process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitResult {
    pub(crate) status: i32,
    pub(crate) cpu_us: u64,
    pub(crate) peak_bytes: u64,
}

impl WaitResult {
    /// Whether the process ended by SIGKILL.
    pub(crate) fn is_killed(&self) -> bool {
        self.status & 0x7f == libc::SIGKILL
    }
}

/// The side of a fork.
pub(crate) enum ForkSide {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

fn check(answer: c_long) -> io::Result<c_long> {
    if answer == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn clone_args(flags: u64, pidfd: &mut RawFd, cgroup: Option<BorrowedFd<'_>>) -> CloneArgs {
    let into_cgroup = if cgroup.is_some() {
        CLONE_INTO_CGROUP
    } else {
        0
    };
    CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64 | into_cgroup,
        pidfd: std::ptr::from_mut(pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: cgroup.map_or(0, |group| group.as_raw_fd() as u64),
        ..CloneArgs::default()
    }
}

/// Forks into new namespaces and, on cgroup v2, into a cgroup.
pub(crate) fn fork_into(namespaces: c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<ForkSide> {
    let mut pidfd: RawFd = -1;
    let args = clone_args(namespaces as u32 as u64, &mut pidfd, cgroup);
    // SAFETY: without CLONE_VM the child has memory of its own, as after fork; the launcher is
    // single-threaded, so no lock is held by a thread that the child lacks.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<CloneArgs>()) })?;
    match pid {
        0 => Ok(ForkSide::Child),
        _ => Ok(ForkSide::Parent {
            pid: pid as i32,
            // SAFETY: the kernel has just written a fresh descriptor that nobody else owns.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
    }
}

/// The stack of a child that shares our memory.
pub(crate) struct ChildStack(Vec<u128>);

impl ChildStack {
    pub(crate) fn new() -> ChildStack {
        ChildStack(vec![0; (64 << 10) / size_of::<u128>()])
    }
}

/// The entry point of a vfork child, and its argument.
struct ChildEntry<'a, T> {
    run: fn(&mut T) -> !,
    argument: &'a mut T,
}

extern "C" fn wake<T>(entry: *mut c_void) -> ! {
    // SAFETY: `vfork_on_stack` passes a live entry of this very type and sleeps while we use it.
    let entry = unsafe { &mut *entry.cast::<ChildEntry<'_, T>>() };
    (entry.run)(entry.argument)
}

/// Starts a child that shares our memory; returns once it has exec'd or ended. Far cheaper than a
/// fork, and the child can leave the reason of a failure in our memory.
pub(crate) fn vfork_on_stack<T>(
    stack: &mut ChildStack,
    cgroup: Option<BorrowedFd<'_>>,
    run: fn(&mut T) -> !,
    argument: &mut T,
) -> io::Result<(i32, OwnedFd)> {
    let mut entry = ChildEntry { run, argument };
    let (child, entry): (extern "C" fn(*mut c_void) -> !, _) =
        (wake::<T>, std::ptr::from_mut(&mut entry));
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_VM as u64 | libc::CLONE_VFORK as u64 | CLONE_CLEAR_SIGHAND;
    let mut args = clone_args(flags, &mut pidfd, cgroup);
    args.stack = stack.0.as_mut_ptr() as u64;
    args.stack_size = size_of_val(stack.0.as_slice()) as u64;
    let answer: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the child runs on `args.stack` and never returns; VFORK keeps us still until it has exec'd or
    // exited, so it alone uses the memory meanwhile.
    unsafe {
        core::arch::asm!(
            "syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r13", "call r12", "ud2", "2:",
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") &args, in("rsi") size_of::<CloneArgs>(),
            in("r12") child, in("r13") entry, lateout("rcx") _, lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "svc 0", "cbnz x0, 2f", "mov x29, xzr", "mov x0, x21", "blr x20", "brk 1", "2:",
            inlateout("x0") &args as *const CloneArgs as c_long => answer,
            in("x1") size_of::<CloneArgs>(), in("x8") libc::SYS_clone3,
            in("x20") child, in("x21") entry,
        );
    }
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer as i32));
    }
    // SAFETY: the kernel has just written a fresh descriptor that nobody else owns.
    Ok((answer as i32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Ends this process at once: no destructors, no buffers.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Reaps one child; `None` if it has not ended.
pub(crate) fn reap(pid: i32, wait: bool) -> io::Result<Option<(i32, WaitResult)>> {
    let mut status = 0;
    let options = if wait { 0 } else { libc::WNOHANG };
    // SAFETY: all-zero is a valid value of this plain struct of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of ours that the kernel may write.
    let found =
        check(unsafe { libc::wait4(pid, &mut status, options | libc::__WALL, &mut usage) }.into())?;
    if found == 0 {
        return Ok(None);
    }
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    let cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    Ok(Some((
        found as i32,
        WaitResult {
            status,
            cpu_us,
            peak_bytes: usage.ru_maxrss as u64 * 1024,
        },
    )))
}

/// Blocks SIGCHLD, so that [`await_child`] can wait for it.
pub(crate) fn block_child_signal() {
    // SAFETY: the set is a local; these calls only fill it and change our own mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Waits for SIGCHLD.
pub(crate) fn await_child() {
    let mut signal = 0;
    // SAFETY: both are locals of ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigwait(&set, &mut signal);
    }
}

/// Blocks these signals and returns a signalfd for them; never blocks.
pub(crate) fn signals(numbers: &[c_int]) -> io::Result<OwnedFd> {
    // SAFETY: the set is a local; these calls only fill it, change our own mask and make a descriptor.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for number in numbers {
            libc::sigaddset(&mut set, *number);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(check(fd.into())? as RawFd) })
}

/// The next signal of a signalfd, if there is one, and whether its sender is outside of our pid
/// namespace. Only the kernel can say that: a sender inside has a pid there, and a `siginfo` that a
/// sender writes has another code than `kill`.
pub(crate) fn next_signal(signals: &OwnedFd) -> Option<(c_int, bool)> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(signals, &mut info).ok()?;
    // The struct begins with: signal, errno, code, pid.
    let field = |place: usize| {
        let bytes = [
            info[4 * place],
            info[4 * place + 1],
            info[4 * place + 2],
            info[4 * place + 3],
        ];
        c_int::from_ne_bytes(bytes)
    };
    (read == info.len()).then(|| (field(0), field(2) == libc::SI_USER && field(3) == 0))
}

/// Kills every process that we may signal: as pid 1, everything in its pid namespace.
pub(crate) fn kill_all() {
    // SAFETY: two integers. Only pid 1 of a namespace calls it.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Stops every process of this pid namespace except pid 1 and this one.
pub(crate) fn stop_all() {
    signal_all(libc::SIGSTOP);
}

/// Continues every process of this pid namespace.
pub(crate) fn continue_all() {
    signal_all(libc::SIGCONT);
}

fn signal_all(signal: c_int) {
    // SAFETY: two integers. Its callers are born in the pid namespace of a sandbox.
    unsafe { libc::kill(-1, signal) };
}

/// Resets all signals: blocked and ignored ones are inherited, also over exec, and what the caller
/// or the Rust runtime chose (it ignores SIGPIPE) must not reach a program.
pub(crate) fn default_signals() {
    const LAST: c_int = 64;
    // The kernel's own struct, all zero: default handler, no flags, empty mask. The C library would
    // skip the two signals that it reserves, and that it ignores in what it spawns.
    let default = [0u64; 4];
    for number in 1..=LAST {
        // SAFETY: the kernel reads one struct of ours. For signals that cannot be set the call
        // fails, which is fine.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                &default,
                std::ptr::null_mut::<u8>(),
                8usize,
            )
        };
    }
    unblock_signals();
}

/// Unblocks every signal.
pub(crate) fn unblock_signals() {
    // SAFETY: the set is a local; these calls only fill it and change our own mask.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Takes the environment out of this process: copies it, then overwrites the kernel's copy, which
/// `/proc/PID/environ` shows. The C library and Rust find none afterwards.
pub(crate) fn take_environment() -> Vec<Vec<u8>> {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    let mut found = Vec::new();
    // SAFETY: we are single-threaded and nobody has changed the list that the kernel made: pointers, then null, to
    // strings on our own stack, which may be written. Nobody keeps references into them.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            let length = CStr::from_ptr(*next).to_bytes().len();
            let entry = std::slice::from_raw_parts_mut((*next).cast::<u8>(), length);
            found.push(entry.to_vec());
            entry.fill(0);
            next = next.add(1);
        }
        environ = std::ptr::null_mut();
    }
    found
}

/// Forks by the oldest system call, which every sandbox and emulator knows. 0 is the child.
pub(crate) fn fork() -> io::Result<i32> {
    // SAFETY: the callers are single-threaded, so no lock is held by a thread that the child lacks.
    Ok(check(unsafe { libc::fork() }.into())? as i32)
}

/// Blocks every signal except those of faults.
pub(crate) fn block_signals() {
    const FAULTS: [c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGSYS,
    ];
    // SAFETY: the set is a local; these calls only fill it and change our own mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        for fault in FAULTS {
            libc::sigdelset(&mut set, fault);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// Takes the next blocked signal; `None` after the timeout.
pub(crate) fn await_signal(within: Option<std::time::Duration>) -> io::Result<Option<c_int>> {
    // SAFETY: all-zero is a valid value of these plain structs.
    let (mut set, mut limit) = unsafe { std::mem::zeroed::<(libc::sigset_t, libc::timespec)>() };
    if let Some(within) = within {
        limit.tv_sec = within.as_secs() as _;
        limit.tv_nsec = within.subsec_nanos() as _;
    }
    let limit = if within.is_some() {
        &raw const limit
    } else {
        std::ptr::null()
    };
    // SAFETY: the set and the time are locals of ours; nothing is asked to be written.
    let signal = unsafe {
        libc::sigfillset(&mut set);
        libc::sigtimedwait(&set, std::ptr::null_mut(), limit)
    };
    match check(signal.into()) {
        Ok(signal) => Ok(Some(signal as c_int)),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends a signal; with -1 to all processes that we may signal, which only pid 1 of a namespace may
/// ask for.
pub(crate) fn send_signal(pid: i32, signal: c_int) -> io::Result<()> {
    // SAFETY: two integers.
    check(unsafe { libc::kill(pid, signal) }.into())?;
    Ok(())
}

/// Closes one descriptor, where a range cannot be closed.
pub(crate) fn close(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the caller has just begun and owns no descriptor yet except the standard streams.
    check(unsafe { libc::close(descriptor) }.into())?;
    Ok(())
}

/// Moves this process into new namespaces.
pub(crate) fn unshare(namespaces: c_int) -> io::Result<()> {
    let flags = UnshareFlags::from_bits_retain(namespaces as u32);
    // SAFETY: no caller passes FILES, the one flag that can confuse other threads.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Sets the attributes of a mount and, with a user namespace, its idmap. It becomes private, too:
/// what the host mounts later must not appear in a sandbox, without any of these attributes.
pub(crate) fn set_mount(
    mount: BorrowedFd<'_>,
    recursive: bool,
    set: u64,
    idmap: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        userns: u64,
    }
    const IDMAP: u64 = 0x10_0000;
    let attr = MountAttr {
        set: set | if idmap.is_some() { IDMAP } else { 0 },
        clear: 0,
        propagation: libc::MS_PRIVATE,
        userns: idmap.map_or(0, |userns| userns.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a constant C string, the struct is ours and of the size given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &attr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// The Landlock ABI version of the kernel; 0 if it has none.
pub(crate) fn landlock_version() -> u32 {
    const VERSION: c_int = 1;
    // SAFETY: with this flag the kernel takes no struct and only answers a number.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            VERSION,
        )
    };
    u32::try_from(answer).unwrap_or(0)
}

/// The access rights that a Landlock ruleset handles.
#[repr(C)]
pub(crate) struct LandlockAttr {
    pub(crate) files: u64,
    pub(crate) net: u64,
    pub(crate) scoped: u64,
}

/// Creates a ruleset. `size` is the size of the struct in this ABI version.
pub(crate) fn landlock_ruleset(handled: &LandlockAttr, size: usize) -> io::Result<OwnedFd> {
    // SAFETY: `size` is at most the size of the struct (its only caller takes it from a constant table).
    let fd = check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, handled, size, 0) })?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Allows `access` below a path.
pub(crate) fn landlock_allow(ruleset: &OwnedFd, below: &OwnedFd, access: u64) -> io::Result<()> {
    #[repr(C, packed)]
    struct PathBeneath {
        access: u64,
        parent: i32,
    }
    const PATH_BENEATH: c_int = 1;
    let rule = PathBeneath {
        access,
        parent: below.as_raw_fd(),
    };
    // SAFETY: the struct has the kernel's layout and lives over the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            PATH_BENEATH,
            &rule,
            0,
        )
    })?;
    Ok(())
}

/// Binds this process and its children to the ruleset.
pub(crate) fn landlock_restrict(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: two integers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })?;
    Ok(())
}

/// Installs a seccomp filter. Returns the listener if the flags ask for one.
pub(crate) fn install_filter(filter: &[sock_filter], flags: u64) -> io::Result<Option<OwnedFd>> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies `len` instructions from a slice of that length and writes nothing.
    let answer = check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &program,
        )
    })?;
    match flags & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER {
        0 => Ok(None),
        // SAFETY: a fresh descriptor that nobody else owns.
        _ => Ok(Some(unsafe { OwnedFd::from_raw_fd(answer as RawFd) })),
    }
}

/// Whether the kernel knows these filter flags.
pub(crate) fn filter_flags_known(flags: u64) -> bool {
    let nothing = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: a null program is never installed: the kernel says EFAULT, or EINVAL if it does not know the flags.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            nothing,
        )
    };
    answer == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// Receives the next notification of a listener. Blocks if there is none.
pub(crate) fn receive_notification(listener: BorrowedFd<'_>) -> io::Result<SeccompNotification> {
    // SAFETY: all-zero is a valid value of this plain struct, and the one that the kernel wants to find.
    let mut found: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    check(
        // SAFETY: the kernel writes one struct of ours, whose size is part of the request's number.
        unsafe {
            libc::ioctl(
                listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                &mut found,
            )
        }
        .into(),
    )?;
    let number = found.data.nr.into();
    let arguments = found.data.args;
    Ok(SeccompNotification {
        id: found.id,
        pid: found.pid,
        number,
        arguments,
    })
}

/// Responds to a notification.
pub(crate) fn answer_notification(
    listener: BorrowedFd<'_>,
    id: u64,
    answer: NotificationResponse,
) -> io::Result<()> {
    let (error, flags) = match answer {
        NotificationResponse::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        NotificationResponse::Errno(errno) => (-errno, 0),
    };
    let mut answer = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    check(
        // SAFETY: the kernel reads one struct of ours, whose size is part of the request's number.
        unsafe {
            libc::ioctl(
                listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &mut answer,
            )
        }
        .into(),
    )?;
    Ok(())
}

/// Asks for wake-ups on the CPU of the waking process.
pub(crate) fn enable_sync_wakeup(listener: BorrowedFd<'_>) -> io::Result<()> {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: takes an integer.
    let answer = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
            SYNC_WAKE_UP,
        )
    };
    check(answer.into())?;
    Ok(())
}

/// Reads the memory of another thread; returns the number of bytes.
pub(crate) fn read_memory(pid: u32, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let ours = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let theirs = libc::iovec {
        iov_base: address as *mut c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel writes into a slice of ours of that length; the other address is not ours to follow.
    let count = unsafe { libc::process_vm_readv(pid as libc::pid_t, &ours, 1, &theirs, 1, 0) };
    Ok(check(count as c_long)? as usize)
}

/// A socket option of type `int`.
pub(crate) fn socket_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> io::Result<c_int> {
    let mut value = 0;
    let mut size = size_of::<c_int>() as libc::socklen_t;
    let to = std::ptr::from_mut::<c_int>(&mut value).cast();
    // SAFETY: the kernel writes at most `size` bytes, those of one integer of ours.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &mut size) }.into())?;
    Ok(value)
}

/// The user namespace that owns a namespace.
pub(crate) fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const GET_OWNER: u32 = 0xb701;
    // SAFETY: takes nothing and makes a descriptor.
    let fd = check(unsafe { libc::ioctl(namespace.as_raw_fd(), GET_OWNER as _) }.into())?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Binds a socket to one network interface, by its index.
pub(crate) fn bind_to_device(socket: BorrowedFd<'_>, device: u32) -> io::Result<()> {
    let value = std::ptr::from_ref(&device).cast();
    let size = size_of::<u32>() as libc::socklen_t;
    let level = libc::SOL_SOCKET;
    let name = libc::SO_BINDTOIFINDEX;
    // SAFETY: the kernel reads one integer of ours.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, size) }.into())?;
    Ok(())
}

/// Sets the file system ids of this thread.
pub(crate) fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: integers; the calls never fail, but tell what was before.
    let now = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        (
            libc::syscall(libc::SYS_setfsuid, -1),
            libc::syscall(libc::SYS_setfsgid, -1),
        )
    };
    if now == (c_long::from(uid), c_long::from(gid)) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// Runs `act` with other file system ids and all capabilities: the kernel would drop those for
/// files with another user's ids, unless securebits keep them.
pub(crate) fn with_file_ids<T>(
    uid: u32,
    gid: u32,
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    const NO_SETUID_FIXUP: c_long = 1 << 2;
    let bits = secure_bits(libc::PR_GET_SECUREBITS, 0)?;
    secure_bits(libc::PR_SET_SECUREBITS, bits | NO_SETUID_FIXUP)?;
    let done = set_file_ids(uid, gid).and_then(|()| act());
    set_file_ids(0, 0)?;
    secure_bits(libc::PR_SET_SECUREBITS, bits)?;
    done
}

fn secure_bits(operation: c_int, bits: c_long) -> io::Result<c_long> {
    // SAFETY: integers; no memory of ours is read or written.
    check(unsafe { libc::prctl(operation, bits, 0, 0, 0) }.into())
}

/// Drops all supplementary groups of this thread, and of no other.
pub(crate) fn leave_groups() -> io::Result<()> {
    // SAFETY: of a list without entries nothing is read.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) })?;
    Ok(())
}

/// Replaces this program by another. Returns only an error.
pub(crate) fn exec(path: &CStr, argv: &CStringArray, env: &CStringArray) -> io::Error {
    // SAFETY: both lists end with null and their strings live at least as long as the lists.
    unsafe { libc::execve(path.as_ptr(), argv.0.as_ptr(), env.0.as_ptr()) };
    io::Error::last_os_error()
}

/// Executes a program with the environment of this process: what `EmptyEnvironment` prevents.
pub(crate) fn exec_inheriting(path: &CStr, argv: &CStringArray) -> io::Error {
    // SAFETY: as for `exec`.
    unsafe { libc::execv(path.as_ptr(), argv.0.as_ptr()) };
    io::Error::last_os_error()
}

/// A null-terminated list of C strings, as `execve` takes it.
pub(crate) struct CStringArray(Vec<*const c_char>);

impl CStringArray {
    /// The strings must outlive the list; both belong to one plan, which does not change.
    pub(crate) fn to(strings: &[std::ffi::CString]) -> CStringArray {
        let pointers = strings.iter().map(|string| string.as_ptr());
        CStringArray(pointers.chain([std::ptr::null()]).collect())
    }
}

/// Lowers a resource limit; a lower one stays.
pub(crate) fn lower_limit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let mut old = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one struct of ours.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            std::ptr::null::<u8>(),
            &mut old,
        )
    })?;
    let hard = hard.min(old.rlim_max);
    let new = libc::rlimit64 {
        rlim_cur: soft.min(hard),
        rlim_max: hard,
    };
    // SAFETY: the kernel reads one struct of ours.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            &new,
            std::ptr::null::<u8>(),
        )
    })?;
    Ok(())
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as c_char;
    request.ifr_name[1] = b'o' as c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the kernel reads one struct of ours, of the kind that this request takes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) }.into())?;
    Ok(())
}

/// Sets the signal that the kernel sends on behalf of an open file.
pub(crate) fn set_signal(file: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    const F_SETSIG: c_int = 10;
    // SAFETY: three integers, one of them a descriptor that is open while it is borrowed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, signal) }.into())?;
    Ok(())
}

/// Takes, changes or releases a lease on an open file.
pub(crate) fn set_lease(file: BorrowedFd<'_>, lease: c_int) -> io::Result<()> {
    // SAFETY: three integers, one of them a descriptor that is open while it is borrowed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) }.into())?;
    Ok(())
}

/// Closes a range of descriptors, both ends included.
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: no owner of a descriptor in the range is used afterwards: the callers are processes
    // fresh from a fork that keep the descriptors they named and never touch the others.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
    Ok(())
}

/// Marks all descriptors from `first` on to close at exec.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: three integers; nothing is closed yet.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })?;
    Ok(())
}

/// Duplicates a descriptor onto a standard stream.
pub(crate) fn put_stream(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: two integers; the target is 0, 1 or 2, which no owner of ours holds.
    check(unsafe { libc::dup2(from, to) }.into())?;
    Ok(())
}

/// Borrows a descriptor by number in a vfork child, where owners in the parent's memory must not
/// move.
pub(crate) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the launcher holds the owner open while it sleeps in the vfork.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
