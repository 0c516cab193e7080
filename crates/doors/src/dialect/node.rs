//! The schema of responses: the members that lead to token counts, to keywords that end a stream,
//! and to text. Everything else is skipped.

use super::ModelOperation;

/// A position in a document. An array is the same node as its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Nothing below matters.
    Ignored,
    Chat,
    Choice,
    Delta,
    Groq,
    OpenAiUsage,
    InputDetails,
    OutputDetails,
    Responses,
    Response,
    /// Output whose text has been counted already: only which tools were run.
    Items,
    Output,
    Messages,
    Message,
    MessageDelta,
    Block,
    AnthropicUsage,
    CacheCreation,
    ServerTools,
    ThinkingDetails,
    Gemini,
    Candidate,
    Content,
    Grounding,
    Feedback,
    GeminiUsage,
    ModalityIn,
    ModalityOut,
    Ollama,
    OllamaMessage,
    /// Strings here and below are model output.
    Text,
    /// Each string is a search that the provider ran.
    Query,
    Count(CountField),
    /// Number of tokens of the modality beside it.
    ModalityCount,
    /// True ends the stream.
    Done,
    Keyword(StringField),
}

/// A number that providers report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountField {
    Input,
    Cached,
    CacheWrite,
    CacheWrite5m,
    CacheWrite1h,
    AudioIn,
    Output,
    Reasoning,
    AudioOut,
    Total,
    ToolInput,
    ToolRequests,
}

/// A string that says what a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StringField {
    /// The event type.
    Type,
    /// Why an answer ended; null until then.
    Finish,
    /// The type of an output item.
    Item,
    Modality,
}

impl Node {
    /// The root node of the operation's responses.
    pub(super) fn root(operation: ModelOperation) -> Node {
        match operation {
            ModelOperation::Chat | ModelOperation::Embeddings => Node::Chat,
            ModelOperation::Responses => Node::Responses,
            ModelOperation::Messages => Node::Messages,
            ModelOperation::Generate | ModelOperation::GeminiEmbed => Node::Gemini,
            ModelOperation::OllamaChat
            | ModelOperation::OllamaGenerate
            | ModelOperation::OllamaEmbed => Node::Ollama,
            ModelOperation::Models
            | ModelOperation::CountTokens
            | ModelOperation::GeminiModels
            | ModelOperation::GeminiCountTokens
            | ModelOperation::OllamaTags
            | ModelOperation::OllamaShow
            | ModelOperation::OllamaRunning
            | ModelOperation::OllamaVersion => Node::Ignored,
        }
    }

    /// The node of a member. Keys are compared byte by byte: no provider escapes its own keys.
    pub(super) fn member(self, key: &[u8]) -> Node {
        match self {
            Node::Chat | Node::Choice | Node::Delta | Node::Groq => self.of_chat(key),
            Node::OpenAiUsage | Node::InputDetails | Node::OutputDetails => {
                self.of_openai_usage(key)
            }
            Node::Responses | Node::Response | Node::Items | Node::Output => self.of_responses(key),
            Node::Messages | Node::Message | Node::MessageDelta | Node::Block => {
                self.of_messages(key)
            }
            Node::AnthropicUsage
            | Node::CacheCreation
            | Node::ServerTools
            | Node::ThinkingDetails => self.of_anthropic_usage(key),
            Node::Gemini | Node::Candidate | Node::Content | Node::Grounding | Node::Feedback => {
                self.of_gemini(key)
            }
            Node::GeminiUsage | Node::ModalityIn | Node::ModalityOut => self.of_gemini_usage(key),
            Node::Ollama | Node::OllamaMessage => self.of_ollama(key),
            Node::Text => text(key),
            Node::Ignored
            | Node::Query
            | Node::Count(_)
            | Node::ModalityCount
            | Node::Done
            | Node::Keyword(_) => Node::Ignored,
        }
    }

    /// Beyond OpenAI's schema: Moonshot puts the usage into a choice, Groq into a member of its
    /// own.
    fn of_chat(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Chat, b"choices") => Node::Choice,
            (Node::Chat | Node::Choice | Node::Groq, b"usage") => Node::OpenAiUsage,
            (Node::Chat, b"x_groq") => Node::Groq,
            (Node::Choice, b"delta" | b"message") => Node::Delta,
            (Node::Choice, b"finish_reason") => Node::Keyword(StringField::Finish),
            (
                Node::Delta,
                b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"tool_calls"
                | b"function_call" | b"audio",
            ) => Node::Text,
            _ => Node::Ignored,
        }
    }

    /// Names of Chat and of Responses; DeepSeek, Moonshot, OpenRouter, LiteLLM, Perplexity and xAI
    /// add theirs.
    fn of_openai_usage(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::OpenAiUsage, b"prompt_tokens" | b"input_tokens") => {
                Node::Count(CountField::Input)
            }
            (Node::OpenAiUsage, b"completion_tokens" | b"output_tokens") => {
                Node::Count(CountField::Output)
            }
            (Node::OpenAiUsage, b"total_tokens") => Node::Count(CountField::Total),
            (Node::OpenAiUsage, b"prompt_tokens_details" | b"input_tokens_details") => {
                Node::InputDetails
            }
            (Node::OpenAiUsage, b"completion_tokens_details" | b"output_tokens_details") => {
                Node::OutputDetails
            }
            (Node::OpenAiUsage, b"prompt_cache_hit_tokens" | b"cached_tokens") => {
                Node::Count(CountField::Cached)
            }
            (Node::OpenAiUsage, b"cache_creation_input_tokens") => {
                Node::Count(CountField::CacheWrite)
            }
            (Node::OpenAiUsage, b"num_search_queries" | b"num_sources_used") => {
                Node::Count(CountField::ToolRequests)
            }
            (Node::InputDetails, b"cached_tokens") => Node::Count(CountField::Cached),
            (Node::InputDetails, b"cache_write_tokens" | b"cache_creation_tokens") => {
                Node::Count(CountField::CacheWrite)
            }
            (Node::InputDetails, b"audio_tokens") => Node::Count(CountField::AudioIn),
            (Node::OutputDetails, b"reasoning_tokens") => Node::Count(CountField::Reasoning),
            (Node::OutputDetails, b"audio_tokens") => Node::Count(CountField::AudioOut),
            _ => Node::Ignored,
        }
    }

    /// The last event repeats the whole output, so text is counted in deltas and in responses that
    /// are not streams.
    fn of_responses(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Responses, b"type") => Node::Keyword(StringField::Type),
            (Node::Responses, b"delta") => Node::Text,
            (Node::Responses, b"response") => Node::Response,
            (Node::Responses, b"output") => Node::Output,
            (Node::Responses | Node::Response, b"usage") => Node::OpenAiUsage,
            (Node::Response, b"output") => Node::Items,
            (Node::Items | Node::Output, b"type") => Node::Keyword(StringField::Item),
            (Node::Output, _) => text(key),
            _ => Node::Ignored,
        }
    }

    fn of_messages(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Messages, b"type") => Node::Keyword(StringField::Type),
            (Node::Messages, b"message") => Node::Message,
            (Node::Messages | Node::Message, b"usage") => Node::AnthropicUsage,
            (Node::Messages, b"delta") => Node::MessageDelta,
            (Node::Messages, b"content_block" | b"content") => Node::Block,
            (Node::MessageDelta, b"text" | b"thinking" | b"partial_json") => Node::Text,
            (Node::MessageDelta, b"stop_reason") => Node::Keyword(StringField::Finish),
            // The result of a server tool (`content`) is input, not output.
            (Node::Block, b"text" | b"thinking" | b"input" | b"data") => Node::Text,
            _ => Node::Ignored,
        }
    }

    fn of_anthropic_usage(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::AnthropicUsage, b"input_tokens") => Node::Count(CountField::Input),
            (Node::AnthropicUsage, b"output_tokens") => Node::Count(CountField::Output),
            (Node::AnthropicUsage, b"cache_read_input_tokens") => Node::Count(CountField::Cached),
            (Node::AnthropicUsage, b"cache_creation_input_tokens") => {
                Node::Count(CountField::CacheWrite)
            }
            (Node::AnthropicUsage, b"cache_creation") => Node::CacheCreation,
            (Node::AnthropicUsage, b"server_tool_use") => Node::ServerTools,
            (Node::AnthropicUsage, b"output_tokens_details") => Node::ThinkingDetails,
            (Node::CacheCreation, b"ephemeral_5m_input_tokens") => {
                Node::Count(CountField::CacheWrite5m)
            }
            (Node::CacheCreation, b"ephemeral_1h_input_tokens") => {
                Node::Count(CountField::CacheWrite1h)
            }
            (Node::ServerTools, b"web_search_requests") => Node::Count(CountField::ToolRequests),
            (Node::ThinkingDetails, b"thinking_tokens") => Node::Count(CountField::Reasoning),
            _ => Node::Ignored,
        }
    }

    fn of_gemini(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Gemini, b"candidates") => Node::Candidate,
            (Node::Gemini, b"usageMetadata") => Node::GeminiUsage,
            (Node::Gemini, b"promptFeedback") => Node::Feedback,
            (Node::Feedback, b"blockReason") => Node::Keyword(StringField::Finish),
            (Node::Candidate, b"content") => Node::Content,
            (Node::Candidate, b"finishReason") => Node::Keyword(StringField::Finish),
            (Node::Candidate, b"groundingMetadata") => Node::Grounding,
            (Node::Grounding, b"webSearchQueries") => Node::Query,
            (Node::Content, b"parts") => Node::Text,
            _ => Node::Ignored,
        }
    }

    fn of_gemini_usage(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::GeminiUsage, b"promptTokenCount") => Node::Count(CountField::Input),
            (Node::GeminiUsage, b"cachedContentTokenCount") => Node::Count(CountField::Cached),
            (Node::GeminiUsage, b"candidatesTokenCount") => Node::Count(CountField::Output),
            (Node::GeminiUsage, b"thoughtsTokenCount") => Node::Count(CountField::Reasoning),
            (Node::GeminiUsage, b"toolUsePromptTokenCount") => Node::Count(CountField::ToolInput),
            (Node::GeminiUsage, b"totalTokenCount") => Node::Count(CountField::Total),
            (Node::GeminiUsage, b"promptTokensDetails") => Node::ModalityIn,
            (Node::GeminiUsage, b"candidatesTokensDetails") => Node::ModalityOut,
            (Node::ModalityIn | Node::ModalityOut, b"modality") => {
                Node::Keyword(StringField::Modality)
            }
            (Node::ModalityIn | Node::ModalityOut, b"tokenCount") => Node::ModalityCount,
            _ => Node::Ignored,
        }
    }

    fn of_ollama(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Ollama, b"message") => Node::OllamaMessage,
            (Node::Ollama, b"response" | b"thinking") => Node::Text,
            (Node::OllamaMessage, b"content" | b"thinking" | b"tool_calls") => Node::Text,
            (Node::Ollama, b"done") => Node::Done,
            (Node::Ollama, b"prompt_eval_count") => Node::Count(CountField::Input),
            (Node::Ollama, b"prompt_eval_cached_count") => Node::Count(CountField::Cached),
            (Node::Ollama, b"eval_count") => Node::Count(CountField::Output),
            _ => Node::Ignored,
        }
    }
}

/// Metadata within text is not part of the text.
fn text(key: &[u8]) -> Node {
    match key {
        b"type" | b"id" | b"call_id" | b"role" | b"status" | b"index" | b"signature"
        | b"thoughtSignature" | b"encrypted_content" | b"annotations" | b"logprobs"
        | b"mimeType" | b"format" => Node::Ignored,
        _ => Node::Text,
    }
}
