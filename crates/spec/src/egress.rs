//! The rules of the egress door: which hosts, which requests, which credentials. Resolving and
//! dialling is up to the door.

use crate::{Destination, HostPattern, PathPattern, RequestPath, Size};
use std::{fmt, str::FromStr};

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressRule {
    /// Its name in denials and in the audit log, such as `--allow-host pypi.org`.
    pub name: String,
    /// The hosts.
    pub host: HostPattern,
    /// Their ports.
    pub ports: Ports,
    /// What the rule allows.
    pub mode: EgressMode,
    /// Whether hosts may have private addresses. A metadata service is never allowed.
    pub allow_private: bool,
    /// Whether requests may be sent over plain HTTP, with the credential of the rule.
    pub allow_plain_http: bool,
    /// Whether a tunnel may hide the name of its server (Encrypted Client Hello).
    pub allow_hidden_name: bool,
    /// The limits of its traffic.
    pub limits: EgressLimits,
}

/// The ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Every port.
    Any,
    /// The listed ports.
    These(Vec<u16>),
}

/// What a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressMode {
    /// Nothing. It overrides every other rule.
    Deny,
    /// A tunnel. Over TLS only to the server that the client names; on port 80 each request is
    /// checked.
    Tunnel,
    /// TLS ends at the door, and each request is checked.
    Inspect {
        /// The allowed requests; all if empty.
        allow: Vec<Operation>,
        /// The credential that the door adds.
        credential: Option<String>,
        /// Whether a connection may be upgraded, such as to WebSocket; it is not checked any more
        /// then.
        allow_upgrade: bool,
    },
    /// The same, for requests of git over HTTP only.
    Git {
        /// The repositories.
        repositories: Vec<Repository>,
    },
}

/// A pattern of requests: a method and a path, such as `GET /v1/**`. `GET` includes `HEAD`; `*` is
/// every method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The method.
    pub method: String,
    /// The path.
    pub path: PathPattern,
}

/// A repository on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Its path without `.git`, such as `acme/app`; a `*` stands for one part.
    pub path: String,
    /// Whether it may be fetched.
    pub fetch: bool,
    /// The refs that may be pushed, such as `refs/heads/agent/*`; none if empty.
    pub push: Vec<RefPattern>,
    /// Whether existing refs may be updated. The door cannot tell whether an update is a
    /// fast-forward.
    pub update: bool,
    /// Whether refs may be deleted.
    pub delete: bool,
    /// The credential that the door adds.
    pub credential: Option<String>,
}

/// A pattern of ref names. A `*` at the end stands for one or more characters, slashes included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefPattern(String);

/// Limits of egress traffic; none where a field is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressLimits {
    /// New requests and connections within a minute.
    pub per_minute: Option<u32>,
    /// Bytes to the outside.
    pub sent: Option<Size>,
    /// Bytes from the outside.
    pub received: Option<Size>,
}

/// The egress door of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressGrant {
    /// Its rules. A host without a rule is denied.
    pub rules: Vec<EgressRule>,
    /// Further lists; a host must be in each of them.
    pub within: Vec<Vec<HostPattern>>,
    /// The limits of all rules together.
    pub limits: EgressLimits,
    /// Whether connections without a rule are allowed and recorded.
    pub learn: bool,
}

/// Why a rule cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRule(String);

/// The port of the egress door, inside.
pub const EGRESS_PORT: u16 = 3128;
/// The port to which connections to other hosts are redirected (transparent proxying).
pub const TRANSPARENT_PROXY_PORT: u16 = 3129;
/// The port of DNS.
pub const DNS_PORT: u16 = 53;
/// The ports of a rule that names none.
pub const WEB_PORTS: [u16; 2] = [80, 443];

impl EgressRule {
    /// A rule that allows a tunnel.
    pub fn tunnel(name: impl Into<String>, host: HostPattern, ports: Ports) -> EgressRule {
        EgressRule {
            name: name.into(),
            host,
            ports,
            mode: EgressMode::Tunnel,
            allow_private: false,
            allow_plain_http: false,
            allow_hidden_name: false,
            limits: EgressLimits::default(),
        }
    }

    /// The rule of `--allow-host HOST` or `HOST:PORT`.
    pub fn from_option(text: &str) -> Result<EgressRule, BadRule> {
        let (host, ports) = host_and_ports(text)?;
        Ok(EgressRule::tunnel(
            format!("--allow-host {text}"),
            host,
            ports,
        ))
    }

    /// The rule of `--network open`: all public hosts.
    pub fn open() -> EgressRule {
        let rule = EgressRule::tunnel("--network open", HostPattern::Any, Ports::Any);
        EgressRule {
            allow_hidden_name: true,
            ..rule
        }
    }

    /// Whether the rule covers a destination.
    pub fn is_about(&self, to: &Destination) -> bool {
        self.host.matches(&to.host) && self.ports.has(to.port)
    }

    /// Whether requests are checked, so that TLS must end at the door.
    pub fn looks_inside(&self) -> bool {
        matches!(
            self.mode,
            EgressMode::Inspect { .. } | EgressMode::Git { .. }
        )
    }

    /// The credentials of the rule.
    pub fn credentials(&self) -> Vec<&str> {
        match &self.mode {
            EgressMode::Deny | EgressMode::Tunnel => Vec::new(),
            EgressMode::Inspect { credential, .. } => credential.as_deref().into_iter().collect(),
            EgressMode::Git { repositories } => repositories
                .iter()
                .filter_map(|repository| repository.credential.as_deref())
                .collect(),
        }
    }
}

/// `HOST` or `HOST:PORT`, where the host may be a pattern.
pub fn host_and_ports(text: &str) -> Result<(HostPattern, Ports), BadRule> {
    let bad = |why: &dyn fmt::Display| BadRule(why.to_string());
    if text.contains('/') {
        let shown: String = text.chars().take(80).collect();
        return Err(BadRule(format!(
            "`{}` is an address of a page; name its host alone",
            shown.escape_debug()
        )));
    }
    let colon = text
        .rfind(':')
        .filter(|_| !text.ends_with(']') && text.matches(':').count() == 1 || text.contains("]:"));
    let Some(colon) = colon else {
        return Ok((text.parse().map_err(|error| bad(&error))?, Ports::web()));
    };
    let (host, port) = (&text[..colon], &text[colon + 1..]);
    let host: HostPattern = host.parse().map_err(|error| bad(&error))?;
    // A destination has the one parser for ports.
    let checked: Destination = format!("x:{port}").parse().map_err(|_| {
        BadRule(format!(
            "`{}` has no port behind the colon",
            text.chars().take(80).collect::<String>().escape_debug()
        ))
    })?;
    Ok((host, Ports::These(vec![checked.port])))
}

impl Ports {
    /// 80 and 443.
    pub fn web() -> Ports {
        Ports::These(WEB_PORTS.to_vec())
    }

    /// Whether a port is included.
    pub fn has(&self, port: u16) -> bool {
        match self {
            Ports::Any => true,
            Ports::These(ports) => ports.contains(&port),
        }
    }
}

impl Operation {
    /// Whether a request matches.
    pub fn matches(&self, method: &str, path: &RequestPath) -> bool {
        let method_fits =
            self.method == "*" || self.method == method || self.method == "GET" && method == "HEAD";
        method_fits && self.path.matches(path)
    }
}

impl FromStr for Operation {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Operation, BadRule> {
        let (method, path) = text
            .split_once(' ')
            .ok_or_else(|| BadRule(format!("`{text}` is not METHOD /PATH")))?;
        let good = method == "*"
            || !method.is_empty()
                && method.len() <= 32
                && method.bytes().all(|byte| byte.is_ascii_uppercase());
        if !good || method == "CONNECT" {
            return Err(BadRule(format!("`{}` is no method", method.escape_debug())));
        }
        let path = path
            .parse()
            .map_err(|error| BadRule(format!("{error} (in `{}`)", text.escape_debug())))?;
        Ok(Operation {
            method: method.to_owned(),
            path,
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.method, self.path.as_str())
    }
}

impl RefPattern {
    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(before) => name.len() > before.len() && name.starts_with(before),
            None => self.0 == name,
        }
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RefPattern {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<RefPattern, BadRule> {
        let body = text.strip_suffix('*').unwrap_or(text);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        if !text.starts_with("refs/") || !body.bytes().all(plain) || body.contains("..") {
            return Err(BadRule(format!(
                "`{}` is not like refs/heads/agent/*",
                text.escape_debug()
            )));
        }
        Ok(RefPattern(text.to_owned()))
    }
}

impl Repository {
    /// Whether a path, without slashes at its ends and without `.git`, names this repository.
    pub fn matches(&self, path: &str) -> bool {
        self.compares(path, |own, part| own == part)
    }

    /// The same for servers that ignore letter case.
    pub fn matches_in_any_case(&self, path: &str) -> bool {
        self.compares(path, str::eq_ignore_ascii_case)
    }

    fn compares(&self, path: &str, same: impl Fn(&str, &str) -> bool) -> bool {
        let mut parts = path.split('/');
        let all = self.path.split('/').all(|own| {
            parts
                .next()
                .is_some_and(|part| own == "*" && !part.is_empty() || same(own, part))
        });
        all && parts.next().is_none()
    }
}

impl BadRule {
    /// An error with this message.
    pub fn new(why: impl Into<String>) -> BadRule {
        BadRule(why.into())
    }
}

impl fmt::Display for BadRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for BadRule {}

impl EgressLimits {
    /// The lower value of each limit.
    #[must_use]
    pub fn within(&self, other: &EgressLimits) -> EgressLimits {
        fn least<T: Ord + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        EgressLimits {
            per_minute: least(self.per_minute, other.per_minute),
            sent: least(self.sent, other.sent),
            received: least(self.received, other.received),
        }
    }
}

impl EgressGrant {
    /// The ports whose connections are redirected to the door.
    pub fn ports(&self) -> Ports {
        // A connection must be redirected to be recorded.
        if self.learn {
            return Ports::Any;
        }
        let mut ports = WEB_PORTS.to_vec();
        // A connection to a port without a listener is refused as well, so that deny rules need
        // none.
        for rule in self
            .rules
            .iter()
            .filter(|rule| rule.mode != EgressMode::Deny)
        {
            match &rule.ports {
                Ports::Any => return Ports::Any,
                Ports::These(own) => ports.extend(own),
            }
        }
        ports.sort_unstable();
        ports.dedup();
        Ports::These(ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_a_host_with_or_without_a_port() {
        let rule =
            |text| EgressRule::from_option(text).map(|rule| (rule.host.to_string(), rule.ports));
        assert_eq!(rule("PyPI.org"), Ok(("pypi.org".to_owned(), Ports::web())));
        assert_eq!(
            rule("*.a.com:22"),
            Ok(("*.a.com".to_owned(), Ports::These(vec![22])))
        );
        assert_eq!(rule("[::1]"), Ok(("[::1]".to_owned(), Ports::web())));
        assert_eq!(
            rule("[::1]:8443"),
            Ok(("[::1]".to_owned(), Ports::These(vec![8443])))
        );
        for text in ["", "a:", "a:x", "a:0", "https://a", "a/b", ":80", "a:1:2"] {
            assert!(rule(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_operation_is_a_method_and_a_path() {
        let matches = |text: &str, method, path: &str| {
            text.parse::<Operation>()
                .unwrap()
                .matches(method, &path.parse().unwrap())
        };
        assert!(matches("GET /v1/**", "GET", "/v1/a") && matches("GET /v1/**", "HEAD", "/v1/a"));
        assert!(matches("* /**", "PURGE", "/"));
        assert!(!matches("GET /v1/**", "POST", "/v1/a") && !matches("HEAD /**", "GET", "/"));
        for text in ["GET", "get /", "GET  /", "CONNECT /", "GET v1", " /"] {
            assert!(text.parse::<Operation>().is_err(), "{text}");
        }
    }

    #[test]
    fn ports_that_are_only_denied_are_not_listened_at() {
        let denied = EgressRule::from_option("a.com:25").unwrap();
        let rules = vec![
            EgressRule {
                mode: EgressMode::Deny,
                ..denied
            },
            EgressRule::from_option("b.com:22").unwrap(),
        ];
        let grant = EgressGrant {
            rules,
            ..EgressGrant::default()
        };
        assert_eq!(grant.ports(), Ports::These(vec![22, 80, 443]));
    }

    #[test]
    fn refs_and_repositories_match_as_a_whole() {
        let matches =
            |pattern: &str, name: &str| pattern.parse::<RefPattern>().unwrap().matches(name);
        assert!(
            matches("refs/heads/agent/*", "refs/heads/agent/a/b")
                && matches("refs/heads/x", "refs/heads/x")
        );
        assert!(
            !matches("refs/heads/agent/*", "refs/heads/agent/")
                && !matches("refs/heads/x", "refs/heads/xy")
        );
        assert!(
            "heads/x".parse::<RefPattern>().is_err() && "refs/*/x".parse::<RefPattern>().is_err()
        );
        let repository = |path: &str| Repository {
            path: path.to_owned(),
            fetch: true,
            push: Vec::new(),
            update: true,
            delete: false,
            credential: None,
        };
        assert!(
            repository("acme/app").matches("acme/app") && repository("acme/*").matches("acme/x")
        );
        for other in ["acme/app-evil", "acme/app/x", "acme", "x/acme/app", "acme/"] {
            assert!(!repository("acme/app").matches(other), "{other}");
        }
        assert!(
            !repository("acme/*").matches("acme/") && !repository("acme/*").matches("acme/a/b")
        );
    }
}
