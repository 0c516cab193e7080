//! Every fault has its effect, by the bytes that a client sees and by the account; and without it nothing is wrong.

mod common;

use common::{Answer, Ending, KEY, open, post, read, request, start};
use flate2::read::{GzDecoder, ZlibDecoder};
use provider::{Encoding, End, Fault, Operation, Provider, Script, Served, Verbatim};
use serde_json::{Value, json};
use std::io::Read;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

fn streamed() -> Value {
    json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true } })
}

fn whole() -> Value {
    json!({ "model": "m" })
}

/// One call under this fault.
fn ask(fault: Fault, path: &str, body: &Value) -> (Answer, Served) {
    let provider = start();
    provider.set(fault);
    let answer = post(&provider, path, body);
    (
        answer,
        provider.await_served(|served| served.count == 1 && served.open == 0),
    )
}

fn chat(fault: Fault, body: &Value) -> (Answer, Served) {
    ask(fault, CHAT, body)
}

/// How it ended for the client and for the provider, and how many tokens left.
fn outcome(fault: Fault, body: &Value) -> (Ending, End, u64) {
    let (answer, served) = chat(fault, body);
    (answer.ending, served.calls[0].end, served.tokens.output)
}

#[test]
fn without_a_fault_nothing_is_wrong() {
    let provider = start();
    for body in [whole(), streamed()] {
        let answer = post(&provider, CHAT, &body);
        assert_eq!((answer.status, answer.ending), (200, Ending::Whole));
        assert!(
            answer.header("set-cookie").is_none() && answer.header("content-encoding").is_none()
        );
    }
    assert_eq!(provider.served().malformed, 0);
}

#[test]
fn errors_come_with_status_and_patience_as_ordered_and_bill_only_so() {
    let fault = Fault::Status {
        code: 429,
        retry_after: Some("7".into()),
        bills: false,
    };
    let (answer, served) = chat(fault, &streamed());
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (429, Some("7"))
    );
    assert_eq!(
        (
            answer.json()["error"]["type"].clone(),
            served.tokens.prompt()
        ),
        (json!("rate_limit_error"), 0)
    );
    let (answer, served) = chat(
        Fault::Status {
            code: 529,
            retry_after: None,
            bills: true,
        },
        &whole(),
    );
    assert_eq!((answer.status, answer.header("retry-after")), (529, None));
    assert_eq!(
        (served.tokens.prompt() > 0, served.tokens.output),
        (true, 0)
    );
    let (answer, _) = chat(Fault::Refuse("context_length_exceeded".into()), &whole());
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    let (answer, _) = chat(Fault::ErrorWithKey(401), &whole());
    assert!(answer.status == 401 && answer.text().contains(KEY));
    let (answer, _) = chat(
        Fault::Redirect {
            code: 307,
            location: "http://other/x".into(),
        },
        &whole(),
    );
    assert_eq!(
        (answer.status, answer.header("location")),
        (307, Some("http://other/x"))
    );
}

#[test]
fn orders_are_taken_in_turn_then_it_is_as_before() {
    let provider = start();
    let failing = || Fault::Status {
        code: 503,
        retry_after: None,
        bills: false,
    };
    provider.next(failing());
    provider.next(failing());
    provider.set_model(
        "other",
        Script {
            tokens: 2,
            ..Script::default()
        },
    );
    let status = |model: &str| post(&provider, CHAT, &json!({ "model": model })).status;
    assert_eq!([status("m"), status("other"), status("m")], [503, 503, 200]);
    provider.reset();
    status("other");
    status("m-tokens-3");
    assert_eq!(
        provider
            .await_served(|served| served.count == 2 && served.open == 0)
            .tokens
            .output,
        5
    );
}

#[test]
fn an_order_is_not_spent_on_a_call_that_is_turned_away() {
    let provider = start();
    provider.next(Fault::Refuse("ordered".into()));
    let wrong = request("POST", CHAT, &whole()).replace(KEY, "other");
    assert_eq!(read(open(&provider, &wrong)).status, 401);
    assert_eq!(post(&provider, CHAT, &whole()).status, 400);
}

#[test]
fn a_connection_ends_when_and_how_it_was_ordered() {
    assert_eq!(
        outcome(Fault::Reset, &whole()),
        (Ending::Reset, End::Fault, 0)
    );
    assert_eq!(
        outcome(Fault::Close, &whole()),
        (Ending::Short, End::Fault, 0)
    );
    assert_eq!(
        outcome(Fault::Cut(3), &streamed()),
        (Ending::Short, End::Fault, 3)
    );
    assert_eq!(
        outcome(Fault::Cut(0), &whole()),
        (Ending::Short, End::Fault, 8)
    );
    assert_eq!(
        outcome(Fault::BadFraming(2), &streamed()),
        (Ending::BadChunk, End::Fault, 2)
    );
    assert_eq!(
        outcome(Fault::ShortBody(5), &whole()),
        (Ending::Short, End::Fault, 8)
    );
    assert_eq!(
        outcome(Fault::LongBody(5), &whole()),
        (Ending::Long, End::Whole, 8)
    );
    assert_eq!(
        outcome(Fault::Poison, &whole()),
        (Ending::Long, End::Whole, 8)
    );
    assert_eq!(
        outcome(Fault::Poison, &streamed()),
        (Ending::Long, End::Whole, 8)
    );
    let (answer, served) = chat(Fault::ResetAfter(2), &streamed());
    assert_eq!((answer.ending, served.tokens.output), (Ending::Reset, 2));
}

/// Asks, waits until the account is as wanted, then goes away and is missed.
fn leave(fault: Fault, body: &Value, wanted: impl Fn(&Served) -> bool) -> Served {
    let provider = start();
    provider.set(fault);
    let socket = open(&provider, &request("POST", CHAT, body));
    let served = provider.await_served(|served| served.count == 1 && wanted(served));
    assert_eq!(served.calls[0].end, End::Open);
    drop(socket);
    let served = provider.await_served(|served| served.open == 0);
    assert_eq!(served.calls[0].end, End::Gone);
    served
}

#[test]
fn silence_and_stalls_last_until_the_client_goes() {
    assert_eq!(leave(Fault::Silence, &whole(), |_| true).calls[0].status, 0);
    assert_eq!(
        leave(Fault::Stall(3), &streamed(), |served| served.tokens.output
            == 3)
        .tokens
        .output,
        3
    );
    assert_eq!(
        leave(Fault::Stall(0), &whole(), |served| served.calls[0].status
            == 200)
        .tokens
        .output,
        8
    );
    // An hour: whoever waits for it sees this test hang.
    assert_eq!(
        leave(Fault::SlowHeaders(3_600_000), &whole(), |_| true).calls[0].status,
        0
    );
    assert_eq!(
        leave(Fault::TrickleHeaders(3_600_000), &streamed(), |_| true)
            .tokens
            .output,
        0
    );
}

#[test]
fn a_client_that_goes_stops_the_count_of_a_paced_stream() {
    let provider = start();
    provider.set(Script {
        tokens: 100_000,
        pace_ms: 1,
        ..Script::default()
    });
    let socket = open(&provider, &request("POST", CHAT, &streamed()));
    provider.await_served(|served| served.tokens.output >= 3);
    drop(socket);
    let served = provider.await_served(|served| served.open == 0);
    assert!(served.tokens.output < 100_000 && served.calls[0].end == End::Gone);
}

/// A held call goes on when it is released.
fn hold(fault: Fault, body: &Value, output: u64) {
    let provider = start();
    provider.set(fault);
    let socket = open(&provider, &request("POST", CHAT, body));
    let served = provider.await_served(|served| served.held == 1);
    assert_eq!((served.open, served.tokens.output), (1, output));
    provider.release();
    let answer = read(socket);
    assert_eq!((answer.status, answer.ending), (200, Ending::Whole));
    assert_eq!(provider.await_served(|served| served.open == 0).held, 0);
}

#[test]
fn what_is_held_goes_on_when_it_is_released() {
    hold(Fault::HoldHeaders, &streamed(), 0);
    hold(Fault::Hold(4), &streamed(), 4);
    hold(Fault::Hold(0), &whole(), 0);
    assert_eq!(
        leave(Fault::Hold(2), &streamed(), |served| served.held == 1).held,
        0
    );
}

#[test]
fn chat_tells_usage_in_every_wrong_way() {
    let usages = |fault| {
        let (answer, _) = chat(fault, &streamed());
        let data = answer.data();
        let counted = data.iter().filter(|data| data["usage"].is_object());
        let told: Vec<_> = counted
            .map(|data| {
                let choices = data["choices"].as_array().unwrap().len();
                (
                    choices,
                    data["usage"]["completion_tokens"].as_u64().unwrap(),
                )
            })
            .collect();
        (told, answer.text().ends_with("data: [DONE]\n\n"))
    };
    assert_eq!(
        usages(Fault::Cookies),
        (vec![(0, 8)], true),
        "as it should be"
    );
    assert_eq!(usages(Fault::NoDone), (vec![(0, 8)], false));
    assert_eq!(usages(Fault::NoUsage), (vec![], true));
    assert_eq!(usages(Fault::UsageWithChoices), (vec![(1, 8)], true));
    assert_eq!(usages(Fault::UsageTwice), (vec![(0, 8), (0, 8)], true));
    let every: Vec<_> = (1..=8).chain([8]).map(|count| (1, count)).collect();
    assert_eq!(usages(Fault::UsageEveryFrame), (every, true));
    let (answer, _) = chat(Fault::UsageNullFirst, &streamed());
    let last: Vec<_> = answer
        .data()
        .iter()
        .rev()
        .take(2)
        .map(|data| data["usage"].is_null())
        .collect();
    assert_eq!(last, [false, true]);
    let (answer, served) = chat(Fault::NoUsage, &whole());
    assert!(answer.json().get("usage").is_none() && served.tokens.output == 8);
}

#[test]
fn other_dialects_tell_usage_in_their_wrong_ways() {
    let body = json!({ "model": "m", "max_tokens": 9, "stream": true });
    let outputs = |fault| {
        let (answer, _) = ask(fault, MESSAGES, &body);
        let all = answer.data();
        let usages = all
            .iter()
            .filter_map(|data| data.get("usage").or(data["message"].get("usage")));
        usages
            .map(|usage| {
                (
                    usage["input_tokens"].as_u64(),
                    usage["output_tokens"].as_u64().unwrap(),
                )
            })
            .collect::<Vec<_>>()
    };
    let input = (body.to_string().len() as u64).div_ceil(4);
    assert_eq!(
        outputs(Fault::Cookies),
        [(Some(input), 1), (None, 8)],
        "as it should be"
    );
    assert_eq!(
        outputs(Fault::UsageTwice),
        [(Some(input), 1), (None, 4), (None, 8)]
    );
    assert_eq!(
        outputs(Fault::UsageOnlyAtEnd),
        [(Some(0), 0), (Some(input), 8)]
    );
    assert_eq!(outputs(Fault::NoUsage), []);
    assert!(
        !ask(Fault::NoDone, MESSAGES, &body)
            .0
            .text()
            .contains("message_stop")
    );

    let stream = "/v1beta/models/g:streamGenerateContent?alt=sse";
    let data = ask(Fault::UsageOnlyAtEnd, stream, &json!({})).0.data();
    let (last, others) = data.split_last().unwrap();
    assert!(last.get("candidates").is_none() && last["usageMetadata"]["candidatesTokenCount"] == 8);
    assert!(
        others
            .iter()
            .all(|data| data.get("usageMetadata").is_none())
    );
    let lines = ask(Fault::NoUsage, "/api/chat", &whole()).0.lines();
    assert!(
        lines.last().unwrap()["done"] == true && lines.last().unwrap().get("eval_count").is_none()
    );
    assert!(
        ask(Fault::NoDone, "/api/chat", &whole())
            .0
            .lines()
            .iter()
            .all(|line| line["done"] == false)
    );
}

#[test]
fn a_model_fails_in_the_words_of_its_dialect() {
    let stream = json!({ "model": "m", "stream": true });
    let told = |path| {
        let (answer, served) = ask(Fault::Fails(3), path, &stream);
        assert_eq!(
            (answer.ending, served.tokens.output),
            (Ending::Whole, 3),
            "{path}"
        );
        answer
            .text()
            .trim()
            .lines()
            .last()
            .unwrap()
            .trim_start_matches("data: ")
            .to_owned()
    };
    let last = |path| serde_json::from_str::<Value>(&told(path)).unwrap();
    assert_eq!(last(CHAT)["error"]["type"], "server_error");
    assert_eq!(last(MESSAGES)["type"], "error");
    assert_eq!(last("/api/chat")["error"], "the model failed");
    assert_eq!(
        last("/v1beta/models/g:streamGenerateContent?alt=sse")["error"]["code"],
        500
    );
    let failed = last("/v1/responses");
    assert_eq!(
        (
            &failed["type"],
            &failed["response"]["usage"]["output_tokens"]
        ),
        (&json!("response.failed"), &json!(3))
    );
}

#[test]
fn json_is_broken_only_where_it_was_ordered() {
    let (answer, _) = chat(Fault::BadJson(3), &streamed());
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let broken = data.filter(|data| serde_json::from_str::<Value>(&format!("{{{data}")).is_err());
    assert_eq!((broken.count(), answer.ending), (1, Ending::Whole));
}

fn decoded(mut reader: impl Read) -> String {
    let mut text = String::new();
    reader
        .read_to_string(&mut text)
        .map(|_| text)
        .unwrap_or_else(|error| format!("cannot be decoded: {error}"))
}

#[test]
fn bodies_are_encoded_as_they_say_or_lie() {
    for body in [whole(), streamed()] {
        let says = |encoding| {
            let answer = chat(Fault::Encoding(encoding), &body).0;
            (
                answer.header("content-encoding").unwrap().to_owned(),
                answer.body,
            )
        };
        let (name, bytes) = says(Encoding::Gzip);
        assert!(
            name == "gzip" && decoded(GzDecoder::new(&bytes[..])).contains("completion_tokens")
        );
        let (name, bytes) = says(Encoding::Deflate);
        assert!(
            name == "deflate"
                && decoded(ZlibDecoder::new(&bytes[..])).contains("completion_tokens")
        );
        let (name, bytes) = says(Encoding::Zstd);
        let zstd = zstd::stream::read::Decoder::new(&bytes[..]).unwrap();
        assert!(name == "zstd" && decoded(zstd).contains("completion_tokens"));
        let (name, bytes) = says(Encoding::GzipTwice);
        let twice = GzDecoder::new(GzDecoder::new(&bytes[..]));
        assert!(name == "gzip, gzip" && decoded(twice).contains("completion_tokens"));
        for (encoding, label) in [
            (Encoding::GzipLie, "gzip"),
            (Encoding::BrLie, "br"),
            (Encoding::Unknown, "mock"),
        ] {
            let (name, bytes) = says(encoding);
            assert!(
                name == label
                    && String::from_utf8(bytes)
                        .unwrap()
                        .contains("completion_tokens")
            );
        }
    }
    let answer = chat(Fault::Bomb(20), &whole()).0;
    assert!(answer.body.len() < 100_000, "{}", answer.body.len());
    assert!(decoded(GzDecoder::new(&answer.body[..])).len() > 20 << 20);
}

#[test]
fn answers_reflect_the_key_and_grow_on_order() {
    let (answer, _) = chat(Fault::EchoHeaders, &whole());
    let said = answer.json()["choices"][0]["message"]["content"].clone();
    assert!(
        said.as_str()
            .unwrap()
            .contains(&format!("authorization: Bearer {KEY}"))
    );
    assert!(chat(Fault::EchoHeaders, &streamed()).0.text().contains(KEY));
    let (answer, _) = chat(Fault::Giant(3), &whole());
    assert!(answer.body.len() > 3 << 20 && answer.json()["usage"]["completion_tokens"] == 8);
}

#[test]
fn heads_are_too_much_on_order() {
    let (answer, _) = chat(Fault::Cookies, &whole());
    assert!(
        ["set-cookie", "alt-svc", "link"]
            .iter()
            .all(|name| answer.header(name).is_some())
    );
    assert!(chat(Fault::HeaderFlood(500), &whole()).0.headers.len() > 500);
    assert_eq!(
        chat(Fault::HeaderGiant(70_000), &whole())
            .0
            .header("x-giant")
            .unwrap()
            .len(),
        70_000
    );
    assert_eq!(
        chat(Fault::Informational(3), &whole()).0.status,
        102,
        "the first head is none"
    );
    assert_eq!(
        chat(Fault::TrickleHeaders(0), &whole()).0.ending,
        Ending::Whole
    );
    assert_eq!(
        chat(Fault::SlowHeaders(1), &streamed()).0.ending,
        Ending::Whole
    );
}

#[test]
fn an_answer_is_given_byte_for_byte() {
    let provider = start();
    let headers = vec![("content-type".to_owned(), "text/event-stream".to_owned())];
    let body = "data: ä\n\n".to_owned();
    let verbatim = Verbatim {
        status: 207,
        headers,
        body,
        split: Some(1),
        tokens: (5, 6),
    };
    provider.set(Script {
        verbatim: Some(verbatim.clone()),
        ..Script::default()
    });
    let answer = post(&provider, CHAT, &whole());
    assert_eq!(
        (answer.status, answer.text(), answer.chunks.len()),
        (207, verbatim.body.clone(), 10)
    );
    provider.set(Script {
        verbatim: Some(Verbatim {
            split: None,
            ..verbatim.clone()
        }),
        ..Script::default()
    });
    let answer = post(&provider, CHAT, &whole());
    assert_eq!(
        (answer.text(), answer.header("content-length")),
        (verbatim.body, Some("10"))
    );
    let served = provider.await_served(|served| served.count == 2 && served.open == 0);
    assert_eq!((served.tokens.input, served.tokens.output), (10, 12));
}

#[test]
fn the_account_and_the_orders_are_reached_by_http() {
    let provider = start();
    let order = json!({ "times": 1, "script": { "fault": { "status": { "code": 503 } } } });
    assert_eq!(post(&provider, "/_set", &order).status, 200);
    assert_eq!(
        post(
            &provider,
            "/_set",
            &json!({ "model": "n", "script": { "tokens": 4 } })
        )
        .status,
        200
    );
    assert_eq!(
        post(&provider, "/_set", &json!({ "script": { "tokens": 3 } })).status,
        200
    );
    assert_eq!(
        post(
            &provider,
            "/_set",
            &json!({ "script": { "fault": "no such" } })
        )
        .status,
        400
    );
    let statuses =
        ["m", "m", "n"].map(|model| post(&provider, CHAT, &json!({ "model": model })).status);
    assert_eq!(statuses, [503, 200, 200]);
    provider.await_served(|served| served.open == 0);
    let told = common::get(&provider, "/_served").json();
    assert_eq!(
        (&told["count"], &told["tokens"]["output"]),
        (&json!(3), &json!(7))
    );
    assert_eq!(told["calls"][0]["operation"], "openai_chat");
    assert_eq!(post(&provider, "/_reset", &Value::Null).status, 200);
    assert_eq!(post(&provider, "/_release", &Value::Null).status, 200);
    assert_eq!(common::get(&provider, "/_served").json()["count"], 0);
    assert_eq!(
        provider.served().of(Operation::Unknown).count(),
        0,
        "its own routes are in no account"
    );
}

#[test]
fn a_provider_is_gone_when_its_handle_is() {
    let provider = start();
    let address = provider.address();
    let socket = open(
        &provider,
        &request("POST", "/v1/chat/completions-x", &whole()),
    );
    drop(provider);
    _ = read(socket);
    assert!(std::net::TcpStream::connect(address).is_err());
    let _: fn(provider::Settings) -> Provider = Provider::start;
}
