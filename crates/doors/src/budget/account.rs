//! State of one budget account: usage, reservations, limits, and which limit is the nearest.

use super::{
    AccountLevel, AccountLimits, AccountUsage, Amount, BudgetRefusal, DailyBudget,
    clock::ClockTime, rate_limit::TokenBucket,
};
use crate::ledger::{CallOutcome, PastUsage};
use crate::usage::UsageSource;
use spec::Money;

#[derive(Debug)]
pub(super) struct AccountState {
    pub(super) limits: AccountLimits,
    /// Number of `BudgetAccount` handles.
    pub(super) handles: usize,
    pub(super) used: AccountUsage,
    /// Tokens spent; a lost reservation counts in full.
    tokens: u64,
    held_tokens: u64,
    held_calls: u32,
    day: u64,
    day_money: Money,
    requests: Option<TokenBucket>,
    token_rate: Option<TokenBucket>,
}

/// The limit with the least left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NearestLimit {
    pub(super) left: u64,
    limit: &'static str,
    /// More becomes available when calls in flight are settled.
    held: bool,
    resets_in: Option<u64>,
}

impl NearestLimit {
    /// The refusal of a call that does not fit; `money` is what is left.
    pub(super) fn refusal(&self, money: Option<Money>) -> BudgetRefusal {
        if self.held {
            BudgetRefusal::Busy {
                limit: self.limit,
                wait: 1,
            }
        } else {
            BudgetRefusal::Spent {
                limit: self.limit,
                left: money,
                resets_in: self.resets_in,
            }
        }
    }
}

impl AccountState {
    pub(super) fn new(limits: AccountLimits, past: PastUsage, now: ClockTime) -> AccountState {
        let bucket = |rate: Option<u64>| rate.map(|rate| TokenBucket::new(rate, now));
        let requests = bucket(limits.requests_per_minute);
        let token_rate = bucket(limits.tokens_per_minute);
        let used = AccountUsage {
            calls: past.calls,
            input_tokens: past.input_tokens,
            output_tokens: past.output_tokens,
            cached_tokens: past.cached_tokens,
            money: past.money,
            overrun: past.overrun,
            held: Money::ZERO,
        };
        // A day in the future was recorded under a wrong clock: count it as today.
        let day_money = if past.day >= now.day() {
            past.day_money
        } else {
            Money::ZERO
        };
        AccountState {
            limits,
            handles: 0,
            used,
            tokens: past.tokens,
            held_tokens: 0,
            held_calls: 0,
            day: now.day(),
            day_money,
            requests,
            token_rate,
        }
    }

    /// Replaces the limits of an open account. A rate that does not change keeps the fill level of
    /// its bucket.
    pub(super) fn update_limits(&mut self, limits: AccountLimits, now: ClockTime) {
        let renew = |bucket: &mut Option<TokenBucket>, rate: Option<u64>| {
            if bucket.as_ref().map(TokenBucket::rate) != rate {
                *bucket = rate.map(|rate| TokenBucket::new(rate, now));
            }
        };
        renew(&mut self.requests, limits.requests_per_minute);
        renew(&mut self.token_rate, limits.tokens_per_minute);
        // A run or session that shares an account can only narrow its budget; the limits of a
        // tenant are the operator's to set.
        let budget = match limits.level {
            AccountLevel::Run | AccountLevel::Session => limits.budget.within(&self.limits.budget),
            AccountLevel::Tenant => limits.budget.clone(),
        };
        self.limits = AccountLimits { budget, ..limits };
    }

    pub(super) fn advance_to(&mut self, now: ClockTime) {
        if now.day() > self.day {
            self.day = now.day();
            self.day_money = Money::ZERO;
        }
        self.requests
            .iter_mut()
            .chain(&mut self.token_rate)
            .for_each(|bucket| bucket.refill(now));
    }

    pub(super) fn daily_budget(&self, now: ClockTime) -> DailyBudget {
        let limit = self.limits.day;
        let spent = self.day_money;
        let held = self.used.held;
        DailyBudget {
            limit,
            spent,
            held,
            resets_in: now.seconds_until_midnight(),
        }
    }

    /// The money limit with the least left.
    pub(super) fn nearest_money_limit(&self, now: ClockTime) -> Option<NearestLimit> {
        let level = self.limits.level;
        let held = self.used.held;
        let left = |limit: Money, spent: Money| limit.minus(spent).minus(held).0;
        let total = self.limits.budget.money.map(|limit| NearestLimit {
            left: left(limit, self.used.money),
            limit: level.name("run_usd", "session_usd", "tenant_usd"),
            held: held > Money::ZERO && limit > self.used.money,
            resets_in: None,
        });
        let day = self.limits.day.map(|limit| NearestLimit {
            left: left(limit, self.day_money),
            limit: level.name("run_day_usd", "session_day_usd", "tenant_day_usd"),
            held: held > Money::ZERO && limit > self.day_money,
            resets_in: Some(now.seconds_until_midnight()),
        });
        let call = self.limits.budget.call.map(|limit| NearestLimit {
            left: limit.0,
            limit: "call_usd",
            held: false,
            resets_in: None,
        });
        total.into_iter().chain(day).chain(call).min()
    }

    /// The token limit with the least left.
    pub(super) fn nearest_token_limit(&self) -> Option<NearestLimit> {
        let total = self.limits.budget.tokens.map(|limit| NearestLimit {
            left: limit
                .saturating_sub(self.tokens)
                .saturating_sub(self.held_tokens),
            limit: self.limits.level.name("tokens", "tokens", "tenant_tokens"),
            held: self.held_tokens > 0 && limit > self.tokens,
            resets_in: None,
        });
        let minute = self.token_rate.as_ref().map(|bucket| NearestLimit {
            left: bucket.rate(),
            limit: self.limits.level.name(
                "tokens_per_minute",
                "tokens_per_minute",
                "tenant_tokens_per_minute",
            ),
            held: false,
            resets_in: None,
        });
        total.into_iter().chain(minute).min()
    }

    /// The refusal if the number of requests is used up for good.
    pub(super) fn exhausted_requests(&self) -> Option<BudgetRefusal> {
        let limit = self
            .limits
            .level
            .name("requests", "requests", "tenant_requests");
        let spent = self
            .limits
            .budget
            .requests
            .is_some_and(|most| self.used.calls >= most);
        spent.then_some(BudgetRefusal::Spent {
            limit,
            left: None,
            resets_in: None,
        })
    }

    /// The refusal by a concurrency or rate limit; it goes away by itself.
    pub(super) fn rate_limit_refusal(&self, amount: Amount) -> Option<BudgetRefusal> {
        let level = self.limits.level;
        let busy = |limit, wait| (wait > 0).then_some(BudgetRefusal::Busy { limit, wait });
        let crowded = self
            .limits
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
                self.requests
                    .as_ref()
                    .map_or(0, |bucket| bucket.seconds_until(1)),
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
                self.token_rate
                    .as_ref()
                    .map_or(0, |bucket| bucket.seconds_until(amount.tokens)),
            )
        })
    }

    pub(super) fn reserve(&mut self, amount: Amount) {
        self.used.calls += 1;
        self.used.held = self.used.held.plus(amount.money);
        self.held_tokens = self.held_tokens.saturating_add(amount.tokens);
        self.held_calls += 1;
        if let Some(bucket) = &mut self.requests {
            bucket.take(1);
        }
        if let Some(bucket) = &mut self.token_rate {
            bucket.take(amount.tokens);
        }
    }

    fn release(&mut self, amount: Amount) {
        self.used.held = self.used.held.minus(amount.money);
        self.held_tokens = self.held_tokens.saturating_sub(amount.tokens);
        self.held_calls = self.held_calls.saturating_sub(1);
    }

    /// Undoes a reservation whose record could not be written: no request may be sent for it.
    pub(super) fn roll_back(&mut self, amount: Amount) {
        self.release(amount);
        self.used.calls = self.used.calls.saturating_sub(1);
        if let Some(bucket) = &mut self.requests {
            bucket.put_back(1);
        }
        if let Some(bucket) = &mut self.token_rate {
            bucket.put_back(amount.tokens);
        }
    }

    pub(super) fn settle(&mut self, amount: Amount, outcome: &CallOutcome) {
        self.release(amount);
        let usage = &outcome.usage;
        let tokens = if outcome.source == UsageSource::Reserved {
            amount.tokens
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
        if let Some(bucket) = &mut self.token_rate {
            bucket.put_back(amount.tokens.saturating_sub(tokens));
            bucket.take(tokens.saturating_sub(amount.tokens));
        }
    }
}

impl AccountLevel {
    fn name(self, run: &'static str, session: &'static str, tenant: &'static str) -> &'static str {
        match self {
            AccountLevel::Run => run,
            AccountLevel::Session => session,
            AccountLevel::Tenant => tenant,
        }
    }
}
