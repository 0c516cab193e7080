//! Claims about output contracts.

use super::*;
use proptest::prelude::*;

const TASK: &str = r#"{"task_id":"t","status":"completed","result":"done","error":null,
    "tool_calls":[{"tool":"shell","input":{"command":"ls"},"output":"a"}],"tokens_used":{"input":3,"output":4}}"#;
const ENVELOPE: &str = r#"{"payloads":[{"text":"hi"}],"meta":{"durationMs":7,"error":null}}"#;

fn task(text: &str, code: i32) -> Result<Option<Json>, Violation> {
    read(Contract::Task, text.as_bytes(), false, code)
}

fn envelope(text: &str, code: i32) -> Result<Option<Json>, Violation> {
    read(Contract::Envelope, text.as_bytes(), false, code)
}

fn told<T: std::fmt::Debug>(read: Result<T, Violation>) -> String {
    read.expect_err("a violation").to_string()
}

#[test]
fn the_plain_forms_are_taken_whole() {
    for (contract, text) in [(Contract::Task, TASK), (Contract::Envelope, ENVELOPE)] {
        let taken = read(contract, format!("\n {text}\n").as_bytes(), false, 0)
            .unwrap()
            .unwrap();
        assert_eq!(taken, serde_json::from_str(text).unwrap());
    }
    assert_eq!(read(Contract::Raw, b"whatever", true, 9), Ok(None));
}

#[test]
fn a_failed_or_rejected_task_has_its_error_and_its_exit_status() {
    let of = |status: &str| format!(r#"{{"task_id":"t","status":"{status}","error":"why"}}"#);
    assert!(task(&of("failed"), 1).is_ok() && task(&of("rejected"), 2).is_ok());
    for (status, code) in [
        ("failed", 0),
        ("failed", 2),
        ("rejected", 0),
        ("rejected", 1),
        ("failed", 139),
    ] {
        assert!(
            told(task(&of(status), code)).ends_with(&format!("but the program exited with {code}"))
        );
    }
    assert_eq!(
        told(task(TASK, 1)),
        "the task is `completed`, but the program exited with 1"
    );
}

#[test]
fn an_envelope_with_an_error_is_no_success_and_one_without_is_no_failure() {
    let failed =
        r#"{"payloads":[],"meta":{"durationMs":0,"error":{"code":"llm_error","message":"m"}}}"#;
    assert!(envelope(failed, 1).is_ok());
    assert_eq!(
        told(envelope(failed, 0)),
        "`meta.error` tells of an error, but the program exited with 0"
    );
    assert_eq!(
        told(envelope(ENVELOPE, 1)),
        "`meta.error` is null, but the program exited with 1"
    );
    let aborted = ENVELOPE.replace("\"error\"", "\"aborted\":true,\"error\"");
    assert_eq!(
        told(envelope(&aborted, 0)),
        "`meta.aborted` is true, but the program exited with 0"
    );
}

#[test]
fn what_openclaw_adds_may_stand_and_nothing_else() {
    let rich = r#"{"payloads":[{"text":"a","mediaUrl":null},{"text":"","mediaUrl":"u"}],"meta":{"durationMs":1,
        "litellmCallId":"c","aborted":false,"error":null,
        "agentMeta":{"sessionId":"s","provider":"p","model":"m","usage":{"input":1,"more":[0.5,-1]}}}}"#;
    assert!(envelope(rich, 0).is_ok());
    let kind = r#"{"payloads":[],"meta":{"durationMs":0,"error":{"kind":"k","message":"m"}}}"#;
    assert!(envelope(kind, 1).is_ok());
    for (from, to, place) in [
        ("\"usage\"", "\"cost\":0,\"usage\"", "meta.agentMeta.cost"),
        ("\"aborted\"", "\"abort\"", "meta.abort"),
        ("\"mediaUrl\":null", "\"url\":null", "payloads[0].url"),
        ("{\"payloads\"", "{\"debug\":1,\"payloads\"", "debug"),
    ] {
        let wanted = format!("`{place}` is not a field of this contract");
        assert_eq!(told(envelope(&rich.replacen(from, to, 1), 0)), wanted);
    }
}

#[test]
fn anything_but_exactly_one_object_is_refused() {
    let twice = format!("{ENVELOPE}\n{ENVELOPE}");
    for text in [
        "null",
        "[]",
        "1",
        "\"a\"",
        "{",
        "log\n{}",
        "{} log",
        "\u{feff}{}",
        &twice,
        "{\"a\":1,\"a\":1}",
    ] {
        assert!(
            matches!(envelope(text, 0), Err(Violation::NotOneObject { .. })),
            "{text}"
        );
    }
    assert_eq!(envelope("", 0), Err(Violation::Empty));
    assert_eq!(envelope(" \n", 0), Err(Violation::Empty));
    let no_text = ENVELOPE
        .as_bytes()
        .iter()
        .map(|byte| if *byte == b'i' { 0xff } else { *byte });
    assert!(read(Contract::Envelope, &no_text.collect::<Vec<_>>(), false, 0).is_err());
    assert_eq!(
        read(Contract::Envelope, ENVELOPE.as_bytes(), true, 0),
        Err(Violation::Cut)
    );
}

#[test]
fn size_and_depth_have_bounds() {
    let long = ENVELOPE.replace("hi", &"x".repeat(MAX_BYTES));
    assert_eq!(envelope(&long, 0), Err(Violation::TooLong));
    assert!(envelope(&ENVELOPE.replace("hi", &"x".repeat(MAX_BYTES - 200)), 0).is_ok());
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(
        task(&TASK.replace("\"ls\"", &deep), 0),
        Err(Violation::NotOneObject { .. })
    ));
    let many = vec!["{\"text\":\"\"}"; MAX_PAYLOADS + 1].join(",");
    assert_eq!(
        told(envelope(&ENVELOPE.replace("{\"text\":\"hi\"}", &many), 0)),
        "`payloads` is too long"
    );
}

#[test]
fn each_missing_or_misshapen_field_is_named() {
    for (from, to, wanted) in [
        ("\"task_id\":\"t\",", "", "`task_id` is missing"),
        ("\"t\"", "7", "`task_id` is not a text"),
        (
            "\"completed\"",
            "\"fine\"",
            "`status` is not completed, failed or rejected",
        ),
        ("\"result\":\"done\",", "", "`result` is missing"),
        (
            "\"error\":null",
            "\"error\":\"e\"",
            "`error` is there although the task is completed",
        ),
        ("\"tool\":\"shell\",", "", "`tool_calls[0].tool` is missing"),
        (",\"output\":\"a\"", "", "`tool_calls[0].output` is missing"),
        (
            "\"output\":4",
            "\"output\":-4",
            "`tokens_used.output` is not a whole number",
        ),
        (
            "\"input\":3",
            "\"input\":0.5",
            "`tokens_used.input` is not a whole number",
        ),
    ] {
        assert!(TASK.contains(from), "{from}");
        assert_eq!(told(task(&TASK.replacen(from, to, 1), 0)), wanted);
    }
    let error = r#"{"task_id":"t","status":"failed","error":{"a":1}}"#;
    assert_eq!(told(task(error, 1)), "`error` is not a text");
    for (from, to, wanted) in [
        ("\"durationMs\":7,", "", "`meta.durationMs` is missing"),
        (",\"error\":null", "", "`meta.error` is missing"),
        (
            "\"error\":null",
            "\"error\":\"e\"",
            "`meta.error` is not an object",
        ),
        (
            "\"error\":null",
            "\"error\":{\"message\":\"m\"}",
            "`meta.error.code` is missing",
        ),
        ("{\"text\":\"hi\"}", "7", "`payloads[0]` is not an object"),
        (
            "\"payloads\":[{\"text\":\"hi\"}],",
            "",
            "`payloads` is missing",
        ),
        ("\"hi\"", "null", "`payloads[0].text` is not a text"),
    ] {
        assert!(ENVELOPE.contains(from), "{from}");
        assert_eq!(told(envelope(&ENVELOPE.replacen(from, to, 1), 0)), wanted);
    }
}

#[test]
fn a_long_or_hostile_name_is_told_short_and_escaped() {
    let hostile = format!(r#"{{"\u001b[2J\n{}":1}}"#, "x".repeat(5000));
    let told = told(task(&hostile, 0));
    assert!(
        told.len() < 120 && !told.contains(char::is_control),
        "{told}"
    );
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        ".{0,8}".prop_map(Into::into),
    ];
    let name = prop_oneof![
        "status|error|meta|payloads|task_id|result|tool_calls",
        "[a-z]{0,4}"
    ];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(name.clone(), inner, 0..5)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_taken_was_one_object_and_comes_out_as_it_was(value in json(), code in 0..4) {
        let text = value.to_string();
        for contract in [Contract::Task, Contract::Envelope] {
            match read(contract, text.as_bytes(), false, code) {
                Ok(taken) => {
                    prop_assert!(value.is_object());
                    prop_assert_eq!(serde_json::to_value(taken).unwrap(), value.clone());
                }
                Err(violation) => {
                    let told = violation.to_string();
                    prop_assert!(told.len() < 400 && !told.contains(char::is_control), "{}", told);
                }
            }
        }
    }

    #[test]
    fn a_program_that_says_it_failed_never_succeeds(code in 0..256, payload in ".{0,20}") {
        let failed = serde_json::json!({ "task_id": payload, "status": "failed", "error": payload });
        prop_assert_eq!(task(&failed.to_string(), code).is_ok(), code == 1);
        let error = serde_json::json!({ "code": payload, "message": payload });
        let failed = serde_json::json!({ "payloads": [], "meta": { "durationMs": 1, "error": error } });
        prop_assert_eq!(envelope(&failed.to_string(), code).is_ok(), code != 0);
    }
}

#[test]
fn what_would_be_read_as_something_else_later_is_not_taken() {
    let of = |result: &str| TASK.replace("\"done\"", result);
    for name in [
        "$serde_json::private::RawValue",
        "\\u0024serde_json::private::RawValue",
    ] {
        let quoted = of(&format!(r#"{{"{name}":"[1]"}}"#));
        let usual: serde_json::Value = serde_json::from_str(&quoted).unwrap();
        assert_eq!(
            usual["result"],
            serde_json::json!([1]),
            "the control: the parser takes it for what it quotes"
        );
        assert!(told(task(&quoted, 0)).starts_with("stdout is not exactly one JSON object"));
    }
    assert!(task(&of(r#"{"$RawValue":"[1]"}"#), 0).is_ok());
}

#[test]
fn what_is_taken_can_be_read_within_results_and_jobs() {
    let of = |levels: usize| TASK.replace("\"done\"", &("[".repeat(levels) + &"]".repeat(levels)));
    let taken = task(&of(MAX_DEPTH - 1), 0).unwrap().unwrap();
    let around = format!("[[[[[[[[{}]]]]]]]]", serde_json::to_string(&taken).unwrap());
    assert!(serde_json::from_str::<serde_json::Value>(&around).is_ok());
    assert_eq!(
        told(task(&of(MAX_DEPTH), 0)),
        "stdout is nested more than 100 levels deep"
    );
}
