//! What is metered is what was served, whatever the answer looks like, and whoever leaves: doors.md 6, D 25 and 27 to 32. That
//! nothing but this is done to an answer: what a client gets is what it would have got without us. (Every shape cut at every
//! byte is the corpus of the dialects' own tests.)

use doors_tests::{
    Answer, Ending, House, REAL_KEY, Session,
    money::{ReportedUsage, Way, dollars, price, times, worst},
};
use provider::{Encoding, Fault, Provider, Script, Settings};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;

/// Everything that has a price of its own, in one prompt.
fn rich() -> Script {
    Script {
        tokens: 13,
        input: Some(1000),
        cache_read: 300,
        cache_write_5m: 50,
        cache_write_1h: 70,
        reasoning: 5,
        ..Script::default()
    }
}

fn with(fault: Fault) -> Script {
    Script {
        fault: Some(fault),
        ..rich()
    }
}

/// Ways to say the same in this dialect.
fn shapes(way: Way) -> Vec<(&'static str, Script)> {
    let mut shapes = vec![
        ("plain", rich()),
        (
            "nothing",
            Script {
                tokens: 0,
                reasoning: 0,
                ..rich()
            },
        ),
        (
            "crlf",
            Script {
                crlf: true,
                ..rich()
            },
        ),
        (
            "tight",
            Script {
                tight: true,
                ..rich()
            },
        ),
        (
            "comments",
            Script {
                comments: true,
                ..rich()
            },
        ),
        (
            "byte by byte",
            Script {
                split: Some(1),
                ..rich()
            },
        ),
        (
            "in sevens",
            Script {
                split: Some(7),
                crlf: true,
                comments: true,
                ..rich()
            },
        ),
        (
            "words",
            Script {
                text: Some("Zwölf Boxkämpfer \"jagen\" {Viktor} 🦊 \\n data: x ".into()),
                ..rich()
            },
        ),
        ("usage twice", with(Fault::UsageTwice)),
        ("no last word", with(Fault::NoDone)),
        ("usage at the end alone", with(Fault::UsageOnlyAtEnd)),
    ];
    match way {
        Way::Chat => shapes.extend([
            (
                "usage on a chunk with choices",
                with(Fault::UsageWithChoices),
            ),
            ("null, then usage", with(Fault::UsageNullFirst)),
            ("usage on every frame", with(Fault::UsageEveryFrame)),
        ]),
        Way::Responses => shapes.push(("failed", with(Fault::Fails(4)))),
        _ => {}
    }
    shapes
}

/// Whether this shape says everything at its end. A last word that is missing takes the usage with it where they are one.
fn says_all(way: Way, name: &str, stream: bool) -> bool {
    let in_last = matches!(way, Way::Responses | Way::OllamaChat | Way::OllamaGenerate);
    !(stream && in_last && name == "no last word")
}

#[test]
fn what_was_served_is_metered_to_the_token_in_every_shape() {
    let mut house = House::new();
    let mut certain = Vec::new();
    for way in Way::ALL {
        for (name, script) in shapes(way) {
            for stream in [false, true]
                .into_iter()
                .filter(|stream| says_all(way, name, *stream))
            {
                house.provider.reset();
                house.provider.set(script.clone());
                let session = house.session(way, &json!({}));
                let answer = house.ask(&session, way, stream, None);
                assert_eq!(
                    (answer.status, answer.ending),
                    (200, Ending::Whole),
                    "{way:?} {name}"
                );
                let served = house.all_served();
                assert_eq!(
                    house.told(&session),
                    ReportedUsage::exactly(1, &served.tokens),
                    "{way:?}, {name}, stream {stream}: {}",
                    answer.text()
                );
                // Events without a last word may have been meant to go on.
                let is_open = stream && name == "no last word" && way == Way::Gemini;
                certain.push(json!(if is_open { "partial" } else { "final" }));
            }
        }
    }
    house.proxy.end(Signal::TERM);
    let sources: Vec<_> = house
        .rows("settle")
        .iter()
        .map(|row| row["source"].clone())
        .collect();
    assert_eq!(sources, certain);
}

#[test]
fn an_answer_that_was_capped_is_metered_as_incomplete_ones_are() {
    let house = House::new();
    for (way, stream) in Way::ALL
        .into_iter()
        .flat_map(|way| [(way, false), (way, true)])
    {
        house.provider.reset();
        house.provider.set(Script {
            tokens: 50,
            reasoning: 5,
            ..Script::default()
        });
        let session = house.session(way, &json!({}));
        let answer = house.ask(&session, way, stream, Some(9));
        let served = house.all_served();
        assert_eq!(served.tokens.generated(), 9, "{way:?}");
        assert_eq!(
            house.told(&session),
            ReportedUsage::exactly(1, &served.tokens),
            "{way:?}"
        );
        assert!(
            way != Way::Responses || answer.text().contains("\"incomplete\""),
            "{}",
            answer.text()
        );
    }
}

#[test]
fn what_is_cached_has_its_own_price_by_its_time() {
    let house = House::new();
    house.reconfigure(|text| {
        text + "[prices.\"cached\"]\ninput = 3.0\noutput = 15.0\ncache_read = 0.3\ncache_write = 3.75\n\
                cache_write_1h = 6.0\n"
    });
    for (stream, fault) in [
        (false, None),
        (true, None),
        (true, Some(Fault::UsageTwice)),
        (true, Some(Fault::UsageOnlyAtEnd)),
    ] {
        house.provider.reset();
        house.provider.set(Script { fault, ..rich() });
        let (way, session) = (Way::Messages, house.session(Way::Messages, &json!({})));
        let body = way.body("cached", stream, None);
        house
            .proxy
            .listen
            .ask(&way.request(&session.token, "cached", stream, &body));
        let tokens = house.all_served().tokens;
        assert_eq!(
            (
                tokens.input,
                tokens.cache_read,
                tokens.cache_write_5m,
                tokens.cache_write_1h
            ),
            (580, 300, 50, 70)
        );
        let input = 580 * 3_000 + 300 * 300 + 50 * 3_750 + 70 * 6_000;
        let told = house.told(&session);
        assert_eq!(
            (told.money, told.input, told.cached),
            (input + 18 * 15_000, 1000, 300)
        );
    }
}

#[test]
fn an_embedding_is_metered_too() {
    let house = House::new();
    for (provider, path, body) in [
        (
            "openai",
            "/v1/embeddings",
            json!({ "model": "m", "input": "hello" }),
        ),
        (
            "ollama",
            "/api/embed",
            json!({ "model": "m", "input": "hello" }),
        ),
    ] {
        house.provider.reset();
        let session = house.register(&json!({ "provider": provider }));
        assert_eq!(house.call(&session.token, path, &body).status, 200);
        assert_eq!(
            house.told(&session),
            ReportedUsage::exactly(1, &house.all_served().tokens),
            "{path}"
        );
    }
}

/// Without a word on usage there is an estimate; under a limit it is no less than what was served.
#[test]
fn a_provider_that_says_no_usage_is_not_free() {
    let mut house = House::new();
    let mut count = 0;
    for (way, stream) in Way::ALL
        .into_iter()
        .flat_map(|way| [(way, false), (way, true)])
    {
        for fault in [Fault::NoUsage, Fault::NoDone]
            .into_iter()
            .filter(|fault| *fault == Fault::NoUsage || stream)
        {
            if fault == Fault::NoDone && says_all(way, "no last word", true) {
                continue;
            }
            house.provider.reset();
            house.provider.set(Script {
                tokens: 30,
                fault: Some(fault.clone()),
                ..Script::default()
            });
            let (free, limited) = (
                house.session(way, &json!({})),
                house.session(way, &json!({ "usd": "1" })),
            );
            house.ask(&free, way, stream, Some(40));
            house.ask(&limited, way, stream, Some(40));
            let each = price(&house.all_served().tokens) / 2;
            let told = house.told(&free);
            assert!(
                told.input > 0 && told.output >= 30,
                "{way:?} {stream} {fault:?}: {told:?}"
            );
            let told = house.told(&limited);
            assert!(
                told.money >= each && told.overrun == 0,
                "{way:?} {stream} {fault:?}: {told:?}, served {each}"
            );
            count += 2;
        }
    }
    house.proxy.end(Signal::TERM);
    let sources: Vec<_> = house
        .rows("settle")
        .iter()
        .map(|row| row["source"].clone())
        .collect();
    assert!(
        sources.len() == count && !sources.contains(&json!("final")),
        "it is not said to be certain: {sources:?}"
    );
}

/// When the client goes.
const MOMENTS: [(&str, Fault); 3] = [
    ("before the headers", Fault::HoldHeaders),
    ("after the first frame", Fault::Hold(1)),
    ("before the usage", Fault::Hold(8)),
];

/// A client that goes at this moment; what was served in the end.
fn leave(house: &House, session: &Session, way: Way, (name, fault): &(&str, Fault)) -> u64 {
    house.provider.reset();
    house.provider.set(fault.clone());
    let asked = way.request(&session.token, "m", true, &way.body("m", true, Some(40)));
    let mut stream = house.proxy.listen.open(&asked);
    house.provider.await_served(|served| served.held == 1);
    match *name {
        "before the headers" => {}
        "after the first frame" => stream.until("tok0"),
        _ => stream.until("tok7"),
    }
    drop(stream);
    house.provider.release();
    price(&house.all_served().tokens)
}

#[test]
fn a_client_that_leaves_has_a_row_and_pays() {
    for on_abort in ["drain", "cancel"] {
        let house = House::new();
        house.reconfigure(|text| {
            let all = format!("allow_private = true\non_client_abort = \"{on_abort}\"\n");
            text.replace("allow_private = true\n", &all)
        });
        for (way, moment) in Way::ALL
            .into_iter()
            .flat_map(|way| MOMENTS.map(|moment| (way, moment)))
        {
            let (free, limited) = (
                house.session(way, &json!({})),
                house.session(way, &json!({ "usd": "1" })),
            );
            let name = format!("{way:?}, {on_abort}, {}", moment.0);
            let served = leave(&house, &free, way, &moment);
            let told = house.told(&free);
            assert!(told.calls == 1 && told.money > 0, "{name}: {told:?}");
            if on_abort == "drain" && moment.0 != "before the headers" {
                assert_eq!(told.money, served, "who reads on knows it exactly: {name}");
            }
            let served = leave(&house, &limited, way, &moment);
            let told = house.told(&limited);
            assert!(
                told.calls == 1 && told.money >= served && told.money > 0,
                "{name}: {told:?}, served {served}"
            );
        }
    }
}

#[test]
fn an_encoded_answer_is_refused_and_paid_never_passed_on_unmetered() {
    let house = House::new();
    let all = [
        Encoding::Gzip,
        Encoding::Deflate,
        Encoding::Zstd,
        Encoding::GzipTwice,
        Encoding::GzipLie,
        Encoding::BrLie,
        Encoding::Unknown,
    ];
    let mut faults: Vec<_> = all.into_iter().map(Fault::Encoding).collect();
    faults.push(Fault::Bomb(64));
    for fault in faults {
        for (way, stream) in [
            (Way::Chat, false),
            (Way::Chat, true),
            (Way::Messages, true),
            (Way::OllamaChat, false),
        ] {
            if fault == Fault::Bomb(64) && stream {
                continue;
            }
            house.provider.next(fault.clone());
            let session = house.session(way, &json!({ "usd": "1" }));
            let answer = house.ask(&session, way, stream, Some(40));
            assert_eq!(
                (answer.status, answer.header("x-airlock-error")),
                (502, Some("upstream_encoding"))
            );
            assert!(
                !answer.text().contains("tok0"),
                "{fault:?}: {}",
                answer.text()
            );
            let length = way.body("m", stream, Some(40)).to_string().len();
            assert_eq!(
                house.told(&session).money,
                worst(length, 40),
                "{fault:?} {way:?}"
            );
            assert_eq!(
                house.ask(&session, way, stream, Some(40)).status,
                200,
                "the positive control"
            );
        }
    }
    let asked = house.provider.served();
    assert!(asked.calls.iter().all(|call| {
        call.header("accept-encoding")
            .is_none_or(|word| word == "identity")
    }));
}

/// Memory of a process that was written at least once, at its highest, in KiB.
fn highest_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("its highest memory");
    line.split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

#[test]
fn a_giant_answer_passes_and_its_usage_is_found_without_keeping_it() {
    let house = House::new();
    let size = times(32, 200) as usize;
    for way in [Way::Chat, Way::Messages, Way::Gemini, Way::OllamaChat] {
        house.provider.reset();
        let session = house.session(way, &json!({}));
        assert_eq!(
            house.ask(&session, way, false, None).status,
            200,
            "what is needed once is there"
        );
        let before = highest_memory(house.proxy.pid);
        house.provider.next(Fault::Giant(size));
        let asked = way.request(&session.token, "m", false, &way.body("m", false, None));
        let passed = house
            .proxy
            .listen
            .open(&asked)
            .discard_until(b"x\"", size << 20);
        assert!(passed > size << 20, "{way:?}: {passed}");
        let grown = highest_memory(house.proxy.pid) - before;
        assert!(grown < 1024, "{way:?}: {grown} KiB more for {size} MiB");
        assert_eq!(
            house.told(&session),
            ReportedUsage::exactly(2, &house.all_served().tokens),
            "{way:?}"
        );
    }
}

/// The same calls in the same order to a provider of their own, without us.
struct Twin {
    house: House,
    alone: Provider,
}

impl Twin {
    fn new() -> Twin {
        let settings = Settings {
            keys: vec![REAL_KEY.to_owned()],
            ..Settings::default()
        };
        Twin {
            house: House::new(),
            alone: Provider::start(settings),
        }
    }

    /// What a client gets here and there.
    fn ask(&self, way: Way, stream: bool, body: &Value, script: &Script) -> [Answer; 2] {
        let session = self.house.session(way, &json!({}));
        self.house.provider.set(script.clone());
        self.alone.set(script.clone());
        let direct = doors_tests::Door::Tcp(self.alone.address());
        [
            self.house
                .proxy
                .listen
                .ask(&way.request(&session.token, "m", stream, body)),
            direct.ask(&way.request(REAL_KEY, "m", stream, body)),
        ]
    }
}

/// Usage beside choices comes from some providers whether it is asked for or not, and is left to the client.
fn is_ambiguous(name: &str) -> bool {
    [
        "usage on a chunk with choices",
        "usage on every frame",
        "null, then usage",
    ]
    .contains(&name)
}

#[test]
fn a_client_gets_the_same_bytes_as_without_us() {
    let twin = Twin::new();
    // This provider puts a comment before each event, also before the one that we asked for; comments say nothing.
    let told = |answer: &Answer| {
        answer
            .text()
            .replace(": mock\n\n", "")
            .replace(": mock\r\n\r\n", "")
    };
    for way in Way::ALL {
        let bare = shapes(way)
            .into_iter()
            .chain([("no usage", with(Fault::NoUsage))]);
        for (name, script) in bare {
            for stream in [false, true]
                .into_iter()
                .filter(|stream| !(*stream && is_ambiguous(name)))
            {
                let [here, there] =
                    twin.ask(way, stream, &way.body("m", stream, Some(99)), &script);
                assert!(
                    !there.body.is_empty() && there.status == 200,
                    "{way:?} {name}"
                );
                assert_eq!(
                    (here.status, here.ending),
                    (there.status, there.ending),
                    "{way:?} {name} {stream}"
                );
                assert_eq!(told(&here), told(&there), "{way:?} {name} {stream}");
                assert_eq!(here.header("content-type"), there.header("content-type"));
            }
        }
    }
}

/// Whoever asks for the usage of a stream gets it, byte for byte.
#[test]
fn usage_that_was_asked_for_is_not_taken_out() {
    let twin = Twin::new();
    for (name, script) in shapes(Way::Chat) {
        let mut body = Way::Chat.body("m", true, None);
        body["stream_options"] = json!({ "include_usage": true });
        let [here, there] = twin.ask(Way::Chat, true, &body, &script);
        assert!(
            there.text().contains("\"prompt_tokens\""),
            "{name}: {}",
            there.text()
        );
        assert_eq!(here.text(), there.text(), "{name}");
    }
}

#[test]
fn a_request_that_needs_no_change_is_forwarded_byte_for_byte() {
    let house = House::new();
    for (way, stream) in Way::ALL
        .into_iter()
        .flat_map(|way| [(way, false), (way, true)])
    {
        // As no writer of JSON would write it.
        let mut text = way
            .body("m", stream, Some(77))
            .to_string()
            .replace("\":", "\" :\t")
            .replace(",\"", "\n ,\r\n\"");
        if way == Way::Chat && stream {
            text = text.replacen('{', "{\"stream_options\":{\"include_usage\" : true},", 1);
        }
        text = format!(" \n{text}\r\n");
        let session = house.session(way, &json!({ "usd": "1" }));
        house.provider.reset();
        let head = way.request(&session.token, "m", stream, &Value::Null);
        let head = String::from_utf8(head).expect("text");
        let asked = head.replace(
            "content-length: 0",
            &format!("content-length: {}", text.len()),
        ) + &text;
        let answer = house.proxy.listen.ask(asked.as_bytes());
        assert_eq!(answer.status, 200, "{way:?}: {}", answer.text());
        let served = house.all_served();
        assert_eq!(
            String::from_utf8_lossy(&served.calls[0].body),
            text,
            "{way:?} {stream}"
        );
    }
}

/// A whole answer that was read to its last byte is complete, also when nobody waits for what comes behind it.
#[test]
fn a_long_answer_with_a_length_is_recorded_as_complete() {
    let mut house = House::new();
    for way in [Way::Chat, Way::Messages, Way::OllamaChat] {
        house.provider.set(Script {
            reply_bytes: Some(300_000),
            ..Script::default()
        });
        let session = house.session(way, &json!({}));
        for _ in 0..4 {
            assert_eq!(house.ask(&session, way, false, None).ending, Ending::Whole);
        }
        assert_eq!(house.told(&session).calls, 4);
    }
    assert_eq!(
        house.all_served().connections,
        3,
        "connections are used again"
    );
    house.proxy.end(Signal::TERM);
    let endings: Vec<_> = house
        .rows("settle")
        .iter()
        .map(|row| row["ending"].clone())
        .collect();
    assert_eq!(endings, vec![json!("complete"); 12]);
}

#[test]
fn money_is_written_as_it_is_counted() {
    assert_eq!(
        (dollars(1), dollars(2_000_000_001)),
        ("0.000000001".to_owned(), "2.000000001".to_owned())
    );
    let house = House::new();
    let session = house.session(Way::Chat, &json!({ "usd": "0.000123457" }));
    let told = house
        .admin(
            "GET",
            &format!("/v1/sessions/{}/usage", session.id),
            &Value::Null,
        )
        .json();
    assert_eq!(told["budget"]["usd"], 0.000_123_457);
}
