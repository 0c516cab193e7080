//! A minimal S3 server for tests (also good enough for GCS), which can misbehave on purpose.

use super::{BucketConfig, BucketCredentials, BucketKind};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Small, so that a few keys make several pages.
const PAGE: usize = 20;

/// A request as the fake server received it.
#[derive(Debug)]
pub(crate) struct S3Request {
    pub(crate) method: String,
    /// Decoded, with the bucket.
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
}

/// What the fake server does with a request.
pub(crate) enum FakeResponse {
    Answer(u16, String),
    Redirect(u16, String),
    Hang,
    /// Sends a response that never ends.
    Rave,
    /// Announces a body and sends none.
    Stop,
}

/// The server; it listens until the tests end.
pub(crate) struct FakeS3 {
    pub(crate) address: String,
    asked: Arc<AtomicUsize>,
}

impl FakeS3 {
    pub(crate) fn serve(
        does: impl Fn(&S3Request) -> FakeResponse + Send + Sync + 'static,
    ) -> FakeS3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let does = Arc::new(does);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let does = does.clone();
                // A test that has seen enough may hang up.
                std::thread::spawn(move || _ = answer(stream, &*does));
            }
        });
        FakeS3 { address, asked }
    }

    pub(crate) fn remote(&self) -> BucketConfig {
        BucketConfig {
            kind: BucketKind::S3,
            bucket: "bucket".to_owned(),
            region: "us-east-1".to_owned(),
            endpoint: Some(self.address.clone()),
            credentials: BucketCredentials::Keys {
                key: "k".to_owned(),
                secret: "s".to_owned(),
                token: None,
            },
        }
    }

    /// The same bucket as GCS, whose listings look alike. The service account needs no token.
    pub(crate) fn google(&self) -> BucketConfig {
        let account = r#"{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}"#;
        let credentials = BucketCredentials::ServiceAccount(account.to_owned());
        BucketConfig {
            kind: BucketKind::Gcs,
            region: String::new(),
            credentials,
            ..self.remote()
        }
    }

    /// Number of requests so far.
    pub(crate) fn count(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Answers like a correct bucket with these objects.
pub(crate) fn bucket(objects: &BTreeMap<String, String>, asked: &S3Request) -> FakeResponse {
    if asked.query.contains_key("list-type") {
        return FakeResponse::Answer(200, page(objects, &asked.query));
    }
    match objects.get(asked.path.trim_start_matches("/bucket/")) {
        Some(bytes) => FakeResponse::Answer(200, bytes.clone()),
        None => FakeResponse::Answer(404, String::new()),
    }
}

fn page(objects: &BTreeMap<String, String>, query: &BTreeMap<String, String>) -> String {
    let after = query
        .get("continuation-token")
        .or(query.get("start-after"))
        .cloned()
        .unwrap_or_default();
    let limit = query
        .get("max-keys")
        .map_or(PAGE, |limit| limit.parse().unwrap());
    let mut rest = objects
        .iter()
        .filter(|(key, _)| key.starts_with(&query["prefix"]) && **key > after);
    let mut text = "<ListBucketResult>".to_owned();
    let mut last = None;
    for (key, bytes) in rest.by_ref().take(limit) {
        let size = bytes.len();
        let date = "2026-01-01T00:00:00.000Z";
        let entry =
            format!("<Key>{key}</Key><Size>{size}</Size><LastModified>{date}</LastModified>");
        write!(
            text,
            "<Contents>{entry}<ETag>&quot;e&quot;</ETag></Contents>"
        )
        .unwrap();
        last = Some(key);
    }
    if let (Some(last), Some(_)) = (last, rest.next()) {
        write!(
            text,
            "<NextContinuationToken>{last}</NextContinuationToken>"
        )
        .unwrap();
    }
    text + "</ListBucketResult>"
}

fn answer(stream: TcpStream, does: &dyn Fn(&S3Request) -> FakeResponse) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    let mut length = 0;
    lines.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        match line.trim().to_lowercase().split_once(": ") {
            Some(("content-length", size)) => length = size.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    lines.take(length).read_to_end(&mut Vec::new())?;
    let asked = asked(&first);
    let common = "connection: close\r\netag: \"e\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT";
    let mut stream = stream;
    let is_head = asked.method == "HEAD";
    match does(&asked) {
        FakeResponse::Hang => loop {
            std::thread::park();
        },
        FakeResponse::Stop => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{common}\r\ncontent-length: 5\r\n\r\n"
            )?;
            loop {
                std::thread::park();
            }
        }
        FakeResponse::Rave => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{common}\r\n\r\n<ListBucketResult>"
            )?;
            loop {
                stream.write_all(&[b' '; 65536])?;
            }
        }
        FakeResponse::Redirect(status, to) => {
            write!(
                stream,
                "HTTP/1.1 {status} Go\r\n{common}\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"
            )
        }
        FakeResponse::Answer(status, body) => {
            let length = body.len();
            let body = if is_head { "" } else { &body };
            write!(
                stream,
                "HTTP/1.1 {status} So\r\n{common}\r\ncontent-length: {length}\r\n\r\n{body}"
            )
        }
    }
}

fn asked(first: &str) -> S3Request {
    let mut words = first.split(' ');
    let method = words.next().unwrap().to_owned();
    let target = words.next().unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs
        .map(|(name, value)| (name.to_owned(), decoded(value)))
        .collect();
    S3Request {
        method,
        path: decoded(path),
        query,
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}
