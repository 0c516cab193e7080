//! What matters in an answer, and where: the members that lead to counts, to words that end a stream, and to text.
//! Everything else is skipped.

use super::Operation;

/// A place in a document. An array is the same place as its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Nothing beneath matters.
    Dead,
    Chat,
    Choice,
    Delta,
    Groq,
    OpenAiUsage,
    InputDetails,
    OutputDetails,
    Responses,
    Response,
    /// Output whose text has been seen already: only which tools were run.
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
    /// Strings here and beneath are what a model wrote.
    Text,
    /// Each string is a search that the provider ran.
    Query,
    Count(Field),
    /// How many tokens the modality beside it has.
    ModalityCount,
    /// The stream ends here if it is true.
    Done,
    Word(Word),
}

/// A number that providers give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
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
pub(super) enum Word {
    /// Which event this is.
    Type,
    /// Why an answer has ended; null as long as it has not.
    Finish,
    /// What an item of an output is.
    Item,
    Modality,
}

impl Node {
    /// Where the documents of an answer begin.
    pub(super) fn root(operation: Operation) -> Node {
        match operation {
            Operation::Chat | Operation::Embeddings => Node::Chat,
            Operation::Responses => Node::Responses,
            Operation::Messages => Node::Messages,
            Operation::Generate | Operation::GeminiEmbed => Node::Gemini,
            Operation::OllamaChat | Operation::OllamaGenerate | Operation::OllamaEmbed => {
                Node::Ollama
            }
            Operation::Models
            | Operation::CountTokens
            | Operation::GeminiModels
            | Operation::GeminiCountTokens
            | Operation::OllamaTags
            | Operation::OllamaShow
            | Operation::OllamaRunning
            | Operation::OllamaVersion => Node::Dead,
        }
    }

    /// The place of a member. Keys are compared as they are spelt: no provider escapes its own keys.
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
            Node::Dead
            | Node::Query
            | Node::Count(_)
            | Node::ModalityCount
            | Node::Done
            | Node::Word(_) => Node::Dead,
        }
    }

    /// Besides OpenAI's own places: Moonshot puts the usage into a choice, Groq into a member of its own.
    fn of_chat(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Chat, b"choices") => Node::Choice,
            (Node::Chat | Node::Choice | Node::Groq, b"usage") => Node::OpenAiUsage,
            (Node::Chat, b"x_groq") => Node::Groq,
            (Node::Choice, b"delta" | b"message") => Node::Delta,
            (Node::Choice, b"finish_reason") => Node::Word(Word::Finish),
            (
                Node::Delta,
                b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"tool_calls"
                | b"function_call" | b"audio",
            ) => Node::Text,
            _ => Node::Dead,
        }
    }

    /// Chat's names and those of responses; DeepSeek, Moonshot, OpenRouter, LiteLLM, Perplexity and xAI add theirs.
    fn of_openai_usage(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::OpenAiUsage, b"prompt_tokens" | b"input_tokens") => Node::Count(Field::Input),
            (Node::OpenAiUsage, b"completion_tokens" | b"output_tokens") => {
                Node::Count(Field::Output)
            }
            (Node::OpenAiUsage, b"total_tokens") => Node::Count(Field::Total),
            (Node::OpenAiUsage, b"prompt_tokens_details" | b"input_tokens_details") => {
                Node::InputDetails
            }
            (Node::OpenAiUsage, b"completion_tokens_details" | b"output_tokens_details") => {
                Node::OutputDetails
            }
            (Node::OpenAiUsage, b"prompt_cache_hit_tokens" | b"cached_tokens") => {
                Node::Count(Field::Cached)
            }
            (Node::OpenAiUsage, b"cache_creation_input_tokens") => Node::Count(Field::CacheWrite),
            (Node::OpenAiUsage, b"num_search_queries" | b"num_sources_used") => {
                Node::Count(Field::ToolRequests)
            }
            (Node::InputDetails, b"cached_tokens") => Node::Count(Field::Cached),
            (Node::InputDetails, b"cache_write_tokens" | b"cache_creation_tokens") => {
                Node::Count(Field::CacheWrite)
            }
            (Node::InputDetails, b"audio_tokens") => Node::Count(Field::AudioIn),
            (Node::OutputDetails, b"reasoning_tokens") => Node::Count(Field::Reasoning),
            (Node::OutputDetails, b"audio_tokens") => Node::Count(Field::AudioOut),
            _ => Node::Dead,
        }
    }

    /// The last event repeats the whole output, so text counts in deltas and in an answer that is not a stream.
    fn of_responses(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Responses, b"type") => Node::Word(Word::Type),
            (Node::Responses, b"delta") => Node::Text,
            (Node::Responses, b"response") => Node::Response,
            (Node::Responses, b"output") => Node::Output,
            (Node::Responses | Node::Response, b"usage") => Node::OpenAiUsage,
            (Node::Response, b"output") => Node::Items,
            (Node::Items | Node::Output, b"type") => Node::Word(Word::Item),
            (Node::Output, _) => text(key),
            _ => Node::Dead,
        }
    }

    fn of_messages(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Messages, b"type") => Node::Word(Word::Type),
            (Node::Messages, b"message") => Node::Message,
            (Node::Messages | Node::Message, b"usage") => Node::AnthropicUsage,
            (Node::Messages, b"delta") => Node::MessageDelta,
            (Node::Messages, b"content_block" | b"content") => Node::Block,
            (Node::MessageDelta, b"text" | b"thinking" | b"partial_json") => Node::Text,
            (Node::MessageDelta, b"stop_reason") => Node::Word(Word::Finish),
            // What a server tool found (`content`) was read, not written.
            (Node::Block, b"text" | b"thinking" | b"input" | b"data") => Node::Text,
            _ => Node::Dead,
        }
    }

    fn of_anthropic_usage(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::AnthropicUsage, b"input_tokens") => Node::Count(Field::Input),
            (Node::AnthropicUsage, b"output_tokens") => Node::Count(Field::Output),
            (Node::AnthropicUsage, b"cache_read_input_tokens") => Node::Count(Field::Cached),
            (Node::AnthropicUsage, b"cache_creation_input_tokens") => {
                Node::Count(Field::CacheWrite)
            }
            (Node::AnthropicUsage, b"cache_creation") => Node::CacheCreation,
            (Node::AnthropicUsage, b"server_tool_use") => Node::ServerTools,
            (Node::AnthropicUsage, b"output_tokens_details") => Node::ThinkingDetails,
            (Node::CacheCreation, b"ephemeral_5m_input_tokens") => Node::Count(Field::CacheWrite5m),
            (Node::CacheCreation, b"ephemeral_1h_input_tokens") => Node::Count(Field::CacheWrite1h),
            (Node::ServerTools, b"web_search_requests") => Node::Count(Field::ToolRequests),
            (Node::ThinkingDetails, b"thinking_tokens") => Node::Count(Field::Reasoning),
            _ => Node::Dead,
        }
    }

    fn of_gemini(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Gemini, b"candidates") => Node::Candidate,
            (Node::Gemini, b"usageMetadata") => Node::GeminiUsage,
            (Node::Gemini, b"promptFeedback") => Node::Feedback,
            (Node::Feedback, b"blockReason") => Node::Word(Word::Finish),
            (Node::Candidate, b"content") => Node::Content,
            (Node::Candidate, b"finishReason") => Node::Word(Word::Finish),
            (Node::Candidate, b"groundingMetadata") => Node::Grounding,
            (Node::Grounding, b"webSearchQueries") => Node::Query,
            (Node::Content, b"parts") => Node::Text,
            _ => Node::Dead,
        }
    }

    fn of_gemini_usage(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::GeminiUsage, b"promptTokenCount") => Node::Count(Field::Input),
            (Node::GeminiUsage, b"cachedContentTokenCount") => Node::Count(Field::Cached),
            (Node::GeminiUsage, b"candidatesTokenCount") => Node::Count(Field::Output),
            (Node::GeminiUsage, b"thoughtsTokenCount") => Node::Count(Field::Reasoning),
            (Node::GeminiUsage, b"toolUsePromptTokenCount") => Node::Count(Field::ToolInput),
            (Node::GeminiUsage, b"totalTokenCount") => Node::Count(Field::Total),
            (Node::GeminiUsage, b"promptTokensDetails") => Node::ModalityIn,
            (Node::GeminiUsage, b"candidatesTokensDetails") => Node::ModalityOut,
            (Node::ModalityIn | Node::ModalityOut, b"modality") => Node::Word(Word::Modality),
            (Node::ModalityIn | Node::ModalityOut, b"tokenCount") => Node::ModalityCount,
            _ => Node::Dead,
        }
    }

    fn of_ollama(self, key: &[u8]) -> Node {
        match (self, key) {
            (Node::Ollama, b"message") => Node::OllamaMessage,
            (Node::Ollama, b"response" | b"thinking") => Node::Text,
            (Node::OllamaMessage, b"content" | b"thinking" | b"tool_calls") => Node::Text,
            (Node::Ollama, b"done") => Node::Done,
            (Node::Ollama, b"prompt_eval_count") => Node::Count(Field::Input),
            (Node::Ollama, b"prompt_eval_cached_count") => Node::Count(Field::Cached),
            (Node::Ollama, b"eval_count") => Node::Count(Field::Output),
            _ => Node::Dead,
        }
    }
}

/// Within text: what is said about it is not part of it.
fn text(key: &[u8]) -> Node {
    match key {
        b"type" | b"id" | b"call_id" | b"role" | b"status" | b"index" | b"signature"
        | b"thoughtSignature" | b"encrypted_content" | b"annotations" | b"logprobs"
        | b"mimeType" | b"format" => Node::Dead,
        _ => Node::Text,
    }
}
