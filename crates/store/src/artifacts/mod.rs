//! The artifact store: named, numbered, immutable files with a history, in a folder, in memory or
//! in a bucket.
//!
//! This module has what all backends share: owners, digests, quotas, retention. [`folder`] and
//! [`bucket`] make versions appear atomically and give no number twice.

mod bucket;
mod chunk_buffer;
mod digest_cache;
mod draft;
mod error;
mod folder;
mod list;
mod location;
mod metadata;
mod quota;
mod read;
mod version;
mod write;

pub use chunk_buffer::ChunkBuffer;
pub use error::ArtifactError;
pub use list::{ArtifactListing, ArtifactQuery};
pub use location::{ObjectStoreConfig, StorageLocation};
pub use read::{ByteRange, VersionReader};
pub use version::{ArtifactOwner, Lineage, NewArtifact, StoredArtifact};
pub use write::VersionWriter;

use bucket::ABANDONED_AGE;
use location::StorageBackend;
use quota::{Amount, QuotaUsage};
use spec::{ArtifactLimits, Retention, TenantQuotas, Timestamp, WorkspacePath};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use version::ArtifactVersion;

/// Settings of the artifact store.
#[derive(Clone, Debug)]
pub struct ArtifactSettings {
    /// Where artifacts are stored.
    pub location: StorageLocation,
    /// Limits of sizes and counts.
    pub limits: ArtifactLimits,
    /// Quotas of single tenants, which replace the general ones.
    pub tenants: TenantQuotas,
    /// How many versions are kept, and for how long.
    pub retention: Retention,
}

impl ArtifactSettings {
    /// A store in a folder, with default limits.
    pub fn folder(folder: impl Into<PathBuf>) -> ArtifactSettings {
        let location = StorageLocation::Folder(folder.into());
        ArtifactSettings {
            location,
            limits: ArtifactLimits::default(),
            tenants: TenantQuotas::default(),
            retention: Retention::default(),
        }
    }
}

/// The artifact store. A cheap handle: all clones share one store.
#[derive(Clone, Debug)]
pub struct Artifacts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: StorageBackend,
    limits: ArtifactLimits,
    tenants: TenantQuotas,
    retention: Retention,
    usage: Mutex<QuotaUsage>,
    /// Allows one measurement at a time.
    measuring: tokio::sync::Mutex<()>,
}

impl Artifacts {
    /// Opens the store. A folder is created if absent; a bucket is not contacted before it is
    /// needed.
    pub fn open(settings: ArtifactSettings) -> Result<Artifacts, ArtifactError> {
        let ArtifactSettings {
            location,
            limits,
            tenants,
            retention,
        } = settings;
        let backend = StorageBackend::open(location)?;
        let (usage, measuring) = Default::default();
        Ok(Artifacts(Arc::new(Inner {
            backend,
            limits,
            tenants,
            retention,
            usage,
            measuring,
        })))
    }

    /// Removes one version, or all of them; returns how many. The highest number may be given
    /// again.
    pub async fn remove(
        &self,
        owner: &ArtifactOwner,
        name: &WorkspacePath,
        version: Option<u64>,
    ) -> Result<usize, ArtifactError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ArtifactError::Missing {
                name: name.clone(),
                version,
            },
            _ => ArtifactError::Access {
                what: "remove",
                name: name.clone(),
                source,
            },
        };
        let location = ArtifactVersion::new(owner, name, 0);
        let doomed = match version {
            Some(number) => vec![number],
            None => self.versions(&location).await.map_err(failed)?,
        };
        if doomed.is_empty() {
            return Err(ArtifactError::Missing {
                name: name.clone(),
                version,
            });
        }
        let mut removed = 0;
        for version in doomed {
            match self
                .remove_version(&ArtifactVersion {
                    version,
                    ..location.clone()
                })
                .await
            {
                Ok(()) => removed += 1,
                // A concurrent removal was faster.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound && removed > 0 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if version.is_none() {
            self.record_removal(owner, Amount::NAME);
        }
        Ok(removed)
    }

    /// Removes at once what killed writers left on this machine; returns what could not be removed,
    /// and why. For a bucket, use [`Artifacts::tidy`].
    pub fn sweep(&self) -> Vec<String> {
        match &self.0.backend {
            StorageBackend::Folder(folder) => folder.sweep(),
            StorageBackend::Bucket(_) => Vec::new(),
        }
    }

    /// Removes what dead writers left and what retention expires; returns how much, and what could
    /// not be removed.
    pub async fn tidy(&self) -> (usize, Vec<String>) {
        let mut problems = self.sweep();
        let mut removed = 0;
        if let StorageBackend::Bucket(bucket) = &self.0.backend {
            match bucket.sweep(ABANDONED_AGE).await {
                Ok(count) => removed += count,
                Err(error) => {
                    problems.push(format!("the bucket of artifacts cannot be swept: {error}"))
                }
            }
        }
        match self.expire_all().await {
            Ok(count) => removed += count,
            Err(error) => problems.push(format!("old artifacts cannot be removed: {error}")),
        }
        (removed, problems)
    }

    async fn expire_all(&self) -> io::Result<usize> {
        if self.0.retention == Retention::default() {
            return Ok(0);
        }
        let mut removed = 0;
        let mut locations = self.locations(None, &mut Vec::new()).await?;
        locations.sort();
        for versions in locations
            .chunk_by(|one, other| (&one.owner, &one.entry) == (&other.owner, &other.entry))
        {
            removed += self.expire(versions).await?;
        }
        Ok(removed)
    }

    /// Applies retention to the versions of one name, oldest first.
    async fn expire(&self, versions: &[ArtifactVersion]) -> io::Result<usize> {
        let Retention {
            keep_versions,
            keep_for,
        } = self.0.retention;
        let kept = keep_versions
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(usize::MAX);
        let too_many = versions.len().saturating_sub(kept);
        let mut removed = 0;
        for (at, location) in versions.iter().enumerate() {
            let old = match (at < too_many, keep_for) {
                (true, _) => true,
                (false, None) => break,
                (false, Some(time)) => self.is_older(location, time).await?,
            };
            if !old {
                break;
            }
            match self.remove_version(location).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => removed += 1,
            }
        }
        Ok(removed)
    }

    /// A version whose metadata cannot be read does not count as old.
    async fn is_older(&self, location: &ArtifactVersion, time: Duration) -> io::Result<bool> {
        match self
            .metadata(location)
            .await
            .and_then(|metadata| metadata.into_stored(location))
        {
            Ok(kept) => Ok(u128::from(now().0.saturating_sub(kept.kept_at.0)) > time.as_millis()),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::Other
                ) =>
            {
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn remove_version(&self, location: &ArtifactVersion) -> io::Result<()> {
        let usage = match &self.0.backend {
            StorageBackend::Folder(folder) => {
                let folder = folder.clone();
                let location = location.clone();
                run_blocking(move || {
                    let usage = folder.usage(&location);
                    folder.remove(&location).map(|()| usage)
                })
                .await?
            }
            StorageBackend::Bucket(bucket) => {
                let usage = bucket
                    .metadata(location)
                    .await
                    .map_or(0, |metadata| metadata.size_bytes);
                bucket.remove(location).await?;
                usage
            }
        };
        self.record_removal(&location.owner, Amount::bytes(usage));
        Ok(())
    }

    async fn versions(&self, location: &ArtifactVersion) -> io::Result<Vec<u64>> {
        let mut versions = match &self.0.backend {
            StorageBackend::Folder(folder) => {
                let folder = folder.clone();
                let location = location.clone();
                run_blocking(move || folder.versions(&location.owner, &location.entry)).await?
            }
            StorageBackend::Bucket(bucket) => {
                bucket.versions(&location.owner, &location.entry).await?
            }
        };
        versions.sort_unstable();
        Ok(versions)
    }

    async fn metadata(&self, location: &ArtifactVersion) -> io::Result<metadata::Metadata> {
        match &self.0.backend {
            StorageBackend::Folder(folder) => {
                let folder = folder.clone();
                let location = location.clone();
                run_blocking(move || folder.open_version_files(&location))
                    .await
                    .map(|(_, metadata)| metadata)
            }
            StorageBackend::Bucket(bucket) => bucket.metadata(location).await,
        }
    }
}

/// Runs file operations on the blocking pool.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::from)?
}

fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis());
    Timestamp(u64::try_from(since).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod folder_tests;
