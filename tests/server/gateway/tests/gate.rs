//! Who may call at all: names, pages of others, and how much of everything.

use gateway_tests::{Client, Server, socket::Socket};
use serde_json::json;
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

fn port(server: &Server) -> u16 {
    match &server.client {
        Client::Tcp(address) => address.port(),
        Client::Unix(_) => panic!("a port"),
    }
}

#[test]
fn a_name_that_is_not_ours_is_refused_before_any_key_is_looked_at() {
    let server = Server::with("[serve]\nhosts = [\"box.example\"]\n", &[]);
    let port = port(&server);
    let status = |host: &str| {
        server
            .ask(
                &server.admin,
                "GET",
                "/v1/runs",
                &[("host", host)],
                &json!(null),
            )
            .status
    };
    for ours in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        "box.example".into(),
    ] {
        assert_eq!(status(&ours), 200, "{ours}");
    }
    for other in [
        format!("evil.example:{port}"),
        "localhost".into(),
        "127.0.0.1:1".into(),
    ] {
        assert_eq!(status(&other), 403, "{other}");
    }
    let open = server.ask(
        "",
        "GET",
        "/healthz",
        &[("host", "evil.example")],
        &json!(null),
    );
    assert_eq!(open.status, 403, "not even that it lives");
}

#[test]
fn pages_of_others_are_refused_handshakes_of_websockets_too() {
    let server = Server::new();
    let ours = format!("http://localhost:{}", port(&server));
    let ask = |headers: &[(&str, &str)]| {
        server
            .ask(&server.admin, "GET", "/v1/runs", headers, &json!(null))
            .status
    };
    assert_eq!(ask(&[("origin", &ours)]), 200);
    assert_eq!(ask(&[("sec-fetch-site", "same-origin")]), 200);
    for origin in ["http://evil.example", "null", "http://localhost:3000"] {
        assert_eq!(ask(&[("origin", origin)]), 403, "{origin}");
    }
    assert_eq!(ask(&[("sec-fetch-site", "cross-site")]), 403);
    let handshake = |origin| {
        let headers = [
            ("origin", origin),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        server
            .ask(
                &server.admin,
                "GET",
                "/v1/sandboxes/none/pty",
                &headers,
                &json!(null),
            )
            .status
    };
    assert_eq!(
        (handshake("http://evil.example"), handshake(&ours)),
        (403, 404)
    );
}

#[test]
fn a_body_that_is_too_large_is_refused_with_and_without_a_length() {
    let server = Server::with("[serve]\nbody = \"64K\"\n", &[]);
    let order = |size: usize| json!({ "command": ["true"], "stdin": "x".repeat(size) });
    assert_eq!(server.post("/v1/runs", &order(60 << 10)).status, 200);
    let large = server.post("/v1/runs", &order(64 << 10));
    assert_eq!(
        (large.status, &large.json()["code"]),
        (413, &json!("quota_exceeded"))
    );
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n",
        server.client.host(),
        server.admin
    );
    let mut stream = server.client.open(head.as_bytes());
    for _ in 0..80 {
        stream.send(format!("400\r\n{}\r\n", " ".repeat(1024)).as_bytes());
    }
    assert_eq!(stream.answer().status, 413);
}

#[test]
fn headers_are_bounded_in_number_and_size() {
    let server = Server::new();
    let ask = |count: usize, size: usize| {
        let value = "x".repeat(size);
        let names: Vec<_> = (0..count).map(|number| format!("x-{number}")).collect();
        let headers: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), value.as_str()))
            .collect();
        server
            .ask("", "GET", "/healthz", &headers, &json!(null))
            .status
    };
    assert_eq!((ask(50, 10), ask(1, 16 << 10)), (200, 200));
    assert_eq!((ask(200, 10), ask(1, 64 << 10)), (431, 431));
}

#[test]
fn headers_that_do_not_come_in_time_close_the_connection() {
    let server = Server::with("[serve]\nheader_time = \"300ms\"\n", &[]);
    let begun = Instant::now();
    let mut slow = server.client.open(b"GET /healthz HTTP/1.1\r\nhost: ");
    assert_eq!(slow.answer().status, 0, "nobody answers half a request");
    assert!(begun.elapsed() < Duration::from_secs(10));
    let mut idle = server
        .client
        .open(&server.request("", "GET", "/healthz", &[], &json!(null)));
    assert_eq!(idle.answer().status, 200);
    assert!(!idle.read(), "an idle connection is closed, too");
}

#[test]
fn headers_that_trickle_are_not_waited_for_any_longer() {
    let server = Server::with("[serve]\nheader_time = \"500ms\"\n", &[]);
    let begin = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port(&server))).expect("it listens");
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\n")
            .expect("it reads");
        stream
    };
    let (mut slow, begun) = (begin(), Instant::now());
    // Each line comes in time; whoever writes to a connection that was closed is told.
    while begun.elapsed() < Duration::from_secs(4) && slow.write_all(b"x: y\r\n").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "it would go on for ever"
    );
    let mut quick = begin();
    quick
        .write_all(format!("host: 127.0.0.1:{}\r\n\r\n", port(&server)).as_bytes())
        .expect("it reads");
    let mut said = [0; 15];
    quick.read_exact(&mut said).expect("an answer");
    assert_eq!(
        said.as_slice(),
        b"HTTP/1.1 200 OK",
        "the positive control: in parts, and in time"
    );
}

#[test]
fn bodies_of_a_key_are_bounded_while_they_arrive_and_fit_again_when_one_is_done() {
    let server = Server::with("[serve]\nbody = \"64M\"\n", &[]);
    let (another, order) = (server.key(&["runs"]), json!({ "command": ["true"] }));
    // All that a key may have on its way.
    let (length, text) = (64 << 20, order.to_string());
    let whole = [text.as_bytes(), &vec![b' '; length - text.len()]].concat();
    let (most, rest) = whole.split_at(length - 10);
    let begin = || {
        let (host, key) = (server.client.host(), &server.admin);
        let head = format!(
            "POST /v1/runs HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
        );
        let mut stream = server.client.open(head.as_bytes());
        stream.send(most);
        stream
    };
    let small = |key: &str| server.ask(key, "POST", "/v1/runs", &[], &order);
    let mut one = begin();
    server.until("the bound of the key", || {
        small(&server.admin).status == 429
    });
    let refused = small(&server.admin);
    assert_eq!(
        (&refused.json()["code"], refused.header("retry-after")),
        (&json!("quota_exceeded"), Some("1"))
    );
    assert_eq!(small(&another).status, 200, "it is nobody else's");
    one.send(rest);
    assert_eq!(
        one.answer().status,
        200,
        "the positive control: it is taken when it has come"
    );
    assert_eq!(small(&server.admin).status, 200);
    let two = begin();
    server.until("the bound of the key", || {
        small(&server.admin).status == 429
    });
    drop(two);
    server.until("the room of one that hung up", || {
        small(&server.admin).status == 200
    });
}

#[test]
fn connections_are_kept_and_bounded() {
    let server = Server::with("[serve]\nconnections = 2\n", &[]);
    let ask = server.request(&server.admin, "GET", "/v1/keys", &[], &json!(null));
    let mut one = server.client.open(&ask);
    assert_eq!(one.answer().status, 200);
    let mut two = server.client.open(&ask);
    assert_eq!(two.answer().status, 200);
    two.send(&ask);
    assert_eq!(two.answer().status, 200, "a kept connection serves again");
    let mut three = server.client.open(&ask);
    assert_eq!(three.answer().status, 200, "the idlest makes room for it");
    one.send(&ask);
    assert_eq!(one.answer().status, 0, "that was this one");
    two.send(&ask);
    assert_eq!(two.answer().status, 200, "and no other");
    let ask = server.request("", "GET", "/healthz", &[], &json!(null));
    let mut stranger = server.client.open(&ask);
    let answer = stranger.answer();
    assert_eq!(
        (answer.status, answer.header("connection")),
        (200, Some("close"))
    );
    stranger.send(&ask);
    assert_eq!(stranger.answer().status, 0, "a stranger asks once");
}

#[test]
fn what_is_not_a_request_is_refused() {
    let server = Server::new();
    for body in [
        "",
        "[]",
        "{",
        "{\"command\": \"true\"}",
        "{\"command\": []}",
        "null",
        "{\"command\": [1]}",
    ] {
        let bytes = format!(
            "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            server.client.host(),
            server.admin,
            body.len()
        );
        let answer = server.client.open(bytes.as_bytes()).answer();
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (400, &json!("invalid_spec")),
            "{body}"
        );
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
    }
    let typo = server
        .post("/v1/runs", &json!({ "command": ["true"], "memroy": "1G" }))
        .json();
    assert_eq!(
        (&typo["title"], &typo["detail"]),
        (
            &json!("`memroy` is not a known field"),
            &json!("did you mean `memory`?")
        )
    );
    assert_eq!(
        server
            .ask(&server.admin, "PUT", "/v1/runs", &[], &json!({}))
            .status,
        405
    );
}

#[test]
fn headers_beyond_what_is_documented_are_refused() {
    let server = Server::new();
    let with = |size: usize| {
        let long = "x".repeat(size / 4);
        let headers = ["a", "b", "c", "d"].map(|name| (name, long.as_str()));
        server
            .ask(&server.admin, "GET", "/v1/runs", &headers, &json!(null))
            .status
    };
    assert_eq!((with(30_000), with(34_000), with(100_000)), (200, 431, 431));
}

#[test]
fn who_may_not_ask_is_told_before_his_body_is_read() {
    let server = Server::new();
    let (weak, strong) = (server.key(&["usage"]), server.key(&["sandboxes"]));
    let begun = |key: &str, line: &str| {
        let host = server.client.host();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: 9\r\n\r\n{{"
        );
        server.client.open(head.as_bytes())
    };
    let lines = [
        "POST /v1/runs",
        "POST /v1/workspaces/x/commit",
        "PUT /v1/artifacts/x",
        "POST /v1/images?name=x",
    ];
    for line in lines {
        assert_eq!(begun(&weak, line).answer().status, 403, "{line}");
    }
    let mut allowed = begun(&strong, "POST /v1/workspaces/x/commit");
    allowed.send(b"       }");
    assert_eq!(
        allowed.answer().status,
        404,
        "who may ask is heard to the end"
    );
}

#[test]
fn a_body_that_is_only_announced_takes_no_room() {
    let server = Server::new();
    let key = server.key(&["runs"]);
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\nexpect: 100-continue\r\n\
         content-length: 10485760\r\n\r\n",
        server.client.host()
    );
    let mut announced: Vec<_> = (0..40)
        .map(|_| server.client.open(head.as_bytes()))
        .collect();
    let waited_for = |head: Option<(u16, _)>| head.is_some_and(|(status, _)| status == 100);
    assert!(
        announced.iter_mut().all(|one| waited_for(one.head())),
        "their bodies are waited for"
    );
    let another = server.post("/v1/runs", &json!({ "command": ["true"] }));
    assert_eq!(another.status, 200, "{}", another.text());
}

#[test]
fn a_key_takes_its_share_of_the_connections_and_no_more() {
    let server = Server::with("[serve]\nconnections = 16\n", &[]);
    let [hers, his] = ["sandboxes"; 2].map(|scope| server.key(&[scope]));
    let made = server.ask(&hers, "POST", "/v1/sandboxes", &[], &json!({}));
    let sandbox = format!(
        "/v1/sandboxes/{}",
        made.json()["sandbox_id"].as_str().expect("its name")
    );
    let order = json!({ "command": ["sleep", "600"], "background": true });
    assert_eq!(
        server
            .ask(&hers, "POST", &format!("{sandbox}/exec"), &[], &order)
            .status,
        201
    );

    let ask = server.request(
        &hers,
        "GET",
        &format!("{sandbox}/logs?follow=true"),
        &[],
        &json!(null),
    );
    let mut open: Vec<_> = (0..7).map(|_| server.client.open(&ask)).collect();
    assert!(
        open.iter_mut()
            .all(|one| one.head().is_some_and(|(status, _)| status == 200))
    );
    let one_more = server.client.open(&ask).answer();
    let told = one_more.json();
    assert_eq!(
        (one_more.status, &told["code"]),
        (429, &json!("quota_exceeded"))
    );
    assert_eq!(
        told["title"],
        "a tenant has at most 7 streams, waits and transfers open at once"
    );

    assert_eq!(
        server
            .ask(&his, "POST", "/v1/sandboxes", &[], &json!({}))
            .status,
        201
    );
    assert_eq!(
        server.ask("", "GET", "/healthz", &[], &json!(null)).status,
        200
    );
    assert_eq!(
        server.ask(&hers, "GET", &sandbox, &[], &json!(null)).status,
        200,
        "what is short is served"
    );
    drop(open);
    let bearer = format!("Bearer {hers}");
    let look = || {
        Socket::open(
            &server.client,
            &format!("{sandbox}/pty"),
            &[("authorization", &bearer)],
        )
    };
    let mut sockets = Vec::new();
    server.until("room", || {
        sockets.extend(look().ok());
        sockets.len() == 7
    });
    assert_eq!(look().err(), Some(429), "terminals are counted, too");
    sockets.pop();
    server.until("room", || look().is_ok());
}
