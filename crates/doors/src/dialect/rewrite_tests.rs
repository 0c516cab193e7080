//! An edit changes what it names, and nothing else.

use super::*;
use crate::dialect::parse_body;
use proptest::prelude::*;
use serde_json::{Value, json};

fn changed(operation: ModelOperation, body: &str, edits: &BodyEdits<'_>) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let parsed = parse_body(operation, &body).expect("it can be read");
    String::from_utf8(rewrite(operation, &body, &parsed, edits).to_vec()).expect("it is text")
}

fn cap(tokens: u64) -> BodyEdits<'static> {
    BodyEdits {
        cap: Some(tokens),
        cap_name: "max_completion_tokens",
        ..BodyEdits::default()
    }
}

#[test]
fn without_a_change_it_is_the_same_bytes() {
    let body = Bytes::from(
        r#"{"model":"a","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"user":"x"}"#,
    );
    let parsed = parse_body(ModelOperation::Chat, &body).expect("it can be read");
    let nothing = BodyEdits {
        model: Some("a"),
        cap: Some(5),
        ask_usage: true,
        ..BodyEdits::default()
    };
    for edits in [BodyEdits::default(), nothing] {
        let same = rewrite(ModelOperation::Chat, &body, &parsed, &edits);
        assert_eq!((same.as_ptr(), same.len()), (body.as_ptr(), body.len()));
    }
}

#[test]
fn limits_are_lowered_set_and_never_raised() {
    use ModelOperation::{Chat, Generate, Messages, OllamaChat, Responses};
    let cases = [
        (
            Chat,
            r#"{"max_tokens":100,"max_completion_tokens":90}"#,
            r#"{"max_tokens":50,"max_completion_tokens":50}"#,
        ),
        (
            Chat,
            r#"{"max_tokens":100,"max_completion_tokens":9}"#,
            r#"{"max_tokens":50,"max_completion_tokens":9}"#,
        ),
        (Chat, r#"{"max_tokens":-1}"#, r#"{"max_tokens":50}"#),
        (
            Chat,
            r#"{"max_tokens":null}"#,
            r#"{"max_completion_tokens":50,"max_tokens":null}"#,
        ),
        (
            Chat,
            r#"{"max_completion_tokens": null }"#,
            r#"{"max_completion_tokens": 50 }"#,
        ),
        (Chat, "{ }", r#"{"max_completion_tokens":50 }"#),
        (Responses, r#"{"a":1}"#, r#"{"max_output_tokens":50,"a":1}"#),
        (Messages, r#"{"max_tokens":4096}"#, r#"{"max_tokens":50}"#),
        (
            Generate,
            "{}",
            r#"{"generationConfig":{"maxOutputTokens":50}}"#,
        ),
        (
            Generate,
            r#"{"generationConfig":null}"#,
            r#"{"generationConfig":{"maxOutputTokens":50}}"#,
        ),
        (
            Generate,
            r#"{"generation_config":{"topK":1}}"#,
            r#"{"generation_config":{"maxOutputTokens":50,"topK":1}}"#,
        ),
        (
            OllamaChat,
            r#"{"options":{}}"#,
            r#"{"options":{"num_predict":50}}"#,
        ),
        (
            OllamaChat,
            r#"{"options":{"num_predict":-1}}"#,
            r#"{"options":{"num_predict":50}}"#,
        ),
        (
            OllamaChat,
            r#"{"options":{"num_predict":20}}"#,
            r#"{"options":{"num_predict":20}}"#,
        ),
        (
            ModelOperation::Embeddings,
            r#"{"input":"x"}"#,
            r#"{"input":"x"}"#,
        ),
    ];
    for (operation, before, after) in cases {
        assert_eq!(changed(operation, before, &cap(50)), after);
    }
}

#[test]
fn usage_is_asked_for_in_streams_alone() {
    let edits = BodyEdits {
        ask_usage: true,
        ..BodyEdits::default()
    };
    let cases = [
        (
            r#"{"stream":true}"#,
            r#"{"stream_options":{"include_usage":true},"stream":true}"#,
        ),
        (
            r#"{"stream":true,"stream_options":null}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{"include_obfuscation":false}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (r#"{"stream":false}"#, r#"{"stream":false}"#),
    ];
    for (before, after) in cases {
        assert_eq!(changed(ModelOperation::Chat, before, &edits), after);
    }
    assert_eq!(
        changed(ModelOperation::Responses, r#"{"stream":true}"#, &edits),
        r#"{"stream":true}"#
    );
}

#[test]
fn who_is_calling_is_overwritten_and_quoted() {
    let edits = BodyEdits {
        identity: "run \"1\"",
        ..BodyEdits::default()
    };
    let body =
        r#"{"user":{"name":"root"},"metadata":{"user_id":"me","k":"v"},"safety_identifier":"a"}"#;
    let after = r#"{"user":"run \"1\"","metadata":{"user_id":"run \"1\"","k":"v"},"safety_identifier":"run \"1\""}"#;
    assert_eq!(changed(ModelOperation::Chat, body, &edits), after);
    let anthropic = r#"{"metadata":{"user_id":"me"}}"#;
    assert_eq!(
        changed(ModelOperation::Messages, anthropic, &edits),
        r#"{"metadata":{"user_id":"run \"1\""}}"#
    );
}

/// The same edit on a JSON tree.
fn expected(mut body: Value, edits: &BodyEdits<'_>) -> Value {
    if body.get("model").is_some() {
        body["model"] = json!(edits.model.expect("it is always there"));
    }
    let tokens = edits.cap.expect("it is always there");
    let names = ["max_tokens", "max_completion_tokens"];
    let given: Vec<&str> = names
        .into_iter()
        .filter(|name| body.get(*name).is_some_and(Value::is_i64))
        .collect();
    for name in &given {
        let is_above = body[*name].as_u64().is_none_or(|limit| limit > tokens);
        if is_above {
            body[*name] = json!(tokens);
        }
    }
    // A provider that only knows `max_tokens` ignores the other name.
    if !given
        .iter()
        .any(|name| *name == edits.cap_name || *name == "max_tokens")
    {
        body[edits.cap_name] = json!(tokens);
    }
    if body.get("stream") == Some(&json!(true)) {
        if !body.get("stream_options").is_some_and(Value::is_object) {
            body["stream_options"] = json!({});
        }
        body["stream_options"]["include_usage"] = json!(true);
    }
    if body.get("user").is_some_and(|user| !user.is_null()) {
        body["user"] = json!(edits.identity);
    }
    body
}

fn bodies() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        Just(json!(null)),
        Just(json!(-1)),
        (1..200u64).prop_map(Value::from)
    ];
    let options = prop_oneof![
        Just(json!(null)),
        Just(json!({})),
        any::<bool>().prop_map(|usage| json!({"include_usage": usage})),
        Just(json!({"include_obfuscation": false, "include_usage": null})),
        Just(json!({"x": {"include_usage": 5}})),
    ];
    let text = any::<String>();
    let members = (
        proptest::option::of("[a-z:/]{1,9}"),
        proptest::option::of(number.clone()),
        proptest::option::of(number),
        proptest::option::of(any::<bool>()),
        proptest::option::of(options),
        proptest::option::of(prop_oneof![Just(json!(null)), text.prop_map(Value::from)]),
        proptest::collection::vec(text, 0..3),
    );
    members.prop_map(|(model, limit, other, stream, options, user, texts)| {
        let known = [
            ("model", model.map(Value::from)),
            ("max_tokens", limit),
            ("max_completion_tokens", other),
            ("stream", stream.map(Value::from)),
            ("stream_options", options),
            ("user", user),
            ("messages", Some(json!(texts))),
        ];
        known
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    })
}

proptest! {
    #[test]
    fn a_change_of_bytes_is_the_change_of_the_tree(
        body in bodies(), pretty in any::<bool>(), tokens in 1..300u64, identity in "[^\u{0}]{1,6}",
        cap_name in proptest::sample::select(vec!["max_tokens", "max_completion_tokens"]),
    ) {
        let edits = BodyEdits { model: Some("other"), cap: Some(tokens), cap_name, ask_usage: true, identity: &identity };
        let text = if pretty { format!("{body:#}") } else { body.to_string() };
        let after: Value = serde_json::from_str(&changed(ModelOperation::Chat, &text, &edits)).expect("it is JSON");
        prop_assert_eq!(after, expected(body, &edits));
    }
}
