//! `CONTROL_PLANE_URL`: `http://HOST[:PORT][/PREFIX]` or `unix:///PATH`. A URL may hold secrets, so no message shows it.

use super::super::EntryError;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const MAX_HOST_BYTES: usize = 253;

/// Where connections go.
#[derive(Clone, Debug, PartialEq)]
pub enum UpstreamAddress {
    /// A unix socket.
    Unix(Vec<u8>),
    /// An IP address.
    Ip(SocketAddr),
    /// A name to look up, and a port.
    Name(String, u16),
}

/// The URL of the control plane.
#[derive(Debug, PartialEq)]
pub struct ControlPlaneUrl {
    /// The address to connect to.
    pub address: UpstreamAddress,
    /// For the header `Host`.
    pub host: String,
    /// The prefix of all paths, without a slash at its end; mostly empty.
    pub prefix: String,
}

fn wrong(why: &str) -> EntryError {
    EntryError::new(format!(
        "CONTROL_PLANE_URL {why}; it must be http://HOST[:PORT][/PREFIX] or unix:///PATH"
    ))
}

/// Parses a URL.
pub fn parse(text: &[u8]) -> Result<ControlPlaneUrl, EntryError> {
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    let text = text.ok_or_else(|| wrong("has characters that no URL has"))?;
    let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("is no URL"))?;
    match scheme.to_ascii_lowercase().as_str() {
        "http" => parse_http(rest),
        "unix" if rest.starts_with('/') && rest.len() > 1 => Ok(ControlPlaneUrl {
            address: UpstreamAddress::Unix(rest.as_bytes().to_vec()),
            host: "localhost".to_owned(),
            prefix: String::new(),
        }),
        "https" => Err(EntryError::new(
            "CONTROL_PLANE_URL is https, which airlock-init does not speak; end TLS in front of it (a proxy on the \
             host or beside the container) and name that with http:// or unix://",
        )),
        _ => Err(wrong("has another scheme")),
    }
}

fn parse_http(rest: &str) -> Result<ControlPlaneUrl, EntryError> {
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(wrong("holds a user, which cannot be passed on"));
    }
    if rest.contains(['?', '#', '\\', '%'])
        || path.split('/').any(|part| part == "." || part == "..")
    {
        return Err(wrong(
            "has a query, a fragment, an escape or a relative path",
        ));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .ok_or_else(|| wrong("has a broken address"))?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => 80,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| wrong("has a bad port"))?,
        _ => return Err(wrong("has a bad port")),
    };
    let address = match (authority.starts_with('['), host.parse::<IpAddr>()) {
        (true, _) => {
            let address: Ipv6Addr = host.parse().map_err(|_| wrong("has a broken address"))?;
            UpstreamAddress::Ip((address, port).into())
        }
        (false, Ok(address)) => UpstreamAddress::Ip((address, port).into()),
        (false, Err(_)) if is_name(host) => UpstreamAddress::Name(host.to_ascii_lowercase(), port),
        (false, Err(_)) => return Err(wrong("has no proper host")),
    };
    Ok(ControlPlaneUrl {
        address,
        host: authority.to_owned(),
        prefix: path.trim_end_matches('/').to_owned(),
    })
}

fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    host.len() <= MAX_HOST_BYTES && host.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_forms_are_read() {
        let url = |address, host: &str, prefix: &str| ControlPlaneUrl {
            address,
            host: host.into(),
            prefix: prefix.into(),
        };
        let of = |text: &str| parse(text.as_bytes()).unwrap();
        let name = |port| UpstreamAddress::Name("proxy.local".into(), port);
        assert_eq!(of("http://Proxy.local"), url(name(80), "Proxy.local", ""));
        assert_eq!(
            of("HTTP://proxy.local:8090/"),
            url(name(8090), "proxy.local:8090", "")
        );
        assert_eq!(
            of("http://proxy.local/a/b/"),
            url(name(80), "proxy.local", "/a/b")
        );
        assert_eq!(
            of("http://10.0.0.1:1"),
            url(
                UpstreamAddress::Ip(([10, 0, 0, 1], 1).into()),
                "10.0.0.1:1",
                ""
            )
        );
        assert_eq!(
            of("http://[::1]:2"),
            url(
                UpstreamAddress::Ip((Ipv6Addr::LOCALHOST, 2).into()),
                "[::1]:2",
                ""
            )
        );
        assert_eq!(
            of("unix:///run/a.sock"),
            url(
                UpstreamAddress::Unix(b"/run/a.sock".to_vec()),
                "localhost",
                ""
            )
        );
    }

    #[test]
    fn all_else_is_refused_without_being_shown() {
        for wrong in [
            "",
            "s3cret",
            "http://",
            "http:///x",
            "http://s3cret:p@h",
            "http://h:0",
            "http://h:65536",
            "http://h:+1",
            "http://h:",
            "http://h?s3cret",
            "http://h/#a",
            "http://h/../a",
            "http://h/%2e",
            "ftp://h",
            "unix://rel",
            "unix:///",
            "http://[::1",
            "http://[h]",
            "http://a..b",
            "http://h/ a",
            "http://[1.2.3.4]",
        ] {
            assert!(
                !parse(wrong.as_bytes())
                    .expect_err(wrong)
                    .0
                    .contains("s3cret")
            );
        }
        assert!(
            parse(b"https://h")
                .unwrap_err()
                .0
                .contains("end TLS in front")
        );
        assert!(parse(b"http://\xff").is_err());
    }
}
