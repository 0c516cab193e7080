//! What one account has, holds and may: its limits, and which of them is the tightest.

use super::{
    Claim, Day, Level, Refused, Terms, Used,
    clock::{Bucket, Now},
};
use crate::ledger::{Outcome, Past};
use crate::usage::Source;
use spec::Money;

#[derive(Debug)]
pub(super) struct State {
    pub(super) terms: Terms,
    /// How many handles there are.
    pub(super) handles: usize,
    pub(super) used: Used,
    /// Spent, where a reservation that was lost counts in full.
    tokens: u64,
    held_tokens: u64,
    held_calls: u32,
    day: u64,
    day_money: Money,
    requests: Option<Bucket>,
    tokens_bucket: Option<Bucket>,
}

/// What is left of the tightest limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tight {
    pub(super) left: u64,
    limit: &'static str,
    /// There is more when calls under way are settled.
    held: bool,
    resets_in: Option<u64>,
}

impl Tight {
    /// Why a call does not fit; `money` is what is left of it.
    pub(super) fn refusal(&self, money: Option<Money>) -> Refused {
        match self.held {
            true => Refused::Busy {
                limit: self.limit,
                wait: 1,
            },
            false => Refused::Spent {
                limit: self.limit,
                left: money,
                resets_in: self.resets_in,
            },
        }
    }
}

impl State {
    pub(super) fn new(terms: Terms, past: Past, now: Now) -> State {
        let bucket = |rate: Option<u64>| rate.map(|rate| Bucket::new(rate, now));
        let (requests, tokens_bucket) = (
            bucket(terms.requests_per_minute),
            bucket(terms.tokens_per_minute),
        );
        let used = Used {
            calls: past.calls,
            input_tokens: past.input_tokens,
            output_tokens: past.output_tokens,
            cached_tokens: past.cached_tokens,
            money: past.money,
            overrun: past.overrun,
            held: Money::ZERO,
        };
        // A day that is yet to come was written under a clock that was wrong: it was spent today.
        let day_money = if past.day >= now.day() {
            past.day_money
        } else {
            Money::ZERO
        };
        State {
            terms,
            handles: 0,
            used,
            tokens: past.tokens,
            held_tokens: 0,
            held_calls: 0,
            day: now.day(),
            day_money,
            requests,
            tokens_bucket,
        }
    }

    /// New limits for an account that is open already. A rate that stays the same stays as empty as it is.
    pub(super) fn agree(&mut self, terms: Terms, now: Now) {
        let renew = |bucket: &mut Option<Bucket>, rate: Option<u64>| {
            if bucket.as_ref().map(Bucket::rate) != rate {
                *bucket = rate.map(|rate| Bucket::new(rate, now));
            }
        };
        renew(&mut self.requests, terms.requests_per_minute);
        renew(&mut self.tokens_bucket, terms.tokens_per_minute);
        // Who shares an account may narrow it for all, and widen it for none. What a tenant may use, its operator says.
        let budget = match terms.level {
            Level::Run | Level::Session => terms.budget.within(&self.terms.budget),
            Level::Tenant => terms.budget.clone(),
        };
        self.terms = Terms { budget, ..terms };
    }

    pub(super) fn pass_time(&mut self, now: Now) {
        if now.day() > self.day {
            (self.day, self.day_money) = (now.day(), Money::ZERO);
        }
        self.requests
            .iter_mut()
            .chain(&mut self.tokens_bucket)
            .for_each(|bucket| bucket.fill(now));
    }

    pub(super) fn day(&self, now: Now) -> Day {
        let (limit, spent, held) = (self.terms.day, self.day_money, self.used.held);
        Day {
            limit,
            spent,
            held,
            resets_in: now.until_tomorrow(),
        }
    }

    /// The tightest limit of money.
    pub(super) fn money(&self, now: Now) -> Option<Tight> {
        let level = self.terms.level;
        let held = self.used.held;
        let left = |limit: Money, spent: Money| limit.minus(spent).minus(held).0;
        let total = self.terms.budget.money.map(|limit| Tight {
            left: left(limit, self.used.money),
            limit: level.name("run_usd", "session_usd", "tenant_usd"),
            held: held > Money::ZERO && limit > self.used.money,
            resets_in: None,
        });
        let day = self.terms.day.map(|limit| Tight {
            left: left(limit, self.day_money),
            limit: level.name("run_day_usd", "session_day_usd", "tenant_day_usd"),
            held: held > Money::ZERO && limit > self.day_money,
            resets_in: Some(now.until_tomorrow()),
        });
        let call = self.terms.budget.call.map(|limit| Tight {
            left: limit.0,
            limit: "call_usd",
            held: false,
            resets_in: None,
        });
        total.into_iter().chain(day).chain(call).min()
    }

    /// The tightest limit of tokens.
    pub(super) fn tokens(&self) -> Option<Tight> {
        let total = self.terms.budget.tokens.map(|limit| Tight {
            left: limit
                .saturating_sub(self.tokens)
                .saturating_sub(self.held_tokens),
            limit: self.terms.level.name("tokens", "tokens", "tenant_tokens"),
            held: self.held_tokens > 0 && limit > self.tokens,
            resets_in: None,
        });
        let minute = self.tokens_bucket.as_ref().map(|bucket| Tight {
            left: bucket.rate(),
            limit: self.terms.level.name(
                "tokens_per_minute",
                "tokens_per_minute",
                "tenant_tokens_per_minute",
            ),
            held: false,
            resets_in: None,
        });
        total.into_iter().chain(minute).min()
    }

    /// Requests that are spent for good.
    pub(super) fn spent_requests(&self) -> Option<Refused> {
        let limit = self
            .terms
            .level
            .name("requests", "requests", "tenant_requests");
        let spent = self
            .terms
            .budget
            .requests
            .is_some_and(|most| self.used.calls >= most);
        spent.then_some(Refused::Spent {
            limit,
            left: None,
            resets_in: None,
        })
    }

    /// What passes by itself.
    pub(super) fn busy(&self, claim: Claim) -> Option<Refused> {
        let level = self.terms.level;
        let busy = |limit, wait| (wait > 0).then_some(Refused::Busy { limit, wait });
        let crowded = self
            .terms
            .budget
            .concurrent
            .is_some_and(|most| self.held_calls >= most);
        busy(
            level.name("concurrent", "concurrent", "tenant_concurrent"),
            u64::from(crowded),
        )
        .or_else(|| {
            let limit = level.name(
                "requests_per_minute",
                "requests_per_minute",
                "tenant_requests_per_minute",
            );
            busy(
                limit,
                self.requests.as_ref().map_or(0, |bucket| bucket.wait(1)),
            )
        })
        .or_else(|| {
            let limit = level.name(
                "tokens_per_minute",
                "tokens_per_minute",
                "tenant_tokens_per_minute",
            );
            busy(
                limit,
                self.tokens_bucket
                    .as_ref()
                    .map_or(0, |bucket| bucket.wait(claim.tokens)),
            )
        })
    }

    pub(super) fn hold(&mut self, claim: Claim) {
        self.used.calls += 1;
        self.used.held = self.used.held.plus(claim.money);
        self.held_tokens = self.held_tokens.saturating_add(claim.tokens);
        self.held_calls += 1;
        if let Some(bucket) = &mut self.requests {
            bucket.take(1);
        }
        if let Some(bucket) = &mut self.tokens_bucket {
            bucket.take(claim.tokens);
        }
    }

    fn release(&mut self, claim: Claim) {
        self.used.held = self.used.held.minus(claim.money);
        self.held_tokens = self.held_tokens.saturating_sub(claim.tokens);
        self.held_calls = self.held_calls.saturating_sub(1);
    }

    /// As if it had never been: nothing was written, so nothing may be sent.
    pub(super) fn undo(&mut self, claim: Claim) {
        self.release(claim);
        self.used.calls = self.used.calls.saturating_sub(1);
        if let Some(bucket) = &mut self.requests {
            bucket.give_back(1);
        }
        if let Some(bucket) = &mut self.tokens_bucket {
            bucket.give_back(claim.tokens);
        }
    }

    pub(super) fn settle(&mut self, claim: Claim, outcome: &Outcome) {
        self.release(claim);
        let usage = &outcome.usage;
        let tokens = if outcome.source == Source::Reserved {
            claim.tokens
        } else {
            usage.tokens()
        };
        self.tokens = self.tokens.saturating_add(tokens);
        self.used.input_tokens = self.used.input_tokens.saturating_add(usage.input_tokens());
        self.used.output_tokens = self
            .used
            .output_tokens
            .saturating_add(usage.output_tokens());
        self.used.cached_tokens = self.used.cached_tokens.saturating_add(usage.cache_read);
        self.used.money = self.used.money.plus(outcome.money);
        self.used.overrun = self.used.overrun.plus(outcome.overrun);
        self.day_money = self.day_money.plus(outcome.money);
        if let Some(bucket) = &mut self.tokens_bucket {
            bucket.give_back(claim.tokens.saturating_sub(tokens));
            bucket.take(tokens.saturating_sub(claim.tokens));
        }
    }
}

impl Level {
    fn name(self, run: &'static str, session: &'static str, tenant: &'static str) -> &'static str {
        match self {
            Level::Run => run,
            Level::Session => session,
            Level::Tenant => tenant,
        }
    }
}
