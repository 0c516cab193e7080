//! Claims 2, 12, 48 and 49 for a session's token: it reaches the control plane, and nobody else.

use crate::{
    Claim,
    engine::{Ended, Engine, path},
    upstream,
};
use std::{
    net::UdpSocket,
    path::Path,
    sync::{Once, mpsc},
};

pub(crate) const CLAIMS: &[Claim] = &[
    (
        "48 the control plane gets the token, the program never sees it",
        added,
    ),
    (
        "48 the token is in no environment, file or memory that the program can read",
        hidden,
    ),
    (
        "49 what the program says it is, is overwritten",
        overwritten,
    ),
    (
        "49 what two readers could read differently goes nowhere",
        smuggled,
    ),
    ("24 streams come through as they come", streamed),
    (
        "46 the control plane is reached by address, by hosts file and by a name server",
        names,
    ),
    (
        "47 what cannot be bridged ends the start, and what cannot be reached is 502",
        unreachable,
    ),
];

const TOKEN: &str = "session-0123456789abcdef";

fn options(folder: &Path) -> Vec<String> {
    let mount = format!("{}:/plane", path(folder));
    let token = format!("SESSION_TOKEN={TOKEN}");
    [
        "-v",
        &mount,
        "-e",
        &token,
        "-e",
        "CONTROL_PLANE_URL=unix:///plane/s",
        "-e",
        "SESSION_ID=session-7",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn run(engine: &Engine, options: &[String], line: &str) -> Ended {
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    engine.run(&options, &["sh", "-c", line])
}

/// A request, byte for byte.
fn send(request: &str) -> String {
    let written = request.replace('\r', "\\r").replace('\n', "\\n");
    format!("printf '{written}' | nc -w 5 127.0.0.1 8080")
}

fn added(engine: &Engine) {
    let folder = engine.folder();
    let asked = upstream::on_socket(&folder.join("s"), "plane", None);
    let post = send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nbody & more");
    let line = &format!(
        "{} | tail -n 1; {post} | tail -n 1",
        send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    );
    let ended = run(engine, &options(&folder), line);
    assert_eq!(
        (ended.status, ended.stdout.as_str(), ended.stderr.as_str()),
        (0, "plane\nbody & more", "")
    );
    let asked = asked.all();
    assert_eq!(asked.len(), 2, "{asked:?}");
    for request in asked.iter() {
        assert_eq!(
            request
                .matches(&format!("\r\nAuthorization: Bearer {TOKEN}\r\n"))
                .count(),
            1,
            "{request}"
        );
    }
    // Started as an ordinary user it is the same.
    let hardened: Vec<_> = ["--user", "1000:1000", "--cap-drop", "ALL", "--read-only"]
        .map(str::to_owned)
        .into();
    let ended = run(engine, &[options(&folder), hardened].concat(), line);
    assert_eq!(ended.stdout, "plane\nbody & more", "{ended:?}");
}

fn hidden(engine: &Engine) {
    let folder = engine.folder();
    upstream::on_socket(&folder.join("s"), "plane", None);
    // Everything that can be read of every process and every file; then the control, which is found.
    let line = "env; for p in /proc/[0-9]*; do for f in environ cmdline maps status auxv mem; do \
        dd if=$p/$f bs=65536 count=64 2>/dev/null; done; ls -l $p/fd 2>/dev/null; done; \
        find / -xdev -type f -readable -not -path '/bin/*' -size -2000 2>/dev/null | xargs cat 2>/dev/null; \
        echo control-$CONTROL";
    let line = &format!(
        "{line}; {} | tail -n 1",
        send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    );
    for start in [&[][..], &["--user", "1000:1000"]] {
        let extra = ["-e", "CONTROL=found", "-e", "AGENT_LOG=1"]
            .iter()
            .chain(start)
            .map(|text| (*text).to_owned());
        let ended = run(
            engine,
            &options(&folder)
                .into_iter()
                .chain(extra)
                .collect::<Vec<_>>(),
            line,
        );
        for secret in [TOKEN, "session-7", "unix:///plane"] {
            assert!(
                !ended.stdout.contains(secret) && !ended.stderr.contains(secret),
                "{secret} {}",
                ended.stderr
            );
        }
        assert!(
            ended.stdout.ends_with("control-found\nplane\n"),
            "{}",
            ended.stderr
        );
        assert!(
            ended.stdout.contains("CONTROL=found\0"),
            "environments were read"
        );
    }
    // A copy that was given to the program on purpose stays, and is told of by its name alone.
    let copy = ["-e".to_owned(), format!("OPENAI_API_KEY={TOKEN}")];
    let ended = run(
        engine,
        &[options(&folder), copy.to_vec()].concat(),
        "echo $OPENAI_API_KEY",
    );
    assert_eq!(ended.stdout, format!("{TOKEN}\n"));
    assert!(
        ended.stderr.contains("OPENAI_API_KEY") && !ended.stderr.contains(TOKEN),
        "{ended:?}"
    );
}

fn overwritten(engine: &Engine) {
    let folder = engine.folder();
    let asked = upstream::on_socket(&folder.join("s"), "plane", None);
    let spoofed = "GET /health HTTP/1.1\r\nHost: evil\r\nAuthorization: Bearer other\r\nauthorization: Basic x\r\n\
        X-Api-Key: other\r\nProxy-Authorization: other\r\nConnection: keep-alive\r\nX-Kept: yes\r\n\r\n";
    let ended = run(engine, &options(&folder), &send(spoofed));
    assert!(
        ended.stdout.contains("Connection: close") && !ended.stdout.contains("keep-alive"),
        "{ended:?}"
    );
    let expected = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\nX-Kept: yes\r\n\r\n"
    );
    assert_eq!(asked.all(), [expected]);
}

fn smuggled(engine: &Engine) {
    let folder = engine.folder();
    let asked = upstream::on_socket(&folder.join("s"), "plane", None);
    let head = |lines: &str| format!("POST /echo HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
    let wrong = [
        head("Content-Length: 1\r\nContent-Length: 2") + "xx",
        head("Content-Length: 4\r\nTransfer-Encoding: chunked") + "0\r\n\r\n",
        head("Transfer-Encoding: x-chunked") + "0\r\n\r\n",
        head("A: b\nAuthorization: c"),
        "GET http://elsewhere/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
    ];
    let line: Vec<_> = wrong.iter().map(|request| send(request)).collect();
    let line = line.join(" | head -n 1; ") + " | head -n 1";
    let ended = run(engine, &options(&folder), &line);
    assert_eq!(
        ended.stdout,
        "HTTP/1.1 400 Bad Request\r\n".repeat(wrong.len()),
        "{ended:?}"
    );
    assert_eq!(asked.all().len(), 0);
    let upgrade =
        send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let ended = run(engine, &options(&folder), &upgrade);
    assert!(ended.stdout.starts_with("HTTP/1.1 501 "), "{ended:?}");
    // A second request behind the first is not passed on; the first and chunks are.
    let chunks =
        head("Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n" + &head("Content-Length: 0");
    let ended = run(engine, &options(&folder), &send(&chunks));
    assert!(ended.stdout.ends_with("\r\n\r\nhello"), "{ended:?}");
    assert_eq!(asked.all().len(), 1);
}

fn streamed(engine: &Engine) {
    let (folder, (next, wait)) = (engine.folder(), mpsc::channel());
    upstream::on_socket(&folder.join("s"), "plane", Some(wait));
    let line = send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").replace("nc -w 5", "nc")
        + " | while read -r l; do case $l in data*) echo \"$l\";; esac; done";
    let options = options(&folder);
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let mut running = engine.begin(&options, &["sh", "-c", &line]);
    for event in 1..=3 {
        assert_eq!(running.line(), format!("data: {event}"));
        next.send(()).expect("the other end waits for it");
    }
    assert_eq!(running.wait().status, 0);
}

/// Answers every question with the loopback address, on an address that only these tests use.
fn name_server() -> &'static str {
    const ADDRESS: &str = "127.0.53.53";
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let socket = UdpSocket::bind((ADDRESS, 53)).expect("root may listen on port 53");
        std::thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let mut reply = message[..length].to_vec();
                (reply[2], reply[3], reply[7]) = (0x81, 0x80, 1);
                reply.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\x7f\0\0\x01");
                _ = socket.send_to(&reply, from);
            }
        });
    });
    ADDRESS
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

fn names(engine: &Engine) {
    let (port, asked) = upstream::on_port("by name");
    let folder = engine.folder();
    std::fs::write(
        folder.join("resolv.conf"),
        format!("nameserver {}\n", name_server()),
    )
    .expect("it can be written");
    std::fs::write(folder.join("hosts"), "127.0.0.1 in-hosts\n").expect("it can be written");
    let (resolv, hosts) = (folder.join("resolv.conf"), folder.join("hosts"));
    let mounts = [
        format!("{}:/etc/resolv.conf:ro", path(&resolv)),
        format!("{}:/etc/hosts:ro", path(&hosts)),
    ];
    let request = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
    for host in ["127.0.0.1", "in-hosts", "by.name.server"] {
        let (bridge, url) = (
            free_port(),
            format!("CONTROL_PLANE_URL=http://{host}:{port}"),
        );
        let options: Vec<_> = [
            "--network",
            "host",
            "-v",
            &mounts[0],
            "-v",
            &mounts[1],
            "-e",
            &format!("LLM_PROXY_PORT={bridge}"),
            "-e",
            &format!("SESSION_TOKEN={TOKEN}"),
            "-e",
            &url,
        ]
        .map(str::to_owned)
        .to_vec();
        let ended = run(
            engine,
            &options,
            &format!(
                "{} | tail -n 1",
                send(request).replace("8080", &bridge.to_string())
            ),
        );
        assert_eq!(ended.stdout, "by name\n", "{host}: {ended:?}");
    }
    let asked = asked.all();
    assert!(
        asked.len() == 3 && asked[2].contains(&format!("Host: by.name.server:{port}\r\n")),
        "{asked:?}"
    );
}

fn unreachable(engine: &Engine) {
    let with = |url: &str, extra: &[&str]| -> Vec<String> {
        let (url, token) = (
            format!("CONTROL_PLANE_URL={url}"),
            format!("SESSION_TOKEN={TOKEN}"),
        );
        ["-e", &url, "-e", &token]
            .iter()
            .chain(extra)
            .map(|text| (*text).to_owned())
            .collect()
    };
    let refused = |options: &[String], why: &str| {
        let ended = run(engine, options, "echo ran");
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (125, ""),
            "{ended:?}"
        );
        assert!(
            ended.stderr.contains(why) && !ended.stderr.contains(TOKEN),
            "{ended:?}"
        );
    };
    refused(&with("https://plane", &[]), "end TLS in front of it");
    refused(&with("unix:///plane/absent", &[]), "No such file");
    refused(&with("http://u:p@plane", &[]), "holds a user");
    refused(
        &with("http://plane", &["-e", "LLM_PROXY_SOCKET=/a"]),
        "both LLM_PROXY_SOCKET and SESSION_TOKEN",
    );
    refused(
        &with("http://no.such.name", &[]),
        "the host of CONTROL_PLANE_URL cannot be found",
    );
    let ended = run(
        engine,
        &with("http://127.0.0.1:9", &[]),
        &send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    );
    assert!(
        ended.stdout.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
        "{ended:?}"
    );
    // One of the two alone names nothing to bridge to.
    let ended = run(
        engine,
        &["-e".into(), format!("SESSION_TOKEN={TOKEN}")],
        "nc -w 1 127.0.0.1 8080 </dev/null; echo $?",
    );
    assert_eq!(ended.stdout, "1\n", "{ended:?}");
}
