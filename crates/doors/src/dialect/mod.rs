//! What goes over the wire: routes, bodies, streams, errors. Pure functions of bytes; no I/O.

mod ask;
mod error;
mod route;
mod tap;

pub use ask::{Ask, BadAsk, Cap, Change, ask, rewrite};
pub use error::{Fault, answer, interruption};
pub use route::{NoRoute, Route, route};
pub use tap::{Tap, TapKind};

/// The language of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dialect {
    OpenAi,
    Anthropic,
    Gemini,
    Ollama,
}

/// What is asked of a provider. There is nothing else: what is not here is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Operation {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `GET /v1/models`, `GET /v1/models/{model}`; Anthropic's and OpenAI's alike.
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
