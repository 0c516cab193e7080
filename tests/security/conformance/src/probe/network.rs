//! Attempts on the network of a box: to take addresses that are somebody else's, to be answered, to be reached no more.

use crate::{Attempt, answer};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Option<Attempt> {
    Some(match (name, arguments) {
        ("take-port", ["tcp", address]) => take(libc::SOCK_STREAM, address),
        ("take-port", ["udp", address]) => take(libc::SOCK_DGRAM, address),
        ("ask", [address]) => ask(address),
        ("resolve", [name]) => resolve(name),
        ("remove-route", []) => remove_route(),
        ("remove-table", []) => remove_table(),
        _ => return None,
    })
}

/// With everything that lets a socket share an address.
fn take(kind: i32, address: &str) -> Attempt {
    let address: SocketAddr = address.parse().expect("address:port");
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    // SAFETY: three integers, and a fresh descriptor that nobody else owns.
    let socket = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) };
    answer(socket.into())?;
    // SAFETY: see above.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let (one, size) = (1i32, size_of::<i32>() as u32);
    for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
        let value = std::ptr::from_ref(&one).cast();
        // SAFETY: the kernel reads one integer of ours.
        let set =
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size) };
        answer(set.into())?;
    }
    bind(&socket, address)?;
    match kind {
        // SAFETY: two integers.
        libc::SOCK_STREAM => answer(unsafe { libc::listen(socket.as_raw_fd(), 1) }.into()),
        _ => Ok(String::new()),
    }
}

fn bind(socket: &OwnedFd, address: SocketAddr) -> Attempt {
    let SocketAddr::V4(address) = address else {
        return Err(io::Error::other("of the older family only"));
    };
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    };
    let size = size_of_val(&name) as u32;
    // SAFETY: the struct is of that size and lives over the call.
    answer(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&name).cast(), size) }.into())
}

/// One packet, and what comes back from that very address.
fn ask(address: &str) -> Attempt {
    let address: SocketAddr = address.parse().expect("address:port");
    let any: SocketAddr = if address.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.send(b"?")?;
    let mut said = [0; 64];
    let length = socket.recv(&mut said)?;
    Ok(String::from_utf8_lossy(&said[..length]).into_owned())
}

/// As programs do: by whatever `/etc` says.
fn resolve(name: &str) -> Attempt {
    let found: Vec<_> = (name, 443)
        .to_socket_addrs()?
        .map(|address| address.ip().to_string())
        .collect();
    Ok(found.join(" "))
}

/// `ip route del local 0.0.0.0/0 dev lo table local`
fn remove_route() -> Attempt {
    let fixed = [
        libc::AF_INET as u8,
        0,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        0,
        255,
        libc::RTN_LOCAL,
        0,
        0,
        0,
        0,
    ];
    say(
        libc::NETLINK_ROUTE,
        &message(libc::RTM_DELROUTE, &fixed, &[8, 0, 4, 0, 1, 0, 0, 0]),
    )
}

/// `nft delete table ip airlock`
fn remove_table() -> Attempt {
    let subsystem = libc::NFNL_SUBSYS_NFTABLES;
    let mark = |kind: i32| message(kind as u16, &[0, 0, 0, subsystem as u8], &[]);
    let kind = (subsystem << 8 | libc::NFT_MSG_DELTABLE) as u16;
    let table = message(
        kind,
        &[libc::NFPROTO_IPV4 as u8, 0, 0, 0],
        b"\x0c\0\x01\0airlock\0",
    );
    let (begin, end) = (
        mark(libc::NFNL_MSG_BATCH_BEGIN),
        mark(libc::NFNL_MSG_BATCH_END),
    );
    say(libc::NETLINK_NETFILTER, &[begin, table, end].concat())
}

fn message(kind: u16, fixed: &[u8], attributes: &[u8]) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let length = (16 + fixed.len() + attributes.len()) as u32;
    let header = [
        &length.to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &[0; 8],
    ]
    .concat();
    [&header[..], fixed, attributes].concat()
}

/// The first error that the kernel answers with.
fn say(protocol: i32, bytes: &[u8]) -> Attempt {
    // SAFETY: three integers.
    let socket = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            protocol,
        )
    };
    answer(socket.into())?;
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the kernel reads a slice of ours of that length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    answer(sent as i64)?;
    let mut said = [0u8; 4096];
    loop {
        // SAFETY: the kernel writes into a slice of ours of that length.
        let read = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                said.as_mut_ptr().cast(),
                said.len(),
                libc::MSG_DONTWAIT,
            )
        };
        let error = i32::from_ne_bytes([said[16], said[17], said[18], said[19]]);
        match (read, error) {
            (..0, _) => return Ok(String::new()),
            (_, 0) => {}
            (_, error) => return Err(io::Error::from_raw_os_error(-error)),
        }
    }
}
