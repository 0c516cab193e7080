//! Attempts whose denial is to be told: any system call by number, and tricks against whoever looks at calls.

use crate::{Attempt, answer, number};
use std::{
    ffi::CString,
    fs, io,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Option<Attempt> {
    Some(match (name, arguments) {
        // NUMBER[:ARGUMENT…] each; the verdicts in one line.
        ("calls", calls) => Ok(calls
            .iter()
            .map(|call| verdict(call))
            .collect::<Vec<_>>()
            .join(" ")),
        ("call-on", [call, path]) => call_on(call, path),
        ("open-with", [flags, path]) => open_with(number(flags), path),
        ("make-link", [to, path]) => std::os::unix::fs::symlink(to, path).map(|()| String::new()),
        ("add-name", [from, to]) => fs::hard_link(from, to).map(|()| String::new()),
        ("make-new", [path]) => fs::File::create_new(path).map(|_| String::new()),
        ("connect-as", [socket, address]) => connect_as(socket, address),
        ("second-listener", []) => second_listener(),
        ("flip", [first, second, rounds]) => flip(first, second, number(rounds)),
        ("undumpable", [name, rest @ ..]) => {
            // SAFETY: integers.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
            crate::any(name, rest)?
        }
        _ => return None,
    })
}

/// Arguments that were not given point nowhere.
fn verdict(call: &str) -> String {
    let mut parts = call.split(':').map(number);
    let number = parts.next().expect("a number");
    let mut arguments = [-1; 6];
    arguments
        .iter_mut()
        .zip(parts)
        .for_each(|(argument, given)| *argument = given);
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: no address among them is one of ours.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(0)
            .to_string(),
        _ => "0".to_owned(),
    }
}

/// A call with a path as its first argument, and zeros.
fn call_on(call: &str, path: &str) -> Attempt {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: the path lives over the call, and the calls that are named here take nothing else to write to.
    answer(unsafe { libc::syscall(number(call), path.as_ptr(), 0, 0, 0, 0, 0) })
}

/// By `openat2`, which has its flags in memory; what else it takes there is zero.
fn open_with(flags: i64, path: &str) -> Attempt {
    let path = CString::new(path).expect("no NUL");
    let how = [flags as u64, 0, 0];
    // SAFETY: path and struct live over the call, and the struct is of that size.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            how.as_ptr(),
            size_of_val(&how),
        )
    };
    answer(opened)
}

/// Gives an address to a descriptor that is no socket of its family.
fn connect_as(socket: &str, address: &str) -> Attempt {
    let address: std::net::SocketAddrV4 = address.parse().expect("address:port");
    let unix = std::os::unix::net::UnixDatagram::unbound()?;
    let descriptor = match socket {
        "unix" => unix.as_raw_fd(),
        "closed" => 99,
        "output" => 1,
        _ => return Err(io::Error::other("unknown")),
    };
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the struct is of that size and lives over the call.
    answer(
        unsafe {
            libc::connect(
                descriptor,
                std::ptr::from_ref(&name).cast(),
                size_of_val(&name) as u32,
            )
        }
        .into(),
    )
}

/// A filter of our own that allows everything, with a listener.
fn second_listener() -> Attempt {
    let allow = libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0x7fff_0000,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: std::ptr::from_ref(&allow).cast_mut(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: the kernel copies one instruction, which lives over the call.
    answer(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &program,
        )
    })
}

/// Opens one path to write, over and over, while another thread changes it to the second and back. Says how often it
/// was opened and how often not.
fn flip(first: &str, second: &str, rounds: i64) -> Attempt {
    assert_eq!(
        first.len(),
        second.len(),
        "one must be written over the other"
    );
    static DONE: AtomicBool = AtomicBool::new(false);
    let buffer = CString::new(first).expect("no NUL").into_raw();
    let (address, paths) = (buffer as usize, [first.to_owned(), second.to_owned()]);
    let flipper = std::thread::spawn(move || {
        for path in paths
            .iter()
            .cycle()
            .take_while(|_| !DONE.load(Ordering::Relaxed))
        {
            for (at, byte) in path.bytes().enumerate() {
                // SAFETY: within the buffer, which is never freed; racing with the kernel is the point.
                unsafe { (address as *mut u8).add(at).write_volatile(byte) };
            }
        }
    });
    let (mut opened, mut refused) = (0, 0);
    // On a busy machine the other thread may have no turn for a while.
    let end = Instant::now() + Duration::from_secs(20);
    while opened + refused < rounds || ((opened == 0 || refused == 0) && Instant::now() < end) {
        let flags = libc::O_WRONLY | libc::O_CREAT;
        // SAFETY: the buffer always ends with NUL.
        match unsafe { libc::open(buffer, flags, 0o644) } {
            -1 => refused += 1,
            file => {
                opened += 1;
                // SAFETY: one byte of ours, and our own descriptor.
                unsafe {
                    libc::write(file, c"x".as_ptr().cast(), 1);
                    libc::close(file);
                }
            }
        }
    }
    DONE.store(true, Ordering::Relaxed);
    flipper.join().expect("the other thread");
    Ok(format!("{} {}", opened > 0, refused > 0))
}
