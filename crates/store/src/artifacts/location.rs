//! Where artifacts are stored: a folder, memory, or a bucket with its credentials.

use super::{ArtifactError, bucket::BucketBackend, folder::FolderBackend};
use http_body_util::{BodyExt, Limited};
use object_store::{
    ClientConfigKey, ClientOptions, Error, ObjectStore, RetryConfig,
    aws::AmazonS3Builder,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
    gcp::GoogleCloudStorageBuilder,
    memory::InMemory,
};
use std::{fmt, io, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

/// Location of the artifact store.
#[derive(Clone, Debug)]
pub enum StorageLocation {
    /// A folder of this machine.
    Folder(PathBuf),
    /// The memory of this process.
    Memory,
    /// A bucket of S3 or a compatible service.
    S3(ObjectStoreConfig),
    /// A bucket of Google Cloud Storage.
    Gcs(ObjectStoreConfig),
}

/// A bucket and the access to it.
#[derive(Clone)]
pub struct ObjectStoreConfig {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of all keys; may be empty.
    pub prefix: String,
    /// Address of the server, if not the provider's own.
    pub endpoint: Option<String>,
    /// Region of S3.
    pub region: String,
    /// Whether plain HTTP is allowed.
    pub allow_http: bool,
    /// S3: access key id. GCS: service account as JSON.
    pub key: String,
    /// S3: secret access key.
    pub secret: String,
}

/// Leaves the credentials out.
impl fmt::Debug for ObjectStoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Remote {{ bucket: {:?}, prefix: {:?}, .. }}",
            self.bucket, self.prefix
        )
    }
}

/// The storage backend of artifacts.
#[derive(Clone, Debug)]
pub(crate) enum StorageBackend {
    Folder(FolderBackend),
    Bucket(BucketBackend),
}

impl StorageBackend {
    pub(crate) fn open(location: StorageLocation) -> Result<StorageBackend, ArtifactError> {
        let bucket = match location {
            StorageLocation::Folder(folder) => {
                let opened = FolderBackend::open(&folder)
                    .map_err(|source| ArtifactError::Folder { folder, source })?;
                return Ok(StorageBackend::Folder(opened));
            }
            StorageLocation::Memory => BucketBackend::new(Arc::new(InMemory::new()), "")
                .map_err(|error| ("memory".to_owned(), error)),
            StorageLocation::S3(config) => open_bucket(&config, s3(&config)),
            StorageLocation::Gcs(config) => open_bucket(&config, gcs(&config)),
        };
        bucket
            .map(StorageBackend::Bucket)
            .map_err(|(bucket, source)| ArtifactError::Bucket { bucket, source })
    }
}

fn open_bucket(
    config: &ObjectStoreConfig,
    store: object_store::Result<Arc<dyn ObjectStore>>,
) -> Result<BucketBackend, (String, io::Error)> {
    let bucket = store
        .map_err(io::Error::from)
        .and_then(|store| BucketBackend::new(store, &config.prefix));
    bucket.map_err(|error| (config.bucket.clone(), error))
}

/// Creates HTTP clients that follow no redirects: a hostile server could redirect to an internal
/// service, whose response would be stored as an artifact.
#[derive(Debug)]
struct NoRedirectConnector;

impl HttpConnector for NoRedirectConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Another part of the program may have installed it first.
        _ = rustls::crypto::ring::default_provider().install_default();
        let plain = options
            .get_config_value(&ClientConfigKey::AllowHttp)
            .as_deref()
            == Some("true");
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(!plain)
            .connect_timeout(Duration::from_secs(10))
            // Deadline for the whole response; parts are small.
            .timeout(Duration::from_secs(120))
            .user_agent("airlock")
            .build();
        let rejected = |error: reqwest::Error| Error::Generic {
            store: "bucket",
            source: error.into(),
        };
        client
            .map(|client| HttpClient::new(BoundedClient(client)))
            .map_err(rejected)
    }
}

/// A page of a listing has a thousand keys of at most 1024 characters, with their metadata.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// No key, upload id or other element of a response is longer.
const MAX_ELEMENT_BYTES: usize = 8 << 10;

/// Checks responses before `object_store` parses them. All but object contents are bounded,
/// whatever length is announced, for which the client would allocate memory. The client also panics
/// if a continuation token or upload id is too long for a URL.
#[derive(Debug)]
struct BoundedClient(reqwest::Client);

impl HttpService for BoundedClient {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let asks = |what| {
                request
                    .uri()
                    .query()
                    .is_some_and(|query| query.contains(what))
            };
            let is_object = request.method() == "GET" && !asks("list-type=");
            let is_asked_with = asks("list-type=") || asks("uploads");
            let answer = self.0.call(request).await?;
            if is_object && answer.status().is_success() {
                return Ok(answer);
            }
            let (head, body) = answer.map(bounded).into_parts();
            let body = if is_asked_with {
                read(body).await?
            } else {
                body
            };
            Ok(HttpResponse::from_parts(head, body))
        })
    }
}

fn bounded(body: HttpResponseBody) -> HttpResponseBody {
    let too_long = |_| {
        rejected(format!(
            "a response has more than {MAX_RESPONSE_BYTES} bytes, or ends early"
        ))
    };
    HttpResponseBody::new(Limited::new(body, MAX_RESPONSE_BYTES).map_err(too_long))
}

async fn read(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let text = body.collect().await?.to_bytes();
    if has_short_elements(&text) {
        Ok(text.into())
    } else {
        Err(rejected(format!(
            "a response has an element of more than {MAX_ELEMENT_BYTES} bytes, or comments"
        )))
    }
}

fn rejected(why: String) -> HttpError {
    HttpError::new(HttpErrorKind::Decode, io::Error::other(why))
}

/// Comments and CDATA could hide a long element, and no such response contains them; `<?` occurs
/// only at its start.
fn has_short_elements(page: &[u8]) -> bool {
    let mut chunks = page.split(|byte| *byte == b'<');
    chunks.all(|piece| piece.len() <= MAX_ELEMENT_BYTES && !piece.starts_with(b"!"))
        && page.windows(2).filter(|two| two == b"<?").count() <= 1
}

fn client(config: &ObjectStoreConfig) -> ClientOptions {
    ClientOptions::new().with_allow_http(config.allow_http)
}

/// An unreachable server is reported within seconds.
fn retry_config() -> RetryConfig {
    RetryConfig {
        max_retries: 4,
        retry_timeout: Duration::from_secs(30),
        ..RetryConfig::default()
    }
}

fn s3(config: &ObjectStoreConfig) -> object_store::Result<Arc<dyn ObjectStore>> {
    // The client panics on a value that is invalid in a header, or in a URL, which contains the
    // region.
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if !is_word(&config.key) || !is_name(&config.region) {
        let source = "its access key id or region has an invalid character".into();
        return Err(Error::Generic {
            store: "bucket",
            source,
        });
    }
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&config.bucket)
        .with_region(&config.region)
        .with_access_key_id(&config.key)
        .with_secret_access_key(&config.secret)
        .with_client_options(client(config))
        .with_http_connector(NoRedirectConnector)
        .with_retry(retry_config())
        // We delete objects one by one; the client panics if a bulk response names other keys.
        .with_disable_bulk_delete(true)
        .with_allow_http(config.allow_http);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(Arc::new(builder.build()?))
}

fn gcs(config: &ObjectStoreConfig) -> object_store::Result<Arc<dyn ObjectStore>> {
    // Always set, so that the service account's own URL cannot redirect the client.
    let endpoint = config
        .endpoint
        .as_deref()
        .unwrap_or("https://storage.googleapis.com");
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&config.bucket)
        .with_base_url(endpoint)
        .with_service_account_key(&config.key)
        .with_client_options(client(config))
        .with_http_connector(NoRedirectConnector)
        .with_retry(retry_config());
    Ok(Arc::new(builder.build()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::{ObjectStoreExt, path::Path};
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
        sync::atomic::{AtomicUsize, Ordering},
    };

    /// Gives one response to every request; returns its address and the number of requests.
    fn server(answer: String) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let count = Arc::new(AtomicUsize::new(0));
        let came = count.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                came.fetch_add(1, Ordering::SeqCst);
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                lines.map_while(Result::ok).find(String::is_empty).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (address, count)
    }

    fn config(endpoint: String) -> ObjectStoreConfig {
        ObjectStoreConfig {
            bucket: "bucket".to_owned(),
            prefix: String::new(),
            endpoint: Some(endpoint),
            region: "us-east-1".to_owned(),
            allow_http: true,
            key: "k".to_owned(),
            secret: "s".to_owned(),
        }
    }

    async fn fetched(endpoint: String) -> object_store::Result<bytes::Bytes> {
        s3(&config(endpoint))
            .unwrap()
            .get(&Path::from("a"))
            .await?
            .bytes()
            .await
    }

    #[test]
    fn what_cannot_be_in_a_header_is_refused_at_the_start() {
        let good = || config("http://127.0.0.1:1".to_owned());
        assert!(s3(&good()).is_ok(), "the control");
        assert!(
            s3(&ObjectStoreConfig {
                key: "a\nb".to_owned(),
                ..good()
            })
            .is_err()
        );
        for region in ["a\nb", "a<b", "a/b"] {
            assert!(
                s3(&ObjectStoreConfig {
                    region: region.to_owned(),
                    ..good()
                })
                .is_err(),
                "{region}"
            );
        }
    }

    fn answer(body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    #[tokio::test]
    async fn what_a_server_has_us_ask_for_does_not_end_us() {
        let listed = async |next: &str| {
            let page = format!("<ListBucketResult>{next}</ListBucketResult>");
            let store = s3(&config(server(answer(&page)).0)).unwrap();
            let mut all = store.list(None);
            std::future::poll_fn(|context| all.as_mut().poll_next(context))
                .await
                .transpose()
        };
        assert!(
            listed("<Name>bucket</Name>").await.unwrap().is_none(),
            "the control"
        );
        let long = "x".repeat(70_000);
        for next in [
            long.clone(),
            format!("<![CDATA[{}]]>", long.replace("xxxx", "x<x>")),
        ] {
            let next = format!("<NextContinuationToken>{next}</NextContinuationToken>");
            let why = listed(&next).await.unwrap_err();
            assert!(
                format!("{why:?}").contains("a response has an element"),
                "{why:?}"
            );
        }
    }

    #[tokio::test]
    async fn no_room_is_made_for_what_a_server_only_says() {
        let page = format!(
            "<ListBucketResult>{}</ListBucketResult>",
            "<Name>bucket</Name>".repeat(50_000)
        );
        let listed = async |length: &str| {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{page}"
            );
            let client = NoRedirectConnector
                .connect(&ClientOptions::new().with_allow_http(true))
                .unwrap();
            let mut request = HttpRequest::new(String::new().into());
            *request.uri_mut() = format!("{}/bucket?list-type=2", server(answer).0)
                .parse()
                .unwrap();
            client
                .execute(request)
                .await
                .map(drop)
                .map_err(|error| format!("{error:?}"))
        };
        assert_eq!(listed(&page.len().to_string()).await, Ok(()), "the control");
        let why = listed("18000000000000000000").await.unwrap_err();
        assert!(why.contains("ends early"), "{why}");
    }

    #[tokio::test]
    async fn an_upload_of_an_endless_name_is_not_begun() {
        let begun = async |id: &str| {
            let named = format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            );
            let store = s3(&config(server(answer(&named)).0)).unwrap();
            store
                .put_multipart(&Path::from("a"))
                .await
                .map(drop)
                .map_err(|error| format!("{error:?}"))
        };
        assert_eq!(begun("one").await, Ok(()), "the control");
        let why = begun(&"x".repeat(70_000)).await.unwrap_err();
        assert!(why.contains("a response has an element"), "{why}");
    }

    #[tokio::test]
    async fn an_answer_about_what_was_not_to_go_does_not_end_us() {
        let others = "<DeleteResult><Error><Key>b</Key><Code>No</Code><Message>no</Message></Error></DeleteResult>";
        let store = s3(&config(server(answer(others)).0)).unwrap();
        store.delete(&Path::from("a")).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_cannot_send_us_elsewhere() {
        let rest = "etag: e\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nconnection: close";
        let inside = format!("HTTP/1.1 200 OK\r\n{rest}\r\ncontent-length: 6\r\n\r\ninside");
        let (inside, came) = server(inside);
        let moved = format!(
            "HTTP/1.1 302 Found\r\n{rest}\r\nlocation: {inside}/bucket/a\r\ncontent-length: 0\r\n\r\n"
        );
        let why = fetched(server(moved).0).await.unwrap_err().to_string();
        assert!(why.contains("302"), "{why}");
        assert_eq!(came.load(Ordering::SeqCst), 0, "nobody went there");
        assert_eq!(fetched(inside).await.unwrap(), "inside", "the control");
    }
}
