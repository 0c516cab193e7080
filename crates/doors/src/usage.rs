//! Token usage of a call in one normal form for every dialect. OpenAI and Gemini include cached
//! tokens in the input, Anthropic counts them separately: the tap normalises both.

/// Tokens of one call. No token is counted in two fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct TokenUsage {
    /// Neither read from a cache nor written into one.
    pub input: u64,
    /// Read from a cache.
    pub cache_read: u64,
    /// Written into a cache for five minutes.
    pub cache_write_5m: u64,
    /// Written into a cache for an hour.
    pub cache_write_1h: u64,
    /// Audio input.
    pub audio_in: u64,
    /// Without reasoning and audio.
    pub output: u64,
    /// Reasoning output.
    pub reasoning: u64,
    /// Audio output.
    pub audio_out: u64,
    /// Searches and other tools that the provider ran; priced per use.
    pub tool_requests: u64,
}

/// How the usage is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// The provider's final report.
    Final,
    /// The provider's report when the stream broke off, or more if more was seen.
    Partial,
    /// Estimated from the bytes.
    Estimated,
    /// Unknown: the whole reservation is charged.
    Reserved,
}

impl TokenUsage {
    /// Clamps every field.
    pub(crate) fn within(self, most: u64) -> TokenUsage {
        TokenUsage {
            input: self.input.min(most),
            cache_read: self.cache_read.min(most),
            cache_write_5m: self.cache_write_5m.min(most),
            cache_write_1h: self.cache_write_1h.min(most),
            audio_in: self.audio_in.min(most),
            output: self.output.min(most),
            reasoning: self.reasoning.min(most),
            audio_out: self.audio_out.min(most),
            tool_requests: self.tool_requests.min(most),
        }
    }

    /// All input tokens.
    pub fn input_tokens(&self) -> u64 {
        [
            self.input,
            self.cache_read,
            self.cache_write_5m,
            self.cache_write_1h,
            self.audio_in,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// All output tokens.
    pub fn output_tokens(&self) -> u64 {
        [self.output, self.reasoning, self.audio_out]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Input and output.
    pub fn tokens(&self) -> u64 {
        self.input_tokens().saturating_add(self.output_tokens())
    }
}
