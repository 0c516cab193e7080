//! Broker addresses and the protocols that they imply. Ports of the mesh's own protocol (SMF),
//! which is not supported, are refused with alternatives.

use super::{SettingError, broker::TransportKind, env::shown};

/// Address and protocol of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) transport: TransportKind,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_encrypted: bool,
}

/// Origin of an address: in the mesh's variables `tcp://` means SMF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressStyle {
    Airlock,
    Mesh,
}

const ADDRESS_FORMS: &str = "mqtt://HOST:1883, mqtts://HOST:8883, amqp://HOST:5672, amqps://HOST:5671, or tcp://HOST:55554 for a development broker";

/// Parses an address.
pub(super) fn read(
    name: &'static str,
    text: &str,
    words: AddressStyle,
) -> Result<Address, SettingError> {
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
        (Some("mqtt"), _) => spoken(TransportKind::Mqtt, 1883, false),
        (Some("mqtts"), _) => spoken(TransportKind::Mqtt, 8883, true),
        (Some("amqp"), _) => spoken(TransportKind::Amqp, 5672, false),
        (Some("amqps"), _) => spoken(TransportKind::Amqp, 5671, true),
        (Some("tcp"), AddressStyle::Airlock) => spoken(TransportKind::Dev, 55554, false),
        (Some("tcp" | "smf") | None, AddressStyle::Mesh) => {
            by_conventional_port(name, host, port, false)
        }
        (Some("tcps" | "smfs"), AddressStyle::Mesh) => by_conventional_port(name, host, port, true),
        (Some(other), _) => Err(refused(
            name,
            format!("`{}://` is not spoken here", shown(other)),
        )),
        (None, AddressStyle::Airlock) => {
            Err(refused(name, format!("`{name}` does not say how to speak")))
        }
    }
}

/// The protocol by the conventional port. The scheme can only add encryption.
fn by_conventional_port(
    name: &'static str,
    host: String,
    port: Option<u16>,
    is_encrypted: bool,
) -> Result<Address, SettingError> {
    let Some(port) = port else {
        return Err(refused(
            name,
            format!("`{name}` has no port, and its port says how to speak"),
        ));
    };
    let (transport, encrypts) = match port {
        1883 => (TransportKind::Mqtt, is_encrypted),
        8883 => (TransportKind::Mqtt, true),
        5672 => (TransportKind::Amqp, is_encrypted),
        5671 => (TransportKind::Amqp, true),
        55554 if is_encrypted => {
            return Err(refused(
                name,
                "a development broker does not encrypt".to_owned(),
            ));
        }
        55554 => (TransportKind::Dev, false),
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

fn host_and_port(name: &'static str, text: &str) -> Result<(String, Option<u16>), SettingError> {
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
    // Also rejects URLs with a password, which must not be repeated in messages.
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

/// A host without a port.
pub(super) fn plain_host(name: &'static str, host: &str) -> Result<String, SettingError> {
    match host_and_port(name, host)? {
        (host, None) => Ok(host),
        (_, Some(_)) => Err(refused(name, format!("`{name}` is a host without a port"))),
    }
}

fn refused(name: &'static str, message: String) -> SettingError {
    instead(name, message, ADDRESS_FORMS)
}

fn instead(name: &'static str, message: String, ways: &str) -> SettingError {
    SettingError::new(
        name,
        message,
        format!("say it outright with SAM_TRANSPORT: {ways}"),
    )
}
