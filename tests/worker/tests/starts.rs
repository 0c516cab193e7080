//! How a worker starts: it can be told to end while it does, and `--check` says what would be wrong.

use rustix::process::Signal;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use worker_tests::{Folder, Sam, Tools, Variables, until, variables};

/// What starts a worker with the usual tools, and more from a bucket at this address.
fn with_bucket(folder: &Folder, address: SocketAddr) -> Variables {
    Tools::usual(folder);
    let mut environment = variables(folder, "mqtt://127.0.0.1:1");
    let storage = [
        ("TOOL_SYNC_ENABLED", "true".to_owned()),
        ("TOOL_SYNC_INTERVAL", "1".to_owned()),
        ("OBJECT_STORAGE_TYPE", "s3".to_owned()),
        ("OBJECT_STORAGE_BUCKET_NAME", "tools".to_owned()),
        ("S3_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ACCESS_KEY_ID", "some".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ];
    environment.extend(storage.map(|(name, value)| (name.to_owned(), value)));
    environment
}

#[test]
fn a_worker_that_waits_for_its_tools_ends_when_it_is_told_to() {
    let folder = Folder::new();
    // Takes connections, and never says anything.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let environment = with_bucket(&folder, silent.local_addr().expect("its address"));
    let mut sam = Sam::begin(&folder, environment);
    let _asked = silent.accept().expect("it asks for its tools");
    sam.signal(Signal::TERM);
    assert_eq!(sam.await_end().code(), Some(0), "{}", sam.log());
    sam.await_log("before anything was served");
}

#[test]
fn a_worker_has_not_started_before_its_tools_were_brought() {
    let folder = Folder::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let environment = with_bucket(&folder, listener.local_addr().expect("its address"));
    let opens = Arc::new(AtomicBool::new(false));
    let is_open = opens.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
            lines.map_while(Result::ok).find(String::is_empty);
            let status = if is_open.load(Ordering::Relaxed) {
                "200 OK"
            } else {
                "403 Forbidden"
            };
            let body = "<ListBucketResult></ListBucketResult>";
            let head = format!("connection: close\r\ncontent-length: {}", body.len());
            // Whoever is gone does not wait for it.
            _ = write!(stream, "HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}");
        }
    });
    let sam = Sam::begin(&folder, environment);
    sam.await_log("tools_not_brought");
    let (status, body) = sam.get("/startup").expect("it answers");
    assert!(status == 503 && body.contains("pending"), "{status} {body}");
    opens.store(true, Ordering::Relaxed);
    let body = until("it has started", || {
        sam.get("/startup").filter(|(status, _)| *status == 200)
    })
    .1;
    assert!(body.contains("\"tool_sync\":\"ok\""), "{body}");
}

/// What a check says of the usual tools and these, with these variables, and how it ends.
fn checked(entry: &str, broker: &str, changes: &[(&str, &str)]) -> (Option<i32>, Value) {
    let folder = Folder::new();
    let tools = Tools::usual(&folder);
    tools.write(
        "python/slow.py",
        "import time\ntime.sleep(17)\n\n\ndef late():\n    \"\"\"Late.\"\"\"\n",
    );
    tools.manifest(&format!(
        "  echo: {{module: toolbox, function: echo, description: Says it.}}\n{entry}"
    ));
    let mut environment = variables(&folder, broker);
    environment.extend(
        changes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    let mut command = Command::new(cli::airlock());
    command
        .args(["worker", "sam", "--check", "--json"])
        .env_clear()
        .envs(environment);
    let output = command
        .current_dir(folder.path())
        .output()
        .expect("it starts");
    let said = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        said.unwrap_or_else(|_| panic!("{output:?}")),
    )
}

#[test]
fn a_check_waits_for_every_tool_however_slow() {
    let (status, said) = checked(
        "  late: {module: slow, function: late}\n",
        "mqtt://127.0.0.1:1",
        &[],
    );
    assert_eq!(
        (status, &said["tools"]),
        (Some(0), &serde_json::json!(["echo", "late"])),
        "{said}"
    );
}

#[test]
fn a_check_finds_what_a_worker_would_not_start_with() {
    for (broker, name, value, says) in [
        (
            "mqtts://127.0.0.1:1",
            "SOLACE_TRUST_STORE_PATH",
            "/nowhere/ca.pem",
            "/nowhere/ca.pem",
        ),
        (
            "mqtt://127.0.0.1:1",
            "ARTIFACT_BASE_PATH",
            "/dev/null/artifacts",
            "/dev/null/artifacts",
        ),
        (
            "mqtt://127.0.0.1:1",
            "PIP_INDEX_URL",
            "http://index.test/simple",
            "PIP_INDEX_URL",
        ),
    ] {
        let (status, said) = checked("", broker, &[(name, value)]);
        assert_eq!(status, Some(1), "{said}");
        assert!(said["problems"].to_string().contains(says), "{said}");
    }
}
