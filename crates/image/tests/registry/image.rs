//! Test images, and the result of pulling one.

use image::registry::{
    PullError, PullEvent, PullOptions, PulledImage, RegistryTimeouts, Transport, pull,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use spec::Digest;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image: its blobs, and its manifest.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) manifest: Value,
    pub(crate) blobs: Vec<Vec<u8>>,
}

impl Image {
    /// An image for an architecture, with layers of these bytes.
    pub(crate) fn new(architecture: &str, layers: &[&[u8]]) -> Image {
        let config = json!({ "os": "linux", "architecture": architecture, "rootfs": { "type": "layers", "diff_ids": [] } });
        let config = config.to_string().into_bytes();
        let described: Vec<_> = layers
            .iter()
            .map(|layer| descriptor(LAYER, layer))
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, &config), "layers": described,
        });
        let blobs = [config]
            .into_iter()
            .chain(layers.iter().map(|layer| layer.to_vec()))
            .collect();
        Image { manifest, blobs }
    }

    pub(crate) fn manifest(&self) -> Vec<u8> {
        self.manifest.to_string().into_bytes()
    }

    pub(crate) fn digest(&self) -> Digest {
        digest(&self.manifest())
    }
}

/// A small image for this machine.
pub(crate) fn small() -> Image {
    Image::new(here(), &[b"the first layer", b"the second layer"])
}

/// OCI name of this machine's architecture.
pub(crate) fn here() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Digest::new(&format!("sha256:{hex}")).unwrap()
}

pub(crate) fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": digest(bytes).as_str(), "size": bytes.len() })
}

/// A temporary folder.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("airlock-pull-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// The folder after a pull.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) pulled: PulledImage,
    /// Every file of the layout with its bytes.
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
    pub(crate) events: Vec<PullEvent>,
}

/// Ordinary options; tests change what they are about.
pub(crate) fn request(name: &str) -> PullOptions {
    PullOptions {
        name: name.parse().unwrap(),
        platform: image::Platform::here(),
        transport: Transport::Secure,
        credentials: None,
        max_bytes: 64 << 20,
        timeouts: RegistryTimeouts {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(5),
            first_pause: Duration::from_millis(5),
            ..RegistryTimeouts::default()
        },
    }
}

/// Pulls; in any case no file has a name that its contents do not match.
pub(crate) async fn attempt(request: &PullOptions) -> Result<Outcome, PullError> {
    let folder = Folder::new();
    let events: Arc<Mutex<Vec<PullEvent>>> = Arc::default();
    let watching = Arc::clone(&events);
    let watcher = Arc::new(move |event| watching.lock().unwrap().push(event));
    let pulled = pull(request, &folder.0, watcher).await;
    let files = files(&folder.0);
    let events = events.lock().unwrap().clone();
    if pulled.is_err() {
        assert!(
            !files.contains_key(Path::new("index.json")),
            "what failed is no layout"
        );
    }
    for (path, bytes) in files.iter().filter(|(path, _)| path.starts_with("blobs")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            name.ends_with(".part") || digest(bytes).hex() == name,
            "{name} is not what it says"
        );
    }
    pulled.map(|pulled| Outcome {
        pulled,
        files,
        events,
    })
}

/// A pull that must succeed, completely.
pub(crate) async fn arrives(request: &PullOptions, image: &Image) -> Outcome {
    let outcome = attempt(request)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.pulled.manifest, image.digest());
    let manifest = image.manifest();
    for bytes in image.blobs.iter().chain([&manifest]) {
        let path = Path::new("blobs/sha256").join(digest(bytes).hex());
        assert_eq!(outcome.files.get(&path), Some(bytes), "{}", path.display());
    }
    let index: Value = serde_json::from_slice(&outcome.files[Path::new("index.json")]).unwrap();
    assert_eq!(
        index["manifests"][0]["digest"],
        outcome.pulled.digest.as_str()
    );
    assert_eq!(
        outcome.files[Path::new("oci-layout")],
        br#"{"imageLayoutVersion":"1.0.0"}"#
    );
    outcome
}

/// A pull that must fail; returns the message.
pub(crate) async fn refused(request: &PullOptions, why: &str) -> PullError {
    match attempt(request).await {
        Ok(outcome) => panic!("it was pulled: {:?}", outcome.pulled),
        Err(error) => {
            let source = std::error::Error::source(&error)
                .map(ToString::to_string)
                .unwrap_or_default();
            let told = format!("{error} {source}");
            assert!(told.contains(why), "{told}\ndoes not say: {why}");
            error
        }
    }
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            )
        } else {
            let name = path.strip_prefix(folder).unwrap().to_owned();
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
}
