//! `airlock run` with a door and a budget: the result, the ledger and the provider say the same, and the run goes on when the
//! money is spent. A run that is killed owes what was reserved.

use doors_tests::{
    Folder, REAL_KEY, configuration,
    money::{INPUT, OUTPUT, Way, dollars, price, worst},
};
use provider::{Fault, Provider, Script, Settings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Command, Stdio},
};

/// A provider, and a folder for one who runs programs before it.
struct Payer {
    provider: Provider,
    folder: Folder,
}

impl Payer {
    fn new() -> Payer {
        let provider = Provider::start(Settings {
            keys: vec![REAL_KEY.to_owned()],
            ..Settings::default()
        });
        let folder = Folder::new();
        fs::write(folder.at("config.toml"), configuration(&provider, &folder))
            .expect("a configuration");
        Payer { provider, folder }
    }

    fn airlock(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cli::airlock());
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .current_dir(&self.folder.0);
        command
            .arg("--config")
            .arg(self.folder.at("config.toml"))
            .arg("--state")
            .arg(self.folder.at("state"));
        command.args(arguments);
        command
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.airlock(arguments).output().expect("airlock starts");
        let told = serde_json::from_slice(&output.stdout);
        told.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// A run that asks for each of these, and says with which status it was answered.
    fn run(&self, options: &[&str], bodies: &[&Value]) -> Value {
        let script = format!(
            "{}echo went on",
            bodies
                .iter()
                .map(|body| call(body, "%{http_code} "))
                .collect::<String>()
        );
        self.json(
            &[
                &["run", "--json", "--llm=openai"],
                options,
                &["--", "sh", "-c", &script],
            ]
            .concat(),
        )
    }
}

/// What a shell does to ask for this.
fn call(body: &Value, told: &str) -> String {
    format!(
        "curl -sN -o /dev/null -w '{told}' -H \"authorization: Bearer $OPENAI_API_KEY\" \
         -H 'content-type: application/json' -d '{body}' $OPENAI_BASE_URL/chat/completions\n"
    )
}

fn body(model: &str, stream: bool) -> Value {
    Way::Chat.body(model, stream, Some(20))
}

#[test]
fn a_run_says_what_it_used_and_goes_on_when_the_money_is_spent() {
    let payer = Payer::new();
    let length = body("m", false).to_string().len() as u64;
    payer.provider.set(Script {
        tokens: 20,
        input: Some(length),
        ..Script::default()
    });
    let limit = 2 * worst(length as usize, 20);
    let options = ["--allow-model", "m*", "--budget-usd", &dollars(limit)];
    let (good, bad) = (body("m", false), body("other", false));
    let result = payer.run(&options, &[&good, &bad, &good, &good]);
    assert_eq!(
        (&result["status"], &result["exit_code"]),
        (&json!("succeeded"), &json!(0)),
        "{result}"
    );
    assert_eq!(result["stdout"], "200 403 200 402 went on\n");
    assert_eq!(result["limits_hit"], json!(["budget"]));
    let denial = json!({ "what": "model", "target": "other", "rule": "allow_models", "allow_with": "--allow-model 'other'" });
    assert_eq!(result["denials"], json!([denial]));
    let served = payer.provider.await_served(|served| served.open == 0);
    assert_eq!((served.count, price(&served.tokens)), (2, limit));
    let llm = json!({
        "calls": 2, "input_tokens": 2 * length, "output_tokens": 40, "cached_tokens": 0,
        "cost_usd": limit as f64 / 1e9,
    });
    assert_eq!(result["usage"]["llm"], llm);
    let id = result["run_id"].as_str().expect("a name");
    let total = &payer.json(&["usage", "--json", "--run", id])["total"];
    assert_eq!(
        (
            &total["calls"],
            &total["input_tokens"],
            &total["output_tokens"],
            &total["cost_nano_usd"]
        ),
        (&json!(2), &json!(2 * length), &json!(40), &json!(limit))
    );
    assert_eq!(
        payer.json(&["usage", "--json", "--verify"])["problems"],
        json!([])
    );
}

#[test]
fn a_run_with_money_left_has_hit_no_limit() {
    let payer = Payer::new();
    let result = payer.run(
        &["--budget-usd", "1"],
        &[&body("m", false), &body("m", true)],
    );
    assert_eq!(
        (&result["stdout"], &result["limits_hit"]),
        (&json!("200 200 went on\n"), &json!([]))
    );
    let served = payer.provider.await_served(|served| served.open == 0);
    let llm = &result["usage"]["llm"];
    assert_eq!(
        (&llm["input_tokens"], &llm["output_tokens"]),
        (
            &json!(served.tokens.prompt()),
            &json!(served.tokens.generated())
        )
    );
    assert_eq!(
        (llm["cost_usd"].as_f64().expect("money") * 1e9).round() as u64,
        price(&served.tokens)
    );
}

#[test]
fn a_stream_that_was_cut_is_a_budget_that_was_spent() {
    let payer = Payer::new();
    payer.provider.set(Script {
        tokens: 400,
        ignore_cap: true,
        pace_ms: 5,
        ..Script::default()
    });
    let length = body("m", true).to_string().len();
    let limit = dollars(worst(length, 18));
    let result = payer.run(&["--budget-usd", &limit], &[&body("m", true)]);
    assert_eq!(
        (&result["exit_code"], &result["limits_hit"]),
        (&json!(0), &json!(["budget"])),
        "{result}"
    );
    assert!(spent(&result) >= INPUT + 19 * OUTPUT, "{result}");
}

#[test]
fn a_provider_that_says_too_much_has_not_spent_the_budget() {
    let payer = Payer::new();
    payer.provider.set(Script {
        tokens: 400,
        ignore_cap: true,
        pace_ms: 5,
        ..Script::default()
    });
    let result = payer.run(
        &["--budget-usd", "1"],
        &[&body("m", true), &body("m", false)],
    );
    assert_eq!(
        (&result["exit_code"], &result["limits_hit"]),
        (&json!(0), &json!([])),
        "{result}"
    );
    let notes = result["notes"].to_string();
    assert!(notes.contains("more than was reserved"), "{result}");
    assert!(spent(&result) >= 2 * (INPUT + 21 * OUTPUT), "{result}");
}

fn spent(result: &Value) -> u64 {
    let dollars = result["usage"]["llm"]["cost_usd"].as_f64();
    (dollars.expect("money") * 1e9).round() as u64
}

#[test]
fn a_run_that_was_killed_in_a_stream_owes_all_that_was_reserved() {
    let payer = Payer::new();
    payer.provider.next(Fault::Hold(2));
    let asked = body("m", true);
    let script = call(&asked, "");
    let mut command = payer.airlock(&[
        "run",
        "--json",
        "--llm=openai",
        "--budget-usd",
        "1",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("airlock starts");
    payer.provider.await_served(|served| served.held == 1);
    kill_process(Pid::from_child(&child), Signal::KILL).expect("it is ours");
    child.wait().expect("it has ended");
    let served = payer.provider.await_served(|served| served.open == 0);
    let money = worst(asked.to_string().len(), 20);
    assert!(price(&served.tokens) > 0 && price(&served.tokens) < money);
    // Nobody has settled it: it counts while it is open, and not less when somebody has looked after it.
    for _ in 0..2 {
        let total = payer.json(&["usage", "--json"])["total"].clone();
        assert_eq!(
            (
                &total["calls"],
                &total["cost_nano_usd"],
                &total["unsettled_nano_usd"]
            ),
            (&json!(1), &json!(money), &json!(money))
        );
        assert_eq!(
            payer.json(&["usage", "--json", "--verify"])["problems"],
            json!([])
        );
        assert!(
            payer
                .airlock(&["sweep"])
                .output()
                .expect("airlock starts")
                .status
                .success()
        );
    }
}
