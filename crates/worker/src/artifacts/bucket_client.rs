//! Client of a bucket in S3 or GCS. Keys arrive exactly as they are written here: `object_store`
//! would encode some characters when it builds a path from parts, so keys are always parsed whole.

use super::{
    ArtifactStoreError,
    credentials::{self, InvalidCredentials, ValidatingProvider},
    http::BoundedConnector,
    names,
};
use hyper::Uri;
use object_store::{
    ClientOptions, Error, GetOptions, GetResult, ObjectMeta, ObjectStore, PutOptions, PutPayload,
    RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    gcp::GoogleCloudStorageBuilder,
    path::Path,
};
use reqwest::Url;
use std::{fmt, sync::Arc, time::Duration};

/// Timeout of a response from the object store.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest role name.
const MAX_ROLE_BYTES: usize = 2048;
/// Google's own endpoint. It is always set, so that a credentials file cannot choose another one.
const GCS_URL: &str = "https://storage.googleapis.com";

/// A bucket and how it is reached.
#[derive(Clone)]
pub struct BucketConfig {
    /// Protocol of the bucket.
    pub kind: BucketKind,
    /// Name of the bucket.
    pub bucket: String,
    /// Region of an S3 bucket.
    pub region: String,
    /// URL of the server, where it is not the provider's own.
    pub endpoint: Option<String>,
    /// Credentials for the bucket.
    pub credentials: BucketCredentials,
}

/// Protocol of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketKind {
    /// Amazon S3 or a compatible server.
    S3,
    /// Google Cloud Storage.
    Gcs,
}

impl BucketKind {
    /// Parses the values of `ARTIFACT_SERVICE_TYPE` and `OBJECT_STORAGE_TYPE`.
    pub fn named(name: &str) -> Result<BucketKind, ArtifactStoreError> {
        match name {
            "s3" => Ok(BucketKind::S3),
            "gcs" => Ok(BucketKind::Gcs),
            "azure" => Err(ArtifactStoreError(
                "object storage of Azure is not spoken to here: use `s3` or `gcs`".to_owned(),
            )),
            other => Err(ArtifactStoreError(format!(
                "object storage of the kind {} is not known: use `s3` or `gcs`",
                names::shown(other)
            ))),
        }
    }
}

/// Credentials for a bucket.
#[derive(Clone)]
pub enum BucketCredentials {
    /// S3 access key.
    Keys {
        /// Access key id.
        key: String,
        /// Secret access key.
        secret: String,
        /// Session token of a temporary key.
        token: Option<String>,
    },
    /// S3 role that is assumed with a token file written by the platform.
    WebIdentity {
        /// ARN of the role.
        role: String,
        /// Path of the token file.
        token_file: String,
    },
    /// JSON of a GCS service account.
    ServiceAccount(String),
    /// Path of a file with Google application credentials.
    File(String),
    /// Credentials of the machine, from its metadata service.
    Machine,
}

/// Leaves out the credentials.
impl fmt::Debug for BucketConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BucketConfig {
            kind,
            bucket,
            region,
            endpoint,
            credentials,
        } = self;
        f.debug_struct("Remote")
            .field("kind", kind)
            .field("bucket", bucket)
            .field("region", region)
            .field("endpoint", endpoint)
            .field("credentials", credentials)
            .finish()
    }
}

/// Leaves out the secrets.
impl fmt::Debug for BucketCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BucketCredentials::Keys { .. } => "Keys(..)",
            BucketCredentials::WebIdentity { .. } => "WebIdentity(..)",
            BucketCredentials::ServiceAccount(_) => "ServiceAccount(..)",
            BucketCredentials::File(_) => "File(..)",
            BucketCredentials::Machine => "Machine",
        })
    }
}

/// An open bucket.
#[derive(Clone)]
pub(crate) struct BucketClient {
    pub(crate) kind: BucketKind,
    inner: Arc<dyn ObjectStore>,
}

/// Leaves out the settings, which may contain secrets.
impl fmt::Debug for BucketClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.kind)
    }
}

impl BucketClient {
    /// Validates the configuration without contacting the server.
    pub(crate) fn open(remote: &BucketConfig) -> Result<BucketClient, ArtifactStoreError> {
        let named = names::shown(&remote.bucket);
        let bad = |why: &str| {
            Err(ArtifactStoreError(format!(
                "the bucket {named} cannot be used: {why}"
            )))
        };
        if remote.bucket.is_empty() {
            return bad("it has no name");
        }
        if let Some(flaw) = remote
            .endpoint
            .as_deref()
            .and_then(|endpoint| endpoint_flaw(remote, endpoint))
        {
            return bad(flaw);
        }
        if let Some(flaw) = config_flaw(remote) {
            return bad(flaw);
        }
        let built = match remote.kind {
            BucketKind::S3 => s3(remote).and_then(open_s3),
            BucketKind::Gcs => gcs(remote),
        };
        match built {
            Ok(store) => Ok(store),
            // The client's error message may quote the credentials.
            Err(_) => bad(
                "its settings do not fit together, or its credentials are not of the kind that it takes",
            ),
        }
    }

    /// Wraps any other store as if it were S3.
    #[cfg(test)]
    pub(crate) fn of(inner: Arc<dyn ObjectStore>) -> BucketClient {
        BucketClient {
            kind: BucketKind::S3,
            inner,
        }
    }

    pub(crate) async fn get(
        &self,
        key: &str,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        let key = Path::parse(key)?;
        with_timeout(RESPONSE_TIMEOUT, self.inner.get_opts(&key, options)).await
    }

    pub(crate) async fn put(
        &self,
        key: &str,
        payload: PutPayload,
        how: PutOptions,
    ) -> object_store::Result<()> {
        let key = Path::parse(key)?;
        let timeout = transfer_timeout(payload.content_length() as u64);
        with_timeout(timeout, self.inner.put_opts(&key, payload, how))
            .await
            .map(drop)
    }

    /// Calls `each` for every object below `below/`, with the rest of its key, until `each` returns
    /// false. At most `limit` objects are listed, all of them within `timeout`. Keys that are no
    /// valid paths contain an `INVALID_KEY_MARK`.
    pub(crate) async fn list(
        &self,
        below: &str,
        limit: usize,
        timeout: Duration,
        each: &mut (dyn FnMut(&str, &ObjectMeta) -> bool + Send),
    ) -> object_store::Result<()> {
        let mut all = self.inner.list(Some(&Path::parse(below)?));
        let mut count = 0;
        with_timeout(timeout, async {
            while let Some(found) =
                std::future::poll_fn(|context| all.as_mut().poll_next(context)).await
            {
                let meta = found?;
                count += 1;
                if count > limit {
                    return Err(unusable(format!("it lists more than {limit} objects")));
                }
                let rest = meta
                    .location
                    .as_ref()
                    .strip_prefix(below)
                    .and_then(|rest| rest.strip_prefix('/'));
                if rest.is_some_and(|rest| !each(rest, &meta)) {
                    break;
                }
            }
            Ok(())
        })
        .await
    }
}

/// Timeout for the transfer of this many bytes, generous enough for a slow connection.
pub(crate) fn transfer_timeout(bytes: u64) -> Duration {
    // At least 64 KiB per second.
    RESPONSE_TIMEOUT + Duration::from_secs(bytes >> 16)
}

/// The next chunk of a stream. The timeout applies to each chunk: a slow transfer is fine, a
/// stalled one is not.
pub(crate) async fn next_chunk<T>(
    next: impl Future<Output = Option<object_store::Result<T>>>,
) -> object_store::Result<Option<T>> {
    with_timeout(RESPONSE_TIMEOUT, async { next.await.transpose() }).await
}

/// Runs a request with a timeout.
async fn with_timeout<T>(
    timeout: Duration,
    work: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let late = |_| {
        Err(unusable(format!(
            "it is not done within {} seconds",
            timeout.as_secs()
        )))
    };
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(late)
}

fn unusable(why: String) -> Error {
    Error::Generic {
        store: "bucket",
        source: why.into(),
    }
}

/// Describes an error without URLs, keys or other contents of the client's message.
pub(crate) fn cause(error: &Error) -> String {
    match error {
        Error::NotFound { .. } => "it is not there, or the bucket is not".to_owned(),
        Error::PermissionDenied { .. } => {
            "the store does not let us: its credentials lack the right".to_owned()
        }
        Error::Unauthenticated { .. } => "the store does not know our credentials".to_owned(),
        Error::InvalidPath { .. } => "a key in the bucket cannot be a name".to_owned(),
        Error::NotImplemented { .. } => "the store cannot do this".to_owned(),
        other => server_error(other),
    }
}

/// The error code in the server's response (S3 and GCS have one), otherwise the innermost cause.
fn server_error(error: &Error) -> String {
    let whole = error.to_string();
    let code = whole
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let server_error = match code {
        Some(("NoSuchBucket", _)) => return "there is no such bucket".to_owned(),
        Some((code, _)) => code.to_owned(),
        None => {
            let mut last: &dyn std::error::Error = error;
            while let Some(source) = last.source() {
                last = source;
            }
            if let Some(wrong_credentials) = last.downcast_ref::<InvalidCredentials>() {
                return wrong_credentials.to_string();
            }
            // The rest is the server's response document.
            let last = last.to_string();
            last.split('<')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        }
    };
    format!(
        "the store does not answer as it should: {}",
        names::shown(&server_error)
    )
}

/// Why an endpoint cannot be used.
fn endpoint_flaw(remote: &BucketConfig, endpoint: &str) -> Option<&'static str> {
    if endpoint.contains('@') {
        return Some("its address has credentials in it, which belong into their own settings");
    }
    let is_address = is_address(&format!("{endpoint}/{}", remote.bucket));
    match (remote.kind, endpoint.split_once("://")) {
        (_, Some(("https" | "http", _))) if !is_address => {
            Some("its address is none: it is written as https://HOST[:PORT]")
        }
        (_, Some(("https", _))) | (BucketKind::S3, Some(("http", _))) => None,
        (BucketKind::Gcs, Some(("http", rest))) if is_loopback(rest) => None,
        (BucketKind::Gcs, Some(("http", _))) => {
            Some("a token would go to its address in plain text")
        }
        _ => Some("its address begins with neither `https://` nor `http://`"),
    }
}

/// Parses the URL with both parsers that the client uses: it panics on a URL on which they
/// disagree.
fn is_address(whole: &str) -> bool {
    Url::parse(whole).is_ok_and(|url| url.has_host())
        && whole
            .parse::<Uri>()
            .is_ok_and(|uri| uri.authority().is_some())
        && whole
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"?#\\".contains(&byte))
}

/// Why a configuration cannot be used: the client panics on values that cannot be part of a URL or
/// header.
fn config_flaw(remote: &BucketConfig) -> Option<&'static str> {
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if !is_name(&remote.bucket) {
        return Some("its name has a letter that no bucket has");
    }
    if !is_name(&remote.region) {
        return Some("its region has a letter that no region has");
    }
    match &remote.credentials {
        BucketCredentials::Keys { key, secret, token } => {
            credentials::s3_keys_flaw(key, secret, token.as_deref())
        }
        BucketCredentials::WebIdentity { role, .. } => (role.len() > MAX_ROLE_BYTES)
            .then_some("its role has a name that is longer than any has"),
        BucketCredentials::Machine if remote.kind == BucketKind::Gcs => metadata_environment_flaw(),
        BucketCredentials::ServiceAccount(_)
        | BucketCredentials::File(_)
        | BucketCredentials::Machine => None,
    }
}

/// Checks the environment variables that the client itself reads for Google's metadata service: it
/// builds a URL from them unchecked.
fn metadata_environment_flaw() -> Option<&'static str> {
    let names = ["GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"];
    let mut hosts = names.iter().filter_map(|name| std::env::var(name).ok());
    let are_hosts = hosts.all(|host| is_address(&format!("http://{host}/")));
    (!are_hosts).then_some("GCE_METADATA_HOST, _ROOT or _IP is no address of a metadata service")
}

fn is_loopback(rest: &str) -> bool {
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    matches!(host, "127.0.0.1" | "localhost" | "[::1]")
}

fn client(remote: &BucketConfig) -> ClientOptions {
    let plain = remote
        .endpoint
        .as_deref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    ClientOptions::new().with_allow_http(plain)
}

/// Reports an unreachable server within seconds.
fn retry_config() -> RetryConfig {
    RetryConfig {
        max_retries: 3,
        retry_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    }
}

fn wrong_credentials() -> Error {
    unusable("credentials of another kind".to_owned())
}

pub(super) fn s3(remote: &BucketConfig) -> object_store::Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&remote.bucket)
        .with_region(&remote.region)
        .with_client_options(client(remote))
        .with_retry(retry_config());
    match &remote.credentials {
        BucketCredentials::Keys { key, secret, token } => {
            builder = builder
                .with_access_key_id(key)
                .with_secret_access_key(secret);
            if let Some(token) = token {
                builder = builder.with_token(token);
            }
        }
        BucketCredentials::WebIdentity { role, token_file } => {
            builder = builder.with_config(AmazonS3ConfigKey::RoleArn, role);
            builder = builder.with_config(AmazonS3ConfigKey::WebIdentityTokenFile, token_file);
        }
        BucketCredentials::Machine => {}
        BucketCredentials::ServiceAccount(_) | BucketCredentials::File(_) => {
            return Err(wrong_credentials());
        }
    }
    if let Some(endpoint) = &remote.endpoint {
        let plain = endpoint.starts_with("http://");
        builder = builder
            .with_endpoint(endpoint.trim_end_matches('/'))
            .with_allow_http(plain);
    }
    Ok(builder)
}

/// Takes the provider that the client found and puts a validating one in front of it.
pub(super) fn open_s3(builder: AmazonS3Builder) -> object_store::Result<BucketClient> {
    let finds = builder
        .clone()
        .with_http_connector(BoundedConnector::Credentials)
        .build()?;
    let from = finds.credentials().clone();
    let flaw = credentials::aws_credential_flaw;
    let file = builder.get_config_value(&AmazonS3ConfigKey::WebIdentityTokenFile);
    let builder = builder.with_credentials(Arc::new(ValidatingProvider { from, flaw, file }));
    Ok(BucketClient {
        kind: BucketKind::S3,
        inner: Arc::new(
            builder
                .with_http_connector(BoundedConnector::Bucket)
                .build()?,
        ),
    })
}

fn gcs(remote: &BucketConfig) -> object_store::Result<BucketClient> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&remote.bucket)
        .with_base_url(
            remote
                .endpoint
                .as_deref()
                .unwrap_or(GCS_URL)
                .trim_end_matches('/'),
        )
        .with_client_options(client(remote))
        .with_retry(retry_config());
    builder = match &remote.credentials {
        BucketCredentials::ServiceAccount(json) => builder.with_service_account_key(json),
        BucketCredentials::File(path) => builder.with_application_credentials(path),
        BucketCredentials::Machine => builder,
        BucketCredentials::Keys { .. } | BucketCredentials::WebIdentity { .. } => {
            return Err(wrong_credentials());
        }
    };
    let finds = builder
        .clone()
        .with_http_connector(BoundedConnector::Credentials)
        .build()?;
    let from = finds.credentials().clone();
    let flaw = credentials::gcp_credential_flaw;
    let file = None;
    let builder = builder.with_credentials(Arc::new(ValidatingProvider { from, flaw, file }));
    Ok(BucketClient {
        kind: BucketKind::Gcs,
        inner: Arc::new(
            builder
                .with_http_connector(BoundedConnector::Bucket)
                .build()?,
        ),
    })
}

#[cfg(test)]
#[path = "bucket_client_tests.rs"]
mod tests;
