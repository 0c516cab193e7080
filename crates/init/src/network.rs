//! The network of a box: loopback, the doors on it, and, where asked for, everything else.
//!
//! ```text
//! program ── connect 93.184.216.34:443 ─▶ every address is local ─▶ a listener of the host's, on lo
//!         ── which address has NAME?   ─▶ 127.0.0.1:53           ─▶ a socket of the host's
//! ```
//!
//! There is no interface but `lo`: what is dialled arrives at whoever has the listeners, or nowhere.

use crate::{
    netlink::{ACKNOWLEDGE, Attributes, CREATE, Messages},
    plan::PassingPlan,
    protocol::Arriving,
    redirect, sys,
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
const BACKLOG: i32 = 128;

/// What was made for programs that know of no door.
#[derive(Default)]
pub(crate) struct Passing {
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) names: Vec<UdpSocket>,
    /// Why there is no redirect, though one was asked for.
    pub(crate) no_redirect: Option<i32>,
}

impl Passing {
    /// What is handed out, in the order in which it is counted.
    pub(crate) fn handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        listeners.chain(self.names.iter().map(AsFd::as_fd))
    }

    pub(crate) fn told(&self) -> Arriving {
        Arriving {
            listeners: self.listeners.len() as u32,
            names: self.names.len() as u32,
            no_redirect: self.no_redirect,
        }
    }
}

/// Listeners on the loopback at these ports.
pub(crate) fn doors(ports: &[u16]) -> io::Result<Vec<TcpListener>> {
    ports
        .iter()
        .map(|port| listen(Ipv4Addr::LOCALHOST.into(), *port, None))
        .collect()
}

/// Has everything that is dialled arrive, in a network over which we have power. Ports of doors stay theirs.
pub(crate) fn pass(plan: &PassingPlan, doors: &[u16]) -> io::Result<Passing> {
    make_local(libc::AF_INET)?;
    // Without IPv6 there is nothing to reach by it.
    let both = make_local(libc::AF_INET6).is_ok();
    let redirected = plan
        .redirect
        .map(|to| redirect_to(to, plan.names, both).map(|both| (to, both)));
    let passing = match redirected {
        Some(Ok((to, both))) => Passing {
            listeners: listen_on_loopback(to, both)?,
            ..Passing::default()
        },
        Some(Err(error)) => Passing {
            listeners: listen_at(&plan.ports, doors, both)?,
            no_redirect: Some(error.raw_os_error().unwrap_or(libc::EIO)),
            ..Passing::default()
        },
        None => Passing {
            listeners: listen_at(&plan.ports, doors, both)?,
            ..Passing::default()
        },
    };
    Ok(Passing {
        names: names(plan.names, both)?,
        ..passing
    })
}

/// Redirects both families, or, where the kernel has no NAT for IPv6, the old one alone; whether it was both.
fn redirect_to(to: u16, names: u16, both: bool) -> io::Result<bool> {
    match redirect::all(to, names, both) {
        Err(_) if both => redirect::all(to, names, false).map(|()| false),
        done => done.map(|()| both),
    }
}

/// The same where the network is somebody else's: only what leads to loopback arrives. From others on it, nothing.
pub(crate) fn pass_within(plan: &PassingPlan, doors: &[u16], others: bool) -> io::Result<Passing> {
    let only_from = others.then_some(LOOPBACK);
    let ports = plan.ports.iter().filter(|port| !doors.contains(port));
    let listeners = ports.map(|port| listen(Ipv4Addr::UNSPECIFIED.into(), *port, only_from));
    let listeners = listeners.collect::<io::Result<_>>()?;
    Ok(Passing {
        listeners,
        names: names(plan.names, false)?,
        no_redirect: None,
    })
}

/// Makes every address of a family one of this machine's.
fn make_local(family: i32) -> io::Result<()> {
    routes(family).say(None)
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
fn listen_at(ports: &[u16], doors: &[u16], both: bool) -> io::Result<Vec<TcpListener>> {
    let of_old = ports.iter().filter(|port| !doors.contains(port));
    let of_old = of_old.map(|port| (IpAddr::from(Ipv4Addr::UNSPECIFIED), *port));
    let of_new = ports
        .iter()
        .filter(|_| both)
        .map(|port| (IpAddr::from(Ipv6Addr::UNSPECIFIED), *port));
    of_old
        .chain(of_new)
        .map(|(address, port)| listen(address, port, None))
        .collect()
}

fn listen_on_loopback(port: u16, both: bool) -> io::Result<Vec<TcpListener>> {
    loopbacks(both)
        .map(|address| listen(address, port, None))
        .collect()
}

fn loopbacks(both: bool) -> impl Iterator<Item = IpAddr> {
    let new = both.then_some(IpAddr::from(Ipv6Addr::LOCALHOST));
    [IpAddr::from(Ipv4Addr::LOCALHOST)].into_iter().chain(new)
}

/// Sockets at which names are asked for. Not shared: nobody else can bind to the same address.
fn names(port: u16, both: bool) -> io::Result<Vec<UdpSocket>> {
    let bind = |address| {
        let socket = UdpSocket::bind((address, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    loopbacks(both).map(bind).collect()
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
    rustix::net::listen(&socket, BACKLOG)?;
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
