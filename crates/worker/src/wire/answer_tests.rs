//! Expectations are from the protocol's description, not from what the code says.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn read(message: &[u8]) -> Value {
    serde_json::from_slice(message).unwrap()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn picture() -> CreatedArtifact {
    CreatedArtifact {
        filename: "cat_320.png".to_owned(),
        version: 0,
        mime_type: "image/png".to_owned(),
        size_bytes: 40213,
        description: None,
    }
}

#[test]
fn a_success_is_as_shown() {
    let result = object(json!({"width":320}));
    let message = success(
        "5f0c",
        &result,
        Duration::from_micros(812_900),
        &[picture()],
        MAX_MESSAGE_BYTES,
    )
    .unwrap();
    assert_eq!(
        read(&message),
        json!({"jsonrpc":"2.0","id":"5f0c","result":{"tool_result":{"width":320},
         "execution_time_ms":812,"timed_out":false,
         "created_artifacts":[{"filename":"cat_320.png","version":0,"mime_type":"image/png","size_bytes":40213}]}})
    );
}

#[test]
fn time_that_is_up_is_a_result() {
    assert_eq!(
        read(&timed_out("5f0c", Duration::from_millis(7048))),
        json!({"jsonrpc":"2.0","id":"5f0c","result":
            {"tool_result":{},"execution_time_ms":7048,"timed_out":true,"created_artifacts":[]}})
    );
}

#[test]
fn an_error_has_a_code_in_letters() {
    let declared = [
        (MeshErrorCode::SandboxTimeout, "SANDBOX_TIMEOUT"),
        (MeshErrorCode::SandboxFailed, "SANDBOX_FAILED"),
        (MeshErrorCode::ToolNotFound, "TOOL_NOT_FOUND"),
        (MeshErrorCode::ToolNotAvailable, "TOOL_NOT_AVAILABLE"),
        (MeshErrorCode::ImportError, "IMPORT_ERROR"),
        (MeshErrorCode::ExecutionError, "EXECUTION_ERROR"),
        (MeshErrorCode::ToolError, "TOOL_ERROR"),
        (MeshErrorCode::ArtifactError, "ARTIFACT_ERROR"),
        (MeshErrorCode::InvalidRequest, "INVALID_REQUEST"),
        (MeshErrorCode::InternalError, "INTERNAL_ERROR"),
        (MeshErrorCode::InitError, "INIT_ERROR"),
        (MeshErrorCode::AuthenticationFailed, "AUTHENTICATION_FAILED"),
        (MeshErrorCode::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    ];
    for (code, name) in declared {
        assert_eq!(
            read(&error("x", &CallRefusal::new(code, "why"))),
            json!({"jsonrpc":"2.0","id":"x","error":{"code":name,"message":"why"}})
        );
    }
}

#[test]
fn a_status_has_no_id_and_microseconds() {
    // 2026-11-15T01:29:05.210476 in UTC.
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_794_706_145_210_476);
    assert_eq!(
        read(&status("5f0c", "halfway", at)),
        json!({"jsonrpc":"2.0","method":"sam_remote_tool/status","params":{"task_id":"5f0c","status_text":"halfway",
            "timestamp":"2026-11-15T01:29:05.210476+00:00"}})
    );
    assert_eq!(
        iso_8601(SystemTime::UNIX_EPOCH),
        "1970-01-01T00:00:00.000000+00:00"
    );
    // A clock before its time is no reason to fail.
    assert_eq!(
        iso_8601(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
        "1970-01-01T00:00:00.000000+00:00"
    );
}

fn card() -> ToolCard {
    ToolCard {
        tool_name: "get_forecast".to_owned(),
        description: Some("Forecast for a city.".to_owned()),
        parameters: Some(
            json!({"$schema":"x","type":"object","properties":{"city":{"type":"string"}},"required":["city"]}),
        ),
        artifact_params: BTreeMap::from([(
            "map".to_owned(),
            ArtifactParam {
                is_list: false,
                is_optional: true,
                filename_key: None,
            },
        )]),
        instructions: Some("Use for weather only.".to_owned()),
        config_schema: Some(vec![
            json!({"key":"api_key","type":"string","required":true,"secret":true}),
        ]),
        ctx_facade_param_name: None,
    }
}

#[test]
fn what_a_tool_is_is_told_to_all_and_to_who_asked() {
    let told = json!({"tool_name":"get_forecast","description":"Forecast for a city.",
        "parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]},
        "artifact_params":{"map":{"is_list":false,"is_optional":true}},
        "instructions":"Use for weather only.",
        "config_schema":[{"key":"api_key","type":"string","required":true,"secret":true}]});
    assert_eq!(
        read(&init_broadcast(&card(), MAX_MESSAGE_BYTES).unwrap()),
        json!({"jsonrpc":"2.0","method":"sam_remote_tool/init","params":told})
    );
    assert_eq!(
        read(&init_answer(
            "1",
            &card(),
            CardFormat::Current,
            MAX_MESSAGE_BYTES
        )),
        json!({"jsonrpc":"2.0","id":"1","result":told})
    );
}

#[test]
fn older_askers_are_told_in_their_words() {
    let result = &read(&init_answer(
        "1",
        &card(),
        CardFormat::Legacy,
        MAX_MESSAGE_BYTES,
    ))["result"];
    assert_eq!(result["tool_description"], "Forecast for a city.");
    assert_eq!(result["parameters_schema"]["required"], json!(["city"]));
    assert_eq!(
        (result.get("description"), result.get("parameters")),
        (None, None)
    );
}

#[test]
fn what_is_not_known_is_not_said() {
    let card = ToolCard {
        tool_name: "x".to_owned(),
        description: Some(String::new()),
        ..ToolCard::default()
    };
    assert_eq!(
        read(&init_answer(
            "1",
            &card,
            CardFormat::Current,
            MAX_MESSAGE_BYTES
        ))["result"],
        json!({"tool_name":"x"})
    );
}

#[test]
fn a_tool_that_is_gone_or_silent_is_named() {
    assert_eq!(
        read(&removed("db_query")),
        json!({"jsonrpc":"2.0","method":"sam_remote_tool/removed","params":{"tool_name":"db_query"}})
    );
    assert_eq!(
        read(&failed_discovery("db_query", "it hangs")),
        json!({"jsonrpc":"2.0","method":"sam_remote_tool/failed_discovery",
            "params":{"tool_name":"db_query","error":"it hangs"}})
    );
}

#[test]
fn what_does_not_fit_is_an_error_that_names_the_sizes() {
    let result = object(json!({"text": "x".repeat(2000)}));
    let whole = success("5f0c", &result, Duration::ZERO, &[], MAX_MESSAGE_BYTES).unwrap();
    assert_eq!(
        success("5f0c", &result, Duration::ZERO, &[], whole.len()),
        Ok(whole.clone())
    );
    let CallRefusal { code, message } =
        success("5f0c", &result, Duration::ZERO, &[], 1000).unwrap_err();
    assert_eq!(code, MeshErrorCode::ExecutionError);
    assert!(
        message.contains(&whole.len().to_string()) && message.contains("1000"),
        "{message}"
    );
    let large = ToolCard {
        instructions: Some("x".repeat(2000)),
        ..card()
    };
    assert_eq!(
        read(&init_answer("1", &large, CardFormat::Current, 1000))["error"]["code"],
        "INIT_ERROR"
    );
    assert_eq!(init_broadcast(&large, 1000).unwrap_err().largest, 1000);
}

#[test]
fn long_texts_are_cut_between_characters() {
    let long = "é".repeat(MAX_TEXT_BYTES);
    let message = read(&error(
        "x",
        &CallRefusal::new(MeshErrorCode::ToolError, &*long),
    ));
    let text = message["error"]["message"].as_str().unwrap();
    assert!(text.len() <= MAX_TEXT_BYTES && text.ends_with("é…"));
    let exact = "x".repeat(MAX_TEXT_BYTES);
    assert_eq!(cut(&exact), exact);
}

#[test]
fn a_result_is_always_an_object() {
    for (returned, wanted) in [
        (json!({"a": 1}), json!({"a": 1})),
        (json!("text"), json!({"text": "text", "data_objects": []})),
        (json!(null), json!({"text": null, "data_objects": []})),
        (json!(7), json!({"text": "7", "data_objects": []})),
        (json!(true), json!({"text": "true", "data_objects": []})),
        (json!([1, 2]), json!({"text": "[1,2]", "data_objects": []})),
    ] {
        assert_eq!(Value::Object(tool_result(returned)), wanted);
    }
}

#[test]
fn a_message_says_when_it_was_sent_and_what_was_wanted_back() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_794_706_145_210);
    let echoed = Properties::from([("traceId".to_owned(), "t".to_owned())]);
    let mut wanted = echoed.clone();
    wanted.insert("timestamp".to_owned(), "1794706145210".to_owned());
    assert_eq!(properties(&echoed, at), wanted);
}

proptest! {
    /// What the asker's models demand of an answer.
    #[test]
    fn every_answer_is_one_that_is_taken(
        id in "\\PC*", text in ".*", took in any::<u64>(), largest in 0_usize..4000, size in any::<u64>(),
    ) {
        let result = object(json!({ "text": text }));
        let created = [CreatedArtifact { filename: text.clone(), size_bytes: size, ..picture() }];
        for message in [
            success(&id, &result, Duration::from_millis(took), &created, largest)
                .unwrap_or_else(|refusal| error(&id, &refusal)),
            timed_out(&id, Duration::from_secs(took)),
            error(&id, &CallRefusal::new(MeshErrorCode::ToolError, text.clone())),
        ] {
            let message = read(&message);
            prop_assert_eq!(&message["jsonrpc"], "2.0");
            prop_assert_eq!(message["id"].as_str(), Some(&*id));
            let (result, error) = (&message["result"], &message["error"]);
            prop_assert!(result.is_null() != error.is_null());
            if error.is_null() {
                prop_assert!(result["tool_result"].is_object() && result["execution_time_ms"].is_u64());
            } else {
                prop_assert!(error["code"].is_string() && error["message"].is_string());
            }
        }
    }
}
