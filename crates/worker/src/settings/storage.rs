//! Storage settings: artifacts, and object storage of tools.

use super::{
    SettingError,
    env::{EnvReader, shown},
    half,
};
use doors::Secret;
use std::{path::PathBuf, time::Duration};

const DEFAULT_REGION: &str = "us-east-1";

/// Settings of artifacts.
#[derive(Clone, Debug)]
pub struct ArtifactsConfig {
    /// Location.
    pub store: ArtifactBackend,
    /// Who shares them.
    pub scope: ArtifactSharing,
}

/// Location of artifacts.
#[derive(Clone, Debug)]
pub enum ArtifactBackend {
    /// In this process, not shared.
    Memory,
    /// Below this folder.
    Files(PathBuf),
    /// In an S3 bucket.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Access to the bucket.
        access: S3Access,
    },
    /// In a GCS bucket.
    Gcs {
        /// Name of the bucket.
        bucket: String,
        /// Key file of a service account; none for the machine's account.
        credentials: Option<PathBuf>,
    },
}

/// Which agents share artifacts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactSharing {
    /// All agents of the namespace.
    Namespace,
    /// Each agent has its own.
    App,
    /// All agents with this name as their scope.
    Custom(String),
}

/// Access to S3.
#[derive(Clone, Debug)]
pub struct S3Access {
    /// Region.
    pub region: String,
    /// URL of a server other than Amazon's.
    pub endpoint: Option<String>,
    /// Access key; none for a role.
    pub keys: Option<S3Keys>,
    /// Role to assume with a platform token; none for the machine's role.
    pub role: Option<S3Role>,
}

/// An S3 role and the token file that the platform writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Role {
    /// ARN of the role.
    pub name: String,
    /// Path of the token file.
    pub token_file: String,
}

/// An S3 access key.
#[derive(Clone, Debug)]
pub struct S3Keys {
    /// Access key id.
    pub id: String,
    /// Secret access key.
    pub secret: Secret,
    /// Session token of a temporary key.
    pub token: Option<Secret>,
}

/// Settings of the tool sync.
#[derive(Clone, Debug)]
pub struct ToolSyncConfig {
    /// Interval between syncs.
    pub interval: Duration,
    /// Bucket to sync from.
    pub from: ToolOrigin,
}

/// Bucket of tools.
#[derive(Clone, Debug)]
pub enum ToolOrigin {
    /// An S3 bucket.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Access to the bucket.
        access: S3Access,
    },
    /// A GCS bucket.
    Gcs {
        /// Name of the bucket.
        bucket: String,
        /// Key file of a service account; none for the machine's account.
        credentials: Option<PathBuf>,
    },
}

pub(super) fn artifacts(reader: &mut EnvReader<'_>) -> Result<ArtifactsConfig, SettingError> {
    let kind = reader.text(&["ARTIFACT_SERVICE_TYPE"])?;
    let store = match kind.as_deref() {
        None | Some("memory") => {
            let message = "artifacts are kept in memory: no agent sees what a tool makes, nor a tool what an agent has";
            reader.notice("ARTIFACT_SERVICE_TYPE", message);
            ArtifactBackend::Memory
        }
        Some("filesystem") => {
            let folder = reader.path(&["ARTIFACT_BASE_PATH"])?;
            ArtifactBackend::Files(folder.unwrap_or_else(|| PathBuf::from("/sam/artifacts")))
        }
        Some("s3") => ArtifactBackend::S3 {
            bucket: needed(reader, &["ARTIFACT_S3_BUCKET"], "ARTIFACT_SERVICE_TYPE=s3")?,
            access: s3(reader, Some("ARTIFACT_S3_REGION"))?,
        },
        Some("gcs") => ArtifactBackend::Gcs {
            bucket: needed(
                reader,
                &["ARTIFACT_GCS_BUCKET"],
                "ARTIFACT_SERVICE_TYPE=gcs",
            )?,
            credentials: google(reader)?,
        },
        Some(other) => {
            return Err(no_store(
                "ARTIFACT_SERVICE_TYPE",
                other,
                "memory, filesystem, s3 or gcs",
            ));
        }
    };
    Ok(ArtifactsConfig {
        store,
        scope: scope(reader)?,
    })
}

fn scope(reader: &mut EnvReader<'_>) -> Result<ArtifactSharing, SettingError> {
    let value = reader.text(&["ARTIFACT_SCOPE_VALUE"])?;
    match (reader.text(&["ARTIFACT_SCOPE"])?.as_deref(), value) {
        (Some("custom"), Some(value)) => Ok(ArtifactSharing::Custom(value)),
        (Some("custom"), None) => Err(half("ARTIFACT_SCOPE", "ARTIFACT_SCOPE_VALUE")),
        (scope @ (None | Some("namespace" | "app")), value) => {
            if value.is_some() {
                reader.notice(
                    "ARTIFACT_SCOPE_VALUE",
                    "it has no meaning without `ARTIFACT_SCOPE=custom`",
                );
            }
            Ok(if scope == Some("app") {
                ArtifactSharing::App
            } else {
                ArtifactSharing::Namespace
            })
        }
        (Some(other), _) => Err(SettingError::new(
            "ARTIFACT_SCOPE",
            format!("`ARTIFACT_SCOPE`: there is no scope `{}`", shown(other)),
            "namespace, app or custom",
        )),
    }
}

pub(super) fn sync(reader: &mut EnvReader<'_>) -> Result<Option<ToolSyncConfig>, SettingError> {
    let is_on = reader.flag("TOOL_SYNC_ENABLED")?.unwrap_or(false);
    let seconds = reader.number(&["TOOL_SYNC_INTERVAL"], 10, 1..=86_400)?;
    let kind = reader.text(&["OBJECT_STORAGE_TYPE"])?;
    let other = kind.as_deref().filter(|kind| !["s3", "gcs"].contains(kind));
    match other {
        // The mesh uses the variable for its own purposes, too.
        Some(other) if !is_on => {
            let message = format!(
                "`{}` is not supported, and not needed: no tools are fetched",
                shown(other)
            );
            reader.notice("OBJECT_STORAGE_TYPE", message);
            return Ok(None);
        }
        Some(other) => return Err(no_store("OBJECT_STORAGE_TYPE", other, "s3 or gcs")),
        None if !is_on => return Ok(None),
        None => {}
    }
    let names = [
        "STR_S3_BUCKET_NAME",
        "STR_S3_BUCKET",
        "OBJECT_STORAGE_BUCKET_NAME",
        "S3_BUCKET_NAME",
    ];
    let from = if kind.as_deref() == Some("gcs") {
        let bucket = match reader.text(&["GCS_BUCKET_NAME"])? {
            Some(bucket) => bucket,
            None => needed(reader, &names, "TOOL_SYNC_ENABLED=true")?,
        };
        ToolOrigin::Gcs {
            bucket,
            credentials: google(reader)?,
        }
    } else {
        let bucket = needed(reader, &names, "TOOL_SYNC_ENABLED=true")?;
        ToolOrigin::S3 {
            bucket,
            access: s3(reader, None)?,
        }
    };
    Ok(Some(ToolSyncConfig {
        interval: Duration::from_secs(seconds),
        from,
    }))
}

fn s3(reader: &EnvReader<'_>, own_region: Option<&'static str>) -> Result<S3Access, SettingError> {
    let own = own_region.map_or(Ok(None), |name| reader.text(&[name]))?;
    let region = match own {
        Some(region) => Some(region),
        None => match reader.text(&["AWS_REGION", "S3_REGION"])? {
            Some(region) => Some(region),
            None => reader.text(&["AWS_DEFAULT_REGION"])?,
        },
    };
    Ok(S3Access {
        region: region.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        endpoint: endpoint(reader)?,
        keys: keys(reader)?,
        role: role(reader)?,
    })
}

fn role(reader: &EnvReader<'_>) -> Result<Option<S3Role>, SettingError> {
    match (
        reader.text(&["AWS_ROLE_ARN"])?,
        reader.text(&["AWS_WEB_IDENTITY_TOKEN_FILE"])?,
    ) {
        (Some(name), Some(token_file)) => Ok(Some(S3Role { name, token_file })),
        // One of the two alone is meant for other programs.
        (Some(_), None) | (None, Some(_)) | (None, None) => Ok(None),
    }
}

fn endpoint(reader: &EnvReader<'_>) -> Result<Option<String>, SettingError> {
    let Some(found) = reader.found(&["S3_ENDPOINT_URL", "AWS_ENDPOINT_URL"])? else {
        return Ok(None);
    };
    let rest = found
        .value
        .strip_prefix("https://")
        .or_else(|| found.value.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains('@') => Ok(Some(found.value)),
        Some(_) | None => Err(SettingError::new(
            found.name,
            format!("`{}` is no address of a server", found.name),
            "write https://HOST[:PORT], without a name or password",
        )),
    }
}

fn keys(reader: &EnvReader<'_>) -> Result<Option<S3Keys>, SettingError> {
    let token = reader.secret(&["AWS_SESSION_TOKEN"])?;
    match (
        reader.text(&["AWS_ACCESS_KEY_ID"])?,
        reader.secret(&["AWS_SECRET_ACCESS_KEY"])?,
    ) {
        (Some(id), Some(secret)) => Ok(Some(S3Keys { id, secret, token })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(half("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
        (None, Some(_)) => Err(half("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")),
    }
}

fn google(reader: &EnvReader<'_>) -> Result<Option<PathBuf>, SettingError> {
    reader.path(&["GOOGLE_APPLICATION_CREDENTIALS"])
}

fn needed(
    reader: &EnvReader<'_>,
    names: &[&'static str],
    because: &str,
) -> Result<String, SettingError> {
    let bucket = reader.text(names)?;
    let name = names[0];
    bucket.ok_or_else(|| {
        SettingError::new(
            name,
            format!("`{because}` needs a bucket"),
            format!("set `{name}` to its name"),
        )
    })
}

fn no_store(name: &str, kind: &str, kinds: &str) -> SettingError {
    let message = format!("`{name}={}` is not supported", shown(kind));
    SettingError::new(
        name,
        message,
        format!("use {kinds}; a store that speaks S3 is `s3` with S3_ENDPOINT_URL"),
    )
}
