//! The end of a session: when whoever revokes is answered, no further byte reaches anybody.

use doors_tests::{Answer, Door, Ending, House, Session, chat, request, streamed_chat};
use provider::{End, Fault};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn revoke(house: &House, which: &str) -> Answer {
    house.admin("DELETE", &format!("/v1/sessions/{which}"), &Value::Null)
}

fn usage(house: &House, which: &str) -> Value {
    house
        .admin("GET", &format!("/v1/sessions/{which}/usage"), &Value::Null)
        .json()
}

/// A stream whose provider holds after three tokens, of which all three have come.
fn held_stream(house: &House, session: &Session) -> doors_tests::Stream {
    house.provider.next(Fault::Hold(3));
    let mut stream = house.stream(&session.token, "m");
    stream.until("tok2");
    stream
}

#[test]
fn a_stream_ends_before_its_revocation_is_answered_with_words_of_its_own_and_no_proper_end() {
    let house = House::new();
    let session = house.register(&json!({ "provider": "openai" }));
    let stream = held_stream(&house, &session);
    let before = stream.came().len();
    assert_eq!(usage(&house, &session.id)["calls"], 1);
    let answer = revoke(&house, &session.id);
    assert_eq!(
        (answer.status, answer.json()["status"].clone()),
        (200, json!("revoked"))
    );
    // The provider would go on: nobody is there to hear it.
    house.provider.release();
    let answer = stream.finish_at_once();
    assert_eq!(answer.ending, Ending::Short, "{}", answer.text());
    let last = String::from_utf8_lossy(&answer.raw[before..]).into_owned();
    assert!(
        last.contains("\"authentication_error\"") && last.contains("The session was ended"),
        "{last}"
    );
    assert!(!last.contains("tok3") && !last.contains("[DONE]"), "{last}");
    let served = house.provider.await_served(|served| served.open == 0);
    assert_eq!(served.calls[0].end, End::Gone);
    let told = usage(&house, &session.id);
    assert_eq!(
        (&told["status"], &told["calls"], &told["reserved_usd"]),
        (&json!("revoked"), &json!(1), &json!(0.0))
    );
    assert!(
        told["output_tokens"].as_u64() >= Some(3),
        "what was served is paid: {told}"
    );
}

#[test]
fn without_a_revocation_the_same_stream_goes_on_to_its_end() {
    let house = House::new();
    let (session, other) = (
        house.register(&json!({ "provider": "openai" })),
        house.register(&json!({ "provider": "openai" })),
    );
    let stream = held_stream(&house, &session);
    assert_eq!(revoke(&house, &other.id).status, 200);
    house.provider.release();
    let answer = stream.finish();
    assert_eq!(answer.ending, Ending::Whole);
    assert!(
        answer.text().contains("tok7") && answer.text().contains("[DONE]"),
        "{}",
        answer.text()
    );
}

#[test]
fn every_dialect_hears_of_its_end_in_its_own_words() {
    let house = House::new();
    let messages = json!({ "model": "m", "max_tokens": 20, "stream": true, "messages": [] });
    let contents = json!({ "contents": [] });
    for (provider, path, body, words) in [
        (
            "openai",
            CHAT,
            streamed_chat("m"),
            "\"authentication_error\"",
        ),
        ("claude", "/v1/messages", messages, "event: error"),
        (
            "gemini",
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            contents,
            "\"UNAUTHENTICATED\"",
        ),
        ("ollama", "/api/chat", streamed_chat("m"), "\"error\":"),
    ] {
        let session = house.register(&json!({ "provider": provider }));
        house.provider.next(Fault::Hold(2));
        let bearer = format!("Bearer {}", session.token);
        let mut stream =
            house
                .proxy
                .listen
                .open(&request("POST", path, &[("authorization", &bearer)], &body));
        stream.until("tok1");
        let before = stream.came().len();
        assert_eq!(revoke(&house, &session.token).status, 200);
        let answer = stream.finish_at_once();
        let last = String::from_utf8_lossy(&answer.raw[before..]).into_owned();
        assert!(
            last.contains(words) && answer.ending == Ending::Short,
            "{provider}: {last}"
        );
    }
}

#[test]
fn everything_that_a_sandbox_has_open_ends_with_it_and_nothing_of_others_does() {
    let house = House::new();
    let order = json!({ "provider": "openai", "sandbox_id": "box-1", "socket": true });
    let (one, two) = (house.register(&order), house.register(&order));
    let other =
        house.register(&json!({ "provider": "openai", "sandbox_id": "box-2", "socket": true }));
    let socket = |session: &Session| Door::Unix(session.socket.clone().expect("a socket"));
    // A stream by token, one by socket, a connection that only waits, and one of somebody else.
    let by_token = held_stream(&house, &one);
    house.provider.next(Fault::Hold(1));
    let mut by_socket = socket(&two).open(&request("POST", CHAT, &[], &streamed_chat("m")));
    by_socket.until("tok0");
    let mut idle = socket(&one).open(&request("GET", "/health", &[], &Value::Null));
    idle.until("\"ok\"");
    let others = held_stream(&house, &other);
    let answer = house.admin("DELETE", "/v1/sandboxes/box-1/sessions", &Value::Null);
    assert_eq!(
        (answer.status, answer.json()["revoked"].clone()),
        (200, json!(2))
    );
    for stream in [by_token, by_socket] {
        assert_eq!(stream.finish_at_once().ending, Ending::Short);
    }
    idle.finish_at_once();
    assert!(!socket(&one).is_open() && !socket(&two).is_open());
    assert!(
        !one.socket
            .as_ref()
            .and_then(|socket| socket.parent())
            .expect("a folder")
            .exists()
    );
    assert_eq!(
        (house.status(&one.token), house.status(&two.token)),
        (401, 401)
    );
    house.provider.release();
    assert_eq!(others.finish().ending, Ending::Whole);
    assert!(socket(&other).is_open());
    let left = house.admin("GET", "/v1/sessions", &Value::Null).json();
    assert_eq!(
        (
            left["sessions"].as_array().map(Vec::len),
            &left["sessions"][0]["id"]
        ),
        (Some(1), &json!(other.id))
    );
    let again = house
        .admin("DELETE", "/v1/sandboxes/box-1/sessions", &Value::Null)
        .json();
    assert_eq!(again["revoked"], 0);
}

#[test]
fn a_call_that_waits_for_its_provider_is_ended_too() {
    let house = House::new();
    let session = house.register(&json!({ "provider": "openai" }));
    house.provider.next(Fault::HoldHeaders);
    let bearer = format!("Bearer {}", session.token);
    let waiting = house.proxy.listen.open(&request(
        "POST",
        CHAT,
        &[("authorization", &bearer)],
        &chat("m"),
    ));
    house.provider.await_served(|served| served.held == 1);
    assert_eq!(revoke(&house, &session.id).status, 200);
    let answer = waiting.finish_at_once();
    assert!(answer.status == 401 || answer.status == 0, "{answer:?}");
    assert_eq!(usage(&house, &session.id)["reserved_usd"], 0.0);
}

#[test]
fn when_its_time_is_over_a_session_ends_by_itself_in_mid_stream() {
    let house = House::new();
    let lasting = house.register(&json!({ "provider": "openai", "ttl_s": 3600 }));
    let session = house.register(&json!({ "provider": "openai", "ttl_s": 5, "socket": true }));
    assert!(session.expires_at.is_some() && lasting.expires_at > session.expires_at);
    // Nobody lets it go on: what ends it is the clock.
    let answer = held_stream(&house, &session).finish();
    assert!(
        answer.ending == Ending::Short && answer.text().contains("The session was ended"),
        "{answer:?}"
    );
    let unknown = house
        .call(&"5e".repeat(32), CHAT, &chat("m"))
        .without_date();
    assert_eq!(
        house.call(&session.token, CHAT, &chat("m")).without_date(),
        unknown
    );
    assert_eq!((unknown.0, house.status(&lasting.token)), (401, 200));
    // The end of a stream comes before the end of the session is written down, which this waits for.
    revoke(&house, &session.id);
    assert_eq!(usage(&house, &session.id)["status"], "expired");
}

#[test]
fn what_nobody_knows_cannot_be_revoked() {
    let house = House::new();
    let session = house.register(&json!({ "provider": "openai" }));
    for which in [
        "nobody",
        &format!("session-{}", "5e".repeat(32)),
        "..%2f",
        "",
    ] {
        assert_eq!(revoke(&house, which).status, 404, "{which}");
    }
    assert_eq!(
        (
            revoke(&house, &session.id).status,
            revoke(&house, &session.id).status
        ),
        (200, 404)
    );
    assert_eq!(
        usage(&house, &session.token)["status"],
        "revoked",
        "its usage is still told"
    );
}
