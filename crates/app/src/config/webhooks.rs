//! `[webhooks]`: where webhooks of jobs may be sent, and how often one is retried.

use super::{ConfigError, toml_file::Section};
use ::doors::webhook::WebhookClientSettings;
use spec::{Destination, Host};
use std::path::Path;
use toml::{Table, Value};

const KEYS: [&str; 5] = [
    "attempts",
    "allow_private",
    "allow_plain_http",
    "hosts",
    "ca",
];
/// The maximum of attempts: with backoff up to an hour, about four days.
const MAX_ATTEMPTS: u32 = 100;

/// The section `[webhooks]`.
#[derive(Clone, Debug)]
pub(crate) struct WebhooksConfig {
    /// Attempts for each webhook.
    pub(crate) attempts: u32,
    /// The allowed destinations.
    pub(crate) courier: WebhookClientSettings,
}

impl Default for WebhooksConfig {
    fn default() -> WebhooksConfig {
        WebhooksConfig {
            attempts: 12,
            courier: WebhookClientSettings::default(),
        }
    }
}

/// Reads the table.
pub(super) fn read(table: &Table, path: &Path) -> Result<WebhooksConfig, ConfigError> {
    let section = Section {
        path,
        name: "webhooks",
    };
    let mut config = WebhooksConfig::default();
    for (key, value) in table {
        match key.as_str() {
            "attempts" => config.attempts = attempts(&section, key, value)?,
            "allow_private" => config.courier.allow_private = section.flag(key, value)?,
            "allow_plain_http" => config.courier.allow_plain_http = section.flag(key, value)?,
            "hosts" => config.courier.hosts = hosts(&section, key, value)?,
            "ca" => {
                let file = Path::new(section.text(key, value)?);
                if !file.is_absolute() {
                    return Err(section.error(
                        key,
                        "must be an absolute path",
                        "such as /etc/ssl/own.pem",
                    ));
                }
                config.courier.ca = Some(file.to_owned());
            }
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    Ok(config)
}

fn attempts(section: &Section<'_>, key: &str, value: &Value) -> Result<u32, ConfigError> {
    match section.count(key, value)? {
        count @ ..=MAX_ATTEMPTS => Ok(count),
        _ => Err(section.error(key, "is too large", "write 1 to 100")),
    }
}

/// `HOST`, or `HOST:PORT`.
fn hosts(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<Vec<(Host, Option<u16>)>, ConfigError> {
    let parse = |text: &str| {
        if let Ok(host) = text.parse() {
            return Ok((host, None));
        }
        let to: Destination = text.parse().map_err(|error| {
            section.error(
                key,
                format_args!("has a bad value: {error}"),
                "name hosts, such as hooks.internal:8443",
            )
        })?;
        Ok((to.host, Some(to.port)))
    };
    section.texts(key, value)?.into_iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<WebhooksConfig, String> {
        super::read(&text.parse().unwrap(), Path::new("/c.toml")).map_err(|error| error.message)
    }

    #[test]
    fn nothing_private_and_nothing_in_the_open_unless_said() {
        let usual = read("").unwrap();
        assert_eq!(
            (
                usual.attempts,
                usual.courier.allow_private,
                usual.courier.allow_plain_http
            ),
            (12, false, false)
        );
        let config = read("attempts = 3\nallow_private = true\nallow_plain_http = true\nhosts = [\"in.house\", \"10.0.0.1:8443\", \"[::1]:80\"]\nca = \"/a.pem\"").unwrap();
        assert_eq!(
            (
                config.attempts,
                config.courier.allow_private,
                config.courier.allow_plain_http
            ),
            (3, true, true)
        );
        let host = |text: &str| text.parse().unwrap();
        assert_eq!(
            config.courier.hosts,
            [
                (host("in.house"), None),
                (host("10.0.0.1"), Some(8443)),
                (host("::1"), Some(80))
            ]
        );
        for bad in [
            "attempts = 0",
            "attempts = 101",
            "hosts = [\"a b\"]",
            "hosts = [\"a:0\"]",
            "ca = \"a.pem\"",
            "alow_private = true",
            "allow_private = 1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
