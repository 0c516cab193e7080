//! Where a server listens: `http://HOST:PORT`, `https://HOST[:PORT]` or `unix:PATH`.

use http::Uri;
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    /// Without TLS.
    Plain(ServerHost),
    /// With TLS.
    Encrypted(ServerHost),
    /// A local socket.
    Unix(PathBuf),
}

/// A host name or IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerHost {
    /// The name as written; an IPv6 address without brackets.
    pub(crate) name: String,
    pub(crate) port: u16,
    /// What requests say in `Host`.
    authority: String,
}

impl ServerAddress {
    /// Parses a user's text. The error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<ServerAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(ServerAddress::Unix(path.into()))
            } else {
                Err("the path of a unix socket begins with a slash".to_owned())
            };
        }
        let uri: Uri = text.parse().map_err(|_| "it is not a URL".to_owned())?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err("it has a path, which a server address cannot have".to_owned());
        }
        match uri.scheme_str() {
            Some("http") => Ok(ServerAddress::Plain(ServerHost::of(&uri, 80)?)),
            Some("https") => Ok(ServerAddress::Encrypted(ServerHost::of(&uri, 443)?)),
            _ => Err("it does not begin with http://, https:// or unix:".to_owned()),
        }
    }

    /// Whether traffic to this address cannot be read on the network.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            ServerAddress::Plain(host) => host.is_this_machine(),
            ServerAddress::Encrypted(_) | ServerAddress::Unix(_) => true,
        }
    }

    /// What requests say in `Host`.
    pub(crate) fn authority(&self) -> &str {
        match self {
            ServerAddress::Plain(host) | ServerAddress::Encrypted(host) => &host.authority,
            ServerAddress::Unix(_) => "localhost",
        }
    }
}

impl ServerHost {
    fn of(uri: &Uri, default: u16) -> Result<ServerHost, String> {
        let authority = uri.authority().ok_or("it names no host")?;
        if authority.as_str().contains('@') {
            // A key in the URL would show in the process list.
            return Err("it must not contain a user name or key".to_owned());
        }
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, digits)) if !digits.ends_with(']') => {
                digits.parse().map_err(|_| "its port is not a number")?
            }
            _ => default,
        };
        let name = authority.host().trim_matches(['[', ']']).to_owned();
        if name.is_empty() || port == 0 {
            Err("it names no host, or no port".to_owned())
        } else {
            Ok(ServerHost {
                name,
                port,
                authority: format!("{}:{port}", authority.host()),
            })
        }
    }

    /// Whether this is the loopback interface. `localhost` is connected at loopback addresses only.
    pub(super) fn is_this_machine(&self) -> bool {
        self.is_localhost() || self.name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    fn is_localhost(&self) -> bool {
        self.name.eq_ignore_ascii_case("localhost")
    }

    /// Whether a resolved address may be connected.
    pub(super) fn may_dial(&self, address: &SocketAddr) -> bool {
        !self.is_localhost() || address.ip().is_loopback()
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Plain(host) => write!(out, "http://{}", host.authority),
            ServerAddress::Encrypted(host) => write!(out, "https://{}", host.authority),
            ServerAddress::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        ServerAddress::parse(text).map_or_else(
            |why| format!("refused: {why}"),
            |address| address.to_string(),
        )
    }

    #[test]
    fn three_kinds_of_address_are_known() {
        assert_eq!(shown("http://localhost:7070"), "http://localhost:7070");
        assert_eq!(shown("http://localhost:7070/"), "http://localhost:7070");
        assert_eq!(shown("https://box.example"), "https://box.example:443");
        assert_eq!(shown("http://[::1]:7070"), "http://[::1]:7070");
        assert_eq!(shown("unix:/run/airlock.sock"), "unix:/run/airlock.sock");
        assert_eq!(shown("unix:///run/airlock.sock"), "unix:/run/airlock.sock");
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "localhost:7070",
            "ftp://a",
            "http://",
            "http://a/b",
            "http://a?b",
            "http://key@a",
            "http://a:0",
            "http://a:99999",
            "http://a:x",
            "unix:",
            "unix:here",
            "http://a b",
            "/run/airlock.sock",
        ] {
            assert!(
                shown(text).starts_with("refused: "),
                "{text}: {}",
                shown(text)
            );
        }
    }

    #[test]
    fn only_this_machine_is_private_without_tls() {
        for (text, private) in [
            ("http://localhost:1", true),
            ("http://LOCALHOST:1", true),
            ("http://127.8.9.1:1", true),
            ("http://[::1]:1", true),
            ("unix:/x", true),
            ("https://box.example", true),
            ("http://box.example:1", false),
            ("http://10.0.0.1:1", false),
            ("http://localhost.evil.example:1", false),
            ("http://127.0.0.1.evil.example:1", false),
        ] {
            assert_eq!(
                ServerAddress::parse(text).unwrap().is_private(),
                private,
                "{text}"
            );
        }
    }

    #[test]
    fn localhost_is_dialled_here_or_nowhere() {
        let host = |text: &str| match ServerAddress::parse(text).unwrap() {
            ServerAddress::Plain(host) => host,
            other => panic!("{other}"),
        };
        let here = "127.0.0.1:1".parse().unwrap();
        let there = "10.0.0.1:1".parse().unwrap();
        assert!(
            host("http://localhost:1").may_dial(&here)
                && !host("http://localhost:1").may_dial(&there)
        );
        assert!(
            host("http://box.example:1").may_dial(&there),
            "the positive control"
        );
    }
}
