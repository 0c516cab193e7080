//! Model prices: the shipped book, with the operator's prices over it. Amounts are integer
//! nano-dollars per million tokens, multiplied in 128 bits and rounded up once. An unknown price is
//! not free, and an unknown part of a price costs what the most expensive known part of its kind
//! costs.

mod book;

pub use book::{PriceBook, UnknownPricePolicy};

use crate::usage::TokenUsage;
use spec::Money;

/// Prices of one model, in nano-dollars per million tokens. Missing parts are charged as input or
/// output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Input.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// Input that is read from a cache.
    pub cache_read: Option<u64>,
    /// Input that is cached for five minutes.
    pub cache_write_5m: Option<u64>,
    /// Input that is cached for an hour.
    pub cache_write_1h: Option<u64>,
    /// Audio input.
    pub audio_in: Option<u64>,
    /// Audio output.
    pub audio_out: Option<u64>,
    /// Price of one tool use by the provider, in nano-dollars.
    pub tool_request: Option<u64>,
    /// Context length in tokens.
    pub context: Option<u64>,
    /// Maximum output tokens of one answer.
    pub most_output: Option<u64>,
    /// Prices for calls with a long input, by rising threshold.
    pub tiers: Vec<Tier>,
}

/// The price of a whole call whose input exceeds a threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    /// Threshold in input tokens, all kinds together.
    pub above: u64,
    /// Input.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// Input that is read from a cache.
    pub cache_read: Option<u64>,
    /// Input that is cached for five minutes.
    pub cache_write_5m: Option<u64>,
    /// Input that is cached for an hour.
    pub cache_write_1h: Option<u64>,
}

/// A price without missing parts.
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
    /// The cost of this usage, rounded up.
    pub fn cost(&self, usage: &TokenUsage) -> Money {
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
            sum.saturating_add(cost_in_millionths(tokens, rate))
        });
        money(total).plus(self.tool_cost(usage.tool_requests))
    }

    /// The highest possible cost of this many input tokens.
    pub fn max_input_cost(&self, tokens: u64) -> Money {
        let applicable = self
            .tiers
            .iter()
            .filter(|tier| tier.above < tokens)
            .map(|tier| self.tier_rates(tier));
        let highest = applicable
            .chain([self.base_rates()])
            .map(|rates| rates.highest_input_rate())
            .max()
            .unwrap_or_default();
        money(cost_in_millionths(tokens, highest))
    }

    /// The highest possible cost of this many output tokens.
    pub fn max_output_cost(&self, tokens: u64) -> Money {
        money(cost_in_millionths(tokens, self.highest_output_rate()))
    }

    /// Output tokens that this much money pays for in the worst case.
    pub fn affordable_output(&self, money: Money) -> u64 {
        match u128::from(self.highest_output_rate()) {
            0 => u64::MAX,
            highest => u64::try_from(u128::from(money.0) * MILLION / highest).unwrap_or(u64::MAX),
        }
    }

    /// The cost of tool uses by the provider. Without a price a use costs as much as a thousand
    /// output tokens, or one cent if that is more: it must not be free.
    pub fn tool_cost(&self, requests: u64) -> Money {
        const UNKNOWN: u64 = 10_000_000;
        let piece = self
            .tool_request
            .unwrap_or_else(|| UNKNOWN.max(self.output / 1000));
        Money(requests.saturating_mul(piece))
    }

    /// Fills missing parts from another price of the same model, in proportion: an operator who
    /// pays half of the listed input price pays half for cached input, too.
    #[must_use]
    fn with_defaults_from(mut self, listed: &Price) -> Price {
        let own_input = self.input;
        let own_output = self.output;
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
        let applicable = self
            .tiers
            .iter()
            .filter(|tier| tier.above < input_tokens)
            .max_by_key(|tier| tier.above);
        applicable.map_or_else(|| self.base_rates(), |tier| self.tier_rates(tier))
    }

    fn base_rates(&self) -> Rates {
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

    fn tier_rates(&self, tier: &Tier) -> Rates {
        let base_rates = self.base_rates();
        let cache_write_5m = tier
            .cache_write_5m
            .unwrap_or(tier.input.max(base_rates.cache_write_5m));
        Rates {
            input: tier.input,
            cache_read: tier.cache_read.unwrap_or(tier.input),
            cache_write_5m,
            cache_write_1h: tier
                .cache_write_1h
                .unwrap_or(cache_write_5m.max(base_rates.cache_write_1h)),
            audio_in: tier.input.max(base_rates.audio_in),
            output: tier.output,
            audio_out: tier.output.max(base_rates.audio_out),
        }
    }

    /// The maximum over all tiers: the real input length is known too late.
    fn highest_output_rate(&self) -> u64 {
        let tiers = self.tiers.iter().map(|tier| self.tier_rates(tier));
        tiers
            .chain([self.base_rates()])
            .map(|rates| rates.output.max(rates.audio_out))
            .max()
            .unwrap_or_default()
    }
}

impl Rates {
    fn highest_input_rate(&self) -> u64 {
        self.input
            .max(self.cache_read)
            .max(self.cache_write_5m)
            .max(self.cache_write_1h)
            .max(self.audio_in)
    }
}

fn cost_in_millionths(tokens: u64, rate: u64) -> u128 {
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
