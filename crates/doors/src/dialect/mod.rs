//! The wire formats of model APIs ("dialects"): routes, bodies, streams, errors. Pure functions of
//! bytes; no I/O.

mod api_error;
mod body;
mod body_keys;
mod body_parser;
mod json_scanner;
mod json_stream;
mod node;
mod quote;
mod rewrite;
mod route;
mod sse;
mod tap;
mod usage_filter;
mod usage_meter;

pub use api_error::{ApiError, error_body, stream_error};
pub use body::{BodyError, OutputLimit, ParsedBody, parse_body};
pub use rewrite::{BodyEdits, rewrite};
pub use route::{Route, RouteError, route};
pub use tap::{ResponseFormat, Tap};

/// The API of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI, and the many that follow its API.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Google Gemini.
    Gemini,
    /// Ollama.
    Ollama,
}

/// The operations that are forwarded; every other request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelOperation {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `GET /v1/models`, `GET /v1/models/{model}`; the same for Anthropic and OpenAI.
    Models,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/messages/count_tokens`
    CountTokens,
    /// `GET /v1beta/models`, `GET /v1beta/models/{model}`
    GeminiModels,
    /// `POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`
    Generate,
    /// `POST /v1beta/models/{model}:countTokens`
    GeminiCountTokens,
    /// `POST /v1beta/models/{model}:embedContent` and `:batchEmbedContents`
    GeminiEmbed,
    /// `POST /api/chat`
    OllamaChat,
    /// `POST /api/generate`
    OllamaGenerate,
    /// `POST /api/embed` and `/api/embeddings`
    OllamaEmbed,
    /// `GET /api/tags`
    OllamaTags,
    /// `POST /api/show`
    OllamaShow,
    /// `GET /api/ps`
    OllamaRunning,
    /// `GET /api/version`
    OllamaVersion,
}

impl ModelOperation {
    /// The dialect of the operation; `None` where two share it.
    pub fn dialect(self) -> Option<Dialect> {
        match self {
            ModelOperation::Models => None,
            ModelOperation::Chat | ModelOperation::Responses | ModelOperation::Embeddings => {
                Some(Dialect::OpenAi)
            }
            ModelOperation::Messages | ModelOperation::CountTokens => Some(Dialect::Anthropic),
            ModelOperation::GeminiModels
            | ModelOperation::Generate
            | ModelOperation::GeminiCountTokens
            | ModelOperation::GeminiEmbed => Some(Dialect::Gemini),
            ModelOperation::OllamaChat
            | ModelOperation::OllamaGenerate
            | ModelOperation::OllamaEmbed
            | ModelOperation::OllamaTags
            | ModelOperation::OllamaShow
            | ModelOperation::OllamaRunning
            | ModelOperation::OllamaVersion => Some(Dialect::Ollama),
        }
    }

    /// Whether providers charge nothing for it.
    pub fn is_free(self) -> bool {
        match self {
            ModelOperation::Models
            | ModelOperation::CountTokens
            | ModelOperation::GeminiModels
            | ModelOperation::GeminiCountTokens
            | ModelOperation::OllamaTags
            | ModelOperation::OllamaShow
            | ModelOperation::OllamaRunning
            | ModelOperation::OllamaVersion => true,
            ModelOperation::Chat
            | ModelOperation::Responses
            | ModelOperation::Embeddings
            | ModelOperation::Messages
            | ModelOperation::Generate
            | ModelOperation::GeminiEmbed
            | ModelOperation::OllamaChat
            | ModelOperation::OllamaGenerate
            | ModelOperation::OllamaEmbed => false,
        }
    }
}
