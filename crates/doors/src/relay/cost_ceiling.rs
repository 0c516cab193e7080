//! The cost ceiling of a call: its worst-case cost, and the output limit that the remaining budget
//! allows.

use crate::{
    budget::{Amount, RemainingBudget},
    dialect::{ModelOperation, ParsedBody},
    price::Price,
};
use spec::Money;
use std::sync::Arc;

/// A shorter answer is useless (some providers reject lower limits).
const MIN_OUTPUT_TOKENS: u64 = 16;
/// Maximum tokens of an image, whatever its size; cheap models count images as many more.
const IMAGE_TOKENS: u64 = 6000;
const CHEAP_MODEL_IMAGE_TOKENS: u64 = 50_000;
/// Models up to this price count as cheap, in nano-dollars per million tokens.
const CHEAP_INPUT_PRICE: u64 = 500_000_000;
/// Prompt tokens that a provider adds to a request with tools.
const TOOL_PROMPT_TOKENS: u64 = 2048;
/// Uses of the provider's own tools that are reserved per call.
const SERVER_TOOL_USES: u64 = 16;
/// Upper bound of any answer, whatever a request says.
const MAX_OUTPUT_TOKENS: u64 = 1 << 20;
/// Where neither the request nor the price book limits the output.
const DEFAULT_MAX_OUTPUT_TOKENS: u64 = 64 << 10;

/// The worst-case cost of a call.
pub(super) struct CostCeiling {
    price: Arc<Price>,
    input: u64,
    fees: Money,
    output: Option<OutputBounds>,
}

#[derive(Clone, Copy)]
struct OutputBounds {
    requested: u64,
    choices: u64,
}

/// The limits of an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallLimits {
    /// The amount to reserve.
    pub(super) amount: Amount,
    /// The output limit to write into the request, if it has to change.
    pub(super) cap: Option<u64>,
    /// Output tokens after which the stream is cut; `None` without a budget.
    pub(super) cut: Option<u64>,
    /// A money or token budget applies.
    pub(super) limited: bool,
    /// The budget made the output limit lower than requested: an overrun is then a budget error.
    pub(super) shortened: bool,
}

fn writes(operation: ModelOperation) -> bool {
    !matches!(
        operation,
        ModelOperation::Embeddings | ModelOperation::GeminiEmbed | ModelOperation::OllamaEmbed
    )
}

impl CostCeiling {
    /// Computes the ceiling of a request; `None` if its input is unbounded.
    pub(super) fn of(
        operation: ModelOperation,
        body: usize,
        parsed: &ParsedBody,
        price: Arc<Price>,
    ) -> Option<CostCeiling> {
        // A text has at most one token per byte; external content can fill the whole context. Some
        // providers count images beside the context, and an embedding request has many texts.
        let text = match (parsed.refers_beyond || parsed.server_tools, price.context) {
            (true, context) => context?,
            (false, Some(context)) if writes(operation) => context.min(body as u64),
            (false, _) => body as u64,
        };
        let picture = if price.input <= CHEAP_INPUT_PRICE {
            CHEAP_MODEL_IMAGE_TOKENS
        } else {
            IMAGE_TOKENS
        };
        let tools = if parsed.tools { TOOL_PROMPT_TOKENS } else { 0 };
        let input = text
            .saturating_add(parsed.pictures.saturating_mul(picture))
            .saturating_add(tools);
        let fees = if parsed.server_tools {
            price.tool_cost(SERVER_TOOL_USES)
        } else {
            Money::ZERO
        };
        let output = writes(operation).then(|| {
            let most = price.most_output.unwrap_or(DEFAULT_MAX_OUTPUT_TOKENS);
            let requested_cap = parsed.cap.as_ref().map(|cap| {
                cap.tokens
                    .min(price.most_output.unwrap_or(MAX_OUTPUT_TOKENS))
            });
            OutputBounds {
                requested: requested_cap.unwrap_or(most),
                choices: parsed.choices.max(1),
            }
        });
        Some(CostCeiling {
            price,
            input,
            fees,
            output,
        })
    }

    /// The limits of the call within the remaining budget; `None` if that is too little.
    pub(super) fn within(&self, remaining: RemainingBudget) -> Option<CallLimits> {
        let input = self.price.max_input_cost(self.input).plus(self.fees);
        let fits = |amount: &Amount| {
            remaining.money.is_none_or(|money| amount.money <= money)
                && remaining
                    .tokens
                    .is_none_or(|tokens| amount.tokens <= tokens)
        };
        let limited = remaining.money.is_some() || remaining.tokens.is_some();
        let Some(OutputBounds { requested, choices }) = self.output else {
            let amount = Amount {
                money: input,
                tokens: self.input,
            };
            return fits(&amount).then_some(CallLimits {
                amount,
                cap: None,
                cut: None,
                limited,
                shortened: false,
            });
        };
        let affordable_output = remaining.money.map_or(u64::MAX, |money| {
            self.affordable_output(money, input) / choices
        });
        let countable_output = remaining.tokens.map_or(u64::MAX, |tokens| {
            tokens.saturating_sub(self.input) / choices
        });
        let most = requested.min(affordable_output).min(countable_output);
        if most < requested.min(MIN_OUTPUT_TOKENS) {
            return None;
        }
        let output = most.saturating_mul(choices);
        let amount = Amount {
            money: input.plus(self.price.max_output_cost(output)),
            tokens: self.input.saturating_add(output),
        };
        let limit = |value: u64| limited.then_some(value);
        fits(&amount).then_some(CallLimits {
            amount,
            cap: limit(most),
            cut: limit(output),
            limited,
            shortened: most < requested,
        })
    }

    fn affordable_output(&self, money: Money, input: Money) -> u64 {
        if money >= input {
            self.price.affordable_output(money.minus(input))
        } else {
            0
        }
    }

    /// Maximum input tokens of the request.
    pub(super) fn input(&self) -> u64 {
        self.input
    }

    /// The price at admission.
    pub(super) fn price(&self) -> &Arc<Price> {
        &self.price
    }
}
