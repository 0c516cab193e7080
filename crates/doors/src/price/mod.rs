//! What models cost: a book that ships with the program, and the operator's own prices over it.

use crate::usage::Usage;
use spec::Money;
use std::sync::Arc;

/// Prices of one model, in nano-dollars per million tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Price {
    pub input: u64,
    pub output: u64,
    pub cache_read: Option<u64>,
    pub cache_write_5m: Option<u64>,
    pub cache_write_1h: Option<u64>,
    pub audio_in: Option<u64>,
    pub audio_out: Option<u64>,
    /// A tool that the provider runs, a piece, in nano-dollars.
    pub tool_request: Option<u64>,
    /// The most tokens that can be read at once.
    pub context: Option<u64>,
    /// The most tokens that one answer can have.
    pub most_output: Option<u64>,
}

/// All prices.
#[derive(Debug, Default)]
pub struct PriceBook {}

impl PriceBook {
    /// What is written in each ledger row: which book, and which prices of the operator over it.
    pub fn version(&self) -> &str {
        ""
    }

    /// The price of a provider's model. The operator's patterns are matched against `provider/model` and `model`, the
    /// longest first; then the book. None is not free: it is refused, or the ceiling if the operator set one.
    pub fn price(&self, _provider: &str, _model: &str) -> Option<Arc<Price>> {
        None
    }
}

impl Price {
    /// What this costs; rounded up.
    pub fn cost(&self, _usage: &Usage) -> Money {
        Money::ZERO
    }

    /// The most that so many input tokens can cost.
    pub fn worst_input(&self, _tokens: u64) -> Money {
        Money::ZERO
    }

    /// The most that so many output tokens can cost.
    pub fn worst_output(&self, _tokens: u64) -> Money {
        Money::ZERO
    }

    /// How many output tokens this much money pays for, at worst.
    pub fn affordable_output(&self, _money: Money) -> u64 {
        0
    }
}
