//! The rules of the egress door: which hosts, how, and with what. Data and its checks; who is asked and dialled is the
//! door's business.
//!
//! A new key of a rule is also read in `app/src/config/egress.rs` and applied in `doors/src/egress/policy.rs`.

use crate::{Destination, Host, HostPattern, PathPattern, RequestPath, Size};
use std::{fmt, str::FromStr};

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressRule {
    /// What it is called in denials and records, such as `--allow-host pypi.org`.
    pub name: String,
    /// Which hosts.
    pub host: HostPattern,
    /// At which ports.
    pub ports: Ports,
    /// What may be done there.
    pub mode: EgressMode,
    /// Whether the host may be one of the operator's own network. Metadata services never are.
    pub allow_private: bool,
    /// Whether requests may go out unencrypted, with the rule's credential.
    pub allow_plain_http: bool,
    /// Whether a tunnel may hide its server's name (Encrypted Client Hello).
    pub allow_hidden_name: bool,
    /// How much of it.
    pub limits: EgressLimits,
}

/// Ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Every one.
    Any,
    /// These.
    These(Vec<u16>),
}

/// What a rule lets happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressMode {
    /// Nothing. It wins over every other rule.
    Deny,
    /// Bytes pass unread; over TLS only to the host that was named, on port 80 request by request.
    Tunnel,
    /// TLS ends at the door, and each request is looked at.
    Inspect {
        /// Which requests; all if empty.
        allow: Vec<Operation>,
        /// The credential that is put into them.
        credential: Option<String>,
        /// Whether a connection may become something else (WebSocket), which then is not looked at.
        allow_upgrade: bool,
    },
    /// The same, for git's own requests only.
    Git {
        /// Which repositories.
        repositories: Vec<Repository>,
    },
}

/// A method and a path, such as `GET /v1/**`. `GET` has `HEAD` with it; `*` is every method.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Operation {
    pub method: String,
    pub path: PathPattern,
}

/// A repository on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Its path without `.git`, such as `acme/app`; a `*` stands for one part.
    pub path: String,
    /// Whether it may be read.
    pub fetch: bool,
    /// Which refs may be written, such as `refs/heads/agent/*`; none if empty.
    pub push: Vec<RefPattern>,
    /// Whether refs that are there already may be moved. Whether such a move is a fast-forward cannot be seen from outside.
    pub update: bool,
    /// Whether refs may be removed.
    pub delete: bool,
    /// The credential that is put into requests.
    pub credential: Option<String>,
}

/// Names of refs; a `*` stands for anything but nothing, also over slashes, at the end only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefPattern(String);

/// How much of the outside. What is not said is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct EgressLimits {
    /// Requests and connections begun within a minute.
    pub per_minute: Option<u32>,
    /// Bytes that go out.
    pub sent: Option<Size>,
    /// Bytes that come in.
    pub received: Option<Size>,
}

/// The egress door of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressGrant {
    /// Its rules. Nothing is allowed without one.
    pub rules: Vec<EgressRule>,
    /// A host must also be in each of these lists.
    pub within: Vec<Vec<HostPattern>>,
    /// How much, by all rules together.
    pub limits: EgressLimits,
    /// Whether what no rule allows passes and is written down instead.
    pub learn: bool,
}

/// Why a rule cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRule(String);

/// Where the egress door is, inside.
pub const EGRESS_PORT: u16 = 3128;
/// Where connections arrive that were meant for elsewhere, whatever their port.
pub const PASSING_PORT: u16 = 3129;
/// Where names are asked for.
pub const NAMES_PORT: u16 = 53;
/// Ports of a rule that names none.
pub const WEB_PORTS: [u16; 2] = [80, 443];

impl EgressRule {
    /// A tunnel to a host by its usual ports.
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

    /// `HOST` or `HOST:PORT`, as `--allow-host` has it.
    pub fn from_option(text: &str) -> Result<EgressRule, BadRule> {
        let (host, ports) = host_and_ports(text)?;
        Ok(EgressRule::tunnel(
            format!("--allow-host {text}"),
            host,
            ports,
        ))
    }

    /// All public hosts, as `--network open` has it.
    pub fn open() -> EgressRule {
        let rule = EgressRule::tunnel("--network open", HostPattern::Any, Ports::Any);
        EgressRule {
            allow_hidden_name: true,
            ..rule
        }
    }

    /// Whether this is about that destination.
    pub fn is_about(&self, to: &Destination) -> bool {
        self.host.matches(&to.host) && self.ports.has(to.port)
    }

    /// Whether requests are looked at, so that TLS must end at the door.
    pub fn looks_inside(&self) -> bool {
        matches!(
            self.mode,
            EgressMode::Inspect { .. } | EgressMode::Git { .. }
        )
    }

    /// The credentials that it names.
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
    let like = Destination {
        host: Host::Name("x".to_owned()),
        port: 0,
    };
    let checked: Destination = format!("{}:{port}", like.host).parse().map_err(|_| {
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

    /// Whether this is one of them.
    pub fn has(&self, port: u16) -> bool {
        match self {
            Ports::Any => true,
            Ports::These(ports) => ports.contains(&port),
        }
    }
}

impl Operation {
    /// Whether a request is one of these.
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
    /// Whether this is one of them.
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(before) => name.len() > before.len() && name.starts_with(before),
            None => self.0 == name,
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RefPattern {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<RefPattern, BadRule> {
        let body = text.strip_suffix('*').unwrap_or(text);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        match text.starts_with("refs/") && body.bytes().all(plain) && !body.contains("..") {
            true => Ok(RefPattern(text.to_owned())),
            false => Err(BadRule(format!(
                "`{}` is not like refs/heads/agent/*",
                text.escape_debug()
            ))),
        }
    }
}

impl Repository {
    /// Whether this is the repository of that path, which has neither a slash at its ends nor `.git`.
    pub fn matches(&self, path: &str) -> bool {
        self.compares(path, |own, part| own == part)
    }

    /// The same for servers to which large and small letters are one.
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
    /// With these words.
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
    /// The narrower of both, limit by limit.
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
    /// Which ports programs can reach without knowing of the door.
    pub fn ports(&self) -> Ports {
        // What is to be learned must get here first.
        if self.learn {
            return Ports::Any;
        }
        let mut ports = WEB_PORTS.to_vec();
        // Who dials what is denied is refused without a listener, too.
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
