//! Files that tools and agents share, in the layouts that agents of the mesh read and write. Names are strangers' words: none
//! becomes a path unchecked.
//!
//! ```text
//!            ┌── memory   bounded, forgets the oldest, shared with nobody
//! Shelf ─────┼── folder   BASE/APP/USER/SESSION/NAME/VERSION and VERSION.meta, by handles
//!  (scope)   └── bucket   APP/USER/SESSION/NAME/VERSION, in S3 or GCS
//! ```
//! `names.rs` has the layouts, and what of them is refused.

pub(crate) mod beneath;
mod bucket;
#[cfg(test)]
pub(crate) mod fake;
mod folder;
mod found;
mod line;
mod memory;
pub(crate) mod names;
mod remote;

pub(crate) use line::ODD;
pub use remote::{Credentials, Kind, Remote};
pub(crate) use remote::{Store, carrying, cause, in_motion};

use bucket::Bucket;
use folder::Folder;
use memory::Memory;
use names::Names;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What the memory shelf holds at most, unless told otherwise.
pub const MEMORY_BYTES: u64 = 256 << 20;

/// Whose files. None of it is a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Scope {
    /// The agent's name. A shelf that is shared by a namespace puts that in its place.
    pub app: String,
    pub user: String,
    pub session: String,
}

/// A version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Version {
    pub version: i64,
    pub mime_type: String,
    pub bytes: bytes::Bytes,
}

/// Why a file cannot be had or kept: whether it is not there, its name is bad, it is too large, or the store fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShelfError(pub String);

/// Where files are, and who shares them.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Settings {
    pub place: Place,
    pub sharing: Sharing,
}

/// Where files are.
#[derive(Clone, Debug)]
pub enum Place {
    /// In the memory of this process, at most so many bytes: shared with nobody.
    Memory {
        /// In bytes.
        most: u64,
    },
    /// In a folder of this machine.
    Folder(PathBuf),
    /// In a bucket.
    Bucket(Remote),
}

/// Who shares files: `ARTIFACT_SCOPE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All agents of a namespace: this stands where the agent's name would.
    Namespace(String),
    /// Each agent has its own.
    App,
}

impl Sharing {
    /// By the words of `ARTIFACT_SCOPE` and `ARTIFACT_SCOPE_VALUE`. Without a value, a namespace is the worker's own.
    pub fn named(scope: &str, value: Option<&str>, namespace: &str) -> Result<Sharing, ShelfError> {
        match (scope, value.filter(|value| !value.is_empty())) {
            ("namespace", value) => Ok(Sharing::Namespace(value.unwrap_or(namespace).to_owned())),
            ("custom", Some(value)) => Ok(Sharing::Namespace(value.to_owned())),
            ("custom", None) => Err(ShelfError(
                "the artifact scope `custom` needs a value".to_owned(),
            )),
            ("app", None) => Ok(Sharing::App),
            ("app", Some(_)) => Err(ShelfError(
                "the artifact scope `app` takes no value".to_owned(),
            )),
            (other, _) => {
                let other = names::shown(other);
                Err(ShelfError(format!(
                    "the artifact scope {other} is none of `namespace`, `app`, `custom`"
                )))
            }
        }
    }
}

/// Where they are, opened. Its copies are the same shelf.
#[derive(Clone, Debug)]
pub struct Shelf {
    kept: Kept,
    sharing: Arc<Sharing>,
}

#[derive(Clone, Debug)]
enum Kept {
    Memory(Arc<Memory>),
    Folder(Arc<Folder>),
    Bucket(Arc<Bucket>),
}

impl Shelf {
    /// Opens it. A folder is made if absent, and what dead writers left in it is swept; a bucket is not asked for anything yet.
    pub fn open(settings: Settings) -> Result<Shelf, ShelfError> {
        let kept = match settings.place {
            Place::Memory { most } => Kept::Memory(Arc::new(Memory::new(most))),
            Place::Folder(base) => {
                let opened = Folder::open(&base).map_err(|error| {
                    ShelfError(format!(
                        "the folder of artifacts `{}` cannot be used: {error}",
                        base.display()
                    ))
                })?;
                Kept::Folder(Arc::new(opened))
            }
            Place::Bucket(remote) => Kept::Bucket(Arc::new(Bucket::new(Store::open(&remote)?))),
        };
        let shelf = Shelf {
            kept,
            sharing: Arc::new(settings.sharing),
        };
        shelf.check_sharing()?;
        Ok(shelf)
    }

    /// One in memory, of the usual size, that each agent has to itself.
    pub fn memory() -> Shelf {
        let memory = Memory::new(MEMORY_BYTES);
        Shelf {
            kept: Kept::Memory(Arc::new(memory)),
            sharing: Arc::new(Sharing::App),
        }
    }

    /// What the store turned out not to hold to, for the log: known after the first save at the earliest.
    pub fn weakness(&self) -> Option<&'static str> {
        match &self.kept {
            Kept::Bucket(bucket) => bucket.weakness(),
            Kept::Memory(memory) => memory.has_forgotten().then_some(
                "the memory for artifacts, or a user's half of it, is full: the oldest versions are forgotten",
            ),
            Kept::Folder(_) => None,
        }
    }

    /// A version, or the latest, of at most so many bytes.
    pub async fn load(
        &self,
        scope: &Scope,
        filename: &str,
        version: Option<i64>,
        most: u64,
    ) -> Result<Version, ShelfError> {
        counts_from_zero(filename, version)?;
        let names = self.names(scope, filename);
        let loaded = match &self.kept {
            Kept::Memory(memory) => memory.load(&names.s3()?, version, most),
            Kept::Folder(folder) => {
                let (folder, place) = (folder.clone(), names.folder()?);
                blocking(move || folder.load(&place, version, most)).await
            }
            Kept::Bucket(bucket) => bucket.load(&names, version, most).await,
        };
        loaded.map_err(|Failed(why)| {
            ShelfError(format!("{} cannot be read: {why}", names::shown(filename)))
        })
    }

    /// Which version it would load, and of how many bytes: to make room before.
    pub async fn size(
        &self,
        scope: &Scope,
        filename: &str,
        version: Option<i64>,
    ) -> Result<(i64, u64), ShelfError> {
        counts_from_zero(filename, version)?;
        let names = self.names(scope, filename);
        let looked = match &self.kept {
            Kept::Memory(memory) => memory.size(&names.s3()?, version),
            Kept::Folder(folder) => {
                let (folder, place) = (folder.clone(), names.folder()?);
                blocking(move || folder.size(&place, version)).await
            }
            Kept::Bucket(bucket) => bucket.size(&names, version).await,
        };
        looked.map_err(|Failed(why)| {
            ShelfError(format!("{} cannot be read: {why}", names::shown(filename)))
        })
    }

    /// Keeps it as the next version, and tells which that is: no two writers get the same.
    pub async fn save(
        &self,
        scope: &Scope,
        filename: &str,
        mime_type: &str,
        bytes: bytes::Bytes,
    ) -> Result<i64, ShelfError> {
        self.save_telling(scope, filename, mime_type, bytes, &AtomicBool::new(false))
            .await
    }

    /// The same. Whoever does not wait for its end knows by `has_begun` whether any of it may be there.
    pub(crate) async fn save_telling(
        &self,
        scope: &Scope,
        filename: &str,
        mime_type: &str,
        bytes: bytes::Bytes,
        has_begun: &AtomicBool,
    ) -> Result<i64, ShelfError> {
        let mime_type = names::mime_type(mime_type)?.to_owned();
        let names = self.names(scope, filename);
        let saved = match &self.kept {
            Kept::Memory(memory) => memory.save(names.s3()?, mime_type, bytes),
            Kept::Folder(folder) => {
                let (folder, place) = (folder.clone(), names.folder()?);
                has_begun.store(true, Ordering::Relaxed);
                blocking(move || folder.save(&place, &mime_type, &bytes)).await
            }
            Kept::Bucket(bucket) => bucket.save(&names, &mime_type, bytes, has_begun).await,
        };
        saved.map_err(|Failed(why)| {
            ShelfError(format!("{} cannot be kept: {why}", names::shown(filename)))
        })
    }

    /// What all files of one user may have there, if that is bounded: older ones are forgotten for newer ones.
    pub(crate) fn share(&self) -> Option<u64> {
        match &self.kept {
            Kept::Memory(memory) => Some(memory.share()),
            Kept::Folder(_) | Kept::Bucket(_) => None,
        }
    }

    /// Whether what was kept is forgotten by now.
    pub(crate) fn has_forgotten(&self, scope: &Scope, filename: &str, version: i64) -> bool {
        match &self.kept {
            Kept::Memory(memory) => {
                let key = self.names(scope, filename).s3();
                key.is_ok_and(|key| memory.size(&key, Some(version)).is_err())
            }
            Kept::Folder(_) | Kept::Bucket(_) => false,
        }
    }

    fn names<'a>(&'a self, scope: &'a Scope, filename: &'a str) -> Names<'a> {
        Names {
            sharing: &self.sharing,
            scope,
            filename,
        }
    }

    /// What every name begins with must be usable: said at the start, not at the first call.
    fn check_sharing(&self) -> Result<(), ShelfError> {
        let scope = Scope {
            app: "app".to_owned(),
            user: "user".to_owned(),
            session: "session".to_owned(),
        };
        let names = self.names(&scope, "name");
        match &self.kept {
            Kept::Memory(_) => names.s3().map(drop),
            Kept::Folder(_) => names.folder().map(drop),
            Kept::Bucket(bucket) => bucket.key(&names).map(drop),
        }
    }
}

/// What went wrong, before it is said with whom.
#[derive(Debug)]
struct Failed(String);

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed(error.to_string())
    }
}

impl From<ShelfError> for Failed {
    fn from(error: ShelfError) -> Failed {
        Failed(error.0)
    }
}

fn counts_from_zero(filename: &str, version: Option<i64>) -> Result<(), ShelfError> {
    match version.filter(|version| *version < 0) {
        Some(version) => {
            let name = names::shown(filename);
            Err(ShelfError(format!(
                "{name} has no version {version}: they count from 0"
            )))
        }
        None => Ok(()),
    }
}

fn missing(version: Option<i64>) -> Failed {
    match version {
        Some(version) => Failed(format!("there is no version {version} of it")),
        None => Failed("there is no such file".to_owned()),
    }
}

fn too_large(size: u64, most: u64) -> Failed {
    Failed(format!("it has {size} bytes, and at most {most} are taken"))
}

/// Files are read and written beside the loop.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failed> + Send + 'static,
) -> Result<T, Failed> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Failed("the store stopped in the middle".to_owned())))
}

#[cfg(test)]
#[path = "shelf_tests.rs"]
mod tests;
