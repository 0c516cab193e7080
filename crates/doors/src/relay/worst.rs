//! The worst that a call can cost, and how much of it the money allows.

use crate::{
    dialect::{Ask, Operation},
    price::Price,
    till::{Claim, Room},
};
use spec::Money;
use std::sync::Arc;

/// Below this an answer is of no use to anybody (some providers refuse less outright).
const LEAST_OUTPUT: u64 = 16;
/// The most tokens that a picture becomes, whatever its bytes; cheap models count them for many more.
const PICTURE: u64 = 6000;
const PICTURE_OF_CHEAP: u64 = 50_000;
/// What counts as cheap, in nano-dollars per million tokens.
const CHEAP: u64 = 500_000_000;
/// What a provider adds by itself to a request that brings tools.
const TOOL_WORDS: u64 = 2048;
/// How often a provider runs its own tools in one call, as far as is paid for ahead.
const SERVER_TOOL_USES: u64 = 16;
/// No answer is longer, whatever a request says.
const LONGEST_OUTPUT: u64 = 1 << 20;
/// Where neither the request nor the price book says how long an answer can get.
const USUAL_MOST_OUTPUT: u64 = 64 << 10;

/// What a call can come to.
pub(super) struct Worst {
    price: Arc<Price>,
    input: u64,
    fees: Money,
    output: Option<Output>,
}

#[derive(Clone, Copy)]
struct Output {
    wanted: u64,
    choices: u64,
}

/// What was decided about the length of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    /// What is to be reserved.
    pub(super) claim: Claim,
    /// The limit to write into the request, if that has to change.
    pub(super) cap: Option<u64>,
    /// Output tokens after which the stream is cut; none if there is no limit to hold.
    pub(super) cut: Option<u64>,
    /// There is a limit of money or tokens to hold.
    pub(super) limited: bool,
}

fn writes(operation: Operation) -> bool {
    !matches!(
        operation,
        Operation::Embeddings | Operation::GeminiEmbed | Operation::OllamaEmbed
    )
}

impl Worst {
    /// Of a request; none if its input cannot be bounded.
    pub(super) fn of(
        operation: Operation,
        body: usize,
        ask: &Ask,
        price: Arc<Price>,
    ) -> Option<Worst> {
        // No tokenizer makes more tokens than there are bytes; what lies beyond the body can fill the whole context.
        // Pictures are counted beside the context by some, and many texts are embedded at once.
        let text = match (ask.refers_beyond || ask.server_tools, price.context) {
            (true, context) => context?,
            (false, Some(context)) if writes(operation) => context.min(body as u64),
            (false, _) => body as u64,
        };
        let picture = if price.input <= CHEAP {
            PICTURE_OF_CHEAP
        } else {
            PICTURE
        };
        let tools = if ask.tools { TOOL_WORDS } else { 0 };
        let input = text
            .saturating_add(ask.pictures.saturating_mul(picture))
            .saturating_add(tools);
        let fees = if ask.server_tools {
            price.tools(SERVER_TOOL_USES)
        } else {
            Money::ZERO
        };
        let output = writes(operation).then(|| {
            let most = price.most_output.unwrap_or(USUAL_MOST_OUTPUT);
            let said = ask
                .cap
                .as_ref()
                .map(|cap| cap.tokens.min(price.most_output.unwrap_or(LONGEST_OUTPUT)));
            Output {
                wanted: said.unwrap_or(most),
                choices: ask.choices.max(1),
            }
        });
        Some(Worst {
            price,
            input,
            fees,
            output,
        })
    }

    /// What may be claimed, given the room there is; nothing if it is too little.
    pub(super) fn within(&self, room: Room) -> Option<Allowed> {
        let input = self.price.worst_input(self.input).plus(self.fees);
        let fits = |claim: &Claim| {
            room.money.is_none_or(|money| claim.money <= money)
                && room.tokens.is_none_or(|tokens| claim.tokens <= tokens)
        };
        let limited = room.money.is_some() || room.tokens.is_some();
        let Some(Output { wanted, choices }) = self.output else {
            let claim = Claim {
                money: input,
                tokens: self.input,
            };
            return fits(&claim).then_some(Allowed {
                claim,
                cap: None,
                cut: None,
                limited,
            });
        };
        let payable = room
            .money
            .map_or(u64::MAX, |money| self.payable(money, input) / choices);
        let countable = room.tokens.map_or(u64::MAX, |tokens| {
            tokens.saturating_sub(self.input) / choices
        });
        let most = wanted.min(payable).min(countable);
        if most < wanted.min(LEAST_OUTPUT) {
            return None;
        }
        let output = most.saturating_mul(choices);
        let claim = Claim {
            money: input.plus(self.price.worst_output(output)),
            tokens: self.input.saturating_add(output),
        };
        let limit = |value: u64| limited.then_some(value);
        fits(&claim).then_some(Allowed {
            claim,
            cap: limit(most),
            cut: limit(output),
            limited,
        })
    }

    fn payable(&self, money: Money, input: Money) -> u64 {
        match money >= input {
            true => self.price.affordable_output(money.minus(input)),
            false => 0,
        }
    }

    /// The most tokens that the request can be.
    pub(super) fn input(&self) -> u64 {
        self.input
    }

    /// The price that was in force when the call was admitted.
    pub(super) fn price(&self) -> &Arc<Price> {
        &self.price
    }
}
