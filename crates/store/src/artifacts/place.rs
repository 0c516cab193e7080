//! Where artifacts are stored: a folder, memory, or a bucket with its credentials.

use super::{StoreError, bucket::Bucket, folder::Folder};
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
pub enum Place {
    /// A folder of this machine.
    Folder(PathBuf),
    /// The memory of this process.
    Memory,
    /// A bucket of S3 or a compatible service.
    S3(Remote),
    /// A bucket of Google Cloud Storage.
    Gcs(Remote),
}

/// A bucket and the access to it.
#[derive(Clone)]
pub struct Remote {
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
impl fmt::Debug for Remote {
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
pub(crate) enum Shelf {
    Folder(Folder),
    Bucket(Bucket),
}

impl Shelf {
    pub(crate) fn open(place: Place) -> Result<Shelf, StoreError> {
        let bucket = match place {
            Place::Folder(folder) => {
                let opened = Folder::open(&folder)
                    .map_err(|source| StoreError::Folder { folder, source })?;
                return Ok(Shelf::Folder(opened));
            }
            Place::Memory => Bucket::new(Arc::new(InMemory::new()), "")
                .map_err(|error| ("memory".to_owned(), error)),
            Place::S3(remote) => of_remote(&remote, s3(&remote)),
            Place::Gcs(remote) => of_remote(&remote, gcs(&remote)),
        };
        bucket
            .map(Shelf::Bucket)
            .map_err(|(bucket, source)| StoreError::Bucket { bucket, source })
    }
}

fn of_remote(
    remote: &Remote,
    store: object_store::Result<Arc<dyn ObjectStore>>,
) -> Result<Bucket, (String, io::Error)> {
    let bucket = store
        .map_err(io::Error::from)
        .and_then(|store| Bucket::new(store, &remote.prefix));
    bucket.map_err(|error| (remote.bucket.clone(), error))
}

/// Creates HTTP clients that follow no redirects: a hostile server could redirect to an internal
/// service, whose response would be stored as an artifact.
#[derive(Debug)]
struct Stays;

impl HttpConnector for Stays {
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
        let unfit = |error: reqwest::Error| Error::Generic {
            store: "bucket",
            source: error.into(),
        };
        client
            .map(|client| HttpClient::new(Reads(client)))
            .map_err(unfit)
    }
}

/// A page of a listing has a thousand keys of at most 1024 characters, with their metadata.
const LONGEST_WORD: usize = 16 << 20;
/// No key, upload id or other element of a response is longer.
const LONGEST_PIECE: usize = 8 << 10;

/// Checks responses before `object_store` parses them. All but object contents are bounded,
/// whatever length is announced, for which the client would allocate memory. The client also panics
/// if a continuation token or upload id is too long for a URL.
#[derive(Debug)]
struct Reads(reqwest::Client);

impl HttpService for Reads {
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
        unfit(format!(
            "a response has more than {LONGEST_WORD} bytes, or ends early"
        ))
    };
    HttpResponseBody::new(Limited::new(body, LONGEST_WORD).map_err(too_long))
}

async fn read(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let text = body.collect().await?.to_bytes();
    match has_short_pieces(&text) {
        true => Ok(text.into()),
        false => Err(unfit(format!(
            "a response has an element of more than {LONGEST_PIECE} bytes, or comments"
        ))),
    }
}

fn unfit(why: String) -> HttpError {
    HttpError::new(HttpErrorKind::Decode, io::Error::other(why))
}

/// Comments and CDATA could hide a long element, and no such response contains them; `<?` occurs
/// only at its start.
fn has_short_pieces(page: &[u8]) -> bool {
    let mut pieces = page.split(|byte| *byte == b'<');
    pieces.all(|piece| piece.len() <= LONGEST_PIECE && !piece.starts_with(b"!"))
        && page.windows(2).filter(|two| two == b"<?").count() <= 1
}

fn client(remote: &Remote) -> ClientOptions {
    ClientOptions::new().with_allow_http(remote.allow_http)
}

/// An unreachable server is reported within seconds.
fn patience() -> RetryConfig {
    RetryConfig {
        max_retries: 4,
        retry_timeout: Duration::from_secs(30),
        ..RetryConfig::default()
    }
}

fn s3(remote: &Remote) -> object_store::Result<Arc<dyn ObjectStore>> {
    // The client panics on a value that is invalid in a header, or in a URL, which contains the
    // region.
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if !is_word(&remote.key) || !is_name(&remote.region) {
        let source = "its access key id or region has an invalid character".into();
        return Err(Error::Generic {
            store: "bucket",
            source,
        });
    }
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&remote.bucket)
        .with_region(&remote.region)
        .with_access_key_id(&remote.key)
        .with_secret_access_key(&remote.secret)
        .with_client_options(client(remote))
        .with_http_connector(Stays)
        .with_retry(patience())
        // We delete objects one by one; the client panics if a bulk response names other keys.
        .with_disable_bulk_delete(true)
        .with_allow_http(remote.allow_http);
    if let Some(endpoint) = &remote.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(Arc::new(builder.build()?))
}

fn gcs(remote: &Remote) -> object_store::Result<Arc<dyn ObjectStore>> {
    // Always set, so that the service account's own URL cannot redirect the client.
    let endpoint = remote
        .endpoint
        .as_deref()
        .unwrap_or("https://storage.googleapis.com");
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&remote.bucket)
        .with_base_url(endpoint)
        .with_service_account_key(&remote.key)
        .with_client_options(client(remote))
        .with_http_connector(Stays)
        .with_retry(patience());
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

    fn remote(endpoint: String) -> Remote {
        Remote {
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
        s3(&remote(endpoint))
            .unwrap()
            .get(&Path::from("a"))
            .await?
            .bytes()
            .await
    }

    #[test]
    fn what_cannot_be_in_a_header_is_refused_at_the_start() {
        let good = || remote("http://127.0.0.1:1".to_owned());
        assert!(s3(&good()).is_ok(), "the control");
        assert!(
            s3(&Remote {
                key: "a\nb".to_owned(),
                ..good()
            })
            .is_err()
        );
        for region in ["a\nb", "a<b", "a/b"] {
            assert!(
                s3(&Remote {
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
            let store = s3(&remote(server(answer(&page)).0)).unwrap();
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
            let client = Stays
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
            let store = s3(&remote(server(answer(&named)).0)).unwrap();
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
        let store = s3(&remote(server(answer(others)).0)).unwrap();
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
