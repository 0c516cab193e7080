//! The members of a request body that matter, by operation and object. A name that Go's JSON parser
//! would take for one of them (it ignores case, and folds two characters beyond ASCII) is
//! distinguished from a name without meaning.

use super::{Dialect, ModelOperation};

/// A member that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKey {
    Model,
    Stream,
    StreamOptions,
    IncludeUsage,
    /// The output token limit, with its name.
    Limit(&'static str),
    /// Number of answers.
    Choices(&'static str),
    /// Who is calling.
    Identity(&'static str),
    Metadata,
    /// The object that holds the limit: Ollama's options, Gemini's generation config.
    Settings,
    Tools,
    /// The conversation of the Responses API.
    Input,
    /// Requests within a request: Gemini's batches.
    Requests(&'static str),
    /// Changes the price, unless the value is one of the standard ones.
    Tier(&'static str),
    /// Changes the price if images are among them.
    Modalities,
    /// Changes the price if it is present at all.
    PricedIfPresent(&'static str),
    /// Makes the provider do things by itself.
    ServerTool(&'static str),
    /// Summaries that the provider writes in calls of its own, which the usage does not contain.
    ContextManagement,
    /// Refers to content outside the body.
    External(&'static str),
    /// A prompt that the provider stores, with tools of its own.
    Prompt,
    /// Work that continues without a connection, where it cannot be metered.
    Background,
    /// An address, a key or another model to use: only the operator may set these.
    Forbidden(&'static str),
}

/// The object that a member belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Root,
    StreamOptions,
    Metadata,
    Settings,
    Request,
}

/// What a name means, or would mean to a parser that ignores case.
pub(super) enum KeyMatch {
    Exact(BodyKey),
    CaseVariant,
    Unknown,
}

/// Looks up a name within an object.
pub(super) fn match_key(
    operation: ModelOperation,
    object_kind: ObjectKind,
    name: &str,
) -> KeyMatch {
    if let Some(key) = key(operation, object_kind, name) {
        return KeyMatch::Exact(key);
    }
    match folded(name).and_then(|name| key(operation, object_kind, &name)) {
        Some(_) => KeyMatch::CaseVariant,
        None => KeyMatch::Unknown,
    }
}

/// The name as Go folds it; `None` if folding changes nothing.
pub(super) fn folded(name: &str) -> Option<String> {
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    let fold = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    (!is_plain).then(|| name.chars().map(fold).collect())
}

fn key(operation: ModelOperation, object_kind: ObjectKind, name: &str) -> Option<BodyKey> {
    match object_kind {
        ObjectKind::Root => root(operation, name),
        ObjectKind::StreamOptions => (name == "include_usage").then_some(BodyKey::IncludeUsage),
        ObjectKind::Metadata => (name == "user_id").then_some(BodyKey::Identity("user_id")),
        ObjectKind::Settings => setting(operation, name),
        ObjectKind::Request => (name == "model").then_some(BodyKey::Model),
    }
}

fn root(operation: ModelOperation, name: &str) -> Option<BodyKey> {
    let own = match operation.dialect() {
        Some(Dialect::OpenAi) => openai(operation, name),
        Some(Dialect::Anthropic) => anthropic(name),
        Some(Dialect::Gemini) => gemini(name),
        Some(Dialect::Ollama) => ollama(operation, name),
        None => None,
    };
    own.or_else(|| everywhere(name))
}

fn everywhere(name: &str) -> Option<BodyKey> {
    Some(match name {
        "model" => BodyKey::Model,
        "stream" => BodyKey::Stream,
        "tools" => BodyKey::Tools,
        "metadata" => BodyKey::Metadata,
        "user" => BodyKey::Identity("user"),
        "api_base" => BodyKey::Forbidden("api_base"),
        "base_url" => BodyKey::Forbidden("base_url"),
        "api_key" => BodyKey::Forbidden("api_key"),
        "extra_body" => BodyKey::Forbidden("extra_body"),
        "extra_headers" => BodyKey::Forbidden("extra_headers"),
        "custom_llm_provider" => BodyKey::Forbidden("custom_llm_provider"),
        "litellm_params" => BodyKey::Forbidden("litellm_params"),
        "user_config" => BodyKey::Forbidden("user_config"),
        "num_retries" => BodyKey::Forbidden("num_retries"),
        "mock_response" => BodyKey::Forbidden("mock_response"),
        "router_settings_override" => BodyKey::Forbidden("router_settings_override"),
        "fastest_response" => BodyKey::Forbidden("fastest_response"),
        "input_cost_per_token" => BodyKey::Forbidden("input_cost_per_token"),
        "output_cost_per_token" => BodyKey::Forbidden("output_cost_per_token"),
        "litellm_metadata" => BodyKey::Forbidden("litellm_metadata"),
        "models" => BodyKey::Forbidden("models"),
        "model_list" => BodyKey::Forbidden("model_list"),
        "fallbacks" => BodyKey::Forbidden("fallbacks"),
        "context_window_fallbacks" => BodyKey::Forbidden("context_window_fallbacks"),
        "content_policy_fallbacks" => BodyKey::Forbidden("content_policy_fallbacks"),
        "webhook" => BodyKey::Forbidden("webhook"),
        "webhook_url" => BodyKey::Forbidden("webhook_url"),
        "callback_url" => BodyKey::Forbidden("callback_url"),
        "callbacks" => BodyKey::Forbidden("callbacks"),
        _ => return None,
    })
}

fn openai(operation: ModelOperation, name: &str) -> Option<BodyKey> {
    let is_chat = operation == ModelOperation::Chat;
    let is_responses = operation == ModelOperation::Responses;
    Some(match name {
        "stream_options" if is_chat => BodyKey::StreamOptions,
        "max_tokens" if is_chat => BodyKey::Limit("max_tokens"),
        "max_completion_tokens" if is_chat => BodyKey::Limit("max_completion_tokens"),
        // llama.cpp's own name, which takes precedence there.
        "n_predict" if is_chat => BodyKey::Limit("n_predict"),
        "max_output_tokens" if is_responses => BodyKey::Limit("max_output_tokens"),
        "n" if is_chat => BodyKey::Choices("n"),
        "best_of" if is_chat => BodyKey::Choices("best_of"),
        "input" if is_responses => BodyKey::Input,
        "prompt" if is_responses => BodyKey::Prompt,
        "background" if is_responses => BodyKey::Background,
        "context_management" if is_responses => BodyKey::ServerTool("context_management"),
        "previous_response_id" => BodyKey::External("previous_response_id"),
        "conversation" => BodyKey::External("conversation"),
        "safety_identifier" => BodyKey::Identity("safety_identifier"),
        "service_tier" => BodyKey::Tier("service_tier"),
        "modalities" => BodyKey::Modalities,
        // OpenRouter: who serves the request, and how, decides the price.
        "provider" => BodyKey::PricedIfPresent("provider"),
        "route" => BodyKey::PricedIfPresent("route"),
        "web_search_options" => BodyKey::ServerTool("web_search_options"),
        "search_parameters" => BodyKey::ServerTool("search_parameters"),
        "plugins" => BodyKey::ServerTool("plugins"),
        _ => return None,
    })
}

fn anthropic(name: &str) -> Option<BodyKey> {
    Some(match name {
        "max_tokens" => BodyKey::Limit("max_tokens"),
        "service_tier" => BodyKey::Tier("service_tier"),
        "speed" => BodyKey::Tier("speed"),
        "inference_geo" => BodyKey::Tier("inference_geo"),
        "mcp_servers" => BodyKey::ServerTool("mcp_servers"),
        "container" => BodyKey::ServerTool("container"),
        "context_management" => BodyKey::ContextManagement,
        _ => return None,
    })
}

fn gemini(name: &str) -> Option<BodyKey> {
    Some(match name {
        "generationConfig" | "generation_config" => BodyKey::Settings,
        "cachedContent" | "cached_content" => BodyKey::External("cachedContent"),
        "serviceTier" | "service_tier" => BodyKey::Tier("serviceTier"),
        "requests" => BodyKey::Requests("requests"),
        "generateContentRequest" | "generate_content_request" => {
            BodyKey::Requests("generateContentRequest")
        }
        _ => return None,
    })
}

fn ollama(operation: ModelOperation, name: &str) -> Option<BodyKey> {
    Some(match name {
        "options" => BodyKey::Settings,
        // The old name, which Ollama still accepts.
        "name" if operation == ModelOperation::OllamaShow => BodyKey::Model,
        _ => return None,
    })
}

fn setting(operation: ModelOperation, name: &str) -> Option<BodyKey> {
    let is_gemini = operation.dialect() == Some(Dialect::Gemini);
    Some(match name {
        "num_predict" if !is_gemini => BodyKey::Limit("num_predict"),
        "maxOutputTokens" | "max_output_tokens" if is_gemini => BodyKey::Limit("maxOutputTokens"),
        "candidateCount" | "candidate_count" if is_gemini => BodyKey::Choices("candidateCount"),
        "responseModalities" | "response_modalities" if is_gemini => BodyKey::Modalities,
        _ => return None,
    })
}

/// A member that refers to content outside the body, in any object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKey {
    /// A URL, or an object with one.
    Link,
    /// An image, perhaps by its URL; or something else with that name.
    MaybeLink,
    /// An object that may hold a URL.
    Source,
    /// A URL, if it is inside one of those objects.
    Url,
    /// The id of external content; an object here is the schema of a tool parameter.
    Name,
    /// External content, or content whose length says nothing about its tokens.
    Elsewhere,
    /// The media type of the data beside it.
    MediaType,
    /// A list of images.
    Images,
    /// Audio, possibly of an earlier answer.
    Audio,
    /// The id of that audio, inside such an object.
    Id,
    Type,
    Tools,
}

/// What a name means anywhere in a body.
pub(super) fn content_key(name: &str) -> Option<ContentKey> {
    exact_content_key(name).or_else(|| exact_content_key(&folded(name)?))
}

fn exact_content_key(name: &str) -> Option<ContentKey> {
    Some(match name {
        "image_url" | "video_url" | "audio_url" | "file_url" => ContentKey::Link,
        "image" | "video" => ContentKey::MaybeLink,
        "source" => ContentKey::Source,
        "url" => ContentKey::Url,
        "file_id" | "file_ids" | "fileUri" | "fileuri" | "file_uri" | "cachedContent"
        | "cachedcontent" | "cached_content" | "vector_store_ids" => ContentKey::Name,
        "fileData" | "filedata" | "file_data" | "input_audio" => ContentKey::Elsewhere,
        "media_type" | "mimeType" | "mimetype" | "mime_type" => ContentKey::MediaType,
        "images" => ContentKey::Images,
        "audio" => ContentKey::Audio,
        "id" => ContentKey::Id,
        "type" => ContentKey::Type,
        "tools" | "additional_tools" => ContentKey::Tools,
        _ => return None,
    })
}
