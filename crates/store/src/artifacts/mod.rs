//! The artifact store: named, numbered, immutable files with a history, in a folder, in memory or
//! in a bucket.
//!
//! This module has what all backends share: owners, digests, quotas, retention. [`folder`] and
//! [`bucket`] make versions appear atomically and give no number twice.

mod about;
mod bucket;
mod checked;
mod draft;
mod error;
mod folder;
mod kept;
mod list;
mod pieces;
mod place;
mod put;
mod read;
mod weight;

pub use error::StoreError;
pub use kept::{Kept, Lineage, New, Owner};
pub use list::{Listing, Wanted};
pub use pieces::Pieces;
pub use place::{Place, Remote};
pub use put::Putting;
pub use read::{Part, Reading};

use bucket::ABANDONED;
use kept::Spot;
use place::Shelf;
use spec::{ArtifactLimits, Retention, Tenants, Timestamp, WorkspacePath};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use weight::{Share, Weight};

/// Settings of the artifact store.
#[derive(Clone, Debug)]
pub struct ArtifactSettings {
    /// Where artifacts are stored.
    pub place: Place,
    /// Limits of sizes and counts.
    pub limits: ArtifactLimits,
    /// Quotas of single tenants, which replace the general ones.
    pub tenants: Tenants,
    /// How many versions are kept, and for how long.
    pub retention: Retention,
}

impl ArtifactSettings {
    /// A store in a folder, with default limits.
    pub fn folder(folder: impl Into<PathBuf>) -> ArtifactSettings {
        let place = Place::Folder(folder.into());
        ArtifactSettings {
            place,
            limits: ArtifactLimits::default(),
            tenants: Tenants::default(),
            retention: Retention::default(),
        }
    }
}

/// The artifact store. A cheap handle: all clones share one store.
#[derive(Clone, Debug)]
pub struct Artifacts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shelf: Shelf,
    limits: ArtifactLimits,
    tenants: Tenants,
    retention: Retention,
    weight: Mutex<Weight>,
    /// Allows one measurement at a time.
    weighing: tokio::sync::Mutex<()>,
}

impl Artifacts {
    /// Opens the store. A folder is created if absent; a bucket is not contacted before it is
    /// needed.
    pub fn open(settings: ArtifactSettings) -> Result<Artifacts, StoreError> {
        let ArtifactSettings {
            place,
            limits,
            tenants,
            retention,
        } = settings;
        let shelf = Shelf::open(place)?;
        let (weight, weighing) = Default::default();
        Ok(Artifacts(Arc::new(Inner {
            shelf,
            limits,
            tenants,
            retention,
            weight,
            weighing,
        })))
    }

    /// Removes one version, or all of them; returns how many. The highest number may be given
    /// again.
    pub async fn remove(
        &self,
        owner: &Owner,
        name: &WorkspacePath,
        version: Option<u64>,
    ) -> Result<usize, StoreError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => StoreError::Missing {
                name: name.clone(),
                version,
            },
            _ => StoreError::Access {
                what: "remove",
                name: name.clone(),
                source,
            },
        };
        let spot = Spot::new(owner, name, 0);
        let doomed = match version {
            Some(number) => vec![number],
            None => self.versions(&spot).await.map_err(failed)?,
        };
        if doomed.is_empty() {
            return Err(StoreError::Missing {
                name: name.clone(),
                version,
            });
        }
        let mut removed = 0;
        for version in doomed {
            match self
                .remove_spot(&Spot {
                    version,
                    ..spot.clone()
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
            self.is_gone(owner, Share::NAME);
        }
        Ok(removed)
    }

    /// Removes at once what killed writers left on this machine; returns what could not be removed,
    /// and why. For a bucket, use [`Artifacts::tidy`].
    pub fn sweep(&self) -> Vec<String> {
        match &self.0.shelf {
            Shelf::Folder(folder) => folder.sweep(),
            Shelf::Bucket(_) => Vec::new(),
        }
    }

    /// Removes what dead writers left and what retention expires; returns how much, and what could
    /// not be removed.
    pub async fn tidy(&self) -> (usize, Vec<String>) {
        let mut problems = self.sweep();
        let mut removed = 0;
        if let Shelf::Bucket(bucket) = &self.0.shelf {
            match bucket.sweep(ABANDONED).await {
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
        let mut spots = self.spots(None, &mut Vec::new()).await?;
        spots.sort();
        for versions in
            spots.chunk_by(|one, other| (&one.owner, &one.entry) == (&other.owner, &other.entry))
        {
            removed += self.expire(versions).await?;
        }
        Ok(removed)
    }

    /// Applies retention to the versions of one name, oldest first.
    async fn expire(&self, versions: &[Spot]) -> io::Result<usize> {
        let Retention {
            keep_versions,
            keep_for,
        } = self.0.retention;
        let kept = keep_versions
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(usize::MAX);
        let too_many = versions.len().saturating_sub(kept);
        let mut removed = 0;
        for (at, spot) in versions.iter().enumerate() {
            let old = match (at < too_many, keep_for) {
                (true, _) => true,
                (false, None) => break,
                (false, Some(time)) => self.is_older(spot, time).await?,
            };
            if !old {
                break;
            }
            match self.remove_spot(spot).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => removed += 1,
            }
        }
        Ok(removed)
    }

    /// A version whose metadata cannot be read does not count as old.
    async fn is_older(&self, spot: &Spot, time: Duration) -> io::Result<bool> {
        match self.about(spot).await.and_then(|about| about.kept(spot)) {
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

    async fn remove_spot(&self, spot: &Spot) -> io::Result<()> {
        let weight = match &self.0.shelf {
            Shelf::Folder(folder) => {
                let (folder, spot) = (folder.clone(), spot.clone());
                off_the_loop(move || {
                    let weight = folder.weight(&spot);
                    folder.remove(&spot).map(|()| weight)
                })
                .await?
            }
            Shelf::Bucket(bucket) => {
                let weight = bucket.about(spot).await.map_or(0, |about| about.size_bytes);
                bucket.remove(spot).await?;
                weight
            }
        };
        self.is_gone(&spot.owner, Share::bytes(weight));
        Ok(())
    }

    async fn versions(&self, spot: &Spot) -> io::Result<Vec<u64>> {
        let mut versions = match &self.0.shelf {
            Shelf::Folder(folder) => {
                let (folder, spot) = (folder.clone(), spot.clone());
                off_the_loop(move || folder.versions(&spot.owner, &spot.entry)).await?
            }
            Shelf::Bucket(bucket) => bucket.versions(&spot.owner, &spot.entry).await?,
        };
        versions.sort_unstable();
        Ok(versions)
    }

    async fn about(&self, spot: &Spot) -> io::Result<about::About> {
        match &self.0.shelf {
            Shelf::Folder(folder) => {
                let (folder, spot) = (folder.clone(), spot.clone());
                off_the_loop(move || folder.look(&spot))
                    .await
                    .map(|(_, about)| about)
            }
            Shelf::Bucket(bucket) => bucket.about(spot).await,
        }
    }
}

/// Runs file operations on the blocking pool.
async fn off_the_loop<T: Send + 'static>(
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
