//! Money as a program inside meets it: cases 76 and 77 of the escape suite.

use provider::{Fault, Script};
use sdk_tests::{ProviderFixture, ledger};
use serde_json::{Value, json};

const PRICE_OF_OUTPUT: f64 = 2.0 / 1e6;
const PRICE_OF_INPUT: f64 = 1.0 / 1e6;

/// What the provider's own account comes to.
fn served(desk: &ProviderFixture) -> f64 {
    let tokens = desk.provider.await_served(|served| served.open == 0).tokens;
    tokens.input as f64 * PRICE_OF_INPUT + tokens.output as f64 * PRICE_OF_OUTPUT
}

/// Case 76: many streams at the edge of the budget.
#[test]
fn many_streams_at_once_do_not_spend_more_than_there_is() {
    let desk = ProviderFixture::new();
    desk.provider.set(Script {
        tokens: 1000,
        input: Some(10),
        pace_ms: 1,
        ..Script::default()
    });
    // Each may cost some 0.0022: there is money for a few of forty.
    let script = "
from concurrent.futures import ThreadPoolExecutor
import time
def one(_):
    # While others hold the money, it is not spent yet: then one is told to come again.
    for _ in range(600):
        try:
            status = ask('POST', '/v1/chat/completions', chat(stream=True, max_tokens=1000))[0]
        except http.client.HTTPException:
            return 'cut'
        if status != 429:
            return status
        time.sleep(0.05)
    return 429
with ThreadPoolExecutor(40) as pool:
    tell(list(pool.map(one, range(40))))";
    let result = desk.result(
        &["--llm=openai", "--budget-usd", "0.01", "--pids", "60"],
        script,
    );
    let told: Value = serde_json::from_str(result["stdout"].as_str().expect("text")).expect("JSON");
    let told = told.as_array().expect("a list");
    let count = |status: u16| told.iter().filter(|one| **one == json!(status)).count();
    assert!(
        count(200) >= 1 && count(402) >= 1,
        "the control: some were let through, some not: {told:?}"
    );
    let spent = result["usage"]["llm"]["cost_usd"].as_f64().expect("a sum");
    let served = served(&desk);
    assert!(
        served <= 0.01 + 1e-9,
        "by the provider's own account: {served}"
    );
    assert!(
        (spent - served).abs() < 1e-9,
        "told {spent}, served {served}"
    );
    assert!(
        result["limits_hit"]
            .as_array()
            .expect("a list")
            .contains(&json!("budget")),
        "{result:#}"
    );
}

/// Case 77: whoever leaves before usage is told, or hears of none, has used it all the same.
#[test]
fn a_stream_that_is_left_or_has_no_usage_is_counted_all_the_same() {
    let desk = ProviderFixture::new();
    let script = Script {
        tokens: 50,
        input: Some(10),
        ..Script::default()
    };
    desk.provider.set_model(
        "left",
        Script {
            pace_ms: 5,
            ..script.clone()
        },
    );
    desk.provider.set_model(
        "silent",
        Script {
            fault: Some(Fault::NoUsage),
            ..script.clone()
        },
    );
    desk.provider.set_model("plain", script);
    let script = "
connection = http.client.HTTPConnection('127.0.0.1', 8080)
connection.request('POST', '/v1/chat/completions', json.dumps(chat('left', stream=True)))
tell(len(connection.getresponse().read(20)))
connection.close()
for model in ('silent', 'plain'):
    status, body = ask('POST', '/v1/chat/completions', chat(model, stream=True))
    tell([status, '\"usage\":{' in body])";
    let told = desk.inside(&["--llm=openai"], script);
    assert_eq!(
        told,
        [json!(20), json!([200, false]), json!([200, false])],
        "nobody asked for usage"
    );
    let records = ledger(&desk.state());
    let spent: Vec<_> = records
        .iter()
        .filter(|record| record["kind"] == "settle")
        .collect();
    assert_eq!(spent.len(), 3, "{records:#?}");
    let sum: f64 = spent
        .iter()
        .map(|one| one["money"].as_u64().expect("money") as f64 / 1e9)
        .sum();
    assert!(
        sum >= served(&desk) - 1e-9,
        "never less than was served: {spent:#?}"
    );
    let plain = spent
        .iter()
        .find(|one| one["source"] == "final" && one["usage"]["output"] == 50);
    assert!(
        plain.is_some(),
        "the control: what was told is taken: {spent:#?}"
    );
}
