//! A FAKE of Google Cloud Storage: the few XML calls that `object_store` makes, in memory. No real server of it can be
//! had without the network; what this shows is our use of the calls, not Google's behaviour. Everything in it is old.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

/// A service account that needs no token.
pub(crate) const ACCOUNT: &str = "{\"gcs_base_url\": \"http://127.0.0.1:1\", \"disable_oauth\": true, \
    \"client_email\": \"\", \"private_key\": \"\", \"private_key_id\": \"\"}";
const BUCKET: &str = "/airlock";
const LONGEST: usize = 256 << 20;

#[derive(Debug, Default)]
struct BucketContents {
    objects: BTreeMap<String, Bytes>,
    uploads: BTreeMap<String, BTreeMap<u32, Bytes>>,
}

/// The fake, for as long as its runtime lives.
#[derive(Clone, Debug)]
pub struct Fake {
    held: Arc<Mutex<BucketContents>>,
    address: SocketAddr,
}

impl Fake {
    /// Starts one with an empty bucket.
    pub async fn start() -> Fake {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let held = Arc::new(Mutex::new(BucketContents::default()));
        let limit = axum::extract::DefaultBodyLimit::max(LONGEST);
        let router = Router::new()
            .fallback(answer)
            .layer(limit)
            .with_state(held.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Fake { held, address }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn replace(&self, prefix: &str, bytes: &[u8]) {
        let mut held = lock(&self.held);
        let mut found: Vec<_> = held
            .objects
            .iter_mut()
            .filter(|(key, _)| key.starts_with(prefix))
            .collect();
        assert_eq!(found.len(), 1, "one object");
        *found[0].1 = Bytes::copy_from_slice(bytes);
    }

    /// Puts an object there.
    pub fn plant(&self, key: &str, bytes: &[u8]) {
        lock(&self.held)
            .objects
            .insert(key.to_owned(), Bytes::copy_from_slice(bytes));
    }

    /// What is there.
    pub fn keys(&self) -> Vec<String> {
        lock(&self.held).objects.keys().cloned().collect()
    }
}

fn lock(held: &Mutex<BucketContents>) -> MutexGuard<'_, BucketContents> {
    held.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

async fn answer(
    State(held): State<Arc<Mutex<BucketContents>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(rest) = uri.path().strip_prefix(BUCKET) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let key = decoded(rest.trim_start_matches('/'));
    let asked: BTreeMap<String, String> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), decoded(&value.replace('+', " "))))
        .collect();
    let mut held = lock(&held);
    match (method.as_str(), asked.get("uploadId")) {
        ("GET", _) if key.is_empty() => list(&held, asked.get("prefix").map_or("", String::as_str)),
        ("GET" | "HEAD", _) => get(&held, &key, &headers, method == Method::HEAD),
        ("POST", None) => {
            let id = format!("upload-{}", held.uploads.len());
            held.uploads.insert(id.clone(), BTreeMap::new());
            xml(format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        ("POST", Some(id)) => {
            let parts = std::mem::take(held.uploads.get_mut(id).expect("an upload"));
            let whole: Vec<u8> = parts.into_values().flatten().collect();
            held.objects.insert(key, whole.into());
            xml(
                "<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>"
                    .to_owned(),
            )
        }
        ("PUT", Some(id)) => {
            let number = asked["partNumber"].parse().expect("a number");
            held.uploads
                .get_mut(id)
                .expect("an upload")
                .insert(number, body);
            ([("etag", "\"e\"")], "").into_response()
        }
        ("PUT", None) => {
            let absent = headers
                .get("x-goog-if-generation-match")
                .is_some_and(|value| value == "0");
            if absent && held.objects.contains_key(&key) {
                return StatusCode::PRECONDITION_FAILED.into_response();
            }
            held.objects.insert(key, body);
            ([("etag", "\"e\"")], "").into_response()
        }
        ("DELETE", Some(id)) => {
            held.uploads.remove(id);
            StatusCode::NO_CONTENT.into_response()
        }
        ("DELETE", None) => match held.objects.remove(&key) {
            Some(_) => StatusCode::NO_CONTENT.into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

fn list(held: &BucketContents, prefix: &str) -> Response {
    let found = held
        .objects
        .iter()
        .filter(|(key, _)| key.starts_with(prefix));
    let one = |(key, bytes): (&String, &Bytes)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2001-01-01T00:00:00.000Z</LastModified><ETag>\"e\"</ETag>\
             <Size>{}</Size></Contents>",
            bytes.len()
        )
    };
    xml(format!(
        "<ListBucketResult>{}</ListBucketResult>",
        found.map(one).collect::<String>()
    ))
}

fn get(held: &BucketContents, key: &str, headers: &HeaderMap, head: bool) -> Response {
    let Some(bytes) = held.objects.get(key) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let size = bytes.len();
    let range = headers
        .get("range")
        .and_then(|value| value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let whole = [
        ("etag", "\"e\""),
        ("last-modified", "Mon, 01 Jan 2001 00:00:00 GMT"),
    ];
    match range
        .and_then(|(from, to)| Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?)))
    {
        Some((from, to)) => {
            let to = to.min(size - 1);
            let part = [("content-range", format!("bytes {from}-{to}/{size}"))];
            (
                StatusCode::PARTIAL_CONTENT,
                whole,
                part,
                bytes.slice(from..=to),
            )
                .into_response()
        }
        None if head => (whole, [("content-length", size.to_string())]).into_response(),
        None => (whole, bytes.clone()).into_response(),
    }
}

fn xml(text: String) -> Response {
    ([("content-type", "application/xml")], text).into_response()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let pair =
                    [rest.next(), rest.next()].map(|digit| char::from(digit.expect("two digits")));
                bytes.push(u8::from_str_radix(&String::from_iter(pair), 16).expect("hexadecimal"));
            }
            plain => bytes.push(plain),
        }
    }
    String::from_utf8(bytes).expect("text")
}
