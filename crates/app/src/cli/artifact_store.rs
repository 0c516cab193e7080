//! The artifact store's settings, with the keys of its bucket read.

use crate::config::{ArtifactBackend, ArtifactsConfig, CloudBucket, ConfigError};
use doors::{
    Secret,
    secrets::{KeySource, Secrets},
};
use std::path::Path;
use store::{ArtifactSettings, ObjectStoreConfig, StorageLocation};

/// Settings for an engine with this state folder.
pub(super) fn settings(
    config: &ArtifactsConfig,
    state: &Path,
    secrets: &Secrets,
) -> Result<ArtifactSettings, ConfigError> {
    let location = match &config.store {
        ArtifactBackend::Files => StorageLocation::Folder(state.join("artifacts")),
        ArtifactBackend::Memory => StorageLocation::Memory,
        ArtifactBackend::S3(bucket) => StorageLocation::S3(remote_bucket(bucket, secrets)?),
        ArtifactBackend::Gcs(bucket) => StorageLocation::Gcs(remote_bucket(bucket, secrets)?),
    };
    Ok(ArtifactSettings {
        location,
        limits: config.limits,
        tenants: Default::default(),
        retention: config.retention,
    })
}

fn remote_bucket(
    bucket: &CloudBucket,
    secrets: &Secrets,
) -> Result<ObjectStoreConfig, ConfigError> {
    Ok(ObjectStoreConfig {
        bucket: bucket.name.clone(),
        prefix: bucket.prefix.clone(),
        endpoint: bucket.endpoint.clone(),
        region: bucket
            .region
            .clone()
            .unwrap_or_else(|| "us-east-1".to_owned()),
        allow_http: bucket.allow_http,
        key: secret_value(bucket.key.as_ref(), secrets)?,
        secret: secret_value(bucket.secret.as_ref(), secrets)?,
    })
}

/// Reads a key on a separate thread: the calling thread may already run an event loop, and a Vault
/// is read over the network.
fn secret_value(source: Option<&KeySource>, secrets: &Secrets) -> Result<String, ConfigError> {
    let Some(source) = source else {
        return Ok(String::new());
    };
    let broken = |why: String| {
        ConfigError::new(
            format!("the key of the artifact store cannot be read: {why}"),
            "try again",
        )
    };
    let look = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let secret_value = runtime
            .map_err(|error| broken(error.to_string()))?
            .block_on(secrets.read(source));
        secret_value.map_err(|error| {
            ConfigError::new(format!("for [artifacts]: {}", error.message), error.hint)
        })
    };
    let secret_value: Secret = std::thread::scope(|scope| scope.spawn(look).join())
        .unwrap_or_else(|_| Err(broken("looking for it failed".to_owned())))?;
    String::from_utf8(secret_value.expose().to_vec())
        .map_err(|_| broken("it is no text".to_owned()))
}
