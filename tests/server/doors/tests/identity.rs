//! Who is calling: by the token or by the listener, and by nothing that the caller says of itself.

use doors_tests::{Answer, Door, Ending, House, OWN_KEY, REAL_KEY, chat, request};
use rustix::process::Signal;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const GENERATE: &str = "/v1beta/models/m:generateContent";

fn openai() -> Value {
    json!({ "provider": "openai" })
}

fn messages() -> Value {
    json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hello" }] })
}

fn generate() -> Value {
    json!({ "contents": [{ "parts": [{ "text": "hello" }] }] })
}

fn with(house: &House, headers: &[(&str, &str)], path: &str, body: &Value) -> Answer {
    house
        .proxy
        .listen
        .ask(&request("POST", path, headers, body))
}

/// A token that nobody was ever given.
fn unknown() -> String {
    format!("session-{}", "5e".repeat(32))
}

#[test]
fn whatever_is_wrong_with_a_credential_the_answer_is_the_same() {
    let house = House::new();
    let good = house.register(&openai());
    let revoked = house.register(&openai());
    assert_eq!(house.status(&revoked.token), 200);
    assert_eq!(
        house
            .admin(
                "DELETE",
                &format!("/v1/sessions/{}", revoked.id),
                &Value::Null
            )
            .status,
        200
    );
    let served = house.provider.served().count;
    for path in [CHAT, MESSAGES, GENERATE, "/nowhere"] {
        let expected = with(&house, &[], path, &chat("m")).without_date();
        assert_eq!(expected.0, 401, "{path}: {expected:?}");
        for credential in [
            String::new(),
            "Bearer".into(),
            "Bearer ".into(),
            format!("Bearer {}", unknown()),
            format!("Bearer {}", revoked.token),
            format!("Bearer {}", &revoked.token[8..]),
            format!("Bearer {}", "a".repeat(60_000)),
            format!("Basic {}", good.token),
            format!("Bearer session-{}", good.token),
            format!("Bearer {}", good.token.to_uppercase()),
            format!("Bearer {}", good.id),
        ] {
            let answer = with(&house, &[("authorization", &credential)], path, &chat("m"));
            assert_eq!(answer.without_date(), expected, "{path}: {credential:.80}");
        }
        for name in ["x-api-key", "x-goog-api-key"] {
            let answer = with(&house, &[(name, &revoked.token)], path, &chat("m"));
            assert_eq!(answer.without_date(), expected, "{path}: {name}");
        }
    }
    // More than any head may be is not even read to its end.
    let flood = format!("Bearer {}", "a".repeat(1 << 20));
    let answer = with(&house, &[("authorization", &flood)], CHAT, &chat("m"));
    assert!(
        answer.status == 431 || answer.ending == Ending::Reset,
        "{answer:?}"
    );
    assert_eq!(
        house.provider.served().count,
        served,
        "nothing of all that reached the provider"
    );
    assert_eq!(house.status(&good.token), 200, "the positive control");
}

#[test]
fn both_forms_of_a_token_are_the_same_for_use_and_for_revocation() {
    let house = House::new();
    for bare_revokes in [false, true] {
        let session = house.register(&openai());
        let bare = &session.token[8..];
        assert_eq!(
            (house.status(&session.token), house.status(bare)),
            (200, 200)
        );
        let which = if bare_revokes { bare } else { &session.token };
        let answer = house.admin("DELETE", &format!("/v1/sessions/{which}"), &Value::Null);
        assert_eq!(
            (answer.status, answer.json()["status"].clone()),
            (200, json!("revoked"))
        );
        assert_eq!(
            (house.status(&session.token), house.status(bare)),
            (401, 401)
        );
    }
}

#[test]
fn every_client_finds_a_place_for_its_token_and_the_provider_never_sees_it() {
    let house = House::new();
    let openai = house.register(&openai()).token;
    let claude = house.register(&json!({ "provider": "claude" })).token;
    let gemini = house.register(&json!({ "provider": "gemini" })).token;
    let bearer = format!("Bearer {openai}");
    assert_eq!(
        with(&house, &[("authorization", &bearer)], CHAT, &chat("m")).status,
        200
    );
    assert_eq!(
        with(&house, &[("x-api-key", &claude)], MESSAGES, &messages()).status,
        200
    );
    assert_eq!(
        with(
            &house,
            &[("x-goog-api-key", &gemini)],
            GENERATE,
            &generate()
        )
        .status,
        200
    );
    let by_query = with(
        &house,
        &[],
        &format!("{GENERATE}?key={gemini}"),
        &generate(),
    );
    assert_eq!(by_query.status, 200, "{}", by_query.text());
    let streamed = format!("/v1beta/models/m:streamGenerateContent?alt=sse&key={gemini}");
    assert_eq!(with(&house, &[], &streamed, &generate()).status, 200);
    let served = house
        .provider
        .await_served(|served| served.count == 5 && served.open == 0);
    for call in &served.calls {
        assert_eq!(call.keys, [REAL_KEY], "{call:?}");
        let everything = format!("{call:?}");
        for token in [&openai, &claude, &gemini] {
            assert!(!everything.contains(&token[8..]), "{everything}");
        }
    }
    assert_eq!(served.calls[3].path, GENERATE);
}

#[test]
fn a_token_is_in_no_file_no_list_and_no_word_of_the_service() {
    let mut house = House::new();
    let gemini =
        json!({ "provider": "gemini", "sandbox_id": "box", "socket": true, "api_key": OWN_KEY });
    let session = house.register(&gemini);
    let by_query = with(
        &house,
        &[],
        &format!("{GENERATE}?key={}", session.token),
        &generate(),
    );
    assert_eq!(
        (
            by_query.status,
            house.provider.served().calls[0].keys.clone()
        ),
        (200, vec![OWN_KEY.to_owned()])
    );
    assert_eq!(
        with(
            &house,
            &[],
            &format!("/v1/files?key={}", session.token),
            &generate()
        )
        .status,
        404
    );
    let one = format!("/v1/sessions/{}", session.id);
    for path in [
        "/v1/sessions",
        &one,
        &format!("{one}/usage"),
        "/v1/usage",
        "/v1/health",
    ] {
        let answer = house.admin("GET", path, &Value::Null);
        assert_eq!(answer.status, 200, "{path}");
        let raw = String::from_utf8_lossy(&answer.raw).into_owned();
        assert!(
            !raw.contains(&session.token[8..]) && !raw.contains("canary"),
            "{path}: {raw}"
        );
    }
    let (_, said) = house.proxy.end(Signal::TERM);
    assert!(
        !said.contains(&session.token[8..]) && !said.contains("canary"),
        "{said}"
    );
    assert_eq!(
        house.folder.holding(&session.token[8..]),
        Vec::<std::path::PathBuf>::new()
    );
    assert_eq!(
        house.folder.holding(OWN_KEY),
        Vec::<std::path::PathBuf>::new()
    );
    assert_eq!(
        house.folder.holding(REAL_KEY),
        [house.folder.at("key")],
        "the test sees what files hold"
    );
}

#[test]
fn a_session_is_known_by_its_socket_and_anothers_token_is_refused_there() {
    let house = House::new();
    let with_socket = json!({ "provider": "openai", "socket": true });
    let (one, other) = (house.register(&with_socket), house.register(&with_socket));
    let socket = Door::Unix(one.socket.clone().expect("a socket"));
    let ask = |headers: &[(&str, &str)]| socket.ask(&request("POST", CHAT, headers, &chat("m")));
    assert_eq!(ask(&[]).status, 200, "no token is needed");
    assert_eq!(
        ask(&[("authorization", "Bearer sk-placeholder")]).status,
        200
    );
    assert_eq!(
        ask(&[("authorization", &format!("Bearer {}", one.token))]).status,
        200
    );
    let calls = |which: &str| {
        house
            .admin("GET", &format!("/v1/sessions/{which}/usage"), &Value::Null)
            .json()["calls"]
            .clone()
    };
    assert_eq!(
        (calls(&one.id), calls(&other.token)),
        (json!(3), json!(0)),
        "the listener decides who pays"
    );
    for header in ["authorization", "x-api-key", "x-goog-api-key"] {
        for token in [&other.token, &other.token[8..], &unknown()] {
            let value = if header == "authorization" {
                format!("Bearer {token}")
            } else {
                token.to_owned()
            };
            assert_eq!(ask(&[(header, &value)]).status, 401, "{header}");
        }
    }
    let query = format!("{CHAT}?key={}", other.token);
    assert_eq!(
        socket.ask(&request("POST", &query, &[], &chat("m"))).status,
        401
    );
    assert_eq!((calls(&one.id), calls(&other.id)), (json!(3), json!(0)));
    let view = house
        .admin("GET", &format!("/v1/sessions/{}", one.id), &Value::Null)
        .json();
    assert_eq!(
        view["denials"][0]["rule"], "token_listener_mismatch",
        "{view}"
    );
}

#[test]
fn an_upgrade_is_asked_for_its_token_like_everybody_and_is_not_made() {
    let house = House::new();
    let session = house.register(&openai());
    let bearer = format!("Bearer {}", session.token);
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
    ];
    let ask = |more: &[(&str, &str)], path: &str| {
        let headers = [&upgrade, more].concat();
        house
            .proxy
            .listen
            .ask(&request("GET", path, &headers, &Value::Null))
            .status
    };
    for path in ["/v1/responses", "/v1/realtime?model=m"] {
        assert_eq!(ask(&[], path), 401);
        assert!(
            [404, 405].contains(&ask(&[("authorization", &bearer)], path)),
            "{path}"
        );
    }
    assert_eq!(
        house.provider.served().connections,
        0,
        "nothing was dialled"
    );
    assert_eq!(house.status(&session.token), 200, "the positive control");
}

#[test]
fn a_token_that_was_used_once_is_never_good_again() {
    let house = House::new();
    let token = unknown();
    let order = json!({ "provider": "openai", "token": token });
    let first = house.register(&order);
    assert_eq!(
        (first.token.clone(), house.status(&token)),
        (token.clone(), 200)
    );
    let again = |token: &str| {
        house
            .admin(
                "POST",
                "/v1/sessions",
                &json!({ "provider": "openai", "token": token }),
            )
            .status
    };
    assert_eq!((again(&token), again(&token[8..])), (409, 409), "it lives");
    assert_eq!(house.status(&token), 200, "and was not overwritten");
    house.admin("DELETE", &format!("/v1/sessions/{token}"), &Value::Null);
    assert_eq!(
        (house.status(&token), again(&token), again(&token[8..])),
        (401, 409, 409),
        "it is over"
    );
    assert_eq!(house.status(&token), 401);
    let next = house.register(&openai());
    assert!(next.id != first.id && next.token != first.token);
}

#[test]
fn the_admin_is_not_to_be_found_where_sessions_call() {
    let house = House::with(
        "",
        &[
            "--admin-listen",
            "127.0.0.1:0",
            "--admin-token-file",
            "admin-token",
        ],
    );
    let session =
        house.register(&json!({ "provider": "openai", "socket": true, "sandbox_id": "box" }));
    let admin = std::fs::read_to_string(house.folder.at("admin-token")).expect("it was made");
    let socket = Door::Unix(session.socket.clone().expect("a socket"));
    let one = format!("/v1/sessions/{}", session.id);
    let paths = [
        "/v1/sessions",
        &one,
        "/v1/sandboxes/box/sessions",
        "/v1/usage",
        "/v1/check",
        "/v1/reload",
    ];
    for credential in ["", &session.token, admin.trim()] {
        let bearer = format!("Bearer {credential}");
        for (path, method) in paths
            .iter()
            .flat_map(|path| ["GET", "POST", "DELETE"].map(|method| (path, method)))
        {
            let asked = request(method, path, &[("authorization", &bearer)], &Value::Null);
            assert_eq!(
                house.proxy.listen.ask(&asked).status,
                404,
                "{method} {path}"
            );
            let here = socket.ask(&asked).status;
            // A token of nobody's is refused before the path is looked at.
            assert_eq!(
                here,
                if credential == admin.trim() { 401 } else { 404 },
                "{method} {path}"
            );
        }
    }
    assert_eq!(
        house.admin("GET", "/v1/sessions", &Value::Null).json()["sessions"][0]["id"],
        session.id
    );
    let listen = house.proxy.admin_listen.clone().expect("an address");
    let ask = |bearer: &str| {
        listen
            .ask(&request(
                "GET",
                "/v1/sessions",
                &[("authorization", bearer)],
                &Value::Null,
            ))
            .status
    };
    assert_eq!(ask(&format!("Bearer {}", admin.trim())), 200);
    for wrong in [
        "",
        "Bearer ",
        "Bearer x",
        &format!("Bearer {}", session.token),
        admin.trim(),
    ] {
        assert_eq!(ask(wrong), 401, "{wrong}");
    }
}

#[test]
fn the_same_idempotency_key_of_two_tenants_is_two_to_the_provider() {
    let house = House::with_patience("forward_headers = [\"Idempotency-Key\"]");
    let of = |tenant: &str| {
        let order = json!({ "provider": "openai", "tenant": tenant });
        house.register(&order).token
    };
    let (one, other) = (of("one"), of("two"));
    let ask = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", &*bearer), ("idempotency-key", "order-1")];
        let sent = request("POST", CHAT, &headers, &chat("m"));
        assert_eq!(house.proxy.listen.ask(&sent).status, 200);
    };
    ask(&one);
    ask(&one);
    ask(&other);
    let keys: Vec<_> = house
        .provider
        .served()
        .calls
        .iter()
        .map(|call| {
            let named = call
                .headers
                .iter()
                .filter(|(name, _)| name == "idempotency-key");
            named.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(keys[0].len(), 1, "{keys:?}");
    assert_eq!(keys[0], keys[1], "asked again by the same session");
    assert_ne!(keys[0], keys[2]);
    assert!(!keys.concat().iter().any(|key| key.contains("order-1")));
}

#[test]
fn a_call_in_the_name_of_somebody_else_is_overwritten() {
    let house = House::new();
    let session = house.register(&openai());
    let mut body = chat("m");
    body["user"] = json!("the-boss");
    let bearer = format!("Bearer {}", session.token);
    let headers = [
        ("authorization", bearer.as_str()),
        ("x-litellm-end-user-id", "the-boss"),
        ("openai-organization", "the-boss"),
        ("x-forwarded-for", "the-boss"),
    ];
    assert_eq!(with(&house, &headers, CHAT, &body).status, 200);
    let call = &house.provider.served().calls[0];
    let sent: Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!(sent["user"], session.id);
    assert!(
        !format!("{:?}", call.headers).contains("the-boss"),
        "{:?}",
        call.headers
    );
}
