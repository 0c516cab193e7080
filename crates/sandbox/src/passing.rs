//! For programs that know of no door: what they dial arrives at the host all the same, and so do the names that they
//! ask for. What of this a kind of box can have, what came of it, and how far it reaches.

use crate::native::SandboxError;
use init::{plan::PassingPlan, protocol};
use rustix::net::sockopt;
use spec::{DNS_PORT, ErrorCode, Ports, SandboxSpec, TRANSPARENT_PROXY_PORT, WEB_PORTS};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::RangeInclusive,
    os::fd::OwnedFd,
};

/// What all ports are in a container, where nobody can redirect: web, and what development asks for.
const USUAL_PORTS: [u16; 8] = [22, 80, 443, 3306, 5432, 6379, 8443, 9418];
/// Where the loopback is all there is; of it, a part that nothing else uses.
const OF_LOOPBACK: RangeInclusive<Ipv4Addr> =
    Ipv4Addr::new(127, 64, 0, 1)..=Ipv4Addr::new(127, 127, 255, 254);
/// For tests of networks (RFC 2544), so nobody's.
const OF_NOBODY: RangeInclusive<Ipv4Addr> =
    Ipv4Addr::new(198, 18, 0, 1)..=Ipv4Addr::new(198, 19, 255, 254);

/// What arrives from programs that know of no door. Dropped, all of it is refused inside.
#[derive(Debug)]
pub struct Passing {
    /// Where their connections arrive.
    pub listeners: Vec<TcpListener>,
    /// Where they ask for addresses of names: DNS, over UDP.
    pub names: Vec<UdpSocket>,
    /// How to learn where a connection was meant to go.
    pub meant_for: MeantFor,
    /// Addresses that lead to the listeners and to nothing else: for names that may be reached.
    pub made_up: RangeInclusive<Ipv4Addr>,
}

/// How to learn where a connection was meant to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeantFor {
    /// It is its own local address.
    LocalAddress,
    /// The kernel has redirected it, and remembers.
    Redirected,
}

impl MeantFor {
    /// Where an accepted connection was meant to go.
    pub fn destination(self, stream: &TcpStream) -> io::Result<SocketAddr> {
        let local = stream.local_addr()?;
        match (self, local) {
            (MeantFor::LocalAddress, _) => Ok(local),
            (MeantFor::Redirected, SocketAddr::V4(_)) => {
                Ok(sockopt::ip_original_dst(stream)?.into())
            }
            (MeantFor::Redirected, SocketAddr::V6(_)) => {
                Ok(sockopt::ipv6_original_dst(stream)?.into())
            }
        }
    }
}

/// What connections of a box arrive.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Those to these ports.
    pub(crate) ports: Ports,
    /// Whether also to addresses that did not come from us.
    pub(crate) by_address: bool,
    /// Whether of IPv6, too.
    pub(crate) ipv6: bool,
    /// What would let others arrive.
    pub(crate) more_with: &'static str,
}

/// What came out of a box, beside what its doors are.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) passing: Passing,
    pub(crate) reach: Reach,
    pub(crate) notes: Vec<String>,
}

/// Who has power over the network of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// We have.
    Ours,
    /// A container engine alone.
    Others,
}

/// How it is to be done.
pub(crate) fn plan(spec: &SandboxSpec, power: Power) -> Result<Option<PassingPlan>, SandboxError> {
    let Some(asked) = &spec.transparent_ports else {
        return Ok(None);
    };
    let ports = match (asked, power) {
        (Ports::These(ports), _) => ports.clone(),
        (Ports::Any, Power::Ours) => WEB_PORTS.to_vec(),
        (Ports::Any, Power::Others) => USUAL_PORTS.to_vec(),
    };
    if ports.len() > protocol::MOST_PORTS {
        let most = protocol::MOST_PORTS;
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
    let redirect = (power == Power::Ours && *asked == Ports::Any).then_some(TRANSPARENT_PROXY_PORT);
    Ok(Some(PassingPlan {
        ports,
        redirect,
        names: DNS_PORT,
    }))
}

/// What came of it: listeners and then sockets for names, as many as were told.
pub(crate) fn received(
    spec: &SandboxSpec,
    plan: PassingPlan,
    power: Power,
    told: protocol::Arriving,
    mut handles: impl Iterator<Item = OwnedFd>,
) -> Arrived {
    let native = power == Power::Ours;
    let redirected = plan.redirect.is_some() && told.no_redirect.is_none();
    let listeners = handles
        .by_ref()
        .take(told.listeners as usize)
        .map(TcpListener::from)
        .collect();
    let passing = Passing {
        listeners,
        names: handles
            .take(told.names as usize)
            .map(UdpSocket::from)
            .collect(),
        meant_for: if redirected {
            MeantFor::Redirected
        } else {
            MeantFor::LocalAddress
        },
        made_up: if native { OF_NOBODY } else { OF_LOOPBACK },
    };
    let more_with = match (&spec.transparent_ports, native) {
        (Some(Ports::Any), true) => "nothing",
        (Some(Ports::Any), false) => "--backend native",
        (Some(Ports::These(_)) | None, _) => "--allow-host HOST:PORT",
    };
    let notes = notes(spec, &plan, told.no_redirect, native);
    let ports = if redirected {
        Ports::Any
    } else {
        Ports::These(plan.ports)
    };
    Arrived {
        passing,
        reach: Reach {
            ports,
            by_address: native,
            ipv6: told.names > 1,
            more_with,
        },
        notes,
    }
}

/// The three apart.
pub(crate) fn parts(arrived: Option<Arrived>) -> (Option<Passing>, Option<Reach>, Vec<String>) {
    match arrived {
        Some(Arrived {
            passing,
            reach,
            notes,
        }) => (Some(passing), Some(reach), notes),
        None => (None, None, Vec::new()),
    }
}

/// What does not reach as far as was asked.
fn notes(
    spec: &SandboxSpec,
    plan: &PassingPlan,
    no_redirect: Option<i32>,
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
    let redirected = any && native && no_redirect.is_none();
    let fewer = match no_redirect {
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

    fn notes_of(spec: &SandboxSpec, power: Power, no_redirect: Option<i32>) -> Vec<String> {
        let told = protocol::Arriving {
            no_redirect,
            ..Default::default()
        };
        received(
            spec,
            plan(spec, power).unwrap().unwrap(),
            power,
            told,
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
        // With those of the web, which every rule has.
        assert_eq!(
            plan(&spec(None, &hosts(30)), Power::Ours)
                .unwrap()
                .unwrap()
                .ports
                .len(),
            protocol::MOST_PORTS
        );
        let refused = plan(&spec(None, &hosts(31)), Power::Others)
            .unwrap_err()
            .info();
        assert_eq!(refused.code, ErrorCode::InvalidSpec);
        assert!(refused.message.contains("33 ports"), "{}", refused.message);
    }

    #[test]
    fn what_reaches_less_than_was_asked_is_noted() {
        let all = spec(Some(Network::Open), &[]);
        assert_eq!(notes_of(&all, Power::Ours, None), [""; 0]);
        let fewer = notes_of(
            &all,
            Power::Ours,
            Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()),
        );
        assert!(
            fewer[0].starts_with("open reaches ports 80, 443 only: this kernel has no nf_tables"),
            "{fewer:?}"
        );
        assert!(notes_of(&all, Power::Others, None)[0].contains("by name only in a container"));
        let of_a_door = spec(None, &["a.com:3128".to_owned()]);
        assert!(notes_of(&of_a_door, Power::Ours, None)[0].starts_with("port 3128 is a door's"));
    }

    #[test]
    fn without_a_redirect_a_connection_tells_by_itself() {
        let all = spec(Some(Network::Open), &[]);
        let arrived = |no_redirect| {
            let told = protocol::Arriving {
                no_redirect,
                ..Default::default()
            };
            let arrived = received(
                &all,
                plan(&all, Power::Ours).unwrap().unwrap(),
                Power::Ours,
                told,
                std::iter::empty(),
            );
            (arrived.passing.meant_for, arrived.reach.ports)
        };
        assert_eq!(arrived(None), (MeantFor::Redirected, Ports::Any));
        assert_eq!(arrived(Some(2)), (MeantFor::LocalAddress, Ports::web()));
    }
}
