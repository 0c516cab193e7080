//! Hosts in one canonical spelling. Rules, resolver, dialler and audit log all use this parser, so
//! that no two of them can read the same bytes differently.

use crate::address;
use std::{fmt, net::IpAddr, str::FromStr};

/// A host in canonical form: a name in lower case without a final dot, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name of letters, digits, `-`, `_` and dots.
    Name(String),
    /// An address; an IPv4 address that is mapped into IPv6 is the IPv4 address.
    Address(IpAddr),
}

/// A text that is not a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHost {
    text: String,
    why: &'static str,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// A pattern of hosts: one host, those below a name, or all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// `*`.
    Any,
    /// `*.example.com`: names below at any depth, without `example.com` itself.
    Below(String),
    /// One host.
    Exactly(Host),
}

/// Bytes of a name.
const MAX_NAME_BYTES: usize = 253;
/// Bytes between two dots.
const MAX_LABEL_BYTES: usize = 63;

impl Host {
    /// The name, unless the host is an address.
    pub fn name(&self) -> Option<&str> {
        match self {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        }
    }
}

impl FromStr for Host {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Host, BadHost> {
        let bad = |why| BadHost {
            text: text.chars().take(80).collect(),
            why,
        };
        // `literal` accepts more final dots than a name may have, and zones, which other parsers
        // refuse.
        if !text.contains('%')
            && let Some(address) = address::literal(text.strip_suffix('.').unwrap_or(text))
        {
            if text.ends_with("..") {
                return Err(bad("it has an empty part between dots"));
            }
            return Ok(Host::Address(address.to_canonical()));
        }
        name(text).map(Host::Name).map_err(bad)
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return Err("it is longer than 253 characters");
    }
    if !name.is_ascii() {
        return Err("it has letters that are not ASCII; write it in its xn-- form");
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    for label in name.split('.') {
        match label.as_bytes() {
            [] => return Err("it has an empty part between dots"),
            label if label.len() > MAX_LABEL_BYTES => {
                return Err("a part of it is longer than 63 characters");
            }
            [b'-', ..] | [.., b'-'] => return Err("a part of it begins or ends with -"),
            label if !label.iter().all(|byte| plain(*byte)) => {
                return Err("it has a character that no name of a host has");
            }
            _ => {}
        }
    }
    // Some resolvers take such a name for an address, although `literal` does not.
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit())
        || last.starts_with("0x")
        || last.starts_with("0X")
    {
        return Err("it looks like an address and is none");
    }
    Ok(name.to_ascii_lowercase())
}

impl FromStr for Destination {
    type Err = BadHost;

    /// `HOST:PORT`, as in CONNECT.
    fn from_str(text: &str) -> Result<Destination, BadHost> {
        let bad = |why| BadHost {
            text: text.chars().take(80).collect(),
            why,
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| bad("it has no port"))?;
        // An IPv6 address without brackets would be split in the middle.
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(bad("an IPv6 address needs brackets"));
        }
        let digits =
            (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port != 0);
        Ok(Destination {
            host: host.parse()?,
            port: port.ok_or_else(|| bad("its port is not a number from 1 to 65535"))?,
        })
    }
}

impl HostPattern {
    /// Whether a host matches.
    pub fn matches(&self, host: &Host) -> bool {
        match self {
            HostPattern::Any => true,
            HostPattern::Exactly(own) => own == host,
            HostPattern::Below(suffix) => host.name().is_some_and(|name| {
                name.strip_suffix(suffix.as_str())
                    .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }),
        }
    }

    /// How precisely the pattern names a host; of two patterns that match, the more precise one
    /// counts.
    pub fn precision(&self) -> usize {
        match self {
            HostPattern::Any => 0,
            HostPattern::Below(suffix) => suffix.len(),
            HostPattern::Exactly(_) => usize::MAX,
        }
    }

    /// Whether the other pattern matches every host that this one matches.
    pub fn is_within(&self, other: &HostPattern) -> bool {
        match (self, other) {
            (_, HostPattern::Any) => true,
            (HostPattern::Any, _) => false,
            (HostPattern::Exactly(host), other) => other.matches(host),
            (HostPattern::Below(own), HostPattern::Below(suffix)) => {
                own == suffix
                    || own
                        .strip_suffix(suffix.as_str())
                        .is_some_and(|rest| rest.ends_with('.'))
            }
            (HostPattern::Below(_), HostPattern::Exactly(_)) => false,
        }
    }
}

impl FromStr for HostPattern {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<HostPattern, BadHost> {
        let bad = |why| BadHost {
            text: text.chars().take(80).collect(),
            why,
        };
        match text.strip_prefix("*.") {
            _ if text == "*" => Ok(HostPattern::Any),
            Some(rest) => match rest.parse()? {
                Host::Name(name) => Ok(HostPattern::Below(name)),
                Host::Address(_) => Err(bad("an address has nothing below it")),
            },
            None if text.contains('*') => Err(bad(
                "a * stands alone, or for the first parts: *.example.com",
            )),
            None => text.parse().map(HostPattern::Exactly),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => out.write_str(name),
            Host::Address(IpAddr::V4(address)) => write!(out, "{address}"),
            Host::Address(IpAddr::V6(address)) => write!(out, "[{address}]"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.host, self.port)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Any => out.write_str("*"),
            HostPattern::Below(suffix) => write!(out, "*.{suffix}"),
            HostPattern::Exactly(host) => write!(out, "{host}"),
        }
    }
}

impl fmt::Display for BadHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "`{}` is no host: {}",
            self.text.escape_debug(),
            self.why
        )
    }
}

impl std::error::Error for BadHost {}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
