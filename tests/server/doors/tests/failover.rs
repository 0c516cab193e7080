//! A provider that falters: what is tried again, what is tried elsewhere, what is told, and that every try is in the ledger.

use doors_tests::{Ending, House, REAL_KEY, chat, streamed_chat};
use provider::{Fault, Provider, Script, Settings};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn openai() -> Value {
    json!({ "provider": "openai" })
}

fn status(code: u16, retry_after: Option<&str>) -> Fault {
    Fault::Status {
        code,
        retry_after: retry_after.map(str::to_owned),
        bills: false,
    }
}

/// A second provider, and a house where `both` is the first one's `one`, then the second's `two`.
fn two() -> (House, Provider) {
    let second = Provider::start(Settings {
        keys: vec![REAL_KEY.into()],
        ..Settings::default()
    });
    let base = second.base();
    let house = House::shaped(
        |text| {
            let own = text
                .split("[provider.")
                .nth(1)
                .expect("a provider")
                .replacen("openai]", "[provider.second]", 1);
            let own: String = own
                .lines()
                .map(|line| {
                    if line.starts_with("base") {
                        format!("base = \"{base}\"\n")
                    } else {
                        format!("{line}\n")
                    }
                })
                .collect();
            let text = text.replace("[inference]", &format!("{own}[inference]"));
            let text = text.replace(
                "allow_private = true\n",
                "allow_private = true\nretries = 1\n",
            );
            text + "[model.both]\ntargets = [\"openai/one\", \"second/two\"]\n"
        },
        &[],
    );
    (house, second)
}

/// Provider, model, try and status of each settled call.
fn tries(house: &House, count: usize) -> Vec<(Value, Value, Value, Value)> {
    let reserved = house.ledger("reserve");
    let settled = house.await_settled(count);
    assert_eq!(
        (reserved.len(), settled.len()),
        (count, count),
        "one of each a try"
    );
    let of = |settle: &Value| {
        let one = reserved
            .iter()
            .find(|row| row["n"] == settle["of"])
            .expect("what it settles");
        (
            one["provider"].clone(),
            one["model"].clone(),
            one["attempt"].clone(),
            settle["status"].clone(),
        )
    };
    settled.iter().map(of).collect()
}

fn row(provider: &str, model: &str, attempt: u64, status: Value) -> (Value, Value, Value, Value) {
    (json!(provider), json!(model), json!(attempt), status)
}

#[test]
fn what_may_pass_is_tried_again_and_every_try_is_in_the_ledger() {
    for (fault, seen) in [
        (status(429, Some("0.02")), json!(429)),
        (status(429, None), json!(429)),
        (status(500, None), json!(500)),
        (status(529, None), json!(529)),
        (Fault::Reset, Value::Null),
        (Fault::Close, Value::Null),
    ] {
        for body in [chat("m"), streamed_chat("m")] {
            let house = House::new();
            let token = house.register(&openai()).token;
            house.provider.next(fault.clone());
            let answer = house.call(&token, CHAT, &body);
            assert_eq!(
                (answer.status, answer.ending),
                (200, Ending::Whole),
                "{fault:?}: {}",
                answer.text()
            );
            assert_eq!(house.provider.served().count, 2, "{fault:?}");
            let expected = [
                row("openai", "m", 1, seen.clone()),
                row("openai", "m", 2, json!(200)),
            ];
            assert_eq!(tries(&house, 2), expected, "{fault:?}");
        }
    }
}

#[test]
fn what_does_not_pass_is_told_as_it_is_after_a_bounded_number_of_tries() {
    let house = House::new();
    let token = house.register(&openai()).token;
    for (fault, code, wait) in [
        (status(503, None), 503, None),
        (status(429, Some("0.02")), 429, Some("1")),
        // Longer than anybody waits: told at once, and clamped.
        (status(429, Some("86400")), 429, Some("30")),
        (status(503, Some("soon")), 503, None),
        (status(503, Some("-1")), 503, None),
        (status(503, Some("1e400")), 503, None),
    ] {
        house.provider.reset();
        house.provider.set(fault.clone());
        let answer = house.call(&token, CHAT, &chat("m"));
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (code, wait),
            "{fault:?}: {}",
            answer.text()
        );
        assert_eq!(answer.json()["error"]["code"], "upstream_error");
        assert_eq!(answer.header("x-should-retry"), Some("true"));
        let at_once = wait == Some("30");
        assert_eq!(
            house.provider.served().count,
            if at_once { 1 } else { 3 },
            "{fault:?}"
        );
    }
}

#[test]
fn a_refused_request_is_told_in_the_providers_words_and_not_taken_elsewhere() {
    let (house, second) = two();
    let token = house.register(&openai()).token;
    for code in [
        "context_length_exceeded",
        "content_filter",
        "invalid_prefill",
    ] {
        house.provider.reset();
        house.provider.next(Fault::Refuse(code.to_owned()));
        let answer = house.call(&token, CHAT, &chat("both"));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains(code), "{}", answer.text());
        assert_eq!(
            (house.provider.served().count, second.served().count),
            (1, 0),
            "{code}"
        );
    }
    assert_eq!(
        house.call(&token, CHAT, &chat("both")).status,
        200,
        "the positive control"
    );
}

#[test]
fn another_model_answers_where_the_first_does_not() {
    for (fault, seen) in [
        (status(503, None), json!(503)),
        (status(429, Some("86400")), json!(429)),
        (status(401, None), json!(401)),
        (Fault::Reset, Value::Null),
    ] {
        let (house, second) = two();
        let token = house.register(&openai()).token;
        house.provider.set(fault.clone());
        for body in [chat("both"), streamed_chat("both")] {
            let answer = house.call(&token, CHAT, &body);
            assert_eq!(
                (answer.status, answer.ending),
                (200, Ending::Whole),
                "{fault:?}: {}",
                answer.text()
            );
        }
        assert!(
            house
                .provider
                .served()
                .calls
                .iter()
                .all(|call| call.model == "one")
        );
        let served = second.await_served(|served| served.count == 2 && served.open == 0);
        assert!(
            served
                .calls
                .iter()
                .all(|call| call.model == "two" && call.keys == [REAL_KEY])
        );
        // Neither a refused credential nor a long wait is tried again at the same place.
        let of_first = house.provider.served().count / 2;
        assert_eq!(
            of_first,
            if seen == json!(401) || seen == json!(429) {
                1
            } else {
                2
            },
            "{fault:?}"
        );
        let one: Vec<_> = (1..=of_first)
            .map(|number| row("openai", "one", number, seen.clone()))
            .collect();
        let mut expected = one;
        expected.push(row("second", "two", of_first + 1, json!(200)));
        let all = tries(&house, expected.len() * 2);
        assert_eq!(all, [expected.clone(), expected].concat(), "{fault:?}");
    }
}

#[test]
fn a_flapping_provider_is_used_again_as_soon_as_it_answers() {
    let (house, second) = two();
    let token = house.register(&openai()).token;
    for _ in 0..3 {
        house.provider.set(status(500, None));
        assert_eq!(house.call(&token, CHAT, &chat("both")).status, 200);
        house.provider.set(Script::default());
        assert_eq!(house.call(&token, CHAT, &chat("both")).status, 200);
    }
    assert_eq!(second.served().count, 3);
    assert_eq!(
        house
            .provider
            .served()
            .calls
            .iter()
            .filter(|call| call.status == 200)
            .count(),
        3
    );
}

#[test]
fn after_the_first_byte_nothing_is_tried_again() {
    let (house, second) = two();
    let token = house.register(&openai()).token;
    for fault in [Fault::Cut(1), Fault::BadFraming(1), Fault::Fails(1)] {
        house.provider.reset();
        house.provider.next(fault.clone());
        let answer = house.call(&token, CHAT, &streamed_chat("both"));
        assert_eq!(answer.status, 200);
        assert!(
            answer.text().contains("\"error\"") && !answer.text().contains("[DONE]"),
            "{}",
            answer.text()
        );
        assert_eq!(
            (house.provider.served().count, second.served().count),
            (1, 0),
            "{fault:?}"
        );
    }
}

#[test]
fn what_a_provider_leaves_out_is_not_put_in() {
    let house = House::new();
    let token = house.register(&openai()).token;
    let direct = |fault: Fault| {
        house.provider.next(fault);
        let mut body = streamed_chat("m");
        body["stream_options"] = json!({ "include_usage": true });
        house.call(&token, CHAT, &body)
    };
    let without_end = direct(Fault::NoDone);
    assert!(
        without_end.text().contains("tok7") && !without_end.text().contains("[DONE]"),
        "{}",
        without_end.text()
    );
    let broken = direct(Fault::BadJson(2));
    assert!(
        broken.text().contains("[DONE]") && broken.text().contains("tok7"),
        "one bad frame spoils only itself"
    );
    let settled = house.await_settled(2);
    assert!(
        settled.iter().all(|row| row["usage"]["output"] == 8),
        "{settled:#?}"
    );
}

#[test]
fn a_slow_first_token_is_waited_for() {
    let house = House::with_patience("retries = 0\nttfb = \"20s\"\nidle = \"20s\"");
    let token = house.register(&openai()).token;
    house.provider.next(Fault::SlowHeaders(700));
    assert_eq!(
        house.call(&token, CHAT, &streamed_chat("m")).ending,
        Ending::Whole
    );
    house.provider.next(Script {
        pace_ms: 100,
        ..Script::default()
    });
    assert_eq!(
        house.call(&token, CHAT, &streamed_chat("m")).ending,
        Ending::Whole
    );
    assert_eq!(house.provider.served().count, 2);
}
