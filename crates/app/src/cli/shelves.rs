//! The store of artifacts, as the settings name it, with the keys of its bucket looked up.

use crate::config::{Artifacts, Bucket, ConfigError, Store};
use doors::{
    Secret,
    secrets::{KeySource, Secrets},
};
use std::path::Path;
use store::{ArtifactSettings, ObjectStoreConfig, StorageLocation};

/// For an engine with this state.
pub(super) fn settings(
    said: &Artifacts,
    state: &Path,
    secrets: &Secrets,
) -> Result<ArtifactSettings, ConfigError> {
    let place = match &said.store {
        Store::Files => StorageLocation::Folder(state.join("artifacts")),
        Store::Memory => StorageLocation::Memory,
        Store::S3(bucket) => StorageLocation::S3(remote(bucket, secrets)?),
        Store::Gcs(bucket) => StorageLocation::Gcs(remote(bucket, secrets)?),
    };
    Ok(ArtifactSettings {
        location: place,
        limits: said.limits,
        tenants: Default::default(),
        retention: said.retention,
    })
}

fn remote(bucket: &Bucket, secrets: &Secrets) -> Result<ObjectStoreConfig, ConfigError> {
    Ok(ObjectStoreConfig {
        bucket: bucket.name.clone(),
        prefix: bucket.prefix.clone(),
        endpoint: bucket.endpoint.clone(),
        region: bucket
            .region
            .clone()
            .unwrap_or_else(|| "us-east-1".to_owned()),
        allow_http: bucket.allow_http,
        key: found(bucket.key.as_ref(), secrets)?,
        secret: found(bucket.secret.as_ref(), secrets)?,
    })
}

/// Looked up on a thread of its own: the caller's may already be that of an event loop, and a Vault is asked over the network.
fn found(source: Option<&KeySource>, secrets: &Secrets) -> Result<String, ConfigError> {
    let Some(source) = source else {
        return Ok(String::new());
    };
    let broken = |why: String| {
        ConfigError::new(
            format!("the key of the artifact store cannot be had: {why}"),
            "try again",
        )
    };
    let look = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let found = runtime
            .map_err(|error| broken(error.to_string()))?
            .block_on(secrets.read(source));
        found.map_err(|error| {
            ConfigError::new(format!("for [artifacts]: {}", error.message), error.hint)
        })
    };
    let found: Secret = std::thread::scope(|scope| scope.spawn(look).join())
        .unwrap_or_else(|_| Err(broken("looking for it failed".to_owned())))?;
    String::from_utf8(found.expose().to_vec()).map_err(|_| broken("it is no text".to_owned()))
}
