//! Many calls at once, calls that wait, calls that nobody waits for, calls that come twice, and the end of the worker.

use serde_json::json;
use std::{sync::LazyLock, time::SystemTime};
use worker_tests::{
    Agent, Ask, Folder, Mesh, Message, Mosquitto, Sam, Tools, Way, count, marks, until, uuid,
    variables,
};

/// With one slot, so that it is known who waits.
static NARROW: LazyLock<Mesh> = LazyLock::new(|| {
    Mesh::new("Tester", |set| {
        set.insert("SANDBOX_MAX_CONCURRENT".to_owned(), "1".to_owned());
    })
});

/// The usual four.
static MESH: LazyLock<Mesh> = LazyLock::new(|| Mesh::new("Tester", |_| ()));

/// Whoever wants the one slot for himself.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn waits(seconds: u32) -> Ask {
    Ask::new("said_then_waits", json!({"seconds": seconds}))
}

/// What a worker takes itself, in KiB; tools are other processes.
fn memory(mesh: &Mesh) -> u64 {
    let rollup = std::fs::read_to_string(format!(
        "/proc/{}/smaps_rollup",
        mesh.sam.pid().as_raw_nonzero()
    ));
    let rollup = rollup.expect("it is ours");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .expect("a line");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

/// How much more three rounds may take than one had taken, in KiB.
const FLAT: u64 = 8 << 10;

#[test]
fn many_at_once_are_all_answered_and_none_twice_and_memory_is_flat() {
    let mesh = Mesh::new("Many", |_| ());
    let mut after = Vec::new();
    for _ in 0..3 {
        let text = |n: usize| format!("{n}: {}", "x".repeat(1000));
        let asks: Vec<_> = (0..count(100, 40))
            .map(|n| Ask::new("echo", json!({"text": text(n)})).timeout(300))
            .collect();
        asks.iter().for_each(|ask| mesh.agent.send(ask));
        for (n, ask) in asks.iter().enumerate() {
            assert_eq!(mesh.agent.answer(ask).tool_result()["text"], text(n));
        }
        mesh.agent.settle();
        for ask in &asks {
            assert_eq!(mesh.agent.all("response", &ask.id).len(), 1);
        }
        after.push(memory(&mesh));
    }
    assert!(
        after[2] < after[0] + FLAT,
        "KiB after each round: {after:?}"
    );
}

#[test]
fn whoever_asks_much_overtakes_nobody() {
    let mesh = Mesh::new("Greedy", |set| {
        set.insert("SANDBOX_MAX_CONCURRENT".to_owned(), "1".to_owned());
    });
    let modest = Agent::join(&Way::mqtt5(mesh.broker.port), "Modest");
    let first = waits(50);
    mesh.agent.send(&first);
    mesh.agent.wait("status", &first.id);
    let quick = || Ask::new("echo", json!({"text": "x"})).timeout(300);
    let (before, one, after) = ([quick(), quick()], quick(), [quick(), quick(), quick()]);
    before.iter().for_each(|ask| mesh.agent.send(ask));
    modest.send(&one);
    after.iter().for_each(|ask| mesh.agent.send(ask));
    mesh.agent.cancel(&first.id);
    // By the worker's clock: the agents hear of it when they get to it.
    let stamp = |message: &Message| {
        message
            .property("timestamp")
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let at = stamp(&modest.answer(&one));
    for ask in &before {
        assert!(stamp(&mesh.agent.answer(ask)) <= at, "it came before");
    }
    for ask in &after {
        assert!(stamp(&mesh.agent.answer(ask)) >= at, "it came after");
    }
}

#[test]
fn four_run_at_once_and_no_fifth() {
    let mesh = Mesh::new("Counter", |_| ());
    let asks: Vec<_> = (0..6)
        .map(|_| Ask::new("marked", json!({"mark": "of-four", "seconds": 4})))
        .collect();
    asks.iter().for_each(|ask| mesh.agent.send(ask));
    let mut most = 0;
    until("all are answered", || {
        most = most.max(marks("of-four"));
        asks.iter()
            .all(|ask| !mesh.agent.all("response", &ask.id).is_empty())
            .then_some(())
    });
    assert_eq!(most, 4);
}

#[test]
fn a_call_that_is_cancelled_while_it_runs_ends_at_once() {
    let mark = "cancelled-one";
    let ask = Ask::new("marked", json!({"mark": mark, "seconds": 50}));
    MESH.agent.send(&ask);
    until("it runs", || (marks(mark) == 1).then_some(()));
    MESH.agent.cancel(&ask.id);
    let answer = MESH.agent.answer(&ask);
    assert!(answer.body()["error"].is_object(), "{}", answer.body());
    until("it is gone", || (marks(mark) == 0).then_some(()));
    MESH.agent.settle();
    assert_eq!(MESH.agent.all("response", &ask.id).len(), 1);
}

#[test]
fn a_call_that_is_cancelled_while_it_waits_never_runs() {
    let _turn = alone();
    let agent = &NARROW.agent;
    let (first, second) = (waits(50), waits(0));
    agent.send(&first);
    agent.wait("status", &first.id);
    agent.send(&second);
    agent.cancel(&second.id);
    assert!(agent.answer(&second).body()["error"].is_object());
    assert!(
        agent.all("response", &first.id).is_empty(),
        "the first still runs"
    );
    agent.cancel(&first.id);
    agent.answer(&first);
    agent.settle();
    assert_eq!(agent.statuses(&second.id), [""; 0]);
    assert_eq!(agent.all("response", &second.id).len(), 1);
}

#[test]
fn a_call_that_was_cancelled_before_it_came_never_runs() {
    let agent = &MESH.agent;
    let ask = waits(0);
    agent.cancel(&ask.id);
    agent.settle();
    assert!(agent.call(&ask).body()["error"].is_object());
    agent.settle();
    assert_eq!(agent.statuses(&ask.id), [""; 0]);
    let other = waits(0);
    assert_eq!(agent.call(&other).tool_result()["slept"], 0);
}

#[test]
fn a_request_that_comes_again_is_answered_the_same_and_runs_once() {
    let agent = &MESH.agent;
    let ask = Ask::new("said_then_waits", json!({"seconds": 1}));
    agent.send(&ask);
    agent.wait("status", &ask.id);
    agent.send(&ask);
    let first = agent.answer(&ask);
    agent.settle();
    assert_eq!(
        agent.all("response", &ask.id).len(),
        1,
        "one answer for both"
    );
    agent.send(&ask);
    let again = until("the same answer", || {
        agent.all("response", &ask.id).get(1).cloned()
    });
    assert_eq!(first.body(), again.body());
    agent.settle();
    assert_eq!(agent.statuses(&ask.id), ["runs"]);
}

fn ago(milliseconds: u64) -> u64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("it is later");
    u64::try_from(now.as_millis()).expect("it is not that late") - milliseconds
}

#[test]
fn what_nobody_waits_for_any_more_is_not_begun() {
    let agent = &MESH.agent;
    // An agent waits ten seconds longer than the tool may take.
    let stale = waits(0).timeout(5).property("timestamp", ago(16_000));
    assert_eq!(agent.call(&stale).error().0, "RESOURCE_EXHAUSTED");
    let fresh = waits(0).timeout(5).property("timestamp", ago(100));
    assert_eq!(agent.call(&fresh).tool_result()["slept"], 0);
    let ahead = waits(0)
        .timeout(5)
        .property("timestamp", ago(0) + 3_600_000);
    assert_eq!(
        agent.call(&ahead).tool_result()["slept"],
        0,
        "a clock that goes ahead is no reason"
    );
    agent.settle();
    assert_eq!(agent.statuses(&stale.id), [""; 0]);
}

#[test]
fn more_than_may_wait_are_refused_and_the_others_answered() {
    let mesh = Mesh::new("Tester", |set| {
        set.insert("SANDBOX_MAX_CONCURRENT".to_owned(), "1".to_owned());
        set.insert("SAM_MAX_WAITING".to_owned(), "2".to_owned());
    });
    let agent = &mesh.agent;
    let first = waits(50);
    agent.send(&first);
    agent.wait("status", &first.id);
    let others: Vec<_> = (0..4).map(|_| waits(0)).collect();
    others.iter().for_each(|ask| agent.send(ask));
    for refused in &others[2..] {
        assert_eq!(agent.answer(refused).error().0, "RESOURCE_EXHAUSTED");
    }
    assert!(
        others[..2]
            .iter()
            .all(|ask| agent.all("response", &ask.id).is_empty()),
        "they wait"
    );
    agent.cancel(&first.id);
    for waited in &others[..2] {
        assert_eq!(agent.answer(waited).tool_result()["slept"], 0);
    }
}

#[test]
fn a_worker_that_is_told_to_end_finishes_what_it_began() {
    let mut mesh = Mesh::new("Tester", |_| ());
    let asks = [waits(2), waits(2)];
    asks.iter().for_each(|ask| mesh.agent.send(ask));
    for ask in &asks {
        mesh.agent.wait("status", &ask.id);
    }
    let end = mesh.sam.end();
    assert_eq!(end.code(), Some(0), "{}", mesh.sam.log());
    for ask in &asks {
        assert_eq!(mesh.agent.answer(ask).tool_result()["slept"], 2);
    }
}

#[test]
fn a_worker_that_is_told_to_end_while_a_tool_will_not_ends_for_all_that() {
    let mut mesh = Mesh::new("Tester", |set| {
        set.insert("SAM_DRAIN_SECONDS".to_owned(), "1".to_owned());
    });
    let mark = uuid()[..12].to_owned();
    let ask = Ask::new("marked", json!({"mark": mark, "seconds": 50}));
    mesh.agent.send(&ask);
    until("it runs", || (marks(&mark) == 1).then_some(()));
    mesh.sam.end();
    until("it is gone", || (marks(&mark) == 0).then_some(()));
}

#[test]
fn a_worker_that_is_told_to_end_while_it_starts_ends_and_leaves_nothing() {
    let folder = Folder::new();
    let tools = Tools::usual(&folder);
    let mark = uuid()[..12].to_owned();
    // One that never says what it is, and can be seen at it.
    tools.program(
        "slow/slow",
        &format!(
            "#!/bin/sh\nprintf {mark} >/proc/self/comm\nprintf {mark} >/proc/$$/comm\nsleep 100\n"
        ),
    );
    tools.manifest("  slow: {tool_dir: slow, executable: slow}\n");
    let broker = Mosquitto::start(&folder);
    let mut sam = Sam::begin(&folder, variables(&folder, &broker.url()));
    until("it is asked what it is", || {
        (marks(&mark) > 0).then_some(())
    });
    assert_eq!(sam.end().code(), Some(0), "{}", sam.log());
    until("it is gone", || (marks(&mark) == 0).then_some(()));
    assert_eq!(
        std::fs::read_dir(folder.at("state/runs"))
            .expect("it is there")
            .count(),
        0
    );
    // And one that finds no broker yet.
    let mut sam = Sam::begin(&folder, variables(&folder, "mqtt://127.0.0.1:1"));
    until("it lives", || sam.get("/healthz"));
    assert_eq!(sam.end().code(), Some(0), "{}", sam.log());
}
