//! Where one message ends and the next begins: nobody gets to argue about it, neither a program nor a provider.

use doors_tests::{Answer, Ending, House, chat, request, streamed_chat};
use provider::{Fault, Script};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const BODY: &str = "{\"model\":\"m\",\"messages\":[]}";
/// What must never be answered: it is smuggled behind another request.
const SMUGGLED: &str = "POST /v1/embeddings HTTP/1.1\r\nhost: door\r\nauthorization: Bearer TOKEN\r\n\
                        content-length: 25\r\n\r\n{\"model\":\"s\",\"input\":\"s\"}";

fn openai() -> Value {
    json!({ "provider": "openai" })
}

/// A request with these lines in its head, and these bytes behind it.
fn with(lines: &str, rest: &str) -> String {
    format!(
        "POST {CHAT} HTTP/1.1\r\nhost: door\r\nauthorization: Bearer TOKEN\r\n{lines}\r\n{rest}"
    )
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

/// How many answers there are in what came.
fn answers(answer: &Answer) -> usize {
    answer
        .raw
        .windows(9)
        .filter(|part| *part == b"HTTP/1.1 ")
        .count()
}

#[test]
fn a_head_that_could_be_read_in_two_ways_is_refused_and_the_connection_closed() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let length = format!("content-length: {}\r\n", BODY.len());
    for (what, lines) in [
        (
            "two lengths that differ",
            format!("{length}content-length: 5\r\n"),
        ),
        ("a list of lengths", "content-length: 27, 5\r\n".to_owned()),
        ("a length with a sign", "content-length: +27\r\n".to_owned()),
        ("a negative length", "content-length: -1\r\n".to_owned()),
        (
            "a length in hexadecimal",
            "content-length: 0x1b\r\n".to_owned(),
        ),
        (
            "a length beyond all numbers",
            "content-length: 99999999999999999999999\r\n".to_owned(),
        ),
        ("an empty length", "content-length: \r\n".to_owned()),
        (
            "chunked, then not",
            "transfer-encoding: chunked, identity\r\n".to_owned(),
        ),
        (
            "another coding",
            "transfer-encoding: identity\r\n".to_owned(),
        ),
        (
            "nearly chunked",
            "transfer-encoding: xchunked\r\n".to_owned(),
        ),
        (
            "a quoted coding",
            "transfer-encoding: \"chunked\"\r\n".to_owned(),
        ),
        (
            "a blank before the colon",
            format!("transfer-encoding : chunked\r\n{length}"),
        ),
        (
            "a blank before the colon of a length",
            "content-length : 27\r\n".to_owned(),
        ),
        (
            "a tab before the colon",
            "content-length\t: 27\r\n".to_owned(),
        ),
        ("a folded line", format!("x-a: b\r\n c\r\n{length}")),
        (
            "a folded coding",
            "transfer-encoding:\r\n chunked\r\n".to_owned(),
        ),
        ("a return alone", format!("x-a: b\rx-c: d\r\n{length}")),
        ("a zero byte in a value", format!("x-a: b\0c\r\n{length}")),
        ("a zero byte in a name", format!("x\0a: b\r\n{length}")),
        ("a line without a colon", format!("x-a\r\n{length}")),
        ("a line without a name", format!(": b\r\n{length}")),
        ("a control character", format!("x-a: \x01\r\n{length}")),
    ] {
        let answer = house.raw(&token, &with(&lines, &format!("{BODY}{SMUGGLED}")));
        assert_eq!(
            (answer.status, answers(&answer)),
            (400, 1),
            "{what}: {answer:?}"
        );
        assert_eq!(house.provider.served().connections, 0, "{what}");
    }
    let control = with(&format!("{length}connection: close\r\n"), BODY);
    assert_eq!(
        house.raw(&token, &control).status,
        200,
        "the positive control"
    );
}

#[test]
fn chunks_that_could_be_read_in_two_ways_are_refused_and_the_connection_closed() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let size = format!("{:x}", BODY.len());
    let flood = "x".repeat(100_000);
    for (what, chunks) in [
        ("a sign", format!("+{size}\r\n{BODY}\r\n0\r\n\r\n")),
        ("a minus", format!("-{size}\r\n{BODY}\r\n0\r\n\r\n")),
        ("a prefix", format!("0x{size}\r\n{BODY}\r\n0\r\n\r\n")),
        ("a blank before", format!(" {size}\r\n{BODY}\r\n0\r\n\r\n")),
        (
            "an overflow",
            format!("fffffffffffffffff\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        ("no size", format!("\r\n{BODY}\r\n0\r\n\r\n")),
        (
            "a size that is too small",
            format!("5\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a size that ends in a return alone",
            format!("{size}\r{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a size that ends in a line feed alone",
            format!("{size}\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "an extension with a line feed",
            format!("{size};a\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a flood of extensions",
            format!("{size};{flood}\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a flood of trailers",
            format!("{size}\r\n{BODY}\r\n0\r\nx: {flood}\r\n\r\n"),
        ),
    ] {
        let answer = house.raw(
            &token,
            &with(
                "transfer-encoding: chunked\r\n",
                &format!("{chunks}{SMUGGLED}"),
            ),
        );
        assert!(
            [400, 0].contains(&answer.status) && answers(&answer) < 2,
            "{what}: {answer:?}"
        );
        assert_eq!(house.provider.served().connections, 0, "{what}");
    }
    let control = with("transfer-encoding: chunked\r\n", &chunked(BODY));
    assert_eq!(
        house.raw(&token, &control).status,
        200,
        "the positive control"
    );
}

/// hyper follows RFC 9112, 6.3: chunks win over a length, and the length does not travel on. The specification would rather
/// see 400; what counts is that there is one reading, one request at the provider, and an end of the connection.
#[test]
fn chunks_with_a_length_beside_them_are_one_request_and_the_last_of_its_connection() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let coding = "transfer-encoding: chunked\r\n";
    let whole = chunked(BODY).len();
    for lines in [
        format!("content-length: 5\r\n{coding}"),
        format!("{coding}content-length: 5\r\n"),
        format!("{coding}content-length: {}\r\n", whole + 20),
        format!("content-length: 0\r\n{coding}"),
    ] {
        house.provider.reset();
        let answer = house.raw(
            &token,
            &with(&lines, &format!("{}{SMUGGLED}", chunked(BODY))),
        );
        assert_eq!(
            (answer.status, answers(&answer)),
            (200, 1),
            "{lines}: {answer:?}"
        );
        let served = house.provider.served();
        assert_eq!((served.count, served.malformed), (1, 0), "{lines}");
        assert_eq!(served.calls[0].body, BODY.as_bytes());
        assert_eq!(served.calls[0].header("transfer-encoding"), None);
    }
}

/// Both are read alike by everybody behind us, as the request is made anew: the same length twice, and lines that end in a
/// line feed alone, which RFC 9112, 2.2 lets a recipient take.
#[test]
fn what_has_one_reading_all_the_same_is_made_anew() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let length = format!("content-length: {}\r\n", BODY.len());
    let twice = with(&format!("connection: close\r\n{length}{length}"), BODY);
    let feeds = with(&format!("connection: close\r\n{length}"), "").replace("\r\n", "\n") + BODY;
    for raw in [twice, feeds] {
        house.provider.reset();
        let answer = house.raw(&token, &format!("{raw}{SMUGGLED}"));
        assert!(
            [200, 400].contains(&answer.status) && answers(&answer) == 1,
            "{answer:?}"
        );
        let served = house.provider.served();
        assert_eq!(
            (served.count, served.malformed),
            (u64::from(answer.status == 200), 0)
        );
        for call in served.calls {
            assert_eq!(
                (call.body.as_slice(), call.path.as_str()),
                (BODY.as_bytes(), CHAT)
            );
            assert_eq!(
                call.headers
                    .iter()
                    .filter(|(name, _)| name == "content-length")
                    .count(),
                1
            );
        }
    }
}

#[test]
fn requests_in_a_row_are_each_whole() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let length = format!("content-length: {}\r\n", BODY.len());
    let two = with(&length, BODY) + &with(&format!("{length}connection: close\r\n"), BODY);
    let answer = house.raw(&token, &two);
    assert_eq!(
        (
            answer.status,
            answers(&answer),
            house.provider.served().count
        ),
        (200, 2, 2)
    );
}

#[test]
fn a_head_beyond_its_bounds_is_refused() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let bearer = format!("Bearer {token}");
    let ask = |count: usize, size: usize| {
        let (names, value) = (
            (0..count)
                .map(|number| format!("x-{number}"))
                .collect::<Vec<_>>(),
            "v".repeat(size),
        );
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(names.iter().map(|name| (name.as_str(), value.as_str())));
        house
            .proxy
            .listen
            .ask(&request("POST", CHAT, &headers, &chat("m")))
    };
    // Four more are always there: host, authorization, connection, content-length.
    assert_eq!(
        (ask(96, 1).status, ask(1, 60_000).status),
        (200, 200),
        "the positive control"
    );
    house.provider.reset();
    for (count, size) in [
        (97, 1),
        (1000, 1),
        (1, 64 << 10),
        (90, 12 << 10),
        (1, 2 << 20),
    ] {
        let answer = ask(count, size);
        assert!(
            answer.status == 431 || answer.ending == Ending::Reset,
            "{count} {size}: {answer:?}"
        );
    }
    let path = format!("{CHAT}?{}", "x".repeat(70_000));
    let long = house.call(&token, &path, &chat("m"));
    assert!(
        [414, 431].contains(&long.status) || long.ending == Ending::Reset,
        "{long:?}"
    );
    assert_eq!(house.provider.served().count, 0);
    for fault in [Fault::HeaderFlood(101), Fault::HeaderGiant(600 << 10)] {
        house.provider.set(fault.clone());
        let answer = house.call(&token, CHAT, &chat("m"));
        assert_eq!(answer.status, 502, "{fault:?}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "upstream_unreachable");
    }
    house.provider.set(Fault::HeaderFlood(90));
    assert_eq!(house.status(&token), 200, "the positive control");
}

/// A stream of each dialect, what its answer says when it is broken off, and what only a whole one has.
fn streams() -> Vec<(
    &'static str,
    &'static str,
    Value,
    &'static str,
    &'static str,
)> {
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let contents = json!({ "contents": [{ "parts": [{ "text": "hello" }] }] });
    vec![
        (
            "openai",
            CHAT,
            streamed_chat("m"),
            "data: {\"error\":",
            "[DONE]",
        ),
        (
            "openai",
            "/v1/responses",
            json!({ "model": "m", "input": "hello", "stream": true }),
            "event: response.failed\ndata: {",
            "response.completed",
        ),
        (
            "claude",
            "/v1/messages",
            json!({ "model": "m", "max_tokens": 9, "stream": true, "messages": messages }),
            "event: error\ndata: {",
            "message_stop",
        ),
        (
            "gemini",
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            contents,
            "data: {\"error\":",
            "finishReason",
        ),
        (
            "ollama",
            "/api/chat",
            json!({ "model": "m", "messages": messages }),
            "\n{\"code\":",
            "\"done\":true",
        ),
    ]
}

#[test]
fn a_stream_that_breaks_says_so_in_its_own_dialect_and_has_no_end() {
    let house = House::with_patience("retries = 0\nidle = \"400ms\"");
    for (provider, path, body, words, last) in streams() {
        let token = house.register(&json!({ "provider": provider })).token;
        let whole = house.call(&token, path, &body);
        assert_eq!(whole.ending, Ending::Whole, "the positive control: {path}");
        assert!(
            whole.text().contains(last) && !whole.text().contains(words),
            "{path}: {}",
            whole.text()
        );
        for fault in [
            Fault::Cut(2),
            Fault::ResetAfter(2),
            Fault::Stall(2),
            Fault::BadFraming(2),
        ] {
            house.provider.next(fault.clone());
            let answer = house.call(&token, path, &body);
            let text = answer.text();
            assert_eq!(answer.status, 200, "{path} {fault:?}");
            assert_ne!(answer.ending, Ending::Whole, "{path} {fault:?}: {text}");
            assert!(
                !answer.raw.ends_with(b"0\r\n\r\n"),
                "{path} {fault:?}: no last chunk"
            );
            assert!(
                text.contains(words) && !text.contains(last),
                "{path} {fault:?}: {text}"
            );
            // A reset may overtake what was sent before it.
            assert!(
                text.contains("tok1") || matches!(fault, Fault::ResetAfter(_)),
                "{path} {fault:?}: {text}"
            );
        }
    }
    let endings: Vec<_> = house
        .await_settled(25)
        .iter()
        .map(|row| row["ending"].clone())
        .collect();
    assert_eq!(
        endings
            .iter()
            .filter(|ending| **ending == "complete")
            .count(),
        5,
        "{endings:?}"
    );
    assert_eq!(
        endings
            .iter()
            .filter(|ending| **ending == "upstream_stalled")
            .count(),
        5,
        "{endings:?}"
    );
    assert_eq!(
        endings
            .iter()
            .filter(|ending| **ending == "upstream_failed")
            .count(),
        15,
        "{endings:?}"
    );
}

#[test]
fn a_document_that_breaks_is_never_whole() {
    let house = House::with_patience("retries = 0\nidle = \"400ms\"");
    let token = house.register(&openai()).token;
    for fault in [
        Fault::Cut(0),
        Fault::ResetAfter(0),
        Fault::Stall(0),
        Fault::ShortBody(100),
    ] {
        house.provider.next(fault.clone());
        let answer = house.call(&token, CHAT, &chat("m"));
        assert!(
            answer.status == 502 || answer.ending != Ending::Whole,
            "{fault:?}: {answer:?}"
        );
    }
    assert_eq!(house.status(&token), 200, "the positive control");
}

#[test]
fn a_provider_that_never_answers_is_not_waited_for_for_ever() {
    let house = House::with_patience("retries = 0\nttfb = \"500ms\"");
    let token = house.register(&openai()).token;
    for fault in [
        Fault::Silence,
        Fault::TrickleHeaders(60),
        Fault::SlowHeaders(60_000),
        Fault::HoldHeaders,
    ] {
        for body in [chat("m"), streamed_chat("m")] {
            house.provider.next(fault.clone());
            let answer = house.call(&token, CHAT, &body);
            assert_eq!(answer.status, 504, "{fault:?}: {}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "upstream_timeout");
            assert_eq!(answer.header("x-should-retry"), Some("true"));
        }
    }
    for fault in [Fault::Reset, Fault::Close] {
        house.provider.next(fault.clone());
        let answer = house.call(&token, CHAT, &chat("m"));
        assert_eq!(answer.status, 502, "{fault:?}");
        assert_eq!(answer.json()["error"]["code"], "upstream_unreachable");
    }
    house.provider.next(Fault::Informational(20));
    assert_eq!(
        house.status(&token),
        200,
        "what is said before an answer is not the answer"
    );
    house.provider.next(Fault::Informational(200_000));
    let flooded = house.call(&token, CHAT, &chat("m"));
    assert!(
        [200, 502, 504].contains(&flooded.status),
        "{}",
        flooded.text()
    );
    assert_eq!(house.status(&token), 200, "the positive control");
}

#[test]
fn bytes_behind_an_answer_are_nobodys_answer() {
    let house = House::new();
    let (one, other) = (
        house.register(&openai()).token,
        house.register(&openai()).token,
    );
    for fault in [Fault::Poison, Fault::LongBody(20)] {
        for body in [chat("m"), streamed_chat("m")] {
            for _ in 0..5 {
                house.provider.next(fault.clone());
                let first = house.call(&one, CHAT, &body);
                assert_eq!(first.status, 200, "{fault:?}");
                assert!(!first.text().contains("poison"), "{}", first.text());
                let next = house.call(&other, CHAT, &chat("m"));
                assert_eq!(next.status, 200, "{fault:?}: {}", next.text());
                assert_eq!(
                    next.json()["choices"][0]["message"]["role"],
                    "assistant",
                    "{}",
                    next.text()
                );
            }
        }
    }
    house.provider.reset();
    (0..3).for_each(|_| assert_eq!(house.status(&one), 200));
    let connections: Vec<_> = house
        .provider
        .served()
        .calls
        .iter()
        .map(|call| call.connection)
        .collect();
    assert!(
        connections.iter().all(|one| *one == connections[0]),
        "the control: clean ones are kept: {connections:?}"
    );
}

#[test]
fn kept_connections_are_not_shared_between_tenants() {
    let house = House::new();
    let of = |tenant: &str| {
        let order = json!({ "provider": "openai", "tenant": tenant });
        house.register(&order).token
    };
    let tokens = [of("one"), of("one"), of("two"), of("one"), of("two")];
    for token in &tokens {
        assert_eq!(house.status(token), 200);
    }
    let connections: Vec<_> = house
        .provider
        .served()
        .calls
        .iter()
        .map(|call| call.connection)
        .collect();
    let [first, again, other, last, other_again] = connections[..] else {
        panic!("five calls: {connections:?}")
    };
    assert!(
        first != other && first == again && first == last && other == other_again,
        "each tenant has its own, and keeps it: {connections:?}"
    );
}

#[test]
fn frames_arrive_one_by_one_while_the_provider_pauses() {
    let house = House::new();
    for (provider, path, body, ..) in streams() {
        let token = house.register(&json!({ "provider": provider })).token;
        for at in 1..6 {
            house.provider.reset();
            house.provider.next(Script {
                tokens: 8,
                ..Fault::Hold(at).into()
            });
            let bearer = format!("Bearer {token}");
            let asked = request(
                "POST",
                path,
                &[("authorization", &bearer), ("connection", "close")],
                &body,
            );
            let mut stream = house.proxy.listen.open(&asked);
            // It comes although the provider says nothing more until it is released.
            stream.until(&format!("tok{}", at - 1));
            house.provider.await_served(|served| served.held == 1);
            assert!(
                !String::from_utf8_lossy(stream.came()).contains(&format!("tok{at}")),
                "{path}"
            );
            house.provider.release();
            assert_eq!(stream.finish().ending, Ending::Whole, "{path}");
        }
    }
}
