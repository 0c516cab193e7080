//! The agent of these tests refuses what real agents refuse: without that none of its answers would prove anything.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use worker_tests::{Agent, Folder, Message, Mosquitto, Rabbit, Way, uuid};

fn told(sender: &Agent, agent: &Agent, kind: &str, mut body: Value) -> Message {
    let id = uuid();
    if body["id"] == "ID" {
        body["id"] = id.as_str().into();
    }
    let place = if kind == "init" {
        format!("init/{id}")
    } else {
        format!("{kind}/Reader/{id}")
    };
    sender.publish(
        &sender.topic(&place),
        &body,
        &BTreeMap::from([("timestamp".to_owned(), json!(1))]),
    );
    let arrived = |event: &Message| event.0["kind"] == kind && event.0["id"] == id.as_str();
    let found = || agent.everything().into_iter().find(arrived);
    worker_tests::until("the message arrives", found)
}

#[test]
fn it_takes_and_refuses_answers_as_agents_do() {
    let folder = Folder::new();
    let broker = Mosquitto::start(&folder);
    let way = Way::mqtt5(broker.port);
    let (sender, agent) = (Agent::join(&way, "Writer"), Agent::join(&way, "Reader"));
    let answer = |result: Value| json!({"jsonrpc": "2.0", "id": "ID", "result": result});
    let error = |error: Value| json!({"jsonrpc": "2.0", "id": "ID", "error": error});
    let made = json!({"filename": "a", "version": 0, "mime_type": "text/plain", "size_bytes": 1, "more": 1});
    for good in [
        answer(json!({"tool_result": {}, "execution_time_ms": 12})),
        answer(
            json!({"tool_result": {}, "execution_time_ms": 12.0, "created_artifacts": [made], "new": 1}),
        ),
        json!({"id": "ID", "result": {"tool_result": {"a": 1}, "execution_time_ms": "12"}, "error": null}),
        error(json!({"code": "TOOL_ERROR", "message": "it failed", "data": {"a": 1}})),
    ] {
        let message = told(&sender, &agent, "response", good);
        assert_eq!(message.problem(), None, "{}", message.body());
        assert_eq!(message.property("timestamp"), Some("1"));
    }
    for bad in [
        answer(json!({"tool_result": [], "execution_time_ms": 12})),
        answer(json!({"tool_result": null, "execution_time_ms": 12})),
        answer(json!({"tool_result": "text", "execution_time_ms": 12})),
        answer(json!({"tool_result": {}, "execution_time_ms": 1.5})),
        answer(json!({"tool_result": {}})),
        answer(
            json!({"tool_result": {}, "execution_time_ms": 1, "created_artifacts": [{"filename": "a", "version": 0, "size_bytes": 1}]}),
        ),
        json!({"jsonrpc": "1.0", "id": "ID", "result": {"tool_result": {}, "execution_time_ms": 1}}),
        json!({"jsonrpc": "2.0", "id": 7, "result": {"tool_result": {}, "execution_time_ms": 1}}),
        json!({"jsonrpc": "2.0", "id": "another", "result": {"tool_result": {}, "execution_time_ms": 1}}),
        json!({"jsonrpc": "2.0", "id": "ID"}),
        error(json!({"code": -32000, "message": "it failed"})),
        error(json!({"code": "NO_SUCH_CODE", "message": "it failed"})),
        error(json!({"code": "TOOL_ERROR", "message": "it failed", "data": "text"})),
    ] {
        let message = told(&sender, &agent, "response", bad);
        assert!(message.problem().is_some(), "{}", message.body());
    }
}

#[test]
fn it_takes_and_refuses_statuses_and_schemas_as_agents_do() {
    let folder = Folder::new();
    let broker = Mosquitto::start(&folder);
    let way = Way::mqtt5(broker.port);
    let (sender, agent) = (Agent::join(&way, "Writer"), Agent::join(&way, "Reader"));
    let status = |time: &str| json!({"jsonrpc": "2.0", "method": "sam_remote_tool/status", "params": {"task_id": "1", "status_text": "half", "timestamp": time}});
    for time in [
        "2001-01-01T00:00:00.000000+00:00",
        "2026-01-01T00:00:00Z",
        "now",
    ] {
        assert!(
            told(&sender, &agent, "status", status(time))
                .problem()
                .is_some(),
            "{time}"
        );
    }
    let card = |parameters: Value| json!({"jsonrpc": "2.0", "method": "sam_remote_tool/init", "params": {"tool_name": "a", "parameters": parameters}});
    for good in [
        json!({"type": "object", "properties": {"a": {"type": "STRING", "enum": ["x"]}}, "required": ["a"]}),
        json!({"anyOf": [{"type": "array", "items": {"type": "integer", "minimum": 1}}], "nullable": true}),
        json!({"type": "object", "additionalProperties": false, "propertyOrdering": [], "title": "t", "format": "f", "pattern": "p", "minLength": 1, "maxItems": 2, "default": 1, "example": 2, "description": "d"}),
        Value::Null,
    ] {
        assert_eq!(
            told(&sender, &agent, "init", card(good.clone())).problem(),
            None,
            "{good}"
        );
    }
    for bad in [
        json!({"$schema": "x", "type": "object"}),
        json!({"type": ["string", "null"]}),
        json!({"properties": {"a": {"$ref": "#/$defs/a"}}}),
        json!({"$defs": {}}),
        json!({"oneOf": []}),
        json!({"properties": {"a": {"const": 1}}}),
        json!({"items": {"examples": []}}),
        json!({"exclusiveMinimum": 1}),
        json!({"uniqueItems": true}),
        json!({"multipleOf": 2}),
        json!({"enum": [1]}),
        json!({"type": "text"}),
    ] {
        assert!(
            told(&sender, &agent, "init", card(bad.clone()))
                .problem()
                .is_some(),
            "{bad}"
        );
    }
}

#[test]
fn it_speaks_every_dialect() {
    let folder = Folder::new();
    let mosquitto = Mosquitto::start(&folder);
    for way in [
        Way::mqtt3(mosquitto.port),
        Way::amqp(Rabbit::running().port),
    ] {
        let (sender, agent) = (Agent::join(&way, "Writer"), Agent::join(&way, "Reader"));
        let body = json!({"id": "ID", "result": {"tool_result": {}, "execution_time_ms": 1}});
        assert_eq!(
            told(&sender, &agent, "response", body).problem(),
            None,
            "{way:?}"
        );
    }
}
