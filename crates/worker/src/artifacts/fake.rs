//! A server of S3's kind (which also does for GCS), as small as can be, which also does what none should. Only for tests.

use super::{Credentials, Kind, Remote};
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

/// So that a few keys are several pages.
const PAGE: usize = 20;

/// What somebody asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// With the bucket, decoded.
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
}

/// What it does then.
pub(crate) enum Does {
    Answer(u16, String),
    Redirect(u16, String),
    Hang,
    /// Says so much that it never ends.
    Rave,
    /// Says how much it will say, and then nothing.
    Stop,
}

/// Listens for as long as the tests run.
pub(crate) struct Fake {
    pub(crate) address: String,
    asked: Arc<AtomicUsize>,
}

impl Fake {
    pub(crate) fn serve(does: impl Fn(&Asked) -> Does + Send + Sync + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (does, asked) = (Arc::new(does), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let does = does.clone();
                // Whoever hangs up early is a test that has seen enough.
                std::thread::spawn(move || _ = answer(stream, &*does));
            }
        });
        Fake { address, asked }
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote {
            kind: Kind::S3,
            bucket: "bucket".to_owned(),
            region: "us-east-1".to_owned(),
            endpoint: Some(self.address.clone()),
            credentials: Credentials::Keys {
                key: "k".to_owned(),
                secret: "s".to_owned(),
                token: None,
            },
        }
    }

    /// The same, in the manner of GCS, whose lists are alike. Its service account needs no token.
    pub(crate) fn google(&self) -> Remote {
        let account = r#"{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}"#;
        let credentials = Credentials::ServiceAccount(account.to_owned());
        Remote {
            kind: Kind::Gcs,
            region: String::new(),
            credentials,
            ..self.remote()
        }
    }

    /// How many have come.
    pub(crate) fn count(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A bucket with these, as it should be.
pub(crate) fn bucket(objects: &BTreeMap<String, String>, asked: &Asked) -> Does {
    if asked.query.contains_key("list-type") {
        return Does::Answer(200, page(objects, &asked.query));
    }
    match objects.get(asked.path.trim_start_matches("/bucket/")) {
        Some(bytes) => Does::Answer(200, bytes.clone()),
        None => Does::Answer(404, String::new()),
    }
}

fn page(objects: &BTreeMap<String, String>, query: &BTreeMap<String, String>) -> String {
    let after = query
        .get("continuation-token")
        .or(query.get("start-after"))
        .cloned()
        .unwrap_or_default();
    let most = query
        .get("max-keys")
        .map_or(PAGE, |most| most.parse().unwrap());
    let mut rest = objects
        .iter()
        .filter(|(key, _)| key.starts_with(&query["prefix"]) && **key > after);
    let mut text = "<ListBucketResult>".to_owned();
    let mut last = None;
    for (key, bytes) in rest.by_ref().take(most) {
        let (size, date) = (bytes.len(), "2026-01-01T00:00:00.000Z");
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

fn answer(stream: TcpStream, does: &dyn Fn(&Asked) -> Does) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let (mut first, mut length) = (String::new(), 0);
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
    let (mut stream, is_head) = (stream, asked.method == "HEAD");
    match does(&asked) {
        Does::Hang => loop {
            std::thread::park();
        },
        Does::Stop => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{common}\r\ncontent-length: 5\r\n\r\n"
            )?;
            loop {
                std::thread::park();
            }
        }
        Does::Rave => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{common}\r\n\r\n<ListBucketResult>"
            )?;
            loop {
                stream.write_all(&[b' '; 65536])?;
            }
        }
        Does::Redirect(status, to) => {
            write!(
                stream,
                "HTTP/1.1 {status} Go\r\n{common}\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"
            )
        }
        Does::Answer(status, body) => {
            let length = body.len();
            let body = if is_head { "" } else { &body };
            write!(
                stream,
                "HTTP/1.1 {status} So\r\n{common}\r\ncontent-length: {length}\r\n\r\n{body}"
            )
        }
    }
}

fn asked(first: &str) -> Asked {
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs
        .map(|(name, value)| (name.to_owned(), decoded(value)))
        .collect();
    Asked {
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
