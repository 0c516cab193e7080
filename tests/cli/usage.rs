//! What `airlock usage` answers, about ledgers that were written by those who write them.

use airlock_cli_tests::{Answer, World, same, written};
use doors::{
    TokenUsage, UsageSource,
    ledger::{CallOutcome, Durability, Ledger, ModelCall},
};
use snapbox::str;
use spec::Money;
use std::{fs, path::PathBuf};

fn ledger(world: &World, name: &str) -> Ledger {
    Ledger::open(&world.state().join("ledger"), name, Durability::Process).expect("a ledger")
}

fn file(world: &World, name: &str) -> PathBuf {
    world.state().join("ledger").join(format!("{name}.jsonl"))
}

/// Two runs: one was served twice, of which one cost more than was reserved; the other died in the middle of a call.
fn used() -> World {
    let world = World::new();
    fs::create_dir_all(world.state()).expect("a state folder");
    let call = |run: &str, model: &str| ModelCall {
        run: run.into(),
        provider: "anthropic".into(),
        model: model.into(),
        operation: "messages".into(),
        attempt: 1,
        ..ModelCall::default()
    };
    let served = |money, overrun| CallOutcome {
        usage: TokenUsage {
            input: 1200,
            cache_read: 800,
            output: 350,
            reasoning: 50,
            ..TokenUsage::default()
        },
        source: UsageSource::Final,
        money: Money(money),
        overrun: Money(overrun),
        status: 200,
        ending: "complete".into(),
        duration_ms: 900,
    };
    let first = ledger(&world, "run-first");
    for (model, money, overrun) in [
        ("claude-sonnet-4-5", 9_840_000, 0),
        ("claude-haiku-4-5", 3_280_001, 280_001),
    ] {
        let n = first
            .reserve(&call("first", model), Money(10_000_000), 5000)
            .expect("it is written");
        first
            .settle(n, &served(money, overrun))
            .expect("it is written");
    }
    let second = ledger(&world, "run-second");
    second
        .reserve(
            &call("second", "claude-haiku-4-5"),
            Money(500_000_000),
            5000,
        )
        .expect("it is written");
    world
}

#[test]
fn what_was_used_is_added_up_by_run_and_otherwise() {
    let world = used();
    let answer = world.run(&["usage"]);
    assert_eq!((answer.status, answer.stderr.as_str()), (Some(0), ""));
    same(
        answer.stdout,
        str![[r#"
run     calls  input  cached  output          usd  unsettled      overrun
second      1      0       0       0         0.50       0.50         0.00
first       2   4000    1600     800  0.013120001       0.00  0.000280001
total       3   4000    1600     800  0.513120001       0.50  0.000280001

"#]],
    );
    same(
        world
            .run(&["usage", "--by", "model", "--run", "first", "--csv"])
            .stdout,
        str![[r#"
model,calls,input_tokens,cached_tokens,output_tokens,cost_nano_usd,overrun_nano_usd,unsettled_calls,unsettled_nano_usd,runs,sandboxes,cpu_ms,may_change
"claude-sonnet-4-5",1,2000,800,400,9840000,0,0,0,,,,true
"claude-haiku-4-5",1,2000,800,400,3280001,280001,0,0,,,,true

"#]],
    );
    let json = world.run(&["usage", "--by", "provider", "--json"]).json();
    same(format!("{json:#}\n"), written("answers/usage.json"));
    assert_eq!(
        world.run(&["usage", "--since", "2999-01-01"]).stderr,
        "airlock: note: no model was used\n"
    );
    assert!(
        world
            .run(&["usage", "--by", "day"])
            .stdout
            .lines()
            .nth(1)
            .expect("a day")
            .starts_with("20")
    );
}

#[test]
fn where_nothing_was_used_it_says_so() {
    let world = World::new();
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&["usage"]);
    assert_eq!(
        (status, stdout.as_str(), stderr.as_str()),
        (Some(0), "", "airlock: note: no model was used\n")
    );
    assert_eq!(
        world.run(&["usage", "--verify"]).stdout,
        "0 ledgers read, nothing is wrong\n"
    );
}

#[test]
fn a_changed_ledger_is_named_with_its_line_and_fails() {
    let world = used();
    assert_eq!(world.run(&["usage"]).status, Some(0));
    let sound = world.run(&["usage", "--verify"]);
    assert_eq!(
        (sound.status, sound.stdout.as_str()),
        (Some(0), "2 ledgers read, nothing is wrong\n")
    );
    let path = file(&world, "run-first");
    let text = fs::read_to_string(&path).expect("a ledger");
    fs::write(&path, text.replacen("9840000", "0000001", 1)).expect("it is changed");
    fs::remove_file(file(&world, "run-second")).expect("it is removed");
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&["usage", "--verify"]);
    assert_eq!((status, stdout.as_str()), (Some(1), ""));
    same(
        stderr,
        str![[r#"
airlock: error: `[..]/ledger/run-first.jsonl`, line 3: its hash does not fit: it, or what stood before it, was changed or taken away
airlock: error: `[..]/ledger/run-second.jsonl`: it is gone, but what it said is known
airlock: hint: keep the damaged file, and replace it by a copy from a backup

"#]],
    );
    let json = world.run(&["usage", "--verify", "--json"]);
    assert_eq!(
        (json.status, json.json()["problems"][0]["line"].as_u64()),
        (Some(1), Some(3))
    );
}

#[test]
fn a_day_that_is_none_is_refused() {
    let answer = World::new().run(&["usage", "--since", "2026-02-30"]);
    assert_eq!(answer.status, Some(125));
    assert!(
        answer
            .stderr
            .contains("`2026-02-30` is not a date such as 2026-01-31"),
        "{}",
        answer.stderr
    );
}
