//! The calls that the engine looks at before they happen, so that it knows what a program was denied: what
//! connects, and what changes files by path. Which argument is what; nothing is decided here.
//!
//! Reading is not among them, nor what works on an open descriptor: both are too frequent to be asked about. Being asked
//! about costs a call some 18 to 25 µs (Linux 6.18: opening to write 5 → 22, making a file 8 → 32, removing one 5 → 23).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One watched call.
#[derive(Clone, Copy, Debug)]
pub struct WatchedSyscall {
    pub(crate) number: libc::c_long,
    /// What it does.
    pub operation: SyscallOperation,
    /// It is not asked about if these bits of this argument are all clear.
    pub(crate) unless: Option<(u8, u32)>,
}

/// A path among the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathArgument {
    /// The argument with the folder that it starts from; else the working directory.
    pub folder: Option<u8>,
    /// The argument that points at it.
    pub path: u8,
}

/// Where the flags of a call are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagsSource {
    /// Always these.
    Fixed(i32),
    /// An argument.
    Argument(u8),
    /// The first 64 bits of what an argument points at: the struct of `openat2`. Its size is the next argument.
    Pointed(u8),
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallOperation {
    /// Connects: socket, address, length of the address.
    Connect,
    /// Opens a file to write, or makes it.
    Open(PathArgument, FlagsSource),
    /// Makes a folder.
    MakeFolder(PathArgument),
    /// Makes a name for a symbolic link, whose content an argument points at.
    MakeLink(u8, PathArgument),
    /// Makes a name for anything else.
    Make(PathArgument),
    /// Gives a file (the first) one more name (the second); flags of `linkat`.
    Link(PathArgument, PathArgument, FlagsSource),
    /// Takes a name away; flags of `unlinkat`.
    Remove(PathArgument, FlagsSource),
    /// Changes a name; flags of `renameat2`.
    Rename(PathArgument, PathArgument, FlagsSource),
    /// Changes what a name leads to; flags of the `…at` calls.
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

/// Those of every architecture.
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

/// Those that only older architectures have.
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

/// What a watched call does.
pub fn operation_of(number: libc::c_long) -> Option<SyscallOperation> {
    let mut all = CALLS.iter().chain(CALLS_ON_ARCH);
    all.find(|watched| watched.number == number)
        .map(|watched| watched.operation)
}

/// Where a socket address of the Internet leads; nothing for other families and for less than a whole one.
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

/// Whether an address is certainly not to be found in this box. The unspecified one means the box itself when
/// connecting; groups, and addresses of one link, are on whatever interface is chosen, which may be `lo`.
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
