//! Bodies of a hostile program. No bytes make the reader panic; what it takes serde_json takes, too, and reads the
//! same in it; what is changed has the changes and can be read again.
//!
//! The first byte says which operation it is.

#![no_main]

use bytes::Bytes;
use doors::dialect::{ParsedBody, BodyEdits, ModelOperation, parse_body, rewrite};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const OPERATIONS: [ModelOperation; 8] = [
    ModelOperation::Chat,
    ModelOperation::Responses,
    ModelOperation::Embeddings,
    ModelOperation::Messages,
    ModelOperation::Generate,
    ModelOperation::GeminiEmbed,
    ModelOperation::OllamaChat,
    ModelOperation::OllamaShow,
];

fuzz_target!(|input: &[u8]| {
    let Some((first, body)) = input.split_first() else {
        return;
    };
    let operation = OPERATIONS[usize::from(*first) % OPERATIONS.len()];
    let body = Bytes::copy_from_slice(body);
    let Ok(found) = parse_body(operation, &body) else {
        return;
    };
    // It refuses some documents that the grammar takes: half of a surrogate pair, a number beyond its range.
    if let Ok(tree) = serde_json::from_slice::<Value>(&body) {
        compare(operation, &tree, &found);
    } else {
        serde_json::from_slice::<serde::de::IgnoredAny>(&body).expect("it is JSON");
    }
    change(operation, &body, &found);
});

fn compare(operation: ModelOperation, tree: &Value, found: &ParsedBody) {
    let members = tree.as_object().expect("it is an object");
    let name = members.get("model").or_else(|| {
        members
            .get("name")
            .filter(|_| operation == ModelOperation::OllamaShow)
    });
    let written = name.and_then(Value::as_str);
    let plain = written.map(|name| name.strip_prefix("models/").unwrap_or(name));
    let model = found.model.as_ref().map(|(name, _)| name.as_str());
    let is_nested = operation == ModelOperation::GeminiEmbed || operation == ModelOperation::Generate;
    assert!(
        model == written || (is_nested && (written.is_none() || model == plain)),
        "{model:?} {written:?}"
    );
    let stream = members.get("stream").and_then(Value::as_bool);
    assert_eq!(
        found.stream,
        stream.unwrap_or(operation == ModelOperation::OllamaChat)
    );
}

fn change(operation: ModelOperation, body: &Bytes, found: &ParsedBody) {
    let same = rewrite(operation, body, found, &BodyEdits::default());
    assert_eq!((same.as_ptr(), same.len()), (body.as_ptr(), body.len()));
    let change = BodyEdits {
        model: Some("other"),
        cap: Some(7),
        cap_name: "max_tokens",
        ask_usage: true,
        identity: "who",
    };
    let changed = rewrite(operation, body, found, &change);
    let again = parse_body(operation, &changed).expect("what was changed can be read");
    assert_eq!(
        again.model.as_ref().map(|(name, _)| name.as_str()),
        found.model.as_ref().map(|_| "other")
    );
    assert_eq!((again.stream, again.choices), (found.stream, found.choices));
    assert_eq!(
        (again.refers_beyond, again.server_tools),
        (found.refers_beyond, found.server_tools)
    );
    assert!(
        again
            .identities
            .iter()
            .all(|at| &changed[at.clone()] == b"\"who\"")
    );
    let has_cap = matches!(
        operation,
        ModelOperation::Chat
            | ModelOperation::Responses
            | ModelOperation::Messages
            | ModelOperation::Generate
            | ModelOperation::OllamaChat
    );
    assert!(!has_cap || again.cap.as_ref().is_some_and(|cap| cap.tokens <= 7));
    assert!(operation != ModelOperation::Chat || !again.stream || again.wants_usage);
    assert_eq!(
        rewrite(operation, &changed, &again, &change),
        changed,
        "a change is made once"
    );
}
