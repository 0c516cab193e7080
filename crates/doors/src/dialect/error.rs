//! What goes wrong, in the asker's own language.

use super::{Dialect, Operation};
use bytes::Bytes;
use serde_json::{Value, json};

/// What went wrong, as the program is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The HTTP status.
    pub status: u16,
    /// Our word for it: `budget_exceeded`, `upstream_unreachable`, `permission_error`, …
    pub code: &'static str,
    /// One sentence: what happened and what would help. Never a key, never an address.
    pub message: String,
    /// Whether trying again may help; `x-should-retry`.
    pub retry: bool,
    /// Seconds to wait before.
    pub retry_after: Option<u64>,
}

/// The body of an answer, in the asker's dialect (`None`: plain problem JSON).
pub fn answer(dialect: Option<Dialect>, fault: &Fault) -> Bytes {
    let document = match dialect {
        None => json!({
            "type": "about:blank", "title": fault.code, "status": fault.status, "detail": fault.message,
        }),
        Some(dialect) => document(dialect, fault),
    };
    Bytes::from(document.to_string())
}

/// What is put into a stream that cannot go on, wherever it stopped: it begins on a fresh line. The connection is
/// then dropped without an end, so that a truncated answer never looks whole. Nothing can be put into one document.
pub fn interruption(operation: Operation, fault: &Fault) -> Bytes {
    let (before, event) = event(operation, fault);
    Bytes::from([before, &event].concat())
}

/// What ends a line that was begun, and the event.
pub(super) fn event(operation: Operation, fault: &Fault) -> (&'static str, String) {
    match operation {
        Operation::Chat => (
            "\n\n",
            format!("data: {}\n\n", document(Dialect::OpenAi, fault)),
        ),
        Operation::Responses => (
            "\n\n",
            format!("event: response.failed\ndata: {}\n\n", failed(fault)),
        ),
        Operation::Messages => (
            "\n\n",
            format!(
                "event: error\ndata: {}\n\n",
                document(Dialect::Anthropic, fault)
            ),
        ),
        Operation::Generate => (
            "\n\n",
            format!("data: {}\n\n", document(Dialect::Gemini, fault)),
        ),
        Operation::OllamaChat | Operation::OllamaGenerate => {
            ("\n", format!("{}\n", document(Dialect::Ollama, fault)))
        }
        Operation::Embeddings
        | Operation::Models
        | Operation::CountTokens
        | Operation::GeminiModels
        | Operation::GeminiCountTokens
        | Operation::GeminiEmbed
        | Operation::OllamaEmbed
        | Operation::OllamaTags
        | Operation::OllamaShow
        | Operation::OllamaRunning
        | Operation::OllamaVersion => ("", String::new()),
    }
}

/// The dialect's own shape, with our word as its code: the libraries decide by status and type, people by the rest.
fn document(dialect: Dialect, fault: &Fault) -> Value {
    let Fault {
        status,
        code,
        message,
        ..
    } = fault;
    match dialect {
        Dialect::OpenAi => {
            json!({"error": {"message": message, "type": kind(*status), "param": null, "code": code}})
        }
        Dialect::Anthropic => {
            json!({"type": "error", "error": {"type": kind(*status), "message": message, "code": code}})
        }
        Dialect::Gemini => {
            let why = json!({
                "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "airlock",
            });
            json!({"error": {"code": status, "message": message, "status": canonical(*status), "details": [why]}})
        }
        Dialect::Ollama => json!({"error": message, "code": code}),
    }
}

/// A response that has failed, as far as its readers look.
fn failed(fault: &Fault) -> Value {
    json!({
        "type": "response.failed",
        "sequence_number": 0,
        "response": {
            "id": "", "object": "response", "created_at": 0, "status": "failed", "output": [],
            "error": {"code": fault.code, "message": fault.message},
        },
    })
}

/// OpenAI's and Anthropic's word for a status.
fn kind(status: u16) -> &'static str {
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

/// Google's word for a status.
fn canonical(status: u16) -> &'static str {
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
#[path = "error_tests.rs"]
mod tests;
