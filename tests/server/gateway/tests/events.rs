//! Events of a run: all of them, once, in order, however often the reader comes again.

use gateway_tests::Server;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Events as they came: id, kind, data.
type Events = Vec<(String, String, Value)>;

/// What is whole of a stream of events; comments are left away.
fn parse(text: &str) -> Events {
    let field = |block: &str, name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
            .to_owned()
    };
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let blocks = whole
        .split("\n\n")
        .filter(|block| block.contains("event: "));
    blocks
        .map(|block| {
            let data = serde_json::from_str(&field(block, "data: ")).expect("data is JSON");
            (field(block, "id: "), field(block, "event: "), data)
        })
        .collect()
}

/// Reads events from an id on, until the end or until so many bytes have come.
fn read(server: &Server, run: &str, last: Option<&str>, most: usize) -> Events {
    let headers: Vec<_> = last.map(|id| ("last-event-id", id)).into_iter().collect();
    let path = format!("/v1/runs/{run}/events");
    let mut stream =
        server
            .client
            .open(&server.request(&server.admin, "GET", &path, &headers, &Value::Null));
    let (status, headers) = stream.head().expect("an answer");
    assert_eq!(status, 200);
    assert!(headers.contains(&("content-type".into(), "text/event-stream".into())));
    let mut text = String::new();
    while let Some(piece) = stream.chunk() {
        text += &String::from_utf8(piece).expect("text");
        if text.len() >= most {
            text.truncate(
                (0..=most)
                    .rev()
                    .find(|at| text.is_char_boundary(*at))
                    .unwrap_or(0),
            );
            break;
        }
    }
    parse(&text)
}

/// What was written to a stream; panics where a piece is missing or comes twice.
fn output(events: &Events, name: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for (_, kind, data) in events {
        if kind == "output" && data["stream"] == name {
            assert_eq!(
                data["offset"],
                all.len(),
                "nothing is lost and nothing comes twice"
            );
            all.extend(data["text"].as_str().expect("text").as_bytes());
        }
    }
    all
}

fn begin(server: &Server, script: &str, id: &str) {
    let order = json!({ "command": ["sh", "-c", script], "run_id": id });
    let answer = server.ask(
        &server.admin,
        "POST",
        "/v1/runs",
        &[("prefer", "respond-async")],
        &order,
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
}

#[test]
fn a_reader_sees_the_start_the_output_and_the_end() {
    let server = Server::new();
    begin(&server, "echo out; echo err >&2; exit 4", "r");
    let events = read(&server, "r", None, usize::MAX);
    let kinds: Vec<_> = events.iter().map(|(_, kind, _)| kind.as_str()).collect();
    assert_eq!(
        (kinds[0], *kinds.last().unwrap()),
        ("started", "finished"),
        "{kinds:?}"
    );
    assert!(events[0].2["barriers"].as_array().unwrap().len() > 5);
    assert_eq!(
        (output(&events, "stdout"), output(&events, "stderr")),
        (b"out\n".to_vec(), b"err\n".to_vec())
    );
    assert_eq!(events.last().unwrap().2, server.get("/v1/runs/r").json());
}

#[test]
fn a_reader_who_is_cut_off_anywhere_reads_on_with_nothing_lost_or_doubled() {
    let server = Server::new();
    let script = "i=0; while [ $i -lt 60 ]; do echo \"line $i ä\"; echo \"other $i\" >&2; i=$((i+1)); sleep 0.01; done";
    begin(&server, script, "r");
    let (mut all, mut last) = (Events::new(), None::<String>);
    // Fixed, and different each time.
    let mut random = 12345_u32;
    for _ in 0..200 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let events = read(&server, "r", last.as_deref(), 100 + (random >> 20) as usize);
        last = events.last().map(|(id, _, _)| id.clone()).or(last);
        all.extend(events);
        if all.last().is_some_and(|(_, kind, _)| kind == "finished") {
            break;
        }
    }
    let wanted = |line: fn(usize) -> String| (0..60).map(line).collect::<String>().into_bytes();
    assert_eq!(
        output(&all, "stdout"),
        wanted(|number| format!("line {number} ä\n"))
    );
    assert_eq!(
        output(&all, "stderr"),
        wanted(|number| format!("other {number}\n"))
    );
    let count = |kind: &str| all.iter().filter(|(_, known, _)| known == kind).count();
    assert_eq!((count("started"), count("finished")), (1, 1));
}

#[test]
fn a_run_that_only_the_database_knows_is_told_the_same_way() {
    let server = Server::new();
    begin(&server, "echo out; echo err >&2", "r");
    let live = read(&server, "r", None, usize::MAX);
    let server = server.restart(rustix::process::Signal::TERM, "");
    let kept = read(&server, "r", None, usize::MAX);
    assert_eq!(output(&kept, "stdout"), output(&live, "stdout"));
    assert_eq!(kept.last().unwrap().2, live.last().unwrap().2);
    let rest = read(&server, "r", Some("1.0.2.0"), usize::MAX);
    let piece = rest
        .iter()
        .find(|(_, _, data)| data["stream"] == "stdout")
        .expect("the rest");
    assert_eq!(
        (&piece.2["offset"], &piece.2["text"]),
        (&json!(2), &json!("t\n"))
    );
    let odd = server.ask(
        &server.admin,
        "GET",
        "/v1/runs/r/events",
        &[("last-event-id", "x")],
        &Value::Null,
    );
    assert_eq!(odd.status, 400);
}

#[test]
fn what_was_denied_and_what_is_no_text_is_told() {
    let server = Server::new();
    begin(
        &server,
        "printf '\\377\\376'; cat </dev/tcp/192.0.2.1/80; python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'",
        "r",
    );
    let events = read(&server, "r", None, usize::MAX);
    let bytes = events
        .iter()
        .find(|(_, _, data)| data["base64"].is_string())
        .expect("bytes");
    assert_eq!(bytes.2["base64"], "//4=");
    let denied: Vec<_> = events
        .iter()
        .filter(|(_, kind, _)| kind == "denied")
        .map(|(_, _, data)| data)
        .collect();
    assert_eq!(
        denied.len(),
        server.get("/v1/runs/r").json()["denials"]
            .as_array()
            .unwrap()
            .len()
    );
}

/// Reads whatever comes, until nothing does for a while.
fn look(server: &Server, path: &str) {
    let mut stream =
        server
            .client
            .open(&server.request(&server.admin, "GET", path, &[], &Value::Null));
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    // It ends with the run.
    let reader = std::thread::spawn(move || {
        while stream.read() {
            count.fetch_add(std::mem::take(&mut stream.rest).len(), Ordering::Relaxed);
        }
    });
    let mut before = 0;
    server.until("the end of what he is shown", || {
        std::thread::sleep(Duration::from_millis(700));
        let now = seen.load(Ordering::Relaxed);
        reader.is_finished() || (now > 0 && now == std::mem::replace(&mut before, now))
    });
}

#[test]
fn whoever_merely_looks_takes_nothing_from_the_reader_that_the_program_waits_for() {
    let server = Server::new();
    let total = 24_000_000;
    let script = format!("head -c {total} /dev/zero | tr '\\0' x");
    let order = json!({ "command": ["sh", "-c", script], "run_id": "r" });
    let accept = [("accept", "text/event-stream")];
    let mut first =
        server
            .client
            .open(&server.request(&server.admin, "POST", "/v1/runs", &accept, &order));
    // Now he reads nothing for a while, and somebody else does.
    server.until("the run", || server.get("/v1/runs/r").status == 200);
    look(&server, "/v1/runs/r/events");
    assert_eq!(
        server.get("/v1/runs/r").json()["status"],
        "running",
        "the program waits for the first"
    );
    let text = first.answer().text();
    assert!(!text.contains("event: gap"), "nothing is lost");
    let end = format!("id: 1.0.{total}.0\nevent: finished");
    assert!(
        text.contains(&end),
        "the positive control: it goes on when he reads"
    );
}
