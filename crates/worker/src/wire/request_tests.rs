//! Expectations are from the protocol's description, not from what the code says.

use super::*;
use proptest::prelude::*;
use serde_json::json;

const TOPIC: &str = "myorg/dev/a2a/v1/sam_remote_tool/invoke/resize_image";
const REPLY: &str = "myorg/dev/a2a/v1/sam_remote_tool/response/PhotoAgent/5f0c";
const STATUS: &str = "myorg/dev/a2a/v1/sam_remote_tool/status/PhotoAgent/5f0c";
const LARGEST: usize = 10_000_000;

/// As the description shows it.
fn example() -> Value {
    json!({"jsonrpc":"2.0","id":"5f0c","method":"sam_remote_tool/invoke",
     "params":{"task_id":"5f0c","tool_name":"resize_image",
      "args":{"picture":"cat.png","width":320},
      "tool_config":{"quality":80},
      "app_name":"PhotoAgent","user_id":"ana","session_id":"web-77",
      "preloaded_artifacts":{},
      "artifact_references":{"picture":{"filename":"cat.png","version":2}},
      "timeout_seconds":300,"sandbox_profile":"standard"}})
}

fn base() -> TopicBase {
    TopicBase::new("myorg/dev", "").unwrap()
}

fn properties(pairs: &[(&str, &str)]) -> Properties {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn usual() -> Properties {
    properties(&[
        ("replyTo", REPLY),
        ("statusTo", STATUS),
        ("clientId", "PhotoAgent"),
        ("userId", "ana"),
    ])
}

fn sent(
    topic: &str,
    payload: &[u8],
    properties: &Properties,
) -> Result<WorkerRequest, RequestError> {
    read(
        &base(),
        RawMessage {
            topic,
            payload,
            properties,
        },
        LARGEST,
    )
}

fn invoked(message: &Value, properties: &Properties) -> Result<Invoke, RequestError> {
    match sent(TOPIC, message.to_string().as_bytes(), properties)? {
        WorkerRequest::Invoke(invoke) => Ok(*invoke),
        other => panic!("{other:?}"),
    }
}

/// The example with one field changed, or removed if it is to be nothing.
fn with(path: &str, value: Option<Value>) -> Value {
    let mut message = example();
    let (parent, name) = path.rsplit_once('/').unwrap();
    let parent = message
        .pointer_mut(parent)
        .unwrap()
        .as_object_mut()
        .unwrap();
    match value {
        Some(value) => _ = parent.insert(name.to_owned(), value),
        None => _ = parent.remove(name),
    }
    message
}

fn refused(message: &Value) -> (String, String) {
    match invoked(message, &usual()) {
        Err(RequestError::Refused(refused)) => {
            assert_eq!(
                (refused.refusal.code, &*refused.reply.to),
                (MeshErrorCode::InvalidRequest, REPLY)
            );
            (refused.id, refused.refusal.message)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_example_is_read() {
    let invoke = invoked(&example(), &usual()).unwrap();
    assert_eq!(
        (&*invoke.id, &*invoke.task_id, &*invoke.tool),
        ("5f0c", "5f0c", "resize_image")
    );
    assert_eq!(
        read_object(&invoke.args),
        json!({"picture":"cat.png","width":320})
    );
    assert_eq!(read_object(&invoke.tool_config), json!({"quality":80}));
    assert_eq!(
        (&*invoke.app_name, &*invoke.user_id, &*invoke.session_id),
        ("PhotoAgent", "ana", "web-77")
    );
    assert!(invoke.preloaded.is_empty());
    let cat = ArtifactReference {
        filename: "cat.png".to_owned(),
        version: Some(2),
    };
    assert_eq!(
        invoke.references,
        BTreeMap::from([("picture".to_owned(), cat)])
    );
    assert_eq!(invoke.timeout, Some(Duration::from_secs(300)));
    assert_eq!(invoke.profile.as_deref(), Some("standard"));
    assert_eq!(
        (&*invoke.reply.to, invoke.reply.status_to.as_deref()),
        (REPLY, Some(STATUS))
    );
    assert_eq!(invoke.reply.correlation, "5f0c");
}

#[test]
fn the_tool_is_that_of_the_topic() {
    let message = with("/params/tool_name", Some(json!("another")));
    assert_eq!(invoked(&message, &usual()).unwrap().tool, "resize_image");
}

#[test]
fn what_may_be_absent_may_be_null_and_has_its_default() {
    let optional = [
        "/jsonrpc",
        "/method",
        "/params/args",
        "/params/tool_config",
        "/params/preloaded_artifacts",
        "/params/artifact_references",
        "/params/timeout_seconds",
        "/params/sandbox_profile",
    ];
    for path in optional {
        for value in [None, Some(Value::Null)] {
            assert!(invoked(&with(path, value), &usual()).is_ok(), "{path}");
        }
    }
    let bare = json!({"id":"5f0c","params":{"task_id":"5f0c","tool_name":"resize_image",
        "app_name":"PhotoAgent","user_id":"ana","session_id":"web-77"}});
    let invoke = invoked(&bare, &usual()).unwrap();
    assert_eq!(
        (invoke.args.text(), invoke.tool_config.text()),
        ("{}", "{}")
    );
    assert!(invoke.preloaded.is_empty() && invoke.references.is_empty());
    assert_eq!(
        (invoke.timeout, invoke.profile, invoke.user_config),
        (None, None, None)
    );
}

#[test]
fn what_must_be_there_is_a_text() {
    for name in ["task_id", "tool_name", "app_name", "user_id", "session_id"] {
        let path = format!("/params/{name}");
        for value in [
            None,
            Some(Value::Null),
            Some(json!(7)),
            Some(json!(["x"])),
            Some(json!("x".repeat(1025))),
        ] {
            let (id, message) = refused(&with(&path, value));
            assert_eq!(id, "5f0c");
            assert!(message.contains(&format!("`params.{name}`")), "{message}");
        }
        assert!(invoked(&with(&path, Some(json!("x"))), &usual()).is_ok());
    }
}

#[test]
fn an_id_that_is_none_is_that_of_the_reply_topic_in_the_answer() {
    for value in [
        None,
        Some(Value::Null),
        Some(json!(7)),
        Some(json!("")),
        Some(json!("x".repeat(257))),
    ] {
        assert_eq!(refused(&with("/id", value)).0, "5f0c");
    }
}

#[test]
fn other_protocols_and_methods_are_refused_under_their_id() {
    for (path, value) in [
        ("/jsonrpc", json!("1.0")),
        ("/jsonrpc", json!(2.0)),
        ("/method", json!("sam_remote_tool/init")),
        ("/method", json!(1)),
        ("/params", json!([])),
        ("/params", Value::Null),
        ("/params/args", json!([])),
        ("/params/tool_config", json!("x")),
        ("/params/timeout_seconds", json!(1.5)),
        ("/params/timeout_seconds", json!("soon")),
        ("/params/sandbox_profile", json!(1)),
        ("/params/artifact_references", json!({"a": "cat.png"})),
        ("/params/artifact_references", json!({"a": {"version": 1}})),
        (
            "/params/artifact_references",
            json!({"a": {"filename": "x", "version": "new"}}),
        ),
    ] {
        assert_eq!(
            refused(&with(path, Some(value.clone()))).0,
            "5f0c",
            "{path} {value}"
        );
    }
    assert!(invoked(&with("/method", Some(json!("sandbox/invoke"))), &usual()).is_ok());
}

#[test]
fn unknown_fields_are_passed_over() {
    for path in [
        "/extra",
        "/params/oauth",
        "/params/module",
        "/params/artifact_references/picture/more",
    ] {
        assert!(
            invoked(&with(path, Some(json!({"a": [1]}))), &usual()).is_ok(),
            "{path}"
        );
    }
}

#[test]
fn time_is_given_within_bounds() {
    for (said, seconds) in [
        (json!(1), 1),
        (json!(0), 1),
        (json!(-7), 1),
        (json!("60"), 60),
        (json!(86_400), 86_400),
        (json!(86_401), 86_400),
        (json!(u64::MAX), 86_400),
        (json!(-1e300), 1),
    ] {
        let invoke = invoked(&with("/params/timeout_seconds", Some(said)), &usual()).unwrap();
        assert_eq!(invoke.timeout, Some(Duration::from_secs(seconds)));
    }
}

#[test]
fn files_that_come_along_are_decoded() {
    let files = json!({
        "picture": {"filename": "a.txt", "content": "aGVsbG8=", "mime_type": "text/plain", "version": 3, "metadata": {}},
        "list[0]": {"filename": "b", "content": "", "version": 0},
        "list[1]": {"filename": "c", "content": "aGk", "version": 0},
    });
    let invoke = invoked(&with("/params/preloaded_artifacts", Some(files)), &usual()).unwrap();
    let file = |filename: &str, content: &[u8], mime_type: &str, version| PreloadedFile {
        filename: filename.to_owned(),
        content: content.to_vec(),
        mime_type: mime_type.to_owned(),
        version,
    };
    assert_eq!(
        invoke.preloaded,
        BTreeMap::from([
            (
                "picture".to_owned(),
                file("a.txt", b"hello", "text/plain", 3)
            ),
            (
                "list[0]".to_owned(),
                file("b", b"", "application/octet-stream", 0)
            ),
            (
                "list[1]".to_owned(),
                file("c", b"hi", "application/octet-stream", 0)
            ),
        ])
    );
    for bad in [
        json!({"filename": "a", "content": "not base64!", "version": 0}),
        json!({"filename": "a", "version": 0}),
        json!({"filename": "a", "content": null, "version": 0}),
        json!({"filename": "a", "content": "aGk="}),
        json!({"content": "aGk=", "version": 0}),
        json!("aGk="),
    ] {
        let message = with("/params/preloaded_artifacts", Some(json!({"picture": bad})));
        assert!(refused(&message).1.contains("params.preloaded_artifacts"));
    }
}

#[test]
fn there_are_only_so_many_files() {
    let of = |count: usize| {
        (0..count)
            .map(|n| (n.to_string(), json!({"filename": "a"})))
            .collect()
    };
    let message = |count| {
        with(
            "/params/artifact_references",
            Some(Value::Object(of(count))),
        )
    };
    assert_eq!(
        invoked(&message(256), &usual()).unwrap().references.len(),
        256
    );
    assert!(refused(&message(257)).1.contains("at most 256"));
}

fn read_object(object: &RawObject) -> Value {
    serde_json::from_str(object.text()).unwrap()
}

#[test]
fn what_a_tool_is_given_is_as_it_was_written() {
    let numbers =
        r#"{"z": 1208925819614629174706176, "a": 0.1000000000000000055511151231257827, "z2": -0}"#;
    let said = format!(r#""args": {numbers}, "tool_config": {numbers}, "picture": "#);
    let text = example().to_string().replacen(r#""args":"#, &said, 1);
    // The last of two counts, everywhere.
    let last = text.replacen(
        r#""app_name""#,
        &format!(r#""args": {numbers}, "app_name""#),
        1,
    );
    let last = last.replacen(
        r#""user_id""#,
        &format!(r#""tool_config": {numbers}, "user_id""#),
        1,
    );
    let topic = base().invoke("resize_image").unwrap();
    let message = RawMessage {
        topic: &topic,
        payload: last.as_bytes(),
        properties: &usual(),
    };
    let Ok(WorkerRequest::Invoke(invoke)) = read(&base(), message, usize::MAX) else {
        panic!("{last}")
    };
    assert_eq!(invoke.tool_config.text(), numbers);
}

#[test]
fn what_python_writes_for_no_number_and_half_a_character_is_taken() {
    let text = example()
        .to_string()
        .replacen("320", r#"[NaN, -Infinity, "\ud800"]"#, 1);
    let topic = base().invoke("resize_image").unwrap();
    let message = RawMessage {
        topic: &topic,
        payload: text.as_bytes(),
        properties: &usual(),
    };
    let Ok(WorkerRequest::Invoke(invoke)) = read(&base(), message, usize::MAX) else {
        panic!("{text}")
    };
    assert_eq!(
        read_object(&invoke.args)["width"],
        json!([null, null, "\u{fffd}"])
    );
}

#[test]
fn numbers_that_no_word_holds_reach_the_tool_and_are_named_elsewhere() {
    let huge = "8".repeat(400);
    let args = format!(r#"{{"n":{huge},"x":1e400}}"#);
    assert!(
        serde_json::from_str::<Value>(&args).is_err(),
        "the control: as values they cannot be read"
    );
    let text = with("/params/args", Some(json!("ARGS")))
        .to_string()
        .replacen("\"ARGS\"", &args, 1);
    let said = sent(TOPIC, text.as_bytes(), &usual());
    let Ok(WorkerRequest::Invoke(invoke)) = said else {
        panic!("{said:?}")
    };
    assert_eq!(invoke.args.text(), args);
    let text = with("/params/timeout_seconds", Some(json!("TIME"))).to_string();
    let text = text.replacen("\"TIME\"", "1e400", 1);
    match sent(TOPIC, text.as_bytes(), &usual()) {
        Err(RequestError::Refused(refused)) => {
            let said = refused.refusal.message;
            assert!(
                said.starts_with("`params.timeout_seconds` cannot be read: number out of range"),
                "{said}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_weighs_what_it_takes_and_not_what_it_has() {
    let nested = format!("[{}[]]", "[],".repeat(9_999));
    let text = with("/params/args", Some(json!({"a": 0}))).to_string();
    let heavy = text.replacen("{\"a\":0}", &format!("{{\"a\":{nested}}}"), 1);
    let (light, heavy) = (weight(text.as_bytes()), weight(heavy.as_bytes()));
    assert!(light < 16 << 10, "{light}");
    assert!(
        heavy > 10_000 * 2 * 32,
        "lists and values of {nested:.9}…: {heavy}"
    );
    // A text takes its bytes.
    let long = text.replacen(
        "{\"a\":0}",
        &format!("{{\"a\":\"{}\"}}", "[".repeat(100_000)),
        1,
    );
    assert!(weight(long.as_bytes()) < light + 100_010);
}

#[test]
fn a_reference_without_version_is_to_the_latest() {
    for file in [
        json!({"filename": "a"}),
        json!({"filename": "a", "version": null}),
    ] {
        let invoke = invoked(
            &with("/params/artifact_references", Some(json!({"a": file}))),
            &usual(),
        )
        .unwrap();
        assert_eq!(
            invoke.references["a"],
            ArtifactReference {
                filename: "a".to_owned(),
                version: None
            }
        );
    }
}

#[test]
fn status_goes_to_the_first_topic_that_is_one() {
    let other = "myorg/dev/a2a/v1/sam_remote_tool/status/PhotoAgent/other";
    let status = |pairs: &[(&str, &str)]| {
        let mut all = properties(pairs);
        all.insert("replyTo".to_owned(), REPLY.to_owned());
        invoked(&example(), &all).unwrap().reply.status_to.unwrap()
    };
    assert_eq!(
        status(&[("statusTo", other), ("a2aStatusTopic", STATUS)]),
        other
    );
    assert_eq!(status(&[("a2aStatusTopic", other)]), other);
    assert_eq!(status(&[]), STATUS);
    let theirs = "myorg/dev/a2a/v1/sam_remote_tool/status/OtherAgent/5f0c";
    assert_eq!(
        status(&[("statusTo", theirs)]),
        STATUS,
        "another agent hears nothing of this"
    );
    assert_eq!(
        status(&[("statusTo", theirs), ("a2aStatusTopic", other)]),
        other
    );
    assert_eq!(status(&[("statusTo", "")]), STATUS);
    for foreign in [
        "elsewhere",
        REPLY,
        "myorg/dev/a2a/v1/agent/status/x/y",
        "other/a2a/v1/sam_remote_tool/status/a/b",
    ] {
        assert_eq!(status(&[("statusTo", foreign)]), STATUS);
        assert_eq!(
            status(&[("statusTo", foreign), ("a2aStatusTopic", other)]),
            other
        );
    }
}

#[test]
fn a_namespace_that_looks_like_an_answer_is_left_alone() {
    let base = TopicBase::new("x/response/y", "").unwrap();
    let reply = "x/response/y/a2a/v1/sam_remote_tool/response/A/1";
    let payload = example().to_string();
    let properties = properties(&[("replyTo", reply)]);
    let topic = "x/response/y/a2a/v1/sam_remote_tool/invoke/t";
    let message = RawMessage {
        topic,
        payload: payload.as_bytes(),
        properties: &properties,
    };
    match read(&base, message, LARGEST).unwrap() {
        WorkerRequest::Invoke(invoke) => assert_eq!(
            invoke.reply.status_to.as_deref(),
            Some("x/response/y/a2a/v1/sam_remote_tool/status/A/1")
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_properties_the_answer_goes_where_the_agent_waits() {
    let reply = invoked(&example(), &Properties::new()).unwrap().reply;
    assert_eq!(
        (&*reply.to, reply.status_to.as_deref()),
        (REPLY, Some(STATUS))
    );
    let reply = invoked(&example(), &properties(&[("clientId", "Other")]))
        .unwrap()
        .reply;
    assert_eq!(
        reply.to,
        "myorg/dev/a2a/v1/sam_remote_tool/response/Other/5f0c"
    );
    // A name that is none is passed over.
    let reply = invoked(&example(), &properties(&[("clientId", "a/b")]))
        .unwrap()
        .reply;
    assert_eq!(reply.to, REPLY);
}

#[test]
fn nobody_is_made_to_speak_elsewhere() {
    for elsewhere in [
        "myorg/dev/a2a/v1/agent/request/Boss",
        "myorg/dev/a2a/v1/sam_remote_tool/invoke/rm",
        "myorg/dev/a2a/v1/sam_remote_tool/status/A/1",
        "myorg/dev/a2a/v1/sam_remote_tool/response/A",
        "myorg/dev/a2a/v1/sam_remote_tool/response/A/>",
        "myorg/dev/a2a/v1/sam_remote_tool/response/+/1",
        "myorg/dev/a2a/v1/sam_remote_tool/response/A/1\n",
        "other/a2a/v1/sam_remote_tool/response/A/1",
        "$SYS/broker",
        "#",
        &format!("{REPLY}{}", "x".repeat(250)),
    ] {
        match invoked(&example(), &properties(&[("replyTo", elsewhere)])) {
            Err(RequestError::Refused(refused)) => {
                assert_eq!((&*refused.id, &*refused.reply.to), ("5f0c", REPLY));
                assert!(refused.refusal.message.contains("replyTo"), "{elsewhere}");
            }
            other => panic!("{other:?}"),
        }
    }
    let nobody = with("/params/app_name", Some(json!("a/b")));
    let foreign = invoked(&nobody, &properties(&[("replyTo", "elsewhere")]));
    assert!(
        matches!(foreign, Err(RequestError::Unanswerable(_))),
        "{foreign:?}"
    );
    let silent = invoked(&nobody, &Properties::new());
    assert!(
        matches!(silent, Err(RequestError::Unanswerable(_))),
        "{silent:?}"
    );
}

#[test]
fn what_is_no_json_is_refused_where_somebody_listens() {
    for payload in [
        &b"{"[..],
        b"",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"{\"id\":\"\\ud80\"}",
        b"{\"id\":NaN}",
    ] {
        match sent(TOPIC, payload, &usual()) {
            Err(RequestError::Refused(refused)) => {
                assert_eq!((&*refused.id, &*refused.reply.to), ("5f0c", REPLY));
                assert_eq!(refused.refusal.code, MeshErrorCode::InvalidRequest);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            sent(TOPIC, payload, &Properties::new()),
            Err(RequestError::Unanswerable(_))
        ));
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let (payload, properties) = (example().to_string(), usual());
    let message = RawMessage {
        topic: TOPIC,
        payload: payload.as_bytes(),
        properties: &properties,
    };
    assert!(read(&base(), message, payload.len()).is_ok());
    assert!(matches!(
        read(&base(), message, payload.len() - 1),
        Err(RequestError::Refused(_))
    ));
}

#[test]
fn moments_are_texts_or_numbers_and_traces_come_back() {
    let reply = |name: &str, value: &str| {
        let mut all = usual();
        all.insert(name.to_owned(), value.to_owned());
        invoked(&example(), &all).unwrap().reply
    };
    for (text, wanted) in [
        ("1763170145210", Some(1_763_170_145_210)),
        ("1763170145210.0", Some(1_763_170_145_210)),
        ("1.76317014521e12", Some(1_763_170_145_210)),
        ("", None),
        ("-1", None),
        ("inf", None),
        ("nan", None),
        ("1e300", None),
        ("yesterday", None),
    ] {
        assert_eq!(reply("timestamp", text).sent_ms, wanted, "{text}");
    }
    let trace = "0198c5d2-7a3b-7c4d-8e5f-001122334455";
    assert_eq!(
        reply("traceId", trace).echoed,
        properties(&[("traceId", trace)])
    );
    for bad in ["", "a\nb", "é", &"x".repeat(129)] {
        assert_eq!(reply("traceId", bad).echoed, Properties::new());
    }
    assert_eq!(reply("callDepth", "3").echoed, Properties::new());
}

#[test]
fn what_is_told_of_a_user_is_passed_on() {
    let said = |text: &str| {
        let mut all = usual();
        all.insert("a2aUserConfig".to_owned(), text.to_owned());
        invoked(&example(), &all).unwrap().user_config
    };
    assert_eq!(
        said("{\"name\":\"Ana\"}").as_deref(),
        Some("{\"name\":\"Ana\"}")
    );
    assert_eq!(said(&"x".repeat(65_537)), None);
}

#[test]
fn it_is_asked_what_a_tool_is_in_two_ways() {
    let today = r#"{"jsonrpc":"2.0","id":"1","method":"sam_remote_tool/init_request",
        "params":{"tool_name":"db_query","tool_config":{"dsn":"x"}}}"#;
    let topic = "myorg/dev/a2a/v1/sam_remote_tool/init_request/db_query";
    let old_topic = "myorg/dev/a2a/v1/sam_remote_tool/init/db_query";
    let old = today.replace("init_request", "init");
    for (topic, payload, format) in [
        (topic, today, CardFormat::Current),
        (old_topic, &*old, CardFormat::Legacy),
    ] {
        match sent(topic, payload.as_bytes(), &usual()).unwrap() {
            WorkerRequest::Init(init) => {
                assert_eq!(
                    (&*init.id, &*init.tool, init.format),
                    ("1", "db_query", format)
                );
                assert_eq!(Value::Object(init.tool_config), json!({"dsn": "x"}));
                assert_eq!(init.reply.to, REPLY);
            }
            other => panic!("{other:?}"),
        }
    }
    let named = properties(&[("clientId", "PhotoAgent")]);
    match sent(topic, today.as_bytes(), &named).unwrap() {
        WorkerRequest::Init(init) => {
            assert_eq!(
                init.reply.to,
                "myorg/dev/a2a/v1/sam_remote_tool/response/PhotoAgent/1"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        sent(topic, today.as_bytes(), &Properties::new()),
        Err(RequestError::Unanswerable(_))
    ));
    let other = today.replace("init_request", "invoke");
    assert!(matches!(
        sent(topic, other.as_bytes(), &usual()),
        Err(RequestError::Refused(_))
    ));
}

#[test]
fn broadcasts_are_no_requests() {
    let topic = "myorg/dev/a2a/v1/sam_remote_tool/init/db_query";
    let broadcast =
        r#"{"jsonrpc":"2.0","method":"sam_remote_tool/init","params":{"tool_name":"db_query"}}"#;
    let question = r#"{"jsonrpc":"2.0","id":"1","method":"sam_remote_tool/init","params":{}}"#;
    for (payload, properties) in [
        (broadcast, Properties::new()),
        (broadcast, usual()),
        (question, Properties::new()),
        (question, properties(&[("clientId", "PhotoAgent")])),
        ("{", usual()),
    ] {
        assert_eq!(
            sent(topic, payload.as_bytes(), &properties).err(),
            Some(RequestError::NotARequest)
        );
    }
    assert!(matches!(
        sent(topic, question.as_bytes(), &usual()),
        Ok(WorkerRequest::Init(_))
    ));
    for topic in [
        REPLY,
        STATUS,
        "myorg/dev/a2a/v1/discovery/agentcards",
        "else/where",
        "",
    ] {
        assert_eq!(
            sent(topic, example().to_string().as_bytes(), &usual()).err(),
            Some(RequestError::NotARequest)
        );
    }
}

#[test]
fn a_cancellation_is_in_its_topic() {
    for payload in [&b""[..], b"{}", b"\xff"] {
        match sent(
            "myorg/dev/a2a/v1/sam_remote_tool/cancel/5f0c",
            payload,
            &Properties::new(),
        ) {
            Ok(WorkerRequest::Cancel(correlation)) => assert_eq!(correlation, "5f0c"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn secrets_are_not_printed() {
    let message = with("/params/tool_config", Some(json!({"dsn": "hunter2"})));
    let printed = format!("{:?}", invoked(&message, &usual()).unwrap());
    assert!(
        printed.contains("resize_image") && !printed.contains("hunter2"),
        "{printed}"
    );
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!("2.0")),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let name = prop_oneof![
            Just("filename"),
            Just("content"),
            Just("version"),
            Just("a")
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(name.prop_map(str::to_owned), inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_changed_is_read_or_answered(
        path in prop::sample::select(vec![
            "/id", "/jsonrpc", "/method", "/params", "/params/args", "/params/task_id", "/params/app_name",
            "/params/preloaded_artifacts", "/params/artifact_references", "/params/timeout_seconds",
        ]),
        value in anything(),
    ) {
        match invoked(&with(path, Some(value)), &usual()) {
            Ok(invoke) => {
                prop_assert!(invoke.timeout.is_none_or(|time| (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&time)));
                prop_assert_eq!(invoke.reply.to, REPLY);
            }
            Err(RequestError::Refused(refused)) => {
                prop_assert_eq!(&refused.reply.to, REPLY);
                prop_assert!(refused.refusal.message.len() < 300 && !refused.refusal.message.contains('\n'));
            }
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn answers_go_to_agents_of_the_mesh_only(
        reply in "(myorg/dev/a2a/v1/sam_remote_tool/)?(response|status|invoke)?(/|A|\\+|x){0,5}|\\PC{0,30}",
        agent in "\\PC{0,30}", id in "\\PC{0,40}", client in "\\PC{0,30}",
    ) {
        let mut message = with("/id", Some(json!(id)));
        message["params"]["app_name"] = json!(agent);
        let all = properties(&[("replyTo", &reply), ("statusTo", &reply), ("clientId", &client)]);
        let to = match invoked(&message, &all) {
            Ok(invoke) => invoke.reply,
            Err(RequestError::Refused(refused)) => refused.reply,
            Err(_) => return Ok(()),
        };
        let is_response = matches!(base().read(&to.to), Some(Topic::Response { .. }));
        let is_status = matches!(base().read(&to.status_to.unwrap()), Some(Topic::Status { .. }));
        prop_assert!(is_response && is_status);
    }

    #[test]
    fn no_bytes_make_it_panic(topic in "invoke|init|init_request|cancel", payload in any::<Vec<u8>>(), text in "[\\PC\"{}:,]*") {
        let topic = format!("myorg/dev/a2a/v1/sam_remote_tool/{topic}/x");
        _ = sent(&topic, &payload, &usual());
        _ = sent(&topic, text.as_bytes(), &Properties::new());
    }
}
