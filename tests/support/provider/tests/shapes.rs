//! Each dialect, as its makers describe it, and the account that goes with it.

mod common;

use common::{Answer, Ending, get, open, post, read, request, start};
use provider::{Dialect, End, Operation, Provider, Script, Settings, Tokens};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Prompt of 100 with 30 of the cache; ten tokens, of which three are thoughts.
fn script() -> Script {
    Script {
        tokens: 7,
        input: Some(100),
        cache_read: 30,
        reasoning: 3,
        ..Script::default()
    }
}

/// Asks under this script; the answer, and what the account says was served.
fn ask(script: Script, path: &str, body: Value) -> (Answer, Tokens) {
    let provider = start();
    provider.set(script);
    let answer = post(&provider, path, &body);
    assert_eq!(
        (answer.status, answer.ending),
        (200, Ending::Whole),
        "{}",
        answer.text()
    );
    let served = provider.await_served(|served| served.count == 1 && served.open == 0);
    assert_eq!(served.calls[0].tokens, served.tokens);
    assert_eq!(served.calls[0].end, End::Whole);
    (answer, served.tokens)
}

const SERVED: Tokens = Tokens {
    input: 70,
    cache_read: 30,
    cache_write_5m: 0,
    cache_write_1h: 0,
    output: 7,
    reasoning: 3,
};
const SAID: &str = "tok0 tok1 tok2 tok3 tok4 tok5 tok6 ";

#[test]
fn chat_answers_in_one_with_usage() {
    let (answer, served) = ask(script(), "/v1/chat/completions", json!({ "model": "m" }));
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], SAID);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["prompt_tokens"], 100);
    assert_eq!(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        30
    );
    assert_eq!(answer["usage"]["completion_tokens"], 10);
    assert_eq!(
        answer["usage"]["completion_tokens_details"]["reasoning_tokens"],
        3
    );
    assert_eq!(served, SERVED);
}

#[test]
fn chat_streams_usage_only_to_those_who_ask() {
    let plain = json!({ "model": "m", "stream": true });
    let (answer, served) = ask(script(), "/v1/chat/completions", plain);
    assert!(answer.text().ends_with("data: [DONE]\n\n") && !answer.text().contains("usage"));
    let said: String = answer
        .data()
        .iter()
        .filter_map(|data| data["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!((said.as_str(), served), (SAID, SERVED));

    let asked =
        json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true } });
    let (answer, _) = ask(script(), "/v1/chat/completions", asked);
    let data = answer.data();
    let (last, others) = data.split_last().unwrap();
    assert_eq!(
        (&last["choices"], &last["usage"]["completion_tokens"]),
        (&json!([]), &json!(10))
    );
    assert!(
        others
            .iter()
            .all(|data| data["usage"].is_null() && data.get("usage").is_some())
    );
}

#[test]
fn a_token_is_a_frame_and_leaves_alone() {
    let (answer, _) = ask(
        script(),
        "/v1/chat/completions",
        json!({ "model": "m", "stream": true }),
    );
    let with_text = answer
        .chunks
        .iter()
        .filter(|chunk| String::from_utf8_lossy(chunk).contains("tok"));
    assert_eq!(with_text.count(), 7);
}

#[test]
fn responses_end_complete_or_incomplete_with_usage() {
    let (answer, served) = ask(script(), "/v1/responses", json!({ "model": "m" }));
    let answer = answer.json();
    assert_eq!(answer["output"][0]["content"][0]["text"], SAID);
    assert_eq!((&answer["status"], served), (&json!("completed"), SERVED));

    let (answer, _) = ask(
        script(),
        "/v1/responses",
        json!({ "model": "m", "stream": true }),
    );
    let (events, data) = (answer.events(), answer.data());
    assert_eq!(
        (events[0].as_str(), events.last().unwrap().as_str()),
        ("response.created", "response.completed")
    );
    let numbers: Vec<_> = data
        .iter()
        .map(|data| data["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let usage = &data.last().unwrap()["response"]["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&json!(100), &json!(10))
    );
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 30);

    let capped = json!({ "model": "m", "stream": true, "max_output_tokens": 5 });
    let (answer, served) = ask(script(), "/v1/responses", capped);
    assert_eq!(answer.events().last().unwrap(), "response.incomplete");
    assert_eq!((served.output, served.reasoning), (2, 3));
}

#[test]
fn messages_tell_the_prompt_first_and_the_output_last() {
    let script = Script {
        cache_write_5m: 20,
        cache_write_1h: 10,
        ..script()
    };
    let (answer, served) = ask(
        script.clone(),
        "/v1/messages",
        json!({ "model": "m", "max_tokens": 50, "stream": true }),
    );
    let data = answer.data();
    assert_eq!(
        answer.events(),
        data.iter()
            .map(|data| data["type"].as_str().unwrap())
            .collect::<Vec<_>>()
    );
    let start = &data[0]["message"]["usage"];
    assert_eq!(start["input_tokens"], 40);
    assert_eq!(
        (
            &start["cache_read_input_tokens"],
            &start["cache_creation_input_tokens"]
        ),
        (&json!(30), &json!(30))
    );
    assert_eq!(start["cache_creation"]["ephemeral_1h_input_tokens"], 10);
    assert_eq!(
        data[data.len() - 2]["usage"],
        json!({ "output_tokens": 10 })
    );
    assert_eq!(data[data.len() - 2]["delta"]["stop_reason"], "end_turn");
    assert_eq!(data[data.len() - 1]["type"], "message_stop");
    assert_eq!(
        served,
        Tokens {
            input: 40,
            cache_write_5m: 20,
            cache_write_1h: 10,
            ..SERVED
        }
    );

    let (answer, _) = ask(
        script,
        "/v1/messages",
        json!({ "model": "m", "max_tokens": 4 }),
    );
    let answer = answer.json();
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][0]["text"]),
        (&json!("max_tokens"), &json!("tok0 "))
    );
    assert_eq!(answer["usage"]["output_tokens"], 4);
}

#[test]
fn gemini_streams_as_events_or_as_an_array_and_counts_on_every_chunk() {
    let (one, served) = ask(script(), "/v1beta/models/g:generateContent", json!({}));
    let usage = json!({
        "promptTokenCount": 100, "cachedContentTokenCount": 30, "candidatesTokenCount": 7, "thoughtsTokenCount": 3,
        "totalTokenCount": 110,
    });
    assert_eq!((&one.json()["usageMetadata"], served), (&usage, SERVED));
    let (events, _) = ask(
        script(),
        "/v1beta/models/g:streamGenerateContent?alt=sse",
        json!({}),
    );
    let (array, _) = ask(script(), "/v1/models/g:streamGenerateContent", json!({}));
    let array = array.json();
    assert_eq!(&events.data(), array.as_array().unwrap());
    let counts: Vec<_> = events
        .data()
        .iter()
        .map(|data| data["usageMetadata"]["candidatesTokenCount"].clone())
        .collect();
    assert_eq!(json!(counts), json!([1, 2, 3, 4, 5, 6, 7, 7]));
    let cap = json!({ "generationConfig": { "maxOutputTokens": 4 } });
    let (capped, served) = ask(script(), "/v1beta/models/g:generateContent", cap);
    assert_eq!(
        (
            &capped.json()["candidates"][0]["finishReason"],
            served.output
        ),
        (&json!("MAX_TOKENS"), 1)
    );
}

#[test]
fn ollama_streams_lines_unless_told_otherwise() {
    for (path, at) in [
        ("/api/chat", "/message/content"),
        ("/api/generate", "/response"),
    ] {
        let (answer, served) = ask(script(), path, json!({ "model": "m" }));
        let lines = answer.lines();
        let said: String = lines
            .iter()
            .map(|line| line.pointer(at).unwrap().as_str().unwrap())
            .collect();
        assert_eq!((said.as_str(), served), (SAID, SERVED));
        let last = lines.last().unwrap();
        assert_eq!(
            (
                &last["done"],
                &last["prompt_eval_count"],
                &last["eval_count"]
            ),
            (&json!(true), &json!(100), &json!(10))
        );
        let (answer, _) = ask(
            script(),
            path,
            json!({ "model": "m", "stream": false, "options": { "num_predict": 4 } }),
        );
        let answer = answer.json();
        assert_eq!(
            (answer.pointer(at).unwrap(), &answer["done_reason"]),
            (&json!("tok0 "), &json!("length"))
        );
    }
}

#[test]
fn what_generates_nothing_serves_no_output() {
    let provider = start();
    for path in [
        "/v1/models",
        "/v1beta/models",
        "/api/tags",
        "/api/version",
        "/api/ps",
    ] {
        assert_eq!(get(&provider, path).status, 200, "{path}");
    }
    for path in [
        "/v1/messages/count_tokens",
        "/v1beta/models/g:countTokens",
        "/api/show",
        "/api/pull",
        "/api/create",
    ] {
        assert_eq!(
            post(&provider, path, &json!({ "model": "m" })).status,
            200,
            "{path}"
        );
    }
    assert_eq!(provider.served().tokens, Tokens::default());
    for path in [
        "/v1/embeddings",
        "/v1beta/models/g:embedContent",
        "/v1/models/g:batchEmbedContents",
        "/api/embed",
        "/api/embeddings",
    ] {
        provider.reset();
        let body = json!({ "model": "m", "input": "x" });
        assert_eq!(post(&provider, path, &body).status, 200, "{path}");
        let input = (body.to_string().len() as u64).div_ceil(4);
        assert_eq!(
            provider.served().tokens,
            Tokens {
                input,
                ..Tokens::default()
            },
            "{path}"
        );
    }
    assert_eq!(
        read(open(
            &provider,
            &request("DELETE", "/api/delete", &json!({}))
        ))
        .status,
        200
    );
    assert_eq!(
        provider.served().of(Operation::OllamaDelete).count(),
        1,
        "it is seen that it was reached"
    );
}

/// A dialect, one of its routes, its header with the right key, and where its errors say what they are.
const LOCKS: [(Dialect, &str, &str, &str); 3] = [
    (
        Dialect::OpenAi,
        "/v1/chat/completions",
        "authorization: Bearer real-key",
        "/error/code",
    ),
    (
        Dialect::Anthropic,
        "/v1/messages",
        "x-api-key: real-key",
        "/error/type",
    ),
    (
        Dialect::Gemini,
        "/v1beta/models/g:generateContent",
        "x-goog-api-key: real-key",
        "/error/status",
    ),
];

#[test]
fn a_key_opens_only_in_a_header_of_its_dialect() {
    let provider = start();
    let status = |path: &str, header: &str| {
        let text = format!(
            "POST {path} HTTP/1.1\r\nhost: m\r\n{header}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        read(open(&provider, &text))
    };
    for (dialect, path, right, at) in LOCKS {
        assert_eq!(status(path, right).status, 200, "{dialect:?}");
        assert_eq!(
            status(path, &right.replace("real", "other")).status,
            401,
            "{dialect:?}"
        );
        // Newer SDKs of Anthropic send their key as OpenAI's do.
        let both = |other| dialect == Dialect::Anthropic && other == Dialect::OpenAi;
        for (other, _, header, _) in LOCKS.iter().filter(|lock| lock.0 != dialect) {
            if both(*other) {
                assert_eq!(status(path, header).status, 200, "{dialect:?}");
                continue;
            }
            let answer = status(path, header);
            assert_eq!(answer.status, 401, "{dialect:?} by the header of {other:?}");
            assert!(answer.json().pointer(at).unwrap().is_string());
        }
    }
    let served = provider.served();
    assert_eq!(
        served
            .calls
            .iter()
            .filter(|call| call.status == 200)
            .count(),
        4
    );
    assert!(
        served
            .calls
            .iter()
            .filter(|call| call.status == 401)
            .all(|call| call.tokens == Tokens::default())
    );
}

#[test]
fn the_account_has_the_request_as_it_came() {
    let provider = start();
    let body = json!({ "model": "m", "max_tokens": 3, "x": "ä" });
    post(&provider, "/v1/chat/completions?a=b", &body);
    let served = provider.await_served(|served| served.count == 1 && served.open == 0);
    let call = &served.calls[0];
    assert_eq!(
        (call.operation, call.path.as_str(), call.cap),
        (Operation::OpenAiChat, "/v1/chat/completions?a=b", Some(3))
    );
    assert_eq!(call.body, body.to_string().into_bytes());
    assert_eq!(call.keys, ["real-key"; 3]);
    assert_eq!(call.header("host"), Some("mock"));
    // Of `{"max_tokens":3,"model":"m","x":"ä"}`, by sha256sum.
    assert_eq!(
        call.body_sha256,
        "41070f0948b2819e2f0eb975073c97e6b41c3309343e71d700466df88f408e86"
    );
    assert_eq!(post(&provider, "/v1/files", &body).status, 404);
    assert_eq!(provider.served().of(Operation::Unknown).count(), 1);
}

#[test]
fn a_cap_is_ignored_only_on_order() {
    let body = json!({ "model": "m", "stream": true, "max_tokens": 2 });
    let (_, served) = ask(
        Script {
            tokens: 9,
            ..Script::default()
        },
        "/v1/chat/completions",
        body.clone(),
    );
    assert_eq!(served.output, 2);
    let script = Script {
        tokens: 9,
        ignore_cap: true,
        ..Script::default()
    };
    assert_eq!(ask(script, "/v1/chat/completions", body).1.output, 9);
}

#[test]
fn a_stream_is_laid_out_as_ordered_and_says_the_same() {
    let body = json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true } });
    let plain = ask(script(), "/v1/chat/completions", body.clone()).0;
    let odd = Script {
        crlf: true,
        tight: true,
        comments: true,
        split: Some(1),
        ..script()
    };
    let odd = ask(odd, "/v1/chat/completions", body).0;
    assert_eq!(odd.data(), plain.data());
    assert!(
        odd.chunks.iter().all(|chunk| chunk.len() == 1)
            && odd.text().starts_with(": mock\r\n\r\ndata:{")
    );
}

#[test]
fn own_texts_and_sizes_are_said() {
    let text = Script {
        text: Some("{\"a\": 1} ok".into()),
        ..Script::default()
    };
    let (answer, served) = ask(
        text,
        "/api/generate",
        json!({ "model": "m", "stream": false }),
    );
    assert_eq!(
        (answer.json()["response"].as_str().unwrap(), served.output),
        ("{\"a\": 1} ok", 3)
    );
    let sized = Script {
        reply_bytes: Some(600),
        ..Script::default()
    };
    let (answer, _) = ask(sized, "/v1/chat/completions", json!({ "model": "m" }));
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .len(),
        600
    );
}

#[test]
fn a_stamped_token_says_when_it_left() {
    let nanoseconds = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos()
    };
    let before = nanoseconds();
    let (answer, _) = ask(script(), "/api/generate", json!({ "model": "m-stamp-1" }));
    let lines = answer.lines();
    let stamp: u128 = lines[0]["response"].as_str().unwrap().trim()[3..]
        .parse()
        .unwrap();
    assert!((before..=nanoseconds()).contains(&stamp));
}

#[test]
fn a_connection_serves_one_request_after_the_other() {
    let provider = Provider::start(Settings::default());
    let one = request(
        "POST",
        "/v1/chat/completions",
        &json!({ "model": "m", "stream": true }),
    );
    let kept = one.replace("connection: close\r\n", "");
    // Both at once: what is read too far is not lost.
    let answer = read(open(&provider, &format!("{kept}{one}")));
    assert_eq!(answer.ending, Ending::Long);
    let served = provider.await_served(|served| served.count == 2 && served.open == 0);
    assert_eq!((served.connections, served.tokens.output), (1, 16));
    open(&provider, "GET / HTTP/1.1\r\nno header\r\n\r\n");
    provider.await_served(|served| served.malformed == 1);
}
