//! Addresses of brokers: which protocol is spoken where. Ports of the mesh's own protocol, which is not spoken here, are
//! refused with those to use instead.

use super::{Mistake, broker::Transport, reader::shown};

/// Where a broker is, and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) transport: Transport,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_encrypted: bool,
}

/// Who wrote an address: in the mesh's own words `tcp://` is a protocol that is not spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    Ours,
    OfTheMesh,
}

const WAYS: &str = "mqtt://HOST:1883, mqtts://HOST:8883, amqp://HOST:5672, amqps://HOST:5671, or tcp://HOST:55554 for a development broker";

/// Reads an address.
pub(super) fn read(name: &'static str, text: &str, words: Words) -> Result<Address, Mistake> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, text),
    };
    let (host, port) = host_and_port(name, rest.strip_suffix('/').unwrap_or(rest))?;
    let spoken = |transport, usual, is_encrypted| {
        let port = port.unwrap_or(usual);
        Ok(Address {
            transport,
            host: host.clone(),
            port,
            is_encrypted,
        })
    };
    match (scheme.as_deref(), words) {
        (Some("mqtt"), _) => spoken(Transport::Mqtt, 1883, false),
        (Some("mqtts"), _) => spoken(Transport::Mqtt, 8883, true),
        (Some("amqp"), _) => spoken(Transport::Amqp, 5672, false),
        (Some("amqps"), _) => spoken(Transport::Amqp, 5671, true),
        (Some("tcp"), Words::Ours) => spoken(Transport::Dev, 55554, false),
        (Some("tcp" | "smf") | None, Words::OfTheMesh) => by_port(name, host, port, false),
        (Some("tcps" | "smfs"), Words::OfTheMesh) => by_port(name, host, port, true),
        (Some(other), _) => Err(refused(
            name,
            format!("`{}://` is not spoken here", shown(other)),
        )),
        (None, Words::Ours) => Err(refused(name, format!("`{name}` does not say how to speak"))),
    }
}

/// What is spoken at a port, by convention. What a scheme says about encryption can only add it.
fn by_port(
    name: &'static str,
    host: String,
    port: Option<u16>,
    is_encrypted: bool,
) -> Result<Address, Mistake> {
    let Some(port) = port else {
        return Err(refused(
            name,
            format!("`{name}` has no port, and its port says how to speak"),
        ));
    };
    let (transport, encrypts) = match port {
        1883 => (Transport::Mqtt, is_encrypted),
        8883 => (Transport::Mqtt, true),
        5672 => (Transport::Amqp, is_encrypted),
        5671 => (Transport::Amqp, true),
        55554 if is_encrypted => {
            return Err(refused(
                name,
                "a development broker does not encrypt".to_owned(),
            ));
        }
        55554 => (Transport::Dev, false),
        55555 | 8008 => {
            let message = format!("port {port} speaks SMF, which this worker does not");
            return Err(instead(
                name,
                message,
                "mqtt://HOST:1883 or amqp://HOST:5672",
            ));
        }
        55443 | 1443 | 443 => {
            let message = format!("port {port} speaks SMF, which this worker does not");
            return Err(instead(
                name,
                message,
                "mqtts://HOST:8883 or amqps://HOST:5671",
            ));
        }
        other => {
            return Err(refused(
                name,
                format!("port {other} does not say how to speak"),
            ));
        }
    };
    Ok(Address {
        transport,
        host,
        port,
        is_encrypted: encrypts,
    })
}

fn host_and_port(name: &'static str, text: &str) -> Result<(String, Option<u16>), Mistake> {
    let bad = |what: &str| refused(name, format!("`{name}`: {what}"));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest
                .split_once(']')
                .ok_or_else(|| bad("a bracket is not closed"))?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| bad("in brackets is no address"))?;
            match behind {
                "" => (host, None),
                _ => (
                    host,
                    Some(
                        behind
                            .strip_prefix(':')
                            .ok_or_else(|| bad("behind the bracket is no port"))?,
                    ),
                ),
            }
        }
        None => text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    };
    // Also whatever has a password in it: it is not repeated.
    let is_host = |letter: char| letter.is_ascii_alphanumeric() || "._-:".contains(letter);
    if host.is_empty() || host.len() > 253 || !host.chars().all(is_host) {
        return Err(bad("there is no host, or it has a letter that no host has"));
    }
    let port = match port {
        None => None,
        Some(port) => Some(
            port.parse::<u16>()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| bad("behind the host is no port"))?,
        ),
    };
    Ok((host.to_owned(), port))
}

/// One host and port, said apart.
pub(super) fn plain_host(name: &'static str, host: &str) -> Result<String, Mistake> {
    match host_and_port(name, host)? {
        (host, None) => Ok(host),
        (_, Some(_)) => Err(refused(name, format!("`{name}` is a host without a port"))),
    }
}

fn refused(name: &'static str, message: String) -> Mistake {
    instead(name, message, WAYS)
}

fn instead(name: &'static str, message: String, ways: &str) -> Mistake {
    Mistake::new(
        name,
        message,
        format!("say it outright with SAM_TRANSPORT: {ways}"),
    )
}
