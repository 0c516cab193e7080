//! Places for artifacts, each made for one test: memory, a folder, a bucket of a real S3 server (moto), a bucket of a
//! fake of GCS. Behind each a hand that reaches past the store, to damage and to plant.

mod gcs;
mod moto;

pub use gcs::Fake;
pub use moto::Moto;

use bytes::Bytes;
use spec::{ArtifactLimits, Retention};
use spec::{Id, WorkspacePath};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};
use store::{
    ArtifactError, ArtifactOwner, ArtifactSettings, Artifacts, NewArtifact, ObjectStoreConfig,
    StorageLocation, StoredArtifact, VersionReader,
};

/// Where the artifacts of one test are.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Ground {
    Memory,
    Files(Folder),
    S3(&'static Moto, String),
    Gcs(Fake),
}

/// A folder that goes with the test.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that failed says so by itself; what is left lies in the temporary folder.
        _ = fs::remove_dir_all(&self.0);
    }
}

fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Ground {
    /// Every place that can be had here; S3 is missing aloud where its server cannot be.
    pub async fn all(claim: &str) -> Vec<Ground> {
        let mut all = vec![
            Ground::Memory,
            Ground::files(),
            Ground::Gcs(Fake::start().await),
        ];
        all.extend(Ground::s3(claim));
        all
    }

    /// A fresh folder.
    pub fn files() -> Ground {
        let name = format!("airlock-artifacts-{}-{}", std::process::id(), next());
        Ground::Files(Folder(std::env::temp_dir().join(name)))
    }

    /// A fresh prefix of a bucket.
    pub fn s3(claim: &str) -> Option<Ground> {
        Moto::running(claim).map(|moto| Ground::S3(moto, format!("test/{}", next())))
    }

    /// A store there. Memory is new each time.
    pub fn open(&self, limits: ArtifactLimits, retention: Retention) -> Artifacts {
        let remote = |prefix: &str, endpoint: String, key: &str| ObjectStoreConfig {
            bucket: "airlock".to_owned(),
            prefix: prefix.to_owned(),
            endpoint: Some(endpoint),
            region: "us-east-1".to_owned(),
            allow_http: true,
            key: key.to_owned(),
            secret: "secret".to_owned(),
        };
        let place = match self {
            Ground::Memory => StorageLocation::Memory,
            Ground::Files(folder) => StorageLocation::Folder(folder.0.clone()),
            Ground::S3(moto, prefix) => StorageLocation::S3(remote(prefix, moto.endpoint(), "key")),
            Ground::Gcs(fake) => {
                StorageLocation::Gcs(remote("test", fake.endpoint(), gcs::ACCOUNT))
            }
        };
        Artifacts::open(ArtifactSettings {
            location: place,
            limits,
            tenants: Default::default(),
            retention,
        })
        .expect("a store")
    }

    /// A store there, with what is usual.
    pub fn usual(&self) -> Artifacts {
        self.open(ArtifactLimits::default(), Retention::default())
    }

    /// Puts other bytes of the same length in the place of the only ones; false where nobody can.
    pub fn damage(&self, name: &str, bytes: &[u8]) -> bool {
        match self {
            Ground::Memory => return false,
            Ground::Files(folder) => {
                fs::write(folder.0.join(name).join("1/bytes"), bytes).expect("they can be written");
            }
            Ground::S3(moto, prefix) => moto.replace(&format!("{prefix}/{name}/bytes/"), bytes),
            Ground::Gcs(fake) => fake.replace(&format!("test/{name}/bytes/"), bytes),
        }
        true
    }
}

/// A checked name.
pub fn name(text: &str) -> WorkspacePath {
    WorkspacePath::new(Path::new(text)).expect("a name")
}

/// Whoever has this key.
pub fn key(text: &str) -> ArtifactOwner {
    ArtifactOwner::key(&Id::new(text).expect("an identifier"))
}

/// Keeps these bytes for whoever is at the machine.
pub async fn put(
    artifacts: &Artifacts,
    at: &str,
    bytes: &[u8],
) -> Result<StoredArtifact, ArtifactError> {
    put_as(artifacts, NewArtifact::local(name(at)), bytes).await
}

/// Keeps these bytes.
pub async fn put_as(
    artifacts: &Artifacts,
    new: NewArtifact,
    bytes: &[u8],
) -> Result<StoredArtifact, ArtifactError> {
    let mut putting = artifacts.begin(new).await?;
    putting.write(Bytes::copy_from_slice(bytes)).await?;
    putting.finish(None).await
}

/// Everything that is left to read.
pub async fn all_of(mut reading: VersionReader) -> Result<Vec<u8>, ArtifactError> {
    let mut all = Vec::new();
    while let Some(bytes) = reading.next().await? {
        all.extend(bytes);
    }
    Ok(all)
}

/// What is kept there for whoever is at the machine.
pub async fn get(
    artifacts: &Artifacts,
    at: &str,
    version: Option<u64>,
) -> Result<Vec<u8>, ArtifactError> {
    all_of(
        artifacts
            .open_version(&ArtifactOwner::local(), &name(at), version)
            .await?,
    )
    .await
}
