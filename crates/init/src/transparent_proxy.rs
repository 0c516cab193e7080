//! Transparent proxying in a sandbox: the loopback interface, the listeners of the doors on it and,
//! if asked for, listeners for every other connection.
//!
//! ```text
//! program ── connect 93.184.216.34:443 ─▶ every address is local ─▶ a listener of the host's, on lo
//!         ── DNS query for NAME        ─▶ 127.0.0.1:53           ─▶ a socket of the host's
//! ```
//!
//! `lo` is the only interface: a connection reaches a process that has a listener, or fails.

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

/// The interface index of `lo` in every network namespace.
const LOOPBACK: u32 = 1;
/// The accept queue of a listener.
const LISTEN_BACKLOG: i32 = 128;

/// The sockets that take intercepted connections and DNS queries.
#[derive(Default)]
pub(crate) struct Interception {
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) dns_sockets: Vec<UdpSocket>,
    /// The errno of the redirect that was asked for and could not be made.
    pub(crate) redirect_errno: Option<i32>,
}

impl Interception {
    /// The descriptors for the engine, in the order of the counts.
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

/// Listeners on loopback at these ports.
pub(crate) fn open_doors(ports: &[u16]) -> io::Result<Vec<TcpListener>> {
    ports
        .iter()
        .map(|port| listen(Ipv4Addr::LOCALHOST.into(), *port, None))
        .collect()
}

/// Makes every address of a network namespace local and listens. Ports of doors keep their
/// listeners.
pub(crate) fn intercept_all(plan: &InterceptPlan, doors: &[u16]) -> io::Result<Interception> {
    make_local(libc::AF_INET)?;
    // A failure means that the kernel has no IPv6, so nothing can be reached by it.
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

/// Redirects both families, or IPv4 alone where the kernel has no NAT for IPv6. Returns whether
/// IPv6 is included.
fn redirect_to(to: u16, dns_port: u16, ipv6: bool) -> io::Result<bool> {
    match nftables::redirect_all(to, dns_port, ipv6) {
        Err(_) if ipv6 => nftables::redirect_all(to, dns_port, false).map(|()| false),
        done => done.map(|()| ipv6),
    }
}

/// The same without power over the network namespace: only connections to loopback are intercepted,
/// and none that come from other interfaces.
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

/// Makes every address of a family a local one.
fn make_local(family: i32) -> io::Result<()> {
    routes(family).send(None)
}

fn routes(family: i32) -> Messages {
    let any_length = 0;
    let no_service = 0;
    let flags = 0;
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

/// Listeners at these ports of every address. On IPv4 a door's port on loopback belongs to the door
/// alone.
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

/// DNS sockets. Not shared: no other process can bind to the same address.
fn open_dns_sockets(port: u16, ipv6: bool) -> io::Result<Vec<UdpSocket>> {
    let bind = |address| {
        let socket = UdpSocket::bind((address, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    loopbacks(ipv6).map(bind).collect()
}

/// The standard library's listeners on `[::]` accept IPv4, too. The device is set before `listen`:
/// a connection that came earlier would be accepted.
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

    /// As `ip route add local 0.0.0.0/0 dev lo table local` encodes it.
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
