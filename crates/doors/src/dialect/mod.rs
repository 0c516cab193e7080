//! What goes over the wire: routes, bodies, streams, errors. Pure functions of bytes; no I/O.

mod ask;
mod error;
mod events;
mod json;
mod keys;
mod meter;
mod node;
mod peek;
mod quote;
mod reader;
mod rewrite;
mod route;
mod strip;
mod tap;

pub use ask::{Ask, BadAsk, Cap, ask};
pub use error::{Fault, answer, interruption};
pub use rewrite::{Change, rewrite};
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

impl Operation {
    /// The language that it is asked in; none where two share it.
    pub fn dialect(self) -> Option<Dialect> {
        match self {
            Operation::Models => None,
            Operation::Chat | Operation::Responses | Operation::Embeddings => Some(Dialect::OpenAi),
            Operation::Messages | Operation::CountTokens => Some(Dialect::Anthropic),
            Operation::GeminiModels
            | Operation::Generate
            | Operation::GeminiCountTokens
            | Operation::GeminiEmbed => Some(Dialect::Gemini),
            Operation::OllamaChat
            | Operation::OllamaGenerate
            | Operation::OllamaEmbed
            | Operation::OllamaTags
            | Operation::OllamaShow
            | Operation::OllamaRunning
            | Operation::OllamaVersion => Some(Dialect::Ollama),
        }
    }

    /// Providers charge nothing for it.
    pub fn is_free(self) -> bool {
        match self {
            Operation::Models
            | Operation::CountTokens
            | Operation::GeminiModels
            | Operation::GeminiCountTokens
            | Operation::OllamaTags
            | Operation::OllamaShow
            | Operation::OllamaRunning
            | Operation::OllamaVersion => true,
            Operation::Chat
            | Operation::Responses
            | Operation::Embeddings
            | Operation::Messages
            | Operation::Generate
            | Operation::GeminiEmbed
            | Operation::OllamaChat
            | Operation::OllamaGenerate
            | Operation::OllamaEmbed => false,
        }
    }
}
