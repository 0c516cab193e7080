//! What a call used, in one normal form for every dialect. OpenAI and Gemini count cached tokens within the input,
//! Anthropic beside it: the difference ends at the tap.

/// Tokens of one call. No token is in two fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Usage {
    /// Read anew: neither from a cache nor into one.
    pub input: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub audio_in: u64,
    /// Without reasoning and audio.
    pub output: u64,
    pub reasoning: u64,
    pub audio_out: u64,
    /// Searches and the like that the provider ran by itself; priced a piece.
    pub tool_requests: u64,
}

/// How we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The provider's final word.
    Final,
    /// What the provider had said when the stream broke off, or more if we saw more.
    Partial,
    /// From what passed.
    Estimated,
    /// Nothing is known: the whole reservation counts.
    Reserved,
}

impl Usage {
    /// Everything that was read.
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

    /// Everything that was written.
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
