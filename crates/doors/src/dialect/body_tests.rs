//! The parser and the forwarded body agree.

use super::*;
use crate::dialect::{BodyEdits, rewrite};
use bytes::Bytes;

fn chat(body: &str) -> Result<ParsedBody, BodyError> {
    parse_body(ModelOperation::Chat, body.as_bytes())
}

fn good(operation: ModelOperation, body: &str) -> ParsedBody {
    parse_body(operation, body.as_bytes()).unwrap_or_else(|bad| panic!("{body}: {bad}"))
}

fn why(operation: ModelOperation, body: &str) -> String {
    parse_body(operation, body.as_bytes()).expect_err(body).0
}

fn model(body: &str) -> Option<String> {
    good(ModelOperation::Chat, body).model.map(|(name, _)| name)
}

#[test]
fn what_matters_is_found_with_its_place() {
    let body = r#"{"model":"gpt-5","messages":[{"role":"user","content":"hi"}],"stream":true,"n":2,"max_tokens":100,
        "max_completion_tokens":50,"stream_options":{"include_usage":true},"user":"me","safety_identifier":"x"}"#;
    let parsed = good(ModelOperation::Chat, body);
    let (name, at) = parsed.model.expect("a model is named");
    assert_eq!((name.as_str(), &body[at]), ("gpt-5", "\"gpt-5\""));
    let cap = parsed.cap.expect("a cap is given");
    assert_eq!((cap.tokens, &body[cap.at]), (100, "100"));
    assert_eq!(
        (parsed.stream, parsed.choices, parsed.wants_usage),
        (true, 2, true)
    );
    let identities: Vec<&str> = parsed
        .identities
        .iter()
        .map(|at| &body[at.clone()])
        .collect();
    assert_eq!(identities, ["\"me\"", "\"x\""]);
    assert_eq!(
        (
            parsed.refers_beyond,
            parsed.server_tools,
            parsed.priced_otherwise,
            parsed.pictures
        ),
        (false, false, false, 0)
    );
}

#[test]
fn what_is_not_said_has_its_default() {
    let parsed = good(ModelOperation::Chat, "{}");
    assert_eq!(
        (
            parsed.model,
            parsed.stream,
            parsed.cap,
            parsed.choices,
            parsed.wants_usage
        ),
        (None, false, None, 1, false)
    );
    assert!(
        good(ModelOperation::OllamaChat, "{}").stream
            && good(ModelOperation::OllamaGenerate, "{}").stream
    );
    assert!(!good(ModelOperation::OllamaChat, r#"{"stream":false}"#).stream);
    let nulls = r#"{"stream":null,"max_tokens":null,"n":null,"user":null,"stream_options":null,"service_tier":null,"metadata":null}"#;
    let parsed = good(ModelOperation::Chat, nulls);
    assert_eq!(
        (
            parsed.stream,
            parsed.cap,
            parsed.choices,
            parsed.identities.len()
        ),
        (false, None, 1, 0)
    );
}

#[test]
fn a_key_that_matters_is_there_once_in_any_spelling() {
    for body in [
        r#"{"model":"a","model":"b"}"#,
        r#"{"model":"a","model":"a"}"#,
        r#"{"model":"a","mod\u0065l":"b"}"#,
        r#"{"stream":true,"stream":false}"#,
        r#"{"max_tokens":1,"max_tokens":2}"#,
        r#"{"stream_options":{},"stream_options":{}}"#,
        r#"{"stream_options":{"include_usage":true,"include_usage":false}}"#,
        r#"{"user":"a","user":"b"}"#,
    ] {
        assert!(why(ModelOperation::Chat, body).contains("twice"), "{body}");
    }
    assert!(
        why(
            ModelOperation::Generate,
            r#"{"generationConfig":{},"generation_config":{}}"#
        )
        .contains("twice")
    );
    let both = r#"{"generationConfig":{"maxOutputTokens":1,"max_output_tokens":2}}"#;
    assert!(why(ModelOperation::Generate, both).contains("twice"));
    assert!(why(ModelOperation::OllamaShow, r#"{"model":"a","name":"b"}"#).contains("twice"));
    assert_eq!(
        model(r#"{"mod\u0065l":"a","x":1,"x":2}"#).as_deref(),
        Some("a")
    );
}

#[test]
fn a_key_that_go_would_take_for_one_that_matters_is_refused() {
    for body in [
        r#"{"model":"a","Model":"b"}"#,
        r#"{"MODEL":"b"}"#,
        r#"{"ſtream":true}"#,
        r#"{"max_toKens":5}"#,
        r#"{"stream_options":{"Include_Usage":false}}"#,
        r#"{"API_BASE":"x"}"#,
    ] {
        assert!(why(ModelOperation::Chat, body).contains("nearly"), "{body}");
    }
    assert!(why(ModelOperation::OllamaChat, r#"{"Options":{}}"#).contains("nearly"));
    assert!(chat(r#"{"Modell":"b","Temperature":1}"#).is_ok());
}

#[test]
fn only_json_of_one_reading_is_taken() {
    for body in [
        "",
        " ",
        "[]",
        "\"x\"",
        "null",
        "{",
        "{} {}",
        "{}x",
        "\u{feff}{}",
        r#"{"a":NaN}"#,
        r#"{"a":1,}"#,
        "{'a':1}",
        r#"{"model":"\ud800"}"#,
        r#"{"mod\ud800el":"a"}"#,
        r#"{"model\u0000":"a"}"#,
        "{\"a\":\"\u{1}\"}",
    ] {
        assert!(chat(body).is_err(), "{body}");
    }
    assert!(parse_body(ModelOperation::Chat, b"{\"a\":\"\xff\"}").is_err());
    let nested = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(
        chat(&nested(127)).is_ok() && chat(&nested(128)).is_err() && chat(&nested(10_000)).is_err()
    );
    assert!(
        chat(r#"{"a":"\ud800"}"#).is_ok(),
        "in a string that means nothing it is passed on as it is"
    );
}

#[test]
fn a_model_is_a_plain_name() {
    assert_eq!(
        model(r#"{"model":"meta/llama-3:8b@x"}"#).as_deref(),
        Some("meta/llama-3:8b@x")
    );
    assert_eq!(model(r#"{"messages":[{"model":"x"}]}"#), None);
    let long = format!(r#"{{"model":"{}"}}"#, "a".repeat(257));
    for body in [
        r#"{"model":["a"]}"#,
        r#"{"model":{"a":1}}"#,
        r#"{"model":1}"#,
        r#"{"model":null}"#,
        r#"{"model":"a "}"#,
        r#"{"model":"gрt"}"#,
        r#"{"model":"a\nb"}"#,
        r#"{"model":"a\u0000"}"#,
        &long,
    ] {
        assert!(
            why(ModelOperation::Chat, body).contains("`model`"),
            "{body}"
        );
    }
}

#[test]
fn gemini_names_one_model_however_often() {
    let body =
        r#"{"model":"models/e","requests":[{"model":"models/e","content":{}},{"model":"e"}]}"#;
    let parsed = good(ModelOperation::GeminiEmbed, body);
    assert_eq!(
        parsed.model.as_ref().map(|(name, _)| name.as_str()),
        Some("e")
    );
    let other = r#"{"requests":[{"model":"models/e"},{"model":"models/f"}]}"#;
    assert!(why(ModelOperation::GeminiEmbed, other).contains("two models"));
    let change = BodyEdits {
        model: Some("g"),
        ..BodyEdits::default()
    };
    let changed = rewrite(
        ModelOperation::GeminiEmbed,
        &Bytes::from(body),
        &parsed,
        &change,
    );
    assert_eq!(
        changed,
        r#"{"model":"models/g","requests":[{"model":"models/g","content":{}},{"model":"g"}]}"#
    );
}

#[test]
fn limits_are_whole_numbers() {
    let cap = |operation, body: &str| good(operation, body).cap.map(|cap| cap.tokens);
    assert_eq!(
        cap(
            ModelOperation::Chat,
            r#"{"max_tokens":5,"max_completion_tokens":9}"#
        ),
        Some(9)
    );
    assert_eq!(
        cap(
            ModelOperation::Chat,
            r#"{"max_tokens":99999999999999999999999}"#
        ),
        Some(u64::MAX)
    );
    assert_eq!(cap(ModelOperation::Chat, r#"{"max_tokens":-1}"#), None);
    assert_eq!(
        cap(
            ModelOperation::Responses,
            r#"{"max_output_tokens":7,"max_tokens":9}"#
        ),
        Some(7)
    );
    assert_eq!(
        cap(ModelOperation::Messages, r#"{"max_tokens":7}"#),
        Some(7)
    );
    assert_eq!(
        cap(
            ModelOperation::Generate,
            r#"{"generation_config":{"max_output_tokens":7}}"#
        ),
        Some(7)
    );
    assert_eq!(
        cap(
            ModelOperation::OllamaChat,
            r#"{"options":{"num_predict":7}}"#
        ),
        Some(7)
    );
    for unlimited in ["-1", "-2", "0", "null"] {
        assert_eq!(
            cap(
                ModelOperation::OllamaChat,
                &format!(r#"{{"options":{{"num_predict":{unlimited}}}}}"#)
            ),
            None
        );
    }
    for bad in ["0", "1.5", "1e3", "\"5\"", "true", "[5]", "{}"] {
        assert!(
            chat(&format!(r#"{{"max_tokens":{bad}}}"#)).is_err(),
            "{bad}"
        );
        assert!(chat(&format!(r#"{{"n":{bad}}}"#)).is_err(), "{bad}");
    }
    assert!(chat(r#"{"n":-1}"#).is_err());
    assert_eq!(
        good(
            ModelOperation::Generate,
            r#"{"generationConfig":{"candidateCount":3}}"#
        )
        .choices,
        3
    );
    assert_eq!(
        good(ModelOperation::Chat, r#"{"n":2,"best_of":5}"#).choices,
        5
    );
    for bad in [
        r#"{"stream":1}"#,
        r#"{"stream":"true"}"#,
        r#"{"stream_options":[]}"#,
        r#"{"metadata":"x"}"#,
    ] {
        assert!(chat(bad).is_err(), "{bad}");
    }
}

#[test]
fn tools_that_the_provider_runs_are_told_from_those_of_the_program() {
    use ModelOperation::{Chat, Generate, Messages, Responses};
    let theirs = [
        (
            Messages,
            r#"{"tools":[{"type":"web_search_20250305","name":"web_search"}]}"#,
        ),
        (
            Messages,
            r#"{"tools":[{"name":"f"},{"type":"code_execution_20250825","name":"c"}]}"#,
        ),
        (
            Messages,
            r#"{"tools":[{"type":"custom","type":"web_fetch_20250910"}]}"#,
        ),
        (Messages, r#"{"mcp_servers":[{"url":"x"}]}"#),
        (Messages, r#"{"container":"c"}"#),
        (
            Messages,
            r#"{"context_management":{"edits":[{"type":"compact_20260112"}]}}"#,
        ),
        (Responses, r#"{"tools":[{"type":"web_search"}]}"#),
        (Responses, r#"{"tools":[{"type":"mcp","server_url":"x"}]}"#),
        (Responses, r#"{"tools":[{"Type":"image_generation"}]}"#),
        (
            Responses,
            r#"{"input":[{"type":"tool_search_output","tools":[{"type":"file_search"}]}]}"#,
        ),
        (Responses, r#"{"prompt":{"id":"p"}}"#),
        (
            Responses,
            r#"{"tools":[{"type":"namespace","name":"n","tools":[{"type":"function"},{"type":"web_search"}]}]}"#,
        ),
        (
            Responses,
            r#"{"tools":[{"tools":[{"type":"namespace","tools":[{"type":"mcp"}]}],"type":"namespace"}]}"#,
        ),
        (Responses, r#"{"tools":[{"type":"namespace","name":"n"}]}"#),
        (
            Responses,
            r#"{"tools":[{"type":"namespace","tools":[],"type":"web_search"}]}"#,
        ),
        (
            Responses,
            r#"{"tools":[{"type":"web_search","type":"namespace","tools":[]}]}"#,
        ),
        (
            Responses,
            r#"{"tools":[{"type":"function","type":"namespace"}]}"#,
        ),
        (
            Responses,
            r#"{"tools":[{"type":"namespace","tools":{"type":"function"}}]}"#,
        ),
        (
            Responses,
            r#"{"input":[{"type":"additional_tools","role":"developer","tools":[{"type":"web_search"}]}]}"#,
        ),
        (
            Responses,
            r#"{"input":[{"type":"message","additional_tools":[{"type":"code_interpreter"}]}]}"#,
        ),
        (Responses, r#"{"tools":[{"type":"tool_search"}]}"#),
        (Chat, r#"{"tools":[{"type":"namespace","tools":[]}]}"#),
        (Chat, r#"{"web_search_options":{"a":1}}"#),
        (Chat, r#"{"plugins":[{"id":"web"}]}"#),
        (Generate, r#"{"tools":[{"googleSearch":{}}]}"#),
        (
            Generate,
            r#"{"tools":[{"functionDeclarations":[]},{"codeExecution":{}}]}"#,
        ),
        (
            Generate,
            r#"{"tools":[{"function_declarations":[],"url_context":{}}]}"#,
        ),
        (Generate, r#"{"tools":{"google_search_retrieval":{}}}"#),
    ];
    for (operation, body) in theirs {
        assert!(good(operation, body).server_tools, "{body}");
    }
    let ours = [
        (
            Messages,
            r#"{"tools":[{"name":"f","input_schema":{"type":"object"}},{"type":"custom"},{"type":"bash_20250124"}]}"#,
        ),
        (
            Messages,
            r#"{"tools":[{"type":"text_editor_20250728"},{"type":"computer_20250124"},{"type":"memory_20250818"}]}"#,
        ),
        (
            Messages,
            r#"{"mcp_servers":[],"container":null,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}}"#,
        ),
        (
            Responses,
            r#"{"tools":[{"type":"function","name":"f"},{"type":"custom"},{"type":"local_shell"}],"tool_choice":"auto"}"#,
        ),
        (
            Chat,
            r#"{"tools":[{"type":"function","function":{"parameters":{"type":"object"}}}],"web_search_options":null}"#,
        ),
        (
            Responses,
            r#"{"tools":[{"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"tools":{"type":"array"}}}},{"type":"custom","name":"c"}]},{"type":"function","name":"g"}]}"#,
        ),
        (
            Responses,
            r#"{"input":[{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"f"},{"type":"namespace","name":"n","tools":[{"type":"custom"}]}]}]}"#,
        ),
        (
            Generate,
            r#"{"tools":[{"functionDeclarations":[{"name":"f"}],"googleSearch":null}]}"#,
        ),
        (
            ModelOperation::OllamaChat,
            r#"{"tools":[{"type":"anything"}]}"#,
        ),
    ];
    for (operation, body) in ours {
        assert!(!good(operation, body).server_tools, "{body}");
    }
}

#[test]
fn the_first_tool_of_the_provider_is_named() {
    use ModelOperation::{Generate, Messages, Responses};
    for (operation, body, name) in [
        (
            Responses,
            r#"{"tools":[{"type":"function"},{"type":"namespace","tools":[{"type":"web_search"},{"type":"mcp"}]}]}"#,
            "web_search",
        ),
        (
            Responses,
            r#"{"tools":[{"name":"f"}]}"#,
            "a tool without a type",
        ),
        (Messages, r#"{"container":"c"}"#, "container"),
        (
            Generate,
            r#"{"tools":[{"googleSearch":{}}]}"#,
            "googleSearch",
        ),
    ] {
        assert_eq!(
            good(operation, body).server_tool.as_deref(),
            Some(name),
            "{body}"
        );
    }
    let long = format!(r#"{{"tools":[{{"type":"{}"}}]}}"#, "x".repeat(10_000));
    assert_eq!(
        good(Responses, &long).server_tool.map(|name| name.len()),
        Some(64)
    );
    assert_eq!(good(Responses, "{}").server_tool, None);
}

#[test]
fn what_is_elsewhere_is_seen() {
    use ModelOperation::{Chat, Generate, Messages, Responses};
    let beyond = [
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]}"#,
        ),
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"image_url","Image_URL":{"url":"https://x/y.png"}}]}]}"#,
        ),
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"image_url","image\u005furl":"http:\/\/x"}]}]}"#,
        ),
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"file","file":{"file_id":"f"}}]}]}"#,
        ),
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"file","file":{"file_data":"data:application/pdf;base64,"}}]}]}"#,
        ),
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"UklG"}}]}]}"#,
        ),
        (
            Chat,
            r#"{"messages":[{"role":"assistant","audio":{"id":"audio_1"}}]}"#,
        ),
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"image","image":"https://x"}]}]}"#,
        ),
        (Responses, r#"{"previous_response_id":"r"}"#),
        (Responses, r#"{"conversation":{"id":"c"}}"#),
        (Responses, r#"{"prompt":{"id":"p"}}"#),
        (
            Responses,
            r#"{"input":[{"type":"item_reference","id":"i"}]}"#,
        ),
        (Responses, r#"{"input":[{"id":"i"}]}"#),
        (Responses, r#"{"input":[{"id":"i","type":null}]}"#),
        (
            Responses,
            r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x"}]}]}"#,
        ),
        (
            Responses,
            r#"{"input":[{"role":"user","content":[{"type":"input_file","file_url":"https://x"}]}]}"#,
        ),
        (
            Messages,
            r#"{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]}"#,
        ),
        (
            Messages,
            r#"{"messages":[{"content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]}"#,
        ),
        (
            Messages,
            r#"{"messages":[{"content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":""}}]}]}"#,
        ),
        (
            Generate,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":"gs://x"}}]}]}"#,
        ),
        (
            Generate,
            r#"{"contents":[{"parts":[{"file_data":{"file_uri":"gs://x"}}]}]}"#,
        ),
        (Generate, r#"{"cachedContent":"cachedContents/x"}"#),
        (
            Generate,
            r#"{"contents":[{"parts":[{"inlineData":{"mimeType":"video/mp4","data":""}}]}]}"#,
        ),
    ];
    for (operation, body) in beyond {
        assert!(good(operation, body).refers_beyond, "{body}");
    }
    let here = [
        (
            Chat,
            1,
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}],"audio":{"voice":"v"}}"#,
        ),
        (
            Chat,
            0,
            r#"{"messages":[{"tool_calls":[{"id":"c","function":{"arguments":"{\"url\":\"https://x\"}"}}]}]}"#,
        ),
        (
            Responses,
            1,
            r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"DATA:image/png;base64,AA"}]},{"type":"reasoning","id":"r"}]}"#,
        ),
        (
            Responses,
            0,
            r#"{"input":"hello","previous_response_id":null,"background":false}"#,
        ),
        (
            Messages,
            1,
            r#"{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":""}}]}]}"#,
        ),
        (
            Messages,
            0,
            r#"{"messages":[{"content":[{"type":"tool_use","id":"t","input":{"url":"https://x","image":"debian:13"}}]}]}"#,
        ),
        (
            Generate,
            1,
            r#"{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":""}}]}]}"#,
        ),
        (
            ModelOperation::OllamaChat,
            2,
            r#"{"messages":[{"content":"x","images":["AA","BB"]}]}"#,
        ),
    ];
    for (operation, pictures, body) in here {
        let parsed = good(operation, body);
        assert_eq!(
            (parsed.refers_beyond, parsed.pictures),
            (false, pictures),
            "{body}"
        );
    }
}

#[test]
fn parameters_of_tools_are_no_tools_and_no_files() {
    let schema = r#"{"type":"object","properties":{"tools":{"type":"array"},"file_id":{"type":"string"},"url":{"type":"string"},"image_url":{"type":"string"}}}"#;
    let bodies = [
        (
            ModelOperation::Messages,
            format!(r#"{{"tools":[{{"name":"f","input_schema":{schema}}}]}}"#),
        ),
        (
            ModelOperation::Responses,
            format!(r#"{{"tools":[{{"type":"function","parameters":{schema}}}]}}"#),
        ),
        (
            ModelOperation::Chat,
            format!(r#"{{"tools":[{{"type":"function","function":{{"parameters":{schema}}}}}]}}"#),
        ),
        (
            ModelOperation::Generate,
            format!(r#"{{"tools":[{{"functionDeclarations":[{{"parameters":{schema}}}]}}]}}"#),
        ),
        (
            ModelOperation::Messages,
            r#"{"messages":[{"content":[{"type":"tool_use","input":{"tools":["a"]}}]}]}"#
                .to_owned(),
        ),
    ];
    for (operation, body) in bodies {
        let parsed = good(operation, &body);
        assert_eq!(
            (parsed.server_tools, parsed.refers_beyond),
            (false, false),
            "{body}"
        );
    }
}

#[test]
fn another_price_is_seen() {
    use ModelOperation::{Chat, Generate, Messages, Responses};
    let other = [
        (Chat, r#"{"service_tier":"priority"}"#),
        (Responses, r#"{"service_tier":"flex"}"#),
        (Chat, r#"{"provider":{"order":["x"]}}"#),
        (Chat, r#"{"modalities":["text","image"]}"#),
        (Messages, r#"{"speed":"fast"}"#),
        (Messages, r#"{"inference_geo":"us"}"#),
        (Messages, r#"{"service_tier":5}"#),
        (
            Generate,
            r#"{"generationConfig":{"responseModalities":["IMAGE"]}}"#,
        ),
        (Generate, r#"{"serviceTier":"priority"}"#),
    ];
    for (operation, body) in other {
        assert!(good(operation, body).priced_otherwise, "{body}");
    }
    let usual = [
        (
            Chat,
            r#"{"service_tier":"auto","modalities":["text","audio"]}"#,
        ),
        (Responses, r#"{"service_tier":"default"}"#),
        (
            Messages,
            r#"{"service_tier":"standard_only","speed":"standard","inference_geo":"global"}"#,
        ),
        (
            Generate,
            r#"{"generationConfig":{"responseModalities":["TEXT"]}}"#,
        ),
    ];
    for (operation, body) in usual {
        assert!(!good(operation, body).priced_otherwise, "{body}");
    }
}

#[test]
fn where_to_send_it_is_not_the_programs_to_say() {
    for key in [
        "api_base",
        "base_url",
        "api_key",
        "fallbacks",
        "models",
        "custom_llm_provider",
        "extra_body",
    ] {
        assert!(why(ModelOperation::Chat, &format!(r#"{{"{key}":"x"}}"#)).contains(key));
        assert!(chat(&format!(r#"{{"messages":[{{"{key}":"x"}}]}}"#)).is_ok());
    }
    assert!(why(ModelOperation::Responses, r#"{"background":true}"#).contains("background"));
}

#[test]
fn requests_without_a_body_have_none() {
    assert!(parse_body(ModelOperation::Models, b"").is_ok());
    assert!(parse_body(ModelOperation::OllamaTags, b"{}").is_err());
}
