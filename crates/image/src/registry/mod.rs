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
mod credential_helper;
mod credentials;
mod error;
mod layout;
pub mod manifest;
mod platform;
mod secret;
mod timeouts;

pub use client::Transport;
pub use credentials::{CredentialSources, Credentials, CredentialsError};
pub use error::{PullError, PullErrorKind};
pub use platform::BadPlatform;
pub use secret::RegistrySecret;
pub use timeouts::RegistryTimeouts;

use crate::{
    document::{self, DOCUMENT_TYPES, Descriptor, Document, Platform},
    limits::MAX_DOCUMENT_BYTES,
};
use client::Client;
use layout::Layout;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use spec::{Digest, ImageRef};
use std::{collections::BTreeMap, path::Path, sync::Arc};
use timeouts::{AttemptError, RetryState, TimedBody};
use tokio::{sync::Semaphore, task::JoinSet};

/// Concurrent blob downloads.
const CONCURRENT_BLOBS: usize = 3;

/// Options of a pull.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// The image.
    pub name: ImageRef,
    /// The platform.
    pub platform: Platform,
    /// Allowed transport.
    pub transport: Transport,
    /// Credentials; anonymous if absent.
    pub credentials: Option<Credentials>,
    /// Maximum bytes of configuration and layers.
    pub max_bytes: u64,
    /// Timeouts and retries.
    pub timeouts: RegistryTimeouts,
}

/// Progress of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullEvent {
    /// The blobs to download are known.
    Started {
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
pub type PullObserver = dyn Fn(PullEvent) + Send + Sync;

/// Result of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledImage {
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
struct FetchedManifest {
    bytes: Vec<u8>,
    digest: Digest,
    document: Document,
    media_type: &'static str,
}

/// Pulls an image into an empty private folder, which then is a complete layout. To cancel, drop
/// the future and remove the folder; after a failure, remove the folder.
pub async fn pull(
    request: &PullOptions,
    folder: &Path,
    observer: Arc<PullObserver>,
) -> Result<PulledImage, PullError> {
    let layout = Layout::new(folder).map_err(|error| PullError::local("begin a layout", error))?;
    let layout = Arc::new(layout);
    let PullOptions {
        name,
        transport,
        credentials,
        timeouts,
        ..
    } = request;
    let client = Client::connect(name, *transport, credentials.clone(), timeouts.clone()).await?;
    let first = fetch_manifest(&client, ManifestSelector::of(name)).await?;
    let (top, chosen) = choose(&client, first, request).await?;
    let image = chosen.as_ref().unwrap_or(&top);
    let Document::Manifest { config, layers } = &image.document else {
        return Err(nested(name));
    };
    let blobs = blobs(config, layers, request)?;
    let bytes = blobs.iter().map(|blob| blob.size).sum();
    observer(PullEvent::Started {
        bytes,
        blobs: blobs.len(),
    });
    // The configuration is downloaded first: it decides whether the layers are needed.
    let (first, rest) = blobs
        .into_iter()
        .partition(|blob| blob.digest == config.digest);
    let client = Arc::new(client);
    fetch_all(&client, &layout, first, &observer).await?;
    let platform = check_platform(&layout, config, request)?;
    fetch_all(&client, &layout, rest, &observer).await?;
    finish(&layout, &top, chosen.as_ref(), name)
        .map_err(|error| PullError::local("write the layout", error))?;
    let manifest = image.digest.clone();
    let layers = layers.len();
    Ok(PulledImage {
        digest: top.digest,
        manifest,
        platform,
        bytes,
        layers,
    })
}

/// Which manifest to fetch.
enum ManifestSelector<'w> {
    Tag(&'w str),
    Digest(&'w Digest),
    Chosen(&'w Descriptor),
}

impl<'w> ManifestSelector<'w> {
    fn of(name: &'w ImageRef) -> ManifestSelector<'w> {
        match (name.digest(), name.tag()) {
            (Some(digest), _) => ManifestSelector::Digest(digest),
            (None, tag) => ManifestSelector::Tag(tag.unwrap_or("latest")),
        }
    }

    fn reference(&self) -> &str {
        match self {
            ManifestSelector::Tag(tag) => tag,
            ManifestSelector::Digest(digest) => digest.as_str(),
            ManifestSelector::Chosen(blob) => blob.digest.as_str(),
        }
    }
}

/// The first document, and the platform's manifest if the first is an index.
async fn choose(
    client: &Client,
    first: FetchedManifest,
    request: &PullOptions,
) -> Result<(FetchedManifest, Option<FetchedManifest>), PullError> {
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
        return Err(wrong_platform(request, offered));
    };
    let chosen = fetch_manifest(client, ManifestSelector::Chosen(chosen)).await?;
    Ok((first, Some(chosen)))
}

fn nested(name: &ImageRef) -> PullError {
    PullError::Protocol {
        host: name.registry().to_owned(),
        what: "the index".to_owned(),
        why: "it refers to another index".to_owned(),
    }
}

fn wrong_platform<'p>(
    request: &PullOptions,
    offered: impl Iterator<Item = &'p Platform>,
) -> PullError {
    const MAX_SHOWN: usize = 16;
    let mut names: Vec<_> = offered
        // Attestations, not platforms.
        .filter(|platform| platform.os != "unknown")
        .map(|platform| platform.to_string().chars().take(40).collect::<String>())
        .take(MAX_SHOWN)
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

async fn fetch_manifest(
    client: &Client,
    wanted: ManifestSelector<'_>,
) -> Result<FetchedManifest, PullError> {
    let mut retries = RetryState::new(&client.timeouts);
    loop {
        match try_manifest(client, &wanted).await {
            Ok(fetched) => return Ok(fetched),
            Err(error) => retries.wait_after(error).await?,
        }
    }
}

async fn try_manifest(
    client: &Client,
    wanted: &ManifestSelector<'_>,
) -> Result<FetchedManifest, AttemptError> {
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
    let said = header("docker-content-digest");
    let content_type = header(CONTENT_TYPE.as_str());
    let bytes = TimedBody::new(response, &client.timeouts)
        .all(MAX_DOCUMENT_BYTES)
        .await?;
    let digest = check_manifest(&bytes, wanted, said.as_deref(), &what)?;
    let document =
        manifest::read(&what, &bytes, content_type.as_deref()).map_err(PullError::InvalidImage)?;
    let media_type = manifest::media_type(&document, content_type.as_deref());
    Ok(FetchedManifest {
        bytes,
        digest,
        document,
        media_type,
    })
}

/// Verifies the digest against the known one, and against the one in the response header.
fn check_manifest(
    bytes: &[u8],
    wanted: &ManifestSelector<'_>,
    said: Option<&str>,
    what: &str,
) -> Result<Digest, PullError> {
    let corrupt = |why: String| PullError::Corrupt {
        what: what.to_owned(),
        why,
    };
    let found = blob::digest_of(bytes).ok_or_else(|| corrupt("it has no digest".to_owned()))?;
    let known = match wanted {
        ManifestSelector::Tag(_) => None,
        ManifestSelector::Digest(digest) => Some(*digest),
        ManifestSelector::Chosen(blob) => {
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
    request: &PullOptions,
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
    if size <= request.max_bytes {
        Ok(unique)
    } else {
        Err(PullError::TooLarge {
            what: request.name.to_string(),
            size,
            max: request.max_bytes,
        })
    }
}

/// Downloads blobs concurrently; the first failure ends all.
async fn fetch_all(
    client: &Arc<Client>,
    layout: &Arc<Layout>,
    blobs: Vec<Descriptor>,
    observer: &Arc<PullObserver>,
) -> Result<(), PullError> {
    let permits = Arc::new(Semaphore::new(CONCURRENT_BLOBS));
    let mut fetching = JoinSet::new();
    for blob in blobs {
        let client = Arc::clone(client);
        let layout = Arc::clone(layout);
        let observer = Arc::clone(observer);
        let permits = Arc::clone(&permits);
        fetching.spawn(async move {
            // The semaphore is never closed.
            let _turn = permits.acquire_owned().await;
            blob::fetch(&client, &layout, &blob, &*observer).await
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
    request: &PullOptions,
) -> Result<Platform, PullError> {
    let what = format!("configuration {}", config.digest);
    let bytes = layout
        .read(&config.digest)
        .map_err(|error| PullError::local(format!("read {what}"), error))?;
    let read = document::configuration(&what, &bytes).map_err(PullError::InvalidImage)?;
    if request.platform.takes(&read.platform) {
        Ok(read.platform)
    } else {
        Err(wrong_platform(request, [&read.platform].into_iter()))
    }
}

/// Includes the index, so that the image is known by both digests.
fn finish(
    layout: &Layout,
    top: &FetchedManifest,
    chosen: Option<&FetchedManifest>,
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
