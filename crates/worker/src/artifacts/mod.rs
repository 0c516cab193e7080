//! The artifact store: files that tools and agents share, in the layouts that the mesh's agents
//! read and write. Names are untrusted: none becomes a path unchecked.
//!
//! ```text
//!                  ┌── memory   bounded, drops the oldest, not shared
//! ArtifactStore ───┼── folder   BASE/APP/USER/SESSION/NAME/VERSION and VERSION.meta
//!    (scope)       └── bucket   APP/USER/SESSION/NAME/VERSION, in S3 or GCS
//! ```
//! `names.rs` has the layouts and the rules for names.

mod bucket;
mod bucket_client;
mod credentials;
#[cfg(test)]
pub(crate) mod fake_s3;
mod folder;
mod http;
mod memory;
pub(crate) mod names;
pub(crate) mod openat;

pub(crate) use bucket_client::{BucketClient, cause, next_chunk, transfer_timeout};
pub use bucket_client::{BucketConfig, BucketCredentials, BucketKind};
pub(crate) use http::INVALID_KEY_MARK;

use bucket::Bucket;
use folder::Folder;
use memory::Memory;
use names::ArtifactNames;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Default size of the memory backend.
pub const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;

/// The owner of an artifact. None of the fields is a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactScope {
    /// The agent's name; replaced by the namespace where a namespace shares its artifacts.
    pub app: String,
    /// The user.
    pub user: String,
    /// The session.
    pub session: String,
}

/// One version of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactContent {
    /// Version number.
    pub version: i64,
    /// MIME type.
    pub mime_type: String,
    /// Content.
    pub bytes: bytes::Bytes,
}

/// Why an artifact cannot be read or saved: it is missing, its name is invalid, it is too large, or
/// the store fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArtifactStoreError(pub String);

/// Location of the artifacts and who shares them.
#[derive(Clone, Debug)]
pub struct ArtifactStoreSettings {
    /// Location.
    pub place: ArtifactLocation,
    /// Who shares them.
    pub sharing: Sharing,
}

/// Location of the artifacts.
#[derive(Clone, Debug)]
pub enum ArtifactLocation {
    /// In the memory of this process, not shared.
    Memory {
        /// Maximum size in bytes.
        limit: u64,
    },
    /// In a folder of this machine.
    Folder(PathBuf),
    /// In a bucket.
    Bucket(BucketConfig),
}

/// Who shares artifacts (`ARTIFACT_SCOPE`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All agents of a namespace; the namespace takes the place of the agent's name.
    Namespace(String),
    /// Each agent has its own.
    App,
}

impl Sharing {
    /// Parses `ARTIFACT_SCOPE` and `ARTIFACT_SCOPE_VALUE`. Without a value, the namespace is the
    /// worker's own.
    pub fn named(
        scope: &str,
        value: Option<&str>,
        namespace: &str,
    ) -> Result<Sharing, ArtifactStoreError> {
        match (scope, value.filter(|value| !value.is_empty())) {
            ("namespace", value) => Ok(Sharing::Namespace(value.unwrap_or(namespace).to_owned())),
            ("custom", Some(value)) => Ok(Sharing::Namespace(value.to_owned())),
            ("custom", None) => Err(ArtifactStoreError(
                "the artifact scope `custom` needs a value".to_owned(),
            )),
            ("app", None) => Ok(Sharing::App),
            ("app", Some(_)) => Err(ArtifactStoreError(
                "the artifact scope `app` takes no value".to_owned(),
            )),
            (other, _) => {
                let other = names::shown(other);
                Err(ArtifactStoreError(format!(
                    "the artifact scope {other} is none of `namespace`, `app`, `custom`"
                )))
            }
        }
    }
}

/// An open artifact store. Clones share it.
#[derive(Clone, Debug)]
pub struct ArtifactStore {
    kept: Backend,
    sharing: Arc<Sharing>,
}

#[derive(Clone, Debug)]
enum Backend {
    Memory(Arc<Memory>),
    Folder(Arc<Folder>),
    Bucket(Arc<Bucket>),
}

impl ArtifactStore {
    /// Opens the store. A folder is created if absent and swept; a bucket is not contacted yet.
    pub fn open(settings: ArtifactStoreSettings) -> Result<ArtifactStore, ArtifactStoreError> {
        let kept = match settings.place {
            ArtifactLocation::Memory { limit } => Backend::Memory(Arc::new(Memory::new(limit))),
            ArtifactLocation::Folder(base) => {
                let opened = Folder::open(&base).map_err(|error| {
                    ArtifactStoreError(format!(
                        "the folder of artifacts `{}` cannot be used: {error}",
                        base.display()
                    ))
                })?;
                Backend::Folder(Arc::new(opened))
            }
            ArtifactLocation::Bucket(remote) => {
                Backend::Bucket(Arc::new(Bucket::new(BucketClient::open(&remote)?)))
            }
        };
        let store = ArtifactStore {
            kept,
            sharing: Arc::new(settings.sharing),
        };
        store.check_sharing()?;
        Ok(store)
    }

    /// A memory store of the default size that each agent has to itself.
    pub fn memory() -> ArtifactStore {
        let memory = Memory::new(DEFAULT_MEMORY_BYTES);
        ArtifactStore {
            kept: Backend::Memory(Arc::new(memory)),
            sharing: Arc::new(Sharing::App),
        }
    }

    /// A guarantee that the store turned out not to give, for the log: known after the first save
    /// at the earliest.
    pub fn weakness(&self) -> Option<&'static str> {
        match &self.kept {
            Backend::Bucket(bucket) => bucket.weakness(),
            Backend::Memory(memory) => memory.has_forgotten().then_some(
                "the memory for artifacts, or a user's half of it, is full: the oldest versions are forgotten",
            ),
            Backend::Folder(_) => None,
        }
    }

    /// Loads a version, or the latest one, up to a maximum size.
    pub async fn load(
        &self,
        scope: &ArtifactScope,
        filename: &str,
        version: Option<i64>,
        limit: u64,
    ) -> Result<ArtifactContent, ArtifactStoreError> {
        check_version(filename, version)?;
        let names = self.names(scope, filename);
        let loaded = match &self.kept {
            Backend::Memory(memory) => memory.load(&names.s3()?, version, limit),
            Backend::Folder(folder) => {
                let folder = folder.clone();
                let place = names.folder()?;
                blocking(move || folder.load(&place, version, limit)).await
            }
            Backend::Bucket(bucket) => bucket.load(&names, version, limit).await,
        };
        loaded.map_err(|StoreFailure(why)| {
            ArtifactStoreError(format!("{} cannot be read: {why}", names::shown(filename)))
        })
    }

    /// Number and size of the version that would be loaded, so that memory can be reserved first.
    pub async fn size(
        &self,
        scope: &ArtifactScope,
        filename: &str,
        version: Option<i64>,
    ) -> Result<(i64, u64), ArtifactStoreError> {
        check_version(filename, version)?;
        let names = self.names(scope, filename);
        let looked = match &self.kept {
            Backend::Memory(memory) => memory.size(&names.s3()?, version),
            Backend::Folder(folder) => {
                let folder = folder.clone();
                let place = names.folder()?;
                blocking(move || folder.size(&place, version)).await
            }
            Backend::Bucket(bucket) => bucket.size(&names, version).await,
        };
        looked.map_err(|StoreFailure(why)| {
            ArtifactStoreError(format!("{} cannot be read: {why}", names::shown(filename)))
        })
    }

    /// Saves a new version and returns its number, which is unique.
    pub async fn save(
        &self,
        scope: &ArtifactScope,
        filename: &str,
        mime_type: &str,
        bytes: bytes::Bytes,
    ) -> Result<i64, ArtifactStoreError> {
        self.save_tracked(scope, filename, mime_type, bytes, &AtomicBool::new(false))
            .await
    }

    /// Saves a new version. After a timeout, `has_begun` tells whether some of it may have been
    /// stored.
    pub(crate) async fn save_tracked(
        &self,
        scope: &ArtifactScope,
        filename: &str,
        mime_type: &str,
        bytes: bytes::Bytes,
        has_begun: &AtomicBool,
    ) -> Result<i64, ArtifactStoreError> {
        let mime_type = names::mime_type(mime_type)?.to_owned();
        let names = self.names(scope, filename);
        let saved = match &self.kept {
            Backend::Memory(memory) => memory.save(names.s3()?, mime_type, bytes),
            Backend::Folder(folder) => {
                let folder = folder.clone();
                let place = names.folder()?;
                has_begun.store(true, Ordering::Relaxed);
                blocking(move || folder.save(&place, &mime_type, &bytes)).await
            }
            Backend::Bucket(bucket) => bucket.save(&names, &mime_type, bytes, has_begun).await,
        };
        saved.map_err(|StoreFailure(why)| {
            ArtifactStoreError(format!("{} cannot be kept: {why}", names::shown(filename)))
        })
    }

    /// Space for all artifacts of one user, where it is bounded: newer versions replace the oldest.
    pub(crate) fn user_quota(&self) -> Option<u64> {
        match &self.kept {
            Backend::Memory(memory) => Some(memory.user_quota()),
            Backend::Folder(_) | Backend::Bucket(_) => None,
        }
    }

    /// Whether a saved version has been dropped since.
    pub(crate) fn has_forgotten(
        &self,
        scope: &ArtifactScope,
        filename: &str,
        version: i64,
    ) -> bool {
        match &self.kept {
            Backend::Memory(memory) => {
                let key = self.names(scope, filename).s3();
                key.is_ok_and(|key| memory.size(&key, Some(version)).is_err())
            }
            Backend::Folder(_) | Backend::Bucket(_) => false,
        }
    }

    fn names<'a>(&'a self, scope: &'a ArtifactScope, filename: &'a str) -> ArtifactNames<'a> {
        ArtifactNames {
            sharing: &self.sharing,
            scope,
            filename,
        }
    }

    /// Validates the part that all names have in common, at the start instead of at the first call.
    fn check_sharing(&self) -> Result<(), ArtifactStoreError> {
        let scope = ArtifactScope {
            app: "app".to_owned(),
            user: "user".to_owned(),
            session: "session".to_owned(),
        };
        let names = self.names(&scope, "name");
        match &self.kept {
            Backend::Memory(_) => names.s3().map(drop),
            Backend::Folder(_) => names.folder().map(drop),
            Backend::Bucket(bucket) => bucket.key(&names).map(drop),
        }
    }
}

/// The reason of a failure, before the file's name is added.
#[derive(Debug)]
struct StoreFailure(String);

impl From<std::io::Error> for StoreFailure {
    fn from(error: std::io::Error) -> StoreFailure {
        StoreFailure(error.to_string())
    }
}

impl From<ArtifactStoreError> for StoreFailure {
    fn from(error: ArtifactStoreError) -> StoreFailure {
        StoreFailure(error.0)
    }
}

fn check_version(filename: &str, version: Option<i64>) -> Result<(), ArtifactStoreError> {
    match version.filter(|version| *version < 0) {
        Some(version) => {
            let name = names::shown(filename);
            Err(ArtifactStoreError(format!(
                "{name} has no version {version}: they count from 0"
            )))
        }
        None => Ok(()),
    }
}

fn missing(version: Option<i64>) -> StoreFailure {
    match version {
        Some(version) => StoreFailure(format!("there is no version {version} of it")),
        None => StoreFailure("there is no such file".to_owned()),
    }
}

fn too_large(size: u64, limit: u64) -> StoreFailure {
    StoreFailure(format!(
        "it has {size} bytes, and at most {limit} are taken"
    ))
}

/// Runs file I/O on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreFailure> + Send + 'static,
) -> Result<T, StoreFailure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(StoreFailure("the store stopped in the middle".to_owned())))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
