//! Messages of a mesh. No bytes make the readers panic; answers go to topics of answers only and are JSON; topics that are
//! read can be written; what Python writes for JSON is read, and is JSON then; whatever a tool says of its parameters is brought down to what an agent takes, and stays small.
//!
//! An input is a topic, properties (`name=value` lines) and a payload, with NUL between them; the payload is a schema, too. The
//! worker's crate brings engine and store along, so that this target takes the module from its folder.

#![no_main]

#[path = "../../crates/worker/src/wire/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "what the worker alone uses")]
mod wire;

/// What that module needs of its own crate.
mod transport {
    pub(crate) type Properties = std::collections::BTreeMap<String, String>;
}

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::time::Duration;
use wire::{
    answer,
    request::{RawMessage, ReplyAddress, WorkerRequest, RequestError, read},
    schema::for_asker,
    topic::{TopicBase, TrailingWildcard, Topic, matches, mqtt_filter},
};

const LARGEST: usize = 2048;

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (topic, properties, payload) = (
        String::from_utf8_lossy(next()),
        String::from_utf8_lossy(next()),
        next(),
    );
    let base = TopicBase::new("n", "").expect("it is one");
    look_at_topic(&base, &topic, &properties);
    let pairs = properties.lines().filter_map(|line| line.split_once('='));
    let properties = pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    for topic in [&*topic, &format!("n/a2a/v1/sam_remote_tool/{topic}")] {
        look_at_request(
            &base,
            RawMessage {
                topic,
                payload,
                properties: &properties,
            },
        );
    }
    if let Ok(full) = serde_json::from_slice::<Value>(payload) {
        let schema = for_asker(&full);
        assert!(schema["type"] == "object" && schema.to_string().len() < 1 << 20);
        look_at_schema(&schema);
    }
});

fn look_at_topic(base: &TopicBase, topic: &str, pattern: &str) {
    if let Some(read) = base.read(topic) {
        assert_eq!(base.write(read).as_deref(), Ok(topic));
    }
    _ = TopicBase::new(topic, pattern);
    if matches(pattern, topic, TrailingWildcard::OneLevelOrMore) {
        assert!(matches(pattern, topic, TrailingWildcard::AlsoNothing));
    }
    if let Ok(filter) = mqtt_filter(pattern) {
        assert_eq!(filter.split('/').count(), pattern.split('/').count());
        assert!(!filter.contains(['*', '>']));
    }
}

fn look_at_request(base: &TopicBase, message: RawMessage<'_>) {
    match read(base, message, LARGEST) {
        Ok(WorkerRequest::Invoke(invoke)) => {
            look_at_reply(base, &invoke.reply);
            assert!(
                invoke
                    .timeout
                    .is_none_or(|time| (1..=86_400).contains(&time.as_secs()))
            );
            assert!(invoke.preloaded.len() <= 256 && invoke.references.len() <= 256);
            let Value::Object(args) = json(invoke.args.text().as_bytes()) else {
                panic!("no object")
            };
            assert!(json(invoke.tool_config.text().as_bytes()).is_object());
            if let Ok(answer) = answer::success(&invoke.id, &args, Duration::ZERO, &[], LARGEST) {
                assert_eq!(json(&answer)["id"], *invoke.id);
            }
        }
        Ok(WorkerRequest::Init(init)) => look_at_reply(base, &init.reply),
        Ok(WorkerRequest::Cancel(correlation)) => assert!(message.topic.ends_with(&correlation)),
        Err(RequestError::Refused(refused)) => {
            look_at_reply(base, &refused.reply);
            assert!(
                refused.refusal.message.len() < 1024 && !refused.refusal.message.contains('\n')
            );
            let answer = json(&answer::error(&refused.id, &refused.refusal));
            assert!(answer["id"] == *refused.id && answer["error"]["code"] == "INVALID_REQUEST");
        }
        Err(RequestError::Unanswerable(refusal)) => assert!(!refusal.message.is_empty()),
        Err(RequestError::NotARequest) => {}
    }
}

fn look_at_reply(base: &TopicBase, reply: &ReplyAddress) {
    assert!(
        matches!(base.read(&reply.to), Some(Topic::Response { correlation, .. }) if correlation == reply.correlation)
    );
    let status = reply.status_to.as_deref().expect("there is always one");
    let agent = |topic| match base.read(topic) {
        Some(Topic::Response { agent, .. } | Topic::Status { agent, .. }) => agent,
        _ => panic!("no topic of answers"),
    };
    assert_eq!(agent(status), agent(&reply.to));
    assert!(reply.echoed.values().all(|value| value.len() <= 128));
}

/// As the agent's model looks at it.
fn look_at_schema(schema: &Value) {
    for (name, value) in schema.as_object().expect("schemas are objects") {
        match &**name {
            "type" | "title" | "description" | "format" | "pattern" => assert!(value.is_string()),
            "enum" | "required" | "propertyOrdering" => {
                assert!(
                    value
                        .as_array()
                        .is_some_and(|all| all.iter().all(Value::is_string))
                );
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => {
                assert!(value.is_u64());
            }
            "minimum" | "maximum" => assert!(value.is_number()),
            "nullable" => assert!(value.is_boolean()),
            "default" | "example" => {}
            "additionalProperties" if value.is_boolean() => {}
            "additionalProperties" | "items" => look_at_schema(value),
            "properties" => value
                .as_object()
                .expect("by name")
                .values()
                .for_each(look_at_schema),
            "anyOf" => value
                .as_array()
                .expect("a list")
                .iter()
                .for_each(look_at_schema),
            _ => panic!("{name}"),
        }
    }
}

fn json(message: &[u8]) -> Value {
    serde_json::from_slice(message).expect("it is JSON")
}
