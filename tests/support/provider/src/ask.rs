//! What the caller asks for: the few fields of a body that change the answer, of all dialects in one.

use crate::{
    account::Tokens,
    route::{Dialect, Operation},
    settings::Script,
};
use serde::Deserialize;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ask {
    pub(crate) model: Option<String>,
    pub(crate) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    options: Option<OllamaOptions>,
    #[serde(rename = "generationConfig")]
    generation_config: Option<GenerationConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OllamaOptions {
    num_predict: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationConfig {
    #[serde(rename = "maxOutputTokens")]
    max_output_tokens: Option<u64>,
}

impl Ask {
    /// The dialect's own cap; those of others mean nothing to it.
    pub(crate) fn cap(&self, operation: Operation) -> Option<u64> {
        match operation {
            Operation::OpenAiResponses => self.max_output_tokens,
            Operation::AnthropicMessages => self.max_tokens,
            _ => match operation.dialect() {
                Dialect::OpenAi | Dialect::Anthropic => {
                    self.max_completion_tokens.or(self.max_tokens)
                }
                Dialect::Gemini => self.generation_config.as_ref()?.max_output_tokens,
                // -1 and -2 mean without end.
                Dialect::Ollama => u64::try_from(self.options.as_ref()?.num_predict?).ok(),
            },
        }
    }
}

/// How a stream is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Unary,
    Events,
    Lines,
    Array,
}

impl Flow {
    pub(crate) fn of(operation: Operation, ask: &Ask, query: &str) -> Flow {
        match operation {
            Operation::OpenAiChat | Operation::OpenAiResponses | Operation::AnthropicMessages => {
                if ask.stream == Some(true) {
                    Flow::Events
                } else {
                    Flow::Unary
                }
            }
            Operation::OllamaChat | Operation::OllamaGenerate => {
                if ask.stream == Some(false) {
                    Flow::Unary
                } else {
                    Flow::Lines
                }
            }
            Operation::GeminiStream => {
                if query.split('&').any(|part| part == "alt=sse") {
                    Flow::Events
                } else {
                    Flow::Array
                }
            }
            _ => Flow::Unary,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Flow::Unary | Flow::Array => "application/json",
            Flow::Events => "text/event-stream; charset=utf-8",
            Flow::Lines => "application/x-ndjson",
        }
    }
}

/// The answer that will be given if nothing comes between.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) operation: Operation,
    pub(crate) model: String,
    /// The same with its quotes, for frames that are not built from values.
    pub(crate) model_json: String,
    pub(crate) flow: Flow,
    pub(crate) include_usage: bool,
    /// Prompt and reasoning; `output` is what will be said.
    pub(crate) tokens: Tokens,
    /// The caller's cap made it shorter.
    pub(crate) capped: bool,
    pub(crate) script: Script,
    words: Vec<String>,
    /// In place of all words.
    pub(crate) echo: Option<String>,
}

impl Plan {
    pub(crate) fn new(
        number: u64,
        operation: Operation,
        ask: &Ask,
        flow: Flow,
        body: usize,
        script: Script,
    ) -> Plan {
        let words: Vec<_> = script
            .text
            .iter()
            .flat_map(|text| text.split_inclusive(' '))
            .map(str::to_owned)
            .collect();
        let wanted = if script.text.is_some() {
            words.len() as u64
        } else {
            script.tokens
        };
        let cap = if operation.generates() {
            ask.cap(operation)
                .filter(|_| !script.ignore_cap)
                .unwrap_or(u64::MAX)
        } else {
            0
        };
        let reasoning = script.reasoning.min(cap);
        let output = wanted.min(cap - reasoning);
        let model = ask.model.clone().unwrap_or_default();
        Plan {
            number,
            operation,
            model_json: serde_json::to_string(&model).unwrap_or_default(),
            model,
            flow,
            include_usage: ask
                .stream_options
                .as_ref()
                .is_some_and(|one| one.include_usage == Some(true)),
            tokens: Tokens {
                output,
                reasoning,
                ..prompt(operation, body, &script)
            },
            capped: output + reasoning < wanted + script.reasoning,
            script,
            words,
            echo: None,
        }
    }

    /// The text of one token.
    pub(crate) fn word(&self, index: u64) -> String {
        if let Some(echo) = self.echo.as_ref().filter(|_| index == 0) {
            return echo.clone();
        }
        if self.script.stamp {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            return format!("tok{} ", now.as_nanos());
        }
        let own = usize::try_from(index)
            .ok()
            .and_then(|index| self.words.get(index));
        own.cloned().unwrap_or_else(|| format!("tok{index} "))
    }

    /// The text of a unary answer.
    pub(crate) fn whole(&self) -> String {
        match (&self.echo, self.script.reply_bytes) {
            (Some(echo), _) => echo.clone(),
            (None, Some(size)) => "x".repeat(size),
            (None, None) => (0..self.tokens.output)
                .map(|index| self.word(index))
                .collect(),
        }
    }

    /// With so many of the tokens sent.
    pub(crate) fn sent(&self, output: u64) -> Tokens {
        Tokens {
            output,
            ..self.tokens
        }
    }
}

/// The prompt's tokens, by the rule that `Script::input` tells. Only Anthropic asks money for writing a cache.
fn prompt(operation: Operation, body: usize, script: &Script) -> Tokens {
    let writes = operation.dialect() == Dialect::Anthropic;
    let cache_write_5m = if writes { script.cache_write_5m } else { 0 };
    let cache_write_1h = if writes { script.cache_write_1h } else { 0 };
    let all = script.input.unwrap_or((body as u64).div_ceil(4));
    let input = all.saturating_sub(script.cache_read + cache_write_5m + cache_write_1h);
    Tokens {
        input,
        cache_read: script.cache_read,
        cache_write_5m,
        cache_write_1h,
        ..Tokens::default()
    }
}
