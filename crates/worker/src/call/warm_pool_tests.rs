//! Calls of interpreters that are ready.

use super::*;

/// Waits until interpreters are ready.
async fn until_parked(place: &Place, count: usize) {
    let waiting = async {
        while place.caller.warm_count() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap();
}

const WARM: &str = r#"
import os, time
MADE = time.time()
count = 0
def counts(text):
    global count
    count += 1
    open("/workspace/output/x.txt", "w").write(text)
    return {"count": count, "made": MADE, "said": text}
def dies(): os._exit(4)
"#;

#[tokio::test]
async fn an_interpreter_that_is_ready_serves_one_call_and_no_other() {
    let place = Place::with("warm", WARM, 4);
    let done = place.call("counts", json!({"text": "cold"})).await;
    assert!(!done.was_warm);
    success(&done);
    let mut made = Vec::new();
    for round in 0..3 {
        until_parked(&place, 1).await;
        let done = place.call("counts", json!({"text": "warm"})).await;
        assert!(done.was_warm, "{round} {:?}", done.notes);
        let (found, files) = success(&done);
        assert_eq!(
            (&found["count"], files),
            (&json!(1), vec!["x.txt".to_owned()])
        );
        assert!(
            done.stdout.is_empty(),
            "{:?}",
            String::from_utf8_lossy(&done.stdout)
        );
        assert!(!made.contains(&found["made"]), "a fresh one each time");
        made.push(found["made"].clone());
    }
    // Another function is another kind.
    until_parked(&place, 1).await;
    assert!(!place.call("dies", json!({})).await.was_warm);
    // Of other code nothing is taken from what was imported before.
    until_parked(&place, 1).await;
    fs::write(
        place.top.join("tools/tool.py"),
        WARM.replace("\"count\": count", "\"count\": \"new\""),
    )
    .unwrap();
    place.caller.forget(&place.tool("counts").code);
    assert_eq!(place.caller.warm_count(), 0);
    let done = place.call("counts", json!({"text": "cold"})).await;
    assert_eq!(
        (done.was_warm, &success(&done).0["count"]),
        (false, &json!("new"))
    );
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_are_not_mixed_up() {
    let place = Place::with("many", WARM, 6);
    for round in 0..3 {
        let calls = (0..8).map(|number| {
            let place = &place;
            async move {
                let text = format!("{round}-{number}");
                let (found, files) = success(&place.call("counts", json!({"text": text})).await);
                assert_eq!((&found["said"], &found["count"]), (&json!(text), &json!(1)));
                assert_eq!(files, ["x.txt"]);
            }
        });
        let mut all: Vec<_> = calls.map(Box::pin).collect();
        std::future::poll_fn(|context| {
            all.retain_mut(|call| call.as_mut().poll(context).is_pending());
            if all.is_empty() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        assert!(place.caller.warm_count() <= 6);
    }
    place.close().await;
}

#[tokio::test]
async fn a_parked_one_that_died_or_cannot_import_leads_to_the_cold_path() {
    let place = Place::with("warm-dead", "import os\nraise ValueError('no import')\n", 2);
    for _ in 0..3 {
        let done = place.call("anything", json!({})).await;
        assert_eq!(
            (done.was_warm, refused(&done).0),
            (false, ErrorCode::ImportError)
        );
    }
    place.close().await;
}

#[tokio::test]
async fn one_that_dies_in_its_call_is_not_called_again() {
    let place = Place::with("dies", WARM, 1);
    _ = place.call("dies", json!({})).await;
    until_parked(&place, 1).await;
    let done = place.call("dies", json!({})).await;
    assert_eq!(
        (done.was_warm, refused(&done).0),
        (true, ErrorCode::ExecutionError),
        "{:?}",
        done.notes
    );
    place.close().await;
}

const DEAF: &str = r#"
import os, select
hears = os.read
def dies_before(stream, most):
    select.select([stream], [], [])
    os._exit(int(open("/tools/python/status").read()))
def dies_behind(stream, most):
    hears(stream, 1)
    os._exit(5)
def counts(): return {"pid": os.getpid()}
os.read = dies_before
"#;

#[tokio::test]
async fn one_that_dies_before_it_hears_of_its_call_leads_to_the_cold_path() {
    let place = Place::with("deaf", DEAF, 1);
    for status in ["9", "0"] {
        fs::write(place.top.join("tools/status"), status).unwrap();
        let done = place.call("counts", json!({})).await;
        assert!(
            !done.was_warm && !done.notes.concat().contains("parked"),
            "{done:?}"
        );
        success(&done);
        until_parked(&place, 1).await;
        let done = place.call("counts", json!({})).await;
        success(&done);
        assert!(!done.was_warm);
        assert!(
            done.notes.concat().contains("before it heard of the call"),
            "{:?}",
            done.notes
        );
        until_parked(&place, 1).await;
        place.caller.forget(&place.tool("counts").code);
    }
    // Who heard any of it may have begun.
    fs::write(
        place.top.join("tools/tool.py"),
        DEAF.replace("= dies_before", "= dies_behind"),
    )
    .unwrap();
    success(&place.call("counts", json!({})).await);
    until_parked(&place, 1).await;
    let done = place.call("counts", json!({})).await;
    assert_eq!(
        (done.was_warm, refused(&done).0),
        (true, ErrorCode::ExecutionError),
        "{:?}",
        done.notes
    );
    place.close().await;
}

#[tokio::test]
async fn where_one_could_not_be_kept_still_it_is_tried_again() {
    let place = Place::with("restless", WARM, 4);
    let inner = &place.caller.0;
    let kind = sandbox::SandboxKind {
        code: ToolCode::default(),
        profile: ToolProfile::Standard,
        limits: ToolLimits::default(),
        what: None,
    };
    let sandbox = inner.factory.open(&kind).await.unwrap();
    // One that stands still already cannot be stopped.
    sandbox.pause().await.unwrap();
    for told in [1, 0] {
        inner.warm.probe_freeze(&sandbox).await;
        let trouble = place.caller.warning();
        assert_eq!(
            trouble
                .iter()
                .filter(|told| told.contains("for now"))
                .count(),
            told,
            "{trouble:?}"
        );
    }
    drop(sandbox);
    let done = place.call("counts", json!({"text": "cold"})).await;
    assert!(
        !done.was_warm && !done.notes.concat().contains("kept ready"),
        "{:?}",
        done.notes
    );
    success(&done);
    until_parked(&place, 1).await;
    let done = place.call("counts", json!({"text": "warm"})).await;
    assert!(done.was_warm, "{:?}", done.notes);
    success(&done);
    place.close().await;
}

#[tokio::test]
async fn where_nothing_can_be_kept_still_it_is_told_and_none_is_made() {
    let place = Place::with("unstill", WARM, 4);
    place
        .caller
        .prepare(ToolProfile::Restrictive)
        .await
        .unwrap();
    assert_eq!(place.caller.warning(), None, "here it can");
    let inner = &place.caller.0;
    let fail = |code, message: &str| {
        let why = spec::ErrorInfo {
            code,
            message: message.to_owned(),
            hint: None,
        };
        inner.warm.handle_freeze_probe(Err(why.into()));
    };
    fail(spec::ErrorCode::Conflict, "it is busy");
    assert!(
        place.caller.warning().unwrap().contains("for now"),
        "what may pass is told as such"
    );
    fail(spec::ErrorCode::BackendUnavailable, "it has no cgroup");
    let told = place.caller.warning().unwrap();
    assert!(
        told.contains("no interpreter is kept ready, because none can be"),
        "{told}"
    );
    fail(spec::ErrorCode::BackendUnavailable, "it has no cgroup");
    assert_eq!(place.caller.warning(), None, "each once");
    for _ in 0..2 {
        let done = place.call("counts", json!({"text": "cold"})).await;
        assert!(
            !done.was_warm && !done.notes.concat().contains("kept ready"),
            "{:?}",
            done.notes
        );
        success(&done);
    }
    inner.factory.close().await;
    assert_eq!(
        (place.caller.warm_count(), inner.warm.largest()),
        (0, 0),
        "none was made"
    );
    place.close().await;
}

const ASKS: &str = r#"
import json, socket
def asks():
    line = socket.socket(socket.AF_UNIX)
    line.connect(json.load(open("/workspace/runner_args.json"))["ipc_socket"])
    line.sendall(b'{"jsonrpc": "2.0", "id": "1", "method": "llm/call", "params": {"user_prompt": "hi"}}\n')
    return json.loads(line.makefile().readline())
"#;

#[tokio::test]
async fn a_tool_has_somebody_to_ask_for_models() {
    let place = Place::with("asks", ASKS, 2);
    let models = ModelProxy::new(
        place.engine.clone(),
        crate::ipc::ModelSettings::new(None, "a-model"),
    )
    .unwrap();
    let settings = CallSettings {
        python: "/usr/bin/python3".into(),
        largest_result: 10_000,
        max_warm: 2,
        max_warm_bytes: 1 << 30,
        max_prewarmed: 0,
        hidden: Vec::new(),
    };
    let caller = CallRunner::new(
        place.engine.clone(),
        place.store.clone(),
        Some(models),
        settings,
    );
    let place = Place { caller, ..place };
    for is_warm in [false, true] {
        if is_warm {
            until_parked(&place, 1).await;
        }
        let done = place.call("asks", json!({})).await;
        // There is no model here; but there is somebody who says so.
        let (found, _) = success(&done);
        assert_eq!((done.was_warm, &found["id"]), (is_warm, &json!("1")));
        assert!(found["error"]["code"].is_i64(), "{found}");
        assert!(done.spent.is_some_and(|spent| spent.questions == 0));
    }
    place.close().await;
}

const TICKS: &str = r#"
import threading, time
ticks = []
def tick():
    while True:
        ticks.append(time.time())
        time.sleep(0.002)
threading.Thread(target=tick, daemon=True).start()
def ticked():
    had = len(ticks)
    while len(ticks) < had + 3: time.sleep(0.001)
    return {"ticks": ticks}
"#;

#[tokio::test]
async fn nothing_goes_on_in_one_that_waits() {
    let place = Place::with("still", TICKS, 1);
    success(&place.call("ticked", json!({})).await);
    until_parked(&place, 1).await;
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let from = now();
    // Nothing is waited for: time is what it would do something in.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let to = now();
    let done = place.call("ticked", json!({})).await;
    assert!(done.was_warm, "{:?}", done.notes);
    let ticks: Vec<f64> = success(&done).0["ticks"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let between = ticks
        .iter()
        .filter(|tick| (from..to).contains(tick))
        .count();
    assert_eq!(between, 0, "{from} {to} {ticks:?}");
    assert!(
        ticks[0] < from && ticks.last().unwrap() > &to,
        "before and after it does: {from} {to} {ticks:?}"
    );
    place.close().await;
}

const LARGE: &str = r#"
held = bytearray(96 << 20)
for place in range(0, len(held), 4096): held[place] = 1
def holds(): return {"held": len(held)}
"#;

#[tokio::test]
async fn one_is_counted_with_what_it_imported_before_it_joins_the_others() {
    let place = Place::with("large", LARGE, 4);
    success(&place.call("holds", json!({})).await);
    until_parked(&place, 1).await;
    assert!(
        place.caller.0.warm.largest() > 96 << 20,
        "where there is room it waits"
    );
    let settings = CallSettings {
        python: "/usr/bin/python3".into(),
        largest_result: 1000,
        max_warm: 4,
        max_warm_bytes: 64 << 20,
        max_prewarmed: 0,
        hidden: Vec::new(),
    };
    let caller = CallRunner::new(place.engine.clone(), place.store.clone(), None, settings);
    for _ in 0..2 {
        let (_cancel, cancelled) = watch::channel(false);
        let (statuses, _said) = mpsc::channel(1);
        let order = place.order("holds", json!({}));
        assert!(!caller.carry_out(order, cancelled, statuses).await.was_warm);
        let weighing = async {
            while caller.0.warm.largest() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), weighing)
            .await
            .unwrap();
        assert_eq!(caller.warm_count(), 0);
    }
    caller.close().await;
    place.close().await;
}

#[tokio::test]
async fn none_waits_where_there_is_no_memory_for_it() {
    let place = Place::with("no-memory", WARM, 4);
    let settings = CallSettings {
        python: "/usr/bin/python3".into(),
        largest_result: 1000,
        max_warm: 4,
        max_warm_bytes: 1 << 20,
        max_prewarmed: 0,
        hidden: Vec::new(),
    };
    let caller = CallRunner::new(place.engine.clone(), place.store.clone(), None, settings);
    for _ in 0..2 {
        let (_cancel, cancelled) = watch::channel(false);
        let (statuses, _said) = mpsc::channel(1);
        let order = place.order("counts", json!({"text": "x"}));
        assert!(!caller.carry_out(order, cancelled, statuses).await.was_warm);
    }
    caller.close().await;
    assert_eq!(caller.warm_count(), 0);
    place.close().await;
}

const SLOW: &str = r#"
import time
if "--park" in open("/proc/self/cmdline").read().split("\0"): time.sleep(50)
def quick(): return {}
"#;

#[tokio::test]
async fn who_closes_does_not_wait_for_what_is_imported() {
    let place = Place::with("slow-import", SLOW, 1);
    success(&place.call("quick", json!({})).await);
    let sandboxes = || fs::read_dir(place.top.join("state/runs")).unwrap().count();
    let begins = async {
        while sandboxes() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), begins)
        .await
        .expect("one is made behind the call");
    tokio::time::timeout(Duration::from_secs(30), place.close())
        .await
        .expect("it is not waited for");
}
