//! Transparent proxying: connections and DNS queries of programs that do not use a door arrive at
//! the host all the same. What each backend can intercept, the sockets for it, and its limits.

use crate::native::SandboxError;
use init::{plan::InterceptPlan, protocol};
use rustix::net::sockopt;
use spec::{DNS_PORT, ErrorCode, Ports, SandboxSpec, TRANSPARENT_PROXY_PORT, WEB_PORTS};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::RangeInclusive,
    os::fd::OwnedFd,
};

/// The ports of "all" in a container, where nothing can be redirected: web and development.
const DEFAULT_PORTS: [u16; 8] = [22, 80, 443, 3306, 5432, 6379, 8443, 9418];
/// Fake IPs where loopback is the only range; a part of it that nothing else uses.
const LOOPBACK_FAKE_IPS: RangeInclusive<Ipv4Addr> =
    Ipv4Addr::new(127, 64, 0, 1)..=Ipv4Addr::new(127, 127, 255, 254);
/// For network tests (RFC 2544), so never a real destination.
const TEST_NET_FAKE_IPS: RangeInclusive<Ipv4Addr> =
    Ipv4Addr::new(198, 18, 0, 1)..=Ipv4Addr::new(198, 19, 255, 254);

/// The sockets that take intercepted connections and DNS queries. Dropped, all of them are refused
/// inside.
#[derive(Debug)]
pub struct InterceptSockets {
    /// Listeners of intercepted connections.
    pub listeners: Vec<TcpListener>,
    /// DNS sockets, over UDP.
    pub dns_sockets: Vec<UdpSocket>,
    /// How to find the original destination of a connection.
    pub original_destination: OriginalDestination,
    /// Addresses that lead to the listeners and to nothing else, for allowed names.
    pub fake_ips: RangeInclusive<Ipv4Addr>,
}

/// How to find the original destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalDestination {
    /// It is the local address of the accepted socket.
    LocalAddress,
    /// The kernel redirected the connection and remembers it (`SO_ORIGINAL_DST`).
    Redirected,
}

impl OriginalDestination {
    /// The original destination of an accepted connection.
    pub fn destination(self, stream: &TcpStream) -> io::Result<SocketAddr> {
        let local = stream.local_addr()?;
        match (self, local) {
            (OriginalDestination::LocalAddress, _) => Ok(local),
            (OriginalDestination::Redirected, SocketAddr::V4(_)) => {
                Ok(sockopt::ip_original_dst(stream)?.into())
            }
            (OriginalDestination::Redirected, SocketAddr::V6(_)) => {
                Ok(sockopt::ipv6_original_dst(stream)?.into())
            }
        }
    }
}

/// Which connections of a sandbox are intercepted.
#[derive(Clone, Debug)]
pub(crate) struct InterceptReach {
    /// Connections to these ports.
    pub(crate) ports: Ports,
    /// Whether also those to real addresses, not only fake IPs.
    pub(crate) by_address: bool,
    /// Whether IPv6 is intercepted, too.
    pub(crate) ipv6: bool,
    /// The option that would intercept others.
    pub(crate) more_with: &'static str,
}

/// The sockets of a sandbox's transparent proxying, and what they reach.
#[derive(Debug)]
pub(crate) struct Interception {
    pub(crate) intercept: InterceptSockets,
    pub(crate) reach: InterceptReach,
    pub(crate) notes: Vec<String>,
}

/// Who has network_owner over the network namespace of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkOwner {
    /// This process.
    Airlock,
    /// Only the container engine.
    ContainerEngine,
}

/// The plan of transparent proxying for a spec.
pub(crate) fn plan(
    spec: &SandboxSpec,
    network_owner: NetworkOwner,
) -> Result<Option<InterceptPlan>, SandboxError> {
    let Some(requested) = &spec.transparent_ports else {
        return Ok(None);
    };
    let ports = match (requested, network_owner) {
        (Ports::These(ports), _) => ports.clone(),
        (Ports::Any, NetworkOwner::Airlock) => WEB_PORTS.to_vec(),
        (Ports::Any, NetworkOwner::ContainerEngine) => DEFAULT_PORTS.to_vec(),
    };
    if ports.len() > protocol::MAX_PORTS {
        let most = protocol::MAX_PORTS;
        return Err(SandboxError::Engine {
            code: ErrorCode::InvalidSpec,
            message: format!(
                "the rules name {} ports; a sandbox can have up to {most}",
                ports.len()
            ),
            hint: "name fewer ports, or all of them: --network open, or ports = \"any\" in a rule"
                .to_owned(),
        });
    }
    let redirect_port = (network_owner == NetworkOwner::Airlock && *requested == Ports::Any)
        .then_some(TRANSPARENT_PROXY_PORT);
    Ok(Some(InterceptPlan {
        ports,
        redirect_port,
        dns_port: DNS_PORT,
    }))
}

/// Takes the sockets from the descriptors of a report: listeners, then DNS sockets, as many as it
/// counts.
pub(crate) fn received(
    spec: &SandboxSpec,
    plan: InterceptPlan,
    network_owner: NetworkOwner,
    sockets: protocol::InterceptHandles,
    mut handles: impl Iterator<Item = OwnedFd>,
) -> Interception {
    let native = network_owner == NetworkOwner::Airlock;
    let redirected = plan.redirect_port.is_some() && sockets.redirect_errno.is_none();
    let listeners = handles
        .by_ref()
        .take(sockets.listeners as usize)
        .map(TcpListener::from)
        .collect();
    let intercept = InterceptSockets {
        listeners,
        dns_sockets: handles
            .take(sockets.dns_sockets as usize)
            .map(UdpSocket::from)
            .collect(),
        original_destination: if redirected {
            OriginalDestination::Redirected
        } else {
            OriginalDestination::LocalAddress
        },
        fake_ips: if native {
            TEST_NET_FAKE_IPS
        } else {
            LOOPBACK_FAKE_IPS
        },
    };
    let more_with = match (&spec.transparent_ports, native) {
        (Some(Ports::Any), true) => "nothing",
        (Some(Ports::Any), false) => "--backend native",
        (Some(Ports::These(_)) | None, _) => "--allow-host HOST:PORT",
    };
    let notes = notes(spec, &plan, sockets.redirect_errno, native);
    let ports = if redirected {
        Ports::Any
    } else {
        Ports::These(plan.ports)
    };
    Interception {
        intercept,
        reach: InterceptReach {
            ports,
            by_address: native,
            ipv6: sockets.dns_sockets > 1,
            more_with,
        },
        notes,
    }
}

/// The three parts.
pub(crate) fn parts(
    arrived: Option<Interception>,
) -> (
    Option<InterceptSockets>,
    Option<InterceptReach>,
    Vec<String>,
) {
    match arrived {
        Some(Interception {
            intercept,
            reach,
            notes,
        }) => (Some(intercept), Some(reach), notes),
        None => (None, None, Vec::new()),
    }
}

/// Notes about connections that are not intercepted though they were asked for.
fn notes(
    spec: &SandboxSpec,
    plan: &InterceptPlan,
    redirect_errno: Option<i32>,
    native: bool,
) -> Vec<String> {
    let list = |ports: &[u16]| {
        ports
            .iter()
            .map(u16::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let any = spec.transparent_ports == Some(Ports::Any);
    let redirected = any && native && redirect_errno.is_none();
    let fewer = match redirect_errno {
        Some(errno) => Some(format!(
            "open reaches ports {} only: this kernel has no nf_tables ({})",
            list(&plan.ports),
            io::Error::from_raw_os_error(errno)
        )),
        None if any && !native => Some(format!(
            "open reaches ports {} by name only in a container; the native backend has all",
            list(&plan.ports)
        )),
        None => None,
    };
    let taken: Vec<_> = plan
        .ports
        .iter()
        .copied()
        .filter(|port| spec.doors.contains(port))
        .collect();
    let taken = (!taken.is_empty() && !redirected).then(|| {
        format!(
            "port {} is a door's inside: that of other hosts is reached by proxy only",
            list(&taken)
        )
    });
    fewer.into_iter().chain(taken).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{Network, Policy, RunRequest};

    fn spec(network: Option<Network>, hosts: &[String]) -> SandboxSpec {
        let command = vec!["true".into()];
        let request = RunRequest {
            command,
            network,
            allow_hosts: hosts.to_vec(),
            ..RunRequest::default()
        };
        Policy::default().admit(request).unwrap().sandbox
    }

    fn notes_of(
        spec: &SandboxSpec,
        network_owner: NetworkOwner,
        redirect_errno: Option<i32>,
    ) -> Vec<String> {
        let sockets = protocol::InterceptHandles {
            redirect_errno,
            ..Default::default()
        };
        received(
            spec,
            plan(spec, network_owner).unwrap().unwrap(),
            network_owner,
            sockets,
            std::iter::empty(),
        )
        .notes
    }

    #[test]
    fn ports_are_bounded() {
        let hosts = |count: u16| {
            (1..=count)
                .map(|port| format!("a.com:{port}"))
                .collect::<Vec<_>>()
        };
        // With the web ports, which every rule includes.
        assert_eq!(
            plan(&spec(None, &hosts(30)), NetworkOwner::Airlock)
                .unwrap()
                .unwrap()
                .ports
                .len(),
            protocol::MAX_PORTS
        );
        let refused = plan(&spec(None, &hosts(31)), NetworkOwner::ContainerEngine)
            .unwrap_err()
            .info();
        assert_eq!(refused.code, ErrorCode::InvalidSpec);
        assert!(refused.message.contains("33 ports"), "{}", refused.message);
    }

    #[test]
    fn what_reaches_less_than_was_asked_is_noted() {
        let all = spec(Some(Network::Open), &[]);
        assert_eq!(notes_of(&all, NetworkOwner::Airlock, None), [""; 0]);
        let fewer = notes_of(
            &all,
            NetworkOwner::Airlock,
            Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()),
        );
        assert!(
            fewer[0].starts_with("open reaches ports 80, 443 only: this kernel has no nf_tables"),
            "{fewer:?}"
        );
        assert!(
            notes_of(&all, NetworkOwner::ContainerEngine, None)[0]
                .contains("by name only in a container")
        );
        let of_a_door = spec(None, &["a.com:3128".to_owned()]);
        assert!(
            notes_of(&of_a_door, NetworkOwner::Airlock, None)[0]
                .starts_with("port 3128 is a door's")
        );
    }

    #[test]
    fn without_a_redirect_a_connection_tells_by_itself() {
        let all = spec(Some(Network::Open), &[]);
        let arrived = |redirect_errno| {
            let sockets = protocol::InterceptHandles {
                redirect_errno,
                ..Default::default()
            };
            let arrived = received(
                &all,
                plan(&all, NetworkOwner::Airlock).unwrap().unwrap(),
                NetworkOwner::Airlock,
                sockets,
                std::iter::empty(),
            );
            (arrived.intercept.original_destination, arrived.reach.ports)
        };
        assert_eq!(arrived(None), (OriginalDestination::Redirected, Ports::Any));
        assert_eq!(
            arrived(Some(2)),
            (OriginalDestination::LocalAddress, Ports::web())
        );
    }
}
