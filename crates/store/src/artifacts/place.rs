//! Where artifacts are: a folder, memory, or a bucket with its credentials.

use super::{StoreError, bucket::Bucket, folder::Folder};
use object_store::{
    ClientOptions, ObjectStore, RetryConfig, aws::AmazonS3Builder, gcp::GoogleCloudStorageBuilder,
    memory::InMemory,
};
use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

/// Where artifacts are.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a folder of this machine.
    Folder(PathBuf),
    /// In the memory of this process, and gone with it.
    Memory,
    /// In a bucket of S3, or of whoever speaks like it.
    S3(Remote),
    /// In a bucket of Google Cloud Storage.
    Gcs(Remote),
}

/// A bucket and how it is reached.
#[derive(Clone)]
pub struct Remote {
    /// What the bucket is called.
    pub bucket: String,
    /// What all keys begin with; may be empty.
    pub prefix: String,
    /// The address of the server, where it is not the provider's own.
    pub endpoint: Option<String>,
    /// The region of S3.
    pub region: String,
    /// Whether the server may be spoken to in plain text.
    pub allow_http: bool,
    /// Of S3 the name of the access key; of GCS the service account, as JSON.
    pub key: String,
    /// The secret access key of S3.
    pub secret: String,
}

/// Without what would open the bucket.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote {{ bucket: {:?}, prefix: {:?}, .. }}", self.bucket, self.prefix)
    }
}

/// What carries artifacts.
#[derive(Clone, Debug)]
pub(crate) enum Shelf {
    Folder(Folder),
    Bucket(Bucket),
}

impl Shelf {
    pub(crate) fn open(place: Place) -> Result<Shelf, StoreError> {
        let bucket = match place {
            Place::Folder(folder) => {
                let opened = Folder::open(&folder).map_err(|source| StoreError::Folder { folder, source })?;
                return Ok(Shelf::Folder(opened));
            }
            Place::Memory => {
                Bucket::new(Arc::new(InMemory::new()), "").map_err(|error| ("memory".to_owned(), error))
            }
            Place::S3(remote) => of_remote(&remote, s3(&remote)),
            Place::Gcs(remote) => of_remote(&remote, gcs(&remote)),
        };
        bucket.map(Shelf::Bucket).map_err(|(bucket, source)| StoreError::Bucket { bucket, source })
    }
}

fn of_remote(
    remote: &Remote,
    store: object_store::Result<Arc<dyn ObjectStore>>,
) -> Result<Bucket, (String, io::Error)> {
    let bucket = store.map_err(io::Error::from).and_then(|store| Bucket::new(store, &remote.prefix));
    bucket.map_err(|error| (remote.bucket.clone(), error))
}

/// The whole answer must come within this; parts are small.
fn client(remote: &Remote) -> ClientOptions {
    // Another part of the program may have been first.
    _ = rustls::crypto::ring::default_provider().install_default();
    let client = ClientOptions::new().with_allow_http(remote.allow_http);
    client.with_connect_timeout(Duration::from_secs(10)).with_timeout(Duration::from_secs(120))
}

/// A server that is away is said to be so within seconds.
fn patience() -> RetryConfig {
    RetryConfig { max_retries: 4, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() }
}

fn s3(remote: &Remote) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&remote.bucket)
        .with_region(&remote.region)
        .with_access_key_id(&remote.key)
        .with_secret_access_key(&remote.secret)
        .with_client_options(client(remote))
        .with_retry(patience())
        .with_allow_http(remote.allow_http);
    if let Some(endpoint) = &remote.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(Arc::new(builder.build()?))
}

fn gcs(remote: &Remote) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&remote.bucket)
        .with_service_account_key(&remote.key)
        .with_client_options(client(remote))
        .with_retry(patience());
    if let Some(endpoint) = &remote.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    Ok(Arc::new(builder.build()?))
}
