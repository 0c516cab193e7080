//! Error responses in the format of the caller's API (dialect).

use super::{Dialect, ModelOperation};
use bytes::Bytes;
use serde_json::{Value, json};

/// An error as the program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Error code: `budget_exceeded`, `upstream_unreachable`, `permission_error`, …
    pub code: &'static str,
    /// One sentence: what happened and what would help. Contains no key and no address.
    pub message: String,
    /// Whether a retry may succeed; sent as `x-should-retry`.
    pub retry: bool,
    /// Seconds to wait before a retry.
    pub retry_after: Option<u64>,
}

/// The body of an error response in the caller's dialect (`None`: plain problem JSON).
pub fn error_body(dialect: Option<Dialect>, error: &ApiError) -> Bytes {
    let error_document = match dialect {
        None => json!({
            "type": "about:blank", "title": error.code, "status": error.status, "detail": error.message,
        }),
        Some(dialect) => error_document(dialect, error),
    };
    Bytes::from(error_document.to_string())
}

/// The error event that ends a stream, wherever it broke off: it starts on a fresh line. The
/// connection is then dropped without a proper end, so that a truncated response never looks
/// complete. A single JSON document cannot carry one.
pub fn stream_error(operation: ModelOperation, error: &ApiError) -> Bytes {
    let (before, event) = event(operation, error);
    Bytes::from([before, &event].concat())
}

/// The bytes that terminate a started line, and the event.
pub(super) fn event(operation: ModelOperation, error: &ApiError) -> (&'static str, String) {
    match operation {
        ModelOperation::Chat => (
            "\n\n",
            format!("data: {}\n\n", error_document(Dialect::OpenAi, error)),
        ),
        ModelOperation::Responses => (
            "\n\n",
            format!("event: response.failed\ndata: {}\n\n", failed(error)),
        ),
        ModelOperation::Messages => (
            "\n\n",
            format!(
                "event: error\ndata: {}\n\n",
                error_document(Dialect::Anthropic, error)
            ),
        ),
        ModelOperation::Generate => (
            "\n\n",
            format!("data: {}\n\n", error_document(Dialect::Gemini, error)),
        ),
        ModelOperation::OllamaChat | ModelOperation::OllamaGenerate => (
            "\n",
            format!("{}\n", error_document(Dialect::Ollama, error)),
        ),
        ModelOperation::Embeddings
        | ModelOperation::Models
        | ModelOperation::CountTokens
        | ModelOperation::GeminiModels
        | ModelOperation::GeminiCountTokens
        | ModelOperation::GeminiEmbed
        | ModelOperation::OllamaEmbed
        | ModelOperation::OllamaTags
        | ModelOperation::OllamaShow
        | ModelOperation::OllamaRunning
        | ModelOperation::OllamaVersion => ("", String::new()),
    }
}

/// The dialect's own error object with our code in it. Client libraries decide by status and type;
/// people read the rest.
fn error_document(dialect: Dialect, error: &ApiError) -> Value {
    let ApiError {
        status,
        code,
        message,
        ..
    } = error;
    match dialect {
        Dialect::OpenAi => {
            json!({"error": {"message": message, "type": error_type(*status), "param": null, "code": code}})
        }
        Dialect::Anthropic => {
            json!({"type": "error", "error": {"type": error_type(*status), "message": message, "code": code}})
        }
        Dialect::Gemini => {
            let error_info = json!({
                "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "airlock",
            });
            json!({"error": {"code": status, "message": message, "status": google_status(*status), "details": [error_info]}})
        }
        Dialect::Ollama => json!({"error": message, "code": code}),
    }
}

/// A `response.failed` event, as far as clients read it.
fn failed(error: &ApiError) -> Value {
    json!({
        "type": "response.failed",
        "sequence_number": 0,
        "response": {
            "id": "", "object": "response", "created_at": 0, "status": "failed", "output": [],
            "error": {"code": error.code, "message": error.message},
        },
    })
}

/// The error type of OpenAI and Anthropic for a status.
fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Google's canonical status name.
fn google_status(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        402 | 429 => "RESOURCE_EXHAUSTED",
        400..=499 => "INVALID_ARGUMENT",
        502 | 503 | 529 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "INTERNAL",
    }
}

#[cfg(test)]
#[path = "api_error_tests.rs"]
mod tests;
