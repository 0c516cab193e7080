//! Money that holds: reserve the worst case, settle the real one. All levels (session, tenant, day) or none.
//!
//! ```text
//! reserve: room of all levels ─▶ claim ─▶ held on all levels ─▶ written ─▶ Hold      (else nothing is held)
//! settle:  Hold ─▶ written ─▶ no longer held, but spent                              (dropped: all of it spent)
//! ```

mod clock;
mod state;

use crate::ledger::{Call, Ledger, Outcome, Past};
use crate::usage::Source;
use clock::{Clock, Now};
use spec::{Budget, Money};
use state::State;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

/// Stands for every tenant that is not named; no tenant can be called so.
pub const OTHERS: &str = "*";

/// Accounts and the ledger they are written to. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Till {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where it began: its past counts, and it is owned as long as anybody spends.
    first: Arc<Ledger>,
    /// Where it writes now.
    ledger: RwLock<Arc<Ledger>>,
    clock: Clock,
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    last: u64,
    states: HashMap<u64, State>,
    names: HashMap<(Level, String), u64>,
}

/// One account: a run, a session, a tenant. Open as long as somebody has it or a call of it is under way.
#[derive(Clone, Debug)]
pub struct Account {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    id: u64,
    above: Option<Account>,
    inner: Arc<Inner>,
}

/// What an account and those above it still have. `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Room {
    pub money: Option<Money>,
    pub tokens: Option<u64>,
}

/// The worst case of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Claim {
    pub money: Money,
    pub tokens: u64,
}

/// Why nothing was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// For good, or until the named window ends: `run_usd`, `tokens`, `requests`, `tenant_day_usd`, …
    Spent {
        /// Which limit.
        limit: &'static str,
        /// What is left of the money.
        left: Option<Money>,
        /// Seconds until it begins anew.
        resets_in: Option<u64>,
    },
    /// Too many at once, or in this minute, or calls under way hold what is left: trying again helps.
    Busy {
        /// Which limit.
        limit: &'static str,
        /// Seconds to wait.
        wait: u64,
    },
    /// The ledger cannot be written, so nothing may be spent.
    Ledger(String),
}

/// What an account has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Used {
    pub calls: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub money: Money,
    pub overrun: Money,
    /// Held by calls under way.
    pub held: Money,
}

/// How it stands with an account's day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Day {
    pub limit: Option<Money>,
    pub spent: Money,
    /// Held by calls under way; what of it is not spent comes back.
    pub held: Money,
    /// Seconds until it begins anew.
    pub resets_in: u64,
}

impl Day {
    /// Nothing is left of it, whatever calls under way give back.
    pub fn is_spent(&self) -> bool {
        self.limit.is_some_and(|limit| self.spent >= limit)
    }
}

/// The terms of a tenant among these: its own, else those of `*`.
pub fn terms_of(tenants: &BTreeMap<String, Terms>, name: &str) -> Option<Terms> {
    let terms = tenants.get(name).or_else(|| tenants.get(OTHERS))?;
    Some(Terms {
        level: Level::Tenant,
        name: name.to_owned(),
        ..terms.clone()
    })
}

/// A reservation, written down. Dropped without being settled it counts in full.
#[derive(Debug)]
pub struct Hold {
    /// What was reserved.
    pub claim: Claim,
    account: Account,
    /// Where it was written, and is settled.
    ledger: Arc<Ledger>,
    number: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not yet in the hands of the caller: given up, it cost nothing.
    Written,
    /// The provider may have been called.
    Given,
    Settled,
}

/// What an account stands for; names in refusals, and which past it goes on from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Level {
    #[default]
    Run,
    Session,
    /// Stays open: its day goes on without it.
    Tenant,
}

/// An account's name and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Terms {
    pub level: Level,
    pub name: String,
    pub budget: Budget,
    /// Of each day (UTC).
    pub day: Option<Money>,
    /// Requests in each minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens in each minute.
    pub tokens_per_minute: Option<u64>,
}

impl Till {
    /// A till that writes to this ledger.
    pub fn new(ledger: Arc<Ledger>) -> Till {
        Till::with_clock(ledger, Clock::real())
    }

    fn with_clock(ledger: Arc<Ledger>, clock: Clock) -> Till {
        Till {
            inner: Arc::new(Inner {
                first: ledger.clone(),
                ledger: RwLock::new(ledger),
                clock,
                accounts: Mutex::default(),
            }),
        }
    }

    /// Where it writes.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.inner
            .ledger
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Writes what begins from now on to another ledger. What is under way ends in the one before, which is closed when
    /// nobody has it any more.
    pub fn write_to(&self, ledger: Arc<Ledger>) {
        let mut place = self
            .inner
            .ledger
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, ledger);
        drop(place);
        // Behind the lock: to close it takes a write.
        drop(before);
    }

    /// Opens an account below another. What recovery found spent under this name is spent. One that is open under this
    /// level and name is shared, and has these terms from now on.
    pub fn account(&self, terms: Terms, above: Option<&Account>) -> Account {
        let now = self.inner.clock.now();
        let past = self.inner.past(&terms);
        let mut guard = self.inner.accounts();
        let accounts = &mut *guard;
        let key = (terms.level, terms.name.clone());
        let known = accounts
            .names
            .get(&key)
            .copied()
            .filter(|_| !terms.name.is_empty());
        let id = known.unwrap_or(accounts.last + 1);
        accounts.last = accounts.last.max(id);
        if !terms.name.is_empty() {
            accounts.names.insert(key, id);
        }
        let state = accounts
            .states
            .entry(id)
            .or_insert_with(|| State::new(terms.clone(), past, now));
        state.agree(terms, now);
        state.handles += 1;
        drop(guard);
        Account {
            handle: Arc::new(Handle {
                id,
                above: above.cloned(),
                inner: Arc::clone(&self.inner),
            }),
        }
    }

    /// Reserves what `worst` says is the worst case, given the room there is; the record is written when this
    /// returns. `worst` may claim less than it wished (a lower cap of output), or nothing at all. One lock: of many
    /// at once, each sees what the others hold.
    pub async fn reserve(
        &self,
        account: &Account,
        call: Call,
        worst: impl FnOnce(Room) -> Option<Claim> + Send,
    ) -> Result<Hold, Refused> {
        let claim = self.inner.hold(account, worst)?;
        let ledger = self.ledger();
        let number = ledger
            .reserve(&call, claim.money, claim.tokens)
            .map_err(|error| {
                self.inner.each(account, |state| state.undo(claim));
                Refused::Ledger(error.to_string())
            })?;
        let mut hold = Hold {
            claim,
            account: account.clone(),
            ledger,
            number,
            phase: Phase::Written,
        };
        let lasting = hold.ledger.lasting(number).await;
        lasting.map_err(|error| Refused::Ledger(error.to_string()))?;
        hold.phase = Phase::Given;
        Ok(hold)
    }

    /// How it stands with an account's day.
    pub fn day(&self, account: &Account) -> Day {
        let now = self.inner.clock.now();
        let mut accounts = self.inner.accounts();
        let Some(state) = accounts.states.get_mut(&account.handle.id) else {
            return Day::default();
        };
        state.pass_time(now);
        state.day(now)
    }

    /// What an account has used.
    pub fn used(&self, account: &Account) -> Used {
        self.inner
            .accounts()
            .states
            .get(&account.handle.id)
            .map(|state| state.used)
            .unwrap_or_default()
    }
}

/// A till that stays with this ledger.
impl From<Arc<Ledger>> for Till {
    fn from(ledger: Arc<Ledger>) -> Till {
        Till::new(ledger)
    }
}

impl Inner {
    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past(&self, terms: &Terms) -> Past {
        let found = self.first.found();
        match terms.level {
            // A run begins anew, whoever had its name before.
            Level::Run => Past::default(),
            Level::Session => found.sessions.get(&terms.name).copied().unwrap_or_default(),
            Level::Tenant => found.tenants.get(&terms.name).copied().unwrap_or_default(),
        }
    }

    /// Decides under one lock, and holds what is claimed on every level.
    fn hold(
        &self,
        account: &Account,
        worst: impl FnOnce(Room) -> Option<Claim>,
    ) -> Result<Claim, Refused> {
        let now = self.clock.now();
        let mut accounts = self.accounts();
        accounts.each(account, |state| state.pass_time(now));
        let claim = accounts.decide(account, now, worst)?;
        accounts.each(account, |state| state.hold(claim));
        Ok(claim)
    }

    fn each(&self, account: &Account, change: impl FnMut(&mut State)) {
        self.accounts().each(account, change);
    }
}

impl Accounts {
    fn each(&mut self, account: &Account, mut change: impl FnMut(&mut State)) {
        for level in account.levels() {
            if let Some(state) = self.states.get_mut(&level.handle.id) {
                change(state);
            }
        }
    }

    fn decide(
        &self,
        account: &Account,
        now: Now,
        worst: impl FnOnce(Room) -> Option<Claim>,
    ) -> Result<Claim, Refused> {
        let levels = || {
            account
                .levels()
                .filter_map(|level| self.states.get(&level.handle.id))
        };
        if let Some(refused) = levels().find_map(State::spent_requests) {
            return Err(refused);
        }
        let money = levels().filter_map(|state| state.money(now)).min();
        let tokens = levels().filter_map(State::tokens).min();
        let room = Room {
            money: money.map(|tight| Money(tight.left)),
            tokens: tokens.map(|tight| tight.left),
        };
        let claim = worst(room);
        let short = match claim {
            Some(claim) => money
                .filter(|tight| claim.money.0 > tight.left)
                .or_else(|| tokens.filter(|tight| claim.tokens > tight.left)),
            // It does not say for want of what: name what is gone.
            None => tokens.filter(|tight| tight.left == 0).or(money).or(tokens),
        };
        match (claim, short) {
            (_, Some(tight)) => Err(tight.refusal(room.money)),
            (None, None) => Err(Refused::Spent {
                limit: "call",
                left: None,
                resets_in: None,
            }),
            (Some(claim), None) => match levels().find_map(|state| state.busy(claim)) {
                Some(refused) => Err(refused),
                None => Ok(claim),
            },
        }
    }
}

impl Account {
    /// This one and those above it.
    fn levels(&self) -> impl Iterator<Item = &Account> {
        std::iter::successors(Some(self), |account| account.handle.above.as_ref())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut accounts = self.inner.accounts();
        let Some(state) = accounts.states.get_mut(&self.id) else {
            return;
        };
        state.handles -= 1;
        if state.handles > 0 || state.terms.level == Level::Tenant {
            return;
        }
        let key = (state.terms.level, std::mem::take(&mut state.terms.name));
        accounts.states.remove(&self.id);
        if accounts.names.get(&key) == Some(&self.id) {
            accounts.names.remove(&key);
        }
    }
}

impl Hold {
    /// The real bill instead of the worst one. What goes beyond the claim is written as overrun.
    pub fn settle(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn finish(&mut self, mut outcome: Outcome) {
        self.phase = Phase::Settled;
        if outcome.source == Source::Reserved {
            outcome.money = self.claim.money;
        }
        outcome.overrun = outcome.money.minus(self.claim.money);
        let inner = &self.account.handle.inner;
        if self.ledger.settle(self.number, &outcome).is_err() {
            // In the ledger it stays open, so that it counts in full there: here, too.
            outcome.money = outcome.money.max(self.claim.money);
        }
        let now = inner.clock.now();
        inner.each(&self.account, |state| {
            // First: what is spent after midnight is spent on the new day.
            state.pass_time(now);
            state.settle(self.claim, &outcome);
        });
        self.ledger.flush_soon();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let nothing = Outcome {
            source: Source::Final,
            ..Outcome::unknown(Money::ZERO, "not_sent")
        };
        match self.phase {
            Phase::Written => self.finish(nothing),
            Phase::Given => self.finish(Outcome::unknown(self.claim.money, "dropped")),
            Phase::Settled => {}
        }
    }
}

#[cfg(test)]
#[path = "till_tests.rs"]
mod tests;
