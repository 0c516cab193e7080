use super::*;
use proptest::prelude::*;
use serde_json::json;

#[test]
fn what_the_specification_shows_is_read() {
    let printed = json!({"tools": {"get_forecast": {"description": "Forecast for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "artifact_params": {"map": {"is_list": false, "is_optional": true}},
        "instructions": "Use for weather only.",
        "auth": {"type": "oauth2", "scheme": {"scopes": ["read"]}},
        "config_schema": [{"key": "api_key", "type": "string", "required": true, "secret": true}],
        "timeout_seconds": 60}}});
    let tools = read(printed.to_string().as_bytes()).unwrap();
    let said = tools["get_forecast"].clone().unwrap();
    assert!(said.wants_credentials && !said.is_unknown());
    assert_eq!(said.timeout, Some(Duration::from_secs(60)));
    let card = said.card("weather");
    assert_eq!(
        (&*card.tool_name, card.description.as_deref()),
        ("weather", Some("Forecast for a city."))
    );
    assert_eq!(card.parameters.unwrap()["required"], json!(["city"]));
    assert!(card.artifact_params["map"].is_optional && card.config_schema.unwrap().len() == 1);
}

#[test]
fn one_tool_that_is_not_right_is_alone_in_that() {
    let printed = json!({"tools": {
        "good": {"description": "", "parameters": {}, "newer": 1},
        "array": {"parameters": {"type": "array"}},
        "volume": {"volume_params": [{"name": "cache", "mount_path": "/cache", "mode": "readwrite"}]},
        "text": "x",
        "files": {"artifact_params": {"a": {"is_list": "yes"}}},
        "config": {"config_schema": [{"key": "auth", "type": "string"}]},
        "time": {"timeout_seconds": -1},
        "long": {"instructions": "x".repeat(MAX_TEXT_BYTES + 1)},
        "large": {"parameters": {"x": "y".repeat(MAX_PART_BYTES)}},
    }});
    let tools = read(printed.to_string().as_bytes()).unwrap();
    let good: Vec<_> = tools
        .iter()
        .filter(|(_, said)| said.is_ok())
        .map(|(name, _)| &**name)
        .collect();
    assert_eq!(good, ["good"]);
    assert_eq!(
        tools["good"].clone().unwrap().description,
        None,
        "an empty one is none"
    );
    assert!(
        tools["volume"]
            .clone()
            .unwrap_err()
            .message
            .contains("volumes")
    );
}

#[test]
fn an_operator_may_set_every_type_that_the_kits_know_and_no_other() {
    let of = |kind: &str| config_schema(&json!([{"key": "a", "type": kind}]));
    for kind in ["string", "integer", "number", "boolean"] {
        assert!(of(kind).is_ok(), "{kind}");
    }
    assert!(of("object").is_err() && config_schema(&json!([{"key": "a", "type": 1}])).is_err());
}

#[test]
fn what_says_nothing_is_refused() {
    let many: Map<String, Value> = (0..=MAX_TOOLS)
        .map(|at| (at.to_string(), json!({})))
        .collect();
    let long = json!({"tools": {"x".repeat(MAX_NAME_BYTES + 1): {}}});
    for printed in [
        json!([]),
        json!({}),
        json!({"tools": []}),
        json!({"tools": {}}),
        json!({"tools": many}),
        long,
    ] {
        assert!(read(printed.to_string().as_bytes()).is_err());
    }
    for printed in [
        &b""[..],
        b"warning\n{}",
        &vec![b' '; MAX_OUTPUT_BYTES + 1],
        "[".repeat(100_000).as_bytes(),
    ] {
        assert!(read(printed).is_err());
    }
    assert!(read_one(b"{\"description\": \"d\"}").is_ok() && read_one(b"[]").is_err());
}

proptest! {
    #[test]
    fn no_value_makes_reading_panic(key in prop::sample::select(vec![
        "description", "parameters", "artifact_params", "instructions", "config_schema", "timeout_seconds", "auth",
        "volume_params", "ctx_facade_param_name",
    ]), value in prop_oneof![
        Just(json!(null)), Just(json!(true)), any::<f64>().prop_map(|number| json!(number)), ".{0,9}".prop_map(|text| json!(text)),
        Just(json!([{}])), Just(json!([[1]])), Just(json!({"a": {"b": 1}})), Just(json!({"type": 5})), Just(json!([{"key": 1}])),
    ]) {
        if let Ok(said) = read_one(json!({key: value}).to_string().as_bytes()) {
            prop_assert!(said.timeout.is_none_or(|time| (1..=MAX_SECONDS).contains(&time.as_secs())));
            prop_assert!(said.parameters.is_none_or(|schema| schema.is_object()));
        }
    }
}
