//! The system calls that the engine examines before they happen, to learn what a program was
//! denied: connections, and changes of files by path. This table says which argument is what; it
//! decides nothing.
//!
//! Reads are not among them, nor calls on an open descriptor: both are too frequent. A notification
//! costs a call some 18 to 25 µs (Linux 6.18: opening to write 5 → 22, creating a file 8 → 32,
//! removing one 5 → 23).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One watched system call.
#[derive(Clone, Copy, Debug)]
pub struct WatchedSyscall {
    pub(crate) number: libc::c_long,
    /// What it does.
    pub operation: SyscallOperation,
    /// No notification if these bits of this argument are all clear.
    pub(crate) unless: Option<(u8, u32)>,
}

/// A path argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathArgument {
    /// The argument with the folder descriptor it is relative to; without one, the working
    /// directory.
    pub folder: Option<u8>,
    /// The argument with the pointer to the path.
    pub path: u8,
}

/// Where a call has its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagsSource {
    /// Constant.
    Fixed(i32),
    /// In an argument.
    Argument(u8),
    /// In the first 64 bits of the struct that an argument points to: `openat2`. Its size is the
    /// next argument.
    Pointed(u8),
}

/// What a watched call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallOperation {
    /// Connects: socket, address, length of the address.
    Connect,
    /// Opens a file to write, or creates it.
    Open(PathArgument, FlagsSource),
    /// Creates a folder.
    MakeFolder(PathArgument),
    /// Creates a symbolic link, whose target an argument points to.
    MakeLink(u8, PathArgument),
    /// Creates a file of another type.
    Make(PathArgument),
    /// Creates a hard link from the first path to the second; flags of `linkat`.
    Link(PathArgument, PathArgument, FlagsSource),
    /// Removes a name; flags of `unlinkat`.
    Remove(PathArgument, FlagsSource),
    /// Renames; flags of `renameat2`.
    Rename(PathArgument, PathArgument, FlagsSource),
    /// Changes mode or owner; flags of the `…at` calls.
    Change(PathArgument, FlagsSource),
}

const OPEN_TO_WRITE: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

const fn at(folder: u8, path: u8) -> PathArgument {
    PathArgument {
        folder: Some(folder),
        path,
    }
}

const fn call(number: libc::c_long, operation: SyscallOperation) -> WatchedSyscall {
    WatchedSyscall {
        number,
        operation,
        unless: None,
    }
}

const FCHMODAT2: libc::c_long = 452;
const PLAIN: FlagsSource = FlagsSource::Fixed(0);

/// The calls of every architecture.
pub(crate) const CALLS: &[WatchedSyscall] = &[
    call(libc::SYS_connect, SyscallOperation::Connect),
    WatchedSyscall {
        unless: Some((2, OPEN_TO_WRITE)),
        ..call(
            libc::SYS_openat,
            SyscallOperation::Open(at(0, 1), FlagsSource::Argument(2)),
        )
    },
    call(
        libc::SYS_openat2,
        SyscallOperation::Open(at(0, 1), FlagsSource::Pointed(2)),
    ),
    call(libc::SYS_mkdirat, SyscallOperation::MakeFolder(at(0, 1))),
    call(libc::SYS_mknodat, SyscallOperation::Make(at(0, 1))),
    call(libc::SYS_symlinkat, SyscallOperation::MakeLink(0, at(1, 2))),
    call(
        libc::SYS_linkat,
        SyscallOperation::Link(at(0, 1), at(2, 3), FlagsSource::Argument(4)),
    ),
    call(
        libc::SYS_unlinkat,
        SyscallOperation::Remove(at(0, 1), FlagsSource::Argument(2)),
    ),
    call(
        libc::SYS_renameat,
        SyscallOperation::Rename(at(0, 1), at(2, 3), PLAIN),
    ),
    call(
        libc::SYS_renameat2,
        SyscallOperation::Rename(at(0, 1), at(2, 3), FlagsSource::Argument(4)),
    ),
    call(
        libc::SYS_truncate,
        SyscallOperation::Open(here(0), FlagsSource::Fixed(libc::O_WRONLY)),
    ),
    call(
        libc::SYS_fchmodat,
        SyscallOperation::Change(at(0, 1), PLAIN),
    ),
    call(
        FCHMODAT2,
        SyscallOperation::Change(at(0, 1), FlagsSource::Argument(3)),
    ),
    call(
        libc::SYS_fchownat,
        SyscallOperation::Change(at(0, 1), FlagsSource::Argument(4)),
    ),
];

const fn here(path: u8) -> PathArgument {
    PathArgument { folder: None, path }
}

/// The calls that only older architectures have.
#[cfg(target_arch = "x86_64")]
pub(crate) const CALLS_ON_ARCH: &[WatchedSyscall] = &[
    WatchedSyscall {
        unless: Some((1, OPEN_TO_WRITE)),
        ..call(
            libc::SYS_open,
            SyscallOperation::Open(here(0), FlagsSource::Argument(1)),
        )
    },
    call(
        libc::SYS_creat,
        SyscallOperation::Open(
            here(0),
            FlagsSource::Fixed(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC),
        ),
    ),
    call(libc::SYS_mkdir, SyscallOperation::MakeFolder(here(0))),
    call(libc::SYS_mknod, SyscallOperation::Make(here(0))),
    call(libc::SYS_symlink, SyscallOperation::MakeLink(0, here(1))),
    call(
        libc::SYS_link,
        SyscallOperation::Link(here(0), here(1), PLAIN),
    ),
    call(libc::SYS_unlink, SyscallOperation::Remove(here(0), PLAIN)),
    call(
        libc::SYS_rmdir,
        SyscallOperation::Remove(here(0), FlagsSource::Fixed(libc::AT_REMOVEDIR)),
    ),
    call(
        libc::SYS_rename,
        SyscallOperation::Rename(here(0), here(1), PLAIN),
    ),
    call(libc::SYS_chmod, SyscallOperation::Change(here(0), PLAIN)),
    call(libc::SYS_chown, SyscallOperation::Change(here(0), PLAIN)),
    call(
        libc::SYS_lchown,
        SyscallOperation::Change(here(0), FlagsSource::Fixed(libc::AT_SYMLINK_NOFOLLOW)),
    ),
];
#[cfg(target_arch = "aarch64")]
pub(crate) const CALLS_ON_ARCH: &[WatchedSyscall] = &[];

/// The operation of a watched call.
pub fn operation_of(number: libc::c_long) -> Option<SyscallOperation> {
    let mut all = CALLS.iter().chain(CALLS_ON_ARCH);
    all.find(|watched| watched.number == number)
        .map(|watched| watched.operation)
}

/// The destination in an Internet socket address; none for other families and for truncated
/// addresses.
pub fn destination(bytes: &[u8]) -> Option<SocketAddr> {
    let part = |from: usize, to: usize| bytes.get(from..to);
    let family = i32::from(u16::from_ne_bytes(part(0, 2)?.try_into().ok()?));
    let port = u16::from_be_bytes(part(2, 4)?.try_into().ok()?);
    let address: IpAddr = match family {
        // The kernel wants the padding, too.
        libc::AF_INET if bytes.len() >= 16 => {
            Ipv4Addr::from(<[u8; 4]>::try_from(part(4, 8)?).ok()?).into()
        }
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(part(8, 24)?).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Whether an address is certainly outside of the sandbox. The unspecified address means the
/// sandbox itself when connecting; multicast and link-local addresses are on any interface, which
/// may be `lo`.
pub fn is_outside_sandbox(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let of_a_link = match address {
        IpAddr::V4(v4) => v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(of_a_link || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(address: SocketAddr) -> Vec<u8> {
        let family = if address.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        } as u16;
        let mut bytes = [family.to_ne_bytes(), address.port().to_be_bytes()].concat();
        match address.ip() {
            IpAddr::V4(v4) => bytes.extend([&v4.octets()[..], &[0; 8]].concat()),
            IpAddr::V6(v6) => bytes.extend([&[0; 4], &v6.octets()[..], &[0; 4]].concat()),
        }
        bytes
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_it_was_written(address: IpAddr, port: u16) {
            let address = SocketAddr::new(address, port);
            let bytes = encoded(address);
            prop_assert_eq!(destination(&bytes), Some(address));
            let least = if address.is_ipv4() { 16 } else { 24 };
            prop_assert_eq!(destination(&bytes[..least - 1]), None);
        }

        #[test]
        fn rubbish_is_no_address(bytes: Vec<u8>) {
            if let Some(found) = destination(&bytes) {
                prop_assert!(bytes.starts_with(&encoded(found)[..8]));
            }
        }
    }

    #[test]
    fn what_may_be_in_the_box_has_many_spellings() {
        let loopback = [
            "127.0.0.1",
            "127.255.1.2",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
            "::ffff:0.0.0.0",
        ];
        let of_a_link = [
            "224.0.0.1",
            "239.1.2.3",
            "255.255.255.255",
            "ff02::1",
            "fe80::1",
            "::ffff:224.0.0.1",
        ];
        for local in loopback.into_iter().chain(of_a_link) {
            assert!(!is_outside_sandbox(local.parse().unwrap()), "{local}");
        }
        for foreign in [
            "1.2.3.4",
            "128.0.0.1",
            "10.0.0.1",
            "::2",
            "fec0::1",
            "::ffff:1.2.3.4",
            "0.0.0.1",
        ] {
            assert!(is_outside_sandbox(foreign.parse().unwrap()), "{foreign}");
        }
    }
}
