//! Hosts, in one spelling: whatever decides, resolves, dials, compares or writes down a host has it from here, so that no
//! two of them can read the same bytes differently.

use crate::address;
use std::{fmt, net::IpAddr, str::FromStr};

/// A host in its one spelling: a name in lower case without a dot at the end, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// Letters, digits, `-`, `_` and dots.
    Name(String),
    /// However it was written; one in IPv6's clothes for IPv4 is that.
    Address(IpAddr),
}

/// Why a text is no host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHost {
    text: String,
    why: &'static str,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Destination {
    pub host: Host,
    pub port: u16,
}

/// Which hosts: one, those below a name, or all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// `*`.
    Any,
    /// `*.example.com`: at any depth, and not `example.com` itself.
    Below(String),
    /// This one.
    Exactly(Host),
}

const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

impl Host {
    /// Whether it is a name and no address.
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
        // `literal` takes more dots at the end than a name may have, and zones, which mean nothing to anybody else.
        if !text.contains('%')
            && let Some(address) = address::literal(text.strip_suffix('.').unwrap_or(text))
        {
            return match text.ends_with("..") {
                true => Err(bad("it has an empty part between dots")),
                false => Ok(Host::Address(address.to_canonical())),
            };
        }
        name(text).map(Host::Name).map_err(bad)
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.len() > LONGEST_NAME {
        return Err("it is longer than 253 characters");
    }
    if !name.is_ascii() {
        return Err("it has letters that are not ASCII; write it in its xn-- form");
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    for label in name.split('.') {
        match label.as_bytes() {
            [] => return Err("it has an empty part between dots"),
            label if label.len() > LONGEST_LABEL => {
                return Err("a part of it is longer than 63 characters");
            }
            [b'-', ..] | [.., b'-'] => return Err("a part of it begins or ends with -"),
            label if !label.iter().all(|byte| plain(*byte)) => {
                return Err("it has a character that no name of a host has");
            }
            _ => {}
        }
    }
    // To some resolvers such a thing is an address, and `literal` has said that it is none.
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
        // An IPv6 address without brackets would be cut in the middle.
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(bad("an IPv6 address needs brackets"));
        }
        let digits =
            (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port != 0);
        Ok(Destination {
            host: host.parse()?,
            port: port.ok_or_else(|| bad("its port is none"))?,
        })
    }
}

impl HostPattern {
    /// Whether this is one of them.
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

    /// How closely it names what it matches; of two that match, the larger one counts.
    pub fn precision(&self) -> usize {
        match self {
            HostPattern::Any => 0,
            HostPattern::Below(suffix) => suffix.len(),
            HostPattern::Exactly(_) => usize::MAX,
        }
    }

    /// Whether everything that this matches is matched by the other, too.
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
