//! Files of the mesh and tools in a real S3 server (`moto[server]`, as `tests/server/artifacts` has it), with boto3 in the place of an
//! agent: what we write is what it would have written, and the other way round. GCS is a FAKE: it shows what we send, not what
//! Google makes of it.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};
use worker::{
    artifacts::{
        ArtifactLocation, ArtifactScope, ArtifactStore, ArtifactStoreSettings, BucketConfig,
        BucketCredentials, BucketKind, Sharing,
    },
    tools::sync::{self, SyncLimits, SyncState, ToolSync},
};

const WANTED: &str = "moto[server]==5.2.5";
/// Ends the server when its standard input does, which is when whoever started it is gone, however that ended.
const SERVER: &str = "
import os, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print('port', server.get_host_and_port()[1], flush=True)
sys.stdin.read()
os._exit(0)
";
/// What the agent's side begins with.
const CLIENT: &str = "
import boto3, json, sys, unicodedata
endpoint, bucket = sys.argv[1:3]
given = json.loads(sys.argv[3])
s3 = boto3.client('s3', endpoint_url=endpoint, region_name='us-east-1',
                  aws_access_key_id='key', aws_secret_access_key='secret')
";

struct Moto {
    python: PathBuf,
    endpoint: String,
}

impl Moto {
    /// The one of this process; none, said aloud, where it cannot be had.
    fn running(claim: &str) -> Option<&'static Moto> {
        static MADE: OnceLock<Result<Moto, String>> = OnceLock::new();
        let made = MADE.get_or_init(|| install().and_then(start));
        if let Err(why) = made {
            assert!(
                std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
                "{WANTED} is missing: {why}"
            );
            eprintln!("NOT PROVEN: {claim}: {WANTED} is missing ({why})");
        }
        made.as_ref().ok()
    }

    /// What a program of the agent's side prints, as JSON.
    fn agent(&self, bucket: &str, program: &str, given: &Value) -> Value {
        let mut command = Command::new(&self.python);
        command.arg("-c").arg(format!("{CLIENT}{program}"));
        let output = command
            .args([&self.endpoint, bucket, &given.to_string()])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// A bucket of a test's own.
    fn bucket(&self, name: &str) -> BucketConfig {
        self.agent(name, "s3.create_bucket(Bucket=bucket)", &Value::Null);
        BucketConfig {
            kind: BucketKind::S3,
            bucket: name.to_owned(),
            region: "us-east-1".to_owned(),
            endpoint: Some(self.endpoint.clone()),
            credentials: BucketCredentials::Keys {
                key: "key".to_owned(),
                secret: "secret".to_owned(),
                token: None,
            },
        }
    }
}

fn install() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/moto");
    let (mark, python) = (folder.join("holds"), folder.join("bin/python"));
    if fs::read_to_string(&mark).is_ok_and(|held| held == WANTED) {
        return Ok(python);
    }
    _ = fs::remove_dir_all(&folder);
    carry_out(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(&folder),
    )?;
    carry_out(Command::new(folder.join("bin/pip")).args(["install", "--quiet", WANTED]))?;
    fs::write(mark, WANTED).map_err(|error| error.to_string())?;
    Ok(python)
}

fn carry_out(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn start(python: PathBuf) -> Result<Moto, String> {
    let mut command = Command::new(&python);
    command
        .args(["-c", SERVER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut line = String::new();
    let stdout = child.stdout.as_mut().ok_or("it has no output")?;
    BufReader::new(stdout)
        .read_line(&mut line)
        .map_err(|error| error.to_string())?;
    let port: u16 = line
        .trim()
        .strip_prefix("port ")
        .and_then(|port| port.parse().ok())
        .ok_or("no port")?;
    // Its input closes when this process ends, and it with it.
    std::mem::forget(child);
    Ok(Moto {
        python,
        endpoint: format!("http://127.0.0.1:{port}"),
    })
}

fn open(remote: &BucketConfig) -> ArtifactStore {
    let sharing = Sharing::Namespace("/myorg/dev/".trim_matches('/').to_owned());
    ArtifactStore::open(ArtifactStoreSettings {
        place: ArtifactLocation::Bucket(remote.clone()),
        sharing,
    })
    .unwrap()
}

fn ana() -> ArtifactScope {
    ArtifactScope {
        app: "agent".to_owned(),
        user: "ana ü".to_owned(),
        session: "web-77".to_owned(),
    }
}

/// Names that an address, a header or a client could change on the way.
const NAMES: [&str; 10] = [
    "plain.txt",
    "with space+plus.txt",
    "100%25 %zz.txt",
    "a#b?c&d=e.txt",
    "ﬁle Ａ\u{202f}é😀.txt",
    "user:of ana.txt",
    ".hidden",
    "quo\"te's\\back.txt",
    "~^`{|}[]<>*!()@,;$.txt",
    "...",
];

/// What an agent writes and where, in our own words.
const WRITES: &str = "
def key(name, version):
    name = unicodedata.normalize('NFKC', name)
    middle, last = ('user', name.split(':', 1)[1]) if name.startswith('user:') else ('web-77', name)
    return f'myorg/dev/ana ü/{middle}/{last}/{version}'
";

#[tokio::test(flavor = "multi_thread")]
async fn keys_types_and_metadata_are_an_agents_own() {
    let Some(moto) = Moto::running("keys and metadata in S3") else {
        return;
    };
    let remote = moto.bucket("keys");
    let shelf = open(&remote);
    for name in NAMES {
        let bytes = format!("ours: {name}").into();
        assert_eq!(
            shelf
                .save(&ana(), name, "text/x-ours", bytes)
                .await
                .unwrap(),
            0,
            "{name}"
        );
    }
    let program = format!(
        "{WRITES}
found = {{}}
for name in given:
    at = key(name, 0)
    object = s3.get_object(Bucket=bucket, Key=at)
    about = object['Metadata']
    escape = lambda text: text.encode('ascii', 'backslashreplace').decode()
    assert about == {{'original_filename': escape(unicodedata.normalize('NFKC', name)), 'user_id': escape('ana ü'),
                     'session_id': 'web-77', 'version': '0'}}, about
    found[at] = [object['Body'].read().decode(), object['ContentType']]
listed = [entry['Key'] for entry in s3.list_objects_v2(Bucket=bucket)['Contents']]
assert sorted(listed) == sorted(found), (sorted(listed), sorted(found))
print(json.dumps(found))
"
    );
    let found = moto.agent("keys", &program, &json!(NAMES));
    let texts: BTreeSet<_> = found
        .as_object()
        .unwrap()
        .values()
        .map(Value::to_string)
        .collect();
    let expected = NAMES
        .iter()
        .map(|name| json!([format!("ours: {name}"), "text/x-ours"]).to_string());
    assert_eq!(texts, expected.collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_writes_is_read_and_counted_on() {
    let Some(moto) = Moto::running("an agent's files in S3") else {
        return;
    };
    let shelf = open(&moto.bucket("theirs"));
    let program = format!(
        "{WRITES}
for name in given:
    for version in range(11):
        s3.put_object(Bucket=bucket, Key=key(name, version), Body=f'{{version}} {{name}}'.encode(), ContentType='text/x-theirs')
s3.put_object(Bucket=bucket, Key=key('plain.txt', 'notanumber'), Body=b'')
s3.put_object(Bucket=bucket, Key=key('plain.txt', '77/0'), Body=b'')
s3.put_object(Bucket=bucket, Key=key('plain.txt2', 99), Body=b'')
"
    );
    moto.agent("theirs", &program, &json!(NAMES));
    for name in NAMES {
        let latest = shelf.load(&ana(), name, None, 200).await.unwrap();
        assert_eq!(
            (latest.version, latest.mime_type.as_str()),
            (10, "text/x-theirs"),
            "{name}"
        );
        assert_eq!(latest.bytes, format!("10 {name}"));
        assert_eq!(
            shelf.load(&ana(), name, Some(3), 200).await.unwrap().bytes,
            format!("3 {name}")
        );
        assert_eq!(
            shelf
                .save(&ana(), name, "x/y", "next".into())
                .await
                .unwrap(),
            11,
            "{name}"
        );
    }
    let why = |loaded: Result<_, worker::artifacts::ArtifactStoreError>| {
        loaded
            .map(|_: worker::artifacts::ArtifactContent| ())
            .unwrap_err()
            .0
    };
    assert!(why(shelf.load(&ana(), "plain.txt", Some(12), 9).await).contains("no version 12"));
    assert!(why(shelf.load(&ana(), "absent.txt", None, 9).await).contains("no such file"));
    assert!(why(shelf.load(&ana(), "plain.txt", Some(0), 2).await).contains("at most 2"));
    let nowhere = open(&BucketConfig {
        bucket: "nowhere".to_owned(),
        ..moto.bucket("theirs2")
    });
    let told = why(nowhere.load(&ana(), "plain.txt", None, 9).await);
    assert!(
        told.contains("no such bucket") && !told.contains("127.0.0.1"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_writers_get_the_same_version() {
    let Some(moto) = Moto::running("versions in S3 are exclusive") else {
        return;
    };
    let shelf = open(&moto.bucket("race"));
    let mut writers = Vec::new();
    for count in 0..24_u32 {
        let (shelf, bytes) = (shelf.clone(), count.to_string());
        writers.push(tokio::spawn(async move {
            (
                shelf
                    .save(&ana(), "a", "x/y", bytes.clone().into())
                    .await
                    .unwrap(),
                bytes,
            )
        }));
    }
    let mut versions = BTreeSet::new();
    for writer in writers {
        let (version, bytes) = writer.await.unwrap();
        assert!(versions.insert(version), "{version} twice");
        assert_eq!(
            shelf
                .load(&ana(), "a", Some(version), 9)
                .await
                .unwrap()
                .bytes,
            bytes
        );
    }
}

/// Gone with the value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_come_from_a_real_server() {
    let Some(moto) = Moto::running("tools from S3") else {
        return;
    };
    let folder = Folder(std::env::temp_dir().join(format!("airlock-tools-{}", std::process::id())));
    let settings = sync::SyncConfig {
        remote: moto.bucket("tools"),
        namespace: "myorg/dev".to_owned(),
        folder: folder.0.join("tools"),
        interval: Duration::from_secs(10),
        bounds: SyncLimits::default(),
    };
    let put = "
for name, text in given.items():
    s3.put_object(Bucket=bucket, Key='myorg/dev/str-runtime/' + name, Body=text.encode())
";
    let tools = json!({"manifest.yaml": "one", "python/a b%20#?é.py": "code", "python/": "", "empty/": "", "bin/run": "#!x"});
    moto.agent("tools", put, &tools);
    let sync = ToolSync::open(settings.clone()).unwrap();
    assert_eq!(
        sync.cycle().await,
        SyncState::Ok {
            refused: Vec::new()
        }
    );
    let read = |path: &str| fs::read_to_string(folder.0.join("tools").join(path)).ok();
    assert_eq!(read("manifest.yaml").unwrap(), "one");
    assert_eq!(read("python/a b%20#?é.py").unwrap(), "code");
    assert!(
        !folder.0.join("tools/empty").exists(),
        "it only stands for a folder"
    );
    moto.agent("tools", put, &json!({"manifest.yaml": "two"}));
    moto.agent(
        "tools",
        "s3.delete_object(Bucket=bucket, Key='myorg/dev/str-runtime/bin/run')",
        &Value::Null,
    );
    assert_eq!(
        ToolSync::open(settings.clone()).unwrap().cycle().await,
        SyncState::Ok {
            refused: Vec::new()
        }
    );
    assert_eq!(read("manifest.yaml").unwrap(), "two");
    assert_eq!(read("bin/run"), None);

    // A key that steps out: nothing comes of it, it is said, and the others come.
    moto.agent(
        "tools",
        put,
        &json!({"x/../../../evil": "evil", "manifest.yaml": "three"}),
    );
    let keys = moto.agent(
        "tools",
        "print(json.dumps([entry['Key'] for entry in s3.list_objects_v2(Bucket=bucket)['Contents']]))",
        &Value::Null,
    );
    assert!(
        keys.to_string().contains("/../"),
        "the control: it is in the bucket: {keys}"
    );
    let state = sync.cycle().await;
    let is_named =
        |refused: &[String]| refused.len() == 1 && refused[0].contains("x/../../../evil");
    assert!(
        matches!(&state, SyncState::Ok { refused } if is_named(refused)),
        "{state:?}"
    );
    assert_eq!(read("manifest.yaml").unwrap(), "three", "the others come");
    let beside: Vec<_> = fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(beside, ["tools"]);
}

/// How a server takes it that an object shall be made only if its key is free.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Honours,
    Ignores,
    Cannot,
}

/// What a server has, by key: bytes and their type.
type StoredObjects = BTreeMap<String, (Vec<u8>, String)>;

/// A FAKE of Google's server, and of servers like Amazon's that have faults: the three calls that we make. Keys are what an
/// address says, decoded once.
#[derive(Clone)]
struct Fake(Arc<Mutex<StoredObjects>>, Manner);

impl Fake {
    fn new(manner: Manner) -> Fake {
        Fake(Arc::default(), manner)
    }

    fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fake = self.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (fake, connection) = (fake.clone(), connection.unwrap());
                std::thread::spawn(move || fake.serve(connection));
            }
        });
        format!("http://{address}")
    }

    fn serve(&self, mut connection: TcpStream) {
        let mut reader = BufReader::new(connection.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let mut headers = BTreeMap::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let Some((name, value)) = header.trim().split_once(": ") else {
                break;
            };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let length = headers
            .get("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let (status, kind, answer) = self.answer(&line, &headers, body);
        let (same, length) = (
            "etag: \"e\"\r\nlast-modified: Mon, 01 Jan 2001 00:00:00 GMT",
            answer.len(),
        );
        let head = format!(
            "HTTP/1.1 {status} x\r\n{same}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        connection
            .write_all(&[head.as_bytes(), &answer].concat())
            .unwrap();
    }

    fn answer(
        &self,
        line: &str,
        headers: &BTreeMap<String, String>,
        body: Vec<u8>,
    ) -> (u16, String, Vec<u8>) {
        let mut held = self.0.lock().unwrap();
        let (method, target) = line
            .trim_end_matches(" HTTP/1.1\r\n")
            .split_once(' ')
            .unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let key = decoded(
            path.strip_prefix("/bucket")
                .unwrap()
                .trim_start_matches('/'),
        );
        let only_if_free = headers
            .get("x-goog-if-generation-match")
            .is_some_and(|value| value == "0")
            || headers
                .get("if-none-match")
                .is_some_and(|value| value == "*");
        let none = || (404, "text/plain".to_owned(), Vec::new());
        match method {
            "GET" if key.is_empty() => {
                let prefix = query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("prefix="))
                    .unwrap();
                let prefix = decoded(&prefix.replace('+', " "));
                let found = held.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(key, (bytes, _))| {
                    let key = key.replace('&', "&amp;").replace('<', "&lt;");
                    let when = "2001-01-01T00:00:00.000Z";
                    format!("<Contents><Key>{key}</Key><LastModified>{when}</LastModified><ETag>\"e\"</ETag><Size>{}</Size></Contents>", bytes.len())
                });
                let list = format!(
                    "<ListBucketResult>{}</ListBucketResult>",
                    found.collect::<String>()
                );
                (200, "application/xml".to_owned(), list.into_bytes())
            }
            "GET" => held
                .get(&key)
                .map_or_else(none, |(bytes, kind)| (200, kind.clone(), bytes.clone())),
            "PUT" if only_if_free && self.1 == Manner::Cannot => {
                (501, "text/plain".to_owned(), Vec::new())
            }
            "PUT" if only_if_free && self.1 == Manner::Honours && held.contains_key(&key) => {
                (412, "text/plain".to_owned(), Vec::new())
            }
            "PUT" => {
                held.insert(key, (body, headers["content-type"].clone()));
                (200, "text/plain".to_owned(), Vec::new())
            }
            _ => none(),
        }
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let pair = || Some([char::from(rest.next()?), char::from(rest.next()?)]);
        match byte {
            b'%' => {
                bytes.push(u8::from_str_radix(&String::from_iter({ pair }().unwrap()), 16).unwrap())
            }
            plain => bytes.push(plain),
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_gcs_are_those_of_googles_kit() {
    let fake = Fake::new(Manner::Honours);
    let account = json!({"gcs_base_url": "http://127.0.0.1:1", "disable_oauth": true, "client_email": "",
                         "private_key": "", "private_key_id": ""});
    let shelf = open(&BucketConfig {
        kind: BucketKind::Gcs,
        bucket: "bucket".to_owned(),
        region: String::new(),
        endpoint: Some(fake.start()),
        credentials: BucketCredentials::ServiceAccount(account.to_string()),
    });
    for name in NAMES {
        for version in 0..2 {
            let saved = shelf
                .save(
                    &ana(),
                    name,
                    "text/x-ours",
                    format!("{version} {name}").into(),
                )
                .await;
            assert_eq!(saved.unwrap(), version, "{name}");
        }
        let latest = shelf.load(&ana(), name, None, 200).await.unwrap();
        assert_eq!(
            (latest.version, latest.bytes),
            (1, format!("1 {name}").into())
        );
        assert_eq!(latest.mime_type, "text/x-ours");
    }
    let keys: BTreeSet<String> = fake.0.lock().unwrap().keys().cloned().collect();
    let expected = NAMES.iter().flat_map(|name| {
        let middle = if name.starts_with("user:") {
            "user"
        } else {
            "web-77"
        };
        (0..2).map(move |version| format!("myorg/dev/ana ü/{middle}/{name}/{version}"))
    });
    assert_eq!(keys, expected.collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_writes_over_what_is_there_is_found_out_and_still_loses_nothing_of_ours() {
    for manner in [Manner::Honours, Manner::Ignores, Manner::Cannot] {
        let shelf = open(&BucketConfig {
            kind: BucketKind::S3,
            bucket: "bucket".to_owned(),
            region: "us-east-1".to_owned(),
            endpoint: Some(Fake::new(manner).start()),
            credentials: BucketCredentials::Keys {
                key: "key".to_owned(),
                secret: "secret".to_owned(),
                token: None,
            },
        });
        assert_eq!(shelf.weakness(), None);
        let mut writers = Vec::new();
        for count in 0..12_u32 {
            let (shelf, bytes) = (shelf.clone(), count.to_string());
            writers.push(tokio::spawn(async move {
                (
                    shelf
                        .save(&ana(), "a", "x/y", bytes.clone().into())
                        .await
                        .unwrap(),
                    bytes,
                )
            }));
        }
        let mut versions = BTreeSet::new();
        for writer in writers {
            let (version, bytes) = writer.await.unwrap();
            assert!(versions.insert(version), "{manner:?}: {version} twice");
            assert_eq!(
                shelf
                    .load(&ana(), "a", Some(version), 9)
                    .await
                    .unwrap()
                    .bytes,
                bytes,
                "{manner:?}"
            );
        }
        assert_eq!(versions, (0..12).collect(), "{manner:?}");
        assert_eq!(
            shelf.weakness().is_none(),
            manner == Manner::Honours,
            "{manner:?}"
        );
    }
}
