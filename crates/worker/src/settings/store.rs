//! Stores: where artifacts are, and where tools are fetched from.

use super::{
    Mistake, half,
    reader::{Reader, shown},
};
use doors::Secret;
use std::{path::PathBuf, time::Duration};

const REGION: &str = "us-east-1";

/// Where artifacts are, and whose they are.
#[derive(Clone, Debug)]
pub struct Artifacts {
    /// Where.
    pub store: Store,
    /// Whose.
    pub scope: ScopeOf,
}

/// Where artifacts are.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process, shared with nobody.
    Memory,
    /// Below this folder.
    Files(PathBuf),
    /// In this bucket.
    S3 {
        /// Its name.
        bucket: String,
        /// How it is reached.
        access: S3,
    },
    /// In this bucket.
    Gcs {
        /// Its name.
        bucket: String,
        /// A service account's key; none is the machine's account.
        credentials: Option<PathBuf>,
    },
}

/// What agents share artifacts with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeOf {
    /// All of the namespace.
    Namespace,
    /// Each for itself.
    App,
    /// All that say this.
    Custom(String),
}

/// How S3 is reached.
#[derive(Clone, Debug)]
pub struct S3 {
    /// The region.
    pub region: String,
    /// Another server than Amazon's.
    pub endpoint: Option<String>,
    /// None is by a role.
    pub keys: Option<Keys>,
    /// The role that a token of the platform stands for; none is the machine's.
    pub role: Option<Role>,
}

/// A role of S3 for which the platform writes a token into a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Role {
    pub name: String,
    pub token_file: String,
}

/// A key of S3.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Keys {
    pub id: String,
    pub secret: Secret,
    pub token: Option<Secret>,
}

/// Tools are fetched.
#[derive(Clone, Debug)]
pub struct Sync {
    /// How often it is looked.
    pub interval: Duration,
    /// Where.
    pub from: SyncFrom,
}

/// Where tools are fetched from.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum SyncFrom {
    S3 {
        bucket: String,
        access: S3,
    },
    Gcs {
        bucket: String,
        credentials: Option<PathBuf>,
    },
}

pub(super) fn artifacts(reader: &mut Reader<'_>) -> Result<Artifacts, Mistake> {
    let kind = reader.text(&["ARTIFACT_SERVICE_TYPE"])?;
    let store = match kind.as_deref() {
        None | Some("memory") => {
            let message = "artifacts are kept in memory: no agent sees what a tool makes, nor a tool what an agent has";
            reader.tell("ARTIFACT_SERVICE_TYPE", message);
            Store::Memory
        }
        Some("filesystem") => {
            let folder = reader.path(&["ARTIFACT_BASE_PATH"])?;
            Store::Files(folder.unwrap_or_else(|| PathBuf::from("/sam/artifacts")))
        }
        Some("s3") => Store::S3 {
            bucket: needed(reader, &["ARTIFACT_S3_BUCKET"], "ARTIFACT_SERVICE_TYPE=s3")?,
            access: s3(reader, Some("ARTIFACT_S3_REGION"))?,
        },
        Some("gcs") => Store::Gcs {
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
    Ok(Artifacts {
        store,
        scope: scope(reader)?,
    })
}

fn scope(reader: &mut Reader<'_>) -> Result<ScopeOf, Mistake> {
    let value = reader.text(&["ARTIFACT_SCOPE_VALUE"])?;
    match (reader.text(&["ARTIFACT_SCOPE"])?.as_deref(), value) {
        (Some("custom"), Some(value)) => Ok(ScopeOf::Custom(value)),
        (Some("custom"), None) => Err(half("ARTIFACT_SCOPE", "ARTIFACT_SCOPE_VALUE")),
        (scope @ (None | Some("namespace" | "app")), value) => {
            if value.is_some() {
                reader.tell(
                    "ARTIFACT_SCOPE_VALUE",
                    "it has no meaning without `ARTIFACT_SCOPE=custom`",
                );
            }
            Ok(if scope == Some("app") {
                ScopeOf::App
            } else {
                ScopeOf::Namespace
            })
        }
        (Some(other), _) => Err(Mistake::new(
            "ARTIFACT_SCOPE",
            format!("`ARTIFACT_SCOPE`: there is no scope `{}`", shown(other)),
            "namespace, app or custom",
        )),
    }
}

pub(super) fn sync(reader: &mut Reader<'_>) -> Result<Option<Sync>, Mistake> {
    let is_on = reader.flag("TOOL_SYNC_ENABLED")?.unwrap_or(false);
    let seconds = reader.number(&["TOOL_SYNC_INTERVAL"], 10, 1..=86_400)?;
    let kind = reader.text(&["OBJECT_STORAGE_TYPE"])?;
    let other = kind.as_deref().filter(|kind| !["s3", "gcs"].contains(kind));
    match other {
        // The mesh has it for its own purposes, too.
        Some(other) if !is_on => {
            let message = format!(
                "`{}` is not supported, and not needed: no tools are fetched",
                shown(other)
            );
            reader.tell("OBJECT_STORAGE_TYPE", message);
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
        SyncFrom::Gcs {
            bucket,
            credentials: google(reader)?,
        }
    } else {
        let bucket = needed(reader, &names, "TOOL_SYNC_ENABLED=true")?;
        SyncFrom::S3 {
            bucket,
            access: s3(reader, None)?,
        }
    };
    Ok(Some(Sync {
        interval: Duration::from_secs(seconds),
        from,
    }))
}

fn s3(reader: &Reader<'_>, own_region: Option<&'static str>) -> Result<S3, Mistake> {
    let own = own_region.map_or(Ok(None), |name| reader.text(&[name]))?;
    let region = match own {
        Some(region) => Some(region),
        None => match reader.text(&["AWS_REGION", "S3_REGION"])? {
            Some(region) => Some(region),
            None => reader.text(&["AWS_DEFAULT_REGION"])?,
        },
    };
    Ok(S3 {
        region: region.unwrap_or_else(|| REGION.to_owned()),
        endpoint: endpoint(reader)?,
        keys: keys(reader)?,
        role: role(reader)?,
    })
}

fn role(reader: &Reader<'_>) -> Result<Option<Role>, Mistake> {
    match (
        reader.text(&["AWS_ROLE_ARN"])?,
        reader.text(&["AWS_WEB_IDENTITY_TOKEN_FILE"])?,
    ) {
        (Some(name), Some(token_file)) => Ok(Some(Role { name, token_file })),
        // Alone, either is for other programs.
        (Some(_), None) | (None, Some(_)) | (None, None) => Ok(None),
    }
}

fn endpoint(reader: &Reader<'_>) -> Result<Option<String>, Mistake> {
    let Some(found) = reader.found(&["S3_ENDPOINT_URL", "AWS_ENDPOINT_URL"])? else {
        return Ok(None);
    };
    let rest = found
        .value
        .strip_prefix("https://")
        .or_else(|| found.value.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains('@') => Ok(Some(found.value)),
        Some(_) | None => Err(Mistake::new(
            found.name,
            format!("`{}` is no address of a server", found.name),
            "write https://HOST[:PORT], without a name or password",
        )),
    }
}

fn keys(reader: &Reader<'_>) -> Result<Option<Keys>, Mistake> {
    let token = reader.secret(&["AWS_SESSION_TOKEN"])?;
    match (
        reader.text(&["AWS_ACCESS_KEY_ID"])?,
        reader.secret(&["AWS_SECRET_ACCESS_KEY"])?,
    ) {
        (Some(id), Some(secret)) => Ok(Some(Keys { id, secret, token })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(half("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
        (None, Some(_)) => Err(half("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")),
    }
}

fn google(reader: &Reader<'_>) -> Result<Option<PathBuf>, Mistake> {
    reader.path(&["GOOGLE_APPLICATION_CREDENTIALS"])
}

fn needed(reader: &Reader<'_>, names: &[&'static str], because: &str) -> Result<String, Mistake> {
    let bucket = reader.text(names)?;
    let name = names[0];
    bucket.ok_or_else(|| {
        Mistake::new(
            name,
            format!("`{because}` needs a bucket"),
            format!("set `{name}` to its name"),
        )
    })
}

fn no_store(name: &str, kind: &str, kinds: &str) -> Mistake {
    let message = format!("`{name}={}` is not supported", shown(kind));
    Mistake::new(
        name,
        message,
        format!("use {kinds}; a store that speaks S3 is `s3` with S3_ENDPOINT_URL"),
    )
}
