//! Requests that are not as they should be: each has one answer, and agents can tell which request it is for.

use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::LazyLock};
use worker_tests::{Ask, Mesh, Message, uuid};

static MESH: LazyLock<Mesh> = LazyLock::new(|| Mesh::new("Tester", |_| ()));

/// Sends these bytes, with everything beside them that agents send, and gives the one answer.
fn answer_to(bytes: &[u8], id: &str) -> Message {
    let agent = &MESH.agent;
    agent.publish_bytes(&agent.topic("invoke/echo"), bytes, &agent.properties(id));
    let answer = agent.wait("response", id);
    agent.settle();
    assert_eq!(
        agent.all("response", id).len(),
        1,
        "one answer to {}",
        String::from_utf8_lossy(bytes)
    );
    answer
}

/// A good request of this id, changed.
fn changed(id: &str, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut body = Ask::new("echo", json!({"text": "x"})).id(id).body;
    change(&mut body);
    body.to_string().into_bytes()
}

fn is_refused(bytes: &[u8], id: &str) {
    let answer = answer_to(bytes, id);
    let shown: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
    assert_eq!(answer.error().0, "INVALID_REQUEST", "{shown}");
}

#[test]
fn what_is_no_request_is_refused_under_the_id_of_its_topic() {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let long_number = format!("{{\"id\": {}}}", "9".repeat(10_000)).into_bytes();
    for bytes in [
        b"".as_slice(),
        b"not json",
        b"[]",
        b"null",
        b"7",
        b"\"text\"",
        b"{}",
        b"{",
        b"\xff\xfe\x00",
        b"\0",
        &deep,
        &long_number,
        br#"{"jsonrpc":"2.0","id":null,"method":"sam_remote_tool/invoke","params":null}"#,
    ] {
        is_refused(bytes, &uuid());
    }
}

#[test]
fn a_request_that_lacks_something_or_has_it_wrong_is_refused_under_its_id() {
    let set = |pointer: &'static str, value: Value| {
        move |body: &mut Value| *body.pointer_mut(pointer).expect("it is there") = value
    };
    let preloaded =
        |content: &str| json!({"a": {"filename": "a", "content": content, "version": 0}});
    let changes: Vec<(&str, Value)> = vec![
        ("/jsonrpc", json!("1.0")),
        ("/method", json!("sam_remote_tool/other")),
        ("/id", json!(7)),
        ("/id", Value::Null),
        ("/params", json!([])),
        ("/params/task_id", json!(7)),
        ("/params/args", json!([1])),
        ("/params/tool_config", json!("text")),
        ("/params/app_name", Value::Null),
        ("/params/user_id", Value::Null),
        ("/params/session_id", json!({})),
        ("/params/preloaded_artifacts", json!([])),
        ("/params/preloaded_artifacts", preloaded("no base64 !!")),
        (
            "/params/preloaded_artifacts",
            json!({"a": {"filename": "a"}}),
        ),
        ("/params/artifact_references", json!({"a": {"version": 1}})),
        (
            "/params/artifact_references",
            json!({"a": {"filename": "a", "version": "new"}}),
        ),
        ("/params/timeout_seconds", json!("soon")),
        ("/params/sandbox_profile", json!(7)),
    ];
    for (pointer, value) in changes {
        let id = uuid();
        is_refused(&changed(&id, set(pointer, value)), &id);
    }
    for missing in ["task_id", "tool_name", "app_name", "user_id", "session_id"] {
        let id = uuid();
        is_refused(
            &changed(&id, |body| {
                drop(
                    body["params"]
                        .as_object_mut()
                        .expect("it is one")
                        .remove(missing),
                )
            }),
            &id,
        );
    }
}

#[test]
fn what_may_be_missing_may_be_missing_and_strangers_fields_are_passed_over() {
    let id = uuid();
    let bytes = changed(&id, |body| {
        *body = json!({"id": id, "new": 1, "params": {
            "task_id": id, "tool_name": "echo", "app_name": "Tester", "user_id": "ana", "session_id": "s", "new": {"a": 1},
        }});
    });
    assert_eq!(answer_to(&bytes, &id).tool_result(), &json!({"text": ""}));
}

#[test]
fn without_a_place_to_answer_to_the_agent_is_found_by_its_name() {
    let agent = &MESH.agent;
    for (left_out, app) in [
        (&["replyTo"][..], "Somebody"),
        (&["replyTo", "statusTo", "clientId"], "Tester"),
    ] {
        let mut ask = Ask::new("statuses", json!({"count": 1})).param("app_name", app);
        for name in left_out {
            ask = ask.without(name);
        }
        assert_eq!(
            agent.call(&ask).tool_result()["sent"],
            1,
            "without {left_out:?}"
        );
        assert_eq!(
            agent.statuses(&ask.id),
            ["status 0"],
            "without {left_out:?}"
        );
    }
    // Nothing at all beside it, and a body that says nothing: nobody can be answered, and the next one is.
    agent.publish_bytes(&agent.topic("invoke/echo"), b"{}", &BTreeMap::new());
    agent.settle();
}

#[test]
fn statuses_go_where_the_request_says() {
    let agent = &MESH.agent;
    let elsewhere = |name: &str| agent.topic(&format!("status/Tester/{name}"));
    let (old, new, both) = (uuid(), uuid(), uuid());
    let ask = || Ask::new("statuses", json!({"count": 1}));
    agent.call(
        &ask()
            .without("statusTo")
            .property("a2aStatusTopic", elsewhere(&old)),
    );
    agent.call(&ask().property("statusTo", elsewhere(&new)));
    agent.call(
        &ask()
            .property("statusTo", elsewhere(&both))
            .property("a2aStatusTopic", elsewhere("nowhere")),
    );
    for place in [&old, &new, &both] {
        assert_eq!(agent.statuses(place), ["status 0"]);
    }
    let derived = ask().without("statusTo");
    agent.call(&derived);
    assert_eq!(agent.statuses(&derived.id), ["status 0"]);
    assert_eq!(agent.statuses("nowhere"), [""; 0]);
}

#[test]
fn a_hostile_place_to_answer_to_ends_nothing() {
    let agent = &MESH.agent;
    for topic in ["", "#", "a/+/b", "$SYS/broker", "/", &"x".repeat(60_000)] {
        agent.send(
            &Ask::new("statuses", json!({"count": 1}))
                .property("replyTo", topic)
                .property("statusTo", topic),
        );
    }
    agent.settle();
}

#[test]
fn a_tool_that_nobody_has_is_not_run() {
    let agent = &MESH.agent;
    let ask = Ask::new("no_such_tool", json!({}));
    agent.send(&ask);
    agent.settle();
    for answer in agent.all("response", &ask.id) {
        let (code, message) = answer.error();
        assert!(
            ["TOOL_NOT_AVAILABLE", "TOOL_NOT_FOUND"].contains(&code),
            "{code}: {message}"
        );
    }
}
