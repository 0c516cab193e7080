//! Which route a request is for, whether it carries a key, and errors as each dialect says them.

use hyper::{HeaderMap, Method};
use serde::Serialize;
use serde_json::{Value, json};

/// Whose words are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI's.
    #[serde(rename = "openai")]
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Gemini's own.
    Gemini,
    /// Ollama's own.
    Ollama,
}

/// Every route that is known, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the routes")]
pub enum Operation {
    #[serde(rename = "openai_chat")]
    OpenAiChat,
    #[serde(rename = "openai_responses")]
    OpenAiResponses,
    #[serde(rename = "openai_embeddings")]
    OpenAiEmbeddings,
    #[serde(rename = "openai_models")]
    OpenAiModels,
    AnthropicMessages,
    AnthropicCountTokens,
    AnthropicModels,
    GeminiModels,
    GeminiGenerate,
    GeminiStream,
    GeminiCountTokens,
    GeminiEmbed,
    GeminiBatchEmbed,
    OllamaChat,
    OllamaGenerate,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaTags,
    OllamaShow,
    OllamaVersion,
    OllamaPs,
    OllamaPull,
    OllamaDelete,
    OllamaCreate,
    Unknown,
}

impl Operation {
    /// Of this request; with Gemini the model stands in the path.
    pub(crate) fn of(
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> (Operation, Option<String>) {
        // Newer SDKs of Gemini ask for v1.
        let of_model = ["/v1beta/models/", "/v1/models/"]
            .iter()
            .find_map(|prefix| path.strip_prefix(prefix));
        if let Some(rest) = of_model {
            return gemini(method, rest);
        }
        let anthropic =
            headers.contains_key("x-api-key") || headers.contains_key("anthropic-version");
        let operation = match (method.as_str(), path) {
            ("POST", "/v1/chat/completions") => Operation::OpenAiChat,
            ("POST", "/v1/responses") => Operation::OpenAiResponses,
            ("POST", "/v1/embeddings") => Operation::OpenAiEmbeddings,
            ("GET", "/v1/models") if headers.contains_key("x-goog-api-key") && !anthropic => {
                Operation::GeminiModels
            }
            ("GET", "/v1/models") if anthropic => Operation::AnthropicModels,
            ("GET", "/v1/models") => Operation::OpenAiModels,
            ("POST", "/v1/messages") => Operation::AnthropicMessages,
            ("POST", "/v1/messages/count_tokens") => Operation::AnthropicCountTokens,
            ("GET", "/v1beta/models") => Operation::GeminiModels,
            ("POST", "/api/chat") => Operation::OllamaChat,
            ("POST", "/api/generate") => Operation::OllamaGenerate,
            ("POST", "/api/embed") => Operation::OllamaEmbed,
            ("POST", "/api/embeddings") => Operation::OllamaEmbeddings,
            ("GET", "/api/tags") => Operation::OllamaTags,
            ("POST", "/api/show") => Operation::OllamaShow,
            ("GET", "/api/version") => Operation::OllamaVersion,
            ("GET", "/api/ps") => Operation::OllamaPs,
            ("POST", "/api/pull") => Operation::OllamaPull,
            ("DELETE", "/api/delete") => Operation::OllamaDelete,
            ("POST", "/api/create") => Operation::OllamaCreate,
            _ => Operation::Unknown,
        };
        (operation, None)
    }

    /// Whose route it is; what is unknown is answered as OpenAI would.
    pub fn dialect(self) -> Dialect {
        match self {
            Operation::OpenAiChat
            | Operation::OpenAiResponses
            | Operation::OpenAiEmbeddings
            | Operation::OpenAiModels
            | Operation::Unknown => Dialect::OpenAi,
            Operation::AnthropicMessages
            | Operation::AnthropicCountTokens
            | Operation::AnthropicModels => Dialect::Anthropic,
            Operation::GeminiModels
            | Operation::GeminiGenerate
            | Operation::GeminiStream
            | Operation::GeminiCountTokens
            | Operation::GeminiEmbed
            | Operation::GeminiBatchEmbed => Dialect::Gemini,
            Operation::OllamaChat
            | Operation::OllamaGenerate
            | Operation::OllamaEmbed
            | Operation::OllamaEmbeddings
            | Operation::OllamaTags
            | Operation::OllamaShow
            | Operation::OllamaVersion
            | Operation::OllamaPs
            | Operation::OllamaPull
            | Operation::OllamaDelete
            | Operation::OllamaCreate => Dialect::Ollama,
        }
    }

    /// Whether the prompt costs something.
    pub(crate) fn bills(self) -> bool {
        self.generates()
            || matches!(
                self,
                Operation::OpenAiEmbeddings
                    | Operation::GeminiEmbed
                    | Operation::GeminiBatchEmbed
                    | Operation::OllamaEmbed
                    | Operation::OllamaEmbeddings
            )
    }

    /// Whether a model speaks.
    pub(crate) fn generates(self) -> bool {
        matches!(
            self,
            Operation::OpenAiChat
                | Operation::OpenAiResponses
                | Operation::AnthropicMessages
                | Operation::GeminiGenerate
                | Operation::GeminiStream
                | Operation::OllamaChat
                | Operation::OllamaGenerate
        )
    }
}

fn gemini(method: &Method, rest: &str) -> (Operation, Option<String>) {
    let (model, verb) = rest.split_once(':').unwrap_or((rest, ""));
    let operation = match (method.as_str(), verb) {
        ("POST", "generateContent") => Operation::GeminiGenerate,
        ("POST", "streamGenerateContent") => Operation::GeminiStream,
        ("POST", "countTokens") => Operation::GeminiCountTokens,
        ("POST", "embedContent") => Operation::GeminiEmbed,
        ("POST", "batchEmbedContents") => Operation::GeminiBatchEmbed,
        _ => Operation::Unknown,
    };
    (operation, Some(model.to_owned()))
}

/// Every secret in a header made for one.
pub(crate) fn keys_of(headers: &HeaderMap) -> Vec<String> {
    let named = ["authorization", "x-api-key", "x-goog-api-key"];
    let all = named.iter().flat_map(|name| headers.get_all(*name));
    all.map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        text.strip_prefix("Bearer ")
            .map_or(text.clone(), str::to_owned)
    })
    .collect()
}

/// Whether a header of the dialect has one of the keys. Anthropic takes two: older SDKs send the one, newer ones the other.
pub(crate) fn is_let_in(operation: Operation, headers: &HeaderMap, keys: &[String]) -> bool {
    let places: &[(&str, &str)] = match operation.dialect() {
        Dialect::OpenAi => &[("authorization", "Bearer ")],
        Dialect::Anthropic => &[("x-api-key", ""), ("authorization", "Bearer ")],
        Dialect::Gemini => &[("x-goog-api-key", "")],
        // As it is on a node: whoever reaches it may use it.
        Dialect::Ollama => return true,
    };
    let opens = |(name, prefix): &(&str, &str)| {
        let told = headers.get(*name).and_then(|value| value.to_str().ok());
        let secret = told.and_then(|told| told.strip_prefix(prefix));
        secret.is_some_and(|secret| keys.iter().any(|key| key == secret))
    };
    keys.is_empty() || places.iter().any(opens)
}

/// An error with this status, as the dialect says it.
pub(crate) fn error(dialect: Dialect, status: u16, code: &str, message: &str) -> Value {
    let kind = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    match dialect {
        Dialect::OpenAi => {
            json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
        }
        Dialect::Anthropic => json!({
            "type": "error", "error": { "type": kind, "message": message }, "request_id": "req_mock"
        }),
        Dialect::Gemini => {
            json!({ "error": { "code": status, "message": message, "status": code.to_uppercase() } })
        }
        Dialect::Ollama => json!({ "error": message }),
    }
}
