//! Traces as a receiver gets them: what OpenTelemetry's own definitions read, with parents, times and no secret.

use node_tests::{Server, key_of};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

const VERSION: &str = "1.45.2";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// Reads one document of OTLP from its input by the official definitions; says what is in it, ids as they were sent.
const READER: &str = r#"
import base64, json, sys
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
request = json_format.Parse(sys.stdin.read(), ExportTraceServiceRequest(), ignore_unknown_fields=False)
# Bytes are base64 to this reader, and hexadecimal in OTLP: written again, they are what was sent.
sent = lambda value: base64.b64encode(value).decode()
value = lambda v: getattr(v, v.WhichOneof("value"))
print(json.dumps([{
    "trace": sent(s.trace_id), "span": sent(s.span_id), "parent": sent(s.parent_span_id), "name": s.name, "kind": s.kind,
    "start": s.start_time_unix_nano, "end": s.end_time_unix_nano, "state": s.trace_state, "failed": s.status.code == 2,
    "service": {a.key: value(a.value) for a in r.resource.attributes}.get("service.name"),
    "attributes": {a.key: value(a.value) for a in s.attributes},
} for r in request.resource_spans for c in r.scope_spans for s in c.spans]))
"#;

/// Python with the definitions, installed if they are not there.
fn python() -> PathBuf {
    let folder = cli::repository().join("target/opentelemetry-proto");
    let (program, mark) = (folder.join("bin/python"), folder.join(VERSION));
    if mark.is_file() {
        return program;
    }
    let run = |program: &Path, arguments: &[&str]| {
        let done = Command::new(program)
            .args(arguments)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "prerequisite: opentelemetry-proto {VERSION} from PyPI: {said}"
        );
    };
    run(
        Path::new("python3"),
        &["-m", "venv", "--clear", &folder.display().to_string()],
    );
    run(
        &folder.join("bin/pip"),
        &[
            "install",
            "--quiet",
            &format!("opentelemetry-proto=={VERSION}"),
        ],
    );
    fs::write(mark, "").expect("a mark");
    program
}

/// What came to a receiver: headers and bodies.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<(String, String)>>>);

impl Received {
    /// A receiver that answers with this status, and where it listens.
    fn listen(status: &'static str) -> (Received, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let received = Received::default();
        let all = received.clone();
        std::thread::spawn(move || {
            listener
                .incoming()
                .flatten()
                .for_each(|stream| all.take(stream, status))
        });
        (received, address)
    }

    fn take(&self, mut stream: TcpStream, status: &str) {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    line.to_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse()
                        .ok()
                });
                if body.len() >= length.unwrap_or(0) {
                    self.0
                        .lock()
                        .expect("no panic")
                        .push((head.to_owned(), body.to_owned()));
                    break;
                }
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => bytes.extend(&buffer[..count]),
            }
        }
        _ = stream.write_all(
            format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}")
                .as_bytes(),
        );
    }

    fn texts(&self) -> Vec<(String, String)> {
        self.0.lock().expect("no panic").clone()
    }

    /// All spans so far, by the official definitions.
    fn spans(&self) -> Vec<Value> {
        let one = |(_, body): (String, String)| {
            let mut reading = Command::new(python())
                .args(["-c", READER])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("python starts");
            reading
                .stdin
                .take()
                .expect("it is ours")
                .write_all(body.as_bytes())
                .expect("it reads");
            let read = reading.wait_with_output().expect("it ends");
            assert!(
                read.status.success(),
                "{}\n{body}",
                String::from_utf8_lossy(&read.stderr)
            );
            serde_json::from_slice::<Vec<Value>>(&read.stdout).expect("JSON")
        };
        self.texts().into_iter().flat_map(one).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.texts()
            .iter()
            .any(|(_, body)| body.contains(&format!("\"name\":\"{name}\"")))
    }
}

fn settings(address: &str, more: &str) -> String {
    format!("[trace]\nendpoint = \"{address}\"\n{more}\n")
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    spans
        .iter()
        .find(|span| span["name"] == name)
        .unwrap_or_else(|| panic!("no span `{name}` in {spans:#?}"))
}

#[test]
fn a_run_is_a_tree_of_spans_below_the_callers_own() {
    let (received, address) = Received::listen("200 OK");
    let server = Server::with(&settings(&address, ""), &[]);
    let key = key_of(&server, "acme", &["runs"]);
    let order = json!({ "command": ["sh", "-c", "echo $TRACEPARENT; exit 3", "canary-argument"], "task_id": "t1", "job_id": "j1", "env": { "CANARY": "canary-variable", "TRACEPARENT": "forged" } });
    let headers = [("traceparent", PARENT), ("tracestate", "vendor=value")];
    let ran = server.ask(&key, "POST", "/v1/runs", &headers, &order);
    assert_eq!(ran.status, 200, "{}", ran.text());
    let id = ran.json()["run_id"].as_str().expect("it ran").to_owned();
    server.until("the request's span", || {
        received.has("POST /v1/runs") && received.has("run")
    });
    let spans: Vec<_> = received
        .spans()
        .into_iter()
        .filter(|span| span["trace"] == TRACE)
        .collect();
    let (request, run) = (named(&spans, "POST /v1/runs"), named(&spans, "run"));
    assert_eq!(
        (&request["parent"], &request["kind"], &request["service"]),
        (&json!(SPAN), &json!(2), &json!("airlock"))
    );
    assert_eq!(
        (&run["parent"], &run["failed"]),
        (&request["span"], &json!(true))
    );
    assert_eq!(named(&spans, "admission")["parent"], request["span"]);
    assert!(spans.iter().all(|span| span["state"] == "vendor=value"));
    let answered = ran.header("traceresponse").expect("it says where it was");
    assert_eq!(
        answered,
        format!("00-{TRACE}-{}-01", request["span"].as_str().expect("an id"))
    );
    let told = ran.json()["stdout"]
        .as_str()
        .expect("text")
        .trim()
        .to_owned();
    assert_eq!(
        told,
        format!("00-{TRACE}-{}-01", run["span"].as_str().expect("an id")),
        "and no forged one"
    );
    let time = |span: &Value| {
        (
            span["start"].as_u64().expect("a time"),
            span["end"].as_u64().expect("a time"),
        )
    };
    let mut last = time(run).0;
    for phase in ["start", "program", "keep", "end"] {
        let span = named(&spans, phase);
        let (start, end) = time(span);
        assert_eq!(span["parent"], run["span"], "{phase}");
        assert!(
            start == last && end >= start,
            "{phase} begins where the one before ended: {spans:#?}"
        );
        last = end;
    }
    assert!(last <= time(run).1 && time(request).0 <= time(run).0);
    for (name, value) in [
        ("airlock.run", id.as_str()),
        ("airlock.task", "t1"),
        ("airlock.job", "j1"),
        ("airlock.tenant", "acme"),
        ("airlock.status", "failed"),
        ("airlock.backend", "native"),
        ("airlock.image", "host"),
    ] {
        assert_eq!(run["attributes"][name], value, "{run:#}");
    }
    let all = format!("{:?}", received.texts());
    for secret in ["canary", &key[21..], &server.admin[21..]] {
        assert!(!all.contains(secret), "{secret}");
    }
    let row = server
        .get(&format!("/v1/worker/telemetry/containers/{id}"))
        .json();
    assert_eq!(row["container"]["trace_id"], TRACE);
}

#[test]
fn a_program_is_told_of_a_trace_only_if_the_caller_is_part_of_one() {
    let (received, address) = Received::listen("200 OK");
    let order = json!({ "command": ["sh", "-c", "echo [$TRACEPARENT]"] });
    let told = |server: &Server, parent: Option<&str>| {
        let headers: Vec<_> = parent
            .map(|parent| ("traceparent", parent))
            .into_iter()
            .collect();
        let ran = server
            .ask(&server.admin, "POST", "/v1/runs", &headers, &order)
            .json();
        ran["stdout"].as_str().expect("text").trim().to_owned()
    };
    let server = Server::with(&settings(&address, ""), &[]);
    assert_eq!(told(&server, None), "[]");
    assert_eq!(
        told(&server, Some("00-zz-yy-01")),
        "[]",
        "what is malformed is not there"
    );
    server.until("a trace of our own", || received.has("run"));
    let silent = Server::new();
    assert_eq!(
        told(&silent, Some(PARENT)),
        format!("[{PARENT}]"),
        "as it came, where nobody records"
    );
}

#[test]
fn who_does_not_want_to_be_recorded_is_not() {
    let (received, address) = Received::listen("200 OK");
    let server = Server::with(&settings(&address, ""), &[]);
    let unsampled = PARENT.replace("-01", "-00");
    let order = json!({ "command": ["true"] });
    let ran = server.ask(
        &server.admin,
        "POST",
        "/v1/runs",
        &[("traceparent", &unsampled)],
        &order,
    );
    assert_eq!(ran.status, 200);
    // The control, behind it in the same queue.
    assert_eq!(server.get("/v1/images").status, 200);
    server.until("another request", || received.has("GET /v1/images"));
    assert!(
        received
            .texts()
            .iter()
            .all(|(_, body)| !body.contains(TRACE))
    );
}

#[test]
fn a_receiver_that_is_away_or_refuses_costs_spans_and_nothing_else() {
    for (status, address) in [
        ("503", Some(Received::listen("503 Busy").1)),
        ("away", None),
    ] {
        let address = address.unwrap_or_else(|| "http://127.0.0.1:1".to_owned());
        let server = Server::with(&settings(&address, ""), &[]);
        let ran = server.post("/v1/runs", &json!({ "command": ["true"] }));
        assert_eq!(ran.json()["status"], "succeeded", "{status}");
        server.until("dropped spans", || {
            let text = server.get("/metrics").text();
            let line = text
                .lines()
                .find(|line| line.starts_with("airlock_trace_spans_dropped"))
                .map(str::to_owned);
            line.is_some_and(|line| !line.ends_with(" 0"))
        });
    }
}

#[test]
fn headers_come_from_a_secret_and_are_seen_by_the_receiver_alone() {
    let (received, address) = Received::listen("200 OK");
    let folder = node_tests::Folder::new();
    fs::write(folder.at("token"), "Bearer canary-header").expect("a file");
    fs::set_permissions(
        folder.at("token"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .expect("its mode");
    let more = format!(
        "headers = {{ authorization = {{ file = \"{}\" }} }}",
        folder.at("token").display()
    );
    let mut server = Server::on(
        folder,
        &settings(&address, &more),
        &[gateway_tests::LOUD],
        None,
    );
    assert_eq!(server.get("/v1/runs").status, 200);
    server.until("a span", || received.has("GET /v1/runs"));
    let (head, _) = received.texts().remove(0);
    assert!(
        head.to_lowercase()
            .contains("authorization: bearer canary-header"),
        "{head}"
    );
    let (_, said) = server.end(rustix::process::Signal::TERM);
    assert!(!said.contains("canary-header"));
}
