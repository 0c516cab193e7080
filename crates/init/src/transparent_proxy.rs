//! The network of a box: loopback, the doors on it, and, where expected_acks for, everything else.
//!
//! ```text
//! program ── connect 93.184.216.34:443 ─▶ every address is local ─▶ a listener of the host's, on lo
//!         ── which address has NAME?   ─▶ 127.0.0.1:53           ─▶ a socket of the host's
//! ```
//!
//! There is no interface but `lo`: what is dialled arrives at whoever has the listeners, or nowhere.

use crate::{
    netlink::{ACKNOWLEDGE, Attributes, CREATE, Messages},
    nftables,
    plan::InterceptPlan,
    protocol::InterceptHandles,
    sys,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
};

/// In every network it is the first.
const LOOPBACK: u32 = 1;
/// Connections that wait to be accepted.
const LISTEN_BACKLOG: i32 = 128;

/// What was made for programs that know of no door.
#[derive(Default)]
pub(crate) struct Interception {
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) dns_sockets: Vec<UdpSocket>,
    /// Why there is no redirect, though one was expected_acks for.
    pub(crate) redirect_errno: Option<i32>,
}

impl Interception {
    /// What is handed out, in the order in which it is counted.
    pub(crate) fn handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        listeners.chain(self.dns_sockets.iter().map(AsFd::as_fd))
    }

    pub(crate) fn handle_counts(&self) -> InterceptHandles {
        InterceptHandles {
            listeners: self.listeners.len() as u32,
            dns_sockets: self.dns_sockets.len() as u32,
            redirect_errno: self.redirect_errno,
        }
    }
}

/// Listeners on the loopback at these ports.
pub(crate) fn open_doors(ports: &[u16]) -> io::Result<Vec<TcpListener>> {
    ports
        .iter()
        .map(|port| listen(Ipv4Addr::LOCALHOST.into(), *port, None))
        .collect()
}

/// Has everything that is dialled arrive, in a network over which we have power. Ports of doors stay theirs.
pub(crate) fn intercept_all(plan: &InterceptPlan, doors: &[u16]) -> io::Result<Interception> {
    make_local(libc::AF_INET)?;
    // Without IPv6 there is nothing to reach by it.
    let ipv6 = make_local(libc::AF_INET6).is_ok();
    let redirected = plan
        .redirect_port
        .map(|to| redirect_to(to, plan.dns_port, ipv6).map(|ipv6| (to, ipv6)));
    let intercept = match redirected {
        Some(Ok((to, ipv6))) => Interception {
            listeners: listen_on_loopback(to, ipv6)?,
            ..Interception::default()
        },
        Some(Err(error)) => Interception {
            listeners: listen_at(&plan.ports, doors, ipv6)?,
            redirect_errno: Some(error.raw_os_error().unwrap_or(libc::EIO)),
            ..Interception::default()
        },
        None => Interception {
            listeners: listen_at(&plan.ports, doors, ipv6)?,
            ..Interception::default()
        },
    };
    Ok(Interception {
        dns_sockets: open_dns_sockets(plan.dns_port, ipv6)?,
        ..intercept
    })
}

/// Redirects ipv6 families, or, where the kernel has no NAT for IPv6, the old one alone; whether it was ipv6.
fn redirect_to(to: u16, dns_port: u16, ipv6: bool) -> io::Result<bool> {
    match nftables::redirect_all(to, dns_port, ipv6) {
        Err(_) if ipv6 => nftables::redirect_all(to, dns_port, false).map(|()| false),
        done => done.map(|()| ipv6),
    }
}

/// The same where the network is somebody else's: only what leads to loopback arrives. From others on it, nothing.
pub(crate) fn intercept_loopback(
    plan: &InterceptPlan,
    doors: &[u16],
    others: bool,
) -> io::Result<Interception> {
    let only_from = others.then_some(LOOPBACK);
    let ports = plan.ports.iter().filter(|port| !doors.contains(port));
    let listeners = ports.map(|port| listen(Ipv4Addr::UNSPECIFIED.into(), *port, only_from));
    let listeners = listeners.collect::<io::Result<_>>()?;
    Ok(Interception {
        listeners,
        dns_sockets: open_dns_sockets(plan.dns_port, false)?,
        redirect_errno: None,
    })
}

/// Makes every address of a family one of this machine's.
fn make_local(family: i32) -> io::Result<()> {
    routes(family).send(None)
}

fn routes(family: i32) -> Messages {
    let (any_length, no_service, flags) = (0, 0, 0);
    let fixed = [
        family as u8,
        any_length,
        any_length,
        no_service,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
        flags,
        flags,
        flags,
        flags,
    ];
    let by_loopback = Attributes::default().with(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
    let mut messages = Messages::default();
    messages.add(
        libc::RTM_NEWROUTE,
        CREATE | ACKNOWLEDGE,
        &fixed,
        &by_loopback,
    );
    messages
}

/// At these ports of every address. On the loopback a door's port is the door's, and so for IPv4 nobody else's.
fn listen_at(ports: &[u16], doors: &[u16], ipv6: bool) -> io::Result<Vec<TcpListener>> {
    let ipv4_ports = ports.iter().filter(|port| !doors.contains(port));
    let ipv4_ports = ipv4_ports.map(|port| (IpAddr::from(Ipv4Addr::UNSPECIFIED), *port));
    let ipv6_ports = ports
        .iter()
        .filter(|_| ipv6)
        .map(|port| (IpAddr::from(Ipv6Addr::UNSPECIFIED), *port));
    ipv4_ports
        .chain(ipv6_ports)
        .map(|(address, port)| listen(address, port, None))
        .collect()
}

fn listen_on_loopback(port: u16, ipv6: bool) -> io::Result<Vec<TcpListener>> {
    loopbacks(ipv6)
        .map(|address| listen(address, port, None))
        .collect()
}

fn loopbacks(ipv6: bool) -> impl Iterator<Item = IpAddr> {
    let new = ipv6.then_some(IpAddr::from(Ipv6Addr::LOCALHOST));
    [IpAddr::from(Ipv4Addr::LOCALHOST)].into_iter().chain(new)
}

/// Sockets at which names are expected_acks for. Not shared: nobody else can bind to the same address.
fn open_dns_sockets(port: u16, ipv6: bool) -> io::Result<Vec<UdpSocket>> {
    let bind = |address| {
        let socket = UdpSocket::bind((address, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    loopbacks(ipv6).map(bind).collect()
}

/// Not with the standard library: its listeners on `[::]` are also those of IPv4. Whose device counts must be said before it
/// listens: who came earlier would be let in.
fn listen(address: IpAddr, port: u16, only_from: Option<u32>) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if let Some(device) = only_from {
        sys::bind_to_device(socket.as_fd(), device)?;
    }
    rustix::net::bind(&socket, &SocketAddr::new(address, port))?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ip route add local 0.0.0.0/0 dev lo table local` says it.
    #[test]
    fn a_route_names_no_address_and_leads_to_loopback() {
        let message = [
            [36, 0, 0, 0, 24, 0, 0x05, 0x04],
            [0; 8],
            [2, 0, 0, 0, 255, 3, 254, 2],
            [0, 0, 0, 0, 8, 0, 4, 0],
        ];
        assert_eq!(
            routes(libc::AF_INET).bytes(),
            [&message.concat()[..], &[1, 0, 0, 0]].concat()
        );
    }
}
