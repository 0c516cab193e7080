//! Limits that hold, by the account of the one who was paid: doors.md 6, D 22 to 24, 33, 34, 36. The clock of days (35) is
//! `a_day_ends_at_midnight_by_a_clock_that_nobody_can_turn` in the till's own tests.

use doors_tests::{
    Answer, Ending, House, Session,
    money::{Dice, INPUT, OUTPUT, ReportedUsage, Way, dollars, price, times, worst},
    request,
};
use provider::{Fault, Script};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    sync::{Barrier, mpsc},
    thread,
    time::Duration,
};

/// Refused for good: nobody is to try again.
fn assert_spent(answer: &Answer, limit: &str) {
    let words = format!("limit `{limit}`");
    assert!(
        answer.status == 402 && answer.text().contains(&words),
        "{} {}",
        answer.status,
        answer.text()
    );
    assert_eq!(answer.header("x-airlock-error"), Some("budget_exceeded"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

/// Refused for now.
fn assert_busy(answer: &Answer, limit: &str) {
    let words = format!("limit `{limit}`");
    assert!(
        answer.status == 429 && answer.text().contains(&words),
        "{} {}",
        answer.status,
        answer.text()
    );
    assert!(
        answer.header("retry-after").is_some() && answer.header("x-should-retry") == Some("true")
    );
}

/// A house where one session may have a thousand calls under way.
fn crowded_house() -> House {
    House::with("[doors]\nconnections = 2000\nconcurrent = 2000\n", &[])
}

/// Calls at the same time; the answers in the order in which they end.
fn crowd(
    house: &House,
    session: &Session,
    count: usize,
    then: impl FnOnce(&mpsc::Receiver<Answer>),
) {
    let asked = Way::Chat.request(
        &session.token,
        "m",
        false,
        &Way::Chat.body("m", false, Some(20)),
    );
    let (barrier, (sender, answers)) = (Barrier::new(count), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..count {
            let sender = sender.clone();
            let (asked, barrier) = (&asked, &barrier);
            let one = move || {
                barrier.wait();
                sender
                    .send(house.proxy.listen.ask(asked))
                    .expect("somebody listens");
            };
            thread::Builder::new()
                .stack_size(128 << 10)
                .spawn_scoped(scope, one)
                .expect("a thread");
        }
        then(&answers);
    });
}

/// Calls that cost all that they can.
fn costs_the_worst() -> (Script, u64) {
    let length = Way::Chat.body("m", false, Some(20)).to_string().len();
    (
        Script {
            tokens: 20,
            input: Some(length as u64),
            ..Script::default()
        },
        worst(length, 20),
    )
}

#[test]
fn of_a_thousand_at_once_with_money_for_ten_ten_are_admitted() {
    let house = crowded_house();
    let (script, each) = costs_the_worst();
    let limit = 10 * each;
    house.provider.set(Script {
        fault: Some(Fault::HoldHeaders),
        ..script
    });
    let session = house.session(Way::Chat, &json!({ "usd": dollars(limit) }));
    crowd(&house, &session, 1000, |answers| {
        // Those that are let in wait for the provider, so all others are answered while all the money is held.
        for _ in 0..990 {
            let answer = answers
                .recv_timeout(Duration::from_secs(60))
                .expect("nobody else waits");
            assert_busy(&answer, "session_usd");
        }
        let served = house.provider.await_served(|served| served.held == 10);
        assert_eq!(served.count, 10);
        house.provider.release();
        for _ in 0..10 {
            assert_eq!(
                answers
                    .recv_timeout(Duration::from_secs(60))
                    .expect("it goes on")
                    .status,
                200
            );
        }
    });
    let served = house.all_served();
    assert_eq!(
        (served.count, price(&served.tokens)),
        (10, limit),
        "to the last nano-dollar"
    );
    assert_eq!(
        house.told(&session),
        ReportedUsage::exactly(10, &served.tokens)
    );
    assert_spent(
        &house.ask(&session, Way::Chat, false, Some(20)),
        "session_usd",
    );
    assert_eq!(house.provider.served().count, 10);
}

#[test]
fn of_a_thousand_that_are_answered_at_once_no_more_are_paid_than_there_is_money() {
    let house = crowded_house();
    let (script, each) = costs_the_worst();
    house.provider.set(script);
    let session = house.session(Way::Chat, &json!({ "usd": dollars(10 * each) }));
    let mut good = 0;
    crowd(&house, &session, 1000, |answers| {
        for answer in answers.iter().take(1000) {
            match answer.status {
                200 => good += 1,
                402 => assert_spent(&answer, "session_usd"),
                _ => assert_busy(&answer, "session_usd"),
            }
        }
    });
    let served = house.all_served();
    assert_eq!(
        (good, served.count, price(&served.tokens)),
        (10, 10, 10 * each)
    );
}

/// One call of a trial.
struct Plan {
    model: String,
    stream: bool,
    cap: Option<u64>,
    /// What the client does after the first bytes, or before.
    leaves: Leaves,
}

#[derive(Clone, Copy)]
enum Leaves {
    Never,
    BeforeHeaders,
    AfterFirstBytes,
}

impl Plan {
    fn new(trial: u64, dice: &mut Dice) -> Plan {
        let faults = [
            "cut",
            "reset_after",
            "fails",
            "bad_json",
            "bad_framing",
            "status",
            "slow_headers",
            "",
            "",
            "",
        ];
        let number = dice.roll(24);
        let fault = match faults[dice.roll(10) as usize] {
            "" => String::new(),
            "status" => format!("-status-{}", [400, 429, 500, 529][number as usize % 4]),
            fault => format!("-{fault}-{number}"),
        };
        let (tokens, reasoning, pace) = (dice.roll(60), dice.roll(4) * dice.roll(6), dice.roll(2));
        let model =
            format!("trial{trial}-tokens-{tokens}-reasoning-{reasoning}-pace-{pace}{fault}");
        let leaves = [
            Leaves::Never,
            Leaves::Never,
            Leaves::BeforeHeaders,
            Leaves::AfterFirstBytes,
        ];
        Plan {
            model,
            stream: dice.roll(3) > 0,
            cap: (dice.roll(3) > 0).then(|| 1 + dice.roll(80)),
            leaves: leaves[dice.roll(4) as usize],
        }
    }

    fn carry_out(&self, house: &House, session: &Session, way: Way) {
        let body = way.body(&self.model, self.stream, self.cap);
        let asked = way.request(&session.token, &self.model, self.stream, &body);
        match self.leaves {
            Leaves::Never => _ = house.proxy.listen.ask(&asked),
            Leaves::BeforeHeaders => drop(house.proxy.listen.open(&asked)),
            Leaves::AfterFirstBytes => house.proxy.listen.open(&asked).first_bytes(),
        }
    }
}

/// Some calls, in parallel, with money for some of them. Whatever goes wrong on either side, the provider was not asked for
/// more than there was, and no less is counted than it served.
fn trial(house: &House, number: u64, dice: &mut Dice) {
    let way = Way::ALL[dice.roll(7) as usize];
    let limit = (20 + dice.roll(200)) * INPUT + dice.roll(300) * OUTPUT + dice.roll(1000);
    let session = house.session(way, &json!({ "usd": dollars(limit) }));
    let lanes: Vec<Vec<Plan>> = (0..1 + dice.roll(6))
        .map(|_| {
            (0..1 + dice.roll(3))
                .map(|_| Plan::new(number, dice))
                .collect()
        })
        .collect();
    thread::scope(|scope| {
        for lane in &lanes {
            scope.spawn(|| {
                lane.iter()
                    .for_each(|plan| plan.carry_out(house, &session, way))
            });
        }
    });
    let (told, prefix) = (house.told(&session), format!("trial{number}-"));
    let served = house.all_served();
    let spent: u64 = served
        .calls
        .iter()
        .filter(|call| call.model.starts_with(&prefix))
        .map(|call| price(&call.tokens))
        .sum();
    let calls = || {
        served
            .calls
            .iter()
            .map(|call| (&call.model, call.cap, call.status, call.tokens, call.end))
    };
    let shown = || {
        format!(
            "{way:?}, limit {limit}, {told:?}: {:#?}",
            calls().collect::<Vec<_>>()
        )
    };
    assert!(
        spent <= limit,
        "overshoot by {} in trial {number}: {}",
        spent - limit,
        shown()
    );
    assert!(
        told.money >= spent && told.money <= limit,
        "{spent} were served in trial {number}: {}",
        shown()
    );
    assert_eq!(told.overrun, 0, "trial {number}: {}", shown());
    house.admin(
        "DELETE",
        &format!("/v1/sessions/{}", session.id),
        &Value::Null,
    );
    house.provider.reset();
}

#[test]
fn whatever_calls_clients_and_providers_do_no_limit_is_passed() {
    let mut house = House::new();
    house.reconfigure(|text| {
        let quick = text.replace(
            "allow_private = true\n",
            "allow_private = true\nretries = 0\n",
        );
        // Half of them hang up when the client does, the others read on.
        quick.replace(
            "[provider.gemini]\n",
            "[provider.gemini]\non_client_abort = \"cancel\"\n",
        )
    });
    let mut dice = Dice::new();
    for number in 0..times(300, 10_000) {
        trial(&house, number, &mut dice);
    }
    house.proxy.end(Signal::TERM);
    assert_eq!(house.books(&["--verify"])["problems"], json!([]));
}

#[test]
fn without_a_cap_one_is_put_in_that_the_rest_of_the_money_can_pay() {
    let house = House::new();
    for (way, stream) in Way::ALL
        .into_iter()
        .flat_map(|way| [(way, false), (way, true)])
    {
        house.provider.reset();
        house.provider.set(Script {
            tokens: 30,
            ..Script::default()
        });
        let length = way.body("m", stream, None).to_string().len();
        let session = house.session(way, &json!({ "usd": dollars(worst(length, 100)) }));
        assert_eq!(
            house.ask(&session, way, stream, None).status,
            200,
            "{way:?}"
        );
        let served = house.all_served();
        let call = &served.calls[0];
        assert_eq!(
            (way.cap(&call.body), call.cap, call.tokens.output),
            (json!(100), Some(100), 30),
            "{way:?} {stream}"
        );
        assert_eq!(
            house.told(&session),
            ReportedUsage::exactly(1, &served.tokens),
            "{way:?}"
        );
        // What is left pays for a shorter answer, which is then what may be asked for.
        let left = worst(length, 100) - price(&served.tokens);
        let payable = (left - worst(length, 0)) / OUTPUT;
        assert!(payable >= 16, "the second call can be made: {payable}");
        assert_eq!(
            house.ask(&session, way, stream, None).status,
            200,
            "{way:?}"
        );
        assert_eq!(house.all_served().calls[1].cap, Some(payable), "{way:?}");
    }
}

#[test]
fn a_cap_that_is_too_high_is_lowered_and_one_that_can_be_paid_stays() {
    let house = House::new();
    for way in Way::ALL {
        house.provider.reset();
        let length = way.body("m", false, Some(9999)).to_string().len();
        let session = house.session(way, &json!({ "usd": dollars(worst(length, 50)) }));
        assert_eq!(house.ask(&session, way, false, Some(9999)).status, 200);
        let rich = house.session(way, &json!({ "usd": "5" }));
        assert_eq!(house.ask(&rich, way, false, Some(9999)).status, 200);
        let caps: Vec<_> = house
            .all_served()
            .calls
            .iter()
            .map(|call| way.cap(&call.body))
            .collect();
        assert_eq!(caps, [json!(50), json!(9999)], "{way:?}");
    }
}

#[test]
fn what_the_rest_cannot_pay_is_refused_before_the_provider_hears_of_it() {
    let house = House::new();
    for way in Way::ALL {
        house.provider.reset();
        let length = way.body("m", false, None).to_string().len();
        let poor = house.session(way, &json!({ "usd": dollars(worst(length, 15)) }));
        assert_spent(&house.ask(&poor, way, false, None), "session_usd");
        let enough = house.session(way, &json!({ "usd": dollars(worst(length, 16)) }));
        assert_eq!(
            house.ask(&enough, way, false, None).status,
            200,
            "the positive control"
        );
        assert_eq!(
            (house.all_served().count, house.told(&poor).money),
            (1, 0),
            "{way:?}"
        );
    }
}

#[test]
fn a_provider_that_goes_on_beyond_the_cap_is_cut_within_a_frame() {
    let house = House::new();
    for way in Way::ALL {
        house.provider.reset();
        house.provider.set(Script {
            tokens: 400,
            ignore_cap: true,
            pace_ms: 5,
            ..Script::default()
        });
        let session = house.session(way, &json!({ "usd": "1" }));
        let answer = house.ask(&session, way, true, Some(20));
        let text = answer.text();
        assert_eq!(answer.ending, Ending::Short, "{way:?}: {text}");
        assert!(
            text.contains("tok19") && !text.contains("tok21 "),
            "{way:?}: {text}"
        );
        let is_whole = [
            "[DONE]",
            "message_stop",
            "response.completed",
            "\"done\":true",
            "finishReason",
        ];
        assert!(
            !is_whole.iter().any(|word| text.contains(word)),
            "{way:?}: {text}"
        );
        let native = match way {
            Way::Chat | Way::Gemini => "{\"error\":",
            Way::OllamaChat | Way::OllamaGenerate => "{\"code\":\"upstream_overrun\",\"error\":",
            Way::Responses => "event: response.failed\n",
            Way::Messages => "event: error\n",
            // Into one document nothing can be put.
            Way::GeminiArray => "",
        };
        let last = text
            .rfind(native)
            .unwrap_or_else(|| panic!("{way:?}: {text}"));
        assert!(
            text.rfind("tok").expect("tokens") < last.max(1) || native.is_empty(),
            "{way:?}: {text}"
        );
        let served = house.all_served();
        assert!(
            served.tokens.output < 100,
            "it was told to stop: {:?}",
            served.tokens
        );
        assert!(house.told(&session).money >= worst(0, 21), "{way:?}");
    }
}

/// Calls of `claude`, which names its input at once, so that the excess is known to the nano-dollar.
#[test]
fn what_was_served_beyond_the_reservation_is_recorded_and_spent() {
    let mut house = House::new();
    let (way, mut all) = (Way::Messages, Vec::new());
    for (stream, tokens, beyond) in [(true, 400, 1), (false, 33, 13)] {
        let length = way.body("m", stream, Some(20)).to_string().len();
        let script = Script {
            input: Some(length as u64),
            tokens,
            ignore_cap: true,
            ..Script::default()
        };
        house.provider.set(Script {
            pace_ms: 5,
            ..script
        });
        let session = house.session(way, &json!({ "usd": dollars(worst(length, 40)) }));
        let answer = house.ask(&session, way, stream, Some(20));
        assert_eq!(
            (answer.status, answer.ending == Ending::Whole),
            (200, !stream),
            "{}",
            answer.text()
        );
        let told = house.told(&session);
        let money = worst(length, 20 + beyond);
        assert_eq!(
            (told.money, told.overrun),
            (money, beyond * OUTPUT),
            "{told:?}"
        );
        // The rest of the money would do for another call if the excess did not count.
        assert_spent(&house.ask(&session, way, stream, Some(20)), "session_usd");
        all.push(told);
    }
    house.proxy.end(Signal::TERM);
    let books = house.books(&["--by", "session"]);
    assert_eq!(
        books["total"]["overrun_nano_usd"],
        all.iter().map(|told| told.overrun).sum::<u64>()
    );
    assert_eq!(
        books["total"]["cost_nano_usd"],
        all.iter().map(|told| told.money).sum::<u64>()
    );
    assert!(
        house
            .rows("settle")
            .iter()
            .all(|row| row["ending"] == "overrun")
    );
}

#[test]
fn every_try_has_a_row_of_its_own_and_only_what_was_served_is_paid() {
    let mut house = House::new();
    house.reconfigure(|text| {
        text.replace(
            "allow_private = true\n",
            "allow_private = true\nretries = 3\n",
        )
    });
    let session = house.session(Way::Chat, &json!({}));
    for _ in 0..3 {
        house.provider.next(Fault::Status {
            code: 503,
            retry_after: Some("0".into()),
            bills: false,
        });
    }
    assert_eq!(house.ask(&session, Way::Chat, false, Some(20)).status, 200);
    let served = house.all_served();
    assert_eq!(
        (served.count, house.told(&session)),
        (4, ReportedUsage::exactly(4, &served.tokens))
    );
    // One that breaks off before it answers may have done everything that it was asked to.
    house.provider.next(Fault::Reset);
    let length = Way::Chat.body("m", false, Some(20)).to_string().len();
    let before = price(&house.all_served().tokens);
    assert_eq!(house.ask(&session, Way::Chat, false, Some(20)).status, 200);
    let twice = price(&house.all_served().tokens) - before;
    assert_eq!(
        house.told(&session).money,
        before + twice + worst(length, 20)
    );
    house.proxy.end(Signal::TERM);
    let attempts: Vec<_> = house
        .rows("reserve")
        .iter()
        .map(|row| row["attempt"].clone())
        .collect();
    assert_eq!(attempts, [1, 2, 3, 4, 1, 2].map(|n| json!(n)));
    let endings: Vec<_> = house
        .rows("settle")
        .iter()
        .map(|row| row["ending"].clone())
        .collect();
    let (refused, complete) = ("refused_upstream", "complete");
    assert_eq!(
        endings,
        [refused, refused, refused, complete, "no_answer", complete].map(|word| json!(word))
    );
}

#[test]
fn a_model_without_a_price_is_refused_or_costs_the_ceiling_and_is_never_free() {
    let house = House::new();
    house.reconfigure(|text| text.replace("[prices.\"*\"]", "[prices.\"known-*\"]"));
    let body = |way: Way, model: &str| way.body(model, false, Some(20));
    let call = |session: &Session, way: Way, model: &str| {
        house
            .proxy
            .listen
            .ask(&way.request(&session.token, model, false, &body(way, model)))
    };
    for way in Way::ALL {
        house.provider.reset();
        let session = house.session(way, &json!({}));
        let refused = call(&session, way, "nobody-knows");
        assert!(
            refused.status == 403 && refused.text().contains("rule `unknown_price`"),
            "{way:?}: {refused:?}"
        );
        assert_eq!(refused.header("x-should-retry"), Some("false"));
        assert_eq!(
            (house.provider.served().count, house.told(&session).calls),
            (0, 0),
            "{way:?}"
        );
        assert_eq!(
            call(&session, way, "known-1").status,
            200,
            "the positive control"
        );
    }
    house.reconfigure(|text| text + "[unknown_prices]\ninput = 30.0\noutput = 60.0\n");
    for way in Way::ALL {
        house.provider.reset();
        let session = house.session(way, &json!({}));
        assert_eq!(call(&session, way, "nobody-knows").status, 200);
        let served = house.all_served();
        assert_eq!(
            house.told(&session).money,
            30 * price(&served.tokens),
            "{way:?}"
        );
    }
}

#[test]
fn a_price_that_changes_in_the_middle_of_a_call_is_that_of_its_beginning() {
    let house = House::new();
    let session = house.session(Way::Chat, &json!({}));
    house.provider.next(Fault::Hold(3));
    let mut stream = house.stream(&session.token, "m");
    stream.until("tok2");
    house
        .reconfigure(|text| text.replace("input = 1.0\noutput = 2.0", "input = 7.0\noutput = 9.0"));
    house.provider.release();
    assert_eq!(stream.finish().ending, Ending::Whole);
    assert_eq!(
        house.told(&session),
        ReportedUsage::exactly(1, &house.all_served().tokens)
    );
}

#[test]
fn what_costs_nothing_obeys_the_same_limits() {
    let house = House::new();
    let free = [
        ("openai", "GET", "/v1/models"),
        ("claude", "GET", "/v1/models"),
        ("claude", "POST", "/v1/messages/count_tokens"),
        ("gemini", "GET", "/v1beta/models"),
        ("gemini", "POST", "/v1beta/models/m:countTokens"),
        ("ollama", "GET", "/api/tags"),
        ("ollama", "POST", "/api/show"),
    ];
    for (provider, method, path) in free {
        let call = |session: &Session| {
            let key = match provider {
                "claude" => "x-api-key",
                "gemini" => "x-goog-api-key",
                _ => "authorization",
            };
            let bearer = format!("Bearer {}", session.token);
            let value = if key == "authorization" {
                &bearer
            } else {
                &session.token
            };
            let body = match (method, provider) {
                ("GET", _) => Value::Null,
                (_, "gemini") => Way::Gemini.body("m", false, None),
                (_, "ollama") => json!({ "model": "m" }),
                _ => Way::Messages.body("m", false, None),
            };
            house
                .proxy
                .listen
                .ask(&request(method, path, &[(key, value)], &body))
        };
        house.provider.reset();
        let session = house.register(&json!({ "provider": provider, "budget": { "requests": 2 } }));
        let statuses: Vec<_> = (0..2).map(|_| call(&session).status).collect();
        assert_eq!(statuses, [200, 200], "{path}");
        assert_spent(&call(&session), "requests");
        assert_eq!(
            (house.provider.served().count, house.told(&session).money),
            (2, 0),
            "{path}"
        );
        let crowded =
            house.register(&json!({ "provider": provider, "budget": { "concurrent": 1 } }));
        house.provider.next(Fault::HoldHeaders);
        thread::scope(|scope| {
            let first = scope.spawn(|| call(&crowded));
            house.provider.await_served(|served| served.held == 1);
            assert_busy(&call(&crowded), "concurrent");
            house.provider.release();
            assert_eq!(first.join().expect("it is answered").status, 200);
        });
    }
}

#[test]
fn each_limit_of_a_session_holds_and_says_its_name() {
    let house = House::new();
    let way = Way::Chat;
    let length = way.body("m", false, Some(20)).to_string().len();
    let ask = |session: &Session| house.ask(session, way, false, Some(20));
    house.provider.set(Script {
        tokens: 1000,
        input: Some(length as u64),
        ..Script::default()
    });
    let call = house.session(way, &json!({ "call_usd": dollars(worst(length, 18)) }));
    assert_eq!(
        (ask(&call).status, ask(&call).status),
        (200, 200),
        "each call by itself"
    );
    assert_eq!(
        house
            .all_served()
            .calls
            .iter()
            .map(|call| call.cap)
            .collect::<Vec<_>>(),
        [Some(18); 2]
    );
    let poor = house.session(way, &json!({ "call_usd": dollars(worst(length, 15)) }));
    assert_spent(&ask(&poor), "call_usd");
    let tokens = house.session(way, &json!({ "tokens": 2 * (length as u64 + 20) }));
    assert_eq!((ask(&tokens).status, ask(&tokens).status), (200, 200));
    assert_spent(&ask(&tokens), "tokens");
    let told = house.told(&tokens);
    assert_eq!(
        told.input + told.output,
        2 * (length as u64 + 20),
        "to the last token"
    );
    let two = house.session(way, &json!({ "concurrent": 2 }));
    (0..2).for_each(|_| house.provider.next(Fault::HoldHeaders));
    thread::scope(|scope| {
        let held = [scope.spawn(|| ask(&two)), scope.spawn(|| ask(&two))];
        house.provider.await_served(|served| served.held == 2);
        assert_busy(&ask(&two), "concurrent");
        house.provider.release();
        assert!(
            held.into_iter()
                .all(|one| one.join().expect("it is answered").status == 200)
        );
    });
    assert_eq!(ask(&two).status, 200, "and then there is room again");
}

#[test]
fn the_day_of_a_tenant_is_one_for_all_its_sessions_and_goes_on_after_a_restart() {
    let way = Way::Chat;
    let length = way.body("m", false, Some(20)).to_string().len();
    let limit = worst(length, 20) + worst(length, 18);
    let mut house = House::with(
        &format!("[tenant.acme]\nday_usd = \"{}\"\n", dollars(limit)),
        &[],
    );
    house.provider.set(Script {
        tokens: 1000,
        input: Some(length as u64),
        ..Script::default()
    });
    let register = |house: &House| {
        house.register(&json!({ "provider": "openai", "tenant": "acme", "budget": { "usd": "9" } }))
    };
    let ask = |house: &House, session: &Session| house.ask(session, way, false, Some(20));
    let (first, second) = (register(&house), register(&house));
    assert_eq!(ask(&house, &first).status, 200);
    assert_eq!(ask(&house, &second).status, 200, "with what the other left");
    let caps: Vec<_> = house
        .all_served()
        .calls
        .iter()
        .map(|call| call.cap)
        .collect();
    assert_eq!(caps, [Some(20), Some(18)]);
    assert_spent(&ask(&house, &first), "tenant_day_usd");
    for signal in [Signal::TERM, Signal::KILL] {
        house.restart(signal);
        let refused = ask(&house, &register(&house));
        assert_spent(&refused, "tenant_day_usd");
        assert!(
            refused.text().contains("begins anew in"),
            "{}",
            refused.text()
        );
    }
    let other = house.session(way, &json!({ "usd": "9" }));
    assert_eq!(
        ask(&house, &other).status,
        200,
        "who is no tenant is not asked"
    );
    assert_eq!(house.provider.served().count, 3);
}
