//! `[credential.NAME]`: credentials that the egress door adds to requests (source, method, allowed
//! hosts), and `[egress]`.

use super::{ConfigError, egress, provider, toml_file::Section};
use doors::egress::{Credential, EgressSettings, InjectionMethod};
use http::HeaderName;
use spec::{EgressRule, HostPattern, Id};
use std::{collections::BTreeMap, path::Path};
use toml::{Table, Value};

const KEYS: [&str; 3] = ["key", "inject", "hosts"];
const INJECT_HINT: &str = "write \"bearer\", \"basic:USER\" or \"header:NAME\"";
/// Headers that define a message's destination or framing, or that programs and servers change
/// themselves.
const FORBIDDEN_HEADERS: [&str; 13] = [
    "host",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "cookie",
    "via",
    "forwarded",
];
const MAX_USER_BYTES: usize = 128;

/// Reads `[egress]`.
pub(super) fn settings(
    settings: &mut EgressSettings,
    table: &Table,
    path: &Path,
) -> Result<(), ConfigError> {
    let section = Section {
        path,
        name: "egress",
    };
    for (key, value) in table {
        match key.as_str() {
            "ca" => settings.ca = Some(section.absolute(key, value)?),
            other => return Err(section.unknown(other, &["ca"])),
        }
    }
    Ok(())
}

/// Reads `[credential]`.
pub(super) fn read(
    table: &Table,
    path: &Path,
) -> Result<BTreeMap<String, Credential>, ConfigError> {
    let all = Section {
        path,
        name: "credential",
    };
    let one = |(name, value): (&String, &Value)| {
        if Id::new(name).is_err() {
            let hint = "use 1 to 128 of A-Z a-z 0-9 . _ - and do not start with a dot";
            return Err(all.error(name, "is not a name for a credential", hint));
        }
        let full_name = all.key(name);
        Ok((
            name.clone(),
            credential(
                all.table(name, value)?,
                &Section {
                    path,
                    name: &full_name,
                },
            )?,
        ))
    };
    table.iter().map(one).collect()
}

fn credential(table: &Table, section: &Section<'_>) -> Result<Credential, ConfigError> {
    if let Some(other) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(section.unknown(other, &KEYS));
    }
    section.needs(
        table,
        &["key"],
        "name its source: key = { secret = \"NAME\" }, file, env or vault",
    )?;
    section.needs(table, &["inject"], INJECT_HINT)?;
    let hint = "name the hosts that it may be sent to: hosts = [\"api.example.com\"]";
    section.needs(table, &["hosts"], hint)?;
    let hosts = egress::hosts(section, "hosts", &table["hosts"])?;
    if hosts.is_empty() {
        return Err(section.error("hosts", "is empty", hint));
    }
    if hosts.contains(&HostPattern::Any) {
        return Err(section.error("hosts", "names every host there is", hint));
    }
    let key = provider::key(section, "key", &table["key"])?;
    Ok(Credential {
        key,
        inject: inject(section, "inject", &table["inject"])?,
        hosts,
    })
}

fn inject(section: &Section<'_>, key: &str, value: &Value) -> Result<InjectionMethod, ConfigError> {
    let text = section.text(key, value)?;
    match text.split_once(':') {
        None if text == "bearer" => Ok(InjectionMethod::Bearer),
        Some(("basic", user)) => {
            let good = (1..=MAX_USER_BYTES).contains(&user.len())
                && !user.contains(|character: char| character == ':' || character.is_control());
            if good {
                Ok(InjectionMethod::Basic {
                    user: user.to_owned(),
                })
            } else {
                Err(section.error(
                    key,
                    "has a bad user",
                    "write 1 to 128 characters without colons",
                ))
            }
        }
        Some(("header", name)) => header(section, key, name),
        _ => Err(section.error(key, "is not a known method", INJECT_HINT)),
    }
}

fn header(section: &Section<'_>, key: &str, text: &str) -> Result<InjectionMethod, ConfigError> {
    let name: HeaderName = text.parse().map_err(|_| {
        section.error(
            key,
            format_args!("has a bad name: `{}`", text.escape_debug()),
            "name a header",
        )
    })?;
    if FORBIDDEN_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("proxy-") {
        let hint = "use a header for credentials, such as header:x-api-key";
        Err(section.error(key, format_args!("cannot be `{name}`"), hint))
    } else {
        Ok(InjectionMethod::Header { name })
    }
}

/// Checks that a rule's credential exists and may be sent to the rule's hosts.
pub(super) fn check(
    named: &str,
    rule: &EgressRule,
    credentials: &BTreeMap<String, Credential>,
    section: &Section<'_>,
) -> Result<(), ConfigError> {
    let Some(credential) = credentials.get(named) else {
        let what = format!(
            "names a credential that does not exist: `{}`",
            named.escape_debug()
        );
        let hint = if credentials.is_empty() {
            format!(
                "add [credential.{}] with key, inject and hosts",
                named.escape_debug()
            )
        } else {
            let names: Vec<_> = credentials.keys().map(String::as_str).collect();
            format!("the credentials are {}", names.join(", "))
        };
        return Err(section.error("credential", what, hint));
    };
    if credential.hosts.iter().any(|own| rule.host.is_within(own)) {
        Ok(())
    } else {
        let what = format!("names `{named}`, which may not be sent to {}", rule.host);
        let hint = format!(
            "add the host to `hosts` of [credential.{named}], or name fewer hosts in the rule"
        );
        Err(section.error("credential", what, hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::doors::secrets::KeySource;

    fn read(text: &str) -> Result<EgressSettings, ConfigError> {
        super::super::operator_file::read(&text.parse().unwrap(), Path::new("/c.toml"))
            .map(|settings| settings.doors.egress)
    }

    #[test]
    fn a_credential_says_where_it_is_how_it_is_sent_and_whereto() {
        let text = "[credential.gh]\nkey = { secret = \"gh\" }\ninject = \"basic:x-access-token\"\nhosts = [\"github.com\"]\n\
                    [credential.api]\nkey = { env = \"API\" }\ninject = \"header:X-Api-Key\"\nhosts = [\"*.a.com\", \"b.com\"]\n\
                    [credential.plain]\nkey = { file = \"/k\" }\ninject = \"bearer\"\nhosts = [\"c.com\"]\n\
                    [egress]\nca = \"/etc/ca.pem\"\n";
        let settings = read(text).unwrap();
        assert_eq!(settings.ca.as_deref(), Some(Path::new("/etc/ca.pem")));
        let gh = &settings.credentials["gh"];
        assert!(matches!(&gh.key, KeySource::Stored(name) if name == "gh"));
        assert_eq!(
            gh.inject,
            InjectionMethod::Basic {
                user: "x-access-token".to_owned()
            }
        );
        let name = HeaderName::from_static("x-api-key");
        assert_eq!(
            settings.credentials["api"].inject,
            InjectionMethod::Header { name }
        );
        assert_eq!(settings.credentials["api"].hosts.len(), 2);
        assert_eq!(
            settings.credentials["plain"].inject,
            InjectionMethod::Bearer
        );
    }

    #[test]
    fn a_credential_that_could_go_astray_is_refused() {
        let whole = |inject: &str, hosts: &str| {
            format!(
                "[credential.x]\nkey = {{ secret = \"x\" }}\ninject = \"{inject}\"\nhosts = {hosts}\n"
            )
        };
        let good = "[\"a.com\"]";
        assert!(read(&whole("bearer", good)).is_ok());
        let cases = [
            (
                whole("bearer", "[]"),
                "`credential.x.hosts` in `/c.toml` is empty",
            ),
            (
                whole("bearer", "[\"a.com\", \"*\"]"),
                "`credential.x.hosts` in `/c.toml` names every host",
            ),
            (
                whole("bearer", "[\"https://a\"]"),
                "`credential.x.hosts` in `/c.toml` has a bad value",
            ),
            (
                whole("query:key", good),
                "`credential.x.inject` in `/c.toml` is not a known method",
            ),
            (
                whole("basic:", good),
                "`credential.x.inject` in `/c.toml` has a bad user",
            ),
            (
                whole("basic:a:b", good),
                "`credential.x.inject` in `/c.toml` has a bad user",
            ),
            (
                whole("header:a b", good),
                "`credential.x.inject` in `/c.toml` has a bad name",
            ),
            (
                "[credential.x]\nkey = { secret = \"x\" }\ninject = \"bearer\"".into(),
                "`credential.x.hosts` in `/c.toml` is missing",
            ),
            (
                "[credential.x]\nhosts = [\"a\"]\ninject = \"bearer\"".into(),
                "`credential.x.key` in `/c.toml` is missing",
            ),
            (
                "[credential.x]\nkey = \"sk-1\"\ninject = \"bearer\"\nhosts = [\"a\"]".into(),
                "`credential.x.key` in `/c.toml` must name the source",
            ),
            (
                "[credential.x]\nhots = 1".into(),
                "`credential.x.hots` in `/c.toml` is not a known key",
            ),
            (
                "[credential.\"a b\"]".into(),
                "`credential.a b` in `/c.toml` is not a name",
            ),
            (
                "[egress]\nca = \"here\"".into(),
                "`egress.ca` in `/c.toml` must be an absolute path",
            ),
            (
                "[egress]\ncas = 1".into(),
                "`egress.cas` in `/c.toml` is not a known key",
            ),
        ];
        for (text, start) in cases {
            let error = read(&text).expect_err(&text);
            assert!(
                error.message.starts_with(start) && !error.hint.is_empty(),
                "{}",
                error.message
            );
        }
        for name in [
            "Host",
            "content-length",
            "transfer-encoding",
            "TE",
            "Upgrade",
            "proxy-authorization",
            "cookie",
        ] {
            let error = read(&whole(&format!("header:{name}"), good)).expect_err(name);
            assert!(error.message.contains("cannot be `"), "{}", error.message);
        }
    }
}
