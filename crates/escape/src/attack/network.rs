//! Attacks by and on the network.

use super::{call, claim, hold, say};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    time::Duration,
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("connect", addresses) => addresses.iter().for_each(|address| connect(address)),
        ("sockets", [datagram, secret]) => sockets(datagram, secret),
        ("connect-abstract", [name]) => {
            if let Ok(stream) =
                SocketAddr::from_abstract_name(name).and_then(|at| UnixStream::connect_addr(&at))
            {
                listen_to(stream, name);
            }
        }
        ("connect-paths", paths) => paths.iter().for_each(|path| {
            if let Some(stream) = claim(&format!("{path} answers"), UnixStream::connect(path)) {
                listen_to(stream, path);
            }
        }),
        ("serve", [port, secret]) => serve(port, secret),
        _ => return None,
    }
    Some(())
}

/// Connects to every address of that name, and prints what the other side says.
fn connect(name: &str) {
    for address in name.to_socket_addrs().into_iter().flatten() {
        let Some(mut stream) = claim(name, TcpStream::connect_timeout(&address, PATIENCE)) else {
            continue;
        };
        let mut said = String::new();
        _ = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.read_to_string(&mut said));
        say(&format!("{name} says {said}"));
    }
}

fn listen_to(mut stream: UnixStream, name: &str) {
    let mut said = String::new();
    _ = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.read_to_string(&mut said));
    say(&format!("{name} says {said}"));
}

/// Families that no box needs stay open for the host to see; a datagram is sent to it.
fn sockets(datagram: &str, secret: &str) {
    const XDP: i32 = 44;
    const SMC: i32 = 43;
    let raw = libc::SOCK_RAW;
    let kinds = [
        (libc::AF_INET, raw, libc::IPPROTO_ICMP),
        (libc::AF_INET, raw, libc::IPPROTO_RAW),
        (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP),
        (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
        (libc::AF_INET6, raw, libc::IPPROTO_ICMPV6),
        (libc::AF_PACKET, raw, 0),
        (libc::AF_NETLINK, raw, 0),
        (libc::AF_NETLINK, raw, libc::NETLINK_NETFILTER),
        (libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        (libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
        (XDP, raw, 0),
        (SMC, libc::SOCK_STREAM, 0),
        (libc::AF_BLUETOOTH, raw, 1),
        (libc::AF_TIPC, libc::SOCK_SEQPACKET, 0),
        (libc::AF_CAN, raw, 1),
    ];
    for (family, kind, protocol) in kinds {
        _ = call!(libc::SYS_socket, family, kind, protocol);
    }
    if let Ok(socket) = UdpSocket::bind("0.0.0.0:0") {
        _ = socket.send_to(secret.as_bytes(), datagram);
    }
    hold();
}

/// Tells a secret to whoever comes from outside.
fn serve(port: &str, secret: &str) {
    for place in ["0.0.0.0", "[::]"] {
        let Ok(listener) = TcpListener::bind(format!("{place}:{port}")) else {
            continue;
        };
        let secret = secret.to_owned();
        // A limit may not let it.
        _ = std::thread::Builder::new().spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                _ = stream.write_all(secret.as_bytes());
            }
        });
    }
    hold();
}
