//! What a line of the ledger says.
//!
//! ```text
//! {"n":7,"at":1763200000000,"kind":"reserve",…,"prev":"…","hash":"…"}
//! ```
//!
//! How it is written and bound to the one before: `journal`. What is zero or empty is left out.

use crate::usage::{Source, Usage};
use std::borrow::Cow;

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    /// An owner takes the segment over.
    Open,
    Reserve,
    /// The end of the reservation `of`.
    Settle,
    /// A secret was put into a run.
    Inject,
    /// Something passed at an egress door, or did not.
    Egress,
    /// A session is over.
    Revoke,
    /// The owner went in peace.
    Close,
}

/// What a line says; each kind uses its own part.
#[derive(Debug, serde::Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Row<'a> {
    pub n: u64,
    /// Milliseconds since 1970.
    pub at: u64,
    pub kind: Kind,
    #[serde(borrow, default)]
    pub segment: Cow<'a, str>,
    #[serde(borrow, default)]
    pub run: Cow<'a, str>,
    #[serde(borrow, default)]
    pub session: Cow<'a, str>,
    #[serde(borrow, default)]
    pub tenant: Cow<'a, str>,
    #[serde(borrow, default)]
    pub door: Cow<'a, str>,
    #[serde(borrow, default)]
    pub provider: Cow<'a, str>,
    #[serde(borrow, default)]
    pub model: Cow<'a, str>,
    #[serde(borrow, default)]
    pub operation: Cow<'a, str>,
    #[serde(default)]
    pub attempt: u32,
    #[serde(borrow, default)]
    pub price_book: Cow<'a, str>,
    /// Nano-dollars: reserved, or spent.
    #[serde(default)]
    pub money: u64,
    /// Reserved.
    #[serde(default)]
    pub tokens: u64,
    #[serde(default)]
    pub of: u64,
    #[serde(default)]
    pub source: Option<Source>,
    #[serde(default)]
    pub overrun: u64,
    #[serde(default)]
    pub status: u16,
    #[serde(borrow, default)]
    pub ending: Cow<'a, str>,
    #[serde(default)]
    pub duration_ms: u64,
    #[serde(default)]
    pub usage: Usage,
    #[serde(borrow, default)]
    pub secret: Cow<'a, str>,
    #[serde(borrow, default)]
    pub variable: Cow<'a, str>,
}

impl journal::Numbered for Row<'_> {
    fn n(&self) -> u64 {
        self.n
    }
}

/// Writes what a call used.
pub(super) fn usage_of<'l, 'a>(
    line: &'l mut journal::Line<'a>,
    usage: &Usage,
) -> &'l mut journal::Line<'a> {
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
    use journal::{Head, Line, Reader};

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let mut buffer = Vec::new();
        let usage = Usage {
            cache_read: 3,
            audio_out: u64::MAX,
            ..Usage::default()
        };
        let mut line = Line::begin(&mut buffer, 7, 8, "settle");
        let hostile = "a\"b\\c\n\u{0}\u{7f}ü😀";
        line.text("model", hostile)
            .number("money", 9)
            .text("source", "final");
        usage_of(&mut line, &usage).text("run", "");
        line.seal(&[1; 32]);
        let follows = |hash| {
            Reader::new(
                &buffer[..],
                Head {
                    n: 6,
                    hash,
                    offset: 0,
                },
            )
        };
        assert!(follows([2; 32]).next_record::<Row<'_>>().is_err());
        let mut reader = follows([1; 32]);
        let row: Row<'_> = reader.next_record().unwrap().unwrap();
        assert_eq!(
            (row.n, row.at, row.kind, row.money),
            (7, 8, Kind::Settle, 9)
        );
        assert_eq!(
            (&*row.model, row.usage, row.source),
            (hostile, usage, Some(Source::Final))
        );
    }
}
