//! Where artifacts are: a folder, memory, or a bucket with its credentials.
//!
//! A new kind is also read in `app/src/config/artifacts.rs` and tested in `tests/server/artifacts`.

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
        write!(
            f,
            "Remote {{ bucket: {:?}, prefix: {:?}, .. }}",
            self.bucket, self.prefix
        )
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

/// Makes clients that go where they are sent by us, and nowhere a server sends them: what answers there, in a network of ours,
/// would come out as an artifact.
#[derive(Debug)]
struct Stays;

impl HttpConnector for Stays {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Another part of the program may have been first.
        _ = rustls::crypto::ring::default_provider().install_default();
        let plain = options
            .get_config_value(&ClientConfigKey::AllowHttp)
            .as_deref()
            == Some("true");
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(!plain)
            .connect_timeout(Duration::from_secs(10))
            // The whole answer must come within this; parts are small.
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

/// A page of a listing has a thousand keys of at most a thousand letters, and what is known of them.
const LONGEST_WORD: usize = 16 << 20;
/// No key, no name of an upload, and nothing else in an answer is longer.
const LONGEST_PIECE: usize = 8 << 10;

/// Reads answers before the client does. What is no object is bounded, whatever length it is said to have, for which the client
/// would make room. And it asks for the next page, and for the next part of an upload, by what the last answer says, and panics
/// if that is too long for an address.
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
            "an answer has more than {LONGEST_WORD} bytes, or stops in the middle"
        ))
    };
    HttpResponseBody::new(Limited::new(body, LONGEST_WORD).map_err(too_long))
}

async fn read(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let text = body.collect().await?.to_bytes();
    match has_short_pieces(&text) {
        true => Ok(text.into()),
        false => Err(unfit(format!(
            "an answer has a piece of more than {LONGEST_PIECE} bytes, or remarks"
        ))),
    }
}

fn unfit(why: String) -> HttpError {
    HttpError::new(HttpErrorKind::Decode, io::Error::other(why))
}

/// What may be in the middle of a text, and would have it look shorter, is not in such an answer; `<?` only begins one.
fn has_short_pieces(page: &[u8]) -> bool {
    let mut pieces = page.split(|byte| *byte == b'<');
    pieces.all(|piece| piece.len() <= LONGEST_PIECE && !piece.starts_with(b"!"))
        && page.windows(2).filter(|two| two == b"<?").count() <= 1
}

fn client(remote: &Remote) -> ClientOptions {
    ClientOptions::new().with_allow_http(remote.allow_http)
}

/// A server that is away is said to be so within seconds.
fn patience() -> RetryConfig {
    RetryConfig {
        max_retries: 4,
        retry_timeout: Duration::from_secs(30),
        ..RetryConfig::default()
    }
}

fn s3(remote: &Remote) -> object_store::Result<Arc<dyn ObjectStore>> {
    // What cannot be in a header, the client panics over; and over what cannot be in an address, which the region is a part of.
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if !is_word(&remote.key) || !is_name(&remote.region) {
        let source = "the name of its access key, or its region, has a letter that none has".into();
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
        // We take away one by one; and over an answer about others than were named, the client panics.
        .with_disable_bulk_delete(true)
        .with_allow_http(remote.allow_http);
    if let Some(endpoint) = &remote.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(Arc::new(builder.build()?))
}

fn gcs(remote: &Remote) -> object_store::Result<Arc<dyn ObjectStore>> {
    // Always said: so a service account says nothing of where its tokens go.
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

    /// Gives one answer to everybody; tells where, and how many came.
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
                format!("{why:?}").contains("an answer has a piece"),
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
        assert!(why.contains("stops in the middle"), "{why}");
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
        assert!(why.contains("an answer has a piece"), "{why}");
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
