//! Error responses have the format that each dialect's client libraries expect.

use super::*;

fn error(status: u16, code: &'static str) -> ApiError {
    ApiError {
        status,
        code,
        message: "say \"why\"\n".to_owned(),
        retry: false,
        retry_after: None,
    }
}

fn parsed(dialect: Option<Dialect>, status: u16, code: &'static str) -> Value {
    serde_json::from_slice(&error_body(dialect, &error(status, code))).expect("it is JSON")
}

#[test]
fn answers_have_the_shape_of_their_dialect() {
    let message = "say \"why\"\n";
    assert_eq!(
        parsed(Some(Dialect::OpenAi), 402, "budget_exceeded"),
        json!({"error": {"message": message, "type": "billing_error", "param": null, "code": "budget_exceeded"}})
    );
    assert_eq!(
        parsed(Some(Dialect::Anthropic), 429, "rate_limit_error"),
        json!({"type": "error", "error": {"type": "rate_limit_error", "message": message, "code": "rate_limit_error"}})
    );
    let gemini = parsed(Some(Dialect::Gemini), 502, "upstream_unreachable");
    assert_eq!(
        (&gemini["error"]["code"], &gemini["error"]["status"]),
        (&json!(502), &json!("UNAVAILABLE"))
    );
    assert_eq!(
        gemini["error"]["details"][0]["reason"],
        "upstream_unreachable"
    );
    assert_eq!(
        parsed(Some(Dialect::Ollama), 403, "permission_error"),
        json!({"error": message, "code": "permission_error"})
    );
    assert_eq!(
        parsed(None, 404, "not_found"),
        json!({"type": "about:blank", "title": "not_found", "status": 404, "detail": message})
    );
}

#[test]
fn every_situation_has_its_word() {
    let table = [
        (400, "invalid_request_error", "INVALID_ARGUMENT"),
        (401, "authentication_error", "UNAUTHENTICATED"),
        (402, "billing_error", "RESOURCE_EXHAUSTED"),
        (403, "permission_error", "PERMISSION_DENIED"),
        (404, "not_found_error", "NOT_FOUND"),
        (405, "invalid_request_error", "INVALID_ARGUMENT"),
        (413, "request_too_large", "INVALID_ARGUMENT"),
        (429, "rate_limit_error", "RESOURCE_EXHAUSTED"),
        (500, "api_error", "INTERNAL"),
        (502, "api_error", "UNAVAILABLE"),
        (504, "timeout_error", "DEADLINE_EXCEEDED"),
        (529, "overloaded_error", "UNAVAILABLE"),
    ];
    for (status, word, google) in table {
        assert_eq!(
            (error_type(status), google_status(status)),
            (word, google),
            "{status}"
        );
    }
}

#[test]
fn interruptions_are_events_of_their_own() {
    let streams = [
        (ModelOperation::Chat, "\n\ndata: ", "error"),
        (
            ModelOperation::Responses,
            "\n\nevent: response.failed\ndata: ",
            "response",
        ),
        (
            ModelOperation::Messages,
            "\n\nevent: error\ndata: ",
            "error",
        ),
        (ModelOperation::Generate, "\n\ndata: ", "error"),
        (ModelOperation::OllamaChat, "\n", "error"),
        (ModelOperation::OllamaGenerate, "\n", "error"),
    ];
    for (operation, before, member) in streams {
        let bytes = stream_error(operation, &error(504, "upstream_timeout"));
        let text = str::from_utf8(&bytes).expect("it is text");
        let data = text
            .strip_prefix(before)
            .expect(text)
            .trim_end_matches('\n');
        assert!(!data.contains('\n'), "{data}");
        let error_document: Value = serde_json::from_str(data).expect(data);
        assert!(error_document.get(member).is_some(), "{data}");
        assert!(text.ends_with('\n'));
    }
    assert_eq!(
        stream_error(ModelOperation::Embeddings, &error(504, "x")),
        ""
    );
}
