//! Tools from object storage: what is under `NAMESPACE/str-runtime/` in a bucket is brought into the folder of tools, again and
//! again.
//!
//! ```text
//! list ─ check every key ─ compare with the table ─ fetch what changed, all of it ─┬─ code ─ manifests ─ take away what vanished
//!   │                                                                              │
//!   └── whatever fails up to here changes nothing ─────────────────────────────────┘
//! ```
//! Keys are strangers' words: each part of one must be a plain name, and files are reached by handle. What the table does not
//! name was put there by somebody else: it is neither written over nor taken away, and the object of its name is refused. Only a
//! file that has the object's very bytes becomes ours, as after a lost table. One that begins like a program (`#!`, ELF) may be
//! run.

mod tree;

pub(super) use tree::OURS;

use crate::artifacts::{Kind, ODD, Remote, ShelfError, Store, carrying, cause, in_motion, names};
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
use tree::{Fetched, Tree, Wanted};

/// How deep a key may go, and how long it may be.
const DEEPEST: usize = 32;
const LONGEST: usize = 1024;
/// How many objects are on their way at the same time.
const AT_ONCE: usize = 8;
/// How many refused keys are named.
const MOST_NAMED: usize = 20;
/// How long a listing may take: a bucket that hangs is told of, and asked again.
const LISTING: Duration = Duration::from_secs(60);
/// How long the first cycle is waited for.
pub const FIRST: Duration = Duration::from_secs(120);

/// From where to where, and how often.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Settings {
    pub remote: Remote,
    pub namespace: String,
    pub folder: PathBuf,
    pub interval: Duration,
    pub bounds: Bounds,
}

/// How much is brought at most.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Bounds {
    pub objects: usize,
    pub object_bytes: u64,
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            objects: 20_000,
            object_bytes: 512 << 20,
            bytes: 4 << 30,
        }
    }
}

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was brought yet.
    Waiting,
    /// The folder is as the bucket was, except for these keys, which cannot be files here or have somebody else's in their place.
    Ok {
        /// Each with its reason; not all, if they are many.
        refused: Vec<String>,
    },
    /// The folder is as it was before, for this reason.
    Failed(String),
}

/// Brings tools.
#[derive(Debug)]
pub struct ToolSync {
    store: Store,
    below: String,
    folder: PathBuf,
    interval: Duration,
    bounds: Bounds,
    state: watch::Sender<State>,
}

impl ToolSync {
    /// Checks what can be checked without asking the server.
    pub fn open(settings: Settings) -> Result<ToolSync, ShelfError> {
        let store = Store::open(&settings.remote)?;
        ToolSync::over(
            store,
            &settings.namespace,
            settings.folder,
            settings.interval,
            settings.bounds,
        )
    }

    fn over(
        store: Store,
        namespace: &str,
        folder: PathBuf,
        interval: Duration,
        bounds: Bounds,
    ) -> Result<ToolSync, ShelfError> {
        let namespace = namespace.trim_matches('/');
        if let Some(why) = namespace.split('/').find_map(names::unsafe_name) {
            let shown = names::shown(namespace);
            return Err(ShelfError(format!(
                "tools cannot be brought: the namespace {shown} has a part that {why}"
            )));
        }
        let (state, _) = watch::channel(State::Waiting);
        // Without a pause it would do nothing else.
        let interval = interval.max(Duration::from_secs(1));
        Ok(ToolSync {
            store,
            below: format!("{namespace}/{}", names::TOOLS),
            folder,
            interval,
            bounds,
            state,
        })
    }

    /// How it stands, from now on.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Brings tools until it is dropped.
    pub async fn run(self) {
        let (sync, mut cycle) = (Arc::new(self), JoinSet::new());
        loop {
            let once = sync.clone();
            // One that panics is a failure as others are.
            cycle.spawn(async move { once.cycle().await });
            if let Some(Err(_)) = cycle.join_next().await {
                sync.tell(State::Failed(
                    "bringing tools stopped in the middle".to_owned(),
                ));
            }
            tokio::time::sleep(sync.interval).await;
        }
    }

    /// Brings what changed, once, and tells how it went.
    pub async fn cycle(&self) -> State {
        let state = match self.once().await {
            Ok(refused) => State::Ok { refused },
            Err(why) => State::Failed(why),
        };
        self.tell(state.clone());
        state
    }

    /// What stays as it was is no news.
    fn tell(&self, state: State) {
        self.state.send_if_modified(|now| {
            let is_other = *now != state;
            *now = state;
            is_other
        });
    }

    async fn once(&self) -> Result<Vec<String>, String> {
        let listing = async {
            let mut listed = self.listed().await?;
            self.drop_marks(&mut listed.wanted).await?;
            Ok(without_files_as_folders(listed))
        };
        let Listed {
            wanted,
            mut refused,
        } = in_time(LISTING, listing).await?;
        let (folder, wanted) = (self.folder.clone(), Arc::new(wanted));
        let (tree, changes) = blocking({
            let wanted = wanted.clone();
            move || {
                let tree = Tree::open(&folder)?;
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
        let fetched = in_time(
            carrying(bytes),
            self.fetch(&tree, &changes.changed, &wanted),
        )
        .await?;
        let mut foreign = changes.foreign;
        foreign.extend(blocking(move || tree.apply(&wanted, fetched)).await?);
        // However it was found out: what is in another order would be told again.
        foreign.sort();
        let told = |path| {
            format!(
                "{} is here already, from elsewhere: it stays",
                names::shown(path)
            )
        };
        refused.extend(foreign.iter().map(|path| told(path)));
        Ok(some_of(refused))
    }

    async fn listed(&self) -> Result<Listed, String> {
        let (mut found, mut refused, mut problem) = (BTreeMap::new(), Vec::new(), None);
        let (mut count, mut bytes) = (0, 0_u64);
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
                let (shown, most) = (names::shown(rest), bounds.object_bytes);
                problem = Some(format!(
                    "{shown} has {} bytes, and at most {most} are taken",
                    meta.size
                ));
            }
            match refusal(rest) {
                Some(why) => {
                    refused.push(format!("{} {why}", names::shown(&rest.replace(ODD, ""))))
                }
                None => _ = found.insert(rest.to_owned(), wanted(meta)),
            }
            problem.is_none()
        };
        // One more, so that our own words are said.
        let most = bounds.objects.saturating_add(1);
        let listed = self.store.list(&self.below, most, LISTING, &mut each).await;
        listed.map_err(|error| cause(&error))?;
        match problem {
            Some(problem) => Err(problem),
            None => Ok(Listed {
                wanted: found,
                refused,
            }),
        }
    }

    /// Some programs put an empty object `NAME/` where a folder is. It is listed like `NAME`, but nothing has that key.
    async fn drop_marks(&self, found: &mut BTreeMap<String, Wanted>) -> Result<(), String> {
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

    /// Brings objects into files that nobody sees yet, a few at a time.
    async fn fetch(
        &self,
        tree: &Tree,
        changed: &[String],
        wanted: &BTreeMap<String, Wanted>,
    ) -> Result<Vec<Fetched>, String> {
        let mut fetched = Vec::new();
        for some in changed.chunks(AT_ONCE) {
            let mut under_way = JoinSet::new();
            for path in some {
                let told = |why: String| format!("{} cannot be brought: {why}", names::shown(path));
                let Some(object) = wanted.get(path) else {
                    continue;
                };
                let (draft, file) = tree.draft().map_err(|error| told(error.to_string()))?;
                let (store, key) = (self.store.clone(), format!("{}/{path}", self.below));
                let (path, object) = (path.clone(), object.clone());
                under_way.spawn(async move {
                    let came = bring(&store, &key, &object, file).await;
                    let told = |why| format!("{} cannot be brought: {why}", names::shown(&path));
                    came.map_err(told)
                        .map(|came| came.then_some(Fetched { path, draft }))
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

/// Brings one object into a file; says whether there is one.
async fn bring(store: &Store, key: &str, object: &Wanted, file: File) -> Result<bool, String> {
    // One that was replaced meanwhile may belong to a manifest that is not here yet. GCS has its own word for it, which is not
    // in our lists. What cannot be a header would be the end of the client.
    let is_header = |tag: &String| tag.bytes().all(|byte| byte.is_ascii_graphic());
    let if_match = object
        .e_tag
        .clone()
        .filter(|tag| store.kind == Kind::S3 && is_header(tag));
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
        // It stands for an empty folder: see `drop_marks`.
        Err(Error::NotFound { .. }) if object.size == 0 => return Ok(false),
        Err(Error::Precondition { .. }) => return Err("it changed meanwhile".to_owned()),
        found => found.map_err(|error| cause(&error))?,
    };
    match copy(found, file, object.size).await? {
        size if size == object.size => Ok(true),
        size => Err(format!("{size} of its {} bytes came", object.size)),
    }
}

/// Waits until tools were brought for the first time, but not longer than that. Whoever goes on without them should say so
/// loudly, with the state that is given back.
pub async fn first(state: &mut watch::Receiver<State>, patience: Duration) -> State {
    let brought = state.wait_for(|state| matches!(state, State::Ok { .. }));
    let brought = tokio::time::timeout(patience, brought)
        .await
        .map(|state| state.map(|state| state.clone()));
    match brought {
        Ok(Ok(state)) => state,
        Ok(Err(_)) | Err(_) => state.borrow().clone(),
    }
}

#[derive(Debug)]
struct Listed {
    wanted: BTreeMap<String, Wanted>,
    refused: Vec<String>,
}

fn wanted(meta: &ObjectMeta) -> Wanted {
    // A store without marks of its own has at least a time.
    let mark = meta
        .e_tag
        .clone()
        .unwrap_or_else(|| format!("modified {}", meta.last_modified.timestamp_millis()));
    Wanted {
        mark,
        size: meta.size,
        e_tag: meta.e_tag.clone(),
    }
}

/// Why a key cannot be a file beneath the folder.
fn refusal(path: &str) -> Option<&'static str> {
    if path.len() > LONGEST || path.split('/').count() > DEEPEST {
        return Some("is too long or too deep");
    }
    if path.contains(ODD) {
        return Some("cannot be a path");
    }
    // At every depth: a stamp of code passes over them wherever they are.
    if path.split('/').any(|part| part.starts_with(OURS)) {
        return Some("is a name that we need ourselves");
    }
    path.split('/').find_map(names::unsafe_name)
}

/// A name cannot be a file and a folder: the file wins, or whoever can write beneath a name could take it away.
fn without_files_as_folders(listed: Listed) -> Listed {
    let Listed {
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
    Listed {
        wanted: found,
        refused,
    }
}

fn some_of(mut refused: Vec<String>) -> Vec<String> {
    let more = refused.len().saturating_sub(MOST_NAMED);
    refused.truncate(MOST_NAMED);
    if more > 0 {
        refused.push(format!("and {more} more"));
    }
    refused
}

async fn in_time<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let late = |_| {
        Err(format!(
            "the store took longer than {} seconds",
            patience.as_secs()
        ))
    };
    tokio::time::timeout(patience, work)
        .await
        .unwrap_or_else(late)
}

/// The folders that a path lies in.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// Copies an object into a file and makes it last; reads no more than was announced, and one byte.
async fn copy(found: object_store::GetResult, file: File, announced: u64) -> Result<u64, String> {
    let mut file = tokio::fs::File::from_std(file);
    let mut pieces = found.into_stream();
    let mut size = 0_u64;
    let mut next = async || in_motion(poll_fn(|context| pieces.as_mut().poll_next(context))).await;
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
