//! One session cannot take from the others: not by being slow, not by being many, not by being large.

use doors_tests::{Answer, Ending, House, chat, request, streamed_chat};
use provider::{Fault, Script};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const CHAT: &str = "/v1/chat/completions";
const MIB: u64 = 1024;

fn openai() -> Value {
    json!({ "provider": "openai" })
}

/// The memory that the service has now, in KiB.
fn resident(house: &House) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", house.proxy.pid)).expect("it lives");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("its memory");
    line.split_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("a number")
}

fn connect(house: &House) -> TcpStream {
    let doors_tests::Door::Tcp(address) = &house.proxy.listen else {
        panic!("it listens by TCP")
    };
    let stream = TcpStream::connect(address).expect("it listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a timeout");
    stream
}

/// What comes until the door hangs up.
fn rest(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    // A door that hangs up on what it has not read resets the connection.
    _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn who_is_slow_to_ask_is_hung_up_on_and_others_are_served_meanwhile() {
    let house = House::with("[doors]\nheader_time = \"1s\"\nbody_time = \"1s\"\n", &[]);
    let (slow, other) = (
        house.register(&openai()).token,
        house.register(&openai()).token,
    );
    let silent = connect(&house);
    let mut head = connect(&house);
    head.write_all(b"POST /v1/chat/comp").expect("it is read");
    let mut body = connect(&house);
    let asked = format!("POST {CHAT} HTTP/1.1\r\nhost: door\r\nauthorization: Bearer {slow}\r\n");
    body.write_all(format!("{asked}content-length: 1000\r\n\r\n{{").as_bytes())
        .expect("it is read");
    let mut chunks = connect(&house);
    chunks
        .write_all(format!("{asked}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n").as_bytes())
        .expect("it is read");
    assert_eq!(house.status(&other), 200, "others are served");
    assert_eq!((rest(silent), rest(head)), (String::new(), String::new()));
    for stream in [body, chunks] {
        let told = rest(stream);
        assert!(
            told.starts_with("HTTP/1.1 408 ") && told.contains("request_timeout"),
            "{told}"
        );
    }
    assert_eq!(house.provider.served().count, 1);
    assert_eq!(house.status(&slow), 200, "and may ask again");
}

#[test]
fn a_reader_who_does_not_read_costs_no_memory_and_no_time_of_others() {
    let house = House::new();
    let (slow, other) = (
        house.register(&openai()).token,
        house.register(&openai()).token,
    );
    assert_eq!(house.status(&slow), 200);
    let before = resident(&house);
    // More each than the sockets between can hold.
    house.provider.set_model("large", Fault::Giant(32));
    let bearer = format!("Bearer {slow}");
    let asked = request("POST", CHAT, &[("authorization", &bearer)], &chat("large"));
    let streams: Vec<_> = (0..4).map(|_| house.proxy.listen.open(&asked)).collect();
    let large = |served: &provider::Served| {
        served
            .calls
            .iter()
            .filter(|call| call.model == "large")
            .count()
    };
    house.provider.await_served(|served| {
        large(served) == 4 && served.calls.iter().all(|call| call.status == 200)
    });
    for _ in 0..20 {
        assert_eq!(house.status(&other), 200, "others are served");
    }
    let grown = resident(&house).saturating_sub(before);
    assert!(
        grown < 16 * MIB,
        "{grown} KiB for answers that nobody reads"
    );
    // The provider waits for the reader, and has written down that the others are served.
    house.provider.await_served(|served| served.open == 4);
    drop(streams);
    house.provider.await_served(|served| served.open == 0);
}

#[test]
fn a_large_answer_passes_without_being_kept() {
    let house = House::new();
    let token = house.register(&openai()).token;
    assert_eq!(house.status(&token), 200);
    let before = resident(&house);
    house.provider.next(Fault::Giant(64));
    let answer = house.call(&token, CHAT, &chat("m"));
    assert!(answer.status == 200 && answer.body.len() > 64 << 20 && answer.ending == Ending::Whole);
    let grown = resident(&house).saturating_sub(before);
    assert!(grown < 16 * MIB, "{grown} KiB");
}

#[test]
fn requests_that_wait_for_their_answer_are_held_in_bounded_memory() {
    let house = House::with("[doors]\nbody_time = \"8s\"\n", &[]);
    let (large, other) = (
        house.register(&openai()).token,
        house.register(&openai()).token,
    );
    house.provider.set_model("large", Fault::HoldHeaders);
    let body = json!({ "model": "large", "messages": [{ "role": "user", "content": "x".repeat(30 << 20) }] });
    let bearer = format!("Bearer {large}");
    let asked = request(
        "POST",
        CHAT,
        &[("authorization", &bearer), ("connection", "close")],
        &body,
    );
    let (send, answers) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (send, asked, door) = (send.clone(), &asked, &house.proxy.listen);
            scope.spawn(move || {
                send.send(door.open(asked).finish())
                    .expect("it is waited for")
            });
        }
        house.provider.await_served(|served| served.held == 2);
        assert_eq!(house.status(&other), 200, "others are served");
        // Room is for 64 MiB: of the others nothing more is taken in than sockets hold.
        for _ in 0..2 {
            let refused = answers.recv().expect("an answer");
            assert!(
                refused.status == 429 || refused.ending == Ending::Reset,
                "{refused:?}"
            );
        }
        assert_eq!(house.provider.served().held, 2);
        house.provider.release();
        assert!((0..2).all(|_| answers.recv().expect("an answer").status == 200));
    });
    house.provider.set_model("large", Script::default());
    assert_eq!(
        house.proxy.listen.open(&asked).finish().status,
        200,
        "and then there is room again"
    );
}

#[test]
fn a_body_may_be_as_large_as_the_operator_says() {
    let house = House::with("[doors]\nbody = \"200MiB\"\nbody_time = \"20s\"\n", &[]);
    let token = house.register(&openai()).token;
    let body = chat("m").to_string();
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: door\r\nauthorization: Bearer TOKEN\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    assert_eq!(
        house.raw(&token, &chunked).status,
        200,
        "it says nothing of its length, and could be that large"
    );
    let small = House::with("[doors]\nbody = \"1MiB\"\n", &[]);
    let token = small.register(&openai()).token;
    let large =
        json!({ "model": "m", "messages": [{ "role": "user", "content": "x".repeat(2 << 20) }] });
    let answer = small.call(&token, CHAT, &large);
    assert!(
        answer.status == 413 || answer.ending == Ending::Reset,
        "{answer:?}"
    );
    let tiny = House::with("[doors]\nbody = \"64KiB\"\nbody_time = \"20s\"\n", &[]);
    let token = tiny.register(&openai()).token;
    let body = chat(&"m".repeat(200)).to_string() + &" ".repeat(65_400);
    let chunked = chunked.replace("TOKEN", &token);
    let head = chunked.split_inclusive("\r\n\r\n").next().expect("a head");
    let answer = tiny.raw(
        &token,
        &format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
    );
    assert!(
        answer.status == 413 || answer.ending == Ending::Reset,
        "{answer:?}"
    );
    assert_eq!(
        (small.provider.served().count, tiny.provider.served().count),
        (0, 0)
    );
}

#[test]
fn ten_thousand_strangers_who_say_nothing_leave_room_for_who_has_a_token() {
    let house = House::with("[doors]\nheader_time = \"10m\"\n", &[]);
    let token = house.register(&openai()).token;
    let mut kept = house.stream(&token, "mock-hold-2");
    kept.until("tok1");
    let before = resident(&house);
    let strangers: Vec<_> = (0..10_000).map(|_| connect(&house)).collect();
    for _ in 0..5 {
        assert_eq!(house.status(&token), 200, "whoever has a token is served");
    }
    let grown = resident(&house).saturating_sub(before);
    assert!(
        grown < 64 * MIB,
        "{grown} KiB for {} strangers",
        strangers.len()
    );
    // The first of them has been shown out; who has a token and was there before them has not.
    assert_eq!(rest(strangers.into_iter().next().expect("one")), "");
    house.provider.release();
    kept.until("[DONE]");
}

#[test]
fn a_session_has_so_many_calls_at_once_and_another_is_served_meanwhile() {
    let house = House::with("[doors]\nconcurrent = 8\n", &[]);
    let (many, other) = (
        house.register(&openai()).token,
        house.register(&openai()).token,
    );
    house.provider.set_model("held", Fault::Hold(1));
    let streams: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = house.stream(&many, "held");
            stream.until("tok0");
            stream
        })
        .collect();
    for _ in 0..100 {
        let refused: Answer = house.call(&many, CHAT, &streamed_chat("held"));
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert!(
            refused.header("retry-after").is_some() && refused.header("retry-after-ms").is_some()
        );
        assert_eq!(refused.header("x-should-retry"), Some("true"));
        assert!(refused.text().contains("concurrent"), "{}", refused.text());
        assert_eq!(house.status(&other), 200);
    }
    assert_eq!(
        house.provider.served().held,
        8,
        "the provider saw no more of them"
    );
    house.provider.release();
    assert!(
        streams
            .into_iter()
            .all(|stream| stream.finish().ending == Ending::Whole)
    );
    house.provider.await_served(|served| served.open == 0);
    house.await_settled(108);
    house.provider.set_model("held", Script::default());
    assert_eq!(
        house.call(&many, CHAT, &chat("held")).status,
        200,
        "and may go on"
    );
}

#[test]
fn a_session_has_so_many_connections_and_another_is_served_meanwhile() {
    let house = House::with("[doors]\nconnections = 4\n", &[]);
    let (many, other) = (
        house.register(&openai()).token,
        house.register(&openai()).token,
    );
    let health =
        format!("GET /health HTTP/1.1\r\nhost: door\r\nauthorization: Bearer {many}\r\n\r\n");
    let mut kept: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = house.proxy.listen.open(health.as_bytes());
            stream.until("\"status\":\"ok\"");
            stream
        })
        .collect();
    let refused = house.call(&many, CHAT, &chat("m"));
    assert_eq!(
        (refused.status, refused.header("x-should-retry")),
        (429, Some("true")),
        "{}",
        refused.text()
    );
    assert!(
        refused.header("retry-after").is_some(),
        "{:?}",
        refused.headers
    );
    assert_eq!(house.status(&other), 200);
    let bearer = format!("Bearer {many}");
    let asked = request("POST", CHAT, &[("authorization", &bearer)], &chat("m"));
    kept[0].send(&asked);
    kept[0].until("chat.completion");
    assert_eq!(
        house.provider.served().count,
        2,
        "on a connection it has, it is served"
    );
}
