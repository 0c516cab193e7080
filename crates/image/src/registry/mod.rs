//! Pulls an image from a registry (OCI distribution) into an OCI layout on disk.
//!
//! ```text
//! name ──▶ index ──platform──▶ manifest ──▶ configuration, layers ──▶ layout
//!          digest checked      digest        digest and size checked while they come
//! ```
//! Nothing from a registry is used before its digest was verified, and all of it is bounded.

mod auth;
mod blob;
pub mod challenge;
mod client;
mod credentials;
mod error;
mod helper;
mod layout;
pub mod manifest;
mod patience;
mod platform;
mod secret;

pub use client::Transport;
pub use credentials::{Credentials, CredentialsError, Sources};
pub use error::{Kind, PullError};
pub use patience::Patience;
pub use platform::BadPlatform;
pub use secret::Secret;

use crate::{
    document::{self, DOCUMENT_TYPES, Descriptor, Document, Platform},
    limits::LONGEST_DOCUMENT,
};
use client::Client;
use layout::Layout;
use patience::{Attempts, Body, Trouble};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use spec::{Digest, ImageRef};
use std::{collections::BTreeMap, path::Path, sync::Arc};
use tokio::{sync::Semaphore, task::JoinSet};

/// Concurrent blob downloads.
const AT_ONCE: usize = 3;

/// Options of a pull.
#[derive(Clone, Debug)]
pub struct Request {
    /// The image.
    pub name: ImageRef,
    /// The platform.
    pub platform: Platform,
    /// Allowed transport.
    pub transport: Transport,
    /// Credentials; anonymous if absent.
    pub credentials: Option<Credentials>,
    /// Maximum bytes of configuration and layers.
    pub most_bytes: u64,
    /// Timeouts and retries.
    pub patience: Patience,
}

/// Progress of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The blobs to download are known.
    Begun {
        /// Their total bytes.
        bytes: u64,
        /// Their number.
        blobs: usize,
    },
    /// Bytes were received.
    Received(u64),
    /// Received bytes were discarded and will be downloaded again.
    Lost(u64),
    /// A blob is complete and verified.
    Blob {
        /// Its digest.
        digest: Digest,
        /// Its size in bytes.
        size: u64,
    },
}

/// Callback for progress.
pub type Watcher = dyn Fn(Event) + Send + Sync;

/// Result of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Digest of the index or manifest that the name referred to.
    pub digest: Digest,
    /// Digest of the platform's manifest.
    pub manifest: Digest,
    /// Platform of the image.
    pub platform: Platform,
    /// Bytes of configuration and layers.
    pub bytes: u64,
    /// Number of layers.
    pub layers: usize,
}

/// A manifest or index with a verified digest.
struct Fetched {
    bytes: Vec<u8>,
    digest: Digest,
    document: Document,
    media_type: &'static str,
}

/// Pulls an image into an empty private folder, which then is a complete layout. To cancel, drop
/// the future and remove the folder; after a failure, remove the folder.
pub async fn pull(
    request: &Request,
    folder: &Path,
    watcher: Arc<Watcher>,
) -> Result<Pulled, PullError> {
    let layout = Layout::new(folder).map_err(|error| PullError::local("begin a layout", error))?;
    let layout = Arc::new(layout);
    let Request {
        name,
        transport,
        credentials,
        patience,
        ..
    } = request;
    let client = Client::connect(name, *transport, credentials.clone(), patience.clone()).await?;
    let first = fetch_manifest(&client, Wanted::of(name)).await?;
    let (top, chosen) = choose(&client, first, request).await?;
    let image = chosen.as_ref().unwrap_or(&top);
    let Document::Manifest { config, layers } = &image.document else {
        return Err(nested(name));
    };
    let blobs = blobs(config, layers, request)?;
    let bytes = blobs.iter().map(|blob| blob.size).sum();
    watcher(Event::Begun {
        bytes,
        blobs: blobs.len(),
    });
    // The configuration is downloaded first: it decides whether the layers are needed.
    let (first, rest) = blobs
        .into_iter()
        .partition(|blob| blob.digest == config.digest);
    let client = Arc::new(client);
    fetch_all(&client, &layout, first, &watcher).await?;
    let platform = check_platform(&layout, config, request)?;
    fetch_all(&client, &layout, rest, &watcher).await?;
    finish(&layout, &top, chosen.as_ref(), name)
        .map_err(|error| PullError::local("write the layout", error))?;
    let (manifest, layers) = (image.digest.clone(), layers.len());
    Ok(Pulled {
        digest: top.digest,
        manifest,
        platform,
        bytes,
        layers,
    })
}

/// Which manifest to fetch.
enum Wanted<'w> {
    Tag(&'w str),
    Digest(&'w Digest),
    Chosen(&'w Descriptor),
}

impl<'w> Wanted<'w> {
    fn of(name: &'w ImageRef) -> Wanted<'w> {
        match (name.digest(), name.tag()) {
            (Some(digest), _) => Wanted::Digest(digest),
            (None, tag) => Wanted::Tag(tag.unwrap_or("latest")),
        }
    }

    fn reference(&self) -> &str {
        match self {
            Wanted::Tag(tag) => tag,
            Wanted::Digest(digest) => digest.as_str(),
            Wanted::Chosen(blob) => blob.digest.as_str(),
        }
    }
}

/// The first document, and the platform's manifest if the first is an index.
async fn choose(
    client: &Client,
    first: Fetched,
    request: &Request,
) -> Result<(Fetched, Option<Fetched>), PullError> {
    let Document::Index(choices) = &first.document else {
        return Ok((first, None));
    };
    let fits = |choice: &&Descriptor| {
        choice
            .platform
            .as_ref()
            .is_some_and(|its| request.platform.takes(its))
    };
    let exact = |choice: &&Descriptor| choice.platform.as_ref() == Some(&request.platform);
    let Some(chosen) = choices
        .iter()
        .find(exact)
        .or_else(|| choices.iter().find(fits))
    else {
        let offered = choices.iter().filter_map(|choice| choice.platform.as_ref());
        return Err(other_platforms(request, offered));
    };
    let chosen = fetch_manifest(client, Wanted::Chosen(chosen)).await?;
    Ok((first, Some(chosen)))
}

fn nested(name: &ImageRef) -> PullError {
    PullError::Protocol {
        host: name.registry().to_owned(),
        what: "the index".to_owned(),
        why: "it refers to another index".to_owned(),
    }
}

fn other_platforms<'p>(
    request: &Request,
    offered: impl Iterator<Item = &'p Platform>,
) -> PullError {
    const MOST_SHOWN: usize = 16;
    let mut names: Vec<_> = offered
        // Attestations, not platforms.
        .filter(|platform| platform.os != "unknown")
        .map(|platform| platform.to_string().chars().take(40).collect::<String>())
        .take(MOST_SHOWN)
        .collect();
    names.dedup();
    let offered = if names.is_empty() {
        "no platform that it names".to_owned()
    } else {
        names.join(", ")
    };
    PullError::Platform {
        name: request.name.to_string(),
        wanted: request.platform.to_string(),
        offered,
    }
}

async fn fetch_manifest(client: &Client, wanted: Wanted<'_>) -> Result<Fetched, PullError> {
    let mut attempts = Attempts::new(&client.patience);
    loop {
        match try_manifest(client, &wanted).await {
            Ok(fetched) => return Ok(fetched),
            Err(trouble) => attempts.after(trouble).await?,
        }
    }
}

async fn try_manifest(client: &Client, wanted: &Wanted<'_>) -> Result<Fetched, Trouble> {
    let what = format!(
        "manifest `{}` of `{}`",
        wanted.reference(),
        client.name.repository()
    );
    let mut headers = HeaderMap::new();
    for kind in DOCUMENT_TYPES {
        headers.append(ACCEPT, HeaderValue::from_static(kind));
    }
    let url = client.url(&format!("manifests/{}", wanted.reference()))?;
    let response = client.get(&url, &headers, &what).await?;
    let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
    let (said, content_type) = (
        header("docker-content-digest"),
        header(CONTENT_TYPE.as_str()),
    );
    let bytes = Body::new(response, &client.patience)
        .all(LONGEST_DOCUMENT)
        .await?;
    let digest = check_manifest(&bytes, wanted, said.as_deref(), &what)?;
    let document =
        manifest::read(&what, &bytes, content_type.as_deref()).map_err(PullError::Unfit)?;
    let media_type = manifest::media_type(&document, content_type.as_deref());
    Ok(Fetched {
        bytes,
        digest,
        document,
        media_type,
    })
}

/// Verifies the digest against the known one, and against the one in the response header.
fn check_manifest(
    bytes: &[u8],
    wanted: &Wanted<'_>,
    said: Option<&str>,
    what: &str,
) -> Result<Digest, PullError> {
    let corrupt = |why: String| PullError::Corrupt {
        what: what.to_owned(),
        why,
    };
    let found = blob::digest_of(bytes).ok_or_else(|| corrupt("it has no digest".to_owned()))?;
    let known = match wanted {
        Wanted::Tag(_) => None,
        Wanted::Digest(digest) => Some(*digest),
        Wanted::Chosen(blob) => {
            if blob.size != bytes.len() as u64 {
                return Err(corrupt(format!(
                    "it should have {} bytes and has {}",
                    blob.size,
                    bytes.len()
                )));
            }
            Some(&blob.digest)
        }
    };
    if known.is_some_and(|known| *known != found) {
        return Err(corrupt(format!("its digest is {found}")));
    }
    match said.filter(|said| said.starts_with("sha256:") && *said != found.as_str()) {
        Some(said) => Err(corrupt(format!(
            "its digest is {found}, and the registry states {}",
            said.chars().take(80).collect::<String>()
        ))),
        None => Ok(found),
    }
}

/// Each blob once, with their total below the limit.
fn blobs(
    config: &Descriptor,
    layers: &[Descriptor],
    request: &Request,
) -> Result<Vec<Descriptor>, PullError> {
    let mut sizes = BTreeMap::new();
    let mut unique = Vec::new();
    for blob in [config].into_iter().chain(layers) {
        match sizes.insert(blob.digest.clone(), blob.size) {
            None => unique.push(blob.clone()),
            Some(size) if size == blob.size => {}
            Some(_) => {
                return Err(PullError::corrupt(
                    &blob.digest,
                    "it has two different sizes",
                ));
            }
        }
    }
    let size = unique
        .iter()
        .fold(0u64, |sum, blob| sum.saturating_add(blob.size));
    match size <= request.most_bytes {
        true => Ok(unique),
        false => Err(PullError::TooLarge {
            what: request.name.to_string(),
            size,
            most: request.most_bytes,
        }),
    }
}

/// Downloads blobs concurrently; the first failure ends all.
async fn fetch_all(
    client: &Arc<Client>,
    layout: &Arc<Layout>,
    blobs: Vec<Descriptor>,
    watcher: &Arc<Watcher>,
) -> Result<(), PullError> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut fetching = JoinSet::new();
    for blob in blobs {
        let (client, layout, watcher, turns) = (
            Arc::clone(client),
            Arc::clone(layout),
            Arc::clone(watcher),
            Arc::clone(&turns),
        );
        fetching.spawn(async move {
            // The semaphore is never closed.
            let _turn = turns.acquire_owned().await;
            blob::fetch(&client, &layout, &blob, &*watcher).await
        });
    }
    while let Some(ended) = fetching.join_next().await {
        let fetched = ended.unwrap_or_else(|error| {
            Err(PullError::local(
                "go on pulling",
                std::io::Error::other(error),
            ))
        });
        if fetched.is_err() {
            fetching.shutdown().await;
            return fetched;
        }
    }
    Ok(())
}

/// The configuration decides about the platform: an index is not trusted with it.
fn check_platform(
    layout: &Layout,
    config: &Descriptor,
    request: &Request,
) -> Result<Platform, PullError> {
    let what = format!("configuration {}", config.digest);
    let bytes = layout
        .read(&config.digest)
        .map_err(|error| PullError::local(format!("read {what}"), error))?;
    let read = document::configuration(&what, &bytes).map_err(PullError::Unfit)?;
    match request.platform.takes(&read.platform) {
        true => Ok(read.platform),
        false => Err(other_platforms(request, [&read.platform].into_iter())),
    }
}

/// Includes the index, so that the image is known by both digests.
fn finish(
    layout: &Layout,
    top: &Fetched,
    chosen: Option<&Fetched>,
    name: &ImageRef,
) -> std::io::Result<()> {
    for document in [top].into_iter().chain(chosen) {
        layout.write(&document.digest, &document.bytes)?;
    }
    let mut entry = serde_json::json!({
        "mediaType": top.media_type,
        "digest": top.digest.as_str(),
        "size": top.bytes.len(),
    });
    if let Some(tag) = name.tag() {
        entry["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": tag });
    }
    layout.finish(&serde_json::json!({ "schemaVersion": 2, "manifests": [entry] }))
}
