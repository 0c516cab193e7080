//! Calls of tools: what tools are given, what becomes of what they give back, and of how they fail.

use serde_json::{Value, json};
use std::sync::LazyLock;
use worker_tests::{Ask, Mesh, Message, marks, until, uuid};

static MESH: LazyLock<Mesh> = LazyLock::new(|| Mesh::new("Tester", |_| ()));

fn call(tool: &str, args: Value) -> Message {
    MESH.agent.call(&Ask::new(tool, args))
}

/// An error of one of these codes, whose message has all of these words and nothing of this machine.
fn fails(answer: &Message, codes: &[&str], words: &[&str]) {
    let (code, message) = answer.error();
    assert!(codes.contains(&code), "{code}: {message}");
    for word in words {
        assert!(message.contains(word), "`{word}` in: {message}");
    }
    let place = MESH.folder.path().display().to_string();
    assert!(
        !message.contains(&place),
        "paths of this machine are nobody's business: {message}"
    );
}

#[test]
fn a_tool_answers_what_it_was_asked() {
    let ask = Ask::new("echo", json!({"text": "hello", "more": [1, {"two": null}]}));
    let answer = MESH.agent.call(&ask);
    let result = answer.result();
    assert_eq!(
        result["tool_result"],
        json!({"text": "hello", "more": [1, {"two": null}]})
    );
    assert_eq!(
        (&result["timed_out"], &result["created_artifacts"]),
        (&json!(false), &json!([]))
    );
    assert!(result["execution_time_ms"].is_u64(), "{result}");
    assert_eq!(answer.body()["jsonrpc"], "2.0");
    assert!(
        answer.body().get("error").is_none(),
        "what is not there is left out: {}",
        answer.body()
    );
    MESH.agent.settle();
    assert_eq!(MESH.agent.all("response", &ask.id).len(), 1);
}

#[test]
fn results_of_every_kind_become_objects() {
    let plain = |text: Value| json!({"text": text, "data_objects": []});
    for (tool, expected) in [
        ("nothing", plain(Value::Null)),
        ("number", plain("42".into())),
        ("words", plain("forty-two".into())),
        ("a_list", plain("[1, 2, 3]".into())),
        (
            "own_error",
            json!({"error": "this is a result, for all that"}),
        ),
        (
            "unicode_text",
            json!({"text": "Grüße, 世界 \u{1f980}\u{2028}"}),
        ),
    ] {
        assert_eq!(call(tool, json!({})).tool_result(), &expected, "{tool}");
    }
    assert_eq!(
        call("later", json!({"text": "awaited"})).tool_result(),
        &json!({"text": "awaited"})
    );
}

#[test]
fn what_cannot_be_told_is_answered_for_all_that() {
    for tool in ["not_json", "not_a_number"] {
        let answer = call(tool, json!({}));
        let is_one = answer.body()["result"].is_object() != answer.body()["error"].is_object();
        assert!(is_one, "{tool}: {}", answer.body());
    }
}

#[test]
fn contexts_of_every_kind_are_handed_in() {
    let of = |tool: &str, args: Value| call(tool, args).tool_result().clone();
    let legacy = of("legacy", json!({"name": "n"}));
    assert_eq!(
        legacy,
        json!({"name": "n", "user": "ana", "session": "web-77", "listed": []})
    );
    assert_eq!(
        of("any_context", json!({"name": "n"})),
        json!({"name": "n", "user": "ana"})
    );
    let ask =
        Ask::new("facade", json!({"key": "quality"})).param("tool_config", json!({"quality": 80}));
    let told = MESH.agent.call(&ask).tool_result().clone();
    assert_eq!(
        (
            &told["user"],
            &told["session"],
            &told["app"],
            &told["config"]
        ),
        (
            &json!("ana"),
            &json!("web-77"),
            &json!("Tester"),
            &json!(80)
        )
    );
    let ask = Ask::new("configured", json!({"key": "quality"}))
        .param("tool_config", json!({"quality": 81}));
    assert_eq!(MESH.agent.call(&ask).tool_result(), &json!({"value": 81}));
}

#[test]
fn a_class_is_built_with_its_configuration_and_run() {
    MESH.agent.wait("init", "greeter");
    let ask = Ask::new("greeter", json!({"name": "Ana"}))
        .param("tool_config", json!({"greeting": "Salve"}));
    assert_eq!(MESH.agent.call(&ask).tool_result()["text"], "Salve, Ana");
}

#[test]
fn every_status_arrives_in_order_the_last_one_too_and_before_the_answer() {
    let ask = Ask::new("statuses", json!({"count": 20}));
    let answer = MESH.agent.call(&ask);
    assert_eq!(answer.tool_result(), &json!({"sent": 20}));
    let all = MESH.agent.everything();
    let of_it = all.iter().filter(|event| event.0["id"] == ask.id.as_str());
    let kinds: Vec<_> = of_it
        .map(|event| event.0["kind"].as_str().unwrap_or_default().to_owned())
        .collect();
    let expected = [vec!["status"; 20], vec!["response"]].concat();
    assert_eq!(kinds, expected);
    let texts: Vec<_> = (0..20).map(|index| format!("status {index}")).collect();
    assert_eq!(MESH.agent.statuses(&ask.id), texts);
    let first = &MESH.agent.all("status", &ask.id)[0];
    assert_eq!(first.body()["params"]["task_id"], ask.id.as_str());
    assert!(first.problem().is_none(), "{:?}", first.problem());
}

#[test]
fn an_exception_is_told_with_its_traceback_and_without_paths_of_the_host() {
    let answer = call("raises", json!({"text": "this went wrong"}));
    fails(
        &answer,
        &["TOOL_ERROR"],
        &[
            "Execution error: this went wrong\n",
            "Traceback",
            "ValueError",
            "in deep",
        ],
    );
}

#[test]
fn a_tool_that_ends_its_process_is_answered_with_its_last_words() {
    fails(
        &call("leaves", json!({"status": 7})),
        &["EXECUTION_ERROR"],
        &["last words on stderr"],
    );
    fails(&call("killed", json!({})), &["EXECUTION_ERROR"], &[]);
    fails(
        &call("exits", json!({"status": 3})),
        &["EXECUTION_ERROR", "TOOL_ERROR"],
        &[],
    );
}

#[test]
fn what_cannot_be_called_is_named() {
    let import = ["IMPORT_ERROR", "TOOL_ERROR"];
    fails(
        &call("imports_nothing", json!({})),
        &import,
        &["Import error", "nothing_that_exists"],
    );
    let found = ["TOOL_NOT_FOUND", "TOOL_ERROR"];
    fails(
        &call("absent_function", json!({})),
        &found,
        &["Not found", "no_such_function"],
    );
    fails(
        &call("wants_two", json!({"first": 1})),
        &["TOOL_ERROR"],
        &["Call error", "second"],
    );
    fails(
        &call("wants_two", json!({"first": 1, "second": 2, "third": 3})),
        &["TOOL_ERROR"],
        &["Call error"],
    );
    assert_eq!(
        call("wants_two", json!({"first": 1, "second": 2})).tool_result()["second"],
        2
    );
}

#[test]
fn a_tool_whose_module_is_nowhere_is_answered() {
    let answer = call("absent_module", json!({}));
    fails(
        &answer,
        &["IMPORT_ERROR", "TOOL_ERROR", "TOOL_NOT_AVAILABLE"],
        &["no_such_module"],
    );
}

#[test]
fn a_tool_whose_time_is_up_is_told_and_its_answer_is_a_result() {
    let ask = Ask::new("told_to_end", json!({})).timeout(1);
    let answer = MESH.agent.call(&ask);
    let result = answer.result();
    assert_eq!(
        (
            &result["tool_result"],
            &result["timed_out"],
            &result["created_artifacts"]
        ),
        (&json!({}), &json!(true), &json!([]))
    );
    let took = result["execution_time_ms"].as_u64().expect("a number");
    // Five seconds later is when others end it.
    assert!((1000..5000).contains(&took), "{took} ms");
    MESH.sam.await_log("heard SIGTERM");
    assert_eq!(MESH.agent.statuses(&ask.id), ["runs"], "it ran");
}

#[test]
fn a_tool_that_will_not_end_is_ended_with_all_that_it_started() {
    let mark = "deaf-one";
    let ask = Ask::new("deaf", json!({"mark": mark})).timeout(2);
    MESH.agent.send(&ask);
    until("it runs with its child", || {
        (marks(mark) == 2).then_some(())
    });
    assert_eq!(MESH.agent.answer(&ask).result()["timed_out"], true);
    until("both are gone", || (marks(mark) == 0).then_some(()));
}

#[test]
fn nothing_of_a_task_s_name_becomes_a_path() {
    let outside = MESH.folder.at("escaped");
    for hostile in [
        "../../escaped",
        "../escaped",
        "/etc/escaped",
        "a/b",
        ".",
        "..",
        "",
        "nul\0",
        &"x".repeat(100_000),
    ] {
        let answer = MESH
            .agent
            .call(&Ask::new("echo", json!({"text": "fine"})).param("task_id", hostile));
        let shown: String = hostile.chars().take(20).collect();
        // Refusing such a name is as good as not using it.
        if answer.body()["result"].is_object() {
            assert_eq!(answer.tool_result()["text"], "fine", "{shown}");
        } else {
            assert_eq!(answer.error().0, "INVALID_REQUEST", "{shown}");
        }
    }
    assert!(!outside.exists() && !std::path::Path::new("/etc/escaped").exists());
    let taken = MESH
        .agent
        .call(&Ask::new("echo", json!({"text": "fine"})).param("task_id", "agent-task-1"));
    assert_eq!(taken.tool_result()["text"], "fine");
}

#[test]
fn the_trace_is_echoed_and_every_message_has_its_time() {
    let trace = uuid();
    let ask = Ask::new("statuses", json!({"count": 1})).property("traceId", trace.as_str());
    let answer = MESH.agent.call(&ask);
    let status = MESH.agent.wait("status", &ask.id);
    for message in [&answer, &status] {
        assert_eq!(message.property("traceId"), Some(trace.as_str()));
        let time: u64 = message
            .property("timestamp")
            .expect("a time")
            .parse()
            .expect("a number");
        assert!(
            time.abs_diff(message.at_ms()) < 60_000,
            "{time} is about now"
        );
    }
    assert_eq!(call("echo", json!({})).property("traceId"), None);
}

#[test]
fn an_answer_that_is_too_large_says_so_with_the_sizes() {
    let answer = call("large", json!({"size": 11_000_000}));
    let (code, message) = answer.error();
    let digits: String = message
        .chars()
        .filter(|c| !" ,_'\u{a0}\u{202f}".contains(*c))
        .collect();
    assert_eq!(code, "EXECUTION_ERROR", "{message}");
    assert!(
        digits.contains("10000000") && digits.contains("110000"),
        "{message}"
    );
    let fits = call("large", json!({"size": 9_000_000}));
    assert_eq!(
        fits.tool_result()["text"].as_str().map(str::len),
        Some(9_000_000)
    );
}

#[test]
fn what_a_tool_prints_reaches_the_log_and_no_path_of_the_host_with_it() {
    let text = uuid();
    let ask = Ask::new("talks", json!({"text": text}));
    MESH.agent.call(&ask);
    MESH.sam.await_log(&format!("on stdout: {text}"));
    MESH.sam.await_log(&format!("on stderr: {text}"));
    let failing = Ask::new("raises", json!({"text": uuid()}));
    let answer = MESH.agent.call(&failing);
    let host = MESH.folder.path().display().to_string();
    assert!(
        !answer.body().to_string().contains(&host),
        "{}",
        answer.body()
    );
    MESH.agent.settle();
    let log = MESH.sam.log();
    let of_them: Vec<_> = log
        .lines()
        .filter(|line| {
            [&ask.id, &failing.id, &text]
                .iter()
                .any(|id| line.contains(*id))
        })
        .collect();
    assert!(of_them.len() >= 3, "{of_them:?}");
    assert!(
        of_them.iter().all(|line| !line.contains(&host)),
        "{of_them:?}"
    );
}

#[test]
fn the_topic_says_which_tool() {
    let answer = MESH
        .agent
        .call(&Ask::new("echo", json!({"text": "x"})).param("tool_name", "nothing"));
    assert_eq!(answer.tool_result()["text"], "x");
}

#[test]
fn an_unknown_profile_is_the_usual_one_and_a_negative_time_is_answered() {
    let ask = Ask::new("echo", json!({"text": "x"})).profile("no-such-profile");
    assert_eq!(MESH.agent.call(&ask).tool_result()["text"], "x");
    let answer = MESH.agent.call(&Ask::new("echo", json!({})).timeout(-5));
    assert!(answer.body()["result"].is_object() || answer.body()["error"].is_object());
}
