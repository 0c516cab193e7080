//! The records of the ledger.
//!
//! ```text
//! {"n":7,"at":1763200000000,"kind":"reserve",…,"prev":"…","hash":"…"}
//! ```
//!
//! Framing and hash chain belong to `journal`. Fields that are zero or empty are omitted.
//!
//! What a new record means after a crash is in `recovery.rs`; `engine/src/usage.rs` reads it for answers.

use crate::usage::{TokenUsage, UsageSource};
use std::borrow::Cow;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// An owner took the segment.
    Open,
    /// A reservation.
    Reserve,
    /// The settlement of the reservation `of`.
    Settle,
    /// A secret was injected into a run.
    Inject,
    /// Egress traffic or a refusal.
    Egress,
    /// A session ended.
    Revoke,
    /// The owner closed the segment properly.
    Close,
}

/// A ledger record; each kind uses its own fields.
#[derive(Debug, serde::Deserialize)]
pub struct LedgerRecord<'a> {
    /// Sequence number.
    pub n: u64,
    /// Milliseconds since 1970.
    pub at: u64,
    /// The kind, which decides the fields in use.
    pub kind: RecordKind,
    /// Name of the segment.
    #[serde(borrow, default)]
    pub segment: Cow<'a, str>,
    /// The run.
    #[serde(borrow, default)]
    pub run: Cow<'a, str>,
    /// The session.
    #[serde(borrow, default)]
    pub session: Cow<'a, str>,
    /// The tenant.
    #[serde(borrow, default)]
    pub tenant: Cow<'a, str>,
    /// `llm` or `inference`.
    #[serde(borrow, default)]
    pub door: Cow<'a, str>,
    /// Name of the provider.
    #[serde(borrow, default)]
    pub provider: Cow<'a, str>,
    /// The provider's name for the model.
    #[serde(borrow, default)]
    pub model: Cow<'a, str>,
    /// The API operation.
    #[serde(borrow, default)]
    pub operation: Cow<'a, str>,
    /// 1 for the first attempt.
    #[serde(default)]
    pub attempt: u32,
    /// Version of the price book.
    #[serde(borrow, default)]
    pub price_book: Cow<'a, str>,
    /// Nano-dollars: reserved, or charged.
    #[serde(default)]
    pub money: u64,
    /// Reserved tokens.
    #[serde(default)]
    pub tokens: u64,
    /// The reservation that is settled.
    #[serde(default)]
    pub of: u64,
    /// How the usage is known.
    #[serde(default)]
    pub source: Option<UsageSource>,
    /// The part of the charge beyond the reservation.
    #[serde(default)]
    pub overrun: u64,
    /// The provider's HTTP status.
    #[serde(default)]
    pub status: u16,
    /// How the response ended.
    #[serde(borrow, default)]
    pub ending: Cow<'a, str>,
    /// From the request to the end of the response.
    #[serde(default)]
    pub duration_ms: u64,
    /// Token usage.
    #[serde(default)]
    pub usage: TokenUsage,
    /// Name of the injected secret.
    #[serde(borrow, default)]
    pub secret: Cow<'a, str>,
    /// The environment variable it was injected as.
    #[serde(borrow, default)]
    pub variable: Cow<'a, str>,
}

impl journal::NumberedRecord for LedgerRecord<'_> {
    fn n(&self) -> u64 {
        self.n
    }
}

/// Writes the token usage of a call.
pub(super) fn write_usage<'l, 'a>(
    line: &'l mut journal::LineWriter<'a>,
    usage: &TokenUsage,
) -> &'l mut journal::LineWriter<'a> {
    line.numbers(
        "usage",
        [
            ("input", usage.input),
            ("cache_read", usage.cache_read),
            ("cache_write_5m", usage.cache_write_5m),
            ("cache_write_1h", usage.cache_write_1h),
            ("audio_in", usage.audio_in),
            ("output", usage.output),
            ("reasoning", usage.reasoning),
            ("audio_out", usage.audio_out),
            ("tool_requests", usage.tool_requests),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::{ChainHead, JournalReader, LineWriter};

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let mut buffer = Vec::new();
        let usage = TokenUsage {
            cache_read: 3,
            audio_out: u64::MAX,
            ..TokenUsage::default()
        };
        let mut line = LineWriter::begin(&mut buffer, 7, 8, "settle");
        let hostile = "a\"b\\c\n\u{0}\u{7f}ü😀";
        line.text("model", hostile)
            .number("money", 9)
            .text("source", "final");
        write_usage(&mut line, &usage).text("run", "");
        line.seal(&[1; 32]);
        let follows = |hash| {
            JournalReader::new(
                &buffer[..],
                ChainHead {
                    n: 6,
                    hash,
                    offset: 0,
                },
            )
        };
        assert!(follows([2; 32]).next_record::<LedgerRecord<'_>>().is_err());
        let mut reader = follows([1; 32]);
        let record: LedgerRecord<'_> = reader.next_record().unwrap().unwrap();
        assert_eq!(
            (record.n, record.at, record.kind, record.money),
            (7, 8, RecordKind::Settle, 9)
        );
        assert_eq!(
            (&*record.model, record.usage, record.source),
            (hostile, usage, Some(UsageSource::Final))
        );
    }
}
