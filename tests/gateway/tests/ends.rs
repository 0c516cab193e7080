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
    let key = server.key(&["sandboxes", "runs"]);
    let made = server.ask(&key, "POST", "/v1/sandboxes", &[], &json!({}));
    assert_eq!(made.status, 201, "{}", made.text());
    (key, format!("/v1/sandboxes/{}", made.json()["sandbox_id"].as_str().expect("its name")))
}

/// A program that goes on.
fn sleeper(server: &Server, key: &str, sandbox: &str) -> String {
    let order = json!({ "command": ["sleep", "600"], "background": true, "open_stdin": true });
    let exec = server.ask(key, "POST", &format!("{sandbox}/exec"), &[], &order);
    assert_eq!(exec.status, 201, "{}", exec.text());
    format!("{sandbox}/exec/{}", exec.json()["exec_id"].as_str().expect("its name"))
}

fn terminal(server: &Server, key: &str, sandbox: &str) -> Socket {
    let bearer = format!("Bearer {key}");
    Socket::open(&server.client, &format!("{sandbox}/pty"), &[("authorization", &bearer)]).expect("a socket")
}

fn open(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Stream {
    server.client.open(&server.request(key, method, path, &[], body))
}

/// Opens all kinds of streams, ends the key, and sees them end.
fn ends_with_its_key(revoke: impl Fn(&Server, &str)) {
    let server = Server::new();
    let (key, sandbox) = sandbox(&server);
    let exec = sleeper(&server, &key, &sandbox);
    let mut terminal = terminal(&server, &key, &sandbox);
    terminal.keys(b"echo a$((1+1))b\n");
    terminal.until("a2b");
    let mut events = open(&server, &key, "GET", &format!("{exec}/events"), &json!(null));
    assert_eq!(events.head().expect("an answer").0, 200);
    let mut logs = open(&server, &key, "GET", &format!("{sandbox}/logs?follow=true"), &json!(null));
    assert_eq!(logs.head().expect("an answer").0, 200);
    let mut waiting = open(&server, &key, "GET", &format!("{exec}/output?wait=60"), &json!(null));
    let mut run = open(&server, &key, "POST", "/v1/runs", &json!({ "command": ["sleep", "60"] }));
    let host = server.client.host();
    let head = format!(
        "POST {exec}/stdin HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: 9\r\n\r\nx"
    );
    let mut typing = server.client.open(head.as_bytes());
    let begun = Instant::now();
    revoke(&server, &key[4..20]);
    loop {
        match terminal.frame() {
            Some(Frame::Close) | None => break,
            Some(_) => terminal.keys(b"true\n"),
        }
    }
    while events.read() {}
    while logs.read() {}
    for stream in [&mut waiting, &mut run, &mut typing] {
        assert_eq!(stream.answer().status, 401);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    assert_eq!(server.get(&exec).json()["status"], "running", "the program itself goes on");
}

#[test]
fn a_key_that_is_revoked_takes_its_open_streams_with_it() {
    ends_with_its_key(|server, id| assert_eq!(server.delete(&format!("/v1/keys/{id}")).status, 204));
}

#[test]
fn a_key_that_another_process_revokes_takes_its_open_streams_with_it() {
    ends_with_its_key(|server, id| {
        let state = server.folder.at("state");
        let mut command = Command::new(cli::airlock());
        command.args(["key", "revoke", id, "--state"]).arg(state);
        assert!(command.env("HOME", &server.folder.0).output().expect("airlock runs").status.success());
    });
}
