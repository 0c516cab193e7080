//! Artifacts in a bucket (S3, GCS) or in memory, through `object_store`.
//!
//! ```text
//! PREFIX/[@OWNER/]NAME/bytes/UNIQUE           written first, under a name that nobody else ever has
//! PREFIX/[@OWNER/]NAME/VERSION/about.json     made only if absent; says which bytes are its own
//! ```
//! A version exists when its `about.json` does. That is created atomically after the bytes, so no
//! reader sees a partial version. Two writers cannot create the same `about.json`; the loser takes
//! the next number. A writer that dies in between leaves bytes that no `about.json` names; the
//! sweep removes them after a day, which is longer than a writer may take. Parts of incomplete
//! uploads are invisible here: the bucket's lifecycle rule removes them.

use super::{
    metadata::{self, Metadata},
    version::{ArtifactOwner, ArtifactVersion, parse_version},
};
use bytes::Bytes;
use object_store::{
    Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, buffered::BufWriter,
    path::Path,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::io::AsyncWriteExt;

/// Part size: S3 takes 10,000 parts of at least 5 MiB. Each part being uploaded is buffered in
/// memory.
const PART_BYTES: usize = 8 << 20;
const CONCURRENT_PARTS: usize = 2;
/// Age after which unnamed bytes are removed.
pub(crate) const ABANDONED_AGE: Duration = Duration::from_secs(24 * 3600);
/// Maximum lost races; each means that another writer succeeded.
const MAX_ATTEMPTS: usize = 1000;
/// Maximum time of a listing. Ten million keys take this long at ten pages of a thousand per
/// second; a hostile server could return next pages for ever.
const LISTING_TIMEOUT: Duration = Duration::from_secs(1000);
const BYTES: &str = "bytes";
const METADATA_FILE: &str = "about.json";

/// Artifacts in a bucket.
#[derive(Clone, Debug)]
pub(crate) struct BucketBackend {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// An upload in progress.
#[derive(Debug)]
pub(crate) struct Upload {
    writer: Option<BufWriter>,
    unique: String,
}

/// A parsed object key.
enum ObjectKey {
    Metadata(ArtifactVersion),
    Bytes {
        owner: ArtifactOwner,
        entry: String,
        unique: String,
    },
}

impl BucketBackend {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> io::Result<BucketBackend> {
        let prefix = Path::parse(prefix).map_err(io::Error::other)?;
        Ok(BucketBackend { store, prefix })
    }

    pub(crate) fn begin(&self, owner: &ArtifactOwner, entry: &str) -> io::Result<Upload> {
        let unique = unique()?;
        let writer = BufWriter::with_capacity(
            self.store.clone(),
            self.bytes_key(owner, entry, &unique)?,
            PART_BYTES,
        );
        Ok(Upload {
            writer: Some(writer.with_max_concurrency(CONCURRENT_PARTS)),
            unique,
        })
    }

    /// Publishes the uploaded bytes as the next version of their name.
    pub(crate) async fn publish(
        &self,
        upload: Upload,
        owner: &ArtifactOwner,
        entry: &str,
        mut metadata: Metadata,
    ) -> io::Result<u64> {
        let unique = upload.finish().await?;
        metadata.bytes = Some(unique.clone());
        let claimed = self.claim(owner, entry, &metadata).await;
        if claimed.is_err() {
            // Best effort: the sweep removes what remains.
            _ = self
                .store
                .delete(&self.bytes_key(owner, entry, &unique)?)
                .await;
        }
        claimed
    }

    async fn claim(
        &self,
        owner: &ArtifactOwner,
        entry: &str,
        metadata: &Metadata,
    ) -> io::Result<u64> {
        let text = Bytes::from(metadata.await_pending_write()?);
        let mut next = self
            .versions(owner, entry)
            .await?
            .into_iter()
            .max()
            .unwrap_or(0);
        for _ in 0..MAX_ATTEMPTS {
            next = next.saturating_add(1);
            let location = ArtifactVersion {
                owner: owner.clone(),
                entry: entry.to_owned(),
                version: next,
            };
            let options = PutOptions {
                mode: PutMode::Create,
                ..PutOptions::default()
            };
            match self
                .store
                .put_opts(&self.metadata_key(&location)?, text.clone().into(), options)
                .await
            {
                Ok(_) => return Ok(next),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                    // Our own object, if only the response to an earlier attempt was lost.
                    let there = self.metadata(&location).await;
                    if there.is_ok_and(|there| there.bytes == metadata.bytes) {
                        return Ok(next);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other(
            "too many other writers store artifacts of this name",
        ))
    }

    /// The versions of one name.
    pub(crate) async fn versions(
        &self,
        owner: &ArtifactOwner,
        entry: &str,
    ) -> io::Result<Vec<u64>> {
        let mut versions = Vec::new();
        let below = self.at(&[&owner.folder_name(), entry])?;
        self.walk(&below, &mut |key, _| {
            if let ObjectKey::Metadata(location) = key {
                versions.push(location.version);
            }
            true
        })
        .await?;
        Ok(versions)
    }

    /// Calls `each` for every version until it returns false, and `weigh` with the size of every
    /// object.
    pub(crate) async fn locations(
        &self,
        owner: Option<&ArtifactOwner>,
        each: &mut (dyn FnMut(ArtifactVersion) -> bool + Send),
        measure: &mut (dyn FnMut(&ArtifactOwner, u64) + Send),
    ) -> io::Result<()> {
        let below = self.at(&[&owner.map(ArtifactOwner::folder_name).unwrap_or_default()])?;
        self.walk(&below, &mut |key, meta| match key {
            ObjectKey::Metadata(location) if owner.is_none_or(|owner| location.owner == *owner) => {
                each(location)
            }
            ObjectKey::Metadata(_) => true,
            ObjectKey::Bytes { owner, .. } => {
                measure(&owner, meta.size);
                true
            }
        })
        .await
    }

    /// Reads the metadata of a version. A foreign document may be too long, and is then not read.
    pub(crate) async fn metadata(&self, location: &ArtifactVersion) -> io::Result<Metadata> {
        let found = self.store.get(&self.metadata_key(location)?).await?;
        if found.meta.size > metadata::MAX_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its metadata is too long",
            ));
        }
        let text = found.bytes().await?;
        Metadata::read(&text).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))
    }

    /// The key of a version's bytes, after checking that they are complete.
    pub(crate) async fn find(
        &self,
        location: &ArtifactVersion,
        metadata: &Metadata,
    ) -> io::Result<Path> {
        let damaged = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let unique = metadata.bytes.as_deref().filter(|unique| is_unique(unique));
        let unique = unique
            .ok_or_else(|| damaged("its metadata names no object with its bytes".to_owned()))?;
        let key = self.bytes_key(&location.owner, &location.entry, unique)?;
        let length = match self.store.head(&key).await {
            Err(Error::NotFound { .. }) => return Err(damaged("its bytes are missing".to_owned())),
            found => found?.size,
        };
        if length == metadata.size_bytes {
            Ok(key)
        } else {
            Err(damaged(format!(
                "it has {length} bytes, {} were stored",
                metadata.size_bytes
            )))
        }
    }

    pub(crate) async fn read(&self, key: &Path, range: Range<u64>) -> io::Result<Bytes> {
        Ok(self.store.get_range(key, range).await?)
    }

    /// Removes one version: first its metadata, which makes it invisible, then its bytes.
    pub(crate) async fn remove(&self, location: &ArtifactVersion) -> io::Result<()> {
        let metadata = self.metadata(location).await;
        if metadata
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            return metadata.map(drop);
        }
        self.store.delete(&self.metadata_key(location)?).await?;
        let unique = metadata
            .ok()
            .and_then(|metadata| metadata.bytes)
            .filter(|unique| is_unique(unique));
        if let Some(unique) = unique {
            match self
                .store
                .delete(&self.bytes_key(&location.owner, &location.entry, &unique)?)
                .await
            {
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes unnamed bytes that are at least this old; returns how many.
    pub(crate) async fn sweep(&self, abandoned: Duration) -> io::Result<usize> {
        let mut bytes: BTreeMap<(ArtifactOwner, String), Vec<(String, SystemTime)>> =
            BTreeMap::new();
        let mut abouts: BTreeMap<(ArtifactOwner, String), Vec<ArtifactVersion>> = BTreeMap::new();
        self.walk(&self.at(&[])?, &mut |key, meta| {
            match key {
                ObjectKey::Metadata(location) => abouts
                    .entry((location.owner.clone(), location.entry.clone()))
                    .or_default()
                    .push(location),
                ObjectKey::Bytes {
                    owner,
                    entry,
                    unique,
                } => {
                    bytes
                        .entry((owner, entry))
                        .or_default()
                        .push((unique, meta.last_modified.into()));
                }
            }
            true
        })
        .await?;
        let mut removed = 0;
        for ((owner, entry), found) in bytes {
            let locations = abouts
                .remove(&(owner.clone(), entry.clone()))
                .unwrap_or_default();
            // Counts are compared first: finding out which bytes are named costs a request for each
            // version.
            if found.len() > locations.len() {
                removed += self
                    .sweep_name(&owner, &entry, found, &locations, abandoned)
                    .await?;
            }
        }
        Ok(removed)
    }

    async fn sweep_name(
        &self,
        owner: &ArtifactOwner,
        entry: &str,
        found: Vec<(String, SystemTime)>,
        locations: &[ArtifactVersion],
        abandoned: Duration,
    ) -> io::Result<usize> {
        let mut named = BTreeSet::new();
        for location in locations {
            // A version that cannot be read may name any of them, so the error ends the sweep.
            named.insert(self.metadata(location).await?.bytes.unwrap_or_default());
        }
        let mut removed = 0;
        for (unique, modified) in found {
            let old = SystemTime::now()
                .duration_since(modified)
                .is_ok_and(|age| age >= abandoned);
            if old && !named.contains(&unique) {
                self.store
                    .delete(&self.bytes_key(owner, entry, &unique)?)
                    .await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    async fn walk(
        &self,
        below: &Path,
        each: &mut (dyn FnMut(ObjectKey, &ObjectMeta) -> bool + Send),
    ) -> io::Result<()> {
        let mut all = self.store.list(Some(below));
        let end = tokio::time::Instant::now() + LISTING_TIMEOUT;
        let endless = |_| io::Error::new(io::ErrorKind::TimedOut, "its listing does not end");
        loop {
            let next = std::future::poll_fn(|context| all.as_mut().poll_next(context));
            let Some(found) = tokio::time::timeout_at(end, next).await.map_err(endless)? else {
                break;
            };
            let meta = found?;
            // Other objects in the bucket are not ours.
            let Some(key) = self.key(&meta.location) else {
                continue;
            };
            if !each(key, &meta) {
                break;
            }
        }
        Ok(())
    }

    fn key(&self, location: &Path) -> Option<ObjectKey> {
        let parts: Vec<_> = location
            .prefix_match(&self.prefix)?
            .map(|part| part.as_ref().to_owned())
            .collect();
        let (owner, rest) = match parts.split_first() {
            Some((first, rest)) if first.starts_with('@') => {
                (ArtifactOwner::from_folder_name(first)?, rest)
            }
            _ => (ArtifactOwner::local(), &parts[..]),
        };
        match rest {
            [entry, middle, unique] if middle == BYTES => Some(ObjectKey::Bytes {
                owner,
                entry: entry.clone(),
                unique: unique.clone(),
            }),
            [entry, version, last] if last == METADATA_FILE => {
                Some(ObjectKey::Metadata(ArtifactVersion {
                    owner,
                    entry: entry.clone(),
                    version: parse_version(version)?,
                }))
            }
            _ => None,
        }
    }

    fn bytes_key(&self, owner: &ArtifactOwner, entry: &str, unique: &str) -> io::Result<Path> {
        self.at(&[&owner.folder_name(), entry, BYTES, unique])
    }

    fn metadata_key(&self, location: &ArtifactVersion) -> io::Result<Path> {
        self.at(&[
            &location.owner.folder_name(),
            &location.entry,
            &location.version.to_string(),
            METADATA_FILE,
        ])
    }

    fn at(&self, parts: &[&str]) -> io::Result<Path> {
        let all = [self.prefix.as_ref()]
            .into_iter()
            .chain(parts.iter().copied());
        let all: Vec<_> = all.filter(|part| !part.is_empty()).collect();
        Path::parse(all.join("/")).map_err(io::Error::other)
    }
}

impl Upload {
    pub(crate) async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        match &mut self.writer {
            Some(writer) => Ok(writer.put(bytes).await?),
            None => Err(io::Error::other("it has ended")),
        }
    }

    async fn finish(mut self) -> io::Result<String> {
        if let Some(writer) = &mut self.writer {
            writer.shutdown().await?;
        }
        self.writer = None;
        Ok(self.unique.clone())
    }
}

/// Aborts the upload if the writer stops before its end. Best effort: the bucket's lifecycle rule
/// removes what remains.
impl Drop for Upload {
    fn drop(&mut self) {
        if let (Some(mut writer), Ok(runtime)) =
            (self.writer.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move { writer.abort().await });
        }
    }
}

fn unique() -> io::Result<String> {
    let mut chance = [0; 16];
    rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty())?;
    Ok(crate::name_encoding::hexadecimal(&chance))
}

fn is_unique(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
