//! Which members of a body matter, by operation and place. A name that Go's JSON reader would take for one of them
//! (it ignores case, and folds two characters beyond ASCII) is told apart from one that means nothing.

use super::{Dialect, Operation};

/// A member that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Model,
    Stream,
    StreamOptions,
    IncludeUsage,
    /// The limit of output tokens, and its name.
    Limit(&'static str),
    /// How many answers.
    Choices(&'static str),
    /// Who is calling.
    Identity(&'static str),
    Metadata,
    /// What holds the limit: Ollama's options, Gemini's generation config.
    Settings,
    Tools,
    /// Where Responses' conversation is.
    Input,
    /// Requests within a request: Gemini's batches.
    Requests(&'static str),
    /// Another price, unless the value is one of the usual ones.
    Tier(&'static str),
    /// Another price, if pictures are among them.
    Modalities,
    /// Another price, if it is there at all.
    Otherwise(&'static str),
    /// The provider does things by itself.
    ServerTool(&'static str),
    /// Summaries that the provider writes in calls of its own, which the usage does not hold.
    ContextManagement,
    /// What is meant is elsewhere.
    Beyond(&'static str),
    /// A prompt that the provider stores, with tools of its own.
    Prompt,
    /// Work that goes on without us.
    Background,
    /// Where to send it, with which key, or to which other model: ours to say.
    Refused(&'static str),
}

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    StreamOptions,
    Metadata,
    Settings,
    Request,
}

/// What a name means, or what it would mean to a reader that ignores case.
pub(super) enum Named {
    As(Key),
    Nearly,
    Nothing,
}

/// What a name means at a place.
pub(super) fn named(operation: Operation, place: Place, name: &str) -> Named {
    if let Some(key) = key(operation, place, name) {
        return Named::As(key);
    }
    match folded(name).and_then(|name| key(operation, place, &name)) {
        Some(_) => Named::Nearly,
        None => Named::Nothing,
    }
}

/// The name as Go folds it; none if that changes nothing.
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

fn key(operation: Operation, place: Place, name: &str) -> Option<Key> {
    match place {
        Place::Root => root(operation, name),
        Place::StreamOptions => (name == "include_usage").then_some(Key::IncludeUsage),
        Place::Metadata => (name == "user_id").then_some(Key::Identity("user_id")),
        Place::Settings => setting(operation, name),
        Place::Request => (name == "model").then_some(Key::Model),
    }
}

fn root(operation: Operation, name: &str) -> Option<Key> {
    let own = match operation.dialect() {
        Some(Dialect::OpenAi) => openai(operation, name),
        Some(Dialect::Anthropic) => anthropic(name),
        Some(Dialect::Gemini) => gemini(name),
        Some(Dialect::Ollama) => ollama(operation, name),
        None => None,
    };
    own.or_else(|| everywhere(name))
}

fn everywhere(name: &str) -> Option<Key> {
    Some(match name {
        "model" => Key::Model,
        "stream" => Key::Stream,
        "tools" => Key::Tools,
        "metadata" => Key::Metadata,
        "user" => Key::Identity("user"),
        "api_base" => Key::Refused("api_base"),
        "base_url" => Key::Refused("base_url"),
        "api_key" => Key::Refused("api_key"),
        "extra_body" => Key::Refused("extra_body"),
        "extra_headers" => Key::Refused("extra_headers"),
        "custom_llm_provider" => Key::Refused("custom_llm_provider"),
        "litellm_params" => Key::Refused("litellm_params"),
        "user_config" => Key::Refused("user_config"),
        "num_retries" => Key::Refused("num_retries"),
        "mock_response" => Key::Refused("mock_response"),
        "router_settings_override" => Key::Refused("router_settings_override"),
        "fastest_response" => Key::Refused("fastest_response"),
        "input_cost_per_token" => Key::Refused("input_cost_per_token"),
        "output_cost_per_token" => Key::Refused("output_cost_per_token"),
        "litellm_metadata" => Key::Refused("litellm_metadata"),
        "models" => Key::Refused("models"),
        "model_list" => Key::Refused("model_list"),
        "fallbacks" => Key::Refused("fallbacks"),
        "context_window_fallbacks" => Key::Refused("context_window_fallbacks"),
        "content_policy_fallbacks" => Key::Refused("content_policy_fallbacks"),
        "webhook" => Key::Refused("webhook"),
        "webhook_url" => Key::Refused("webhook_url"),
        "callback_url" => Key::Refused("callback_url"),
        "callbacks" => Key::Refused("callbacks"),
        _ => return None,
    })
}

fn openai(operation: Operation, name: &str) -> Option<Key> {
    let (is_chat, is_responses) = (
        operation == Operation::Chat,
        operation == Operation::Responses,
    );
    Some(match name {
        "stream_options" if is_chat => Key::StreamOptions,
        "max_tokens" if is_chat => Key::Limit("max_tokens"),
        "max_completion_tokens" if is_chat => Key::Limit("max_completion_tokens"),
        // llama.cpp's own name, which it takes before the others.
        "n_predict" if is_chat => Key::Limit("n_predict"),
        "max_output_tokens" if is_responses => Key::Limit("max_output_tokens"),
        "n" if is_chat => Key::Choices("n"),
        "best_of" if is_chat => Key::Choices("best_of"),
        "input" if is_responses => Key::Input,
        "prompt" if is_responses => Key::Prompt,
        "background" if is_responses => Key::Background,
        "context_management" if is_responses => Key::ServerTool("context_management"),
        "previous_response_id" => Key::Beyond("previous_response_id"),
        "conversation" => Key::Beyond("conversation"),
        "safety_identifier" => Key::Identity("safety_identifier"),
        "service_tier" => Key::Tier("service_tier"),
        "modalities" => Key::Modalities,
        // OpenRouter: who serves it, and how, decides the price.
        "provider" => Key::Otherwise("provider"),
        "route" => Key::Otherwise("route"),
        "web_search_options" => Key::ServerTool("web_search_options"),
        "search_parameters" => Key::ServerTool("search_parameters"),
        "plugins" => Key::ServerTool("plugins"),
        _ => return None,
    })
}

fn anthropic(name: &str) -> Option<Key> {
    Some(match name {
        "max_tokens" => Key::Limit("max_tokens"),
        "service_tier" => Key::Tier("service_tier"),
        "speed" => Key::Tier("speed"),
        "inference_geo" => Key::Tier("inference_geo"),
        "mcp_servers" => Key::ServerTool("mcp_servers"),
        "container" => Key::ServerTool("container"),
        "context_management" => Key::ContextManagement,
        _ => return None,
    })
}

fn gemini(name: &str) -> Option<Key> {
    Some(match name {
        "generationConfig" | "generation_config" => Key::Settings,
        "cachedContent" | "cached_content" => Key::Beyond("cachedContent"),
        "serviceTier" | "service_tier" => Key::Tier("serviceTier"),
        "requests" => Key::Requests("requests"),
        "generateContentRequest" | "generate_content_request" => {
            Key::Requests("generateContentRequest")
        }
        _ => return None,
    })
}

fn ollama(operation: Operation, name: &str) -> Option<Key> {
    Some(match name {
        "options" => Key::Settings,
        // The old name, which it still takes.
        "name" if operation == Operation::OllamaShow => Key::Model,
        _ => return None,
    })
}

fn setting(operation: Operation, name: &str) -> Option<Key> {
    let is_gemini = operation.dialect() == Some(Dialect::Gemini);
    Some(match name {
        "num_predict" if !is_gemini => Key::Limit("num_predict"),
        "maxOutputTokens" | "max_output_tokens" if is_gemini => Key::Limit("maxOutputTokens"),
        "candidateCount" | "candidate_count" if is_gemini => Key::Choices("candidateCount"),
        "responseModalities" | "response_modalities" if is_gemini => Key::Modalities,
        _ => return None,
    })
}

/// A member that says more of what it means is elsewhere, wherever it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// An address, or an object with one.
    Link,
    /// A picture, perhaps by its address; or something that is only called so.
    MaybeLink,
    /// An object that may hold an address.
    Source,
    /// An address, if it stands in one of those.
    Url,
    /// The name of something that is elsewhere; an object here is the description of a tool's parameter.
    Name,
    /// It is elsewhere, or of a length that says nothing of its tokens.
    Elsewhere,
    /// What kind of data is beside it.
    MediaType,
    /// As many pictures.
    Images,
    /// Sound, which may be of an earlier answer.
    Audio,
    /// That sound, if it stands there.
    Id,
    Type,
    Tools,
}

/// What a name anywhere in a body says.
pub(super) fn mark(name: &str) -> Option<Mark> {
    exact_mark(name).or_else(|| exact_mark(&folded(name)?))
}

fn exact_mark(name: &str) -> Option<Mark> {
    Some(match name {
        "image_url" | "video_url" | "audio_url" | "file_url" => Mark::Link,
        "image" | "video" => Mark::MaybeLink,
        "source" => Mark::Source,
        "url" => Mark::Url,
        "file_id" | "file_ids" | "fileUri" | "fileuri" | "file_uri" | "cachedContent"
        | "cachedcontent" | "cached_content" | "vector_store_ids" => Mark::Name,
        "fileData" | "filedata" | "file_data" | "input_audio" => Mark::Elsewhere,
        "media_type" | "mimeType" | "mimetype" | "mime_type" => Mark::MediaType,
        "images" => Mark::Images,
        "audio" => Mark::Audio,
        "id" => Mark::Id,
        "type" => Mark::Type,
        "tools" => Mark::Tools,
        _ => return None,
    })
}
