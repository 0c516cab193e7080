//! What models cost: a book that ships with the program, and the operator's own prices over it.
//!
//! Whole nano-dollars per million tokens, multiplied in 128 bits, rounded up once. A price that is not known is not
//! free, and a part of a price that is not known costs what the dearest known thing of its kind costs.

mod book;

pub use book::{PriceBook, Unknown};

use crate::usage::Usage;
use spec::Money;

/// Prices of one model, in nano-dollars per million tokens. What is absent is charged as input or output.
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
    /// Other prices for calls with a long input, by rising bound.
    pub tiers: Vec<Tier>,
}

/// What a whole call costs once its input is longer than this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Tier {
    /// Tokens of input, all kinds together.
    pub above: u64,
    pub input: u64,
    pub output: u64,
    pub cache_read: Option<u64>,
    pub cache_write_5m: Option<u64>,
    pub cache_write_1h: Option<u64>,
}

/// A price without gaps.
struct Rates {
    input: u64,
    cache_read: u64,
    cache_write_5m: u64,
    cache_write_1h: u64,
    audio_in: u64,
    output: u64,
    audio_out: u64,
}

const MILLION: u128 = 1_000_000;

impl Price {
    /// What this costs; rounded up.
    pub fn cost(&self, usage: &Usage) -> Money {
        let rates = self.rates(usage.input_tokens());
        let parts = [
            (usage.input, rates.input),
            (usage.cache_read, rates.cache_read),
            (usage.cache_write_5m, rates.cache_write_5m),
            (usage.cache_write_1h, rates.cache_write_1h),
            (usage.audio_in, rates.audio_in),
            (usage.output, rates.output),
            (usage.reasoning, rates.output),
            (usage.audio_out, rates.audio_out),
        ];
        let total = parts.into_iter().fold(0_u128, |sum, (tokens, rate)| {
            sum.saturating_add(product(tokens, rate))
        });
        money(total).plus(self.tools(usage.tool_requests))
    }

    /// The most that so many input tokens can cost.
    pub fn worst_input(&self, tokens: u64) -> Money {
        let reached = self
            .tiers
            .iter()
            .filter(|tier| tier.above < tokens)
            .map(|tier| self.in_tier(tier));
        let dearest = reached
            .chain([self.base()])
            .map(|rates| rates.dearest_input())
            .max()
            .unwrap_or_default();
        money(product(tokens, dearest))
    }

    /// The most that so many output tokens can cost.
    pub fn worst_output(&self, tokens: u64) -> Money {
        money(product(tokens, self.dearest_output()))
    }

    /// How many output tokens this much money pays for, at worst.
    pub fn affordable_output(&self, money: Money) -> u64 {
        match u128::from(self.dearest_output()) {
            0 => u64::MAX,
            dearest => u64::try_from(u128::from(money.0) * MILLION / dearest).unwrap_or(u64::MAX),
        }
    }

    /// What so many tools that the provider ran cost. One without a price costs what a thousand output tokens do, or
    /// a cent if that is more: it must not be free.
    pub fn tools(&self, requests: u64) -> Money {
        const UNKNOWN: u64 = 10_000_000;
        let piece = self
            .tool_request
            .unwrap_or_else(|| UNKNOWN.max(self.output / 1000));
        Money(requests.saturating_mul(piece))
    }

    /// Fills what is absent from another price of the same model, in proportion: whoever pays half of the listed
    /// price for input pays half for what is cached, too.
    #[must_use]
    fn filled_from(mut self, listed: &Price) -> Price {
        let (own_input, own_output) = (self.input, self.output);
        let input = |listed_part: u64| proportion(listed_part, own_input, listed.input);
        let output = |listed_part: u64| proportion(listed_part, own_output, listed.output);
        self.cache_read = self.cache_read.or(listed.cache_read.map(input));
        self.cache_write_5m = self.cache_write_5m.or(listed.cache_write_5m.map(input));
        self.cache_write_1h = self.cache_write_1h.or(listed.cache_write_1h.map(input));
        self.audio_in = self.audio_in.or(listed.audio_in.map(input));
        self.audio_out = self.audio_out.or(listed.audio_out.map(output));
        self.tool_request = self.tool_request.or(listed.tool_request);
        self.context = self.context.or(listed.context);
        self.most_output = self.most_output.or(listed.most_output);
        if self.tiers.is_empty() {
            let scaled = |tier: &Tier| Tier {
                above: tier.above,
                input: input(tier.input),
                output: output(tier.output),
                cache_read: tier.cache_read.map(input),
                cache_write_5m: tier.cache_write_5m.map(input),
                cache_write_1h: tier.cache_write_1h.map(input),
            };
            self.tiers = listed.tiers.iter().map(scaled).collect();
        }
        self
    }

    fn rates(&self, input_tokens: u64) -> Rates {
        let reached = self
            .tiers
            .iter()
            .filter(|tier| tier.above < input_tokens)
            .max_by_key(|tier| tier.above);
        reached.map_or_else(|| self.base(), |tier| self.in_tier(tier))
    }

    fn base(&self) -> Rates {
        let cache_write_5m = self.cache_write_5m.unwrap_or(self.input);
        Rates {
            input: self.input,
            cache_read: self.cache_read.unwrap_or(self.input),
            cache_write_5m,
            cache_write_1h: self.cache_write_1h.unwrap_or(cache_write_5m),
            audio_in: self.audio_in.unwrap_or(self.input),
            output: self.output,
            audio_out: self.audio_out.unwrap_or(self.output),
        }
    }

    fn in_tier(&self, tier: &Tier) -> Rates {
        let base = self.base();
        let cache_write_5m = tier
            .cache_write_5m
            .unwrap_or(tier.input.max(base.cache_write_5m));
        Rates {
            input: tier.input,
            cache_read: tier.cache_read.unwrap_or(tier.input),
            cache_write_5m,
            cache_write_1h: tier
                .cache_write_1h
                .unwrap_or(cache_write_5m.max(base.cache_write_1h)),
            audio_in: tier.input.max(base.audio_in),
            output: tier.output,
            audio_out: tier.output.max(base.audio_out),
        }
    }

    /// In any tier: how long the input really was is known when it is too late.
    fn dearest_output(&self) -> u64 {
        let tiers = self.tiers.iter().map(|tier| self.in_tier(tier));
        tiers
            .chain([self.base()])
            .map(|rates| rates.output.max(rates.audio_out))
            .max()
            .unwrap_or_default()
    }
}

impl Rates {
    fn dearest_input(&self) -> u64 {
        self.input
            .max(self.cache_read)
            .max(self.cache_write_5m)
            .max(self.cache_write_1h)
            .max(self.audio_in)
    }
}

fn product(tokens: u64, rate: u64) -> u128 {
    u128::from(tokens) * u128::from(rate)
}

fn money(millionths: u128) -> Money {
    Money(u64::try_from(millionths.div_ceil(MILLION)).unwrap_or(u64::MAX))
}

fn proportion(part: u64, own: u64, listed: u64) -> u64 {
    match listed {
        0 => part,
        _ => u64::try_from((u128::from(part) * u128::from(own)).div_ceil(u128::from(listed)))
            .unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests;
