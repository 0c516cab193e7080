//! `[log]`, `[trace]` and `[node]`: log file, trace exporter and node name of a server.

use super::{ConfigError, provider, toml_file::Section};
use ::doors::secrets::KeySource;
use spec::{LogFile, LogFormat, LogLevel, LogSettings, Size};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The sections that this file reads.
pub(super) const TABLES: [&str; 3] = ["log", "trace", "node"];
const DEFAULT_LOG_BYTES: u64 = 64 << 20;
const DEFAULT_LOG_FILES: u32 = 7;
/// Smaller files would rotate with every few lines.
const MIN_LOG_BYTES: u64 = 4 << 10;
const MAX_LOG_FILES: u32 = 1000;
const MAX_HEADERS: usize = 16;
const MAX_SLUG_BYTES: usize = 128;

/// The three sections.
#[derive(Clone, Debug, Default)]
pub(crate) struct TelemetryConfig {
    pub(crate) log: LogSettings,
    pub(crate) trace: Option<TraceConfig>,
    /// The node's name; the machine's if unset.
    pub(crate) slug: Option<String>,
}

/// The trace exporter.
#[derive(Clone, Debug)]
pub(crate) struct TraceConfig {
    pub(crate) endpoint: String,
    pub(crate) sample: f64,
    /// Where the values of headers come from.
    pub(crate) headers: Vec<(String, KeySource)>,
}

impl TelemetryConfig {
    /// Where the values of headers come from.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KeySource> {
        self.trace
            .iter()
            .flat_map(|trace| trace.headers.iter().map(|(_, source)| source))
    }

    /// Reads one of the tables.
    pub(super) fn read(
        &mut self,
        name: &str,
        table: &Table,
        path: &Path,
    ) -> Result<(), ConfigError> {
        let section = Section { path, name };
        match name {
            "log" => self.log = log(table, &section)?,
            "trace" => self.trace = Some(trace(table, &section)?),
            _ => self.slug = node(table, &section)?,
        }
        Ok(())
    }
}

/// A log file with the default size.
pub(crate) fn log_file(path: PathBuf) -> LogFile {
    LogFile {
        path,
        size: DEFAULT_LOG_BYTES,
        keep: DEFAULT_LOG_FILES,
    }
}

fn log(table: &Table, section: &Section<'_>) -> Result<LogSettings, ConfigError> {
    let mut log = LogSettings::default();
    let mut file: Option<PathBuf> = None;
    let mut size = DEFAULT_LOG_BYTES;
    let mut keep = DEFAULT_LOG_FILES;
    for (key, value) in table {
        match key.as_str() {
            "level" => {
                log.level = section.word(
                    key,
                    value,
                    &LogLevel::ALL.map(|level| (level.name(), level)),
                )?
            }
            "format" => {
                log.format = section.word(
                    key,
                    value,
                    &[("text", LogFormat::Text), ("json", LogFormat::Json)],
                )?;
            }
            "file" => file = Some(section.absolute(key, value)?),
            "size" => size = section.quantity::<Size>(key, value)?.0,
            "keep" => keep = section.count(key, value)?,
            other => {
                return Err(section.unknown(other, &["level", "format", "file", "size", "keep"]));
            }
        }
    }
    if size < MIN_LOG_BYTES {
        return Err(section.error("size", "is too small", "write 4K or more"));
    }
    if keep > MAX_LOG_FILES {
        return Err(section.error("keep", "is too many", "write 1 to 1000"));
    }
    if let (None, Some(key)) = (
        &file,
        ["size", "keep"]
            .iter()
            .find(|key| table.contains_key(**key)),
    ) {
        return Err(section.error(
            key,
            "belongs to a file",
            "add file = \"/var/log/airlock.log\", or remove it",
        ));
    }
    log.file = file.map(|path| LogFile { path, size, keep });
    Ok(log)
}

fn trace(table: &Table, section: &Section<'_>) -> Result<TraceConfig, ConfigError> {
    section.needs(
        table,
        &["endpoint"],
        "write endpoint = \"http://127.0.0.1:4318\"",
    )?;
    let mut trace = TraceConfig {
        endpoint: String::new(),
        sample: 1.0,
        headers: Vec::new(),
    };
    for (key, value) in table {
        match key.as_str() {
            "endpoint" => {
                let text = section.text(key, value)?;
                provider::server_address(text)
                    .map_err(|(what, hint)| section.error(key, what, hint))?;
                trace.endpoint = text.trim_end_matches('/').to_owned();
            }
            "sample" => trace.sample = sample(section, key, value)?,
            "headers" => trace.headers = headers(section, key, value)?,
            other => return Err(section.unknown(other, &["endpoint", "sample", "headers"])),
        }
    }
    Ok(trace)
}

fn sample(section: &Section<'_>, key: &str, value: &Value) -> Result<f64, ConfigError> {
    let number = value
        .as_float()
        .or_else(|| value.as_integer().map(|number| number as f64));
    number
        .filter(|part| (0.0..=1.0).contains(part))
        .ok_or_else(|| section.error(key, "must be a number from 0 to 1", "such as 0.1"))
}

fn headers(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<Vec<(String, KeySource)>, ConfigError> {
    let full_name = section.key(key);
    let inner = Section {
        path: section.path,
        name: &full_name,
    };
    let table = section.table(key, value)?;
    if table.len() > MAX_HEADERS {
        return Err(section.error(key, "has too many", "write at most 16"));
    }
    let plain = |name: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=64).contains(&name.len()) && name.bytes().all(known)
    };
    let one = |(name, value): (&String, &Value)| {
        if plain(name) {
            Ok((name.clone(), provider::key(&inner, name, value)?))
        } else {
            Err(inner.error(name, "is not a header name", "such as authorization"))
        }
    };
    table.iter().map(one).collect()
}

fn node(table: &Table, section: &Section<'_>) -> Result<Option<String>, ConfigError> {
    let mut slug = None;
    for (key, value) in table {
        match key.as_str() {
            "slug" => {
                let text = section.text(key, value)?;
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
                if !(1..=MAX_SLUG_BYTES).contains(&text.len()) || !text.bytes().all(plain) {
                    let hint = "use 1 to 128 of A-Z a-z 0-9 . _ -";
                    return Err(section.error(key, "is not a node name", hint));
                }
                slug = Some(text.to_owned());
            }
            other => return Err(section.unknown(other, &["slug"])),
        }
    }
    Ok(slug)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<TelemetryConfig, ConfigError> {
        let all: Table = text.parse().unwrap();
        let mut config = TelemetryConfig::default();
        for (name, value) in &all {
            config.read(name, value.as_table().unwrap(), Path::new("/c.toml"))?;
        }
        Ok(config)
    }

    #[test]
    fn every_key_reaches_its_field() {
        let text = "[log]\nlevel = \"warn\"\nformat = \"json\"\nfile = \"/l\"\nsize = \"1M\"\nkeep = 2\n\
                    [trace]\nendpoint = \"http://127.0.0.1:4318/\"\nsample = 0.5\nheaders = { authorization = { secret = \"t\" } }\n\
                    [node]\nslug = \"one\"\n";
        let config = config(text).unwrap();
        let file = Some(LogFile {
            path: "/l".into(),
            size: 1 << 20,
            keep: 2,
        });
        let log = LogSettings {
            level: LogLevel::Warn,
            format: LogFormat::Json,
            file,
            quiet: false,
        };
        assert_eq!(
            (
                config.log.clone(),
                config.slug.as_deref(),
                config.keys().count()
            ),
            (log, Some("one"), 1)
        );
        let trace = config.trace.unwrap();
        assert_eq!(
            (trace.endpoint.as_str(), trace.sample),
            ("http://127.0.0.1:4318", 0.5)
        );
    }

    #[test]
    fn mistakes_name_the_key_and_the_remedy() {
        for (text, start) in [
            ("[log]\nlevel = \"loud\"", "`log.level` in `/c.toml`"),
            (
                "[log]\nfile = \"x\"",
                "`log.file` in `/c.toml` must be an absolute path",
            ),
            (
                "[log]\nsize = \"1M\"",
                "`log.size` in `/c.toml` belongs to a file",
            ),
            (
                "[log]\nfile = \"/x\"\nsize = 1",
                "`log.size` in `/c.toml` is too small",
            ),
            (
                "[log]\nfiel = 1",
                "`log.fiel` in `/c.toml` is not a known key",
            ),
            (
                "[trace]\nsample = 1",
                "`trace.endpoint` in `/c.toml` is missing",
            ),
            (
                "[trace]\nendpoint = \"ftp://x\"",
                "`trace.endpoint` in `/c.toml`",
            ),
            (
                "[trace]\nendpoint = \"http://x\"\nsample = 2",
                "`trace.sample` in `/c.toml`",
            ),
            (
                "[trace]\nendpoint = \"http://x\"\nheaders = { authorization = \"Bearer x\" }",
                "`trace.headers.authorization` in `/c.toml` must name the source",
            ),
            (
                "[trace]\nendpoint = \"http://x\"\nheaders = { \"a b\" = { env = \"X\" } }",
                "`trace.headers.a b`",
            ),
            ("[node]\nslug = \"a b\"", "`node.slug` in `/c.toml`"),
        ] {
            let error = config(text).expect_err(text);
            assert!(
                error.message.starts_with(start) && !error.hint.is_empty(),
                "{}",
                error.message
            );
        }
    }
}
