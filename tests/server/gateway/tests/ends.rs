//! What ends an open stream: the end of its key, a peer that takes nothing, a program that has ended.

use gateway_tests::{
    Server, Stream,
    socket::{Frame, Socket},
};
use serde_json::{Value, json};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// A key for sandboxes, and one of its own.
fn sandbox(server: &Server) -> (String, String) {
    let key = server.key(&SCOPES);
    let made = sandbox_of(server, &key);
    (key, made)
}

const SCOPES: [&str; 3] = ["sandboxes", "runs", "artifacts"];

fn sandbox_of(server: &Server, key: &str) -> String {
    let made = server.ask(key, "POST", "/v1/sandboxes", &[], &json!({}));
    assert_eq!(made.status, 201, "{}", made.text());
    format!(
        "/v1/sandboxes/{}",
        made.json()["sandbox_id"].as_str().expect("its name")
    )
}

/// A program that goes on.
fn sleeper(server: &Server, key: &str, sandbox: &str) -> String {
    let order = json!({ "command": ["sleep", "600"], "background": true, "open_stdin": true });
    let exec = server.ask(key, "POST", &format!("{sandbox}/exec"), &[], &order);
    assert_eq!(exec.status, 201, "{}", exec.text());
    format!(
        "{sandbox}/exec/{}",
        exec.json()["exec_id"].as_str().expect("its name")
    )
}

fn terminal(server: &Server, key: &str, sandbox: &str) -> Socket {
    let bearer = format!("Bearer {key}");
    Socket::open(
        &server.client,
        &format!("{sandbox}/pty"),
        &[("authorization", &bearer)],
    )
    .expect("a socket")
}

fn open(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Stream {
    server
        .client
        .open(&server.request(key, method, path, &[], body))
}

/// The first of nine bytes; the others are still to come.
fn first_byte(server: &Server, key: &str, method: &str, path: &str) -> Stream {
    let host = server.client.host();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: 9\r\n\r\nx"
    );
    server.client.open(head.as_bytes())
}

/// Whatever can be open for long.
struct Open {
    sandbox: String,
    exec: String,
    terminal: Socket,
    /// Answers that have begun: events of a program and of a run, logs.
    told: Vec<Stream>,
    /// Answers that are waited for: output, a run.
    awaited: Vec<Stream>,
    /// Bodies that have begun: what is typed, a file, an artifact.
    sent: Vec<Stream>,
}

impl Open {
    fn by(server: &Server, key: &str) -> Open {
        let sandbox = sandbox_of(server, key);
        let exec = sleeper(server, key, &sandbox);
        let mut terminal = terminal(server, key, &sandbox);
        terminal.keys(b"echo a$((1+1))b\n");
        terminal.until("a2b");
        let (prefer, order) = (
            [("prefer", "respond-async")],
            json!({ "command": ["sleep", "60"] }),
        );
        let run = server.ask(key, "POST", "/v1/runs", &prefer, &order).json();
        let run = format!(
            "/v1/runs/{}/events",
            run["run_id"].as_str().expect("its name")
        );
        let paths = [
            format!("{exec}/events"),
            format!("{sandbox}/logs?follow=true"),
            run,
        ];
        let mut told: Vec<_> = paths
            .iter()
            .map(|path| open(server, key, "GET", path, &json!(null)))
            .collect();
        told.iter_mut()
            .for_each(|stream| assert_eq!(stream.head().expect("an answer").0, 200));
        let awaited = vec![
            open(
                server,
                key,
                "GET",
                &format!("{exec}/output?wait=60"),
                &json!(null),
            ),
            open(server, key, "POST", "/v1/runs", &order),
        ];
        let sent = [
            ("POST", format!("{exec}/stdin")),
            ("PUT", format!("{sandbox}/files/half")),
            ("PUT", "/v1/artifacts/half".to_owned()),
        ];
        let sent = sent
            .iter()
            .map(|(method, path)| first_byte(server, key, method, path))
            .collect();
        Open {
            sandbox,
            exec,
            terminal,
            told,
            awaited,
            sent,
        }
    }

    /// All of it ends, and no half of anything is left.
    fn ends(mut self, server: &Server) {
        loop {
            match self.terminal.frame() {
                Some(Frame::Close) | None => break,
                Some(_) => self.terminal.keys(b"true\n"),
            }
        }
        for stream in &mut self.told {
            while stream.read() {}
        }
        for stream in self.awaited.iter_mut().chain(&mut self.sent) {
            assert_eq!(stream.answer().status, 401);
        }
        assert_eq!(
            server.get(&self.exec).json()["status"],
            "running",
            "the program itself goes on"
        );
        assert_eq!(
            server.get(&format!("{}/files/half", self.sandbox)).status,
            404
        );
        for path in [
            format!("{}/files/", self.sandbox),
            "/v1/artifacts".to_owned(),
        ] {
            let listed = server.get(&path);
            assert_eq!(
                (listed.status, listed.text().contains("half")),
                (200, false),
                "{}",
                listed.text()
            );
        }
    }

    /// All of it goes on.
    fn goes_on(mut self, server: &Server, key: &str) {
        self.terminal.keys(b"echo c$((2+2))d\n");
        self.terminal.until("c4d");
        for stream in &mut self.sent {
            stream.send(b"12345678");
        }
        let statuses: Vec<_> = self
            .sent
            .iter_mut()
            .map(|stream| stream.answer().status)
            .collect();
        assert_eq!(statuses, [200, 201, 201]);
        assert_eq!(
            server
                .ask(key, "DELETE", &self.exec, &[], &json!(null))
                .status,
            200
        );
        let told = String::from_utf8_lossy(&chunks(&mut self.told[0])).into_owned();
        assert!(told.contains("event: exited"), "{told}");
        assert_eq!(self.awaited[0].answer().status, 200);
    }
}

fn chunks(stream: &mut Stream) -> Vec<u8> {
    std::iter::from_fn(|| stream.chunk()).flatten().collect()
}

/// Opens all kinds of streams, ends the key, and sees them end, and those of another key go on.
fn ends_with_its_key(server: &Server, make: impl FnOnce() -> String, end: impl FnOnce(&str)) {
    let others = server.key(&SCOPES);
    let control = Open::by(server, &others);
    let key = make();
    let open = Open::by(server, &key);
    assert_eq!(
        server
            .ask(&key, "GET", "/v1/runs", &[], &json!(null))
            .status,
        200,
        "it is still good"
    );
    end(&key[4..20]);
    let begun = Instant::now();
    open.ends(server);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "it took {:?}",
        begun.elapsed()
    );
    control.goes_on(server, &others);
}

#[test]
fn a_key_that_is_revoked_takes_its_open_streams_with_it() {
    let server = Server::new();
    ends_with_its_key(
        &server,
        || server.key(&SCOPES),
        |id| {
            assert_eq!(server.delete(&format!("/v1/keys/{id}")).status, 204);
        },
    );
}

#[test]
fn a_key_that_another_process_revokes_takes_its_open_streams_with_it() {
    let server = Server::new();
    ends_with_its_key(
        &server,
        || server.key(&SCOPES),
        |id| {
            let state = server.folder.at("state");
            let mut command = Command::new(cli::airlock());
            command.args(["key", "revoke", id, "--state"]).arg(state);
            assert!(
                command
                    .env("HOME", &server.folder.0)
                    .output()
                    .expect("airlock runs")
                    .status
                    .success()
            );
        },
    );
}

#[test]
fn a_key_that_expires_takes_its_open_streams_with_it() {
    let server = Server::new();
    let short = || {
        let order = json!({ "name": "short", "scopes": SCOPES, "expires_in": "6s" });
        server.post("/v1/keys", &order).json()["token"]
            .as_str()
            .expect("a token")
            .to_owned()
    };
    ends_with_its_key(&server, short, |_| {});
}

/// Asks often and reads no more than the beginning of the first answer; none if that is a refusal.
fn hog(server: &Server, asked: &[u8]) -> Option<gateway_tests::Stream> {
    let mut stream = server.client.open(&asked.repeat(400));
    let (status, _) = stream.head()?;
    (status == 200).then_some(stream)
}

#[test]
fn whoever_takes_nothing_of_what_he_is_sent_gives_his_connection_back() {
    let server = Server::with("[serve]\nconnections = 6\nwrite_time = \"8s\"", &[]);
    let asked = |key: &str| server.request(key, "GET", "/openapi.json", &[], &json!(null));
    assert_eq!(
        server.client.open(&asked("")).answer().status,
        200,
        "the positive control"
    );
    let healthy = || server.ask("", "GET", "/healthz", &[], &json!(null)).status == 200;
    server.until("room", healthy);
    // One tenant cannot have all of them at work.
    let keys = [(); 2].map(|()| server.key(&["runs"]));
    let mut hogs = Vec::new();
    server.until("a full server", || {
        let key = &keys[hogs.len() % 2];
        hogs.extend(hog(&server, &asked(key)));
        !healthy()
    });
    server.until("room again", healthy);
    drop(hogs);
}

#[test]
fn a_terminal_keeps_its_place_among_the_connections() {
    let server = Server::with("[serve]\nconnections = 4", &[]);
    let (key, sandbox) = sandbox(&server);
    let status = || server.ask("", "GET", "/healthz", &[], &json!(null)).status;
    let mut terminals = Vec::new();
    let bearer = format!("Bearer {key}");
    // The connection before may not have been given back yet. Two are all that a key has of four.
    while terminals.len() < 2 {
        let path = format!("{sandbox}/pty");
        terminals.extend(Socket::open(
            &server.client,
            &path,
            &[("authorization", &bearer)],
        ));
    }
    // The others are sent what they do not read: an idle one would make room.
    let other = server.key(&["runs"]);
    let asked = server.request(&other, "GET", "/openapi.json", &[], &json!(null));
    let mut kept = Vec::new();
    server.until("a full server", || {
        kept.extend(hog(&server, &asked));
        status() != 200
    });
    terminals.pop();
    server.until("room", || status() == 200);
}

#[test]
fn a_sandbox_has_sixteen_terminals_at_a_time() {
    let server = Server::new();
    let (key, sandbox) = sandbox(&server);
    let _first = terminal(&server, &key, &sandbox);
    let listed = server
        .ask(&key, "GET", &format!("{sandbox}/exec"), &[], &json!(null))
        .json();
    let path = format!(
        "{sandbox}/pty?exec={}",
        listed["execs"][0]["exec_id"].as_str().expect("its name")
    );
    let bearer = format!("Bearer {key}");
    let look = || Socket::open(&server.client, &path, &[("authorization", &bearer)]);
    let mut open: Vec<_> = (1..16).map(|_| look().expect("a socket")).collect();
    let another = || look().map(drop);
    assert_eq!(another(), Err(429));
    open.pop();
    server.until("room", || another() == Ok(()));
}

#[test]
fn a_terminal_that_is_closed_while_its_program_does_not_read_is_seen_at_once() {
    let server = Server::new();
    let (key, sandbox) = sandbox(&server);
    let bearer = format!("Bearer {key}");
    let path = format!("{sandbox}/pty?command=sleep&command=600&kill=true");
    let mut socket =
        Socket::open(&server.client, &path, &[("authorization", &bearer)]).expect("a socket");
    for _ in 0..40 {
        socket.keys(&b"x\n".repeat(8192));
    }
    let running = || {
        let listed = server
            .ask(&key, "GET", &format!("{sandbox}/exec"), &[], &json!(null))
            .json();
        listed["execs"][0]["status"] == "running"
    };
    assert!(running());
    drop(socket);
    server.until("the end of the program", || !running());
}

#[test]
fn typing_ends_with_the_program() {
    let server = Server::new();
    let (key, sandbox) = sandbox(&server);
    let exec = sleeper(&server, &key, &sandbox);
    let mut typing = first_byte(&server, &key, "POST", &format!("{exec}/stdin"));
    assert_eq!(server.delete(&exec).status, 200);
    assert_eq!(typing.answer().status, 409);
}

#[test]
fn a_piece_of_output_is_as_large_as_was_asked() {
    let server = Server::new();
    let (key, sandbox) = sandbox(&server);
    let order = json!({ "command": ["head", "-c", "3000000", "/dev/zero"] });
    let ended = server.ask(&key, "POST", &format!("{sandbox}/exec"), &[], &order);
    assert_eq!(ended.status, 200, "{}", ended.text());
    let exec = ended.json()["exec_id"]
        .as_str()
        .expect("its name")
        .to_owned();
    let path = format!("{sandbox}/exec/{exec}/output?limit=");
    let length = |limit: u32| server.get(&format!("{path}{limit}")).body.len();
    assert_eq!(
        (length(2_000_000), length(4_000_000)),
        (2_000_000, 3_000_000)
    );
}

#[test]
fn a_run_that_only_the_database_knows_says_what_of_its_output_is_missing() {
    let server = Server::new();
    let run = |server: &Server, id: &str, bytes: &str| {
        let order = json!({ "command": ["head", "-c", bytes, "/dev/zero"], "run_id": id });
        assert_eq!(server.post("/v1/runs", &order).status, 200);
    };
    run(&server, "small", "1000");
    run(&server, "large", "100000");
    let server = server.restart(rustix::process::Signal::TERM, "");
    let events = |id: &str| server.get(&format!("/v1/runs/{id}/events")).text();
    assert!(!events("small").contains("event: gap") && events("small").contains("event: finished"));
    let large = events("large");
    let (gap, end) = (large.find("event: gap"), large.find("event: finished"));
    assert!(gap.is_some() && gap < end, "{large}");
    assert!(
        large.contains(r#"data: {"from":65536,"stream":"stdout","to":null}"#),
        "{large}"
    );
}

#[test]
fn a_database_that_another_process_keeps_stops_nobody_who_does_not_write() {
    let server = Server::new();
    let run = || {
        server
            .post("/v1/runs", &json!({ "command": ["true"] }))
            .status
    };
    assert_eq!(run(), 200, "the positive control");
    let keep = "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                d.execute('BEGIN IMMEDIATE')\nprint('kept', flush=True)\nsys.stdin.read()";
    let mut keeper = Command::new("python3")
        .args(["-c", keep])
        .arg(server.folder.at("state/airlock.db"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut said = [0; 5];
    std::io::Read::read_exact(keeper.stdout.as_mut().expect("ours"), &mut said)
        .expect("it keeps it");
    let order = json!({ "command": ["true"] });
    let mut refused: Vec<_> = (0..8)
        .map(|_| open(&server, &server.admin, "POST", "/v1/runs", &order))
        .collect();
    refused
        .extend((0..4).map(|_| open(&server, &server.admin, "POST", "/v1/sandboxes", &json!({}))));
    let begun = Instant::now();
    for path in ["/healthz", "/v1/runs", "/v1/sandboxes"] {
        assert_eq!(server.get(path).status, 200);
    }
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "it took {:?}",
        begun.elapsed()
    );
    assert!(refused.iter_mut().all(|asked| asked.answer().status == 503));
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "it took {:?}",
        begun.elapsed()
    );
    drop(keeper.stdin.take());
    keeper.wait().expect("it ends");
    assert_eq!(run(), 200);
}
