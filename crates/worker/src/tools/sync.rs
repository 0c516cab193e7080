//! Tool sync: copies `NAMESPACE/str-runtime/` of a bucket into the tools folder, periodically.
//!
//! ```text
//! list ─ check every key ─ compare with the table ─ fetch all changes ─┬─ code ─ manifests ─ delete what vanished
//!   │                                                                 │
//!   └── a failure up to here changes nothing ─────────────────────────┘
//! ```
//! Keys are untrusted: each component must be a plain name, and files are opened by descriptor. A
//! file that is not in the table belongs to somebody else: it is neither replaced nor deleted, and
//! the object of its name is refused. A file that equals the object becomes ours, as after a lost
//! table. Files that begin like a program (`#!`, ELF) become executable.

mod folder;

pub(super) use folder::RESERVED_PREFIX;

use crate::artifacts::{
    ArtifactStoreError, BucketClient, BucketConfig, BucketKind, INVALID_KEY_MARK, cause, names,
    next_chunk, transfer_timeout,
};
use folder::{Download, RemoteObject, SyncedFolder};
use object_store::{Error, GetOptions, ObjectMeta};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    future::poll_fn,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{io::AsyncWriteExt, sync::watch, task::JoinSet};

/// Maximum depth and length of a key.
const MAX_DEPTH: usize = 32;
const MAX_KEY_BYTES: usize = 1024;
/// Concurrent downloads.
const MAX_PARALLEL: usize = 8;
/// Maximum number of refused keys in a report.
const MAX_REFUSED_NAMED: usize = 20;
/// Timeout of a listing.
const LISTING_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum wait for the first sync at the start.
pub const FIRST_SYNC_TIMEOUT: Duration = Duration::from_secs(120);

/// Source, destination and interval of the sync.
#[derive(Clone, Debug)]
pub struct SyncConfig {
    /// The bucket.
    pub remote: BucketConfig,
    /// The namespace of the mesh.
    pub namespace: String,
    /// The tools folder.
    pub folder: PathBuf,
    /// Interval between syncs.
    pub interval: Duration,
    /// Limits.
    pub bounds: SyncLimits,
}

/// Limits of what is synced.
#[derive(Clone, Copy, Debug)]
pub struct SyncLimits {
    /// Number of objects.
    pub objects: usize,
    /// Size of an object, in bytes.
    pub object_bytes: u64,
    /// Size of all objects, in bytes.
    pub bytes: u64,
}

impl Default for SyncLimits {
    fn default() -> SyncLimits {
        SyncLimits {
            objects: 20_000,
            object_bytes: 512 << 20,
            bytes: 4 << 30,
        }
    }
}

/// State of the sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncState {
    /// Nothing was synced yet.
    Waiting,
    /// The folder equals the bucket, except for keys that are no valid paths or belong to somebody
    /// else's files.
    Ok {
        /// Refused keys with reasons, truncated.
        refused: Vec<String>,
    },
    /// The sync failed and changed nothing.
    Failed(String),
}

/// Syncs tools.
#[derive(Debug)]
pub struct ToolSync {
    store: BucketClient,
    below: String,
    folder: PathBuf,
    interval: Duration,
    bounds: SyncLimits,
    state: watch::Sender<SyncState>,
}

impl ToolSync {
    /// Validates the settings without contacting the server.
    pub fn open(settings: SyncConfig) -> Result<ToolSync, ArtifactStoreError> {
        let store = BucketClient::open(&settings.remote)?;
        ToolSync::over(
            store,
            &settings.namespace,
            settings.folder,
            settings.interval,
            settings.bounds,
        )
    }

    fn over(
        store: BucketClient,
        namespace: &str,
        folder: PathBuf,
        interval: Duration,
        bounds: SyncLimits,
    ) -> Result<ToolSync, ArtifactStoreError> {
        let namespace = namespace.trim_matches('/');
        if let Some(why) = namespace.split('/').find_map(names::unsafe_name) {
            let shown = names::shown(namespace);
            return Err(ArtifactStoreError(format!(
                "tools cannot be brought: the namespace {shown} has a part that {why}"
            )));
        }
        let (state, _) = watch::channel(SyncState::Waiting);
        // A lower bound against a busy loop.
        let interval = interval.max(Duration::from_secs(1));
        Ok(ToolSync {
            store,
            below: format!("{namespace}/{}", names::TOOLS_FOLDER),
            folder,
            interval,
            bounds,
            state,
        })
    }

    /// Watches the state.
    pub fn state(&self) -> watch::Receiver<SyncState> {
        self.state.subscribe()
    }

    /// Syncs periodically until it is dropped.
    pub async fn run(self) {
        let sync = Arc::new(self);
        let mut cycle = JoinSet::new();
        loop {
            let once = sync.clone();
            // A panic counts as a failure.
            cycle.spawn(async move { once.cycle().await });
            if let Some(Err(_)) = cycle.join_next().await {
                sync.publish(SyncState::Failed(
                    "bringing tools stopped in the middle".to_owned(),
                ));
            }
            tokio::time::sleep(sync.interval).await;
        }
    }

    /// Syncs once and returns the new state.
    pub async fn cycle(&self) -> SyncState {
        let state = match self.once().await {
            Ok(refused) => SyncState::Ok { refused },
            Err(why) => SyncState::Failed(why),
        };
        self.publish(state.clone());
        state
    }

    /// Publishes the state if it has changed.
    fn publish(&self, state: SyncState) {
        self.state.send_if_modified(|now| {
            let is_other = *now != state;
            *now = state;
            is_other
        });
    }

    async fn once(&self) -> Result<Vec<String>, String> {
        let listing = async {
            let mut listed = self.listed().await?;
            self.drop_folder_markers(&mut listed.wanted).await?;
            Ok(without_files_as_folders(listed))
        };
        let ObjectListing {
            wanted,
            mut refused,
        } = with_timeout(LISTING_TIMEOUT, listing).await?;
        let folder = self.folder.clone();
        let wanted = Arc::new(wanted);
        let (tree, changes) = blocking({
            let wanted = wanted.clone();
            move || {
                let tree = SyncedFolder::open(&folder)?;
                let changes = tree.changes(&wanted);
                Ok((tree, changes))
            }
        })
        .await?;
        let bytes = changes
            .changed
            .iter()
            .filter_map(|path| wanted.get(path))
            .map(|object| object.size)
            .sum();
        let fetched = with_timeout(
            transfer_timeout(bytes),
            self.fetch(&tree, &changes.changed, &wanted),
        )
        .await?;
        let mut foreign = changes.foreign;
        foreign.extend(blocking(move || tree.apply(&wanted, fetched)).await?);
        // Sorted, because another order would be reported as a change.
        foreign.sort();
        let conflict = |path| {
            format!(
                "{} is here already, from elsewhere: it stays",
                names::shown(path)
            )
        };
        refused.extend(foreign.iter().map(|path| conflict(path)));
        Ok(first_few(refused))
    }

    async fn listed(&self) -> Result<ObjectListing, String> {
        let mut found = BTreeMap::new();
        let mut refused = Vec::new();
        let mut problem = None;
        let mut count = 0;
        let mut bytes = 0_u64;
        let bounds = self.bounds;
        let mut each = |rest: &str, meta: &ObjectMeta| {
            count += 1;
            bytes = bytes.saturating_add(meta.size);
            if count > bounds.objects {
                problem = Some(format!(
                    "the bucket has more than {} objects for us",
                    bounds.objects
                ));
            } else if bytes > bounds.bytes {
                problem = Some(format!(
                    "the objects have more than {} bytes together",
                    bounds.bytes
                ));
            } else if meta.size > bounds.object_bytes {
                let shown = names::shown(rest);
                let limit = bounds.object_bytes;
                problem = Some(format!(
                    "{shown} has {} bytes, and at most {limit} are taken",
                    meta.size
                ));
            }
            match refusal(rest) {
                Some(why) => refused.push(format!(
                    "{} {why}",
                    names::shown(&rest.replace(INVALID_KEY_MARK, ""))
                )),
                None => _ = found.insert(rest.to_owned(), wanted(meta)),
            }
            problem.is_none()
        };
        // One more, so that our own message is used.
        let limit = bounds.objects.saturating_add(1);
        let listed = self
            .store
            .list(&self.below, limit, LISTING_TIMEOUT, &mut each)
            .await;
        listed.map_err(|error| cause(&error))?;
        match problem {
            Some(problem) => Err(problem),
            None => Ok(ObjectListing {
                wanted: found,
                refused,
            }),
        }
    }

    /// Removes folder markers: some programs create an empty object `NAME/` for a folder, which is
    /// listed as `NAME` but does not exist under that key.
    async fn drop_folder_markers(
        &self,
        found: &mut BTreeMap<String, RemoteObject>,
    ) -> Result<(), String> {
        let folders: BTreeSet<String> = found
            .keys()
            .flat_map(|path| ancestors(path))
            .map(str::to_owned)
            .collect();
        for folder in folders {
            if found.get(&folder).is_some_and(|object| object.size == 0) {
                let options = GetOptions {
                    head: true,
                    ..GetOptions::default()
                };
                match self
                    .store
                    .get(&format!("{}/{folder}", self.below), options)
                    .await
                {
                    Err(Error::NotFound { .. }) => _ = found.remove(&folder),
                    looked => _ = looked.map_err(|error| cause(&error))?,
                }
            }
        }
        Ok(())
    }

    /// Downloads objects into drafts, a few at a time.
    async fn fetch(
        &self,
        tree: &SyncedFolder,
        changed: &[String],
        wanted: &BTreeMap<String, RemoteObject>,
    ) -> Result<Vec<Download>, String> {
        let mut fetched = Vec::new();
        for some in changed.chunks(MAX_PARALLEL) {
            let mut under_way = JoinSet::new();
            for path in some {
                let failure =
                    |why: String| format!("{} cannot be brought: {why}", names::shown(path));
                let Some(object) = wanted.get(path) else {
                    continue;
                };
                let (draft, file) = tree.draft().map_err(|error| failure(error.to_string()))?;
                let store = self.store.clone();
                let key = format!("{}/{path}", self.below);
                let path = path.clone();
                let object = object.clone();
                under_way.spawn(async move {
                    let came = download(&store, &key, &object, file).await;
                    let failure = |why| format!("{} cannot be brought: {why}", names::shown(&path));
                    came.map_err(failure)
                        .map(|came| came.then_some(Download { path, draft }))
                });
            }
            while let Some(came) = under_way.join_next().await {
                fetched
                    .extend(came.map_err(|_| "bringing tools stopped in the middle".to_owned())??);
            }
        }
        Ok(fetched)
    }
}

/// Downloads one object; false if it does not exist.
async fn download(
    store: &BucketClient,
    key: &str,
    object: &RemoteObject,
    file: File,
) -> Result<bool, String> {
    // Conditional, because an object that was replaced since the listing may belong to a manifest
    // that is not here yet. GCS has another condition, which is not in listings. The client panics
    // on values that are no valid header.
    let is_header = |tag: &String| tag.bytes().all(|byte| byte.is_ascii_graphic());
    let if_match = object
        .e_tag
        .clone()
        .filter(|tag| store.kind == BucketKind::S3 && is_header(tag));
    let found = match store
        .get(
            key,
            GetOptions {
                if_match,
                ..GetOptions::default()
            },
        )
        .await
    {
        // A folder marker: see `drop_folder_markers`.
        Err(Error::NotFound { .. }) if object.size == 0 => return Ok(false),
        Err(Error::Precondition { .. }) => return Err("it changed meanwhile".to_owned()),
        found => found.map_err(|error| cause(&error))?,
    };
    match copy(found, file, object.size).await? {
        size if size == object.size => Ok(true),
        size => Err(format!("{size} of its {} bytes came", object.size)),
    }
}

/// Waits for the first successful sync, with a timeout. A caller that continues without it should
/// report the returned state.
pub async fn wait_for_first(
    state: &mut watch::Receiver<SyncState>,
    timeout: Duration,
) -> SyncState {
    let brought = state.wait_for(|state| matches!(state, SyncState::Ok { .. }));
    let brought = tokio::time::timeout(timeout, brought)
        .await
        .map(|state| state.map(|state| state.clone()));
    match brought {
        Ok(Ok(state)) => state,
        Ok(Err(_)) | Err(_) => state.borrow().clone(),
    }
}

#[derive(Debug)]
struct ObjectListing {
    wanted: BTreeMap<String, RemoteObject>,
    refused: Vec<String>,
}

fn wanted(meta: &ObjectMeta) -> RemoteObject {
    // Without an entity tag the modification time is used.
    let mark = meta
        .e_tag
        .clone()
        .unwrap_or_else(|| format!("modified {}", meta.last_modified.timestamp_millis()));
    RemoteObject {
        mark,
        size: meta.size,
        e_tag: meta.e_tag.clone(),
    }
}

/// Why a key is no valid path in the folder.
fn refusal(path: &str) -> Option<&'static str> {
    if path.len() > MAX_KEY_BYTES || path.split('/').count() > MAX_DEPTH {
        return Some("is too long or too deep");
    }
    if path.contains(INVALID_KEY_MARK) {
        return Some("cannot be a path");
    }
    // At every depth: stamps ignore such names everywhere.
    if path
        .split('/')
        .any(|part| part.starts_with(RESERVED_PREFIX))
    {
        return Some("is a name that we need ourselves");
    }
    path.split('/').find_map(names::unsafe_name)
}

/// A name cannot be a file and a folder: the file wins, otherwise a writer below the name could
/// remove it.
fn without_files_as_folders(listed: ObjectListing) -> ObjectListing {
    let ObjectListing {
        wanted: mut found,
        mut refused,
    } = listed;
    let beneath_files: Vec<String> = found
        .keys()
        .filter(|path| ancestors(path).any(|folder| found.contains_key(folder)))
        .cloned()
        .collect();
    for path in beneath_files {
        found.remove(&path);
        refused.push(format!("{} lies in what is a file", names::shown(&path)));
    }
    ObjectListing {
        wanted: found,
        refused,
    }
}

fn first_few(mut refused: Vec<String>) -> Vec<String> {
    let more = refused.len().saturating_sub(MAX_REFUSED_NAMED);
    refused.truncate(MAX_REFUSED_NAMED);
    if more > 0 {
        refused.push(format!("and {more} more"));
    }
    refused
}

async fn with_timeout<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let late = |_| {
        Err(format!(
            "the store took longer than {} seconds",
            timeout.as_secs()
        ))
    };
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(late)
}

/// The folders above a path.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// Copies an object into a file and syncs it; reads at most one byte more than announced.
async fn copy(found: object_store::GetResult, file: File, announced: u64) -> Result<u64, String> {
    let mut file = tokio::fs::File::from_std(file);
    let mut pieces = found.into_stream();
    let mut size = 0_u64;
    let mut next = async || next_chunk(poll_fn(|context| pieces.as_mut().poll_next(context))).await;
    while let Some(piece) = next().await.map_err(|error| cause(&error))? {
        size = size.saturating_add(piece.len() as u64);
        if size > announced {
            return Err("more bytes come than it has".to_owned());
        }
        file.write_all(&piece)
            .await
            .map_err(|error| error.to_string())?;
    }
    file.sync_all().await.map_err(|error| error.to_string())?;
    Ok(size)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| format!("the folder of tools cannot be changed: {error}")),
        Err(_) => Err("bringing tools stopped in the middle".to_owned()),
    }
}

#[cfg(test)]
#[path = "sync_tests.rs"]
mod tests;
