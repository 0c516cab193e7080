//! `[artifacts]`: the artifact store, its limits, retention, and the keys of its bucket.

use super::{ConfigError, provider, toml_file::Section};
use ::doors::secrets::KeySource;
use spec::{ArtifactLimits, Retention, Size, Time};
use std::path::Path;
use toml::{Table, Value};

const KEYS: [&str; 16] = [
    "store",
    "bucket",
    "prefix",
    "endpoint",
    "region",
    "allow_http",
    "key",
    "secret",
    "max_bytes",
    "max_names",
    "max_versions",
    "max_total",
    "max_per_owner",
    "max_names_per_owner",
    "keep_versions",
    "keep_for",
];
/// Keys that apply to a bucket only.
const BUCKET_KEYS: [&str; 7] = [
    "bucket",
    "prefix",
    "endpoint",
    "region",
    "allow_http",
    "key",
    "secret",
];

/// The section `[artifacts]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArtifactsConfig {
    /// The store.
    pub(crate) store: ArtifactBackend,
    /// The limits.
    pub(crate) limits: ArtifactLimits,
    /// How long versions are kept.
    pub(crate) retention: Retention,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum ArtifactBackend {
    #[default]
    Files,
    Memory,
    S3(CloudBucket),
    Gcs(CloudBucket),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct CloudBucket {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) allow_http: bool,
    pub(crate) key: Option<KeySource>,
    pub(crate) secret: Option<KeySource>,
}

#[derive(Clone, Copy)]
enum BackendName {
    Files,
    Memory,
    S3,
    Gcs,
}

impl ArtifactsConfig {
    /// The sources of the bucket's keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KeySource> {
        let bucket = match &self.store {
            ArtifactBackend::Files | ArtifactBackend::Memory => None,
            ArtifactBackend::S3(bucket) | ArtifactBackend::Gcs(bucket) => Some(bucket),
        };
        bucket
            .into_iter()
            .flat_map(|bucket| bucket.key.iter().chain(&bucket.secret))
    }
}

/// Reads the section.
pub(super) fn read(table: &Table, path: &Path) -> Result<ArtifactsConfig, ConfigError> {
    let section = Section {
        path,
        name: "artifacts",
    };
    let words = [
        ("files", BackendName::Files),
        ("memory", BackendName::Memory),
        ("s3", BackendName::S3),
        ("gcs", BackendName::Gcs),
    ];
    let word = table.get("store").map_or(Ok(BackendName::Files), |value| {
        section.word("store", value, &words)
    })?;
    let mut config = ArtifactsConfig::default();
    let mut bucket = CloudBucket::default();
    for (key, value) in table {
        match key.as_str() {
            "store" => {}
            "max_bytes" => config.limits.bytes = section.quantity::<Size>(key, value)?.0,
            "max_total" => config.limits.total_bytes = section.quantity::<Size>(key, value)?.0,
            "max_per_owner" => {
                config.limits.owner_bytes = Some(section.quantity::<Size>(key, value)?.0)
            }
            "max_names" => config.limits.names = section.number(key, value)?,
            "max_names_per_owner" => config.limits.owner_names = Some(section.number(key, value)?),
            "max_versions" => config.limits.versions = positive(&section, key, value)?,
            "keep_versions" => {
                config.retention.keep_versions = Some(positive(&section, key, value)?)
            }
            "keep_for" => config.retention.keep_for = Some(section.quantity::<Time>(key, value)?.0),
            key if BUCKET_KEYS.contains(&key) => of_bucket(&mut bucket, &section, key, value)?,
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    config.store = match word {
        BackendName::Files | BackendName::Memory => {
            if let Some(key) = BUCKET_KEYS.iter().find(|key| table.contains_key(**key)) {
                return Err(section.error(
                    key,
                    "belongs to a bucket",
                    "add store = \"s3\" or \"gcs\", or remove it",
                ));
            }
            if matches!(word, BackendName::Files) {
                ArtifactBackend::Files
            } else {
                ArtifactBackend::Memory
            }
        }
        BackendName::S3 => {
            let hint =
                "write bucket = \"…\", key = { secret = \"…\" } and secret = { secret = \"…\" }";
            section.needs(table, &["bucket", "key", "secret"], hint)?;
            ArtifactBackend::S3(bucket)
        }
        BackendName::Gcs => {
            section.needs(
                table,
                &["bucket", "key"],
                "write bucket = \"…\" and key = { file = \"/….json\" }",
            )?;
            if let Some(key) = ["secret", "region"]
                .iter()
                .find(|key| table.contains_key(**key))
            {
                return Err(section.error(
                    key,
                    "belongs to S3",
                    "remove it: the service account has it",
                ));
            }
            ArtifactBackend::Gcs(bucket)
        }
    };
    Ok(config)
}

fn of_bucket(
    bucket: &mut CloudBucket,
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<(), ConfigError> {
    match key {
        "bucket" => bucket.name = bucket_name(section, key, value)?,
        "prefix" => bucket.prefix = prefix(section, key, value)?,
        "endpoint" => bucket.endpoint = Some(endpoint(section, key, value)?),
        "region" => bucket.region = Some(section.text(key, value)?.to_owned()),
        "allow_http" => bucket.allow_http = section.flag(key, value)?,
        "key" => bucket.key = Some(provider::key(section, key, value)?),
        _ => bucket.secret = Some(provider::key(section, key, value)?),
    }
    Ok(())
}

fn positive(section: &Section<'_>, key: &str, value: &Value) -> Result<u64, ConfigError> {
    match section.number(key, value)? {
        0 => Err(section.error(key, "cannot be 0", "write 1 or more")),
        number => Ok(number),
    }
}

fn bucket_name(section: &Section<'_>, key: &str, value: &Value) -> Result<String, ConfigError> {
    let name = section.text(key, value)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if (3..=222).contains(&name.len()) && name.bytes().all(plain) {
        Ok(name.to_owned())
    } else {
        Err(section.error(
            key,
            "is not a valid bucket name",
            "use 3 to 222 of A-Z a-z 0-9 . - _",
        ))
    }
}

fn prefix(section: &Section<'_>, key: &str, value: &Value) -> Result<String, ConfigError> {
    let text = section.text(key, value)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(plain);
    if text.len() <= 200 && text.split('/').all(part) {
        Ok(text.to_owned())
    } else {
        Err(section.error(
            key,
            "is no prefix",
            "write such as airlock/production, without a slash at either end",
        ))
    }
}

fn endpoint(section: &Section<'_>, key: &str, value: &Value) -> Result<String, ConfigError> {
    let text = section.text(key, value)?;
    provider::server_address(text).map_err(|(what, hint)| section.error(key, what, hint))?;
    Ok(text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<ArtifactsConfig, ConfigError> {
        let table: Table = text.parse().unwrap();
        read(&table, Path::new("/c.toml"))
    }

    const S3: &str =
        "store = \"s3\"\nbucket = \"box\"\nkey = { env = \"K\" }\nsecret = { secret = \"s\" }\n";

    #[test]
    fn a_bucket_with_its_keys_limits_and_retention() {
        let more = "prefix = \"a/b\"\nendpoint = \"http://127.0.0.1:9000\"\nallow_http = true\nregion = \"eu-1\"\n\
                    max_bytes = \"1G\"\nmax_names = 5\nmax_names_per_owner = 4\nmax_versions = 6\nmax_total = \"2G\"\nmax_per_owner = \"1G\"\nkeep_versions = 3\n\
                    keep_for = \"2h\"\n";
        let config = config(&format!("{S3}{more}")).unwrap();
        let ArtifactBackend::S3(bucket) = &config.store else {
            panic!("{config:?}")
        };
        assert_eq!(
            (
                bucket.name.as_str(),
                bucket.prefix.as_str(),
                bucket.allow_http
            ),
            ("box", "a/b", true)
        );
        let total_bytes = 2 << 30;
        let owner_bytes = Some(1 << 30);
        let owner_names = Some(4);
        assert_eq!(
            config.limits,
            ArtifactLimits {
                bytes: 1 << 30,
                names: 5,
                versions: 6,
                total_bytes,
                owner_bytes,
                owner_names
            }
        );
        let keep_for = Some(std::time::Duration::from_secs(7200));
        assert_eq!(
            config.retention,
            Retention {
                keep_versions: Some(3),
                keep_for
            }
        );
        assert_eq!(config.keys().count(), 2);
    }

    #[test]
    fn nothing_said_is_a_folder_of_the_state() {
        let config = config("").unwrap();
        assert!(matches!(config.store, ArtifactBackend::Files));
        assert_eq!(
            (config.limits, config.retention),
            (ArtifactLimits::default(), Retention::default())
        );
    }

    #[test]
    fn mistakes_name_the_key_and_the_remedy() {
        for (text, start) in [
            (
                "stor = 1",
                "`artifacts.stor` in `/c.toml` is not a known key",
            ),
            ("store = \"ftp\"", "`artifacts.store` in `/c.toml`"),
            ("bucket = \"x\"", "`artifacts.bucket` in `/c.toml`"),
            (
                "store = \"s3\"\nbucket = \"abc\"",
                "`artifacts.key` in `/c.toml`",
            ),
            (
                "store = \"gcs\"\nbucket = \"abc\"\nkey = { env = \"K\" }\nregion = \"x\"",
                "`artifacts.region`",
            ),
            (
                "keep_versions = 0",
                "`artifacts.keep_versions` in `/c.toml` cannot be 0",
            ),
            (
                &S3.replace("\"box\"", "\"a/../b\""),
                "`artifacts.bucket` in `/c.toml` is not a valid bucket name",
            ),
            (
                &format!("{S3}prefix = \"../x\""),
                "`artifacts.prefix` in `/c.toml` is no prefix",
            ),
            (
                &format!("{S3}endpoint = \"nonsense\""),
                "`artifacts.endpoint` in `/c.toml`",
            ),
            (
                "store = \"s3\"\nbucket = \"abc\"\nkey = \"AKIA\"",
                "`artifacts.key` in `/c.toml` must name the source",
            ),
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
