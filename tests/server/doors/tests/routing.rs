//! Where a call goes is said by the operator alone, and what was checked is what is forwarded. The oracle is what the
//! provider was asked.

use doors_tests::{Answer, Folder, House, Proxy, REAL_KEY, chat, proxy, request};
use provider::Served;
use serde_json::{Value, json};
use std::fs;

const CHAT: &str = "/v1/chat/completions";

fn openai() -> Value {
    json!({ "provider": "openai" })
}

/// A request of one's own bytes; `TOKEN` is the token.
fn post(target: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {target} HTTP/1.1\r\nhost: door\r\nconnection: close\r\nauthorization: Bearer TOKEN\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// What the provider was asked since the last time.
fn asked(house: &House) -> Served {
    let served = house.provider.served();
    house.provider.reset();
    served
}

#[test]
fn a_program_cannot_name_another_upstream() {
    let house = House::new();
    let elsewhere = provider::Provider::start(provider::Settings::default());
    let token = house.register(&openai()).token;
    let base = elsewhere.base();
    for field in [
        "api_base",
        "base_url",
        "api_key",
        "custom_llm_provider",
        "fallbacks",
        "extra_body",
    ] {
        let mut body = chat("m");
        body[field] = json!(base);
        let answer = house.call(&token, CHAT, &body);
        assert_eq!(answer.status, 400, "{field}: {}", answer.text());
        assert_eq!(asked(&house).count, 0, "{field}");
        let query = format!("{CHAT}?{field}={base}");
        assert_eq!(
            house.call(&token, &query, &chat("m")).status,
            200,
            "{field} in the query means nothing"
        );
        assert_eq!(asked(&house).calls[0].path, CHAT);
        // Deeper down it is a program's own data, for no reader that we know.
        let nested = json!({ "model": "m", "messages": [], "metadata": { field: base } });
        assert_eq!(house.call(&token, CHAT, &nested).status, 200);
        assert_eq!(asked(&house).count, 1);
    }
    let headers = [
        "x-portkey-custom-host",
        "helicone-target-url",
        "x-llm-base-url",
        "x-upstream-url",
    ];
    let bearer = format!("Bearer {token}");
    for header in headers {
        let sent = request(
            "POST",
            CHAT,
            &[("authorization", &bearer), (header, &base)],
            &chat("m"),
        );
        assert_eq!(house.proxy.listen.ask(&sent).status, 200);
        let served = asked(&house);
        assert!(
            served.count == 1 && served.calls[0].header(header).is_none(),
            "{header}"
        );
    }
    // Whatever host the request itself names.
    for (target, host) in [
        (format!("{base}{CHAT}"), "door"),
        (CHAT.to_owned(), "theirs.example"),
    ] {
        let raw =
            post(&target, &chat("m").to_string()).replace("host: door", &format!("host: {host}"));
        assert_eq!(house.raw(&token, &raw).status, 200, "{target}");
        let served = asked(&house);
        let expected = house.provider.address().to_string();
        assert_eq!(
            (served.count, served.calls[0].header("host")),
            (1, Some(expected.as_str()))
        );
        assert_eq!(served.calls[0].path, CHAT);
    }
    assert_eq!(elsewhere.served().connections, 0);
}

#[test]
fn a_path_that_is_not_in_the_table_is_not_forwarded_in_any_spelling() {
    let house = House::new();
    let token = house.register(&openai()).token;
    for path in [
        "/v1/organization/admin_api_keys",
        "/v1/organization/users",
        "/v1/files",
        "/v1/fine_tuning/jobs",
        "/v1/assistants",
        "/v1/batches",
        "/v1/images/generations",
        "/v1/audio/speech",
        "/v1/completions",
        "/v1/responses/resp_1",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/completions/../files",
        "/v1/chat/../files",
        "/v1/chat/completions/..",
        "/v1/./chat/completions",
        "/v1/chat/%2e%2e/files",
        "/v1/%2e%2e/v1/chat/completions",
        "/v1/chat%2fcompletions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions;x",
        "/v1/chat/completions;/../files",
        "/v1/chat/completions%00",
        "/v1/chat/completions%3f",
        "/v1/chat/completions%3Fx=1",
        "/v1/chat/completions%20",
        "/v1/chat/completions%0d%0ax-injected:%20yes",
        "/%76%31/chat/completions",
        "/V1/chat/completions",
        "/v1/Chat/Completions",
        "/v1/chat\\completions",
        "/v1/models/../files",
        "/v1/models/m/../../files",
        "/v1beta/models/m:deleteModel",
        "/v1beta/models/..%2ffiles:generateContent",
        "/v1beta/models/m%3fx:generateContent",
        "/api/pull",
        "/api/delete",
        "/api/create",
        "/_set",
        "/_served",
        "/",
        "*",
    ] {
        for body in [chat("m").to_string(), String::new()] {
            let answer = house.raw(&token, &post(path, &body));
            // What is no target of a request at all is no request.
            let odd = path == "*" || path.contains('\\');
            assert!(
                answer.status == 404 || (odd && answer.status == 400),
                "{path}: {}",
                answer.text()
            );
        }
    }
    for bytes in [&b"\0"[..], b"\x7f", b"\xff", b"\xc0\xae", b" ", b"\t"] {
        let path = [b"/v1/chat/completions", bytes].concat();
        let raw = post("PATH", &chat("m").to_string())
            .replace("TOKEN", &token)
            .into_bytes();
        let at = raw
            .windows(4)
            .position(|four| four == b"PATH")
            .expect("it is there");
        let raw = [&raw[..at], &path, &raw[at + 4..]].concat();
        let answer = house.proxy.listen.open(&raw).finish();
        assert!([400, 404].contains(&answer.status), "{bytes:?}: {answer:?}");
    }
    let served = house.provider.served();
    assert_eq!(
        (served.connections, served.count),
        (0, 0),
        "nothing of all that was forwarded"
    );
    assert_eq!(
        house
            .raw(&token, &post(CHAT, &chat("m").to_string()))
            .status,
        200,
        "the positive control"
    );
}

#[test]
fn a_path_has_its_method_and_nothing_overrides_it() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let bearer = format!("Bearer {token}");
    for method in [
        "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "post", "FOO",
    ] {
        let sent = request(method, CHAT, &[("authorization", &bearer)], &chat("m"));
        let answer = house.proxy.listen.ask(&sent);
        assert!(
            [400, 405].contains(&answer.status),
            "{method}: {} {}",
            answer.status,
            answer.text()
        );
    }
    let head = house.raw(&token, &post(CHAT, "").replace("POST", "HEAD"));
    assert_eq!(
        (head.status, head.raw.ends_with(b"\r\n\r\n")),
        (405, true),
        "no body where none may be"
    );
    let tunnel = "CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: door\r\nauthorization: Bearer TOKEN\r\nconnection: close\r\n\r\n";
    assert!([400, 404, 405].contains(&house.raw(&token, tunnel).status));
    for old in [
        "GET /v1/models\r\n\r\n",
        "GET /v1/models HTTP/0.9\r\n\r\n",
        "GET /v1/models HTTP/3.0\r\n\r\n",
    ] {
        assert_eq!(house.raw(&token, old).status, 400, "{old}");
    }
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let refused = house.raw(&token, preface);
    assert!(
        [0, 400].contains(&refused.status),
        "HTTP/2 is not offered: {refused:?}"
    );
    assert_eq!(house.provider.served().connections, 0);
    for name in [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
    ] {
        let sent = request(
            "POST",
            CHAT,
            &[("authorization", &bearer), (name, "DELETE")],
            &chat("m"),
        );
        assert_eq!(house.proxy.listen.ask(&sent).status, 200);
        let call = asked(&house).calls.remove(0);
        assert_eq!((call.method.as_str(), call.header(name)), ("POST", None));
    }
}

#[test]
fn groups_of_tools_pass_and_what_the_provider_would_run_is_refused_by_name() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let function = json!({ "type": "function", "name": "f", "parameters": { "type": "object" } });
    let ask = |tools: Value, later: Value| {
        let item = json!({ "type": "additional_tools", "role": "developer", "tools": later });
        let hello = json!({ "type": "message", "role": "user", "content": "hello" });
        let body = json!({ "model": "m", "tools": tools, "input": [item, hello] });
        house.call(&token, "/v1/responses", &body)
    };
    let group = |member: &Value| json!([{ "type": "namespace", "name": "n", "tools": [member] }]);
    let answer = ask(group(&function), group(&function));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let search = json!({ "type": "web_search" });
    for answer in [
        ask(group(&search), json!([])),
        ask(json!([function]), group(&search)),
    ] {
        assert_eq!(answer.status, 403, "{}", answer.text());
        assert!(
            answer.text().contains("`web_search` is refused"),
            "{}",
            answer.text()
        );
    }
    assert_eq!(house.provider.served().count, 1, "the others did not leave");
}

#[test]
fn no_spelling_of_a_metadata_service_is_configured() {
    // Each spelling is a unit test's business (`config/provider/tests.rs`); here it is the service that does not start.
    for base in [
        "http://169.254.169.254",
        "http://0xa9fea9fe",
        "http://2852039166",
        "http://169.254.169.254.",
        "http://[::ffff:a9fe:a9fe]",
        "http://user@127.0.0.1",
        "http://metadata.google.internal",
    ] {
        let folder = Folder::new();
        let text = format!(
            "[provider.openai]\ndialect = \"openai\"\nbase = \"{base}\"\nallow_plain_http = true\n\
             allow_private = true\n"
        );
        fs::write(folder.at("config.toml"), text).expect("a configuration");
        let said = Proxy::refusal(&mut proxy(&folder, &[]));
        assert!(said.contains("provider.openai.base"), "{base}: {said}");
        assert!(!folder.at("state").exists(), "and nothing was made");
    }
}

/// The answer to a chat with these bytes as its body.
fn chat_of(house: &House, token: &str, body: &str) -> Answer {
    house.raw(token, &post(CHAT, body))
}

#[test]
fn a_model_is_allowed_by_its_very_name() {
    let house = House::new();
    let token = house
        .register(&json!({ "provider": "openai", "models": ["good-1", "fine-*"] }))
        .token;
    let flood = format!("\"{}\"", "a".repeat(10 << 20));
    for model in [
        "\"bad\"",
        "\"Good-1\"",
        "\"GOOD-1\"",
        "\"good-1 \"",
        "\" good-1\"",
        "\"good-1\\n\"",
        "\"good-1\\u0000\"",
        "\"good-1\\u200b\"",
        "\"g\u{43e}od-1\"",
        "\"g\\u043eod-1\"",
        "\"good-10\"",
        "\"xfine-1\"",
        "\"fine\"",
        "\"openai/good-1\"",
        "\"good-1,bad\"",
        "[\"good-1\"]",
        "{\"name\":\"good-1\"}",
        "1",
        "null",
        "true",
        "\"\"",
        &flood,
    ] {
        let answer = chat_of(
            &house,
            &token,
            &format!("{{\"model\":{model},\"messages\":[]}}"),
        );
        assert!(
            [400, 403].contains(&answer.status),
            "{model:.60}: {} {}",
            answer.status,
            answer.text()
        );
    }
    for body in [
        "{\"messages\":[]}",
        "{\"model\":\"good-1\",\"model\":\"bad\",\"messages\":[]}",
        "{\"model\":\"bad\",\"model\":\"good-1\",\"messages\":[]}",
        "{\"model\":\"good-1\",\"mod\\u0065l\":\"bad\",\"messages\":[]}",
        "{\"model\":\"good-1\",\"Model\":\"bad\",\"messages\":[]}",
        "{\"messages\":[{\"model\":\"good-1\"}]}",
        "[{\"model\":\"good-1\"}]",
    ] {
        assert_eq!(chat_of(&house, &token, body).status, 400, "{body}");
    }
    assert_eq!(
        house.provider.served().connections,
        0,
        "the provider was asked for none of them"
    );
    for (spelled, meant) in [
        ("good-1", "good-1"),
        ("g\\u006fod-1", "good-1"),
        ("fine-2", "fine-2"),
    ] {
        let answer = chat_of(
            &house,
            &token,
            &format!("{{\"model\":\"{spelled}\",\"messages\":[]}}"),
        );
        assert_eq!(answer.status, 200, "{spelled}: {}", answer.text());
        assert_eq!(asked(&house).calls[0].model, meant);
    }
    let gemini = house
        .register(&json!({ "provider": "gemini", "models": ["good-1"] }))
        .token;
    for (model, body, status) in [
        ("good-1", json!({ "contents": [] }), 200),
        ("bad", json!({ "contents": [] }), 403),
        (
            "good-1",
            json!({ "contents": [], "model": "models/bad" }),
            400,
        ),
        ("good-1%20", json!({ "contents": [] }), 404),
    ] {
        let path = format!("/v1beta/models/{model}:generateContent");
        assert_eq!(
            house.call(&gemini, &path, &body).status,
            status,
            "{model} {body}"
        );
    }
    assert_eq!(asked(&house).count, 1);
    // A single model is looked up under the same rule.
    let bearer = format!("Bearer {token}");
    let look = |path: &str| {
        let sent = request("GET", path, &[("authorization", &bearer)], &Value::Null);
        house.proxy.listen.ask(&sent).status
    };
    assert_eq!(look("/v1/models/bad"), 403);
    assert_eq!(asked(&house).count, 0);
}

#[test]
fn json_that_two_readers_could_read_in_two_ways_is_refused() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let deep = format!(
        "{{\"model\":\"m\",\"messages\":{}{}}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    for body in [
        "\u{feff}{\"model\":\"m\",\"messages\":[]}",
        "{\"model\":\"m\",\"messages\":[]}x",
        "{\"model\":\"m\",\"messages\":[]}{\"model\":\"n\"}",
        "{\"model\":\"m\",\"messages\":[]}\0",
        "{\"model\":\"m\",\"temperature\":NaN}",
        "{\"model\":\"m\",\"temperature\":Infinity}",
        "{\"model\":\"m\",\"messages\":[],}",
        "{'model':'m'}",
        "{\"model\":\"m\"/**/,\"messages\":[]}",
        "{\"model\":\"m\\ud800\"}",
        "{\"model\":\"m\",\"stream\":true,\"stream\":false}",
        "{\"model\":\"m\",\"stream\":\"true\"}",
        "{\"model\":\"m\",\"stream\":1}",
        "{\"model\":\"m\",\"max_tokens\":1,\"max_tokens\":100000}",
        "{\"model\":\"m\",\"max_tokens\":1e99}",
        "{\"model\":\"m\"",
        "",
        "null",
        &deep,
    ] {
        let answer = chat_of(&house, &token, body);
        assert_eq!(answer.status, 400, "{body:.60}: {}", answer.text());
        assert_eq!(
            house.provider.served().connections,
            0,
            "{body:.60}: {}",
            answer.text()
        );
    }
    let mut invalid = post(CHAT, "{\"model\":\"m\",\"messages\":\"??\"}")
        .replace("TOKEN", &token)
        .into_bytes();
    invalid
        .iter_mut()
        .filter(|byte| **byte == b'?')
        .for_each(|byte| *byte = 0xff);
    assert_eq!(
        house.proxy.listen.open(&invalid).finish().status,
        400,
        "bytes that are no text"
    );
    assert_eq!(house.provider.served().connections, 0);
}

#[test]
fn a_body_that_is_taken_arrives_byte_for_byte() {
    let house = House::new();
    let token = house.register(&openai()).token;
    for body in [
        "{\"model\":\"m\",\"messages\":[],\"max_completion_tokens\":9}",
        " \t\r\n{ \"max_completion_tokens\" : 9 , \"model\" : \"m\", \"messages\":[ ] } \r\n",
        "{\"max_completion_tokens\":9,\"model\":\"m\",\"messages\":[],\"x\":\"\\ud800\",\"x\":1.0e+2,\"x\":-0}",
        "{\"max_completion_tokens\":9,\"model\":\"m\",\"messages\":[{\"content\":\"h\u{e9}\\u00e9\\/\u{1f600}\"}]}",
    ] {
        let answer = chat_of(&house, &token, body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        let call = asked(&house).calls.remove(0);
        assert_eq!(String::from_utf8(call.body).expect("text"), body);
        assert_eq!(call.keys, [REAL_KEY]);
    }
}

#[test]
fn a_name_that_stands_for_another_model_is_replaced_where_it_stands_and_nowhere_else() {
    let more = "[model.m]\ntargets = [\"gemini/other-model\"]\n[model.models]\ntargets = [\"gemini/other-model\"]\n\
                [model.v1beta]\ntargets = [\"gemini/other-model\"]\n\
                [model.astray]\ntargets = [\"gemini/x/../../v1/files?a=b\"]\n";
    let house = House::with(more, &[]);
    let token = house.register(&json!({ "provider": "gemini" })).token;
    let body = json!({ "contents": [] });
    for name in ["m", "models", "v1beta"] {
        let path = format!("/v1beta/models/{name}:generateContent");
        assert_eq!(house.call(&token, &path, &body).status, 200, "{name}");
        assert_eq!(
            asked(&house).calls[0].path,
            "/v1beta/models/other-model:generateContent",
            "{name}"
        );
    }
    let answer = house.call(&token, "/v1beta/models/astray:generateContent", &body);
    assert_eq!(
        (answer.status, asked(&house).count),
        (404, 0),
        "{}",
        answer.text()
    );
    assert_eq!(
        house
            .call(&token, "/v1beta/models/plain:generateContent", &body)
            .status,
        200,
        "the control"
    );
}

#[test]
fn paths_that_cost_nothing_obey_the_same_limits() {
    let house = House::new();
    let order = json!({ "provider": "claude", "models": ["good-*"], "budget": { "requests": 3 } });
    let token = house.register(&order).token;
    let count = |model: &str| {
        let body = json!({ "model": model, "messages": [] });
        house
            .call(&token, "/v1/messages/count_tokens", &body)
            .status
    };
    let bearer = format!("Bearer {token}");
    let list = || {
        let sent = request(
            "GET",
            "/v1/models",
            &[("authorization", &bearer)],
            &Value::Null,
        );
        house.proxy.listen.ask(&sent).status
    };
    assert_eq!(count("bad"), 403);
    assert_eq!((count("good-1"), list(), count("good-1")), (200, 200, 200));
    assert_eq!(
        (count("good-1"), list()),
        (402, 402),
        "the budget of requests is spent"
    );
    assert_eq!(house.provider.served().count, 3);
}
