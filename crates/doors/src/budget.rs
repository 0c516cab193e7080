//! Budgets: reserves the worst-case cost of a call before it is sent, and settles the real cost
//! afterwards. A call is charged to all levels (run or session, tenant, day) or to none.
//!
//! ```text
//! reserve: remaining on all levels ─▶ amount ─▶ held on all levels ─▶ recorded ─▶ Reservation   (else nothing is held)
//! settle:  Reservation ─▶ recorded ─▶ released, and spent                                       (dropped: all of it spent)
//! ```

mod account;
mod clock;
mod rate_limit;

use crate::ledger::{CallOutcome, Ledger, ModelCall, PastUsage};
use crate::usage::UsageSource;
use account::AccountState;
use clock::{Clock, ClockTime};
use spec::{Budget, Money};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// The entry of the configuration for tenants that are not named; no tenant can have this name.
pub const DEFAULT_TENANT: &str = "*";
/// Why nothing is spent on a full disk.
const FULL: &str = "the disk of this server is full";

/// Budget accounts and the ledger that records their calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BudgetManager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The ledger that the manager started with: holds the usage of earlier processes, and its lock
    /// is the ownership of the budget.
    first: Arc<Ledger>,
    /// The ledger that new reservations are written to.
    ledger: RwLock<Arc<Ledger>>,
    clock: Clock,
    /// Whether the disk has no more room for new reservations.
    is_full: OnceLock<Arc<AtomicBool>>,
    accounts: Mutex<AccountTable>,
}

#[derive(Debug, Default)]
struct AccountTable {
    last: u64,
    accounts: HashMap<u64, AccountState>,
    ids_by_name: HashMap<(AccountLevel, String), u64>,
}

/// A budget account of a run, a session or a tenant. It stays open while a handle exists or a call
/// is in flight.
#[derive(Clone, Debug)]
pub struct BudgetAccount {
    handle: Arc<AccountHandle>,
}

#[derive(Debug)]
struct AccountHandle {
    id: u64,
    parent: Option<BudgetAccount>,
    inner: Arc<Inner>,
}

/// What an account and its parents have left. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemainingBudget {
    /// Money.
    pub money: Option<Money>,
    /// Tokens.
    pub tokens: Option<u64>,
}

/// An amount of money and tokens: the worst case of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Money.
    pub money: Money,
    /// Tokens.
    pub tokens: u64,
}

/// Why a reservation was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetRefusal {
    /// The limit is exhausted, for good or until its window ends: `run_usd`, `tokens`, `requests`,
    /// `tenant_day_usd`, …
    Spent {
        /// Name of the limit.
        limit: &'static str,
        /// Money that is left.
        left: Option<Money>,
        /// Seconds until the window resets.
        resets_in: Option<u64>,
    },
    /// Rate limit, concurrency limit, or money held by calls in flight: a retry can succeed.
    Busy {
        /// Name of the limit.
        limit: &'static str,
        /// Seconds to wait before a retry.
        wait: u64,
    },
    /// The ledger cannot be written, so no call is allowed.
    Ledger(String),
}

/// Usage of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountUsage {
    /// Number of calls.
    pub calls: u64,
    /// Input tokens, cached ones included.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens that were read from a cache.
    pub cached_tokens: u64,
    /// Cost of all settled calls.
    pub money: Money,
    /// The part of the cost beyond the reservations.
    pub overrun: Money,
    /// Reserved by calls in flight.
    pub held: Money,
}

/// An account's budget of the current day (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DailyBudget {
    /// The limit, if there is one.
    pub limit: Option<Money>,
    /// Spent today.
    pub spent: Money,
    /// Reserved by calls in flight; the unspent part is released.
    pub held: Money,
    /// Seconds until the day ends.
    pub resets_in: u64,
}

impl DailyBudget {
    /// Whether the day's budget is exhausted, whatever calls in flight release.
    pub fn is_spent(&self) -> bool {
        self.limit.is_some_and(|limit| self.spent >= limit)
    }
}

/// The limits of a tenant: its own entry, else that of `*`.
pub fn limits_for_tenant(
    tenants: &BTreeMap<String, AccountLimits>,
    name: &str,
) -> Option<AccountLimits> {
    let limits = tenants.get(name).or_else(|| tenants.get(DEFAULT_TENANT))?;
    Some(AccountLimits {
        level: AccountLevel::Tenant,
        name: name.to_owned(),
        ..limits.clone()
    })
}

/// A reservation that is recorded in the ledger. If it is dropped without being settled, it counts
/// in full.
#[derive(Debug)]
pub struct Reservation {
    /// The reserved amount.
    pub amount: Amount,
    account: BudgetAccount,
    /// The ledger that recorded the reservation; it is settled there, too.
    ledger: Arc<Ledger>,
    number: u64,
    phase: ReservationState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationState {
    /// Recorded, but the caller has not got it yet: cancelled now, it costs nothing.
    Written,
    /// Handed to the caller: the provider may have been called.
    Given,
    Settled,
}

/// What an account belongs to. Decides the names of limits in refusals, and which past usage the
/// account continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AccountLevel {
    /// One run.
    #[default]
    Run,
    /// A session of several runs or calls.
    Session,
    /// Its account is never closed: the budget of the day outlives the handles.
    Tenant,
}

/// Name and limits of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountLimits {
    /// What the account belongs to.
    pub level: AccountLevel,
    /// Name of the run, session or tenant; an account without a name is never shared.
    pub name: String,
    /// Limits over the whole lifetime.
    pub budget: Budget,
    /// Money per day (UTC).
    pub day: Option<Money>,
    /// Requests per minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens per minute.
    pub tokens_per_minute: Option<u64>,
}

impl BudgetManager {
    /// A manager that writes to this ledger.
    pub fn new(ledger: Arc<Ledger>) -> BudgetManager {
        BudgetManager::with_clock(ledger, Clock::real())
    }

    fn with_clock(ledger: Arc<Ledger>, clock: Clock) -> BudgetManager {
        BudgetManager {
            inner: Arc::new(Inner {
                first: ledger.clone(),
                ledger: RwLock::new(ledger),
                clock,
                is_full: OnceLock::new(),
                accounts: Mutex::default(),
            }),
        }
    }

    /// The ledger that new reservations are written to.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.inner
            .ledger
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Refuses reservations while this is set: the disk has no more room. Calls in flight are settled.
    pub fn spend_nothing_while(&self, is_full: Arc<AtomicBool>) {
        // The server that opens the doors sets it once.
        _ = self.inner.is_full.set(is_full);
    }

    /// Whether nothing new may be written.
    pub(crate) fn is_full(&self) -> bool {
        let is_full = self.inner.is_full.get();
        is_full.is_some_and(|is_full| is_full.load(Ordering::SeqCst))
    }

    /// Switches new reservations to another ledger. Calls in flight settle in the previous one,
    /// which is closed when its last user drops it.
    pub fn switch_ledger(&self, ledger: Arc<Ledger>) {
        let mut place = self
            .inner
            .ledger
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, ledger);
        drop(place);
        // Outside the lock: closing a ledger writes to disk.
        drop(before);
    }

    /// Opens an account below a parent. It starts with the usage that recovery found under this
    /// name. An account that is already open under the same level and name is shared, and gets
    /// these limits.
    pub fn open_account(
        &self,
        limits: AccountLimits,
        parent: Option<&BudgetAccount>,
    ) -> BudgetAccount {
        let now = self.inner.clock.now();
        let past = self.inner.past(&limits);
        let mut guard = self.inner.accounts();
        let accounts = &mut *guard;
        let key = (limits.level, limits.name.clone());
        let known = accounts
            .ids_by_name
            .get(&key)
            .copied()
            .filter(|_| !limits.name.is_empty());
        let id = known.unwrap_or(accounts.last + 1);
        accounts.last = accounts.last.max(id);
        if !limits.name.is_empty() {
            accounts.ids_by_name.insert(key, id);
        }
        let state = accounts
            .accounts
            .entry(id)
            .or_insert_with(|| AccountState::new(limits.clone(), past, now));
        state.update_limits(limits, now);
        state.handles += 1;
        drop(guard);
        BudgetAccount {
            handle: Arc::new(AccountHandle {
                id,
                parent: parent.cloned(),
                inner: Arc::clone(&self.inner),
            }),
        }
    }

    /// Reserves the amount that `ceiling` returns for the remaining budget; the record is written
    /// when this returns. `ceiling` may ask for less than it would like (a lower output limit), or
    /// for nothing at all. All levels are checked and charged under one lock, so concurrent calls
    /// see each other's reservations.
    pub async fn reserve(
        &self,
        account: &BudgetAccount,
        call: ModelCall,
        ceiling: impl FnOnce(RemainingBudget) -> Option<Amount> + Send,
    ) -> Result<Reservation, BudgetRefusal> {
        if self.is_full() {
            return Err(BudgetRefusal::Ledger(FULL.to_owned()));
        }
        let amount = self.inner.reserve_in_memory(account, ceiling)?;
        let ledger = self.ledger();
        let number = ledger
            .reserve(&call, amount.money, amount.tokens)
            .map_err(|error| {
                self.inner
                    .for_each_level(account, |state| state.roll_back(amount));
                BudgetRefusal::Ledger(error.to_string())
            })?;
        let mut reservation = Reservation {
            amount,
            account: account.clone(),
            ledger,
            number,
            phase: ReservationState::Written,
        };
        let lasting = reservation.ledger.wait_durable(number).await;
        lasting.map_err(|error| BudgetRefusal::Ledger(error.to_string()))?;
        reservation.phase = ReservationState::Given;
        Ok(reservation)
    }

    /// The account's budget of the current day.
    pub fn daily_budget(&self, account: &BudgetAccount) -> DailyBudget {
        let now = self.inner.clock.now();
        let mut accounts = self.inner.accounts();
        let Some(state) = accounts.accounts.get_mut(&account.handle.id) else {
            return DailyBudget::default();
        };
        state.advance_to(now);
        state.daily_budget(now)
    }

    /// The account's usage.
    pub fn usage(&self, account: &BudgetAccount) -> AccountUsage {
        self.inner
            .accounts()
            .accounts
            .get(&account.handle.id)
            .map(|state| state.used)
            .unwrap_or_default()
    }
}

/// A manager that never switches its ledger.
impl From<Arc<Ledger>> for BudgetManager {
    fn from(ledger: Arc<Ledger>) -> BudgetManager {
        BudgetManager::new(ledger)
    }
}

impl Inner {
    fn accounts(&self) -> MutexGuard<'_, AccountTable> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past(&self, limits: &AccountLimits) -> PastUsage {
        let found = self.first.recovered_usage();
        match limits.level {
            // A run starts from zero, whatever had its name before.
            AccountLevel::Run => PastUsage::default(),
            AccountLevel::Session => found
                .sessions
                .get(&limits.name)
                .copied()
                .unwrap_or_default(),
            AccountLevel::Tenant => found.tenants.get(&limits.name).copied().unwrap_or_default(),
        }
    }

    /// Checks all levels and adds the amount to each of them, under one lock.
    fn reserve_in_memory(
        &self,
        account: &BudgetAccount,
        ceiling: impl FnOnce(RemainingBudget) -> Option<Amount>,
    ) -> Result<Amount, BudgetRefusal> {
        let now = self.clock.now();
        let mut accounts = self.accounts();
        accounts.for_each_level(account, |state| state.advance_to(now));
        let amount = accounts.decide(account, now, ceiling)?;
        accounts.for_each_level(account, |state| state.reserve(amount));
        Ok(amount)
    }

    fn for_each_level(&self, account: &BudgetAccount, change: impl FnMut(&mut AccountState)) {
        self.accounts().for_each_level(account, change);
    }
}

impl AccountTable {
    fn for_each_level(
        &mut self,
        account: &BudgetAccount,
        mut change: impl FnMut(&mut AccountState),
    ) {
        for level in account.levels() {
            if let Some(state) = self.accounts.get_mut(&level.handle.id) {
                change(state);
            }
        }
    }

    fn decide(
        &self,
        account: &BudgetAccount,
        now: ClockTime,
        ceiling: impl FnOnce(RemainingBudget) -> Option<Amount>,
    ) -> Result<Amount, BudgetRefusal> {
        let levels = || {
            account
                .levels()
                .filter_map(|level| self.accounts.get(&level.handle.id))
        };
        if let Some(refused) = levels().find_map(AccountState::exhausted_requests) {
            return Err(refused);
        }
        let money = levels()
            .filter_map(|state| state.nearest_money_limit(now))
            .min();
        let tokens = levels().filter_map(AccountState::nearest_token_limit).min();
        let room = RemainingBudget {
            money: money.map(|nearest| Money(nearest.left)),
            tokens: tokens.map(|nearest| nearest.left),
        };
        let amount = ceiling(room);
        let short = match amount {
            Some(amount) => money
                .filter(|nearest| amount.money.0 > nearest.left)
                .or_else(|| tokens.filter(|nearest| amount.tokens > nearest.left)),
            // The ceiling does not say which limit was too low: name the one that is exhausted.
            None => tokens
                .filter(|nearest| nearest.left == 0)
                .or(money)
                .or(tokens),
        };
        match (amount, short) {
            (_, Some(nearest)) => Err(nearest.refusal(room.money)),
            (None, None) => Err(BudgetRefusal::Spent {
                limit: "call",
                left: None,
                resets_in: None,
            }),
            (Some(amount), None) => {
                match levels().find_map(|state| state.rate_limit_refusal(amount)) {
                    Some(refused) => Err(refused),
                    None => Ok(amount),
                }
            }
        }
    }
}

impl BudgetAccount {
    /// This account and its parents.
    fn levels(&self) -> impl Iterator<Item = &BudgetAccount> {
        std::iter::successors(Some(self), |account| account.handle.parent.as_ref())
    }
}

impl Drop for AccountHandle {
    fn drop(&mut self) {
        let mut accounts = self.inner.accounts();
        let Some(state) = accounts.accounts.get_mut(&self.id) else {
            return;
        };
        state.handles -= 1;
        if state.handles > 0 || state.limits.level == AccountLevel::Tenant {
            return;
        }
        let key = (state.limits.level, std::mem::take(&mut state.limits.name));
        accounts.accounts.remove(&self.id);
        if accounts.ids_by_name.get(&key) == Some(&self.id) {
            accounts.ids_by_name.remove(&key);
        }
    }
}

impl Reservation {
    /// Replaces the reserved amount by the real cost. Cost beyond the reservation is recorded as
    /// overrun.
    pub fn settle(mut self, outcome: CallOutcome) {
        self.finish(outcome);
    }

    fn finish(&mut self, mut outcome: CallOutcome) {
        self.phase = ReservationState::Settled;
        outcome = outcome.within_bounds();
        if outcome.source == UsageSource::Reserved {
            outcome.money = self.amount.money;
        }
        outcome.overrun = outcome.money.minus(self.amount.money);
        let inner = &self.account.handle.inner;
        if self.ledger.settle(self.number, &outcome).is_err() {
            // In the ledger the reservation stays open and counts in full, so it must count in full
            // here, too.
            outcome.money = outcome.money.max(self.amount.money);
        }
        let now = inner.clock.now();
        inner.for_each_level(&self.account, |state| {
            // First, so that a call which ends after midnight is charged to the new day.
            state.advance_to(now);
            state.settle(self.amount, &outcome);
        });
        self.ledger.flush_soon();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let nothing = CallOutcome {
            source: UsageSource::Final,
            ..CallOutcome::unknown(Money::ZERO, "not_sent")
        };
        match self.phase {
            ReservationState::Written => self.finish(nothing),
            ReservationState::Given => {
                self.finish(CallOutcome::unknown(self.amount.money, "dropped"))
            }
            ReservationState::Settled => {}
        }
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
