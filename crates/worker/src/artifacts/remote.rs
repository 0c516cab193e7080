//! A bucket of S3 or GCS: how it is reached, and keys that arrive there exactly as they are written here. A key is never made
//! from parts by `object_store`, which would write some characters in another way.

use super::{
    ShelfError,
    found::{self, Checked, Unfit},
    line::Line,
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

/// A server that is there but says nothing is given up after this.
pub(crate) const ANSWER: Duration = Duration::from_secs(20);

/// No name of a role is longer.
const LONGEST_ROLE: usize = 2048;
/// Google's own address. Said each time: so a credentials file says nothing of where they go.
const GOOGLE: &str = "https://storage.googleapis.com";

/// A bucket and how it is reached.
#[derive(Clone)]
pub struct Remote {
    /// Who has it.
    pub kind: Kind,
    /// What it is called.
    pub bucket: String,
    /// The region of S3.
    pub region: String,
    /// The address of the server, where it is not the provider's own.
    pub endpoint: Option<String>,
    /// What opens it.
    pub credentials: Credentials,
}

/// Who has a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Amazon, or whoever speaks like it.
    S3,
    /// Google.
    Gcs,
}

impl Kind {
    /// By the words of `ARTIFACT_SERVICE_TYPE` and `OBJECT_STORAGE_TYPE`.
    pub fn named(name: &str) -> Result<Kind, ShelfError> {
        match name {
            "s3" => Ok(Kind::S3),
            "gcs" => Ok(Kind::Gcs),
            "azure" => Err(ShelfError(
                "object storage of Azure is not spoken to here: use `s3` or `gcs`".to_owned(),
            )),
            other => Err(ShelfError(format!(
                "object storage of the kind {} is not known: use `s3` or `gcs`",
                names::shown(other)
            ))),
        }
    }
}

/// What opens a bucket.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Credentials {
    /// Keys of S3.
    Keys {
        key: String,
        secret: String,
        token: Option<String>,
    },
    /// A role of S3, for a token that the platform writes into a file.
    WebIdentity { role: String, token_file: String },
    /// A service account of GCS: its JSON.
    ServiceAccount(String),
    /// The path of a file with Google's application credentials.
    File(String),
    /// What the machine itself has, by its metadata service.
    Machine,
}

/// Without what would open the bucket.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Remote {
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

/// Without the secrets.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credentials::Keys { .. } => "Keys(..)",
            Credentials::WebIdentity { .. } => "WebIdentity(..)",
            Credentials::ServiceAccount(_) => "ServiceAccount(..)",
            Credentials::File(_) => "File(..)",
            Credentials::Machine => "Machine",
        })
    }
}

/// An opened bucket.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) kind: Kind,
    inner: Arc<dyn ObjectStore>,
}

/// Without whatever the client thinks of its settings.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.kind)
    }
}

impl Store {
    /// Checks what can be checked without asking the server.
    pub(crate) fn open(remote: &Remote) -> Result<Store, ShelfError> {
        let named = names::shown(&remote.bucket);
        let bad = |why: &str| {
            Err(ShelfError(format!(
                "the bucket {named} cannot be used: {why}"
            )))
        };
        if remote.bucket.is_empty() {
            return bad("it has no name");
        }
        if let Some(flaw) = remote
            .endpoint
            .as_deref()
            .and_then(|endpoint| flaw_of_address(remote, endpoint))
        {
            return bad(flaw);
        }
        if let Some(flaw) = flaw_of_words(remote) {
            return bad(flaw);
        }
        let built = match remote.kind {
            Kind::S3 => s3(remote).and_then(s3_of),
            Kind::Gcs => gcs(remote),
        };
        match built {
            Ok(store) => Ok(store),
            // What the client says may quote what it was given.
            Err(_) => bad(
                "its settings do not fit together, or its credentials are not of the kind that it takes",
            ),
        }
    }

    /// Any other store, in the manner of S3.
    #[cfg(test)]
    pub(crate) fn of(inner: Arc<dyn ObjectStore>) -> Store {
        Store {
            kind: Kind::S3,
            inner,
        }
    }

    pub(crate) async fn get(
        &self,
        key: &str,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        let key = Path::parse(key)?;
        within(ANSWER, self.inner.get_opts(&key, options)).await
    }

    pub(crate) async fn put(
        &self,
        key: &str,
        payload: PutPayload,
        how: PutOptions,
    ) -> object_store::Result<()> {
        let (key, patience) = (Path::parse(key)?, carrying(payload.content_length() as u64));
        within(patience, self.inner.put_opts(&key, payload, how))
            .await
            .map(drop)
    }

    /// Calls `each` with what is under `below/`, by its rest of the key, until it says that it is enough. Whatever the server
    /// lists, it is at most `most` objects, and all of them within `patience`. Keys that cannot be paths have an `ODD` in them.
    pub(crate) async fn list(
        &self,
        below: &str,
        most: usize,
        patience: Duration,
        each: &mut (dyn FnMut(&str, &ObjectMeta) -> bool + Send),
    ) -> object_store::Result<()> {
        let mut all = self.inner.list(Some(&Path::parse(below)?));
        let mut count = 0;
        within(patience, async {
            while let Some(found) =
                std::future::poll_fn(|context| all.as_mut().poll_next(context)).await
            {
                let meta = found?;
                count += 1;
                if count > most {
                    return Err(unusable(format!("it lists more than {most} objects")));
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

/// How long so many bytes may be on their way: also on a slow line.
pub(crate) fn carrying(bytes: u64) -> Duration {
    // At the least 64 KiB a second.
    ANSWER + Duration::from_secs(bytes >> 16)
}

/// The next of something that comes in pieces. Who is slow is waited for, but not who stops.
pub(crate) async fn in_motion<T>(
    next: impl Future<Output = Option<object_store::Result<T>>>,
) -> object_store::Result<Option<T>> {
    within(ANSWER, async { next.await.transpose() }).await
}

/// What comes in time.
async fn within<T>(
    patience: Duration,
    work: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let late = |_| {
        Err(unusable(format!(
            "it is not done within {} seconds",
            patience.as_secs()
        )))
    };
    tokio::time::timeout(patience, work)
        .await
        .unwrap_or_else(late)
}

fn unusable(why: String) -> Error {
    Error::Generic {
        store: "bucket",
        source: why.into(),
    }
}

/// What went wrong, in a few words: without addresses, keys and whatever else a client may say.
pub(crate) fn cause(error: &Error) -> String {
    match error {
        Error::NotFound { .. } => "it is not there, or the bucket is not".to_owned(),
        Error::PermissionDenied { .. } => {
            "the store does not let us: its credentials lack the right".to_owned()
        }
        Error::Unauthenticated { .. } => "the store does not know our credentials".to_owned(),
        Error::InvalidPath { .. } => "a key in the bucket cannot be a name".to_owned(),
        Error::NotImplemented { .. } => "the store cannot do this".to_owned(),
        other => said(other),
    }
}

/// What a server answered: the word for it that S3 and GCS have, else the innermost reason.
fn said(error: &Error) -> String {
    let whole = error.to_string();
    let code = whole
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let said = match code {
        Some(("NoSuchBucket", _)) => return "there is no such bucket".to_owned(),
        Some((code, _)) => code.to_owned(),
        None => {
            let mut last: &dyn std::error::Error = error;
            while let Some(source) = last.source() {
                last = source;
            }
            if let Some(unfit) = last.downcast_ref::<Unfit>() {
                return unfit.to_string();
            }
            // What follows is the server's own document.
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
        names::shown(&said)
    )
}

/// Why an address cannot be used.
fn flaw_of_address(remote: &Remote, endpoint: &str) -> Option<&'static str> {
    if endpoint.contains('@') {
        return Some("its address has credentials in it, which belong into their own settings");
    }
    let is_address = is_address(&format!("{endpoint}/{}", remote.bucket));
    match (remote.kind, endpoint.split_once("://")) {
        (_, Some(("https" | "http", _))) if !is_address => {
            Some("its address is none: it is written as https://HOST[:PORT]")
        }
        (_, Some(("https", _))) | (Kind::S3, Some(("http", _))) => None,
        (Kind::Gcs, Some(("http", rest))) if is_loopback(rest) => None,
        (Kind::Gcs, Some(("http", _))) => Some("a token would go to its address in plain text"),
        _ => Some("its address begins with neither `https://` nor `http://`"),
    }
}

/// As the client reads it, twice: it does not survive one of which it thinks differently.
fn is_address(whole: &str) -> bool {
    Url::parse(whole).is_ok_and(|url| url.has_host())
        && whole
            .parse::<Uri>()
            .is_ok_and(|uri| uri.authority().is_some())
        && whole
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"?#\\".contains(&byte))
}

/// Why it cannot be asked for anything: the client does not survive what cannot be part of an address or of a header.
fn flaw_of_words(remote: &Remote) -> Option<&'static str> {
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
        Credentials::Keys { key, secret, token } => {
            found::flaw_of_keys(key, secret, token.as_deref())
        }
        Credentials::WebIdentity { role, .. } => {
            (role.len() > LONGEST_ROLE).then_some("its role has a name that is longer than any has")
        }
        Credentials::Machine if remote.kind == Kind::Gcs => flaw_of_surroundings(),
        Credentials::ServiceAccount(_) | Credentials::File(_) | Credentials::Machine => None,
    }
}

/// Where the client itself looks for Google's metadata service. It makes an address of that, unlooked at.
fn flaw_of_surroundings() -> Option<&'static str> {
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

fn client(remote: &Remote) -> ClientOptions {
    let plain = remote
        .endpoint
        .as_deref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    ClientOptions::new().with_allow_http(plain)
}

/// A server that is away is said to be so within seconds.
fn patience() -> RetryConfig {
    RetryConfig {
        max_retries: 3,
        retry_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    }
}

fn unfit() -> Error {
    unusable("credentials of another kind".to_owned())
}

pub(super) fn s3(remote: &Remote) -> object_store::Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&remote.bucket)
        .with_region(&remote.region)
        .with_client_options(client(remote))
        .with_retry(patience());
    match &remote.credentials {
        Credentials::Keys { key, secret, token } => {
            builder = builder
                .with_access_key_id(key)
                .with_secret_access_key(secret);
            if let Some(token) = token {
                builder = builder.with_token(token);
            }
        }
        Credentials::WebIdentity { role, token_file } => {
            builder = builder.with_config(AmazonS3ConfigKey::RoleArn, role);
            builder = builder.with_config(AmazonS3ConfigKey::WebIdentityTokenFile, token_file);
        }
        Credentials::Machine => {}
        Credentials::ServiceAccount(_) | Credentials::File(_) => return Err(unfit()),
    }
    if let Some(endpoint) = &remote.endpoint {
        let plain = endpoint.starts_with("http://");
        builder = builder
            .with_endpoint(endpoint.trim_end_matches('/'))
            .with_allow_http(plain);
    }
    Ok(builder)
}

/// What the client finds its credentials with, it is given back with a guard before it.
pub(super) fn s3_of(builder: AmazonS3Builder) -> object_store::Result<Store> {
    let finds = builder
        .clone()
        .with_http_connector(Line::Credentials)
        .build()?;
    let (from, flaw) = (finds.credentials().clone(), found::flaw_of_aws);
    let file = builder.get_config_value(&AmazonS3ConfigKey::WebIdentityTokenFile);
    let builder = builder.with_credentials(Arc::new(Checked { from, flaw, file }));
    Ok(Store {
        kind: Kind::S3,
        inner: Arc::new(builder.with_http_connector(Line::Bucket).build()?),
    })
}

fn gcs(remote: &Remote) -> object_store::Result<Store> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&remote.bucket)
        .with_base_url(
            remote
                .endpoint
                .as_deref()
                .unwrap_or(GOOGLE)
                .trim_end_matches('/'),
        )
        .with_client_options(client(remote))
        .with_retry(patience());
    builder = match &remote.credentials {
        Credentials::ServiceAccount(json) => builder.with_service_account_key(json),
        Credentials::File(path) => builder.with_application_credentials(path),
        Credentials::Machine => builder,
        Credentials::Keys { .. } | Credentials::WebIdentity { .. } => return Err(unfit()),
    };
    let finds = builder
        .clone()
        .with_http_connector(Line::Credentials)
        .build()?;
    let (from, flaw, file) = (finds.credentials().clone(), found::flaw_of_google, None);
    let builder = builder.with_credentials(Arc::new(Checked { from, flaw, file }));
    Ok(Store {
        kind: Kind::Gcs,
        inner: Arc::new(builder.with_http_connector(Line::Bucket).build()?),
    })
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
