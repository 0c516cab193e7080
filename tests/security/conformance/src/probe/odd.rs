//! Calls that fail, or do not, for reasons of their own, although they name what is read-only or far away: whoever
//! looks at calls must not take them for denied. What the kernel said to each, in one line.

use crate::Attempt;
use std::{
    io,
    net::{TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

const CWD: i32 = libc::AT_FDCWD;
const OLD: *const libc::c_char = c"/usr/bin/env".as_ptr();
const NEW: *const libc::c_char = c"/usr/x".as_ptr();
const NEW_FOLDER: *const libc::c_char = c"/usr/x/".as_ptr();

pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Option<Attempt> {
    Some(match (name, arguments) {
        ("odd-opens", []) => Ok(opens()),
        ("odd-names", []) => names(),
        ("odd-connections", []) => connections(),
        _ => return None,
    })
}

/// A call, and what it comes to.
macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        // SAFETY: what the arguments point at lives over the call, or is nowhere at all.
        match unsafe { libc::syscall($number $(, $argument)*) } {
            -1 => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
            _ => 0,
        }
    }};
}

fn line(errors: &[i32]) -> String {
    errors
        .iter()
        .map(i32::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

fn opens() -> String {
    let make = (libc::O_WRONLY | libc::O_CREAT) as u64;
    let open_how = |path: *const libc::c_char, how: [u64; 3], size: usize| {
        call!(libc::SYS_openat2, CWD, path, how.as_ptr(), size)
    };
    let open =
        |path: *const libc::c_char, flags: i32| call!(libc::SYS_openat, CWD, path, flags, 0o600);
    let part = libc::O_TMPFILE & !libc::O_DIRECTORY;
    line(&[
        open_how(NEW, [make, 0o600, 0], 8),
        open_how(NEW, [make, 0o600, 0], 9000),
        open_how(NEW, [make | 1 << 40, 0o600, 0], 24),
        open_how(NEW, [make, 0o200_600, 0], 24),
        open_how(OLD, [libc::O_WRONLY as u64, 0o600, 0], 24),
        open(c"/usr".as_ptr(), libc::O_TMPFILE | libc::O_TRUNC),
        open(OLD, part | libc::O_RDWR),
        open(
            c"/proc/sys/kernel/x".as_ptr(),
            libc::O_WRONLY | libc::O_CREAT,
        ),
    ])
}

/// In a workspace whose `.bashrc` is there, and `.envrc` is not.
fn names() -> Attempt {
    std::os::unix::fs::symlink("/usr/none", "/tmp/nowhere")?;
    std::fs::write("own", "own")?;
    let nowhere = c"/tmp/nowhere".as_ptr();
    let rename = |from: &std::ffi::CStr, to: &std::ffi::CStr, flags: i32| {
        call!(
            libc::SYS_renameat2,
            CWD,
            from.as_ptr(),
            CWD,
            to.as_ptr(),
            flags
        )
    };
    let make_folder = |path: &std::ffi::CStr| call!(libc::SYS_mkdirat, CWD, path.as_ptr(), 0o700);
    Ok(line(&[
        call!(libc::SYS_symlinkat, c"x".as_ptr(), CWD, NEW_FOLDER),
        call!(libc::SYS_symlinkat, c"".as_ptr(), CWD, NEW),
        call!(libc::SYS_symlinkat, ptr::null::<u8>(), CWD, NEW),
        call!(libc::SYS_mknodat, CWD, NEW_FOLDER, libc::S_IFIFO | 0o600, 0),
        call!(libc::SYS_linkat, CWD, OLD, CWD, NEW_FOLDER, 0),
        call!(
            libc::SYS_linkat,
            CWD,
            nowhere,
            CWD,
            NEW,
            libc::AT_SYMLINK_FOLLOW
        ),
        call!(libc::SYS_linkat, CWD, OLD, CWD, NEW, 0x10000),
        call!(libc::SYS_unlinkat, CWD, OLD, 0x40),
        call!(libc::SYS_fchownat, CWD, OLD, 1, 1, 0x40000),
        call!(libc::SYS_renameat2, CWD, OLD, CWD, NEW, 0x80),
        call!(libc::SYS_unlinkat, CWD, c".bashrc/".as_ptr(), 0),
        rename(c".bashrc", c".bashrc", 0),
        rename(c"own", c".bashrc", libc::RENAME_NOREPLACE as i32),
        // There with the mount or the protection, and without it.
        make_folder(c"/empty"),
        make_folder(c".git/hooks"),
        call!(libc::SYS_openat, CWD, c"/empty".as_ptr(), libc::O_WRONLY),
        call!(
            libc::SYS_openat,
            CWD,
            c"/theirs/own".as_ptr(),
            libc::O_WRONLY
        ),
    ]))
}

fn socket(family: i32, kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers; the descriptor is fresh.
    match unsafe { libc::socket(family, kind, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: nobody else owns it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// To an address, of which that many bytes are given.
fn connect(socket: &impl AsRawFd, address: [u8; 4], length: usize) -> i32 {
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 9u16.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address),
        },
        sin_zero: [0; 8],
    };
    let mut space = [0u8; 256];
    // SAFETY: the struct is plain and shorter than the space.
    unsafe {
        ptr::from_ref(&name)
            .cast::<u8>()
            .copy_to(space.as_mut_ptr(), size_of_val(&name))
    };
    call!(
        libc::SYS_connect,
        socket.as_raw_fd(),
        space.as_ptr(),
        length
    )
}

fn connections() -> Attempt {
    let (out, group) = ([1, 2, 3, 4], [239, 1, 2, 3]);
    let stream = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let connected = TcpStream::connect(listener.local_addr()?)?;
    let within = UdpSocket::bind("127.0.0.1:0")?;
    let on_device = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    let (lo, first) = (c"lo", 1i32.to_be());
    // SAFETY: both values live over the calls and are of the sizes given.
    unsafe {
        libc::setsockopt(
            on_device.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            lo.as_ptr().cast(),
            3,
        )
    };
    let by_device = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    // SAFETY: as above.
    unsafe {
        let value = ptr::from_ref(&first).cast();
        libc::setsockopt(
            by_device.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_UNICAST_IF,
            value,
            4,
        )
    };
    Ok(line(&[
        connect(&stream, out, 129),
        connect(&stream, out, 15),
        connect(&listener, out, 16),
        connect(&connected, out, 16),
        connect(&within, group, 16),
        connect(&on_device, out, 16),
        connect(&by_device, out, 16),
    ]))
}
