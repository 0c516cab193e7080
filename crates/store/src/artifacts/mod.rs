//! Artifacts: named, numbered, immutable files with a history. One store for all places that hold them.
//!
//! What is common is here: whose a name is, digests, limits, retention. [`folder`] and [`bucket`] say how a version
//! comes to be there whole or not at all, and how no two writers get the same number.

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
use spec::{ArtifactLimits, Retention, TenantQuotas, Timestamp, WorkspacePath};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use weight::{Share, Weight};

/// Where artifacts are, and how many.
#[derive(Clone, Debug)]
pub struct ArtifactSettings {
    /// Where.
    pub place: Place,
    /// At most.
    pub limits: ArtifactLimits,
    /// What some owners may have instead of what each may have.
    pub tenants: TenantQuotas,
    /// For how long.
    pub retention: Retention,
}

impl ArtifactSettings {
    /// In a folder, with defaults.
    pub fn folder(folder: impl Into<PathBuf>) -> ArtifactSettings {
        let place = Place::Folder(folder.into());
        ArtifactSettings {
            place,
            limits: ArtifactLimits::default(),
            tenants: TenantQuotas::default(),
            retention: Retention::default(),
        }
    }
}

/// A store of artifacts. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Artifacts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shelf: Shelf,
    limits: ArtifactLimits,
    tenants: TenantQuotas,
    retention: Retention,
    weight: Mutex<Weight>,
    /// One look at everything is enough at a time.
    weighing: tokio::sync::Mutex<()>,
}

impl Artifacts {
    /// Opens a store. A folder is made if absent; a bucket is not spoken to before it is needed.
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

    /// Removes one version, or all of them; says how many. The highest number may be given again.
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
                // Another remover was faster.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound && removed > 0 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if version.is_none() {
            self.is_gone(owner, Share::NAME);
        }
        Ok(removed)
    }

    /// Removes what writers left that were killed on this machine, at once; gives back what could not be removed, and why.
    /// For a bucket [`Artifacts::tidy`] does it.
    pub fn sweep(&self) -> Vec<String> {
        match &self.0.shelf {
            Shelf::Folder(folder) => folder.sweep(),
            Shelf::Bucket(_) => Vec::new(),
        }
    }

    /// Removes what dead writers left and what is not to be kept any longer: how much, and what could not be removed.
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

    /// Applies what is to be kept to the versions of one name, oldest first.
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

    /// One that cannot be read is not known to be old.
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

/// Files have no event loop of their own.
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
