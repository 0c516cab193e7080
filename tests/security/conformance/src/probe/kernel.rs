//! Attempts that are one system call each.

use crate::{Attempt, answer, number};
use std::{ffi::CString, io};

pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Option<Attempt> {
    Some(match (name, arguments) {
        ("unshare", [flags]) => unshare(number(flags)),
        ("clone", [flags]) => clone(number(flags)),
        ("clone3", []) => clone3(),
        ("setns", [path]) => setns(path),
        ("io-uring", []) => io_uring(),
        ("keyctl", []) => keyctl(),
        ("ptrace", []) => trace_me(),
        ("personality", []) => personality(),
        ("userfaultfd", []) => userfaultfd(),
        ("name-to-handle", []) => name_to_handle(),
        ("perf", []) => perf(),
        ("socket", [family, kind]) => socket(number(family), number(kind)),
        ("tiocsti", []) => type_into_terminal(),
        ("int80", []) => int80(),
        ("x32", []) => x32(),
        ("mknod", [path, kind]) => mknod(path, kind),
        ("mount", [path]) => mount(path),
        ("unmount", [path]) => unmount(path),
        ("count-cpus", []) => count_cpus(),
        ("shm-make", [key]) => shm(number(key), libc::IPC_CREAT | libc::IPC_EXCL | 0o666, 4096),
        ("shm-find", [key]) => shm(number(key), 0, 0),
        ("host-name", []) => host_name(),
        _ => return None,
    })
}

fn unshare(flags: i64) -> Attempt {
    // SAFETY: one integer; this process has one thread and ends after it.
    answer(unsafe { libc::unshare(flags as i32) }.into())
}

/// A child by `clone` with these flags; it ends at once.
fn clone(flags: i64) -> Attempt {
    let flags = flags | i64::from(libc::SIGCHLD);
    // SAFETY: like fork: no new stack, and the child only exits.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    child(pid)
}

fn clone3() -> Attempt {
    let mut arguments = [0u64; 8];
    arguments[4] = libc::SIGCHLD as u64;
    // SAFETY: the struct is of that size and lives over the call; the child only exits.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            arguments.as_mut_ptr(),
            size_of_val(&arguments),
        )
    };
    child(pid)
}

fn child(pid: i64) -> Attempt {
    match pid {
        // SAFETY: ends the child without running anything of the parent's.
        0 => unsafe { libc::_exit(0) },
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: waits for our own child; no status is written.
        pid => answer(unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) }.into()),
    }
}

fn setns(path: &str) -> Attempt {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open(path)?;
    // SAFETY: two integers.
    answer(unsafe { libc::setns(file.as_raw_fd(), 0) }.into())
}

fn io_uring() -> Attempt {
    let mut parameters = [0u8; 120];
    // SAFETY: the struct has the kernel's size and lives over the call.
    answer(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
}

fn unmount(path: &str) -> Attempt {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: the path lives over the call.
    answer(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }.into())
}

/// Those of the affinity, which most runtimes count, and those online, which Python counts.
fn count_cpus() -> Attempt {
    let mut allowed = [0u64; 128];
    // SAFETY: the kernel writes at most as many bytes as the array has.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(&allowed),
            allowed.as_mut_ptr(),
        )
    };
    answer(written)?;
    // SAFETY: one integer.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    Ok(format!(
        "{} {online}",
        allowed.iter().map(|word| word.count_ones()).sum::<u32>()
    ))
}

fn keyctl() -> Attempt {
    // KEYCTL_GET_KEYRING_ID of the session keyring, made if absent.
    // SAFETY: three integers.
    answer(unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 1) })
}

fn trace_me() -> Attempt {
    // SAFETY: PTRACE_TRACEME takes no memory.
    answer(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) })
}

fn personality() -> Attempt {
    // SAFETY: one integer.
    answer(unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as u64) }.into())
}

fn userfaultfd() -> Attempt {
    // Of this process's own faults only, which needs no privilege.
    // SAFETY: one integer.
    answer(unsafe { libc::syscall(libc::SYS_userfaultfd, 1) })
}

fn name_to_handle() -> Attempt {
    let path = c"/".as_ptr();
    // SAFETY: a null handle; the kernel answers EFAULT or refuses before it looks.
    answer(unsafe { libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path, 0, 0, 0) })
}

fn perf() -> Attempt {
    // SAFETY: a null struct; the kernel answers EFAULT or refuses before it looks.
    answer(unsafe { libc::syscall(libc::SYS_perf_event_open, 0, 0, -1, -1, 0) })
}

fn socket(family: i64, kind: i64) -> Attempt {
    // SAFETY: three integers.
    answer(unsafe { libc::socket(family as i32, kind as i32, 0) }.into())
}

fn type_into_terminal() -> Attempt {
    // SAFETY: the kernel reads one byte of ours. Rubbish above 32 bits must not get around a filter.
    answer(unsafe { libc::syscall(libc::SYS_ioctl, 0, 0xffff_ffff_0000_5412u64, c"x".as_ptr()) })
}

/// `getpid` through the entry of 32-bit programs.
fn int80() -> Attempt {
    let mut value: u64 = 20;
    // SAFETY: getpid has no arguments; the entry may clobber r8 to r11.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") value, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
    };
    match value as i32 {
        refused @ ..0 => Err(io::Error::from_raw_os_error(-refused)),
        _ => Ok(String::new()),
    }
}

/// `getpid` with the bit of the x32 ABI.
fn x32() -> Attempt {
    // SAFETY: getpid has no arguments.
    answer(unsafe { libc::syscall(0x4000_0000 | libc::SYS_getpid) })
}

fn mknod(path: &str, kind: &str) -> Attempt {
    let path = CString::new(path).expect("no NUL");
    let (mode, device) = match kind {
        "fifo" => (libc::S_IFIFO, 0),
        // The same device as /dev/null.
        _ => (libc::S_IFCHR, libc::makedev(1, 3)),
    };
    // SAFETY: the path lives over the call.
    answer(unsafe { libc::mknod(path.as_ptr(), mode | 0o666, device) }.into())
}

fn mount(path: &str) -> Attempt {
    let path = CString::new(path).expect("no NUL");
    let (source, kind) = (c"none".as_ptr(), c"tmpfs".as_ptr());
    // SAFETY: all strings live over the call.
    answer(unsafe { libc::mount(source, path.as_ptr(), kind, 0, std::ptr::null()) }.into())
}

fn shm(key: i64, flags: i32, size: usize) -> Attempt {
    // SAFETY: three integers.
    answer(unsafe { libc::shmget(key as i32, size, flags) }.into())
}

fn host_name() -> Attempt {
    let mut name = [0u8; 256];
    // SAFETY: the kernel writes at most that many bytes.
    answer(unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) }.into())?;
    let end = name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}
