//! The rules of the egress door: `[[profile.NAME.egress]]`, `egress_limits`, and lists of hosts.
//! Rules that can never match, or that would allow more than they say, are refused here.

mod rule_subset;

pub(super) use rule_subset::is_wider;

use super::{ConfigError, credential, toml_file::Section};
use doors::egress::Credential;
use spec::{
    EgressGrant, EgressLimits, EgressMode, EgressRule, Host, HostPattern, Network, Ports,
    RefPattern, Repository, WEB_PORTS, address,
};
use std::{collections::BTreeMap, fmt, str::FromStr};
use toml::{Table, Value};

const KEYS: [&str; 13] = [
    "host",
    "mode",
    "ports",
    "allow",
    "credential",
    "allow_upgrade",
    "repos",
    "allow_private",
    "allow_plain_http",
    "allow_hidden_name",
    "per_minute",
    "sent",
    "received",
];
const REPO_KEYS: [&str; 6] = ["repo", "fetch", "push", "update", "delete", "credential"];
const LIMIT_KEYS: [&str; 3] = ["per_minute", "sent", "received"];
/// The maximum of rules in one profile, including those of its bases.
const MAX_RULES: usize = 256;
/// The maximum of entries in one list of a rule.
const MAX_ENTRIES: usize = 256;
/// Each port has a listener in the sandbox. With 80 and 443, which every run has, this is the
/// maximum of a sandbox.
const MAX_PORTS: usize = 30;
const MAX_REPO_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleMode {
    Tunnel,
    Inspect,
    Git,
    Deny,
}

const RULE_MODES: [(&str, RuleMode); 4] = [
    ("tunnel", RuleMode::Tunnel),
    ("inspect", RuleMode::Inspect),
    ("git", RuleMode::Git),
    ("deny", RuleMode::Deny),
];

/// Keys that only some modes have, with these modes.
const KEY_MODES: [(&str, &[RuleMode], &str); 10] = [
    ("allow", &[RuleMode::Inspect], "inspect"),
    (
        "credential",
        &[RuleMode::Inspect],
        "inspect, and to `repos` of git",
    ),
    ("allow_upgrade", &[RuleMode::Inspect], "inspect"),
    ("repos", &[RuleMode::Git], "git"),
    (
        "allow_plain_http",
        &[RuleMode::Inspect, RuleMode::Git],
        "inspect and git",
    ),
    ("allow_hidden_name", &[RuleMode::Tunnel], "tunnel"),
    (
        "allow_private",
        &[RuleMode::Tunnel, RuleMode::Inspect, RuleMode::Git],
        "tunnel, inspect and git",
    ),
    (
        "per_minute",
        &[RuleMode::Tunnel, RuleMode::Inspect, RuleMode::Git],
        "tunnel, inspect and git",
    ),
    (
        "sent",
        &[RuleMode::Tunnel, RuleMode::Inspect, RuleMode::Git],
        "tunnel, inspect and git",
    ),
    (
        "received",
        &[RuleMode::Tunnel, RuleMode::Inspect, RuleMode::Git],
        "tunnel, inspect and git",
    ),
];

/// Reads `[[profile.NAME.egress]]`.
pub(super) fn rules(
    profile: &str,
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<Vec<EgressRule>, ConfigError> {
    let hint = format!(
        "write [[{}]] with host and mode below it, once for each rule",
        section.key(key)
    );
    let list = value
        .as_array()
        .ok_or_else(|| section.error(key, "must be a list of tables", hint.clone()))?;
    if list.len() > MAX_RULES {
        return Err(too_many(section, key));
    }
    let one = |(index, value): (usize, &Value)| {
        let name = numbered(&section.key(key), index);
        let table = value
            .as_table()
            .ok_or_else(|| section.error(key, "must be a list of tables", hint.clone()))?;
        let rule = rule(
            table,
            &Section {
                path: section.path,
                name: &name,
            },
        )?;
        let name = format!(
            "egress rule {} of profile {profile} ({})",
            index + 1,
            rule.host
        );
        Ok(EgressRule { name, ..rule })
    };
    let rules: Vec<EgressRule> = list.iter().enumerate().map(one).collect::<Result<_, _>>()?;
    match unreachable_tunnel(&rules) {
        Some(tunnel) => {
            let what = format!(
                "has a tunnel and a rule that looks inside for the same host and port: {tunnel}"
            );
            Err(section.error(
                key,
                what,
                "remove one of them: the tunnel would never be used",
            ))
        }
        None => Ok(rules),
    }
}

fn numbered(key: &str, index: usize) -> String {
    format!("{key}[{}]", index + 1)
}

fn too_many(section: &Section<'_>, key: &str) -> ConfigError {
    let what = format!("has more than {MAX_RULES} rules");
    section.error(key, what, "use patterns for hosts: *.example.com")
}

/// The rules of a profile after those of its base.
pub(super) fn inherited(
    base: Option<Vec<EgressRule>>,
    own: Option<&Vec<EgressRule>>,
    section: &Section<'_>,
) -> Result<Option<Vec<EgressRule>>, ConfigError> {
    let Some(own) = own else { return Ok(base) };
    let mut rules = base.unwrap_or_default();
    rules.extend(own.iter().cloned());
    if rules.len() > MAX_RULES {
        return Err(too_many(section, "egress"));
    }
    // Otherwise every run with this profile would be refused.
    let grant = EgressGrant {
        rules,
        ..EgressGrant::default()
    };
    match grant.ports() {
        Ports::These(ports) if ports.len() > MAX_PORTS + WEB_PORTS.len() => {
            let hint = "name fewer ports, or all of them: ports = \"any\"";
            Err(section.error(
                "egress",
                "has rules for more than 30 ports beside 80 and 443",
                hint,
            ))
        }
        Ports::These(_) | Ports::Any => Ok(Some(grant.rules)),
    }
}

/// A tunnel that is never used because an inspecting rule for the same host has precedence.
fn unreachable_tunnel(rules: &[EgressRule]) -> Option<&HostPattern> {
    let tunnels = rules.iter().filter(|rule| rule.mode == EgressMode::Tunnel);
    let looks = |tunnel: &EgressRule| {
        rules.iter().any(|rule| {
            rule.looks_inside()
                && rule.host == tunnel.host
                && share_port(&rule.ports, &tunnel.ports)
        })
    };
    tunnels
        .into_iter()
        .find(|tunnel| looks(tunnel))
        .map(|tunnel| &tunnel.host)
}

fn share_port(one: &Ports, other: &Ports) -> bool {
    match (one, other) {
        (Ports::Any, _) | (_, Ports::Any) => true,
        (Ports::These(one), other) => one.iter().any(|port| other.has(*port)),
    }
}

fn rule(table: &Table, section: &Section<'_>) -> Result<EgressRule, ConfigError> {
    if let Some(other) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(section.unknown(other, &KEYS));
    }
    section.needs(
        table,
        &["host", "mode"],
        "write host = \"api.example.com\" and mode = \"tunnel\", inspect, git or deny",
    )?;
    let mode = section.word("mode", &table["mode"], &RULE_MODES)?;
    check_mode_keys(table, mode, section)?;
    let flag = |key: &str| {
        table
            .get(key)
            .map_or(Ok(false), |value| section.flag(key, value))
    };
    let rule = EgressRule {
        name: String::new(),
        host: host(section, "host", &table["host"])?,
        ports: ports(table, mode, flag("allow_plain_http")?, section)?,
        mode: egress_mode(table, mode, section)?,
        allow_private: flag("allow_private")?,
        allow_plain_http: flag("allow_plain_http")?,
        allow_hidden_name: flag("allow_hidden_name")?,
        limits: limits_in(table, section)?,
    };
    check_host(&rule, section)?;
    if let EgressMode::Inspect {
        credential: Some(_),
        allow_upgrade: true,
        ..
    } = &rule.mode
    {
        let hint = "remove one of them, or write a rule of its own for the WebSocket's host";
        return Err(section.error(
            "allow_upgrade",
            "does not go with `credential`: WebSockets are not inspected, and get no credential",
            hint,
        ));
    }
    Ok(rule)
}

/// Refuses keys of other modes: ignoring one would change the rule's meaning.
fn check_mode_keys(
    table: &Table,
    mode: RuleMode,
    section: &Section<'_>,
) -> Result<(), ConfigError> {
    let foreign = KEY_MODES
        .iter()
        .find(|(key, modes, _)| table.contains_key(*key) && !modes.contains(&mode));
    let word = RULE_MODES
        .iter()
        .find(|(_, known)| *known == mode)
        .map_or("", |(word, _)| word);
    match foreign {
        Some((key, _, belongs)) => {
            let what = format!("does not go with mode = \"{word}\"");
            Err(section.error(
                key,
                what,
                format!("remove it, or change the mode: it belongs to {belongs}"),
            ))
        }
        None => Ok(()),
    }
}

fn egress_mode(
    table: &Table,
    mode: RuleMode,
    section: &Section<'_>,
) -> Result<EgressMode, ConfigError> {
    Ok(match mode {
        RuleMode::Tunnel => EgressMode::Tunnel,
        RuleMode::Deny => EgressMode::Deny,
        RuleMode::Inspect => EgressMode::Inspect {
            allow: match table.get("allow") {
                Some(value) => list(section, "allow", value, "such as \"GET /v1/**\"")?,
                None => Vec::new(),
            },
            credential: credential_name(table, section)?,
            allow_upgrade: table
                .get("allow_upgrade")
                .map_or(Ok(false), |value| section.flag("allow_upgrade", value))?,
        },
        RuleMode::Git => EgressMode::Git {
            repositories: repositories(table, section)?,
        },
    })
}

fn credential_name(table: &Table, section: &Section<'_>) -> Result<Option<String>, ConfigError> {
    table
        .get("credential")
        .map(|value| section.text("credential", value).map(str::to_owned))
        .transpose()
}

fn host(section: &Section<'_>, key: &str, value: &Value) -> Result<HostPattern, ConfigError> {
    section
        .text(key, value)?
        .parse()
        .map_err(|bad: spec::BadHost| {
            let hint = "write pypi.org, *.pythonhosted.org or *; ports go into `ports`";
            section.error(key, format_args!("has a bad value: {bad}"), hint)
        })
}

/// Reads a list of hosts; an empty list allows none.
pub(super) fn hosts(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<Vec<HostPattern>, ConfigError> {
    let bad = || {
        section.error(
            key,
            "must be a list of hosts",
            "such as [\"pypi.org\", \"*.example.com\"]",
        )
    };
    let list = value.as_array().ok_or_else(bad)?;
    if list.len() > MAX_ENTRIES {
        Err(section.error(
            key,
            "has more than 256 entries",
            "use patterns: *.example.com",
        ))
    } else {
        list.iter().map(|value| host(section, key, value)).collect()
    }
}

/// Parses a list of texts with a bounded number of entries.
fn list<T: FromStr<Err: fmt::Display>>(
    section: &Section<'_>,
    key: &str,
    value: &Value,
    hint: &str,
) -> Result<Vec<T>, ConfigError> {
    let texts = section.texts(key, value)?;
    if texts.len() > MAX_ENTRIES {
        return Err(section.error(key, "has more than 256 entries", "use patterns"));
    }
    let parse = |text: &str| {
        text.parse()
            .map_err(|bad: T::Err| section.error(key, format_args!("has a bad value: {bad}"), hint))
    };
    texts.into_iter().map(parse).collect()
}

fn ports(
    table: &Table,
    mode: RuleMode,
    plain: bool,
    section: &Section<'_>,
) -> Result<Ports, ConfigError> {
    let Some(value) = table.get("ports") else {
        return Ok(match mode {
            RuleMode::Deny => Ports::Any,
            RuleMode::Inspect | RuleMode::Git if !plain => Ports::These(vec![443]),
            RuleMode::Tunnel | RuleMode::Inspect | RuleMode::Git => Ports::web(),
        });
    };
    if value.as_str() == Some("any") {
        return Ok(Ports::Any);
    }
    let hint = "write ports = [443, 8443], 30 at most, or \"any\"";
    let bad = || {
        section.error(
            "ports",
            "must be a list of ports from 1 to 65535, or \"any\"",
            hint,
        )
    };
    let list = value
        .as_array()
        .filter(|list| (1..=MAX_PORTS).contains(&list.len()))
        .ok_or_else(bad)?;
    let port = |value: &Value| {
        value
            .as_integer()
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
            .ok_or_else(bad)
    };
    let mut ports: Vec<u16> = list.iter().map(port).collect::<Result<_, _>>()?;
    ports.sort_unstable();
    ports.dedup();
    if matches!(mode, RuleMode::Inspect | RuleMode::Git) && !plain && ports.contains(&80) {
        let hint = "remove 80, or set allow_plain_http = true: the traffic can then be read on the network";
        return Err(section.error("ports", "has port 80, where nothing is encrypted", hint));
    }
    Ok(Ports::These(ports))
}

/// Reads `egress_limits`, which has the same keys as a rule's limits.
pub(super) fn limits(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<EgressLimits, ConfigError> {
    let hint = format!("write {key} = {{ per_minute = 60, sent = \"10M\" }}");
    let table = value
        .as_table()
        .ok_or_else(|| section.error(key, "must be a table", hint))?;
    let name = section.key(key);
    let inner = Section {
        path: section.path,
        name: &name,
    };
    match table.keys().find(|key| !LIMIT_KEYS.contains(&key.as_str())) {
        Some(other) => Err(inner.unknown(other, &LIMIT_KEYS)),
        None => limits_in(table, &inner),
    }
}

fn limits_in(table: &Table, section: &Section<'_>) -> Result<EgressLimits, ConfigError> {
    let size = |key: &str| {
        table
            .get(key)
            .map(|value| section.quantity(key, value))
            .transpose()
    };
    Ok(EgressLimits {
        per_minute: table
            .get("per_minute")
            .map(|value| section.count("per_minute", value))
            .transpose()?,
        sent: size("sent")?,
        received: size("received")?,
    })
}

fn repositories(table: &Table, section: &Section<'_>) -> Result<Vec<Repository>, ConfigError> {
    let hint = "write repos = [{ repo = \"acme/app\", push = [\"refs/heads/agent/*\"] }]";
    let bad = || section.error("repos", "must be a list of tables, and not empty", hint);
    let value = table
        .get("repos")
        .ok_or_else(|| section.error("repos", "is missing", hint))?;
    let list = value
        .as_array()
        .filter(|list| (1..=MAX_ENTRIES).contains(&list.len()))
        .ok_or_else(bad)?;
    let one = |(index, value): (usize, &Value)| {
        let name = numbered(&section.key("repos"), index);
        repository(
            value.as_table().ok_or_else(bad)?,
            &Section {
                path: section.path,
                name: &name,
            },
        )
    };
    list.iter().enumerate().map(one).collect()
}

fn repository(table: &Table, section: &Section<'_>) -> Result<Repository, ConfigError> {
    if let Some(other) = table.keys().find(|key| !REPO_KEYS.contains(&key.as_str())) {
        return Err(section.unknown(other, &REPO_KEYS));
    }
    let hint = "write the path below the host, without .git: acme/app, or acme/* for all of them";
    section.needs(table, &["repo"], hint)?;
    let path = section.text("repo", &table["repo"])?;
    if !is_repository(path) {
        return Err(section.error("repo", "is not a valid repository path", hint));
    }
    let flag = |key: &str, otherwise| {
        table
            .get(key)
            .map_or(Ok(otherwise), |value| section.flag(key, value))
    };
    let push: Vec<RefPattern> = match table.get("push") {
        Some(value) => list(section, "push", value, "such as \"refs/heads/agent/*\"")?,
        None => Vec::new(),
    };
    let fetch = flag("fetch", true)?;
    let update = flag("update", true)?;
    let delete = flag("delete", false)?;
    if push.is_empty()
        && let Some(key) = ["update", "delete"]
            .into_iter()
            .find(|key| table.contains_key(*key))
    {
        return Err(section.error(
            key,
            "means nothing without `push`",
            "name the refs that may be written",
        ));
    }
    if push.is_empty() && !fetch {
        return Err(section.error(
            "fetch",
            "is false, and nothing may be pushed",
            "remove the repository",
        ));
    }
    let credential = credential_name(table, section)?;
    Ok(Repository {
        path: path.to_owned(),
        fetch,
        push,
        update,
        delete,
        credential,
    })
}

fn is_repository(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-~".contains(&byte);
    let part = |part: &str| {
        part == "*" || !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
    };
    path.len() <= MAX_REPO_BYTES && !path.ends_with(".git") && path.split('/').all(part)
}

/// Refuses a host that the rule can never reach.
fn check_host(rule: &EgressRule, section: &Section<'_>) -> Result<(), ConfigError> {
    let HostPattern::Exactly(host) = &rule.host else {
        return Ok(());
    };
    if rule.mode == EgressMode::Deny {
        return Ok(());
    }
    let (metadata, private) = match host {
        Host::Name(name) => (address::is_metadata_name(name), false),
        Host::Address(ip) => (address::is_metadata(*ip), !address::is_public(*ip)),
    };
    if metadata {
        return Err(section.error(
            "host",
            "is a metadata service, which no rule can allow",
            "remove the rule",
        ));
    }
    if private && !rule.allow_private {
        Err(section.error(
            "host",
            "is a private address",
            "set allow_private = true if that is intended",
        ))
    } else {
        Ok(())
    }
}

/// Checks the credentials that rules name, once all sections are read.
pub(super) fn check(
    profile: &str,
    rules: &[EgressRule],
    credentials: &BTreeMap<String, Credential>,
    section: &Section<'_>,
) -> Result<(), ConfigError> {
    let all = format!("profile.{profile}.egress");
    for (index, rule) in rules.iter().enumerate() {
        let name = numbered(&all, index);
        let section = Section {
            path: section.path,
            name: &name,
        };
        for named in rule.credentials() {
            credential::check(named, rule, credentials, &section)?;
        }
    }
    Ok(())
}

/// The network mode of a profile: egress rules imply `doors`.
pub(super) fn network(network: Network, rules: Option<&Vec<EgressRule>>) -> Network {
    match (network, rules) {
        (Network::None, Some(_)) => Network::Doors,
        (network, _) => network,
    }
}

#[cfg(test)]
mod tests;
